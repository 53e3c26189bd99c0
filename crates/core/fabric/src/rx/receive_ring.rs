//! A receive ring that all workers share, and its internal receive queue.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, OnceLock};

use lasthop_guestmem::MemoryMap;
use lasthop_module_api::DropReason;
use lasthop_ring::{DeviceRing, RingError};
use lasthop_sync::{CombiningGuard, CombiningLock, LeaseOrder, OrderFlag};

use crate::bounds::{
    CLAIM_LOOKS_MAX, CONTENDED_BATCHES, LEFT_PACKETS_MAX, WAITING_BYTES_MAX, WAITING_PACKETS_MAX,
};
use crate::reference::Waiting;
use crate::tx::senders::Senders;
use crate::{Capabilities, RingId};

/// The work that remains for a worker at a ring after it released the claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FollowUp {
    /// No packet waits, or another worker has the claim.
    None,
    /// Packets wait for buffers. The oldest one expires at this time.
    Until(u64),
    /// There is work beyond the budget of one service.
    Now,
}

/// A receive ring that all workers share. Any of them delivers into it, one at a time.
///
/// ```text
///   deliver --> claim? --yes--> buffers? --yes--> ring: used entries, published once per batch
///                  | no            | no
///                  v               v
///   left [ oldest ... newest ] > waiting [ oldest ... newest ]     served first by the claim's holder
/// ```
#[derive(Debug)]
pub(crate) struct ReceiveRing {
    pub(crate) id: RingId,
    pub(crate) entries: u16,
    pub(crate) map: Arc<MemoryMap>,
    pub(crate) capabilities: Capabilities,
    pub(crate) lock: CombiningLock<RxQueue, Waiting>,
    /// The guest's fault, readable without the claim.
    pub(crate) error: OnceLock<RingError>,
    /// Number of further batches that are copied without the claim.
    contended: AtomicU8,
    /// Whether a helper has the order to copy frames here. Frames do not depend on helpers.
    pub(crate) help: OrderFlag,
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
            help: OrderFlag::default(),
        }
    }

    /// Takes the claim, unless another worker holds it for longer than reserving a batch's buffers takes.
    #[inline]
    pub(crate) fn claim(&self) -> Option<CombiningGuard<'_, RxQueue, Waiting>> {
        self.lock.try_lock().or_else(|| self.claim_contended())
    }

    /// For the next batches, holders copy without the claim and hold it only briefly.
    #[inline(never)]
    fn claim_contended(&self) -> Option<CombiningGuard<'_, RxQueue, Waiting>> {
        self.contended.store(CONTENDED_BATCHES, Ordering::Relaxed);
        self.lock.try_lock_spinning(CLAIM_LOOKS_MAX)
    }

    /// Queues a waiting copy of this worker for the holder of the claim.
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

    /// Whether no other worker delivered here recently.
    #[inline]
    pub(crate) fn is_calm(&self) -> bool {
        self.contended.load(Ordering::Relaxed) == 0
    }

    /// Whether another worker delivered here recently. Counts a batch; only the holder of the claim may call it.
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
    /// The guest's available index when buffers last ran short. The kick is armed past it.
    pub(crate) seen_available: u16,
    /// Packets of other workers still wait although there may be buffers: the budget of the service was used up.
    pub(crate) unserved: bool,
    /// Copies under way without the claim, by the positions of their first used entries.
    pub(crate) leases: LeaseOrder,
    waiting: VecDeque<Waiting>,
    waiting_bytes: u64,
    /// The guest's available index when a waiting packet expired. No further packet waits until it moves.
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
            leases: LeaseOrder::default(),
            waiting: VecDeque::new(),
            waiting_bytes: 0,
            stalled_at: None,
        }
    }

    /// Notes that the buffers of all used entries written so far are filled, unless a worker fills some without the
    /// claim.
    #[inline]
    pub(crate) fn note_filled(&mut self) {
        if self.leases.is_empty() {
            self.ring.note_filled();
        }
    }

    /// Whether the ring takes packets.
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

    /// Notes that a packet expired: no further packet waits until the guest moves.
    pub(crate) fn stall(&mut self) {
        self.stalled_at = Some(self.ring.available_index());
    }

    /// Whether serving the ring can succeed: the guest moved since buffers ran short, or the last service was
    /// incomplete.
    pub(crate) fn is_worth_a_try(&self) -> bool {
        self.unserved || self.ring.available_index() != self.seen_available
    }

    /// The next work at this ring, and its time.
    #[inline]
    pub(crate) fn follow_up(&self) -> FollowUp {
        if self.unserved { FollowUp::Now } else { self.deadline_ns().map_or(FollowUp::None, FollowUp::Until) }
    }

    /// The reason why one more packet of `bytes` may not wait, if any.
    pub(crate) fn full(&mut self, bytes: u32) -> Option<DropReason> {
        if self.is_stalled() {
            return Some(DropReason::RxStalled);
        }
        let bytes = self.waiting_bytes + u64::from(bytes);
        let full = self.waiting.len() >= WAITING_PACKETS_MAX || bytes > WAITING_BYTES_MAX;
        full.then_some(DropReason::RxQueueFull)
    }

    /// Whether the guest has taken all packets, and no other one waits or is being copied here. Those that other workers left are not known here.
    pub(crate) fn is_drained(&self) -> bool {
        self.waiting.is_empty() && self.leases.is_empty() && !self.unserved && self.ring.is_drained()
    }

    pub(crate) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// The time at which the oldest waiting packet is dropped.
    #[inline]
    pub(crate) fn deadline_ns(&self) -> Option<u64> {
        self.waiting.front().map(|front| front.deadline_ns)
    }

    fn reserve(&mut self) {
        if self.waiting.capacity() == 0 {
            // Allocates once per ring that ever becomes slow; pages are touched as the queue fills. One extra place
            // lets the front be put back.
            self.waiting.reserve_exact(WAITING_PACKETS_MAX + 1);
        }
    }

    pub(crate) fn push(&mut self, waiting: Waiting) {
        self.reserve();
        self.waiting_bytes += u64::from(waiting.header.frame_len_bytes());
        self.waiting.push_back(waiting);
    }

    /// The waiting packets, oldest first.
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
