//! A user's settings of a device port: in the configuration file, on the command line, in a request.
//!
//! A device port leads out of the switch: over a network device of the host (`device`), or over a tap that the switch makes
//! (`tap`). For the switch it is a vnic like others, whose guest is the driver process.

mod address;
mod parse;
mod words;

pub use address::Prefix;
pub use parse::{host_port, uplink};
pub use words::{BackendChoice, HostAccess, Leads};

use lasthop_module_api::{Mac, Vid, VlanSet};
use serde::{Deserialize, Serialize};

use crate::switches::SwitchName;
use crate::vnic::{FeatureSet, Name, VnicSpec, limits, mac_text, vid_number, vlan_list, vlans};
use lasthop_runtime::fault::Fault;

/// Longest name of a network device, in bytes (linux/if.h: IFNAMSIZ less its zero).
const DEVICE_BYTES_MAX: usize = 15;
/// The loopback device of each network namespace.
const LOOPBACK: &str = "lo";

/// One device port as asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PortSpec {
    /// Unique among vnics and ports.
    pub name: Name,
    /// The network device; that of the port's name if neither this nor `tap` is given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    /// The tap that is made, or opened if it is there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tap: Option<String>,
    /// How frames get to and from the device.
    #[serde(default)]
    pub backend: BackendChoice,
    /// Queues of the device that are served, and queue pairs towards the switch: 1 to 32.
    #[serde(default = "limits::one_queue", deserialize_with = "limits::queues")]
    pub queues: u16,
    /// Whether the host sees the device's frames, too.
    #[serde(default)]
    pub host: HostAccess,
    /// Whether a wire is behind the device; false for another VMM's tap.
    #[serde(default = "yes")]
    pub uplink: bool,
    /// Whether frames pass between this uplink and others that say so, too.
    #[serde(default)]
    pub transit: bool,
    /// Whether guests of its switch lose their link while no uplink that is tracked has one.
    #[serde(default, alias = "link-tracking")]
    pub link_tracking: bool,
    /// Whether frames go to the device past its queueing discipline.
    #[serde(default, alias = "qdisc-bypass")]
    pub qdisc_bypass: bool,
    /// Addresses of the host on the tap.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub address: Vec<Prefix>,
    /// The switch that it belongs to; it exchanges packets with ports of that switch only.
    #[serde(default)]
    pub switch: SwitchName,
    /// The tap's Ethernet address, and the only one that the host may send from.
    #[serde(default, with = "mac_text", skip_serializing_if = "Option::is_none")]
    pub mac: Option<Mac>,
    /// The MTU of the tap in bytes, 68 to 65,535; a device keeps its own.
    #[serde(default, deserialize_with = "limits::mtu", skip_serializing_if = "Option::is_none")]
    pub mtu: Option<u16>,
    /// Virtio features that the port's session with the switch goes without.
    #[serde(default, alias = "features-off")]
    pub features_off: FeatureSet,
    /// Broadcast packets per second from the device that may be flooded, 0 to 10,000,000; 0 is no limit.
    #[serde(default, alias = "storm-broadcast", deserialize_with = "limits::storm_broadcast")]
    pub storm_broadcast: u32,
    /// As `storm_broadcast`, of packets to other group addresses.
    #[serde(default, alias = "storm-multicast", deserialize_with = "limits::storm_multicast")]
    pub storm_multicast: u32,
    /// As `storm_broadcast`, of packets to addresses that no port is known for.
    #[serde(default, alias = "storm-unknown", deserialize_with = "limits::storm_unknown")]
    pub storm_unknown: u32,
    /// The VLAN that it is in, 1 to 4094, without tags (access port); not beside `trunk` and `native`.
    #[serde(default, with = "vid_number", skip_serializing_if = "Option::is_none")]
    pub vlan: Option<Vid>,
    /// VLANs that it carries, with tags; all if none is named beside `native`.
    #[serde(default, with = "vlan_list", skip_serializing_if = "Option::is_none")]
    pub trunk: Option<VlanSet>,
    /// The VLAN of untagged packets, 1 to 4094, beside those with tags.
    #[serde(default, with = "vid_number", skip_serializing_if = "Option::is_none")]
    pub native: Option<Vid>,
    /// Isolated ports exchange no packets with each other.
    #[serde(default, deserialize_with = "vlans::flag", skip_serializing_if = "vlans::is_false")]
    pub isolated: bool,
}

fn yes() -> bool {
    true
}

impl PortSpec {
    /// The keys, as on the command line.
    pub const KEYS: &[&str] = &[
        "device",
        "tap",
        "backend",
        "queues",
        "host",
        "uplink",
        "transit",
        "link-tracking",
        "qdisc-bypass",
        "address",
        "switch",
        "mac",
        "mtu",
        "features-off",
        "storm-broadcast",
        "storm-multicast",
        "storm-unknown",
        "vlan",
        "trunk",
        "native",
        "isolated",
    ];

    /// A port over the device of its name.
    pub fn named(name: Name) -> Self {
        Self {
            name,
            device: None,
            tap: None,
            backend: BackendChoice::default(),
            queues: limits::one_queue(),
            host: HostAccess::default(),
            uplink: true,
            transit: false,
            link_tracking: false,
            qdisc_bypass: false,
            address: Vec::new(),
            switch: SwitchName::default(),
            mac: None,
            mtu: None,
            features_off: FeatureSet::default(),
            storm_broadcast: 0,
            storm_multicast: 0,
            storm_unknown: 0,
            vlan: None,
            trunk: None,
            native: None,
            isolated: false,
        }
    }

    /// The network device that it is about.
    pub fn device_name(&self) -> &str {
        self.tap.as_deref().or(self.device.as_deref()).unwrap_or(self.name.as_str())
    }

    /// The tap that is the host's port in the place of the device.
    pub fn host_tap(&self) -> Option<String> {
        (self.host == HostAccess::Port).then(|| lasthop_device::host_tap(self.device_name()))
    }

    /// Whether the switch makes its device, a tap.
    pub fn is_tap(&self) -> bool {
        self.tap.is_some()
    }

    /// The kind of peer behind it, which decides which ports it may reach.
    pub fn leads(&self) -> Leads {
        match (self.is_tap() || !self.uplink, self.transit) {
            (true, _) => Leads::Inside,
            (false, false) => Leads::Out,
            (false, true) => Leads::Through,
        }
    }

    /// The port as the switch gets it: to the switch a device port is a vnic.
    pub fn vnic(&self) -> VnicSpec {
        VnicSpec {
            switch: self.switch.clone(),
            mac: self.mac,
            queues: self.queues,
            features_off: self.features_off.clone(),
            storm_broadcast: self.storm_broadcast,
            storm_multicast: self.storm_multicast,
            storm_unknown: self.storm_unknown,
            vlan: self.vlan,
            trunk: self.trunk.clone(),
            native: self.native,
            isolated: self.isolated,
            ..VnicSpec::named(self.name.clone())
        }
    }

    /// Refuses keys that make no sense together.
    ///
    /// # Errors
    /// One sentence with the port's name, the key, and the remedy.
    pub fn check(&self) -> Result<(), Fault> {
        self.vnic().check()?;
        check_device(self.device_name())?;
        if self.device_name() == LOOPBACK {
            return Err(self.wrong(
                "is over the host's loopback, which is no Ethernet device; name a network card, or make a port for the host: \
                 lasthop port add br0,tap=br0,address=192.0.2.1/24",
            ));
        }
        if self.device.is_some() && self.is_tap() {
            return Err(self.wrong("has both device and tap; a tap is its own device: leave one out"));
        }
        if self.transit && !self.uplink {
            return Err(
                self.wrong("has transit, which is between uplinks, and uplink = false; leave one out")
            );
        }
        let (of_devices, of_taps) = (self.keys_of_devices(), self.keys_of_taps());
        match (of_devices.first(), of_taps.first()) {
            (Some(key), _) if self.is_tap() => {
                Err(self.wrong(&format!("is a tap, and {key} is for devices; leave it out")))
            }
            (_, Some(key)) if !self.is_tap() => {
                Err(self.wrong(&format!("is for a device, and {key} is for taps; leave it out, or use tap")))
            }
            _ => Ok(()),
        }
    }

    /// Those that are given of the keys that only a port with a device may have.
    fn keys_of_devices(&self) -> Vec<&'static str> {
        let given = [
            ("backend", !matches!(self.backend, BackendChoice::Auto | BackendChoice::Tap)),
            ("host", self.host != HostAccess::default()),
            ("transit", self.transit),
            ("link-tracking", self.link_tracking),
            ("qdisc-bypass", self.qdisc_bypass),
        ];
        given.into_iter().filter(|(_, is_given)| *is_given).map(|(key, _)| key).collect()
    }

    /// Likewise for one with a tap.
    fn keys_of_taps(&self) -> Vec<&'static str> {
        let given = [
            ("backend=tap", self.backend == BackendChoice::Tap),
            ("address", !self.address.is_empty()),
            ("mac", self.mac.is_some()),
            ("mtu", self.mtu.is_some()),
        ];
        given.into_iter().filter(|(_, is_given)| *is_given).map(|(key, _)| key).collect()
    }

    fn wrong(&self, why: &str) -> Fault {
        Fault::params(format!("port \"{}\" {why}", self.name))
    }
}

/// Refuses the second of two ports over one device: each frame would come in twice.
///
/// # Errors
/// One sentence that names the other port.
pub fn check_beside<'a>(
    port: &PortSpec,
    others: impl IntoIterator<Item = &'a PortSpec>,
) -> Result<(), Fault> {
    let device = port.device_name();
    match others.into_iter().find(|other| other.device_name() == device) {
        Some(other) => Err(Fault::params(format!(
            "the device \"{device}\" is that of port \"{}\"; a device has one port: leave one out",
            other.name
        ))),
        None => Ok(()),
    }
}

/// Refuses names that no network device can have (linux: `dev_valid_name`).
fn check_device(name: &str) -> Result<(), Fault> {
    let is_fit = |byte: u8| !byte.is_ascii_whitespace() && !b"/:".contains(&byte) && byte != 0;
    let is_name = (1..=DEVICE_BYTES_MAX).contains(&name.len()) && !matches!(name, "." | "..");
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
    fn keys_that_contradict_each_other_are_refused() {
        for (text, words) in [
            ("a,device=eth1,tap=b", "both device and tap"),
            ("a,transit=true,uplink=false", "uplink = false"),
            ("a,tap=a,transit=true", "transit is for devices"),
            ("a,tap=a,link-tracking=true", "link-tracking is for devices"),
            ("a,tap=a,backend=af_packet", "backend is for devices"),
            ("a,address=192.0.2.1/24", "address is for taps"),
            ("a,backend=tap", "backend=tap is for taps"),
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
        assert_eq!((of("br0,tap=tap7").device_name(), of("br0,tap=tap7").is_tap()), ("tap7", true));
        assert_eq!(of("eth1").leads(), Leads::Out);
        assert_eq!(of("eth1,transit=true").leads(), Leads::Through);
        assert_eq!(of("vm9,device=tap9,uplink=false").leads(), Leads::Inside);
        assert_eq!(of("br0,tap=br0").leads(), Leads::Inside);
    }

    #[test]
    fn the_switch_is_told_of_a_vnic() {
        let port: PortSpec =
            "eth1,switch=red,queues=4,vlan=5,isolated=true,storm-broadcast=9".parse().expect("a port");
        let vnic: VnicSpec =
            "eth1,switch=red,queues=4,vlan=5,isolated=true,storm-broadcast=9".parse().expect("a vnic");
        assert_eq!(port.vnic(), vnic);
    }
}
