//! Copies of a few cache lines, without a call.

#[cfg(all(target_arch = "x86_64", not(miri)))]
use std::arch::x86_64::__m128i;

/// Sixteen bytes at any address.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[derive(Clone, Copy)]
#[repr(C, packed)]
struct Unaligned(__m128i);

/// Copies `len` bytes, sixteen at a time. The last ones are copied twice where `len` is no multiple of that, so guest
/// memory on the source's side is for what is not looked at twice. Meant for up to a few hundred bytes: `memcpy` finds out
/// first what would be best, and is called for it.
///
/// # Safety
/// `source` is readable and `target` writable for `len` bytes; neither needs alignment; they do not overlap.
#[inline(always)]
pub(crate) unsafe fn copy_short(source: *const u8, target: *mut u8, len: usize) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if len >= 16 {
        // Volatile, or else the compiler sees a loop that copies and calls memcpy.
        let copy = |at: usize| {
            // SAFETY: at + 16 <= len.
            unsafe {
                let bytes = source.add(at).cast::<Unaligned>().read_volatile();
                target.add(at).cast::<Unaligned>().write_volatile(bytes);
            }
        };
        let mut at = 0;
        while at + 16 <= len {
            copy(at);
            at += 16;
        }
        if at < len {
            copy(len - 16);
        }
        return;
    }
    // SAFETY: as the caller promised.
    unsafe { std::ptr::copy_nonoverlapping(source, target, len) };
}
