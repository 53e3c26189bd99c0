//! The fast path of a lone packet: a visit that finds one usual chain needs no lists and no passes over a batch.
//!
//! Each step makes the same checks as the batch's step, with the same functions. If it finds anything unusual, it
//! leaves the packet to the batch's step before it changes any state.
//!
//! The file follows the packet: the visit, the chain that is taken, its delivery.

use std::num::NonZeroU64;

use lasthop_guestmem::{MemoryMap, Place, Segment};
use lasthop_module_api::{Header, PortId};
use lasthop_ring::{DESC_INDIRECT, DESC_NEXT, DESC_WRITE, Descriptor, LoneChain};
use lasthop_stages::{Stages, WorkStage};
use lasthop_sync::{CombiningGuard, full_fence};
use lasthop_wire::Offload;
use lasthop_wire::vnet::HEADER_BYTES;

use crate::board::Board;
use crate::reference::{Delivered, PacketRef, Waiting};
use crate::rx::express::{PLAIN, UsualFrame, is_plain, reserve_one, write};
use crate::rx::receive_ring::{FollowUp, ReceiveRing, RxQueue};
use crate::rx::receiver::{Receiver, Receivers};
use crate::rx::service::{Service, Tools};
use crate::tx::chain::{Chain, read_place};
use crate::tx::sender::{Fetched, Sender};
use crate::tx::senders::Senders;
use crate::tx::tx_queue::TxQueue;
use crate::{Fabric, RingId, Signal, tools};

impl Fabric {
    /// As [`Self::begin_visit`], if the ring is empty or has one usual chain. Otherwise `None`, and nothing has
    /// changed.
    #[inline]
    pub(crate) fn begin_lone_visit(&mut self, ring: RingId, now_ns: u64) -> Option<usize> {
        if self.senders.metering.is_active() || self.senders.is_tapped() {
            return None;
        }
        self.mark(WorkStage::Other);
        match self.senders.fetch_lone(ring, &mut self.fetched) {
            LoneFetch::Taken => {}
            LoneFetch::Empty => {
                self.fetched.len = 0;
                self.mark(WorkStage::Parse);
                return Some(0);
            }
            LoneFetch::Unusual => return None,
        }
        self.mark(WorkStage::Parse);
        let common = self.decide(ring.port, 1, now_ns);
        let is_done = common.is_some_and(|port| {
            self.receivers.accept_lone(port, &mut self.fetched, &mut tools!(self), now_ns)
        });
        if !is_done {
            self.forward(common, now_ns);
        }
        self.heed_verdicts(ring);
        Some(1)
    }
}

/// The result of a visit that looks for a single chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LoneFetch {
    /// The chain was taken.
    Taken,
    /// The ring is empty.
    Empty,
    /// Anything else. Nothing has changed.
    Unusual,
}

impl Senders {
    /// As [`Self::fetch`], for a ring that is empty or has one usual chain with a valid frame.
    // Not inlined, so that it has all registers.
    #[inline(never)]
    pub(crate) fn fetch_lone(&mut self, ring: RingId, fetched: &mut Fetched) -> LoneFetch {
        let sender = self.slots.get_mut(ring.port.index()).and_then(Option::as_deref_mut);
        let Some(sender) = sender.filter(|_| ring.port != PortId::INTERNAL) else {
            return LoneFetch::Unusual;
        };
        sender.fetch_lone(ring, fetched, (self.worker, &self.board), &self.stages)
    }
}

impl Sender {
    #[inline(always)]
    fn fetch_lone(
        &mut self,
        ring: RingId,
        fetched: &mut Fetched,
        home: (u8, &Board),
        stages: &Stages,
    ) -> LoneFetch {
        let Some(Some(queue)) = self.queues.get(usize::from(ring.queue)) else { return LoneFetch::Unusual };
        match queue.ring.is_packed() {
            false => self.fetch_lone_in::<false>(ring, fetched, home, stages),
            true => self.fetch_lone_in::<true>(ring, fetched, home, stages),
        }
    }

    #[inline(always)]
    fn fetch_lone_in<const PACKED: bool>(
        &mut self,
        ring: RingId,
        fetched: &mut Fetched,
        (home, board): (u8, &Board),
        stages: &Stages,
    ) -> LoneFetch {
        let Some(Some(queue)) = self.queues.get_mut(usize::from(ring.queue)) else {
            return LoneFetch::Unusual;
        };
        if !queue.is_ready() || queue.postponement.is_due() {
            return LoneFetch::Unusual;
        }
        let (head, descriptor) = match queue.ring.lone_chain_in::<PACKED>() {
            LoneChain::None => return LoneFetch::Empty,
            LoneChain::One(head, descriptor) if board.sends(ring.port, ring.queue) => (head, descriptor),
            _ => return LoneFetch::Unusual,
        };
        if self.capabilities.sent_header_bytes != HEADER_BYTES {
            return LoneFetch::Unusual;
        }
        let header = &mut fetched.headers[0];
        // The batch's code reads a refused frame again; the bytes read here are not used then.
        let Some(chain) = queue.read_lone(&self.map, (head, descriptor), header, stages) else {
            return LoneFetch::Unusual;
        };
        if let Some(steering) = &self.steering {
            steering.note(std::slice::from_ref(header), ring.queue, 0);
        }
        queue.ring.take_lone_in::<PACKED>(head);
        queue.blocked = false;
        self.charge.begin_visit();
        self.charge.taken(1);
        self.counters.rx_packets += 1;
        self.counters.rx_bytes += u64::from(chain.bytes) - HEADER_BYTES as u64;
        self.counters.rx_gso_packets += u64::from(header.offload.is_gso());
        fetched.name = PacketRef { port: ring.port.0, queue: ring.queue, head: 0, home, epoch: self.epoch };
        fetched.chains[0] = chain;
        fetched.hashes.clear();
        (fetched.len, fetched.is_listed, fetched.more) = (1, false, false);
        LoneFetch::Taken
    }
}

impl TxQueue {
    /// Reads the headers of a lone chain, if it is usual and has a valid frame.
    #[inline(always)]
    fn read_lone(
        &mut self,
        map: &MemoryMap,
        (head, Descriptor { addr, len, flags, .. }): (u16, Descriptor),
        header: &mut Header,
        stages: &Stages,
    ) -> Option<Chain> {
        let is_usual = flags & (DESC_NEXT | DESC_INDIRECT | DESC_WRITE) == 0 && len > 0;
        if !is_usual {
            return None;
        }
        let window = map.window(self.hint);
        let (first, place) = match window.locate_near(addr, len) {
            Some(found) => found,
            None => self.locate_elsewhere(map, (addr, len))?,
        };
        stages.mark(WorkStage::Fetch);
        read_place(place, header).ok()?;
        Some(Chain { head, whole: true, bytes: len, first })
    }

    /// Locates a buffer that is not in the region of the last one.
    #[cold]
    fn locate_elsewhere<'m>(
        &mut self,
        map: &'m MemoryMap,
        (addr, len): (u64, u32),
    ) -> Option<(Segment, Place<'m>)> {
        let mut window = map.window(self.hint);
        let found = window.locate(addr, len)?;
        self.hint = window.hint();
        Some(found)
    }
}

type Claim<'a> = CombiningGuard<'a, RxQueue, Waiting>;

impl Receivers {
    /// As [`Self::accept_unlisted`], for the only packet of a visit. False if nothing was done.
    // Not inlined, so that it has all registers.
    #[inline(never)]
    pub(crate) fn accept_lone(
        &mut self,
        port: PortId,
        fetched: &mut Fetched,
        tools: &mut Tools<'_>,
        now_ns: u64,
    ) -> bool {
        let open = NonZeroU64::new(self.board.receiving(port));
        let is_one = |open: &NonZeroU64| open.get() & (open.get() - 1) == 0;
        let Some(queue) = open.filter(is_one).map(NonZeroU64::trailing_zeros) else { return false };
        let Self { slots, leases, .. } = self;
        let receiver = slots.get_mut(port.index()).and_then(Option::as_deref_mut);
        let Some(Receiver { queues, received, .. }) = receiver else { return false };
        let place = queues.get(queue as usize).and_then(Option::as_deref);
        let Some(place) = place.filter(|place| place.is_calm()) else { return false };
        let Some(mut claim) = place.lock.try_lock() else { return false };
        let follow_up = match deliver_lone(place, &mut claim, fetched, tools) {
            Some(delivered) => {
                received.delivered.add(&delivered);
                match claim.release() {
                    false => FollowUp::None,
                    true => Service::serve_queued(place, received, tools),
                }
            }
            None => {
                let mut service = Service::new(place, claim, received, tools);
                service.accept_rest(fetched, 0, leases, now_ns);
                service.close()
            }
        };
        let ring = RingId { port, queue: queue as u16 };
        self.note(ring, follow_up);
        true
    }
}

/// Delivers the packet if no packet waits ahead of it, it is usual and it finds a buffer; then settles it, and
/// publishes on both sides.
#[inline(always)]
fn deliver_lone(
    place: &ReceiveRing,
    claim: &mut Claim<'_>,
    fetched: &Fetched,
    tools: &mut Tools<'_>,
) -> Option<Delivered> {
    let is_idle = claim.waiting() == 0 && claim.is_clear() && claim.leases.is_empty();
    if !is_idle || !claim.is_open() || place.capabilities.header_bytes != HEADER_BYTES {
        return None;
    }
    claim.unserved = false;
    let ring = fetched.name.ring();
    let Sender { map, queues, counters, charge, .. } =
        tools.senders.slots.get_mut(ring.port.index())?.as_deref_mut()?;
    let sent = queues.get_mut(usize::from(ring.queue))?.as_mut()?;
    let (chain, header) = (&fetched.chains[0], &fetched.headers[0]);
    let delivered = fill_lone(place, claim, (&**map, chain, header), &tools.senders.stages)?;
    charge.add_bytes(delivered.bytes);
    counters.forwarded += 1;
    // First: stores become visible in order, and the sender's lines have to be fetched before they can be written.
    claim.ring.publish();
    let is_obstructed = sent.finish_lone(chain.head);
    tools.senders.stages.mark(WorkStage::Completion);
    // The fence orders both sides: this one stores its index, then reads the guest's event index; the guest does the
    // reverse.
    full_fence();
    if claim.ring.needs_signal_behind_fence() {
        tools.signals.push(Signal::receive(place.id));
    }
    if sent.ring.needs_signal_behind_fence() {
        tools.signals.push(Signal::transmit(ring));
    }
    if is_obstructed {
        tools.senders.obstructed.push(ring);
    }
    tools.senders.stages.mark(WorkStage::Publish);
    Some(delivered)
}

/// Copies the frame into the next buffer, if both are usual, and writes its used entry.
#[inline(always)]
fn fill_lone(
    place: &ReceiveRing,
    queue: &mut RxQueue,
    lone: (&MemoryMap, &Chain, &Header),
    stages: &Stages,
) -> Option<Delivered> {
    // Most frames are plain and wholly in their image, and the buffer is in the region of the last one. That case needs
    // no call.
    if is_plain(lone.2.offload)
        && let Some(delivered) = fill_lone_with::<true>(place, queue, lone, Offload::default(), stages)
    {
        return Some(delivered);
    }
    fill_any_lone(place, queue, lone, stages)
}

#[inline(never)]
fn fill_any_lone(
    place: &ReceiveRing,
    queue: &mut RxQueue,
    lone: (&MemoryMap, &Chain, &Header),
    stages: &Stages,
) -> Option<Delivered> {
    fill_lone_with::<false>(place, queue, lone, lone.2.offload, stages)
}

/// As [`reserve_one`], then [`write`]. With `NEAR`, `offload` must be plain.
#[inline(always)]
fn fill_lone_with<const NEAR: bool>(
    place: &ReceiveRing,
    queue: &mut RxQueue,
    (source, chain, header): (&MemoryMap, &Chain, &Header),
    offload: Offload,
    stages: &Stages,
) -> Option<Delivered> {
    // The slow path finds and reports an invalid index or head.
    let (head, descriptor) = queue.ring.next_chain()?;
    let len = chain.bytes - HEADER_BYTES as u32; // it was read so
    let frame = UsualFrame { header, len, offload, source: Some(chain.first) };
    let mut window = place.map.window(queue.hint);
    let (_, buffer) = reserve_one::<NEAR>(descriptor, &mut window, &frame, place.capabilities)?;
    if !NEAR {
        queue.hint = window.hint();
    }
    stages.mark(WorkStage::Queue);
    match NEAR {
        true => {
            let compare = buffer.header_ends_line::<HEADER_BYTES>();
            buffer.fill_with(&PLAIN, header.bytes(), compare).then_some(())?;
        }
        false => write(buffer, (source, chain.first), header, offload).ok()?,
    }
    stages.mark(WorkStage::Copy);
    queue.ring.fill_next(head, buffer.len_bytes());
    let gso_packets = u64::from(offload.is_gso());
    Some(Delivered { packets: 1, bytes: u64::from(len), gso_packets, csum_completed: 0 })
}
