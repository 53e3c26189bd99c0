//! Clients' pending questions: asks, in turn, the processes that know parts of the answer.
//!
//! ```text
//!   client ──> driver process: counters ──> controller process ──> switch process ──> Reports: the answer
//!              of device ports              addresses, moves       its answer comes as a reply (orders)
//! ```
//!
//! A process that has no part in the answer, or does not run, is skipped. One that does not answer delays it for a
//! short time only.

use std::rc::Rc;
use std::time::Instant;

use lasthop_api::orders::Answer;
use lasthop_api::port::BackendKind;
use lasthop_api::report::StatsReport;
use lasthop_listeners::Caller;
use lasthop_runtime::fault::{Fault, Kind};
use serde_json::Value;

use super::Supervisor;
use super::controller::is_controlled;
use super::question::{
    ControllerAnswer, ExplainQuestion, OrderPurpose, Question, strange_answer, switch_process_down, to_json,
};
use super::reports::Reports;

impl Supervisor {
    /// Asks a question. `None`: the reply comes later.
    pub(super) fn ask(&mut self, question: Question, caller: &Caller) -> Result<Option<Value>, Fault> {
        let needs_counters = match &question {
            Question::Ports { filter, .. } => filter.backend != Some(BackendKind::VhostUser),
            Question::Stats { .. } | Question::Doctor { .. } => {
                self.ports.table.all.values().any(|port| port.device().is_some())
            }
            _ => false,
        };
        if !needs_counters {
            return self.ask_controller(question, caller);
        }
        self.ports.driver.ask(question, caller);
        self.answer_driver_clients(0, Instant::now());
        Ok(None)
    }

    /// After a change of rules: the client gets its reply when flows follow them.
    pub(super) fn await_rules(&mut self, value: Value, caller: &Caller) -> Result<Option<Value>, Fault> {
        if !self.switches.all.iter().any(is_controlled) {
            // No port has rules.
            return Ok(Some(value));
        }
        self.settle_controller();
        self.controller.ask(Question::Rules(value), caller).map(|()| None).map_err(|_| not_in_effect())
    }

    /// Continues `ask` once counters of device ports are known.
    fn ask_controller(&mut self, question: Question, caller: &Caller) -> Result<Option<Value>, Fault> {
        if !self.out.switch_process.process.is_up()
            && let Some(answer) = self.reports().conclude_without_switch(&question)
        {
            return answer.map(Some);
        }
        match self.controller.ask(question, caller) {
            Ok(()) => Ok(None),
            Err(question) => self.ask_switch(question, Rc::default(), caller),
        }
    }

    /// Continues `ask` once the controller process has answered.
    fn ask_switch(
        &mut self,
        question: Question,
        controller: Rc<ControllerAnswer>,
        caller: &Caller,
    ) -> Result<Option<Value>, Fault> {
        if !self.out.switch_process.process.is_up() {
            return Err(switch_process_down());
        }
        // A flush is a change: the order may still be executed.
        if self.out.switch_process.deafness().is_some() && !matches!(question, Question::Flush(_)) {
            return self.reports().conclude_alone(&question).map(Some);
        }
        let (order, purpose) = (question.switch_order(), OrderPurpose::Question(question, controller));
        self.out.switch_process.order(order, purpose, Some(caller.clone()));
        Ok(None)
    }

    /// Continues with the questions whose counters, of up to this round, have come, or that have waited too long.
    pub(super) fn answer_driver_clients(&mut self, round: u64, now: Instant) {
        for (question, caller) in self.ports.driver.take_ready(round, now) {
            if let Some(answer) = self.ask_controller(question, &caller).transpose() {
                self.clients.answer(caller, answer);
            }
        }
    }

    /// Continues with the questions that the controller has answered up to this round, or that have waited too long;
    /// returns whether there was one.
    pub(super) fn answer_controller_clients(
        &mut self,
        round: u64,
        now: Instant,
        told: ControllerAnswer,
    ) -> bool {
        let told = Rc::new(told);
        let ready = self.controller.take_ready(round, now);
        let is_any = !ready.is_empty();
        for (mut question, caller) in ready {
            if let Question::Explain(question) = &mut question {
                question.consulted(&told.consultations);
            }
            if let Question::Rules(value) = question {
                let answer = if told.has_settled { Ok(value) } else { Err(not_in_effect()) };
                self.clients.answer(caller, answer);
                continue;
            }
            if let Some(answer) = self.ask_switch(question, Rc::clone(&told), &caller).transpose() {
                self.clients.answer(caller, answer);
            }
        }
        is_any
    }

    /// The switch process has told the way of a packet: the embedded controller is asked about it, unless it was.
    pub(super) fn answer_explanation(
        &mut self,
        question: &ExplainQuestion,
        result: Result<Answer, Fault>,
        caller: Option<Caller>,
    ) {
        let Some(caller) = caller else { return };
        let explained = match result {
            Ok(Answer::Explained(explained)) => explained,
            Ok(_) => return self.clients.answer(caller, Err(strange_answer())),
            Err(fault) => return self.clients.answer(caller, Err(fault)),
        };
        let continued = question.continued(&explained).map(|question| Question::Explain(Box::new(question)));
        let is_asked = continued.is_some_and(|question| self.controller.ask(question, &caller).is_ok());
        if !is_asked {
            self.clients.answer(caller, to_json(&explained.report));
        }
    }

    /// Answers clients that wait for a switch process that does not answer, with the facts that are known without it.
    pub(super) fn answer_without_switch(&mut self) {
        for (question, caller) in self.out.switch_process.take_questions() {
            let answer = self.reports().conclude_alone(&question);
            self.clients.answer(caller, answer);
        }
    }
}

impl Reports<'_> {
    /// The reply while there is no switch process; `None` if it needs one.
    fn conclude_without_switch(&self, question: &Question) -> Option<Result<Value, Fault>> {
        let nothing = ControllerAnswer::default();
        match question {
            Question::Ports { .. } | Question::Scheduler => {
                Some(self.conclude(question, &nothing, Answer::Stats(StatsReport::default())))
            }
            Question::Doctor { name } => Some(self.facts(name.as_deref(), None, &nothing)),
            Question::Switches => Some(to_json(&self.list_switches(&[]))),
            Question::Stats { .. } | Question::Sched(_) | Question::Fdb { .. } => None,
            Question::Flush(_) | Question::Rules(_) | Question::Explain(_) | Question::MoveQueue(_) => None,
        }
    }

    /// The reply while the switch process does not answer.
    fn conclude_alone(&self, question: &Question) -> Result<Value, Fault> {
        let known = match question {
            Question::Scheduler | Question::Sched(_) | Question::Switches => None,
            _ => self.conclude_without_switch(question),
        };
        known.unwrap_or_else(|| Err(self.switch.no_answer()))
    }
}

/// The reply if the rules were changed, but flows may not follow them.
fn not_in_effect() -> Fault {
    let why = "the rules are kept, but flows do not follow them yet, since the controller process does not answer in time; it does so by itself \
               as soon as it can: see lasthop doctor";
    Fault::new(Kind::Limit, why)
}
