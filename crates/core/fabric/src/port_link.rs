//! Link state of ports, as the operator sets it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use lasthop_module_api::DropReason;

/// A port's link state, and the queues that its guest has open.
///
/// The data path reads neither. It reads the bits of [`crate::board`], which are the guest's queues while the link is
/// up and none while it is down. So the link state costs nothing per packet.
#[derive(Debug, Default)]
pub(crate) struct PortLink {
    is_down: AtomicBool,
    /// The guest's open receive and transmit queues, as bits. Locked for changes only, never per packet.
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

    /// The drop reason for a packet that cannot pass: `link_down` if the link is down, else `other`.
    pub(crate) fn or(&self, other: DropReason) -> DropReason {
        if self.is_down.load(Ordering::Relaxed) { DropReason::LinkDown } else { other }
    }

    /// Changes the guest's open queues. Calls `show` under the lock with the queues that are open given the link state.
    pub(crate) fn update(&self, change: impl FnOnce(&mut (u64, u64)), show: impl FnOnce((u64, u64))) {
        let mut wanted = self.wanted();
        change(&mut wanted);
        let is_down = self.is_down.load(Ordering::Relaxed);
        show(if is_down { (0, 0) } else { *wanted });
    }

    /// Whether the guest has receive or transmit queue `queue` open, whether the link is up or down.
    pub(crate) fn is_wanted(&self, queue: usize, transmit: bool) -> bool {
        let (receive, sends) = *self.wanted();
        (if transmit { sends } else { receive }) >> queue & 1 != 0
    }
}
