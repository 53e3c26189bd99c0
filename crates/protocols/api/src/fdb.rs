//! Static entries of the forwarding table: in the configuration file, on the command line, in a request.

use lasthop_module_api::{Mac, Vid};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::port::{Name, PortSpec, check_mac, mac_text, vid_number};
use crate::schema;
use lasthop_runtime::fault::{Fault, Kind};

/// Largest number of a switch's static entries beside its ports' own addresses: a quarter of the default table size.
pub const STATIC_ENTRIES_MAX: usize = 4096;

/// An address that stays behind a port, even if another port claims it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "fdb")]
pub struct StaticEntry {
    /// Unicast address: frames to it go to the port, and no other port may send from it.
    #[serde(with = "required_mac")]
    #[schemars(schema_with = "schema::mac", extend("examples" = ["52:54:00:00:00:07"]))]
    pub mac: Mac,
    /// The VLAN that it is in; all that the port carries if left out.
    #[serde(default, with = "vid_number", skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::vlan")]
    pub vlan: Option<Vid>,
    /// Name of the port behind which the address is.
    #[serde(alias = "vnic")]
    #[schemars(extend("examples" = ["vm1"]))]
    pub port: Name,
}

/// Selects learned addresses to forget.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Flush {
    /// Only those learned at this port.
    #[serde(default, alias = "vnic", skip_serializing_if = "Option::is_none")]
    pub port: Option<Name>,
    /// Only those learned in this VLAN.
    #[serde(default, with = "vid_number", skip_serializing_if = "Option::is_none")]
    pub vlan: Option<Vid>,
}

/// Parses a unicast address of the command line.
pub fn unicast(text: &str) -> Result<Mac, Fault> {
    check_mac(text)
}

/// Refuses entries for unknown ports, and too many entries.
pub fn check_entries(entries: &[StaticEntry], ports: &[PortSpec]) -> Result<(), Fault> {
    check_count(entries)?;
    entries.iter().try_for_each(|entry| check_port_of(entry, ports))
}

/// Refuses too many entries.
pub fn check_count(entries: &[StaticEntry]) -> Result<(), Fault> {
    if entries.len() > STATIC_ENTRIES_MAX { Err(too_many()) } else { Ok(()) }
}

/// Refuses an entry for an unknown port.
pub fn check_port_of(entry: &StaticEntry, ports: &[PortSpec]) -> Result<(), Fault> {
    let StaticEntry { mac, port, .. } = entry;
    if ports.iter().any(|known| known.name() == port) {
        return Ok(());
    }
    Err(Fault::params(format!("the fdb entry {mac} is for port \"{port}\", and there is no such port")))
}

pub fn too_many() -> Fault {
    let why =
        format!("there are {STATIC_ENTRIES_MAX} static fdb entries, and that is the limit; delete one first");
    Fault::new(Kind::Limit, why)
}

/// `Mac` as text.
mod required_mac {
    use lasthop_module_api::Mac;
    use serde::{Deserializer, Serializer};

    use super::mac_text;

    pub(super) fn serialize<S: Serializer>(mac: &Mac, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(mac)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Mac, D::Error> {
        mac_text::deserialize(from)?.ok_or_else(|| serde::de::Error::custom("an fdb entry needs a mac"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_read_and_written() {
        let json = r#"{"mac":"02:00:00:00:00:07","vlan":5,"port":"a"}"#;
        let entry: StaticEntry = serde_json::from_str(json).expect("an entry");
        assert_eq!((entry.vlan.map(Vid::get), entry.port.as_str()), (Some(5), "a"));
        assert_eq!(serde_json::to_string(&entry).expect("JSON"), json);
        let before = json.replace("port", "vnic");
        assert_eq!(serde_json::from_str::<StaticEntry>(&before).expect("the key of before"), entry);
        let flush: Flush = serde_json::from_str(r#"{"vnic":"a"}"#).expect("the key of before");
        assert_eq!(flush, Flush { port: Some(entry.port), vlan: None });
        for (json, words) in [
            (r#"{"mac":"01:00:00:00:00:07","port":"a"}"#, "unicast"),
            (r#"{"port":"a"}"#, "mac"),
            (r#"{"mac":"02:00:00:00:00:07","port":"a","vlan":4095}"#, "reserved"),
            (r#"{"mac":"02:00:00:00:00:07","pord":"a"}"#, "pord"),
        ] {
            let error = serde_json::from_str::<StaticEntry>(json).expect_err(json).to_string();
            assert!(error.contains(words), "{error}");
        }
    }

    #[test]
    fn an_entry_without_its_port_is_refused() {
        let entry: StaticEntry =
            serde_json::from_str(r#"{"mac":"02:00:00:00:00:07","port":"b"}"#).expect("an entry");
        let ports = ["a".parse().expect("a port")];
        let fault = check_entries(std::slice::from_ref(&entry), &ports).expect_err("no such port");
        assert!(fault.message.contains("\"b\", and there is no such port"), "{fault}");
        assert!(check_entries(&vec![entry; STATIC_ENTRIES_MAX + 1], &ports).is_err());
    }
}
