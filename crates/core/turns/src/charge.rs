//! The cost of a port's packets to its worker, counted per visit and per list, not per packet.
//!
//! The unit is the byte. A byte that is copied counts as one; other work counts as the bytes that could be copied in
//! its time. A port is charged for all work that its packets cause, also for work after its visit.

use lasthop_module_api::BATCH_PACKETS_MAX;

/// The unit of cost is a byte that could be copied in the same time, at about 10 per ns. This is the cost of a visit
/// that finds packets: reading and publishing indices, and a signal.
pub const VISIT_COST: u64 = 2048;
/// Cost of a nanosecond that was spent on page faults in one port's memory.
pub const NS_COST: u64 = 10;
/// A port rests for this multiple of the time that page faults in its memory took, so that they take at most a quarter
/// of a worker.
pub const FAULT_REST_FACTOR: u64 = 3;
/// The longest rest, in ns.
pub const FAULT_REST_NS_MAX: u64 = 100_000_000;
/// Cost of a packet that is taken, decided on and put into one ring, without its bytes.
pub const PACKET_COST: u64 = 768;
/// Cost of each further copy or segment, without its bytes.
pub const COPY_COST: u64 = 512;
/// Cost of a packet for the control plane, without its bytes, whether there is room for it or not: it is looked up in
/// all masks, and its flow becomes a pending one. An estimate of 1.6 us. Without it a port whose packets have no flow
/// would have many times the others' turns.
pub const UPCALL_COST: u64 = 16 << 10;
/// Cost of a piece of memory, without its bytes, when a chain or a packet's buffers are in more than one piece. Each
/// descriptor is read, checked and translated, and each piece is copied separately.
pub const PIECE_COST: u64 = 128;
/// Cost of a visit, some 100 us. If a batch costs more (floods, software segmentation), the port's next batches are
/// smaller. The copies of one packet are not split, so a single packet can cost more: 64 KiB to 1023 ports take some 10
/// ms. Packets that waited for buffers are delivered and charged when buffers come, within bounds of their own.
pub const VISIT_COST_MAX: u64 = 1 << 20;

/// The account of one port's transmit side at its worker.
#[derive(Debug)]
pub struct Charge {
    total: u64,
    /// `total` at the last query.
    told: u64,
    /// `total` when the last visit began, without the rest after page faults; and the packets that it took.
    visited: u64,
    taken: usize,
    /// Number of packets that the next visit may take.
    packets_max: usize,
    /// A visit that costs more lowers `packets_max`; 0 while it grows.
    cost_max: u64,
    /// The rest after page faults that has not begun, in ns, and the end of the one that has.
    rest_due_ns: u64,
    rest_until_ns: u64,
}

impl Default for Charge {
    fn default() -> Self {
        Self {
            total: 0,
            told: 0,
            visited: 0,
            taken: 0,
            packets_max: BATCH_PACKETS_MAX,
            cost_max: VISIT_COST_MAX,
            rest_due_ns: 0,
            rest_until_ns: 0,
        }
    }
}

impl Charge {
    /// Begins a visit. Returns the number of packets that it may take: if the last visit exceeded the cost of a visit,
    /// a number that would not have; else up to twice the last number.
    #[inline]
    pub fn begin_visit(&mut self) -> usize {
        let cost = self.total.wrapping_sub(self.visited);
        self.visited = self.total;
        if cost > self.cost_max {
            self.resize(cost);
        }
        self.packets_max
    }

    #[cold]
    fn resize(&mut self, cost: u64) {
        self.packets_max = if cost > VISIT_COST_MAX {
            ((self.taken as u64 * VISIT_COST_MAX / cost) as usize).max(1)
        } else {
            BATCH_PACKETS_MAX.min(2 * self.packets_max)
        };
        self.cost_max = if self.packets_max < BATCH_PACKETS_MAX { 0 } else { VISIT_COST_MAX };
    }

    /// Charges for a visit that took `packets`, or could take none of those available: they are fetched, decided on,
    /// and sent to one port each.
    #[inline]
    pub fn taken(&mut self, packets: usize) {
        self.taken = packets;
        self.total += VISIT_COST + PACKET_COST * packets as u64;
    }

    /// Charges for the further pieces of memory of chains and buffers.
    #[inline]
    pub fn add_pieces(&mut self, pieces: u64) {
        self.total += PIECE_COST * pieces;
    }

    /// Charges for copies beyond the first of each packet.
    #[inline]
    pub fn add_copies(&mut self, copies: u64) {
        self.total += COPY_COST * copies;
    }

    /// Charges for a packet for the control plane.
    pub fn add_upcall(&mut self) {
        self.total += UPCALL_COST;
    }

    /// Charges for bytes that were copied.
    #[inline]
    pub fn add_bytes(&mut self, bytes: u64) {
        self.total += bytes;
    }

    /// Charges for the packets that `packets` became when they were delivered: `delivered` ones of `bytes` in total. Bytes that
    /// are copied and summed (`is_summed`) count twice.
    #[inline]
    pub fn add_delivered(&mut self, packets: u64, (delivered, bytes): (u64, u64), is_summed: bool) {
        self.add_copies(delivered.saturating_sub(packets));
        self.add_bytes(bytes << u32::from(is_summed));
    }

    /// Charges for page faults in the port's memory that took `ns`. Cost alone does not protect other ports: while they
    /// have no packets, rounds are short, debts are soon paid, and their next packet waits for the next faults. So the
    /// port also rests, and its next visit is as small as if the rest were part of this one.
    pub fn add_faults(&mut self, ns: u64) {
        self.total += NS_COST * ns;
        let rest_ns = FAULT_REST_FACTOR * ns;
        self.visited = self.visited.wrapping_sub(NS_COST * rest_ns);
        self.rest_due_ns = (self.rest_due_ns + rest_ns).min(FAULT_REST_NS_MAX);
    }

    /// The time until which no packets are taken from the port, because of its page faults.
    pub fn rest_until_ns(&mut self, now_ns: u64) -> u64 {
        if self.rest_due_ns > 0 {
            let from_ns = self.rest_until_ns.max(now_ns);
            self.rest_until_ns =
                (from_ns + std::mem::take(&mut self.rest_due_ns)).min(now_ns + FAULT_REST_NS_MAX);
        }
        self.rest_until_ns
    }

    /// The cost since the last query.
    #[inline]
    pub fn take(&mut self) -> u64 {
        self.total - std::mem::replace(&mut self.told, self.total)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_visit_that_cost_too_much_is_followed_by_a_smaller_one() {
        let mut charge = Charge::default();
        assert_eq!(charge.begin_visit(), BATCH_PACKETS_MAX);
        charge.taken(32);
        charge.add_bytes(8 * VISIT_COST_MAX);
        assert_eq!(charge.begin_visit(), 3, "32 cost 8 times as much as they may, and a little");
        charge.taken(3);
        assert_eq!(charge.begin_visit(), 6);
        charge.taken(1);
        charge.add_bytes(100 * VISIT_COST_MAX);
        assert_eq!(charge.begin_visit(), 1, "a packet is not divided");
    }

    #[test]
    fn page_faults_are_followed_by_a_rest_of_thrice_their_time() {
        let mut charge = Charge::default();
        assert_eq!(charge.rest_until_ns(1000), 0);
        charge.add_faults(50);
        assert_eq!(charge.rest_until_ns(2000), 2000 + 50 * FAULT_REST_FACTOR);
        charge.add_faults(10);
        charge.add_faults(10);
        assert_eq!(charge.rest_until_ns(2050), 2000 + 70 * FAULT_REST_FACTOR, "one after the other");
        charge.add_faults(u64::from(u32::MAX));
        assert_eq!(charge.rest_until_ns(4000), 4000 + FAULT_REST_NS_MAX, "it has an end");
        assert_eq!(charge.take(), NS_COST * (70 + u64::from(u32::MAX)));
    }

    #[test]
    fn page_faults_make_visits_small_for_as_long_as_they_last() {
        let visit_ns = VISIT_COST_MAX / NS_COST;
        let mut charge = Charge::default();
        charge.begin_visit();
        charge.taken(4);
        charge.add_faults(2 * visit_ns);
        assert_eq!(charge.begin_visit(), 1, "with its rest it cost 8 times as much as it may");
        charge.taken(1);
        charge.add_faults(visit_ns / 2);
        assert_eq!(charge.begin_visit(), 1, "half a visit, and a rest of one and a half");
        charge.taken(1);
        assert_eq!(charge.begin_visit(), 2, "none");
    }

    #[test]
    fn everything_is_told_once() {
        let mut charge = Charge::default();
        charge.begin_visit();
        assert_eq!(charge.take(), 0, "a look costs nothing");
        charge.taken(2);
        charge.add_copies(3);
        charge.add_delivered(1, (4, 5000), true);
        assert_eq!(charge.take(), VISIT_COST + 2 * PACKET_COST + 6 * COPY_COST + 10_000);
        assert_eq!(charge.take(), 0);
    }
}
