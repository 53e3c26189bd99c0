//! The first thread's looks for idle CPUs, by which its workers get threads of their own (policy gathering).
//!
//! ```text
//!   window of a load, 4 ms   ├── look ── look ── look ── look ──┤ decision: by the least number of idle CPUs
//! ```
//!
//! A CPU is often idle for some microseconds between two turns of a guest. A single look would find such moments sooner or later, so
//! all looks of a window count.

use lasthop_sched::SharedThread;
use lasthop_sched::bounds::SATURATED_PERCENT;

/// The time between two looks. Each reads a cache line for each CPU that is busy.
const LOOK_NS: u64 = 1_000_000;

/// The idle CPUs that were seen in this window, and for how long the thread has been saturated.
#[derive(Debug)]
pub(crate) struct CrowdWatch {
    /// Those that the workers' own threads may have, as the switch started. A later change affects the policy only.
    cpus: Vec<u16>,
    looked_ns: u64,
    /// The least number of idle ones; `None` while that is not known.
    idle_least: Option<u16>,
    /// The end of the first window in which it was.
    saturated_since_ns: Option<u64>,
}

impl CrowdWatch {
    /// For threads that may run on these CPUs; none of them: on all that the calling thread may have.
    pub(crate) fn new(cpus: &[usize]) -> Self {
        let all = || {
            let set = rustix::thread::sched_getaffinity(None).unwrap_or_default();
            (0..rustix::thread::CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect()
        };
        let cpus = if cpus.is_empty() { all() } else { cpus.to_vec() };
        let cpus = cpus.into_iter().filter_map(|cpu| u16::try_from(cpu).ok()).collect();
        Self { cpus, looked_ns: 0, idle_least: None, saturated_since_ns: None }
    }

    /// Whether to look again.
    pub(crate) fn is_due(&self, now: u64) -> bool {
        now.saturating_sub(self.looked_ns) >= LOOK_NS
    }

    /// Notes the number of idle CPUs among those that `idle_cpus` gets; `None` without a view, or while the policy is off.
    pub(crate) fn look(&mut self, now: u64, idle_cpus: impl FnOnce(&[u16]) -> Option<u16>) {
        let found = idle_cpus(&self.cpus);
        let least = |found: u16| self.idle_least.map_or(found, |least| least.min(found));
        (self.looked_ns, self.idle_least) = (now, found.map(least));
    }

    /// Ends a window: the state of the thread, whose workers have this load together, and the least number of idle CPUs.
    pub(crate) fn end_window(&mut self, load_percent: u64, now: u64) -> (SharedThread, Option<u16>) {
        let is_saturated = load_percent > SATURATED_PERCENT;
        self.saturated_since_ns = self.saturated_since_ns.or(Some(now)).filter(|_| is_saturated);
        let saturated_ns = now.saturating_sub(self.saturated_since_ns.unwrap_or(now));
        (SharedThread { load_percent, saturated_ns }, self.idle_least.take())
    }

    /// Notes that a worker leaves: the others are held anew.
    pub(crate) fn note_leave(&mut self) {
        self.saturated_since_ns = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn the_least_number_of_idle_cpus_of_a_window_counts() {
        let mut watch = CrowdWatch::new(&[2, 3, usize::MAX]);
        assert!(watch.is_due(LOOK_NS));
        for (at_ms, idle) in [(5, 2), (6, 0), (7, 1)] {
            watch.look(at_ms * MS, |cpus| {
                assert_eq!(cpus, [2, 3]);
                Some(idle)
            });
            assert!(!watch.is_due(at_ms * MS + LOOK_NS - 1) && watch.is_due(at_ms * MS + LOOK_NS));
        }
        assert_eq!(watch.end_window(50, 8 * MS).1, Some(0));
        watch.look(9 * MS, |_| Some(2));
        assert_eq!(watch.end_window(50, 12 * MS).1, Some(2), "another window");
        watch.look(13 * MS, |_| Some(1));
        watch.look(14 * MS, |_| None);
        assert_eq!(watch.end_window(50, 16 * MS).1, None, "the view is gone");
    }

    #[test]
    fn a_thread_is_saturated_from_the_first_such_window_on() {
        let mut watch = CrowdWatch::new(&[0]);
        let mut saturated_ns = |load, at_ms| watch.end_window(load, at_ms * MS).0.saturated_ns;
        let times = [(91, 4), (100, 8), (95, 12), (90, 16), (91, 20), (91, 24)];
        assert_eq!(times.map(|(load, at_ms)| saturated_ns(load, at_ms) / MS), [0, 4, 8, 0, 0, 4]);
        watch.note_leave();
        assert_eq!(watch.end_window(100, 28 * MS).0, SharedThread { load_percent: 100, saturated_ns: 0 });
    }

    #[test]
    fn without_a_list_all_cpus_of_the_process_count() {
        assert!(!CrowdWatch::new(&[]).cpus.is_empty());
    }
}
