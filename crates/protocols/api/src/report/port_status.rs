//! A port's settings and state, in their JSON form (docs/user/control-api.md).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use lasthop_device::{DeviceDropReason, DriverCounters, FrameCount};
use lasthop_module_api::Mac;
use serde::{Deserialize, Serialize};

use crate::leases::LeaseReport;
use crate::mac;
use crate::port::{BackendKind, PortCommon, PortSpec, VnicMode};

use super::{Ended, PortReport, RingReport};

/// One port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortStatus {
    /// Its name.
    pub name: String,
    /// The requested settings.
    pub settings: PortSpec,
    /// Whether a controller requested it, and will remove it.
    #[serde(default)]
    pub requested: bool,
    /// The state of its guest, in a word or a sentence; for a port over a device `up`, or the missing part.
    pub state: String,
    /// Details of the state, with the remedy.
    pub why: Option<String>,
    /// Virtio features that the guest, or the driver process, negotiated with the switch.
    #[serde(default)]
    pub features: Vec<String>,
    /// Warnings about settings, one sentence each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
    /// Addresses that DHCP servers gave to it, if it has `addresses=dhcp`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub leases: Vec<LeaseReport>,
    /// Set for a vhost-user port.
    #[serde(flatten)]
    pub guest: Option<GuestStatus>,
    /// Set for a port over a device or a tap.
    #[serde(flatten)]
    pub device: Option<DeviceStatus>,
}

impl PortStatus {
    /// A vhost-user port in `state`, without negotiated features. `socket` is the path in use.
    pub fn of_guest(settings: &PortSpec, socket: PathBuf, state: &str) -> Self {
        let guest = GuestStatus { socket, uplinks_down: false, last_refusal: None, rings: Vec::new() };
        Self {
            name: settings.name().to_string(),
            settings: settings.clone(),
            requested: false,
            state: state.to_owned(),
            why: None,
            features: Vec::new(),
            warnings: Vec::new(),
            leases: Vec::new(),
            guest: Some(guest),
            device: None,
        }
    }

    /// The facts that a VMM needs to attach a guest; `None` for a port over a device.
    pub fn attachment(&self) -> Option<Attachment<'_>> {
        let (guest, backend) = (self.guest.as_ref()?, self.settings.vhost_user()?);
        let common = &self.settings.common;
        let mac = common.policy.mac.unwrap_or_else(|| mac::of_socket(&guest.socket));
        let &PortCommon { queues, mtu, .. } = common;
        Some(Attachment { name: &self.name, socket: &guest.socket, mode: backend.mode, mac, queues, mtu })
    }
}

/// How to attach a guest to a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attachment<'a> {
    /// The port's name.
    pub name: &'a str,
    /// The path of the socket.
    pub socket: &'a Path,
    /// The side that makes the socket.
    pub mode: VnicMode,
    /// The guest's address: the port's, or one generated from the path of its socket.
    pub mac: Mac,
    /// Queue pairs that a guest may use.
    pub queues: u16,
    /// The MTU for the guest, in bytes.
    pub mtu: Option<u16>,
}

/// A guest at its socket.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuestStatus {
    /// The path in use.
    pub socket: PathBuf,
    /// Whether its link is down because no tracked uplink of its switch has one.
    #[serde(default)]
    pub uplinks_down: bool,
    /// The last refused request of the present or last guest's front end.
    #[serde(default)]
    pub last_refusal: Option<String>,
    /// Running rings.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rings: Vec<RingReport>,
}

/// A device and its driver process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceStatus {
    /// The network device.
    pub device: String,
    /// The back end in use.
    pub backend: Option<lasthop_device::Backend>,
    /// Why that back end was chosen.
    pub backend_why: Option<String>,
    /// The device's MTU, in bytes.
    pub mtu: Option<u32>,
    /// The device's Ethernet address.
    pub mac: Option<String>,
    /// Whether the device is up and has a carrier.
    pub has_link: bool,
    /// Whether the device is a port of a Linux bridge, too.
    #[serde(default)]
    pub is_of_bridge: bool,
    /// The driver process.
    pub driver: DriverFacts,
    /// Frames between the device and the switch, since the driver process started.
    pub counters: DeviceCounters,
    /// The port's counters in the switch; null while there is no switch process.
    pub inside: Option<PortReport>,
}

/// The driver process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DriverFacts {
    /// Null while it is being restarted.
    pub pid: Option<u32>,
    /// Number of restarts.
    pub restarts: u64,
    /// The end of the last driver process.
    pub last_end: Option<Ended>,
    /// Why it cannot be asked, if it does not answer; supervisors of before do not tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deaf: Option<String>,
}

/// Frames between a device and the switch.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceCounters {
    /// Received from the device.
    pub from_device: FrameCount,
    /// Delivered to the switch.
    pub to_switch: FrameCount,
    /// Received from the device and joined to a frame before them, which was delivered as one.
    #[serde(default)]
    pub joined: u64,
    /// ICMP errors that were made for packets too long for the path of their tunnel, and delivered to the switch.
    #[serde(default)]
    pub answers: u64,
    /// Packets that were to be answered so, and were not: too many at once, or from a host that had sent nothing.
    #[serde(default)]
    pub withheld: u64,
    /// Fetched from the switch.
    pub from_switch: FrameCount,
    /// Datagrams that large frames from the switch were cut into, but the first of each.
    #[serde(default)]
    pub cut: u64,
    /// Delivered to the device.
    pub to_device: FrameCount,
    /// Dropped by the kernel, because they were not read in time.
    pub missed: u64,
    /// Dropped by the driver process, by reason.
    pub drops: BTreeMap<String, u64>,
    /// Frames that wait for room at the device.
    pub waiting: u64,
    /// Whether every frame was delivered, dropped for a reason, or waits.
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
            joined: counters.joined,
            answers: counters.answers,
            withheld: counters.withheld,
            from_switch: counters.from_switch,
            cut: counters.cut,
            to_device: counters.to_device,
            missed: counters.missed,
            drops: drops.filter(|(_, count)| *count > 0).collect(),
            waiting: counters.waiting,
            conserved: counters.is_conserved(),
        }
    }
}

/// Ports, by name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortStatusList {
    /// One for each port.
    #[serde(alias = "vnics")]
    pub ports: Vec<PortStatus>,
}

/// Selects the ports to list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PortFilter {
    /// Ports with this kind of backend; `None` for all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backend: Option<BackendKind>,
}

impl PortFilter {
    /// Whether a port is listed.
    pub fn takes(self, port: &PortSpec) -> bool {
        self.backend.is_none_or(|kind| port.kind() == kind)
    }
}
