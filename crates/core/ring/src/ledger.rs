//! The state of a ring that its successor needs after the device was killed. It is in memory that outlives the process.

use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicU64, Ordering, compiler_fence};

use lasthop_guestmem::Mapping;
use thiserror::Error;

use crate::death;
use crate::{PACKED_ENTRIES_MAX, RING_ENTRIES_MAX, RingFormat};

pub(crate) mod packed;

/// Words before the marks: a cache line.
const HEAD_WORDS: usize = 32;
/// Words of the smallest page.
const PAGE_WORDS: usize = 2048;
/// Identifies the layout below; another layout needs another number.
const TAG: u16 = 0x4c02;
/// Identifies a ring whose chains are used in order. A program without that feature treats the ledger as blank.
const TAG_IN_ORDER: u16 = 0x4c03;
/// The same for packed rings, whose layout [`packed`] has.
const TAG_PACKED: u16 = 0x4c04;
const TAG_PACKED_IN_ORDER: u16 = 0x4c05;
/// The mark of a completed chain that is not used yet, since an earlier one is not completed; for rings used in order.
pub(crate) const HELD_BACK: u16 = u16::MAX;

const WORD_TAG: usize = 0;
const WORD_ENTRIES: usize = 1;
const WORD_LAG: usize = 2;
const WORD_TAKEN: usize = 3;
const WORD_FILLED: usize = 4;
const WORD_POSTPONED: usize = 5;
const WORD_POSTPONED_END: usize = 6;
const WORD_DETACHED: usize = 7;
const WORD_PUBLISHED: usize = 8;

/// The reason why a ring cannot be taken over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum LedgerError {
    /// No ring was begun in this memory, or a version with another layout began it.
    #[error("nothing is known of the ring")]
    Blank,
    /// The ring has another size.
    #[error("the ledger is of a ring of {0} entries, and this one has {1}")]
    OtherSize(u16, u16),
    /// Ledger and ring contradict each other: one of them was overwritten.
    #[error("the ring's used index {used} contradicts its ledger")]
    Torn {
        /// The used index as the driver sees it.
        used: u16,
    },
}

/// Records which chains of a ring its device has, and the device's position.
///
/// The ring's device writes it with relaxed stores. A successor reads it after all threads of that device are dead. A
/// thread is killed between two instructions, so the successor sees all stores up to one of them. Only the program
/// order of the stores matters; `order` keeps the compiler from changing it.
///
/// ```text
///   byte 0   tag | entries | lag | taken | filled | first, end of those postponed | detached | 0 ...
///   byte 64  marks[entries]: by head, how much of the chain is still to be done; 0: the driver has it
///   then     postponed[first..end]: heads that are marked with 1 and of which nothing was done, in the order in which they were taken
///
///   take:      marks of the heads, then `taken`                                        marks >= taken - used - lag
///   complete:  used entry, then the head's mark is cleared                             marks <= taken - used - lag
///   publish:   used index, when all that was completed before is out of the marks      marks  = taken - used - lag
///   postpone:  the heads, then `end`                by a device that comes to rest: it does nothing of them any more
///   resume:    `first` goes past a head, then something may be done of its chain
///   hold back: used in order, and not the oldest: its mark is `HELD_BACK`      then completed when all before it are
///   detach:    `detached` counts one more copy, then the chain that it was of is settled; one less when it is delivered
/// ```
///
/// So the number of used entries that are written and not published is always known: `taken - used - lag - marks`, or
/// zero if that is negative. A driver that writes its used index itself damages only its own ring.
#[derive(Debug)]
pub struct Ledger {
    start: NonNull<u16>,
    entries: u16,
    format: RingFormat,
    _pin: Pin,
}

/// Areas behind the first words.
const AREA_MARKS: usize = 0;
const AREA_POSTPONED: usize = 1;

/// Words of a descriptor.
const DESCRIPTOR_WORDS: usize = 8;

/// Keeps the memory mapped.
#[derive(Debug)]
#[expect(dead_code, reason = "held, not used")]
enum Pin {
    Mapping(Arc<Mapping>),
    Heap(Arc<[AtomicU64]>),
}

// SAFETY: the pin keeps the memory; all access is by atomics, and no reference into it outlives a call.
unsafe impl Send for Ledger {}
// SAFETY: as above.
unsafe impl Sync for Ledger {}

/// An area of a ledger with a word for each entry, as a value: a loop that writes it need not reload its address after each
/// store.
#[derive(Clone, Copy)]
pub(crate) struct EntryWords<'a> {
    start: NonNull<u16>,
    /// Number of entries less one.
    last: u16,
    ledger: PhantomData<&'a Ledger>,
}

impl EntryWords<'_> {
    #[inline(always)]
    fn word(&self, entry: u16) -> &AtomicU16 {
        // SAFETY: the area, which is the ledger's, has a word for each entry, of which there are a power of two. The ledger is
        // borrowed and pins its memory. All accesses are atomic.
        unsafe { AtomicU16::from_ptr(self.start.as_ptr().add(usize::from(entry & self.last))) }
    }

    #[inline(always)]
    pub(crate) fn get(&self, entry: u16) -> u16 {
        self.word(entry).load(Ordering::Relaxed)
    }

    #[inline(always)]
    pub(crate) fn set(&self, entry: u16, value: u16) {
        death::may_come();
        self.word(entry).store(value, Ordering::Relaxed);
    }
}

impl Ledger {
    /// Bytes for a ring of any size: whole pages.
    pub const BYTES: usize = (2 * (HEAD_WORDS + RING_ENTRIES_MAX as usize)).next_multiple_of(4096);

    /// Number of chains of a ring that can be postponed: all, or for the largest ring as many as there is room for.
    fn postponed_max(format: RingFormat, entries: u16) -> usize {
        let entries = usize::from(entries);
        let room = match format {
            RingFormat::Split => Self::BYTES / 2 - HEAD_WORDS - entries,
            RingFormat::Packed => (Self::BYTES / 2 - Self::packed_words(entries)) / DESCRIPTOR_WORDS,
        };
        entries.min(room)
    }

    /// Words of the ledger of a ring.
    fn words(format: RingFormat, entries: u16) -> usize {
        let postponed = Self::postponed_max(format, entries);
        match format {
            RingFormat::Split => HEAD_WORDS + usize::from(entries) + postponed,
            RingFormat::Packed => Self::packed_words(usize::from(entries)) + DESCRIPTOR_WORDS * postponed,
        }
    }

    /// The ledger of a ring of `entries` at byte `offset` of `mapping`, unchanged; `None` if the mapping has no room
    /// there.
    #[must_use]
    pub fn within(
        format: RingFormat,
        mapping: &Arc<Mapping>,
        offset_bytes: usize,
        entries: u16,
    ) -> Option<Self> {
        if !entries.is_power_of_two() || entries > Self::entries_max(format) {
            return None;
        }
        let end = offset_bytes.checked_add(2 * Self::words(format, entries))?;
        let aligned = (mapping.start().as_ptr() as usize + offset_bytes).is_multiple_of(align_of::<u64>());
        if end > mapping.len() || !aligned {
            return None;
        }
        // SAFETY: offset + bytes lies inside the mapping.
        let start = unsafe { mapping.start().add(offset_bytes) }.cast();
        Some(Self { start, entries, format, _pin: Pin::Mapping(Arc::clone(mapping)) })
    }

    fn entries_max(format: RingFormat) -> u16 {
        match format {
            RingFormat::Split => RING_ENTRIES_MAX,
            RingFormat::Packed => PACKED_ENTRIES_MAX,
        }
    }

    /// A ledger in private memory, for a ring of `entries`, a power of two.
    #[must_use]
    pub fn private(format: RingFormat, entries: u16) -> Self {
        let words: Arc<[AtomicU64]> =
            (0..Self::words(format, entries).div_ceil(4)).map(|_| AtomicU64::new(0)).collect();
        let start = NonNull::from(&*words).cast();
        Self { start, entries, format, _pin: Pin::Heap(words) }
    }

    #[inline(always)]
    fn word(&self, index: usize) -> &AtomicU16 {
        debug_assert!(index < Self::words(self.format, self.entries));
        // SAFETY: the memory has as many aligned half-words, pinned. All accesses are atomic.
        unsafe { AtomicU16::from_ptr(self.start.as_ptr().add(index)) }
    }

    /// The marks as a value, so that a loop that writes them need not reload their address after each store.
    #[inline(always)]
    pub(crate) fn marks(&self) -> EntryWords<'_> {
        self.entry_words(AREA_MARKS)
    }

    /// Words before area number `area` of those with one word for each entry.
    #[inline(always)]
    fn area(&self, area: usize) -> usize {
        HEAD_WORDS + area * usize::from(self.entries)
    }

    #[inline(always)]
    fn entry_words(&self, area: usize) -> EntryWords<'_> {
        debug_assert!(self.area(area + 1) <= Self::words(self.format, self.entries));
        // SAFETY: as asserted, the area is the ledger's.
        let start = unsafe { self.start.add(self.area(area)) };
        EntryWords { start, last: self.entries - 1, ledger: PhantomData }
    }

    fn get(&self, index: usize) -> u16 {
        self.word(index).load(Ordering::Relaxed)
    }

    fn set(&self, index: usize, value: u16) {
        death::may_come();
        self.word(index).store(value, Ordering::Relaxed);
    }

    /// Maps its pages, so that a successor has no page faults.
    pub fn touch(&self) {
        (0..Self::words(self.format, self.entries)).step_by(PAGE_WORDS).for_each(|index| _ = self.get(index));
    }

    /// Begins or restarts a ring at position `base` of its available ring, with `used` as its used index.
    pub(crate) fn begin(&self, base: u16, used: u16) {
        self.set(WORD_TAG, 0);
        order();
        (0..self.entries).for_each(|head| self.set_mark(head, 0));
        if self.format == RingFormat::Packed {
            (0..self.entries).for_each(|id| self.set_span(id, 1));
        }
        self.set(WORD_ENTRIES, self.entries);
        self.set(WORD_LAG, base.wrapping_sub(used));
        self.set(WORD_TAKEN, base);
        self.set(WORD_FILLED, used);
        self.set(WORD_POSTPONED, 0);
        self.set(WORD_POSTPONED_END, 0);
        self.set(WORD_DETACHED, 0);
        self.set(WORD_PUBLISHED, used);
        order();
        self.set(WORD_TAG, self.tags()[0]);
    }

    /// The tags of a ring of this format: without and with order.
    fn tags(&self) -> [u16; 2] {
        match self.format {
            RingFormat::Split => [TAG, TAG_IN_ORDER],
            RingFormat::Packed => [TAG_PACKED, TAG_PACKED_IN_ORDER],
        }
    }

    /// Notes that the ring's chains are used in order from now on.
    pub(crate) fn set_in_order(&self) {
        self.set(WORD_TAG, self.tags()[1]);
    }

    /// How far positions of the available ring are ahead of those of the used ring.
    pub(crate) fn lag(&self) -> u16 {
        self.get(WORD_LAG)
    }

    /// Number of detached packet copies, whose chains the driver may have back.
    pub(crate) fn detached(&self) -> u16 {
        self.get(WORD_DETACHED)
    }

    pub(crate) fn set_detached(&self, count: u16) {
        order();
        self.set(WORD_DETACHED, count);
        order();
    }

    /// Number of outputs still to be done for the chain at `head`; 0 if the driver owns it.
    #[inline(always)]
    pub(crate) fn mark(&self, head: u16) -> u16 {
        self.marks().get(head)
    }

    #[inline(always)]
    pub(crate) fn set_mark(&self, head: u16, left: u16) {
        self.marks().set(head, left);
    }

    /// Notes that all chains before `position` of the available ring are marked.
    #[inline]
    pub(crate) fn set_taken(&self, position: u16) {
        order();
        self.set(WORD_TAKEN, position);
        order();
    }

    /// Notes that all used entries before `position` are written, and their buffers filled.
    #[inline]
    pub(crate) fn set_filled(&self, position: u16) {
        order();
        self.set(WORD_FILLED, position);
    }

    /// Heads that are marked.
    pub(crate) fn marked(&self) -> impl Iterator<Item = u16> + '_ {
        (0..self.entries).filter(|head| self.mark(*head) > 0)
    }

    /// Postpones chains: this device or its successor takes them once more, in this order and before any other. No
    /// output of them was done, and none may be done before `resume`. Returns how many, from the first on, were
    /// postponed: there may not be room for all.
    pub(crate) fn postpone(&self, heads: &[u16]) -> usize {
        let heads = &heads[..heads.len().min(Self::postponed_max(self.format, self.entries))];
        self.forget_postponed();
        for (place, head) in heads.iter().enumerate() {
            self.set(self.postponed_word(place), *head);
        }
        order();
        self.set(WORD_POSTPONED_END, heads.len() as u16); // at most `entries`
        heads.len()
    }

    /// Forgets all postponed chains. A successor that takes over at this point finds none: they are lost, as after any death.
    pub(crate) fn forget_postponed(&self) {
        self.set(WORD_POSTPONED_END, 0);
        self.set(WORD_POSTPONED, 0);
        order();
    }

    fn postponed_word(&self, place: usize) -> usize {
        self.area(AREA_POSTPONED) + place
    }

    /// Resumes the next `count` postponed chains: outputs of them may be done from now on.
    pub(crate) fn resume(&self, count: u16) {
        order();
        self.set(WORD_POSTPONED, self.get(WORD_POSTPONED).wrapping_add(count));
        order();
    }

    /// Postponed heads, in order. Invalid heads and duplicates are left out.
    pub(crate) fn postponed(&self) -> Vec<u16> {
        let end =
            usize::from(self.get(WORD_POSTPONED_END)).min(Self::postponed_max(self.format, self.entries));
        let mut is_listed = vec![false; usize::from(self.entries)];
        let places = usize::from(self.get(WORD_POSTPONED))..end;
        let heads = places.map(|place| self.get(self.postponed_word(place)));
        let known = heads.filter(|head| *head < self.entries && self.mark(*head) == 1);
        known.filter(|head| !std::mem::replace(&mut is_listed[usize::from(*head)], true)).collect()
    }

    fn check(&self) -> Result<(), LedgerError> {
        if !self.tags().contains(&self.get(WORD_TAG)) {
            return Err(LedgerError::Blank);
        }
        let entries = self.get(WORD_ENTRIES);
        if entries == self.entries { Ok(()) } else { Err(LedgerError::OtherSize(entries, self.entries)) }
    }

    /// The positions at which a ring continues that completes chains in any order: the next position of its available
    /// ring, and that of its used ring, given the used index `used`. Used entries from `used` to that position are
    /// written.
    pub(crate) fn where_marked(&self, used: u16) -> Result<(u16, u16), LedgerError> {
        self.check()?;
        let base = used.wrapping_add(self.get(WORD_LAG));
        let marks = self.marked().count() as u16; // at most `entries`
        let known = self.get(WORD_TAKEN).wrapping_sub(base);
        let outstanding = known.max(marks);
        if outstanding > self.entries {
            return Err(LedgerError::Torn { used });
        }
        let written = known.saturating_sub(marks);
        Ok((base.wrapping_add(outstanding), used.wrapping_add(written)))
    }

    /// As `where_marked`, for a ring that completes chains in order and fills them before it does: filled chains count
    /// as used.
    pub(crate) fn where_filled(&self, used: u16) -> Result<(u16, u16), LedgerError> {
        self.check()?;
        let filled = self.get(WORD_FILLED);
        if filled.wrapping_sub(used) > self.entries {
            return Err(LedgerError::Torn { used });
        }
        Ok((filled.wrapping_add(self.get(WORD_LAG)), filled))
    }
}

/// Keeps the compiler from moving stores across it.
#[inline(always)]
pub(crate) fn order() {
    compiler_fence(Ordering::SeqCst);
}

#[cfg(test)]
mod tests {
    use super::*;

    const ENTRIES: u16 = 8;

    fn ledger() -> Ledger {
        Ledger::private(RingFormat::Split, ENTRIES)
    }

    #[test]
    fn taken_completed_and_published_chains_are_known_at_every_step() {
        let ledger = ledger();
        assert_eq!(ledger.where_marked(0), Err(LedgerError::Blank));
        // The used index wraps, and available and used positions differ by two heads that were lost before.
        ledger.begin(1, 65_535);
        assert_eq!(ledger.where_marked(65_535), Ok((1, 65_535)));
        ledger.set_mark(3, 1);
        ledger.set_mark(5, 2);
        assert_eq!(ledger.where_marked(65_535), Ok((3, 65_535)), "marked, and not noted as taken");
        ledger.set_taken(3);
        assert_eq!(ledger.where_marked(65_535), Ok((3, 65_535)));
        ledger.set_mark(5, 0);
        assert_eq!(ledger.where_marked(65_535), Ok((3, 0)), "one used entry is written");
        assert_eq!(ledger.where_marked(0), Ok((3, 0)), "and published");
        assert_eq!(ledger.marked().collect::<Vec<_>>(), [3]);
    }

    #[test]
    fn filled_buffers_are_used() {
        let ledger = ledger();
        ledger.begin(0, 0);
        ledger.set_filled(5);
        assert_eq!(ledger.where_filled(2), Ok((5, 5)));
        assert_eq!(ledger.where_filled(6), Err(LedgerError::Torn { used: 6 }));
    }

    #[test]
    fn postponed_heads_are_known_in_their_order_until_they_are_resumed() {
        let ledger = ledger();
        ledger.begin(0, 0);
        [6, 2, 7].into_iter().for_each(|head| ledger.set_mark(head, 1));
        ledger.set_mark(4, 2);
        ledger.set_taken(4);
        assert_eq!(ledger.postponed(), []);
        assert_eq!(ledger.postpone(&[6, 2, 7]), 3);
        assert_eq!(ledger.postponed(), [6, 2, 7]);
        ledger.resume(1);
        assert_eq!(ledger.postponed(), [2, 7]);
        assert_eq!(ledger.postpone(&[7, 4, 9, 7, 2, 0]), 6);
        assert_eq!(ledger.postponed(), [7, 2], "heads, marked with 1, once each");
        assert_eq!(ledger.where_marked(0), Ok((4, 0)), "they are taken as before");
        ledger.begin(4, 0);
        assert_eq!(ledger.postponed(), []);
    }

    #[test]
    fn the_largest_ring_postpones_as_many_as_there_is_room_for() {
        let mapping = Arc::new(Mapping::anonymous(Ledger::BYTES).unwrap());
        let ledger = Ledger::within(RingFormat::Split, &mapping, 0, RING_ENTRIES_MAX).unwrap();
        ledger.begin(0, 0);
        let heads: Vec<u16> = (0..RING_ENTRIES_MAX).rev().collect();
        heads.iter().for_each(|head| ledger.set_mark(*head, 1));
        let count = ledger.postpone(&heads);
        assert_eq!((count, ledger.postponed()), (2016, heads[..2016].to_vec()));
        assert_eq!(ledger.marked().count(), heads.len(), "no mark is overwritten");
    }

    #[test]
    fn any_overwritten_ledger_is_an_answer_or_an_error() {
        for seed in 0..20_000_u32 {
            let ledger = ledger();
            let word = |index: u32| (seed.wrapping_add(index).wrapping_mul(2_654_435_761) >> 13) as u16;
            ledger.begin(word(0), word(1));
            let changed = (seed % 7) as usize;
            ledger.set(changed, word(2));
            (0..ENTRIES).for_each(|head| ledger.set_mark(head, word(u32::from(head)) % 3));
            assert!(ledger.postponed().len() <= usize::from(ENTRIES));
            let used = word(1).wrapping_add(word(3) % 12);
            for (base, next_used) in
                [ledger.where_marked(used), ledger.where_filled(used)].into_iter().flatten()
            {
                assert!(next_used.wrapping_sub(used) <= ENTRIES, "{seed}: {base} {next_used}");
            }
        }
    }

    #[test]
    fn a_ledger_lies_in_its_memory_or_nowhere() {
        let mapping = Arc::new(Mapping::anonymous(8192).unwrap());
        assert!(Ledger::within(RingFormat::Split, &mapping, 0, 1024).is_some());
        for (offset, entries) in [(0, 2048), (8192, 8), (4, 8), (usize::MAX, 8), (0, 0), (0, 7)] {
            assert!(
                Ledger::within(RingFormat::Split, &mapping, offset, entries).is_none(),
                "{offset} {entries}"
            );
        }
    }
}
