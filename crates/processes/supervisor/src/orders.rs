//! Orders to the switch, and the handling of its answers.

use std::time::Instant;

use lasthop_foreign::ForeignFd;
use serde_json::Value;

use lasthop_api::orders::{Answer, Report};
use lasthop_api::report::StatsReport;
use lasthop_fd_store::RecordKey;
use lasthop_runtime::fault::Fault;
use lasthop_runtime::log::say_of_others;

use super::Supervisor;
use super::question::{Asker, ControllerAnswer, OrderPurpose, Question, switch_down};
use super::reports::Reports;
use super::source::Source;
use super::stage::Stage;
use super::upgrade::Upgrade;

impl Supervisor {
    /// When channels have to be looked after without an event.
    pub(super) fn channels_due(&self) -> [Option<Instant>; 4] {
        let successor = self.upgrade.as_ref().and_then(Upgrade::channel_due);
        [
            self.switch.process.channel_due(),
            self.driver.process.channel_due(),
            self.controller.process.channel_due(),
            successor,
        ]
    }

    /// Watches the channels for room while something waits for it.
    pub(super) fn watch_channels(&mut self) {
        self.switch.process.watch(&self.poller, Source::Switch.into());
        self.driver.process.watch(&self.poller, Source::Driver.into());
        self.controller.process.watch(&self.poller, Source::ControllerProcess.into());
        if let Some(successor) = self.upgrade.as_mut().and_then(Upgrade::successor) {
            successor.watch(&self.poller, Source::Successor.into());
        }
    }

    /// Takes the switch's messages.
    pub(super) fn hear(&mut self) {
        let reports = self.switch.process.hear(&self.poller);
        if !reports.is_empty() {
            self.upgrade.iter_mut().for_each(Upgrade::note_progress);
        }
        if reports.iter().any(|(report, _)| report.is_of_main_thread()) {
            self.switch.note_life();
        }
        reports.into_iter().for_each(|(report, fds)| self.on_report(report, fds));
    }

    fn on_report(&mut self, report: Report, fds: Vec<ForeignFd>) {
        match report {
            Report::Keep { attachment, numbers } => {
                if let Err(why) = self.sessions.keep_fds(attachment, numbers, fds, &mut self.store) {
                    self.switch.process.give_up_on(&why.to_string());
                }
            }
            Report::Kept { attachment, session, numbers } => {
                self.sessions.keep_session(attachment, session, &numbers, &mut self.ports, &mut self.store);
            }
            Report::Wanted(wanted) => self.device_wanted(wanted),
            Report::Released { name } => self.device_released(&name),
            Report::Datapaths(told) => {
                self.datapaths.told = Some(told);
                self.store.is_late(RecordKey::Head);
            }
            Report::Detached { name, attachment, why } => self.detached(&name, attachment, &why),
            Report::Refused { name, why } => self.ports.refused(&name, why),
            Report::Failed { why } => self.switch.process.note_last_words(why),
            Report::Unanswered => self.controller.suspect(),
            Report::Sandbox(layers) => self.sandboxed(layers),
            Report::Forbidden(call) => self.switch.process.note_last_words(call.to_string()),
            Report::Addresses { id, fdb } => {
                self.switch.add_addresses(id, fdb.entries);
            }
            Report::Reply { id, result } => {
                if let Some((what, asker, result)) = self.switch.answered(id, result) {
                    self.on_reply(what, asker, result);
                }
            }
        }
    }

    fn on_reply(&mut self, what: OrderPurpose, asker: Option<Asker>, result: Result<Answer, Fault>) {
        let answer = match what {
            OrderPurpose::Added { port, is_new } => self.added(port, is_new, result.map(drop)),
            OrderPurpose::SwitchAdded { name, is_new } => self.switch_added(&name, is_new, result.map(drop)),
            OrderPurpose::SwitchSet { spec } => self.switch_is_set(spec, result.map(drop)),
            OrderPurpose::SwitchRemoved { spec } => {
                self.switches.removed(spec, result.map(drop), &mut self.store)
            }
            OrderPurpose::Changed(changing) => self.changed(*changing, result),
            OrderPurpose::Removed => result.map(|_| Value::Bool(true)),
            OrderPurpose::FdbAdded { port, entry } => result.and_then(|_| {
                self.switches.remember_entry(port, entry, &self.ports, &mut self.store)?;
                Ok(Value::Bool(true))
            }),
            OrderPurpose::FdbDeleted(entry) => result.map(|_| {
                self.switches.forget_entry(&entry, &mut self.store);
                Value::Bool(true)
            }),
            OrderPurpose::DatapathsRestored => {
                self.datapaths.restored(result.map(drop), &mut self.store);
                Ok(Value::Null)
            }
            OrderPurpose::SchedulerAsked(starts) => {
                self.scheduler_known(starts, result);
                Ok(Value::Null)
            }
            OrderPurpose::Restored | OrderPurpose::Tracked | OrderPurpose::SchedulerTold => {
                result.map(|_| Value::Null)
            }
            OrderPurpose::TakenOver { port, attachment } => {
                self.taken_over(port, attachment, result.map(drop));
                Ok(Value::Null)
            }
            OrderPurpose::WentOn(sessions) => self.went_on(sessions, result),
            OrderPurpose::Started => return self.started(),
            OrderPurpose::Rested => return self.rested(result),
            OrderPurpose::Ended => return,
            OrderPurpose::Streamed => match result {
                Ok(_) => return self.streamed(asker),
                Err(fault) => Err(fault),
            },
            OrderPurpose::Question(question) => result.and_then(|answer| {
                self.reports().conclude(
                    &question,
                    self.counters.with_past(answer, self.switch.process.pid(), &self.ports),
                )
            }),
        };
        match (asker, answer) {
            (Some(asker), answer) => self.clients.answer(asker, answer),
            (None, Err(fault)) if matches!(self.stage, Stage::Starting) => self.fail_start(fault),
            (None, Err(fault)) => say_of_others!(Warning: "{fault}"),
            (None, Ok(_)) => {}
        }
    }

    /// Tells every waiting client that no answer will come.
    pub(super) fn fail_waiting(&mut self) {
        let is_starting = !matches!(self.stage, Stage::Serving);
        for (what, asker) in self.switch.take_unanswered() {
            let is_removal = matches!(what, OrderPurpose::Removed | OrderPurpose::SwitchRemoved { .. });
            match what {
                OrderPurpose::Added { port, is_new: true } => self.forget_port(port),
                OrderPurpose::SwitchAdded { name, is_new: true } => {
                    self.switches.forget(&name, &mut self.store)
                }
                OrderPurpose::Changed(changing) => drop(self.changed(*changing, Err(switch_down()))),
                _ => {}
            }
            if let (Some(asker), false) = (asker, is_starting) {
                // A port to remove is gone, and the next process will not be told of it.
                let answer = if is_removal { Ok(Value::Bool(true)) } else { Err(switch_down()) };
                self.clients.answer(asker, answer);
            }
        }
    }

    /// Answers clients that wait for the switch process, with the facts that are known without it.
    pub(super) fn answer_without_switch(&mut self) {
        let questions: Vec<(Question, Asker)> = self.switch.take_questions();
        for (question, asker) in questions {
            let answer = self.reports().conclude_alone(&question);
            self.clients.answer(asker, answer);
        }
    }
}

impl Reports<'_> {
    /// The answer to a question without the switch process.
    pub(super) fn conclude_alone(&self, question: &Question) -> Result<Value, Fault> {
        match question {
            Question::List | Question::Show { .. } | Question::Ports { .. } => {
                self.conclude(question, Answer::Stats(StatsReport::default()))
            }
            Question::Doctor { name, .. } => self.facts(name.as_deref(), None, &ControllerAnswer::default()),
            _ => Err(self.switch.no_answer()),
        }
    }
}
