//! The answer for a packet that has not come, and why: by the functions that decide about packets ([`crate::decide`]), which change nothing.
//! Its source is not learned, and no flow made.

use lasthop_api::acl::AclDirection;
use lasthop_api::explain::ExplainReason;
use lasthop_bridge_policy::{FloodKind, Target};
use lasthop_flow::{Action, FlowKey};
use lasthop_module_api::{DropReason, Mac, NO_VID};

use crate::acl::AclVerdict;
use crate::decide::{Admitted, View, admit, destination, forward, targets};
use crate::frame::{Frame, Looked};
use crate::gate::{Gate, Passage, Stage};

/// Receivers with rules of which is told; a flood may have more.
const RECEIVERS_TOLD_MAX: usize = 16;

/// A packet that is asked about, and the reasons found so far.
struct Inquiry<'a> {
    view: View<'a>,
    frame: Frame,
    reasons: Vec<ExplainReason>,
}

/// The actions that a packet would be answered with, and the reasons; no actions if its port is not served.
pub(crate) fn consult(view: View<'_>, key: &FlowKey) -> (Option<Vec<Action>>, Vec<ExplainReason>) {
    let frame = Frame::of(key).filter(|frame| view.ports.contains_key(&frame.port));
    let Some(frame) = frame else {
        let text = "the controller does not serve the port yet, and has its packets dropped".to_owned();
        return (None, vec![ExplainReason { about: "port".to_owned(), text }]);
    };
    let mut inquiry = Inquiry { view, frame, reasons: Vec::new() };
    let actions = inquiry.answer();
    (Some(actions), inquiry.reasons)
}

impl Inquiry<'_> {
    fn tell(&mut self, about: &str, text: impl Into<String>) {
        self.reasons.push(ExplainReason { about: about.to_owned(), text: text.into() });
    }

    fn name(&self, port: u32) -> &str {
        self.view.ports.get(&port).map_or("a port that is gone", |port| port.settings.name.as_str())
    }

    fn answer(&mut self) -> Vec<Action> {
        let mut looked = Looked::default();
        let admitted = match admit(self.view, &self.frame, &mut looked) {
            Ok(admitted) => admitted,
            Err(reason) => {
                self.tell_refusal(reason);
                return vec![Action::drop_for(reason)];
            }
        };
        self.tell_admission(&admitted);
        let learner = admitted.learn_at.filter(|_| self.frame.dst == self.frame.src);
        let Some((fdb_key, from)) = learner.zip(self.view.ports.get(&self.frame.port)) else {
            return self.forward(&admitted, looked);
        };
        // Its own address is its destination, and its port depends on learned addresses: in a copy.
        let mut addresses = self.view.addresses.clone();
        addresses.learn(fdb_key, self.frame.port, from, self.view.now_ns);
        let view = View { addresses: &addresses, ..self.view };
        let mut learned = Inquiry { view, frame: self.frame, reasons: std::mem::take(&mut self.reasons) };
        let actions = learned.forward(&admitted, looked);
        self.reasons = learned.reasons;
        actions
    }

    fn forward(&mut self, admitted: &Admitted, looked: Looked) -> Vec<Action> {
        self.tell_gates(admitted.vid);
        forward(self.view, &self.frame, admitted.vid, looked).actions
    }

    /// Why a packet may not come from its port.
    fn tell_refusal(&mut self, reason: DropReason) {
        let (frame, own) =
            (self.frame, self.view.ports.get(&self.frame.port).map_or(0, |port| port.own_mac()));
        let source = Mac::from_bits(frame.src);
        match reason {
            DropReason::SourceSpoofed if own != 0 => {
                self.tell("guard", format!("mac={}: the source is {source}", Mac::from_bits(own)));
            }
            DropReason::SourceSpoofed => {
                self.tell("guard", format!("the static entry of {source}, which is another port's"));
            }
            DropReason::IpSpoofed => {
                self.tell("guard", "guard=ip: the source is none of the port's addresses")
            }
            DropReason::ArpSpoofed => self.tell("guard", "guard=arp: it claims none of the port's addresses"),
            DropReason::RogueServer => self.tell("guard", "guard=dhcp: it is of a server or router"),
            other => {
                let meaning = other.meaning().trim_end_matches('.').to_owned();
                self.tell("vlan", meaning);
            }
        }
    }

    fn tell_admission(&mut self, admitted: &Admitted) {
        match admitted.vid {
            NO_VID => self.tell("vlan", "none"),
            vid => self.tell("vlan", vid.to_string()),
        }
        if Stage::of(self.frame.recirc_id) != Stage::Entry {
            return;
        }
        let source = Mac::from_bits(self.frame.src);
        let learned =
            admitted.learn_at.map(|fdb_key| self.view.addresses.learned(fdb_key).map(|entry| entry.port));
        match learned {
            None => self.tell("source", format!("{source} is a static address of the port")),
            Some(Some(port)) if port == self.frame.port => {
                self.tell("source", format!("{source} is known there"))
            }
            Some(Some(port)) => {
                let from = self.name(port).to_owned();
                self.tell("source", format!("{source} was at {from}; it would be learned here"));
            }
            Some(None) if self.would_learn(admitted) => {
                self.tell("source", format!("{source} is new; it would be learned here"));
            }
            Some(None) => {
                self.tell("source", format!("{source} would not be learned: there is no room for it"))
            }
        }
    }

    fn would_learn(&self, admitted: &Admitted) -> bool {
        let Some(port) = self.view.ports.get(&self.frame.port) else { return false };
        let has_room = || self.view.addresses.has_room(self.frame.port, port);
        admitted.learn_at.is_some_and(|fdb_key| self.view.addresses.learned(fdb_key).is_some() || has_room())
    }

    /// The rules of the sender, or those of the receiver of a packet that was tracked for it.
    fn tell_gates(&mut self, vid: u16) {
        let frame = self.frame;
        match Stage::of(frame.recirc_id) {
            Stage::ToPort(number) => {
                let gate = self.view.ports.get(&number).and_then(|port| Gate::to_port(number, port, vid));
                let passage = gate.map(|gate| gate.pass(&frame, &mut Looked::default()));
                passage
                    .into_iter()
                    .for_each(|passage| self.tell_passage(number, AclDirection::Ingress, &passage));
            }
            stage => {
                let from = self.view.ports.get(&frame.port);
                let gate = from.and_then(|port| Gate::from_port(frame.port, port, vid));
                let passage = gate.map(|gate| match stage {
                    Stage::FromPort => gate.pass(&frame, &mut Looked::default()),
                    _ => gate.meet(&frame, &mut Looked::default()),
                });
                let is_over = matches!(passage, Some(Passage::Tracked(_) | Passage::Dropped(..)));
                passage
                    .into_iter()
                    .for_each(|passage| self.tell_passage(frame.port, AclDirection::Egress, &passage));
                if !is_over {
                    self.tell_destination(vid);
                }
            }
        }
    }

    fn tell_passage(&mut self, number: u32, direction: AclDirection, passage: &Passage<'_>) {
        let name = self.name(number).to_owned();
        let way = match direction {
            AclDirection::Ingress => "ingress",
            AclDirection::Egress => "egress",
        };
        match passage {
            Passage::Tracked(_) => {
                self.tell(
                    "acl",
                    format!("{name} has rules ({way}): the packet is tracked in zone {number} first"),
                );
            }
            Passage::Passes(_, None) => {
                self.tell("acl", format!("the rules of {name} ({way}) have allowed its connection before"));
            }
            Passage::Passes(_, Some(AclVerdict::Allowed { rule: Some(rule) })) => {
                self.tell(
                    "acl",
                    format!("[[acl]] \"{}\" of {name} ({way}) allows its connection", rule.name),
                );
            }
            Passage::Passes(_, Some(_)) => {
                self.tell("acl", format!("no rule of {name} ({way}) denies its connection"));
            }
            Passage::Dropped(_, Some(AclVerdict::Denied { rule })) => {
                self.tell("rule", format!("[[acl]] \"{}\" of {name} ({way})", rule.name));
            }
            Passage::Dropped(..) => {
                self.tell("rule", format!("the rules of {name} ({way}): it belongs to no connection"));
            }
        }
    }

    fn tell_destination(&mut self, vid: u16) {
        let (view, frame) = (self.view, self.frame);
        let mac = Mac::from_bits(frame.dst);
        let is_static = view.addresses.find_static((vid, frame.dst), view.ports).is_some();
        match destination(view, &frame, vid, &mut Looked::default()) {
            Ok(Target::Port(port)) => {
                let (at, how) = (self.name(port).to_owned(), if is_static { "static" } else { "learned" });
                self.tell("destination", format!("{mac} is at {at} ({how})"));
            }
            Ok(Target::Flood) => {
                let why = if mac.is_group() { "a group address" } else { "unknown" };
                self.tell("destination", format!("{mac} is {why}: flooded"));
                let limits = view.ports.get(&frame.port).map(|port| port.settings.policy.storm);
                let limit = limits.map_or(0, |limits| FloodKind::of(frame.dst).limit(&limits));
                if limit > 0 {
                    self.tell("flood", format!("within the port's storm limit of {limit} packets a second"));
                }
            }
            Err(DropReason::SamePort) => {
                self.tell("destination", format!("{mac} is at the port that the packet comes from"));
            }
            Err(DropReason::LinkLocal) => {
                self.tell("destination", format!("{mac} is for bridges, which do not forward it"));
            }
            Err(reason) => {
                let meaning = reason.meaning().trim_end_matches('.').to_owned();
                self.tell("destination", format!("{mac}: {meaning}"));
            }
        }
        self.tell_receivers(vid);
    }

    /// Rules of those that would get the packet.
    fn tell_receivers(&mut self, vid: u16) {
        let (view, frame) = (self.view, self.frame);
        let found = targets(view, &frame, vid, &mut Looked::default());
        let receivers = found.map(|(receivers, _)| receivers).unwrap_or_default();
        let gated = receivers
            .into_iter()
            .filter_map(|(number, port)| Some((number, Gate::to_port(number, port, vid)?)));
        for (number, gate) in gated.take(RECEIVERS_TOLD_MAX) {
            let passage = gate.meet(&frame, &mut Looked::default());
            self.tell_passage(number, AclDirection::Ingress, &passage);
        }
    }
}
