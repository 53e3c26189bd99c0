//! The receive sides of a worker: delivers lists of copies, and follows up rings where packets wait.

use std::sync::Arc;

use arrayvec::ArrayVec;
use lasthop_guestmem::MemoryMap;
use lasthop_module_api::{BATCH_PACKETS_MAX, DropReason, Header, PORTS_MAX, PortId};

use crate::board::Board;
use crate::reference::{Attempt, Delivered, Outcome, PacketCopy, Return};
use crate::rx::lease::Leases;
use crate::rx::receive_ring::{FollowUp, ReceiveRing};
use crate::rx::service::{Received, Service, Tools};
use crate::steering::Steering;
use crate::tx::sender::Fetched;
use crate::{Capabilities, RingId};

/// The receive side of a port, as one worker has it.
#[derive(Debug, Default)]
pub(crate) struct Receiver {
    pub(crate) map: Arc<MemoryMap>,
    pub(crate) capabilities: Capabilities,
    pub(crate) queues: Vec<Option<Arc<ReceiveRing>>>,
    pub(crate) received: Received,
    /// Of a guest with several queue pairs, whose flows follow it.
    pub(crate) steering: Option<Arc<Steering>>,
    /// The index of each queue in `Receivers::kept`.
    kept_at: Vec<Option<usize>>,
}

impl Receiver {
    pub(crate) fn new(pairs: usize, steering: Option<Arc<Steering>>) -> Self {
        let mut receiver = Self { steering, ..Self::default() };
        receiver.queues.resize_with(pairs, || None);
        receiver.kept_at.resize(pairs, None);
        receiver
    }
}

/// All receive sides of a worker, and its follow-ups.
#[derive(Debug)]
pub(crate) struct Receivers {
    pub(crate) slots: Vec<Option<Box<Receiver>>>,
    /// Rings where packets of this worker wait, in no order.
    kept: Vec<RingId>,
    /// The time of the next follow-up of each ring in `kept`.
    kept_until_ns: Vec<u64>,
    pub(crate) leases: Leases,
    pub(crate) board: Arc<Board>,
    /// Secret for the choice among a guest's receive queues, so that senders cannot select one.
    pub(crate) flow_key: u64,
    /// Whether flows go to the receive queue of the transmit queue from which the guest sends them.
    pub(crate) steers: bool,
    /// The port of the last batch that was divided by flow among several queues, and these queues as bits.
    pub(crate) last_by_flow: (PortId, u64),
}

impl Receivers {
    pub(crate) fn new(board: Arc<Board>) -> Self {
        let mut slots = Vec::new();
        slots.resize_with(PORTS_MAX, || None);
        Self {
            slots,
            kept: Vec::with_capacity(PORTS_MAX),
            kept_until_ns: Vec::with_capacity(PORTS_MAX),
            leases: Leases::new(board.workers()),
            board,
            flow_key: 0,
            steers: true,
            last_by_flow: (PortId(0), 0),
        }
    }

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
        let pairs = self.get(port).map_or(0, |receiver| receiver.queues.len() as u16);
        (0..pairs).for_each(|queue| self.keep(RingId { port, queue }, None));
        self.slots[port.index()] = None;
    }

    pub(crate) fn ring(&self, ring: RingId) -> Option<&ReceiveRing> {
        self.get(ring.port)?.queues.get(usize::from(ring.queue))?.as_deref()
    }

    /// Every ring that this worker knows.
    pub(crate) fn rings(&self) -> impl Iterator<Item = RingId> + '_ {
        let queues = self.slots.iter().flatten().flat_map(|receiver| &receiver.queues);
        queues.flatten().map(|place| place.id)
    }

    /// Rings with a follow-up at this worker.
    pub(crate) fn kept(&self) -> &[RingId] {
        &self.kept
    }

    /// Kept ring number `index`, if its follow-up is due at `now_ns`.
    pub(crate) fn kept_until(&self, index: usize, now_ns: u64) -> Option<RingId> {
        let due = self.kept_until_ns.get(index).is_some_and(|until_ns| *until_ns <= now_ns);
        due.then(|| self.kept.get(index).copied()).flatten()
    }

    /// The time of this worker's first follow-up.
    pub(crate) fn deadline_ns(&self) -> Option<u64> {
        self.kept_until_ns.iter().copied().min()
    }

    /// Sets this worker's follow-up at `ring`.
    #[inline]
    pub(crate) fn note(&mut self, ring: RingId, follow_up: FollowUp) {
        let until_ns = match follow_up {
            FollowUp::None if self.kept.is_empty() => return,
            FollowUp::None => None,
            FollowUp::Until(deadline_ns) => Some(deadline_ns),
            FollowUp::Now => Some(0),
        };
        self.keep(ring, until_ns);
    }

    fn keep(&mut self, ring: RingId, until_ns: Option<u64>) {
        let next = self.kept.len();
        let Some(at) = self.kept_at(ring) else { return };
        match (*at, until_ns) {
            (Some(at), Some(until_ns)) => self.kept_until_ns[at] = until_ns,
            (None, Some(until_ns)) => {
                *at = Some(next);
                self.kept.push(ring);
                self.kept_until_ns.push(until_ns);
            }
            (Some(_), None) => {
                let at = at.take();
                self.let_go(at);
            }
            (None, None) => {}
        }
    }

    fn kept_at(&mut self, ring: RingId) -> Option<&mut Option<usize>> {
        self.slots.get_mut(ring.port.index())?.as_deref_mut()?.kept_at.get_mut(usize::from(ring.queue))
    }

    /// Removes the kept ring at `at`; the last one takes its place.
    fn let_go(&mut self, at: Option<usize>) {
        let Some(at) = at else { return };
        self.kept.swap_remove(at);
        self.kept_until_ns.swap_remove(at);
        let moved = self.kept.get(at).copied();
        if let Some(place) = moved.and_then(|moved| self.kept_at(moved)) {
            *place = Some(at);
        }
    }

    /// Works at `ring` with its claim. `None` if another worker has the claim or the ring is gone; this worker then has
    /// no follow-up there.
    pub(crate) fn with_claim<R>(
        &mut self,
        ring: RingId,
        tools: &mut Tools<'_>,
        work: impl FnOnce(&mut Service<'_, '_>) -> R,
    ) -> Option<R> {
        let receiver = self.slots.get_mut(ring.port.index()).and_then(Option::as_deref_mut);
        let done = receiver.and_then(|receiver| {
            let place = receiver.queues.get(usize::from(ring.queue))?.as_deref()?;
            let claim = place.lock.try_lock()?;
            let mut service = Service::new(place, claim, &mut receiver.received, tools);
            let result = work(&mut service);
            Some((result, service.close()))
        });
        self.note(ring, done.as_ref().map_or(FollowUp::None, |(_, follow_up)| *follow_up));
        done.map(|(result, _)| result)
    }

    /// Delivers copies of one visit's packets to `port`, queues them there, or drops them for a reason. Each is
    /// accounted for.
    #[inline]
    pub(crate) fn accept(
        &mut self,
        port: PortId,
        copies: &[PacketCopy<'_>],
        tools: &mut Tools<'_>,
        now_ns: u64,
    ) {
        let open = self.board.receiving(port);
        if open.is_power_of_two() {
            let ring = RingId { port, queue: open.trailing_zeros() as u16 };
            self.accept_at(ring, copies, tools, now_ns);
        } else if self.get(port).is_none() {
            self.refuse(port, copies, tools, DropReason::PortGone);
        } else if open == 0 {
            self.refuse_down(port, copies, tools);
        } else {
            self.accept_by_flow(port, open, copies, tools, now_ns);
        }
    }

    /// As `accept`, for all packets of a visit that is not listed. Packets that are delivered at once need no listing.
    #[inline]
    pub(crate) fn accept_unlisted(
        &mut self,
        port: PortId,
        fetched: &mut Fetched,
        tools: &mut Tools<'_>,
        now_ns: u64,
    ) {
        let open = self.board.receiving(port);
        let ring = RingId { port, queue: open.trailing_zeros() as u16 };
        let Self { slots, leases, .. } = self;
        let receiver = slots.get_mut(port.index()).and_then(Option::as_deref_mut);
        let served = receiver
            .filter(|_| open.is_power_of_two() && !tools.senders.offloads.concern(fetched))
            .and_then(|Receiver { queues, received, .. }| {
                let place =
                    queues.get(usize::from(ring.queue))?.as_deref().filter(|place| place.is_calm())?;
                let mut service = Service::new(place, place.lock.try_lock()?, received, tools);
                let done = service.accept_unlisted(fetched);
                if done < fetched.len {
                    service.accept_rest(fetched, done, leases, now_ns);
                } else {
                    service.be_last();
                }
                Some(service.close())
            });
        match served {
            Some(follow_up) => self.note(ring, follow_up),
            None => {
                tools.senders.list(fetched, 0);
                self.accept_listed(port, fetched, tools, now_ns);
            }
        }
    }

    /// As `accept`, for all packets of a listed visit.
    #[inline(never)]
    pub(crate) fn accept_listed(
        &mut self,
        port: PortId,
        fetched: &Fetched,
        tools: &mut Tools<'_>,
        now_ns: u64,
    ) {
        let mut copies = ArrayVec::new();
        fetched.add_copies(0, &mut copies);
        self.accept(port, &copies, tools, now_ns);
    }

    /// As `accept`, for a guest with several open queues. While the set of queues stays the same, a flow changes its queue only
    /// when that is drained.
    fn accept_by_flow(
        &mut self,
        port: PortId,
        open: u64,
        copies: &[PacketCopy<'_>],
        tools: &mut Tools<'_>,
        now_ns: u64,
    ) {
        let queues = self.queues_of((port, open), copies, tools, now_ns);
        let mut touched = queues.iter().fold(0_u64, |bits, queue| bits | 1 << queue);
        self.last_by_flow = (port, touched);
        while touched != 0 {
            let queue = touched.trailing_zeros() as u16;
            touched &= touched - 1;
            let of_queue = queues.iter().zip(copies).filter(|(chosen, _)| **chosen == queue);
            let list: ArrayVec<PacketCopy<'_>, BATCH_PACKETS_MAX> = of_queue.map(|(_, copy)| *copy).collect();
            self.accept_at(RingId { port, queue }, &list, tools, now_ns);
        }
    }

    /// As `accept`, for one ring.
    #[inline]
    fn accept_at(&mut self, ring: RingId, copies: &[PacketCopy<'_>], tools: &mut Tools<'_>, now_ns: u64) {
        let Self { slots, leases, .. } = self;
        let receiver = slots.get_mut(ring.port.index()).and_then(Option::as_deref_mut);
        let Some(Receiver { queues, received, .. }) = receiver else {
            return self.refuse(ring.port, copies, tools, DropReason::PortGone);
        };
        let Some(place) = queues.get(usize::from(ring.queue)).and_then(Option::as_deref) else {
            return self.refuse(ring.port, copies, tools, DropReason::PortDown);
        };
        let mut shared = 0;
        let follow_up = match place.claim() {
            Some(claim) => {
                let mut service = Service::new(place, claim, received, tools);
                match service.may_share() && leases.can_share() {
                    true => shared = service.accept_large(copies, leases, now_ns),
                    false => service.accept(copies, leases, now_ns),
                }
                service.close()
            }
            None => leave(place, copies, received, tools, now_ns),
        };
        self.note(ring, follow_up);
        if shared > 0 {
            self.leases.share(ring);
        }
    }

    /// Whether `port` exists but takes no packets: it has no running guest, or its link is down.
    #[inline]
    pub(crate) fn is_down(&self, port: PortId) -> bool {
        self.get(port).is_some() && self.board.receiving(port) == 0
    }

    /// Drops packets for `port`, which is down. Flooded ones do not count as lost.
    #[cold]
    fn refuse_down(&mut self, port: PortId, copies: &[PacketCopy<'_>], tools: &mut Tools<'_>) {
        let reason = self.board.link(port).or(DropReason::PortDown);
        for copy in copies {
            match is_to_group(copy.header) {
                true => tools.senders.settle(copy.packet, Attempt::to_none()),
                false => self.refuse(port, std::slice::from_ref(copy), tools, reason),
            }
        }
    }

    /// Drops all of `copies`.
    fn refuse(&mut self, port: PortId, copies: &[PacketCopy<'_>], tools: &mut Tools<'_>, reason: DropReason) {
        for copy in copies {
            if let Some(receiver) = self.get_mut(port) {
                receiver.received.drops.count(reason);
            }
            if tools.senders.is_tapped() {
                tools.senders.tap_copy(port, copy, Outcome::Drop(reason));
            }
            tools.senders.settle(copy.packet, Attempt::dropped(reason));
        }
    }

    /// Fills the buffers reserved in this visit, and finishes each lease once: a frame that is shared later in the visit may
    /// extend the lease, and finishes it again. Other workers may take the claims meanwhile.
    pub(crate) fn copy_leases(&mut self, headers: &[Header], tools: &mut Tools<'_>) {
        let Self { slots, leases, .. } = self;
        let place = |ring: RingId| {
            slots.get(ring.port.index())?.as_deref()?.queues.get(usize::from(ring.queue))?.as_deref()
        };
        leases.copy(tools.senders, headers, tools.segments, place);
        let filled = leases.rings().iter().filter_map(|ring| place(*ring));
        filled.for_each(|place| place.lock.publish_order().finish(tools.senders.worker));
        if tools.senders.is_tapped() {
            leases.tap(tools.senders, headers);
        }
        let mut all = Delivered::default();
        for (ring, result) in leases.results() {
            let Some(receiver) = slots[ring.port.index()].as_deref_mut() else { continue };
            match result {
                Ok(delivered) => {
                    receiver.received.delivered.add(&delivered);
                    all.add(&delivered);
                }
                Err(reason) => receiver.received.drops.count(reason),
            }
        }
        if let Some(first) = leases.first_packet() {
            tools.senders.charge(first, all.packets as usize, &all);
            tools.senders.handoffs.leased += all.packets;
        }
    }

    /// Publishes the filled buffers, or leaves that to the holder of the claim.
    pub(crate) fn finish_leases(&mut self, tools: &mut Tools<'_>) {
        while let Some(ring) = self.leases.next_ring() {
            let Some(receiver) = self.slots[ring.port.index()].as_deref_mut() else { continue };
            let Some(place) = receiver.queues.get(usize::from(ring.queue)).and_then(Option::as_deref) else {
                continue;
            };
            let follow_up = match place.lock.try_lock_again() {
                Some(claim) => Service::new(place, claim, &mut receiver.received, tools).close(),
                None => continue,
            };
            self.note(ring, follow_up);
        }
        self.leases.settle(tools.senders);
    }

    /// Delivers the packets that wait at a ring while there are buffers. True if none waits any more.
    pub(crate) fn drain(&mut self, ring: RingId, tools: &mut Tools<'_>) -> bool {
        let known = self.ring(ring).is_some();
        self.with_claim(ring, tools, |service| service.serve()).unwrap_or(!known)
    }

    /// As `drain`. If another worker has the claim, this one tries again later.
    pub(crate) fn drain_kicked(&mut self, ring: RingId, tools: &mut Tools<'_>) {
        let served = self.with_claim(ring, tools, |service| service.serve());
        if served.is_none() && self.ring(ring).is_some() {
            self.note(ring, FollowUp::Now);
        }
    }

    /// As `drain`, if the guest posted buffers or packets were queued. Returns whether it was tried.
    pub(crate) fn drain_if_moved(&mut self, ring: RingId, tools: &mut Tools<'_>) -> bool {
        let drained = self.with_claim(ring, tools, |service| {
            let moved = service.claim.is_worth_a_try() || !service.claim.is_clear();
            moved.then(|| service.serve()).is_some()
        });
        drained.unwrap_or(false)
    }

    /// Arms the kick of a ring that packets wait for, and checks once more. True if there is work.
    pub(crate) fn arm(&mut self, ring: RingId, tools: &mut Tools<'_>) -> bool {
        let armed = self.with_claim(ring, tools, |service| {
            // Past the index of the last attempt. The present index would miss buffers that were posted in between.
            let seen = service.claim.seen_available;
            let waits = service.claim.waiting() > 0;
            service.claim.unserved || (waits && service.claim.ring.arm_kicks_past(seen))
        });
        armed.unwrap_or(false)
    }

    /// Counts the outcome in a reference that came back to this worker.
    pub(crate) fn enter(&mut self, reference: &Return) {
        if let Some(receiver) = self.get_mut(reference.to.port) {
            receiver.received.enter(reference.outcome, &reference.delivered);
        }
    }
}

/// Whether a frame has a group address, so that no single port must receive it.
fn is_to_group(header: &Header) -> bool {
    header.bytes().first().is_some_and(|first| first & 1 != 0) // IEEE 802-2014, 8.2.2
}

/// Leaves the copies to the worker that holds the claim.
fn leave(
    place: &ReceiveRing,
    copies: &[PacketCopy<'_>],
    received: &mut Received,
    tools: &mut Tools<'_>,
    now_ns: u64,
) -> FollowUp {
    tools.senders.handoffs.contended += 1;
    for copy in copies {
        let refused = if tools.senders.begin_left(copy.packet, place.id) {
            place.enqueue(copy.waiting(0, now_ns), tools.senders).err()
        } else {
            Some(DropReason::RxShare)
        };
        if let Some(reason) = refused {
            received.drops.count(reason);
            if tools.senders.is_tapped() {
                tools.senders.tap_copy(place.id.port, copy, Outcome::Drop(reason));
            }
            tools.senders.settle(copy.packet, Attempt::dropped(reason));
        }
    }
    let Some(claim) = place.lock.try_lock_again() else { return FollowUp::None };
    let mut service = Service::new(place, claim, received, tools);
    service.serve();
    service.close()
}
