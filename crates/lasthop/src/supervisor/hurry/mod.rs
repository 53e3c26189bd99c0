//! Who hands guests over, and who takes them, goes ahead of others for as long as guests wait for it.
//!
//! A hand-over is a few milliseconds of work in three processes, one after the other. Where CPUs are scarce, each of these steps waits
//! for its turn, and that is most of the time that guests wait. So all threads involved ask for short turns, which come soon
//! (EEVDF, since Linux 6.12; before that nothing changes). They get no more of a CPU than others, so nobody goes without.

mod sys;

use std::time::{Duration, Instant};

use libc::sched_attr;

use crate::procfs;

/// The shortest turn that the kernel grants, in ns.
const TURN_NS: u64 = 100_000;
/// Whatever the kernel grants everybody.
const TURN_NS_DEFAULT: u64 = 0;
/// As the system calls name the thread that makes them.
const THIS_THREAD: i32 = 0;
/// Who has not ended his part by then goes on like everybody else.
const LONGEST: Duration = Duration::from_secs(1);

/// Processes in a hurry; dropping it ends that.
pub(super) struct Hurry {
    until: Instant,
    processes: Vec<u32>,
}

impl Hurry {
    /// Of this process and others, each with all its threads.
    pub(super) fn begin(others: impl IntoIterator<Item = u32>) -> Self {
        let processes: Vec<u32> = others.into_iter().chain([std::process::id()]).collect();
        processes.iter().for_each(|process| set_turns(*process, TURN_NS));
        Self { until: Instant::now() + LONGEST, processes }
    }

    /// When it is to end at the latest.
    pub(super) fn until(&self) -> Instant {
        self.until
    }
}

impl Drop for Hurry {
    fn drop(&mut self) {
        self.processes.iter().for_each(|process| set_turns(*process, TURN_NS_DEFAULT));
        // Once more, for threads that others started before they were at their ordinary turns.
        self.processes.iter().for_each(|process| set_turns(*process, TURN_NS_DEFAULT));
    }
}

/// Does `work`, such as to start a process, with ordinary turns: children have those of the thread that starts them, for good.
pub(super) fn unhurried<T>(work: impl FnOnce() -> T) -> T {
    let is_hurried = |how: &sched_attr| how.sched_runtime == TURN_NS;
    if !sys::scheduling(THIS_THREAD).as_ref().is_some_and(is_hurried) {
        return work();
    }
    set_turn(THIS_THREAD, TURN_NS_DEFAULT);
    let result = work();
    set_turn(THIS_THREAD, TURN_NS);
    result
}

/// Gives all threads of a process turns of `turn_ns`.
fn set_turns(process: u32, turn_ns: u64) {
    procfs::threads(process).for_each(|thread| set_turn(thread, turn_ns));
}

fn set_turn(thread: i32, turn_ns: u64) {
    if let Some(attributes) = sys::scheduling(thread).filter(is_ordinary) {
        // Where that is refused it waits as others do.
        sys::set_scheduling(thread, &sched_attr { sched_runtime: turn_ns, ..attributes });
    }
}

/// Whom an operator gave another policy keeps it.
fn is_ordinary(attributes: &sched_attr) -> bool {
    attributes.sched_policy == libc::SCHED_OTHER.cast_unsigned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::supervisor::sleeper::Sleeper;

    #[test]
    fn turns_are_short_in_a_hurry_and_as_before_after_it() {
        let sleeper = Sleeper::start();
        let process = sleeper.0.id();
        let turn_ns = || sys::scheduling(process.cast_signed()).map(|how| how.sched_runtime);
        let before = turn_ns().expect("a thread");
        let hurry = Hurry { until: Instant::now(), processes: vec![process] };
        set_turns(process, TURN_NS);
        // A kernel that has no such turns tells 0.
        assert_eq!(turn_ns(), Some(if before == 0 { 0 } else { TURN_NS }));
        drop(hurry);
        assert_eq!(turn_ns(), Some(before));
    }

    #[test]
    fn who_is_started_by_a_thread_in_a_hurry_is_in_none() {
        let turn_ns = || sys::scheduling(THIS_THREAD).map(|how| how.sched_runtime).expect("a thread");
        let before = turn_ns();
        set_turn(THIS_THREAD, TURN_NS);
        let hurried = turn_ns();
        let start = || std::thread::spawn(turn_ns).join().expect("its turns");
        assert_eq!(start(), hurried, "as its parent");
        assert_eq!(unhurried(start), before);
        assert_eq!(turn_ns(), hurried, "and goes on so");
        set_turn(THIS_THREAD, TURN_NS_DEFAULT);
    }
}
