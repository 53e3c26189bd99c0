//! Copies and sums by vectors: 32 bytes at a time where the processor has AVX2, else 16.

use std::arch::asm;
use std::arch::x86_64::{
    __m128i, __m256i, _mm_add_epi64, _mm_and_si128, _mm_cvtsi128_si64, _mm_set1_epi64x, _mm_setzero_si128,
    _mm_srli_epi64, _mm_srli_si128, _mm256_add_epi64, _mm256_and_si256, _mm256_castsi256_si128,
    _mm256_extracti128_si256, _mm256_set1_epi64x, _mm256_setzero_si256, _mm256_srli_epi64,
};

use crate::short::vector::{load, store};
use crate::sum_words::fold;

/// A cache line.
pub(crate) const BLOCK_BYTES: usize = 64;
/// From this length on AVX2 pays for a call that is not inlined.
const WIDE_BYTES_MIN: usize = 256;
/// The lower half of a 64-bit word. Halves are summed in 64 bits: only 2^32 additions would overflow.
const LOWER: i64 = 0xffff_ffff;

/// Sums whole blocks, and copies them if it `COPIES`.
///
/// # Safety
/// `source` is readable for `len` bytes, a multiple of [`BLOCK_BYTES`]; `target` is writable if it `COPIES`. Neither
/// needs alignment.
#[inline]
pub(crate) unsafe fn pass_blocks<const COPIES: bool>(source: *const u8, target: *mut u8, len: usize) -> u64 {
    if len >= WIDE_BYTES_MIN && is_x86_feature_detected!("avx2") {
        // SAFETY: as the caller promised; the processor has AVX2.
        return unsafe { pass_wide::<COPIES>(source, target, len) };
    }
    // SAFETY: as the caller promised.
    unsafe { pass_narrow::<COPIES>(source, target, len) }
}

/// # Safety
/// As [`pass_blocks`].
#[inline]
unsafe fn pass_narrow<const COPIES: bool>(source: *const u8, target: *mut u8, len: usize) -> u64 {
    // SAFETY: SSE2 is part of x86-64; the addresses are as the caller promised.
    unsafe {
        let lower = _mm_set1_epi64x(LOWER);
        // Two sums, whose additions do not depend on each other.
        let mut sums = [_mm_setzero_si128(); 2];
        for at in (0..len).step_by(16) {
            let value = load(source.add(at));
            if COPIES {
                store(target.add(at), value);
            }
            sums[0] = _mm_add_epi64(sums[0], _mm_and_si128(value, lower));
            sums[1] = _mm_add_epi64(sums[1], _mm_srli_epi64::<32>(value));
        }
        fold_lanes(_mm_add_epi64(sums[0], sums[1]))
    }
}

/// # Safety
/// As [`pass_blocks`], and the processor has AVX2.
#[target_feature(enable = "avx2")]
unsafe fn pass_wide<const COPIES: bool>(source: *const u8, target: *mut u8, len: usize) -> u64 {
    let lower = _mm256_set1_epi64x(LOWER);
    let mut sums = [_mm256_setzero_si256(); 4];
    let mut at = 0;
    while at < len {
        for half in 0..2 {
            let place = at + 32 * half;
            // SAFETY: place + 32 <= len, and the caller promised the rest.
            let value = unsafe { load_wide(source.add(place)) };
            if COPIES {
                // SAFETY: as above, for the target.
                unsafe { store_wide(target.add(place), value) };
            }
            sums[2 * half] = _mm256_add_epi64(sums[2 * half], _mm256_and_si256(value, lower));
            sums[2 * half + 1] = _mm256_add_epi64(sums[2 * half + 1], _mm256_srli_epi64::<32>(value));
        }
        at += BLOCK_BYTES;
    }
    let pairs = [_mm256_add_epi64(sums[0], sums[1]), _mm256_add_epi64(sums[2], sums[3])];
    let all = _mm256_add_epi64(pairs[0], pairs[1]);
    fold_lanes(_mm_add_epi64(_mm256_castsi256_si128(all), _mm256_extracti128_si256::<1>(all)))
}

#[inline(always)]
fn fold_lanes(pair: __m128i) -> u64 {
    // SAFETY: SSE2 is part of x86-64.
    let lanes = unsafe { [_mm_cvtsi128_si64(pair), _mm_cvtsi128_si64(_mm_srli_si128::<8>(pair))] };
    lanes.into_iter().map(|lane| fold(lane.cast_unsigned())).sum()
}

/// Reads 32 bytes, once: see [`load`].
///
/// # Safety
/// `source` is readable for 32 bytes; it needs no alignment.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn load_wide(source: *const u8) -> __m256i {
    let value;
    // SAFETY: as the caller promised.
    unsafe {
        asm!("vmovdqu {}, [{}]", out(ymm_reg) value, in(reg) source, options(nostack, preserves_flags, readonly));
    }
    value
}

/// Writes 32 bytes.
///
/// # Safety
/// `target` is writable for 32 bytes; it needs no alignment.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn store_wide(target: *mut u8, value: __m256i) {
    // SAFETY: as the caller promised.
    unsafe { asm!("vmovdqu [{}], {}", in(reg) target, in(ymm_reg) value, options(nostack, preserves_flags)) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wide_and_narrow_vectors_copy_and_sum_alike() {
        let bytes: Vec<u8> = (0..=8 * BLOCK_BYTES).map(|at| (at * 167 + 0xf0) as u8).collect();
        for (len, skip) in (0..=bytes.len() - 1).step_by(BLOCK_BYTES).flat_map(|len| [(len, 0), (len, 1)]) {
            let source = bytes[skip..].as_ptr();
            let (mut narrow, mut wide) = (vec![0; len], vec![0; len]);
            // SAFETY: all have `len` bytes, a multiple of a block.
            let sum = unsafe { pass_narrow::<true>(source, narrow.as_mut_ptr(), len) };
            // SAFETY: as above; nothing is written.
            assert_eq!(unsafe { pass_narrow::<false>(source, std::ptr::null_mut(), len) }, sum);
            assert_eq!(narrow, bytes[skip..skip + len]);
            if is_x86_feature_detected!("avx2") {
                // SAFETY: as above, and the processor has AVX2.
                assert_eq!(unsafe { pass_wide::<true>(source, wide.as_mut_ptr(), len) }, sum, "{len}");
                // SAFETY: as above; nothing is written.
                assert_eq!(unsafe { pass_wide::<false>(source, std::ptr::null_mut(), len) }, sum);
                assert_eq!(wide, narrow);
            }
        }
    }
}
