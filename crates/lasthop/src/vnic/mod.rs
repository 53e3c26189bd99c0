//! What a user says of a virtual network interface: in the configuration file, on the command line, in a request.

mod access;
pub(crate) mod change;
mod features;
pub(crate) mod limits;
mod link;
mod memory;
mod name;
mod parse;
pub(crate) mod vlans;

pub(crate) use access::SocketMode;
pub(crate) use features::{FeatureSet, describe as describe_features};
pub(crate) use limits::{check_mac, mac as mac_text};
pub(crate) use link::Link;
pub(crate) use memory::MemoryMax;
pub(crate) use name::{Name, check as check_name};
pub(crate) use parse::{number as parse_number, of_the_whole, options};
pub(crate) use vlans::{trunk as vlan_list, vid as vid_number};

use std::path::{Path, PathBuf};

use lasthop_verdict::{Mac, StormLimits, Vid, VlanSet};
use serde::{Deserialize, Serialize};

use crate::fault::Fault;
use crate::switches::SwitchName;

/// Who makes the socket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Mode {
    /// The switch listens, the VMM connects.
    #[default]
    Listen,
    /// The VMM listens, the switch connects.
    Connect,
}

impl Mode {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Listen => "listen",
            Self::Connect => "connect",
        }
    }
}

/// One vnic as asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct VnicSpec {
    pub(crate) name: Name,
    /// Where it belongs; it exchanges frames with vnics of that switch only.
    #[serde(default)]
    pub(crate) switch: SwitchName,
    /// RUNDIR/NAME.sock if not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) socket: Option<PathBuf>,
    #[serde(default)]
    pub(crate) mode: Mode,
    /// Static address; any address is learned without one.
    #[serde(default, with = "limits::mac", skip_serializing_if = "Option::is_none")]
    pub(crate) mac: Option<Mac>,
    /// Queue pairs that a guest may use.
    #[serde(default = "limits::one_queue", deserialize_with = "limits::queues")]
    pub(crate) queues: u16,
    /// What the guest is told, in bytes.
    #[serde(default, deserialize_with = "limits::mtu", skip_serializing_if = "Option::is_none")]
    pub(crate) mtu: Option<u16>,
    /// How much memory its guest may have.
    #[serde(default, alias = "memory-max", skip_serializing_if = "Option::is_none")]
    pub(crate) memory_max: Option<MemoryMax>,
    /// Virtio features that are not offered.
    #[serde(default, alias = "features-off")]
    pub(crate) features_off: FeatureSet,
    /// Frames per second from its guest that may be flooded, by kind; 0 is no limit.
    #[serde(default, alias = "storm-broadcast", deserialize_with = "limits::storm_broadcast")]
    pub(crate) storm_broadcast: u32,
    #[serde(default, alias = "storm-multicast", deserialize_with = "limits::storm_multicast")]
    pub(crate) storm_multicast: u32,
    #[serde(default, alias = "storm-unknown", deserialize_with = "limits::storm_unknown")]
    pub(crate) storm_unknown: u32,
    /// Whether packets pass.
    #[serde(default)]
    pub(crate) link: Link,
    /// Mode of the socket's file.
    #[serde(default, alias = "socket-mode", skip_serializing_if = "Option::is_none")]
    pub(crate) socket_mode: Option<SocketMode>,
    /// Owner of the socket's file, by name or number; the user who runs the switch if not given.
    #[serde(default, alias = "socket-owner", skip_serializing_if = "Option::is_none")]
    pub(crate) socket_owner: Option<String>,
    /// Group of the socket's file, by name or number.
    #[serde(default, alias = "socket-group", skip_serializing_if = "Option::is_none")]
    pub(crate) socket_group: Option<String>,
    /// The VLAN that it is in, without tags.
    #[serde(default, with = "vlans::vid", skip_serializing_if = "Option::is_none")]
    pub(crate) vlan: Option<Vid>,
    /// VLANs that it carries, with tags.
    #[serde(default, with = "vlans::trunk", skip_serializing_if = "Option::is_none")]
    pub(crate) trunk: Option<VlanSet>,
    /// The VLAN of untagged frames, beside those with tags.
    #[serde(default, with = "vlans::vid", skip_serializing_if = "Option::is_none")]
    pub(crate) native: Option<Vid>,
    /// Isolated vnics talk to others only.
    #[serde(default, deserialize_with = "vlans::flag", skip_serializing_if = "vlans::is_false")]
    pub(crate) isolated: bool,
}

impl VnicSpec {
    /// The keys, as on the command line.
    pub(crate) const KEYS: &[&str] = &[
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
    ];

    /// The keys of what it is told by to other processes: those whose value is not the usual one, and some more.
    pub(crate) fn keys_told(&self) -> Vec<String> {
        let told = serde_json::to_value(self).ok();
        let fields = told.as_ref().and_then(serde_json::Value::as_object).into_iter().flatten();
        let keys = fields.map(|(field, _)| field.replace('_', "-"));
        keys.filter(|key| Self::KEYS.contains(&key.as_str())).collect()
    }

    /// A vnic with nothing but a name.
    pub(crate) fn named(name: Name) -> Self {
        Self {
            name,
            switch: SwitchName::default(),
            socket: None,
            mode: Mode::default(),
            mac: None,
            queues: limits::one_queue(),
            mtu: None,
            memory_max: None,
            features_off: FeatureSet::default(),
            storm_broadcast: 0,
            storm_multicast: 0,
            storm_unknown: 0,
            link: Link::default(),
            socket_mode: None,
            socket_owner: None,
            socket_group: None,
            vlan: None,
            trunk: None,
            native: None,
            isolated: false,
        }
    }

    /// How much of what its guest sends may be flooded.
    pub(crate) fn storm(&self) -> StormLimits {
        StormLimits {
            broadcast: self.storm_broadcast,
            multicast: self.storm_multicast,
            unknown: self.storm_unknown,
        }
    }

    /// Refuses keys that make no sense together.
    pub(crate) fn check(&self) -> Result<(), Fault> {
        self.check_vlans()?;
        let of_file = [
            ("socket-mode", self.socket_mode.is_some()),
            ("socket-owner", self.socket_owner.is_some()),
            ("socket-group", self.socket_group.is_some()),
        ];
        match of_file.iter().find(|(_, is_given)| *is_given && self.mode == Mode::Connect) {
            Some((key, _)) => Err(Fault::params(format!(
                "{key} is for mode=listen: with mode=connect the VMM makes the socket; leave {key} out"
            ))),
            None => Ok(()),
        }
    }

    /// Its socket, if the run directory is `dir`.
    pub(crate) fn socket_in(&self, dir: &Path) -> PathBuf {
        self.socket.clone().unwrap_or_else(|| dir.join(format!("{}.sock", self.name)))
    }

    /// Without a path that it has by default, if the run directory is `dir`.
    pub(crate) fn without_default_socket(mut self, dir: &Path) -> Self {
        let by_default = Self::named(self.name.clone()).socket_in(dir);
        self.socket = self.socket.filter(|path| *path != by_default);
        self
    }

    /// Makes a relative socket path one that starts at `base`.
    pub(crate) fn based_at(mut self, base: &Path) -> Self {
        self.socket = self.socket.map(|path| base.join(path));
        self
    }
}

/// Refuses the second of two vnics with the same name.
pub(crate) fn check_unique<'a>(vnics: impl IntoIterator<Item = &'a VnicSpec>) -> Result<(), Fault> {
    let mut seen = std::collections::BTreeSet::new();
    match vnics.into_iter().find(|vnic| !seen.insert(&vnic.name)) {
        Some(vnic) => Err(Fault::params(format!(
            "there are two vnics or ports \"{}\"; give one another name",
            vnic.name
        ))),
        None => Ok(()),
    }
}
