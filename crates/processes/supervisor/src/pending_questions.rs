//! Clients that wait while another process is asked first. A process that does not answer delays them for a short time
//! only.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use lasthop_listeners::Asker;

use super::question::Question;

/// The requests and their clients, in the order of arrival.
#[derive(Debug)]
pub(super) struct PendingQuestions {
    patience: Duration,
    /// Numbers the questions to the process.
    round: u64,
    queue: VecDeque<PendingQuestion>,
}

#[derive(Debug)]
struct PendingQuestion {
    round: u64,
    question: Question,
    asker: Asker,
    until: Instant,
}

impl PendingQuestions {
    /// An empty queue, in which each client waits for at most `patience`.
    pub(super) fn new(patience: Duration) -> Self {
        Self { patience, round: 0, queue: VecDeque::new() }
    }

    /// The number of the next question.
    pub(super) fn next_round(&mut self) -> u64 {
        self.round += 1;
        self.round
    }

    /// Adds a client that waits for the answer to the last question.
    pub(super) fn wait(&mut self, question: Question, asker: &Asker) {
        let until = Instant::now() + self.patience;
        self.queue.push_back(PendingQuestion { round: self.round, question, asker: asker.clone(), until });
    }

    /// When the first client's wait ends.
    pub(super) fn due(&self) -> Option<Instant> {
        self.queue.front().map(|asked| asked.until)
    }

    /// Takes the clients whose question, of up to `round`, is answered, or that have waited too long.
    pub(super) fn take_ready(&mut self, round: u64, now: Instant) -> Vec<(Question, Asker)> {
        let is_ready = |asked: &PendingQuestion| asked.round <= round || asked.until <= now;
        let (ready, waiting): (VecDeque<_>, VecDeque<_>) =
            std::mem::take(&mut self.queue).into_iter().partition(is_ready);
        self.queue = waiting;
        ready.into_iter().map(|asked| (asked.question, asked.asker)).collect()
    }
}
