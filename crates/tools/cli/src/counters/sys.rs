//! perf_event_open(2), for which neither std nor rustix has a call.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{FromRawFd, OwnedFd};

/// The first version of the kernel's `perf_event_attr`, which every kernel accepts.
#[repr(C)]
#[derive(Default)]
struct PerfEventAttr {
    kind: u32,
    size_bytes: u32,
    config: u64,
    sample_period: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    wakeup_events: u32,
    breakpoint_type: u32,
    config1: u64,
}

/// Counts an event of a thread on any CPU. `flags` and `read_format` are the kernel's.
///
/// # Errors
/// Those of perf_event_open(2): `ENOENT` if the machine does not have the counter.
pub(super) fn open(
    (kind, config): (u32, u64),
    thread: i32,
    read_format: u64,
    flags: u64,
) -> io::Result<OwnedFd> {
    const ANY_CPU: libc::c_int = -1;
    const NO_GROUP: libc::c_int = -1;
    const CLOSE_ON_EXEC: libc::c_ulong = 8;
    let size_bytes = size_of::<PerfEventAttr>() as u32;
    let attr = PerfEventAttr { kind, size_bytes, config, read_format, flags, ..PerfEventAttr::default() };
    // SAFETY: the kernel reads `size_bytes` of `attr`, which lives here; the other arguments are numbers.
    let fd = unsafe {
        libc::syscall(libc::SYS_perf_event_open, &raw const attr, thread, ANY_CPU, NO_GROUP, CLOSE_ON_EXEC)
    };
    match i32::try_from(fd) {
        // SAFETY: the kernel has just made this descriptor, and nothing else has it.
        Ok(fd) if fd >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        _ => Err(io::Error::last_os_error()),
    }
}
