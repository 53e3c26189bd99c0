//! Checks whether a process answers. One that owes a sign of life is checked once a second. One that owes none
//! is asked for a sign of life every 2 s while it works. An idle one is not asked: every 32 s the supervisor checks
//! whether it has worked since.
//!
//! ```text
//!   order ──> 1 s without a message: asked for a sign of life ──> 3 s: logged, and requests to it are refused at once
//!     ^                                                      └──> 10 s: killed, unless a signal has stopped it
//!     └── no order for 2 s, and it has worked: asked for a sign of life
//! ```

use std::time::{Duration, Instant};

use lasthop_runtime::poller::Poller;
use lasthop_runtime::procfs;
use log::{error, info};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::child::RestartingChild;

/// Pause between two checks.
const LOOK_PAUSE: Duration = Duration::from_secs(1);
/// Checks without a message after which it is logged: its longest work, mapping and unmapping the memory of large
/// guests, takes less.
const NAMED_LOOKS: u32 = 3;
/// Checks without a message after which it is killed: guests had no new flows and no answers meanwhile, and a restart
/// takes some 0.1 s. Checks are counted instead of time, so that a pause of the whole machine kills no process.
const ENDED_LOOKS: u32 = 10;
/// Same for a process that has not begun to serve: on a machine without idle CPUs a program needs seconds to start.
const START_LOOKS: u32 = 30;

/// Pause between two checks of a process that owes nothing: while it works, and while it is idle.
const WORKING_ROUND: Duration = Duration::from_secs(2);
const IDLE_ROUND: Duration = Duration::from_secs(32);
/// CPU time since the last answer above which a process counts as working.
const WORK_NS: u64 = 1_000_000;

/// The watch over a process.
#[derive(Debug)]
pub struct Liveness {
    /// The next check; `None` if there is no process.
    next: Option<Instant>,
    /// Whether it owes a sign of life.
    is_owed: bool,
    looks: u32,
    round: Duration,
    /// Its CPU time at the last answer to a question, or at the last question.
    cpu_ns: u64,
    /// Whether it was asked although it owed nothing, and has sent no message since.
    is_asked: bool,
    /// The number of the last process that has begun to serve.
    begun: u64,
    /// The number of the last process that was killed because it did not answer.
    ended: u64,
}

impl Default for Liveness {
    fn default() -> Self {
        Self {
            next: None,
            is_owed: false,
            looks: 0,
            round: WORKING_ROUND,
            cpu_ns: 0,
            is_asked: false,
            begun: 0,
            ended: 0,
        }
    }
}

impl Liveness {
    /// Notes an order to it.
    pub fn told(&mut self, now: Instant) {
        if !std::mem::replace(&mut self.is_owed, true) {
            self.next = Some(now + LOOK_PAUSE);
        }
    }

    /// Notes a message; returns whether there had been none for long.
    fn lives(&mut self, now: Instant) -> bool {
        let was_deaf = self.is_deaf();
        (self.is_owed, self.looks, self.next) = (false, 0, Some(now + self.round));
        was_deaf
    }

    /// Notes its CPU time if it has just answered a question. On a machine without idle CPUs an answer may take as long as
    /// work does, and would be followed by a question without end.
    fn note_answer(&mut self, cpu_ns: impl FnOnce() -> u64) {
        if std::mem::take(&mut self.is_asked) {
            self.cpu_ns = cpu_ns();
        }
    }

    /// Notes that it is at work, though it still owes a sign of life; returns whether there had been no message for long.
    pub fn works(&mut self) -> bool {
        let was_deaf = self.is_deaf();
        self.looks = 0;
        was_deaf
    }

    /// Called if nothing is owed at `now` and the process has used `cpu_ns` of CPU time. Returns whether to ask it; if
    /// not, it is checked later.
    fn is_to_ask(&mut self, cpu_ns: u64, now: Instant) -> bool {
        // Another process has started at zero.
        let has_worked = cpu_ns < self.cpu_ns || cpu_ns - self.cpu_ns >= WORK_NS;
        if has_worked {
            (self.cpu_ns, self.round, self.is_asked) = (cpu_ns, WORKING_ROUND, true);
        } else {
            self.round = IDLE_ROUND;
            self.next = Some(now + self.round);
        }
        has_worked
    }

    /// The next check; `None` if there is no process.
    pub fn due(&self) -> Option<Instant> {
        self.next
    }

    /// Whether it has owed a sign of life for too long.
    pub fn is_deaf(&self) -> bool {
        self.looks >= NAMED_LOOKS
    }

    /// Notes that there is no process.
    pub fn forget(&mut self) {
        self.next = None;
    }

    /// Notes that the process with this number serves from now on.
    pub fn begun(&mut self, number: u64) {
        self.begun = number;
    }

    /// Whether the process with this number was killed because it did not answer.
    pub fn was_ended(&self, number: u64) -> bool {
        self.ended == number
    }

    /// The next step with process `pid`, whose start has this number.
    pub fn look(&mut self, pid: u32, number: u64, is_busy: bool, now: Instant) -> Option<LivenessStep> {
        self.next = Some(now + LOOK_PAUSE);
        if is_busy {
            // A process that starts, ends or hands over may take longer, and has another limit.
            self.looks = 0;
            return None;
        }
        if self.is_deaf() && procfs::is_stopped(pid) {
            // Its time starts once it is continued.
            return None;
        }
        if procfs::is_headless(pid) {
            // It was killed, and one of its threads cannot end: the channel stays open without a message about that.
            return Some(LivenessStep::Silence);
        }
        if !self.is_owed {
            return self.is_to_ask(procfs::cpu_ns(pid), now).then_some(LivenessStep::Ask);
        }
        self.looks += 1;
        let ended_looks = if self.begun == number { ENDED_LOOKS } else { START_LOOKS };
        match self.looks {
            1 => Some(LivenessStep::Ask),
            NAMED_LOOKS => Some(LivenessStep::Name),
            looks if looks == ended_looks => {
                self.ended = number;
                Some(LivenessStep::End)
            }
            _ => None,
        }
    }
}

/// The next step with a process that may not answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LivenessStep {
    /// Ask for a sign of life.
    Ask,
    /// Log it, and answer clients without it.
    Name,
    /// Kill it.
    End,
    /// It is dead: stop reading its channel.
    Silence,
}

impl<Out: Serialize, In: DeserializeOwned> RestartingChild<Out, In> {
    /// Does the next step with the process, if it is due: logs a silent one, and ends it later. The caller asks it if
    /// the step is [`LivenessStep::Ask`]. A process that `is_busy` may take longer.
    pub fn look_for_life(
        &mut self,
        liveness: &mut Liveness,
        is_busy: bool,
        now: Instant,
        poller: &Poller,
    ) -> Option<LivenessStep> {
        if liveness.due().is_none_or(|due| due > now) {
            return None;
        }
        let Some(pid) = self.pid() else {
            liveness.forget();
            return None;
        };
        let step = liveness.look(pid, self.starts(), is_busy, now);
        match step {
            Some(LivenessStep::Name) => error!("{}", self.silence_text()),
            Some(LivenessStep::End) => {
                error!("{}; ending it", self.silence_text());
                self.give_up_on("it did not answer");
            }
            Some(LivenessStep::Silence) => self.silence(poller),
            Some(LivenessStep::Ask) | None => {}
        }
        step
    }

    /// Notes a message of the process, after which it owes none.
    pub fn note_life(&self, liveness: &mut Liveness) {
        let was_deaf = liveness.lives(Instant::now());
        if let Some(pid) = self.pid() {
            liveness.note_answer(|| procfs::cpu_ns(pid));
        }
        self.note_voice(was_deaf);
    }

    /// Logs that a process which `was_deaf` has sent something.
    pub fn note_voice(&self, was_deaf: bool) {
        if let Some(pid) = self.pid().filter(|_| was_deaf) {
            info!("{} (process {pid}) answers again", self.name());
        }
    }

    /// That it does not answer, and its state.
    pub fn silence_text(&self) -> String {
        let pid = self.pid().unwrap_or_default();
        format!("{} (process {pid}) does not answer: {}", self.name(), procfs::state_text(pid))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The pause before each check of a process, and whether it is asked then. `cpu_ms`: its CPU time at each check, in
    /// milliseconds.
    fn looks(cpu_ms: &[u64]) -> Vec<(u64, bool)> {
        let (mut liveness, mut now) = (Liveness::default(), Instant::now());
        liveness.lives(now);
        let look = |cpu_ms: &u64| {
            let at = liveness.due().expect("a look");
            let pause = at - now;
            now = at;
            let is_asked = liveness.is_to_ask(cpu_ms * 1_000_000, at);
            if is_asked {
                liveness.told(at);
                assert_eq!(liveness.due(), Some(at + LOOK_PAUSE), "an answer is owed");
                liveness.lives(at);
            }
            (pause.as_secs(), is_asked)
        };
        cpu_ms.iter().map(look).collect()
    }

    #[test]
    fn a_process_that_works_is_asked_and_an_idle_one_is_looked_at_rarely() {
        assert_eq!(looks(&[9, 9, 9, 9]), [(2, true), (2, false), (32, false), (32, false)]);
        assert_eq!(looks(&[10, 20, 30]), [(2, true), (2, true), (2, true)]);
        assert_eq!(looks(&[0, 9, 18, 18]), [(2, false), (32, true), (2, true), (2, false)]);
        assert_eq!(looks(&[50, 1, 1]), [(2, true), (2, true), (2, false)], "another process");
    }

    #[test]
    fn an_answer_is_no_work_however_long_it_takes() {
        let (mut liveness, mut now) = (Liveness::default(), Instant::now());
        let mut cpu_ns = 0;
        let mut look = |worked_ns: u64, answer_ns: u64| {
            cpu_ns += worked_ns;
            liveness.lives(now);
            liveness.note_answer(|| cpu_ns + answer_ns);
            now = liveness.due().expect("a look");
            cpu_ns += answer_ns;
            liveness.is_to_ask(cpu_ns, now)
        };
        assert!(look(9_000_000, 0), "it has worked");
        assert!(!look(0, 9_000_000), "it has answered");
        assert!(look(9_000_000, 0), "it works again");
    }

    #[test]
    fn a_process_at_work_still_owes_a_sign_of_life_and_is_asked_again() {
        let (mut liveness, mut now) = (Liveness::default(), Instant::now());
        let (pid, number) = (std::process::id(), 1);
        liveness.begun(number);
        liveness.told(now);
        let mut looks = |liveness: &mut Liveness, count: u32| -> Vec<_> {
            let look = |_| {
                now = liveness.due().expect("a look");
                liveness.look(pid, number, false, now)
            };
            (0..count).filter_map(look).collect()
        };
        assert_eq!(looks(&mut liveness, 9), [LivenessStep::Ask, LivenessStep::Name]);
        assert!(liveness.works() && !liveness.works());
        assert_eq!(
            looks(&mut liveness, 10),
            [LivenessStep::Ask, LivenessStep::Name, LivenessStep::End],
            "it is asked, and has as long as before"
        );
    }

    #[test]
    fn a_process_that_says_nothing_is_deaf_after_some_looks_and_not_after_a_word() {
        let (mut liveness, now) = (Liveness::default(), Instant::now());
        liveness.told(now);
        liveness.told(now + LOOK_PAUSE);
        assert_eq!(liveness.due(), Some(now + LOOK_PAUSE), "since the first order");
        liveness.looks = NAMED_LOOKS;
        assert!(liveness.is_deaf() && liveness.lives(now) && !liveness.is_deaf());
        assert!(!liveness.lives(now));
    }
}
