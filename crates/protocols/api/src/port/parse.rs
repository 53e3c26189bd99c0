//! Parses `NAME[,KEY=VALUE]...`, and the short forms of `lasthop run`: `--vnic NAME[,KEY=VALUE]...`, `--uplink
//! DEVICE[,KEY=VALUE]...`, `--host-port NAME[=ADDRESS/LEN[+ADDRESS/LEN]...][,KEY=VALUE]...`.

use std::path::PathBuf;
use std::str::FromStr;

use crate::groups::GroupNames;
use crate::guard::{GuardAddresses, GuardChecks};
use crate::names;
use crate::options::{Setting, number, of_the_whole, options};
use lasthop_runtime::fault::Fault;

use super::limits::{check_mac, check_mtu, check_queues, check_storm};
use super::vlans::{check_flag, check_trunk, check_vid};
use super::{BackendKind, FeatureSet, Name, PortKeys, PortSpec};

impl FromStr for PortKeys {
    type Err = Fault;

    fn from_str(text: &str) -> Result<Self, Fault> {
        let (name, options) = options(text)?;
        Self::parse(name.parse()?, &options)
    }
}

impl FromStr for PortSpec {
    type Err = Fault;

    fn from_str(text: &str) -> Result<Self, Fault> {
        Ok(text.parse::<PortKeys>()?.spec()?)
    }
}

/// The port of `--vnic`, which has the backend `vhost-user`.
pub fn vnic(text: &str) -> Result<PortSpec, Fault> {
    Ok(text.parse::<PortKeys>()?.vnic()?)
}

/// The port of `--uplink`.
pub fn uplink(text: &str) -> Result<PortSpec, Fault> {
    let spec: PortSpec = text.parse()?;
    match spec.kind() {
        BackendKind::Device => Ok(spec),
        BackendKind::Tap => Err(Fault::params(format!("\"{text}\" is a tap; make it with --host-port"))),
        BackendKind::VhostUser => {
            Err(Fault::params(format!("\"{text}\" is a vhost-user port; make it with --vnic")))
        }
    }
}

/// The port of `--host-port`; the default name of its tap is the port's.
pub fn host_port(text: &str) -> Result<PortSpec, Fault> {
    let (first, rest) = text.split_once(',').map_or((text, None), |(first, rest)| (first, Some(rest)));
    let (name, address) = first.split_once('=').map_or((first, None), |(name, list)| (name, Some(list)));
    let mut words = name.to_owned();
    let mut add = |word: String| words.extend([",", &word]);
    if !rest.is_some_and(|rest| rest.split(',').any(|option| option.starts_with("tap="))) {
        add(format!("tap={name}"));
    }
    if let Some(list) = address {
        add(format!("address={list}"));
    }
    if let Some(rest) = rest {
        add(rest.to_owned());
    }
    words.parse()
}

impl PortKeys {
    /// A port's name and the values of its keys, each checked by itself.
    pub(super) fn parse(name: Name, options: &[Setting<'_>]) -> Result<Self, Fault> {
        let mut keys = Self::named(name);
        options.iter().try_for_each(|(key, value)| keys.set(key, value))?;
        Ok(keys)
    }

    fn set(&mut self, key: &str, value: &str) -> Result<(), Fault> {
        match key {
            "backend" => self.backend = Some(value.parse()?),
            "device" => self.device = Some(value.to_owned()),
            "tap" => self.tap = Some(value.to_owned()),
            "host" => self.host = Some(value.parse()?),
            "uplink" => self.uplink = Some(check_flag(key, value)?),
            "transit" => self.transit = Some(check_flag(key, value)?),
            "link-tracking" => self.link_tracking = Some(check_flag(key, value)?),
            "qdisc-bypass" => self.qdisc_bypass = Some(check_flag(key, value)?),
            "packet-ring" => self.packet_ring = Some(check_flag(key, value)?),
            "address" => self.address = Some(value.split('+').map(str::parse).collect::<Result<_, _>>()?),
            "socket" => self.socket = Some(PathBuf::from(value)),
            "mode" => self.mode = Some(value.parse()?),
            "memory-max" => self.memory_max = Some(value.parse()?),
            "link" => self.link = Some(value.parse()?),
            "socket-mode" => self.socket_mode = Some(value.parse()?),
            "socket-owner" => self.socket_owner = Some(value.to_owned()),
            "socket-group" => self.socket_group = Some(value.to_owned()),
            "vcpus" => self.vcpus = Some(value.parse()?),
            _ => return self.set_common(key, value),
        }
        Ok(())
    }

    /// Sets a key that several backends have.
    fn set_common(&mut self, key: &str, value: &str) -> Result<(), Fault> {
        match key {
            "switch" => self.switch = Some(value.parse()?),
            "mac" => self.mac = Some(check_mac(value)?),
            "queues" => self.queues = Some(check_queues(number(key, value)?)?),
            "mtu" => self.mtu = Some(check_mtu(number(key, value)?)?),
            "features-off" => self.features_off = Some(FeatureSet::of(value.split('+'))?),
            "storm-broadcast" => self.storm_broadcast = Some(check_storm(key, number(key, value)?)?),
            "storm-multicast" => self.storm_multicast = Some(check_storm(key, number(key, value)?)?),
            "storm-unknown" => self.storm_unknown = Some(check_storm(key, number(key, value)?)?),
            "vlan" => self.vlan = Some(check_vid(key, value)?),
            "trunk" => self.trunk = Some(check_trunk(value)?),
            "native" => self.native = Some(check_vid(key, value)?),
            "isolated" => self.isolated = Some(check_flag(key, value)?),
            "guard" => self.guard = Some(GuardChecks::of(value.split('+'))?),
            "addresses" => self.addresses = Some(GuardAddresses::parse(value)?),
            "made-by" => self.made_by = Some(value.parse()?),
            "groups" => self.groups = Some(GroupNames::parse(value)?),
            _ => return Err(unknown(key)),
        }
        Ok(())
    }
}

fn unknown(key: &str) -> Fault {
    if let Some(fault) = of_the_whole(key) {
        return fault;
    }
    let hint = names::hint(key, PortSpec::KEYS.iter().copied());
    let known = PortSpec::KEYS.join(", ");
    Fault::params(format!("a port has no option \"{key}\"{hint} (there are {known})"))
}

#[cfg(test)]
mod tests {
    use lasthop_module_api::StormLimits;
    use proptest::prelude::*;

    use super::*;
    use crate::port::{BackendChoice, HostAccess, VnicMode};

    fn parse(text: &str) -> Result<PortSpec, String> {
        vnic(text).map_err(|fault| fault.message)
    }

    #[test]
    fn a_name_alone_has_the_defaults() {
        let spec = parse("vm1").expect("a name");
        let backend = spec.vhost_user().expect("vhost-user");
        assert_eq!((spec.name().as_str(), backend.mode, spec.common.queues), ("vm1", VnicMode::Listen, 1));
        assert_eq!((&backend.socket, spec.common.policy.mac, spec.common.mtu), (&None, None, None));
        assert_eq!(spec.common.switch.as_str(), "default");
    }

    #[test]
    fn every_option_of_a_guests_port_arrives() {
        let text = "vm1,switch=red,socket=/a/b=c,mode=connect,mac=02:00:00:00:00:01,queues=4,mtu=1400,memory-max=64G,features-off=csum+TSO4";
        let spec = parse(text).expect("all options");
        assert_eq!(text.replace("vm1,", "vm1,backend=vhost-user,").parse(), Ok(spec.clone()));
        let (common, backend) = (&spec.common, spec.vhost_user().expect("vhost-user"));
        assert_eq!(backend.socket, Some(PathBuf::from("/a/b=c")));
        assert_eq!((backend.mode, common.queues, common.mtu), (VnicMode::Connect, 4, Some(1400)));
        assert_eq!(common.memory_max.map(|memory| memory.bytes()), Some(64 << 30));
        assert_eq!(common.policy.mac.map(|mac| mac.to_string()), Some("02:00:00:00:00:01".to_owned()));
        assert_eq!(common.features_off.joined(), "CSUM+TSO4");
        assert_eq!(common.switch.as_str(), "red");
        let spec = parse("vm1,storm-broadcast=1,storm-multicast=20,storm-unknown=10000000").expect("limits");
        let limits = StormLimits { broadcast: 1, multicast: 20, unknown: 10_000_000 };
        assert_eq!(spec.common.policy.storm, limits);
        assert_eq!(parse("vm1").expect("a name").common.policy.storm, StormLimits::default());
    }

    #[test]
    fn every_option_of_a_device_arrives() {
        let text = "out,device=eth1,backend=af_packet,queues=2,host=off,transit=true,link-tracking=true,qdisc-bypass=true,packet-ring=false,\
                    switch=red,features-off=TSO,storm-broadcast=1,storm-multicast=2,storm-unknown=3,trunk=5-6,native=7";
        let spec: PortSpec = text.parse().expect("all options");
        let (common, device) = (&spec.common, spec.device().expect("a device"));
        assert_eq!(
            (device.device.as_deref(), device.io, common.queues),
            (Some("eth1"), BackendChoice::AfPacket, 2)
        );
        assert!(device.transit && device.link_tracking && device.qdisc_bypass && !device.packet_ring);
        assert_eq!(device.host, HostAccess::Off);
        assert_eq!(common.policy.storm, StormLimits { broadcast: 1, multicast: 2, unknown: 3 });
        assert_eq!(common.switch.as_str(), "red");
        let copy = serde_json::to_string(&spec).and_then(|json| serde_json::from_str(&json));
        assert_eq!(copy.ok(), Some(spec));
    }

    #[test]
    fn every_key_is_known_to_the_command_line_and_to_json() {
        for key in PortSpec::KEYS {
            let mut keys = PortKeys::named("a".parse().expect("a name"));
            let message = keys.set(key, "?").err();
            assert!(!message.is_some_and(|fault| fault.message.contains("no option")), "{key}");
            let json = format!("{{\"name\":\"a\",\"{key}\":[0]}}");
            let error = serde_json::from_str::<PortKeys>(&json).expect_err(key).to_string();
            assert!(!error.contains("unknown field"), "{key}: {error}");
        }
    }

    #[test]
    fn the_words_of_run_are_shorter() {
        let long = |text: &str| text.parse::<PortSpec>();
        assert_eq!(vnic("vm1,vlan=5"), long("vm1,backend=vhost-user,vlan=5"));
        assert_eq!(uplink("eth1,vlan=5"), long("eth1,vlan=5"));
        assert!(uplink("a,tap=a").expect_err("a tap").message.contains("--host-port"));
        assert!(uplink("a,backend=vhost-user").expect_err("a guest's").message.contains("--vnic"));
        assert_eq!(host_port("br0"), long("br0,tap=br0"));
        assert_eq!(host_port("br0"), long("br0,backend=tap"));
        assert_eq!(host_port("br0=192.0.2.1/24"), long("br0,tap=br0,address=192.0.2.1/24"));
        assert_eq!(
            host_port("br0=192.0.2.1/24+2001:db8::1/64,mtu=9000,tap=t"),
            long("br0,address=192.0.2.1/24+2001:db8::1/64,mtu=9000,tap=t")
        );
    }

    #[test]
    fn mistakes_are_named_with_a_remedy() {
        for (text, words) in [
            ("vm1,mak=02:00:00:00:00:01", "did you mean \"mac\""),
            ("vm1,mode=lisen", "mode=listen"),
            ("vm1,queues=0", "1 to 32"),
            ("vm1,workers=3", "takes a restart: lasthop run --workers"),
            ("vm1,queues=x", "not a number"),
            ("vm1,mtu=67", "68 to 65535"),
            ("vm1,memory-max=1", "1M to 64T"),
            ("vm1,mac=03:00:00:00:00:01", "unicast"),
            ("vm1,storm-broadcast=-1", "not a number up to 10000000"),
            ("vm1,storm-unknown=10000001", "0 to 10000000 frames per second"),
            ("vm1,storm-brodcast=1", "did you mean \"storm-broadcast\""),
            ("vm1,mac=02:00", "not an Ethernet address"),
            ("vm1,mtu=1400,mtu=1500", "twice"),
            ("vm1,", "KEY=VALUE"),
            ("vm1,socket=", "KEY=VALUE"),
            ("vm1,switch=a b", "name of a switch"),
            ("vm1,swich=a", "did you mean \"switch\""),
            ("datapath", "choose another name, or give it a socket"),
            (",mode=listen", "name of a port"),
        ] {
            let message = parse(text).expect_err(text);
            assert!(message.contains(words), "{text}: {message}");
        }
        for (text, words) in [
            ("a,devise=eth1", "did you mean \"device\""),
            ("a,backend=af_xpd", "did you mean \"af_xdp\""),
            ("a,host=of", "did you mean \"off\""),
            ("a,transit=yes", "neither transit=true nor transit=false"),
            ("a,tap=a,address=1.2.3.4", "prefix length"),
            ("a,queues=33", "1 to 32"),
            ("a,vlan=5,vlan=6", "twice"),
            ("control", "the switch's own"),
        ] {
            let fault = text.parse::<PortSpec>().expect_err(text);
            assert!(fault.message.contains(words), "{text}: {fault}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_parsed_or_refused(text in "[a-z0-9,=:+/.-]{0,60}") {
            for parsed in [text.parse::<PortSpec>(), vnic(&text), uplink(&text), host_port(&text)] {
                let Ok(spec) = parsed else { continue };
                prop_assert!(text.starts_with(spec.name().as_str()));
                let copy = serde_json::to_string(&spec).and_then(|json| serde_json::from_str(&json));
                prop_assert_eq!(copy.ok(), Some(spec));
            }
        }
    }
}
