//! Clients that wait while another process is asked first. A process that does not answer delays them for a moment at most.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::question::Asker;

/// The requests and their clients, in the order of arrival.
#[derive(Debug)]
pub(super) struct PendingQuestions<T> {
    patience: Duration,
    /// Numbers the questions to the process.
    round: u64,
    queue: VecDeque<PendingQuestion<T>>,
}

#[derive(Debug)]
struct PendingQuestion<T> {
    round: u64,
    wanted: T,
    asker: Asker,
    until: Instant,
}

impl<T> PendingQuestions<T> {
    /// No client waits yet; each will wait for at most `patience`.
    pub(super) fn new(patience: Duration) -> Self {
        Self { patience, round: 0, queue: VecDeque::new() }
    }

    /// The number of the next question.
    pub(super) fn next_round(&mut self) -> u64 {
        self.round += 1;
        self.round
    }

    /// A client waits for the answer to the last question.
    pub(super) fn wait(&mut self, wanted: T, asker: &Asker) {
        let until = Instant::now() + self.patience;
        self.queue.push_back(PendingQuestion { round: self.round, wanted, asker: asker.clone(), until });
    }

    /// When the first one has waited for long enough.
    pub(super) fn due(&self) -> Option<Instant> {
        self.queue.front().map(|asked| asked.until)
    }

    /// The clients whose question, of up to `round`, is answered, or that have waited for long enough.
    pub(super) fn take_ready(&mut self, round: u64, now: Instant) -> Vec<(T, Asker)> {
        let is_ready = |asked: &PendingQuestion<T>| asked.round <= round || asked.until <= now;
        let (ready, waiting): (VecDeque<_>, VecDeque<_>) =
            std::mem::take(&mut self.queue).into_iter().partition(is_ready);
        self.queue = waiting;
        ready.into_iter().map(|asked| (asked.wanted, asked.asker)).collect()
    }
}
