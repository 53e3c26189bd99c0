//! Reports of the control interface in their JSON form (docs/user/control-api.md).

mod address_parts;
mod port_status;

pub use address_parts::AddressParts;
pub use port_status::{
    Attachment, DeviceCounters, DeviceStatus, DriverFacts, GuestStatus, PortFilter, PortStatus,
    PortStatusList,
};

use std::collections::BTreeMap;

use lasthop_module_api::{PortVlans, Vid};
use serde::{Deserialize, Serialize};

use crate::acl::AclRule;
use crate::fdb::StaticEntry;
use crate::port::change::Change;
use crate::port::{PortCommon, PortSpec, VnicForm};
use crate::sched::{PolicyCounts, QueueHome};
use crate::settings::Settings;
use crate::switches::{ControllerKind, SwitchName, SwitchSpec};
use lasthop_runtime::ipc::FRAME_BYTES_MAX;
use lasthop_runtime::sandbox::{self, Layer};

/// Addresses in one message, of at most 512 bytes each: so no message is too long, even with the largest table.
const ADDRESSES_PER_PART: usize = FRAME_BYTES_MAX / 512;

/// Counters of the whole switch.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StatsReport {
    /// When they were read, in milliseconds since 1970.
    #[serde(default)]
    pub time_ms: u64,
    /// One for each port, and one for the switch itself.
    pub ports: Vec<PortReport>,
    /// One for each worker, by number.
    pub workers: Vec<WorkerReport>,
    /// One for each device port, by number; those of a driver process that does not answer are its last ones.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub devices: Vec<DevicePortReport>,
    /// Restarts of the inner processes, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub restarts: BTreeMap<String, u64>,
    /// The version of the program; empty in a report of the switch process.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub version: String,
}

/// Counters of a device port, since the driver process started.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DevicePortReport {
    /// The port's name.
    pub name: String,
    /// Its counters.
    #[serde(flatten)]
    pub counters: DeviceCounters,
}

impl StatsReport {
    /// The counters without the part of `port.show`, and of one port only if it is named.
    #[must_use]
    pub fn only(mut self, name: Option<&str>) -> Self {
        self.ports.retain(|port| name.is_none_or(|name| port.name == name));
        self.devices.retain(|device| name.is_none_or(|name| device.name == name));
        for port in &mut self.ports {
            port.features.clear();
            port.rings.clear();
            port.guest_mtu = None;
        }
        self
    }

    /// The homes of all running queue pairs.
    #[must_use]
    pub fn queue_homes(&self) -> Vec<QueueHome> {
        let of_port = |port: &PortReport| {
            let home = |ring: &RingReport| {
                Some(QueueHome { port: port.name.clone(), queue: ring.index / 2, worker: ring.worker? })
            };
            port.rings.iter().filter_map(home).collect::<Vec<_>>()
        };
        let mut homes: Vec<QueueHome> = self.ports.iter().flat_map(of_port).collect();
        homes.dedup(); // both rings of a pair
        homes
    }
}

/// The usual end of a connection.
pub const HUNG_UP: &str = "the front end closed the connection";

/// Counters of the workers alone.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkersReport {
    /// One for each worker, by number.
    pub workers: Vec<WorkerReport>,
}

/// Packets by drop reason; reasons that did not occur are omitted.
pub type DropCounts = BTreeMap<String, u64>;

/// A port: "rx" is from the guest, "tx" is to it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortReport {
    /// Its name.
    pub name: String,
    /// The state of its guest, in a word or a sentence.
    pub state: String,
    /// Start of its counters, in milliseconds since 1970; `None` for the start of the switch process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since_ms: Option<u64>,
    /// Packets taken from the guest's transmit rings.
    pub rx_packets: u64,
    /// Their bytes, without virtio-net headers.
    pub rx_bytes: u64,
    /// Number of these that were GSO frames.
    pub rx_gso_packets: u64,
    /// Packets put into the guest's receive rings.
    pub tx_packets: u64,
    /// Their bytes, without virtio-net headers.
    pub tx_bytes: u64,
    /// Number of these that were GSO frames.
    pub tx_gso_packets: u64,
    /// Packets that the switch itself sent.
    pub injected: u64,
    /// Copies beyond the first that floods made of this port's packets.
    pub copies_added: u64,
    /// Segments beyond the first that software segmentation made of them.
    pub segments_added: u64,
    /// Packets of this port that were delivered.
    pub forwarded: u64,
    /// Number of these that caused upcalls.
    #[serde(default)]
    pub upcalls: u64,
    /// Packets to several ports, none of which could receive.
    #[serde(default)]
    pub flooded_to_none: u64,
    /// Packets that wait for receive buffers now.
    pub waiting: u64,
    /// Packets that were copied while they waited.
    #[serde(default)]
    pub detached: u64,
    /// Packets of this port that were dropped, by reason.
    pub rx_drops: DropCounts,
    /// Packets to this port that were dropped, by reason; each is also in its sender's `rx_drops`.
    pub tx_drops: DropCounts,
    /// Checksums completed in software for this guest.
    pub tx_csum_completed: u64,
    /// Times that the guest was signalled.
    pub signals: u64,
    /// Whether each received packet was forwarded, dropped for a reason, flooded to none, or waits.
    pub conserved: bool,
    /// Negotiated virtio features and the rings; shown with the port, not with the counters.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub features: Vec<String>,
    /// Running rings.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rings: Vec<RingReport>,
    /// The MTU that the front end reported, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub guest_mtu: Option<u16>,
}

impl PortReport {
    /// Received frames, with the copies and segments made of them.
    pub fn taken_in(&self) -> u64 {
        self.rx_packets + self.injected + self.copies_added + self.segments_added
    }

    /// Packets of this port that were dropped.
    pub fn dropped(&self) -> u64 {
        self.rx_drops.values().sum()
    }
}

/// A ring of a port: even for receive rings, odd for transmit rings.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RingReport {
    /// Index of the virtqueue.
    pub index: u16,
    /// Entries of the ring.
    pub entries: u16,
    /// Whether it is enabled.
    pub enabled: bool,
    /// The worker that serves it; switch processes of before do not tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker: Option<usize>,
    /// The guest's fault that stopped it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// A worker thread since it started.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerReport {
    /// Its number, from 0.
    pub index: usize,
    /// The worker whose thread serves it: the first one or itself.
    #[serde(default)]
    pub thread: usize,
    /// Set if it did not answer in time: the age, in milliseconds, of the saved counters that are reported.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub age_ms: Option<u64>,
    /// CPU time of its own thread, in nanoseconds, if the system tells.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_ns: Option<u64>,
    /// Number of times that it went to sleep.
    pub sleeps: u64,
    /// Number of times that it polled for events without sleeping.
    pub polls: u64,
    /// Number of times that its thread, polling in vain, offered its core and others took it.
    #[serde(default)]
    pub crowded: u64,
    /// Number of times that others had that core for so long that its thread polled little for a while.
    #[serde(default)]
    pub scarce: u64,
    /// Whether it polls little now, since others have that core. Told for the first worker of a thread.
    #[serde(default)]
    pub is_scarce: bool,
    /// Visits to rings.
    pub visits: u64,
    /// Visits that found packets.
    pub batches: u64,
    /// Batches that found another worker at their receive ring for longer than a short wait.
    #[serde(default)]
    pub contended: u64,
    /// References that were left for that worker.
    #[serde(default)]
    pub left: u64,
    /// Packets that were copied concurrently with another worker.
    #[serde(default)]
    pub leased: u64,
    /// Large frames that it copied in turns with a helper, or as one.
    #[serde(default)]
    pub shared: u64,
    /// Its CPU, if it is a helper.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub helper_cpu: Option<usize>,
    /// References that came back from other workers.
    #[serde(default)]
    pub returned: u64,
    /// Flows that it moved to the receive queue of the queue pair from which their guest sends them.
    #[serde(default)]
    pub steered: u64,
    /// Number of times that it woke another worker.
    #[serde(default)]
    pub wakes: u64,
    /// Decisions by the view of the scheduler; empty without one.
    #[serde(default, skip_serializing_if = "PolicyCounts::is_none")]
    pub policies: PolicyCounts,
}

/// The forwarding tables, by switch and then by address.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FdbReport {
    /// One for each address and VLAN.
    pub entries: Vec<FdbLine>,
    /// Switches with addresses that are left out, as their controller does not answer.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unanswered: Vec<SwitchName>,
}

impl FdbReport {
    /// A table, or a part, that leaves out nothing.
    #[must_use]
    pub fn whole(entries: Vec<FdbLine>) -> Self {
        Self { entries, unanswered: Vec::new() }
    }

    /// Splits the addresses into parts that fit a message each; the last part is separate.
    pub fn in_parts(self) -> (Vec<Self>, Self) {
        let mut last = self.entries;
        let mut parts = Vec::new();
        while last.len() > ADDRESSES_PER_PART {
            let rest = last.split_off(ADDRESSES_PER_PART);
            parts.push(Self::whole(std::mem::replace(&mut last, rest)));
        }
        (parts, Self::whole(last))
    }
}

/// An address and its port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FdbLine {
    /// The switch that knows it.
    pub switch: SwitchName,
    /// The address.
    pub mac: String,
    /// `None` for untagged frames, or for a static entry in all VLANs that its vnic carries.
    #[serde(default)]
    pub vlan: Option<u16>,
    /// The name of its port.
    pub port: String,
    /// Time since it was last seen as a source; 0 for static entries.
    pub age_ms: u64,
    /// Whether it is configured; then it does not age.
    #[serde(rename = "static")]
    pub is_static: bool,
}

/// The number of forgotten addresses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlushReport {
    /// Entries that were removed.
    pub flushed: usize,
}

/// The VLANs that each vnic carries.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VlansReport {
    /// One for each vnic.
    pub vnics: Vec<VnicVlans>,
}

/// The VLANs of one vnic.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VnicVlans {
    /// The name of the vnic.
    pub name: String,
    /// Whether there are no VLAN settings: every frame passes unchanged.
    pub passes_all: bool,
    /// Single VLANs and ranges, by number.
    pub vlans: Vec<VlanReport>,
}

/// A VLAN or a range of them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VlanReport {
    /// The VLAN, or the first of a range: 1 to 4094.
    pub vlan: u16,
    /// The last VLAN of a range, inclusive.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vlan_end: Option<u16>,
    /// `PVID`: untagged frames from the guest belong to it; `Egress Untagged`: frames go to the guest without a tag.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub flags: Vec<String>,
}

impl VlanReport {
    fn untagged(vid: Vid) -> Self {
        let flags = ["PVID", "Egress Untagged"].map(str::to_owned).into();
        Self { vlan: vid.get(), vlan_end: None, flags }
    }

    fn tagged(first: u16, last: u16) -> Self {
        Self { vlan: first, vlan_end: (last > first).then_some(last), flags: Vec::new() }
    }
}

impl VnicVlans {
    pub fn of(port: &PortCommon) -> Self {
        let (name, vlans) = (port.name.to_string(), port.policy.vlans.clone());
        let passes_all = vlans == PortVlans::Any;
        let vlans = match vlans {
            PortVlans::Any => vec![VlanReport::tagged(1, 4094)],
            PortVlans::Access(vid) => vec![VlanReport::untagged(vid)],
            PortVlans::Trunk { carried, native } => {
                let ranges = carried.map_or_else(
                    || vec![(1, 4094)],
                    |set| set.ranges().iter().map(|(first, last)| (first.get(), last.get())).collect(),
                );
                trunk(ranges, native)
            }
        };
        Self { name, passes_all, vlans }
    }
}

/// Tagged ranges, with the native VLAN as a separate line at its place.
fn trunk(ranges: Vec<(u16, u16)>, native: Option<Vid>) -> Vec<VlanReport> {
    let Some(native) = native else {
        return ranges.into_iter().map(|(first, last)| VlanReport::tagged(first, last)).collect();
    };
    let vid = native.get();
    let around = |(first, last): (u16, u16)| match (first..=last).contains(&vid) {
        true => vec![(first, vid - 1), (vid + 1, last)],
        false => vec![(first, last)],
    };
    let tagged = ranges.into_iter().flat_map(around).filter(|(first, last)| first <= last);
    let tagged = tagged.map(|(first, last)| VlanReport::tagged(first, last));
    let mut all: Vec<_> = tagged.chain([VlanReport::untagged(native)]).collect();
    all.sort_by_key(|vlan| vlan.vlan);
    all
}

/// The changes of `port.set`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SetReport {
    /// The name of the port.
    pub name: String,
    /// One for each key, with the time at which it takes effect.
    pub changes: Vec<Change>,
    /// Whether the attached guest learned its new link state; null if that did not change, or there is no guest.
    pub guest_told: Option<bool>,
}

/// The switch process's state of a switch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SwitchInside {
    /// Its name.
    pub name: SwitchName,
    /// Entries of its forwarding table.
    pub addresses: usize,
    /// Counters of the table's events, by name.
    pub counters: BTreeMap<String, u64>,
    /// Connections of external clients that receive its misses, if its controller is external.
    #[serde(default)]
    pub callers: Vec<u64>,
}

/// A process that is connected to the control interface.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ControlClient {
    /// `None` if the system does not tell, for example in a container.
    pub pid: Option<i32>,
    /// Its name, as in its `comm` (proc(5)).
    pub name: Option<String>,
    /// Time since it connected to this switch process.
    pub connected_ms: u64,
}

impl ControlClient {
    /// `ovs-vswitchd (process 4711), connected for 3 min`
    pub fn text(&self) -> String {
        let name = self.name.as_deref().unwrap_or("a process of another namespace");
        let pid = self.pid.map(|pid| format!(" (process {pid})")).unwrap_or_default();
        format!("{name}{pid}, connected for {}", crate::readable::time(self.connected_ms))
    }
}

/// An event that has ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ended {
    /// How it ended, in words.
    pub why: String,
    /// The time since then, in milliseconds.
    pub ago_ms: u64,
}

/// A switch: its settings and its state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SwitchReport {
    /// Its name.
    pub name: SwitchName,
    /// The name of its module.
    pub module: String,
    /// Slots of its forwarding table; null if its module has none.
    pub fdb_entries: Option<usize>,
    /// Names of its vnics.
    pub vnics: Vec<String>,
    /// Entries of its forwarding table; null while there is no switch process.
    pub addresses: Option<usize>,
    /// Counters of the table's events, by name.
    #[serde(default)]
    pub counters: BTreeMap<String, u64>,
    /// The controller that gets its misses; null if its module has none.
    #[serde(default)]
    pub controller: Option<ControllerKind>,
    /// The connected processes that get its misses, if its controller is external.
    #[serde(default)]
    pub clients: Vec<ControlClient>,
}

/// All switches: the default one, then the others in the order of their creation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SwitchList {
    /// One for each switch.
    pub switches: Vec<SwitchReport>,
}

/// The present configuration of the switch.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConfigReport {
    /// Settings of the program and of the default switch.
    #[serde(flatten)]
    pub settings: Settings,
    /// The other switches, by name.
    #[serde(default)]
    pub switches: Vec<SwitchSpec>,
    /// Ports of every backend, by name.
    #[serde(default)]
    pub ports: Vec<PortSpec>,
    /// The vhost-user ports once more, for programs that only know these.
    #[serde(default)]
    pub vnics: Vec<VnicForm>,
    /// Static entries of the forwarding tables.
    #[serde(default)]
    pub fdb: Vec<StaticEntry>,
    /// Rules about connections, in order.
    #[serde(default)]
    pub acl: Vec<AclRule>,
}

/// Rules about connections.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AclReport {
    /// The rules, in order.
    pub rules: Vec<AclLine>,
}

/// A rule and its ports.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AclLine {
    #[serde(flatten)]
    pub rule: AclRule,
    /// Existing ports, by name.
    pub ports: Vec<String>,
}

impl ConfigReport {
    /// All ports: an older supervisor only reports vhost-user ports, as `vnics`.
    pub fn all_ports(&self) -> impl Iterator<Item = &PortSpec> {
        let is_new = |vnic: &&PortSpec| self.ports.iter().all(|port| port.name() != vnic.name());
        self.ports.iter().chain(self.vnics.iter().map(|VnicForm(vnic)| vnic).filter(is_new))
    }
}

/// The running program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VersionReport {
    /// The version of the program.
    pub version: String,
    /// The process of `lasthop run`.
    pub pid: u32,
    /// The module of the default switch.
    pub module: String,
    /// The driver process, if there is one.
    #[serde(default)]
    pub driver_pid: Option<u32>,
    /// The sandboxes of the inner processes.
    #[serde(default)]
    pub sandboxes: Vec<SandboxReport>,
}

/// The sandbox of an inner process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SandboxReport {
    /// `switch` or `driver`.
    pub process: String,
    /// The requested mode.
    pub mode: sandbox::SandboxMode,
    /// Empty if it has no sandbox.
    pub layers: Vec<Layer>,
}

#[cfg(test)]
mod tests {
    use crate::controller_orders::ControllerReport;
    use crate::orders::Report;

    use super::*;

    #[test]
    fn a_large_table_is_told_whole_in_parts_that_fit() {
        let line = FdbLine {
            switch: "s".repeat(32).parse().expect("a name"),
            mac: "02:00:00:00:00:01".to_owned(),
            vlan: Some(4094),
            port: "p".repeat(32),
            age_ms: u64::MAX,
            is_static: false,
        };
        let count = 150_000;
        let entries =
            (0..count).map(|age_ms| FdbLine { age_ms: u64::MAX - age_ms, ..line.clone() }).collect();
        let whole = FdbReport::whole(entries);
        let (mut parts, last) = whole.clone().in_parts();
        parts.push(last);
        for fdb in parts.clone() {
            let by_controller = ControllerReport::Addresses { round: u64::MAX, fdb: fdb.clone() };
            assert!(serde_json::to_vec(&by_controller).expect("JSON").len() <= FRAME_BYTES_MAX);
            let by_switch = Report::Addresses { id: u64::MAX, fdb };
            assert!(serde_json::to_vec(&by_switch).expect("JSON").len() <= FRAME_BYTES_MAX);
        }
        let told: Vec<FdbLine> = parts.into_iter().flat_map(|part| part.entries).collect();
        assert!(told == whole.entries, "none is missing, and all are in order");
        let (parts, last) = FdbReport::whole(Vec::new()).in_parts();
        assert!(parts.is_empty() && last.entries.is_empty());
    }
}
