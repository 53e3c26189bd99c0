//! Who hands guests over, and who takes them, goes ahead of others for as long as guests wait for it.
//!
//! A hand-over is a few milliseconds of work in three processes, one after the other. Where CPUs are scarce, each of these steps waits
//! for its turn, and that is most of the time that guests wait: so all threads involved ask for short turns, which come
//! soon (EEVDF, since Linux 6.12), and for precedence, where the supervisor may give it (CAP_SYS_NICE).

mod sys;

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use libc::sched_attr;

/// The shortest turn that the kernel grants, in ns.
const TURN_NS: u64 = 100_000;
const NICE: i32 = -20;
/// Who has not ended his part by then goes on like everybody else.
const LONGEST: Duration = Duration::from_secs(1);

/// Processes in a hurry; dropping it ends that.
pub(super) struct Hurry {
    until: Instant,
    /// By process and thread: how it is scheduled otherwise.
    before: BTreeMap<u32, BTreeMap<i32, sched_attr>>,
}

impl Hurry {
    /// Of this process, and of those that it starts from now on.
    pub(super) fn begin() -> Self {
        let mut hurry = Self { until: Instant::now() + LONGEST, before: BTreeMap::new() };
        hurry.join(std::process::id());
        hurry
    }

    /// When it is to end at the latest.
    pub(super) fn until(&self) -> Instant {
        self.until
    }

    /// Of another process, too, with all its threads.
    pub(super) fn join(&mut self, process: u32) {
        let ordinary = |thread| sys::scheduling(thread).filter(is_ordinary);
        let before: BTreeMap<i32, sched_attr> =
            threads(process).into_iter().filter_map(|thread| Some((thread, ordinary(thread)?))).collect();
        for (thread, attributes) in &before {
            let asked = sched_attr { sched_runtime: TURN_NS, ..*attributes };
            if !sys::set_scheduling(*thread, &sched_attr { sched_nice: NICE, ..asked }) {
                sys::set_scheduling(*thread, &asked);
            }
        }
        self.before.insert(process, before);
    }

    /// Of a process that was started since: it is in a hurry by birth.
    pub(super) fn join_child(&mut self, process: u32) {
        let own = self.before.get(&std::process::id()).and_then(|threads| threads.values().next()).copied();
        let main = own.map(|attributes| (process.cast_signed(), attributes));
        self.before.insert(process, main.into_iter().collect());
    }
}

impl Drop for Hurry {
    fn drop(&mut self) {
        for (process, before) in &self.before {
            let of_main = before.get(&process.cast_signed());
            for thread in threads(*process) {
                // Those that were started meanwhile are like the one that started them.
                if let Some(attributes) = before.get(&thread).or(of_main) {
                    sys::set_scheduling(thread, &sched_attr { sched_runtime: 0, ..*attributes });
                }
            }
        }
    }
}

/// Whom an operator gave another policy keeps it.
fn is_ordinary(attributes: &sched_attr) -> bool {
    attributes.sched_policy == libc::SCHED_OTHER.cast_unsigned()
}

/// The threads of a process by their numbers; none if it is no more.
fn threads(process: u32) -> Vec<i32> {
    let tasks = Path::new("/proc").join(process.to_string()).join("task");
    let names = std::fs::read_dir(tasks).into_iter().flatten().flatten();
    names.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hurry_ends_for_all_threads() {
        // In a process of its own, of which no other test takes part.
        let mut child = std::process::Command::new("sleep").arg("60").spawn().expect("a process");
        let of =
            |process: u32| sys::scheduling(process.cast_signed()).map(|a| (a.sched_nice, a.sched_runtime));
        let before = of(child.id());
        let mut hurry = Hurry { until: Instant::now(), before: BTreeMap::new() };
        hurry.join(child.id());
        assert_ne!(of(child.id()), before);
        drop(hurry);
        assert_eq!(of(child.id()), before);
        child.kill().and_then(|()| child.wait()).expect("its end");
    }
}
