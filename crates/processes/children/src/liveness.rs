//! Whether the switch process answers. One that owes a sign of life is looked at once a second. One that owes none is asked whether it is
//! there every 2 s while it works. An idle one is not asked: every 32 s the supervisor looks whether it has worked since.
//!
//! ```text
//!   order ──> 1 s without a word: asked whether it is there ──> 3 s: named in the log, and requests to it are refused at once
//!     ^                                                    └──> 10 s: ended, unless it was stopped by a signal
//!     └── nothing was asked for 2 s, and it has worked: asked whether it is there
//! ```

use std::time::{Duration, Instant};

use lasthop_runtime::procfs;

/// Between two looks.
const LOOK_PAUSE: Duration = Duration::from_secs(1);
/// Looks without a word after which it is named: its slowest work, to map and unmap memory of large guests, takes less.
const NAMED_LOOKS: u32 = 3;
/// Looks without a word after which it is ended: attached guests have had no new flows and no answers for as long, and a start takes
/// some 0.1 s. Looks are counted and not the time, so that a pause of the whole machine ends no process.
const ENDED_LOOKS: u32 = 10;
/// The same of a process that has not begun to serve: on a machine whose CPUs are all taken, a program needs seconds to start.
const START_LOOKS: u32 = 30;

/// Between two looks at a process that owes nothing: while it works, and while it is idle.
const WORKING_ROUND: Duration = Duration::from_secs(2);
const IDLE_ROUND: Duration = Duration::from_secs(32);
/// CPU time since the last question by which a process works. An answer takes some 50 us.
const WORK_NS: u64 = 1_000_000;

/// The watch over the switch process.
#[derive(Debug)]
pub struct Liveness {
    /// The next look; none if there is no process.
    next: Option<Instant>,
    /// It owes a sign of life.
    is_owed: bool,
    looks: u32,
    round: Duration,
    /// CPU time that it had taken when it was asked last.
    cpu_ns: u64,
    /// The last one that has begun to serve, by its number.
    begun: u64,
    /// The last one that was ended since it did not answer.
    ended: u64,
}

impl Default for Liveness {
    fn default() -> Self {
        Self { next: None, is_owed: false, looks: 0, round: WORKING_ROUND, cpu_ns: 0, begun: 0, ended: 0 }
    }
}

impl Liveness {
    /// It was told something.
    pub fn told(&mut self, now: Instant) {
        if !std::mem::replace(&mut self.is_owed, true) {
            self.next = Some(now + LOOK_PAUSE);
        }
    }

    /// It has said something; whether it had not for long.
    pub fn lives(&mut self, now: Instant) -> bool {
        let was_deaf = self.is_deaf();
        (self.is_owed, self.looks, self.next) = (false, 0, Some(now + self.round));
        was_deaf
    }

    /// Nothing is owed at `now`, and the process has taken `cpu_ns` of CPU time. Whether it is to be asked; if not, it is looked at later.
    fn is_to_ask(&mut self, cpu_ns: u64, now: Instant) -> bool {
        // Another process has begun anew.
        let has_worked = cpu_ns < self.cpu_ns || cpu_ns - self.cpu_ns >= WORK_NS;
        if has_worked {
            (self.cpu_ns, self.round) = (cpu_ns, WORKING_ROUND);
        } else {
            self.round = IDLE_ROUND;
            self.next = Some(now + self.round);
        }
        has_worked
    }

    /// The next look; none if there is no process.
    pub fn due(&self) -> Option<Instant> {
        self.next
    }

    /// Whether it owes a sign of life for too long.
    pub fn is_deaf(&self) -> bool {
        self.looks >= NAMED_LOOKS
    }

    /// There is no process.
    pub fn forget(&mut self) {
        self.next = None;
    }

    /// The process with this number serves from now on.
    pub fn begun(&mut self, number: u64) {
        self.begun = number;
    }

    /// Whether the process with this number was ended since it did not answer.
    pub fn was_ended(&self, number: u64) -> bool {
        self.ended == number
    }

    /// The next step with process `pid`, the start of which has this number.
    pub fn look(&mut self, pid: u32, number: u64, is_busy: bool, now: Instant) -> Option<LivenessStep> {
        self.next = Some(now + LOOK_PAUSE);
        if is_busy {
            // A process that begins, ends or hands over may take longer, and has another limit.
            self.looks = 0;
            return None;
        }
        if self.is_deaf() && procfs::is_stopped(pid) {
            // It gets its full time once it is let go on.
            return None;
        }
        if procfs::is_headless(pid) {
            // It was killed, and one of its threads cannot end: the channel stays open, and says nothing of that.
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

/// The step with a process that may not answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LivenessStep {
    /// It is asked whether it is there.
    Ask,
    /// It is named in the log, and clients are answered without it.
    Name,
    /// It is ended.
    End,
    /// It is dead, and its channel is read no more.
    Silence,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The pause before each look at a process, and whether it is asked then. `cpu_ms`: the CPU time it has taken by each look, in milliseconds.
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
