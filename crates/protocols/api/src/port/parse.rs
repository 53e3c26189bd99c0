//! `NAME[,KEY=VALUE]...`, and the shorter words of `lasthop run`: `--uplink DEVICE[,KEY=VALUE]...`,
//! `--host-port NAME[=ADDRESS/LEN[+ADDRESS/LEN]...][,KEY=VALUE]...`.

use std::str::FromStr;

use crate::names;
use crate::options::{number, options};
use crate::vnic::FeatureSet;
use crate::vnic::limits::{check_mac, check_mtu, check_queues, check_storm};
use crate::vnic::vlans::{check_flag, check_trunk, check_vid};
use lasthop_runtime::fault::Fault;

use super::PortSpec;

impl FromStr for PortSpec {
    type Err = Fault;

    fn from_str(text: &str) -> Result<Self, Fault> {
        let (name, options) = options(text)?;
        let mut spec = Self::named(name.parse()?);
        options.into_iter().try_for_each(|(key, value)| set(&mut spec, key, value))?;
        spec.check()?;
        Ok(spec)
    }
}

/// The port of `--uplink`.
pub fn uplink(text: &str) -> Result<PortSpec, Fault> {
    let spec: PortSpec = text.parse()?;
    if spec.is_tap() {
        return Err(Fault::params(format!("\"{text}\" is a tap; make it with --host-port")));
    }
    Ok(spec)
}

/// The port of `--host-port`: its tap has its name unless told otherwise.
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

fn set(spec: &mut PortSpec, key: &str, value: &str) -> Result<(), Fault> {
    match key {
        "device" => spec.device = Some(value.to_owned()),
        "tap" => spec.tap = Some(value.to_owned()),
        "backend" => spec.backend = value.parse()?,
        "host" => spec.host = value.parse()?,
        "uplink" => spec.uplink = check_flag(key, value)?,
        "transit" => spec.transit = check_flag(key, value)?,
        "link-tracking" => spec.link_tracking = check_flag(key, value)?,
        "qdisc-bypass" => spec.qdisc_bypass = check_flag(key, value)?,
        "address" => spec.address = value.split('+').map(str::parse).collect::<Result<_, _>>()?,
        _ => return set_as_of_vnic(spec, key, value),
    }
    Ok(())
}

/// The keys that vnics have, too.
fn set_as_of_vnic(spec: &mut PortSpec, key: &str, value: &str) -> Result<(), Fault> {
    match key {
        "switch" => spec.switch = value.parse()?,
        "mac" => spec.mac = Some(check_mac(value)?),
        "queues" => spec.queues = check_queues(number(key, value)?)?,
        "mtu" => spec.mtu = Some(check_mtu(number(key, value)?)?),
        "features-off" => spec.features_off = FeatureSet::of(value.split('+'))?,
        "storm-broadcast" => spec.storm_broadcast = check_storm(key, number(key, value)?)?,
        "storm-multicast" => spec.storm_multicast = check_storm(key, number(key, value)?)?,
        "storm-unknown" => spec.storm_unknown = check_storm(key, number(key, value)?)?,
        "vlan" => spec.vlan = Some(check_vid(key, value)?),
        "trunk" => spec.trunk = Some(check_trunk(value)?),
        "native" => spec.native = Some(check_vid(key, value)?),
        "isolated" => spec.isolated = check_flag(key, value)?,
        _ => return Err(unknown(key)),
    }
    Ok(())
}

fn unknown(key: &str) -> Fault {
    let hint = names::hint(key, PortSpec::KEYS.iter().copied());
    let known = PortSpec::KEYS.join(", ");
    Fault::params(format!("a port has no option \"{key}\"{hint} (there are {known})"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::port::{BackendChoice, HostAccess};

    #[test]
    fn every_option_arrives() {
        let text = "out,device=eth1,backend=af_packet,queues=2,host=off,transit=true,link-tracking=true,qdisc-bypass=true,\
                    switch=red,features-off=TSO,storm-broadcast=1,storm-multicast=2,storm-unknown=3,trunk=5-6,native=7";
        let spec: PortSpec = text.parse().expect("all options");
        assert_eq!(
            (spec.device.as_deref(), spec.backend, spec.queues),
            (Some("eth1"), BackendChoice::AfPacket, 2)
        );
        assert!(spec.transit && spec.link_tracking && spec.qdisc_bypass && spec.host == HostAccess::Off);
        assert_eq!((spec.storm_broadcast, spec.storm_multicast, spec.storm_unknown), (1, 2, 3));
        assert_eq!((spec.switch.as_str(), spec.native.map(|vid| vid.get())), ("red", Some(7)));
        let copy = serde_json::to_string(&spec).and_then(|json| serde_json::from_str(&json));
        assert_eq!(copy.ok(), Some(spec));
    }

    #[test]
    fn every_key_is_known_to_the_command_line() {
        for key in PortSpec::KEYS {
            let message = set(&mut PortSpec::named("a".parse().expect("a name")), key, "?").err();
            assert!(!message.is_some_and(|fault| fault.message.contains("no option")), "{key}");
        }
    }

    #[test]
    fn the_words_of_run_are_shorter() {
        let long = |text: &str| text.parse::<PortSpec>();
        assert_eq!(uplink("eth1,vlan=5"), long("eth1,vlan=5"));
        assert!(uplink("a,tap=a").expect_err("a tap").message.contains("--host-port"));
        assert_eq!(host_port("br0"), long("br0,tap=br0"));
        assert_eq!(host_port("br0=192.0.2.1/24"), long("br0,tap=br0,address=192.0.2.1/24"));
        assert_eq!(
            host_port("br0=192.0.2.1/24+2001:db8::1/64,mtu=9000,tap=t"),
            long("br0,address=192.0.2.1/24+2001:db8::1/64,mtu=9000,tap=t")
        );
    }

    #[test]
    fn mistakes_are_named_with_a_remedy() {
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
            for parsed in [text.parse::<PortSpec>(), uplink(&text), host_port(&text)] {
                let Ok(spec) = parsed else { continue };
                let copy = serde_json::to_string(&spec).and_then(|json| serde_json::from_str(&json));
                prop_assert_eq!(copy.ok(), Some(spec));
            }
        }
    }
}
