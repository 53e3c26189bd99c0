//! The form of records for the next supervisor, as they stand in the service manager's store.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use lasthop_api::acl::AclRule;
use lasthop_api::fdb::StaticEntry;
use lasthop_api::port::PortSpec;
use lasthop_api::switches::{SwitchName, SwitchSpec};
use lasthop_api::vnic::{Name, VnicSpec};
use lasthop_fd_store::FdIdentity;

/// Of the records. A supervisor that knows another one begins anew.
pub(super) const RECORD_VERSION: u64 = 1;

/// The record of everything that exists once.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct HeadRecord {
    pub(super) version: u64,
    /// Of switch processes' reports on sessions.
    pub(super) state: u64,
    /// The supervisor.
    pub(super) pid: u32,
    /// The switch process; two must never serve the same guest.
    pub(super) process: Option<FdIdentity>,
    pub(super) control: Option<Listening>,
    /// Those beside the default one.
    pub(super) switches: Vec<SwitchSpec>,
    pub(super) fdb: Vec<StaticEntry>,
    #[serde(default)]
    pub(super) acl: Vec<AclRule>,
    /// The last report of a switch process about datapaths.
    #[serde(default)]
    pub(super) datapaths: Option<Value>,
    /// The memory in which switch processes leave flows.
    #[serde(default)]
    pub(super) flows: Option<FdIdentity>,
    #[serde(rename = "told")]
    pub(super) configured: ConfiguredNames,
}

/// A socket, and device and inode of its file.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Listening {
    pub(super) socket: FdIdentity,
    pub(super) file: (u64, u64),
}

/// Switches and ports that file and flags named; the rest was added by hand.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct ConfiguredNames {
    pub(super) switches: Vec<SwitchName>,
    pub(super) ports: Vec<Name>,
    pub(super) fdb: Vec<StaticEntry>,
    #[serde(default)]
    pub(super) acl: Vec<AclRule>,
}

/// One port.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct PortRecord {
    pub(super) spec: VnicSpec,
    pub(super) device: Option<PortSpec>,
    pub(super) listening: Option<Listening>,
    #[serde(rename = "estate")]
    pub(super) saved_session: Option<SavedSessionRecord>,
    pub(super) book: Option<FdIdentity>,
    /// Counters before the book.
    pub(super) past: BTreeMap<String, u64>,
    /// When they began, in milliseconds since 1970.
    #[serde(default)]
    pub(super) since_ms: Option<u64>,
    /// A controller asked for it, and asks again: nothing is kept but its counters.
    #[serde(default)]
    pub(super) is_requested: bool,
}

/// One guest's session.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct SavedSessionRecord {
    pub(super) attachment: u64,
    pub(super) connection: FdIdentity,
    pub(super) memory: FdIdentity,
    pub(super) session: Value,
    pub(super) fds: BTreeMap<u32, FdIdentity>,
}
