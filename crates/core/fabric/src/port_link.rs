//! Links of ports: up or down, as the operator sets them.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use lasthop_module_api::DropReason;

/// A port's link as the operator set it, and the queues that its guest has open.
///
/// Packets read neither; they read the bits of [`crate::board`]: the guest's queues while the link is up,
/// none while it is down. So a link that is up costs nothing.
#[derive(Debug, Default)]
pub(crate) struct PortLink {
    is_down: AtomicBool,
    /// Receive and transmit queues that the guest has open, as bits. Locked for changes only, never for a
    /// packet.
    wanted: Mutex<(u64, u64)>,
}

impl PortLink {
    fn wanted(&self) -> MutexGuard<'_, (u64, u64)> {
        self.wanted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn set_up(&self, up: bool) {
        let _changing = self.wanted();
        self.is_down.store(!up, Ordering::Relaxed);
    }

    /// The reason for a packet that does not pass: `other`, unless the link is down.
    pub(crate) fn or(&self, other: DropReason) -> DropReason {
        if self.is_down.load(Ordering::Relaxed) { DropReason::LinkDown } else { other }
    }

    /// Changes the guest's open queues. `show` gets the queues that are open with regard to the link, under
    /// the lock.
    pub(crate) fn update(&self, change: impl FnOnce(&mut (u64, u64)), show: impl FnOnce((u64, u64))) {
        let mut wanted = self.wanted();
        change(&mut wanted);
        let is_down = self.is_down.load(Ordering::Relaxed);
        show(if is_down { (0, 0) } else { *wanted });
    }

    /// Whether the guest has receive or transmit queue `queue` open, with the link up or down.
    pub(crate) fn is_wanted(&self, queue: usize, transmit: bool) -> bool {
        let (receive, sends) = *self.wanted();
        (if transmit { sends } else { receive }) >> queue & 1 != 0
    }
}
