//! Messages between supervisor and controller process.

use serde::{Deserialize, Serialize};

use crate::acl::AclRule;
use crate::explain::{Consultation, ConsultedKey};
use crate::facts::MoveFacts;
use crate::fdb::{Flush, StaticEntry};
use crate::orders::SwitchPort;
use crate::report::{FdbReport, SwitchInside};
use crate::switches::SwitchName;
use lasthop_runtime::sandbox::{ForbiddenCall, Layer};

/// Connections of the controller process to the switch process.
pub const LINKS: usize = 2;

/// A switch of module flow, as the controller is told of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ControlledSwitch {
    pub name: SwitchName,
    /// Addresses that it may learn.
    pub addresses_max: usize,
    /// Those that the switch process has.
    pub ports: Vec<SwitchPort>,
    pub fdb: Vec<StaticEntry>,
    /// Rules about connections of these ports, in their order.
    #[serde(default)]
    pub acl: Vec<AclRule>,
}

/// From the supervisor.
#[derive(Debug, Serialize, Deserialize)]
pub enum ControllerOrder {
    /// The attached descriptors are connections to the switch process, which may be another one than before.
    Connect,
    /// All switches that are to be served.
    Switches(Vec<ControlledSwitch>),
    /// Forget learned addresses.
    Flush { round: u64, flush: Flush },
    /// Tell all addresses, and all counts.
    Tell { round: u64 },
    /// Tell when the flows follow all that was told before.
    Settle { round: u64 },
    /// Tell what would be answered for packets of a switch with these keys, and why. Nothing is learned, and no flow made.
    Consult { round: u64, switch: SwitchName, keys: Vec<ConsultedKey> },
    /// Give a sign of life.
    Live { round: u64 },
    /// Answer for all packets that came, and end.
    Finish,
}

/// From the controller process.
#[derive(Debug, Serialize, Deserialize)]
pub enum ControllerReport {
    /// The answer to [`ControllerOrder::Flush`]: this many addresses were forgotten.
    Flushed { round: u64, flushed: usize },
    /// The answer to [`ControllerOrder::Settle`].
    Settled { round: u64 },
    /// The answer to [`ControllerOrder::Consult`].
    Consulted { round: u64, consultations: Vec<Consultation> },
    /// The answer to [`ControllerOrder::Live`].
    Alive { round: u64 },
    /// Part of the answer to [`ControllerOrder::Tell`]: addresses that come before others.
    Addresses { round: u64, fdb: FdbReport },
    /// The answer to [`ControllerOrder::Tell`], with the last addresses.
    #[serde(rename = "Told")]
    Answer { round: u64, fdb: FdbReport, moves: Vec<MoveFacts>, switches: Vec<SwitchInside> },
    /// The connections that came with this many orders to connect, this one included, are over: the other side has closed one, or they
    /// never were. Nothing comes of them any more.
    Disconnected { connection: u64 },
    /// A sentence for the log.
    Said(String),
    /// The layers of its sandbox, before it had any connection.
    Sandbox(Vec<Layer>),
    /// It made a system call that its sandbox does not allow, and ends.
    Forbidden(ForbiddenCall),
    /// It cannot go on and ends.
    Failed { why: String },
}
