//! Decides about a packet by the rules of the bridge (`lasthop_bridge_policy`), and records the bits that the decision
//! depends on.
//!
//! ```text
//!   which VLAN? ── not carried, wrong tag: dropped
//!        v
//!   may it come from there? ── spoofed, group address: dropped       (here its source is learned)
//!        v
//!   where is its destination? ── one port, or all that carry the VLAN ──> actions
//! ```
//!
//! Ports with rules let connections pass before and after that ([`crate::gate`]).
//!
//! A drop depends on as few digits as tell the packet from those that pass, so a sender that invents addresses needs
//! only some dozens of flows.

use std::collections::BTreeMap;

use lasthop_api::acl::RuleName;
use lasthop_bridge_policy::{FloodKind, SourceEntry, Target, classify};
use lasthop_flow::{Action, Vlan};
use lasthop_module_api::{DropReason, FrameTag, TagEdit, TagForm};
use lasthop_wire::headers::ETHERTYPE_VLAN;

use crate::acl::AclVerdict;
use crate::addresses::{Addresses, FdbKey};
use crate::frame::{Frame, LookRecorder, Looked, TCI_PRIORITY, apart_from_tag};
use crate::gate::{Gate, Passage, Stage};
use crate::guard::GuardCheck;
use crate::ports::Port;

/// The number of a port's meter for one kind of flood.
pub(crate) fn meter(kind: FloodKind, port: u32) -> u32 {
    port * 3 + 1 + kind as u32
}

/// The state that a decision depends on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct View<'a> {
    pub(crate) ports: &'a BTreeMap<u32, Port>,
    pub(crate) addresses: &'a Addresses,
    pub(crate) now_ns: u64,
}

/// A packet that passed the checks of its port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Admitted {
    pub(crate) vid: u16,
    /// The address to learn; `None` at ports with an address of their own, and for configured addresses.
    pub(crate) learn_at: Option<FdbKey>,
}

/// The actions for a packet, and for all packets like it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Decision {
    pub(crate) actions: Vec<Action>,
    pub(crate) looked: Looked,
    /// The rule that denied it, if that has to be logged.
    pub(crate) logged: Option<RuleName>,
    /// Whether the controller has to see each such packet, so that there is no flow.
    pub(crate) is_watched: bool,
}

/// Checks whether the packet may come from its port, or why it is dropped. A recirculated packet has passed before.
pub(crate) fn admit(view: View<'_>, frame: &Frame, looked: &mut Looked) -> Result<Admitted, DropReason> {
    let port = view.ports.get(&frame.port).ok_or(DropReason::NoFlow)?;
    let tag_vid = frame.tag_vid(looked)?;
    let (vid, _) = classify(&port.settings.policy.vlans, tag_vid, &mut recorder(looked))?;
    if Stage::of(frame.recirc_id) != Stage::Entry {
        return Ok(Admitted { vid, learn_at: None });
    }
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
    GuardCheck { guard: &port.settings.policy.guard, leased: &port.leased, own_mac, frame, looked }.run()?;
    Ok(Admitted { vid, learn_at })
}

/// A recorder for everything except source addresses.
fn recorder(looked: &mut Looked) -> LookRecorder<'_, impl Fn() -> std::iter::Empty<u64>> {
    LookRecorder { looked, port_addresses: std::iter::empty }
}

/// The next step of an admitted packet.
pub(crate) fn forward(view: View<'_>, frame: &Frame, vid: u16, mut looked: Looked) -> Decision {
    let Some(from) = view.ports.get(&frame.port) else {
        return Decision::drop_for(DropReason::NoFlow, looked);
    };
    let gate = Gate::from_port(frame.port, from, vid);
    let passage = match (Stage::of(frame.recirc_id), gate) {
        (Stage::Entry | Stage::Admitted, None) => Passage::Passes(Vec::new(), None),
        // After admission, if its sender has got rules meanwhile.
        (Stage::Entry | Stage::Admitted, Some(gate)) => gate.meet(frame, &mut looked),
        (Stage::FromPort, Some(gate)) => gate.pass(frame, &mut looked),
        (Stage::ToPort(number), _) => return deliver(view, frame, (vid, number), looked),
        // Its sender had rules when it arrived.
        (Stage::FromPort, None) => Passage::Dropped(DropReason::NoFlow, None),
    };
    match passage {
        Passage::Passes(before, _) => route(view, frame, vid, looked).behind(before),
        Passage::Tracked(actions) => Decision { actions: actions.into(), looked, ..Decision::default() },
        Passage::Dropped(reason, verdict) => Decision::denied(reason, verdict, looked),
    }
}

/// The last step of a packet to a port with rules.
fn deliver(view: View<'_>, frame: &Frame, (vid, number): (u16, u32), mut looked: Looked) -> Decision {
    let Some(port) = view.ports.get(&number).filter(|port| port.carries(vid)) else {
        return Decision::drop_for(DropReason::PortGone, looked);
    };
    let Some(gate) = Gate::to_port(number, port, vid) else {
        return Decision::drop_for(DropReason::NoFlow, looked);
    };
    match gate.pass(frame, &mut looked) {
        Passage::Passes(before, _) => send(frame, vid, &[(number, port)], looked).behind(before),
        Passage::Tracked(_) => Decision::drop_for(DropReason::NoFlow, looked),
        Passage::Dropped(reason, verdict) => Decision::denied(reason, verdict, looked),
    }
}

/// The ports that a packet goes to.
fn route(view: View<'_>, frame: &Frame, vid: u16, mut looked: Looked) -> Decision {
    let (targets, flood) = match targets(view, frame, vid, &mut looked) {
        Ok(found) => found,
        Err(reason) => return Decision::drop_for(reason, looked),
    };
    let (mut open, mut tracked, mut denied) = (Vec::with_capacity(targets.len()), Vec::new(), None);
    for (number, port) in targets {
        match Gate::to_port(number, port, vid).map(|gate| gate.meet(frame, &mut looked)) {
            None | Some(Passage::Passes(..)) => open.push((number, port)),
            Some(Passage::Tracked(actions)) => tracked.extend(actions),
            Some(Passage::Dropped(reason, verdict)) => denied = Some((reason, verdict)),
        }
    }
    let mut decision = match (open.is_empty(), tracked.is_empty(), denied) {
        (true, true, Some((reason, verdict))) => return Decision::denied(reason, verdict, looked),
        (true, false, _) => Decision { looked, ..Decision::default() },
        _ => send(frame, vid, &open, looked),
    };
    if decision.is_drop() && !tracked.is_empty() {
        decision.actions.clear();
    }
    // Packets are tracked as they arrived; outputs may change the tag.
    decision = decision.behind(tracked);
    let actions = &mut decision.actions;
    let from = view.ports.get(&frame.port).filter(|_| !is_drop(actions));
    let metered = flood.zip(from).filter(|(flood, from)| flood.limit(&from.settings.policy.storm) > 0);
    if let Some((flood, _)) = metered {
        actions.insert(0, Action::Meter(meter(flood, frame.port)));
    }
    decision
}

/// Sends a copy to each port, in the port's form.
fn send(frame: &Frame, vid: u16, targets: &[(u32, &Port)], mut looked: Looked) -> Decision {
    let forms = targets.iter().map(|(number, port)| (*number, port.form(vid)));
    let actions = outputs(frame, (vid, frame.tag()), forms, &mut looked);
    if actions.is_empty() {
        let is_nested = targets.iter().any(|(_, port)| port.form(vid) == TagForm::Untagged);
        let reason = if is_nested { DropReason::VlanNested } else { DropReason::NoDestination };
        return Decision::drop_for(reason, looked);
    }
    Decision { actions, looked, ..Decision::default() }
}

pub(crate) type Targets<'a> = Vec<(u32, &'a Port)>;

impl Decision {
    pub(crate) fn drop_for(reason: DropReason, looked: Looked) -> Self {
        Self { actions: vec![Action::drop_for(reason)], looked, ..Self::default() }
    }

    fn denied(reason: DropReason, verdict: Option<AclVerdict<'_>>, looked: Looked) -> Self {
        let logged = match verdict {
            Some(AclVerdict::Denied { rule }) if rule.log => Some(rule.name.clone()),
            _ => None,
        };
        Self { logged, ..Self::drop_for(reason, looked) }
    }

    pub(crate) fn is_drop(&self) -> bool {
        is_drop(&self.actions)
    }

    /// The decision with these actions before its own, unless it drops the packet.
    fn behind(mut self, before: Vec<Action>) -> Self {
        if !before.is_empty() && !self.is_drop() {
            self.actions.splice(0..0, before);
        }
        self
    }
}

pub(crate) fn is_drop(actions: &[Action]) -> bool {
    matches!(actions, [Action::Drop(_)])
}

/// Where a packet goes, or why it is dropped.
pub(crate) fn destination(
    view: View<'_>,
    frame: &Frame,
    vid: u16,
    looked: &mut Looked,
) -> Result<Target<u32>, DropReason> {
    let from = view.ports.get(&frame.port).ok_or(DropReason::NoFlow)?;
    let look_up = || view.addresses.find((vid, frame.dst), view.ports, view.now_ns);
    let barrier = |number| match view.ports.get(&number) {
        Some(to) => from.barrier(to),
        None => Some(DropReason::PortGone),
    };
    lasthop_bridge_policy::route(frame.dst, frame.port, look_up, barrier, &mut recorder(looked))
}

/// Ports that get the packet, and why it is flooded, if it is; or why it is dropped.
pub(crate) fn targets<'a>(
    view: View<'a>,
    frame: &Frame,
    vid: u16,
    looked: &mut Looked,
) -> Result<(Targets<'a>, Option<FloodKind>), DropReason> {
    let from = view.ports.get(&frame.port).ok_or(DropReason::NoFlow)?;
    let reaches = |number: u32, port: &Port| number != frame.port && from.barrier(port).is_none();
    match destination(view, frame, vid, looked)? {
        Target::Port(number) => {
            let to = view.ports.get(&number).ok_or(DropReason::PortGone)?;
            Ok((vec![(number, to)], None))
        }
        Target::Flood => {
            let kind = FloodKind::recorded(frame.dst, &from.settings.policy.storm, &mut recorder(looked));
            let all = view.ports.iter().map(|(number, port)| (*number, port));
            let hearers = all.filter(|(number, port)| reaches(*number, port) && port.carries(vid));
            Ok((hearers.collect(), Some(kind)))
        }
    }
}

/// A copy for each target in its form; targets with the same form follow each other.
fn outputs(
    frame: &Frame,
    (vid, tag): (u16, FrameTag),
    targets: impl ExactSizeIterator<Item = (u32, TagForm)>,
    looked: &mut Looked,
) -> Vec<Action> {
    let (mut actions, mut untagged, mut tagged) = (Vec::with_capacity(targets.len()), Vec::new(), Vec::new());
    for (port, form) in targets {
        match tag.edit(form, vid) {
            None => actions.push(Action::Output(port)),
            Some(TagEdit::Pop) => untagged.push(port),
            Some(TagEdit::Push(_) | TagEdit::Rename(_)) => tagged.push(port),
        }
    }
    if !untagged.is_empty() && would_show_another_tag(frame, looked) {
        untagged.clear();
    }
    let sent = |ports: Vec<u32>| ports.into_iter().map(Action::Output);
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

/// Whether the frame without its tag would have another tag, which its sender wrote behind it.
fn would_show_another_tag(frame: &Frame, looked: &mut Looked) -> bool {
    if frame.inner != 0 {
        return frame.inner == ETHERTYPE_VLAN;
    }
    let is_cut = frame.ether_type == ETHERTYPE_VLAN;
    looked.ether_type |= if is_cut { u16::MAX } else { apart_from_tag(frame.ether_type) };
    is_cut
}
