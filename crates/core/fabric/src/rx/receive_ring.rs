//! A receive ring that all workers share, and its internal receive queue.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, OnceLock};

use lasthop_guestmem::MemoryMap;
use lasthop_module_api::DropReason;
use lasthop_ring::{DeviceRing, RingError};
use lasthop_sync::{CombiningGuard, CombiningLock};

use crate::bounds::{
    CLAIM_LOOKS_MAX, CONTENDED_BATCHES, LEFT_PACKETS_MAX, WAITING_BYTES_MAX, WAITING_PACKETS_MAX, WORKERS_MAX,
};
use crate::reference::Waiting;
use crate::tx::senders::Senders;
use crate::{Capabilities, RingId};

/// The work that a worker still has at a ring after it released the claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FollowUp {
    /// Nothing waits, or another worker has the claim.
    None,
    /// Packets wait for buffers; the oldest until this time.
    Until(u64),
    /// There is work that would have kept it too long.
    Now,
}

/// A receive ring as all workers share it: any of them delivers into it, one at a time.
///
/// ```text
///   deliver --> claim? --yes--> buffers? --yes--> ring: used entries, published once per batch
///                  | no            | no
///                  v               v
///   left [ oldest ... newest ] > waiting [ oldest ... newest ]     served first by whoever has the claim
/// ```
#[derive(Debug)]
pub(crate) struct ReceiveRing {
    pub(crate) id: RingId,
    pub(crate) entries: u16,
    pub(crate) map: Arc<MemoryMap>,
    pub(crate) capabilities: Capabilities,
    pub(crate) lock: CombiningLock<RxQueue, Waiting>,
    /// The guest's fault, for workers without the claim.
    pub(crate) error: OnceLock<RingError>,
    /// Batches to go for which copies are made without the claim.
    contended: AtomicU8,
}

impl ReceiveRing {
    pub(crate) fn new(
        id: RingId,
        map: Arc<MemoryMap>,
        capabilities: Capabilities,
        ring: DeviceRing,
        workers: usize,
    ) -> Self {
        let left = if workers > 1 { LEFT_PACKETS_MAX } else { 0 };
        Self {
            id,
            entries: ring.entries(),
            map,
            capabilities,
            lock: CombiningLock::new(RxQueue::new(ring), left),
            error: OnceLock::new(),
            contended: AtomicU8::new(0),
        }
    }

    /// The claim, unless another worker has it for longer than it takes to reserve a batch's buffers.
    #[inline]
    pub(crate) fn claim(&self) -> Option<CombiningGuard<'_, RxQueue, Waiting>> {
        self.lock.try_lock().or_else(|| self.claim_contended())
    }

    /// From now on holders copy without the claim for a while, and have it for a short time only.
    #[inline(never)]
    fn claim_contended(&self) -> Option<CombiningGuard<'_, RxQueue, Waiting>> {
        self.contended.store(CONTENDED_BATCHES, Ordering::Relaxed);
        self.lock.try_lock_spinning(CLAIM_LOOKS_MAX)
    }

    /// Queues a copy of this worker's that began to wait, for the holder of the claim.
    pub(crate) fn enqueue(&self, waiting: Waiting, senders: &mut Senders) -> Result<(), DropReason> {
        match self.lock.enqueue(waiting) {
            Ok(()) => senders.handoffs.left += 1,
            Err(waiting) => {
                senders.end_waiting(waiting.packet);
                return Err(DropReason::RxQueueFull);
            }
        }
        Ok(())
    }

    /// Whether no other worker delivers here, lately.
    #[inline]
    pub(crate) fn is_calm(&self) -> bool {
        self.contended.load(Ordering::Relaxed) == 0
    }

    /// Whether another worker delivers here too, lately. Counts a batch; only the holder of the claim calls
    /// this.
    #[inline]
    pub(crate) fn is_contended(&self) -> bool {
        let batches = self.contended.load(Ordering::Relaxed);
        if batches > 0 {
            self.contended.store(batches - 1, Ordering::Relaxed);
        }
        batches > 0
    }
}

/// State under a receive ring's claim: the ring and its internal receive queue (Hyper-Switch, section 3.1).
#[derive(Debug)]
pub(crate) struct RxQueue {
    pub(crate) ring: DeviceRing,
    pub(crate) enabled: bool,
    /// Stopped: packets are dropped.
    pub(crate) closed: bool,
    pub(crate) broken: Option<RingError>,
    pub(crate) hint: u16,
    /// The guest's available index when buffers were last too few: the kick is armed past it.
    pub(crate) seen_available: u16,
    /// Others' packets were left waiting although there may be buffers: their server had done enough.
    pub(crate) unserved: bool,
    /// Copies under way without the claim, oldest first: worker, and where its used entries start.
    pub(crate) leases: VecDeque<(u8, u16)>,
    waiting: VecDeque<Waiting>,
    waiting_bytes: u64,
    /// The guest's available index when its queue expired: until it moves, nothing more waits for it.
    stalled_at: Option<u16>,
}

impl RxQueue {
    fn new(mut ring: DeviceRing) -> Self {
        ring.suppress_kicks();
        Self {
            ring,
            enabled: false,
            closed: false,
            broken: None,
            hint: 0,
            seen_available: 0,
            unserved: false,
            leases: VecDeque::with_capacity(WORKERS_MAX),
            waiting: VecDeque::new(),
            waiting_bytes: 0,
            stalled_at: None,
        }
    }

    /// All used entries written so far are of filled buffers, unless a worker is filling some without the
    /// claim.
    #[inline]
    pub(crate) fn note_filled(&mut self) {
        if self.leases.is_empty() {
            self.ring.note_filled();
        }
    }

    /// Whether it takes packets.
    #[inline]
    pub(crate) fn is_open(&self) -> bool {
        self.enabled && !self.closed && self.broken.is_none()
    }

    pub(crate) fn is_stalled(&mut self) -> bool {
        let stalled = self.stalled_at == Some(self.ring.available_index());
        if !stalled {
            self.stalled_at = None;
        }
        stalled
    }

    /// It let a packet expire: until its guest moves, nothing waits for it.
    pub(crate) fn stall(&mut self) {
        self.stalled_at = Some(self.ring.available_index());
    }

    /// Whether there is a point in serving it: its guest has moved since buffers were too few, or it was not served fully.
    pub(crate) fn is_worth_a_try(&self) -> bool {
        self.unserved || self.ring.available_index() != self.seen_available
    }

    /// The next work here, and its time.
    #[inline]
    pub(crate) fn follow_up(&self) -> FollowUp {
        if self.unserved { FollowUp::Now } else { self.deadline_ns().map_or(FollowUp::None, FollowUp::Until) }
    }

    /// Why one more packet of `bytes` may not wait.
    pub(crate) fn full(&mut self, bytes: u32) -> Option<DropReason> {
        if self.is_stalled() {
            return Some(DropReason::RxStalled);
        }
        let bytes = self.waiting_bytes + u64::from(bytes);
        let full = self.waiting.len() >= WAITING_PACKETS_MAX || bytes > WAITING_BYTES_MAX;
        full.then_some(DropReason::RxQueueFull)
    }

    pub(crate) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// When the oldest waiting packet is dropped.
    #[inline]
    pub(crate) fn deadline_ns(&self) -> Option<u64> {
        self.waiting.front().map(|front| front.deadline_ns)
    }

    fn reserve(&mut self) {
        if self.waiting.capacity() == 0 {
            // Once per ring that ever is slow; pages are touched as the queue fills. One more: the front may be put back.
            self.waiting.reserve_exact(WAITING_PACKETS_MAX + 1);
        }
    }

    pub(crate) fn push(&mut self, waiting: Waiting) {
        self.reserve();
        self.waiting_bytes += u64::from(waiting.header.frame_len_bytes());
        self.waiting.push_back(waiting);
    }

    /// The packets that wait, oldest first.
    pub(crate) fn waiting_mut(&mut self) -> impl Iterator<Item = &mut Waiting> {
        self.waiting.iter_mut()
    }

    /// Puts back the packet taken last.
    pub(crate) fn put_back(&mut self, waiting: Waiting) {
        self.reserve();
        self.waiting_bytes += u64::from(waiting.header.frame_len_bytes());
        self.waiting.push_front(waiting);
    }

    #[inline]
    pub(crate) fn pop(&mut self) -> Option<Waiting> {
        let waiting = self.waiting.pop_front()?;
        self.waiting_bytes -= u64::from(waiting.header.frame_len_bytes());
        Some(waiting)
    }
}
