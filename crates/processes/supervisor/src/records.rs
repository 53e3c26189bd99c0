//! The records for the next supervisor, in the form of the service manager's store.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use lasthop_api::acl::AclRule;
use lasthop_api::fdb::StaticEntry;
use lasthop_api::leases::PortLeases;
use lasthop_api::port::{Maker, Name, PortBackend, PortCommon, PortSpec, VhostUserBackend, VnicForm};
use lasthop_api::switches::{SwitchName, SwitchSpec};
use lasthop_fd_store::{FdIdentity, SavedSessionRecord};

/// Version of the records. A supervisor of another version starts over.
pub(super) const RECORD_VERSION: u64 = 1;

/// The record of everything that is not per port.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct HeadRecord {
    pub(super) version: u64,
    /// State version of the switch processes' reports about sessions.
    pub(super) state: u64,
    /// The supervisor's process id.
    pub(super) pid: u32,
    /// The switch process; two must never serve the same guest.
    pub(super) process: Option<FdIdentity>,
    pub(super) control: Option<Listening>,
    /// The switches beside the default one.
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

/// Switches and ports of file and flags; the others were added by hand.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct ConfiguredNames {
    pub(super) switches: Vec<SwitchName>,
    pub(super) ports: Vec<Name>,
    pub(super) fdb: Vec<StaticEntry>,
    #[serde(default)]
    pub(super) acl: Vec<AclRule>,
}

/// The record of a port.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct PortRecord {
    /// A vhost-user port; for one over a device the common settings, for older programs.
    pub(super) spec: VnicForm,
    pub(super) device: Option<PortSpec>,
    pub(super) listening: Option<Listening>,
    #[serde(rename = "estate")]
    pub(super) saved_session: Option<SavedSessionRecord>,
    pub(super) book: Option<FdIdentity>,
    /// Counters of processes before the present memory.
    pub(super) past: BTreeMap<String, u64>,
    /// Start of the counters, in milliseconds since 1970.
    #[serde(default)]
    pub(super) since_ms: Option<u64>,
    /// Whether a controller requested it, and will again: only its counters are kept.
    #[serde(default)]
    pub(super) is_requested: bool,
    /// The program that made the port. It is not among the settings, which older programs read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) made_by: Option<Maker>,
    /// Addresses that DHCP servers gave to it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) leases: Option<PortLeases>,
}

impl PortRecord {
    /// The settings of a port as `spec` and `device`.
    pub(super) fn settings(port: &PortSpec) -> (VnicForm, Option<PortSpec>) {
        let port = PortSpec { made_by: None, ..port.clone() };
        if port.is_vhost_user() {
            return (VnicForm(port), None);
        }
        let backend = PortBackend::VhostUser(VhostUserBackend::default());
        let common = PortCommon { mtu: None, ..port.common.clone() };
        (VnicForm(PortSpec { backend, common, made_by: None }), Some(port))
    }

    /// The same with the maker among the settings.
    pub(super) fn with_maker(mut self) -> Self {
        self.device.as_mut().unwrap_or(&mut self.spec.0).made_by = self.made_by.take();
        self
    }

    /// The port.
    pub(super) fn spec(&self) -> &PortSpec {
        self.device.as_ref().unwrap_or(&self.spec.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(spec: &str, device: &str) -> PortRecord {
        let text = format!(
            r#"{{"spec":{spec},"device":{device},"listening":null,"estate":null,"book":null,"past":{{}},"is_requested":false}}"#
        );
        serde_json::from_str(&text).expect("a record")
    }

    #[test]
    fn the_maker_of_a_port_is_kept_where_older_programs_do_not_look() {
        for text in ["a,backend=vhost-user,made-by=x", "t,tap=t,made-by=x"] {
            let port: PortSpec = text.parse().expect("a port");
            let (spec, device) = PortRecord::settings(&port);
            let told = serde_json::to_string(&(&spec, &device)).expect("JSON");
            assert!(!told.contains("made_by"), "{told}");
            let read = PortRecord { made_by: port.made_by.clone(), device, ..record(&json(&spec), "null") };
            assert_eq!(read.with_maker().spec(), &port);
        }
    }

    fn json(spec: &VnicForm) -> String {
        serde_json::to_string(spec).expect("JSON")
    }

    #[test]
    fn records_of_before_are_read_and_written() {
        let vnic = r#"{"name":"a","switch":"default","mode":"connect","queues":2,"features_off":[],"storm_broadcast":0,
            "storm_multicast":0,"storm_unknown":0,"link":"up","vlan":5}"#;
        let device = r#"{"name":"t","tap":"t","backend":"auto","queues":1,"host":"shared","uplink":true,"transit":false,
            "link_tracking":false,"qdisc_bypass":false,"switch":"default","mtu":1400,"features_off":[],
            "storm_broadcast":0,"storm_multicast":0,"storm_unknown":0}"#;
        for (spec, device, port) in [
            (vnic, "null", "a,backend=vhost-user,mode=connect,queues=2,vlan=5"),
            (&vnic.replace("\"a\"", "\"t\""), device, "t,tap=t,mtu=1400"),
        ] {
            let port: PortSpec = port.parse().expect("a port");
            assert_eq!(record(spec, device).spec(), &port);
            let (spec, device) = PortRecord::settings(&port);
            let written = serde_json::to_value(&spec).expect("JSON");
            assert!(
                written.get("backend").is_none() && written["mode"].is_string(),
                "a vnic to them: {written}"
            );
            assert_eq!(device.is_some(), !port.is_vhost_user());
        }
    }
}
