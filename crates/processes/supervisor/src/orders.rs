//! Orders to the switch, and the handling of its answers.

use std::time::{Duration, Instant};

use lasthop_foreign::ForeignFd;
use serde_json::Value;

use lasthop_api::orders::{Answer, Order, Report, Request};
use lasthop_api::report::{FdbLine, FdbReport};
use lasthop_runtime::fault::{Fault, Kind};
use lasthop_runtime::log::say_of_others;
use lasthop_runtime::procfs;

use super::Supervisor;
use super::question::{Asker, OrderPurpose, Question, switch_down};
use super::source::Source;
use super::stage::Stage;
use super::store::Key;
use super::upgrade::Upgrade;

/// Longest time until a client is told that the switch does not answer.
const ANSWER_PATIENCE: Duration = Duration::from_secs(8);

/// An order without an answer yet.
#[derive(Debug)]
pub(super) struct Waiting {
    what: OrderPurpose,
    asker: Option<Asker>,
    until: Instant,
    /// Addresses of an answer that comes in parts.
    addresses: Vec<FdbLine>,
}

impl Waiting {
    fn new(what: OrderPurpose, asker: Option<Asker>) -> Self {
        Self { what, asker, until: Instant::now() + ANSWER_PATIENCE, addresses: Vec::new() }
    }

    /// The whole answer, of which this is the last part.
    fn whole(&mut self, answer: Answer) -> Answer {
        match answer {
            Answer::Fdb(FdbReport { entries }) => {
                self.addresses.extend(entries);
                Answer::Fdb(FdbReport { entries: std::mem::take(&mut self.addresses) })
            }
            answer => answer,
        }
    }

    /// When the asker has waited for long enough.
    pub(super) fn due(&self) -> Option<Instant> {
        self.asker.is_some().then_some(self.until)
    }

    /// The purpose of the answer.
    pub(super) fn what(&self) -> &OrderPurpose {
        &self.what
    }

    /// Whether the switch is to come to rest.
    pub(super) fn is_for_rest(&self) -> bool {
        matches!(self.what, OrderPurpose::Rested)
    }
}

/// Whether an order may arrive before earlier ones, while the system refuses their descriptors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OrderPrecedence {
    Ahead,
    InTurn,
}

impl OrderPrecedence {
    /// Questions change nothing. Operators wait for most of them, and a process that owes an answer to `Know` is taken for one that hangs.
    fn of(order: &Order) -> Self {
        match order {
            Order::Know | Order::Stats | Order::Inspect { .. } | Order::Fdb { .. } | Order::Switches => {
                Self::Ahead
            }
            _ => Self::InTurn,
        }
    }
}

impl Supervisor {
    /// Sends an order; its answer is for `what` and for `asker`.
    pub(super) fn order(&mut self, order: Order, what: OrderPurpose, asker: Option<Asker>) {
        self.order_with(order, Vec::new(), what, asker);
    }

    /// As `order`, with descriptors.
    pub(super) fn order_with(
        &mut self,
        order: Order,
        fds: Vec<ForeignFd>,
        what: OrderPurpose,
        asker: Option<Asker>,
    ) -> u64 {
        self.next_request += 1;
        let id = self.next_request;
        // The answer that ends a start comes after all others.
        let precedence = match &what {
            OrderPurpose::Started => OrderPrecedence::InTurn,
            _ => OrderPrecedence::of(&order),
        };
        self.waiting.insert(id, Waiting::new(what, asker));
        self.send(Request { id, order }, fds, precedence);
        id
    }

    /// Hands a connection over. The answer is a report, when it is over.
    pub(super) fn attach(&mut self, name: String, attachment: u64, fds: Vec<ForeignFd>) {
        self.send(Request { id: 0, order: Order::Attach { name, attachment } }, fds, OrderPrecedence::InTurn);
    }

    /// Hands over descriptors that belong to a session which is to be taken over.
    pub(super) fn bring(&mut self, attachment: u64, numbers: Vec<u32>, fds: Vec<ForeignFd>) {
        self.send(
            Request { id: 0, order: Order::Bring { attachment, numbers } },
            fds,
            OrderPrecedence::InTurn,
        );
    }

    /// Tells the switch something that it does not answer.
    pub(super) fn tell_switch(&mut self, order: Order) {
        self.send(Request { id: 0, order }, Vec::new(), OrderPrecedence::InTurn);
    }

    fn send(&mut self, request: Request, fds: Vec<ForeignFd>, precedence: OrderPrecedence) {
        if self.process.is_up() {
            self.liveness.told(Instant::now());
        }
        match precedence {
            OrderPrecedence::Ahead => self.process.send(&request, fds),
            OrderPrecedence::InTurn => self.process.send_patiently(&request, fds),
        }
    }

    /// When channels have to be looked after without an event.
    pub(super) fn channels_due(&self) -> [Option<Instant>; 4] {
        let successor = self.upgrade.as_ref().and_then(Upgrade::channel_due);
        [
            self.process.channel_due(),
            self.driver.process.channel_due(),
            self.controller.process.channel_due(),
            successor,
        ]
    }

    /// Watches the channels for room while something waits for it.
    pub(super) fn watch_channels(&mut self) {
        self.process.watch(&self.poller, Source::Switch.into());
        self.driver.process.watch(&self.poller, Source::Driver.into());
        self.controller.process.watch(&self.poller, Source::ControllerProcess.into());
        if let Some(successor) = self.upgrade.as_mut().and_then(Upgrade::successor) {
            successor.watch(&self.poller, Source::Successor.into());
        }
    }

    /// Takes the switch's messages.
    pub(super) fn hear(&mut self) {
        let reports = self.process.hear(&self.poller);
        if !reports.is_empty() {
            self.take_over_goes_on();
        }
        if reports.iter().any(|(report, _)| report.is_of_main_thread()) {
            self.switch_lives();
        }
        reports.into_iter().for_each(|(report, fds)| self.on_report(report, fds));
    }

    fn on_report(&mut self, report: Report, fds: Vec<ForeignFd>) {
        match report {
            Report::Keep { attachment, numbers } => self.keep_fds(attachment, numbers, fds),
            Report::Kept { attachment, session, numbers } => {
                self.keep_session(attachment, session, &numbers);
            }
            Report::Wanted(wanted) => self.device_wanted(wanted),
            Report::Released { name } => self.device_released(&name),
            Report::Datapaths(told) => {
                self.datapaths = Some(told);
                self.store.is_late(Key::Head);
            }
            Report::Detached { name, attachment, why } => self.detached(&name, attachment, &why),
            Report::Refused { name, why } => self.refused(&name, why),
            Report::Failed { why } => self.process.note_last_words(why),
            Report::Unanswered => self.suspect_controller(),
            Report::Sandbox(layers) => self.sandboxed(layers),
            Report::Forbidden(call) => self.process.note_last_words(call.to_string()),
            Report::Addresses { id, fdb } => {
                if let Some(waiting) = self.waiting.get_mut(&id) {
                    waiting.addresses.extend(fdb.entries);
                }
            }
            Report::Reply { id, result } => {
                if let Some(mut waiting) = self.waiting.remove(&id) {
                    let result = result.map(|answer| waiting.whole(answer));
                    self.on_reply(waiting, result);
                }
            }
        }
    }

    fn on_reply(&mut self, waiting: Waiting, result: Result<Answer, Fault>) {
        let Waiting { what, asker, .. } = waiting;
        let answer = match what {
            OrderPurpose::Added { port, is_new } => self.added(port, is_new, result.map(drop)),
            OrderPurpose::SwitchAdded { name, is_new } => self.switch_added(&name, is_new, result.map(drop)),
            OrderPurpose::SwitchSet { spec } => self.switch_is_set(spec, result.map(drop)),
            OrderPurpose::SwitchRemoved { spec } => self.switch_removed(spec, result.map(drop)),
            OrderPurpose::Changed(changing) => self.changed(*changing, result),
            OrderPurpose::Removed => result.map(|_| Value::Bool(true)),
            OrderPurpose::FdbAdded { port, entry } => result.and_then(|_| {
                self.remember_entry(port, entry)?;
                Ok(Value::Bool(true))
            }),
            OrderPurpose::FdbDeleted(entry) => result.map(|_| {
                self.forget_entry(&entry);
                Value::Bool(true)
            }),
            OrderPurpose::DatapathsRestored => {
                self.datapaths_restored(result.map(drop));
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
                self.taken_over(port, attachment, result.map(drop))
            }
            OrderPurpose::WentOn(sessions) => self.went_on(sessions, result),
            OrderPurpose::Started => return self.started(),
            OrderPurpose::Rested => return self.rested(result),
            OrderPurpose::Ended => return,
            OrderPurpose::Streamed => match result {
                Ok(_) => return self.streamed(asker),
                Err(fault) => Err(fault),
            },
            OrderPurpose::Question(question) => {
                result.and_then(|answer| self.conclude(&question, self.with_past(answer)))
            }
        };
        match (asker, answer) {
            (Some(asker), answer) => self.answer(asker, answer),
            (None, Err(fault)) if matches!(self.stage, Stage::Starting) => self.fail_start(fault),
            (None, Err(fault)) => say_of_others!(Warning: "{fault}"),
            (None, Ok(_)) => {}
        }
    }

    /// Tells every waiting client that no answer will come.
    pub(super) fn fail_waiting(&mut self) {
        let is_starting = !matches!(self.stage, Stage::Serving);
        for (_, waiting) in std::mem::take(&mut self.waiting) {
            let is_removal =
                matches!(waiting.what, OrderPurpose::Removed | OrderPurpose::SwitchRemoved { .. });
            match waiting.what {
                OrderPurpose::Added { port, is_new: true } => self.forget_port(port),
                OrderPurpose::SwitchAdded { name, is_new: true } => self.forget_switch(&name),
                OrderPurpose::Changed(changing) => drop(self.changed(*changing, Err(switch_down()))),
                _ => {}
            }
            if let (Some(asker), false) = (waiting.asker, is_starting) {
                // A port to remove is gone, and the next process will not be told of it.
                let answer = if is_removal { Ok(Value::Bool(true)) } else { Err(switch_down()) };
                self.answer(asker, answer);
            }
        }
    }

    /// Questions with a waiting client; none of them is answered any more.
    pub(super) fn take_questions(&mut self) -> Vec<(Question, Asker)> {
        let is_question =
            |waiting: &Waiting| waiting.asker.is_some() && matches!(waiting.what, OrderPurpose::Question(_));
        let taken: Vec<Waiting> = self
            .waiting
            .extract_if(.., |_, waiting| is_question(waiting))
            .map(|(_, waiting)| waiting)
            .collect();
        taken
            .into_iter()
            .filter_map(|waiting| match (waiting.what, waiting.asker) {
                (OrderPurpose::Question(question), Some(asker)) => Some((question, asker)),
                _ => None,
            })
            .collect()
    }

    /// Answers the clients that have waited for too long. Their orders may still be executed.
    pub(super) fn give_up_waiting(&mut self, now: Instant) {
        let late = self.waiting.values_mut().filter(|waiting| waiting.until <= now);
        let askers: Vec<Asker> = late.filter_map(|waiting| waiting.asker.take()).collect();
        for asker in askers {
            let (seconds, pid) = (ANSWER_PATIENCE.as_secs(), self.process.pid().unwrap_or_default());
            let state = procfs::state_text(pid);
            let why = format!(
                "the switch process (process {pid}) did not answer within {seconds} s: {state}; see its log"
            );
            self.answer(asker, Err(Fault::new(Kind::SwitchDown, why)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lasthop_api::switches::SwitchName;

    #[test]
    fn addresses_that_came_in_parts_are_one_answer_in_order() {
        let line = |age_ms| FdbLine {
            switch: SwitchName::default(),
            mac: "02:00:00:00:00:01".to_owned(),
            vlan: None,
            port: "vm1".to_owned(),
            age_ms,
            is_static: false,
        };
        let mut waiting = Waiting::new(OrderPurpose::Restored, None);
        waiting.addresses.extend([line(1), line(2)]);
        waiting.addresses.extend([line(3)]);
        let Answer::Fdb(whole) = waiting.whole(Answer::Fdb(FdbReport { entries: vec![line(4)] })) else {
            panic!("an answer to the same question")
        };
        assert_eq!(whole.entries, [1, 2, 3, 4].map(line));
        assert!(matches!(waiting.whole(Answer::Done), Answer::Done));
    }
}
