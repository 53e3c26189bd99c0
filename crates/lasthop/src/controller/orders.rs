//! What supervisor and controller process say to each other.

use serde::{Deserialize, Serialize};

use crate::doctor::facts::MoveFacts;
use crate::fdb::{Flush, StaticEntry};
use crate::orders::SwitchPort;
use crate::report::{FdbReport, SwitchInside};
use crate::sandbox::{ForbiddenCall, Layer};
use crate::switches::SwitchName;

/// A switch of module flow, as the controller is told of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct ControlledSwitch {
    pub(crate) name: SwitchName,
    /// Addresses that it may learn.
    pub(crate) addresses_max: usize,
    /// Those that the switch process has.
    pub(crate) ports: Vec<SwitchPort>,
    pub(crate) fdb: Vec<StaticEntry>,
}

/// From the supervisor.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum ControllerOrder {
    /// The attached descriptors are connections to the switch process, which may be another one than before.
    Connect,
    /// All switches that are to be served.
    Switches(Vec<ControlledSwitch>),
    /// Forget learned addresses.
    Flush { round: u64, flush: Flush },
    /// Tell all addresses, and what happened so far.
    Tell { round: u64 },
    /// Give a sign of life.
    Live { round: u64 },
}

/// From the controller process.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum ControllerReport {
    /// The answer to [`ControllerOrder::Flush`]: so many addresses were forgotten.
    Flushed { round: u64, flushed: usize },
    /// The answer to [`ControllerOrder::Live`].
    Alive { round: u64 },
    /// Part of the answer to [`ControllerOrder::Tell`]: addresses that come before others.
    Addresses { round: u64, fdb: FdbReport },
    /// The answer to [`ControllerOrder::Tell`], with the last addresses.
    Told { round: u64, fdb: FdbReport, moves: Vec<MoveFacts>, switches: Vec<SwitchInside> },
    /// The connections that came with so many orders to connect, this one included, are over: the other side has closed one, or they
    /// never were. Nothing comes of them any more.
    Disconnected { connection: u64 },
    /// A sentence for the log.
    Said(String),
    /// What it could give up, before it had any connection.
    Sandbox(Vec<Layer>),
    /// It made a system call that its sandbox does not allow, and ends.
    Forbidden(ForbiddenCall),
    /// It cannot go on and ends.
    Failed { why: String },
}
