//! Deficit round robin (Shreedhar and Varghese, 1995) among the ports of a worker.
//!
//! ```text
//!   round:   port 1 | port 2            | port 3 | port 1 | ...
//!   turn:    ring a | ring a  b  b  c   |  (owes)         visits, until the port's credit is spent or its rings are empty
//! ```
//!
//! Each round gives each port the same credit. Its turn lasts until the cost of its visits exceeds its credit; the
//! excess is subtracted from its next turns. So ports that always have packets get equal shares of a worker, for any
//! number of rings and any cost per packet. Credit is not saved. Debts stay while other ports have packets.

use lasthop_module_api::{PortId, RingId};

/// Cost of a port's turn at its worker while other ports have packets: some 30 us. A visit is always finished; its
/// excess is subtracted from the next turns.
pub const TURN_COST: i64 = 256 << 10;
/// Rounds after which every debt counts as paid, since no other port had packets.
const ROUNDS_FOR_ALL: u64 = 1 << 32;

/// The result of a visit to a ring.
#[derive(Clone, Copy, Debug, Default)]
pub struct Visited {
    /// Packets taken.
    pub packets: usize,
    /// Whether the ring has more that could be taken at once.
    pub more: bool,
    /// Cost of the port's packets since the last call; a byte that could be copied in the same time, at about 10 per ns.
    pub cost: u64,
}

/// A transmit ring that is visited without being kicked.
#[derive(Clone, Copy, Debug)]
pub struct ActiveRing {
    /// The ring.
    pub ring: RingId,
    /// The time at which it last yielded a packet.
    pub worked_ns: u64,
}

/// A port's remaining credit after a given round.
#[derive(Clone, Copy, Debug, Default)]
struct PortCredit {
    credit: i64,
    round: u64,
    /// The index of its ring that is visited first.
    first: usize,
}

/// The rings that a worker visits; those of one port are adjacent. A ring is either here or its kicks are armed.
#[derive(Debug, Default)]
pub struct DrrScheduler {
    rings: Vec<ActiveRing>,
    /// By port; grows as needed.
    accounts: Vec<PortCredit>,
    round: u64,
}

impl DrrScheduler {
    /// Adds a ring. True if it is new.
    pub fn add(&mut self, ring: RingId, now_ns: u64) -> bool {
        let is_of_port = |active: &ActiveRing| active.ring.port == ring.port;
        if self.rings.iter().any(|active| active.ring == ring) {
            return false;
        }
        if self.accounts.len() <= ring.port.index() {
            self.accounts.resize(ring.port.index() + 1, PortCredit::default());
        }
        let behind = self.rings.iter().rposition(is_of_port).map_or(self.rings.len(), |last| last + 1);
        self.rings.insert(behind, ActiveRing { ring, worked_ns: now_ns });
        true
    }

    /// Removes a ring. Its port's debt stays while any other ring is here.
    pub fn remove(&mut self, ring: RingId) {
        self.rings.retain(|active| active.ring != ring);
        if self.rings.is_empty() {
            self.round += ROUNDS_FOR_ALL;
        }
    }

    /// Number of rings.
    #[must_use]
    pub fn len(&self) -> usize {
        self.rings.len()
    }

    /// Whether there are no rings.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rings.is_empty()
    }

    /// Ring number `index`.
    #[must_use]
    pub fn get(&self, index: usize) -> Option<ActiveRing> {
        self.rings.get(index).copied()
    }

    /// Subtracts a port's cost outside its visits from its next turns.
    pub fn charge(&mut self, port: PortId, cost: u64) {
        if let Some(account) = self.accounts.get_mut(port.index()) {
            account.credit = account.credit.saturating_sub_unsigned(cost);
        }
    }

    /// Gives each port its turn, if it has credit: `visit` visits a ring. Returns whether there was a packet, or may be
    /// one.
    pub fn round(&mut self, now_ns: u64, mut visit: impl FnMut(RingId) -> Visited) -> bool {
        self.round += 1;
        let (mut worked, mut least_debt) = (false, None);
        let mut from = 0;
        while let Some(port) = self.rings.get(from).map(|active| active.ring.port) {
            let rings = self.rings[from..].iter().take_while(|active| active.ring.port == port).count();
            let turn = from..from + rings;
            from = turn.end;
            if rings == self.rings.len() {
                return self.turn_alone(port, now_ns, visit); // the usual case: no other port has rings here
            }
            let credit = self.credit(port);
            if credit > 0 {
                worked |= self.turn(port, turn, now_ns, &mut visit);
            } else {
                least_debt = least_debt.max(Some(credit));
            }
        }
        match least_debt {
            // Only ports with debts have packets: skip rounds until the smallest debt is paid.
            Some(debt) if !worked => self.round += debt.unsigned_abs() / TURN_COST as u64,
            _ => {}
        }
        worked || least_debt.is_some()
    }

    /// Brings a port's credit up to this round.
    fn credit(&mut self, port: PortId) -> i64 {
        let account = &mut self.accounts[port.index()];
        let rounds = i64::try_from(self.round - account.round).unwrap_or(i64::MAX);
        account.credit = account.credit.saturating_add(rounds.saturating_mul(TURN_COST)).min(TURN_COST);
        account.round = self.round;
        account.credit
    }

    fn turn(
        &mut self,
        port: PortId,
        turn: std::ops::Range<usize>,
        now_ns: u64,
        visit: &mut impl FnMut(RingId) -> Visited,
    ) -> bool {
        let rings = &mut self.rings[turn];
        let account = &mut self.accounts[port.index()];
        let (first, mut worked) = (account.first % rings.len(), false);
        for step in 0..rings.len() {
            let at = (first + step) % rings.len();
            let mut more = true;
            while more && account.credit > 0 {
                let visited = visit(rings[at].ring);
                // The cost of one visit is far below the range of the type.
                account.credit -= visited.cost as i64;
                more = visited.more;
                if visited.packets > 0 {
                    (worked, rings[at].worked_ns) = (true, now_ns);
                }
            }
            if account.credit <= 0 {
                account.first = at + 1;
                break;
            }
        }
        worked
    }

    /// Visits each ring of the only port once, without charging it.
    fn turn_alone(&mut self, port: PortId, now_ns: u64, mut visit: impl FnMut(RingId) -> Visited) -> bool {
        self.accounts[port.index()] = PortCredit { credit: TURN_COST, round: self.round, first: 0 };
        let mut worked = false;
        for active in &mut self.rings {
            if visit(active.ring).packets > 0 {
                (worked, active.worked_ns) = (true, now_ns);
            }
        }
        worked
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costs_outside_visits_are_taken_off_a_ports_turns() {
        let ring = |port| RingId { port: PortId(port), queue: 0 };
        let mut scheduler = DrrScheduler::default();
        assert!([1, 2].iter().all(|port| scheduler.add(ring(*port), 0)));
        scheduler.charge(PortId(2), 10 * TURN_COST as u64);
        scheduler.charge(PortId(9), 1); // a port without rings here
        let mut visits = [0; 3];
        for _ in 0..20 {
            scheduler.round(0, |ring| {
                visits[ring.port.index()] += 1;
                Visited { packets: 1, more: false, cost: 0 }
            });
        }
        assert_eq!(visits, [0, 20, 10]);
    }
}
