//! The memory table of a guest: translates addresses and copies between guests.

use std::ptr::NonNull;
use std::sync::Arc;

use thiserror::Error;

use crate::sum::sum_piece;
use crate::{Filled, Mapping, REGIONS_MAX, counted};

/// The smallest page, in bytes.
const PAGE_BYTES: usize = 4096;

/// A segment was used with a map that has no such range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the segment does not lie inside the guest's memory any more")]
pub struct StaleSegment;

/// A range of guest address space and the memory behind it.
#[derive(Clone, Debug)]
pub struct Region {
    /// First guest physical address.
    pub guest_addr: u64,
    /// First address in the front end's own address space (vhost-user ring addresses are given in it).
    pub user_addr: u64,
    /// The memory; its length is the region's.
    pub mapping: Arc<Mapping>,
}

impl Region {
    fn len(&self) -> u64 {
        self.mapping.len() as u64
    }
}

/// A checked range of one region, as an address translates to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Segment {
    /// Bytes from the start of the region.
    pub offset: u64,
    /// Bytes.
    pub len: u32,
    /// Index of the region in its map.
    pub region: u16,
}

/// The part of a frame that is copied directly from its sender's memory.
#[derive(Clone, Copy, Debug)]
pub struct Rest<'a> {
    /// The sender's memory.
    pub map: &'a MemoryMap,
    /// The memory of the whole frame, which begins with the sender's virtio-net header.
    pub segment: Segment,
    /// Bytes of the segment before the rest.
    pub skip: u32,
}

impl Rest<'_> {
    /// Address in the switch of the rest, which is `len` bytes long.
    #[inline]
    pub(crate) fn start(&self, len: usize) -> Result<NonNull<u8>, StaleSegment> {
        if self.skip as usize + len > self.segment.len as usize {
            return Err(StaleSegment);
        }
        self.map.host(self.segment, self.skip, len)
    }
}

/// The memory table of one guest. Immutable: a changed table is a new map, which keeps unchanged mappings.
#[derive(Clone, Debug, Default)]
pub struct MemoryMap {
    regions: Vec<Region>,
    /// The regions for translations and accesses: two fit a cache line.
    pub(crate) ranges: Vec<Range>,
}

/// A region in the form for the fast path.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Range {
    pub(crate) guest_addr: u64,
    len: u64,
    /// Valid as long as the region's mapping, which the same map holds.
    pub(crate) start: NonNull<u8>,
}

impl Range {
    /// An empty range, which holds no address.
    pub(crate) const EMPTY: Self = Self { guest_addr: 0, len: 0, start: NonNull::dangling() };

    /// Whether the range holds `len` bytes from `offset` on. The offset must be inside even if `len` is 0.
    #[inline(always)]
    pub(crate) fn holds(&self, offset: u64, len: u32) -> bool {
        offset < self.len && u64::from(len) <= self.len - offset
    }
}

// SAFETY: as for the mapping that it belongs to: access is by raw pointer, no reference is ever made.
unsafe impl Send for Range {}
// SAFETY: as above.
unsafe impl Sync for Range {}

impl MemoryMap {
    /// Makes a map of `regions`, in any order. The error names their fault.
    ///
    /// # Errors
    /// If there are more than [`REGIONS_MAX`] regions, or guest addresses overlap or wrap around.
    pub fn new(mut regions: Vec<Region>) -> Result<Self, String> {
        if regions.len() > REGIONS_MAX {
            return Err(format!("{} memory regions, at most {REGIONS_MAX} are supported", regions.len()));
        }
        regions.sort_by_key(|region| region.guest_addr);
        for region in &regions {
            if region.guest_addr.checked_add(region.len()).is_none() {
                return Err(format!("memory region at guest address {:#x} wraps around", region.guest_addr));
            }
        }
        for pair in regions.windows(2) {
            if pair[0].guest_addr + pair[0].len() > pair[1].guest_addr {
                return Err(format!("memory regions overlap at guest address {:#x}", pair[1].guest_addr));
            }
        }
        let range = |region: &Region| {
            let start = region.mapping.start();
            Range { guest_addr: region.guest_addr, len: region.len(), start }
        };
        let ranges = regions.iter().map(range).collect();
        Ok(Self { regions, ranges })
    }

    /// The regions, ordered by guest address.
    #[must_use]
    pub fn regions(&self) -> &[Region] {
        &self.regions
    }

    /// Number of bytes of all regions.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.regions.iter().map(Region::len).fold(0, u64::saturating_add)
    }

    /// Allocated bytes of the files behind the map, each file counted once. Makes a system call for each.
    #[must_use]
    pub fn measure(&self) -> Filled {
        self.mappings_by_file().map(Mapping::measure).fold(Filled::default(), |sum, filled| Filled {
            bytes: sum.bytes.saturating_add(filled.bytes),
            grown_bytes: sum.grown_bytes.saturating_add(filled.grown_bytes),
            shrunk_bytes: sum.shrunk_bytes.saturating_add(filled.shrunk_bytes),
        })
    }

    /// Allocated bytes of the files behind the map, each file counted once. Unlike [`Self::measure`] it does not affect
    /// the growth that the next call reports. Makes a system call for each.
    #[must_use]
    pub fn filled_bytes(&self) -> u64 {
        self.mappings_by_file().filter_map(Mapping::filled_bytes).fold(0, u64::saturating_add)
    }

    /// One mapping of each file.
    fn mappings_by_file(&self) -> impl Iterator<Item = &Mapping> {
        let mut seen = Vec::new();
        self.regions.iter().map(|region| &*region.mapping).filter(move |mapping| {
            let file = mapping.range().map(|range| (range.device, range.inode));
            let is_new = file.is_some() && !seen.contains(&file);
            seen.extend(is_new.then_some(file));
            is_new
        })
    }

    /// Bytes of the largest page of any region.
    #[must_use]
    pub fn page_bytes_max(&self) -> u64 {
        self.regions.iter().map(|region| region.mapping.page_bytes()).max().unwrap_or(PAGE_BYTES as u64)
    }

    /// Whether a file behind the map was truncated.
    #[must_use]
    pub fn is_dead(&self) -> bool {
        self.regions.iter().any(|region| region.mapping.is_dead())
    }

    /// The longest prefix of `len` bytes at `guest_addr` that is in one region. `hint` is the region of the caller's
    /// last translation, and is updated.
    #[inline]
    #[must_use]
    pub fn translate(&self, guest_addr: u64, len: u32, hint: &mut u16) -> Option<Segment> {
        if let Some(segment) = self.within(usize::from(*hint), guest_addr, len) {
            return Some(segment);
        }
        self.translate_anew(guest_addr, len, hint)
    }

    #[inline(never)]
    fn translate_anew(&self, guest_addr: u64, len: u32, hint: &mut u16) -> Option<Segment> {
        let region = self.regions.partition_point(|region| region.guest_addr <= guest_addr).checked_sub(1)?;
        *hint = region as u16; // below REGIONS_MAX
        self.within(region, guest_addr, len)
    }

    /// As [`Self::translate`], but `None` unless all of `len` bytes are in one region.
    #[inline(always)]
    #[must_use]
    pub fn translate_whole(&self, guest_addr: u64, len: u32, hint: &mut u16) -> Option<Segment> {
        if let Some(range) = self.ranges.get(usize::from(*hint)) {
            let offset = guest_addr.wrapping_sub(range.guest_addr);
            if range.holds(offset, len) {
                return Some(Segment { offset, len, region: *hint });
            }
        }
        self.translate_anew(guest_addr, len, hint).filter(|segment| segment.len == len)
    }

    #[inline]
    fn within(&self, index: usize, guest_addr: u64, len: u32) -> Option<Segment> {
        let range = self.ranges.get(index)?;
        let offset = guest_addr.checked_sub(range.guest_addr)?;
        let room = range.len.checked_sub(offset).filter(|room| *room > 0)?;
        Some(Segment { offset, len: u64::from(len).min(room) as u32, region: index as u16 })
    }

    /// Translates `len` bytes at an address of the front end's own address space, in which ring addresses are given.
    #[must_use]
    pub fn translate_user(&self, user_addr: u64, len: u32) -> Option<Segment> {
        self.regions.iter().enumerate().find_map(|(index, region)| {
            let offset = user_addr.checked_sub(region.user_addr)?;
            let end = offset.checked_add(u64::from(len))?;
            (end <= region.len()).then_some(Segment { offset, len, region: index as u16 })
        })
    }

    /// Address in the switch of `len` bytes at offset `skip` of `segment`, checked against this map.
    #[inline]
    pub(crate) fn host(&self, segment: Segment, skip: u32, len: usize) -> Result<NonNull<u8>, StaleSegment> {
        let range = self.ranges.get(usize::from(segment.region)).ok_or(StaleSegment)?;
        let at = segment.offset.checked_add(u64::from(skip)).ok_or(StaleSegment)?;
        let end = at.checked_add(len as u64).ok_or(StaleSegment)?;
        if end > range.len {
            return Err(StaleSegment);
        }
        // SAFETY: at..end lies inside the mapping, which the region holds.
        Ok(unsafe { range.start.add(at as usize) })
    }

    /// Address in the switch of a whole segment, aligned to `align` bytes, with the mapping that keeps it valid.
    ///
    /// # Errors
    /// [`StaleSegment`] if the segment is not of this map, or not aligned.
    pub fn pin(&self, segment: Segment, align: usize) -> Result<(NonNull<u8>, Arc<Mapping>), StaleSegment> {
        let pointer = self.host(segment, 0, segment.len as usize)?;
        if !(pointer.as_ptr() as usize).is_multiple_of(align) {
            return Err(StaleSegment);
        }
        Ok((pointer, Arc::clone(&self.regions[usize::from(segment.region)].mapping)))
    }

    /// Maps all pages of a segment, by reading a byte of each, so that later accesses cause no page fault.
    pub fn touch(&self, segment: Segment) {
        let last = segment.len.saturating_sub(1);
        for skip in (0..last).step_by(PAGE_BYTES).chain((segment.len > 0).then_some(last)) {
            // A segment that is not of this map has no pages here.
            let Ok(byte) = self.host(segment, skip, 1) else { return };
            // SAFETY: host checked that the byte is of this map. Volatile: the byte is not used, so an optimizer would
            // leave out any other read.
            unsafe { byte.as_ptr().read_volatile() };
        }
    }

    /// Copies bytes out, from offset `skip` of `segment` on.
    ///
    /// # Errors
    /// [`StaleSegment`] if the range is not of this map.
    #[inline]
    pub fn read(&self, segment: Segment, skip: u32, out: &mut [u8]) -> Result<(), StaleSegment> {
        let source = self.host(segment, skip, out.len())?;
        counted::read(out.len());
        // SAFETY: host checked the source; `out` is ours and not guest memory. The guest may write meanwhile: the bytes
        // that arrive are any mix, and are checked by the caller after this one read.
        unsafe { std::ptr::copy_nonoverlapping(source.as_ptr(), out.as_mut_ptr(), out.len()) };
        Ok(())
    }

    /// The sum of `len` bytes from offset `skip` of `segment` on, as of [`copy_and_sum`](crate::copy_and_sum). Each
    /// byte is read once.
    ///
    /// # Errors
    /// [`StaleSegment`] if the range is not of this map.
    #[inline]
    pub fn sum(&self, segment: Segment, skip: u32, len: usize) -> Result<u64, StaleSegment> {
        let source = self.host(segment, skip, len)?;
        counted::read(len);
        // SAFETY: host checked the source.
        Ok(unsafe { sum_piece(source.as_ptr(), len) })
    }

    /// Copies bytes in, from offset `skip` of `segment` on.
    ///
    /// # Errors
    /// [`StaleSegment`] if the range is not of this map.
    #[inline]
    pub fn write(&self, segment: Segment, skip: u32, bytes: &[u8]) -> Result<(), StaleSegment> {
        let target = self.host(segment, skip, bytes.len())?;
        counted::written(bytes.len());
        // SAFETY: host checked the target; `bytes` is ours and not guest memory.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), target.as_ptr(), bytes.len()) };
        Ok(())
    }

    /// Start address of a segment of this map, for prefetching only: for a segment of another map it is meaningless.
    #[inline]
    #[cfg_attr(not(target_arch = "x86_64"), expect(dead_code))]
    fn hint_address(&self, segment: Segment) -> Option<*const u8> {
        let range = self.ranges.get(usize::from(segment.region))?;
        Some(range.start.as_ptr().cast_const().wrapping_add(segment.offset as usize))
    }

    /// Prefetches the first one or two cache lines of a segment; never faults, never fails.
    #[inline]
    pub fn prefetch_start(&self, segment: Segment) {
        #[cfg(target_arch = "x86_64")]
        if let Some(pointer) = self.hint_address(segment) {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            let second = (segment.len as usize).min(64);
            // SAFETY: a prefetch has no architectural effect, at any address.
            unsafe {
                _mm_prefetch::<_MM_HINT_T0>(pointer.cast::<i8>());
                _mm_prefetch::<_MM_HINT_T0>(pointer.wrapping_add(second).cast::<i8>());
            }
        }
    }

    /// Prefetches the cache line at offset `skip` of `segment`; never faults, never fails.
    #[inline]
    pub fn prefetch(&self, segment: Segment, skip: u32) {
        #[cfg(target_arch = "x86_64")]
        if let Ok(pointer) = self.host(segment, skip, 1) {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            // SAFETY: a prefetch has no architectural effect, and the address is mapped.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(pointer.as_ptr().cast::<i8>()) };
        }
    }
}
