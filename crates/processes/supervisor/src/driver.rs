//! The driver process, and questions to it.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use lasthop_api::driver_orders::{DriverOrder, DriverReport};
use lasthop_api::settings::SwitchSettings;
use lasthop_children::{ChildRole, Reaper, RestartingChild};
use lasthop_listeners::Asker;

use super::pending_questions::PendingQuestions;
use super::question::Question;

/// How long counters of the driver process are waited for: one that is stopped must not keep its ports from being shown, and
/// one that waits for a CPU is not to be left out.
const COUNTERS_PATIENCE: Duration = Duration::from_secs(2);

/// The driver process, and the clients that wait for it.
#[derive(Debug)]
pub(super) struct Driver {
    pub(super) process: RestartingChild<DriverOrder, DriverReport>,
    /// The supervisor is about to end: no other process is started.
    pub(super) is_last: bool,
    /// The last question is not answered yet.
    pub(super) is_asked: bool,
    pending: PendingQuestions,
    /// Requests to the kernel on behalf of ports, and their purposes.
    pub(super) requests: BTreeMap<u32, (u32, String)>,
}

impl Driver {
    pub(super) fn new(settings: &SwitchSettings, reaper: &Reaper) -> Self {
        Self {
            process: RestartingChild::new(ChildRole::driver(settings), reaper),
            is_last: false,
            is_asked: false,
            pending: PendingQuestions::new(COUNTERS_PATIENCE),
            requests: BTreeMap::new(),
        }
    }

    /// Not started, nor to be started.
    pub(super) fn retired(settings: &SwitchSettings, reaper: &Reaper) -> Self {
        Self { is_last: true, ..Self::new(settings, reaper) }
    }

    /// The time at which a client has waited for long enough, or the process is to be started.
    pub(super) fn due(&self) -> Option<Instant> {
        self.pending.due().into_iter().chain(self.process.due()).min()
    }

    /// Lets the process forget a port.
    pub(super) fn detach(&mut self, port: u32) {
        self.process.send(&DriverOrder::Detach { port }, Vec::new());
    }

    /// Asks for counters, on behalf of a client that waits for them.
    pub(super) fn ask(&mut self, question: Question, asker: &Asker) {
        // One question at a time: those that a driver process does not answer must not pile up.
        if !self.is_asked {
            let round = self.pending.next_round();
            self.is_asked = self.process.is_up();
            self.process.send(&DriverOrder::Stats { round }, Vec::new());
        }
        self.pending.wait(question, asker);
    }

    /// The questions whose counters, of up to this round, have come, or that have waited for long enough; all, if there is no process.
    pub(super) fn take_ready(&mut self, round: u64, now: Instant) -> Vec<(Question, Asker)> {
        let round = if self.process.is_up() { round } else { u64::MAX };
        self.pending.take_ready(round, now)
    }
}
