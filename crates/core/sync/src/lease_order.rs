//! Pieces of work that workers do outside a lock, in the order in which they began.

use std::collections::VecDeque;

use crate::WORKERS_MAX;
use crate::publish_order::PublishOrder;

/// The open leases of a place: entries that a worker reserved under the lock and fills without it. Kept under the lock.
///
/// ```text
///   entries   [ published | A A A | B B | ... ]     A finishes: both are published, or A alone while B is open
/// ```
///
/// A worker has one lease at most. While it is the newest one, further entries extend it.
#[derive(Debug)]
pub struct LeaseOrder(VecDeque<(u8, u16)>);

impl Default for LeaseOrder {
    fn default() -> Self {
        Self(VecDeque::with_capacity(WORKERS_MAX))
    }
}

impl LeaseOrder {
    /// Whether none is open.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether `worker` has one.
    #[must_use]
    pub fn has(&self, worker: u8) -> bool {
        self.0.iter().any(|lease| lease.0 == worker)
    }

    /// Whether `worker` may reserve entries: it has no lease, or the newest one. Entries behind it, and behind others' ones, would
    /// be published with it.
    #[must_use]
    pub fn may_extend(&self, worker: u8) -> bool {
        !self.has(worker) || self.0.back().is_some_and(|lease| lease.0 == worker)
    }

    /// Begins a lease of `worker`, which has none, at entry `start`.
    pub fn open(&mut self, worker: u8, start: u16, order: &PublishOrder) {
        debug_assert!(!order.take_finished(worker), "each lease is finished once");
        self.0.push_back((worker, start));
    }

    /// Begins a lease at entry `start`, or extends that of `worker`, which it has finished and [`Self::may_extend`]: then it is
    /// to be finished once more.
    pub fn open_or_extend(&mut self, worker: u8, start: u16, order: &PublishOrder) {
        if !self.has(worker) {
            return self.open(worker, start, order);
        }
        let is_finished = order.take_finished(worker);
        debug_assert!(is_finished, "this worker fills no other entries");
    }

    /// Ends the oldest leases that are finished. Returns the first entry of the oldest one that is not: entries before it may
    /// be published. `None`: all may.
    pub fn end_finished(&mut self, order: &PublishOrder) -> Option<u16> {
        while self.0.front().is_some_and(|lease| order.take_finished(lease.0)) {
            self.0.pop_front();
        }
        let oldest = self.0.front();
        order.set_oldest(oldest.map(|lease| lease.0));
        oldest.map(|lease| lease.1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_lease_is_extended_and_finished_once_more() {
        let (mut leases, order) = (LeaseOrder::default(), PublishOrder::default());
        leases.open_or_extend(1, 10, &order);
        leases.open_or_extend(2, 11, &order);
        assert!(!leases.may_extend(1) && leases.may_extend(2) && leases.may_extend(3));
        order.finish(2);
        assert_eq!(leases.end_finished(&order), Some(10), "the other one is ahead of it");
        leases.open_or_extend(2, 12, &order);
        order.finish(1);
        assert_eq!(leases.end_finished(&order), Some(11), "its further entry is not filled");
        assert!(!leases.has(1) && leases.has(2));
        order.finish(2);
        assert_eq!((leases.end_finished(&order), leases.is_empty(), order.is_due()), (None, true, false));
    }
}
