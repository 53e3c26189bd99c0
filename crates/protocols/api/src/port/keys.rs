//! The keys of a port, as they stand in the configuration file, in requests, in reports and in records.
//!
//! ```text
//!   TOML, JSON, NAME,KEY=VALUE ──► PortKeys: any key once, each value checked ──► PortSpec: keys that fit the backend
//! ```

use std::path::PathBuf;

use lasthop_module_api::{Mac, PortGuard, PortPolicy, PortVlans, StormLimits, Vid, VlanSet};
use schemars::{JsonSchema, Schema};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::groups::GroupNames;
use crate::guard::{GuardAddresses, GuardChecks};
use crate::schema;
use crate::switches::SwitchName;
use lasthop_runtime::fault::Fault;

use super::{
    BackendChoice, BackendKind, DEVICE_BYTES_MAX, DeviceBackend, FeatureSet, HostAccess, LinkState, Maker,
    MemoryMax, Name, PortBackend, PortCommon, PortSpec, Prefix, SocketMode, TapBackend, Vcpus,
    VhostUserBackend, VnicMode, check_device, limits, mac_text, vid_number, vlan_list, vlans,
};

/// RUNDIR/NAME.sock of this name is for controllers. Controllers may have a device of that name.
const DATAPATH: &str = "datapath";

/// All keys of ports of any backend; none if it was not given. Written with `_`, read with `-`, too.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "port", rename_all = "kebab-case", transform = limit_keys_to_backends)]
pub struct PortKeys {
    /// Unique name; not internal, control, . or ..; also the device's or the tap's name if none is given. With backend vhost-user and without socket not datapath.
    #[serde(deserialize_with = "Name::some", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Name", extend("examples" = ["vm1"]))]
    pub(super) name: Option<Name>,
    /// The other end of the port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = BackendChoice::default()))]
    pub(super) backend: Option<BackendChoice>,
    /// The switch that it belongs to; it exchanges packets with ports of that switch only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = SwitchName::default()))]
    pub(super) switch: Option<SwitchName>,
    /// Path of the vhost-user socket, from this file's directory if relative; RUNDIR/NAME.sock if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String", length(min = 1, max = 107), extend("examples" = ["/run/vms/vm1.sock"]))]
    pub(super) socket: Option<PathBuf>,
    /// The side that makes the socket.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = VnicMode::default()))]
    pub(super) mode: Option<VnicMode>,
    /// The network device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = DEVICE_BYTES_MAX), extend("examples" = ["eth1"]))]
    pub(super) device: Option<String>,
    /// The tap that is made, or opened if it is there; not together with device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = DEVICE_BYTES_MAX), extend("examples" = ["br0"]))]
    pub(super) tap: Option<String>,
    /// Static unicast address: never learned elsewhere, and the only one that the guest may send from; of a tap also its own.
    #[serde(default, with = "mac_text", skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::mac", extend("examples" = ["52:54:00:00:00:01"]))]
    pub(super) mac: Option<Mac>,
    /// Queue pairs that a guest may use, or queues of the device that are served.
    #[serde(default, deserialize_with = "limits::queues", skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = limits::QUEUE_PAIRS_MAX), extend("default" = 1))]
    pub(super) queues: Option<u16>,
    /// The MTU that the guest gets, or that of the tap, in bytes; none if left out.
    #[serde(default, deserialize_with = "limits::mtu", skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = limits::MTU_MIN, max = limits::MTU_MAX))]
    pub(super) mtu: Option<u16>,
    /// Memory that the guest may have, all regions together: a whole number of bytes, or with a unit K, M, G or T.
    #[serde(default, alias = "memory-max", skip_serializing_if = "Option::is_none")]
    #[schemars(extend("examples" = ["64G"]))]
    pub(super) memory_max: Option<MemoryMax>,
    /// Virtio features that are not offered to the guest.
    #[serde(default, alias = "features-off", skip_serializing_if = "Option::is_none")]
    pub(super) features_off: Option<FeatureSet>,
    /// Broadcasts per second from the port that are flooded; 0 is no limit.
    #[serde(
        default,
        alias = "storm-broadcast",
        deserialize_with = "limits::storm_broadcast",
        skip_serializing_if = "Option::is_none"
    )]
    #[schemars(range(max = StormLimits::RATE_MAX), extend("default" = 0))]
    pub(super) storm_broadcast: Option<u32>,
    /// Multicasts per second from the port that are flooded; 0 is no limit.
    #[serde(
        default,
        alias = "storm-multicast",
        deserialize_with = "limits::storm_multicast",
        skip_serializing_if = "Option::is_none"
    )]
    #[schemars(range(max = StormLimits::RATE_MAX), extend("default" = 0))]
    pub(super) storm_multicast: Option<u32>,
    /// Frames to addresses that are not learned per second from the port that are flooded; 0 is no limit.
    #[serde(
        default,
        alias = "storm-unknown",
        deserialize_with = "limits::storm_unknown",
        skip_serializing_if = "Option::is_none"
    )]
    #[schemars(range(max = StormLimits::RATE_MAX), extend("default" = 0))]
    pub(super) storm_unknown: Option<u32>,
    /// The VLAN of an access port, without tags; not together with trunk and native.
    #[serde(default, with = "vid_number", skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::vlan")]
    pub(super) vlan: Option<Vid>,
    /// VLANs that are carried with tags: numbers, and ranges as text.
    #[serde(default, with = "vlan_list", skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::vlan_list", extend("examples" = [[10, "20-29"]]))]
    pub(super) trunk: Option<VlanSet>,
    /// The VLAN of a trunk's untagged frames; without trunk all others are carried with tags.
    #[serde(default, with = "vid_number", skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::vlan")]
    pub(super) native: Option<Vid>,
    /// Isolated ports exchange packets only with ports that are not isolated.
    #[serde(default, deserialize_with = "vlans::flag", skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = false))]
    pub(super) isolated: Option<bool>,
    /// Checks of the port's claims: mac (needs mac), ip and arp (need addresses), dhcp.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("examples" = [["dhcp"]]))]
    pub(super) guard: Option<GuardChecks>,
    /// The port's own IP addresses, which guard checks; dhcp stands for those that DHCP servers give to it (needs mac, and guard with ip or arp), fe80::/10 for all link-local ones; the one made of mac need not be given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("examples" = [["10.0.0.5", "fd00::5"]]))]
    pub(super) addresses: Option<GuardAddresses>,
    /// Groups that the port is in, for rules about connections.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("examples" = [["web"]]))]
    pub(super) groups: Option<GroupNames>,
    /// The program that made the port. A file does not have it.
    #[serde(default, alias = "made-by", skip_serializing_if = "Option::is_none")]
    #[schemars(skip)]
    pub(super) made_by: Option<Maker>,
    /// Whether packets pass.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = LinkState::Up))]
    pub(super) link: Option<LinkState>,
    /// Mode of the socket's file, in octal digits; for mode listen.
    #[serde(default, alias = "socket-mode", skip_serializing_if = "Option::is_none")]
    #[schemars(extend("examples" = ["0660", "666"]))]
    pub(super) socket_mode: Option<SocketMode>,
    /// Owner of the socket's file, by name or number; for mode listen.
    #[serde(default, alias = "socket-owner", skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1), extend("examples" = ["libvirt-qemu", "64055"]))]
    pub(super) socket_owner: Option<String>,
    /// Group of the socket's file, by name or number; for mode listen.
    #[serde(default, alias = "socket-group", skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1), extend("examples" = ["kvm", "108"]))]
    pub(super) socket_group: Option<String>,
    /// Threads of the guest's front end that count as its vCPUs in the view of the scheduler: auto (by their names), none, name:BEGINNING of names, or numbers with + between them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("examples" = ["name:CPU "]))]
    pub(super) vcpus: Option<Vcpus>,
    /// Other users of the device's frames.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = HostAccess::default()))]
    pub(super) host: Option<HostAccess>,
    /// Whether a wire is behind the device; false for a tap of another VMM.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = true))]
    pub(super) uplink: Option<bool>,
    /// Whether frames pass between this uplink and others with this key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = false))]
    pub(super) transit: Option<bool>,
    /// Whether guests of its switch have a link only while an uplink with this key has one.
    #[serde(default, alias = "link-tracking", skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = false))]
    pub(super) link_tracking: Option<bool>,
    /// Whether frames go to the device past its queueing discipline.
    #[serde(default, alias = "qdisc-bypass", skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = false))]
    pub(super) qdisc_bypass: Option<bool>,
    /// Whether packet sockets receive by rings in kernel memory.
    #[serde(default, alias = "packet-ring", skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = true))]
    pub(super) packet_ring: Option<bool>,
    /// Addresses of the host on the tap, with the lengths of their prefixes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("examples" = [["192.0.2.1/24", "2001:db8::1/64"]]))]
    pub(super) address: Option<Vec<Prefix>>,
}

/// Why keys do not describe a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyFault {
    /// The invalid key, as users write it; empty for no particular one.
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
    /// Only the name.
    pub fn named(name: Name) -> Self {
        Self { name: Some(name), ..Self::default() }
    }

    /// The port that they describe; the default backend is the device of its name.
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
        let made_by = self.made_by.clone();
        let backend = match kind {
            BackendKind::VhostUser => PortBackend::VhostUser(self.vhost_user()?),
            BackendKind::Device => PortBackend::Device(self.over_device(&common.name)?),
            BackendKind::Tap => {
                let tap = self.tap.unwrap_or_else(|| common.name.to_string());
                check_device(&tap).map_err(|fault| KeyFault { key: "tap", fault })?;
                PortBackend::Tap(TapBackend { tap, address: self.address.unwrap_or_default() })
            }
        };
        Ok(PortSpec { common, backend, made_by })
    }

    /// Like `spec`, where only vhost-user ports are possible and `backend` is implied.
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

    /// The keys that not every port may have: whether the value differs from the default, and the kinds of ports that
    /// have the key.
    fn keys_of_kinds(&self, kind: BackendKind) -> [(&'static str, bool, &'static [BackendKind]); 22] {
        use BackendKind::{Device, Tap, VhostUser};
        // Older programs wrote keys of devices for taps, too, with their defaults.
        let says =
            |flag: Option<bool>, default| flag.is_some_and(|flag| flag != default || kind == VhostUser);
        let is_of_device = matches!(self.backend, Some(BackendChoice::AfPacket | BackendChoice::AfXdp));
        let host = self.host.is_some_and(|host| host != HostAccess::default() || kind == VhostUser);
        [
            ("backend", is_of_device, &[Device]),
            ("device", self.device.is_some(), &[Device]),
            ("host", host, &[Device]),
            ("uplink", says(self.uplink, true), &[Device, Tap]),
            ("transit", says(self.transit, false), &[Device]),
            ("link-tracking", says(self.link_tracking, false), &[Device]),
            ("qdisc-bypass", says(self.qdisc_bypass, false), &[Device]),
            ("packet-ring", says(self.packet_ring, true), &[Device]),
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
        ]
    }

    /// Refuses the first key that ports of this kind do not have.
    fn check_fit(&self, kind: BackendKind) -> Result<(), KeyFault> {
        let mut keys = self.keys_of_kinds(kind).into_iter();
        let misfit = keys.find(|(_, is_given, kinds)| *is_given && !kinds.contains(&kind));
        let Some((key, _, kinds)) = misfit else { return Ok(()) };
        let owners: Vec<&str> = kinds.iter().map(|kind| kind.noun()).collect();
        let backends: Vec<String> = kinds.iter().map(|kind| format!("backend={}", kind.name())).collect();
        let remedy = match kind {
            BackendKind::Device => format!(", or use {}", backends.join(" or ")),
            BackendKind::Tap | BackendKind::VhostUser => String::new(),
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
        let policy = PortPolicy {
            mac: self.mac,
            storm,
            vlans: self.vlans()?,
            is_isolated,
            guard: self.guard()?,
            groups: self.groups.clone().unwrap_or_default().into(),
        };
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
        if self.socket.is_none() && self.name.as_ref().is_some_and(|name| name.as_str() == DATAPATH) {
            let why = "would have the socket RUNDIR/datapath.sock, which is the switch's own; choose another name, or give it a socket";
            return Err(self.wrong("socket", why));
        }
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
            packet_ring: self.packet_ring.unwrap_or(true),
            device: self.device,
        })
    }

    fn wrong(&self, key: &'static str, why: &str) -> KeyFault {
        let name = self.name.as_ref().map(Name::as_str).unwrap_or_default();
        KeyFault { key, fault: Fault::params(format!("port \"{name}\" {why}")) }
    }
}

/// Adds to the schema of ports which backends exclude which keys.
fn limit_keys_to_backends(schema: &mut Schema) {
    let is =
        |backend: &str| json!({ "required": ["backend"], "properties": { "backend": { "const": backend } } });
    let (is_vhost_user, is_tap) =
        (is("vhost-user"), json!({ "anyOf": [{ "required": ["tap"] }, is("tap")] }));
    let rule = |condition: Value, kind| json!({ "if": condition, "then": { "properties": keys_unfit_for(kind).map(|key| (key.to_owned(), false.into())).collect::<Map<_, _>>() } });
    let rules = [
        rule(is_vhost_user.clone(), BackendKind::VhostUser),
        rule(json!({ "allOf": [is_tap, { "not": is_vhost_user }] }), BackendKind::Tap),
        rule(json!({ "not": { "anyOf": [is_tap, is_vhost_user] } }), BackendKind::Device),
    ];
    schema.insert("allOf".to_owned(), rules.into());
}

/// The keys that ports of a kind do not have. `backend` chooses the kind.
pub(super) fn keys_unfit_for(kind: BackendKind) -> impl Iterator<Item = &'static str> {
    let keys = PortKeys::default().keys_of_kinds(kind).into_iter();
    keys.filter(move |(key, _, kinds)| *key != "backend" && !kinds.contains(&kind)).map(|(key, ..)| key)
}

impl TryFrom<PortKeys> for PortSpec {
    type Error = Fault;

    fn try_from(keys: PortKeys) -> Result<Self, Fault> {
        Ok(keys.spec()?)
    }
}

impl TryFrom<PortKeys> for PortCommon {
    type Error = Fault;

    /// Keys of the backend are accepted, since older programs send them to the switch process.
    fn try_from(keys: PortKeys) -> Result<Self, Fault> {
        Ok(keys.common()?)
    }
}

impl From<PortCommon> for PortKeys {
    fn from(common: PortCommon) -> Self {
        let PortCommon { name, switch, queues, mtu, memory_max, features_off, link, policy } = common;
        let PortPolicy { mac, storm, vlans, is_isolated, guard, groups } = policy;
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
            groups: GroupNames::new(groups).ok().filter(|groups| !groups.is_empty()),
            link: Some(link),
            ..Self::default()
        }
    }
}

impl From<PortSpec> for PortKeys {
    fn from(PortSpec { common, backend, made_by }: PortSpec) -> Self {
        let common = Self { made_by, ..Self::from(common) };
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
                packet_ring: Some(backend.packet_ring),
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
            // Only controllers make tunnel ports: there is no key. Readers take it for a device without settings of its own.
            PortBackend::Tunnel(_) => Self { link: None, ..common },
        }
    }
}
