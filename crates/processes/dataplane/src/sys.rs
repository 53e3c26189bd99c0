//! Starts a process that shares this one's memory: clone(2), for which there is no safe call.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::io::Errno;

/// Bytes of its stack: two calls deep.
const STACK_BYTES: usize = 32 << 10;
/// Descriptors below this number are closed there: more than are open before the first guest.
const FDS_MAX: RawFd = 64;

/// How long to wait until the process has begun: it takes microseconds once it has a CPU, if it is not killed before.
const BEGIN_PATIENCE: Duration = Duration::from_secs(10);

/// Arguments of the process: its first function, the descriptor that it waits for, and the other open ones, which it
/// closes.
struct MemoryKeeper<B> {
    begin: B,
    has_begun: AtomicBool,
    end: RawFd,
    others: Vec<RawFd>,
}

/// Starts a process that shares this one's memory. It calls `begin`, closes all descriptors except `end`, reads from
/// that until end of file, and ends; it ends at once if `begin` returns false. `begin` has returned when this returns.
/// This thread does nothing else meanwhile, since the two share `errno`.
///
/// # Errors
/// If the system refuses to start a process.
pub(super) fn keep_memory<B: Fn() -> bool + Sync + 'static>(end: OwnedFd, begin: B) -> io::Result<()> {
    let stack = Box::leak(vec![0_u128; STACK_BYTES / size_of::<u128>()].into_boxed_slice());
    let others = (0..FDS_MAX).filter(|fd| *fd != end.as_raw_fd() && is_open(*fd)).collect();
    let has_begun = AtomicBool::new(false);
    let told: &MemoryKeeper<B> =
        Box::leak(Box::new(MemoryKeeper { begin, has_begun, end: end.as_raw_fd(), others }));
    // SAFETY: the stack and the arguments are never freed, and no other code uses them. The process shares memory and
    // thread-local storage with this thread; its function uses neither, and ends as a process, without destructors.
    let child = unsafe {
        let top = stack.as_mut_ptr().add(stack.len()).cast();
        libc::clone(wait_for_the_end::<B>, top, libc::CLONE_VM, (&raw const *told).cast_mut().cast())
    };
    if child < 0 {
        return Err(io::Error::last_os_error());
    }
    let until = Instant::now() + BEGIN_PATIENCE;
    while !told.has_begun.load(Ordering::Acquire) && Instant::now() < until {
        std::thread::yield_now(); // it may wait for this CPU
    }
    Ok(())
}

fn is_open(fd: RawFd) -> bool {
    // SAFETY: the call only tests whether the number is open, and does not change a descriptor.
    rustix::io::fcntl_getfd(unsafe { BorrowedFd::borrow_raw(fd) }).is_ok()
}

/// Main function of the process. rustix's system calls do not write `errno`, which belongs to the other process. None
/// of them fails, so debug builds raise no error.
extern "C" fn wait_for_the_end<B: Fn() -> bool + Sync + 'static>(told: *mut libc::c_void) -> libc::c_int {
    // SAFETY: this is the argument from `keep_memory`, which is never freed or changed.
    let told = unsafe { &*told.cast::<MemoryKeeper<B>>() };
    let may_go_on = (told.begin)();
    told.has_begun.store(true, Ordering::Release);
    if !may_go_on {
        return 1;
    }
    for fd in &told.others {
        // SAFETY: nothing here uses any of them, and the other process has its own.
        unsafe { rustix::io::close(*fd) };
    }
    // SAFETY: it is open here until this process ends.
    let end = unsafe { BorrowedFd::borrow_raw(told.end) };
    while let Ok(1..) | Err(Errno::INTR) = rustix::io::read(end, &mut [0_u8; 1]) {}
    0
}
