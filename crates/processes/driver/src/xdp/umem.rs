//! The UMEM of a queue: frames move between the kernel, the switch and this process.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use arrayvec::ArrayVec;
use rustix::io::Errno;
use rustix::net::sockopt;

use super::frames::{Frames, Holder, Way};
use super::rings::{Broken, Frame};
use super::socket::{Rings, XdpBinding};
use crate::QueueError;
use crate::bounds::{XDP_BATCH, XDP_WAKES_MAX};
use lasthop_device::DeviceDropReason;

/// Bytes of the shortest possible frame: an Ethernet header.
const FRAME_BYTES_MIN: u32 = 14;

impl From<Broken> for QueueError {
    fn from(_: Broken) -> Self {
        Self::Failed(Errno::PROTO)
    }
}

/// The meaning of a socket's error for the device.
fn failed(error: Errno) -> QueueError {
    match error {
        Errno::NETDOWN | Errno::NXIO | Errno::NODEV => QueueError::DeviceGone,
        error => QueueError::Failed(error),
    }
}

/// A received frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Received {
    pub(super) frame: u32,
    /// Offset of its first byte in the UMEM.
    pub(super) at: u32,
    pub(super) len_bytes: u32,
}

/// The memory that a queue shares with the kernel, and all exchange between the two.
#[derive(Debug)]
pub(super) struct Umem {
    pub(super) frames: Frames,
    socket: OwnedFd,
    /// `None` before it is bound.
    rings: Option<Rings>,
    /// The kernel's count of dropped frames at the last read.
    missed: u64,
}

impl Umem {
    pub(super) fn new(frames: Frames, socket: OwnedFd) -> Self {
        Self { frames, socket, rings: None, missed: 0 }
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Binds the socket once.
    ///
    /// # Errors
    /// [`QueueError::DeviceGone`], [`QueueError::Failed`].
    pub(super) fn bind(&mut self, binding: XdpBinding) -> Result<(), QueueError> {
        if self.rings.is_none() {
            self.rings = Some(Rings::bind(self.socket.as_fd(), binding).map_err(failed)?);
        }
        Ok(())
    }

    fn rings(&mut self) -> Result<&mut Rings, QueueError> {
        self.rings.as_mut().ok_or(QueueError::DeviceGone)
    }

    /// Gives the kernel all own frames for reception.
    pub(super) fn fill_all(&mut self) -> Result<(), QueueError> {
        for frame in Frames::of(Way::Receiving) {
            self.fill(frame)?;
        }
        self.show_filled()
    }

    /// Gives the kernel an own frame for reception; published by [`Self::show_filled`].
    pub(super) fn fill(&mut self, frame: u32) -> Result<(), QueueError> {
        let place = u64::from(self.frames.place(frame));
        if self.frames.pass(frame, Way::Receiving, Holder::Us, Holder::Kernel) {
            self.rings()?.fill.put(place);
        }
        Ok(())
    }

    pub(super) fn show_filled(&mut self) -> Result<(), QueueError> {
        let socket = self.socket.as_fd();
        let Some(rings) = &mut self.rings else { return Ok(()) };
        if rings.fill.publish() > 0 { rings.wake_to_receive(socket).map_err(failed) } else { Ok(()) }
    }

    /// Reads the entries of the next received frames, and whether there are more than [`XDP_BATCH`]. They are read before any
    /// frame is used: another CPU wrote them, and so the waits for its cache lines overlap.
    pub(super) fn take_entries(&mut self) -> Result<(ArrayVec<Frame, XDP_BATCH>, bool), QueueError> {
        let receive = &mut self.rings()?.receive;
        let waiting = receive.pending()? as usize;
        let entries = (0..waiting.min(XDP_BATCH)).map(|_| receive.take()).collect();
        Ok((entries, waiting > XDP_BATCH))
    }

    /// The frame of a received entry. For an invalid one it returns the length and the reason; the frame went back to the
    /// kernel if the kernel held it.
    pub(super) fn take(
        &mut self,
        told: Frame,
    ) -> Result<Result<Received, (u32, DeviceDropReason)>, QueueError> {
        let Some(frame) = self.frames.at(told.addr) else {
            return Ok(Err((told.len_bytes, DeviceDropReason::Truncated)));
        };
        if !self.frames.pass(frame, Way::Receiving, Holder::Kernel, Holder::Us) {
            return Ok(Err((told.len_bytes, DeviceDropReason::Truncated)));
        }
        if !self.is_whole(frame, told) {
            self.fill(frame)?;
            return Ok(Err((told.len_bytes, DeviceDropReason::Truncated)));
        }
        let at = told.addr as u32; // the frame's place is below 2^32, see `Frames::at`
        Ok(Ok(Received { frame, at, len_bytes: told.len_bytes }))
    }

    /// Whether the frame is inside its slot, behind room for a virtio-net header, and in one slot only.
    fn is_whole(&self, frame: u32, told: Frame) -> bool {
        const CONTINUED: u32 = 1; // XDP_PKT_CONTD (linux/if_xdp.h)
        let place = u64::from(self.frames.place(frame));
        let end = told.addr + u64::from(told.len_bytes);
        told.addr >= place + u64::from(super::HEADER)
            && end <= place + u64::from(self.frames.place_bytes())
            && told.len_bytes >= FRAME_BYTES_MIN
            && told.options & CONTINUED == 0
    }

    /// Releases the ring entries of taken frames to the kernel.
    pub(super) fn release_received(&mut self) {
        if let Some(rings) = &mut self.rings {
            rings.receive.release();
        }
    }

    /// Gives the kernel an own frame to send, with this length; published by [`Self::show_sent`].
    pub(super) fn send(&mut self, frame: u32, len_bytes: u32) -> Result<(), QueueError> {
        let addr = u64::from(self.frames.sending_at(frame));
        if self.frames.pass(frame, Way::Sending, Holder::Us, Holder::Kernel) {
            self.rings()?.transmit.put(Frame { addr, len_bytes, options: 0 });
        }
        Ok(())
    }

    /// Publishes the frames to send, and wakes the kernel until it has seen all or requests no wake-up. Returns whether
    /// it has seen all.
    pub(super) fn show_sent(&mut self) -> Result<bool, QueueError> {
        let socket = self.socket.as_fd();
        let rings = self.rings.as_mut().ok_or(QueueError::DeviceGone)?;
        rings.transmit.publish();
        // In copy mode the kernel sends 32 frames a call.
        for _ in 0..XDP_WAKES_MAX {
            let before = rings.transmit.waiting()?;
            if before == 0 || rings.wake_to_send(socket).map_err(failed)? {
                return Ok(true);
            }
            if rings.transmit.waiting()? == before {
                return Ok(false);
            }
        }
        Ok(false)
    }

    /// Takes the next frame that the kernel has sent. Skips frames that the kernel did not hold.
    pub(super) fn take_sent(&mut self) -> Result<Option<u32>, QueueError> {
        loop {
            let completion = &mut self.rings()?.completion;
            if completion.pending()? == 0 {
                completion.release();
                return Ok(None);
            }
            let addr = completion.take();
            if let Some(frame) = self.frames.at(addr)
                && self.frames.pass(frame, Way::Sending, Holder::Kernel, Holder::Us)
            {
                return Ok(Some(frame));
            }
        }
    }

    /// Number of frames that the kernel dropped since the last call, because earlier ones were not read.
    pub(super) fn missed(&mut self) -> u64 {
        let Ok(told) = sockopt::xdp_statistics(&self.socket) else { return 0 };
        let now = told.rx_dropped + told.rx_ring_full.unwrap_or(0);
        now.wrapping_sub(std::mem::replace(&mut self.missed, now))
    }
}
