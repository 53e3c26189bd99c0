//! Shared words in mapped memory: a row of 64 bits each, and a single one of 32 bits.

use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::Mapping;
use crate::huge::HUGE_PAGE_BYTES;

const WORDS_OF_PAGE: usize = 4096 / size_of::<u64>();
const WORDS_OF_HUGE_PAGE: usize = HUGE_PAGE_BYTES / size_of::<u64>();

/// A row of 64-bit words of a mapping, pinned: for counters of the switch in memory that outlives its process.
#[derive(Debug)]
pub struct Words {
    start: NonNull<u64>,
    count: usize,
    pin: Option<Arc<Mapping>>,
}

// SAFETY: the pin keeps the memory; all access is by atomics, and no reference to it outlives the row.
unsafe impl Send for Words {}
// SAFETY: as above.
unsafe impl Sync for Words {}

impl Words {
    /// `count` words from byte `offset` of `mapping` on; `None` if they are outside or misaligned.
    #[must_use]
    pub fn new(mapping: &Arc<Mapping>, offset_bytes: usize, count: usize) -> Option<Self> {
        let end = count.checked_mul(8)?.checked_add(offset_bytes)?;
        let is_aligned = (mapping.start().as_ptr() as usize).checked_add(offset_bytes)?.is_multiple_of(8);
        if end > mapping.len() || !is_aligned {
            return None;
        }
        // SAFETY: the whole row lies inside the mapping.
        let start = unsafe { mapping.start().add(offset_bytes) }.cast();
        Some(Self { start, count, pin: Some(Arc::clone(mapping)) })
    }

    /// A row without words.
    #[must_use]
    pub fn none() -> Self {
        Self { start: NonNull::dangling(), count: 0, pin: None }
    }

    /// The words as atomics, for threads that share them. Other processes may write them at any time.
    #[inline]
    #[must_use]
    pub fn atomics(&self) -> &[AtomicU64] {
        // SAFETY: `new` checked that `count` words lie there, aligned; the pin keeps them as long as the reference lives. All access
        // is by atomics, which have the layout of the words.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr().cast::<AtomicU64>(), self.count) }
    }

    /// Writes the first words; those beyond the row are left out.
    pub fn write(&self, values: &[u64]) {
        self.write_at(0, values);
    }

    /// Writes words from number `index` on, in no particular order; those beyond the row are left out.
    pub fn write_at(&self, index: usize, values: &[u64]) {
        let places = index..self.count;
        places
            .zip(values)
            .for_each(|(place, value)| self.word(place, |word| word.store(*value, Ordering::Relaxed)));
    }

    /// Writes one word, after all earlier stores of this thread. Does nothing if there is no such word.
    pub fn publish(&self, index: usize, value: u64) {
        if index < self.count {
            self.word(index, |word| word.store(value, Ordering::Release));
        }
    }

    /// Reads one word; 0 if there is none. Later reads of the row return values that are at least as new.
    #[must_use]
    pub fn read(&self, index: usize) -> u64 {
        if index < self.count { self.word(index, |word| word.load(Ordering::Acquire)) } else { 0 }
    }

    /// Has the kernel allocate the pages of these records for writing, each of `each` words; values stay, whatever other threads
    /// do. In a mapping with huge pages, each huge page that begins in the range and ends in the row is made, if the
    /// kernel can. None is where the row begins, so that a row of which little is used takes little memory.
    pub fn touch(&self, records: Range<u32>, each: usize) {
        let (words, end) = (self.atomics(), records.end as usize * each);
        let first = self.start.as_ptr() as usize / size_of::<u64>();
        let huge_pages = self.pin.as_deref().and_then(Mapping::huge_pages);
        let mut at = records.start as usize * each;
        while let Some(word) = words.get(at).filter(|_| at < end) {
            touch_page(word);
            let is_whole =
                (first + at).is_multiple_of(WORDS_OF_HUGE_PAGE) && words.len() - at >= WORDS_OF_HUGE_PAGE;
            if let Some(pages) = huge_pages.filter(|_| is_whole && at > 0) {
                pages.collapse(NonNull::from(word).cast());
            }
            at = (first + at + 1).next_multiple_of(WORDS_OF_PAGE) - first;
        }
    }

    /// Calls `with` for a word of the row.
    fn word<R>(&self, index: usize, with: impl FnOnce(&AtomicU64) -> R) -> R {
        assert!(index < self.count, "the row ends before");
        // SAFETY: `new` checked that `count` words lie there, aligned, and the pin keeps them. All access is by atomics.
        with(unsafe { AtomicU64::from_ptr(self.start.as_ptr().add(index)) })
    }
}

/// Has the kernel allocate the page of `word` for writing. Its value stays, whatever other threads do.
fn touch_page(word: &AtomicU64) {
    let value = word.load(Ordering::Relaxed);
    // The processor writes whether the values are equal or not. `fetch_or(0)` would be compiled into a load.
    let _ = word.compare_exchange(value, value, Ordering::Relaxed, Ordering::Relaxed);
}

/// One 32-bit word of a mapping, pinned: for state of the switch in memory that outlives its process.
#[derive(Clone, Debug)]
pub struct Word {
    at: NonNull<u32>,
    _pin: Arc<Mapping>,
}

// SAFETY: the pin keeps the memory; all access is by an atomic, and no reference to it outlives a call.
unsafe impl Send for Word {}
// SAFETY: as above.
unsafe impl Sync for Word {}

impl Word {
    /// The word at byte `offset` of `mapping`; `None` if it is outside or misaligned.
    #[must_use]
    pub fn new(mapping: &Arc<Mapping>, offset_bytes: usize) -> Option<Self> {
        let end = offset_bytes.checked_add(4)?;
        let is_aligned = (mapping.start().as_ptr() as usize).checked_add(offset_bytes)?.is_multiple_of(4);
        if end > mapping.len() || !is_aligned {
            return None;
        }
        // SAFETY: offset + 4 lies inside the mapping.
        let at = unsafe { mapping.start().add(offset_bytes) }.cast();
        Some(Self { at, _pin: Arc::clone(mapping) })
    }

    fn atomic(&self) -> &AtomicU32 {
        // SAFETY: `new` checked range and alignment, and the pin keeps the memory. All accesses are atomic.
        unsafe { AtomicU32::from_ptr(self.at.as_ptr()) }
    }

    /// Reads the word; stores before the last [`Self::store`] are visible afterwards.
    #[must_use]
    pub fn load(&self) -> u32 {
        self.atomic().load(Ordering::SeqCst)
    }

    /// Writes the word, after all earlier stores of this thread.
    pub fn store(&self, value: u32) {
        self.atomic().store(value, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{MemoryMap, Region};

    #[test]
    fn words_stay_in_their_row() {
        let mapping = Arc::new(Mapping::anonymous(4096).unwrap());
        Words::new(&mapping, 8, 2).unwrap().write(&[1, 2, 3]);
        let map =
            MemoryMap::new(vec![Region { guest_addr: 0, user_addr: 0, mapping: mapping.clone() }]).unwrap();
        let mut bytes = [0; 32];
        map.read(map.translate(0, 32, &mut 0).unwrap(), 0, &mut bytes).unwrap();
        let words: Vec<u64> =
            bytes.chunks(8).map(|word| u64::from_ne_bytes(word.try_into().unwrap())).collect();
        assert_eq!(words, [0, 1, 2, 0]);
        let row = Words::new(&mapping, 8, 2).unwrap();
        row.write_at(1, &[7, 8]);
        row.publish(0, 6);
        row.publish(2, 9);
        row.write_at(usize::MAX, &[5]);
        assert_eq!([row.read(0), row.read(1), row.read(2), row.read(usize::MAX)], [6, 7, 0, 0]);
        row.atomics()[1].fetch_add(1, Ordering::Relaxed);
        assert_eq!((row.read(1), row.atomics().len()), (8, 2));
        assert!(Words::none().atomics().is_empty());
        for (offset, count) in [(4, 1), (4096, 1), (0, 513), (8, 512), (usize::MAX, 1), (0, usize::MAX)] {
            assert!(Words::new(&mapping, offset, count).is_none(), "{offset} {count}");
        }
    }

    #[test]
    fn words_are_touched_and_stay() {
        let mapping = Arc::new(Mapping::anonymous(3 * 4096).unwrap());
        let row = Words::new(&mapping, 8, 1024).unwrap();
        row.write_at(0, &[7; 1024]);
        for records in [0..0, 0..1, 100..512, 0..u32::MAX] {
            row.touch(records, 2);
        }
        assert!((0..1024).all(|at| row.read(at) == 7));
        Words::none().touch(0..9, 1);
    }

    #[test]
    fn a_word_lies_inside_and_aligned_or_is_none() {
        let mapping = Arc::new(Mapping::anonymous(4096).unwrap());
        Word::new(&mapping, 4092).unwrap().store(7);
        assert_eq!(Word::new(&mapping, 4092).unwrap().load(), 7);
        for offset in [1, 4093, 4096, usize::MAX - 3, usize::MAX] {
            assert!(Word::new(&mapping, offset).is_none(), "{offset}");
        }
    }
}
