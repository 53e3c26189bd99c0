use std::sync::Arc;

use lasthop_exchange::full_fence;
use lasthop_guestmem::{MemoryMap, Segment};
use lasthop_ring::{
    DESC_INDIRECT, DESC_NEXT, DESC_WRITE, Descriptor, DeviceRing, Direction, RingError, walk_from,
};
use lasthop_verdict::{BATCH_PACKETS_MAX, DropReason, Hashes, Header, IMAGES_MADE_MAX, PORTS_MAX, PortId};
use lasthop_wire::vnet::HEADER_BYTES;

use crate::board::Board;
use crate::bounds::{CHAIN_SEGMENTS_MAX, LENT_PACKETS_MAX, VISIT_BYTES_MAX, WAITING_SHARE_QUARTERS};
use crate::chain::{Chain, read_one_piece, read_pieces};
use crate::cost::Charge;
use crate::counters::{Delivered, HandoffCounters, PortCounters};
use crate::frame::Frame;
use crate::injected::InjectedFrames;
use crate::receive_ring::ReceiveRing;
use crate::reference::{Attempt, Outcome, PacketRef, Return, Waiting};
use crate::side_table::{ChainSegments, Chains, SegmentBuffer};
use crate::tap::Taps;
use crate::tx_queue::TxQueue;
use crate::{Capabilities, RingId};

/// The transmit side of a port, as one worker has it.
#[derive(Debug, Default)]
pub(crate) struct Sender {
    pub(crate) map: Arc<MemoryMap>,
    pub(crate) epoch: u32,
    pub(crate) capabilities: Capabilities,
    /// Rings whose home is here.
    pub(crate) queues: Vec<Option<TxQueue>>,
    /// Chains of all its rings, since any worker may hold references to them.
    pub(crate) chains: Vec<Option<Arc<Chains>>>,
    pub(crate) counters: PortCounters,
    pub(crate) charge: Charge,
}

/// The packets of one visit to one ring.
#[derive(Debug)]
pub(crate) struct Fetched {
    /// Of the packets, and from `BATCH_PACKETS_MAX` on those that the module made.
    pub(crate) headers: Box<[Header; BATCH_PACKETS_MAX + IMAGES_MADE_MAX]>,
    pub(crate) packets: [PacketRef; BATCH_PACKETS_MAX],
    pub(crate) len: usize,
    /// Whether the ring has more. If it is blocked or broken, the next visit takes none of it.
    pub(crate) more: bool,
    pub(crate) heads: [u16; BATCH_PACKETS_MAX],
    /// The chains as taken, before frames that are none are left out.
    pub(crate) chains: [Chain; BATCH_PACKETS_MAX],
    segments: Box<SegmentBuffer>,
    /// Of the packets.
    pub(crate) hashes: Box<Hashes>,
}

impl Default for Fetched {
    fn default() -> Self {
        Self {
            headers: Box::new([Header::default(); BATCH_PACKETS_MAX + IMAGES_MADE_MAX]),
            packets: [PacketRef::default(); BATCH_PACKETS_MAX],
            len: 0,
            more: false,
            heads: [0; BATCH_PACKETS_MAX],
            chains: [Chain::default(); BATCH_PACKETS_MAX],
            segments: Box::new([Segment::default(); CHAIN_SEGMENTS_MAX]),
            hashes: Box::new(Hashes::NONE),
        }
    }
}

impl Fetched {
    /// Puts the images that the module made where outputs look for them.
    #[inline]
    pub(crate) fn add_images(&mut self, made: &[Header]) {
        for (place, image) in self.headers[BATCH_PACKETS_MAX..].iter_mut().zip(made) {
            *place = *image;
        }
    }
}

/// Where the packets of one transmit ring lie.
pub(crate) struct Source<'a> {
    map: &'a MemoryMap,
    chains: &'a Chains,
    vnet_bytes: usize,
}

impl<'a> Source<'a> {
    pub(crate) fn map(&self) -> &'a MemoryMap {
        self.map
    }

    /// Bytes of the virtio-net header in front of each frame.
    pub(crate) fn vnet_bytes(&self) -> usize {
        self.vnet_bytes
    }

    /// Where a packet's bytes lie, unless its slot is gone.
    pub(crate) fn segments<'b>(
        &self,
        packet: PacketRef,
        buffer: &'b mut SegmentBuffer,
    ) -> Option<&'b [Segment]> {
        self.chains.segments(packet.head, packet.epoch, buffer)
    }

    /// Where a frame lies that is in one piece, unless its slot is gone.
    #[inline]
    pub(crate) fn only_segment(&self, packet: PacketRef) -> Option<Segment> {
        self.chains.only_segment(packet.head, packet.epoch)
    }

    /// The frame behind a reference, unless its slot is gone.
    #[inline]
    pub(crate) fn frame<'b>(
        &self,
        packet: PacketRef,
        header: &'b Header,
        truncate_len_bytes: u32,
        buffer: &'b mut SegmentBuffer,
    ) -> Option<Frame<'b>>
    where
        'a: 'b,
    {
        let segments = self.chains.segments(packet.head, packet.epoch, buffer)?;
        Some(Frame::new(self.map, segments, self.vnet_bytes, header, truncate_len_bytes))
    }
}

/// All transmit sides, as one worker has them.
#[derive(Debug)]
pub(crate) struct Senders {
    slots: Vec<Option<Box<Sender>>>,
    dirty: Vec<RingId>,
    unblocked: Vec<RingId>,
    pub(crate) board: Arc<Board>,
    pub(crate) worker: u8,
    /// References to packets of this worker in the queues of receive rings; bounded.
    lent: usize,
    /// Workers that something was given back to since the last publication, as bits.
    returned: u64,
    /// Whether a copy began to wait since that was asked last.
    has_let_wait: bool,
    /// Hand-overs to other workers.
    pub(crate) handoffs: HandoffCounters,
    /// The captures here, if any.
    pub(crate) taps: Option<Box<Taps>>,
    /// Of the port `internal`, at its home.
    pub(crate) accounts: InjectedFrames,
}

impl Senders {
    pub(crate) fn new(board: Arc<Board>, worker: u8) -> Self {
        let mut slots = Vec::new();
        slots.resize_with(PORTS_MAX, || None);
        let (dirty, unblocked) = (Vec::with_capacity(PORTS_MAX), Vec::with_capacity(PORTS_MAX));
        let handoffs = HandoffCounters::default();
        let accounts = InjectedFrames::default();
        let (lent, returned, has_let_wait, taps) = (0, 0, false, None);
        Self {
            slots,
            dirty,
            unblocked,
            board,
            worker,
            lent,
            returned,
            has_let_wait,
            handoffs,
            taps,
            accounts,
        }
    }

    /// Whether this worker is the packet's home, which alone settles it.
    #[inline]
    pub(crate) fn owns(&self, packet: PacketRef) -> bool {
        packet.home == self.worker
    }

    /// Returns a reference to its home.
    pub(crate) fn give_back(&mut self, reference: Return) {
        let home = reference.packet.home;
        let given = self.board.inbox(home).returns.push(reference);
        debug_assert!(given.is_ok(), "a completion queue holds whatever its worker may lend");
        self.returned |= 1 << home;
    }

    /// The next reference that came back.
    pub(crate) fn next_return(&mut self) -> Option<Return> {
        self.board.inbox(self.worker).returns.pop()
    }

    /// A reference came back, or was ours all along: its wait is over.
    pub(crate) fn settle_waiting(&mut self, packet: PacketRef, attempt: Attempt) {
        self.end_waiting(packet);
        match attempt.outcome {
            Outcome::Wait => self.withdraw(packet),
            _ => self.settle(packet, attempt),
        }
    }

    /// Whether a copy began to wait since this was asked last.
    #[inline]
    pub(crate) fn take_let_wait(&mut self) -> bool {
        std::mem::take(&mut self.has_let_wait)
    }

    /// Workers that sleep and have returned references to handle, as bits.
    #[inline]
    pub(crate) fn sleepers(&mut self) -> u64 {
        if self.returned == 0 {
            return 0;
        }
        full_fence();
        let returned = std::mem::take(&mut self.returned);
        let is_asleep =
            |worker: &u8| returned >> worker & 1 != 0 && self.board.inbox(*worker).sleep_flag.wake();
        (0..self.board.workers() as u8).filter(is_asleep).fold(0, |bits, worker| bits | 1 << worker)
    }

    /// The rings at home here.
    pub(crate) fn queues(&self) -> impl Iterator<Item = (RingId, &TxQueue)> {
        let senders =
            (0..).zip(&self.slots).filter_map(|(port, sender)| Some((PortId(port), sender.as_ref()?)));
        let queues = senders
            .flat_map(|(port, sender)| (0..).zip(&sender.queues).map(move |(queue, tx)| (port, queue, tx)));
        queues.filter_map(|(port, queue, tx)| Some((RingId { port, queue }, tx.as_ref()?)))
    }

    /// Chains taken and neither completed nor postponed.
    pub(crate) fn taken(&self) -> usize {
        self.queues().map(|(_, queue)| usize::from(queue.taken())).sum()
    }

    pub(crate) fn get(&self, port: PortId) -> Option<&Sender> {
        self.slots.get(port.index())?.as_deref()
    }

    pub(crate) fn get_mut(&mut self, port: PortId) -> Option<&mut Sender> {
        self.slots.get_mut(port.index())?.as_deref_mut()
    }

    pub(crate) fn put(&mut self, port: PortId, sender: Sender) {
        self.slots[port.index()] = Some(Box::new(sender));
    }

    pub(crate) fn remove(&mut self, port: PortId) {
        self.close_accounts(port);
        self.slots[port.index()] = None;
    }

    pub(crate) fn queue_mut(&mut self, ring: RingId) -> Option<&mut TxQueue> {
        self.get_mut(ring.port)?.queues.get_mut(usize::from(ring.queue))?.as_mut()
    }

    /// A ring gets its home here. Chains that another device left undone are returned, and counted as
    /// dropped.
    pub(crate) fn begin(&mut self, ring: RingId, mut queue: TxQueue) -> Option<Arc<Chains>> {
        let (chains_lost, copies_lost) = queue.give_up_taken();
        let chains = Arc::clone(queue.chains());
        let sender = self.get_mut(ring.port)?;
        *sender.queues.get_mut(usize::from(ring.queue))? = Some(queue);
        sender.counters.rx_packets += chains_lost;
        sender.counters.copies_added += copies_lost - chains_lost; // each marked chain has one at least
        sender.counters.rx_drops.count_all(DropReason::Restart, copies_lost);
        if chains_lost > 0 {
            self.mark_dirty(ring);
        }
        Some(chains)
    }

    /// Takes a batch from a ring into `fetched`; frames that are no frames are dropped and completed here. Returns the
    /// heads taken. A broken ring is marked and yields nothing more.
    #[inline]
    pub(crate) fn fetch(&mut self, ring: RingId, fetched: &mut Fetched) -> usize {
        fetched.len = 0;
        fetched.hashes.clear();
        let Some(sender) = self.slots.get_mut(ring.port.index()).and_then(Option::as_deref_mut) else {
            return 0;
        };
        let Some(queue) = sender.queues.get_mut(usize::from(ring.queue)).and_then(Option::as_mut) else {
            return 0;
        };
        if queue.error.is_some() || queue.closed || queue.held {
            return 0;
        }
        let discard = self.board.discards(ring.port, ring.queue);
        let (taken, error) = sender.fetch(ring, fetched, self.worker, discard);
        if let Some(queue) = self.queue_mut(ring) {
            queue.error = error;
        }
        if taken > fetched.len {
            self.mark_dirty(ring);
        }
        if ring.port == PortId::INTERNAL {
            self.enter_accounts(fetched);
        }
        taken
    }

    /// The ring and memory that a packet lies in, unless they are gone.
    #[inline]
    pub(crate) fn source(&self, packet: PacketRef) -> Option<Source<'_>> {
        let sender = self.get(packet.port())?;
        let chains = sender.chains.get(usize::from(packet.queue))?.as_deref()?;
        Some(Source { map: &sender.map, chains, vnet_bytes: sender.capabilities.sent_header_bytes })
    }

    /// As `settle_all`, for one attempt.
    #[inline]
    pub(crate) fn settle(&mut self, packet: PacketRef, attempt: Attempt) {
        self.settle_all(std::iter::once((packet, attempt)));
    }

    /// Enters the results of attempts to deliver copies of packets of one ring. A chain is completed with its last copy.
    #[inline]
    pub(crate) fn settle_all(&mut self, attempts: impl Iterator<Item = (PacketRef, Attempt)>) {
        let mut attempts = attempts.peekable();
        let Some(&(first, _)) = attempts.peek() else { return };
        let ring = RingId { port: first.port(), queue: first.queue };
        if ring.port == PortId::INTERNAL {
            return self.settle_own(attempts);
        }
        let Some(sender) = self.slots.get_mut(ring.port.index()).and_then(Option::as_deref_mut) else {
            return;
        };
        let Sender { queues, counters, .. } = sender;
        let Some(Some(queue)) = queues.get_mut(usize::from(ring.queue)) else { return };
        let mut completed = false;
        for (packet, attempt) in attempts {
            if counters.settle(attempt) {
                completed |= queue.settle(packet.head);
            }
        }
        if completed {
            let news = queue.note_completed();
            self.enlist(ring, news);
        }
    }

    /// Charges the port of `first`, if its home is here, for the deliveries of it and the next ones,
    /// `packets` in all.
    #[inline]
    pub(crate) fn charge(&mut self, first: PacketRef, packets: usize, delivered: &Delivered) {
        if let Some(charge) = self.charge_of(first) {
            charge.add_delivered(packets as u64, delivered);
        }
    }

    /// Charges the port of `packet`, if this is its home, for pieces of memory beyond one for each packet.
    pub(crate) fn charge_pieces(&mut self, packet: PacketRef, pieces: u64) {
        if let Some(charge) = self.charge_of(packet) {
            charge.add_pieces(pieces);
        }
    }

    /// The account of the port of `packet`, if this is its home.
    #[inline]
    fn charge_of(&mut self, packet: PacketRef) -> Option<&mut Charge> {
        self.owns(packet).then(|| self.get_mut(packet.port())).flatten().map(|sender| &mut sender.charge)
    }

    /// Enters that packets of one ring were delivered whole.
    #[inline]
    pub(crate) fn settle_delivered(
        &mut self,
        packets: impl ExactSizeIterator<Item = PacketRef> + Clone,
        bytes: u64,
    ) {
        let Some(first) = packets.clone().next() else { return };
        let ring = RingId { port: first.port(), queue: first.queue };
        if ring.port == PortId::INTERNAL {
            let whole = Attempt { outcome: Outcome::Done, delivered: 1 };
            return self.settle_own(packets.map(|packet| (packet, whole)));
        }
        let Some(sender) = self.slots.get_mut(ring.port.index()).and_then(Option::as_deref_mut) else {
            return;
        };
        let Sender { queues, counters, charge, .. } = sender;
        charge.add_bytes(bytes);
        let Some(Some(queue)) = queues.get_mut(usize::from(ring.queue)) else { return };
        counters.forwarded += packets.len() as u64;
        let mut completed = false;
        for packet in packets {
            completed |= queue.settle(packet.head);
        }
        if completed {
            let news = queue.note_completed();
            self.enlist(ring, news);
        }
    }

    /// Enters the result of [`TxQueue::note_completed`].
    #[inline]
    fn enlist(&mut self, ring: RingId, (is_news, was_blocked): (bool, bool)) {
        if was_blocked {
            self.unblocked.push(ring);
        }
        if is_news {
            self.dirty.push(ring);
        }
    }

    /// A chain of `ring` was completed.
    pub(crate) fn note_completed(&mut self, ring: RingId) {
        if let Some(news) = self.queue_mut(ring).map(TxQueue::note_completed) {
            self.enlist(ring, news);
        }
    }

    #[inline]
    fn mark_dirty(&mut self, ring: RingId) {
        let Some(queue) = self.queue_mut(ring) else { return };
        if !std::mem::replace(&mut queue.dirty, true) {
            self.dirty.push(ring);
        }
    }

    /// Sets how many copies of a packet of this batch there will be; none is a drop for `reason`.
    #[inline]
    pub(crate) fn expect_copies(&mut self, packet: PacketRef, copies: u16, reason: DropReason) {
        let Some(sender) = self.get_mut(packet.port()) else { return };
        match copies {
            0 => self.settle(packet, Attempt { outcome: Outcome::Drop(reason), delivered: 0 }),
            1 => {}
            _ => {
                sender.charge.add_copies(u64::from(copies - 1));
                if let Some(Some(queue)) = sender.queues.get_mut(usize::from(packet.queue)) {
                    queue.ring.set_mark(packet.head, copies);
                }
                if let Some(counters) = self.counters_of(packet) {
                    counters.copies_added += u64::from(copies - 1);
                }
            }
        }
    }

    /// Copies that the module wanted and that could not be made: beyond the room for verdicts, or not in the form wanted.
    pub(crate) fn count_lost(&mut self, packet: PacketRef, copies: u32, reason: DropReason) {
        let Some(counters) = self.counters_of(packet) else { return };
        counters.copies_added += u64::from(copies);
        counters.rx_drops.count_all(reason, u64::from(copies));
    }

    /// A copy begins to wait, if its sender's share of waiting chains allows.
    pub(crate) fn begin_waiting(&mut self, packet: PacketRef) -> bool {
        if self.lent >= LENT_PACKETS_MAX && self.board.workers() > 1 {
            return false;
        }
        let Some(sender) = self.get_mut(packet.port()) else { return false };
        let Some(Some(queue)) = sender.queues.get_mut(usize::from(packet.queue)) else { return false };
        let share = u32::from(queue.ring.entries()) * u32::from(WAITING_SHARE_QUARTERS) / 4;
        if u32::from(queue.waiting) >= share.max(1) {
            return false;
        }
        queue.waiting += 1;
        queue.postponement.forget(packet.head);
        self.lent += 1;
        self.has_let_wait = true;
        self.count_waiting(packet, true);
        true
    }

    /// Queues a copy that began to wait for the holder of the ring's claim.
    pub(crate) fn enqueue(&mut self, place: &ReceiveRing, waiting: Waiting) -> Result<(), DropReason> {
        match place.lock.enqueue(waiting) {
            Ok(()) => self.handoffs.left += 1,
            Err(waiting) => {
                self.end_waiting(waiting.packet);
                return Err(DropReason::RxQueueFull);
            }
        }
        Ok(())
    }

    /// A copy waits no more; `settle` follows.
    pub(crate) fn end_waiting(&mut self, packet: PacketRef) {
        self.lent -= 1;
        let Some(sender) = self.get_mut(packet.port()) else { return };
        if let Some(Some(queue)) = sender.queues.get_mut(usize::from(packet.queue)) {
            queue.waiting -= 1;
        }
        self.count_waiting(packet, false);
    }

    /// Rings that were blocked and may be visited again; cleared by the caller.
    pub(crate) fn unblocked(&mut self) -> &mut Vec<RingId> {
        &mut self.unblocked
    }

    /// Publishes all completions. Rings whose guest wants a signal are added to `signals`.
    #[inline]
    pub(crate) fn publish(&mut self, signals: &mut Vec<crate::Signal>) {
        while let Some(ring) = self.dirty.pop() {
            let Some(queue) = self.queue_mut(ring) else { continue };
            queue.dirty = false;
            queue.ring.publish();
            if queue.ring.needs_signal() {
                signals.push(crate::Signal::transmit(ring));
            }
        }
    }
}

impl Sender {
    /// Copies of the chain at `head` of the only queue that are not settled.
    pub(crate) fn pending_copies(&self, head: u16) -> u16 {
        self.queues.first().and_then(Option::as_ref).map_or(0, |queue| queue.ring.mark(head))
    }

    /// Takes chains from the queue of `ring`, in two passes so that the descriptors' and the headers' cache lines come in
    /// side by side. Returns heads taken and the error that ended it.
    fn fetch(
        &mut self,
        ring: RingId,
        fetched: &mut Fetched,
        home: u8,
        discard: Option<DropReason>,
    ) -> (usize, Option<RingError>) {
        let Some(Some(queue)) = self.queues.get_mut(usize::from(ring.queue)) else { return (0, None) };
        let (taken, error) = match queue.postponement.is_due() {
            false => self.take_pending(ring.queue, fetched),
            true => self.take_postponed(ring.queue, fetched),
        };
        self.read_headers(ring, fetched, taken, (home, discard));
        (taken, error)
    }

    /// First pass, over chains that the driver made available.
    #[inline(always)]
    fn take_pending(&mut self, queue: u16, fetched: &mut Fetched) -> (usize, Option<RingError>) {
        let Some(Some(queue)) = self.queues.get_mut(usize::from(queue)) else { return (0, None) };
        let all = match queue.ring.pending() {
            Ok(pending) => usize::from(pending),
            Err(error) => return (0, Some(error)),
        };
        if all == 0 {
            return (0, None);
        }
        let pending = all.min(self.charge.begin_visit()).min(BATCH_PACKETS_MAX);
        let (readable, unreadable) = read_heads(&queue.ring, &mut fetched.heads[..pending]);
        let is_under_way = |queue: &TxQueue, head| queue.ring.mark(head) > 0;
        let (taken, broken) = read_chains(queue, &self.map, self.epoch, fetched, readable, is_under_way);
        let error = if taken == readable { unreadable } else { broken };
        queue.blocked = taken < pending && error.is_none() && !queue.table.has_room();
        fetched.more = taken < all;
        queue.ring.take_marked(taken as u16);
        self.charge.add_pieces(std::mem::take(&mut queue.pieces));
        self.charge.taken(taken);
        (taken, error)
    }

    /// Second pass: reads each chain's headers, once. Invalid frames are dropped and completed.
    #[inline]
    fn read_headers(
        &mut self,
        ring: RingId,
        fetched: &mut Fetched,
        taken: usize,
        (home, discard): (u8, Option<DropReason>),
    ) {
        let Some(Some(queue)) = self.queues.get_mut(usize::from(ring.queue)) else { return };
        let vnet_bytes = self.capabilities.sent_header_bytes;
        let packet = PacketRef { port: ring.port.0, queue: ring.queue, head: 0, home, epoch: self.epoch };
        let (mut bytes, mut gso_packets) = (0, 0);
        for chain in &fetched.chains[..taken] {
            let header = &mut fetched.headers[fetched.len];
            let read = if chain.is_one_piece() && vnet_bytes == HEADER_BYTES {
                read_one_piece(&self.map, header, chain)
            } else {
                let chains = queue.table.chains();
                let segments = chains.segments(chain.head, self.epoch, &mut fetched.segments);
                let pieces = (&*self.map, segments.unwrap_or_default());
                let told = (&mut *fetched.hashes, fetched.len);
                read_pieces(pieces, header, chain, vnet_bytes, told)
            };
            if read.is_ok() {
                bytes += u64::from(header.frame_len_bytes());
            }
            if let Some(reason) = read.err().or(discard) {
                self.counters.rx_drops.count(reason);
                queue.table.refuse(chain.head, reason);
                queue.settle(chain.head);
                continue;
            }
            gso_packets += u64::from(header.offload.is_gso());
            fetched.packets[fetched.len] = PacketRef { head: chain.head, ..packet };
            fetched.len += 1;
        }
        self.counters.rx_packets += taken as u64;
        self.counters.rx_bytes += bytes;
        self.counters.rx_gso_packets += gso_packets;
    }
}

/// Reads the pending heads, and prefetches their descriptors. Returns the number in range, and the fault of
/// the next one.
#[inline]
fn read_heads(ring: &DeviceRing, heads: &mut [u16]) -> (usize, Option<RingError>) {
    for (ahead, place) in heads.iter_mut().enumerate() {
        match ring.head(ahead as u16) {
            Ok(head) => *place = head,
            Err(error) => return (ahead, Some(error)),
        }
        ring.prefetch_descriptor(*place);
    }
    (heads.len(), None)
}

/// Reads, checks and enters the chains at the first `count` fetched heads, within the bounds of a visit.
/// Returns their number, and the fault of the next one.
#[inline(always)]
pub(crate) fn read_chains(
    queue: &mut TxQueue,
    map: &MemoryMap,
    epoch: u32,
    fetched: &mut Fetched,
    count: usize,
    is_under_way: impl Fn(&TxQueue, u16) -> bool,
) -> (usize, Option<RingError>) {
    let (mut taken, mut bytes) = (0, 0_u32);
    for (head, chain) in fetched.heads[..count].iter().zip(&mut fetched.chains) {
        if bytes >= VISIT_BYTES_MAX || !queue.table.has_room() {
            break;
        }
        let read = match is_under_way(queue, *head) {
            true => Err(RingError::HeadTwice(*head)),
            false => read_chain(queue, map, *head, epoch, chain),
        };
        if let Err(broken) = read {
            return (taken, Some(broken));
        }
        bytes = bytes.saturating_add(chain.bytes);
        taken += 1;
    }
    (taken, None)
}

/// Reads, checks and enters the chain at `head`, which is not under way. Its segments are in `chain`.
#[inline(always)]
fn read_chain(
    queue: &mut TxQueue,
    map: &MemoryMap,
    head: u16,
    epoch: u32,
    chain: &mut Chain,
) -> Result<(), RingError> {
    let descriptor = queue.ring.descriptor(head);
    if descriptor.flags & (DESC_NEXT | DESC_INDIRECT | DESC_WRITE) == 0 {
        // The usual chain, spared the walk: one buffer in one region.
        let piece = map.translate_whole(descriptor.addr, descriptor.len, &mut queue.hint);
        if let Some(first) = piece.filter(|piece| piece.len > 0) {
            map.prefetch_start(first);
            queue.enter(head, epoch, &[first]);
            *chain = Chain { head, whole: true, bytes: first.len, first };
            return Ok(());
        }
    }
    *chain = take_pieces(queue, map, (head, descriptor), epoch)?;
    Ok(())
}

/// As [`read_chain`], for a chain of any kind.
#[inline(never)]
fn take_pieces(
    queue: &mut TxQueue,
    map: &MemoryMap,
    (head, descriptor): (u16, Descriptor),
    epoch: u32,
) -> Result<Chain, RingError> {
    let mut segments = ChainSegments::new();
    let mut bytes = 0_u32;
    let whole =
        walk_from(&queue.ring, map, descriptor, Direction::Readable, &mut queue.hint, |segment, _| {
            bytes = bytes.saturating_add(segment.len);
            segments.try_push(segment).is_ok()
        })?;
    queue.pieces += segments.len() as u64;
    let first = segments.first().copied().unwrap_or_default();
    map.prefetch(first, 0);
    queue.enter(head, epoch, &segments);
    Ok(Chain { head, whole, bytes, first })
}
