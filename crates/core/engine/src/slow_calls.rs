//! Guests whose calls take the kernel long.
//!
//! A write to an eventfd wakes all its waiters before it returns, with interrupts off: a million watches of epoll instances
//! are some 100 ms. Nothing interrupts that, so it is measured, and a port that does it again and again is stopped.
//! A worker reads the clock once after each call. A write that took long by that clock may have been preempted, so it only
//! makes its port a suspect; a suspect's next writes are measured by the CPU time of the worker's thread, which does not
//! pass while others have the core. It passes while a hypervisor has the CPU. So a slow write is repeated at once: waiters that stay
//! make the repetition slow too; a CPU that was taken away does not. If the repetition is quick, little of the time counts: threads
//! that wait in read(2) are woken by the first write only.
//!
//! The repetition adds one to the eventfd, which its reader takes as one event with the first.

use std::collections::HashMap;

use lasthop_module_api::PortId;

use crate::sys::thread_cpu_ns;

/// A write that takes longer is slow, in ns: some hundred times as long as one that wakes one thread.
pub(crate) const SLOW_NS: u64 = 250_000;
/// CPU time in ns that slow writes to one port's calls may take before the port is stopped.
const SPENT_NS_MAX: u64 = 25_000_000;
/// One write counts for that at most, in ns: two in a row may look slow by chance, hardly three times.
const WRITE_NS_MAX: u64 = 10_000_000;
/// Of a slow write with a quick repetition, one part of this many counts: a hypervisor that takes a fifth of the time, all of it during
/// such writes, is forgiven as quickly as it is charged.
const UNREPEATED_SHARE: u64 = 20;
/// Spent time is forgiven at one part of this many of the time that passes.
const FORGIVEN_SHARE: u64 = 100;
/// Measured writes in a row that are not slow, after which a port that owes nothing is no suspect any more.
const QUICK_WRITES: u32 = 64;

/// Ports that are suspects, as one worker sees them.
#[derive(Debug, Default)]
pub(crate) struct SlowCalls(HashMap<PortId, Suspect>);

#[derive(Debug)]
struct Suspect {
    spent_ns: u64,
    /// As of when.
    at_ns: u64,
    quick_writes: u32,
}

/// CPU time that a measured write took.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WriteTime {
    pub(crate) ns: u64,
    /// That of its repetition, if it was slow.
    pub(crate) repeated_ns: Option<u64>,
}

impl WriteTime {
    /// Measures `write`, which is repeated if it is slow.
    pub(crate) fn measure(mut write: impl FnMut()) -> Self {
        let mut time = || {
            let start_ns = thread_cpu_ns();
            write();
            thread_cpu_ns() - start_ns
        };
        let ns = time();
        Self { ns, repeated_ns: (ns >= SLOW_NS).then(time) }
    }

    /// CPU time of both writes.
    pub(crate) fn total_ns(self) -> u64 {
        self.ns + self.repeated_ns.unwrap_or(0)
    }

    /// The part that is the doing of the front end, in ns.
    fn charged_ns(self) -> u64 {
        match self.repeated_ns {
            None => 0,
            Some(repeated_ns) if repeated_ns >= SLOW_NS => self.ns.min(WRITE_NS_MAX),
            Some(_) => self.ns / UNREPEATED_SHARE,
        }
    }
}

/// The speed of a measured write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WriteSpeed {
    /// Quick.
    Quick,
    /// Slow, and to be charged.
    Slow,
    /// Slow once too often.
    TooSlow,
}

impl SlowCalls {
    /// Whether writes to the port's calls have to be measured.
    #[inline]
    pub(crate) fn is_suspect(&self, port: PortId) -> bool {
        !self.0.is_empty() && self.0.contains_key(&port)
    }

    /// A write to a call of `port` took long, by a clock that does not stop while others have the core.
    pub(crate) fn suspect(&mut self, port: PortId, now_ns: u64) {
        self.0.entry(port).or_insert(Suspect { spent_ns: 0, at_ns: now_ns, quick_writes: 0 });
    }

    /// A write to a call of a suspect took `time`.
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
        if suspect.spent_ns <= SPENT_NS_MAX {
            return WriteSpeed::Slow;
        }
        self.0.remove(&port);
        WriteSpeed::TooSlow
    }

    /// The port is removed.
    pub(crate) fn forget(&mut self, port: PortId) {
        self.0.remove(&port);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;
    const PORT: PortId = PortId(1);
    const QUICK: WriteTime = WriteTime { ns: 5000, repeated_ns: None };

    /// A write that is as slow each time.
    fn slow(ns: u64) -> WriteTime {
        WriteTime { ns, repeated_ns: Some(ns) }
    }

    #[test]
    fn the_third_very_slow_write_is_too_much() {
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
        let taken = WriteTime { ns: 20 * MS, repeated_ns: Some(5000) };
        for _ in 0..1000 {
            now_ns += 100 * MS;
            assert_eq!(calls.enter(PORT, taken, now_ns), WriteSpeed::Slow, "at {now_ns} ns");
        }
    }

    #[test]
    fn threads_that_are_woken_by_first_writes_only_are_too_much_in_the_end() {
        let (mut calls, mut now_ns) = (SlowCalls::default(), 0);
        calls.suspect(PORT, 0);
        let woken = WriteTime { ns: 100 * MS, repeated_ns: Some(5000) };
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
        assert_eq!(writes, 1 + u32::from(time.repeated_ns.is_some()), "{time:?}");
        writes = 0;
        let start_ns = thread_cpu_ns();
        let time = WriteTime::measure(|| {
            writes += 1;
            while writes == 1 && thread_cpu_ns() - start_ns < 2 * SLOW_NS {}
        });
        assert!(time.ns >= SLOW_NS && time.repeated_ns.is_some() && writes == 2, "{time:?}, {writes} writes");
    }
}
