//! `NAME[,switch=NAME][,socket=PATH][,mode=listen|connect][,mac=..][,queues=N][,mtu=N][,memory-max=SIZE]
//! [,features-off=A+B][,vlan=VID][,trunk=VID+VID-VID][,native=VID][,isolated=true|false][,storm-broadcast=N]
//! [,storm-multicast=N][,storm-unknown=N][,vcpus=THREADS]`.

use std::path::PathBuf;
use std::str::FromStr;

use crate::names;
use crate::options::{number, of_the_whole, options};
use lasthop_runtime::fault::Fault;

use super::limits::{check_mac, check_mtu, check_queues, check_storm};
use super::vlans::{check_flag, check_trunk, check_vid};
use super::{FeatureSet, VnicMode, VnicSpec};

impl FromStr for VnicSpec {
    type Err = Fault;

    fn from_str(text: &str) -> Result<Self, Fault> {
        let (name, options) = options(text)?;
        let mut spec = VnicSpec::named(name.parse()?);
        options.into_iter().try_for_each(|(key, value)| set(&mut spec, key, value))?;
        spec.check()?;
        Ok(spec)
    }
}

fn set(spec: &mut VnicSpec, key: &str, value: &str) -> Result<(), Fault> {
    match key {
        "switch" => spec.switch = value.parse()?,
        "socket" => spec.socket = Some(PathBuf::from(value)),
        "mode" => spec.mode = mode(value)?,
        "mac" => spec.mac = Some(check_mac(value)?),
        "queues" => spec.queues = check_queues(number(key, value)?)?,
        "mtu" => spec.mtu = Some(check_mtu(number(key, value)?)?),
        "memory-max" => spec.memory_max = Some(value.parse()?),
        "link" => spec.link = value.parse()?,
        "socket-mode" => spec.socket_mode = Some(value.parse()?),
        "socket-owner" => spec.socket_owner = Some(value.to_owned()),
        "socket-group" => spec.socket_group = Some(value.to_owned()),
        "vcpus" => spec.vcpus = Some(value.parse()?),
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

fn mode(value: &str) -> Result<VnicMode, Fault> {
    match value {
        "listen" => Ok(VnicMode::Listen),
        "connect" => Ok(VnicMode::Connect),
        _ => Err(Fault::params(format!("mode={value} is neither mode=listen nor mode=connect"))),
    }
}

fn unknown(key: &str) -> Fault {
    if let Some(fault) = of_the_whole(key) {
        return fault;
    }
    let hint = names::hint(key, VnicSpec::KEYS.iter().copied());
    let known = VnicSpec::KEYS.join(", ");
    Fault::params(format!("a vnic has no option \"{key}\"{hint} (there are {known})"))
}

#[cfg(test)]
mod tests {
    use lasthop_module_api::StormLimits;
    use proptest::prelude::*;

    use super::*;

    fn parse(text: &str) -> Result<VnicSpec, String> {
        text.parse().map_err(|fault: Fault| fault.message)
    }

    #[test]
    fn a_name_alone_has_the_defaults() {
        let spec = parse("vm1").expect("a name");
        assert_eq!((spec.name.as_str(), spec.mode, spec.queues), ("vm1", VnicMode::Listen, 1));
        assert_eq!((spec.socket, spec.mac, spec.mtu), (None, None, None));
        assert_eq!(spec.switch.as_str(), "default");
    }

    #[test]
    fn every_option_arrives() {
        let text = "vm1,switch=red,socket=/a/b=c,mode=connect,mac=02:00:00:00:00:01,queues=4,mtu=1400,memory-max=64G,features-off=csum+TSO4";
        let spec = parse(text).expect("all options");
        assert_eq!(spec.socket, Some(PathBuf::from("/a/b=c")));
        assert_eq!((spec.mode, spec.queues, spec.mtu), (VnicMode::Connect, 4, Some(1400)));
        assert_eq!(spec.memory_max.map(|memory| memory.bytes()), Some(64 << 30));
        assert_eq!(spec.mac.map(|mac| mac.to_string()), Some("02:00:00:00:00:01".to_owned()));
        assert_eq!(spec.features_off.joined(), "CSUM+TSO4");
        assert_eq!(spec.switch.as_str(), "red");
        let spec = parse("vm1,storm-broadcast=1,storm-multicast=20,storm-unknown=10000000").expect("limits");
        assert_eq!(spec.policy().storm, StormLimits { broadcast: 1, multicast: 20, unknown: 10_000_000 });
        assert_eq!(parse("vm1").expect("a name").policy().storm, StormLimits::default());
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
            (",mode=listen", "name of a vnic"),
        ] {
            let message = parse(text).expect_err(text);
            assert!(message.contains(words), "{text}: {message}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_parsed_or_refused(text in "[a-z0-9,=:+-]{0,60}") {
            if let Ok(spec) = parse(&text) {
                prop_assert!(text.starts_with(spec.name.as_str()));
                let copy = serde_json::to_string(&spec).and_then(|json| serde_json::from_str(&json));
                prop_assert_eq!(copy.ok(), Some(spec));
            }
        }
    }
}
