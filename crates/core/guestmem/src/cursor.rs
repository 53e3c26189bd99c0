//! Reads and writes through a list of segments.

use std::ptr::NonNull;

use crate::sum::copy_piece_and_sum;
use crate::{MemoryMap, Segment, StaleSegment, counted};

/// A position in a list of segments of one guest.
#[derive(Clone, Copy, Debug)]
pub struct Cursor<'a> {
    map: &'a MemoryMap,
    segments: &'a [Segment],
    skip: u32,
}

impl<'a> Cursor<'a> {
    /// Starts at the first byte of `segments`.
    #[must_use]
    pub fn new(map: &'a MemoryMap, segments: &'a [Segment]) -> Self {
        Self { map, segments, skip: 0 }
    }

    /// Advances by `len` bytes, at most to the end.
    #[inline]
    pub fn advance(&mut self, mut len: usize) {
        while let Some((first, rest)) = self.segments.split_first() {
            let room = (first.len - self.skip) as usize;
            if len < room {
                self.skip += len as u32;
                return;
            }
            len -= room;
            (self.segments, self.skip) = (rest, 0);
        }
    }

    /// Number of bytes up to the end of the list.
    #[must_use]
    pub fn remaining_bytes(&self) -> u64 {
        self.segments.iter().map(|segment| u64::from(segment.len)).sum::<u64>() - u64::from(self.skip)
    }

    /// The contiguous piece at the cursor, at most `len` bytes.
    #[inline]
    fn piece(&self, len: usize) -> Option<(Segment, usize)> {
        let segment = *self.segments.first()?;
        Some((segment, len.min((segment.len - self.skip) as usize)))
    }

    /// Copies out at most `out.len()` bytes, as far as the list reaches, and advances past them.
    ///
    /// # Errors
    /// [`StaleSegment`] if a segment is not of the map.
    // Always inlined: with several callers the compiler would emit calls, and lose the callers' constants.
    #[inline(always)]
    pub fn read(&mut self, out: &mut [u8]) -> Result<usize, StaleSegment> {
        if let Some(segment) = self.whole(out.len()) {
            self.map.read(segment, self.skip, out)?;
            self.step(segment, out.len());
            return Ok(out.len());
        }
        self.read_pieces(out)
    }

    fn read_pieces(&mut self, out: &mut [u8]) -> Result<usize, StaleSegment> {
        let mut done = 0;
        while done < out.len() {
            let Some((segment, len)) = self.piece(out.len() - done) else { break };
            self.map.read(segment, self.skip, &mut out[done..done + len])?;
            self.advance(len);
            done += len;
        }
        Ok(done)
    }

    /// Copies in as many bytes as there is room for, and advances past them.
    ///
    /// # Errors
    /// [`StaleSegment`] if a segment is not of the map.
    #[inline]
    pub fn write(&mut self, bytes: &[u8]) -> Result<usize, StaleSegment> {
        if let Some(segment) = self.whole(bytes.len()) {
            self.map.write(segment, self.skip, bytes)?;
            self.step(segment, bytes.len());
            return Ok(bytes.len());
        }
        self.write_pieces(bytes)
    }

    fn write_pieces(&mut self, bytes: &[u8]) -> Result<usize, StaleSegment> {
        let mut done = 0;
        while done < bytes.len() {
            let Some((segment, len)) = self.piece(bytes.len() - done) else { break };
            self.map.write(segment, self.skip, &bytes[done..done + len])?;
            self.advance(len);
            done += len;
        }
        Ok(done)
    }

    /// The segment at the cursor, if it has `len` more bytes: the usual case, which needs no loop.
    #[inline]
    fn whole(&self, len: usize) -> Option<Segment> {
        self.segments.first().copied().filter(|segment| (segment.len - self.skip) as usize >= len)
    }

    /// Advances by `len` bytes within `segment`, the first one.
    #[inline]
    fn step(&mut self, segment: Segment, len: usize) {
        self.skip += len as u32;
        if self.skip == segment.len {
            (self.segments, self.skip) = (&self.segments[1..], 0);
        }
    }

    #[inline]
    fn host(&self, segment: Segment, len: usize) -> Result<NonNull<u8>, StaleSegment> {
        self.map.host(segment, self.skip, len)
    }
}

/// Copies `len` bytes from one guest to another, or fewer if either list ends. Advances both cursors past them.
///
/// # Errors
/// [`StaleSegment`] if a segment is not of its map.
#[inline]
pub fn copy(from: &mut Cursor<'_>, to: &mut Cursor<'_>, len: usize) -> Result<usize, StaleSegment> {
    pieces(from, to, len, |source, target, len| {
        // SAFETY: `pieces` checked both ranges. Both are guest memory, so they may be the same memory: memmove, not memcpy.
        unsafe { std::ptr::copy(source.as_ptr(), target.as_ptr(), len) };
    })
}

/// As [`copy`]. Calls `sum` for each piece with the sum of its little-endian 16-bit words (the last one zero-padded)
/// and its length in bytes. The sum is of the copied bytes: each is read once.
///
/// # Errors
/// [`StaleSegment`] if a segment is not of its map.
#[inline]
pub fn copy_and_sum(
    from: &mut Cursor<'_>,
    to: &mut Cursor<'_>,
    len: usize,
    mut sum: impl FnMut(u64, usize),
) -> Result<usize, StaleSegment> {
    pieces(from, to, len, |source, target, len| {
        // SAFETY: `pieces` checked both ranges.
        sum(unsafe { copy_piece_and_sum(source.as_ptr(), target.as_ptr(), len) }, len);
    })
}

#[inline]
fn pieces(
    from: &mut Cursor<'_>,
    to: &mut Cursor<'_>,
    len: usize,
    mut each: impl FnMut(NonNull<u8>, NonNull<u8>, usize),
) -> Result<usize, StaleSegment> {
    let mut done = 0;
    while done < len {
        let Some((source, source_len)) = from.piece(len - done) else { break };
        let Some((target, piece_len)) = to.piece(source_len) else { break };
        each(from.host(source, piece_len)?, to.host(target, piece_len)?, piece_len);
        counted::moved(piece_len);
        from.advance(piece_len);
        to.advance(piece_len);
        done += piece_len;
    }
    Ok(done)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Mapping, Region};
    use std::sync::Arc;

    fn memory(len: usize) -> MemoryMap {
        let mapping = Arc::new(Mapping::anonymous(len).unwrap());
        MemoryMap::new(vec![Region { guest_addr: 0x1000, user_addr: 0x9000, mapping }]).unwrap()
    }

    fn segment(offset: u64, len: u32) -> Segment {
        Segment { offset, len, region: 0 }
    }

    fn word_sum(bytes: &[u8]) -> u16 {
        let mut sum: u64 = bytes
            .chunks(2)
            .map(|pair| u64::from(u16::from_le_bytes([pair[0], *pair.get(1).unwrap_or(&0)])))
            .sum();
        while sum > 0xffff {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        sum as u16
    }

    #[test]
    fn copies_between_differently_cut_lists() {
        let (from, to) = (memory(4096), memory(4096));
        let bytes: Vec<u8> = (0..1000_u32).map(|value| (value * 7) as u8).collect();
        from.write(segment(100, 1000), 0, &bytes).unwrap();
        let source = [segment(100, 333), segment(433, 1), segment(434, 666)];
        let target = [segment(0, 500), segment(2000, 499), segment(3000, 50)];
        let copied = copy(&mut Cursor::new(&from, &source), &mut Cursor::new(&to, &target), 1000).unwrap();
        assert_eq!(copied, 1000);
        let mut back = vec![0; 1000];
        assert_eq!(Cursor::new(&to, &target).read(&mut back).unwrap(), 1000);
        assert_eq!(back, bytes);
    }

    #[test]
    fn sums_the_bytes_as_copied() {
        let (from, to) = (memory(1 << 17), memory(1 << 17));
        for len in (0_usize..130).chain([1447, 1499, 1500, 65_535]) {
            let bytes: Vec<u8> = (0..len).map(|value| (value * 31 + 255) as u8).collect();
            from.write(segment(3, 1 << 16), 0, &bytes).unwrap();
            let mut sums = Vec::new();
            let (source, target) = ([segment(3, len as u32)], [segment(1, len as u32)]);
            copy_and_sum(
                &mut Cursor::new(&from, &source),
                &mut Cursor::new(&to, &target),
                len,
                |sum, len| sums.push((sum, len)),
            )
            .unwrap();
            let mut back = vec![0; len];
            Cursor::new(&to, &target).read(&mut back).unwrap();
            assert_eq!(back, bytes);
            if let Some((mut sum, summed)) = sums.pop() {
                while sum > 0xffff {
                    sum = (sum & 0xffff) + (sum >> 16);
                }
                assert_eq!((sum as u16, summed), (word_sum(&bytes), len), "{len} bytes");
            }
            assert!(sums.is_empty());
        }
    }

    #[test]
    fn a_segment_of_another_map_is_refused() {
        let (small, large) = (memory(4096), memory(1 << 20));
        let far = [segment(500_000, 100)];
        let near = [segment(0, 100)];
        let result = copy(&mut Cursor::new(&large, &near), &mut Cursor::new(&small, &far), 100);
        assert_eq!(result, Err(StaleSegment));
        assert_eq!(small.read(Segment { region: 7, ..near[0] }, 0, &mut [0; 4]), Err(StaleSegment));
    }
}
