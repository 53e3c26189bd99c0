//! One transmit ring at its home.

use std::ops::Range;
use std::sync::Arc;

use lasthop_guestmem::{MemoryMap, Segment};
use lasthop_module_api::{DropReason, PortId};
use lasthop_ring::{DeviceRing, RingError};

use crate::RingId;
use crate::bounds::CHAIN_SEGMENTS_MAX;
use crate::side_table::{Chains, SegmentBuffer, SideTable};
use crate::tx::detached::DetachedPool;
use crate::tx::postponement::Postponement;
use crate::tx::sender::Fetched;

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
    /// Of a ring that is used in order, by head.
    waits: Option<Box<[Wait]>>,
    /// Chains are held back that a slow receiver has no part in.
    is_obstructed: bool,
    detached: Option<DetachedPool>,
}

/// Where copies of a packet wait.
#[derive(Clone, Copy, Debug)]
struct Wait {
    copies: u16,
    /// The receive ring of the first.
    at: RingId,
}

/// The receive rings where the packet waits that holds back others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Obstacle {
    /// At this one.
    At(RingId),
    /// At several.
    Scattered,
}

impl TxQueue {
    pub(crate) fn new(ring: DeviceRing) -> Self {
        let table = SideTable::new(ring.entries());
        let postponement = Postponement::new(ring.entries(), ring.postponed());
        let (error, dirty, blocked, closed, held) = (None, false, false, false, false);
        let nowhere = Wait { copies: 0, at: RingId { port: PortId::INTERNAL, queue: 0 } };
        let waits = ring.keeps_order().then(|| vec![nowhere; usize::from(ring.entries())].into());
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
            waits,
            is_obstructed: false,
            detached: None,
        }
    }

    /// The part that other workers read.
    pub(crate) fn chains(&self) -> &Arc<Chains> {
        self.table.chains()
    }

    /// Whether chains are taken from it.
    #[inline]
    pub(crate) fn is_ready(&self) -> bool {
        self.error.is_none() && !self.closed && !self.held
    }

    /// Whether a visit can do nothing until a waiting chain is settled.
    pub(crate) fn is_blocked(&self) -> bool {
        self.blocked
    }

    /// Why the chain at `head` was dropped at once, if it was in the last visit.
    pub(crate) fn refusal(&self, head: u16) -> DropReason {
        self.table.refusal(head)
    }

    /// Packets taken and not settled.
    pub(crate) fn taken(&self) -> u16 {
        self.table.taken() + self.detached()
    }

    /// Those of them that are detached.
    pub(crate) fn detached(&self) -> u16 {
        self.detached.as_ref().map_or(0, DetachedPool::taken)
    }

    /// A copy of the packet at `head` begins to wait at `at`.
    pub(crate) fn begin_waiting(&mut self, head: u16, at: RingId) {
        self.waiting += 1;
        self.postponement.forget(head);
        if let Some(wait) = self.waits.as_mut().and_then(|waits| waits.get_mut(usize::from(head))) {
            *wait = Wait { copies: wait.copies + 1, at: if wait.copies == 0 { at } else { wait.at } };
        }
    }

    /// A copy of the packet at `head` waits no more, or not there.
    pub(crate) fn end_waiting(&mut self, head: u16) {
        self.waiting -= 1;
        if let Some(wait) = self.waits.as_mut().and_then(|waits| waits.get_mut(usize::from(head))) {
            wait.copies -= 1;
        }
    }

    /// Shows the guest all chains that can be used; whether others are obstructed.
    #[inline(always)] // left to itself the compiler calls it
    pub(crate) fn publish(&mut self) -> bool {
        if self.ring.has_unpublished() {
            self.ring.publish();
        }
        if self.is_obstructed {
            self.is_obstructed = self.ring.held_back() > 0;
        }
        self.is_obstructed
    }

    /// The packet that waits and obstructs others that are completed, if there is one.
    pub(crate) fn obstacle(&self) -> Option<Obstacle> {
        let head = self.ring.holding_back().filter(|_| self.is_obstructed && !self.closed)?;
        match self.waits.as_ref()?.get(usize::from(head))? {
            Wait { copies: 0, .. } => None,
            Wait { copies: 1, at } => Some(Obstacle::At(*at)),
            Wait { .. } => Some(Obstacle::Scattered),
        }
    }

    /// Copies a copy of the packet at `head`, which waits, out of the guest's memory `map`. The copy of its chain is to be settled then. The
    /// port has `pairs` queue pairs. Returns its slot and bytes; `None`: there is no room.
    pub(crate) fn detach(
        &mut self,
        map: &MemoryMap,
        (head, epoch): (u16, u32),
        pairs: usize,
        buffer: &mut SegmentBuffer,
    ) -> Option<(u16, u64)> {
        let chains = Arc::clone(self.table.chains());
        if self.detached.is_none() {
            self.detached = DetachedPool::new(pairs, &chains.detached);
        }
        let pool = self.detached.as_mut()?;
        let segments = chains.segments(head, epoch, buffer)?;
        let (slot, bytes) = pool.put(chains.detached.get()?, (map, segments), epoch)?;
        self.ring.set_detached(pool.taken());
        self.end_waiting(head);
        Some((slot, bytes))
    }

    /// The detached packet in `slot` is settled.
    pub(crate) fn settle_detached(&mut self, slot: u16, epoch: u32) {
        let Some(pool) = &mut self.detached else { return };
        pool.release(slot, epoch, &mut [Segment::default(); CHAIN_SEGMENTS_MAX]);
        self.ring.set_detached(pool.taken());
    }

    /// Enters those of the chains that a visit took, which are in one piece, in the side table, unless they stand there.
    pub(crate) fn list(&mut self, fetched: &mut Fetched, chains: Range<usize>, epoch: u32) {
        if std::mem::replace(&mut fetched.is_listed, true) {
            return;
        }
        fetched.chains[chains].iter().for_each(|chain| self.table.enter(chain.head, epoch, &[chain.first]));
    }

    /// The chains at `heads`, the oldest of those taken last that are not settled, were not listed, and their only copies are delivered.
    #[inline]
    pub(crate) fn settle_unlisted(&mut self, heads: impl Iterator<Item = u16> + Clone) {
        let oldest = heads.clone().next();
        if self.waits.is_some() && !oldest.is_some_and(|head| self.ring.is_next_used(head)) {
            return self.settle_behind_others(heads);
        }
        self.ring.complete_marked_all(heads);
    }

    /// As [`Self::settle_unlisted`], of one chain.
    #[inline(always)]
    pub(crate) fn settle_lone(&mut self, head: u16) {
        match self.waits {
            None => self.ring.give_up(head),
            Some(_) => self.settle_unlisted(std::iter::once(head)),
        }
    }

    #[inline(never)]
    fn settle_behind_others(&mut self, heads: impl Iterator<Item = u16>) {
        for head in heads {
            let held_back = self.ring.held_back();
            self.ring.settle(head);
            self.is_obstructed |= self.ring.held_back() > held_back;
        }
    }

    /// Enters the chain at `head`, with one copy to be settled.
    #[inline]
    pub(crate) fn enter(&mut self, head: u16, epoch: u32, segments: &[Segment]) {
        self.table.enter(head, epoch, segments);
        self.ring.set_mark(head, 1);
    }

    /// One copy of the chain at `head` is settled; true if it was the last, and the chain is completed. Unless it was dropped at a slow
    /// receiver (`is_slow`, asked of rings in order only), it is not to wait for a packet in front of it.
    #[inline]
    pub(crate) fn settle(&mut self, head: u16, is_slow: impl FnOnce() -> bool) -> bool {
        if self.waits.is_some() {
            return self.settle_in_order(head, is_slow());
        }
        let is_last = self.ring.settle(head);
        if is_last {
            self.table.release(head);
        }
        is_last
    }

    /// Apart from `settle`, which is inlined where packets without order are settled.
    #[inline(never)]
    fn settle_in_order(&mut self, head: u16, is_slow: bool) -> bool {
        let held_back = self.ring.held_back();
        let is_last = self.ring.settle(head);
        if is_last {
            self.table.release(head);
            self.is_obstructed |= !is_slow && self.ring.held_back() > held_back;
        }
        is_last
    }

    /// Completes, undelivered, the chains that the killed device before this one had taken. Returns the
    /// number of chains, and of copies of their packets, detached ones included. Each may have been delivered, and is not delivered
    /// again. Postponed ones were not delivered.
    pub(crate) fn give_up_taken(&mut self) -> (u64, u64) {
        let heads: Vec<u16> =
            self.ring.marked().filter(|head| !self.postponement.is_possible(*head)).collect();
        let copies: u64 = heads.iter().map(|head| u64::from(self.ring.mark(*head))).sum();
        heads.iter().for_each(|head| self.ring.give_up(*head));
        let detached = u64::from(self.ring.detached());
        self.ring.set_detached(0);
        (heads.len() as u64 + detached, copies + detached)
    }

    /// Chains were completed. Returns whether the ring was not yet due to be published, and whether it was
    /// blocked by them.
    #[inline]
    pub(crate) fn note_completed(&mut self) -> (bool, bool) {
        (!std::mem::replace(&mut self.dirty, true), std::mem::take(&mut self.blocked))
    }
}
