//! CPU time of processes and their threads, from /proc.

use serde::Serialize;

use lasthop_api::profile::ProfileReport;
use lasthop_runtime::procfs::{self, CpuTimes};

use crate::counters::{Counts, ThreadCounters};

/// Largest number of threads of a process that are read: more than a guest with a hundred vCPUs has.
const THREADS_MAX: usize = 256;

/// All results of a profile.
#[derive(Debug, Serialize)]
pub(crate) struct ProfileAnswer {
    #[serde(flatten)]
    pub(crate) stages: ProfileReport,
    pub(crate) processes: Vec<ProcessUsage>,
    /// Why instructions and cache misses are not counted, if they are not.
    pub(crate) uncounted: Option<String>,
}

/// A process of the switch, or one beside it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct WatchedProcess {
    /// Its role, or the vnic of a guest.
    pub(crate) name: String,
    pub(crate) pid: i32,
    /// Whether instructions and cache misses of its threads are counted.
    pub(crate) is_counted: bool,
}

/// CPU time of a process in the interval, in seconds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct ProcessUsage {
    pub(crate) process: String,
    pub(crate) pid: i32,
    pub(crate) user_s: f64,
    pub(crate) kernel_s: f64,
    /// Null if they are not counted.
    pub(crate) instructions: Option<u64>,
    pub(crate) cache_misses: Option<u64>,
    pub(crate) threads: Vec<ThreadTimes>,
}

/// Same for one of its threads.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct ThreadTimes {
    pub(crate) thread: String,
    pub(crate) id: i32,
    pub(crate) user_s: f64,
    pub(crate) kernel_s: f64,
}

/// Times and counters of all threads of some processes at one time.
#[derive(Debug, Default)]
pub(crate) struct UsageLook {
    processes: Vec<ProcessLook>,
    /// Why nothing is counted.
    pub(crate) uncounted: Option<String>,
}

#[derive(Debug)]
struct ProcessLook {
    process: WatchedProcess,
    threads: Vec<(i32, CpuTimes)>,
    counters: Vec<ThreadCounters>,
}

impl UsageLook {
    /// Reads them now.
    pub(crate) fn now(processes: &[WatchedProcess]) -> Self {
        let mut look = Self::default();
        for process in processes {
            let times = |thread| Some((thread, procfs::cpu_times(process.pid, thread)?));
            let threads: Vec<(i32, CpuTimes)> =
                procfs::threads(process.pid).take(THREADS_MAX).filter_map(times).collect();
            let mut counters = Vec::new();
            if process.is_counted && look.uncounted.is_none() {
                let begun = threads.iter().map(|(thread, _)| ThreadCounters::begin(*thread));
                match begun.collect::<Result<Vec<_>, _>>() {
                    Ok(begun) => counters = begun,
                    Err(why) => look.uncounted = Some(why),
                }
            }
            look.processes.push(ProcessLook { process: process.clone(), threads, counters });
        }
        look
    }

    /// The differences since then. Threads that came or went meanwhile are omitted.
    pub(crate) fn since(&self) -> Vec<ProcessUsage> {
        self.processes.iter().map(ProcessLook::since).filter(|usage| !usage.threads.is_empty()).collect()
    }
}

impl ProcessLook {
    fn since(&self) -> ProcessUsage {
        let pid = self.process.pid;
        let passed = |(thread, before): &(i32, CpuTimes)| {
            let now = procfs::cpu_times(pid, *thread)?;
            let name = procfs::text(pid, &format!("task/{thread}/comm"))?;
            Some(ThreadTimes {
                thread: name.trim_end().to_owned(),
                id: *thread,
                user_s: now.user_s - before.user_s,
                kernel_s: now.kernel_s - before.kernel_s,
            })
        };
        let threads: Vec<ThreadTimes> = self.threads.iter().filter_map(passed).collect();
        let counts: Vec<Counts> = self.counters.iter().filter_map(ThreadCounters::read).collect();
        let sum = |count: fn(&Counts) -> u64| {
            (!self.counters.is_empty()).then(|| counts.iter().map(count).sum::<u64>())
        };
        ProcessUsage {
            process: self.process.name.clone(),
            pid,
            user_s: threads.iter().map(|thread| thread.user_s).sum(),
            kernel_s: threads.iter().map(|thread| thread.kernel_s).sum(),
            instructions: sum(|counts| counts.instructions),
            cache_misses: sum(|counts| counts.cache_misses),
            threads,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_of_a_process_is_seen_and_one_that_is_no_more_is_left_out() {
        let process = |pid| WatchedProcess { name: "own".to_owned(), pid, is_counted: false };
        let own = std::process::id() as i32;
        let look = UsageLook::now(&[process(own), process(0)]);
        let busy = || procfs::cpu_times(own, rustix::thread::gettid().as_raw_nonzero().get());
        let before = busy().expect("there").user_s;
        while busy().expect("there").user_s < before + 0.03 {}
        let [usage] = &look.since()[..] else { panic!("one process") };
        assert!(usage.user_s >= 0.02 && usage.user_s < 60.0, "{usage:?}");
        assert!(usage.threads.iter().any(|thread| thread.user_s > 0.0 && !thread.thread.is_empty()));
    }
}
