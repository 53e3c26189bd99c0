//! Copies a few cache lines inline, sixteen bytes at a time.

#[cfg(all(target_arch = "x86_64", not(miri)))]
pub(crate) mod vector {
    use std::arch::asm;
    use std::arch::x86_64::__m128i;

    /// Reads sixteen bytes, once. In assembly: a volatile read at any address goes through the stack, and the compiler
    /// may split any other read in two, or recognize a copy loop and call memcpy.
    ///
    /// # Safety
    /// `source` is readable for 16 bytes; it needs no alignment.
    #[inline(always)]
    pub(crate) unsafe fn load(source: *const u8) -> __m128i {
        let value;
        // SAFETY: as the caller promised.
        unsafe {
            asm!("movdqu {}, [{}]", out(xmm_reg) value, in(reg) source, options(nostack, preserves_flags, readonly));
        }
        value
    }

    /// Copies the first and the last 32 bytes of `len`, in one block of assembly, so that the addresses need no
    /// computation of their own.
    ///
    /// # Safety
    /// `len` is 32 at least. `source` is readable and `target` writable for `len` bytes; neither needs alignment; they do not overlap.
    #[inline(always)]
    pub(crate) unsafe fn copy_ends(source: *const u8, target: *mut u8, len: usize) {
        // SAFETY: as the caller promised.
        unsafe {
            asm!(
                "movdqu {first}, [{source}]",
                "movdqu {second}, [{source} + 16]",
                "movdqu {third}, [{source} + {len} - 32]",
                "movdqu {fourth}, [{source} + {len} - 16]",
                "movdqu [{target}], {first}",
                "movdqu [{target} + 16], {second}",
                "movdqu [{target} + {len} - 32], {third}",
                "movdqu [{target} + {len} - 16], {fourth}",
                source = in(reg) source,
                target = in(reg) target,
                len = in(reg) len,
                first = out(xmm_reg) _,
                second = out(xmm_reg) _,
                third = out(xmm_reg) _,
                fourth = out(xmm_reg) _,
                options(nostack, preserves_flags),
            );
        }
    }

    /// Writes sixteen bytes.
    ///
    /// # Safety
    /// `target` is writable for 16 bytes; it needs no alignment.
    #[inline(always)]
    pub(crate) unsafe fn store(target: *mut u8, value: __m128i) {
        // SAFETY: as the caller promised.
        unsafe {
            asm!("movdqu [{}], {}", in(reg) target, in(xmm_reg) value, options(nostack, preserves_flags))
        };
    }
}

/// Copies `len` bytes. Some are copied twice, and the second read counts, unless `len` is a multiple of 16, and from 32
/// on of 32. Meant for up to a few hundred bytes: `memcpy` is a call, and selects an algorithm first.
///
/// # Safety
/// `source` is readable and `target` writable for `len` bytes; neither needs alignment; they do not overlap.
#[inline(always)]
pub(crate) unsafe fn copy_short(source: *const u8, target: *mut u8, len: usize) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if len >= 32 {
        if len <= 64 {
            // SAFETY: as the caller promised.
            return unsafe { vector::copy_ends(source, target, len) };
        }
        let mut at = 0;
        while len - at > 64 {
            // SAFETY: at + 64 < len.
            unsafe { vector::copy_ends(source.add(at), target.add(at), 64) };
            at += 64;
        }
        let at = at.min(len - 32);
        // SAFETY: at + 32 <= len.
        return unsafe { vector::copy_ends(source.add(at), target.add(at), len - at) };
    }
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if len >= 16 {
        for at in [0, len - 16] {
            // SAFETY: at + 16 <= len.
            unsafe { vector::store(target.add(at), vector::load(source.add(at))) };
        }
        return;
    }
    // SAFETY: as the caller promised.
    unsafe { std::ptr::copy_nonoverlapping(source, target, len) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_length_is_copied_whole_and_nothing_else() {
        let source: Vec<u8> = (0..300).map(|at| (at * 7 + 1) as u8).collect();
        for len in 0..source.len() {
            let mut target = vec![0xee; len + 40];
            // SAFETY: both are at least `len` bytes long, behind 20 bytes of the target.
            unsafe { copy_short(source.as_ptr(), target[20..].as_mut_ptr(), len) };
            assert_eq!(target[20..20 + len], source[..len]);
            assert!(target[..20].iter().chain(&target[20 + len..]).all(|byte| *byte == 0xee), "{len}");
        }
    }
}
