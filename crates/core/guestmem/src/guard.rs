//! Survives a guest that truncates its memory file: the mapping gets zero pages and a mark, and the copy continues.
//!
//! A read beyond the end of a mapped file raises SIGBUS. The handler looks the address up in a fixed table of watched
//! mappings, maps zero pages over the whole mapping, sets its `dead` mark and returns. The copy that faulted continues
//! with zeroes, the thread that sees the mark stops the port, and other ports are not affected. A SIGBUS at any other
//! address ends the process, as it would without the handler.

use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};

/// Watched mappings in the process: enough for more than a hundred guests with all their memory slots. Further mappings
/// are refused, since an unwatched one could end the process.
pub const WATCHES_MAX: usize = 1 << 16;

struct Watch {
    /// 0 when free, 1 while being filled, else the mapping's first byte.
    start: AtomicUsize,
    bytes: AtomicUsize,
    dead: AtomicPtr<AtomicBool>,
}

static WATCHES: [Watch; WATCHES_MAX] = [const {
    Watch {
        start: AtomicUsize::new(0),
        bytes: AtomicUsize::new(0),
        dead: AtomicPtr::new(std::ptr::null_mut()),
    }
}; WATCHES_MAX];

static FAULTS: AtomicUsize = AtomicUsize::new(0);

/// Number of mappings found truncated since the process started. When it changes, callers look for dead mappings.
pub fn faults() -> usize {
    FAULTS.load(Ordering::Relaxed)
}

/// Installs the SIGBUS handler for the whole process.
///
/// # Errors
/// If sigaction(2) fails.
pub fn install() -> std::io::Result<()> {
    // SAFETY: an all-zero sigaction is valid; the handler only touches atomics, mmap and sigaction, all async-signal-safe.
    let result = unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_sigbus as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        libc::sigaction(libc::SIGBUS, &action, std::ptr::null_mut())
    };
    if result == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
}

/// Enters a mapping into the table. Returns the slot for `unwatch`, or `None` if the table is full.
pub(crate) fn watch(start: usize, bytes: usize, dead: &Arc<AtomicBool>) -> Option<usize> {
    let slot = WATCHES
        .iter()
        .position(|watch| watch.start.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_ok())?;
    let watch = &WATCHES[slot];
    watch.bytes.store(bytes, Ordering::Relaxed);
    watch.dead.store(Arc::into_raw(Arc::clone(dead)).cast_mut(), Ordering::Relaxed);
    watch.start.store(start, Ordering::Release);
    Some(slot)
}

/// Removes a mapping from the table, before it is unmapped.
pub(crate) fn unwatch(slot: usize) {
    let watch = &WATCHES[slot];
    watch.start.store(1, Ordering::Release);
    let dead = watch.dead.swap(std::ptr::null_mut(), Ordering::AcqRel);
    // SAFETY: the pointer came from Arc::into_raw in `watch` and was taken out by the swap, so it is released once.
    drop(unsafe { Arc::from_raw(dead) });
    watch.start.store(0, Ordering::Release);
}

extern "C" fn on_sigbus(_signal: libc::c_int, info: *mut libc::siginfo_t, _context: *mut c_void) {
    // SAFETY: the kernel passes a valid siginfo for SA_SIGINFO handlers; si_addr is filled in for SIGBUS.
    let address = unsafe { (*info).si_addr() } as usize;
    let hit = WATCHES.iter().find(|watch| {
        let start = watch.start.load(Ordering::Acquire);
        start > 1 && address >= start && address - start < watch.bytes.load(Ordering::Relaxed)
    });
    match hit {
        Some(watch) => replace_by_zeroes(watch),
        None => restore_default(),
    }
}

fn replace_by_zeroes(watch: &Watch) {
    let (start, bytes) = (watch.start.load(Ordering::Acquire), watch.bytes.load(Ordering::Relaxed));
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_FIXED | libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: the range is exactly one live mapping of ours (unwatch runs before munmap), replaced in one step.
    let mapped = unsafe { libc::mmap(start as *mut c_void, bytes, protection, flags, -1, 0) };
    if mapped == libc::MAP_FAILED {
        restore_default();
        return;
    }
    // SAFETY: the pointer is a live Arc's as long as the watch is entered; the faulting thread holds the mapping.
    if let Some(dead) = unsafe { watch.dead.load(Ordering::Acquire).as_ref() } {
        dead.store(true, Ordering::Relaxed);
    }
    FAULTS.fetch_add(1, Ordering::Relaxed);
}

/// Restores the default action for a fault that is not a guest's: the fault recurs and ends the process.
fn restore_default() {
    // SAFETY: an all-zero sigaction is SIG_DFL with no flags.
    unsafe {
        let action: libc::sigaction = std::mem::zeroed();
        libc::sigaction(libc::SIGBUS, &action, std::ptr::null_mut());
    }
}
