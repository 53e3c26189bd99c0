//! The switch process: orders with the purpose of each reply, and the watch over its life.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use lasthop_foreign::ForeignFd;

use lasthop_api::orders::{Answer, Order, Report, Request};
use lasthop_api::report::{AddressParts, FdbReport};
use lasthop_api::settings::SwitchSettings;
use lasthop_api::switches::SwitchName;
use lasthop_children::{ChildRole, Liveness, LivenessStep, Reaper, RestartingChild, SliceBoost};
use lasthop_listeners::Caller;
use lasthop_runtime::clock::earlier;
use lasthop_runtime::fault::{Fault, Kind};
use lasthop_runtime::poller::Poller;
use lasthop_runtime::procfs;

use super::question::{OrderPurpose, Question};

/// Longest time until a client gets the reply that the switch does not answer.
const ANSWER_PATIENCE: Duration = Duration::from_secs(8);

/// An order without a reply yet.
#[derive(Debug)]
struct Waiting {
    what: OrderPurpose,
    caller: Option<Caller>,
    until: Instant,
}

impl Waiting {
    fn new(what: OrderPurpose, caller: Option<Caller>) -> Self {
        Self { what, caller, until: Instant::now() + ANSWER_PATIENCE }
    }

    /// When the caller's wait ends.
    fn due(&self) -> Option<Instant> {
        self.caller.is_some().then_some(self.until)
    }
}

/// Whether an order may overtake earlier ones, while the system refuses their descriptors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OrderPrecedence {
    Ahead,
    InTurn,
}

impl OrderPrecedence {
    /// Questions change nothing. Operators wait for most of them, and a process that owes an answer to `Know` counts as
    /// hanging.
    fn of(order: &Order) -> Self {
        match order {
            Order::Know
            | Order::SchedTrace
            | Order::SchedTable
            | Order::Stats
            | Order::Inspect { .. }
            | Order::Fdb { .. }
            | Order::Switches => Self::Ahead,
            _ => Self::InTurn,
        }
    }
}

/// The present process, those after it, and their open orders.
#[derive(Debug)]
pub(super) struct SwitchProcess {
    pub(super) process: RestartingChild<Request, Report>,
    waiting: BTreeMap<u64, Waiting>,
    /// Addresses of a partial answer.
    parts: AddressParts,
    next_request: u64,
    liveness: Liveness,
    /// Set while guests wait for a switch process.
    slice_boost: Option<SliceBoost>,
}

impl SwitchProcess {
    /// Not started yet.
    pub(super) fn new(settings: &SwitchSettings, reaper: &Reaper) -> Self {
        Self {
            process: RestartingChild::new(ChildRole::switch_process(settings), reaper),
            waiting: BTreeMap::new(),
            parts: AddressParts::default(),
            next_request: 0,
            liveness: Liveness::default(),
            slice_boost: None,
        }
    }

    /// Sends an order; its reply is for `what` and for `caller`.
    pub(super) fn order(&mut self, order: Order, what: OrderPurpose, caller: Option<Caller>) {
        self.order_with(order, Vec::new(), what, caller);
    }

    /// Like `order`, with descriptors.
    pub(super) fn order_with(
        &mut self,
        order: Order,
        fds: Vec<ForeignFd>,
        what: OrderPurpose,
        caller: Option<Caller>,
    ) -> u64 {
        self.next_request += 1;
        let id = self.next_request;
        // The reply that ends a start must come after all others.
        let precedence = match &what {
            OrderPurpose::Started => OrderPrecedence::InTurn,
            _ => OrderPrecedence::of(&order),
        };
        self.waiting.insert(id, Waiting::new(what, caller));
        self.send(Request { id, order }, fds, precedence);
        id
    }

    /// Passes a connection. A report tells of its end.
    pub(super) fn attach(&mut self, name: String, attachment: u64, fds: Vec<ForeignFd>) {
        self.send(Request { id: 0, order: Order::Attach { name, attachment } }, fds, OrderPrecedence::InTurn);
    }

    /// Passes descriptors of a session that is about to be taken over.
    pub(super) fn bring(&mut self, attachment: u64, numbers: Vec<u32>, fds: Vec<ForeignFd>) {
        self.send(
            Request { id: 0, order: Order::Bring { attachment, numbers } },
            fds,
            OrderPrecedence::InTurn,
        );
    }

    /// Sends an order that has no reply.
    pub(super) fn tell(&mut self, order: Order) {
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

    /// Adds addresses of a partial answer, if that is awaited. Ends a process that reports more than it can have.
    pub(super) fn add_addresses(&mut self, id: u64, part: FdbReport) {
        let is_fdb =
            |waiting: &Waiting| matches!(waiting.what, OrderPurpose::Question(Question::Fdb { .. }, _));
        if self.waiting.get(&id).is_some_and(is_fdb)
            && let Err(why) = self.parts.add(id, part)
        {
            self.process.give_up_on(why);
        }
    }

    /// Takes the order that was answered: its purpose, its client, and the whole answer.
    pub(super) fn answered(
        &mut self,
        id: u64,
        result: Result<Answer, Fault>,
    ) -> Option<(OrderPurpose, Option<Caller>, Result<Answer, Fault>)> {
        let result = result.map(|answer| match answer {
            Answer::Fdb(last) => {
                self.add_addresses(id, last);
                Answer::Fdb(FdbReport::whole(self.parts.take(id)))
            }
            answer => answer,
        });
        let waiting = self.waiting.remove(&id)?;
        Some((waiting.what, waiting.caller, result))
    }

    /// Whether a new switch is not confirmed by the switch process yet.
    pub(super) fn is_being_added(&self, switch: &SwitchName) -> bool {
        let is_it = |what: &OrderPurpose| matches!(what, OrderPurpose::SwitchAdded { name, is_new: true } if name == switch);
        self.waiting.values().any(|waiting| is_it(&waiting.what))
    }

    /// Takes all open orders in their order: no reply will come.
    pub(super) fn take_unanswered(&mut self) -> Vec<(OrderPurpose, Option<Caller>)> {
        let waiting = std::mem::take(&mut self.waiting).into_values();
        waiting.map(|waiting| (waiting.what, waiting.caller)).collect()
    }

    /// Has a late reply to the order to rest ignored.
    pub(super) fn forget_rest(&mut self) {
        self.waiting.retain(|_, waiting| !matches!(waiting.what, OrderPurpose::Rested));
    }

    /// Takes the questions with a waiting client; they will not be answered.
    pub(super) fn take_questions(&mut self) -> Vec<(Question, Caller)> {
        let is_question = |waiting: &Waiting| {
            waiting.caller.is_some() && matches!(waiting.what, OrderPurpose::Question(..))
        };
        let taken = self.waiting.extract_if(.., |_, waiting| is_question(waiting));
        let both = |waiting: Waiting| match (waiting.what, waiting.caller) {
            (OrderPurpose::Question(question, _), Some(caller)) => Some((question, caller)),
            _ => None,
        };
        taken.filter_map(|(_, waiting)| both(waiting)).collect()
    }

    /// Takes the clients that have waited too long, and why. Their orders may still be executed.
    pub(super) fn give_up_waiting(&mut self, now: Instant) -> Vec<(Caller, Fault)> {
        let pid = self.pid();
        let late = self.waiting.values_mut().filter(|waiting| waiting.until <= now);
        let taken = late.filter_map(|waiting| Some((waiting.caller.take()?, waiting.what.is_change())));
        taken.map(|(caller, is_change)| (caller, late_answer(pid, is_change))).collect()
    }

    /// When a client's wait ends, or the process has to be started or checked.
    pub(super) fn due(&self) -> Option<Instant> {
        let waiting = self.waiting.values().map(Waiting::due).fold(None, earlier);
        let boost = self.slice_boost.as_ref().map(SliceBoost::until);
        [waiting, self.process.due(), self.liveness.due(), boost].into_iter().fold(None, earlier)
    }

    /// Notes that the process has sent something, or is another one.
    pub(super) fn note_life(&mut self) {
        self.process.note_life(&mut self.liveness);
    }

    /// Checks a process that owes a sign of life, if it is due. A process that `is_busy` may take longer. Returns
    /// whether clients have to be answered without it from now on.
    pub(super) fn look_for_life(&mut self, is_busy: bool, now: Instant, poller: &Poller) -> bool {
        let step = self.process.look_for_life(&mut self.liveness, is_busy, now, poller);
        if step == Some(LivenessStep::Ask) {
            self.order(Order::Know, OrderPurpose::Restored, None);
        }
        step == Some(LivenessStep::Name)
    }

    /// Notes that the switch process serves from now on.
    pub(super) fn note_begin(&mut self) {
        self.liveness.begun(self.process.starts());
    }

    /// Whether the last process was ended because it did not answer.
    pub(super) fn was_ended_for_silence(&self) -> bool {
        self.liveness.was_ended(self.process.starts())
    }

    /// Whether there is a process that has not been silent for long.
    pub(super) fn answers(&self) -> bool {
        self.process.is_up() && !self.liveness.is_deaf()
    }

    /// The reason why it cannot be asked, if it does not answer.
    pub(super) fn deafness(&self) -> Option<String> {
        self.liveness.is_deaf().then(|| self.process.silence_text())
    }

    /// The fault of a process that does not answer.
    pub(super) fn no_answer(&self) -> Fault {
        Fault::new(Kind::SwitchDown, self.process.silence_text() + &procfs::remedy(self.pid()))
    }

    /// Has the process, the supervisor and the successor use short slices, if they do not.
    pub(super) fn boost_slices(&mut self, successor: Option<u32>) {
        let current = self.process.pid();
        self.slice_boost.get_or_insert_with(|| SliceBoost::begin(current.into_iter().chain(successor)));
    }

    /// Ends that, as guests do not wait any more. Threads of the old process must still exist.
    pub(super) fn end_boost(&mut self) {
        self.slice_boost = None;
    }

    /// Ends a boost that has lasted too long.
    pub(super) fn boost_on_time(&mut self, now: Instant) {
        self.slice_boost.take_if(|boost| boost.until() <= now);
    }

    /// Id of the running process; 0 if there is none.
    pub(super) fn pid(&self) -> u32 {
        self.process.pid().unwrap_or_default()
    }
}

/// The fault of process `pid` that has not answered an order. It is not withdrawn: the process reads it once it goes on.
fn late_answer(pid: u32, is_change: bool) -> Fault {
    let (seconds, state) = (ANSWER_PATIENCE.as_secs(), procfs::state_text(pid));
    let remedy = Some(procfs::remedy(pid)).filter(|remedy| !remedy.is_empty());
    let change = match (is_change, &remedy) {
        (false, _) => "",
        (true, Some(_)) => "; the change is made then",
        (true, None) => "; the change may still be made",
    };
    let remedy = remedy.as_deref().unwrap_or("; see its log");
    let why = format!(
        "the switch process (process {pid}) did not answer within {seconds} s: {state}{remedy}{change}"
    );
    Fault::new(Kind::SwitchDown, why)
}

#[cfg(test)]
mod tests {
    use super::*;
    use lasthop_api::report::FdbLine;
    use lasthop_api::settings::Settings;

    fn part(age_ms: u64) -> FdbReport {
        FdbReport::whole(vec![FdbLine {
            switch: SwitchName::default(),
            mac: "02:00:00:00:00:01".to_owned(),
            vlan: None,
            port: "vm1".to_owned(),
            age_ms,
            is_static: false,
        }])
    }

    #[test]
    fn addresses_are_taken_for_a_question_about_them_alone() {
        let settings = SwitchSettings::new(Settings::default()).expect("settings");
        let mut switch = SwitchProcess::new(&settings, &Reaper::new().expect("a reaper"));
        let question = Question::Fdb { switch: None };
        let asked = switch.order_with(
            question.switch_order(),
            Vec::new(),
            OrderPurpose::Question(question, Default::default()),
            None,
        );
        let other = switch.order_with(Order::Stats, Vec::new(), OrderPurpose::Restored, None);
        switch.add_addresses(asked, part(1));
        for unasked in [other, asked + 100] {
            switch.add_addresses(unasked, part(2));
        }
        let (_, _, answer) = switch.answered(asked, Ok(Answer::Fdb(part(3)))).expect("it was asked");
        let whole = FdbReport::whole([part(1), part(3)].into_iter().flat_map(|part| part.entries).collect());
        assert!(matches!(answer, Ok(Answer::Fdb(fdb)) if fdb == whole));
    }
}
