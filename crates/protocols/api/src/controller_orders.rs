//! Messages between supervisor and controller process.

use serde::{Deserialize, Serialize};

use crate::acl::AclRule;
use crate::explain::{Consultation, ConsultedKey};
use crate::facts::MoveFacts;
use crate::fdb::{Flush, StaticEntry};
use crate::leases::PortLeases;
use crate::orders::SwitchPort;
use crate::pair_flows::PairFlows;
use crate::report::{FdbReport, SwitchInside};
use crate::switches::SwitchName;
use lasthop_runtime::sandbox::{ForbiddenCall, Layer};

/// Connections of the controller process to the switch process.
pub const LINKS: usize = 2;

/// A switch of module flow, for the controller.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ControlledSwitch {
    pub name: SwitchName,
    /// Largest number of addresses that it may learn.
    pub addresses_max: usize,
    /// Flows of a port from which on others are made by address.
    #[serde(default)]
    pub pair_flows: PairFlows,
    /// Its ports, as far as the switch process has them.
    pub ports: Vec<SwitchPort>,
    pub fdb: Vec<StaticEntry>,
    /// Rules about connections of these ports, in order.
    #[serde(default)]
    pub acl: Vec<AclRule>,
    /// Addresses that DHCP servers gave to those of its ports that are new to this controller process; it knows others itself.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub leases: Vec<PortLeases>,
}

impl ControlledSwitch {
    /// Adds the leases, among all, of its ports that are new: not in the switches that the process was told of.
    pub fn add_leases<'a>(&mut self, told: &[Self], all: impl Iterator<Item = &'a PortLeases>) {
        let has = |switch: &Self, leases: &PortLeases| {
            switch.ports.iter().any(|port| port.common.name == leases.port)
        };
        let is_new =
            |leases: &&PortLeases| has(self, leases) && !told.iter().any(|switch| has(switch, leases));
        self.leases = all.filter(is_new).cloned().collect();
    }
}

/// An order of the supervisor.
#[derive(Debug, Serialize, Deserialize)]
pub enum ControllerOrder {
    /// The attached descriptors are connections to the switch process, possibly another one than before.
    Connect,
    /// All switches to serve.
    Switches(Vec<ControlledSwitch>),
    /// Forget learned addresses.
    Flush { round: u64, flush: Flush },
    /// Report all addresses and counters.
    Tell { round: u64 },
    /// Report when the flows agree with all earlier orders.
    Settle { round: u64 },
    /// Explain the answers to upcalls with these keys at a switch. Nothing is learned, and no flow made.
    Consult { round: u64, switch: SwitchName, keys: Vec<ConsultedKey> },
    /// Give a sign of life.
    Live { round: u64 },
    /// Answer all packets that have come, and end.
    Finish,
}

/// A message of the controller process.
#[derive(Debug, Serialize, Deserialize)]
pub enum ControllerReport {
    /// The answer to [`ControllerOrder::Flush`], with the number of forgotten addresses.
    Flushed { round: u64, flushed: usize },
    /// The answer to [`ControllerOrder::Settle`].
    Settled { round: u64 },
    /// The answer to [`ControllerOrder::Consult`].
    Consulted { round: u64, consultations: Vec<Consultation> },
    /// The answer to [`ControllerOrder::Live`].
    Alive { round: u64 },
    /// Part of the answer to [`ControllerOrder::Tell`]: addresses before the last part.
    Addresses { round: u64, fdb: FdbReport },
    /// The answer to [`ControllerOrder::Tell`], with the last addresses.
    #[serde(rename = "Told")]
    Answer { round: u64, fdb: FdbReport, moves: Vec<MoveFacts>, switches: Vec<SwitchInside> },
    /// The addresses that DHCP servers gave to a port have changed.
    Leases { switch: SwitchName, leases: PortLeases },
    /// The connections of this order to connect (the number of such orders so far) have ended, or never worked. They
    /// will not be used any more.
    Disconnected { connection: u64 },
    /// A line for the log.
    Said(String),
    /// The layers of its sandbox, reported before it had any connection.
    Sandbox(Vec<Layer>),
    /// It made a system call that its sandbox does not allow, and ends.
    Forbidden(ForbiddenCall),
    /// It cannot continue, and ends.
    Failed { why: String },
}
