//! The device's side of a ring: takes heads, writes used entries, publishes, and suppresses notifications.
//!
//! ```text
//!   avail.ring  [ . . t t t|p p p|. . ]      t taken, p pending        next_avail ^ at the first pending one
//!   used.ring   [ . . u u|w w|. . . . ]      u published, w written    published ^ before w, next_used ^ behind w
//! ```
//!
//! Used entries are written first and published by one store of used.idx. The ledger records each step for a
//! successor. The picture is of a split ring; [`packed`] has that of a packed one. There, a head is a buffer ID, and
//! positions count descriptors.

mod kept_chains;
mod lone;
mod notifications;
mod packed;
mod used_order;

pub use lone::LoneChain;
pub(crate) use notifications::crossed;

use crate::inflight::InflightLog;
use crate::ledger::{HELD_BACK, order};
use crate::packed_memory::EventWish;
use crate::{ChainStart, Descriptor, Ledger, LedgerError, RingError, RingFormat, RingLog, RingMemory};
use packed::PackedState;
use used_order::UsedOrder;

/// Chains that are read at a time: their descriptors share a cache line, and their heads mostly do.
const AHEAD_CHAINS_MAX: u16 = 4;

/// The device's side of one ring.
#[derive(Debug)]
pub struct DeviceRing {
    memory: RingMemory,
    ledger: Ledger,
    /// Position of the next head to be taken.
    next_avail: u16,
    /// Number of next chains that were read ahead.
    ahead_chains: u16,
    /// Their heads and descriptors, each at its position modulo [`AHEAD_CHAINS_MAX`].
    ahead_heads: [u16; AHEAD_CHAINS_MAX as usize],
    ahead_descriptors: [Descriptor; AHEAD_CHAINS_MAX as usize],
    /// Position of the next used entry to be written; used.idx follows at `publish`.
    next_used: u16,
    /// used.idx as the driver sees it.
    published: u16,
    /// used.idx at the last decision whether to signal the driver.
    signalled: u16,
    /// Whether `signalled` is valid: the first publication after a start always signals.
    signalled_valid: bool,
    /// The driver's available index when it was last signalled at its request.
    signalled_available: u16,
    /// Its wish at that time; of a packed ring.
    signalled_wish: Option<EventWish>,
    event_idx: bool,
    /// The driver tells by the available ring's used event which signal it wants: EVENT_IDX of a split ring.
    has_used_event: bool,
    kicks_armed: bool,
    /// For a front end that also tracks chains in flight.
    log: Option<Box<InflightLog>>,
    /// For a ring whose marked chains are used in order.
    used_order: Option<UsedOrder>,
    /// For a packed ring.
    packed: Option<Box<PackedState>>,
    is_packed: bool,
    /// Chains that are taken are noted in a log or an order.
    is_noted: bool,
    /// A split ring that is used in any order and not logged: one look tells it from the others.
    is_plain: bool,
}

impl DeviceRing {
    /// As `begin`, without state for a successor.
    #[must_use]
    pub fn new(memory: RingMemory, base: u16, event_idx: bool) -> Self {
        let ledger = Ledger::private(memory.format(), memory.entries());
        Self::begin(memory, ledger, base, event_idx)
    }

    /// Begins a ring at `base`, the next position of the available ring (the answer to GET_VRING_BASE). Its state is
    /// kept in `ledger`, which must have the same format and number of entries.
    #[must_use]
    pub fn begin(memory: RingMemory, ledger: Ledger, base: u16, event_idx: bool) -> Self {
        let used = match memory.format() {
            RingFormat::Split => memory.used_index(),
            RingFormat::Packed => base,
        };
        ledger.begin(base, used);
        Self::at(memory, ledger, (base, used), event_idx)
    }

    /// As `begin`, for a ring that completes chains in any order and also records them in `log`, of the same format. Chains
    /// in flight there belonged to a device that is gone with its ledger. They are marked, as after [`Self::take_over`],
    /// and the ring continues behind them; then `base` is ignored. Also returns whether there were any.
    #[must_use]
    pub fn begin_logged(
        memory: RingMemory,
        ledger: Ledger,
        log: RingLog,
        base: u16,
        event_idx: bool,
    ) -> (Self, bool) {
        let mut log = match log {
            RingLog::Split(log) => log,
            RingLog::Packed(log) => return Self::begin_packed_logged(memory, ledger, log, base, event_idx),
        };
        let used = memory.used_index();
        let mut heads = log.recover(used);
        // A driver that restarted meanwhile has made fewer chains available than were taken.
        if usize::from(memory.available_index().wrapping_sub(used)) < heads.len() {
            log.begin(used);
            heads.clear();
        }
        let was_taken = !heads.is_empty();
        let mut ring = Self::begin(memory, ledger, if was_taken { used } else { base }, event_idx);
        heads.iter().for_each(|head| ring.set_mark(*head, 1));
        ring.take(heads.len() as u16); // at most the ring's entries
        ring.ledger.set_taken(ring.next_avail);
        (ring.log, ring.is_noted, ring.is_plain) = (Some(Box::new(log)), true, false);
        (ring, was_taken)
    }

    /// As `take_over`, for a ring that is also recorded in `log`.
    ///
    /// # Errors
    /// [`LedgerError`]; the ring is unchanged.
    pub fn take_over_logged(
        memory: RingMemory,
        ledger: Ledger,
        log: RingLog,
        event_idx: bool,
    ) -> Result<Self, LedgerError> {
        let mut log = match log {
            RingLog::Split(log) => log,
            RingLog::Packed(log) => return Self::take_over_packed_logged(memory, ledger, log, event_idx),
        };
        let seen = memory.used_index();
        log.recover(seen);
        let (base, used) = ledger.where_marked(seen)?;
        let mut ring = Self::at(memory, ledger, (base, used), event_idx);
        (ring.published, ring.log) = (seen, Some(Box::new(log)));
        (ring.is_noted, ring.is_plain) = (true, false);
        ring.ledger.set_taken(base);
        ring.publish();
        Ok(ring)
    }

    /// Takes over the ring of a dead device, from its `ledger`. Publishes chains that the device had completed. Chains
    /// that it had taken and not completed stay marked ([`Self::marked`]) until [`Self::settle`] completes them.
    ///
    /// # Errors
    /// [`LedgerError`]; the ring is unchanged.
    pub fn take_over(memory: RingMemory, ledger: Ledger, event_idx: bool) -> Result<Self, LedgerError> {
        if memory.format() == RingFormat::Packed {
            let place = ledger.where_packed_marked()?;
            return Ok(Self::take_over_packed(memory, ledger, place, event_idx, None));
        }
        let (base, used) = ledger.where_marked(memory.used_index())?;
        let mut ring = Self::at(memory, ledger, (base, used), event_idx);
        // Otherwise a successor of this device would count the next completed chains as not taken.
        ring.ledger.set_taken(base);
        ring.publish();
        Ok(ring)
    }

    /// As `take_over`, for a ring that uses its buffers in order: buffers that were not filled are pending again.
    ///
    /// # Errors
    /// [`LedgerError`]; the ring is unchanged.
    pub fn take_over_in_order(
        memory: RingMemory,
        ledger: Ledger,
        event_idx: bool,
    ) -> Result<Self, LedgerError> {
        if memory.format() == RingFormat::Packed {
            let place = ledger.where_packed_filled()?;
            return Ok(Self::take_over_packed(memory, ledger, place, event_idx, None));
        }
        let (base, used) = ledger.where_filled(memory.used_index())?;
        let mut ring = Self::at(memory, ledger, (base, used), event_idx);
        ring.publish();
        Ok(ring)
    }

    fn at(memory: RingMemory, ledger: Ledger, (base, next_used): (u16, u16), event_idx: bool) -> Self {
        let packed =
            (memory.format() == RingFormat::Packed).then(|| PackedState::boxed(memory.entries(), base));
        let has_used_event = event_idx && packed.is_none();
        Self {
            is_packed: packed.is_some(),
            is_noted: false,
            is_plain: packed.is_none(),
            packed,
            memory,
            ledger,
            next_avail: base,
            ahead_chains: 0,
            ahead_heads: Default::default(),
            ahead_descriptors: Default::default(),
            next_used,
            published: next_used,
            signalled: next_used,
            signalled_valid: false,
            signalled_available: base,
            signalled_wish: None,
            event_idx,
            has_used_event,
            kicks_armed: true,
            log: None,
            used_order: None,
        }
    }

    /// Entries of the ring.
    #[must_use]
    pub fn entries(&self) -> u16 {
        self.memory.entries()
    }

    /// The position at which another back end would continue, once every taken chain is completed. For a packed ring,
    /// one within two laps; see [`wire_position`](crate::wire_position).
    #[must_use]
    pub fn base(&self) -> u16 {
        if self.is_packed { self.memory.within_two_laps(self.next_avail) } else { self.next_avail }
    }

    /// The position after the last chain taken.
    #[inline]
    #[must_use]
    pub fn taken_position(&self) -> u16 {
        self.next_avail
    }

    /// Whether the ring is packed.
    #[inline]
    #[must_use]
    pub fn is_packed(&self) -> bool {
        self.is_packed
    }

    /// The driver's available index, read now. [`Self::pending`] checks it. A packed ring has none: the position behind the
    /// chains that were found, or one more if there is a further one. It differs from an earlier one if the driver has
    /// added a chain since.
    #[inline]
    #[must_use]
    pub fn available_index(&self) -> u16 {
        if self.is_packed { self.found_or_more() } else { self.memory.available_index() }
    }

    /// Number of heads available and not taken.
    ///
    /// # Errors
    /// [`RingError::IndexJump`]; of a packed ring, any fault of the next chain.
    #[inline]
    pub fn pending(&mut self) -> Result<u16, RingError> {
        self.pending_up_to(u16::MAX)
    }

    /// As [`Self::pending`], but a packed ring looks for no more than `wanted` heads.
    ///
    /// # Errors
    /// As [`Self::pending`].
    #[inline(always)] // the compiler would call it
    pub fn pending_up_to(&mut self, wanted: u16) -> Result<u16, RingError> {
        match self.is_packed {
            false => self.split_pending(),
            true => self.find_chains(wanted).ok_or_else(|| self.fault()),
        }
    }

    #[inline(always)]
    fn split_pending(&self) -> Result<u16, RingError> {
        let pending = self.memory.available_index().wrapping_sub(self.next_avail);
        if pending > self.entries() {
            Err(RingError::IndexJump(pending, self.entries()))
        } else {
            Ok(pending)
        }
    }

    /// Whether heads are available and not taken, or the driver's next one is faulty.
    #[inline]
    #[must_use]
    pub fn has_pending(&self) -> bool {
        self.available_index() != self.next_avail || self.has_fault()
    }

    /// Whether the driver has made every descriptor available, of which `pending` heads are all that it knows.
    #[must_use]
    pub fn has_every_descriptor(&self, pending: u16) -> bool {
        match self.is_packed {
            false => pending == self.entries(),
            true => self.is_lap_available(),
        }
    }

    /// The pending head at offset `ahead`, which [`Self::pending`] counted.
    ///
    /// # Errors
    /// [`RingError::DescriptorOutOfRange`]; of a packed ring, any fault of that chain.
    #[inline(always)] // the compiler would call it
    pub fn head(&self, ahead: u16) -> Result<u16, RingError> {
        match self.is_packed {
            false => self.head_in::<false>(ahead),
            true => self.head_in::<true>(ahead),
        }
    }

    /// As [`Self::head`], for code that is apart for rings that are packed or not.
    ///
    /// # Errors
    /// As [`Self::head`].
    #[inline(always)]
    pub fn head_in<const PACKED: bool>(&self, ahead: u16) -> Result<u16, RingError> {
        debug_assert_eq!(PACKED, self.is_packed);
        match PACKED {
            false => self.split_head(ahead),
            true => self.found_id(ahead).ok_or_else(|| self.fault()),
        }
    }

    #[inline(always)]
    fn split_head(&self, ahead: u16) -> Result<u16, RingError> {
        let head = self.memory.available_entry(self.next_avail.wrapping_add(ahead));
        if head < self.entries() {
            Ok(head)
        } else {
            Err(RingError::DescriptorOutOfRange(head, self.entries()))
        }
    }

    /// Reads the first pending heads, and prefetches their descriptors. Returns the number of valid ones, and the fault
    /// of the next one.
    #[inline(always)]
    pub fn read_heads(&self, heads: &mut [u16]) -> (usize, Option<RingError>) {
        if self.is_packed {
            return self.read_ids(heads);
        }
        for (ahead, place) in heads.iter_mut().enumerate() {
            match self.split_head(ahead as u16) {
                Ok(head) => *place = head,
                Err(error) => return (ahead, Some(error)),
            }
            self.memory.prefetch_descriptor(*place);
        }
        (heads.len(), None)
    }

    /// The next pending head and its descriptor; `None` if there is none, or a fault, which [`Self::pending`] and
    /// [`Self::head`] name. Reads up to [`AHEAD_CHAINS_MAX`] at a time: a driver that adds a chain for each one used writes to
    /// their cache lines again and again. It may not change an available one (virtio 1.2, 2.7.13).
    #[inline(always)]
    pub fn next_chain(&mut self) -> Option<(u16, Descriptor)> {
        if self.ahead_chains == 0 {
            self.read_ahead();
            if self.ahead_chains == 0 {
                return None;
            }
        }
        let place = usize::from(self.next_avail % AHEAD_CHAINS_MAX);
        Some((self.ahead_heads[place], self.ahead_descriptors[place]))
    }

    /// Reads the next chains, up to the first invalid head.
    // Not inlined, so that the caller keeps its registers.
    #[inline(never)]
    fn read_ahead(&mut self) {
        if self.is_packed {
            return self.read_packed_ahead();
        }
        let end = AHEAD_CHAINS_MAX - self.next_avail % AHEAD_CHAINS_MAX;
        let chains = self.split_pending().unwrap_or_default().min(end);
        let mut read = 0;
        while read < chains
            && let Ok(head) = self.split_head(read)
        {
            let place = usize::from(self.next_avail.wrapping_add(read) % AHEAD_CHAINS_MAX);
            (self.ahead_heads[place], self.ahead_descriptors[place]) = (head, self.memory.descriptor(head));
            read += 1;
        }
        self.ahead_chains = read;
    }

    /// Takes `count` pending heads, which the caller has read.
    #[inline]
    pub fn take(&mut self, count: u16) {
        self.ahead_chains = 0;
        if self.is_packed {
            return self.take_found(count);
        }
        self.next_avail = self.next_avail.wrapping_add(count);
    }

    /// Takes the head of [`Self::next_chain`].
    #[inline(always)]
    pub fn take_next(&mut self) {
        if self.is_packed {
            return self.take(1);
        }
        self.next_avail = self.next_avail.wrapping_add(1);
        self.ahead_chains -= 1;
    }

    /// As `take`, for the given heads, all of which are marked. They may be completed in any order. They are used in
    /// the order of completion or, after [`Self::keep_order`], in the order in which they were taken.
    #[inline(always)] // left to itself the compiler calls it
    pub fn take_marked(&mut self, heads: &[u16]) {
        if !self.is_plain {
            return self.take_marked_unusual(heads);
        }
        self.next_avail = self.next_avail.wrapping_add(heads.len() as u16); // at most the ring's entries
        self.ahead_chains = 0;
        self.ledger.set_taken(self.next_avail);
    }

    #[inline(never)]
    fn take_marked_unusual(&mut self, heads: &[u16]) {
        if self.is_noted {
            self.note_taking(heads);
        }
        self.take(heads.len() as u16); // at most the ring's entries
        self.ledger.set_taken(self.next_avail);
    }

    /// Reads the heads again. They go to the log only, which the driver's own front end reads.
    #[cold]
    fn log_taken(&mut self, count: u16) {
        for ahead in 0..count {
            let head = self.memory.available_entry(self.next_avail.wrapping_add(ahead));
            self.log.iter_mut().for_each(|log| log.take(head));
        }
    }

    /// Number of outputs still to be done for the chain at `head`; 0 if the driver owns it.
    #[inline(always)]
    #[must_use]
    pub fn mark(&self, head: u16) -> u16 {
        self.ledger.mark(head)
    }

    /// Sets the number of outputs still to be done for the chain at `head`, at least 1, before any is done. A successor
    /// reads it.
    #[inline(always)]
    pub fn set_mark(&mut self, head: u16, left: u16) {
        self.ledger.set_mark(head, left);
    }

    /// Marked heads, without those of completed chains that are held back.
    pub fn marked(&self) -> impl Iterator<Item = u16> + '_ {
        self.ledger.marked().filter(|head| self.ledger.mark(*head) != HELD_BACK)
    }

    /// Postpones chains that are marked with 1 and [can be](Self::can_be_postponed): this device or its successor takes
    /// them once more, in this order and before any other. No output of them was done, and none may be done before
    /// [`Self::resume`]. Removes and returns those that cannot be postponed, or for which there is no room.
    pub fn postpone(&mut self, heads: &mut Vec<u16>) -> Vec<u16> {
        let mut lost = Vec::new();
        self.ledger.forget_postponed();
        if self.is_packed {
            lost.extend(heads.extract_if(.., |head| !self.can_be_postponed(*head)));
            let room = self.packed.as_ref().map_or(0, |packed| packed.store_kept(heads, &self.ledger));
            lost.extend(heads.drain(room..));
        }
        lost.extend(heads.split_off(self.ledger.postpone(heads)));
        lost
    }

    /// Resumes the next `count` postponed chains: a successor will not take them again.
    pub fn resume(&mut self, count: u16) {
        self.ledger.resume(count);
    }

    /// Chains that were postponed and not resumed, in order.
    #[must_use]
    pub fn postponed(&self) -> Vec<u16> {
        self.ledger.postponed()
    }

    /// Counts one output of the marked chain at `head` as done. True if it was the last one, which completes the chain.
    #[inline]
    pub fn settle(&mut self, head: u16) -> bool {
        let mark = self.ledger.mark(head);
        debug_assert!(mark > 0 && mark != HELD_BACK, "a chain is settled once for each copy");
        let left = mark.saturating_sub(1);
        if left > 0 {
            self.ledger.set_mark(head, left);
            return false;
        }
        self.complete_marked(head);
        true
    }

    /// As [`Self::settle`], for the chains at `heads`, each of which is marked with 1. If the ring is used in order,
    /// these are the next ones in that order.
    #[inline(always)]
    pub fn complete_marked_all(&mut self, heads: impl Iterator<Item = u16>) {
        match self.is_packed {
            false => self.complete_marked_split(heads),
            true => self.complete_marked_packed(heads),
        }
    }

    // Not inlined, so that the loop has all registers.
    #[inline(never)]
    fn complete_marked_split(&mut self, heads: impl Iterator<Item = u16>) {
        let (used, marks) = (self.memory.used_entries(), self.ledger.marks());
        let mut position = self.next_used;
        for head in heads {
            debug_assert!(marks.get(head) == 1, "a chain is settled once");
            used.set(position, u32::from(head), 0);
            position = position.wrapping_add(1);
            order();
            marks.set(head, 0);
        }
        self.next_used = position;
        if self.used_order.is_some() {
            self.use_held_back();
        }
    }

    /// As [`Self::complete`], for several heads.
    #[inline(always)]
    pub fn complete_all(&mut self, filled: impl Iterator<Item = (u16, u32)>) {
        match self.is_packed {
            false => self.complete_all_split(filled),
            true => self.complete_all_packed(filled),
        }
    }

    #[inline(never)]
    fn complete_all_split(&mut self, filled: impl Iterator<Item = (u16, u32)>) {
        let (used, mut position) = (self.memory.used_entries(), self.next_used);
        for (head, written_bytes) in filled {
            used.set(position, u32::from(head), written_bytes);
            position = position.wrapping_add(1);
        }
        self.next_used = position;
    }

    /// Completes the marked chain at `head`, no matter how many outputs were left.
    #[inline]
    pub fn give_up(&mut self, head: u16) {
        self.complete_marked(head);
    }

    #[inline(always)]
    fn complete_marked(&mut self, head: u16) {
        if !self.is_plain {
            return self.complete_unusual(head);
        }
        self.complete_split(head, 0);
        order();
        self.ledger.set_mark(head, 0);
    }

    /// As [`Self::complete_marked`], for a ring that is not plain.
    #[inline(never)]
    fn complete_unusual(&mut self, head: u16) {
        match self.used_order {
            Some(_) => self.complete_in_order(head),
            None => self.use_marked(head),
        }
    }

    /// The order of stores ensures that a successor finds the head marked or its used entry written.
    #[inline(always)] // left to itself the compiler calls it
    fn use_marked(&mut self, head: u16) {
        match self.is_packed {
            false => self.complete_split(head, 0),
            true => self.use_packed(head, 0),
        }
        order();
        self.ledger.set_mark(head, 0);
    }

    /// Notes that the buffers of all used entries written so far are filled: a successor publishes them.
    #[inline]
    pub fn note_filled(&mut self) {
        self.ledger.set_filled(self.next_used);
    }

    /// Returns the `count` heads taken last to the pending ones.
    #[inline]
    pub fn put_back(&mut self, count: u16) {
        self.ahead_chains = 0;
        if self.is_packed {
            return self.put_back_found(count);
        }
        self.next_avail = self.next_avail.wrapping_sub(count);
    }

    /// The first descriptor of the chain at `head`, read now.
    #[inline]
    #[must_use]
    pub fn descriptor(&self, head: u16) -> Descriptor {
        match self.is_packed {
            false => self.descriptor_in::<false>(head),
            true => self.descriptor_in::<true>(head),
        }
    }

    /// As [`Self::descriptor`], for loops over a ring that is packed or not.
    #[inline(always)]
    #[must_use]
    pub fn descriptor_in<const PACKED: bool>(&self, head: u16) -> Descriptor {
        debug_assert_eq!(PACKED, self.is_packed);
        match PACKED {
            false => self.memory.descriptor(head),
            true => self.memory.packed_descriptor(self.ledger.first(head)),
        }
    }

    /// The start of the chain at `head`, read now. A chain of a packed ring that was postponed is as it was then.
    #[inline(always)]
    #[must_use]
    pub fn chain_start(&self, head: u16) -> ChainStart {
        match self.is_packed {
            false => ChainStart { descriptor: self.memory.descriptor(head), is_kept: false },
            true => self.packed_start(head),
        }
    }

    /// The descriptor to which another one of a chain leads, read now; `is_kept` as its start tells.
    #[inline]
    pub(crate) fn linked_descriptor<const PACKED: bool>(&self, index: u16, is_kept: bool) -> Descriptor {
        match &self.packed {
            Some(packed) if PACKED && is_kept => packed.kept_link(index),
            _ if PACKED => self.memory.packed_descriptor(index),
            _ => self.memory.descriptor(index),
        }
    }

    /// Prefetches the cache line of a descriptor.
    #[inline]
    pub fn prefetch_descriptor(&self, head: u16) {
        match self.is_packed {
            false => self.memory.prefetch_descriptor(head),
            true => self.memory.prefetch_descriptor(self.ledger.first(head)),
        }
    }

    /// Reads the next `count` used entries, so that a later write causes no page fault.
    pub fn touch_used(&self, count: u16) {
        if self.is_packed {
            _ = std::hint::black_box(self.memory.packed_word(self.next_used.wrapping_add(count)));
            return;
        }
        let ends = [self.next_used, self.next_used.wrapping_add(count)];
        let entries = ends.map(|position| self.memory.used_entry(position));
        std::hint::black_box((self.memory.used_index(), entries));
    }

    /// Writes the next used entry; the driver sees it at `publish`.
    #[inline]
    pub fn complete(&mut self, head: u16, written_bytes: u32) {
        match self.is_packed {
            false => self.complete_split(head, written_bytes),
            true => self.complete_packed(head, written_bytes),
        }
    }

    /// As [`Self::complete`], for the next chain of a ring whose buffers are filled in order: also takes it, and notes that
    /// it is filled.
    #[inline(always)]
    pub fn fill_next(&mut self, head: u16, written_bytes: u32) {
        if !self.is_plain {
            return self.fill_next_unusual(head, written_bytes);
        }
        self.next_avail = self.next_avail.wrapping_add(1);
        self.ahead_chains -= 1;
        self.complete_split(head, written_bytes);
        self.note_filled();
    }

    #[inline(never)]
    fn fill_next_unusual(&mut self, head: u16, written_bytes: u32) {
        if self.is_packed {
            return self.fill_packed(head, written_bytes);
        }
        self.take_next();
        self.complete(head, written_bytes);
        self.note_filled();
    }

    #[inline(always)]
    fn complete_split(&mut self, head: u16, written_bytes: u32) {
        self.memory.set_used_entry(self.next_used, u32::from(head), written_bytes);
        self.next_used = self.next_used.wrapping_add(1);
    }

    /// Publishes all used entries, by one store.
    #[inline]
    pub fn publish(&mut self) {
        self.publish_up_to(self.next_used);
    }

    /// As [`Self::publish`], but only entries before `position`: the others are not finished yet.
    #[inline]
    pub fn publish_up_to(&mut self, position: u16) {
        if !self.is_plain {
            return self.publish_unusual(position);
        }
        self.publish_plain(position);
    }

    /// As [`Self::publish_up_to`], for any ring.
    #[inline(never)]
    fn publish_unusual(&mut self, position: u16) {
        match (self.is_packed, &self.log) {
            (true, _) => self.publish_packed(position),
            (false, Some(_)) => self.publish_logged(position),
            (false, None) => self.publish_plain(position),
        }
    }

    #[inline]
    fn publish_plain(&mut self, position: u16) {
        self.published = position;
        self.ledger.set_filled(position);
        order();
        self.memory.set_used_index(position);
        order();
    }

    /// Reads the heads from the used entries in the driver's memory; see `log_taken`.
    #[cold]
    fn publish_logged(&mut self, position: u16) {
        let (mut at, chains) = (self.published, position.wrapping_sub(self.published));
        while at != position {
            let (head, _) = self.memory.used_entry(at);
            self.log.iter_mut().for_each(|log| log.link(head as u16));
            at = at.wrapping_add(1);
        }
        self.publish_plain(position);
        self.log.iter_mut().for_each(|log| log.published(position, chains));
    }

    /// Position after the last used entry written.
    #[inline]
    #[must_use]
    pub fn used_position(&self) -> u16 {
        self.next_used
    }

    /// Whether there are used entries that the driver cannot see yet.
    #[inline]
    #[must_use]
    pub fn has_unpublished(&self) -> bool {
        self.published != self.next_used
    }

    /// Position after the last published used entry.
    #[inline]
    #[must_use]
    pub fn published_position(&self) -> u16 {
        self.published
    }
}
