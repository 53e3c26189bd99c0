//! Reads and writes a port's VLAN keys.

use lasthop_module_api::{Vid, VlanSet};
use serde::{Deserialize, Deserializer};

use lasthop_runtime::fault::Fault;

pub(crate) fn check_vid(key: &str, text: &str) -> Result<Vid, Fault> {
    text.parse().map_err(|why| Fault::params(format!("{key}={text}: {why}")))
}

pub(crate) fn check_trunk(text: &str) -> Result<VlanSet, Fault> {
    text.parse().map_err(|why| Fault::params(format!("trunk={text}: {why}")))
}

pub(crate) fn check_flag(key: &str, text: &str) -> Result<bool, Fault> {
    text.parse().map_err(|_| Fault::params(format!("{key}={text} is neither {key}=true nor {key}=false")))
}

fn vid_from<E: serde::de::Error>(number: i64) -> Result<Vid, E> {
    // Negative and huge numbers get the same message as 0 and 5000.
    let number =
        u16::try_from(number).map_err(|_| format!("{number} cannot be the number of a VLAN; use 1 to 4094"));
    number.and_then(Vid::try_from).map_err(E::custom)
}

/// `Option<Vid>` as a number.
pub(crate) mod vid {
    use super::{Deserialize, Deserializer, Vid, vid_from};

    pub(crate) fn serialize<S: serde::Serializer>(vid: &Option<Vid>, to: S) -> Result<S::Ok, S::Error> {
        match vid {
            Some(vid) => to.serialize_u16(vid.get()),
            None => to.serialize_none(),
        }
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Vid>, D::Error> {
        let number = Option::<i64>::deserialize(from).map_err(|_| {
            serde::de::Error::custom("a VLAN must be a whole number from 1 to 4094, without quotes")
        })?;
        number.map(vid_from).transpose()
    }
}

/// `Option<VlanSet>` as a list of numbers, and ranges as text.
pub(crate) mod trunk {
    use lasthop_module_api::parse_vlan_range;
    use serde::Serialize;
    use serde::ser::SerializeSeq;

    use super::{Deserialize, Deserializer, VlanSet, vid_from};

    #[derive(Deserialize, Serialize)]
    #[serde(untagged)]
    enum Item {
        Number(i64),
        Range(String),
    }

    pub(crate) fn serialize<S: serde::Serializer>(set: &Option<VlanSet>, to: S) -> Result<S::Ok, S::Error> {
        let Some(set) = set else { return to.serialize_none() };
        let mut list = to.serialize_seq(Some(set.ranges().len()))?;
        for (first, last) in set.ranges() {
            let is_one = first == last;
            let item = if is_one {
                Item::Number(first.get().into())
            } else {
                Item::Range(format!("{first}-{last}"))
            };
            list.serialize_element(&item)?;
        }
        list.end()
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<VlanSet>, D::Error> {
        use serde::de::Error;
        let items = Option::<Vec<Item>>::deserialize(from).map_err(|_| {
            D::Error::custom("trunk must be a list of VLANs and ranges, as in [10, \"20-29\"]")
        })?;
        let range = |item| match item {
            Item::Number(number) => vid_from(number).map(|vid| (vid, vid)),
            Item::Range(text) => parse_vlan_range(&text).map_err(D::Error::custom),
        };
        let set = |items: Vec<Item>| {
            let ranges = items.into_iter().map(range).collect::<Result<Vec<_>, _>>()?;
            VlanSet::of(ranges).map_err(D::Error::custom)
        };
        items.map(set).transpose()
    }
}

pub(crate) fn flag<'de, D: Deserializer<'de>>(from: D) -> Result<Option<bool>, D::Error> {
    bool::deserialize(from)
        .map(Some)
        .map_err(|_| serde::de::Error::custom("isolated must be true or false, without quotes"))
}

#[cfg(test)]
mod tests {
    use lasthop_module_api::{PortPolicy, PortVlans};

    use super::*;
    use crate::port::PortSpec;

    fn spec(text: &str) -> PortSpec {
        text.parse().expect(text)
    }

    fn policy(text: &str) -> PortPolicy {
        spec(text).common.policy
    }

    #[test]
    fn keys_become_what_the_switch_is_told() {
        let vid = |number: u16| Vid::try_from(number).expect("a VLAN");
        assert_eq!(policy("a").vlans, PortVlans::Any);
        assert_eq!(policy("a,vlan=5").vlans, PortVlans::Access(vid(5)));
        let carried = Some("10+20-29".parse().expect("a list"));
        assert_eq!(
            policy("a,trunk=20-29+10").vlans,
            PortVlans::Trunk { carried: carried.clone(), native: None }
        );
        let native = Some(vid(99));
        assert_eq!(policy("a,trunk=10+20-29,native=99").vlans, PortVlans::Trunk { carried, native });
        assert_eq!(policy("a,native=99").vlans, PortVlans::Trunk { carried: None, native });
        assert!(policy("a,isolated=true").is_isolated && !policy("a,isolated=false").is_isolated);
    }

    #[test]
    fn json_says_the_same_as_the_command_line() {
        let json = r#"{"name":"a","trunk":[10,"20-29","5"],"native":99,"isolated":true}"#;
        let read: PortSpec = serde_json::from_str(json).expect("a port");
        assert_eq!(read, spec("a,trunk=5+10+20-29,native=99,isolated=true"));
        let written = serde_json::to_value(&read).expect("JSON");
        assert_eq!(written["trunk"], serde_json::json!([5, 10, "20-29"]));
    }

    #[test]
    fn mistakes_are_named_wherever_they_are_made() {
        for (text, words) in [
            ("a,vlan=0", "0 is no VLAN"),
            ("a,vlan=4095", "4095 is reserved"),
            ("a,vlan=ten", "not the number of a VLAN"),
            ("a,vlan=10+20", "not the number of a VLAN"),
            ("a,trunk=29-20", "write it as 20-29"),
            ("a,trunk=10;20", "not the number of a VLAN"),
            ("a,native=4096", "1 to 4094"),
            ("a,vlan=5,trunk=10", "both vlan and trunk"),
            ("a,native=7,vlan=5", "both vlan and native"),
            ("a,isolated=yes", "neither isolated=true nor isolated=false"),
            ("a,vlans=5", "did you mean \"vlan\""),
        ] {
            let fault = text.parse::<PortSpec>().expect_err(text);
            assert!(fault.message.contains(words), "{text}: {fault}");
        }
        for (json, words) in [
            (r#"{"name":"a","vlan":0}"#, "0 is no VLAN"),
            (r#"{"name":"a","vlan":-1}"#, "1 to 4094"),
            (r#"{"name":"a","vlan":"5"}"#, "without quotes"),
            (r#"{"name":"a","trunk":"10+20"}"#, "as in [10,"),
            (r#"{"name":"a","trunk":[]}"#, "at least one"),
            (r#"{"name":"a","trunk":[4095]}"#, "reserved"),
        ] {
            let error = serde_json::from_str::<PortSpec>(json).expect_err(json).to_string();
            assert!(error.contains(words), "{json}: {error}");
        }
    }
}
