//! Copies and sums in one pass.

/// Copies and sums. Returns the sum of the piece's little-endian 16-bit words, the last one zero-padded,
/// folded to less than 2^20. Each byte is read once: the sum is that of the copied bytes, even if the guest
/// writes meanwhile.
///
/// # Safety
/// `source` is readable and `target` writable for `len` bytes; neither needs alignment.
#[inline]
pub(crate) unsafe fn copy_piece_and_sum(source: *const u8, target: *mut u8, len: usize) -> u64 {
    let blocks = len / vector::BLOCK_BYTES * vector::BLOCK_BYTES;
    // SAFETY: `blocks` is at most `len`.
    let front = unsafe { vector::copy_blocks_and_sum(source, target, blocks) };
    // SAFETY: the rest lies behind it.
    let back = unsafe { copy_words_and_sum(source.add(blocks), target.add(blocks), len - blocks) };
    front + back
}

/// Folds 32-bit halves once: they hold 16-bit words of two weights, and their sum becomes one of 16-bit words.
#[inline]
fn fold(sum: u64) -> u64 {
    (sum & 0xffff) + ((sum >> 16) & 0xffff) + ((sum >> 32) & 0xffff) + (sum >> 48)
}

/// Copies and sums eight bytes at a time, then single bytes. Volatile, so that the compiler cannot read a guest's byte
/// twice.
///
/// # Safety
/// As [`copy_piece_and_sum`].
unsafe fn copy_words_and_sum(source: *const u8, target: *mut u8, len: usize) -> u64 {
    let mut sum = 0_u64;
    let words = len / 8;
    for word in 0..words {
        // SAFETY: word * 8 + 8 <= len; Unaligned has no alignment.
        let bytes = unsafe { source.cast::<Unaligned>().add(word).read_volatile() };
        // SAFETY: as above, for the target.
        unsafe { target.cast::<Unaligned>().add(word).write(bytes) };
        let value = u64::from_le(bytes.0);
        // Two 32-bit halves: only 2^32 such additions would overflow 64 bits.
        sum += (value & 0xffff_ffff) + (value >> 32);
    }
    let mut tail = [0_u8; 8];
    for (byte, at) in tail.iter_mut().zip(words * 8..len) {
        // SAFETY: at < len.
        *byte = unsafe { source.add(at).read_volatile() };
        // SAFETY: as above, for the target.
        unsafe { target.add(at).write(*byte) };
    }
    let value = u64::from_le_bytes(tail);
    fold(sum + (value & 0xffff_ffff) + (value >> 32))
}

/// Eight bytes at any address.
#[derive(Clone, Copy)]
#[repr(C, packed)]
struct Unaligned(u64);

#[cfg(all(target_arch = "x86_64", not(miri)))]
mod vector {
    use std::arch::x86_64::{
        _mm_add_epi64, _mm_cvtsi128_si64, _mm_setzero_si128, _mm_srli_si128, _mm_unpackhi_epi32,
        _mm_unpacklo_epi32,
    };

    use super::fold;
    use crate::short::vector::{load, store};

    /// A cache line.
    pub(super) const BLOCK_BYTES: usize = 64;

    /// Copies and sums whole blocks.
    ///
    /// # Safety
    /// As for [`copy_piece_and_sum`]; `len` is a multiple of [`BLOCK_BYTES`].
    #[inline]
    pub(super) unsafe fn copy_blocks_and_sum(source: *const u8, target: *mut u8, len: usize) -> u64 {
        // SAFETY: SSE2 is part of x86-64; the addresses are as the caller promised.
        unsafe {
            let mut sums = [_mm_setzero_si128(); 4];
            let mut at = 0;
            while at < len {
                for vector in 0..4 {
                    let place = at + 16 * vector;
                    let (value, zero) = (load(source.add(place)), _mm_setzero_si128());
                    store(target.add(place), value);
                    // 32-bit words, widened to 64: only 2^32 additions would overflow.
                    let half = vector % 2; // two sums, whose additions do not depend on each other
                    sums[2 * half] = _mm_add_epi64(sums[2 * half], _mm_unpacklo_epi32(value, zero));
                    sums[2 * half + 1] = _mm_add_epi64(sums[2 * half + 1], _mm_unpackhi_epi32(value, zero));
                }
                at += BLOCK_BYTES;
            }
            let pair = _mm_add_epi64(_mm_add_epi64(sums[0], sums[1]), _mm_add_epi64(sums[2], sums[3]));
            let lanes = [_mm_cvtsi128_si64(pair), _mm_cvtsi128_si64(_mm_srli_si128::<8>(pair))];
            lanes.into_iter().map(|lane| fold(lane.cast_unsigned())).sum()
        }
    }
}

#[cfg(not(all(target_arch = "x86_64", not(miri))))]
mod vector {
    /// Eight words.
    pub(super) const BLOCK_BYTES: usize = 64;

    /// Copies and sums whole blocks, without vectors.
    ///
    /// # Safety
    /// As for all of it.
    pub(super) unsafe fn copy_blocks_and_sum(source: *const u8, target: *mut u8, len: usize) -> u64 {
        // SAFETY: as the caller promised.
        unsafe { super::copy_words_and_sum(source, target, len) }
    }
}
