//! The outputs of the parts: watched descriptors, orders to the switch process, and records for the next supervisor.

use lasthop_fd_store::RecordStore;
use lasthop_runtime::poller::Poller;

use super::switch_process::SwitchProcess;

/// Used by all other parts, and knows none of them.
pub(super) struct Outputs {
    pub(super) poller: Poller,
    pub(super) switch: SwitchProcess,
    /// The store for the next supervisor.
    pub(super) store: RecordStore,
}
