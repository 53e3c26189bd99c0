//! The ways by which parts act: descriptors are watched, the switch process gets orders, and records for the next supervisor are made.

use lasthop_fd_store::RecordStore;
use lasthop_runtime::poller::Poller;

use super::switch_process::SwitchProcess;

/// Below all other parts: knows none of them.
pub(super) struct Outputs {
    pub(super) poller: Poller,
    pub(super) switch: SwitchProcess,
    /// The store for the next supervisor.
    pub(super) store: RecordStore,
}
