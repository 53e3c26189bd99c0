//! A device port as it is set up and how it is, as JSON has it (docs/user/control-api.md).

use std::collections::BTreeMap;

use lasthop_device::{DeviceDropReason, DriverCounters, FrameCount};
use serde::{Deserialize, Serialize};

use crate::port::PortSpec;

use super::{Ended, PortReport};

/// One device port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DevicePortReport {
    /// Its name.
    pub name: String,
    /// The requested settings.
    pub settings: PortSpec,
    /// A controller asked for it, and takes it away again.
    #[serde(default)]
    pub requested: bool,
    /// The network device.
    pub device: String,
    /// `up`, or the missing part.
    pub state: String,
    /// More about that, with the remedy.
    pub why: Option<String>,
    /// The back end in use, and why it was chosen.
    pub backend: Option<lasthop_device::Backend>,
    /// Why that back end was chosen.
    pub backend_why: Option<String>,
    /// Of the device, in bytes.
    pub mtu: Option<u32>,
    /// The device's Ethernet address.
    pub mac: Option<String>,
    /// Whether the device is up and has a carrier.
    pub has_link: bool,
    /// Whether the device is a port of a Linux bridge, too.
    #[serde(default)]
    pub is_of_bridge: bool,
    /// Virtio features that the driver process and the switch agreed on.
    pub features: Vec<String>,
    /// The driver process.
    pub driver: DriverFacts,
    /// Between the device and the switch, since the driver process was started.
    pub counters: DeviceCounters,
    /// In the switch; null while there is no switch process.
    pub inside: Option<PortReport>,
    /// Settings that will disappoint, one sentence each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}

/// The driver process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DriverFacts {
    /// Null while it is being started again.
    pub pid: Option<u32>,
    /// Times that it had to be started again.
    pub restarts: u64,
    /// How the last driver process ended.
    pub last_end: Option<Ended>,
}

/// Frames between a device and the switch.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceCounters {
    /// Taken from the device.
    pub from_device: FrameCount,
    /// Delivered to the switch.
    pub to_switch: FrameCount,
    /// Taken from the switch.
    pub from_switch: FrameCount,
    /// Delivered to the device.
    pub to_device: FrameCount,
    /// Dropped by the kernel, because they were not taken in time.
    pub missed: u64,
    /// Dropped by the driver process, by reason.
    pub drops: BTreeMap<String, u64>,
    /// Frames that wait for room at the device.
    pub waiting: u64,
    /// Every frame is delivered, dropped for a reason, or waiting.
    pub conserved: bool,
}

impl From<&DriverCounters> for DeviceCounters {
    fn from(counters: &DriverCounters) -> Self {
        let drops = DeviceDropReason::ALL
            .into_iter()
            .map(|reason| (reason.name().to_owned(), counters.dropped(reason)));
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
pub struct DevicePortList {
    /// One per device port.
    pub ports: Vec<DevicePortReport>,
}
