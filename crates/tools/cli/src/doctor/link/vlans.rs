//! VLANs and isolation: whether anybody is left to talk to.

use lasthop_verdict::Vid;

use crate::doctor::finding::Verdict;

use super::{Case, Neighbour};

/// A vnic that no other one can talk to, as they are set up.
pub(super) fn alone(case: &Case<'_>) -> Option<Verdict> {
    let own = &case.now.vnic;
    // An outside controller decides about the switch's packets.
    if case.facts.is_for_outside(own.switch.as_str()) {
        return None;
    }
    let others: Vec<Neighbour<'_>> = case.neighbours().collect();
    if others.is_empty() {
        return None;
    }
    if own.isolated && others.iter().all(|other| other.is_isolated) {
        return Some(Verdict::broken(
            "this vnic and all others are isolated: isolated ones do not talk to each other",
            format!("lasthop vnic set {} isolated=false", own.name),
        ));
    }
    let vid = own.vlan?;
    if others.iter().any(|other| carries(other, vid)) {
        return None;
    }
    let remedy = match case.vnics().next() {
        Some(other) => {
            let key = if other.trunk.is_some() { "native" } else { "vlan" };
            let native = if other.trunk.is_none() && other.native.is_some() { ",native=none" } else { "" };
            let command = format!("lasthop vnic set {} {key}={vid}{native}", other.name);
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

/// Whether a vnic was given this VLAN. One that was given none passes tags as they are, and its guest mostly has none.
fn carries(vnic: &Neighbour<'_>, vid: Vid) -> bool {
    let is_given = vnic.vlan.is_some() || vnic.trunk.is_some() || vnic.native.is_some();
    let in_trunk = |(first, last): &(Vid, Vid)| (first.get()..=last.get()).contains(&vid.get());
    let has_trunk = match vnic.trunk {
        Some(trunk) => trunk.ranges().iter().any(in_trunk),
        // A native VLAN alone: every VLAN is carried.
        None => vnic.native.is_some(),
    };
    is_given && (vnic.vlan == Some(vid) || vnic.native == Some(vid) || has_trunk)
}
