//! Large frames that a home and a helper copy into one ring at the same time (Hyper-Switch, 3.4 "Offloading Packet
//! Processing").
//!
//! ```text
//!   home:   waiting [ f4 f3 ] ──claim: take f1, reserve──> copy f1 ──claim: publish f1, take f3──> copy f3 ...
//!   helper:                   ──claim: take f2, reserve──> copy f2 ──claim: publish f2, take f4──> copy f4 ...
//! ```
//!
//! The frames stay in the receiver's queue until somebody takes the oldest one. A helper that gives way just takes no
//! further frame. The home takes frames until the queue is empty, so no frame depends on a helper.

use lasthop_guestmem::{MemoryMap, Segment};
use lasthop_module_api::{DropReason, IMAGE_BYTES};
use lasthop_stages::WorkStage;
use lasthop_wire::Segmentation;

use crate::bounds::{
    CLAIM_LOOKS_MAX, GSO_SEGMENTS_MAX, LEASE_SEGMENTS_MAX, PACKET_BUFFER_SEGMENTS_MAX, PACKET_BUFFERS_MAX,
};
use crate::frame::{Frame, shape};
use crate::reference::{Attempt, Delivered, Outcome, PacketCopy, Return, Waiting};
use crate::rx::deliver::Buffers;
use crate::rx::receive_ring::{FollowUp, ReceiveRing};
use crate::rx::receiver::{Receiver, Receivers};
use crate::rx::reservation::Reservation;
use crate::rx::service::{Received, Service, Tools};
use crate::side_table::SegmentBuffer;
use crate::tx::senders::Senders;
use crate::{Capabilities, RingId};

/// The result of one step at a ring with large frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SharedStep {
    /// The oldest frame has buffers: it is to be copied, and a further step follows.
    Reserved,
    /// The oldest frame was delivered or dropped under the claim.
    Done,
    /// No frame waits, or the guest has no buffers for the oldest one.
    Nothing,
    /// Another worker has the claim, or copies a frame ahead of this worker's last one.
    Busy,
}

/// One packet that the receiver gets: the frame, or a segment of it.
#[derive(Clone, Copy, Debug)]
struct SharedPacket {
    /// Number of its buffers.
    buffers: u16,
    /// The end of its pieces of memory in the list of all.
    pieces_end: usize,
}

/// The frame that a worker copies without the claim. Its memory is allocated once, at the start.
#[derive(Debug)]
pub(crate) struct SharedFrame {
    /// The frame's place in the queue, until it is settled.
    waiting: Option<Waiting>,
    outcome: Outcome,
    /// How it is cut, unless the receiver gets it whole.
    plan: Option<Segmentation>,
    packets: Vec<SharedPacket>,
    pieces: Vec<Segment>,
    /// Head of each buffer, and bytes to write to it.
    heads: Vec<(u16, u32)>,
}

impl SharedFrame {
    /// Allocates room for a frame. A worker that is alone needs none.
    pub(crate) fn new(workers: usize) -> Self {
        let room = |entries| if workers > 1 { entries } else { 0 };
        Self {
            waiting: None,
            outcome: Outcome::Done,
            plan: None,
            packets: Vec::with_capacity(room(GSO_SEGMENTS_MAX as usize)),
            pieces: Vec::with_capacity(room(LEASE_SEGMENTS_MAX)),
            heads: Vec::with_capacity(room(LEASE_SEGMENTS_MAX)),
        }
    }

    /// Begins with a waiting frame. False if it is one that is delivered under the claim: some of it is delivered already, or it is
    /// cut into IP fragments, or cannot be cut.
    fn begin(&mut self, waiting: &Waiting, capabilities: Capabilities) -> bool {
        self.packets.clear();
        self.pieces.clear();
        self.heads.clear();
        let (len, offload) = shape(&waiting.header, waiting.truncate_len_bytes);
        self.plan = None;
        if waiting.next_segment > 0 || waiting.header.offload.is_fragmented() {
            return false;
        }
        if capabilities.cuts(offload) {
            self.plan = Segmentation::plan(waiting.header.bytes(), &offload, len).ok();
            return self.plan.is_some();
        }
        true
    }

    /// Adds the packet that `reservation` has buffers for. False if there is no room.
    fn enter(&mut self, reservation: &Reservation) -> bool {
        let has_room = self.packets.len() < self.packets.capacity()
            && self.pieces.len() + PACKET_BUFFER_SEGMENTS_MAX <= self.pieces.capacity()
            && self.heads.len() + PACKET_BUFFERS_MAX <= self.heads.capacity();
        if has_room {
            self.pieces.extend_from_slice(reservation.segments());
            self.heads.extend_from_slice(reservation.heads());
            let pieces_end = self.pieces.len();
            self.packets.push(SharedPacket { buffers: reservation.buffers(), pieces_end });
        }
        has_room
    }

    /// Fills the buffers. Does not need the claim.
    fn copy(&mut self, place: &ReceiveRing, senders: &Senders, buffer: &mut SegmentBuffer) {
        let Some(waiting) = &mut self.waiting else { return };
        let source = senders.source(waiting.packet);
        let frame = source.as_ref().and_then(|source| {
            source.frame(waiting.packet, &waiting.header, waiting.truncate_len_bytes, buffer)
        });
        let to = (&*place.map, place.capabilities);
        let (plan, packets) = (self.plan.as_ref(), &self.packets[..]);
        let delivered = frame.and_then(|frame| fill(plan, (packets, &self.pieces), &frame, to));
        // Neither memory can have changed since the reservation: no task runs in between.
        debug_assert!(delivered.is_some(), "a reserved frame can be copied");
        self.outcome = match delivered {
            Some(delivered) => {
                waiting.delivered.add(&delivered);
                Outcome::Done
            }
            None => Outcome::Drop(DropReason::Recalled),
        };
    }
}

/// Copies a frame into its buffers: whole, or cut by a plan. `None` if memory is gone.
fn fill(
    plan: Option<&Segmentation>,
    (packets, pieces): (&[SharedPacket], &[Segment]),
    frame: &Frame<'_>,
    (map, capabilities): (&MemoryMap, Capabilities),
) -> Option<Delivered> {
    let buffers_of = |number: usize| {
        let SharedPacket { buffers, pieces_end } = packets[number];
        let start = number.checked_sub(1).map_or(0, |before| packets[before].pieces_end);
        let header_bytes = capabilities.header_bytes;
        Buffers { segments: &pieces[start..pieces_end], count: buffers, header_bytes }
    };
    let Some(plan) = plan else { return buffers_of(0).fill(map, capabilities, frame).ok() };
    let mut image = [0; IMAGE_BYTES];
    let head = image.get_mut(..plan.header_len() as usize)?;
    let mut all = Delivered::default();
    for number in 0..plan.count() {
        let offload = plan.write_header(number, frame.header.bytes(), head);
        let buffers = buffers_of(number as usize);
        let segment = (&*head, plan.payload(number));
        all.add(&buffers.fill_segment(map, capabilities, frame, offload, segment).ok()?);
    }
    Some(all)
}

impl Service<'_, '_> {
    /// Queues the first copies, which are large, so that a helper and this worker copy them in turns. Returns their
    /// number: fewer than all if they would have to be dropped for waiting.
    pub(crate) fn share(&mut self, copies: &[PacketCopy<'_>], helper: u8, now_ns: u64) -> usize {
        self.absorb();
        let mut count = 0;
        for copy in copies {
            let is_full = !self.claim.is_clear() || self.claim.full(copy.header.frame_len_bytes()).is_some();
            if is_full || !self.tools.senders.begin_waiting(copy.packet, self.place.id) {
                break;
            }
            self.claim.push(copy.waiting(0, now_ns));
            count += 1;
        }
        if count > 0 {
            self.claim.unserved = true;
            self.order(helper);
        }
        count
    }

    /// Takes the oldest frame and reserves its buffers. A frame that cannot be copied without the claim is delivered.
    fn take_shared(&mut self, shared: &mut SharedFrame) -> SharedStep {
        let worker = self.tools.senders.worker;
        if !self.claim.leases.may_extend(worker) {
            return SharedStep::Busy;
        }
        if !self.claim.is_worth_a_try() && self.claim.is_clear() {
            return SharedStep::Nothing;
        }
        self.claim.unserved = false;
        let left = self.claim.waiting() == 0;
        let next = if left { self.claim.dequeue() } else { self.claim.pop() };
        let Some(waiting) = next else { return SharedStep::Nothing };
        let start = self.claim.ring.used_position();
        if self.claim.is_open() && self.reserve_shared(&waiting, shared) {
            // Its last frame may wait for one ahead of it: then its lease is extended.
            self.claim.leases.open_or_extend(worker, start, self.place.lock.publish_order());
            shared.waiting = Some(waiting);
            self.claim.unserved = true;
            return SharedStep::Reserved;
        }
        if self.try_waiting(waiting, left) {
            self.claim.unserved = true;
            return SharedStep::Done;
        }
        self.absorb();
        SharedStep::Nothing
    }

    /// Reserves buffers for a whole frame, or none.
    fn reserve_shared(&mut self, waiting: &Waiting, shared: &mut SharedFrame) -> bool {
        let (map, capabilities) = (&self.place.map, self.place.capabilities);
        if !shared.begin(waiting, capabilities) {
            return false;
        }
        let whole_len = shape(&waiting.header, waiting.truncate_len_bytes).0;
        let plan = shared.plan;
        let count = plan.as_ref().map_or(1, Segmentation::count);
        let (queue, reservation) = (&mut *self.claim, &mut self.tools.scratch.reservation);
        for number in 0..count {
            let len = plan.as_ref().map_or(whole_len, |plan| {
                let payload = plan.payload(number);
                plan.header_len() + (payload.end - payload.start)
            });
            let len = capabilities.header_bytes as u32 + len;
            let taken = reservation.take(&mut queue.ring, map, &mut queue.hint, len, capabilities.mergeable);
            if taken.is_err() {
                break;
            }
            if !shared.enter(reservation) {
                reservation.put_back(&mut queue.ring);
                break;
            }
        }
        if shared.packets.len() < count as usize {
            queue.ring.put_back(shared.heads.len() as u16); // at most the ring's entries
            return false;
        }
        shared.heads.iter().for_each(|(head, bytes)| queue.ring.complete(*head, *bytes));
        self.charge_pieces(waiting.packet);
        true
    }
}

impl Receivers {
    /// One step of copying the large frames that wait at `ring`: publishes this worker's last frame, and takes the next
    /// one if `wants_more`. Returns this worker's follow-up, too; `None` if another worker has the claim.
    pub(crate) fn share_step(
        &mut self,
        ring: RingId,
        tools: &mut Tools<'_>,
        shared: &mut SharedFrame,
        wants_more: bool,
    ) -> (SharedStep, Option<FollowUp>) {
        let nowhere = (SharedStep::Nothing, Some(FollowUp::None));
        let receiver = self.slots.get_mut(ring.port.index()).and_then(Option::as_deref_mut);
        let Some(Receiver { queues, received, .. }) = receiver else { return nowhere };
        let Some(place) = queues.get(usize::from(ring.queue)).and_then(Option::as_deref) else {
            return nowhere;
        };
        let last = shared.waiting.take().map(|waiting| (waiting, shared.outcome));
        // The first try is behind a fence, since the last frame may be finished by now.
        let again = || place.lock.try_lock_again().or_else(|| place.lock.try_lock_spinning(CLAIM_LOOKS_MAX));
        let (step, follow_up) = match again() {
            Some(claim) => {
                let mut service = Service::new(place, claim, received, tools);
                service.publish();
                let step = if wants_more { service.take_shared(shared) } else { SharedStep::Busy };
                (step, Some(service.close()))
            }
            // Its holder publishes this worker's last frame.
            None => (SharedStep::Busy, None),
        };
        if let Some((waiting, outcome)) = last {
            received.settle_shared(waiting, (ring, outcome), tools.senders);
        }
        (step, follow_up)
    }

    /// Copies the frame that the last step reserved buffers for.
    pub(crate) fn copy_shared(&mut self, ring: RingId, tools: &mut Tools<'_>, shared: &mut SharedFrame) {
        let Some(place) = self.ring(ring) else { return };
        shared.copy(place, tools.senders, tools.segments);
        tools.senders.stages.mark(WorkStage::Copy);
        if let Some(waiting) = &shared.waiting
            && tools.senders.is_tapped()
        {
            tools.senders.tap_copy(ring.port, &waiting.copy(), shared.outcome);
        }
        place.lock.publish_order().finish(tools.senders.worker);
    }
}

impl Received {
    /// Settles a frame that was copied without the claim, or returns it to its home.
    fn settle_shared(&mut self, waiting: Waiting, (to, outcome): (RingId, Outcome), senders: &mut Senders) {
        senders.handoffs.shared += 1;
        let Waiting { packet, delivered, .. } = waiting;
        if senders.owns(packet) {
            self.enter(outcome, &delivered);
            senders.charge(packet, 1, &delivered);
            let attempt = Attempt { outcome, delivered: delivered.packets as u32 };
            senders.settle_waiting(packet, attempt);
        } else {
            senders.give_back(Return { packet, to, outcome, delivered });
        }
    }
}
