//! A user's settings of a virtual network interface: in the configuration file, on the command line, in a request.

mod access;
pub mod change;
mod features;
pub mod limits;
mod link;
mod memory;
mod name;
mod parse;
mod vcpus;
pub mod vlans;

pub use access::SocketMode;
pub use features::{FeatureSet, describe as describe_features};
pub(crate) use limits::check_mac;
pub use limits::mac as mac_text;
pub use link::LinkState;
pub use memory::MemoryMax;
pub use name::Name;
pub use vcpus::Vcpus;
pub use vlans::{trunk as vlan_list, vid as vid_number};

use std::path::{Path, PathBuf};

use lasthop_module_api::{Mac, PortPolicy, StormLimits, Vid, VlanSet};
use serde::{Deserialize, Serialize};

use crate::switches::{self, SwitchName, SwitchSpec};
use lasthop_runtime::fault::Fault;

/// The side that makes the socket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum VnicMode {
    /// The switch listens, the VMM connects.
    #[default]
    Listen,
    /// The VMM listens, the switch connects.
    Connect,
}

impl VnicMode {
    /// The word of the key `mode`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Listen => "listen",
            Self::Connect => "connect",
        }
    }
}

/// One vnic as asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VnicSpec {
    /// Unique among vnics and ports.
    pub name: Name,
    /// Where it belongs; it exchanges frames with vnics of that switch only.
    #[serde(default)]
    pub switch: SwitchName,
    /// RUNDIR/NAME.sock if not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub socket: Option<PathBuf>,
    /// The side that makes the socket.
    #[serde(default)]
    pub mode: VnicMode,
    /// Static address; any address is learned without one.
    #[serde(default, with = "limits::mac", skip_serializing_if = "Option::is_none")]
    pub mac: Option<Mac>,
    /// Queue pairs that a guest may use: 1 to 32.
    #[serde(default = "limits::one_queue", deserialize_with = "limits::queues")]
    pub queues: u16,
    /// The MTU that the guest is told, in bytes: 68 to 65,535 (virtio 1.2, 5.1.4.1). It is told none by default.
    #[serde(default, deserialize_with = "limits::mtu", skip_serializing_if = "Option::is_none")]
    pub mtu: Option<u16>,
    /// How much memory its guest may have: 1 MiB to 64 TiB.
    #[serde(default, alias = "memory-max", skip_serializing_if = "Option::is_none")]
    pub memory_max: Option<MemoryMax>,
    /// Virtio features that are not offered.
    #[serde(default, alias = "features-off")]
    pub features_off: FeatureSet,
    /// Broadcast packets per second from its guest that may be flooded, 0 to 10,000,000; 0 is no limit.
    #[serde(default, alias = "storm-broadcast", deserialize_with = "limits::storm_broadcast")]
    pub storm_broadcast: u32,
    /// As `storm_broadcast`, of packets to other group addresses.
    #[serde(default, alias = "storm-multicast", deserialize_with = "limits::storm_multicast")]
    pub storm_multicast: u32,
    /// As `storm_broadcast`, of packets to addresses that no port is known for.
    #[serde(default, alias = "storm-unknown", deserialize_with = "limits::storm_unknown")]
    pub storm_unknown: u32,
    /// Whether packets pass.
    #[serde(default)]
    pub link: LinkState,
    /// Mode of the socket's file.
    #[serde(default, alias = "socket-mode", skip_serializing_if = "Option::is_none")]
    pub socket_mode: Option<SocketMode>,
    /// Owner of the socket's file, by name or number; the user who runs the switch if not given.
    #[serde(default, alias = "socket-owner", skip_serializing_if = "Option::is_none")]
    pub socket_owner: Option<String>,
    /// Group of the socket's file, by name or number.
    #[serde(default, alias = "socket-group", skip_serializing_if = "Option::is_none")]
    pub socket_group: Option<String>,
    /// Threads of the front end that the view of the scheduler takes for the guest's vCPUs; those with the names of vCPUs if not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vcpus: Option<Vcpus>,
    /// The VLAN that it is in, 1 to 4094, without tags (access port); not beside `trunk` and `native`.
    #[serde(default, with = "vlans::vid", skip_serializing_if = "Option::is_none")]
    pub vlan: Option<Vid>,
    /// VLANs that it carries, with tags; all if none is named beside `native`.
    #[serde(default, with = "vlans::trunk", skip_serializing_if = "Option::is_none")]
    pub trunk: Option<VlanSet>,
    /// The VLAN of untagged packets, 1 to 4094, beside those with tags.
    #[serde(default, with = "vlans::vid", skip_serializing_if = "Option::is_none")]
    pub native: Option<Vid>,
    /// Isolated vnics exchange no packets with each other.
    #[serde(default, deserialize_with = "vlans::flag", skip_serializing_if = "vlans::is_false")]
    pub isolated: bool,
}

impl VnicSpec {
    /// The keys, as on the command line.
    pub const KEYS: &[&str] = &[
        "switch",
        "socket",
        "mode",
        "mac",
        "queues",
        "mtu",
        "memory-max",
        "features-off",
        "storm-broadcast",
        "storm-multicast",
        "storm-unknown",
        "vlan",
        "trunk",
        "native",
        "isolated",
        "link",
        "socket-mode",
        "socket-owner",
        "socket-group",
        "vcpus",
    ];

    /// The keys with which other processes are told of it: those whose value is not the usual one, and some more.
    pub fn keys_told(&self) -> Vec<String> {
        let told = serde_json::to_value(self).ok();
        let fields = told.as_ref().and_then(serde_json::Value::as_object).into_iter().flatten();
        let keys = fields.map(|(field, _)| field.replace('_', "-"));
        keys.filter(|key| Self::KEYS.contains(&key.as_str())).collect()
    }

    /// A vnic with nothing but a name.
    pub fn named(name: Name) -> Self {
        Self {
            name,
            switch: SwitchName::default(),
            socket: None,
            mode: VnicMode::default(),
            mac: None,
            queues: limits::one_queue(),
            mtu: None,
            memory_max: None,
            features_off: FeatureSet::default(),
            storm_broadcast: 0,
            storm_multicast: 0,
            storm_unknown: 0,
            link: LinkState::default(),
            socket_mode: None,
            socket_owner: None,
            socket_group: None,
            vcpus: None,
            vlan: None,
            trunk: None,
            native: None,
            isolated: false,
        }
    }

    /// The rules for its packets, as a module keeps them. `check` has passed.
    pub fn policy(&self) -> PortPolicy {
        let storm = StormLimits {
            broadcast: self.storm_broadcast,
            multicast: self.storm_multicast,
            unknown: self.storm_unknown,
        };
        PortPolicy { mac: self.mac, storm, vlans: self.port_vlans(), is_isolated: self.isolated }
    }

    /// Refuses keys that make no sense together.
    ///
    /// # Errors
    /// One sentence with the key and the remedy.
    pub fn check(&self) -> Result<(), Fault> {
        self.check_vlans()?;
        let of_file = [
            ("socket-mode", self.socket_mode.is_some()),
            ("socket-owner", self.socket_owner.is_some()),
            ("socket-group", self.socket_group.is_some()),
        ];
        match of_file.iter().find(|(_, is_given)| *is_given && self.mode == VnicMode::Connect) {
            Some((key, _)) => Err(Fault::params(format!(
                "{key} is for mode=listen: with mode=connect the VMM makes the socket; leave {key} out"
            ))),
            None => Ok(()),
        }
    }

    /// Its socket, if the run directory is `dir`.
    pub fn socket_in(&self, dir: &Path) -> PathBuf {
        self.socket.clone().unwrap_or_else(|| dir.join(format!("{}.sock", self.name)))
    }

    /// Without a path that it has by default, if the run directory is `dir`.
    pub fn without_default_socket(mut self, dir: &Path) -> Self {
        let by_default = Self::named(self.name.clone()).socket_in(dir);
        self.socket = self.socket.filter(|path| *path != by_default);
        self
    }

    /// Makes a relative socket path one that starts at `base`.
    pub fn based_at(mut self, base: &Path) -> Self {
        self.socket = self.socket.map(|path| base.join(path));
        self
    }
}

/// Refuses the second of two vnics with the same name.
pub fn check_unique<'a>(vnics: impl IntoIterator<Item = &'a VnicSpec>) -> Result<(), Fault> {
    let mut seen = std::collections::BTreeSet::new();
    match vnics.into_iter().find(|vnic| !seen.insert(&vnic.name)) {
        Some(vnic) => Err(Fault::params(format!(
            "there are two vnics or ports \"{}\"; give one another name",
            vnic.name
        ))),
        None => Ok(()),
    }
}

/// Refuses vnics of switches that there are not.
pub fn check_members<'a>(
    switches: &[SwitchSpec],
    vnics: impl IntoIterator<Item = &'a VnicSpec>,
) -> Result<(), Fault> {
    vnics.into_iter().try_for_each(|vnic| {
        let remedy = format!("make it with --switch {0} or a [[switch]] in the file", vnic.switch);
        let found = switches::find(switches, vnic.switch.as_str(), &remedy);
        found
            .map(drop)
            .map_err(|fault| Fault { message: format!("vnic \"{}\": {fault}", vnic.name), ..fault })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vnic_of_no_switch_is_refused_with_a_close_name() {
        let check = |switches: &[&str], vnic: &str| {
            let switches: Vec<SwitchSpec> =
                switches.iter().map(|name| name.parse().expect("a switch")).collect();
            check_members(&switches, [&vnic.parse().expect("a vnic")]).map_err(|fault| fault.message)
        };
        assert_eq!(check(&["default"], "vm1"), Ok(()));
        assert_eq!(check(&["default", "red"], "vm1,switch=red"), Ok(()));
        let why = check(&["default", "red"], "vm1,switch=ret").expect_err("no such switch");
        assert_eq!(why, "vnic \"vm1\": there is no switch \"ret\"; did you mean \"red\"?");
        let why = check(&["default"], "vm1,switch=red").expect_err("no such switch");
        assert!(why.ends_with("make it with --switch red or a [[switch]] in the file"), "{why}");
    }
}
