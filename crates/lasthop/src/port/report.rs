//! A device port as it is set up and how it is, as JSON has it (docs/user/control-api.md).

use std::collections::BTreeMap;

use lasthop_driver::{Counters, DropReason, Flow};
use serde::{Deserialize, Serialize};

use crate::doctor::facts::Ended;
use crate::report::PortReport;

use super::PortSpec;

/// One device port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct DevicePortReport {
    pub(crate) name: String,
    /// What was asked for.
    pub(crate) settings: PortSpec,
    /// A controller asked for it, and takes it away again.
    #[serde(default)]
    pub(crate) requested: bool,
    /// The network device.
    pub(crate) device: String,
    /// `up`, or what is missing.
    pub(crate) state: String,
    /// More about that, with the remedy.
    pub(crate) why: Option<String>,
    /// The back end in use, and why it was chosen.
    pub(crate) backend: Option<lasthop_driver::Backend>,
    pub(crate) backend_why: Option<String>,
    /// Of the device, in bytes.
    pub(crate) mtu: Option<u32>,
    /// The device's Ethernet address.
    pub(crate) mac: Option<String>,
    /// Whether the device is up and has a carrier.
    pub(crate) has_link: bool,
    /// Whether the device is a port of a Linux bridge, too.
    #[serde(default)]
    pub(crate) is_of_bridge: bool,
    /// Virtio features that the driver process and the switch agreed on.
    pub(crate) features: Vec<String>,
    pub(crate) driver: DriverFacts,
    /// Between the device and the switch, since the driver process was started.
    pub(crate) counters: DeviceCounters,
    /// In the switch; null while there is no switch process.
    pub(crate) inside: Option<PortReport>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) warnings: Vec<String>,
}

/// The driver process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct DriverFacts {
    /// Null while it is being started again.
    pub(crate) pid: Option<u32>,
    /// Times that it had to be started again.
    pub(crate) restarts: u64,
    pub(crate) last_end: Option<Ended>,
}

/// Frames between a device and the switch.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct DeviceCounters {
    pub(crate) from_device: Flow,
    pub(crate) to_switch: Flow,
    pub(crate) from_switch: Flow,
    pub(crate) to_device: Flow,
    /// Dropped by the kernel, because nobody took them in time.
    pub(crate) missed: u64,
    /// Dropped by the driver process, by reason.
    pub(crate) drops: BTreeMap<String, u64>,
    /// Frames that wait for room at the device.
    pub(crate) waiting: u64,
    /// Every frame is delivered, dropped for a reason, or waiting.
    pub(crate) conserved: bool,
}

impl From<&Counters> for DeviceCounters {
    fn from(counters: &Counters) -> Self {
        let drops =
            DropReason::ALL.into_iter().map(|reason| (reason.name().to_owned(), counters.dropped(reason)));
        Self {
            from_device: counters.from_device,
            to_switch: counters.to_switch,
            from_switch: counters.from_switch,
            to_device: counters.to_device,
            missed: counters.missed,
            drops: drops.filter(|(_, count)| *count > 0).collect(),
            waiting: counters.waiting,
            conserved: counters.is_conserved(),
        }
    }
}

/// All device ports, by name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct DevicePortList {
    pub(crate) ports: Vec<DevicePortReport>,
}
