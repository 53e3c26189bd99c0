//! Copies and sums in one pass, or only sums.

#[cfg(all(target_arch = "x86_64", not(miri)))]
use crate::sum_vector as vector;
use crate::sum_words::pass_words;

/// Copies and sums. Returns the sum of the piece's little-endian 16-bit words, the last one zero-padded,
/// folded to less than 2^20. Each byte is read once: the sum is that of the copied bytes, even if the guest
/// writes meanwhile.
///
/// # Safety
/// `source` is readable and `target` writable for `len` bytes; neither needs alignment.
#[inline]
pub(crate) unsafe fn copy_piece_and_sum(source: *const u8, target: *mut u8, len: usize) -> u64 {
    // SAFETY: as the caller promised.
    unsafe { pass::<true>(source, target, len) }
}

/// As [`copy_piece_and_sum`], without the copy.
///
/// # Safety
/// `source` is readable for `len` bytes; it needs no alignment.
#[inline]
pub(crate) unsafe fn sum_piece(source: *const u8, len: usize) -> u64 {
    // SAFETY: as the caller promised; nothing is written.
    unsafe { pass::<false>(source, std::ptr::null_mut(), len) }
}

/// Sums, and copies if it `COPIES`.
///
/// # Safety
/// As [`copy_piece_and_sum`]; without copies `target` may be anything.
#[inline]
unsafe fn pass<const COPIES: bool>(source: *const u8, target: *mut u8, len: usize) -> u64 {
    let blocks = len / vector::BLOCK_BYTES * vector::BLOCK_BYTES;
    // SAFETY: `blocks` is at most `len`.
    let front = unsafe { vector::pass_blocks::<COPIES>(source, target, blocks) };
    let (rest, rest_of_target) = (source.wrapping_add(blocks), target.wrapping_add(blocks));
    // SAFETY: the rest lies behind it.
    let back = unsafe { pass_words::<COPIES>(rest, rest_of_target, len - blocks) };
    front + back
}

#[cfg(not(all(target_arch = "x86_64", not(miri))))]
mod vector {
    /// Eight words.
    pub(super) const BLOCK_BYTES: usize = 64;

    /// Passes whole blocks, without vectors.
    ///
    /// # Safety
    /// As for all of it.
    pub(super) unsafe fn pass_blocks<const COPIES: bool>(
        source: *const u8,
        target: *mut u8,
        len: usize,
    ) -> u64 {
        // SAFETY: as the caller promised.
        unsafe { crate::sum_words::pass_words::<COPIES>(source, target, len) }
    }
}
