//! The eventfds that a worker waits for, and the epoll instance of a thread that serves several workers.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};

use arrayvec::ArrayVec;
use lasthop_fabric::bounds::WORKERS_MAX;
use lasthop_module_api::PortId;
use rustix::event::{Timespec, epoll};

/// Events read from the kernel at a time.
pub(crate) const EVENTS_MAX: usize = 64;
/// Above the tokens of kicks.
const SLEEPER_TOKEN: u64 = u64::MAX - 1;

/// The cause of a wake-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// The mailbox has a task.
    Mailbox,
    /// A guest kicked virtqueue `index` of a port.
    Kick(PortId, u16),
    /// A thread went to sleep that a guest's packets depend on.
    Sleeper,
}

/// Events of one wait.
pub(crate) type EventList = ArrayVec<Event, EVENTS_MAX>;

impl Event {
    fn token(self) -> u64 {
        match self {
            Self::Mailbox => u64::MAX,
            Self::Sleeper => SLEEPER_TOKEN,
            Self::Kick(port, index) => u64::from(port.0) << 16 | u64::from(index),
        }
    }

    fn of_token(token: u64) -> Self {
        match token {
            u64::MAX => Self::Mailbox,
            SLEEPER_TOKEN => Self::Sleeper,
            _ => Self::Kick(PortId((token >> 16) as u16), token as u16),
        }
    }
}

/// Where a worker that has a thread of its own sleeps. Edge-triggered: eventfds are never read, and each write is one
/// event.
#[derive(Debug)]
pub(crate) struct Events {
    epoll: std::os::fd::OwnedFd,
}

impl Events {
    pub(crate) fn new() -> std::io::Result<Self> {
        Ok(Self { epoll: epoll::create(epoll::CreateFlags::CLOEXEC)? })
    }

    /// Adds `fd`, until it is closed everywhere or `forget` is called.
    pub(crate) fn listen(&self, fd: impl AsFd, event: Event) -> std::io::Result<()> {
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
        Ok(epoll::add(&self.epoll, fd, epoll::EventData::new_u64(event.token()), flags)?)
    }

    /// Readable while events are pending.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    pub(crate) fn forget(&self, fd: BorrowedFd<'_>) {
        // The only error is that the descriptor is not in the epoll instance.
        let _ = epoll::delete(&self.epoll, fd);
    }

    /// Waits up to `timeout_ns` (`None`: without limit), and adds at most `EVENTS_MAX` events to `events`, which is empty.
    // Returned by value, they would be copied with their unused places, most of which are not in the cache after a sleep.
    pub(crate) fn wait(&self, timeout_ns: Option<u64>, events: &mut EventList) {
        let timeout = timeout_ns.map(timespec);
        let mut buffer = [MaybeUninit::uninit(); EVENTS_MAX];
        // An interrupted wait returns no events.
        if let Ok((found, _)) = epoll::wait(&self.epoll, &mut buffer, timeout.as_ref()) {
            events.extend(found.iter().map(|event| Event::of_token(event.data.u64())));
        }
    }
}

fn timespec(ns: u64) -> Timespec {
    Timespec { tv_sec: (ns / 1_000_000_000) as i64, tv_nsec: (ns % 1_000_000_000) as i64 }
}

/// Where a thread that serves several workers sleeps. Level-triggered: a worker's events stay until it takes them.
#[derive(Debug)]
pub(crate) struct Gate {
    epoll: std::os::fd::OwnedFd,
}

impl Gate {
    pub(crate) fn new() -> std::io::Result<Self> {
        Ok(Self { epoll: epoll::create(epoll::CreateFlags::CLOEXEC)? })
    }

    /// Adds the `events` of worker `number`.
    pub(crate) fn open(&self, events: BorrowedFd<'_>, number: usize) -> std::io::Result<()> {
        let data = epoll::EventData::new_u64(number as u64);
        Ok(epoll::add(&self.epoll, events, data, epoll::EventFlags::IN)?)
    }

    pub(crate) fn close(&self, events: BorrowedFd<'_>) {
        // The only error is that they are not in the epoll instance.
        let _ = epoll::delete(&self.epoll, events);
    }

    /// Waits up to `sleep_ns` (`u64::MAX`: without limit), and returns the workers that have events.
    pub(crate) fn wait(&self, sleep_ns: u64) -> ArrayVec<usize, WORKERS_MAX> {
        let timeout = (sleep_ns < u64::MAX).then(|| timespec(sleep_ns));
        let mut buffer = [MaybeUninit::uninit(); WORKERS_MAX];
        match epoll::wait(&self.epoll, &mut buffer, timeout.as_ref()) {
            Ok((events, _)) => events.iter().map(|event| event.data.u64() as usize).collect(),
            // An interrupted wait returns no events.
            Err(_) => ArrayVec::new(),
        }
    }
}
