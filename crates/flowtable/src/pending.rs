//! Flows that the control plane has been asked about and has not answered for: their packets keep their order.
//!
//! ```text
//!   packet 1 ─ miss ──> up                                                   control plane: sends 1, 2 on, installs the flow,
//!   packet 2 ─ pending ──> up, behind 1                                                     says that it is done with both
//!   packet 3 ─ pending: the flow is there, but 2 is not through ──> up
//!   packet 4 ─ nothing on the way any more ──> by the flow
//! ```
//!
//! A packet goes up behind those of its flow that are there already, flow or no flow, until the control plane has said of
//! each that it is done with it. That ends after a bounded time and number of packets, and for as many flows as each worker
//! has places: what is beyond may overtake.

use std::sync::atomic::{AtomicU64, Ordering};

use lasthop_exchange::WORKERS_MAX;

use crate::bounds::{PENDING_FLOWS, PENDING_NS_MAX, PENDING_PACKETS_MAX};

const COUNT_BITS: u32 = 32;
const COUNT_MASK: u64 = (1 << COUNT_BITS) - 1;

/// What the control plane says that it is done with a packet by; 0 is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ticket(pub(crate) u32);

impl Ticket {
    pub(crate) const NONE: Ticket = Ticket(0);

    fn new(round: u16, worker: usize, place: usize) -> Self {
        Self(u32::from(round) << 16 | (worker as u32) << 8 | place as u32)
    }

    fn round(self) -> u64 {
        u64::from(self.0 >> 16)
    }

    fn worker(self) -> usize {
        (self.0 >> 8 & 0xff) as usize
    }

    fn place(self) -> usize {
        (self.0 & 0xff) as usize
    }
}

const _: () = assert!(PENDING_FLOWS == 256 && WORKERS_MAX <= 256);

/// Packets of pending flows that are on the way: by worker and place, the round of the place and their count.
#[derive(Debug)]
pub(crate) struct Tickets(Box<[[AtomicU64; PENDING_FLOWS]]>);

impl Tickets {
    pub(crate) fn new() -> Self {
        Self((0..WORKERS_MAX).map(|_| std::array::from_fn(|_| AtomicU64::new(0))).collect())
    }

    /// The control plane is done with a packet; one of an earlier round counts no more.
    pub(crate) fn settle(&self, ticket: Ticket) {
        let Some(word) = self.0.get(ticket.worker()).and_then(|own| own.get(ticket.place())) else { return };
        // Release: who sees the packet as done sees all that was done for it.
        let _ = word.fetch_update(Ordering::Release, Ordering::Relaxed, |word| {
            (word >> COUNT_BITS == ticket.round() && word & COUNT_MASK > 0).then(|| word - 1)
        });
    }
}

/// A pending flow, by the hash of its packets' key.
#[derive(Clone, Copy, Debug, Default)]
struct Place {
    hash: u64,
    deadline_ns: u64,
    packets: u32,
    round: u16,
    is_taken: bool,
}

/// The pending flows of one worker.
#[derive(Debug)]
pub(crate) struct Pending {
    worker: usize,
    places: Box<[Place]>,
    taken: usize,
}

impl Pending {
    pub(crate) fn new(worker: usize) -> Self {
        Self { worker, places: vec![Place::default(); PENDING_FLOWS].into_boxed_slice(), taken: 0 }
    }

    /// Whether any packets may have to go up behind others.
    #[inline]
    pub(crate) fn is_any(&self) -> bool {
        self.taken > 0
    }

    fn word<'a>(&self, tickets: &'a Tickets, at: usize) -> &'a AtomicU64 {
        &tickets.0[self.worker][at]
    }

    /// Packets of a place that are on the way, if it has not had too much of anything.
    fn is_live(&self, tickets: &Tickets, at: usize, now_ns: u64) -> bool {
        let place = &self.places[at];
        let on_the_way = self.word(tickets, at).load(Ordering::Acquire) & COUNT_MASK;
        place.is_taken && on_the_way > 0 && now_ns < place.deadline_ns
    }

    /// Whether a packet has to go up behind others of its flow.
    #[inline]
    pub(crate) fn holds(&mut self, tickets: &Tickets, hash: u64, now_ns: u64) -> bool {
        self.taken > 0 && self.look(tickets, hash, now_ns)
    }

    fn look(&mut self, tickets: &Tickets, hash: u64, now_ns: u64) -> bool {
        let at = hash as usize % PENDING_FLOWS;
        if !self.places[at].is_taken || self.places[at].hash != hash {
            return false;
        }
        if self.is_live(tickets, at, now_ns) {
            return self.places[at].packets < PENDING_PACKETS_MAX;
        }
        self.places[at].is_taken = false;
        self.taken -= 1;
        false
    }

    /// A packet goes up.
    pub(crate) fn enter(&mut self, tickets: &Tickets, hash: u64, now_ns: u64) -> Ticket {
        let at = hash as usize % PENDING_FLOWS;
        let is_live = self.is_live(tickets, at, now_ns);
        let word = self.word(tickets, at);
        let place = &mut self.places[at];
        if is_live && place.hash == hash {
            place.packets += 1;
            word.fetch_add(1, Ordering::Relaxed);
            return Ticket::new(place.round, self.worker, at);
        }
        if is_live {
            return Ticket::NONE;
        }
        self.taken += usize::from(!place.is_taken);
        let round = place.round.wrapping_add(1).max(1);
        *place = Place { hash, deadline_ns: now_ns + PENDING_NS_MAX, packets: 1, round, is_taken: true };
        word.store(u64::from(round) << COUNT_BITS | 1, Ordering::Relaxed);
        Ticket::new(round, self.worker, at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_follow_until_all_before_them_are_through() {
        let (tickets, mut pending) = (Tickets::new(), Pending::new(3));
        assert!(!pending.holds(&tickets, 77, 0));
        let first = pending.enter(&tickets, 77, 0);
        assert!(pending.holds(&tickets, 77, 1) && !pending.holds(&tickets, 77 + 256, 1));
        let second = pending.enter(&tickets, 77, 1);
        assert_eq!(first, second);
        tickets.settle(first);
        assert!(pending.holds(&tickets, 77, 2));
        tickets.settle(second);
        assert!(!pending.holds(&tickets, 77, 3));
        tickets.settle(second);
        assert_ne!(pending.enter(&tickets, 77, 4), first, "another round");
        tickets.settle(first);
        assert!(pending.holds(&tickets, 77, 5), "what is late counts no more");
    }

    #[test]
    fn that_ends_after_a_time_and_a_number_of_packets() {
        let (tickets, mut pending) = (Tickets::new(), Pending::new(0));
        let ticket = pending.enter(&tickets, 5, 0);
        assert!(
            pending.holds(&tickets, 5, PENDING_NS_MAX - 1) && !pending.holds(&tickets, 5, PENDING_NS_MAX)
        );
        (0..PENDING_PACKETS_MAX).for_each(|_| assert_ne!(pending.enter(&tickets, 5, 0), ticket));
        assert!(!pending.holds(&tickets, 5, 1));
        assert_eq!(pending.enter(&tickets, 5 + 256, 1), Ticket::NONE, "the place is taken");
    }
}
