//! The keys of a port, as they stand in the configuration file, in requests, in reports and in records.
//!
//! ```text
//!   TOML, JSON, NAME,KEY=VALUE ──► PortKeys: any key once, each value checked ──► PortSpec: keys that fit the backend
//! ```

use std::path::PathBuf;

use lasthop_module_api::{Mac, PortGuard, PortPolicy, PortVlans, StormLimits, Vid, VlanSet};
use serde::{Deserialize, Serialize};

use crate::guard::{GuardAddresses, GuardChecks};
use crate::switches::SwitchName;
use lasthop_runtime::fault::Fault;

use super::{
    BackendChoice, BackendKind, DeviceBackend, FeatureSet, HostAccess, LinkState, MemoryMax, Name,
    PortBackend, PortCommon, PortSpec, Prefix, SocketMode, TapBackend, Vcpus, VhostUserBackend, VnicMode,
    check_device, limits, mac_text, vid_number, vlan_list, vlans,
};

/// All keys that a port of any backend may have; none if it was not given. Written with `_`, read with `-`, too.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PortKeys {
    /// Unique among ports. The parser refuses a port without one.
    #[serde(deserialize_with = "Name::some", skip_serializing_if = "Option::is_none")]
    pub(super) name: Option<Name>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) backend: Option<BackendChoice>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) switch: Option<SwitchName>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) socket: Option<PathBuf>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) mode: Option<VnicMode>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) device: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) tap: Option<String>,
    #[serde(default, with = "mac_text", skip_serializing_if = "Option::is_none")]
    pub(super) mac: Option<Mac>,
    #[serde(default, deserialize_with = "limits::queues", skip_serializing_if = "Option::is_none")]
    pub(super) queues: Option<u16>,
    #[serde(default, deserialize_with = "limits::mtu", skip_serializing_if = "Option::is_none")]
    pub(super) mtu: Option<u16>,
    #[serde(default, alias = "memory-max", skip_serializing_if = "Option::is_none")]
    pub(super) memory_max: Option<MemoryMax>,
    #[serde(default, alias = "features-off", skip_serializing_if = "Option::is_none")]
    pub(super) features_off: Option<FeatureSet>,
    #[serde(
        default,
        alias = "storm-broadcast",
        deserialize_with = "limits::storm_broadcast",
        skip_serializing_if = "Option::is_none"
    )]
    pub(super) storm_broadcast: Option<u32>,
    #[serde(
        default,
        alias = "storm-multicast",
        deserialize_with = "limits::storm_multicast",
        skip_serializing_if = "Option::is_none"
    )]
    pub(super) storm_multicast: Option<u32>,
    #[serde(
        default,
        alias = "storm-unknown",
        deserialize_with = "limits::storm_unknown",
        skip_serializing_if = "Option::is_none"
    )]
    pub(super) storm_unknown: Option<u32>,
    #[serde(default, with = "vid_number", skip_serializing_if = "Option::is_none")]
    pub(super) vlan: Option<Vid>,
    #[serde(default, with = "vlan_list", skip_serializing_if = "Option::is_none")]
    pub(super) trunk: Option<VlanSet>,
    #[serde(default, with = "vid_number", skip_serializing_if = "Option::is_none")]
    pub(super) native: Option<Vid>,
    #[serde(default, deserialize_with = "vlans::flag", skip_serializing_if = "Option::is_none")]
    pub(super) isolated: Option<bool>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) guard: Option<GuardChecks>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) addresses: Option<GuardAddresses>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) link: Option<LinkState>,
    #[serde(default, alias = "socket-mode", skip_serializing_if = "Option::is_none")]
    pub(super) socket_mode: Option<SocketMode>,
    #[serde(default, alias = "socket-owner", skip_serializing_if = "Option::is_none")]
    pub(super) socket_owner: Option<String>,
    #[serde(default, alias = "socket-group", skip_serializing_if = "Option::is_none")]
    pub(super) socket_group: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) vcpus: Option<Vcpus>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) host: Option<HostAccess>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) uplink: Option<bool>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) transit: Option<bool>,
    #[serde(default, alias = "link-tracking", skip_serializing_if = "Option::is_none")]
    pub(super) link_tracking: Option<bool>,
    #[serde(default, alias = "qdisc-bypass", skip_serializing_if = "Option::is_none")]
    pub(super) qdisc_bypass: Option<bool>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) address: Option<Vec<Prefix>>,
}

/// Why keys make no port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyFault {
    /// The key that does not fit, as users write it; empty if it is none in particular.
    pub key: &'static str,
    /// The sentence with the remedy.
    pub fault: Fault,
}

impl From<KeyFault> for Fault {
    fn from(KeyFault { fault, .. }: KeyFault) -> Self {
        fault
    }
}

impl PortKeys {
    /// No key but the name.
    pub fn named(name: Name) -> Self {
        Self { name: Some(name), ..Self::default() }
    }

    /// The port that they describe: by default over the device of its name.
    ///
    /// # Errors
    /// The key that does not fit the others, or the port's backend.
    pub fn spec(self) -> Result<PortSpec, KeyFault> {
        let kind = self.kind();
        if self.device.is_some() && self.tap.is_some() {
            return Err(self.wrong("tap", "has both device and tap; a tap is its own device: leave one out"));
        }
        self.check_fit(kind)?;
        let common = self.common()?;
        let backend = match kind {
            BackendKind::VhostUser => PortBackend::VhostUser(self.vhost_user()?),
            BackendKind::Device => PortBackend::Device(self.over_device(&common.name)?),
            BackendKind::Tap => {
                let tap = self.tap.unwrap_or_else(|| common.name.to_string());
                check_device(&tap).map_err(|fault| KeyFault { key: "tap", fault })?;
                PortBackend::Tap(TapBackend { tap, address: self.address.unwrap_or_default() })
            }
        };
        Ok(PortSpec { common, backend })
    }

    /// As `spec`, of keys that stand where there are only vhost-user ports, whose `backend` goes without saying.
    pub fn vnic(self) -> Result<PortSpec, KeyFault> {
        match self.backend {
            None | Some(BackendChoice::VhostUser) => {
                Self { backend: Some(BackendChoice::VhostUser), ..self }.spec()
            }
            Some(_) => {
                Err(self.wrong("backend", "is a vnic, which has the backend vhost-user; make it a port"))
            }
        }
    }

    fn kind(&self) -> BackendKind {
        match (self.backend, &self.tap) {
            (Some(BackendChoice::VhostUser), _) => BackendKind::VhostUser,
            (Some(BackendChoice::Tap), _) | (_, Some(_)) => BackendKind::Tap,
            _ => BackendKind::Device,
        }
    }

    /// Refuses the first key that ports of this kind do not have.
    fn check_fit(&self, kind: BackendKind) -> Result<(), KeyFault> {
        use BackendKind::{Device, Tap, VhostUser};
        // Programs of before wrote keys of devices for taps, too, with their defaults.
        let says =
            |flag: Option<bool>, default| flag.is_some_and(|flag| flag != default || kind == VhostUser);
        let is_of_device = matches!(self.backend, Some(BackendChoice::AfPacket | BackendChoice::AfXdp));
        let host = self.host.is_some_and(|host| host != HostAccess::default() || kind == VhostUser);
        let keys: [(&'static str, bool, &[BackendKind]); 21] = [
            ("backend", is_of_device, &[Device]),
            ("device", self.device.is_some(), &[Device]),
            ("host", host, &[Device]),
            ("uplink", says(self.uplink, true), &[Device, Tap]),
            ("transit", says(self.transit, false), &[Device]),
            ("link-tracking", says(self.link_tracking, false), &[Device]),
            ("qdisc-bypass", says(self.qdisc_bypass, false), &[Device]),
            ("tap", self.tap.is_some(), &[Tap]),
            ("address", self.address.is_some(), &[Tap]),
            ("mac", self.mac.is_some(), &[Tap, VhostUser]),
            ("guard", self.guard.is_some(), &[Tap, VhostUser]),
            ("addresses", self.addresses.is_some(), &[Tap, VhostUser]),
            ("mtu", self.mtu.is_some(), &[Tap, VhostUser]),
            ("socket", self.socket.is_some(), &[VhostUser]),
            ("mode", self.mode.is_some(), &[VhostUser]),
            ("memory-max", self.memory_max.is_some(), &[VhostUser]),
            ("link", self.link.is_some(), &[VhostUser]),
            ("socket-mode", self.socket_mode.is_some(), &[VhostUser]),
            ("socket-owner", self.socket_owner.is_some(), &[VhostUser]),
            ("socket-group", self.socket_group.is_some(), &[VhostUser]),
            ("vcpus", self.vcpus.is_some(), &[VhostUser]),
        ];
        let misfit = keys.into_iter().find(|(_, is_given, kinds)| *is_given && !kinds.contains(&kind));
        let Some((key, _, kinds)) = misfit else { return Ok(()) };
        let owners: Vec<&str> = kinds.iter().map(|kind| kind.noun()).collect();
        let backends: Vec<String> = kinds.iter().map(|kind| format!("backend={}", kind.name())).collect();
        let remedy = match kind {
            Device => format!(", or use {}", backends.join(" or ")),
            Tap | VhostUser => String::new(),
        };
        let owners = owners.join(" and ");
        Err(self
            .wrong(key, &format!("{}, and {key} is for {owners}; leave it out{remedy}", kind.predicate())))
    }

    fn common(&self) -> Result<PortCommon, KeyFault> {
        let storm = StormLimits {
            broadcast: self.storm_broadcast.unwrap_or_default(),
            multicast: self.storm_multicast.unwrap_or_default(),
            unknown: self.storm_unknown.unwrap_or_default(),
        };
        let is_isolated = self.isolated.unwrap_or_default();
        let policy =
            PortPolicy { mac: self.mac, storm, vlans: self.vlans()?, is_isolated, guard: self.guard()? };
        let nameless = || KeyFault { key: "name", fault: Fault::params("a port needs a name") };
        Ok(PortCommon {
            name: self.name.clone().ok_or_else(nameless)?,
            switch: self.switch.clone().unwrap_or_default(),
            queues: self.queues.unwrap_or(1),
            mtu: self.mtu,
            memory_max: self.memory_max,
            features_off: self.features_off.clone().unwrap_or_default(),
            link: self.link.unwrap_or_default(),
            policy,
        })
    }

    fn guard(&self) -> Result<PortGuard, KeyFault> {
        let checks = self.guard.clone().unwrap_or_default();
        let addresses = self.addresses.clone().unwrap_or_default();
        checks.check(self.mac, &addresses).map_err(|why| self.wrong("guard", why))?;
        Ok(checks.policy(&addresses))
    }

    /// Refuses keys that contradict each other.
    fn vlans(&self) -> Result<PortVlans, KeyFault> {
        let other = match (self.vlan, &self.trunk, self.native) {
            (None, None, None) => return Ok(PortVlans::Any),
            (None, carried, native) => return Ok(PortVlans::Trunk { carried: carried.clone(), native }),
            (Some(vid), None, None) => return Ok(PortVlans::Access(vid)),
            (Some(_), Some(_), _) => "trunk",
            (Some(_), None, Some(_)) => "native",
        };
        Err(self.wrong(
            other,
            &format!(
                "has both vlan and {other}; vlan is for one VLAN without tags, trunk and native are for tagged ones: \
                 leave one out"
            ),
        ))
    }

    fn vhost_user(self) -> Result<VhostUserBackend, KeyFault> {
        let mode = self.mode.unwrap_or_default();
        let of_file = [
            ("socket-mode", self.socket_mode.is_some()),
            ("socket-owner", self.socket_owner.is_some()),
            ("socket-group", self.socket_group.is_some()),
        ];
        if let Some((key, _)) =
            of_file.into_iter().find(|(_, is_given)| *is_given && mode == VnicMode::Connect)
        {
            let fault = Fault::params(format!(
                "{key} is for mode=listen: with mode=connect the VMM makes the socket; leave {key} out"
            ));
            return Err(KeyFault { key, fault });
        }
        Ok(VhostUserBackend {
            socket: self.socket,
            mode,
            socket_mode: self.socket_mode,
            socket_owner: self.socket_owner,
            socket_group: self.socket_group,
            vcpus: self.vcpus,
        })
    }

    fn over_device(self, name: &Name) -> Result<DeviceBackend, KeyFault> {
        let device = self.device.as_deref().unwrap_or(name.as_str());
        check_device(device).map_err(|fault| KeyFault { key: "device", fault })?;
        let (uplink, transit) = (self.uplink.unwrap_or(true), self.transit.unwrap_or_default());
        if transit && !uplink {
            let why = "has transit, which is between uplinks, and uplink = false; leave one out";
            return Err(self.wrong("uplink", why));
        }
        Ok(DeviceBackend {
            io: self.backend.unwrap_or_default(),
            host: self.host.unwrap_or_default(),
            uplink,
            transit,
            link_tracking: self.link_tracking.unwrap_or_default(),
            qdisc_bypass: self.qdisc_bypass.unwrap_or_default(),
            device: self.device,
        })
    }

    fn wrong(&self, key: &'static str, why: &str) -> KeyFault {
        let name = self.name.as_ref().map(Name::as_str).unwrap_or_default();
        KeyFault { key, fault: Fault::params(format!("port \"{name}\" {why}")) }
    }
}

impl TryFrom<PortKeys> for PortSpec {
    type Error = Fault;

    fn try_from(keys: PortKeys) -> Result<Self, Fault> {
        Ok(keys.spec()?)
    }
}

impl TryFrom<PortKeys> for PortCommon {
    type Error = Fault;

    /// Keys of the backend may be there: programs of before told the switch process of them.
    fn try_from(keys: PortKeys) -> Result<Self, Fault> {
        Ok(keys.common()?)
    }
}

impl From<PortCommon> for PortKeys {
    fn from(common: PortCommon) -> Self {
        let PortCommon { name, switch, queues, mtu, memory_max, features_off, link, policy } = common;
        let PortPolicy { mac, storm, vlans, is_isolated, guard } = policy;
        let (guard, addresses) = GuardChecks::of_policy(&guard);
        let (vlan, trunk, native) = match vlans {
            PortVlans::Any => (None, None, None),
            PortVlans::Access(vid) => (Some(vid), None, None),
            PortVlans::Trunk { carried, native } => (None, carried, native),
        };
        Self {
            name: Some(name),
            switch: Some(switch),
            mac,
            queues: Some(queues),
            mtu,
            memory_max,
            features_off: Some(features_off),
            storm_broadcast: Some(storm.broadcast),
            storm_multicast: Some(storm.multicast),
            storm_unknown: Some(storm.unknown),
            vlan,
            trunk,
            native,
            isolated: is_isolated.then_some(true),
            guard,
            addresses,
            link: Some(link),
            ..Self::default()
        }
    }
}

impl From<PortSpec> for PortKeys {
    fn from(PortSpec { common, backend }: PortSpec) -> Self {
        let common = Self::from(common);
        match backend {
            PortBackend::VhostUser(backend) => Self {
                backend: Some(BackendChoice::VhostUser),
                socket: backend.socket,
                mode: Some(backend.mode),
                socket_mode: backend.socket_mode,
                socket_owner: backend.socket_owner,
                socket_group: backend.socket_group,
                vcpus: backend.vcpus,
                ..common
            },
            PortBackend::Device(backend) => Self {
                backend: Some(backend.io),
                device: backend.device,
                host: Some(backend.host),
                uplink: Some(backend.uplink),
                transit: Some(backend.transit),
                link_tracking: Some(backend.link_tracking),
                qdisc_bypass: Some(backend.qdisc_bypass),
                link: None,
                ..common
            },
            PortBackend::Tap(backend) => Self {
                backend: Some(BackendChoice::Tap),
                tap: Some(backend.tap),
                address: (!backend.address.is_empty()).then_some(backend.address),
                link: None,
                ..common
            },
        }
    }
}
