//! The interface of back ends: one queue of a device.

use std::fmt::Debug;
use std::os::fd::BorrowedFd;

use lasthop_frontend::{GuestError, VnicPair};
use thiserror::Error;

use lasthop_device::{DeviceDropReason, DriverCounters};

/// The properties of the vNIC that a back end needs, for each queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Needs {
    /// Entries of the ring for frames to the device; a power of two.
    pub rx_entries: u16,
    /// Entries of the ring for frames from the device; a power of two.
    pub tx_entries: u16,
    /// Bytes of the buffers.
    pub arena_bytes: u32,
}

/// The state of a queue after a visit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// There is nothing more now.
    Idle,
    /// There may be more: the visit moved as much as it may.
    More,
    /// There is more, and no room for it. [`Queue::receive`]: the switch has all buffers, and must return one.
    /// [`Queue::send`]: the device is full, and must become writable.
    Blocked,
}

/// The result of a visit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Visit {
    /// Frames that were moved or dropped.
    pub frames: usize,
    /// The state after the visit.
    pub next: Next,
}

/// The reason why a queue cannot continue.
#[derive(Debug, Error)]
pub enum QueueError {
    /// The device is gone: its descriptor will never work again.
    #[error("the device is gone")]
    DeviceGone,
    /// The switch violated the rules of a ring.
    #[error(transparent)]
    Vnic(#[from] GuestError),
    /// The kernel fills no slot of the socket's ring any more, and drops all frames.
    #[error("a frame whose offloads have no virtio-net header stopped the packet socket's ring")]
    RingStopped,
    /// The kernel returned an error for the device's descriptor that is not known to be transient.
    #[error("the device failed: {0}")]
    Failed(rustix::io::Errno),
}

/// A back end: one queue of one device with one queue pair of the port's vNIC. The I/O thread decides when to move
/// frames, the back end knows how.
///
/// The back end manages the buffers: it has the pair's arena ([`VnicPair::arena`]) and decides which parts are lent to
/// the switch. So the kernel can write a frame where the switch will read it, and vice versa.
///
/// ```text
///   device --receive--> arena --lend on tx, taken back when the switch has copied it--> switch
///   device <---send---- arena <--lent on rx beforehand, taken back with a frame in it-- switch
/// ```
///
/// The I/O thread publishes and kicks: a back end lends and takes back buffers, and does not flush. Nothing here waits.
pub trait Queue: Debug + Send {
    /// The device's descriptor. The I/O thread waits for it edge-triggered: for input, and for output after
    /// [`Next::Blocked`].
    fn fd(&self) -> BorrowedFd<'_>;

    /// Starts with fresh rings: the back end has all buffers, and lends the switch those to write to. It forgets frames
    /// that waited for room, which the caller has counted. It drops frames that waited at the device without a switch
    /// as [`DeviceDropReason::NoSwitch`]. Called before all other methods, and for each new switch.
    ///
    /// # Errors
    /// [`QueueError`].
    fn start(&mut self, pair: &mut VnicPair, counters: &mut DriverCounters) -> Result<(), QueueError>;

    /// Moves a batch from the device to the switch.
    ///
    /// # Errors
    /// [`QueueError`]; frames that moved before are counted.
    fn receive(&mut self, pair: &mut VnicPair, counters: &mut DriverCounters) -> Result<Visit, QueueError>;

    /// Moves a batch from the switch to the device.
    ///
    /// # Errors
    /// As [`Self::receive`].
    fn send(&mut self, pair: &mut VnicPair, counters: &mut DriverCounters) -> Result<Visit, QueueError>;

    /// Drops a batch from the switch for `reason`, since the device is gone, and the frames that waited for the device.
    ///
    /// # Errors
    /// [`QueueError::Vnic`].
    fn discard(
        &mut self,
        pair: &mut VnicPair,
        counters: &mut DriverCounters,
        reason: DeviceDropReason,
    ) -> Result<Visit, QueueError>;

    /// Finds out why the device signalled, after [`Self::receive`] found no frame, or what error it has. For back ends whose frames come without a system
    /// call: others hear of it by the call.
    ///
    /// # Errors
    /// [`QueueError`].
    fn check(&mut self, counters: &mut DriverCounters) -> Result<(), QueueError> {
        let _ = counters;
        Ok(())
    }

    /// Whether the device's events say something that visits with frames in either direction do not.
    fn is_heard_while_busy(&self) -> bool {
        true
    }

    /// Number of frames that the kernel dropped since the last call, because they were not read in time.
    fn missed(&mut self) -> u64;
}
