//! The processes that hand guests over, or take them, run ahead of others for as long as guests wait for it.
//!
//! A hand-over is a few milliseconds of work in three processes, one after the other. Where CPUs are scarce, each of these steps waits
//! for its turn, and that is most of the time that guests wait. So all threads involved ask for short slices, which come soon
//! (EEVDF, since Linux 6.12; before that nothing changes). They get no more of a CPU than others, so that no process starves.

mod sys;

use std::time::{Duration, Instant};

use libc::sched_attr;

use lasthop_runtime::procfs;

/// The shortest slice that the kernel grants, in ns.
const SLICE_NS: u64 = 100_000;
/// The kernel's default for every thread.
const SLICE_NS_DEFAULT: u64 = 0;
/// As the system calls name the thread that makes them.
const THIS_THREAD: i32 = 0;
/// A process that has not ended its part by then runs as all others do.
const LONGEST: Duration = Duration::from_secs(1);

/// Processes with short slices; dropping it ends the boost.
#[derive(Debug)]
pub struct SliceBoost {
    until: Instant,
    processes: Vec<u32>,
}

impl SliceBoost {
    /// Of this process and others, each with all its threads.
    pub fn begin(others: impl IntoIterator<Item = u32>) -> Self {
        let processes: Vec<u32> = others.into_iter().chain([std::process::id()]).collect();
        processes.iter().for_each(|process| set_slices(*process, SLICE_NS));
        Self { until: Instant::now() + LONGEST, processes }
    }

    /// When it is to end at the latest.
    pub fn until(&self) -> Instant {
        self.until
    }
}

impl Drop for SliceBoost {
    fn drop(&mut self) {
        self.processes.iter().for_each(|process| set_slices(*process, SLICE_NS_DEFAULT));
        // Once more, for threads that others started before they were at their ordinary slices.
        self.processes.iter().for_each(|process| set_slices(*process, SLICE_NS_DEFAULT));
    }
}

/// Does `work`, such as to start a process, with ordinary slices: children have those of the thread that starts them, for good.
pub(crate) fn without_boost<T>(work: impl FnOnce() -> T) -> T {
    let is_boosted = |how: &sched_attr| how.sched_runtime == SLICE_NS;
    if !sys::scheduling(THIS_THREAD).as_ref().is_some_and(is_boosted) {
        return work();
    }
    set_slice(THIS_THREAD, SLICE_NS_DEFAULT);
    let result = work();
    set_slice(THIS_THREAD, SLICE_NS);
    result
}

/// Gives all threads of a process slices of `slice_ns`.
fn set_slices(process: u32, slice_ns: u64) {
    procfs::threads(process).for_each(|thread| set_slice(thread, slice_ns));
}

fn set_slice(thread: i32, slice_ns: u64) {
    if let Some(attributes) = sys::scheduling(thread).filter(is_ordinary) {
        // Where that is refused it waits as others do.
        sys::set_scheduling(thread, &sched_attr { sched_runtime: slice_ns, ..attributes });
    }
}

/// A thread that an operator gave another policy keeps it.
fn is_ordinary(attributes: &sched_attr) -> bool {
    attributes.sched_policy == libc::SCHED_OTHER.cast_unsigned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sleeper::Sleeper;

    #[test]
    fn slices_are_short_during_a_boost_and_as_before_after_it() {
        let sleeper = Sleeper::start();
        let process = sleeper.0.id();
        let scheduling = || sys::scheduling(process.cast_signed()).expect("a thread");
        let (slice_ns, has_slices) = (|| scheduling().sched_runtime, is_ordinary(&scheduling()));
        let before = slice_ns();
        let slice_boost = SliceBoost { until: Instant::now(), processes: vec![process] };
        set_slices(process, SLICE_NS);
        // A kernel that has no such slices tells 0. Another policy stays, such as that of tests at idle priority.
        assert_eq!(slice_ns(), if before == 0 || !has_slices { before } else { SLICE_NS });
        drop(slice_boost);
        assert_eq!(slice_ns(), before);
    }

    #[test]
    fn a_process_started_by_a_boosted_thread_has_no_boost() {
        let slice_ns = || sys::scheduling(THIS_THREAD).map(|how| how.sched_runtime).expect("a thread");
        let before = slice_ns();
        set_slice(THIS_THREAD, SLICE_NS);
        let boosted = slice_ns();
        let start = || std::thread::spawn(slice_ns).join().expect("its slices");
        assert_eq!(start(), boosted, "as its parent");
        assert_eq!(without_boost(start), before);
        assert_eq!(slice_ns(), boosted, "and goes on so");
        set_slice(THIS_THREAD, SLICE_NS_DEFAULT);
    }
}
