//! The driver process, questions to it, and the watch over its life.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use lasthop_api::driver_orders::{DriverOrder, DriverReport};
use lasthop_api::settings::SwitchSettings;
use lasthop_children::{ChildRole, Liveness, LivenessStep, Reaper, RestartingChild};
use lasthop_foreign::ForeignFd;
use lasthop_listeners::Caller;
use lasthop_runtime::poller::Poller;

use super::question::{PendingQuestions, Question};

/// How long the driver process's counters are awaited. A stopped process must not prevent its ports from being shown;
/// one that waits for a CPU should still be included.
const COUNTERS_PATIENCE: Duration = Duration::from_secs(2);

/// The driver process, and the clients that wait for it.
#[derive(Debug)]
pub(super) struct Driver {
    pub(super) process: RestartingChild<DriverOrder, DriverReport>,
    /// Set before the supervisor ends: no other process is started.
    pub(super) is_last: bool,
    /// Whether the last question is open.
    pub(super) is_asked: bool,
    pending: PendingQuestions,
    liveness: Liveness,
    /// Number of orders, also to earlier processes.
    orders: u64,
    /// Pending requests to the kernel for ports, and their purposes.
    pub(super) requests: BTreeMap<u32, (u32, String)>,
}

impl Driver {
    pub(super) fn new(settings: &SwitchSettings, reaper: &Reaper) -> Self {
        Self {
            process: RestartingChild::new(ChildRole::driver(settings), reaper),
            is_last: false,
            is_asked: false,
            pending: PendingQuestions::new(COUNTERS_PATIENCE),
            liveness: Liveness::default(),
            orders: 0,
            requests: BTreeMap::new(),
        }
    }

    /// A driver process that is not started.
    pub(super) fn retired(settings: &SwitchSettings, reaper: &Reaper) -> Self {
        Self { is_last: true, ..Self::new(settings, reaper) }
    }

    /// When a client's wait ends, or the process has to be started.
    pub(super) fn due(&self) -> Option<Instant> {
        self.pending.due().into_iter().chain(self.process.due()).min()
    }

    /// When the process has to be checked.
    pub(super) fn life_due(&self) -> Option<Instant> {
        self.liveness.due()
    }

    /// Sends an order. The process owes a sign of life for it.
    pub(super) fn send(&mut self, order: &DriverOrder, fds: Vec<ForeignFd>) {
        if self.process.is_up() {
            self.orders += 1;
            self.liveness.told(Instant::now());
        }
        self.process.send(order, fds);
    }

    /// Removes a port from the process.
    pub(super) fn detach(&mut self, port: u32) {
        self.send(&DriverOrder::Detach { port }, Vec::new());
    }

    /// Notes the answer to a question for a sign of life; later orders need another one.
    pub(super) fn note_life(&mut self, round: u64) {
        match round == self.orders {
            true => self.process.note_life(&mut self.liveness),
            false => self.note_progress(),
        }
    }

    /// Notes that the process executes orders.
    pub(super) fn note_progress(&mut self) {
        let was_deaf = self.liveness.works();
        self.process.note_voice(was_deaf);
    }

    /// Notes that the process serves from now on.
    pub(super) fn note_begin(&mut self) {
        self.liveness.begun(self.process.starts());
        self.note_progress();
    }

    /// Forgets the state of a process that is over.
    pub(super) fn forget_process(&mut self) {
        self.is_asked = false;
        self.liveness = Liveness::default();
    }

    /// Checks a process that owes a sign of life, if it is due. A process that `is_busy` may take longer.
    pub(super) fn look_for_life(&mut self, is_busy: bool, now: Instant, poller: &Poller) {
        let step = self.process.look_for_life(&mut self.liveness, is_busy, now, poller);
        if step == Some(LivenessStep::Ask) {
            let round = self.orders + 1;
            self.send(&DriverOrder::Live { round }, Vec::new());
        }
    }

    /// The reason why it cannot be asked, if it does not answer.
    pub(super) fn deafness(&self) -> Option<String> {
        (self.process.is_up() && self.liveness.is_deaf()).then(|| self.process.silence_text())
    }

    /// Requests counters for a client that waits for them.
    pub(super) fn ask(&mut self, question: Question, caller: &Caller) {
        // One question at a time, so that none pile up if the process does not answer.
        if !self.is_asked {
            let round = self.pending.next_round();
            self.is_asked = self.process.is_up();
            self.send(&DriverOrder::Stats { round }, Vec::new());
        }
        self.pending.wait(question, caller);
    }

    /// Takes the questions whose counters, of up to this round, have come, or that have waited too long; all, if there
    /// is no process that answers.
    pub(super) fn take_ready(&mut self, round: u64, now: Instant) -> Vec<(Question, Caller)> {
        let answers = self.process.is_up() && !self.liveness.is_deaf();
        let round = if answers { round } else { u64::MAX };
        self.pending.take_ready(round, now)
    }
}
