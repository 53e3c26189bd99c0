//! Sleeping of an I/O thread: epoll on devices, kicks and tasks.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use arrayvec::ArrayVec;
use rustix::event::{Timespec, epoll};

/// Events read from the kernel at a time.
const EVENTS_MAX: usize = 64;

/// The meaning of a descriptor to the thread that waits for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// A task was queued.
    Bell,
    /// The device of a lane, by the lane's number.
    Device(u32),
    /// The same, and the device has an error to report.
    DeviceFault(u32),
    /// The switch has put frames into the lane's receive ring, or returned frames of its transmit ring.
    Call(u32),
    /// The connection to the switch, which only reports its end.
    Session(u32),
}

impl Source {
    fn token(self) -> u64 {
        match self {
            Self::Bell => 0,
            Self::Device(lane) | Self::DeviceFault(lane) => u64::from(lane) << 2 | 1,
            Self::Call(lane) => u64::from(lane) << 2 | 2,
            Self::Session(lane) => u64::from(lane) << 2 | 3,
        }
    }

    fn of_event(token: u64, is_fault: bool) -> Self {
        let lane = (token >> 2) as u32;
        match token & 3 {
            0 => Self::Bell,
            1 if is_fault => Self::DeviceFault(lane),
            1 => Self::Device(lane),
            2 => Self::Call(lane),
            _ => Self::Session(lane),
        }
    }
}

/// The device events to wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Interest {
    /// Frames that arrive.
    pub(crate) input: bool,
    /// Room for frames to send.
    pub(crate) output: bool,
}

impl Interest {
    fn flags(self) -> epoll::EventFlags {
        let mut flags = epoll::EventFlags::ET;
        flags.set(epoll::EventFlags::IN, self.input);
        flags.set(epoll::EventFlags::OUT, self.output);
        flags
    }
}

/// Where an I/O thread sleeps. Edge-triggered: eventfds are never read, and each write is one event.
#[derive(Debug)]
pub(crate) struct Watch {
    epoll: OwnedFd,
}

impl Watch {
    pub(crate) fn new() -> std::io::Result<Self> {
        Ok(Self { epoll: epoll::create(epoll::CreateFlags::CLOEXEC)? })
    }

    /// Registers an eventfd.
    pub(crate) fn listen(&self, fd: impl AsFd, source: Source) -> std::io::Result<()> {
        self.add(fd, source, epoll::EventFlags::IN | epoll::EventFlags::ET)
    }

    /// Registers for the end of a connection.
    pub(crate) fn listen_for_end(&self, fd: impl AsFd, source: Source) -> std::io::Result<()> {
        self.add(fd, source, epoll::EventFlags::RDHUP | epoll::EventFlags::ET)
    }

    /// Registers a device.
    pub(crate) fn listen_to_device(
        &self,
        fd: impl AsFd,
        lane: u32,
        interest: Interest,
    ) -> std::io::Result<()> {
        self.add(fd, Source::Device(lane), interest.flags())
    }

    fn add(&self, fd: impl AsFd, source: Source, flags: epoll::EventFlags) -> std::io::Result<()> {
        Ok(epoll::add(&self.epoll, fd, epoll::EventData::new_u64(source.token()), flags)?)
    }

    /// Changes the events of a device; an existing one is reported at once.
    pub(crate) fn change(&self, fd: impl AsFd, lane: u32, interest: Interest) -> std::io::Result<()> {
        let data = epoll::EventData::new_u64(Source::Device(lane).token());
        Ok(epoll::modify(&self.epoll, fd, data, interest.flags())?)
    }

    pub(crate) fn forget(&self, fd: BorrowedFd<'_>) {
        // The only error is that the descriptor is not registered.
        let _ = epoll::delete(&self.epoll, fd);
    }

    /// Returns the events; waits for one if `may_sleep`.
    pub(crate) fn wait(&self, may_sleep: bool) -> ArrayVec<Source, EVENTS_MAX> {
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        let mut buffer = [MaybeUninit::uninit(); EVENTS_MAX];
        match epoll::wait(&self.epoll, &mut buffer, (!may_sleep).then_some(&at_once)) {
            Ok((events, _)) => events.iter().map(source).collect(),
            // An interrupted wait returns no events.
            Err(_) => ArrayVec::new(),
        }
    }
}

fn source(event: &epoll::Event) -> Source {
    let (token, flags) = (event.data.u64(), event.flags);
    Source::of_event(token, flags.contains(epoll::EventFlags::ERR))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_tell_sources_apart() {
        for lane in [0, 1, 77, u32::MAX] {
            for source in [Source::Bell, Source::Device(lane), Source::Call(lane), Source::Session(lane)] {
                assert_eq!(Source::of_event(source.token(), false), source);
            }
            let fault = Source::DeviceFault(lane);
            assert_eq!(Source::of_event(fault.token(), true), fault);
        }
    }
}
