//! A thread's scheduling attributes: sched_setattr(2), for which there is no safe call.
#![allow(unsafe_code)]

use libc::{c_long, pid_t, sched_attr};

/// The scheduling attributes of `thread`; `None` if it has ended.
pub(super) fn scheduling(thread: pid_t) -> Option<sched_attr> {
    // SAFETY: a structure of numbers, of which zero is a value.
    let mut attributes: sched_attr = unsafe { std::mem::zeroed() };
    let bytes = size_of::<sched_attr>();
    // SAFETY: the kernel writes as many bytes as it is told there are, and returns.
    let result: c_long =
        unsafe { libc::syscall(libc::SYS_sched_getattr, thread, &raw mut attributes, bytes, 0) };
    (result == 0).then_some(attributes)
}

/// Sets the scheduling attributes of `thread`; returns whether it succeeded.
pub(super) fn set_scheduling(thread: pid_t, attributes: &sched_attr) -> bool {
    // SAFETY: the kernel reads as many bytes as the structure says that it has, which are there.
    let result: c_long = unsafe { libc::syscall(libc::SYS_sched_setattr, thread, attributes, 0) };
    result == 0
}
