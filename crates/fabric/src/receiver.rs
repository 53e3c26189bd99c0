use std::collections::VecDeque;
use std::sync::Arc;

use arrayvec::ArrayVec;
use lasthop_guestmem::MemoryMap;
use lasthop_ring::{DeviceRing, RingError};
use lasthop_verdict::{BATCH_PACKETS_MAX, DropReason, Header, PORTS_MAX, PortId};
use lasthop_wire::flow_hash;

use crate::bounds::{WAITING_BYTES_MAX, WAITING_NS_MAX, WAITING_PACKETS_MAX};
use crate::counters::PortCounters;
use crate::deliver::{Delivery, Scratch};
use crate::reference::{Attempt, Outcome, PacketRef, Waiting};
use crate::sender::Senders;
use crate::{Capabilities, RingId, Signal};

/// One receive ring and its internal receive queue (Hyper-Switch, section 3.1).
///
/// ```text
///   deliver --> buffers? --yes--> ring: used entries, published once per batch
///                  | no
///                  v
///   waiting  [ oldest ... newest ]   bounded in packets, bytes, time, and share of one sender's ring
///      `--> drained first whenever the guest posts buffers
/// ```
#[derive(Debug)]
pub(crate) struct RxQueue {
    pub(crate) ring: DeviceRing,
    pub(crate) enabled: bool,
    pub(crate) error: Option<RingError>,
    pub(crate) dirty: bool,
    pub(crate) hint: u16,
    /// The guest's available index when buffers were last found to be too few: what the kick is armed past.
    pub(crate) seen_available: u16,
    waiting: VecDeque<Waiting>,
    waiting_bytes: u64,
    /// The guest's available index when its queue expired: until it moves, nothing more waits for it.
    stalled_at: Option<u16>,
}

impl RxQueue {
    pub(crate) fn new(ring: DeviceRing, enabled: bool) -> Self {
        Self {
            ring,
            enabled,
            error: None,
            dirty: false,
            hint: 0,
            seen_available: 0,
            waiting: VecDeque::new(),
            waiting_bytes: 0,
            stalled_at: None,
        }
    }

    fn is_stalled(&mut self) -> bool {
        let stalled = self.stalled_at == Some(self.ring.available_index());
        if !stalled {
            self.stalled_at = None;
        }
        stalled
    }

    /// Why one more packet of `bytes` may not wait.
    fn full(&mut self, bytes: u32) -> Option<DropReason> {
        if self.is_stalled() {
            return Some(DropReason::RxStalled);
        }
        let bytes = self.waiting_bytes + u64::from(bytes);
        let full = self.waiting.len() >= WAITING_PACKETS_MAX || bytes > WAITING_BYTES_MAX;
        full.then_some(DropReason::RxQueueFull)
    }

    fn push(&mut self, waiting: Waiting) {
        if self.waiting.capacity() == 0 {
            // Once per ring that ever is slow; pages are touched as the queue fills.
            self.waiting.reserve_exact(WAITING_PACKETS_MAX);
        }
        self.waiting_bytes += u64::from(waiting.header.frame_len_bytes());
        self.waiting.push_back(waiting);
    }

    fn pop(&mut self) -> Option<Waiting> {
        let waiting = self.waiting.pop_front()?;
        self.waiting_bytes -= u64::from(waiting.header.frame_len_bytes());
        Some(waiting)
    }

    fn usable(&self) -> bool {
        self.enabled && self.error.is_none()
    }
}

/// The receive side of a port.
#[derive(Debug, Default)]
pub(crate) struct Receiver {
    pub(crate) map: Arc<MemoryMap>,
    pub(crate) capabilities: Capabilities,
    pub(crate) queues: Vec<Option<RxQueue>>,
    pub(crate) counters: PortCounters,
}

impl Receiver {
    /// The queue for a packet: a flow keeps its queue as long as the set of enabled queues stays.
    #[inline]
    fn queue_of(&self, header: &Header, flow_key: u64) -> Result<u16, DropReason> {
        let usable = |queue: &Option<RxQueue>| queue.as_ref().is_some_and(RxQueue::usable);
        let count = self.queues.iter().filter(|queue| usable(queue)).count();
        if count == 0 {
            return Err(DropReason::PortDown);
        }
        let chosen = flow_hash(header.bytes(), flow_key) as usize % count;
        let mut indices =
            self.queues.iter().enumerate().filter(|(_, queue)| usable(queue)).map(|(index, _)| index);
        indices.nth(chosen).map(|index| index as u16).ok_or(DropReason::PortDown)
    }
}

/// A copy of a packet on its way to a receiver.
pub(crate) struct Copy<'a> {
    pub(crate) packet: PacketRef,
    pub(crate) header: &'a Header,
    pub(crate) truncate_len_bytes: u32,
}

/// What became of the copies of one list that were tried; the last one may have found no buffers.
#[derive(Default)]
struct Attempts {
    list: ArrayVec<Attempt, BATCH_PACKETS_MAX>,
    /// Where the last one goes on, if it waits.
    next_segment: u32,
}

/// All receive sides, and the rings among them that have something to publish or packets waiting.
#[derive(Debug)]
pub(crate) struct Receivers {
    slots: Vec<Option<Box<Receiver>>>,
    dirty: Vec<RingId>,
    waiting: Vec<RingId>,
    /// Secret of the choice among a guest's receive queues: senders cannot aim at one.
    pub(crate) flow_key: u64,
}

impl Default for Receivers {
    fn default() -> Self {
        let mut slots = Vec::new();
        slots.resize_with(PORTS_MAX, || None);
        let room = || Vec::with_capacity(PORTS_MAX);
        Self { slots, dirty: room(), waiting: room(), flow_key: 0 }
    }
}

impl Receivers {
    pub(crate) fn get(&self, port: PortId) -> Option<&Receiver> {
        self.slots.get(port.index())?.as_deref()
    }

    pub(crate) fn get_mut(&mut self, port: PortId) -> Option<&mut Receiver> {
        self.slots.get_mut(port.index())?.as_deref_mut()
    }

    pub(crate) fn put(&mut self, port: PortId, receiver: Receiver) {
        self.slots[port.index()] = Some(Box::new(receiver));
    }

    pub(crate) fn remove(&mut self, port: PortId) {
        self.slots[port.index()] = None;
    }

    pub(crate) fn queue_mut(&mut self, ring: RingId) -> Option<&mut RxQueue> {
        self.get_mut(ring.port)?.queues.get_mut(usize::from(ring.queue))?.as_mut()
    }

    /// Rings with packets waiting.
    pub(crate) fn waiting_rings(&self) -> &[RingId] {
        &self.waiting
    }

    /// Prefetches the next `count` receive buffers' descriptors of a port's only queue.
    #[inline]
    pub(crate) fn prefetch(&self, port: PortId, count: u16) {
        let Some([Some(queue)]) = self.get(port).map(|receiver| receiver.queues.as_slice()) else { return };
        for ahead in 0..count {
            if let Ok(head) = queue.ring.head(ahead) {
                queue.ring.prefetch_descriptor(head);
            }
        }
    }

    /// Delivers copies of one visit's packets to `port`, or lets them wait there, or drops them for a reason; in any case
    /// each is accounted for.
    #[inline]
    pub(crate) fn accept(
        &mut self,
        port: PortId,
        copies: &[Copy<'_>],
        senders: &mut Senders,
        scratch: &mut Scratch,
        now_ns: u64,
    ) {
        let only = match self.get(port).map(|receiver| receiver.queues.as_slice()) {
            Some([Some(only)]) => only.usable(),
            _ => false,
        };
        if only {
            self.accept_at(RingId { port, queue: 0 }, copies, senders, scratch, now_ns);
            return;
        }
        for copy in copies {
            match self
                .get(port)
                .ok_or(DropReason::PortGone)
                .and_then(|receiver| receiver.queue_of(copy.header, self.flow_key))
            {
                Ok(queue) => {
                    let ring = RingId { port, queue };
                    self.accept_at(ring, std::slice::from_ref(copy), senders, scratch, now_ns);
                }
                Err(reason) => {
                    self.count_drop(RingId { port, queue: 0 }, dropped(reason));
                    senders.settle(copy.packet, dropped(reason));
                }
            }
        }
    }

    /// As `accept`, for one ring. What already waits there goes first.
    #[inline]
    fn accept_at(
        &mut self,
        ring: RingId,
        copies: &[Copy<'_>],
        senders: &mut Senders,
        scratch: &mut Scratch,
        now_ns: u64,
    ) {
        let mut attempts = Attempts::default();
        if self.drain(ring, senders, scratch) {
            self.attempt(ring, copies, 0, senders, scratch, &mut attempts);
        }
        let (tried, untried) = copies.split_at(attempts.list.len());
        senders.settle_all(tried.iter().zip(&attempts.list).map(|(copy, attempt)| (copy.packet, *attempt)));
        for (copy, attempt) in tried.iter().zip(attempts.list) {
            match attempt.outcome {
                Outcome::Done => {}
                Outcome::Drop(_) => self.count_drop(ring, attempt),
                Outcome::Wait => self.let_wait_or_drop(ring, copy, attempts.next_segment, senders, now_ns),
            }
        }
        for copy in untried {
            self.let_wait_or_drop(ring, copy, 0, senders, now_ns);
        }
    }

    /// Tries to put copies into a ring, in order, until one finds no buffers. They are of one transmit ring; the first goes
    /// on at its segment `next_segment`.
    #[inline]
    fn attempt(
        &mut self,
        ring: RingId,
        copies: &[Copy<'_>],
        next_segment: u32,
        senders: &Senders,
        scratch: &mut Scratch,
        attempts: &mut Attempts,
    ) {
        let Some(receiver) = self.slots.get_mut(ring.port.index()).and_then(Option::as_deref_mut) else {
            return;
        };
        let Receiver { map, capabilities, queues, counters } = receiver;
        let Some(Some(queue)) = queues.get_mut(usize::from(ring.queue)) else { return };
        let Some(source) = copies.first().and_then(|copy| senders.source(copy.packet)) else {
            attempts.list.extend(copies.iter().map(|_| dropped(DropReason::Recalled)));
            return;
        };
        let was_dirty = queue.dirty;
        let mut delivery = Delivery { queue, map, capabilities: *capabilities, counters, scratch };
        attempts.next_segment = next_segment;
        for copy in copies {
            let frame = source.frame(copy.packet, copy.header, copy.truncate_len_bytes);
            let attempt = match frame {
                Some(frame) => delivery.deliver(&frame, &mut attempts.next_segment),
                None => dropped(DropReason::Recalled),
            };
            attempts.list.push(attempt);
            if attempt.outcome == Outcome::Wait {
                break;
            }
            attempts.next_segment = 0;
        }
        if !was_dirty && queue.dirty {
            self.dirty.push(ring);
        }
    }

    /// A copy without buffers waits; beyond the bounds of waiting it is dropped.
    fn let_wait_or_drop(
        &mut self,
        ring: RingId,
        copy: &Copy<'_>,
        next_segment: u32,
        senders: &mut Senders,
        now_ns: u64,
    ) {
        if let Err(reason) = self.let_wait(ring, copy, next_segment, senders, now_ns) {
            self.count_drop(ring, dropped(reason));
            senders.settle(copy.packet, dropped(reason));
        }
    }

    fn count_drop(&mut self, ring: RingId, attempt: Attempt) {
        if let (Outcome::Drop(reason), Some(receiver)) = (attempt.outcome, self.get_mut(ring.port)) {
            receiver.counters.tx_drops.count(reason);
        }
    }

    fn let_wait(
        &mut self,
        ring: RingId,
        copy: &Copy<'_>,
        next_segment: u32,
        senders: &mut Senders,
        now_ns: u64,
    ) -> Result<(), DropReason> {
        let queue = self.queue_mut(ring).ok_or(DropReason::PortDown)?;
        if let Some(reason) = queue.full(copy.header.frame_len_bytes()) {
            return Err(reason);
        }
        if !senders.begin_waiting(copy.packet) {
            return Err(DropReason::RxShare);
        }
        let first = queue.waiting.is_empty();
        queue.push(Waiting {
            packet: copy.packet,
            header: *copy.header,
            truncate_len_bytes: copy.truncate_len_bytes,
            next_segment,
            deadline_ns: now_ns + WAITING_NS_MAX,
        });
        if first {
            self.waiting.push(ring);
        }
        Ok(())
    }

    /// Delivers waiting packets in order as far as there are buffers; true if none waits any more.
    #[inline]
    pub(crate) fn drain(&mut self, ring: RingId, senders: &mut Senders, scratch: &mut Scratch) -> bool {
        loop {
            let Some(queue) = self.queue_mut(ring) else { return true };
            let Some(waiting) = queue.waiting.front().copied() else { return true };
            let copy = Copy {
                packet: waiting.packet,
                header: &waiting.header,
                truncate_len_bytes: waiting.truncate_len_bytes,
            };
            let mut attempts = Attempts::default();
            self.attempt(ring, &[copy], waiting.next_segment, senders, scratch, &mut attempts);
            let attempt = attempts.list.first().copied().unwrap_or(dropped(DropReason::PortDown));
            let Some(queue) = self.queue_mut(ring) else { return true };
            if attempt.outcome == Outcome::Wait {
                if let Some(front) = queue.waiting.front_mut() {
                    front.next_segment = attempts.next_segment;
                }
                senders.settle(waiting.packet, attempt);
                return false;
            }
            self.finish_front(ring, attempt, senders);
        }
    }

    /// The oldest waiting packet's wait is over, with `attempt`.
    fn finish_front(&mut self, ring: RingId, attempt: Attempt, senders: &mut Senders) {
        let Some(queue) = self.queue_mut(ring) else { return };
        let Some(waiting) = queue.pop() else { return };
        if queue.waiting.is_empty() {
            queue.ring.suppress_kicks();
            self.waiting.retain(|other| *other != ring);
        }
        self.count_drop(ring, attempt);
        senders.end_waiting(&waiting);
        senders.settle(waiting.packet, attempt);
    }

    /// Drops all that waits at `ring`.
    pub(crate) fn drop_waiting(&mut self, ring: RingId, reason: DropReason, senders: &mut Senders) {
        while self.queue_mut(ring).is_some_and(|queue| !queue.waiting.is_empty()) {
            self.finish_front(ring, dropped(reason), senders);
        }
    }

    /// Drops all packets of one transmit ring, wherever they wait: afterwards its guest's memory is not needed any more.
    pub(crate) fn recall(&mut self, sender: RingId, senders: &mut Senders, scratch: &mut Scratch) {
        for index in (0..self.waiting.len()).rev() {
            let ring = self.waiting[index];
            let Some(queue) = self.queue_mut(ring) else { continue };
            for _ in 0..queue.waiting.len() {
                let Some(queue) = self.queue_mut(ring) else { break };
                let Some(front) = queue.waiting.front().copied() else { break };
                if front.packet.port() == sender.port && front.packet.queue == sender.queue {
                    self.finish_front(ring, dropped(DropReason::Recalled), senders);
                } else {
                    queue.waiting.rotate_left(1);
                }
            }
            // Another packet is in front now: what was too little for the old one may do for it.
            self.drain(ring, senders, scratch);
        }
    }

    /// Drops what waited too long at `now_ns`; a receiver that let its queue expire is stalled until it moves.
    pub(crate) fn expire(&mut self, now_ns: u64, senders: &mut Senders, scratch: &mut Scratch) {
        for index in (0..self.waiting.len()).rev() {
            let ring = self.waiting[index];
            while let Some(queue) = self.queue_mut(ring) {
                if queue.waiting.front().is_none_or(|front| front.deadline_ns > now_ns) {
                    break;
                }
                queue.stalled_at = Some(queue.ring.available_index());
                self.finish_front(ring, dropped(DropReason::RxTimeout), senders);
                // Those behind waited for their turn only.
                self.drain(ring, senders, scratch);
            }
        }
    }

    /// When the next waiting packet expires.
    pub(crate) fn deadline_ns(&self) -> Option<u64> {
        let front = |ring: &RingId| {
            let queue = self.get(ring.port)?.queues.get(usize::from(ring.queue))?.as_ref()?;
            queue.waiting.front().map(|front| front.deadline_ns)
        };
        self.waiting.iter().filter_map(front).min()
    }

    /// Publishes all that was delivered; rings whose guest wants to know go to `signals`.
    #[inline]
    pub(crate) fn publish(&mut self, signals: &mut Vec<Signal>) {
        while let Some(ring) = self.dirty.pop() {
            let Some(queue) = self.queue_mut(ring) else { continue };
            queue.dirty = false;
            queue.ring.publish();
            if queue.ring.needs_signal() {
                signals.push(Signal::receive(ring));
            }
        }
    }
}

fn dropped(reason: DropReason) -> Attempt {
    Attempt { outcome: Outcome::Drop(reason), delivered: 0 }
}
