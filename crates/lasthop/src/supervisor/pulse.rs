//! Whether the switch process answers. One that owes a sign of life is looked at once a second; while it owes none nothing wakes up.
//!
//! ```text
//!   order ──> 1 s without a word: asked whether it is there ──> 3 s: named in the log, and what it is asked is refused at once
//!                                                          └──> 10 s: ended, unless somebody has stopped it
//! ```

use std::time::{Duration, Instant};

use crate::fault::{Fault, Kind};
use crate::log::say;
use crate::orders::{Answer, Order};
use crate::procfs;
use crate::report::StatsReport;

use super::Supervisor;
use super::controller::PlaneTold;
use super::lifecycle::Stage;
use super::orders::{Asker, What};
use super::requests::Question;

/// Between two looks.
const LOOK_PAUSE: Duration = Duration::from_secs(1);
/// Looks without a word after which it is named: its slowest work, to map and unmap memory of large guests, takes less.
const NAMED_LOOKS: u32 = 3;
/// Looks without a word after which it is ended: attached guests have had no new flows and no answers for as long, and a start takes
/// some 0.1 s. Looks are counted and not the time, so that a machine that stood still ends nobody.
const ENDED_LOOKS: u32 = 10;
/// The same of one that has not begun to serve: on a machine whose CPUs are all taken, a program needs seconds to start.
const START_LOOKS: u32 = 30;

/// The watch over the switch process.
#[derive(Debug, Default)]
pub(super) struct Pulse {
    /// The next look, while it owes a sign of life.
    next: Option<Instant>,
    looks: u32,
    /// The last one that has begun to serve, by its number.
    begun: u64,
}

impl Pulse {
    /// It was told something.
    pub(super) fn told(&mut self) {
        self.next.get_or_insert_with(|| Instant::now() + LOOK_PAUSE);
    }

    pub(super) fn due(&self) -> Option<Instant> {
        self.next
    }

    fn is_deaf(&self) -> bool {
        self.looks >= NAMED_LOOKS
    }
}

impl Supervisor {
    /// The switch process has said something, or is another one.
    pub(super) fn switch_lives(&mut self) {
        let pulse = Pulse { begun: self.pulse.begun, ..Pulse::default() };
        if std::mem::replace(&mut self.pulse, pulse).is_deaf() && self.lives.is_up() {
            say!("the switch process (process {}) answers again", self.lives.pid().unwrap_or_default());
        }
    }

    /// Looks at a switch process that owes a sign of life, if it is time.
    pub(super) fn look_for_life(&mut self, now: Instant) {
        if self.pulse.next.is_none_or(|next| next > now) {
            return;
        }
        let Some(pid) = self.lives.pid() else {
            self.pulse.next = None;
            return;
        };
        self.pulse.next = Some(now + LOOK_PAUSE);
        if !matches!(self.stage, Stage::Serving) || self.upgrade.is_some() {
            // A process that begins, ends or hands over may take longer, and has another limit.
            self.pulse.looks = 0;
            return;
        }
        if self.pulse.is_deaf() && procfs::is_stopped(pid) {
            // It gets its full time once it is let go on.
            return;
        }
        self.pulse.looks += 1;
        let ended_looks = if self.pulse.begun == self.lives.starts() { ENDED_LOOKS } else { START_LOOKS };
        match self.pulse.looks {
            1 => self.order(Order::Know, What::Restored, None),
            NAMED_LOOKS => {
                say!(Error: "{}", deaf(pid));
                self.answer_without_switch();
            }
            looks if looks == ended_looks => {
                say!(Error: "{}; ending it", deaf(pid));
                self.lives.give_up_on("it did not answer");
            }
            _ => {}
        }
    }

    /// The switch process serves from now on.
    pub(super) fn switch_has_begun(&mut self) {
        self.pulse.begun = self.lives.starts();
    }

    /// Why nobody can ask it, if it does not answer.
    pub(super) fn deafness(&self) -> Option<Fault> {
        self.pulse.is_deaf().then(|| deaf(self.lives.pid().unwrap_or_default()))
    }

    /// Answers clients that wait for the switch process, with the facts that are known without it.
    fn answer_without_switch(&mut self) {
        let questions: Vec<(Question, Asker)> = self.take_questions();
        for (question, asker) in questions {
            let answer = self.conclude_alone(&question);
            self.answer(asker, answer);
        }
    }

    /// The answer to a question without the switch process.
    pub(super) fn conclude_alone(&self, question: &Question) -> Result<serde_json::Value, Fault> {
        match question {
            Question::List | Question::Show { .. } | Question::Ports { .. } => {
                self.conclude(question, Answer::Stats(StatsReport::default()))
            }
            Question::Doctor { name, .. } => self.facts(name.as_deref(), None, &PlaneTold::default()),
            _ => Err(deaf(self.lives.pid().unwrap_or_default())),
        }
    }
}

fn deaf(pid: u32) -> Fault {
    let state = procfs::state_text(pid);
    Fault::new(Kind::SwitchDown, format!("the switch process (process {pid}) does not answer: {state}"))
}
