//! The work of one worker at one receive ring while it holds the claim.

use arrayvec::ArrayVec;
use lasthop_module_api::{BATCH_PACKETS_MAX, DropReason};
use lasthop_stages::WorkStage;
use lasthop_sync::{CombiningGuard, full_fence};
use lasthop_wire::vnet::HEADER_BYTES;

use crate::bounds::{RECLAIMS_MAX, SERVICE_BYTES_MAX, SERVICE_METERED_BYTES_MAX, SERVICE_PACKETS_MAX};
use crate::counters::Drops;
use crate::frame::shape;
use crate::reference::{Attempt, Delivered, Outcome, PacketCopy, PacketRef, Return, Waiting};
use crate::rx::deliver::Delivery;
use crate::rx::express::{Express, UsualFrame, copied_from};
use crate::rx::lease::Leases;
use crate::rx::receive_ring::{FollowUp, ReceiveRing, RxQueue};
use crate::rx::reservation::{Refusal, Reservation};
use crate::side_table::SegmentBuffer;
use crate::tx::sender::Fetched;
use crate::tx::senders::Senders;
use crate::{RingId, Signal};

/// A worker's counters for a receiver.
#[derive(Debug, Default)]
pub(crate) struct Received {
    pub(crate) delivered: Delivered,
    pub(crate) drops: Drops,
}

/// Scratch memory for delivery, once per worker.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    pub(crate) reservation: Reservation,
    pub(crate) express: Express,
}

/// A worker's state for serving any ring.
pub(crate) struct Tools<'a> {
    pub(crate) senders: &'a mut Senders,
    pub(crate) scratch: &'a mut Scratch,
    pub(crate) segments: &'a mut SegmentBuffer,
    pub(crate) signals: &'a mut Vec<Signal>,
}

/// A receive ring while this worker has its claim.
pub(crate) struct Service<'a, 't> {
    pub(crate) place: &'a ReceiveRing,
    pub(crate) claim: CombiningGuard<'a, RxQueue, Waiting>,
    received: &'a mut Received,
    pub(crate) tools: &'a mut Tools<'t>,
    is_last: bool,
}

/// Outcomes of the copies that were tried. The last one may have found no buffers.
#[derive(Default)]
struct Attempts {
    list: ArrayVec<Attempt, BATCH_PACKETS_MAX>,
    /// The segment at which the last copy continues, if it waits.
    next_segment: u32,
}

/// The holder's remaining budget for packets of other workers.
struct Budget {
    packets: u32,
    bytes: u32,
}

impl Budget {
    fn spend(&mut self, bytes: u32) -> bool {
        let left = self.packets > 0 && self.bytes > 0;
        self.packets = self.packets.saturating_sub(1);
        self.bytes = self.bytes.saturating_sub(bytes);
        left
    }
}

impl<'a, 't> Service<'a, 't> {
    #[inline]
    pub(crate) fn new(
        place: &'a ReceiveRing,
        claim: CombiningGuard<'a, RxQueue, Waiting>,
        received: &'a mut Received,
        tools: &'a mut Tools<'t>,
    ) -> Self {
        Self { place, claim, received, tools, is_last: false }
    }

    /// Delivers copies of one visit's packets, queues them, or drops them for a reason. Each is accounted for. Packets
    /// that already wait go first.
    #[inline]
    pub(crate) fn accept(&mut self, copies: &[PacketCopy<'_>], leases: &mut Leases, now_ns: u64) {
        if !self.claim.is_open() {
            self.serve();
            copies.iter().for_each(|copy| self.refuse(copy, DropReason::PortDown));
            return;
        }
        let clear = self.serve();
        let mut leased = 0;
        let mut blocked = !clear;
        if clear && self.place.is_contended() && !leases.is_off {
            (leased, blocked) = self.lease(copies, leases);
        }
        let mut copies = &copies[leased..];
        if !blocked && !self.tools.senders.is_metered() {
            copies = &copies[self.express(copies)..];
        }
        if !copies.is_empty() {
            self.accept_one_by_one(copies, blocked, clear, now_ns);
        }
    }

    /// As `accept`, for the packets of a visit from number `from` on. Lists them first.
    #[inline(never)]
    pub(crate) fn accept_rest(
        &mut self,
        fetched: &mut Fetched,
        from: usize,
        leases: &mut Leases,
        now_ns: u64,
    ) {
        self.tools.senders.list(fetched, from);
        let mut copies = ArrayVec::new();
        fetched.add_copies(from, &mut copies);
        self.accept(&copies, leases, now_ns);
    }

    /// As `accept`, for unusual packets. `blocked`: there are no buffers for them.
    #[inline]
    fn accept_one_by_one(&mut self, copies: &[PacketCopy<'_>], blocked: bool, clear: bool, now_ns: u64) {
        let mut attempts = Attempts::default();
        if !blocked {
            let mut delivered = Delivered::default();
            self.attempt(copies, 0, &mut delivered, &mut attempts);
            self.tools.senders.stages.mark(WorkStage::Copy);
            self.received.delivered.add(&delivered);
        }
        let (tried, untried) = copies.split_at(attempts.list.len());
        if self.tools.senders.is_tapped() {
            self.tools.senders.tap_attempts(self.place.id.port, tried, &attempts.list);
        }
        let settled = tried.iter().zip(&attempts.list).map(|(copy, attempt)| (copy.packet, *attempt));
        self.tools.senders.settle_all(settled);
        for (copy, attempt) in tried.iter().zip(&attempts.list) {
            match attempt.outcome {
                Outcome::Done | Outcome::ToNone => {}
                Outcome::Drop(reason) => self.received.drops.count(reason),
                Outcome::Wait => {
                    self.let_wait_or_drop(copy, attempts.next_segment, clear, now_ns);
                }
            }
        }
        untried.iter().for_each(|copy| self.let_wait_or_drop(copy, 0, clear, now_ns));
    }

    /// Delivers the first packets of a visit that is not listed, if no packet waits ahead of them. Stops at an unusual
    /// packet or when there are no buffers. Returns the number delivered.
    #[inline]
    pub(crate) fn accept_unlisted(&mut self, fetched: &Fetched) -> usize {
        let is_idle = self.claim.waiting() == 0 && self.claim.is_clear();
        if !is_idle || !self.claim.is_open() {
            return 0;
        }
        self.claim.unserved = false;
        let Tools { senders, scratch, .. } = &mut *self.tools;
        let express = &mut scratch.express;
        let Some(source) = senders.get(fetched.name.port()) else { return 0 };
        let frames = fetched.frames().map(|(chain, header)| UsualFrame {
            header,
            len: chain.bytes - HEADER_BYTES as u32, // checked when the chain was read
            offload: header.offload,
            source: Some(chain.first),
        });
        let to = (&*self.place.map, self.place.capabilities);
        let delivered = express.run(&mut self.claim, to, (&source.map, frames), &senders.stages);
        senders.stages.mark(WorkStage::Publish);
        self.received.delivered.add(&delivered);
        senders.settle_unlisted(fetched, delivered.packets as usize, delivered.bytes);
        delivered.packets as usize
    }

    /// Marks this as the visit's last delivery: the completed chains are published together with the buffers, and share
    /// one fence.
    #[inline]
    pub(crate) fn be_last(&mut self) {
        self.is_last = true;
    }

    /// Delivers the first copies, up to one that is unusual or finds no buffers. Returns the number delivered.
    #[inline]
    fn express(&mut self, copies: &[PacketCopy<'_>]) -> usize {
        let Some(source) = copies.first().and_then(|copy| self.tools.senders.source(copy.packet)) else {
            return 0;
        };
        let to = (&*self.place.map, self.place.capabilities);
        let express = &mut self.tools.scratch.express;
        let from = (source.map(), copied_from(&source, copies));
        let delivered = express.run(&mut self.claim, to, from, &self.tools.senders.stages);
        self.tools.senders.stages.mark(WorkStage::Publish);
        self.received.delivered.add(&delivered);
        let done = delivered.packets as usize;
        if self.tools.senders.is_tapped() {
            self.tools.senders.tap_delivered(self.place.id.port, &copies[..done]);
        }
        self.tools.senders.settle_delivered(copies[..done].iter().map(|copy| copy.packet), delivered.bytes);
        done
    }

    /// Tries to put copies into the ring, in order, until one finds no buffers. All come from one transmit ring. The
    /// first continues at its segment `next_segment`.
    #[inline]
    fn attempt(
        &mut self,
        copies: &[PacketCopy<'_>],
        next_segment: u32,
        delivered: &mut Delivered,
        attempts: &mut Attempts,
    ) {
        let Some(source) = copies.first().and_then(|copy| self.tools.senders.source(copy.packet)) else {
            attempts.list.extend(copies.iter().map(|_| Attempt::dropped(DropReason::Recalled)));
            return;
        };
        let place = self.place;
        let reservation = &mut self.tools.scratch.reservation;
        let (queue, capabilities) = (&mut *self.claim, place.capabilities);
        let (map, is_metered) = (&place.map, self.tools.senders.is_metered());
        let mut delivery = Delivery { queue, map, capabilities, delivered, reservation, is_metered };
        attempts.next_segment = next_segment;
        for copy in copies {
            let frame = source.frame(copy.packet, copy.header, copy.truncate_len_bytes, self.tools.segments);
            let attempt = match frame {
                Some(frame) => delivery.deliver(&frame, &mut attempts.next_segment),
                None => Attempt::dropped(DropReason::Recalled),
            };
            attempts.list.push(attempt);
            if attempt.outcome == Outcome::Wait {
                break;
            }
            attempts.next_segment = 0;
        }
        self.tools.senders.charge(copies[0].packet, copies.len(), delivered);
        self.charge_pieces(copies[0].packet);
    }

    /// Charges the sender of the packets just tried, of which `first` is one, for the memory pieces of their receive
    /// buffers.
    pub(crate) fn charge_pieces(&mut self, first: PacketRef) {
        let pieces = self.tools.scratch.reservation.take_further_pieces();
        if pieces > 0 {
            self.tools.senders.charge_pieces(first, pieces);
        }
    }

    /// Reserves buffers for copies that need no segmentation; they are filled without the claim. Returns the number of
    /// copies done, and whether the next one found no buffers.
    fn lease(&mut self, copies: &[PacketCopy<'_>], leases: &mut Leases) -> (usize, bool) {
        let worker = self.tools.senders.worker;
        if self.claim.leases.has(worker) {
            return (0, false); // one lease per worker: entries written behind it would be published with it
        }
        let start = self.claim.ring.used_position();
        let mut seen = self.lease_usual(copies, leases);
        let mut blocked = false;
        for copy in &copies[seen..] {
            let (len, offload) = shape(copy.header, copy.truncate_len_bytes);
            let capabilities = self.place.capabilities;
            if !leases.has_room() || capabilities.cuts(offload) {
                break;
            }
            let (queue, reservation) = (&mut *self.claim, &mut self.tools.scratch.reservation);
            let len = capabilities.header_bytes as u32 + len;
            let map = &self.place.map;
            match reservation.take(&mut queue.ring, map, &mut queue.hint, len, capabilities.mergeable) {
                Ok(()) => {
                    reservation.complete(&mut queue.ring);
                    leases.enter(self.place.id, copy, reservation);
                }
                Err(Refusal::NoBuffers(available)) => {
                    (queue.seen_available, blocked) = (available, true);
                    break;
                }
                // The segments may fit.
                Err(Refusal::TooSmall) if offload.is_gso() => break,
                Err(Refusal::TooSmall) => self.refuse(copy, DropReason::RxBufferSmall),
                Err(Refusal::Broken(error)) => {
                    queue.broken = Some(error);
                    self.refuse(copy, DropReason::RxRingBroken);
                }
            }
            seen += 1;
        }
        if let Some(first) = copies.first() {
            self.charge_pieces(first.packet);
        }
        if self.claim.ring.used_position() != start {
            self.claim.leases.open(worker, start, self.place.lock.publish_order());
            leases.begin(self.place.id);
        }
        (seen, blocked)
    }

    /// Reserves buffers for the first copies, up to one that is unusual or finds no buffers. Returns their number.
    #[inline]
    fn lease_usual(&mut self, copies: &[PacketCopy<'_>], leases: &mut Leases) -> usize {
        let copies = &copies[..copies.len().min(leases.usual_room())];
        let Some(source) = copies.first().and_then(|copy| self.tools.senders.source(copy.packet)) else {
            return 0;
        };
        let to = (&*self.place.map, self.place.capabilities);
        let places = self.tools.scratch.express.lease(&mut self.claim, to, &source, copies);
        leases.enter_usual(self.place.id, copies, places);
        places.len()
    }

    /// Drops one of this worker's own packets.
    pub(crate) fn refuse(&mut self, copy: &PacketCopy<'_>, reason: DropReason) {
        self.received.drops.count(reason);
        if self.tools.senders.is_tapped() {
            self.tools.senders.tap_copy(self.place.id.port, copy, Outcome::Drop(reason));
        }
        self.tools.senders.settle(copy.packet, Attempt::dropped(reason));
    }

    /// Queues a copy that found no buffers. Drops it if the bounds of waiting are reached.
    fn let_wait_or_drop(&mut self, copy: &PacketCopy<'_>, next_segment: u32, clear: bool, now_ns: u64) {
        if let Err(reason) = self.let_wait(copy, next_segment, clear, now_ns) {
            self.refuse(copy, reason);
        }
    }

    fn let_wait(
        &mut self,
        copy: &PacketCopy<'_>,
        next_segment: u32,
        clear: bool,
        now_ns: u64,
    ) -> Result<(), DropReason> {
        let may_wait = clear || {
            let blocked = self.claim.waiting() > 0;
            self.absorb();
            // Absorbed packets were never tried. If none waited before them, there may be buffers for them.
            self.claim.unserved |= !blocked && self.claim.waiting() > 0;
            self.claim.is_clear()
        };
        if let Some(reason) = self.claim.full(copy.header.frame_len_bytes()) {
            return Err(reason);
        }
        if !self.tools.senders.begin_waiting(copy.packet, self.place.id) {
            return Err(DropReason::RxShare);
        }
        if next_segment > 0 {
            self.tools.senders.rule_out(copy.packet);
        }
        let waiting = copy.waiting(next_segment, now_ns);
        if may_wait {
            self.claim.push(waiting);
            return Ok(());
        }
        // A packet of this worker may still be in the lock's queue: this one must not overtake it.
        self.place.enqueue(waiting, self.tools.senders)
    }

    /// Moves packets that other workers queued to the waiting packets.
    pub(crate) fn absorb(&mut self) {
        while let Some(waiting) = self.claim.dequeue() {
            let drop = self.full(&waiting);
            self.wait_or_finish(waiting, drop);
        }
    }

    fn full(&mut self, waiting: &Waiting) -> Option<DropReason> {
        self.claim.full(waiting.header.frame_len_bytes())
    }

    fn wait_or_finish(&mut self, waiting: Waiting, drop: Option<DropReason>) {
        match drop {
            Some(reason) => self.finish(waiting, Outcome::Drop(reason)),
            None => self.claim.push(waiting),
        }
    }

    /// Delivers waiting and queued packets, in order, while there are buffers. A budget bounds packets of other
    /// workers, and while metered also this worker's, since each may cause page faults. True if no packet is ahead of
    /// this worker's next one.
    #[inline]
    pub(crate) fn serve(&mut self) -> bool {
        self.claim.unserved = false;
        if self.claim.waiting() == 0 && self.claim.is_clear() {
            return true;
        }
        self.serve_waiting()
    }

    fn serve_waiting(&mut self) -> bool {
        let is_metered = self.tools.senders.is_metered();
        let bytes = if is_metered { SERVICE_METERED_BYTES_MAX } else { SERVICE_BYTES_MAX };
        let mut budget = Budget { packets: SERVICE_PACKETS_MAX, bytes };
        loop {
            let left = self.claim.waiting() == 0;
            let next = if left { self.claim.dequeue() } else { self.claim.pop() };
            let Some(waiting) = next else { return self.claim.is_clear() };
            let is_bounded = is_metered || !self.tools.senders.owns(waiting.packet);
            if is_bounded && !budget.spend(waiting.header.frame_len_bytes()) {
                self.claim.put_back(waiting);
                self.claim.unserved = true;
                return false;
            }
            if !self.try_waiting(waiting, left) {
                // Moves queued packets to the waiting ones: in the lock's queue they would look like pending work.
                self.absorb();
                return false;
            }
        }
    }

    /// Tries to deliver a packet that waited. False if it still has to wait.
    pub(crate) fn try_waiting(&mut self, mut waiting: Waiting, was_left: bool) -> bool {
        if !self.claim.is_open() {
            self.finish(waiting, Outcome::Drop(DropReason::PortDown));
            return true;
        }
        if self.tools.senders.is_metered() {
            self.tools.senders.lap_waiting(waiting.packet, self.place.id.port, self.tools.segments);
        }
        let copy = waiting.copy();
        let mut delivered = Delivered::default();
        let mut attempts = Attempts::default();
        self.attempt(&[copy], waiting.next_segment, &mut delivered, &mut attempts);
        waiting.delivered.add(&delivered);
        let outcome =
            attempts.list.first().map_or(Outcome::Drop(DropReason::Recalled), |first| first.outcome);
        if outcome != Outcome::Wait {
            self.finish(waiting, outcome);
            return true;
        }
        if was_left && self.claim.is_stalled() {
            self.finish(waiting, Outcome::Drop(DropReason::RxStalled));
            return true;
        }
        waiting.next_segment = attempts.next_segment;
        if self.tools.senders.owns(waiting.packet) {
            if waiting.next_segment > 0 {
                self.tools.senders.rule_out(waiting.packet);
            }
            let delivered = std::mem::take(&mut waiting.delivered);
            self.received.delivered.add(&delivered);
            // Its ring may have moved to another home.
            if let Some(counters) = self.tools.senders.counters_of(waiting.packet) {
                counters.settle(Attempt { outcome, delivered: delivered.packets as u32 });
            }
        }
        self.claim.put_back(waiting);
        false
    }

    /// Ends a packet's wait. If this worker is its home, it settles the packet; otherwise it returns the reference to
    /// the home.
    pub(crate) fn finish(&mut self, waiting: Waiting, outcome: Outcome) {
        if self.claim.waiting() == 0 {
            self.claim.ring.suppress_kicks();
        }
        if self.tools.senders.is_tapped() {
            self.tools.senders.tap_copy(self.place.id.port, &waiting.copy(), outcome);
        }
        let Waiting { packet, delivered, .. } = waiting;
        if !self.tools.senders.owns(packet) {
            self.tools.senders.give_back(Return { packet, to: self.place.id, outcome, delivered });
            return;
        }
        let outcome = self.tools.senders.corrected(packet, outcome);
        self.received.enter(outcome, &delivered);
        let attempt = Attempt { outcome, delivered: delivered.packets as u32 };
        self.tools.senders.settle_waiting(packet, attempt);
    }

    /// Returns all waiting and queued packets to their homes, which take them from their rings once more. Packets for a
    /// ring that is being stopped are dropped instead: later packets of their flow already go to another queue, and
    /// these must not arrive after them.
    pub(crate) fn withdraw(&mut self) {
        let RingId { port, queue } = self.place.id;
        let is_wanted = self.tools.senders.board.link(port).is_wanted(usize::from(queue), false);
        while let Some(waiting) = self.claim.pop().or_else(|| self.claim.dequeue()) {
            let outcome = match waiting.next_segment {
                _ if !is_wanted => Outcome::Drop(DropReason::PortDown),
                0 => Outcome::Wait,
                _ => Outcome::Drop(DropReason::Restart),
            };
            self.finish(waiting, outcome);
        }
    }

    /// Drops all waiting and queued packets.
    pub(crate) fn drop_waiting(&mut self, reason: DropReason) {
        while let Some(waiting) = self.claim.pop().or_else(|| self.claim.dequeue()) {
            self.finish(waiting, Outcome::Drop(reason));
        }
    }

    /// Detaches the waiting packets of the transmit ring `sender`, oldest first, while there is room. Returns their
    /// number.
    pub(crate) fn detach(&mut self, sender: RingId) -> usize {
        self.serve();
        let Tools { senders, segments, .. } = &mut *self.tools;
        let of_sender =
            |waiting: &&mut Waiting| waiting.packet.ring() == sender && !waiting.packet.is_detached();
        let mut count = 0;
        for waiting in self.claim.waiting_mut().filter(of_sender) {
            let Some(packet) = senders.detach(waiting.packet, segments) else { break };
            waiting.packet = packet;
            count += 1;
        }
        count
    }

    /// Drops waiting and queued packets for which `gone` holds. The others keep their order.
    pub(crate) fn drop_those(&mut self, gone: impl Fn(PacketRef) -> bool, reason: DropReason) {
        for _ in 0..self.claim.waiting() {
            let Some(waiting) = self.claim.pop() else { break };
            if gone(waiting.packet) {
                self.finish(waiting, Outcome::Drop(reason));
            } else {
                self.claim.push(waiting);
            }
        }
        while let Some(waiting) = self.claim.dequeue() {
            let drop = if gone(waiting.packet) { Some(reason) } else { self.full(&waiting) };
            self.wait_or_finish(waiting, drop);
        }
    }

    /// Drops packets that have waited too long at `now_ns`. The receiver then counts as stalled until its guest moves.
    pub(crate) fn expire(&mut self, now_ns: u64) {
        while self.claim.deadline_ns().is_some_and(|deadline| deadline <= now_ns) {
            self.claim.stall();
            let Some(waiting) = self.claim.pop() else { break };
            self.finish(waiting, Outcome::Drop(DropReason::RxTimeout));
            // The packets behind only waited for their turn.
            self.serve();
        }
    }

    /// Publishes delivered packets to the guest, up to the oldest one that is still being copied.
    #[inline]
    pub(crate) fn publish(&mut self) {
        let queue = &mut *self.claim;
        let mut end = queue.ring.used_position();
        if !queue.leases.is_empty() {
            end = queue.leases.end_finished(self.place.lock.publish_order()).unwrap_or(end);
        }
        if end != queue.ring.published_position() {
            queue.ring.publish_up_to(end);
            if self.is_last {
                self.tools.senders.show_completed();
            }
            // The fence orders both sides: this one stores its index, then reads the guest's event index; the guest
            // does the reverse.
            full_fence();
            if queue.ring.needs_signal_behind_fence() {
                self.tools.signals.push(Signal::receive(self.place.id));
            }
            if self.is_last {
                self.tools.senders.signal_shown(self.tools.signals);
            }
        }
        if let Some(error) = queue.broken {
            if self.place.error.set(error).is_ok() {
                self.tools.senders.note_broken(self.place.id.port, error);
            }
            self.tools.senders.board.set_receiving(self.place.id.port, self.place.id.queue, false);
        }
    }

    /// Publishes, releases the claim and checks once more. Returns this worker's follow-up: a worker that queued
    /// packets must drain them.
    #[inline(always)] // few instructions, unless others queue
    pub(crate) fn close(mut self) -> FollowUp {
        self.tools.senders.stages.mark(WorkStage::Completion);
        self.publish();
        self.tools.senders.stages.mark(WorkStage::Publish);
        let follow_up = self.claim.follow_up();
        let Self { place, claim, received, tools, .. } = self;
        match claim.release() {
            false => follow_up,
            true => Self::serve_queued(place, received, tools),
        }
    }

    /// Serves on after another worker queued packets or finished copying, unless yet another one has the claim: the
    /// holder serves those and all waiting packets.
    #[inline(never)]
    pub(crate) fn serve_queued(
        place: &'a ReceiveRing,
        received: &'a mut Received,
        tools: &'a mut Tools<'t>,
    ) -> FollowUp {
        let (mut received, mut tools) = (received, tools);
        for _ in 0..RECLAIMS_MAX {
            let Some(claim) = place.lock.try_lock() else { return FollowUp::None };
            let mut service = Self::new(place, claim, received, tools);
            service.serve();
            service.publish();
            service.tools.senders.stages.mark(WorkStage::Publish);
            let follow_up = service.claim.follow_up();
            let Self { claim, .. } = service;
            (received, tools) = (service.received, service.tools);
            if !claim.release() {
                return follow_up;
            }
        }
        FollowUp::Now
    }
}

impl Received {
    /// Counts the outcome of a packet that waited.
    pub(crate) fn enter(&mut self, outcome: Outcome, delivered: &Delivered) {
        self.delivered.add(delivered);
        if let Outcome::Drop(reason) = outcome {
            self.drops.count(reason);
        }
    }
}
