//! The device's side of a packed ring (virtio 1.2, 2.8).
//!
//! ```text
//!   descriptors   [ u u|w w|t t t|f f f|a a . . ]       u used, w completed, t taken, f found, a available
//!              published ^  ^    ^     ^ end of those found
//!                   next_used    next_avail
//! ```
//!
//! A chain is known by its buffer ID, which stands in its last descriptor. The driver may not reuse an ID before its
//! chain is used; but used descriptors are written in ring order, whatever chain they are of. So the descriptors of a
//! chain under way may be overwritten, and only the ledger knows where it began and how long it is.
//!
//! Completed chains are written into the ledger, and from there into the ring when they are published: the first one
//! last, since the driver looks at the others only behind it.

use super::DeviceRing;
use super::kept_chains::KeptChains;
use crate::inflight::packed::{LoggedChains, PackedInflightLog};
use crate::ledger::order;
use crate::ledger::packed::{PackedAreas, PackedPlace};
use crate::packed_memory::{PackedWord, PackedWords, used_flags};
use crate::{
    ChainStart, DESC_NEXT, DESC_WRITE, Descriptor, Ledger, LedgerError, RingError, RingMemory, death,
};

/// The private state of a packed ring.
#[derive(Debug)]
pub(super) struct PackedState {
    /// By place of its first descriptor: a found chain's buffer ID.
    ids: Box<[u16]>,
    /// By place: number of descriptors of the chain that ends before it.
    spans_before: Box<[u16]>,
    /// A chain of more than one descriptor was found.
    has_long: bool,
    /// The position behind the chains that were found.
    pub(super) found_end: u16,
    /// Number of chains that were found and not taken.
    found: u16,
    /// Descriptors that were read to find long chains, since the last time that they were charged.
    long_descriptors: u64,
    /// The fault of the chain behind them.
    fault: Option<RingError>,
    /// Of chains that wait.
    waiting: Option<Box<KeptChains>>,
    /// For a front end that also tracks chains in flight.
    log: Option<PackedInflightLog>,
}

impl PackedState {
    /// The state of a ring of which no chain from `base` on was found.
    pub(super) fn boxed(entries: u16, base: u16) -> Box<Self> {
        Box::new(Self {
            ids: vec![0; usize::from(entries)].into(),
            spans_before: vec![1; usize::from(entries)].into(),
            has_long: false,
            found_end: base,
            found: 0,
            long_descriptors: 0,
            fault: None,
            waiting: None,
            log: None,
        })
    }

    #[inline]
    fn place(&self, position: u16) -> usize {
        usize::from(position) & (self.ids.len() - 1)
    }

    /// Whether neither a chain nor a fault was found behind those that were taken.
    #[inline]
    pub(super) fn has_found_none(&self) -> bool {
        self.found == 0 && self.fault.is_none()
    }

    /// Whether chains wait that were kept.
    #[inline]
    pub(super) fn has_waiting(&self) -> bool {
        self.waiting.is_some()
    }

    /// Enters a usual chain, the next one, while no chain waits.
    #[inline(always)]
    pub(super) fn enter_usual(&mut self, ledger: &Ledger, id: u16) {
        let place = self.place(self.found_end);
        self.ids[place] = id;
        ledger.set_first(id, self.found_end);
        self.found_end = self.found_end.wrapping_add(1);
        if self.has_long {
            self.note_span(ledger, id, 1);
        }
        self.found += 1;
        // A successor that finds a mark needs the chain's place.
        order();
    }

    /// Takes the chain of [`Self::enter_usual`], the only one that was found.
    #[inline(always)]
    pub(super) fn take_usual(&mut self) {
        self.found = 0;
    }

    pub(super) fn available_index(&self, memory: &RingMemory) -> u16 {
        self.found_end.wrapping_add(u16::from(self.is_more(memory)))
    }

    /// Whether there is a chain behind those that were found.
    #[inline]
    fn is_more(&self, memory: &RingMemory) -> bool {
        memory.packed_word(self.found_end).is_available(memory.wrap(self.found_end))
    }

    /// Whether there is a chain at or behind position `seen`.
    pub(super) fn has_moved_past(&self, seen: u16, memory: &RingMemory) -> bool {
        seen != self.found_end || self.is_more(memory)
    }

    /// The buffer ID of the found chain at offset `ahead` from `next`.
    pub(super) fn id(&self, ahead: u16, next: u16, ledger: &Ledger) -> Option<u16> {
        if ahead >= self.found {
            return None;
        }
        let position = match self.has_long {
            false => next.wrapping_add(ahead),
            true => self.behind(ahead, next, ledger),
        };
        Some(self.ids[self.place(position)])
    }

    /// The position behind the `count` found chains from `next` on.
    fn behind(&self, count: u16, next: u16, ledger: &Ledger) -> u16 {
        (0..count)
            .fold(next, |position, _| position.wrapping_add(ledger.span(self.ids[self.place(position)])))
    }

    /// The IDs of the first found chains. Returns their number, and the fault of the next one.
    pub(super) fn read_ids(&self, ids: &mut [u16], next: u16, ledger: &Ledger) -> (usize, Option<RingError>) {
        let count = ids.len().min(usize::from(self.found));
        let fault = self.fault.filter(|_| count < ids.len());
        if !self.has_long {
            let (from, to) = (self.place(next), self.place(next) + count);
            let (before, behind) = (to.min(self.ids.len()), to.saturating_sub(self.ids.len()));
            let (start, rest) = ids[..count].split_at_mut(before - from);
            start.copy_from_slice(&self.ids[from..before]);
            rest.copy_from_slice(&self.ids[..behind]);
            return (count, fault);
        }
        let mut position = next;
        for id in &mut ids[..count] {
            *id = self.ids[self.place(position)];
            position = position.wrapping_add(ledger.span(*id));
        }
        (count, fault)
    }

    /// Takes `count` found chains from `next` on. Returns the position behind them.
    pub(super) fn take(&mut self, count: u16, next: u16, ledger: &Ledger) -> u16 {
        debug_assert!(count <= self.found, "only chains that were found can be taken");
        self.found -= count;
        match self.has_long {
            false => next.wrapping_add(count),
            true => self.behind(count, next, ledger),
        }
    }

    /// Puts back the `count` chains before `next`. Returns the position of the first of them.
    pub(super) fn put_back(&mut self, count: u16, next: u16) -> u16 {
        self.found += count;
        match self.has_long {
            false => next.wrapping_sub(count),
            true => (0..count)
                .fold(next, |position, _| position.wrapping_sub(self.spans_before[self.place(position)])),
        }
    }

    /// The first descriptor of a chain that waited, if it was kept.
    pub(super) fn kept(&self, id: u16, ledger: &Ledger) -> Option<Descriptor> {
        self.waiting.as_ref()?.start(id, ledger.first(id))
    }

    /// The descriptor to which a kept one leads.
    pub(super) fn kept_link(&self, node: u16) -> Descriptor {
        self.waiting.as_ref().map_or_else(Descriptor::default, |kept| kept.linked(node))
    }

    /// Writes the kept chains of `ids` into the ledger. Returns how many there was room for.
    pub(super) fn store_kept(&self, ids: &[u16], ledger: &Ledger) -> usize {
        let Some(kept) = &self.waiting else { return 0 };
        let chains = ids.iter().map_while(|id| kept.start(*id, ledger.first(*id)));
        ledger.set_chains(chains.map(|start| kept.chain(start)))
    }

    fn keep(
        &mut self,
        ledger: &Ledger,
        (id, first): (u16, u16),
        chain: impl ExactSizeIterator<Item = Descriptor>,
    ) {
        let entries = self.ids.len() as u16; // made of a u16
        let kept = self.waiting.get_or_insert_with(|| Box::new(KeptChains::new(entries)));
        kept.keep(ledger, (id, first), chain);
    }
}

/// Descriptors of a chain that its walk charges for anyway.
const SHORT_CHAIN_DESCRIPTORS: u16 = 64;

/// A chain as it stands in the ring.
struct FoundChain {
    id: u16,
    descriptors: u16,
}

impl DeviceRing {
    /// As [`Self::begin_logged`], for a packed ring.
    pub(super) fn begin_packed_logged(
        memory: RingMemory,
        ledger: Ledger,
        mut log: PackedInflightLog,
        base: u16,
        event_idx: bool,
    ) -> (Self, bool) {
        let logged = log.recover(&memory).filter(|logged| !logged.chains.is_empty());
        if logged.is_none() {
            log.begin(base);
        }
        let was_taken = logged.is_some();
        let LoggedChains { used, chains } = logged.unwrap_or(LoggedChains { used: base, chains: Vec::new() });
        let spans: u16 = chains.iter().map(|(_, span)| span).sum(); // at most the ring's entries
        let mut ring = Self::begin(memory, ledger, used.wrapping_add(spans), event_idx);
        (ring.next_used, ring.published, ring.signalled) = (used, used, used);
        ring.ledger.set_published(used);
        let mut position = used;
        for (id, span) in chains {
            ring.ledger.set_first(id, position);
            ring.ledger.set_span(id, span);
            ring.set_mark(id, 1);
            position = position.wrapping_add(span);
        }
        if let Some(packed) = &mut ring.packed {
            packed.has_long = ring.ledger.has_long();
            packed.log = Some(log);
            ring.is_noted = true;
        }
        (ring, was_taken)
    }

    /// As [`Self::take_over_logged`], for a packed ring.
    pub(super) fn take_over_packed_logged(
        memory: RingMemory,
        ledger: Ledger,
        mut log: PackedInflightLog,
        event_idx: bool,
    ) -> Result<Self, LedgerError> {
        let place = ledger.where_packed_marked()?;
        if log.recover(&memory).is_none() {
            log.begin(memory.within_two_laps(place.published));
        }
        for id in ledger.marked().filter(|id| !log.has(*id)).collect::<Vec<_>>() {
            // The device died between the two records.
            log.take(id, memory.packed_chain(ledger.first(id), ledger.span(id)));
        }
        Ok(Self::take_over_packed(memory, ledger, place, event_idx, Some(log)))
    }

    /// Continues the ring of a dead device at `place`, and publishes what the driver does not see yet.
    pub(super) fn take_over_packed(
        memory: RingMemory,
        ledger: Ledger,
        place: PackedPlace,
        event_idx: bool,
        log: Option<PackedInflightLog>,
    ) -> Self {
        let PackedPlace { base, next_used, published } = place;
        let mut ring = Self::at(memory, ledger, (base, next_used), event_idx);
        ring.ledger.set_taken(base);
        ring.is_noted = log.is_some();
        if let Some(packed) = &mut ring.packed {
            packed.has_long = ring.ledger.has_long();
            packed.log = log;
            let chains = ring.ledger.chains().into_iter();
            for (id, chain) in chains.filter(|(id, _)| ring.ledger.mark(*id) > 0) {
                packed.keep(&ring.ledger, (id, ring.ledger.first(id)), chain.into_iter());
            }
        }
        let is_seen = ring.memory.packed_word(published).was_used(ring.memory.wrap(published));
        if published != next_used && !is_seen {
            (ring.published, ring.signalled) = (published, published);
            ring.publish();
        }
        ring.ledger.set_published(next_used);
        ring
    }

    /// As [`Self::available_index`].
    #[inline(never)]
    pub(super) fn found_or_more(&self) -> u16 {
        self.packed.as_ref().map_or(0, |packed| packed.available_index(&self.memory))
    }

    /// As [`Self::has_moved_past`].
    #[inline(never)]
    pub(super) fn has_found_past(&self, seen: u16) -> bool {
        self.packed.as_ref().is_some_and(|packed| packed.has_moved_past(seen, &self.memory))
    }

    /// As [`Self::head`].
    #[inline(never)]
    pub(super) fn found_id(&self, ahead: u16) -> Option<u16> {
        self.packed.as_ref()?.id(ahead, self.next_avail, &self.ledger)
    }

    /// As [`Self::read_heads`].
    #[inline(never)]
    pub(super) fn read_ids(&self, ids: &mut [u16]) -> (usize, Option<RingError>) {
        self.packed.as_ref().map_or((0, None), |packed| packed.read_ids(ids, self.next_avail, &self.ledger))
    }

    /// As [`Self::take`].
    #[inline(never)]
    pub(super) fn take_found(&mut self, count: u16) {
        if let Some(packed) = &mut self.packed {
            self.next_avail = packed.take(count, self.next_avail, &self.ledger);
        }
    }

    /// As [`Self::put_back`].
    #[inline(never)]
    pub(super) fn put_back_found(&mut self, count: u16) {
        if let Some(packed) = &mut self.packed {
            self.next_avail = packed.put_back(count, self.next_avail);
        }
    }

    /// Looks for chains until `wanted` are found and not taken. Returns their number; a faulty one counts, and
    /// [`Self::head`] names its fault. `None` if it is the first one.
    // Not inlined, so that the code of split rings stays small.
    #[inline(never)]
    pub(super) fn find_chains(&mut self, wanted: u16) -> Option<u16> {
        let packed = self.packed.as_mut()?;
        packed.find_usual((&self.memory, &self.ledger), self.next_used, wanted);
        while packed.found < wanted && packed.fault.is_none() {
            let position = packed.found_end;
            let word = self.memory.packed_word(position);
            if !word.is_available(self.memory.wrap(position)) {
                break;
            }
            let under_way = position.wrapping_sub(self.next_used);
            match found_chain(&self.memory, &self.ledger, (position, word), under_way) {
                Ok(chain) => packed.enter(&self.ledger, &chain),
                Err(fault) => packed.fault = Some(fault),
            }
        }
        // A successor that finds a mark needs the chain's place.
        order();
        let is_faulty = packed.fault.is_some();
        (packed.found > 0 || !is_faulty).then_some(packed.found + u16::from(is_faulty))
    }

    /// The fault of the chain behind those that were found.
    #[cold]
    pub(super) fn fault(&self) -> RingError {
        let fault = self.packed.as_ref().and_then(|packed| packed.fault);
        fault.unwrap_or(RingError::IndexJump(0, self.entries()))
    }

    /// Whether the descriptor before `position` was used in its lap and not made available since. False also for one that
    /// belongs to a chain of several.
    pub(super) fn is_used_before(&self, position: u16) -> bool {
        let last = position.wrapping_sub(1);
        self.memory.packed_word(last).is_used(self.memory.wrap(last))
    }

    pub(super) fn has_fault(&self) -> bool {
        self.packed.as_ref().is_some_and(|packed| packed.fault.is_some())
    }

    /// Whether the driver has made available the last descriptor of the lap that begins with the next one.
    pub(super) fn is_lap_available(&self) -> bool {
        let last = self.next_avail.wrapping_add(self.entries() - 1);
        self.memory.packed_word(last).is_available(self.memory.wrap(last))
    }

    /// As [`Self::available_index`], but exact also for a packed ring: the position behind the last available descriptor. For
    /// diagnosis, since it looks at several lines of the ring.
    #[must_use]
    pub fn posted_position(&self) -> u16 {
        let Some(packed) = &self.packed else { return self.memory.available_index() };
        // The driver makes descriptors available in order, so those that are end at one place.
        let is_available = |ahead: u16| {
            let position = packed.found_end.wrapping_add(ahead);
            self.memory.packed_word(position).is_available(self.memory.wrap(position))
        };
        let under_way = packed.found_end.wrapping_sub(self.next_used);
        let (mut some, mut none) = (0, self.entries().saturating_sub(under_way));
        while some < none {
            let middle = some + (none - some) / 2;
            if is_available(middle) { some = middle + 1 } else { none = middle }
        }
        packed.found_end.wrapping_add(some)
    }

    /// The position behind the first `pending` heads, which are all that there are.
    #[must_use]
    pub fn position_behind(&self, pending: u16) -> u16 {
        self.packed.as_ref().map_or(self.next_avail.wrapping_add(pending), |packed| packed.found_end)
    }

    /// As [`Self::chain_start`].
    #[inline(never)]
    pub(super) fn packed_start(&self, head: u16) -> ChainStart {
        let packed = self.packed.as_ref().filter(|_| self.mark(head) > 0);
        match packed.and_then(|packed| packed.kept(head, &self.ledger)) {
            None => ChainStart { descriptor: self.descriptor_in::<true>(head), is_kept: false },
            Some(descriptor) => ChainStart { descriptor, is_kept: true },
        }
    }

    /// As [`Self::complete`].
    #[inline(never)]
    pub(super) fn complete_packed(&mut self, id: u16, written_bytes: u32) {
        self.use_packed(id, written_bytes);
    }

    #[inline(always)]
    pub(super) fn use_packed(&mut self, id: u16, written_bytes: u32) {
        let word = used_word(self.memory.wrap(self.next_used), id, written_bytes);
        self.ledger.areas().set_used_word(self.next_used, word);
        self.next_used = self.next_used.wrapping_add(self.span(id));
    }

    /// As [`Self::complete_all`].
    #[inline(never)]
    pub(super) fn complete_all_packed(&mut self, filled: impl Iterator<Item = (u16, u32)>) {
        if self.has_long() {
            return filled.for_each(|(id, written_bytes)| self.complete_packed(id, written_bytes));
        }
        let (areas, mut position) = (self.ledger.areas(), self.next_used);
        for (id, written_bytes) in filled {
            areas.set_used_word(position, used_word(self.memory.wrap(position), id, written_bytes));
            position = position.wrapping_add(1);
        }
        self.next_used = position;
    }

    /// As [`Self::complete_marked_all`].
    #[inline(never)]
    pub(super) fn complete_marked_packed(&mut self, ids: impl Iterator<Item = u16>) {
        if self.has_long() {
            ids.for_each(|id| self.use_marked(id));
        } else {
            let (areas, mut position) = (self.ledger.areas(), self.next_used);
            for id in ids {
                areas.set_used_word(position, used_word(self.memory.wrap(position), id, 0));
                position = position.wrapping_add(1);
                order();
                areas.marks.set(id, 0);
            }
            self.next_used = position;
        }
        if self.used_order.is_some() {
            self.use_held_back();
        }
    }

    /// Whether a chain of more than one descriptor was found.
    #[inline]
    fn has_long(&self) -> bool {
        self.packed.as_ref().is_some_and(|packed| packed.has_long)
    }

    #[inline]
    fn span(&self, id: u16) -> u16 {
        if self.has_long() { self.ledger.span(id) } else { 1 }
    }

    /// As [`Self::publish_up_to`].
    #[inline(always)]
    pub(super) fn publish_packed(&mut self, end: u16) {
        match self.packed.as_ref().is_some_and(|packed| packed.log.is_some()) {
            false => self.publish_words(end),
            true => self.publish_packed_logged(end),
        }
    }

    #[cold]
    fn publish_packed_logged(&mut self, end: u16) {
        self.link_logged(end);
        self.publish_words(end);
        if let Some(log) = self.packed.as_mut().and_then(|packed| packed.log.as_mut()) {
            log.published();
        }
    }

    /// Records in the log which chains are about to be published.
    fn link_logged(&mut self, end: u16) {
        let mut position = self.published;
        while position != end {
            let id = self.ledger.areas().used_word(position).id();
            let left = end.wrapping_sub(position);
            position = position.wrapping_add(self.span(id).clamp(1, left));
            if let Some(log) = self.packed.as_mut().and_then(|packed| packed.log.as_mut()) {
                log.link(id);
            }
        }
    }

    /// Records chains that are about to be taken in the log.
    pub(super) fn log_packed(&mut self, ids: &[u16]) {
        let Some(packed) = &mut self.packed else { return };
        let Some(log) = &mut packed.log else { return };
        for id in ids {
            log.take(*id, self.memory.packed_chain(self.ledger.first(*id), self.ledger.span(*id)));
        }
    }

    #[inline(always)]
    fn publish_words(&mut self, end: u16) {
        let (first, count) = (self.published, end.wrapping_sub(self.published));
        self.ledger.set_filled(end);
        order();
        if count > 0 {
            let word = self.ledger.areas().used_word(first);
            if count > 1 {
                self.store_behind(first, word, end);
            }
            death::may_come();
            self.memory.publish_packed_word(first, word);
        }
        order();
        self.published = end;
        self.ledger.set_published(end);
    }

    /// Writes the used descriptors behind `word`, which is at `position`, into the ring.
    // Not inlined, so that a single used descriptor needs no registers for the others.
    #[inline(never)]
    fn store_behind(&self, mut position: u16, mut word: PackedWord, end: u16) {
        let (used, words, has_long) = (self.ledger.areas(), self.memory.packed_words(), self.has_long());
        loop {
            // A driver that used an ID twice must not lead beyond the end.
            let left = end.wrapping_sub(position);
            let span = if has_long { self.ledger.span(word.id()).clamp(1, left) } else { 1 };
            position = position.wrapping_add(span);
            if position == end {
                return;
            }
            word = used.used_word(position);
            death::may_come();
            words.set(position, word);
        }
    }

    /// Returns the number of descriptors that were read, since the last call, to find chains that are longer than what is
    /// charged for when a chain is walked.
    #[inline]
    pub fn take_long_descriptors(&mut self) -> u64 {
        self.packed.as_mut().map_or(0, |packed| std::mem::take(&mut packed.long_descriptors))
    }

    /// Keeps the chain at `head`, which waits, so that it can be postponed even when its descriptor in a packed ring is
    /// overwritten. No effect for a split ring.
    #[cold]
    pub fn keep_waiting(&mut self, head: u16) {
        let Some(packed) = &mut self.packed else { return };
        let first = self.ledger.first(head);
        let is_intact = first.wrapping_sub(self.published) < self.memory.entries();
        if is_intact {
            let span = self.ledger.span(head);
            let chain = self.memory.packed_chain(first, span).enumerate().map(|(ahead, descriptor)| {
                // The links are those of the chain when it was found.
                let link = if ahead + 1 < usize::from(span) { DESC_NEXT } else { 0 };
                Descriptor { flags: descriptor.flags & !DESC_NEXT | link, ..descriptor }
            });
            packed.keep(&self.ledger, (head, first), chain);
        }
    }

    /// Whether the waiting chain at `head` can be postponed: always in a split ring, in a packed one if it
    /// [was kept](Self::keep_waiting).
    #[must_use]
    pub fn can_be_postponed(&self, head: u16) -> bool {
        self.packed.as_ref().is_none_or(|packed| packed.kept(head, &self.ledger).is_some())
    }
}

impl PackedState {
    /// Looks for chains of one descriptor until `wanted` are found and not taken, up to one of another kind. The oldest
    /// descriptor that is not used is at `next_used`.
    #[inline]
    fn find_usual(&mut self, (memory, ledger): (&RingMemory, &Ledger), next_used: u16, wanted: u16) {
        if self.has_long || self.fault.is_some() || self.waiting.is_some() {
            return;
        }
        let (usual, ids) = (UsualChains::of(memory, ledger, next_used), &mut self.ids[..]);
        let Some(last) = ids.len().checked_sub(1) else { return };
        let (mut end, mut left) = (self.found_end, wanted.saturating_sub(self.found));
        while left > 0
            && let Some(id) = usual.id(end, usual.word(end))
        {
            ids[usize::from(end) & last] = id;
            usual.areas.firsts.set(id, end);
            end = end.wrapping_add(1);
            left -= 1;
        }
        self.found += end.wrapping_sub(self.found_end);
        self.found_end = end;
    }

    /// Enters the chain behind those that were found.
    #[inline]
    fn enter(&mut self, ledger: &Ledger, chain: &FoundChain) {
        let (first, place) = (self.found_end, self.place(self.found_end));
        self.ids[place] = chain.id;
        ledger.set_first(chain.id, first);
        self.found_end = first.wrapping_add(chain.descriptors);
        self.has_long |= chain.descriptors > 1;
        if chain.descriptors > SHORT_CHAIN_DESCRIPTORS {
            self.long_descriptors += u64::from(chain.descriptors);
        }
        if let Some(kept) = &mut self.waiting {
            kept.forget(chain.id);
            if kept.is_empty() {
                self.waiting = None;
            }
        }
        // Until there is a long chain, all are as they were at the start.
        if self.has_long {
            self.note_span(ledger, chain.id, chain.descriptors);
        }
        self.found += 1;
    }

    /// Notes the number of descriptors of a chain, behind which `found_end` is.
    #[inline]
    fn note_span(&mut self, ledger: &Ledger, id: u16, descriptors: u16) {
        ledger.set_span(id, descriptors);
        let behind = self.place(self.found_end);
        self.spans_before[behind] = descriptors;
    }
}

/// A packed ring's chains of one descriptor that are not under way, as a value for loops.
#[derive(Clone, Copy)]
pub(super) struct UsualChains<'a> {
    memory: &'a RingMemory,
    words: PackedWords<'a>,
    areas: PackedAreas<'a>,
    /// The oldest descriptor that is not used.
    next_used: u16,
}

impl<'a> UsualChains<'a> {
    #[inline(always)]
    pub(super) fn of(memory: &'a RingMemory, ledger: &'a Ledger, next_used: u16) -> Self {
        Self { memory, words: memory.packed_words(), areas: ledger.areas(), next_used }
    }

    #[inline(always)]
    pub(super) fn word(&self, position: u16) -> PackedWord {
        self.words.get(position)
    }

    /// Whether there is a chain at `position`, of any kind.
    #[inline(always)]
    pub(super) fn is_available(&self, position: u16, word: PackedWord) -> bool {
        word.is_available(self.memory.wrap(position))
    }

    /// The buffer ID of the chain at `position`, which begins with `word`, if it is a usual one.
    #[inline(always)]
    pub(super) fn id(&self, position: u16, word: PackedWord) -> Option<u16> {
        let (id, entries) = (word.id(), self.memory.entries());
        let is_usual = word.is_available_alone(self.memory.wrap(position))
            && id < entries
            && position.wrapping_sub(self.next_used) < entries
            && self.areas.marks.get(id) == 0;
        is_usual.then_some(id)
    }
}

/// The second word of a used descriptor.
#[inline]
fn used_word(wrap: bool, id: u16, written_bytes: u32) -> PackedWord {
    let has_bytes = if written_bytes > 0 { DESC_WRITE } else { 0 };
    PackedWord::new(written_bytes, id, used_flags(wrap) | has_bytes)
}

/// The available chain that begins with `word` at `position`, where `under_way` descriptors before it are not used.
#[inline]
fn found_chain(
    memory: &RingMemory,
    ledger: &Ledger,
    (position, first): (u16, PackedWord),
    under_way: u16,
) -> Result<FoundChain, RingError> {
    let (mut word, mut descriptors) = (first, 1);
    while word.flags() & DESC_NEXT != 0 {
        if descriptors >= memory.entries() {
            return Err(RingError::ChainLoops);
        }
        word = memory.packed_word(position.wrapping_add(descriptors));
        descriptors += 1;
    }
    let (id, entries) = (word.id(), memory.entries());
    if u32::from(under_way) + u32::from(descriptors) > u32::from(entries) {
        return Err(RingError::IndexJump(under_way.saturating_add(descriptors), entries));
    }
    if id >= entries {
        return Err(RingError::DescriptorOutOfRange(id, entries));
    }
    if ledger.mark(id) > 0 {
        return Err(RingError::HeadTwice(id));
    }
    Ok(FoundChain { id, descriptors })
}
