//! A descriptor table for one thread: close_range(2), for which there is no safe call.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

/// Descriptors of a newly started program end here.
const FIRST: libc::c_uint = 3;

/// Gives the calling thread a table of its own with `kept` and the standard descriptors. Higher numbers are not even
/// copied: a copy would have to be closed, and the close of a descriptor from another process may block for ever.
pub(super) fn unshare_descriptors(kept: &OwnedFd) -> io::Result<()> {
    let number = kept.as_raw_fd().cast_unsigned();
    close_range(number + 1, libc::c_uint::MAX, libc::CLOSE_RANGE_UNSHARE)?;
    if number > FIRST {
        close_range(FIRST, number - 1, 0)?;
    }
    Ok(())
}

fn close_range(first: libc::c_uint, last: libc::c_uint, flags: libc::c_uint) -> io::Result<()> {
    // SAFETY: with CLOSE_RANGE_UNSHARE, which comes first, the table is this thread's own, and the thread uses no descriptor but the one
    // that it keeps. No other thread loses any.
    let done = unsafe { libc::syscall(libc::SYS_close_range, first, last, flags) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
