//! The decision about a packet, by the rules of the bridge (`lasthop_bridge_policy`), and the bits that it depends on.
//!
//! ```text
//!   which VLAN? ── not carried, wrong tag: dropped
//!        v
//!   may it come from there? ── spoofed, group address: dropped       (here its source is learned)
//!        v
//!   where is its destination? ── one port, or all that carry the VLAN ──> actions
//! ```
//!
//! A drop looks at as few digits as tell the packet from those that pass: one that makes up addresses is met by some dozens of
//! flows.

use std::collections::BTreeMap;

use lasthop_bridge_policy::{FloodKind, SourceEntry, Target, classify};
use lasthop_flow::{Action, Vlan};
use lasthop_module_api::{DropReason, FrameTag, TagEdit, TagForm};
use lasthop_wire::headers::ETHERTYPE_VLAN;

use crate::addresses::{Addresses, FdbKey};
use crate::frame::{Frame, LookRecorder, Looked, TCI_PRIORITY, apart_from_tag};
use crate::ports::Port;

/// The number of the meter of a port's floods of one kind.
pub(crate) fn meter(kind: FloodKind, port: u32) -> u32 {
    port * 3 + 1 + kind as u32
}

/// The state that a decision looks at.
#[derive(Clone, Copy, Debug)]
pub(crate) struct View<'a> {
    pub(crate) ports: &'a BTreeMap<u32, Port>,
    pub(crate) addresses: &'a Addresses,
    pub(crate) now_ns: u64,
}

/// A packet that may come from where it came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Admitted {
    pub(crate) vid: u16,
    /// Where its source is to be learned; none at ports with an address of their own, and for addresses that are entered.
    pub(crate) learn_at: Option<FdbKey>,
}

/// The actions for a packet, and for all that are like it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Decision {
    pub(crate) actions: Vec<Action>,
    pub(crate) looked: Looked,
}

/// Whether the packet may come from where it came from, or why it is dropped.
pub(crate) fn admit(view: View<'_>, frame: &Frame, looked: &mut Looked) -> Result<Admitted, DropReason> {
    let port = view.ports.get(&frame.port).ok_or(DropReason::NoFlow)?;
    let tag_vid = frame.tag_vid(looked)?;
    let (vid, _) = classify(&port.settings.policy.vlans, tag_vid, &mut recorder(looked))?;
    let fdb_key = (vid, frame.src);
    let (own_mac, addresses, ports) = (port.own_mac(), view.addresses, view.ports);
    let entered = || addresses.statics_of(frame.port, vid, ports);
    let is_entered = || entered().any(|mac| mac == frame.src);
    let look_up = || match addresses.find_static(fdb_key, ports) {
        Some(entry) if entry.port != frame.port => SourceEntry::Elsewhere,
        Some(_) => SourceEntry::Here,
        None => SourceEntry::None(fdb_key),
    };
    let mut recorder = LookRecorder { looked, port_addresses: || entered().chain([own_mac]) };
    let learn_at = lasthop_bridge_policy::admit(frame.src, own_mac, is_entered, look_up, &mut recorder)?;
    Ok(Admitted { vid, learn_at })
}

/// Records all but source addresses.
fn recorder(looked: &mut Looked) -> LookRecorder<'_, impl Fn() -> std::iter::Empty<u64>> {
    LookRecorder { looked, port_addresses: std::iter::empty }
}

/// Where a packet goes that is admitted.
pub(crate) fn route(view: View<'_>, frame: &Frame, vid: u16, mut looked: Looked) -> Decision {
    let (targets, flood) = match targets(view, frame, vid, &mut looked) {
        Ok(found) => found,
        Err(reason) => return Decision::drop_for(reason, looked),
    };
    let tag = frame.tag();
    let forms = targets.iter().map(|(number, port)| (*number, port.form(vid)));
    let mut actions = outputs(frame, (vid, tag), forms, &mut looked);
    if actions.is_empty() {
        let is_nested = targets.iter().any(|(_, port)| port.form(vid) == TagForm::Untagged);
        let reason = if is_nested { DropReason::VlanNested } else { DropReason::NoDestination };
        return Decision::drop_for(reason, looked);
    }
    let from = view.ports.get(&frame.port);
    let metered = flood.zip(from).filter(|(flood, from)| flood.limit(&from.settings.policy.storm) > 0);
    if let Some((flood, _)) = metered {
        actions.insert(0, Action::Meter(meter(flood, frame.port)));
    }
    Decision { actions, looked }
}

type Targets<'a> = Vec<(u32, &'a Port)>;

impl Decision {
    pub(crate) fn drop_for(reason: DropReason, looked: Looked) -> Self {
        Self { actions: vec![Action::drop_for(reason)], looked }
    }
}

/// Ports that get the packet, and why it is flooded, if it is; or why it is dropped.
fn targets<'a>(
    view: View<'a>,
    frame: &Frame,
    vid: u16,
    looked: &mut Looked,
) -> Result<(Targets<'a>, Option<FloodKind>), DropReason> {
    let from = view.ports.get(&frame.port).ok_or(DropReason::NoFlow)?;
    let reaches = |number: u32, port: &Port| number != frame.port && from.barrier(port).is_none();
    let look_up = || view.addresses.find((vid, frame.dst), view.ports, view.now_ns);
    let barrier = |number| match view.ports.get(&number) {
        Some(to) => from.barrier(to),
        None => Some(DropReason::PortGone),
    };
    let mut recorder = recorder(looked);
    match lasthop_bridge_policy::route(frame.dst, frame.port, look_up, barrier, &mut recorder)? {
        Target::Port(number) => {
            let to = view.ports.get(&number).ok_or(DropReason::PortGone)?;
            Ok((vec![(number, to)], None))
        }
        Target::Flood => {
            let kind = FloodKind::recorded(frame.dst, &from.settings.policy.storm, &mut recorder);
            let all = view.ports.iter().map(|(number, port)| (*number, port));
            let hearers = all.filter(|(number, port)| reaches(*number, port) && port.carries(vid));
            Ok((hearers.collect(), Some(kind)))
        }
    }
}

/// A copy for each target in its form; those that need the same done to them follow each other.
fn outputs(
    frame: &Frame,
    (vid, tag): (u16, FrameTag),
    targets: impl Iterator<Item = (u32, TagForm)>,
    looked: &mut Looked,
) -> Vec<Action> {
    let (mut as_is, mut untagged, mut tagged) = (Vec::new(), Vec::new(), Vec::new());
    for (port, form) in targets {
        match tag.edit(form, vid) {
            None => as_is.push(port),
            Some(TagEdit::Pop) => untagged.push(port),
            Some(TagEdit::Push(_) | TagEdit::Rename(_)) => tagged.push(port),
        }
    }
    if !untagged.is_empty() && would_show_another_tag(frame, looked) {
        untagged.clear();
    }
    let sent = |ports: Vec<u32>| ports.into_iter().map(Action::Output);
    let mut actions: Vec<Action> = sent(as_is).collect();
    let is_popped = !untagged.is_empty() || !tagged.is_empty() && tag == FrameTag::PriorityOnly;
    actions.extend(is_popped.then_some(Action::PopVlan));
    actions.extend(sent(untagged));
    if !tagged.is_empty() {
        looked.tci |= if tag == FrameTag::PriorityOnly { TCI_PRIORITY } else { 0 };
        actions.push(Action::PushVlan(Vlan { tpid: ETHERTYPE_VLAN, tci: frame.tci(vid) }));
        actions.extend(sent(tagged));
    }
    actions
}

/// Whether the frame without its tag would pass for one of the VLAN that its sender wrote behind it.
fn would_show_another_tag(frame: &Frame, looked: &mut Looked) -> bool {
    if frame.inner != 0 {
        return frame.inner == ETHERTYPE_VLAN;
    }
    let is_cut = frame.ether_type == ETHERTYPE_VLAN;
    looked.ether_type |= if is_cut { u16::MAX } else { apart_from_tag(frame.ether_type) };
    is_cut
}
