//! A process that shares this one's memory, for which there is no safe call: clone(2).
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, IntoRawFd, OwnedFd, RawFd};

use rustix::io::Errno;

/// Bytes of its stack: two calls deep.
const STACK_BYTES: usize = 32 << 10;
/// All descriptors below this number are closed there: more than there are before the first guest.
const FDS_MAX: RawFd = 64;

/// Starts a process that shares this one's memory and has no descriptors but `end`, which it reads from until there is nothing
/// more; then it ends. `mine`, a descriptor of this process's, is closed there whatever its number.
///
/// # Errors
/// When the system grants no process.
pub(super) fn keep_memory(end: OwnedFd, mine: BorrowedFd<'_>) -> io::Result<()> {
    let stack = Box::leak(vec![0_u128; STACK_BYTES / size_of::<u128>()].into_boxed_slice());
    let fds = Box::leak(Box::new([end.into_raw_fd(), mine.as_raw_fd()]));
    // SAFETY: the stack and the numbers live for ever, and nobody else has them. The process shares memory and thread-local
    // storage with this thread; what it runs uses neither but its stack, and ends as a process, without destructors.
    let child = unsafe {
        let top = stack.as_mut_ptr().add(stack.len()).cast();
        libc::clone(wait_for_the_end, top, libc::CLONE_VM, (&raw mut *fds).cast())
    };
    let failed = (child < 0).then(io::Error::last_os_error);
    // SAFETY: the number came from an `OwnedFd` above; the other process has its own copy.
    unsafe { rustix::io::close(fds[0]) };
    failed.map_or(Ok(()), Err)
}

/// All that the process does. System calls by rustix touch no `errno`, which is the other process's.
extern "C" fn wait_for_the_end(fds: *mut libc::c_void) -> libc::c_int {
    // SAFETY: what `keep_memory` gave, which nobody changes.
    let [end, mine] = unsafe { *fds.cast::<[RawFd; 2]>() };
    for fd in (0..FDS_MAX).chain([mine]).filter(|fd| *fd != end) {
        // SAFETY: nothing here uses any of them, and the other process has its own.
        unsafe { rustix::io::close(fd) };
    }
    // SAFETY: it is open here until this process ends.
    let end = unsafe { BorrowedFd::borrow_raw(end) };
    while let Ok(1..) | Err(Errno::INTR) = rustix::io::read(end, &mut [0_u8; 1]) {}
    0
}
