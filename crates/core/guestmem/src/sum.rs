//! Copies and sums in one pass, or only sums.

#[cfg(all(target_arch = "x86_64", not(miri)))]
use crate::sum_vector as vector;

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

/// Folds 32-bit halves once: they hold 16-bit words of two weights, and their sum becomes one of 16-bit words.
#[inline]
pub(crate) fn fold(sum: u64) -> u64 {
    (sum & 0xffff) + ((sum >> 16) & 0xffff) + ((sum >> 32) & 0xffff) + (sum >> 48)
}

/// Sums eight bytes at a time, then single bytes. Volatile, so that the compiler cannot read a guest's byte twice.
///
/// # Safety
/// As [`pass`].
unsafe fn pass_words<const COPIES: bool>(source: *const u8, target: *mut u8, len: usize) -> u64 {
    let mut sum = 0_u64;
    let words = len / 8;
    for word in 0..words {
        // SAFETY: word * 8 + 8 <= len; Unaligned has no alignment.
        let bytes = unsafe { source.cast::<Unaligned>().add(word).read_volatile() };
        if COPIES {
            // SAFETY: as above, for the target.
            unsafe { target.cast::<Unaligned>().add(word).write(bytes) };
        }
        let value = u64::from_le(bytes.0);
        // Two 32-bit halves: only 2^32 such additions would overflow 64 bits.
        sum += (value & 0xffff_ffff) + (value >> 32);
    }
    let mut tail = [0_u8; 8];
    for (byte, at) in tail.iter_mut().zip(words * 8..len) {
        // SAFETY: at < len.
        *byte = unsafe { source.add(at).read_volatile() };
        if COPIES {
            // SAFETY: as above, for the target.
            unsafe { target.add(at).write(*byte) };
        }
    }
    let value = u64::from_le_bytes(tail);
    fold(sum + (value & 0xffff_ffff) + (value >> 32))
}

/// Eight bytes at any address.
#[derive(Clone, Copy)]
#[repr(C, packed)]
struct Unaligned(u64);

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
        unsafe { super::pass_words::<COPIES>(source, target, len) }
    }
}
