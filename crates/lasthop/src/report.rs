//! Reports of the control interface, as JSON has them (docs/user/control-api.md).

use std::collections::BTreeMap;
use std::path::PathBuf;

use lasthop_verdict::{Mac, PortVlans, Vid, VlanSet};
use serde::{Deserialize, Serialize};

use crate::doctor::facts::ControlClient;
use crate::fdb::StaticEntry;
use crate::ipc::FRAME_BYTES_MAX;
use crate::port::PortSpec;
use crate::sandbox::{self, Layer};
use crate::settings::Settings;
use crate::switches::{ControllerKind, SwitchName, SwitchSpec};
use crate::vnic::change::Change;
use crate::vnic::{FeatureSet, Link, MemoryMax, Mode, SocketMode, VnicSpec, mac_text, vid_number, vlan_list};

/// Addresses told in one message, of at most 512 bytes each: so none is longer than a message may be, whatever a table has room for.
const ADDRESSES_PER_PART: usize = FRAME_BYTES_MAX / 512;

/// Counters of the whole switch.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StatsReport {
    /// When they were read, in milliseconds since 1970.
    #[serde(default)]
    pub(crate) time_ms: u64,
    pub(crate) ports: Vec<PortReport>,
    pub(crate) workers: Vec<WorkerReport>,
}

/// How a connection ends as a rule.
pub(crate) const HUNG_UP: &str = "the front end closed the connection";

/// Counters of the workers alone.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct WorkersReport {
    pub(crate) workers: Vec<WorkerReport>,
}

/// Packets by the name of the reason for which they were dropped; reasons that did not occur are left out.
pub(crate) type Drops = BTreeMap<String, u64>;

/// One port: "rx" is from the guest, "tx" is to it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PortReport {
    pub(crate) name: String,
    pub(crate) state: String,
    /// When its counters began, in milliseconds since 1970; none: with the switch process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) since_ms: Option<u64>,
    pub(crate) rx_packets: u64,
    pub(crate) rx_bytes: u64,
    pub(crate) rx_gso_packets: u64,
    pub(crate) tx_packets: u64,
    pub(crate) tx_bytes: u64,
    pub(crate) tx_gso_packets: u64,
    pub(crate) injected: u64,
    pub(crate) copies_added: u64,
    pub(crate) segments_added: u64,
    pub(crate) forwarded: u64,
    #[serde(default)]
    pub(crate) upcalls: u64,
    #[serde(default)]
    pub(crate) flooded_to_none: u64,
    pub(crate) waiting: u64,
    pub(crate) rx_drops: Drops,
    pub(crate) tx_drops: Drops,
    pub(crate) tx_csum_completed: u64,
    pub(crate) signals: u64,
    pub(crate) conserved: bool,
    /// Negotiated virtio features and the rings; shown with the vnic, not with the counters.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) features: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) rings: Vec<RingReport>,
    /// The MTU that the front end told, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) guest_mtu: Option<u16>,
}

impl PortReport {
    /// What came in and was made of it.
    pub(crate) fn taken_in(&self) -> u64 {
        self.rx_packets + self.injected + self.copies_added + self.segments_added
    }

    /// Packets of this port that were dropped.
    pub(crate) fn dropped(&self) -> u64 {
        self.rx_drops.values().sum()
    }
}

/// One ring of a port: even numbers carry to the guest, odd ones from it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RingReport {
    pub(crate) index: u16,
    pub(crate) entries: u16,
    pub(crate) enabled: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) error: Option<String>,
}

/// One worker thread since it started.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct WorkerReport {
    pub(crate) index: usize,
    /// The worker whose thread serves it: the first one, or itself.
    #[serde(default)]
    pub(crate) thread: usize,
    /// Processor time of its own thread, in nanoseconds, if the system tells.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) cpu_ns: Option<u64>,
    /// Times it went to sleep.
    pub(crate) sleeps: u64,
    /// Times it looked for events without sleeping.
    pub(crate) polls: u64,
    /// Times its thread went to sleep since others wanted its core.
    #[serde(default)]
    pub(crate) crowded: u64,
    /// Visits to rings.
    pub(crate) visits: u64,
    /// Visits that found packets.
    pub(crate) batches: u64,
    /// Batches that found another worker at their receive ring for longer than a short look.
    #[serde(default)]
    pub(crate) contended: u64,
    /// References that were left for that worker.
    #[serde(default)]
    pub(crate) left: u64,
    /// Packets that were copied side by side with another worker.
    #[serde(default)]
    pub(crate) leased: u64,
    /// References that came back from other workers.
    #[serde(default)]
    pub(crate) returned: u64,
    /// Times it woke another worker.
    #[serde(default)]
    pub(crate) wakes: u64,
}

/// The forwarding tables, by switch and then by address.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FdbReport {
    pub(crate) entries: Vec<FdbLine>,
}

impl FdbReport {
    /// All addresses in parts that fit into a message each; the last one apart.
    pub(crate) fn in_parts(self) -> (Vec<Self>, Self) {
        let mut last = self.entries;
        let mut parts = Vec::new();
        while last.len() > ADDRESSES_PER_PART {
            let rest = last.split_off(ADDRESSES_PER_PART);
            parts.push(Self { entries: std::mem::replace(&mut last, rest) });
        }
        (parts, Self { entries: last })
    }
}

/// One address and where it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FdbLine {
    /// The switch that knows it.
    pub(crate) switch: SwitchName,
    pub(crate) mac: String,
    /// None: of untagged frames, or a static one for all VLANs that its vnic carries.
    #[serde(default)]
    pub(crate) vlan: Option<u16>,
    pub(crate) port: String,
    /// Since it was last seen as a source; 0 for static ones.
    pub(crate) age_ms: u64,
    #[serde(rename = "static")]
    pub(crate) is_static: bool,
}

/// How many addresses were forgotten.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FlushReport {
    pub(crate) flushed: usize,
}

/// Which VLANs each vnic carries.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct VlansReport {
    pub(crate) vnics: Vec<VnicVlans>,
}

/// The VLANs of one vnic.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct VnicVlans {
    pub(crate) name: String,
    /// No VLAN settings: every frame passes as it is.
    pub(crate) passes_all: bool,
    pub(crate) vlans: Vec<VlanReport>,
}

/// A VLAN or a range of them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct VlanReport {
    pub(crate) vlan: u16,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) vlan_end: Option<u16>,
    /// `PVID`: untagged frames from the guest are in it; `Egress Untagged`: frames go to the guest without a tag.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) flags: Vec<String>,
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
    pub(crate) fn of(spec: &VnicSpec) -> Self {
        let (name, vlans) = (spec.name.to_string(), spec.port_vlans());
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

/// Tagged ranges, with the native VLAN on a line of its own in its place.
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

/// A vnic as it is set up and how it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct VnicReport {
    pub(crate) name: String,
    pub(crate) switch: SwitchName,
    pub(crate) state: String,
    pub(crate) mode: Mode,
    pub(crate) socket: PathBuf,
    #[serde(default, with = "mac_text")]
    pub(crate) mac: Option<Mac>,
    pub(crate) queues: u16,
    pub(crate) mtu: Option<u16>,
    /// How much memory its guest may have; null is the default.
    #[serde(default)]
    pub(crate) memory_max: Option<MemoryMax>,
    pub(crate) features_off: FeatureSet,
    /// Frames per second from its guest that may be flooded; 0 is no limit.
    #[serde(default)]
    pub(crate) storm_broadcast: u32,
    #[serde(default)]
    pub(crate) storm_multicast: u32,
    #[serde(default)]
    pub(crate) storm_unknown: u32,
    #[serde(default, with = "vid_number")]
    pub(crate) vlan: Option<Vid>,
    #[serde(default, with = "vlan_list")]
    pub(crate) trunk: Option<VlanSet>,
    #[serde(default, with = "vid_number")]
    pub(crate) native: Option<Vid>,
    #[serde(default)]
    pub(crate) isolated: bool,
    #[serde(default)]
    pub(crate) link: Link,
    /// Its link is down since no uplink that its switch depends on has one.
    #[serde(default)]
    pub(crate) uplinks_down: bool,
    #[serde(default)]
    pub(crate) socket_mode: Option<SocketMode>,
    #[serde(default)]
    pub(crate) socket_owner: Option<String>,
    #[serde(default)]
    pub(crate) socket_group: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) features: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) rings: Vec<RingReport>,
    /// What the front end of the present or last guest was refused last.
    #[serde(default)]
    pub(crate) last_refusal: Option<String>,
    /// What is set up so that it will disappoint, one sentence each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) warnings: Vec<String>,
}

impl VnicReport {
    /// The vnic in `state`, with nothing negotiated. `socket` is the path in use.
    pub(crate) fn new(spec: &VnicSpec, socket: PathBuf, state: &str) -> Self {
        Self {
            name: spec.name.to_string(),
            switch: spec.switch.clone(),
            state: state.to_owned(),
            mode: spec.mode,
            socket,
            mac: spec.mac,
            queues: spec.queues,
            mtu: spec.mtu,
            memory_max: spec.memory_max,
            features_off: spec.features_off.clone(),
            storm_broadcast: spec.storm_broadcast,
            storm_multicast: spec.storm_multicast,
            storm_unknown: spec.storm_unknown,
            vlan: spec.vlan,
            trunk: spec.trunk.clone(),
            native: spec.native,
            isolated: spec.isolated,
            link: spec.link,
            uplinks_down: false,
            socket_mode: spec.socket_mode,
            socket_owner: spec.socket_owner.clone(),
            socket_group: spec.socket_group.clone(),
            features: Vec::new(),
            rings: Vec::new(),
            last_refusal: None,
            warnings: Vec::new(),
        }
    }
}

/// What `vnic.set` changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SetReport {
    pub(crate) name: String,
    pub(crate) changes: Vec<Change>,
    /// Whether the attached guest learnt of its new link state; null if that did not change, or there is no guest.
    pub(crate) guest_told: Option<bool>,
}

/// All vnics, by name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct VnicList {
    pub(crate) vnics: Vec<VnicReport>,
}

/// What the switch process knows of a switch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SwitchInside {
    pub(crate) name: SwitchName,
    /// Lines of its forwarding table.
    pub(crate) addresses: usize,
    /// What happened to the table so far, by name.
    pub(crate) counters: BTreeMap<String, u64>,
    /// Connections of clients from outside who take its packets of no flow, if its controller is one.
    #[serde(default)]
    pub(crate) askers: Vec<u64>,
}

/// A switch as it is set up and what it knows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SwitchReport {
    pub(crate) name: SwitchName,
    pub(crate) module: String,
    /// Slots of its forwarding table; null if its module has none.
    pub(crate) fdb_entries: Option<usize>,
    /// Names of its vnics.
    pub(crate) vnics: Vec<String>,
    /// Lines of its forwarding table; null while there is no switch process to ask.
    pub(crate) addresses: Option<usize>,
    #[serde(default)]
    pub(crate) counters: BTreeMap<String, u64>,
    /// Whom it asks about packets of no flow; null if its module asks nobody.
    #[serde(default)]
    pub(crate) controller: Option<ControllerKind>,
    /// The processes that are connected and asked, if the controller is an external one.
    #[serde(default)]
    pub(crate) clients: Vec<ControlClient>,
}

/// All switches: the default one, then the others in the order in which they were made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SwitchList {
    pub(crate) switches: Vec<SwitchReport>,
}

/// What the switch was told: at its start, and since.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ConfigReport {
    #[serde(flatten)]
    pub(crate) settings: Settings,
    /// Those beside the default one, by name.
    #[serde(default)]
    pub(crate) switches: Vec<SwitchSpec>,
    pub(crate) vnics: Vec<VnicSpec>,
    #[serde(default)]
    pub(crate) ports: Vec<PortSpec>,
    #[serde(default)]
    pub(crate) fdb: Vec<StaticEntry>,
}

/// Which program is running.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct VersionReport {
    pub(crate) version: String,
    pub(crate) pid: u32,
    pub(crate) module: String,
    /// The driver process, if there is one.
    #[serde(default)]
    pub(crate) driver_pid: Option<u32>,
    #[serde(default)]
    pub(crate) sandboxes: Vec<SandboxReport>,
}

/// The sandbox of one of the inner processes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SandboxReport {
    /// Which one: `switch` or `driver`.
    pub(crate) process: String,
    /// What was asked for.
    pub(crate) mode: sandbox::Mode,
    /// None at all if it has no sandbox.
    pub(crate) layers: Vec<Layer>,
}

#[cfg(test)]
mod tests {
    use crate::controller::ControllerReport;
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
        let whole = FdbReport { entries };
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
        let (parts, last) = FdbReport { entries: Vec::new() }.in_parts();
        assert!(parts.is_empty() && last.entries.is_empty());
    }
}
