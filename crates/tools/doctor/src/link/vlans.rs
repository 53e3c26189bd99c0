//! Checks VLANs and isolation: whether the vnic can reach any other port.

use lasthop_module_api::Vid;

use crate::finding::Verdict;
use lasthop_ovs::{Bridges, PortNeighbours};

use super::{Case, Neighbour};

/// A vnic that no other port can reach with the present settings.
pub(super) fn alone(case: &Case<'_>) -> Option<Verdict> {
    let own = case.now.common();
    // An external controller decides about the switch's packets.
    if case.facts.is_for_outside(own.switch.as_str()) {
        return case.bridges.and_then(|bridges| alone_in_bridge(own.name.as_str(), bridges));
    }
    let others: Vec<Neighbour<'_>> = case.neighbours().collect();
    if others.is_empty() {
        return None;
    }
    if own.policy.is_isolated && others.iter().all(|other| other.is_isolated) {
        return Some(Verdict::broken(
            "this vnic and all others are isolated: isolated ones do not talk to each other",
            format!("lasthop port set {} isolated=false", own.name),
        ));
    }
    let vid = Neighbour::from(own).vlan?;
    if others.iter().any(|other| carries(other, vid)) {
        return None;
    }
    let remedy = match case.vnics().next() {
        Some(port) => {
            let other = Neighbour::from(port);
            let key = if other.trunk.is_some() { "native" } else { "vlan" };
            let native = if other.trunk.is_none() && other.native.is_some() { ",native=none" } else { "" };
            let command = format!("lasthop port set {} {key}={vid}{native}", port.name);
            format!("each vnic that is to talk to it gets that VLAN: {command}")
        }
        None => format!("give a port of its switch that VLAN: vlan={vid}, or trunk={vid}"),
    };
    Some(if others.iter().any(Neighbour::passes_tags) {
        let text = format!(
            "VLAN mismatch: this vnic is in VLAN {vid}, and no other one carries it; without vlan= they reach it by tagged frames only"
        );
        Verdict::warning(text, remedy)
    } else {
        Verdict::broken(
            format!("VLAN mismatch: this vnic is in VLAN {vid}, and no other one carries it"),
            remedy,
        )
    })
}

/// An access port of Open vSwitch whose VLAN no other port of its bridge carries. Flows other than NORMAL may ignore VLANs.
fn alone_in_bridge(name: &str, bridges: &Bridges) -> Option<Verdict> {
    let PortNeighbours { bridge, port, others } = bridges.around(name)?;
    let vid = port.access?;
    let neighbours = || others.iter().map(|other| Neighbour::from(*other));
    if neighbours().any(|other| carries(&other, vid)) {
        return None;
    }
    // The bridge's own port comes first; usually only the host is behind it.
    let other = others.iter().find(|other| other.name != bridge)?;
    let rest = if neighbours().any(|other| other.passes_tags()) {
        "; ports without tag= reach it by tagged frames only"
    } else {
        ""
    };
    Some(Verdict::warning(
        format!(
            "VLAN mismatch: Open vSwitch has tag={vid} for this port, and no other port of bridge {bridge} carries that VLAN{rest}"
        ),
        format!(
            "each port that is to talk to it gets that VLAN: {tool} set port {} tag={vid}; or none has one: {tool} clear port {name} tag",
            other.name,
            tool = bridges.tool()
        ),
    ))
}

/// Whether a vnic carries this VLAN by its settings. A vnic without settings passes tags unchanged, and its guest
/// usually has none.
fn carries(vnic: &Neighbour<'_>, vid: Vid) -> bool {
    let is_given = vnic.vlan.is_some() || vnic.trunk.is_some() || vnic.native.is_some();
    let in_trunk = |(first, last): &(Vid, Vid)| (first.get()..=last.get()).contains(&vid.get());
    let has_trunk = match vnic.trunk {
        Some(trunk) => trunk.ranges().iter().any(in_trunk),
        // With only a native VLAN it carries every VLAN.
        None => vnic.native.is_some(),
    };
    is_given && (vnic.vlan == Some(vid) || vnic.native == Some(vid) || has_trunk)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::finding::State;

    /// A bridge with ports `br0`, `vm1` and `vm2`, each with this tag and these trunks.
    fn bridges(ports: [[&str; 2]; 3]) -> Bridges {
        let names = ["br0", "vm1", "vm2"];
        let rows = names.iter().zip(ports).map(|(name, [tag, trunks])| {
            format!(r#"[["uuid","{name}"],"{name}",["set",[{tag}]],["set",[{trunks}]],["set",[]]]"#)
        });
        let ids = names.map(|name| format!(r#"["uuid","{name}"]"#)).join(",");
        let text = format!(
            "{{\"headings\":[\"name\",\"ports\"],\"data\":[[\"br0\",[\"set\",[{ids}]]]]}}\n\
             {{\"headings\":[\"_uuid\",\"name\",\"tag\",\"trunks\",\"vlan_mode\"],\"data\":[{}]}}",
            rows.collect::<Vec<_>>().join(",")
        );
        Bridges::read("ovs-vsctl".to_owned(), &text).expect("two tables")
    }

    #[test]
    fn a_tag_of_open_vswitch_that_no_other_port_carries_is_told() {
        let own = ["10", ""];
        let verdict = alone_in_bridge("vm1", &bridges([["", ""], own, ["", ""]])).expect("vm2 has no tag");
        assert_eq!(verdict.state, State::Warning);
        assert!(
            verdict.text.contains("tag=10") && verdict.text.contains("tagged frames only"),
            "{}",
            verdict.text
        );
        let remedy = verdict.remedy.expect("a remedy");
        assert!(remedy.contains("ovs-vsctl set port vm2 tag=10"), "{remedy}");
        assert!(remedy.contains("ovs-vsctl clear port vm1 tag"), "{remedy}");
        let verdict =
            alone_in_bridge("vm1", &bridges([["20", ""], own, ["", "20,21"]])).expect("20 and 21 alone");
        assert!(!verdict.text.contains("tagged frames only"), "{}", verdict.text);
    }

    #[test]
    fn a_tag_that_another_port_carries_is_well() {
        let own = ["10", ""];
        for ports in [[["", ""], own, own], [["", ""], own, ["", "10,20"]], [own, own, ["20", ""]]] {
            assert_eq!(alone_in_bridge("vm1", &bridges(ports)), None, "{ports:?}");
        }
        let without = bridges([["", ""], ["", ""], own]);
        assert_eq!(alone_in_bridge("vm1", &without), None, "it has no tag");
        assert_eq!(alone_in_bridge("vm9", &without), None, "it is no port of a bridge");
    }
}
