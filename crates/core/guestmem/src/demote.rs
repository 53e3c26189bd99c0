//! Demotion of cache lines: what this core wrote moves to the cache that all cores share.
//!
//! A line that a core wrote stays in its own cache. Another core that reads it has to ask that cache, which takes longer
//! than the shared one. CLDEMOTE starts the move early. It is a hint, takes the core no wait, and does nothing on processors
//! without it (Intel's manual, volume 2, "CLDEMOTE").

/// Bytes of a cache line.
pub(crate) const LINE_BYTES: usize = 64;

/// Whether this processor demotes lines.
#[must_use]
pub fn can_demote_lines() -> bool {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        use std::arch::x86_64::{__cpuid, __cpuid_count};
        // Leaf 7 exists, and its ECX has bit 25.
        __cpuid(0).eax >= 7 && __cpuid_count(7, 0).ecx >> 25 & 1 != 0
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    false
}

/// Moves the cache line of `address` to the shared cache, where the processor can; never faults, never fails.
#[inline(always)]
pub fn demote_line<T>(address: *const T) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: a hint has no architectural effect, at any address.
    unsafe {
        std::arch::asm!("cldemote [{0}]", in(reg) address, options(nostack, preserves_flags, readonly));
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = address;
}

/// As [`demote_line`], for the first two lines of `len` bytes from `address` on and for the last one: all that a short frame
/// has.
#[inline(always)]
pub(crate) fn demote_ends(address: *const u8, len: usize) {
    let last = len.saturating_sub(1);
    demote_line(address);
    demote_line(address.wrapping_add(last.min(LINE_BYTES)));
    demote_line(address.wrapping_add(last));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_address_may_be_demoted_and_keeps_its_bytes() {
        let bytes = [7_u8; 4 * LINE_BYTES];
        for len in [0, 1, LINE_BYTES, bytes.len()] {
            demote_ends(bytes.as_ptr(), len);
        }
        demote_line(std::ptr::null::<u8>());
        demote_line(std::ptr::without_provenance::<u8>(usize::MAX));
        assert_eq!(std::hint::black_box(bytes), [7; 4 * LINE_BYTES]);
    }
}
