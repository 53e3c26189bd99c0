//! The CPU time of a back end's processes, and freezing them.

use std::fs;
use std::path::Path;

use rustix::process::{Pid, Signal, kill_process};

use crate::MemoryUse;

/// A process and all its descendants, of any process group.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ProcessTree(pub(crate) Pid);

/// The CPU time of a tree's threads since they were started.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Usage {
    pub(crate) cpu_seconds: f64,
    /// The time for which they were runnable without a CPU.
    pub(crate) waited_seconds: f64,
    /// How often a thread gave up the CPU voluntarily.
    pub(crate) sleeps: u64,
}

impl ProcessTree {
    /// The current processes, parents first.
    pub(crate) fn pids(self) -> Vec<Pid> {
        let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
        let numbers = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        let parents: Vec<(i32, i32)> = numbers.filter_map(|pid| Some((pid, parent_of(pid)?))).collect();
        let mut members: Vec<i32> =
            parents.iter().map(|(pid, _)| *pid).filter(|pid| *pid == self.0.as_raw_pid()).collect();
        let mut at = 0;
        while let Some(parent) = members.get(at).copied() {
            members.extend(parents.iter().filter(|(_, of)| *of == parent).map(|(pid, _)| pid));
            at += 1;
        }
        members.into_iter().filter_map(Pid::from_raw).collect()
    }

    /// The CPU time of all threads together. Threads that have ended are missing.
    pub(crate) fn usage(self) -> Usage {
        let threads = self.pids().into_iter().flat_map(|pid| threads_of(pid.as_raw_pid()));
        threads.fold(Usage::default(), |sum, thread| Usage {
            cpu_seconds: sum.cpu_seconds + thread.cpu_seconds,
            waited_seconds: sum.waited_seconds + thread.waited_seconds,
            sleeps: sum.sleeps + thread.sleeps,
        })
    }

    /// Memory of all processes together.
    pub(crate) fn memory(self) -> MemoryUse {
        self.pids().into_iter().fold(MemoryUse::default(), |sum, pid| {
            let status = fs::read_to_string(format!("/proc/{}/status", pid.as_raw_pid())).unwrap_or_default();
            MemoryUse {
                rss_anon_kb: sum.rss_anon_kb + field(&status, "RssAnon:"),
                rss_file_kb: sum.rss_file_kb + field(&status, "RssFile:"),
                rss_shmem_kb: sum.rss_shmem_kb + field(&status, "RssShmem:"),
                vm_pte_kb: sum.vm_pte_kb + field(&status, "VmPTE:"),
                huge_kb: sum.huge_kb + field(&status, "HugetlbPages:"),
            }
        })
    }

    /// Sends a signal to all processes; those that have ended are ignored.
    pub(crate) fn signal(self, signal: Signal) {
        for pid in self.pids() {
            let _ = kill_process(pid, signal);
        }
    }
}

/// Field 4 of /proc/PID/stat, counted from the end of the name, which may contain any character.
fn parent_of(pid: i32) -> Option<i32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
}

/// The usage of each thread.
fn threads_of(pid: i32) -> Vec<Usage> {
    let entries = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    entries.filter_map(|entry| thread(&entry.path())).collect()
}

fn thread(task: &Path) -> Option<Usage> {
    let schedstat = fs::read_to_string(task.join("schedstat")).ok()?;
    let status = fs::read_to_string(task.join("status")).ok()?;
    let mut times_ns = schedstat.split_whitespace().filter_map(|word| word.parse::<u64>().ok());
    let mut seconds = || Some(times_ns.next()? as f64 / 1e9);
    Some(Usage {
        cpu_seconds: seconds()?,
        waited_seconds: seconds()?,
        sleeps: field(&status, "voluntary_ctxt_switches:"),
    })
}

/// The number behind `name` in a file of lines; 0 if there is none.
fn field(text: &str, name: &str) -> u64 {
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::process::{Command, Stdio};

    #[test]
    fn a_tree_is_seen_and_ended() {
        let mut command = Command::new("sh");
        command.args(["-c", "setsid sleep 60 & echo on; wait"]).stdout(Stdio::piped());
        let mut child = command.spawn().expect("a shell");
        let mut line = [0; 3];
        child.stdout.as_mut().expect("piped").read_exact(&mut line).expect("a line");
        let tree = ProcessTree(Pid::from_child(&child));
        let pids = tree.pids();
        assert_eq!((pids.len(), pids[0]), (2, tree.0));
        assert!(tree.memory().vm_pte_kb > 0);
        assert!(tree.usage().cpu_seconds < 10.0);
        tree.signal(Signal::KILL);
        child.wait().expect("ended");
        assert_eq!(tree.usage(), Usage::default());
    }

    #[test]
    fn fields_are_found_by_their_whole_name() {
        let status = "VmPTE:\t  52 kB\nnonvoluntary_ctxt_switches:\t7\nvoluntary_ctxt_switches:\t3\n";
        assert_eq!(field(status, "VmPTE:"), 52);
        assert_eq!(field(status, "voluntary_ctxt_switches:"), 3);
        assert_eq!(field(status, "None:"), 0);
    }
}
