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
    /// How often it was filled: the handler reads while another thread may fill it for another mapping.
    fillings: AtomicUsize,
    dead: AtomicPtr<AtomicBool>,
}

impl Watch {
    const fn free() -> Self {
        Self {
            start: AtomicUsize::new(0),
            bytes: AtomicUsize::new(0),
            fillings: AtomicUsize::new(0),
            dead: AtomicPtr::new(std::ptr::null_mut()),
        }
    }

    /// Enters a mapping, if it is free.
    fn fill(&self, start: usize, bytes: usize, dead: &Arc<AtomicBool>) -> bool {
        let is_free = self.start.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_ok();
        if is_free {
            self.fillings.fetch_add(1, Ordering::Release);
            self.bytes.store(bytes, Ordering::Release); // one who reads it sees the new count, too
            self.dead.store(Arc::into_raw(Arc::clone(dead)).cast_mut(), Ordering::Relaxed);
            self.start.store(start, Ordering::Release);
        }
        is_free
    }

    fn clear(&self) {
        self.start.store(1, Ordering::Release);
        let dead = self.dead.swap(std::ptr::null_mut(), Ordering::AcqRel);
        // SAFETY: the pointer came from Arc::into_raw in `fill` and was taken out by the swap, so it is released once.
        drop(unsafe { Arc::from_raw(dead) });
        self.start.store(0, Ordering::Release);
    }

    /// Start and length of one mapping. `None` if it has none, or is filled meanwhile.
    fn range(&self) -> Option<(usize, usize)> {
        let before = self.fillings.load(Ordering::Acquire);
        let start = self.start.load(Ordering::Acquire);
        let bytes = self.bytes.load(Ordering::Acquire);
        let is_same = self.fillings.load(Ordering::Acquire) == before;
        (start > 1 && is_same).then_some((start, bytes))
    }
}

static WATCHES: [Watch; WATCHES_MAX] = [const { Watch::free() }; WATCHES_MAX];

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
    WATCHES.iter().position(|watch| watch.fill(start, bytes, dead))
}

/// Removes a mapping from the table, before it is unmapped.
pub(crate) fn unwatch(slot: usize) {
    WATCHES[slot].clear();
}

extern "C" fn on_sigbus(_signal: libc::c_int, info: *mut libc::siginfo_t, _context: *mut c_void) {
    // SAFETY: the kernel passes a valid siginfo for SA_SIGINFO handlers; si_addr is filled in for SIGBUS.
    let address = unsafe { (*info).si_addr() } as usize;
    // The faulting thread holds its mapping, whose watch is not filled again meanwhile. No other mapping has the address.
    let hit = WATCHES.iter().find_map(|watch| {
        let (start, bytes) = watch.range()?;
        (address >= start && address - start < bytes).then_some((start, bytes, &watch.dead))
    });
    match hit {
        Some((start, bytes, dead)) => replace_by_zeroes(start, bytes, dead),
        None => restore_default(),
    }
}

fn replace_by_zeroes(start: usize, bytes: usize, dead: &AtomicPtr<AtomicBool>) {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_FIXED | libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: the range is exactly one live mapping of ours (unwatch runs before munmap), replaced in one step.
    let mapped = unsafe { libc::mmap(start as *mut c_void, bytes, protection, flags, -1, 0) };
    if mapped == libc::MAP_FAILED {
        restore_default();
        return;
    }
    // SAFETY: the pointer is a live Arc's as long as the watch is entered; the faulting thread holds the mapping.
    if let Some(dead) = unsafe { dead.load(Ordering::Acquire).as_ref() } {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn start_and_length_are_of_one_mapping_while_a_watch_is_filled_again() {
        const FILLINGS: usize = if cfg!(miri) { 100 } else { 1_000_000 };
        const RANGES: [(usize, usize); 3] = [(0x10_0000, 1), (0x20_0000, 2), (0x30_0000, 3)];
        let (watch, dead, is_over) = (Watch::free(), Arc::default(), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for (start, bytes) in RANGES.into_iter().cycle().take(FILLINGS) {
                    assert!(watch.fill(start, bytes, &dead));
                    assert!(!watch.fill(start, bytes, &dead), "it is in use");
                    watch.clear();
                }
                is_over.store(true, Ordering::Relaxed);
            });
            while !is_over.load(Ordering::Relaxed) {
                if let Some(range) = watch.range() {
                    assert!(RANGES.contains(&range), "{range:x?}");
                }
            }
        });
        assert_eq!((watch.range(), Arc::strong_count(&dead)), (None, 1));
    }
}
