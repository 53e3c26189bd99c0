//! Huge pages for memory of the switch: MADV_COLLAPSE (Linux 6.1) makes one of a shared memory file's small pages, whatever the
//! system's setting for such files is.
//!
//! The kernel maps a huge page as one only where the address and the offset in the file have the same remainder modulo its
//! size. So the place of a mapping is chosen here. A later process that maps the file in the same way uses the huge
//! pages that an earlier one made.

use std::ffi::c_void;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};

/// linux/mman.h.
const MADV_COLLAPSE: i32 = 25;
/// Bytes of a huge page, with small pages of 4 KiB.
pub(crate) const HUGE_PAGE_BYTES: usize = 2 << 20;
/// Refusals for which no reason is known that lasts, after which the kernel is not asked again: it looks for free memory each time.
const REFUSALS_MAX: u32 = 16;

/// Whether the kernel makes huge pages of a mapping.
#[derive(Debug, Default)]
pub(crate) struct HugePages {
    refusals: AtomicU32,
}

impl HugePages {
    /// Asks the kernel for a huge page. The bytes stay as they are, also for threads that use them meanwhile; these may
    /// wait for the kernel. If the kernel refuses, small pages stay.
    pub(crate) fn collapse(&self, at: NonNull<u8>) {
        debug_assert!((at.as_ptr() as usize).is_multiple_of(HUGE_PAGE_BYTES));
        if self.refusals.load(Ordering::Relaxed) >= REFUSALS_MAX {
            return;
        }
        if let Err(errno) = collapse(at) {
            self.count(errno);
        }
    }

    fn count(&self, errno: Errno) {
        let refusals = match errno {
            // Old kernels, and settings that rule huge pages out.
            Errno::INVAL => REFUSALS_MAX,
            // No memory for it, or the pages were in use.
            _ => self.refusals.load(Ordering::Relaxed) + 1,
        };
        self.refusals.store(refusals, Ordering::Relaxed);
    }
}

fn collapse(at: NonNull<u8>) -> rustix::io::Result<()> {
    // SAFETY: this advice changes neither what the memory holds nor its address and rights.
    match unsafe { libc::madvise(at.as_ptr().cast(), HUGE_PAGE_BYTES, MADV_COLLAPSE) } {
        0 => Ok(()),
        _ => Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::INVAL)),
    }
}

/// Maps whole pages of a file where its huge pages can be mapped as such.
pub(crate) fn map_aligned(
    bytes: usize,
    protection: ProtFlags,
    flags: MapFlags,
    fd: BorrowedFd<'_>,
    offset: u64,
) -> rustix::io::Result<*mut c_void> {
    let reserved = bytes.checked_add(HUGE_PAGE_BYTES).ok_or(Errno::NOMEM)?;
    // The range stays taken, so no other thread maps anything there meanwhile.
    let none = MapFlags::PRIVATE | MapFlags::NORESERVE;
    // SAFETY: a fresh address range is chosen by the kernel; nothing existing is replaced.
    let range = unsafe { mmap_anonymous(std::ptr::null_mut(), reserved, ProtFlags::empty(), none)? };
    let wanted = (offset % HUGE_PAGE_BYTES as u64) as usize;
    let lead = wanted.wrapping_sub(range as usize) % HUGE_PAGE_BYTES;
    // SAFETY: lead is less than a huge page, which is what the range has beyond `bytes`.
    let base = unsafe { range.byte_add(lead) };
    // SAFETY: this replaces a part of the range above, which nothing uses.
    let mapped = unsafe { mmap(base, bytes, protection, flags | MapFlags::FIXED, fd, offset) };
    let kept = if mapped.is_ok() { lead..lead + bytes } else { 0..0 };
    for unused in [0..kept.start, kept.end..reserved] {
        if !unused.is_empty() {
            // SAFETY: a part of the range, outside of the mapping.
            let _ = unsafe { munmap(range.byte_add(unused.start), unused.len()) };
        }
    }
    mapped
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_that_cannot_is_asked_once_and_one_without_memory_some_times() {
        let is_asked = |pages: &HugePages| pages.refusals.load(Ordering::Relaxed) < REFUSALS_MAX;
        let pages = HugePages::default();
        for _ in 0..REFUSALS_MAX {
            assert!(is_asked(&pages));
            pages.count(Errno::NOMEM);
        }
        assert!(!is_asked(&pages));
        let pages = HugePages::default();
        pages.count(Errno::INVAL);
        assert!(!is_asked(&pages));
    }

    #[test]
    fn a_refusal_is_noticed() {
        // Linux maps nothing there by itself. Old kernels do not know the advice, others find no memory.
        let nowhere = NonNull::new(HUGE_PAGE_BYTES as *mut u8).expect("not null");
        let pages = HugePages::default();
        pages.collapse(nowhere);
        assert!(pages.refusals.load(Ordering::Relaxed) > 0);
    }
}
