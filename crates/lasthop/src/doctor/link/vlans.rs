//! VLANs and isolation: whether anybody is left to talk to.

use lasthop_verdict::Vid;

use crate::doctor::finding::Verdict;

use super::{Case, Neighbour};

/// A vnic that no other one can talk to, as they are set up.
pub(super) fn alone(case: &Case<'_>) -> Option<Verdict> {
    let own = &case.now.vnic;
    let others: Vec<Neighbour<'_>> = case.neighbours().collect();
    if others.is_empty() {
        return None;
    }
    if own.isolated && others.iter().all(|other| other.is_isolated) {
        return Some(Verdict::warning(
            "this vnic and all others are isolated: isolated ones do not talk to each other",
            format!("lasthop vnic set {} isolated=false, or at one that all may talk to", own.name),
        ));
    }
    let vid = own.vlan?;
    (!others.iter().any(|other| carries(other, vid))).then(|| {
        Verdict::warning(
            format!("VLAN mismatch: this vnic is in VLAN {vid}, and no other one carries it; without vlan= they reach it by tagged frames only"),
            format!("lasthop vnic set NAME vlan={vid} (or trunk={vid}) for those that are to talk to it"),
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
