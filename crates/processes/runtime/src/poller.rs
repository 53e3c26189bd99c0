//! `epoll`, level triggered, with a number for each source.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::buffer::spare_capacity;
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::io::Errno;

use crate::fault::Fault;

/// Events read at a time: enough for every port at a busy time; the rest comes with the next call.
const EVENTS_MAX: usize = 64;
/// The shortest wait until a deadline, so that rounding never makes it a busy loop.
const WAIT_MIN: Duration = Duration::from_millis(1);

/// The events for which a source is watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interest {
    /// Bytes or the end of the stream.
    pub read: bool,
    /// Room for bytes.
    pub write: bool,
}

impl Interest {
    /// Only for bytes.
    pub const READ: Self = Self { read: true, write: false };

    fn flags(self) -> EventFlags {
        let mut flags = EventFlags::empty();
        flags.set(EventFlags::IN, self.read);
        flags.set(EventFlags::OUT, self.write);
        flags
    }
}

/// An event of the source with this number.
#[derive(Clone, Copy, Debug)]
pub struct PollEvent {
    /// The number given with [`Poller::add`].
    pub source: u64,
    /// Whether the other side is gone, or the descriptor has an error.
    pub is_over: bool,
}

/// The set of watched descriptors.
pub struct Poller {
    epoll: OwnedFd,
    events: Vec<Event>,
}

impl std::fmt::Debug for Poller {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Poller").field("epoll", &self.epoll).finish_non_exhaustive()
    }
}

impl AsFd for Poller {
    /// Readable when there is an event.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

impl Poller {
    /// A set without descriptors.
    pub fn new() -> Result<Self, Fault> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)
            .map_err(|error| Fault::internal("create an epoll set", error))?;
        Ok(Self { epoll, events: Vec::with_capacity(EVENTS_MAX) })
    }

    /// Starts to watch `source` under `number`.
    pub fn add(&self, source: impl AsFd, number: u64, interest: Interest) -> Result<(), Fault> {
        epoll::add(&self.epoll, source, EventData::new_u64(number), interest.flags())
            .map_err(|error| Fault::internal("watch a descriptor", error))
    }

    /// Changes the events for which `source` is watched.
    pub fn modify(&self, source: impl AsFd, number: u64, interest: Interest) -> Result<(), Fault> {
        epoll::modify(&self.epoll, source, EventData::new_u64(number), interest.flags())
            .map_err(|error| Fault::internal("watch a descriptor", error))
    }

    /// Stops watching `source`. Needed before closing a descriptor of which another process has a copy: otherwise it
    /// would be watched until that is closed, too. Sessions' sockets are such.
    pub fn remove(&self, source: impl AsFd) {
        // This only fails for a descriptor that is not in the set.
        let _ = epoll::delete(&self.epoll, source);
    }

    /// Waits until there is an event or `deadline` passes; without a deadline there is no limit.
    pub fn wait(&mut self, deadline: Option<Instant>) -> Result<Vec<PollEvent>, Fault> {
        let timeout = deadline.map(timespec_until);
        self.events.clear();
        match epoll::wait(&self.epoll, spare_capacity(&mut self.events), timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => Ok(self.events.iter().map(poll_event).collect()),
            Err(error) => Err(Fault::internal("wait for events", error)),
        }
    }
}

fn poll_event(event: &Event) -> PollEvent {
    let flags = event.flags;
    PollEvent { source: event.data.u64(), is_over: flags.intersects(EventFlags::HUP | EventFlags::ERR) }
}

fn timespec_until(deadline: Instant) -> Timespec {
    let wait = deadline.saturating_duration_since(Instant::now());
    timespec(if wait.is_zero() { wait } else { wait.max(WAIT_MIN) })
}

/// Converts a time for poll(2) and similar calls.
pub fn timespec(time: Duration) -> Timespec {
    Timespec { tv_sec: time.as_secs() as i64, tv_nsec: i64::from(time.subsec_nanos()) }
}
