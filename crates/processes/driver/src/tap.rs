//! The back end for taps: `read` and `writev` on the vNIC's memory.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use lasthop_frontend::{GuestError, VnicPair};
use lasthop_wire::vnet::HEADER_BYTES;
use rustix::io::Errno;

use crate::bounds::{BATCH, STALE_FRAMES_MAX};
use crate::inbound::Inbound;
use crate::outbound::{Outbound, Refusal};
use crate::sys::{Arena, read_frame};
use crate::{Next, Queue, QueueError, Visit};
use lasthop_device::{DeviceDropReason, DriverCounters};

/// Bytes of an Ethernet header behind a virtio-net header.
const BYTES_MIN: usize = HEADER_BYTES + 14;

/// One queue of a tap. A tap has no system call for several frames, but at high rates its frames are large.
#[derive(Debug)]
pub(crate) struct TapQueue {
    fd: OwnedFd,
    arena: Arc<Arena>,
    inbound: Inbound,
    outbound: Outbound,
}

/// The result of reading a frame from a tap.
enum Asked {
    /// The frame's length, with the header.
    Frame(usize),
    /// There is no frame.
    Nothing,
    /// A frame was lost.
    Lost,
}

impl TapQueue {
    pub(crate) fn new(fd: OwnedFd, pair: &VnicPair) -> Result<Self, QueueError> {
        let arena = Arc::new(Arena::of(pair).map_err(GuestError::from)?);
        let outbound = Outbound::new(Arc::clone(&arena), HEADER_BYTES);
        Ok(Self { fd, arena, inbound: Inbound::new(), outbound })
    }

    /// Reads a frame into the next free buffer.
    #[inline]
    fn ask(&self) -> Result<Asked, QueueError> {
        let Some(span) = self.inbound.spans().next() else { return Ok(Asked::Nothing) };
        match read_frame(self.fd.as_fd(), &self.arena, span) {
            Ok(len) => Ok(Asked::Frame(len)),
            Err(Errno::AGAIN | Errno::INTR) => Ok(Asked::Nothing),
            // A frame whose offloads cannot be expressed in a virtio-net header.
            Err(Errno::INVAL) => Ok(Asked::Lost),
            Err(Errno::BADFD | Errno::NODEV | Errno::NXIO) => Err(QueueError::DeviceGone),
            Err(error) => Err(QueueError::Failed(error)),
        }
    }

    /// Lends the switch a frame of `len` bytes in the next free buffer.
    #[inline]
    fn pass_on(&mut self, len: usize, pair: &mut VnicPair, counters: &mut DriverCounters) {
        counters.from_device.count(len.saturating_sub(HEADER_BYTES));
        if len < BYTES_MIN {
            counters.drop(DeviceDropReason::Truncated);
        } else if let Some(slot) = self.inbound.take() {
            slot.lend(pair, 0, len as u32); // at most a slot
            counters.to_switch.count(len - HEADER_BYTES);
        }
    }
}

/// The handling of a frame after an error of a tap.
fn refusal(error: Errno) -> Refusal {
    match error {
        Errno::AGAIN => Refusal::Wait,
        Errno::NOBUFS | Errno::NOMEM => Refusal::Drop(DeviceDropReason::DeviceFull),
        Errno::MSGSIZE => Refusal::Drop(DeviceDropReason::TooLong),
        Errno::IO => Refusal::DropAll(DeviceDropReason::DeviceDown), // the interface is not up
        Errno::BADFD | Errno::NODEV | Errno::NXIO => Refusal::Gone,
        _ => Refusal::Drop(DeviceDropReason::Refused),
    }
}

impl Queue for TapQueue {
    fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    fn start(&mut self, pair: &mut VnicPair, counters: &mut DriverCounters) -> Result<(), QueueError> {
        self.inbound.start();
        self.outbound.start(pair);
        for _ in 0..STALE_FRAMES_MAX {
            let len = match self.ask()? {
                Asked::Frame(len) => len,
                Asked::Lost => HEADER_BYTES,
                Asked::Nothing => break,
            };
            counters.from_device.count(len.saturating_sub(HEADER_BYTES));
            counters.drop(DeviceDropReason::NoSwitch);
        }
        Ok(())
    }

    #[inline]
    fn receive(&mut self, pair: &mut VnicPair, counters: &mut DriverCounters) -> Result<Visit, QueueError> {
        self.inbound.reclaim(pair)?;
        for frames in 0..BATCH {
            if self.inbound.room() == 0 {
                return Ok(Visit { frames, next: Next::Blocked });
            }
            match self.ask()? {
                Asked::Frame(len) => self.pass_on(len, pair, counters),
                Asked::Nothing => return Ok(Visit { frames, next: Next::Idle }),
                Asked::Lost => {
                    counters.from_device.count(0);
                    counters.drop(DeviceDropReason::BadOffload);
                }
            }
        }
        Ok(Visit { frames: BATCH, next: Next::More })
    }

    #[inline]
    fn send(&mut self, pair: &mut VnicPair, counters: &mut DriverCounters) -> Result<Visit, QueueError> {
        let fd = self.fd.as_fd();
        self.outbound.pass_on(pair, counters, refusal, |outbox, first| outbox.write(fd, first).map(|_| 1))
    }

    fn discard(
        &mut self,
        pair: &mut VnicPair,
        counters: &mut DriverCounters,
        reason: DeviceDropReason,
    ) -> Result<Visit, QueueError> {
        self.outbound.discard(pair, counters, reason)
    }

    /// The interface's own counters have the frames that a full tap drops.
    fn missed(&mut self) -> u64 {
        0
    }
}
