//! Shows the way of a packet that is not sent: a question of the supervisor, answered on the main thread.
//!
//! The module of the port's switch decides as for any packet, without effects ([`lasthop_module_api::Module::explain`],
//! [`FlowModule::dry_run`]). Here its answer becomes a story with names, and the ports at both ends are looked at.
//!
//! ```text
//!   ExplainSpec ─> link of the sender ─> flows, or a bridge ─> ports of the copies ─> ExplainReport
//!                                          │ no flow
//!                                          └─ the embedded controller's answer, if it was given; else the end
//! ```

mod changes;
mod exact;
mod step_list;

use std::collections::BTreeMap;
use std::sync::Arc;

use lasthop_dpif::format::{self, Style};
use lasthop_engine::{PortState, PortStats};
use lasthop_fabric::bounds::FRAME_BYTES_MIN;
use lasthop_flow::{Action, FlowKey};
use lasthop_flowtable::{DryEvent, DryRun, FlowModule};
use lasthop_module_api::{
    DropReason, Header, IMAGE_FETCH_BYTES, Output, PortId, Reasons, UpcallReason, Verdicts,
};
use lasthop_wire::Offload;

use lasthop_api::explain::{
    Consultation, ConsultedKey, EXPLAIN_PASSES_MAX, ExplainCopy, ExplainFate, ExplainReport, ExplainSpec,
    ExplainStep, Explained, bytes_of, hex_of,
};
use lasthop_runtime::fault::Fault;

use super::datapath::Datapath;
use exact::exact;
use step_list::StepList;

/// Receivers that a verdict names; of more it gives the number.
const NAMED_MAX: usize = 4;

/// The datapath that a switch is, for names in flows.
#[derive(Debug, Default)]
pub(super) struct DatapathNames {
    /// Ports by number.
    pub(super) ports: BTreeMap<u32, String>,
    /// Its name.
    pub(super) name: Option<String>,
}

/// Answers a question about a packet.
pub(super) fn explain(
    (spec, consultations): (&ExplainSpec, &[Consultation]),
    datapath: &Datapath,
    names: &DatapathNames,
) -> Result<Explained, Fault> {
    let (bytes, len_bytes) = spec.frame()?;
    let port = datapath.named(&spec.from)?;
    let head = bytes.get(..IMAGE_FETCH_BYTES).unwrap_or(&bytes);
    let header = Header::new(head, len_bytes, Offload::default());
    let module = datapath.flow_table(port.at);
    let mut question =
        Question { datapath, names, port: port.number, header, steps: Vec::new(), passes: Vec::new() };
    let copies = match question.refused_at_once(len_bytes) {
        Some(reason) => vec![question.dropped(reason)],
        None => match module.filter(|module| module.is_by_flows(port.number)) {
            Some(module) => question.by_flows(module, consultations)?,
            None => question.by_module()?,
        },
    };
    let fate = copies.iter().map(|copy| copy.fate).min().unwrap_or(ExplainFate::Dropped);
    let switch = datapath.switch_name(port.at);
    let is_controlled = switch.as_deref().is_some_and(|switch| datapath.has_own_controller(switch));
    let keys = if is_controlled {
        question.passes.iter().take(EXPLAIN_PASSES_MAX).map(consulted).collect()
    } else {
        Vec::new()
    };
    let hint = question.hint(is_controlled, fate);
    let verdict = question.verdict(fate, &copies);
    let report = ExplainReport {
        from: spec.from.clone(),
        switch,
        module: datapath.module_name(port.at),
        frame_bytes: len_bytes,
        steps: question.steps,
        copies,
        fate,
        verdict,
        hint,
    };
    Ok(Explained { report, passes: keys })
}

/// A key as the controller gets it.
fn consulted(key: &FlowKey) -> ConsultedKey {
    let mut writer = lasthop_dpif::attr::Writer::new(Vec::new());
    lasthop_dpif::key::encode(&mut writer, key);
    ConsultedKey(hex_of(&writer.finish().unwrap_or_default()))
}

/// The actions that the controller answers; none if they make no sense.
fn actions_of(consultation: &Consultation) -> Option<Vec<Action>> {
    lasthop_dpif::action::decode(&bytes_of(consultation.actions.as_deref()?)?).ok()
}

/// A packet on its way through the answer.
struct Question<'a> {
    datapath: &'a Datapath,
    names: &'a DatapathNames,
    port: PortId,
    header: Header,
    steps: Vec<ExplainStep>,
    /// Keys of all passes.
    passes: Vec<FlowKey>,
}

impl Question<'_> {
    /// Why the packet gets to no module.
    fn refused_at_once(&self, len_bytes: u32) -> Option<DropReason> {
        let is_down = self.datapath.engine().has_link_up(self.port) == Some(false);
        let is_short = len_bytes < FRAME_BYTES_MIN;
        is_down.then_some(DropReason::LinkDown).or(is_short.then_some(DropReason::TooShort))
    }

    fn dropped(&mut self, reason: DropReason) -> ExplainCopy {
        self.steps.push(step_list::drop_step(reason));
        ExplainCopy { fate: ExplainFate::Dropped, port: None, reason: Some(reason.name().to_owned()) }
    }

    /// Decided by a module that tells its reasons.
    fn by_module(&mut self) -> Result<Vec<ExplainCopy>, Fault> {
        let (mut verdicts, names) = (Verdicts::default(), |port| self.datapath.name_of(port));
        let mut reasons = Reasons::new(&names);
        let engine = self.datapath.engine();
        if !engine.explain((self.port, &self.header), &mut verdicts, &mut reasons) {
            return Err(Fault::refused("the module of the port's switch does not explain its decisions"));
        }
        self.steps.extend(reasons.told().into_iter().map(step_list::reason_step));
        verdicts.drops().iter().for_each(|(_, reason)| self.steps.push(step_list::drop_step(*reason)));
        self.copies(&mut verdicts)
    }

    fn by_flows(
        &mut self,
        module: &Arc<FlowModule>,
        consultations: &[Consultation],
    ) -> Result<Vec<ExplainCopy>, Fault> {
        let number = module.number_of(self.port).unwrap_or_default();
        let answers: Vec<Option<Vec<Action>>> = consultations.iter().map(actions_of).collect();
        let now_ns = self.datapath.engine().now_ns();
        let mut memory = DryRun::default();
        let told = module.dry_run(&mut memory, (number, &self.header), &answers, now_ns);
        let told =
            told.map_err(|_| Fault::refused("the controller answers with actions that are not done here"))?;
        let port_name = |port: PortId| self.datapath.name_of(port);
        let mut story = StepList::new(&self.names.ports, &port_name, consultations, &answers);
        told.events.iter().for_each(|event| story.add(event));
        story.untold(told.untold);
        let StepList { steps, passes, .. } = story;
        let is_first_missed = matches!(told.events.as_slice(), [DryEvent::Pass(_), DryEvent::Missed]);
        (self.steps, self.passes) = (steps, passes);
        if is_first_missed && !module.has_asker() {
            return self.by_module();
        }
        let copies = self.copies(told.verdicts)?;
        if let ([ExplainCopy { fate: ExplainFate::Dropped, .. }], [(_, reason)]) =
            (&copies[..], told.verdicts.drops())
            && !matches!(self.steps.last(), Some(ExplainStep::Drop { .. }))
        {
            self.steps.push(step_list::drop_step(*reason));
        }
        Ok(copies)
    }

    /// The ends of all copies. Those to ports that cannot take them are dropped there.
    fn copies(&self, verdicts: &mut Verdicts) -> Result<Vec<ExplainCopy>, Fault> {
        let stats = self.datapath.engine().stats().map_err(|error| Fault::refused(error.to_string()))?;
        let outputs = verdicts.outputs().to_vec();
        let outputs = outputs.iter().map(|output| self.output(output, &stats.ports));
        let upcalls = verdicts.upcalls().iter().map(|upcall| ExplainCopy {
            fate: match upcall.reason {
                UpcallReason::Suspended { .. } => ExplainFate::Held,
                UpcallReason::Miss | UpcallReason::Action { .. } => ExplainFate::Asked,
            },
            port: None,
            reason: None,
        });
        let drops = verdicts.drops().iter().map(|(_, reason)| ExplainCopy {
            fate: ExplainFate::Dropped,
            port: None,
            reason: Some(reason.name().to_owned()),
        });
        let mut copies: Vec<ExplainCopy> = outputs.chain(upcalls).chain(drops).collect();
        if copies.is_empty() {
            let reason = Some(DropReason::NoDestination.name().to_owned());
            copies.push(ExplainCopy { fate: ExplainFate::Dropped, port: None, reason });
        }
        Ok(copies)
    }

    fn output(&self, output: &Output, ports: &[PortStats]) -> ExplainCopy {
        let is_down = self.datapath.engine().has_link_up(output.port) == Some(false);
        let state = ports.iter().find(|port| port.port == output.port).map(|port| &port.state);
        let why = match state {
            _ if is_down => Some(DropReason::LinkDown),
            Some(PortState::Running) => None,
            Some(_) => Some(DropReason::PortDown),
            None => Some(DropReason::PortGone),
        };
        let fate = if why.is_some() { ExplainFate::Dropped } else { ExplainFate::Delivered };
        let port = Some(self.datapath.name_of(output.port));
        ExplainCopy { fate, port, reason: why.map(|reason| reason.name().to_owned()) }
    }

    /// The end of the packet in words.
    fn verdict(&self, fate: ExplainFate, copies: &[ExplainCopy]) -> String {
        let of = |fate: ExplainFate| copies.iter().filter(move |copy| copy.fate == fate);
        let names: Vec<&str> = of(fate).filter_map(|copy| copy.port.as_deref()).collect();
        let named = match names.len() {
            0..=NAMED_MAX => names.join(", "),
            more => format!("{more} ports: {}, ...", names[..NAMED_MAX].join(", ")),
        };
        let losses: Vec<String> = of(ExplainFate::Dropped).filter_map(loss).take(NAMED_MAX).collect();
        match fate {
            ExplainFate::Delivered if losses.is_empty() => format!("delivered to {named}"),
            ExplainFate::Delivered => format!("delivered to {named}; not to others: {}", losses.join(", ")),
            ExplainFate::Asked => {
                "upcall: no flow decides about it, so the control plane is asked".to_owned()
            }
            ExplainFate::Held => "held until all fragments of its packet are there".to_owned(),
            ExplainFate::Dropped => format!("dropped: {}{}", losses.join(", "), self.decided_by()),
        }
    }

    /// The rule that a drop follows from, if the controller named one.
    fn decided_by(&self) -> String {
        let rules = self.steps.iter().rev().find_map(|step| match step {
            ExplainStep::Reason(reason) if ["rule", "guard"].contains(&reason.about.as_str()) => {
                Some(&reason.text)
            }
            _ => None,
        });
        rules.map_or_else(String::new, |rule| format!(" by {rule}"))
    }

    /// The command that tells how Open vSwitch decides.
    fn hint(&self, is_controlled: bool, fate: ExplainFate) -> Option<String> {
        let (name, key) = (self.names.name.as_deref()?, self.passes.last()?);
        if is_controlled || fate != ExplainFate::Asked || !self.datapath.is_for_outside(name) {
            return None;
        }
        let key = format::key(key, Some(&exact(key)), Style::default());
        Some(format!("ovs-appctl ofproto/trace {name} '{key}'"))
    }
}

/// The lost copy's port and reason, in words.
fn loss(copy: &ExplainCopy) -> Option<String> {
    let reason = copy.reason.as_deref()?;
    Some(copy.port.as_ref().map_or_else(|| reason.to_owned(), |port| format!("{reason} at {port}")))
}
