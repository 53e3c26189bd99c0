//! Static entries of the forwarding table: in the configuration file, on the command line, in a request.

use lasthop_module_api::{Mac, Vid};
use serde::{Deserialize, Serialize};

use crate::port::{Name, PortSpec, check_mac, mac_text, vid_number};
use lasthop_runtime::fault::{Fault, Kind};

/// Static entries of a switch beside its vnics' own addresses: a quarter of the forwarding table's usual size.
pub const STATIC_ENTRIES_MAX: usize = 4096;

/// An address that is behind a vnic, even if another one claims it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StaticEntry {
    #[serde(with = "required_mac")]
    pub mac: Mac,
    /// The one VLAN that it is for; without one it is for all that the vnic carries.
    #[serde(default, with = "vid_number", skip_serializing_if = "Option::is_none")]
    pub vlan: Option<Vid>,
    pub vnic: Name,
}

/// The learned addresses that are to be forgotten.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Flush {
    /// Those learned from this vnic only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vnic: Option<Name>,
    /// Those learned in this VLAN only.
    #[serde(default, with = "vid_number", skip_serializing_if = "Option::is_none")]
    pub vlan: Option<Vid>,
}

/// A unicast address of the command line.
pub fn unicast(text: &str) -> Result<Mac, Fault> {
    check_mac(text)
}

/// Refuses entries for vnics that are not there, and more entries than there may be.
pub fn check_entries(entries: &[StaticEntry], ports: &[PortSpec]) -> Result<(), Fault> {
    check_count(entries)?;
    entries.iter().try_for_each(|entry| check_port_of(entry, ports))
}

/// Refuses more entries than there may be.
pub fn check_count(entries: &[StaticEntry]) -> Result<(), Fault> {
    if entries.len() > STATIC_ENTRIES_MAX { Err(too_many()) } else { Ok(()) }
}

/// Refuses an entry for a vnic that is not there.
pub fn check_port_of(entry: &StaticEntry, ports: &[PortSpec]) -> Result<(), Fault> {
    let StaticEntry { mac, vnic, .. } = entry;
    if ports.iter().any(|known| known.name() == vnic) {
        return Ok(());
    }
    Err(Fault::params(format!("the fdb entry {mac} is for port \"{vnic}\", and there is no such port")))
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
        let json = r#"{"mac":"02:00:00:00:00:07","vlan":5,"vnic":"a"}"#;
        let entry: StaticEntry = serde_json::from_str(json).expect("an entry");
        assert_eq!((entry.vlan.map(Vid::get), entry.vnic.as_str()), (Some(5), "a"));
        assert_eq!(serde_json::to_string(&entry).expect("JSON"), json);
        for (json, words) in [
            (r#"{"mac":"01:00:00:00:00:07","vnic":"a"}"#, "unicast"),
            (r#"{"vnic":"a"}"#, "mac"),
            (r#"{"mac":"02:00:00:00:00:07","vnic":"a","vlan":4095}"#, "reserved"),
            (r#"{"mac":"02:00:00:00:00:07","vnik":"a"}"#, "vnik"),
        ] {
            let error = serde_json::from_str::<StaticEntry>(json).expect_err(json).to_string();
            assert!(error.contains(words), "{error}");
        }
    }

    #[test]
    fn an_entry_without_its_vnic_is_refused() {
        let entry: StaticEntry =
            serde_json::from_str(r#"{"mac":"02:00:00:00:00:07","vnic":"b"}"#).expect("an entry");
        let ports = ["a".parse().expect("a port")];
        let fault = check_entries(std::slice::from_ref(&entry), &ports).expect_err("no such vnic");
        assert!(fault.message.contains("\"b\", and there is no such port"), "{fault}");
        assert!(check_entries(&vec![entry; STATIC_ENTRIES_MAX + 1], &ports).is_err());
    }
}
