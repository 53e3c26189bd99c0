//! Descriptors that the parent opened for this process (sd_listen_fds(3)).
#![allow(unsafe_code)]

use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::io::{FdFlags, fcntl_setfd};

/// The first one (sd-daemon.h: SD_LISTEN_FDS_START).
const FIRST: RawFd = 3;

/// Takes `count` of them, once in the life of the process: none the second time, and none if one of them is not open. No other
/// process that is started gets them.
///
/// The environment says that they are ours; the caller has asked it, before anything else was opened.
pub(crate) fn take(count: u16) -> Vec<OwnedFd> {
    static IS_TAKEN: AtomicBool = AtomicBool::new(false);
    let numbers = FIRST..FIRST + RawFd::from(count);
    let are_open =
        numbers.clone().all(|number| std::fs::read_link(format!("/proc/self/fd/{number}")).is_ok());
    if IS_TAKEN.swap(true, Ordering::Relaxed) || !are_open {
        return Vec::new();
    }
    let take = |number| {
        // SAFETY: it is open, was opened for this process by its parent, and no other code here knows of it: this function
        // has not run before, and each file that is opened here since gets a number that was free.
        let fd = unsafe { OwnedFd::from_raw_fd(number) };
        // Fails for none that is open.
        let _ = fcntl_setfd(&fd, FdFlags::CLOEXEC);
        fd
    };
    numbers.map(take).collect()
}
