//! Guests whose calls take the kernel long.
//!
//! A write to an eventfd wakes all its waiters before it returns, with interrupts off; one million watches of epoll
//! instances take some 100 ms. Nothing interrupts that, so it is measured, and a port that does it repeatedly is
//! stopped. A worker reads the clock once after each call. A write that was slow by that clock may have been preempted,
//! so it only makes its port a suspect. A suspect's next writes are measured by the CPU time of the worker's thread,
//! which does not pass while others have the core. It does pass while a hypervisor has the CPU. So a slow write is
//! repeated at once: waiters that stay make the repetition slow, too; a CPU that was taken away does not. If the
//! repetition is quick, little of the time counts: the first write alone wakes threads that wait in read(2).
//!
//! A write that takes 10 ms or more is measured at once, and twice repeated if that stays so: each further one would
//! cost all other ports as much. Three in a row are no chance, so the port is stopped then.
//!
//! A repetition adds one to the eventfd; its reader gets all as one event.
//!
//! Where the clock of CPU time moves in steps, as in user-mode Linux by 10 ms, a step within a quick write would look like a very slow
//! one. There no write is judged.

use std::collections::HashMap;
use std::sync::OnceLock;

use lasthop_module_api::PortId;

use crate::sys::thread_cpu_ns;

/// A write that takes longer is slow, in ns: some hundred times as long as one that wakes one thread.
pub(crate) const SLOW_NS: u64 = 250_000;
/// CPU time in ns of slow writes to one port's calls after which the port is stopped.
const SPENT_NS_MAX: u64 = 25_000_000;
/// Largest time in ns that one write counts for, and the time from which on it is very slow: two in a row may look so
/// by chance, three hardly.
pub(crate) const VERY_SLOW_NS: u64 = 10_000_000;
/// One part in this many counts of a slow write with a quick repetition. So a hypervisor that takes a fifth of the
/// time, always during such writes, is forgiven as quickly as it is charged.
const UNREPEATED_SHARE: u64 = 20;
/// One part in this many of the elapsed time is forgiven.
const FORGIVEN_SHARE: u64 = 100;
/// Quick writes in a row after which a port that owes nothing is no suspect any more.
const QUICK_WRITES: u32 = 64;

/// Readings of the clock that tell whether it moves in steps.
const READINGS: usize = 64;

/// Whether the clock of CPU time moves from one reading to the next, mostly.
fn is_fine(mut clock: impl FnMut() -> u64) -> bool {
    let mut last_ns = clock();
    let moved = (0..READINGS).filter(|_| {
        let now_ns = clock();
        std::mem::replace(&mut last_ns, now_ns) != now_ns
    });
    moved.count() > READINGS / 2
}

/// Whether that of this machine does.
fn has_fine_clock() -> bool {
    static IS_FINE: OnceLock<bool> = OnceLock::new();
    *IS_FINE.get_or_init(|| is_fine(thread_cpu_ns))
}

/// The ports that one worker suspects.
#[derive(Debug, Default)]
pub(crate) struct SlowCalls(HashMap<PortId, Suspect>);

#[derive(Debug)]
struct Suspect {
    spent_ns: u64,
    /// The time of the last entry.
    at_ns: u64,
    quick_writes: u32,
}

/// CPU time that a measured write took.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WriteTime {
    pub(crate) ns: u64,
    /// CPU time of its repetition, if it was slow.
    pub(crate) repeated_ns: Option<u64>,
    /// CPU time of a third one, if both were very slow.
    pub(crate) third_ns: Option<u64>,
}

impl WriteTime {
    /// Measures `write`, and repeats it if it is slow, twice if it is very slow. Without a fine clock it counts as quick.
    pub(crate) fn measure(mut write: impl FnMut()) -> Self {
        if !has_fine_clock() {
            write();
            return Self { ns: 0, repeated_ns: None, third_ns: None };
        }
        let mut time = || {
            let start_ns = thread_cpu_ns();
            write();
            thread_cpu_ns() - start_ns
        };
        let ns = time();
        let repeated_ns = (ns >= SLOW_NS).then(&mut time);
        let is_very_slow = repeated_ns.is_some_and(|repeated_ns| ns.min(repeated_ns) >= VERY_SLOW_NS);
        Self { ns, repeated_ns, third_ns: is_very_slow.then(time) }
    }

    /// CPU time of all writes.
    pub(crate) fn total_ns(self) -> u64 {
        self.ns + self.repeated_ns.unwrap_or(0) + self.third_ns.unwrap_or(0)
    }

    /// The part in ns that the front end caused.
    fn charged_ns(self) -> u64 {
        match self.repeated_ns {
            None => 0,
            Some(repeated_ns) if repeated_ns >= SLOW_NS => self.ns.min(VERY_SLOW_NS),
            Some(_) => self.ns / UNREPEATED_SHARE,
        }
    }
}

/// The speed of a measured write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WriteSpeed {
    /// Quick.
    Quick,
    /// Slow, and charged.
    Slow,
    /// Slow once too often.
    TooSlow,
    /// Very slow, three times in a row.
    VerySlow,
}

impl SlowCalls {
    /// Whether writes to the port's calls have to be measured.
    #[inline]
    pub(crate) fn is_suspect(&self, port: PortId) -> bool {
        !self.0.is_empty() && self.0.contains_key(&port)
    }

    /// Notes that a write to a call of `port` was slow, by a clock that runs while others have the core.
    pub(crate) fn suspect(&mut self, port: PortId, now_ns: u64) {
        self.0.entry(port).or_insert(Suspect { spent_ns: 0, at_ns: now_ns, quick_writes: 0 });
    }

    /// Adds the time of a write to a suspect's call.
    pub(crate) fn enter(&mut self, port: PortId, time: WriteTime, now_ns: u64) -> WriteSpeed {
        let Some(suspect) = self.0.get_mut(&port) else { return WriteSpeed::Quick };
        let forgiven_ns = now_ns.saturating_sub(suspect.at_ns) / FORGIVEN_SHARE;
        (suspect.spent_ns, suspect.at_ns) = (suspect.spent_ns.saturating_sub(forgiven_ns), now_ns);
        if time.repeated_ns.is_none() {
            suspect.quick_writes += 1;
            if suspect.spent_ns == 0 && suspect.quick_writes >= QUICK_WRITES {
                self.0.remove(&port);
            }
            return WriteSpeed::Quick;
        }
        suspect.quick_writes = 0;
        suspect.spent_ns += time.charged_ns();
        let speed = match suspect.spent_ns {
            _ if time.third_ns.is_some_and(|third_ns| third_ns >= VERY_SLOW_NS) => WriteSpeed::VerySlow,
            ..=SPENT_NS_MAX => return WriteSpeed::Slow,
            _ => WriteSpeed::TooSlow,
        };
        self.0.remove(&port);
        speed
    }

    /// Removes a port.
    pub(crate) fn forget(&mut self, port: PortId) {
        self.0.remove(&port);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;
    const PORT: PortId = PortId(1);
    const QUICK: WriteTime = WriteTime { ns: 5000, repeated_ns: None, third_ns: None };

    /// A write that is equally slow each time.
    fn slow(ns: u64) -> WriteTime {
        WriteTime { ns, repeated_ns: Some(ns), third_ns: None }
    }

    #[test]
    fn a_clock_that_moves_in_steps_is_not_fine() {
        let mut ns = 0;
        let mut stepping = |step_ns: u64| {
            ns += 24_000; // a system call in user-mode Linux
            ns / step_ns * step_ns
        };
        assert!(!is_fine(|| stepping(10 * MS)) && is_fine(|| stepping(1000)));
        assert!(has_fine_clock(), "that of usual kernels is");
    }

    #[test]
    fn three_very_slow_writes_in_a_row_are_too_much_at_once() {
        let mut calls = SlowCalls::default();
        for (third_ns, speed) in [(9 * MS, WriteSpeed::Slow), (10 * MS, WriteSpeed::VerySlow)] {
            calls.suspect(PORT, 0);
            assert_eq!(calls.enter(PORT, WriteTime { third_ns: Some(third_ns), ..slow(10 * MS) }, 0), speed);
        }
        assert!(!calls.is_suspect(PORT), "new descriptors are measured anew");
    }

    #[test]
    fn the_third_slow_write_is_too_much() {
        let mut calls = SlowCalls::default();
        assert_eq!(calls.enter(PORT, slow(100 * MS), 0), WriteSpeed::Quick, "nobody suspected it");
        calls.suspect(PORT, 0);
        assert!(calls.is_suspect(PORT) && !calls.is_suspect(PortId(2)));
        let judged = [100, 200, 300].map(|at_ms| calls.enter(PORT, slow(100 * MS), at_ms * MS));
        assert_eq!(judged, [WriteSpeed::Slow, WriteSpeed::Slow, WriteSpeed::TooSlow]);
    }

    #[test]
    fn slow_writes_that_are_rare_are_forgiven_and_many_are_not() {
        let (mut calls, mut now_ns) = (SlowCalls::default(), 0);
        calls.suspect(PORT, 0);
        for _ in 0..1000 {
            now_ns += 100 * MS;
            assert_eq!(calls.enter(PORT, slow(MS), now_ns), WriteSpeed::Slow);
        }
        let too_slow = (0..200).position(|_| {
            now_ns += 10 * MS;
            calls.enter(PORT, slow(MS), now_ns) == WriteSpeed::TooSlow
        });
        assert!(too_slow.is_some_and(|writes| (25..40).contains(&writes)), "{too_slow:?}");
    }

    #[test]
    fn a_port_whose_writes_were_preempted_is_no_suspect_for_long() {
        let mut calls = SlowCalls::default();
        calls.suspect(PORT, 0);
        for _ in 0..QUICK_WRITES {
            assert!(calls.is_suspect(PORT));
            assert_eq!(calls.enter(PORT, QUICK, 50 * MS), WriteSpeed::Quick);
        }
        assert!(!calls.is_suspect(PORT));
    }

    #[test]
    fn a_hypervisor_that_takes_the_cpu_away_does_not_stop_a_guest() {
        let (mut calls, mut now_ns) = (SlowCalls::default(), 0);
        calls.suspect(PORT, 0);
        let taken = WriteTime { ns: 20 * MS, repeated_ns: Some(5000), third_ns: None };
        for _ in 0..1000 {
            now_ns += 100 * MS;
            assert_eq!(calls.enter(PORT, taken, now_ns), WriteSpeed::Slow, "at {now_ns} ns");
        }
    }

    #[test]
    fn threads_that_are_woken_by_first_writes_only_are_too_much_in_the_end() {
        let (mut calls, mut now_ns) = (SlowCalls::default(), 0);
        calls.suspect(PORT, 0);
        let woken = WriteTime { ns: 100 * MS, repeated_ns: Some(5000), third_ns: None };
        let too_slow = (0..20).position(|_| {
            now_ns += 110 * MS;
            calls.enter(PORT, woken, now_ns) == WriteSpeed::TooSlow
        });
        assert!(too_slow.is_some_and(|writes| writes < 8), "{too_slow:?}");
    }

    #[test]
    fn only_slow_writes_are_repeated() {
        let mut writes = 0;
        let time = WriteTime::measure(|| writes += 1);
        let repetitions = [time.repeated_ns, time.third_ns].iter().flatten().count();
        assert_eq!(writes, 1 + repetitions, "{time:?}");
        writes = 0;
        let start_ns = thread_cpu_ns();
        let time = WriteTime::measure(|| {
            writes += 1;
            while writes == 1 && thread_cpu_ns() - start_ns < 2 * SLOW_NS {}
        });
        assert!(time.ns >= SLOW_NS && time.repeated_ns.is_some() && writes >= 2, "{time:?}, {writes} writes");
    }
}
