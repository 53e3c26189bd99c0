//! An array of equal buffers in mapped memory.

use std::ptr::NonNull;
use std::sync::Arc;

use crate::{Mapping, MemoryMap, Segment, StaleSegment};

/// Buffers of equal size, one after the other, pinned: for guests in user space, which know where their buffers are.
#[derive(Debug)]
pub struct SlotArray {
    start: NonNull<u8>,
    stride_bytes: usize,
    slot_bytes: usize,
    count: usize,
    _pin: Arc<Mapping>,
}

// SAFETY: the pin keeps the memory; all access goes through raw pointers, and no reference is ever made.
unsafe impl Send for SlotArray {}

impl SlotArray {
    /// Makes `count` buffers, the first of which is `first`, at intervals of `stride_bytes`.
    ///
    /// # Errors
    /// [`StaleSegment`] if they overlap or are not all in `map`.
    pub fn new(map: &MemoryMap, first: Segment, stride_bytes: u32, count: u32) -> Result<Self, StaleSegment> {
        let all = count.checked_mul(stride_bytes).filter(|_| count > 0 && stride_bytes >= first.len);
        let (start, pin) = map.pin(Segment { len: all.ok_or(StaleSegment)?, ..first }, 1)?;
        let (stride_bytes, slot_bytes) = (stride_bytes as usize, first.len as usize);
        Ok(Self { start, stride_bytes, slot_bytes, count: count as usize, _pin: pin })
    }

    /// Length of each buffer in bytes.
    #[must_use]
    pub fn slot_bytes(&self) -> usize {
        self.slot_bytes
    }

    #[inline(always)]
    fn at(&self, slot: usize, skip: usize, len: usize) -> Result<NonNull<u8>, StaleSegment> {
        if slot >= self.count || len > self.slot_bytes || skip > self.slot_bytes - len {
            return Err(StaleSegment);
        }
        // SAFETY: skip..skip + len lies in the slot, and the slot in the range that `new` had checked and pinned.
        Ok(unsafe { self.start.add(slot * self.stride_bytes + skip) })
    }

    /// Writes bytes at offset `skip` of a buffer.
    ///
    /// # Errors
    /// [`StaleSegment`] if they do not fit.
    #[inline(always)]
    pub fn write(&self, slot: usize, skip: usize, bytes: &[u8]) -> Result<(), StaleSegment> {
        let target = self.at(slot, skip, bytes.len())?;
        // SAFETY: `at` checked the target; `bytes` is ours and not guest memory.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), target.as_ptr(), bytes.len()) };
        Ok(())
    }

    /// Reads bytes at offset `skip` of a buffer.
    ///
    /// # Errors
    /// [`StaleSegment`] if the buffer is too short.
    #[inline(always)]
    pub fn read(&self, slot: usize, skip: usize, out: &mut [u8]) -> Result<(), StaleSegment> {
        let source = self.at(slot, skip, out.len())?;
        // SAFETY: `at` checked the source; `out` is ours. A back end may write meanwhile: any mix of bytes is fine.
        unsafe { std::ptr::copy_nonoverlapping(source.as_ptr(), out.as_mut_ptr(), out.len()) };
        Ok(())
    }

    /// Prefetches the cache line at offset `skip` of a buffer; does nothing if the offset is outside.
    #[inline(always)]
    pub fn prefetch(&self, slot: usize, skip: usize) {
        #[cfg(target_arch = "x86_64")]
        if let Ok(pointer) = self.at(slot, skip, 1) {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            // SAFETY: a prefetch has no architectural effect, and the address is mapped.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(pointer.as_ptr().cast::<i8>()) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Region;

    #[test]
    fn bytes_stay_in_their_slot() {
        let mapping = Arc::new(Mapping::anonymous(8192).unwrap());
        let map = MemoryMap::new(vec![Region { guest_addr: 0, user_addr: 0, mapping }]).unwrap();
        let first = Segment { offset: 100, len: 50, region: 0 };
        let slots = SlotArray::new(&map, first, 64, 3).unwrap();
        slots.write(2, 40, &[7; 10]).unwrap();
        let mut back = [0; 12];
        map.read(Segment { offset: 100 + 2 * 64 + 39, len: 12, region: 0 }, 0, &mut back).unwrap();
        assert_eq!(back, [0, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 0]);
        let mut read = [0; 10];
        slots.read(2, 40, &mut read).unwrap();
        assert_eq!(read, [7; 10]);
        for (slot, skip, len) in [(3, 0, 1), (0, 41, 10), (0, 51, 0), (0, 0, 51), (0, usize::MAX, 2)] {
            assert_eq!(slots.write(slot, skip, &vec![0; len]), Err(StaleSegment), "{slot} {skip} {len}");
            assert_eq!(slots.read(slot, skip, &mut vec![0; len]), Err(StaleSegment), "{slot} {skip} {len}");
        }
        for (stride, count) in [(49, 3), (64, 0), (64, 1000), (u32::MAX, 2)] {
            assert!(SlotArray::new(&map, first, stride, count).is_err(), "{stride} {count}");
        }
    }
}
