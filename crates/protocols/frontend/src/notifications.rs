//! The kick and call eventfds of a ring, and waits for calls.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use lasthop_vhost::front::FrontEnd;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::{Errno, read, write};

use crate::GuestError;

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

/// The end of a wait; `None` beyond the range of the clock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline(Option<Instant>);

impl Deadline {
    pub(crate) fn after(timeout: Option<Duration>) -> Self {
        Self(timeout.and_then(|timeout| Instant::now().checked_add(timeout)))
    }

    fn left(self) -> Option<Duration> {
        self.0.map(|at| at.saturating_duration_since(Instant::now()))
    }

    pub(crate) fn is_over(self) -> bool {
        self.left() == Some(Duration::ZERO)
    }
}

/// Sleeps until one of `calls` is readable, the deadline passes, a signal comes, or the connection ends, over which
/// nothing else ever comes unasked.
pub(crate) fn sleep<'a>(
    front: &'a FrontEnd,
    calls: impl Iterator<Item = BorrowedFd<'a>>,
    deadline: Deadline,
) -> Result<(), GuestError> {
    let connection = PollFd::from_borrowed_fd(front.fd(), PollFlags::RDHUP);
    let calls = calls.map(|call| PollFd::from_borrowed_fd(call, PollFlags::IN));
    let mut fds: Vec<_> = std::iter::once(connection).chain(calls).collect();
    let timeout = deadline.left().and_then(|left| Timespec::try_from(left).ok());
    match poll(&mut fds, timeout.as_ref()) {
        Ok(_) | Err(rustix::io::Errno::INTR) => {}
        Err(error) => return Err(error.into()),
    }
    let ended = PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR;
    if fds[0].revents().intersects(ended) { Err(GuestError::HungUp) } else { Ok(()) }
}
