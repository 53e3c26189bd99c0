//! A user's settings of a port: in the configuration file, on the command line, in a request.
//!
//! ```text
//!   PortSpec ─┬─ common: PortCommon ── name, switch, queues, …, policy: PortPolicy    for the switch process
//!             └─ backend: PortBackend                                                 the supervisor's own
//!                  VhostUser: a guest's socket    Device: a network device    Tap: a tap of the switch
//! ```
//!
//! For the switch process every port has a vhost-user front end: a guest's VMM, or the driver process for devices and taps.

mod access;
mod address;
pub mod change;
mod features;
mod keys;
pub mod limits;
mod maker;
mod memory;
mod name;
mod parse;
mod vcpus;
mod vlans;
mod vnic_form;
mod words;

pub use access::SocketMode;
pub use address::Prefix;
pub use features::{FeatureSet, describe as describe_features};
pub use keys::{KeyFault, PortKeys};
pub(crate) use limits::check_mac;
pub(crate) use limits::mac as mac_text;
pub use maker::{Maker, OVS_RELAY};
pub use memory::MemoryMax;
pub use name::Name;
pub use parse::{host_port, uplink, vnic};
pub use vcpus::Vcpus;
pub(crate) use vlans::{trunk as vlan_list, vid as vid_number};
pub use vnic_form::{VnicForm, in_vnic_form};
pub use words::{BackendChoice, BackendKind, HostAccess, LinkState, PeerKind, VnicMode};

use std::path::{Path, PathBuf};

use lasthop_device::TunnelFacts;
use lasthop_module_api::PortPolicy;
use serde::{Deserialize, Serialize};

use crate::switches::{self, SwitchName, SwitchSpec};
use lasthop_runtime::fault::Fault;

/// Longest name of a network device, in bytes (linux/if.h: IFNAMSIZ without its zero).
const DEVICE_BYTES_MAX: usize = 15;
/// The loopback device of each network namespace.
const LOOPBACK: &str = "lo";

/// A port as requested.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "PortKeys", into = "PortKeys")]
pub struct PortSpec {
    /// Settings of ports of every backend.
    pub common: PortCommon,
    /// The other end of the port.
    pub backend: PortBackend,
    /// The program that made it and will remove it; `None`: a person, or the file.
    pub made_by: Option<Maker>,
}

/// Settings of a port of any backend.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "PortKeys", into = "PortKeys")]
pub struct PortCommon {
    /// Unique among ports.
    pub name: Name,
    /// Its switch; it exchanges packets with ports of that switch only.
    pub switch: SwitchName,
    /// Queue pairs towards the switch, for a guest or for queues of the device: 1 to 32.
    pub queues: u16,
    /// The MTU of a guest or a tap in bytes: 68 to 65,535 (virtio 1.2, 5.1.4.1). A device keeps its own.
    pub mtu: Option<u16>,
    /// Largest memory of a guest: 1 MiB to 64 TiB.
    pub memory_max: Option<MemoryMax>,
    /// Virtio features that are masked.
    pub features_off: FeatureSet,
    /// Whether packets pass.
    pub link: LinkState,
    /// The rules for its packets, in the form for a module.
    pub policy: PortPolicy,
}

/// The other end of a port, and the settings of that kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PortBackend {
    /// A guest's front end.
    VhostUser(VhostUserBackend),
    /// A network device of the host.
    Device(DeviceBackend),
    /// A tap of the switch.
    Tap(TapBackend),
    /// A tunnel port, which only controllers can make.
    Tunnel(TunnelFacts),
}

/// A socket at which a guest attaches.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VhostUserBackend {
    /// Default: RUNDIR/NAME.sock.
    pub socket: Option<PathBuf>,
    /// The side that makes the socket.
    pub mode: VnicMode,
    /// Mode of the socket's file.
    pub socket_mode: Option<SocketMode>,
    /// Owner of the socket's file, by name or number; default: the user of the switch.
    pub socket_owner: Option<String>,
    /// Group of the socket's file, by name or number.
    pub socket_group: Option<String>,
    /// Threads of the front end that count as the guest's vCPUs for the view of the scheduler; default: those with the
    /// names of vCPUs.
    pub vcpus: Option<Vcpus>,
}

/// A network device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceBackend {
    /// Its name; default: the port's.
    pub device: Option<String>,
    /// The I/O method: `Auto`, `AfPacket` or `AfXdp`.
    pub io: BackendChoice,
    /// Whether the host gets the device's packets, too.
    pub host: HostAccess,
    /// Whether it is an uplink; false for another VMM's tap.
    pub uplink: bool,
    /// Whether packets pass between this uplink and others with this setting.
    pub transit: bool,
    /// Whether its link is tracked: guests of its switch lose their link while no tracked uplink has one.
    pub link_tracking: bool,
    /// Whether packets bypass the device's queueing discipline.
    pub qdisc_bypass: bool,
    /// Whether packet sockets receive by rings in kernel memory, where the kernel gives them.
    pub packet_ring: bool,
}

impl Default for DeviceBackend {
    fn default() -> Self {
        Self {
            device: None,
            io: BackendChoice::default(),
            host: HostAccess::default(),
            uplink: true,
            transit: false,
            link_tracking: false,
            qdisc_bypass: false,
            packet_ring: true,
        }
    }
}

/// A tap, made or opened. Its Ethernet address is that of the port's policy, the only one that the host may send from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TapBackend {
    /// Its name.
    pub tap: String,
    /// Addresses of the host on it.
    pub address: Vec<Prefix>,
}

impl PortBackend {
    /// The kind of backend; a tunnel port counts as a device.
    pub fn kind(&self) -> BackendKind {
        match self {
            Self::VhostUser(_) => BackendKind::VhostUser,
            Self::Device(_) | Self::Tunnel(_) => BackendKind::Device,
            Self::Tap(_) => BackendKind::Tap,
        }
    }
}

impl PortSpec {
    /// The keys of all backends, as on the command line.
    pub const KEYS: &[&str] = &[
        "backend",
        "switch",
        "socket",
        "mode",
        "device",
        "tap",
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
        "guard",
        "addresses",
        "groups",
        "made-by",
        "link",
        "socket-mode",
        "socket-owner",
        "socket-group",
        "vcpus",
        "host",
        "uplink",
        "transit",
        "link-tracking",
        "qdisc-bypass",
        "packet-ring",
        "address",
    ];

    /// A port of this name and backend with default settings.
    pub fn new(name: Name, backend: PortBackend) -> Self {
        Self { common: PortCommon::named(name), backend, made_by: None }
    }

    /// The port's name.
    pub fn name(&self) -> &Name {
        &self.common.name
    }

    /// The kind of backend.
    pub fn kind(&self) -> BackendKind {
        self.backend.kind()
    }

    /// The backend of a vhost-user port.
    pub fn vhost_user(&self) -> Option<&VhostUserBackend> {
        match &self.backend {
            PortBackend::VhostUser(backend) => Some(backend),
            PortBackend::Device(_) | PortBackend::Tap(_) | PortBackend::Tunnel(_) => None,
        }
    }

    /// The backend of a port over a device, except a tap of the switch.
    pub fn device(&self) -> Option<&DeviceBackend> {
        match &self.backend {
            PortBackend::Device(backend) => Some(backend),
            PortBackend::VhostUser(_) | PortBackend::Tap(_) | PortBackend::Tunnel(_) => None,
        }
    }

    /// The backend of a tap.
    pub fn tap(&self) -> Option<&TapBackend> {
        match &self.backend {
            PortBackend::Tap(backend) => Some(backend),
            PortBackend::VhostUser(_) | PortBackend::Device(_) | PortBackend::Tunnel(_) => None,
        }
    }

    /// Whether it is a vhost-user port.
    pub fn is_vhost_user(&self) -> bool {
        self.vhost_user().is_some()
    }

    /// The network device of the port. A vhost-user port has none; its placeholder on the host has its name.
    pub fn device_name(&self) -> &str {
        match &self.backend {
            PortBackend::Tap(backend) => &backend.tap,
            PortBackend::Device(DeviceBackend { device: Some(device), .. }) => device,
            PortBackend::Device(_) | PortBackend::VhostUser(_) | PortBackend::Tunnel(_) => {
                self.common.name.as_str()
            }
        }
    }

    /// The tap for the host that replaces the device (`host=port`).
    pub fn host_tap(&self) -> Option<String> {
        let device = self.device().filter(|device| device.host == HostAccess::Port)?;
        Some(lasthop_device::host_tap(device.device.as_deref().unwrap_or(self.common.name.as_str())))
    }

    /// The kind of peer, which decides about the ports that it may reach.
    pub fn leads(&self) -> PeerKind {
        match self.device() {
            Some(DeviceBackend { uplink: true, transit: false, .. }) => PeerKind::Out,
            Some(DeviceBackend { uplink: true, transit: true, .. }) => PeerKind::Through,
            _ => PeerKind::Inside,
        }
    }

    /// The path of its socket, if the run directory is `dir`. For a port over a device there is no such file.
    pub fn socket_in(&self, dir: &Path) -> PathBuf {
        let named = self.vhost_user().and_then(|backend| backend.socket.clone());
        named.unwrap_or_else(|| dir.join(format!("{}.sock", self.common.name)))
    }

    /// Removes a socket path that equals the default in run directory `dir`.
    pub fn without_default_socket(mut self, dir: &Path) -> Self {
        let by_default = dir.join(format!("{}.sock", self.common.name));
        if let PortBackend::VhostUser(backend) = &mut self.backend {
            backend.socket.take_if(|path| *path == by_default);
        }
        self
    }

    /// Makes a relative socket path start at `base`.
    pub fn based_at(mut self, base: &Path) -> Self {
        if let PortBackend::VhostUser(backend) = &mut self.backend {
            backend.socket = backend.socket.take().map(|path| base.join(path));
        }
        self
    }
}

impl PortCommon {
    /// Default settings.
    pub fn named(name: Name) -> Self {
        Self {
            name,
            switch: SwitchName::default(),
            queues: 1,
            mtu: None,
            memory_max: None,
            features_off: FeatureSet::default(),
            link: LinkState::default(),
            policy: PortPolicy::default(),
        }
    }

    /// The keys that other processes get: those with other values than the defaults, and some more.
    pub fn keys_told(&self) -> Vec<String> {
        let told = serde_json::to_value(self).ok();
        let fields = told.as_ref().and_then(serde_json::Value::as_object).into_iter().flatten();
        fields.map(|(field, _)| field.replace('_', "-")).filter(|key| key != "name").collect()
    }
}

/// Refuses the second of two ports with the same name.
pub fn check_unique<'a>(ports: impl IntoIterator<Item = &'a PortSpec>) -> Result<(), Fault> {
    let mut seen = std::collections::BTreeSet::new();
    match ports.into_iter().find(|port| !seen.insert(port.name())) {
        Some(port) => {
            Err(Fault::params(format!("there are two ports \"{}\"; give one another name", port.name())))
        }
        None => Ok(()),
    }
}

/// Refuses ports of unknown switches.
pub fn check_members<'a>(
    switches: &[SwitchSpec],
    ports: impl IntoIterator<Item = &'a PortSpec>,
) -> Result<(), Fault> {
    ports.into_iter().try_for_each(|port| {
        let PortCommon { name, switch, .. } = &port.common;
        let remedy = format!("make it with --switch {switch} or a [[switch]] in the file");
        let found = switches::find(switches, switch.as_str(), &remedy);
        found.map(drop).map_err(|fault| Fault { message: format!("port \"{name}\": {fault}"), ..fault })
    })
}

/// Refuses the second of two ports over one device, since each packet would arrive twice.
///
/// # Errors
/// One sentence that names the other port.
pub fn check_beside<'a>(
    port: &PortSpec,
    others: impl IntoIterator<Item = &'a PortSpec>,
) -> Result<(), Fault> {
    if port.is_vhost_user() {
        return Ok(());
    }
    let device = port.device_name();
    let mut over_devices = others.into_iter().filter(|other| !other.is_vhost_user());
    match over_devices.find(|other| other.device_name() == device) {
        Some(other) => Err(Fault::params(format!(
            "the device \"{device}\" is that of port \"{}\"; a device has one port: leave one out",
            other.name()
        ))),
        None => Ok(()),
    }
}
/// Refuses names that no network device of a port can have (linux: `dev_valid_name`).
///
/// # Errors
/// One sentence with the remedy.
pub fn check_device(name: &str) -> Result<(), Fault> {
    let is_fit = |byte: u8| !byte.is_ascii_whitespace() && !b"/:".contains(&byte) && byte != 0;
    let is_name = (1..=DEVICE_BYTES_MAX).contains(&name.len()) && !matches!(name, "." | "..");
    if name == LOOPBACK {
        return Err(Fault::params(
            "\"lo\" is the host's loopback, which is no Ethernet device; name a network card, or make a port for the host: \
             lasthop port add br0,tap=br0,address=192.0.2.1/24",
        ));
    }
    if is_name && name.bytes().all(is_fit) {
        return Ok(());
    }
    Err(Fault::params(format!(
        "\"{name}\" cannot be the name of a network device, which has 1 to {DEVICE_BYTES_MAX} bytes; \
         give the device's own name: device=DEVICE, or tap=DEVICE"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(text: &str) -> String {
        text.parse::<PortSpec>().expect_err(text).message
    }

    #[test]
    fn a_tunnel_port_of_an_answer_can_be_read() {
        let facts = TunnelFacts { kind: lasthop_device::TunnelKind::Geneve, port: 6081 };
        let port = PortSpec::new("genev_sys_6081".parse().expect("a name"), PortBackend::Tunnel(facts));
        let read: PortSpec = serde_json::from_value(serde_json::json!(port)).expect("settings");
        assert_eq!((read.kind(), read.device_name()), (BackendKind::Device, "genev_sys_6081"));
    }

    #[test]
    fn keys_that_contradict_each_other_are_refused() {
        for (text, words) in [
            ("a,device=eth1,tap=b", "both device and tap"),
            ("a,transit=true,uplink=false", "uplink = false"),
            ("a,tap=a,transit=true", "transit is for devices"),
            ("a,tap=a,link-tracking=true", "link-tracking is for devices"),
            ("a,tap=a,backend=af_packet", "backend is for devices"),
            ("a,address=192.0.2.1/24", "address is for taps"),
            ("a,mac=02:00:00:00:00:01", "mac is for taps"),
            ("a,vlan=5,trunk=6", "both vlan and trunk"),
            ("a-name-of-16-byt", "name of a network device"),
            ("a,device=a/b", "name of a network device"),
            ("lo", "no Ethernet device"),
        ] {
            assert!(refusal(text).contains(words), "{text}: {}", refusal(text));
        }
    }

    #[test]
    fn a_port_is_about_the_device_of_its_name_unless_told_otherwise() {
        let of = |text: &str| text.parse::<PortSpec>().expect(text);
        assert_eq!(of("eth1").device_name(), "eth1");
        assert_eq!(of("out,device=eth1").device_name(), "eth1");
        assert_eq!((of("br0,tap=tap7").device_name(), of("br0,tap=tap7").kind()), ("tap7", BackendKind::Tap));
        assert_eq!(of("eth1").leads(), PeerKind::Out);
        assert_eq!(of("eth1,transit=true").leads(), PeerKind::Through);
        assert_eq!(of("vm9,device=tap9,uplink=false").leads(), PeerKind::Inside);
        assert_eq!(of("br0,tap=br0").leads(), PeerKind::Inside);
    }

    #[test]
    fn keys_of_other_backends_are_refused_by_name() {
        for (text, words) in [
            (
                "a,socket=/s",
                "is for a device, and socket is for vhost-user ports; leave it out, or use backend=vhost-user",
            ),
            ("a,link=down", "link is for vhost-user ports"),
            (
                "a,backend=vhost-user,host=shared",
                "is a vhost-user port, and host is for devices; leave it out",
            ),
            ("a,backend=vhost-user,tap=b", "tap is for taps"),
            ("a,backend=vhost-user,address=192.0.2.1/24", "address is for taps"),
            ("a,tap=a,vcpus=auto", "is a tap, and vcpus is for vhost-user ports"),
            (
                "a,mtu=1500",
                "mtu is for taps and vhost-user ports; leave it out, or use backend=tap or backend=vhost-user",
            ),
            ("a,backend=vhost-user,mode=connect,socket-mode=0600", "mode=listen"),
        ] {
            assert!(refusal(text).contains(words), "{text}: {}", refusal(text));
        }
    }

    #[test]
    fn the_switch_is_told_the_same_of_ports_of_every_backend() {
        let keys = "switch=red,queues=4,vlan=5,isolated=true,storm-broadcast=9";
        let common = |text: String| text.parse::<PortSpec>().expect(&text).common;
        let guest = common(format!("eth1,backend=vhost-user,{keys}"));
        assert_eq!(common(format!("eth1,{keys}")), guest);
        assert_eq!(common(format!("eth1,tap=a,{keys}")), guest);
        // Older programs sent more keys.
        let told = serde_json::json!({"name": "eth1", "switch": "red", "mode": "connect", "socket": "/s", "queues": 4,
            "vlan": 5, "isolated": true, "storm_broadcast": 9, "link": "up", "features_off": []});
        assert_eq!(serde_json::from_value::<PortCommon>(told).expect("a port"), guest);
        let told = serde_json::to_value(&guest).expect("JSON");
        assert!(told.get("backend").is_none(), "and know no backend: {told}");
    }

    #[test]
    fn taps_are_read_as_programs_of_before_wrote_them() {
        let written = r#"{"name":"a","tap":"a","backend":"auto","queues":1,"host":"shared","uplink":true,"transit":false,
            "link_tracking":false,"qdisc_bypass":false,"switch":"default","features_off":[],"storm_broadcast":0,
            "storm_multicast":0,"storm_unknown":0}"#;
        assert_eq!(
            serde_json::from_str::<PortSpec>(written).expect("a tap"),
            "a,tap=a".parse().expect("a tap")
        );
    }

    #[test]
    fn a_vnic_of_no_switch_is_refused_with_a_close_name() {
        let check = |switches: &[&str], name: &str| {
            let switches: Vec<SwitchSpec> =
                switches.iter().map(|name| name.parse().expect("a switch")).collect();
            check_members(&switches, [&vnic(name).expect("a vnic")]).map_err(|fault| fault.message)
        };
        assert_eq!(check(&["default"], "vm1"), Ok(()));
        assert_eq!(check(&["default", "red"], "vm1,switch=red"), Ok(()));
        let why = check(&["default", "red"], "vm1,switch=ret").expect_err("no such switch");
        assert_eq!(why, "port \"vm1\": there is no switch \"ret\"; did you mean \"red\"?");
        let why = check(&["default"], "vm1,switch=red").expect_err("no such switch");
        assert!(why.ends_with("make it with --switch red or a [[switch]] in the file"), "{why}");
    }
}
