//! Orders to the switch, and the handling of its replies.

use std::time::Instant;

use lasthop_foreign::ForeignFd;
use log::warn;
use serde_json::Value;

use lasthop_api::orders::{Answer, Report};
use lasthop_api::report::SwitchReport;
use lasthop_fd_store::RecordKey;
use lasthop_listeners::Caller;
use lasthop_runtime::fault::Fault;

use super::port::Port;
use super::question::{ControllerAnswer, OrderPurpose, Question, switch_process_down, to_json};
use super::requested::AllowedDevices;
use super::source::Source;
use super::stage::Stage;
use super::{Outputs, Supervisor};

impl Supervisor {
    /// Waits for room in channels with waiting messages.
    pub(super) fn watch_channels(&mut self) {
        self.out.switch_process.process.watch(&self.out.poller, Source::Switch.into());
        self.ports.driver.process.watch(&self.out.poller, Source::Driver.into());
        self.controller.process.watch(&self.out.poller, Source::ControllerProcess.into());
        if let Some(successor) = self.upgrades.successor() {
            successor.watch(&self.out.poller, Source::Successor.into());
        }
        if let Some(process) = self.standby.process() {
            process.watch(&self.out.poller, Source::Standby.into());
        }
    }

    /// Reads the switch's messages.
    pub(super) fn hear(&mut self) {
        let reports = self.out.switch_process.process.hear(&self.out.poller);
        if !reports.is_empty() {
            self.upgrades.note_progress();
        }
        if reports.iter().any(|(report, _)| report.is_of_main_thread()) {
            self.out.switch_process.note_life();
        }
        reports.into_iter().for_each(|(report, fds)| self.on_report(report, fds));
    }

    /// Reads the driver process's messages.
    pub(super) fn hear_driver(&mut self) {
        if let Some(round) = self.ports.hear_driver(&mut self.out) {
            self.answer_driver_clients(round, Instant::now());
        }
    }

    /// Reads the controller process's messages.
    pub(super) fn hear_controller(&mut self) {
        for (round, answer) in self.controller.hear(&self.out.poller) {
            let now = Instant::now();
            // A client that has waited too long gets an answer without that part. Rounds end in order.
            self.answer_controller_clients(0, now, ControllerAnswer::default());
            self.answer_controller_clients(round, now, answer);
        }
        for (switch, leases) in std::mem::take(&mut self.controller.leases) {
            let its = (&leases.port, &switch);
            let is_its = |port: &Port| (&port.spec.common.name, &port.spec.common.switch) == its;
            if let Some((number, port)) = self.ports.table.all.iter_mut().find(|(_, port)| is_its(port)) {
                self.out.store.is_late(RecordKey::Port(*number));
                port.kept_leases = Some(leases.bounded());
            }
        }
    }

    fn on_report(&mut self, report: Report, fds: Vec<ForeignFd>) {
        match report {
            Report::Keep { attachment, numbers } => {
                if let Err(why) = self.ports.sessions.keep_fds(attachment, numbers, fds, &mut self.out.store)
                {
                    self.out.switch_process.process.give_up_on(&why.to_string());
                }
            }
            Report::Kept { attachment, session, numbers } => {
                let Outputs { switch_process, store, .. } = &mut self.out;
                let ports = &mut self.ports.table;
                let kept = self.ports.sessions.keep_session(attachment, session, &numbers, ports, store);
                if let Err(why) = kept {
                    switch_process.process.give_up_on(&why.to_string());
                }
            }
            Report::Wanted(wanted) => {
                let patterns = self.datapath_devices.as_ref();
                let allowed = AllowedDevices { patterns, switches: &self.switches };
                self.ports.device_wanted(wanted, &allowed, &mut self.out);
            }
            Report::Released { name } => self.ports.device_released(&name, &mut self.out),
            Report::Datapaths(told) => self.datapaths.keep(told, &mut self.out.store),
            Report::Detached { name, attachment, why } => {
                self.ports.detached(&name, attachment, &why, &mut self.out)
            }
            Report::Refused { name, why, is_stopped } => match is_stopped {
                true => self.ports.table.stopped(&name, &why),
                false => self.ports.table.refused(&name, why),
            },
            Report::Failed { why } => self.out.switch_process.process.note_last_words(why),
            Report::Unanswered => self.controller.suspect(),
            Report::Sandbox(layers) => {
                self.out.switch_process.process.note_sandbox(layers);
                // Only now: the keeper process, which it has started by now, is not urgent.
                if !self.ports.sessions.saved.is_empty() {
                    self.out.switch_process.boost_slices(None);
                }
            }
            Report::Forbidden(call) => self.out.switch_process.process.note_last_words(call.to_string()),
            Report::Addresses { id, fdb } => self.out.switch_process.add_addresses(id, fdb),
            Report::Reply { id, result } => {
                if let Some((what, caller, result)) = self.out.switch_process.answered(id, result) {
                    self.on_reply(what, caller, result);
                }
            }
        }
    }

    fn on_reply(&mut self, what: OrderPurpose, caller: Option<Caller>, result: Result<Answer, Fault>) {
        let answer = match what {
            OrderPurpose::Added { port, is_new } => self.port_added(port, is_new, result.map(drop)),
            OrderPurpose::SwitchAdded { name, is_new } => {
                let added = self.switches.added(&name, is_new, result.map(drop), &mut self.out.store);
                added.and_then(|spec| {
                    to_json(&SwitchReport {
                        addresses: Some(0),
                        ..self.reports().describe_switch(&spec, &[])
                    })
                })
            }
            OrderPurpose::SwitchSet { spec } => self.switch_is_set(spec, result.map(drop)),
            OrderPurpose::SwitchRemoved { spec } => {
                self.switches.removed(spec, result.map(drop), &mut self.out.store)
            }
            OrderPurpose::Changed(changing) => self.ports.changed(*changing, result, &mut self.out),
            OrderPurpose::Removed | OrderPurpose::QueueMoved => result.map(|_| Value::Bool(true)),
            OrderPurpose::FdbAdded { port, entry } => result.and_then(|_| {
                self.switches.remember_entry(port, entry, &self.ports.table, &mut self.out.store)?;
                Ok(Value::Bool(true))
            }),
            OrderPurpose::FdbDeleted(entry) => result.map(|_| {
                self.switches.forget_entry(&entry, &mut self.out.store);
                Value::Bool(true)
            }),
            OrderPurpose::DatapathsRestored => {
                self.datapaths.restored(result.map(drop), &mut self.out.store);
                Ok(Value::Null)
            }
            OrderPurpose::SchedulerAsked(starts) => {
                self.scheduler.known(starts, result);
                Ok(Value::Null)
            }
            OrderPurpose::Restored | OrderPurpose::Tracked | OrderPurpose::SchedulerTold => {
                result.map(|_| Value::Null)
            }
            OrderPurpose::TakenOver { port, attachment } => {
                self.ports.taken_over(port, attachment, result.map(drop), &mut self.out);
                Ok(Value::Null)
            }
            OrderPurpose::WentOn(sessions) => self.ports.went_on(sessions, result, &mut self.out),
            OrderPurpose::Started => return self.started(),
            OrderPurpose::Rested => return self.rested(result),
            OrderPurpose::Ended => return,
            OrderPurpose::Streamed => match result {
                Ok(_) => {
                    // The switch owns the connection now.
                    caller.iter().for_each(|caller| self.clients.hand_over(caller, &self.out.poller));
                    return;
                }
                Err(fault) => Err(fault),
            },
            OrderPurpose::Question(Question::Explain(question), _) => {
                return self.answer_explanation(&question, result, caller);
            }
            OrderPurpose::Question(Question::MoveQueue(to), _) => return self.move_queue(to, result, caller),
            OrderPurpose::Question(question, controller) => result.and_then(|answer| {
                let pid = self.out.switch_process.process.pid();
                let name = |port: u32| Some(self.ports.table.all.get(&port)?.spec.common.name.as_str());
                let answer = self.ports.counters.with_past(answer, pid, name);
                self.reports().conclude(&question, &controller, answer)
            }),
        };
        match (caller, answer) {
            (Some(caller), answer) => self.clients.answer(caller, answer),
            (None, Err(fault)) if matches!(self.stage, Stage::Starting) => self.fail_start(fault),
            (None, Err(fault)) => warn!(limited = true; "{fault}"),
            (None, Ok(_)) => {}
        }
    }

    /// Replies to every waiting client that no answer will come.
    pub(super) fn fail_waiting(&mut self) {
        let is_starting = !matches!(self.stage, Stage::Serving);
        for (what, caller) in self.out.switch_process.take_unanswered() {
            let is_removal = matches!(what, OrderPurpose::Removed | OrderPurpose::SwitchRemoved { .. });
            match what {
                OrderPurpose::Added { port, is_new: true } => self.ports.forget_port(port, &mut self.out),
                OrderPurpose::SwitchAdded { name, is_new: true } => {
                    self.switches.forget(&name, &mut self.out.store)
                }
                OrderPurpose::Changed(changing) => {
                    drop(self.ports.changed(*changing, Err(switch_process_down()), &mut self.out))
                }
                _ => {}
            }
            if let (Some(caller), false) = (caller, is_starting) {
                // A port to be removed is gone, since the next process will not get it.
                let answer = if is_removal { Ok(Value::Bool(true)) } else { Err(switch_process_down()) };
                self.clients.answer(caller, answer);
            }
        }
    }
}
