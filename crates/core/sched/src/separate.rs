//! Whether a worker leaves a thread that serves several: a second thread gains something only on a CPU that would be idle
//! (Hyper-Switch, 3.4).
//!
//! ```text
//!   load of the thread     no CPU is idle                 one is      two or more are     without a view
//!   above 90 %             held; 100 ms later: late       apart       apart               apart
//!   above 60 %             held                           apart       apart               apart
//!   above 45 %             together                       together    early               together
//!   else                   together                       together    together            together
//! ```
//!
//! Below 90 % the thread has time for all packets, and a second one would take its CPU from a guest or another process. Above, it
//! has none left for a burst, so its workers are held together for a bounded time only: the kernel divides CPUs that all are busy
//! more fairly than a thread that stays behind.

use crate::bounds::{HELD_MAX_NS, SATURATED_PERCENT};

/// Load of a shared thread, in percent, above which it gives a worker away: this leaves room for a burst.
const CROWDED_PERCENT: u64 = 60;
/// The same while several CPUs are idle. Workers return below 30 %, so none returns at once.
const CROWDED_BESIDE_IDLE_PERCENT: u64 = 45;

/// More idle CPUs change no decision: one is for the worker's thread, one is left for a guest that wakes up.
pub const IDLE_CPUS_MAX: u16 = 2;

/// A thread that serves several workers, at the end of a window over which loads are measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SharedThread {
    /// The load of all its workers together, in percent of its time.
    pub load_percent: u64,
    /// For how long it has been above [`SATURATED_PERCENT`] in each window, in ns; 0 for the first such window, and below.
    pub saturated_ns: u64,
}

/// Whether a worker leaves a shared thread, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Separation {
    /// None does: there is too little to do.
    Together,
    /// None does, since its own thread would have no idle CPU; without a view it would leave.
    Held,
    /// The busiest one does: there is much to do, and an idle CPU as far as the view shows.
    Apart,
    /// The busiest one does, earlier than without a view: several CPUs are idle.
    Early,
    /// The busiest one does although no CPU is idle, since the thread has been saturated for long.
    Late,
}

impl Separation {
    /// Whether a worker leaves.
    #[must_use]
    pub fn is_apart(self) -> bool {
        matches!(self, Self::Apart | Self::Early | Self::Late)
    }
}

/// Decides by the number of idle CPUs on which the workers' own threads may run; `None` without a view. A worker that would leave
/// has enough to do for a thread.
#[must_use]
pub fn separate(thread: SharedThread, idle_cpus: Option<u16>) -> Separation {
    let is_crowded = thread.load_percent > CROWDED_PERCENT;
    let is_held_long = thread.load_percent > SATURATED_PERCENT && thread.saturated_ns >= HELD_MAX_NS;
    match idle_cpus {
        Some(0) if is_held_long => Separation::Late,
        Some(0) if is_crowded => Separation::Held,
        _ if is_crowded => Separation::Apart,
        Some(IDLE_CPUS_MAX..) if thread.load_percent > CROWDED_BESIDE_IDLE_PERCENT => Separation::Early,
        _ => Separation::Together,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decided(load_percent: u64, idle_cpus: Option<u16>) -> Separation {
        separate(SharedThread { load_percent, saturated_ns: 0 }, idle_cpus)
    }

    #[test]
    fn without_a_view_the_load_alone_decides() {
        assert_eq!([0, 46, 60].map(|load| decided(load, None)), [Separation::Together; 3]);
        assert_eq!([61, 91, 100].map(|load| decided(load, None)), [Separation::Apart; 3]);
        let saturated = SharedThread { load_percent: 100, saturated_ns: u64::MAX };
        assert_eq!(separate(saturated, None), Separation::Apart);
    }

    #[test]
    fn a_worker_is_held_while_no_cpu_is_idle() {
        assert_eq!([61, 90, 100].map(|load| decided(load, Some(0))), [Separation::Held; 3]);
        assert_eq!([61, 90, 100].map(|load| decided(load, Some(1))), [Separation::Apart; 3]);
        assert_eq!(decided(60, Some(0)), Separation::Together);
    }

    #[test]
    fn a_saturated_thread_is_not_held_for_long() {
        let after =
            |load_percent, saturated_ns| separate(SharedThread { load_percent, saturated_ns }, Some(0));
        assert_eq!(after(91, HELD_MAX_NS - 1), Separation::Held);
        assert_eq!(after(91, HELD_MAX_NS), Separation::Late);
        assert_eq!(after(90, HELD_MAX_NS), Separation::Held, "it has time for its packets");
    }

    #[test]
    fn a_worker_leaves_early_while_several_cpus_are_idle() {
        assert_eq!([45, 46, 60].map(|load| decided(load, Some(1))), [Separation::Together; 3]);
        let beside_idle = [45, 46, 60, 61].map(|load| decided(load, Some(IDLE_CPUS_MAX)));
        let expected = [Separation::Together, Separation::Early, Separation::Early, Separation::Apart];
        assert_eq!(beside_idle, expected);
        assert!(Separation::Early.is_apart() && Separation::Late.is_apart());
        assert!(!Separation::Held.is_apart() && !Separation::Together.is_apart());
    }
}
