//! What a successor has to know of a ring whose device was killed: in memory that outlives the process.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering, compiler_fence};

use lasthop_guestmem::Mapping;
use thiserror::Error;

use crate::RING_ENTRIES_MAX;
use crate::death;

/// Words in front of the marks: a line of cache.
const HEAD_WORDS: usize = 32;
/// Of the layout below; another one gets another number.
const TAG: u16 = 0x4c01;

const WORD_TAG: usize = 0;
const WORD_ENTRIES: usize = 1;
const WORD_LAG: usize = 2;
const WORD_TAKEN: usize = 3;
const WORD_FILLED: usize = 4;

/// Why a ring cannot be taken over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum LedgerError {
    /// No ring was begun there, or by a version that keeps it otherwise.
    #[error("nothing is known of the ring")]
    Blank,
    /// The ring has another size.
    #[error("what is known is of a ring of {0} entries, and this one has {1}")]
    OtherSize(u16, u16),
    /// What is kept and what the ring says do not fit together: one of them was overwritten.
    #[error("the ring's used index {used} does not fit to what is known of it")]
    Torn {
        /// The used index as the driver sees it.
        used: u16,
    },
}

/// The chains of one ring that its device has, and how far it is.
///
/// It is written with relaxed stores by the ring's device, and read by who takes the ring over when all threads of that
/// device are dead. A thread is killed between two instructions, so what its successor finds is what was done up to one of
/// them: what matters is the order of the stores in the program, which `order` keeps the compiler from changing.
///
/// ```text
///   byte 0   tag | entries | lag | taken | filled | 0 ...
///   byte 64  marks[entries]: by head, how much of the chain is still to be done; 0: the driver has it
///
///   take:      marks of the heads, then `taken`                                        marks >= taken - used - lag
///   complete:  used entry, then the head's mark is cleared                             marks <= taken - used - lag
///   publish:   used index, when all that was completed before is out of the marks      marks  = taken - used - lag
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

/// What keeps the memory.
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

impl Ledger {
    /// Bytes for a ring of any size: whole pages.
    pub const BYTES: usize = (2 * (HEAD_WORDS + RING_ENTRIES_MAX as usize)).next_multiple_of(4096);

    /// The ledger of a ring of `entries` from byte `offset` of `mapping` on, as it is; `None` if it has no room there.
    #[must_use]
    pub fn within(mapping: &Arc<Mapping>, offset_bytes: usize, entries: u16) -> Option<Self> {
        let bytes = 2 * (HEAD_WORDS + usize::from(entries));
        let end = offset_bytes.checked_add(bytes)?;
        let aligned = (mapping.start().as_ptr() as usize + offset_bytes).is_multiple_of(2);
        if !entries.is_power_of_two() || entries > RING_ENTRIES_MAX || end > mapping.len() || !aligned {
            return None;
        }
        // SAFETY: offset + bytes lies inside the mapping.
        let start = unsafe { mapping.start().add(offset_bytes) }.cast();
        Some(Self { start, entries, _pin: Pin::Mapping(Arc::clone(mapping)) })
    }

    /// A ledger that ends with the process, of a ring of `entries`: a power of two.
    #[must_use]
    pub fn private(entries: u16) -> Self {
        let words: Arc<[AtomicU16]> =
            (0..HEAD_WORDS + usize::from(entries)).map(|_| AtomicU16::new(0)).collect();
        let start = NonNull::from(&*words).cast();
        Self { start, entries, _pin: Pin::Heap(words) }
    }

    #[inline(always)]
    fn word(&self, index: usize) -> &AtomicU16 {
        debug_assert!(index < HEAD_WORDS + usize::from(self.entries));
        // SAFETY: the memory has 32 + entries aligned half-words, pinned. Everybody accesses them as atomics.
        unsafe { AtomicU16::from_ptr(self.start.as_ptr().add(index)) }
    }

    #[inline(always)]
    fn mark_word(&self, head: u16) -> &AtomicU16 {
        self.word(HEAD_WORDS + usize::from(head & (self.entries - 1)))
    }

    fn get(&self, index: usize) -> u16 {
        self.word(index).load(Ordering::Relaxed)
    }

    fn set(&self, index: usize, value: u16) {
        death::may_come();
        self.word(index).store(value, Ordering::Relaxed);
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
        order();
        self.set(WORD_TAG, TAG);
    }

    /// What is left to be done of the chain at `head`; 0: it is the driver's.
    #[inline(always)]
    pub(crate) fn mark(&self, head: u16) -> u16 {
        self.mark_word(head).load(Ordering::Relaxed)
    }

    #[inline(always)]
    pub(crate) fn set_mark(&self, head: u16, left: u16) {
        death::may_come();
        self.mark_word(head).store(left, Ordering::Relaxed);
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

    fn check(&self) -> Result<(), LedgerError> {
        if self.get(WORD_TAG) != TAG {
            return Err(LedgerError::Blank);
        }
        let entries = self.get(WORD_ENTRIES);
        if entries == self.entries { Ok(()) } else { Err(LedgerError::OtherSize(entries, self.entries)) }
    }

    /// Where a ring goes on whose chains are completed in any order, with `used` as its used index: the next position of
    /// its available ring, and of its used ring. Used entries between `used` and there are written.
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

    /// As `where_marked`, for a ring whose chains are completed in order and filled before: what is filled is used.
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
