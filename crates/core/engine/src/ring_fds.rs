//! The eventfds between rings and their guests: kicks, and calls, which any worker may write.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use lasthop_module_api::PortId;
use lasthop_vhost::ForeignFd;
use rustix::io::Errno;

use crate::empty_kicks::KickRecord;

/// The descriptors between a ring and its guest: the call descriptor, and whether there is a kick descriptor.
#[derive(Clone, Debug)]
pub(crate) struct GuestSignals {
    /// Shared, since any worker may deliver.
    pub(crate) call: Option<Arc<CallFd>>,
    /// The guest gave no kick descriptor.
    pub(crate) is_polled: bool,
}

/// A guest's call descriptor.
#[derive(Debug)]
pub(crate) struct CallFd {
    fd: ForeignFd,
    /// Never to be written again, by any worker.
    is_shut: AtomicBool,
}

/// The write to a call descriptor had to wait, and was interrupted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Blocked;

impl CallFd {
    pub(crate) fn new(fd: ForeignFd) -> Self {
        Self { fd, is_shut: AtomicBool::new(false) }
    }

    /// Signals the guest, unless its calls are shut. A saturated eventfd is one that its guest has not read: it will see
    /// the packets when it does.
    ///
    /// # Errors
    /// [`Blocked`]: the descriptor is not non-blocking any more, and was saturated.
    pub(crate) fn signal(&self) -> Result<(), Blocked> {
        if self.is_shut() {
            return Ok(());
        }
        match rustix::io::write(&self.fd, &1_u64.to_ne_bytes()) {
            Err(Errno::INTR) => Err(Blocked),
            _ => Ok(()),
        }
    }

    /// Ends all writes to it. Returns false if that was done before.
    pub(crate) fn shut(&self) -> bool {
        !self.is_shut.swap(true, Ordering::Relaxed)
    }

    pub(crate) fn is_shut(&self) -> bool {
        self.is_shut.load(Ordering::Relaxed)
    }
}

/// A guest's eventfds of one virtqueue, as one worker has them.
#[derive(Debug)]
pub(crate) struct RingFds {
    pub(crate) signals: GuestSignals,
    /// Whether this worker is the ring's home.
    pub(crate) is_home: bool,
    /// At home only.
    pub(crate) kick: Option<ForeignFd>,
    /// Kicks heard, at home.
    pub(crate) kicks: u64,
    pub(crate) record: KickRecord,
}

impl RingFds {
    /// Those of a ring whose kicks are not heard yet.
    pub(crate) fn new(signals: GuestSignals, is_home: bool) -> Self {
        Self { signals, is_home, kick: None, kicks: 0, record: KickRecord::default() }
    }
}

/// By port and index of the virtqueue.
pub(crate) type RingFdMap = HashMap<(PortId, u16), RingFds>;

/// The call descriptors of a port.
pub(crate) fn calls(fds: &RingFdMap, port: PortId) -> impl Iterator<Item = &CallFd> {
    let of_port = fds.iter().filter(move |((owner, _), _)| *owner == port);
    of_port.filter_map(|(_, fds)| fds.signals.call.as_deref())
}
