//! The kick and call eventfds of a ring.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::{Errno, read, write};

/// The two eventfds of a ring.
#[derive(Debug)]
pub(crate) struct RingEventFds {
    kick: OwnedFd,
    call: OwnedFd,
}

impl RingEventFds {
    pub(crate) fn new() -> rustix::io::Result<Self> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        Ok(Self { kick: eventfd(0, flags)?, call: eventfd(0, flags)? })
    }

    pub(crate) fn kick_fd(&self) -> BorrowedFd<'_> {
        self.kick.as_fd()
    }

    pub(crate) fn call_fd(&self) -> BorrowedFd<'_> {
        self.call.as_fd()
    }

    /// Wakes the back end.
    pub(crate) fn kick(&self) -> rustix::io::Result<()> {
        match write(&self.kick, &1_u64.to_ne_bytes()) {
            Ok(_) | Err(Errno::AGAIN) => Ok(()), // full: it has been told often enough
            Err(error) => Err(error),
        }
    }

    /// Clears the back end's signals; returns their number.
    pub(crate) fn take_calls(&self) -> rustix::io::Result<u64> {
        let mut count = [0; 8];
        match read(&self.call, &mut count) {
            Ok(_) => Ok(u64::from_ne_bytes(count)),
            Err(Errno::AGAIN) => Ok(0),
            Err(error) => Err(error),
        }
    }
}
