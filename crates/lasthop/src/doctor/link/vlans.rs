//! VLANs and isolation: whether anybody is left to talk to.

use lasthop_verdict::Vid;

use crate::doctor::finding::Verdict;
use crate::fault::Fault;
use crate::report::VnicReport;
use crate::rundir::control_socket;
use crate::vnic::VnicSpec;
use crate::vnic::change::command_text;

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
            anew(own, |spec| spec.isolated = false),
        ));
    }
    let vid = own.vlan?;
    if others.iter().any(|other| carries(other, vid)) {
        return None;
    }
    let remedy = match case.vnics().next() {
        Some(other) => {
            let take_in = |spec: &mut VnicSpec| match &spec.trunk {
                Some(_) => spec.native = Some(vid),
                None => (spec.vlan, spec.native) = (Some(vid), None),
            };
            format!("each vnic that is to talk to it is made anew in that VLAN: {}", anew(other, take_in))
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

/// The commands that make a vnic anew with another setting, which cannot change while it exists.
fn anew(vnic: &VnicReport, change: impl FnOnce(&mut VnicSpec)) -> String {
    let name = &vnic.name;
    let Ok(mut spec) = spec_of(vnic) else {
        return format!("lasthop vnic del {name} && lasthop vnic add {name} (with other options)");
    };
    change(&mut spec);
    format!("lasthop vnic del {name} && lasthop vnic add {} (its guest attaches again)", command_text(&spec))
}

/// The specification of a vnic, from its report.
fn spec_of(vnic: &VnicReport) -> Result<VnicSpec, Fault> {
    let dir = vnic.socket.parent().filter(|dir| control_socket(dir).exists());
    let spec = VnicSpec {
        switch: vnic.switch.clone(),
        socket: Some(vnic.socket.clone()),
        mode: vnic.mode,
        mac: vnic.mac,
        queues: vnic.queues,
        mtu: vnic.mtu,
        memory_max: vnic.memory_max,
        features_off: vnic.features_off.clone(),
        storm_broadcast: vnic.storm_broadcast,
        storm_multicast: vnic.storm_multicast,
        storm_unknown: vnic.storm_unknown,
        link: vnic.link,
        socket_mode: vnic.socket_mode,
        socket_owner: vnic.socket_owner.clone(),
        socket_group: vnic.socket_group.clone(),
        vlan: vnic.vlan,
        trunk: vnic.trunk.clone(),
        native: vnic.native,
        isolated: vnic.isolated,
        ..VnicSpec::named(vnic.name.parse()?)
    };
    Ok(match dir {
        Some(dir) => spec.without_default_socket(dir),
        None => spec,
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
