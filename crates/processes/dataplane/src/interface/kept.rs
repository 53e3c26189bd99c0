//! The form in which the supervisor keeps datapaths for the next switch process.
//!
//! The supervisor does not interpret this value. Flows are kept elsewhere (`survival`).

use std::collections::BTreeMap;

use lasthop_conntrack::{CtPolicy, TCP_TIMEOUTS, TcpPolicy};
use lasthop_dpif::TimeoutPolicy;
use lasthop_dpif::datapath::{DatapathId, Meter, Port};
use lasthop_dpif::family::{Band, VportOptions};
use lasthop_dpif::server::DatapathRecord;
use serde::{Deserialize, Serialize};

/// All datapaths, by number.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct KeptDatapaths {
    pub(super) version: u64,
    pub(super) datapaths: BTreeMap<i32, KeptDatapath>,
    /// Settings for the connections of all datapaths.
    #[serde(default)]
    pub(super) connections: KeptCtSettings,
}

/// Limits of zones and timeout policies.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct KeptCtSettings {
    pub(super) default_limit: u32,
    pub(super) limits: BTreeMap<u16, u32>,
    pub(super) policies: Vec<KeptPolicy>,
}

/// See [`TimeoutPolicy`]; times in seconds.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct KeptPolicy {
    name: String,
    l3: u16,
    l4: u8,
    tcp: [u32; TCP_TIMEOUTS],
    /// Without and with replies.
    udp: [u32; 2],
    icmp: u32,
    icmpv6: u32,
}

impl KeptPolicy {
    pub(super) fn of(policy: &TimeoutPolicy) -> Self {
        let TimeoutPolicy { name, l3, l4, timeouts } = policy;
        Self {
            name: name.clone(),
            l3: *l3,
            l4: *l4,
            tcp: timeouts.tcp.timeouts_s,
            udp: [timeouts.udp_single_s, timeouts.udp_multiple_s],
            icmp: timeouts.icmp_s,
            icmpv6: timeouts.icmpv6_s,
        }
    }

    pub(super) fn policy(self) -> TimeoutPolicy {
        let Self { name, l3, l4, tcp: timeouts_s, udp: [udp_single_s, udp_multiple_s], icmp, icmpv6 } = self;
        let tcp = TcpPolicy { timeouts_s, ..CtPolicy::LINUX.tcp };
        let (icmp_s, icmpv6_s) = (icmp, icmpv6);
        let timeouts = CtPolicy { tcp, udp_single_s, udp_multiple_s, icmp_s, icmpv6_s, ..CtPolicy::LINUX };
        TimeoutPolicy { name, l3, l4, timeouts }
    }
}

/// See [`DatapathRecord`].
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct KeptDatapath {
    name: String,
    user_features: u32,
    masks_cache_size: u32,
    per_cpu_port_ids: Vec<u32>,
    lost: u64,
    ports: BTreeMap<u32, KeptPort>,
    pub(super) meters: BTreeMap<u32, KeptMeter>,
    /// Whether the datapath belongs to a configured switch, and is removed with it.
    #[serde(default)]
    pub(super) is_of_switch: bool,
}

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct KeptPort {
    name: String,
    /// `OVS_VPORT_TYPE_*`.
    kind: u32,
    upcall_port_ids: Vec<u32>,
    /// For tunnels: UDP port, and whether it is VXLAN with group-based policy.
    options: Option<(Option<u16>, bool)>,
    /// Whether it is VXLAN with protocol extension.
    #[serde(default)]
    is_gpe: bool,
}

/// A meter without its counters.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct KeptMeter {
    is_kbps: bool,
    /// Type, rate and burst of each band.
    bands: Vec<(u32, u32, u32)>,
}

impl KeptDatapath {
    pub(super) fn of(record: &DatapathRecord, beside: Beside<'_>) -> Self {
        Self {
            name: record.name.clone(),
            user_features: record.user_features,
            masks_cache_size: record.masks_cache_size,
            per_cpu_port_ids: record.per_cpu_port_ids.clone(),
            lost: record.lost,
            ports: record.ports.iter().map(|(number, port)| (*number, KeptPort::of(port))).collect(),
            meters: beside.meters.iter().map(|(id, meter)| (*id, KeptMeter::of(meter))).collect(),
            is_of_switch: beside.is_of_switch,
        }
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn record(&self) -> DatapathRecord {
        DatapathRecord {
            user_features: self.user_features,
            masks_cache_size: self.masks_cache_size,
            per_cpu_port_ids: self.per_cpu_port_ids.clone(),
            lost: self.lost,
            ports: self.ports.iter().map(|(number, port)| (*number, port.port(*number))).collect(),
            ..DatapathRecord::named(&self.name)
        }
    }
}

impl KeptPort {
    fn of(port: &Port) -> Self {
        Self {
            name: port.name.clone(),
            kind: port.kind.into(),
            upcall_port_ids: port.upcall_port_ids.clone(),
            options: port.options.map(|VportOptions { dst_port, is_gbp, .. }| (dst_port, is_gbp)),
            is_gpe: port.options.is_some_and(|options| options.is_gpe),
        }
    }

    fn port(&self, number: u32) -> Port {
        Port {
            number,
            name: self.name.clone(),
            kind: self.kind.into(),
            options: self.options.map(|(dst_port, is_gbp)| VportOptions {
                dst_port,
                is_gbp,
                is_gpe: self.is_gpe,
            }),
            upcall_port_ids: self.upcall_port_ids.clone(),
        }
    }
}

impl KeptMeter {
    fn of(meter: &Meter) -> Self {
        let bands = meter.bands.iter().map(|band| (band.kind, band.rate, band.burst)).collect();
        Self { is_kbps: meter.is_kbps, bands }
    }

    pub(super) fn meter(&self) -> Meter {
        let band = |(kind, rate, burst): &(u32, u32, u32)| Band {
            kind: *kind,
            rate: *rate,
            burst: *burst,
            stats: None,
        };
        Meter { is_kbps: self.is_kbps, bands: self.bands.iter().map(band).collect(), ..Meter::default() }
    }
}

/// The kept state of a datapath besides its record.
#[derive(Clone, Copy)]
pub(super) struct Beside<'a> {
    pub(super) meters: &'a BTreeMap<u32, Meter>,
    pub(super) is_of_switch: bool,
}

/// The state to keep of datapath records and their meters.
pub(super) fn all<'a>(
    version: u64,
    records: impl Iterator<Item = (&'a DatapathId, &'a DatapathRecord)>,
    beside: impl Fn(DatapathId) -> Option<Beside<'a>>,
) -> KeptDatapaths {
    let (none, is_of_switch) = (BTreeMap::new(), false);
    let kept = |(id, record): (&DatapathId, &DatapathRecord)| {
        (id.0, KeptDatapath::of(record, beside(*id).unwrap_or(Beside { meters: &none, is_of_switch })))
    };
    KeptDatapaths { version, datapaths: records.map(kept).collect(), ..KeptDatapaths::default() }
}

#[cfg(test)]
mod tests {
    use lasthop_dpif::family::VportKind;

    use super::*;

    #[test]
    fn a_timeout_policy_is_kept() {
        let timeouts =
            CtPolicy { udp_single_s: 1, udp_multiple_s: 2, icmp_s: 3, icmpv6_s: 4, ..CtPolicy::LINUX };
        let tcp = TcpPolicy { timeouts_s: std::array::from_fn(|index| index as u32), ..timeouts.tcp };
        let timeouts = CtPolicy { tcp, ..timeouts };
        let policy = TimeoutPolicy { name: "ovs_tp_0_udp4".into(), l3: 2, l4: 17, timeouts };
        let text = serde_json::to_string(&KeptPolicy::of(&policy)).expect("JSON");
        let read: KeptPolicy = serde_json::from_str(&text).expect("the same");
        assert_eq!(read.policy(), policy);
    }

    #[test]
    fn what_is_kept_is_what_was_there() {
        let mut record = DatapathRecord { user_features: 9, lost: 3, ..DatapathRecord::named("ovs-system") };
        record.per_cpu_port_ids = vec![7, 8];
        for (number, kind, is_gpe) in
            [(0, VportKind::Internal, false), (2, VportKind::Vxlan, false), (3, VportKind::Vxlan, true)]
        {
            let options = Some(VportOptions { dst_port: Some(4789), is_gbp: !is_gpe, is_gpe });
            let port = Port { number, name: format!("p{number}"), kind, options, upcall_port_ids: vec![1] };
            record.ports.insert(number, port);
        }
        let band = Band { kind: 1, rate: 1000, burst: 10, stats: None };
        let meter = Meter { is_kbps: true, bands: vec![band], ..Meter::default() };
        let meters: BTreeMap<u32, Meter> = [(5, meter.clone())].into();
        let beside = Beside { meters: &meters, is_of_switch: true };
        let kept = all(4, [(&DatapathId(1), &record)].into_iter(), |_| Some(beside));
        let text = serde_json::to_string(&kept).expect("JSON");
        let read: KeptDatapaths = serde_json::from_str(&text).expect("the same");
        assert_eq!((&read, read.version), (&kept, 4));
        assert_eq!(read.datapaths[&1].record(), record);
        assert_eq!(read.datapaths[&1].meters[&5].meter(), meter);
        assert_eq!(read.connections, KeptCtSettings::default());
    }
}
