use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{EventfdFlags, eventfd};

/// Events that are read from the kernel at a time, as many as the switch reads. Their number alone says that there is work.
const EVENTS_MAX: usize = 64;

/// Where a data thread sleeps: at the kicks of transmit rings, and at a bell for those who want its lock. Edge-triggered, so that no event has to be read.
#[derive(Debug)]
pub(super) struct Bed {
    epoll: OwnedFd,
    bell: OwnedFd,
    sleeps: AtomicU64,
}

impl Bed {
    pub(super) fn new() -> io::Result<Self> {
        let bed = Self {
            epoll: epoll::create(CreateFlags::CLOEXEC)?,
            bell: eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?,
            sleeps: AtomicU64::new(0),
        };
        bed.watch(&bed.bell)?;
        Ok(bed)
    }

    /// Has events of an eventfd end the sleep, until it is closed or [`Self::forget`].
    pub(super) fn watch(&self, fd: impl AsFd) -> io::Result<()> {
        Ok(epoll::add(&self.epoll, fd, EventData::new_u64(0), EventFlags::IN | EventFlags::ET)?)
    }

    pub(super) fn forget(&self, fd: impl AsFd) {
        let _ = epoll::delete(&self.epoll, fd); // it fails only if it is not watched
    }

    /// Wakes the sleeper, or has its next sleep end at once.
    pub(super) fn ring(&self) {
        let _ = rustix::io::write(&self.bell, &1_u64.to_ne_bytes()); // a full counter has woken it
    }

    /// Sleeps until there is an event.
    pub(super) fn sleep(&self) {
        self.sleeps.fetch_add(1, Ordering::Relaxed);
        let mut events = [MaybeUninit::uninit(); EVENTS_MAX];
        let _ = epoll::wait(&self.epoll, &mut events, None); // an interrupted sleep has ended, too
    }

    /// How often it was slept here.
    #[cfg(test)]
    pub(super) fn sleeps(&self) -> u64 {
        self.sleeps.load(Ordering::Relaxed)
    }
}
