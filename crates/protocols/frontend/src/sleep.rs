//! Guests' waits for calls, or for the end of the connection.

use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use lasthop_vhost::front::FrontEnd;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::GuestError;

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
