//! Runs the processes of a handover ahead of others while guests wait for it.
//!
//! A handover is a few milliseconds of work in three processes, one after the other. On busy CPUs each of these steps
//! waits for its turn, and guests wait mostly for that. So all threads involved request short slices, which come soon
//! (EEVDF, since Linux 6.12; before that this has no effect). They get no larger share of a CPU, so no process starves.

use std::time::{Duration, Instant};

use libc::sched_attr;

use crate::sys;
use lasthop_runtime::procfs;

/// The shortest slice that the kernel grants, in ns.
const SLICE_NS: u64 = 100_000;
/// The kernel's default for every thread.
const SLICE_NS_DEFAULT: u64 = 0;
/// The calling thread, for these system calls.
const THIS_THREAD: i32 = 0;
/// A process that has not finished its part by then gets ordinary slices again.
const LONGEST: Duration = Duration::from_secs(1);

/// Processes with short slices; dropping it restores ordinary ones.
#[derive(Debug)]
pub struct SliceBoost {
    until: Instant,
    processes: Vec<u32>,
}

impl SliceBoost {
    /// Begins for this process and others, each with all its threads.
    pub fn begin(others: impl IntoIterator<Item = u32>) -> Self {
        let processes: Vec<u32> = others.into_iter().chain([std::process::id()]).collect();
        processes.iter().for_each(|process| set_slices(*process, SLICE_NS));
        Self { until: Instant::now() + LONGEST, processes }
    }

    /// When it ends at the latest.
    pub fn until(&self) -> Instant {
        self.until
    }
}

impl Drop for SliceBoost {
    fn drop(&mut self) {
        self.processes.iter().for_each(|process| set_slices(*process, SLICE_NS_DEFAULT));
        // Once more, for threads that others started before they had ordinary slices.
        self.processes.iter().for_each(|process| set_slices(*process, SLICE_NS_DEFAULT));
    }
}

/// Does `work`, for example starts a process, with ordinary slices: children inherit those of their thread for good.
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

/// Sets the slices of all threads of a process.
fn set_slices(process: u32, slice_ns: u64) {
    procfs::threads(process).for_each(|thread| set_slice(thread, slice_ns));
}

fn set_slice(thread: i32, slice_ns: u64) {
    if let Some(attributes) = sys::scheduling(thread).filter(is_ordinary) {
        // Without permission it waits like other threads.
        sys::set_scheduling(thread, &sched_attr { sched_runtime: slice_ns, ..attributes });
    }
}

/// Whether a thread has the ordinary policy; one with another policy keeps it.
fn is_ordinary(attributes: &sched_attr) -> bool {
    attributes.sched_policy == libc::SCHED_OTHER.cast_unsigned()
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command};

    use super::*;

    /// A process that does nothing, and ends with the test, even with a failed one.
    struct Sleeper(Child);

    impl Sleeper {
        fn start() -> Self {
            Self(Command::new("sleep").arg("1000").spawn().expect("a process"))
        }
    }

    impl Drop for Sleeper {
        fn drop(&mut self) {
            // This only fails for a process that has ended.
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    #[test]
    fn slices_are_short_during_a_boost_and_as_before_after_it() {
        let sleeper = Sleeper::start();
        let process = sleeper.0.id();
        let scheduling = || sys::scheduling(process.cast_signed()).expect("a thread");
        let (slice_ns, has_slices) = (|| scheduling().sched_runtime, is_ordinary(&scheduling()));
        let before = slice_ns();
        let slice_boost = SliceBoost { until: Instant::now(), processes: vec![process] };
        set_slices(process, SLICE_NS);
        // Kernels without such slices return 0. Another policy stays, such as that of tests at idle priority.
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
