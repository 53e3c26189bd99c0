//! The state of a ring that its successor needs after the device was killed, in memory that outlives the
//! process.

use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering, compiler_fence};

use lasthop_guestmem::Mapping;
use thiserror::Error;

use crate::RING_ENTRIES_MAX;
use crate::death;

/// Words in front of the marks: a line of cache.
const HEAD_WORDS: usize = 32;
/// Words of the smallest page.
const PAGE_WORDS: usize = 2048;
/// Of the layout below; another one gets another number.
const TAG: u16 = 0x4c02;
/// Of a ring whose chains are used in order: a program that knows of none takes it for blank.
const TAG_IN_ORDER: u16 = 0x4c03;
/// The mark of a chain of such a ring that is completed, and not used as long as one before it is not.
pub(crate) const HELD_BACK: u16 = u16::MAX;

const WORD_TAG: usize = 0;
const WORD_ENTRIES: usize = 1;
const WORD_LAG: usize = 2;
const WORD_TAKEN: usize = 3;
const WORD_FILLED: usize = 4;
const WORD_POSTPONED: usize = 5;
const WORD_POSTPONED_END: usize = 6;
const WORD_DETACHED: usize = 7;

/// Why a ring cannot be taken over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum LedgerError {
    /// No ring was begun there, or by a version that keeps it otherwise.
    #[error("nothing is known of the ring")]
    Blank,
    /// The ring has another size.
    #[error("what is known is of a ring of {0} entries, and this one has {1}")]
    OtherSize(u16, u16),
    /// The ledger and the ring do not fit together: one of them was overwritten.
    #[error("the ring's used index {used} does not fit to what is known of it")]
    Torn {
        /// The used index as the driver sees it.
        used: u16,
    },
}

/// The chains of one ring that its device has, and how far it is.
///
/// The ring's device writes it with relaxed stores. A successor reads it when all threads of that device are
/// dead. A thread is killed between two instructions, so the successor sees all stores up to one of them.
/// Only the order of stores in the program matters; `order` keeps the compiler from changing it.
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
/// So at any moment it is known how many used entries are written and not published: `taken - used - lag - marks`, if that is
/// more than none. A driver that writes its used index itself spoils its own ring at worst.
#[derive(Debug)]
pub struct Ledger {
    start: NonNull<u16>,
    entries: u16,
    _pin: Pin,
}

/// Keeps the memory mapped.
#[derive(Debug)]
#[expect(dead_code, reason = "held, not used")]
enum Pin {
    Mapping(Arc<Mapping>),
    Heap(Arc<[AtomicU16]>),
}

// SAFETY: the pin keeps the memory; all access is by atomics, and no reference into it outlives a call.
unsafe impl Send for Ledger {}
// SAFETY: as above.
unsafe impl Sync for Ledger {}

/// The marks of a ledger, by head.
#[derive(Clone, Copy)]
pub(crate) struct Marks<'a> {
    start: NonNull<u16>,
    /// Entries less one.
    last: u16,
    ledger: PhantomData<&'a Ledger>,
}

impl Marks<'_> {
    #[inline(always)]
    fn word(&self, head: u16) -> &AtomicU16 {
        // SAFETY: behind its first words the ledger, which is borrowed and pins its memory, has a word for each entry, of which there are
        // a power of two. All accesses are atomic.
        unsafe { AtomicU16::from_ptr(self.start.as_ptr().add(HEAD_WORDS + usize::from(head & self.last))) }
    }

    #[inline(always)]
    pub(crate) fn get(&self, head: u16) -> u16 {
        self.word(head).load(Ordering::Relaxed)
    }

    #[inline(always)]
    pub(crate) fn set(&self, head: u16, left: u16) {
        death::may_come();
        self.word(head).store(left, Ordering::Relaxed);
    }
}

impl Ledger {
    /// Bytes for a ring of any size: whole pages.
    pub const BYTES: usize = (2 * (HEAD_WORDS + RING_ENTRIES_MAX as usize)).next_multiple_of(4096);

    /// How many chains of a ring of `entries` can be postponed: all, or of the largest ring as many as there is room for.
    fn postponed_max(entries: u16) -> usize {
        usize::from(entries).min(Self::BYTES / 2 - HEAD_WORDS - usize::from(entries))
    }

    /// Words of the ledger of a ring of `entries`.
    fn words(entries: u16) -> usize {
        HEAD_WORDS + usize::from(entries) + Self::postponed_max(entries)
    }

    /// The ledger of a ring of `entries` from byte `offset` of `mapping` on, as it is; `None` if it has no room there.
    #[must_use]
    pub fn within(mapping: &Arc<Mapping>, offset_bytes: usize, entries: u16) -> Option<Self> {
        if !entries.is_power_of_two() || entries > RING_ENTRIES_MAX {
            return None;
        }
        let end = offset_bytes.checked_add(2 * Self::words(entries))?;
        let aligned = (mapping.start().as_ptr() as usize + offset_bytes).is_multiple_of(2);
        if end > mapping.len() || !aligned {
            return None;
        }
        // SAFETY: offset + bytes lies inside the mapping.
        let start = unsafe { mapping.start().add(offset_bytes) }.cast();
        Some(Self { start, entries, _pin: Pin::Mapping(Arc::clone(mapping)) })
    }

    /// A ledger that ends with the process, of a ring of `entries`: a power of two.
    #[must_use]
    pub fn private(entries: u16) -> Self {
        let words: Arc<[AtomicU16]> = (0..Self::words(entries)).map(|_| AtomicU16::new(0)).collect();
        let start = NonNull::from(&*words).cast();
        Self { start, entries, _pin: Pin::Heap(words) }
    }

    #[inline(always)]
    fn word(&self, index: usize) -> &AtomicU16 {
        debug_assert!(index < Self::words(self.entries));
        // SAFETY: the memory has as many aligned half-words, pinned. All accesses are atomic.
        unsafe { AtomicU16::from_ptr(self.start.as_ptr().add(index)) }
    }

    /// The heads' marks, as a value: a loop that writes them need not find them again after each store.
    #[inline(always)]
    pub(crate) fn marks(&self) -> Marks<'_> {
        Marks { start: self.start, last: self.entries - 1, ledger: PhantomData }
    }

    fn get(&self, index: usize) -> u16 {
        self.word(index).load(Ordering::Relaxed)
    }

    fn set(&self, index: usize, value: u16) {
        death::may_come();
        self.word(index).store(value, Ordering::Relaxed);
    }

    /// Maps its pages, so that a successor does not wait for page faults.
    pub fn touch(&self) {
        (0..Self::words(self.entries)).step_by(PAGE_WORDS).for_each(|index| _ = self.get(index));
    }

    /// A ring begins, or begins again, at position `base` of its available ring, with `used` as its used index.
    pub(crate) fn begin(&self, base: u16, used: u16) {
        self.set(WORD_TAG, 0);
        order();
        (0..self.entries).for_each(|head| self.set_mark(head, 0));
        self.set(WORD_ENTRIES, self.entries);
        self.set(WORD_LAG, base.wrapping_sub(used));
        self.set(WORD_TAKEN, base);
        self.set(WORD_FILLED, used);
        self.set(WORD_POSTPONED, 0);
        self.set(WORD_POSTPONED_END, 0);
        self.set(WORD_DETACHED, 0);
        order();
        self.set(WORD_TAG, TAG);
    }

    /// Its chains are used in order from now on.
    pub(crate) fn set_in_order(&self) {
        self.set(WORD_TAG, TAG_IN_ORDER);
    }

    /// How far positions of the available ring are ahead of those of the used ring.
    pub(crate) fn lag(&self) -> u16 {
        self.get(WORD_LAG)
    }

    /// Copies of packets that were taken out of the driver's memory, whose chains it may have back.
    pub(crate) fn detached(&self) -> u16 {
        self.get(WORD_DETACHED)
    }

    pub(crate) fn set_detached(&self, count: u16) {
        order();
        self.set(WORD_DETACHED, count);
        order();
    }

    /// Outputs still to be done for the chain at `head`; 0: the driver owns it.
    #[inline(always)]
    pub(crate) fn mark(&self, head: u16) -> u16 {
        self.marks().get(head)
    }

    #[inline(always)]
    pub(crate) fn set_mark(&self, head: u16, left: u16) {
        self.marks().set(head, left);
    }

    /// All chains before `position` of the available ring are marked.
    #[inline]
    pub(crate) fn set_taken(&self, position: u16) {
        order();
        self.set(WORD_TAKEN, position);
        order();
    }

    /// All used entries before `position` are written, and their buffers filled.
    #[inline]
    pub(crate) fn set_filled(&self, position: u16) {
        order();
        self.set(WORD_FILLED, position);
    }

    /// Heads that are marked.
    pub(crate) fn marked(&self) -> impl Iterator<Item = u16> + '_ {
        (0..self.entries).filter(|head| self.mark(*head) > 0)
    }

    /// Chains are to be taken once more, in this order and before any other, by this device or its successor: nothing was done of
    /// them, and nothing is until `resume`. How many of them: there may not be room for all.
    pub(crate) fn postpone(&self, heads: &[u16]) -> usize {
        let heads = &heads[..heads.len().min(Self::postponed_max(self.entries))];
        // A successor that takes over here finds none: they are lost then, as after any death.
        self.set(WORD_POSTPONED_END, 0);
        self.set(WORD_POSTPONED, 0);
        order();
        for (place, head) in heads.iter().enumerate() {
            self.set(self.postponed_word(place), *head);
        }
        order();
        self.set(WORD_POSTPONED_END, heads.len() as u16); // at most `entries`
        heads.len()
    }

    fn postponed_word(&self, place: usize) -> usize {
        HEAD_WORDS + usize::from(self.entries) + place
    }

    /// The next `count` of those that were postponed are not any more: something may be done of them from now on.
    pub(crate) fn resume(&self, count: u16) {
        order();
        self.set(WORD_POSTPONED, self.get(WORD_POSTPONED).wrapping_add(count));
        order();
    }

    /// Postponed heads, in their order. Invalid heads and duplicates are left out.
    pub(crate) fn postponed(&self) -> Vec<u16> {
        let end = usize::from(self.get(WORD_POSTPONED_END)).min(Self::postponed_max(self.entries));
        let mut is_listed = vec![false; usize::from(self.entries)];
        let places = usize::from(self.get(WORD_POSTPONED))..end;
        let heads = places.map(|place| self.get(self.postponed_word(place)));
        let known = heads.filter(|head| *head < self.entries && self.mark(*head) == 1);
        known.filter(|head| !std::mem::replace(&mut is_listed[usize::from(*head)], true)).collect()
    }

    fn check(&self) -> Result<(), LedgerError> {
        if ![TAG, TAG_IN_ORDER].contains(&self.get(WORD_TAG)) {
            return Err(LedgerError::Blank);
        }
        let entries = self.get(WORD_ENTRIES);
        if entries == self.entries { Ok(()) } else { Err(LedgerError::OtherSize(entries, self.entries)) }
    }

    /// Where a ring continues that completes chains in any order, with `used` as its used index: the next
    /// position of its available ring, and of its used ring. Used entries between `used` and there are
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

    /// As `where_marked`, for a ring that completes chains in order and fills them before: filled chains are
    /// used.
    pub(crate) fn where_filled(&self, used: u16) -> Result<(u16, u16), LedgerError> {
        self.check()?;
        let filled = self.get(WORD_FILLED);
        if filled.wrapping_sub(used) > self.entries {
            return Err(LedgerError::Torn { used });
        }
        Ok((filled.wrapping_add(self.get(WORD_LAG)), filled))
    }
}

/// Stores before it stay before those that follow, in the program's order.
#[inline(always)]
pub(crate) fn order() {
    compiler_fence(Ordering::SeqCst);
}

#[cfg(test)]
mod tests {
    use super::*;

    const ENTRIES: u16 = 8;

    fn ledger() -> Ledger {
        Ledger::private(ENTRIES)
    }

    #[test]
    fn taken_completed_and_published_chains_are_known_at_every_step() {
        let ledger = ledger();
        assert_eq!(ledger.where_marked(0), Err(LedgerError::Blank));
        // The ring wraps, and two heads were lost before it began.
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
        let ledger = Ledger::within(&mapping, 0, RING_ENTRIES_MAX).unwrap();
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
        assert!(Ledger::within(&mapping, 0, 1024).is_some());
        for (offset, entries) in [(0, 2048), (8192, 8), (1, 8), (usize::MAX, 8), (0, 0), (0, 7)] {
            assert!(Ledger::within(&mapping, offset, entries).is_none(), "{offset} {entries}");
        }
    }
}
