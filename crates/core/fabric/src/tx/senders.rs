//! All transmit sides of a worker: fetching, settling copies, and publishing completions.

use std::sync::Arc;

use lasthop_module_api::{DropReason, PORTS_MAX, PortId};
use lasthop_ring::RingError;
use lasthop_stages::Stages;
use lasthop_sync::full_fence;
use lasthop_turns::{Charge, Metering};

use crate::RingId;
use crate::board::Board;
use crate::bounds::{
    BROKEN_MAX, LEFT_PACKETS_MIN, LENT_PACKETS_MAX, LENT_PACKETS_SHARED, WAITING_SHARE_QUARTERS,
};
use crate::counters::HandoffCounters;
use crate::frame::Source;
use crate::reference::{Attempt, Delivered, Outcome, PacketRef, Return};
use crate::side_table::{Chains, SegmentBuffer};
use crate::tap::Taps;
use crate::tx::injected_counts::InjectedFrames;
use crate::tx::moved::Moved;
use crate::tx::offloads::Offloads;
use crate::tx::sender::{Fetched, Sender};
use crate::tx::tx_queue::{Obstacle, TxQueue};

/// A worker's transmit sides of all ports.
#[derive(Debug)]
pub(crate) struct Senders {
    pub(crate) slots: Vec<Option<Box<Sender>>>,
    dirty: Vec<RingId>,
    unblocked: Vec<RingId>,
    /// Rings whose completed chains are held back and should be returned.
    pub(crate) obstructed: Vec<RingId>,
    /// Ports with a ring that was found broken; bounded.
    broken: Vec<(PortId, RingError)>,
    pub(crate) board: Arc<Board>,
    pub(crate) worker: u8,
    /// Number of references to this worker's packets in the queues of receive rings; bounded.
    lent: usize,
    /// Workers that got references back since the last publication, as bits.
    returned: u64,
    /// Rings that other workers took over, while packets of theirs that were taken here are not settled.
    pub(crate) moved: Moved,
    /// Whether a copy began to wait since the last query.
    has_let_wait: bool,
    /// Hand-overs to other workers.
    pub(crate) handoffs: HandoffCounters,
    /// The active captures of this worker, if any.
    pub(crate) taps: Option<Box<Taps>>,
    /// The active profile of this worker, if any.
    pub(crate) stages: Stages,
    /// State of metered visits.
    pub(crate) metering: Metering,
    /// Which copies are shared with a helper.
    pub(crate) offloads: Offloads,
    /// The frames of the port `internal`, at its home.
    pub(super) accounts: InjectedFrames,
}

impl Senders {
    pub(crate) fn new(board: Arc<Board>, worker: u8) -> Self {
        let mut slots = Vec::new();
        slots.resize_with(PORTS_MAX, || None);
        Self {
            slots,
            dirty: Vec::with_capacity(PORTS_MAX),
            unblocked: Vec::with_capacity(PORTS_MAX),
            obstructed: Vec::with_capacity(PORTS_MAX),
            broken: Vec::with_capacity(BROKEN_MAX),
            board,
            worker,
            lent: 0,
            returned: 0,
            moved: Moved::default(),
            has_let_wait: false,
            handoffs: HandoffCounters::default(),
            taps: None,
            stages: Stages::default(),
            metering: Metering::default(),
            offloads: Offloads::default(),
            accounts: InjectedFrames::default(),
        }
    }

    /// Whether this worker is the packet's home. Only the home settles a packet.
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

    /// Takes the next reference that came back.
    pub(crate) fn next_return(&mut self) -> Option<Return> {
        self.board.inbox(self.worker).returns.pop()
    }

    /// Ends the wait of a packet whose reference came back or was this worker's own.
    pub(crate) fn settle_waiting(&mut self, packet: PacketRef, attempt: Attempt) {
        if self.moved.is_of_one(packet) {
            return self.settle_moved(packet, attempt);
        }
        self.end_waiting(packet);
        match attempt.outcome {
            Outcome::Wait => self.withdraw(packet),
            _ => self.settle(packet, attempt),
        }
    }

    /// Whether a copy began to wait since the last query.
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

    /// The rings whose home is here.
    pub(crate) fn queues(&self) -> impl Iterator<Item = (RingId, &TxQueue)> {
        let senders =
            (0..).zip(&self.slots).filter_map(|(port, sender)| Some((PortId(port), sender.as_ref()?)));
        let queues = senders
            .flat_map(|(port, sender)| (0..).zip(&sender.queues).map(move |(queue, tx)| (port, queue, tx)));
        queues.filter_map(|(port, queue, tx)| Some((RingId { port, queue }, tx.as_ref()?)))
    }

    /// Number of chains taken and neither completed nor postponed.
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

    /// Makes this worker the home of a ring. Chains that another device left undone are returned and counted as
    /// dropped.
    pub(crate) fn begin(&mut self, ring: RingId, mut queue: TxQueue) -> Option<Arc<Chains>> {
        let (chains_lost, copies_lost) = queue.give_up_taken();
        let chains = Arc::clone(queue.table.chains());
        let sender = self.get_mut(ring.port)?;
        *sender.queues.get_mut(usize::from(ring.queue))? = Some(queue);
        sender.counters.rx_packets += chains_lost;
        sender.counters.copies_added += copies_lost - chains_lost; // each marked chain has at least one copy
        sender.counters.rx_drops.count_all(DropReason::Restart, copies_lost);
        if chains_lost > 0 {
            self.mark_dirty(ring);
        }
        Some(chains)
    }

    /// Takes a batch from a ring into `fetched`; drops and completes invalid frames. Returns the number of heads taken.
    /// A broken ring is marked and yields no more.
    #[inline]
    pub(crate) fn fetch(&mut self, ring: RingId, fetched: &mut Fetched) -> usize {
        fetched.len = 0;
        fetched.hashes.clear();
        let Some(sender) = self.slots.get_mut(ring.port.index()).and_then(Option::as_deref_mut) else {
            return 0;
        };
        let discard = self.board.discards(ring.port, ring.queue);
        let taken = sender.fetch(ring, fetched, (self.worker, discard), &self.stages);
        if taken > fetched.len {
            self.mark_dirty(ring);
        }
        if ring.port == PortId::INTERNAL {
            self.enter_accounts(fetched);
        }
        taken
    }

    /// The memory and chains of a packet's ring, unless they are gone.
    #[inline]
    pub(crate) fn source(&self, packet: PacketRef) -> Option<Source<'_>> {
        let sender = self.get(packet.port())?;
        let chains = sender.chains.get(usize::from(packet.ring().queue))?.as_deref()?;
        let vnet_bytes = sender.capabilities.sent_header_bytes;
        if packet.is_detached() {
            let frames = chains.detached.get()?;
            return Some(Source { map: &frames.map, chains: &frames.chains, vnet_bytes });
        }
        Some(Source { map: &sender.map, chains, vnet_bytes })
    }

    /// As `settle_all`, for one attempt.
    #[inline]
    pub(crate) fn settle(&mut self, packet: PacketRef, attempt: Attempt) {
        self.settle_all(std::iter::once((packet, attempt)));
    }

    /// Counts the results of attempts to deliver copies of packets of one ring. A chain is completed with its last
    /// copy.
    #[inline]
    pub(crate) fn settle_all(&mut self, attempts: impl Iterator<Item = (PacketRef, Attempt)>) {
        let mut attempts = attempts.peekable();
        let Some(&(first, _)) = attempts.peek() else { return };
        if first.is_detached() {
            return self.settle_all_detached(attempts);
        }
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
                completed |= queue.settle(packet.head, || attempt.is_slow());
            }
        }
        if completed {
            let news = queue.note_completed();
            self.enlist(ring, news);
        }
    }

    #[cold]
    fn settle_all_detached(&mut self, attempts: impl Iterator<Item = (PacketRef, Attempt)>) {
        attempts.for_each(|(packet, attempt)| self.settle_detached(packet, attempt));
    }

    /// As `settle`, for a detached packet. Its slot becomes free, so another packet may be detached.
    #[cold]
    fn settle_detached(&mut self, packet: PacketRef, attempt: Attempt) {
        let Some(sender) = self.get_mut(packet.port()) else { return };
        if sender.counters.settle(attempt) {
            self.free_detached(packet);
        }
    }

    /// Frees the slot of a detached packet.
    pub(crate) fn free_detached(&mut self, packet: PacketRef) {
        let ring = packet.ring();
        if let Some(queue) = self.queue_mut(ring) {
            queue.settle_detached(packet.head, packet.epoch);
        }
        self.mark_dirty(ring);
    }

    /// Copies a waiting packet out of its guest's memory, and settles the chain's copy. Returns the reference to the
    /// detached packet; `None` if there is no room.
    #[cold]
    pub(crate) fn detach(&mut self, packet: PacketRef, buffer: &mut SegmentBuffer) -> Option<PacketRef> {
        let ring = packet.ring();
        let Sender { map, queues, counters, charge, .. } = self.get_mut(ring.port)?;
        let pairs = queues.len();
        let queue = queues.get_mut(usize::from(ring.queue))?.as_mut()?;
        let (slot, bytes) = queue.detach(map, (packet.head, packet.epoch), pairs, buffer)?;
        counters.detached += 1;
        charge.add_copies(1);
        charge.add_bytes(bytes);
        if queue.settle(packet.head, || false) {
            self.note_completed(ring);
        }
        Some(packet.detached(slot))
    }

    /// Notes that a ring of `port` is broken. If many ports have one at a time, those beyond [`BROKEN_MAX`] are not noted.
    #[cold]
    pub(crate) fn note_broken(&mut self, port: PortId, error: RingError) {
        if self.broken.len() < BROKEN_MAX {
            self.broken.push((port, error));
        }
    }

    /// Takes a port with a broken ring.
    #[inline]
    pub(crate) fn take_broken(&mut self) -> Option<(PortId, RingError)> {
        self.broken.pop()
    }

    /// The next ring that was published with completed chains held back.
    #[inline]
    pub(crate) fn next_obstructed(&mut self) -> Option<RingId> {
        self.obstructed.pop()
    }

    /// Where the packet waits that holds back completed chains of `ring`.
    pub(crate) fn obstacle(&self, ring: RingId) -> Option<Obstacle> {
        self.get(ring.port)?.queues.get(usize::from(ring.queue))?.as_ref()?.obstacle()
    }

    /// Charges the port of `first`, if its home is here, for the deliveries of `packets` packets, of which it is the
    /// first.
    #[inline]
    pub(crate) fn charge(&mut self, first: PacketRef, packets: usize, delivered: &Delivered) {
        if let Some(charge) = self.charge_of(first) {
            charge.add_delivered(
                packets as u64,
                (delivered.packets, delivered.bytes),
                delivered.csum_completed > 0,
            );
        }
    }

    /// Charges the port of `packet`, if its home is here, for an upcall or the attempt.
    pub(crate) fn charge_upcall(&mut self, packet: PacketRef, delivered: &Delivered) {
        if let Some(charge) = self.charge_of(packet) {
            charge.add_upcall();
            charge.add_delivered(1, (delivered.packets, delivered.bytes), delivered.csum_completed > 0);
        }
    }

    /// Charges the port of `packet`, if its home is here, for pieces of memory beyond one for each packet.
    pub(crate) fn charge_pieces(&mut self, packet: PacketRef, pieces: u64) {
        if let Some(charge) = self.charge_of(packet) {
            charge.add_pieces(pieces);
        }
    }

    /// The account of the port of `packet`, if its home is here.
    #[inline]
    fn charge_of(&mut self, packet: PacketRef) -> Option<&mut Charge> {
        self.owns(packet).then(|| self.get_mut(packet.port())).flatten().map(|sender| &mut sender.charge)
    }

    /// Enters the visit's chains from number `from` on in the ring's side table, and makes references to all its
    /// packets, unless that was done.
    #[inline(never)]
    pub(crate) fn list(&mut self, fetched: &mut Fetched, from: usize) {
        if fetched.is_listed {
            return;
        }
        let len = fetched.len;
        fetched.name_first(len);
        let PacketRef { epoch, .. } = fetched.name;
        if let Some(queue) = self.queue_mut(fetched.name.ring()) {
            queue.list(fetched, from..len, epoch);
        }
    }

    /// Settles the first packets of a visit that is not listed: they were delivered whole.
    #[inline]
    pub(crate) fn settle_unlisted(&mut self, fetched: &Fetched, count: usize, bytes: u64) {
        let ring = fetched.name.ring();
        let Some(sender) = self.slots.get_mut(ring.port.index()).and_then(Option::as_deref_mut) else {
            return;
        };
        let Sender { queues, counters, charge, .. } = sender;
        let Some(Some(queue)) = queues.get_mut(usize::from(ring.queue)) else { return };
        charge.add_bytes(bytes);
        counters.forwarded += count as u64;
        queue.settle_unlisted(fetched.chains[..count].iter().map(|chain| chain.head));
        if count > 0 {
            let news = queue.note_completed();
            self.enlist(ring, news);
        }
    }

    /// Settles packets of one ring that were delivered whole.
    #[inline]
    pub(crate) fn settle_delivered(
        &mut self,
        packets: impl ExactSizeIterator<Item = PacketRef> + Clone,
        bytes: u64,
    ) {
        let Some(first) = packets.clone().next() else { return };
        let ring = first.ring();
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
            completed |= queue.settle(packet.head, || false);
        }
        if completed {
            let news = queue.note_completed();
            self.enlist(ring, news);
        }
    }

    /// Notes the result of [`TxQueue::note_completed`].
    #[inline]
    fn enlist(&mut self, ring: RingId, (is_news, was_blocked): (bool, bool)) {
        if was_blocked {
            self.unblocked.push(ring);
        }
        if is_news {
            self.dirty.push(ring);
        }
    }

    /// Notes that a chain of `ring` was completed.
    pub(crate) fn note_completed(&mut self, ring: RingId) {
        if let Some(news) = self.queue_mut(ring).map(TxQueue::note_completed) {
            self.enlist(ring, news);
        }
    }

    #[inline]
    pub(crate) fn mark_dirty(&mut self, ring: RingId) {
        let Some(queue) = self.queue_mut(ring) else { return };
        if !std::mem::replace(&mut queue.dirty, true) {
            self.dirty.push(ring);
        }
    }

    /// Sets the number of copies of a packet of this batch. 0 drops the packet for `reason`.
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

    /// Counts copies that the module wanted and that could not be made: no room for verdicts, or an edit that is not
    /// possible.
    pub(crate) fn count_lost(&mut self, packet: PacketRef, copies: u32, reason: DropReason) {
        let Some(counters) = self.counters_of(packet) else { return };
        counters.copies_added += u64::from(copies);
        counters.rx_drops.count_all(reason, u64::from(copies));
    }

    /// Lets a copy wait for buffers at the receive ring `at`, if the shares of its ring and port allow it.
    pub(crate) fn begin_waiting(&mut self, packet: PacketRef, at: RingId) -> bool {
        self.has_share(packet, 1) && self.enter_waiting(packet, at)
    }

    /// As [`Self::begin_waiting`], for a copy that waits for the claim of another worker.
    pub(crate) fn begin_left(&mut self, packet: PacketRef, at: RingId) -> bool {
        self.has_share(packet, LEFT_PACKETS_MIN) && self.enter_waiting(packet, at)
    }

    /// Whether one more copy may wait of the port of `packet`. The port may have `least` ones while there are references.
    /// Beyond that it has at most as many as it leaves to others, so ports whose packets wait for slow receivers leave
    /// room for all others.
    fn has_share(&mut self, packet: PacketRef, least: usize) -> bool {
        if self.board.workers() == 1 {
            return true; // it lends nothing
        }
        let own = self.counters_of(packet).map_or(0, |counters| counters.waiting) as usize;
        self.lent < LENT_PACKETS_MAX && (own < least || own + self.lent < LENT_PACKETS_SHARED)
    }

    fn enter_waiting(&mut self, packet: PacketRef, at: RingId) -> bool {
        let Some(sender) = self.get_mut(packet.port()) else { return false };
        let Some(Some(queue)) = sender.queues.get_mut(usize::from(packet.queue)) else { return false };
        let share = u32::from(queue.ring.entries()) * u32::from(WAITING_SHARE_QUARTERS) / 4;
        if u32::from(queue.waiting) >= share.max(1) {
            return false;
        }
        queue.begin_waiting(packet.head, at);
        if queue.ring.held_back() > 0 {
            // The packet was postponed and taken again: chains behind it are completed already.
            self.mark_dirty(packet.ring());
        }
        self.lent += 1;
        self.has_let_wait = true;
        self.count_waiting(packet, true);
        true
    }

    /// Ends a copy's wait; `settle` follows.
    pub(crate) fn end_waiting(&mut self, packet: PacketRef) {
        self.lent -= 1;
        let queue = self.queue_mut(packet.ring()).filter(|_| !packet.is_detached());
        queue.into_iter().for_each(|queue| queue.end_waiting(packet.head));
        self.count_waiting(packet, false);
    }

    /// Notes that worker `home` has to be told something.
    pub(crate) fn note_news_for(&mut self, home: u8) {
        self.returned |= 1 << home;
    }

    /// Rings that are no longer blocked and may be visited again. The caller clears the list.
    pub(crate) fn unblocked(&mut self) -> &mut Vec<RingId> {
        &mut self.unblocked
    }

    /// Publishes completions to guests early. A full fence and [`Self::signal_shown`] must follow, with no completion
    /// in between.
    #[inline]
    pub(crate) fn show_completed(&mut self) {
        for ring in &self.dirty {
            let sender = self.slots.get_mut(ring.port.index()).and_then(Option::as_deref_mut);
            let queue = sender.and_then(|sender| sender.queues.get_mut(usize::from(ring.queue))?.as_mut());
            if let Some(queue) = queue
                && queue.publish()
            {
                self.obstructed.push(*ring);
            }
        }
    }

    /// Ends the early publication: adds the rings whose guest wants a signal to `signals`.
    #[inline]
    pub(crate) fn signal_shown(&mut self, signals: &mut Vec<crate::Signal>) {
        while let Some(ring) = self.dirty.pop() {
            let Some(queue) = self.queue_mut(ring) else { continue };
            queue.dirty = false;
            if queue.ring.needs_signal_behind_fence() {
                signals.push(crate::Signal::transmit(ring));
            }
        }
    }

    /// Whether there are completions to publish, or workers to wake.
    #[inline]
    pub(crate) fn has_news(&self) -> bool {
        !self.dirty.is_empty() || !self.obstructed.is_empty() || self.returned != 0
    }

    /// Publishes all completions. Adds the rings whose guest wants a signal to `signals`.
    #[inline]
    pub(crate) fn publish(&mut self, signals: &mut Vec<crate::Signal>) {
        while let Some(ring) = self.dirty.pop() {
            if self.publish_ring(ring, signals) {
                self.obstructed.push(ring);
            }
        }
    }

    /// As `publish`, for one ring. Returns whether completed chains of it are held back.
    #[inline(never)]
    pub(crate) fn publish_ring(&mut self, ring: RingId, signals: &mut Vec<crate::Signal>) -> bool {
        let Some(queue) = self.queue_mut(ring) else { return false };
        queue.dirty = false;
        let is_obstructed = queue.publish();
        if queue.ring.needs_signal() {
            signals.push(crate::Signal::transmit(ring));
        }
        is_obstructed
    }
}
