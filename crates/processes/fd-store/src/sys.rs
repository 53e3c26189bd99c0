//! Descriptors that the parent opened for this process (sd_listen_fds(3)).
#![allow(unsafe_code)]

use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::io::{FdFlags, fcntl_setfd};

/// The first of these descriptors (sd-daemon.h: SD_LISTEN_FDS_START).
const FIRST: RawFd = 3;

/// Takes `count` descriptors, once in the life of the process: none the second time, and none if one of them is not
/// open. Child processes do not inherit them.
///
/// The caller has checked in the environment that they are ours, before anything else was opened.
pub(crate) fn take(count: u16) -> Vec<OwnedFd> {
    static IS_TAKEN: AtomicBool = AtomicBool::new(false);
    let numbers = FIRST..FIRST + RawFd::from(count);
    let are_open =
        numbers.clone().all(|number| std::fs::read_link(format!("/proc/self/fd/{number}")).is_ok());
    if IS_TAKEN.swap(true, Ordering::Relaxed) || !are_open {
        return Vec::new();
    }
    let take = |number| {
        // SAFETY: it is open, the parent opened it for this process, and no other code here knows it: this function has
        // not run before, and each file that was opened here since has another number.
        let fd = unsafe { OwnedFd::from_raw_fd(number) };
        // Does not fail for open descriptors.
        let _ = fcntl_setfd(&fd, FdFlags::CLOEXEC);
        fd
    };
    numbers.map(take).collect()
}
