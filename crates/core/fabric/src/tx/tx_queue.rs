//! One transmit ring at its home.

use std::ops::Range;
use std::sync::Arc;

use lasthop_guestmem::{MemoryMap, Segment};
use lasthop_module_api::{DropReason, PortId};
use lasthop_ring::{DeviceRing, RingError};

use crate::RingId;
use crate::bounds::CHAIN_SEGMENTS_MAX;
use crate::side_table::{SegmentBuffer, SideTable};
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
    /// Number of chains that wait in internal receive queues.
    pub(crate) waiting: u16,
    /// Heads are pending, but too many long chains wait. The ring is visited again when one is settled.
    pub(crate) blocked: bool,
    /// The ring is being stopped: no chains are taken.
    pub(crate) closed: bool,
    /// The module paused the ring: no chains are taken.
    pub(crate) paused: bool,
    /// Until then the ring is paused, since a ring of its port is to move; 0 for none.
    pub(crate) leaving_until_ns: u64,
    pub(crate) hint: u16,
    /// Further memory pieces of chains that are not charged yet.
    pub(crate) pieces: u64,
    pub(crate) postponement: Postponement,
    /// Waiting copies of packets that a former home took and still counts.
    pub(crate) elsewhere: u32,
    /// By head; only for a ring that is used in order.
    waits: Option<Box<[Wait]>>,
    /// A slow receiver holds back completed chains that went to other receivers.
    is_obstructed: bool,
    detached: Option<DetachedPool>,
}

/// The wait of a packet's copies.
#[derive(Clone, Copy, Debug)]
struct Wait {
    copies: u16,
    /// The receive ring of the first waiting copy.
    at: RingId,
}

/// The receive rings of the waiting packet that holds back others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Obstacle {
    /// All copies wait at this ring.
    At(RingId),
    /// Copies wait at several rings.
    Scattered,
}

impl TxQueue {
    pub(crate) fn new(ring: DeviceRing) -> Self {
        let table = SideTable::new(ring.entries());
        let postponement = Postponement::new(ring.entries(), ring.postponed());
        let nowhere = Wait { copies: 0, at: RingId { port: PortId::INTERNAL, queue: 0 } };
        let waits = ring.keeps_order().then(|| vec![nowhere; usize::from(ring.entries())].into());
        Self {
            ring,
            table,
            error: None,
            dirty: false,
            waiting: 0,
            blocked: false,
            closed: false,
            paused: false,
            leaving_until_ns: 0,
            hint: 0,
            pieces: 0,
            postponement,
            elsewhere: 0,
            waits,
            is_obstructed: false,
            detached: None,
        }
    }

    /// Whether chains may be taken from the ring.
    #[inline]
    pub(crate) fn is_ready(&self) -> bool {
        self.error.is_none() && !self.closed && !self.paused
    }

    /// The reason why the last visit dropped the chain at `head`, if it did.
    pub(crate) fn refusal(&self, head: u16) -> DropReason {
        self.table.refusal(head)
    }

    /// Number of packets taken and not settled.
    pub(crate) fn taken(&self) -> u16 {
        self.table.taken() + self.detached()
    }

    /// Number of detached packets.
    pub(crate) fn detached(&self) -> u16 {
        self.detached.as_ref().map_or(0, DetachedPool::taken)
    }

    /// Notes that a copy of the packet at `head` begins to wait at `at`.
    pub(crate) fn begin_waiting(&mut self, head: u16, at: RingId) {
        self.waiting += 1;
        self.postponement.forget(head);
        self.ring.keep_waiting(head);
        if let Some(wait) = self.waits.as_mut().and_then(|waits| waits.get_mut(usize::from(head))) {
            *wait = Wait { copies: wait.copies + 1, at: if wait.copies == 0 { at } else { wait.at } };
        }
    }

    /// Notes that a copy of the packet at `head` no longer waits, or was detached.
    pub(crate) fn end_waiting(&mut self, head: u16) {
        self.waiting -= 1;
        if let Some(wait) = self.waits.as_mut().and_then(|waits| waits.get_mut(usize::from(head))) {
            wait.copies -= 1;
        }
    }

    /// Publishes all chains that may be used. Returns whether completed ones are held back.
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

    /// Where the packet waits that holds back completed chains, if there is one.
    pub(crate) fn obstacle(&self) -> Option<Obstacle> {
        let head = self.ring.holding_back().filter(|_| self.is_obstructed && !self.closed)?;
        match self.waits.as_ref()?.get(usize::from(head))? {
            Wait { copies: 0, .. } => None,
            Wait { copies: 1, at } => Some(Obstacle::At(*at)),
            Wait { .. } => Some(Obstacle::Scattered),
        }
    }

    /// Copies the waiting packet at `head` out of the guest's memory `map`; the caller then settles the copy of its
    /// chain. The port has `pairs` queue pairs. Returns slot and bytes; `None` if there is no room.
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

    /// Settles the detached packet in `slot`.
    pub(crate) fn settle_detached(&mut self, slot: u16, epoch: u32) {
        let Some(pool) = &mut self.detached else { return };
        pool.release(slot, epoch, &mut [Segment::default(); CHAIN_SEGMENTS_MAX]);
        self.ring.set_detached(pool.taken());
    }

    /// Enters the given chains of a visit, which are in one piece, in the side table, unless they are there.
    pub(crate) fn list(&mut self, fetched: &mut Fetched, chains: Range<usize>, epoch: u32) {
        if std::mem::replace(&mut fetched.is_listed, true) {
            return;
        }
        fetched.chains[chains].iter().for_each(|chain| self.table.enter(chain.head, epoch, &[chain.first]));
    }

    /// Settles the chains at `heads`, whose only copies are delivered. They were not listed, and are the oldest
    /// unsettled ones of the last visit.
    #[inline]
    pub(crate) fn settle_unlisted(&mut self, heads: impl Iterator<Item = u16> + Clone) {
        let oldest = heads.clone().next();
        if self.waits.is_some() && !oldest.is_some_and(|head| self.ring.is_next_used(head)) {
            return self.settle_behind_others(heads);
        }
        self.ring.complete_marked_all(heads);
    }

    /// As [`Self::settle_unlisted`] for one chain, and then [`Self::publish`].
    #[inline(always)]
    pub(crate) fn finish_lone(&mut self, head: u16) -> bool {
        if self.waits.is_some() {
            self.settle_unlisted(std::iter::once(head));
            return self.publish();
        }
        // No chain waits for an earlier one.
        self.ring.give_up(head);
        self.ring.publish();
        false
    }

    #[inline(never)]
    fn settle_behind_others(&mut self, heads: impl Iterator<Item = u16>) {
        for head in heads {
            let held_back = self.ring.held_back();
            self.ring.settle(head);
            self.is_obstructed |= self.ring.held_back() > held_back;
        }
    }

    /// Enters the chain at `head` in the side table, with one copy to be settled.
    #[inline]
    pub(crate) fn enter(&mut self, head: u16, epoch: u32, segments: &[Segment]) {
        self.table.enter(head, epoch, segments);
        self.ring.set_mark(head, 1);
    }

    /// Settles one copy of the chain at `head`. True if it was the last, so that the chain is completed. Unless a slow
    /// receiver dropped it (`is_slow`, called for rings in order only), the chain should not wait for a packet ahead of
    /// it.
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

    /// Kept apart from `settle`, which is inlined for rings without order.
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

    /// Completes, undelivered, the chains that the killed device had taken: each may have been delivered before, and
    /// must not be delivered twice. Returns the number of chains, and of copies of their packets, detached ones
    /// included. Postponed chains are not affected: they were not delivered.
    pub(crate) fn give_up_taken(&mut self) -> (u64, u64) {
        let heads: Vec<u16> =
            self.ring.marked().filter(|head| !self.postponement.is_possible(*head)).collect();
        let copies: u64 = heads.iter().map(|head| u64::from(self.ring.mark(*head))).sum();
        heads.iter().for_each(|head| self.ring.give_up(*head));
        let detached = u64::from(self.ring.detached());
        self.ring.set_detached(0);
        (heads.len() as u64 + detached, copies + detached)
    }

    /// Notes that chains were completed. Returns whether the ring was not yet due to be published, and whether it was
    /// blocked by them.
    #[inline]
    pub(crate) fn note_completed(&mut self) -> (bool, bool) {
        (!std::mem::replace(&mut self.dirty, true), std::mem::take(&mut self.blocked))
    }
}
