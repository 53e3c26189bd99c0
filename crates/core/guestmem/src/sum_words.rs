//! Copies and sums eight bytes at a time.

/// Folds 32-bit halves once: they hold 16-bit words of two weights, and their sum becomes one of 16-bit words.
#[inline]
pub(crate) fn fold(sum: u64) -> u64 {
    (sum & 0xffff) + ((sum >> 16) & 0xffff) + ((sum >> 32) & 0xffff) + (sum >> 48)
}

/// Sums eight bytes at a time, then single bytes. Volatile, so that the compiler cannot read a guest's byte twice.
///
/// # Safety
/// As [`crate::sum::copy_piece_and_sum`]; without copies `target` may be anything.
pub(crate) unsafe fn pass_words<const COPIES: bool>(source: *const u8, target: *mut u8, len: usize) -> u64 {
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
