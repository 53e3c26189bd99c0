//! Pending flows: the control plane has packets of them in upcalls that it has not settled. Their packets keep their
//! order.
//!
//! ```text
//!   packet 1 ─ miss ──> up                                                   control plane: sends 1, 2 on, installs the flow,
//!   packet 2 ─ pending ──> up, behind 1                                                     settles both
//!   packet 3 ─ pending: the flow is installed, but 2 is not settled ──> up
//!   packet 4 ─ all are settled ──> by the flow
//! ```
//!
//! After an upcall of a flow all later packets of that flow are upcalls, too, with or without a flow entry, until the
//! control plane has settled each. Their number is bounded. Beyond it, packets wait in their sender's ring: otherwise a
//! stream that is faster than the control plane would never reach its flow. At an uplink they would block packets of
//! other senders, so they are dropped there. Packets that the control plane had for too long may be overtaken; an
//! overtaken packet is dropped when it comes back. So packets arrive in order, except for flows without a slot.

use std::sync::atomic::{AtomicU64, Ordering};

use lasthop_module_api::{BATCH_PACKETS_MAX, PortId};
use lasthop_sync::WORKERS_MAX;
use lasthop_wire::mix::Xorshift;

use crate::bounds::{
    CROWDS_MAX, FORGOTTEN_NS, PENDING_FLOWS, PENDING_NS_MAX, PENDING_PACKETS_MAX, PENDING_WAYS, REUSED_NS,
};
use crate::cache_key::CacheKey;
use crate::pending_filter::{FilterKey, PendingFilter};

/// Bit position of the round in a slot's word; the count and the next bit are below.
const ROUND_SHIFT: u32 = 32;
/// Set while a packet of the slot is being sent: nothing overtakes it.
const SENDING: u64 = 1 << (ROUND_SHIFT - 1);
const COUNT_MASK: u64 = SENDING - 1;
const PLACE_BITS: u32 = 10;

/// Identifies an upcall, so that the control plane can settle it; 0 is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ticket(pub(crate) u32);

impl Ticket {
    pub(crate) const NONE: Ticket = Ticket(0);

    fn new(round: u16, worker: usize, place: usize) -> Self {
        Self(u32::from(round) << 16 | (worker as u32) << PLACE_BITS | place as u32)
    }

    fn round(self) -> u64 {
        u64::from(self.0 >> 16)
    }

    fn worker(self) -> usize {
        (self.0 as u16 >> PLACE_BITS) as usize
    }

    fn place(self) -> usize {
        self.0 as usize % PENDING_FLOWS
    }
}

const _: () = assert!(PENDING_FLOWS == 1 << PLACE_BITS && WORKERS_MAX <= 1 << (16 - PLACE_BITS));
const _: () = assert!(PENDING_FLOWS.is_multiple_of(PENDING_WAYS));

fn round_in(word: u64) -> u64 {
    word >> ROUND_SHIFT
}

/// Whether a slot with this word has unsettled packets.
fn is_on_the_way(word: u64) -> bool {
    word & (SENDING | COUNT_MASK) != 0
}

/// Decrements the count if it is above zero.
fn settled(word: u64) -> u64 {
    word - u64::from(word & COUNT_MASK > 0)
}

/// Unsettled packets of pending flows, by worker and slot: the slot's round, whether one is being sent, and their
/// count. Only the worker begins rounds, and not while a packet is being sent. A packet that is to be sent races with
/// those that would overtake it: the first to change the word wins.
#[derive(Debug)]
pub(crate) struct Tickets(Box<[[AtomicU64; PENDING_FLOWS]]>);

impl Tickets {
    pub(crate) fn new() -> Self {
        Self((0..WORKERS_MAX).map(|_| std::array::from_fn(|_| AtomicU64::new(0))).collect())
    }

    fn word(&self, ticket: Ticket) -> Option<&AtomicU64> {
        self.0.get(ticket.worker())?.get(ticket.place())
    }

    /// Counts one more packet of an upcall that was split.
    pub(crate) fn add(&self, ticket: Ticket) {
        self.change(ticket, |word| word + 1);
    }

    /// Settles a packet that is not sent; packets of an earlier round are ignored.
    pub(crate) fn settle(&self, ticket: Ticket) {
        self.change(ticket, settled);
    }

    /// Begins to send a packet: nothing overtakes it until [`Self::done`]. One is sent at a time. Returns false if
    /// another packet may have overtaken it; then it must not be sent.
    pub(crate) fn begin(&self, ticket: Ticket) -> bool {
        ticket == Ticket::NONE || self.change(ticket, |word| word | SENDING)
    }

    /// Ends the sending of a packet, whether it was sent or not.
    pub(crate) fn done(&self, ticket: Ticket) {
        self.change(ticket, |word| settled(word & !SENDING));
    }

    /// Changes the word of a ticket, unless its round is over. Returns whether it did.
    fn change(&self, ticket: Ticket, change: impl Fn(u64) -> u64) -> bool {
        let Some(word) = self.word(ticket).filter(|_| ticket != Ticket::NONE) else { return false };
        // Release: a thread that sees the packet as settled sees all effects of sending it.
        word.fetch_update(Ordering::Release, Ordering::Relaxed, |word| {
            (round_in(word) == ticket.round()).then(|| change(word))
        })
        .is_ok()
    }

    /// Whether packets of its flow may have overtaken an unsettled packet.
    #[cfg(test)]
    fn is_overtaken(&self, ticket: Ticket) -> bool {
        let round = self.word(ticket).map(|word| round_in(word.load(Ordering::Relaxed)));
        ticket != Ticket::NONE && round != Some(ticket.round())
    }
}

/// The treatment of a packet whose flow may be pending.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// Execute its flow, if there is one.
    Now,
    /// Send it up after the others of its flow.
    Behind,
    /// As `Now`, but if there is a flow, call [`Pending::overtake`] first.
    Overdue,
}

/// A pending flow, identified by the hash of its packets' key.
#[derive(Clone, Copy, Debug, Default)]
struct PendingSlot {
    hash: u64,
    deadline_ns: u64,
    packets: u32,
    round: u16,
    /// The port that receives its packets.
    port: u16,
    filter_key: FilterKey,
    is_taken: bool,
}

/// Packets of a flow after which the ring is paused: the rest of the bound is for the present batch.
const CROWD_PACKETS: u32 = PENDING_PACKETS_MAX - BATCH_PACKETS_MAX as u32;

/// A flow with many unsettled packets: further packets of this port wait.
#[derive(Clone, Copy, Debug)]
struct Crowd {
    port: PortId,
    at: usize,
    round: u16,
}

/// The pending flows of one worker.
#[derive(Debug)]
pub(crate) struct Pending {
    worker: usize,
    places: Box<[PendingSlot]>,
    taken: usize,
    filter: PendingFilter,
    crowds: Vec<Crowd>,
    /// Index at which [`Self::tidy`] continues.
    next: usize,
}

impl Pending {
    /// Returns a table without flows. Each slot begins with a random round, so that returning packets of a former table
    /// count as overtaken.
    pub(crate) fn new(worker: usize, rng: &mut Xorshift) -> Self {
        let mut place = || PendingSlot { round: (rng.draw() >> 48) as u16, ..PendingSlot::default() };
        let places = (0..PENDING_FLOWS).map(|_| place()).collect();
        Self {
            worker,
            places,
            taken: 0,
            filter: PendingFilter::new(),
            crowds: Vec::with_capacity(CROWDS_MAX),
            next: 0,
        }
    }

    /// Slots that a flow may use.
    fn ways(hash: u64) -> std::ops::Range<usize> {
        let first = hash as usize % (PENDING_FLOWS / PENDING_WAYS) * PENDING_WAYS;
        first..first + PENDING_WAYS
    }

    fn find(&self, hash: u64) -> Option<usize> {
        Self::ways(hash).find(|at| self.places[*at].is_taken && self.places[*at].hash == hash)
    }

    /// Whether any flow is pending.
    #[inline]
    pub(crate) fn is_any(&self) -> bool {
        self.taken > 0
    }

    /// Begins a batch; `time` is the number of the union mask.
    #[inline]
    pub(crate) fn begin(&mut self, time: u16) {
        self.filter.begin(time);
    }

    /// Whether a packet with this cache key certainly belongs to no pending flow.
    #[inline(always)]
    pub(crate) fn is_clear(&self, cache_key: &CacheKey) -> bool {
        self.filter.is_clear(cache_key)
    }

    /// Frees some slots of flows whose packets are settled, so that other packets need no look-up here. It also frees
    /// slots whose packets were not settled for too long; these count as overtaken if they come back.
    #[cold]
    pub(crate) fn tidy(&mut self, tickets: &Tickets, now_ns: u64) {
        for at in self.next..self.next + PENDING_WAYS {
            if self.places[at].is_taken {
                self.free_if_through(tickets, at, (FORGOTTEN_NS, now_ns));
            }
        }
        self.next = (self.next + PENDING_WAYS) % PENDING_FLOWS;
    }

    fn is_overdue_by(&self, time_ns: u64, at: usize, now_ns: u64) -> bool {
        now_ns >= self.places[at].deadline_ns.saturating_add(time_ns)
    }

    fn word<'a>(&self, tickets: &'a Tickets, at: usize) -> &'a AtomicU64 {
        &tickets.0[self.worker][at]
    }

    fn is_any_on_the_way(&self, tickets: &Tickets, at: usize) -> bool {
        is_on_the_way(self.word(tickets, at).load(Ordering::Acquire))
    }

    /// Returns the treatment of a packet whose key has this hash. Frees the flow's slot if all of its packets are
    /// settled.
    pub(crate) fn turn(&mut self, tickets: &Tickets, hash: u64, now_ns: u64) -> Turn {
        let Some(at) = self.find(hash) else { return Turn::Now };
        if !self.is_any_on_the_way(tickets, at) {
            self.free(at);
            return Turn::Now;
        }
        if now_ns < self.places[at].deadline_ns { Turn::Behind } else { Turn::Overdue }
    }

    fn free(&mut self, at: usize) {
        self.places[at].is_taken = false;
        self.filter.remove(self.places[at].filter_key);
        self.taken -= 1;
    }

    /// Lets a packet overtake the unsettled ones of its flow, which are dropped when they come back. Returns false
    /// while one of them is being sent: then the packet must not overtake.
    #[cold]
    pub(crate) fn overtake(&mut self, tickets: &Tickets, hash: u64) -> bool {
        self.find(hash).is_none_or(|at| self.forget(tickets, at))
    }

    /// As [`Self::overtake`], for all flows of `port`.
    pub(crate) fn overtake_all(&mut self, tickets: &Tickets, port: PortId) -> bool {
        self.free_all(port, |own, at| own.forget(tickets, at))
    }

    /// Whether all packets of `port` are settled. Those that the control plane had for too long may be overtaken from now
    /// on, if none of them is being sent.
    #[cold]
    pub(crate) fn are_settled(&mut self, tickets: &Tickets, port: PortId, now_ns: u64) -> bool {
        self.free_all(port, |own, at| own.free_if_through(tickets, at, (0, now_ns)))
    }

    /// Frees the slots of a port. Returns whether `free` freed each.
    fn free_all(&mut self, port: PortId, mut free: impl FnMut(&mut Self, usize) -> bool) -> bool {
        let mut are_free = true;
        let places = if self.taken > 0 { 0..PENDING_FLOWS } else { 0..0 };
        for at in places {
            if self.places[at].is_taken && self.places[at].port == port.0 {
                are_free &= free(self, at);
            }
        }
        are_free
    }

    /// Frees a slot whose packets are settled, or overdue by this time. Returns whether it did.
    fn free_if_through(&mut self, tickets: &Tickets, at: usize, (time_ns, now_ns): (u64, u64)) -> bool {
        if !self.is_any_on_the_way(tickets, at) {
            self.free(at);
            return true;
        }
        self.is_overdue_by(time_ns, at, now_ns) && self.forget(tickets, at)
    }

    /// Frees a slot with unsettled packets, which count as overtaken from now on. Returns false while one of them is
    /// being sent.
    fn forget(&mut self, tickets: &Tickets, at: usize) -> bool {
        let is_begun = self.begin_round(tickets, at, 0);
        if is_begun {
            self.free(at);
        }
        is_begun
    }

    /// Begins the next round, unless a packet of this one is being sent.
    fn begin_round(&mut self, tickets: &Tickets, at: usize, packets: u64) -> bool {
        let round = self.places[at].round.wrapping_add(1).max(1);
        let next = u64::from(round) << ROUND_SHIFT | packets;
        // Acquire: packets of the next round follow those that were sent before.
        let begun = self
            .word(tickets, at)
            .fetch_update(Ordering::Acquire, Ordering::Relaxed, |word| (word & SENDING == 0).then_some(next));
        if begun.is_ok() {
            self.places[at].round = round;
        }
        begun.is_ok()
    }

    /// Whether the ring of `port` is paused from now on, since too many packets of the flow with this hash are unsettled.
    pub(crate) fn is_crowded(&mut self, port: PortId, hash: u64) -> bool {
        let Some(at) = self.find(hash).filter(|at| self.places[*at].packets >= CROWD_PACKETS) else {
            return false;
        };
        let round = self.places[at].round;
        let is_known =
            self.crowds.iter().any(|crowd| (crowd.port, crowd.at, crowd.round) == (port, at, round));
        let has_room = self.crowds.len() < CROWDS_MAX;
        if !is_known && has_room {
            self.crowds.push(Crowd { port, at, round });
        }
        is_known || has_room
    }

    /// Whether packets of `port` must still wait.
    pub(crate) fn keeps_paused(&mut self, tickets: &Tickets, port: PortId, now_ns: u64) -> bool {
        let Self { worker, places, crowds, .. } = self;
        crowds.retain(|crowd| {
            let place = &places[crowd.at];
            let word = tickets.0[*worker][crowd.at].load(Ordering::Acquire);
            let is_pending = place.is_taken && is_on_the_way(word);
            is_pending && place.round == crowd.round && now_ns < place.deadline_ns
        });
        crowds.iter().any(|crowd| crowd.port == port)
    }

    /// Enters a packet that goes up; `filter_key` identifies its flow in the filter. `None` if too many packets of the
    /// flow are unsettled.
    pub(crate) fn enter(
        &mut self,
        tickets: &Tickets,
        (port, hash, filter_key): (PortId, u64, FilterKey),
        now_ns: u64,
    ) -> Option<Ticket> {
        let deadline_ns = now_ns + PENDING_NS_MAX;
        let Some(at) = self.find(hash).filter(|at| self.is_any_on_the_way(tickets, *at)) else {
            return Some(self.enter_first(tickets, (port, hash, filter_key), now_ns));
        };
        let word = self.word(tickets, at);
        let place = &mut self.places[at];
        if now_ns >= place.deadline_ns {
            // There is no flow yet, so the packet goes up after the others.
            (place.deadline_ns, place.packets) = (deadline_ns, 0);
        }
        if place.packets >= PENDING_PACKETS_MAX {
            return None;
        }
        place.packets += 1;
        word.fetch_add(1, Ordering::Relaxed);
        Some(Ticket::new(place.round, self.worker, at))
    }

    fn enter_first(
        &mut self,
        tickets: &Tickets,
        (port, hash, filter_key): (PortId, u64, FilterKey),
        now_ns: u64,
    ) -> Ticket {
        let is_sent = |at: usize| self.word(tickets, at).load(Ordering::Relaxed) & SENDING != 0;
        let is_free = |at: &usize| {
            !is_sent(*at) && (!self.places[*at].is_taken || !self.is_any_on_the_way(tickets, *at))
        };
        // A packet that is not settled yet loses its slot only if there is no other one.
        let is_reusable = |at: &usize| !is_sent(*at) && self.is_overdue_by(REUSED_NS, *at, now_ns);
        let found = self.find(hash).or_else(|| Self::ways(hash).find(is_free));
        let Some(at) = found.or_else(|| Self::ways(hash).find(is_reusable)) else {
            return Ticket::NONE;
        };
        if !self.begin_round(tickets, at, 1) {
            return Ticket::NONE;
        }
        if self.places[at].is_taken {
            self.free(at);
        }
        self.taken += 1;
        self.filter.add(filter_key);
        let deadline_ns = now_ns + PENDING_NS_MAX;
        let round = self.places[at].round;
        let (port, is_taken) = (port.0, true);
        self.places[at] = PendingSlot { hash, deadline_ns, packets: 1, round, port, filter_key, is_taken };
        Ticket::new(round, self.worker, at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A packet whose key has this hash.
    fn of(hash: u64) -> (PortId, u64, FilterKey) {
        (PortId(1), hash, FilterKey::Unseen)
    }

    fn pending(worker: usize) -> Pending {
        Pending::new(worker, &mut Xorshift::new(7))
    }

    #[test]
    fn tickets_of_another_table_are_late() {
        let ticket_by = |seed| {
            let (tickets, mut pending) = (Tickets::new(), Pending::new(0, &mut Xorshift::new(seed)));
            let ticket = pending.enter(&tickets, of(5), 0).expect("there is room");
            (ticket, tickets)
        };
        let ((former, _), (now, tickets)) =
            (ticket_by(0x1234_5678_9abc_def0), ticket_by(0x0fed_cba9_8765_4321));
        assert_eq!((former.worker(), former.place()), (now.worker(), now.place()));
        assert!(!tickets.begin(former) && tickets.begin(now));
        assert!(!Tickets::new().begin(former), "none of its place is there");
    }

    #[test]
    fn packets_follow_until_all_before_them_are_through() {
        let (tickets, mut pending) = (Tickets::new(), pending(3));
        assert_eq!(pending.turn(&tickets, 77, 0), Turn::Now);
        let first = pending.enter(&tickets, of(77), 0).expect("there is room");
        assert_eq!(pending.turn(&tickets, 77, 1), Turn::Behind);
        assert_eq!(pending.turn(&tickets, 77 + PENDING_FLOWS as u64, 1), Turn::Now);
        let second = pending.enter(&tickets, of(77), 1).expect("there is room");
        assert_eq!(first, second);
        tickets.settle(first);
        assert_eq!(pending.turn(&tickets, 77, 2), Turn::Behind);
        tickets.settle(second);
        assert_eq!(pending.turn(&tickets, 77, 3), Turn::Now);
        tickets.settle(second);
        assert_ne!(pending.enter(&tickets, of(77), 4), Some(first), "another round");
        assert!(tickets.is_overtaken(first));
        tickets.settle(first);
        assert_eq!(pending.turn(&tickets, 77, 5), Turn::Behind, "what is late counts no more");
    }

    #[test]
    fn beyond_a_bound_packets_wait_until_the_others_are_settled() {
        let (tickets, mut pending) = (Tickets::new(), pending(0));
        let ticket = pending.enter(&tickets, of(5), 0);
        (1..PENDING_PACKETS_MAX).for_each(|_| assert_eq!(pending.enter(&tickets, of(5), 0), ticket));
        let ticket = ticket.expect("there is room");
        (1..PENDING_PACKETS_MAX).for_each(|_| tickets.settle(ticket));
        assert_eq!((pending.turn(&tickets, 5, 1), pending.enter(&tickets, of(5), 1)), (Turn::Behind, None));
        tickets.settle(ticket);
        assert_eq!(pending.turn(&tickets, 5, 1), Turn::Now);
    }

    #[test]
    fn behind_a_crowd_its_port_waits_until_that_is_through_or_overdue() {
        let (tickets, mut pending) = (Tickets::new(), pending(1));
        let (port, other) = (PortId(3), PortId(4));
        let ticket = pending.enter(&tickets, of(5), 0).expect("there is room");
        assert!(!pending.is_crowded(port, 5) && !pending.keeps_paused(&tickets, port, 0));
        (1..CROWD_PACKETS).for_each(|_| assert!(pending.enter(&tickets, of(5), 0).is_some()));
        assert!(pending.is_crowded(port, 5) && pending.is_crowded(port, 5));
        assert!(pending.keeps_paused(&tickets, port, 1) && !pending.keeps_paused(&tickets, other, 1));
        (0..BATCH_PACKETS_MAX)
            .for_each(|_| assert!(pending.enter(&tickets, of(5), 0).is_some(), "the batch"));
        (0..PENDING_PACKETS_MAX).for_each(|_| tickets.settle(ticket));
        assert!(!pending.keeps_paused(&tickets, port, 1) && pending.crowds.is_empty());
        assert!((0..CROWD_PACKETS).all(|_| pending.enter(&tickets, of(6), 1).is_some()));
        assert!(pending.is_crowded(port, 6) && !pending.keeps_paused(&tickets, port, 1 + PENDING_NS_MAX));
    }

    #[test]
    fn overdue_packets_are_late_once_overtaken() {
        let (tickets, mut pending) = (Tickets::new(), pending(0));
        let first = pending.enter(&tickets, of(5), 0).expect("there is room");
        assert_eq!(pending.turn(&tickets, 5, PENDING_NS_MAX - 1), Turn::Behind);
        assert_eq!(pending.turn(&tickets, 5, PENDING_NS_MAX), Turn::Overdue);
        assert_eq!(
            pending.enter(&tickets, of(5), PENDING_NS_MAX),
            Some(first),
            "without flow it is behind still"
        );
        assert_eq!(pending.turn(&tickets, 5, PENDING_NS_MAX + 1), Turn::Behind);
        assert!(!tickets.is_overtaken(first));
        let other = pending.enter(&tickets, of(6), 0).expect("there is room");
        pending.overtake(&tickets, 5);
        assert!(!tickets.is_overtaken(other));
        pending.overtake_all(&tickets, PortId(2));
        assert!(!tickets.is_overtaken(other), "it is of another port");
        pending.overtake_all(&tickets, PortId(1));
        assert!(tickets.is_overtaken(other) && pending.taken == 0);
        assert!(tickets.is_overtaken(first) && !tickets.is_overtaken(Ticket::NONE));
        assert_eq!(pending.turn(&tickets, 5, PENDING_NS_MAX + 2), Turn::Now);
    }

    #[test]
    fn a_port_is_settled_when_its_packets_are_or_are_overdue() {
        let (tickets, mut pending) = (Tickets::new(), pending(0));
        let ticket = pending.enter(&tickets, of(5), 0).expect("there is room");
        let behind = pending.enter(&tickets, of(5), 1).expect("there is room");
        assert!(pending.are_settled(&tickets, PortId(2), 1), "it has none");
        tickets.settle(ticket);
        assert!(!pending.are_settled(&tickets, PortId(1), 1));
        tickets.settle(behind);
        assert!(pending.are_settled(&tickets, PortId(1), 1) && !pending.is_any());
        let late = pending.enter(&tickets, of(6), 1).expect("there is room");
        assert!(!pending.are_settled(&tickets, PortId(1), PENDING_NS_MAX));
        assert!(tickets.begin(late) && !pending.are_settled(&tickets, PortId(1), 1 + PENDING_NS_MAX));
        tickets.add(late);
        tickets.done(late);
        assert!(pending.are_settled(&tickets, PortId(1), 1 + PENDING_NS_MAX));
        assert!(!tickets.begin(late), "it may be overtaken");
    }

    #[test]
    fn nothing_overtakes_a_packet_that_is_being_sent() {
        let (tickets, mut pending) = (Tickets::new(), pending(2));
        let ticket = pending.enter(&tickets, of(5), 0).expect("there is room");
        let behind = pending.enter(&tickets, of(5), 1).expect("there is room");
        assert!(tickets.begin(ticket));
        assert_eq!(pending.turn(&tickets, 5, PENDING_NS_MAX), Turn::Overdue);
        assert!(!pending.overtake(&tickets, 5) && !pending.overtake_all(&tickets, PortId(1)));
        assert!(pending.overtake_all(&tickets, PortId(2)) && pending.is_any(), "it keeps its place");
        tickets.settle(behind);
        assert!(!pending.overtake(&tickets, 5), "another one was lost");
        let third = pending.enter(&tickets, of(5), PENDING_NS_MAX);
        assert_eq!((third, pending.turn(&tickets, 5, PENDING_NS_MAX)), (Some(ticket), Turn::Behind));
        tickets.done(ticket);
        assert_eq!(pending.turn(&tickets, 5, 2 * PENDING_NS_MAX), Turn::Overdue, "the third one is");
        assert!(pending.overtake(&tickets, 5) && !pending.is_any());
        assert!(!tickets.begin(ticket), "it was overtaken");
        assert_eq!(pending.turn(&tickets, 5, 2 * PENDING_NS_MAX), Turn::Now);
    }

    #[test]
    fn each_part_of_a_packet_is_told_of() {
        let (tickets, mut pending) = (Tickets::new(), pending(0));
        let ticket = pending.enter(&tickets, of(5), 0).expect("there is room");
        [ticket, ticket, Ticket::NONE].into_iter().for_each(|ticket| tickets.add(ticket));
        assert!(tickets.begin(ticket));
        tickets.done(ticket);
        tickets.settle(ticket);
        assert_eq!(pending.turn(&tickets, 5, 1), Turn::Behind, "a third part is on the way");
        assert!(pending.overtake(&tickets, 5) && !tickets.begin(ticket));
        let next = pending.enter(&tickets, of(5), 2).expect("there is room");
        tickets.add(ticket);
        tickets.done(next);
        assert_eq!(pending.turn(&tickets, 5, 3), Turn::Now, "what is late counts no more");
    }

    #[test]
    fn overtaken_packets_are_not_sent_and_change_nothing() {
        let (tickets, mut pending) = (Tickets::new(), pending(0));
        let late = pending.enter(&tickets, of(5), 0).expect("there is room");
        assert!(pending.overtake(&tickets, 5) && !tickets.begin(late));
        let next = pending.enter(&tickets, of(5), 1).expect("there is room");
        tickets.done(late);
        assert_eq!(pending.turn(&tickets, 5, 2), Turn::Behind);
        assert!(tickets.begin(next) && tickets.begin(Ticket::NONE));
        tickets.done(late);
        tickets.done(Ticket::NONE);
        assert!(!pending.overtake(&tickets, 5), "it is being sent still");
        tickets.done(next);
        assert_eq!(pending.turn(&tickets, 5, 3), Turn::Now);
    }

    #[test]
    fn a_slot_with_a_packet_being_sent_is_not_reused() {
        let (tickets, mut pending) = (Tickets::new(), pending(0));
        let hash = |number: usize| 5 + (number * PENDING_FLOWS) as u64;
        let mut enter = |number, now_ns| pending.enter(&tickets, of(hash(number)), now_ns);
        let all: Vec<_> = (0..PENDING_WAYS).filter_map(|number| enter(number, 0)).collect();
        assert!(all.iter().all(|ticket| tickets.begin(*ticket)));
        let forgotten_ns = PENDING_NS_MAX + FORGOTTEN_NS;
        assert_eq!(enter(99, forgotten_ns), Some(Ticket::NONE));
        tickets.done(all[3]);
        assert!(enter(99, forgotten_ns).is_some_and(|ticket| ticket.place() == all[3].place()));
    }

    #[test]
    fn a_settled_quiet_flow_frees_its_slot() {
        let (tickets, mut pending) = (Tickets::new(), pending(0));
        let ticket = pending.enter(&tickets, of(77), 0).expect("there is room");
        assert!(is_any_after(&mut pending, &tickets, 0), "it is on the way");
        tickets.settle(ticket);
        assert!(!is_any_after(&mut pending, &tickets, 0));
    }

    /// Whether any slot is taken after `tidy` has visited all of them.
    fn is_any_after(pending: &mut Pending, tickets: &Tickets, now_ns: u64) -> bool {
        (0..PENDING_FLOWS / PENDING_WAYS).for_each(|_| pending.tidy(tickets, now_ns));
        pending.is_any()
    }

    #[test]
    fn an_unsettled_flow_frees_its_slot_and_its_packets_are_late() {
        let (tickets, mut pending) = (Tickets::new(), pending(0));
        let ticket = pending.enter(&tickets, of(77), 0).expect("there is room");
        let forgotten_ns = PENDING_NS_MAX + FORGOTTEN_NS;
        assert!(is_any_after(&mut pending, &tickets, forgotten_ns - 1));
        assert!(tickets.begin(ticket) && is_any_after(&mut pending, &tickets, forgotten_ns), "it is sent");
        tickets.done(ticket);
        let lost = pending.enter(&tickets, of(77), 1).expect("there is room");
        assert!(!is_any_after(&mut pending, &tickets, 1 + forgotten_ns));
        assert!(tickets.is_overtaken(lost) && !tickets.begin(lost));
        tickets.settle(lost);
        let next = pending.enter(&tickets, of(77), forgotten_ns).expect("there is room");
        tickets.done(lost);
        assert!(next != lost && pending.turn(&tickets, 77, forgotten_ns) == Turn::Behind);
    }

    #[test]
    fn a_packet_that_nothing_overtook_is_sent_though_the_control_plane_had_it_for_two_seconds() {
        let (tickets, mut pending) = (Tickets::new(), pending(0));
        let ticket = pending.enter(&tickets, of(77), 0).expect("there is room");
        // A main thread that is busy for a second, and a client that takes another one to read.
        let late_ns = 2_000_000_000 + PENDING_NS_MAX;
        assert!(is_any_after(&mut pending, &tickets, late_ns));
        assert!(tickets.begin(ticket));
    }

    #[test]
    fn an_overdue_packet_loses_its_slot_only_if_there_is_no_other_one() {
        let (tickets, mut pending) = (Tickets::new(), pending(0));
        let hash = |number: usize| 5 + (number * PENDING_FLOWS) as u64;
        let late_ns = PENDING_NS_MAX + REUSED_NS;
        let first = pending.enter(&tickets, of(hash(0)), 0).expect("there is room");
        for number in 1..PENDING_WAYS {
            let other = pending.enter(&tickets, of(hash(number)), late_ns).expect("there is room");
            assert_ne!((other, other.place()), (Ticket::NONE, first.place()));
        }
        assert!(!tickets.is_overtaken(first));
        let last = pending.enter(&tickets, of(hash(99)), late_ns).expect("there is room");
        assert_eq!(last.place(), first.place());
        assert!(tickets.is_overtaken(first) && !tickets.begin(first));
    }

    #[test]
    fn a_flow_without_a_place_has_no_ticket() {
        let (tickets, mut pending) = (Tickets::new(), pending(15));
        let hashes = |count: usize| (0..count as u64).map(|number| 5 + number * PENDING_FLOWS as u64);
        let all: Vec<_> = hashes(PENDING_WAYS + 1).map(|hash| pending.enter(&tickets, of(hash), 0)).collect();
        let (none, own) = all.split_last().expect("some");
        assert_eq!(*none, Some(Ticket::NONE));
        assert!(own.iter().flatten().all(|ticket| *ticket != Ticket::NONE && ticket.worker() == 15));
        assert_ne!(
            pending.enter(&tickets, of(5 + 99 * PENDING_FLOWS as u64), PENDING_NS_MAX + FORGOTTEN_NS),
            Some(Ticket::NONE)
        );
    }
}
