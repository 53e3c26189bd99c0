//! Checked ranges of one map, as addresses that are valid while the map is borrowed.

use std::marker::PhantomData;
use std::ptr::NonNull;

use crate::map::Range;
use crate::short::copy_short;
use crate::{MemoryMap, Rest, Segment, StaleSegment, counted};

/// Bytes of a cache line.
const LINE_BYTES: usize = 64;

/// A checked range of a map's memory. It borrows the map, so the range stays valid, and accesses are checked only
/// against its length.
#[derive(Clone, Copy, Debug)]
pub struct Place<'m> {
    start: NonNull<u8>,
    len: u32,
    map: PhantomData<&'m MemoryMap>,
}

/// A map for one loop of translations: it keeps the region of the last one, and tries it first.
#[derive(Debug)]
pub struct Window<'m> {
    map: &'m MemoryMap,
    range: Range,
    region: u16,
}

impl MemoryMap {
    /// Makes a window that begins with region `hint`, which the caller's last translation found.
    #[inline]
    #[must_use]
    pub fn window(&self, hint: u16) -> Window<'_> {
        let range = self.ranges.get(usize::from(hint)).copied().unwrap_or(Range::EMPTY);
        Window { map: self, range, region: hint }
    }

    /// The place of a segment of this map.
    ///
    /// # Errors
    /// [`StaleSegment`] if the segment is not of this map.
    #[inline]
    pub fn place(&self, segment: Segment) -> Result<Place<'_>, StaleSegment> {
        let start = self.host(segment, 0, segment.len as usize)?;
        Ok(Place { start, len: segment.len, map: PhantomData })
    }

    /// The last region that begins at or before `guest_addr`.
    #[cold]
    #[inline(never)]
    fn range_of(&self, guest_addr: u64) -> Option<(u16, Range)> {
        let region = self.ranges.partition_point(|range| range.guest_addr <= guest_addr).checked_sub(1)?;
        Some((region as u16, self.ranges[region])) // below REGIONS_MAX
    }
}

impl<'m> Window<'m> {
    /// The region that the last translation found.
    #[inline]
    #[must_use]
    pub fn hint(&self) -> u16 {
        self.region
    }

    /// Translates `len` bytes at a guest's address to a segment and a place; `None` unless all are in one region.
    #[inline(always)]
    pub fn locate(&mut self, guest_addr: u64, len: u32) -> Option<(Segment, Place<'m>)> {
        if let Some(found) = self.locate_near(guest_addr, len) {
            return Some(found);
        }
        (self.region, self.range) = self.map.range_of(guest_addr)?;
        self.locate_near(guest_addr, len)
    }

    /// As [`Self::locate`], but only in the region of the last translation: it makes no call, so that a loop has all
    /// registers.
    #[inline(always)]
    pub fn locate_near(&self, guest_addr: u64, len: u32) -> Option<(Segment, Place<'m>)> {
        let offset = guest_addr.wrapping_sub(self.range.guest_addr);
        if !self.range.holds(offset, len) {
            return None;
        }
        // SAFETY: offset lies inside the mapping, which the map holds.
        let start = unsafe { self.range.start.add(offset as usize) };
        Some((Segment { offset, len, region: self.region }, Place { start, len, map: PhantomData }))
    }
}

impl Place<'_> {
    /// Length in bytes.
    #[inline]
    #[must_use]
    pub fn len_bytes(&self) -> u32 {
        self.len
    }

    /// The first `len` bytes, if there are as many.
    #[inline]
    #[must_use]
    pub fn first(self, len: u32) -> Option<Self> {
        (len <= self.len).then_some(Self { len, ..self })
    }

    /// Prefetches the first two cache lines; never faults, never fails.
    #[inline]
    pub fn prefetch(self) {
        #[cfg(target_arch = "x86_64")]
        {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            let start = self.start.as_ptr().cast_const().cast::<i8>();
            // SAFETY: a prefetch has no architectural effect, at any address.
            unsafe {
                _mm_prefetch::<_MM_HINT_T0>(start);
                _mm_prefetch::<_MM_HINT_T0>(start.wrapping_add(LINE_BYTES));
            }
        }
    }

    /// Prefetches the lines of a header of `N` bytes and of the first bytes of its frame, to be filled; never faults, never
    /// fails. A line behind the frame is left to the guest.
    #[inline(always)]
    pub fn prefetch_write<const N: usize>(self) {
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        let second = u64::from(self.len.wrapping_sub(1).min((N + LINE_BYTES) as u32));
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        // The compiler's own hint becomes one for reading unless all processors it builds for know PREFETCHW. On 64-bit ones
        // without it, the instruction does nothing. SAFETY: a prefetch has no architectural effect, at any address.
        // The frame's lines come first: the header may be in one of them.
        unsafe {
            std::arch::asm!(
                "prefetchw [{0} + {1}]",
                "prefetchw [{0} + {2}]",
                "prefetcht0 [{0}]",
                in(reg) self.start.as_ptr(),
                const N,
                in(reg) second,
                options(nostack, preserves_flags, readonly),
            );
        }
    }

    /// Copies the first bytes out: to `header`, then to `image`. For frames in one piece.
    ///
    /// # Errors
    /// [`StaleSegment`] if the place is shorter.
    #[inline(always)]
    pub fn read_start<const N: usize>(
        self,
        header: &mut [u8; N],
        image: &mut [u8],
    ) -> Result<(), StaleSegment> {
        if N + image.len() > self.len as usize {
            return Err(StaleSegment);
        }
        counted::read(N + image.len());
        let source = self.start.as_ptr();
        // SAFETY: the place has N + image.len() bytes; both targets are ours. Of bytes read twice the second read counts.
        unsafe {
            std::ptr::copy_nonoverlapping(source, header.as_mut_ptr(), N);
            copy_short(source.add(N), image.as_mut_ptr(), image.len());
        }
        Ok(())
    }

    /// Whether a header of `N` bytes ends a cache line, so that no byte of its frame is there. DPDK's buffers begin like that.
    #[inline(always)]
    #[must_use]
    pub fn header_ends_line<const N: usize>(self) -> bool {
        (self.start.as_ptr() as usize + N).is_multiple_of(LINE_BYTES)
    }

    /// Fills the place with `header` and a frame that is wholly in `image`. If their length differs from the place's,
    /// writes nothing and returns false.
    ///
    /// If the header is to be compared, one that is there already is only read. This is worth it where the header has a cache line of
    /// its own: guest and switch both keep that line in their caches.
    #[inline(always)]
    pub fn fill_with<const N: usize>(self, header: &[u8; N], image: &[u8], compare: bool) -> bool {
        if N + image.len() != self.len as usize {
            return false;
        }
        counted::written(N + image.len());
        let out = self.start.as_ptr();
        // SAFETY: the place has N + image.len() bytes; header and image are ours.
        unsafe {
            put_header(header, out, compare);
            copy_short(image.as_ptr(), out.add(N), image.len());
        }
        true
    }

    /// Fills the place with a frame: `header`, `image`, and as much of the rest from its sender's memory as fits. A header in a
    /// line of its own is compared, as by [`Self::fill_with`].
    ///
    /// # Errors
    /// [`StaleSegment`] if header and image are longer than the place, or the sender's segment is not of its map or too
    /// short; then nothing is written.
    #[inline(always)]
    pub fn fill<const N: usize>(
        self,
        header: &[u8; N],
        image: &[u8],
        rest: Rest<'_>,
    ) -> Result<(), StaleSegment> {
        let rest_len = (self.len as usize).checked_sub(N + image.len()).ok_or(StaleSegment)?;
        let source = match rest_len {
            0 => std::ptr::null(),
            len => rest.start(len)?.as_ptr().cast_const(),
        };
        counted::written(N + image.len());
        counted::moved(rest_len);
        let out = self.start.as_ptr();
        // SAFETY: the place has N + image.len() + rest_len bytes; header and image are ours.
        unsafe {
            put_header(header, out, self.header_ends_line::<N>());
            copy_short(image.as_ptr(), out.add(N), image.len());
        }
        if rest_len > 0 {
            // SAFETY: `start` checked the source, and the place has room for it. They are of two guests, or of one, which may have them
            // overlap: `copy` allows that.
            unsafe { std::ptr::copy(source, out.add(N + image.len()), rest_len) };
        }
        Ok(())
    }
}

/// Writes a header; if it is to be compared, only if another one is there.
///
/// # Safety
/// `out` is readable and writable for `N` bytes.
#[inline(always)]
unsafe fn put_header<const N: usize>(header: &[u8; N], out: *mut u8, compare: bool) {
    let mut present = [0; N];
    if compare {
        // SAFETY: as the caller promised. A guest that writes meanwhile spoils its own header.
        unsafe { std::ptr::copy_nonoverlapping(out, present.as_mut_ptr(), N) };
        if present == *header {
            return;
        }
    }
    // SAFETY: as the caller promised.
    unsafe { std::ptr::copy_nonoverlapping(header.as_ptr(), out, N) };
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{Mapping, Region};

    /// Two regions with a gap between, and a third one adjacent to the second.
    fn memory() -> MemoryMap {
        let region = |guest_addr, len| {
            let mapping = Arc::new(Mapping::anonymous(len).unwrap());
            Region { guest_addr, user_addr: guest_addr, mapping }
        };
        MemoryMap::new(vec![region(0x1000, 4096), region(0x4000, 8192), region(0x6000, 4096)]).unwrap()
    }

    #[test]
    fn a_window_finds_what_a_translation_finds() {
        let map = memory();
        let edges: Vec<u64> = [0, 0x1000, 0x2000, 0x4000, 0x6000, 0x7000, u64::MAX]
            .iter()
            .flat_map(|edge| [edge.wrapping_sub(9), edge.wrapping_sub(1), *edge, edge.wrapping_add(1)])
            .collect();
        for hint in [0, 1, 2, 9] {
            for &addr in &edges {
                for len in [1, 8, 10, 4096, u32::MAX] {
                    let (mut window, mut last) = (map.window(hint), hint);
                    let located = window.locate(addr, len);
                    assert_eq!(
                        located.map(|(segment, _)| segment),
                        map.translate_whole(addr, len, &mut last)
                    );
                    if let Some((segment, place)) = located {
                        assert_eq!((place.len_bytes(), window.hint()), (len, segment.region));
                        assert_eq!(map.place(segment).map(|place| place.start), Ok(place.start));
                    }
                }
            }
        }
        assert!(MemoryMap::default().window(0).locate(0, 1).is_none());
        assert!(map.place(Segment { offset: 4090, len: 10, region: 0 }).is_err());
    }

    #[test]
    fn a_place_is_filled_and_read_within_its_length() {
        let (from, to) = (memory(), memory());
        let bytes: Vec<u8> = (0..200).collect();
        let sent = Segment { offset: 16, len: 200, region: 1 };
        from.write(sent, 0, &bytes).unwrap();
        let (mut header, mut image) = ([0; 12], [0; 128]);
        let place = from.place(sent).unwrap();
        place.read_start(&mut header, &mut image).unwrap();
        assert_eq!((&header[..], &image[..]), (&bytes[..12], &bytes[12..140]));
        assert!(place.first(139).unwrap().read_start(&mut header, &mut image).is_err(), "it is shorter");
        assert!(place.first(201).is_none());

        let rest = Rest { map: &from, segment: sent, skip: 140 };
        let (segment, target) = to.window(0).locate(0x6100, 300).unwrap();
        assert!(target.fill(&header, &image, rest).is_err(), "the sender has only 60 bytes more");
        assert!(target.first(139).unwrap().fill(&header, &image, rest).is_err(), "the image has no room");
        let mut back = [0; 300];
        to.read(segment, 0, &mut back).unwrap();
        assert_eq!(back, [0; 300], "nothing was written");
        for len in [140, 141, 200] {
            target.first(len).unwrap().fill(&header, &image, rest).unwrap();
            to.read(segment, 0, &mut back).unwrap();
            let len = len as usize;
            assert_eq!(back[..len], bytes[..len]);
            assert!(back[len..].iter().all(|byte| *byte == 0), "{len}");
        }
    }

    /// The header's page is read-only meanwhile: a store there would end the test.
    #[test]
    #[cfg_attr(miri, ignore = "it protects a page")]
    fn a_header_in_a_line_of_its_own_is_written_if_it_differs() {
        const N: usize = 12;
        let map = memory();
        let (segment, place) = map.window(0).locate(0x5000 - N as u64, 76).unwrap();
        let page = place.start.as_ptr().wrapping_add(N).wrapping_sub(4096).cast();
        let protect = |protection| {
            // SAFETY: a whole page of the test's own mapping, which nothing writes to but the line below.
            assert_eq!(unsafe { libc::mprotect(page, 4096, protection) }, 0);
        };
        assert!(place.header_ends_line::<N>() && !place.header_ends_line::<10>());
        let filled = |header: &[u8; N], image: u8| {
            assert!(place.fill_with(header, &[image; 64], true));
            let mut back = [0; 76];
            map.read(segment, 0, &mut back).unwrap();
            assert_eq!((&back[..N], &back[N..]), (&header[..], &[image; 64][..]));
        };
        filled(&[1; N], 1);
        protect(libc::PROT_READ);
        filled(&[1; N], 2);
        protect(libc::PROT_READ | libc::PROT_WRITE);
        filled(&[2; N], 3);
    }
}
