//! Conflicts of a port, a switch or a static entry with others of its file.

use std::path::PathBuf;

use lasthop_module_api::{PortVlans, Vid};

use lasthop_api::fdb::StaticEntry;
use lasthop_api::port::{self, Name, PortSpec};
use lasthop_api::switches::{self, DUMMY, SwitchSpec};
use lasthop_runtime::fault::Fault;

/// Refuses settings that the switch would refuse, as far as the file shows.
pub(super) fn check_port(port: &PortSpec, earlier: &[PortSpec]) -> Result<(), Fault> {
    port::check_beside(port, earlier)?;
    let name = port.name();
    for other in earlier {
        let other_name = other.name();
        if other_name == name {
            return Err(Fault::params(format!("there is a port \"{name}\" already; give one another name")));
        }
        let mac = port.common.policy.mac.filter(|mac| other.common.policy.mac == Some(*mac));
        if let Some(mac) = mac.filter(|_| share_addresses(port, other)) {
            let why =
                format!("{mac} is the address of \"{other_name}\" already; give \"{name}\" another one");
            return Err(Fault::params(why));
        }
        if let Some(path) = socket(port).filter(|path| socket(other) == Some(path)) {
            let path = path.display();
            let why = format!("the socket \"{path}\" is that of port \"{other_name}\"; use another path");
            return Err(Fault::params(why));
        }
    }
    Ok(())
}

/// Refuses an entry in a VLAN that its port does not carry, and an address that another port, or the same one, has there already.
/// Flags may name further ports.
pub(super) fn check_entry(
    entry: &StaticEntry,
    ports: &[PortSpec],
    earlier: &[StaticEntry],
) -> Result<(), Fault> {
    let Some(port) = find(ports, &entry.port) else { return Ok(()) };
    let (StaticEntry { mac, vlan, .. }, name) = (entry, port.name());
    if let Some(vid) = vlan.filter(|vid| !port.common.policy.vlans.carries(vid.get())) {
        return Err(Fault::params(format!(
            "the fdb entry {mac} cannot be: port \"{name}\" does not carry VLAN {vid}; give the entry a VLAN of the port, or none"
        )));
    }
    let own = ports.iter().filter(|other| other.common.policy.mac == Some(*mac)).map(|other| (other, None));
    let same = earlier.iter().filter(|other| other.mac == *mac);
    let entries = same.filter_map(|other| Some((find(ports, &other.port)?, other.vlan)));
    let mut taken = own.chain(entries).filter(|(other, _)| other.common.switch == port.common.switch);
    match taken.find(|other| meet((port, *vlan), *other)) {
        Some((other, _)) if other.name() == name => Err(Fault::params(format!(
            "the fdb entry {mac} cannot be: that is an address of port \"{name}\" already; leave the entry out"
        ))),
        Some((other, _)) => Err(Fault::params(format!(
            "the fdb entry {mac} for port \"{name}\" cannot be: that is an address of port \"{}\" already; leave one of the two out",
            other.name()
        ))),
        None => Ok(()),
    }
}

/// Whether one address at two ports, each in a VLAN or in all that the port carries, is a conflict. The bridge decides so, too.
fn meet((one, vlan): (&PortSpec, Option<Vid>), (other, their): (&PortSpec, Option<Vid>)) -> bool {
    let (one, other) = (&one.common.policy.vlans, &other.common.policy.vlans);
    let single = |vlan: Option<Vid>, vlans: &PortVlans| match vlans {
        PortVlans::Access(own) => Some(*own),
        PortVlans::Any | PortVlans::Trunk { .. } => vlan,
    };
    match (single(vlan, one), single(their, other)) {
        // Trunks share one table, and a port without VLANs has all of them.
        (None, None) => true,
        (None, Some(vid)) => one.carries(vid.get()),
        (Some(vid), None) => other.carries(vid.get()),
        (Some(vid), Some(same)) => vid == same,
    }
}

/// Refuses a port with settings that the module of its switch does not keep.
pub(super) fn check_module_of(port: &PortSpec, switches: &[SwitchSpec]) -> Result<(), Fault> {
    let policy = &port.common.policy;
    if !is_dummy(port, switches) || policy.vlans == PortVlans::Any && !policy.is_isolated {
        return Ok(());
    }
    let (name, switch) = (port.name(), &port.common.switch);
    Err(Fault::params(format!(
        "port \"{name}\": the module \"{DUMMY}\" of switch \"{switch}\" would not keep VLANs or isolated ports apart; leave out vlan, \
         trunk, native and isolated, or give the switch the module bridge"
    )))
}

/// Refuses an entry for a port on a switch without a forwarding table.
pub(super) fn check_table_for(
    entry: &StaticEntry,
    ports: &[PortSpec],
    switches: &[SwitchSpec],
) -> Result<(), Fault> {
    let Some(port) = find(ports, &entry.port).filter(|port| is_dummy(port, switches)) else { return Ok(()) };
    let (mac, name, switch) = (entry.mac, port.name(), &port.common.switch);
    Err(Fault::params(format!(
        "the fdb entry {mac} for port \"{name}\" cannot be: the module \"{DUMMY}\" of switch \"{switch}\" has no forwarding table; leave \
         the entry out, or give the switch the module bridge"
    )))
}

fn is_dummy(port: &PortSpec, switches: &[SwitchSpec]) -> bool {
    let switch = switches.iter().find(|switch| switch.name == port.common.switch);
    switch.is_some_and(|switch| switch.module.as_str() == DUMMY)
}

fn find<'a>(ports: &'a [PortSpec], name: &Name) -> Option<&'a PortSpec> {
    ports.iter().find(|port| port.name() == name)
}

fn socket(port: &PortSpec) -> Option<&PathBuf> {
    port.vhost_user()?.socket.as_ref()
}

/// Refuses a switch that conflicts with another one of its file.
pub(super) fn check_switch(switch: &SwitchSpec, earlier: &[SwitchSpec]) -> Result<(), Fault> {
    switches::check_beside(switch, earlier)
}

/// Whether one address at two ports is a conflict: in one switch, in a VLAN that both carry, or as trunks, which share one
/// table.
fn share_addresses(one: &PortSpec, other: &PortSpec) -> bool {
    let (one, other) = (&one.common, &other.common);
    if one.switch != other.switch {
        return false;
    }
    let (one, other) = (&one.policy.vlans, &other.policy.vlans);
    let is_trunk = |vlans: &PortVlans| matches!(vlans, PortVlans::Trunk { .. });
    (is_trunk(one) && is_trunk(other)) || (0..4096).any(|vid| one.carries(vid) && other.carries(vid))
}

#[cfg(test)]
mod tests {
    use lasthop_api::port::vnic;

    use super::*;

    fn entry(text: &str) -> StaticEntry {
        let (port, vlan) = text.split_once(' ').map_or((text, None), |(port, vlan)| (port, Some(vlan)));
        let vlan: Option<u16> = vlan.map(|vlan| vlan.parse().expect("a number"));
        let entry = serde_json::json!({"mac": "02:00:00:00:00:07", "port": port, "vlan": vlan});
        serde_json::from_value(entry).expect("an entry")
    }

    #[test]
    fn entries_meet_where_the_bridge_refuses_the_second() {
        let ports = [
            "any",
            "any2",
            "five,vlan=5",
            "six,vlan=6",
            "trunk,trunk=5-6",
            "other,trunk=7",
            "away,switch=red",
        ];
        let ports = ports.map(|port| vnic(port).expect("a vnic"));
        for (first, second, is_refused) in [
            ("any", "any2", true),
            ("any", "any", true),
            ("any 5", "any", true),
            ("any 5", "any2 6", false),
            ("any 5", "five", true),
            ("five", "six", false),
            ("trunk", "five", true),
            ("other", "five", false),
            ("trunk", "other", true),
            ("trunk 5", "trunk 6", false),
            ("trunk 5", "trunk 5", true),
            ("any", "away", false),
            ("any", "unknown", false),
        ] {
            for (one, two) in [(first, second), (second, first)] {
                let checked = check_entry(&entry(two), &ports, &[entry(one)]);
                assert_eq!(checked.is_err(), is_refused, "{one}, then {two}: {checked:?}");
            }
        }
    }

    #[test]
    fn an_entry_fits_its_port_and_no_other_one_has_its_address() {
        let ports = ["a,vlan=5", "b,vlan=5,mac=02:00:00:00:00:07"].map(|port| vnic(port).expect("a vnic"));
        for (text, words) in [
            ("a 6", "port \"a\" does not carry VLAN 6; give"),
            ("a", "an address of port \"b\" already; leave one"),
            ("b 5", "an address of port \"b\" already; leave the entry out"),
        ] {
            let fault = check_entry(&entry(text), &ports, &[]).expect_err(text);
            assert!(fault.message.contains("02:00:00:00:00:07") && fault.message.contains(words), "{fault}");
        }
    }

    #[test]
    fn a_dummy_has_neither_vlans_nor_entries() {
        let switches = ["default,module=dummy".parse().expect("a switch")];
        for (port, is_refused) in
            [("a", false), ("a,vlan=5", true), ("a,trunk=5", true), ("a,isolated=true", true)]
        {
            let port = vnic(port).expect("a vnic");
            assert_eq!(check_module_of(&port, &switches).is_err(), is_refused, "{port:?}");
            assert!(check_table_for(&entry("a"), &[port], &switches).is_err());
        }
    }
}
