//! The driver process, and questions to it.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use lasthop_api::driver_orders::{DriverOrder, DriverReport};
use lasthop_api::settings::SwitchSettings;
use lasthop_children::{ChildRole, Reaper, RestartingChild};
use lasthop_listeners::Caller;

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

    /// Removes a port from the process.
    pub(super) fn detach(&mut self, port: u32) {
        self.process.send(&DriverOrder::Detach { port }, Vec::new());
    }

    /// Requests counters for a client that waits for them.
    pub(super) fn ask(&mut self, question: Question, caller: &Caller) {
        // One question at a time, so that none pile up if the process does not answer.
        if !self.is_asked {
            let round = self.pending.next_round();
            self.is_asked = self.process.is_up();
            self.process.send(&DriverOrder::Stats { round }, Vec::new());
        }
        self.pending.wait(question, caller);
    }

    /// Takes the questions whose counters, of up to this round, have come, or that have waited too long; all, if there
    /// is no process.
    pub(super) fn take_ready(&mut self, round: u64, now: Instant) -> Vec<(Question, Caller)> {
        let round = if self.process.is_up() { round } else { u64::MAX };
        self.pending.take_ready(round, now)
    }
}
