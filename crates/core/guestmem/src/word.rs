//! One shared 32-bit word in mapped memory.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::Mapping;

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
