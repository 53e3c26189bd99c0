//! One transmit ring at its home.

use std::sync::Arc;

use lasthop_guestmem::Segment;
use lasthop_ring::{DeviceRing, RingError};
use lasthop_verdict::DropReason;

use crate::tx::postponement::Postponement;
use crate::tx::side_table::{Chains, SideTable};

/// One transmit ring and the chains taken from it.
#[derive(Debug)]
pub(crate) struct TxQueue {
    pub(crate) ring: DeviceRing,
    pub(crate) table: SideTable,
    pub(crate) error: Option<RingError>,
    /// Chains completed since the last publication.
    pub(crate) dirty: bool,
    /// Chains that wait in internal receive queues.
    pub(crate) waiting: u16,
    /// Heads are pending, but too many long chains wait: to be visited again when one is settled.
    pub(crate) blocked: bool,
    /// Nothing more is taken: it is being stopped.
    pub(crate) closed: bool,
    /// Nothing more is taken until the module has nothing against it.
    pub(crate) held: bool,
    pub(crate) hint: u16,
    /// Of chains in more than one, and not charged yet.
    pub(crate) pieces: u64,
    pub(crate) postponement: Postponement,
}

impl TxQueue {
    pub(crate) fn new(ring: DeviceRing) -> Self {
        let table = SideTable::new(ring.entries());
        let postponement = Postponement::new(ring.entries(), ring.postponed());
        let (error, dirty, blocked, closed, held) = (None, false, false, false, false);
        Self {
            ring,
            table,
            error,
            dirty,
            waiting: 0,
            blocked,
            closed,
            held,
            hint: 0,
            pieces: 0,
            postponement,
        }
    }

    /// The part that other workers read.
    pub(crate) fn chains(&self) -> &Arc<Chains> {
        self.table.chains()
    }

    /// Whether a visit can do nothing until a waiting chain is settled.
    pub(crate) fn is_blocked(&self) -> bool {
        self.blocked
    }

    /// Why the chain at `head` was dropped at once, if it was in the last visit.
    pub(crate) fn refusal(&self, head: u16) -> DropReason {
        self.table.refusal(head)
    }

    pub(crate) fn taken(&self) -> u16 {
        self.table.taken()
    }

    /// Enters the chain at `head`, with one copy to be settled.
    #[inline]
    pub(crate) fn enter(&mut self, head: u16, epoch: u32, segments: &[Segment]) {
        self.table.enter(head, epoch, segments);
        self.ring.set_mark(head, 1);
    }

    /// One copy of the chain at `head` is settled; true if it was the last, and the chain is completed.
    #[inline]
    pub(crate) fn settle(&mut self, head: u16) -> bool {
        let is_last = self.ring.settle(head);
        if is_last {
            self.table.release(head);
        }
        is_last
    }

    /// Completes, undelivered, the chains that the killed device before this one had taken. Returns the
    /// number of chains, and of copies of their packets. Each may have been delivered, and is not delivered
    /// again. Postponed ones were not delivered.
    pub(crate) fn give_up_taken(&mut self) -> (u64, u64) {
        let heads: Vec<u16> =
            self.ring.marked().filter(|head| !self.postponement.is_possible(*head)).collect();
        let copies = heads.iter().map(|head| u64::from(self.ring.mark(*head))).sum();
        heads.iter().for_each(|head| self.ring.give_up(*head));
        (heads.len() as u64, copies)
    }

    /// Chains were completed. Returns whether the ring was not yet due to be published, and whether it was
    /// blocked by them.
    #[inline]
    pub(crate) fn note_completed(&mut self) -> (bool, bool) {
        (!std::mem::replace(&mut self.dirty, true), std::mem::take(&mut self.blocked))
    }
}
