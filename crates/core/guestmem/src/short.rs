//! Copies of a few cache lines, without a call, and sixteen bytes at a time.

#[cfg(all(target_arch = "x86_64", not(miri)))]
pub(crate) mod vector {
    use std::arch::asm;
    use std::arch::x86_64::__m128i;

    /// Reads sixteen bytes, once. In assembly, since a volatile read at any address goes over the stack, and of another one
    /// the compiler may make two, or see a loop that copies and call memcpy.
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

/// Copies `len` bytes, sixteen at a time. Unless `len` is a multiple of that, the last ones are copied twice,
/// and the second read counts. Meant for up to a few hundred bytes: `memcpy` is a call, and first selects an
/// algorithm.
///
/// # Safety
/// `source` is readable and `target` writable for `len` bytes; neither needs alignment; they do not overlap.
#[inline(always)]
pub(crate) unsafe fn copy_short(source: *const u8, target: *mut u8, len: usize) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if len >= 16 {
        // SAFETY: at + 16 <= len.
        let copy = |at: usize| unsafe { vector::store(target.add(at), vector::load(source.add(at))) };
        let mut at = 0;
        while at + 32 <= len {
            copy(at);
            copy(at + 16);
            at += 32;
        }
        if at + 16 <= len {
            copy(at);
        }
        if !len.is_multiple_of(16) {
            copy(len - 16);
        }
        return;
    }
    // SAFETY: as the caller promised.
    unsafe { std::ptr::copy_nonoverlapping(source, target, len) };
}
