//! Events of a packet's way as steps of the answer, with names.

use std::collections::BTreeMap;

use lasthop_conntrack::{CtCommit, CtProtocol, CtRecord};
use lasthop_dpif::format::{self, Style};
use lasthop_flow::{Action, CtKey, FlowKey};
use lasthop_flowtable::{DryEvent, DryOutput, DryPass, DryTracked};
use lasthop_module_api::{DropReason, PortId, Reason};

use lasthop_api::explain::{Consultation, ExplainFlow, ExplainReason, ExplainStep};

use super::changes::changes;
use super::exact::exact;

/// All packets, in 2^32.
const ALWAYS: u32 = u32::MAX;

pub(super) fn reason_step(reason: Reason) -> ExplainStep {
    ExplainStep::Reason(ExplainReason { about: reason.about.to_owned(), text: reason.text })
}

pub(super) fn drop_step(reason: DropReason) -> ExplainStep {
    ExplainStep::Drop { reason: reason.name().to_owned(), meaning: reason.meaning().to_owned() }
}

fn note(text: impl Into<String>) -> ExplainStep {
    ExplainStep::Note { text: text.into() }
}

/// The steps so far.
pub(super) struct StepList<'a> {
    pub(super) steps: Vec<ExplainStep>,
    /// Keys of all passes.
    pub(super) passes: Vec<FlowKey>,
    names: &'a BTreeMap<u32, String>,
    port_name: &'a dyn Fn(PortId) -> String,
    consultations: &'a [Consultation],
    answers: &'a [Option<Vec<Action>>],
    /// The last event has the packet wait: the end of its list is no drop.
    is_suspended: bool,
}

impl<'a> StepList<'a> {
    pub(super) fn new(
        names: &'a BTreeMap<u32, String>,
        port_name: &'a dyn Fn(PortId) -> String,
        consultations: &'a [Consultation],
        answers: &'a [Option<Vec<Action>>],
    ) -> Self {
        let (steps, passes, is_suspended) = (Vec::new(), Vec::new(), false);
        Self { steps, passes, names, port_name, consultations, answers, is_suspended }
    }

    pub(super) fn add(&mut self, event: &DryEvent) {
        let is_suspended = std::mem::replace(&mut self.is_suspended, matches!(event, DryEvent::Suspended));
        match event {
            DryEvent::Pass(pass) => self.pass(pass),
            DryEvent::Tracked(tracked) => self.tracked(tracked),
            DryEvent::Metered { meter, passes } => {
                self.steps.push(ExplainStep::Meter { meter: *meter, passes: *passes });
            }
            DryEvent::Sampled(ALWAYS) => {}
            DryEvent::Sampled(0) => self.steps.push(note("a sample of no packets: its actions are left out")),
            DryEvent::Sampled(probability) => {
                let percent = f64::from(*probability) / f64::from(u32::MAX) * 100.0;
                self.steps
                    .push(note(format!("a sample: its actions are for {percent:.3} % of such packets")));
            }
            DryEvent::LengthChecked { limit_bytes, is_greater } => {
                let than = if *is_greater { "longer than" } else { "at most" };
                self.steps.push(note(format!("it is {than} {limit_bytes} bytes long")));
            }
            DryEvent::Output(output) => self.output(output),
            DryEvent::NumberGone(number) => self.steps.push(note(format!("no port has the number {number}"))),
            DryEvent::Missed => self.steps.push(note("no flow: the control plane is asked")),
            DryEvent::Userspace(_) => {
                self.steps.push(note("a copy goes to the control plane, by the flow's action"))
            }
            DryEvent::Suspended => self.steps.push(note("it waits for all fragments of its packet")),
            DryEvent::Ended(_) if is_suspended => {}
            DryEvent::Lost(reason) | DryEvent::Ended(reason) => self.steps.push(drop_step(*reason)),
        }
    }

    /// That many more events have happened.
    pub(super) fn untold(&mut self, count: usize) {
        self.steps.extend((count > 0).then(|| note(format!("{count} events more"))));
    }

    fn style<R>(&self, show: impl FnOnce(Style<'_>) -> R) -> R {
        let names = |number: u32| self.names.get(&number).cloned();
        show(Style { is_verbose: false, names: &names })
    }

    fn pass(&mut self, pass: &DryPass) {
        let (number, key) = (self.passes.len() + 1, &*pass.key);
        let told = self.consultations.get(number - 1);
        let answered = self.answers.get(number - 1).filter(|_| pass.is_answered).and_then(Option::as_deref);
        let step = self.style(|style| ExplainStep::Pass {
            number,
            key: format::key(key, Some(&exact(key)), style),
            flow: pass.flow.as_ref().map(|flow| ExplainFlow {
                ufid: flow.ufid.map(format::ufid),
                matching: format::key(&flow.matching.key, flow.matching.mask.as_ref(), style),
                actions: format::actions(&flow.actions, style),
                others: pass.rivals,
            }),
            answer: answered.map(|actions| format::actions(actions, style)),
        });
        self.passes.push(key.clone());
        self.steps.push(step);
        self.steps.extend(told.into_iter().flat_map(|told| &told.reasons).cloned().map(ExplainStep::Reason));
    }

    fn tracked(&mut self, tracked: &DryTracked) {
        let trial = tracked.trial.as_ref();
        let zone = tracked.request.zone;
        let state = trial.map_or(0, |trial| trial.verdict.metadata.state);
        let connection = trial.and_then(|trial| trial.connection);
        self.steps.push(ExplainStep::Connection {
            zone,
            state: trial.map_or_else(
                || "none: it is no packet that can be tracked".to_owned(),
                |_| state_text(state),
            ),
            connection: connection.as_ref().map(connection_text),
            known: trial.is_some_and(|trial| trial.is_known),
            commit: tracked.request.commit != CtCommit::No,
        });
    }

    fn output(&mut self, output: &DryOutput) {
        let changes = self.passes.first().map(|first| changes(first, &output.key)).unwrap_or_default();
        let tunnel = output.key.tunnel.clone().map(|tunnel| {
            let only = FlowKey { tunnel: Some(tunnel), ..FlowKey::default() };
            format::key(&only, Some(&only), Style::default())
        });
        let (port, truncated_to) = ((self.port_name)(output.port), output.truncate_len_bytes);
        self.steps.push(ExplainStep::Output { port, changes, tunnel, truncated_to });
    }
}

/// The bits of `ct_state` by name.
fn state_text(state: u32) -> String {
    let ct = CtKey { state: Some(state), ..CtKey::default() };
    let key = FlowKey { ct, ..FlowKey::default() };
    let text = format::key(&key, Some(&exact(&key)), Style::default());
    text.trim_start_matches("ct_state(").trim_end_matches(')').to_owned()
}

fn connection_text(record: &CtRecord) -> String {
    let [original, reply] = &record.tuples;
    let protocol = match original.proto {
        1 => "icmp".to_owned(),
        6 => "tcp".to_owned(),
        17 => "udp".to_owned(),
        58 => "icmpv6".to_owned(),
        132 => "sctp".to_owned(),
        other => other.to_string(),
    };
    let state = match record.protocol {
        CtProtocol::Tcp { state, .. } => format!(",state={state:?}"),
        CtProtocol::Sctp { state, .. } => format!(",state={state:?}"),
        CtProtocol::Other => String::new(),
    };
    let mark = if record.mark == 0 { String::new() } else { format!(",mark={:#x}", record.mark) };
    format!("{protocol},orig=({original}),reply=({reply}){state}{mark}")
}
