//! Descriptors that the program owns and this library uses by number.
#![allow(unsafe_code)]

use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};

use rustix::io::Errno;

/// A descriptor of the program's.
pub(crate) fn borrow(fd: RawFd) -> BorrowedFd<'static> {
    // SAFETY: it is in the table, so it is open in the program, which is in a call with it.
    unsafe { BorrowedFd::borrow_raw(fd) }
}

/// Makes `fd` a duplicate of `socket`.
pub(crate) fn replace(fd: RawFd, socket: &OwnedFd) -> Result<(), Errno> {
    // SAFETY: the arguments are two numbers; the program keeps its descriptor.
    let result = unsafe { libc::dup3(socket.as_raw_fd(), fd, libc::O_CLOEXEC) };
    if result < 0 {
        Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::INVAL))
    } else {
        Ok(())
    }
}
