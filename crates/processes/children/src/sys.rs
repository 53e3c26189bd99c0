//! System calls without a safe form: scheduling attributes of a thread (sched_setattr(2)), and a descriptor table for one
//! thread (close_range(2)).
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use libc::{c_long, pid_t, sched_attr};

/// The scheduling attributes of `thread`; `None` if it has ended.
pub(crate) fn scheduling(thread: pid_t) -> Option<sched_attr> {
    // SAFETY: a structure of numbers, of which zero is a value.
    let mut attributes: sched_attr = unsafe { std::mem::zeroed() };
    let bytes = size_of::<sched_attr>();
    // SAFETY: the kernel writes as many bytes as it is told there are, and returns.
    let result: c_long =
        unsafe { libc::syscall(libc::SYS_sched_getattr, thread, &raw mut attributes, bytes, 0) };
    (result == 0).then_some(attributes)
}

/// Sets the scheduling attributes of `thread`; returns whether it succeeded.
pub(crate) fn set_scheduling(thread: pid_t, attributes: &sched_attr) -> bool {
    // SAFETY: the kernel reads as many bytes as the structure says that it has, which are there.
    let result: c_long = unsafe { libc::syscall(libc::SYS_sched_setattr, thread, attributes, 0) };
    result == 0
}

/// Descriptors of a newly started program end here.
const FIRST: libc::c_uint = 3;

/// Gives the calling thread a table of its own with `kept` and the standard descriptors. Higher numbers are not even
/// copied: a copy would have to be closed, and the close of a descriptor from another process may block for ever.
pub(crate) fn unshare_descriptors(kept: &OwnedFd) -> io::Result<()> {
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
