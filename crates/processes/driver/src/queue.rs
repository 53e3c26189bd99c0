//! The interface of back ends: one queue of a device.

use std::fmt::Debug;
use std::os::fd::BorrowedFd;

use lasthop_frontend::{GuestError, VnicPair};
use thiserror::Error;

use lasthop_device::{DeviceDropReason, DriverCounters};

/// A back end's requirements for the vNIC, for each queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Needs {
    /// Entries of the ring on which buffers for frames to the device are lent; a power of two.
    pub rx_entries: u16,
    /// Entries of the ring on which frames from the device are lent; a power of two.
    pub tx_entries: u16,
    /// Bytes for buffers.
    pub arena_bytes: u32,
}

/// The state of a queue after a visit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Nothing more is there now.
    Idle,
    /// There may be more: the visit took as much as one may.
    More,
    /// There is more, and no room for it. [`Queue::receive`]: all buffers are at the switch, and one has to come back.
    /// [`Queue::send`]: the device is full, and has to become writable.
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
    /// The device is gone for good: its descriptor will never do anything again.
    #[error("the device is gone")]
    DeviceGone,
    /// The switch broke the rules of a ring.
    #[error(transparent)]
    Vnic(#[from] GuestError),
    /// The system's limit leaves no room for the memory that is shared with the kernel.
    #[error(
        "RLIMIT_MEMLOCK of the driver leaves no room for {0} KiB of its XDP sockets; raise it where lasthop is started (systemd: LimitMEMLOCK=infinity, a shell: ulimit -l unlimited)"
    )]
    LockedMemory(u32),
    /// The kernel failed the device's descriptor in a way that is not known to pass.
    #[error("the device failed: {0}")]
    Failed(rustix::io::Errno),
}

/// One queue of one device with one queue pair of the port's vNIC: a back end's whole work. The seam between the pump, which
/// knows when to do something, and back ends, which know how.
///
/// Buffers are the back end's: it has the pair's arena ([`VnicPair::arena`]) and says which part of it is lent to the switch
/// when. So a back end can have the kernel write a frame right where the switch will read it, and the other way round.
///
/// ```text
///   device --receive--> arena --lend on tx, taken back when the switch has copied it--> switch
///   device <---send---- arena <--lent on rx beforehand, taken back with a frame in it-- switch
/// ```
///
/// The pump publishes and kicks: a back end lends and takes back, and does not flush. Nothing here waits.
pub trait Queue: Debug + Send {
    /// The device's descriptor. It is waited for edge-triggered: for input, and for output after [`Next::Blocked`].
    fn fd(&self) -> BorrowedFd<'_>;

    /// The rings are fresh, and all buffers are the back end's own again: lends the switch buffers to write
    /// to. Frames that waited for room are forgotten; the caller has counted them. Frames that waited at the
    /// device while no switch was attached are dropped as [`DeviceDropReason::NoSwitch`]. Called once before
    /// everything else, and for each new switch.
    ///
    /// # Errors
    /// [`QueueError`].
    fn start(&mut self, pair: &mut VnicPair, counters: &mut DriverCounters) -> Result<(), QueueError>;

    /// A batch from the device to the switch.
    ///
    /// # Errors
    /// [`QueueError`]; frames moved until then are counted.
    fn receive(&mut self, pair: &mut VnicPair, counters: &mut DriverCounters) -> Result<Visit, QueueError>;

    /// A batch from the switch to the device.
    ///
    /// # Errors
    /// As [`Self::receive`].
    fn send(&mut self, pair: &mut VnicPair, counters: &mut DriverCounters) -> Result<Visit, QueueError>;

    /// A batch from the switch to nowhere, for `reason`: the device is gone. Frames that waited for it go, too.
    ///
    /// # Errors
    /// [`QueueError::Vnic`].
    fn discard(
        &mut self,
        pair: &mut VnicPair,
        counters: &mut DriverCounters,
        reason: DeviceDropReason,
    ) -> Result<Visit, QueueError>;

    /// Frames that the kernel dropped since the last call, because they were not read in time.
    fn missed(&mut self) -> u64;
}
