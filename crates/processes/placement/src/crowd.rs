//! The threads that move packets, and the batches between them.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use lasthop_runtime::thread_sample::{SampledThread, threads_of};
use lasthop_sched::BatchFlow;
use lasthop_sched_view::ThreadId;

use crate::bounds::{GUEST_THREADS_MAX, THREADS_MAX, USED_PART};
use crate::watched_guest::WatchedGuest;
use crate::{PacketProcesses, PlacedPort};

/// The role of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ThreadRole {
    /// The worker of this number.
    Worker(usize),
    /// One of the driver process.
    Driver,
    /// One of the guest at the port of this number.
    Guest(u32),
}

/// A thread in a decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FoundThread {
    pub(crate) id: ThreadId,
    pub(crate) name: String,
    pub(crate) role: ThreadRole,
    /// The CPU that it uses, or used last.
    pub(crate) cpu: usize,
}

/// All threads of a decision.
#[derive(Debug)]
pub(crate) struct Crowd {
    proc: PathBuf,
    pub(crate) threads: Vec<FoundThread>,
    /// Batches per slice of each port, by worker, and whether it is a device port.
    busy: Vec<(u32, bool, Vec<u64>)>,
    guests: BTreeMap<u32, WatchedGuest>,
    /// CPU time of each thread at its last look.
    used_ns: BTreeMap<u32, (ThreadId, u64)>,
    last: Option<Instant>,
}

impl Crowd {
    pub(crate) fn new(proc: PathBuf) -> Self {
        Self {
            proc,
            threads: Vec::new(),
            busy: Vec::new(),
            guests: BTreeMap::new(),
            used_ns: BTreeMap::new(),
            last: None,
        }
    }

    /// Looks at the threads of our processes and of the guests at busy ports.
    pub(crate) fn look(&mut self, processes: PacketProcesses, busy: &[(PlacedPort, Vec<u64>)], now: Instant) {
        let period =
            self.last.replace(now).map_or(Duration::ZERO, |last| now.saturating_duration_since(last));
        let used_before = std::mem::take(&mut self.used_ns);
        self.threads.clear();
        let mut found = Vec::new();
        for pid in [processes.switch, processes.driver].into_iter().flatten() {
            let is_switch = processes.switch == Some(pid);
            for tid in threads_of(&self.proc, pid) {
                let Some(thread) = SampledThread::read(&self.proc, pid, tid) else { continue };
                found.extend(own_role(&thread.name, is_switch).map(|role| (tid, role, thread)));
            }
        }
        self.watch(busy, now);
        for (number, watched) in &self.guests {
            let of_guest = watched.threads().filter_map(|id| {
                // /proc has each thread as a process, too.
                let thread = SampledThread::read(&self.proc, id.tid, id.tid)?;
                (thread.start_ticks == id.start_ticks).then_some((id.tid, ThreadRole::Guest(*number), thread))
            });
            found.extend(of_guest);
        }
        let mut used: Vec<(u64, FoundThread)> = Vec::new();
        for (tid, role, thread) in found {
            let id = ThreadId { tid, start_ticks: thread.start_ticks };
            let before = used_before.get(&tid).filter(|(known, _)| *known == id).map(|(_, used_ns)| *used_ns);
            self.used_ns.insert(tid, (id, thread.used_ns));
            let ran_ns = before.map_or(0, |before| thread.used_ns.saturating_sub(before));
            if u128::from(ran_ns) * u128::from(USED_PART) >= period.as_nanos() && before.is_some() {
                used.push((ran_ns, FoundThread { id, name: thread.name, role, cpu: thread.cpu }));
            }
        }
        used.sort_by_key(|(ran_ns, _)| std::cmp::Reverse(*ran_ns));
        let mut guests: BTreeMap<u32, usize> = BTreeMap::new();
        let has_room = |thread: &FoundThread| match thread.role {
            ThreadRole::Guest(port) => {
                let count = guests.entry(port).or_default();
                *count += 1;
                *count <= GUEST_THREADS_MAX
            }
            ThreadRole::Worker(_) | ThreadRole::Driver => true,
        };
        self.threads =
            used.into_iter().map(|(_, thread)| thread).filter(has_room).take(THREADS_MAX).collect();
        self.busy =
            busy.iter().map(|(port, batches)| (port.number, port.guest.is_device, batches.clone())).collect();
    }

    /// Searches for the threads of the guests at busy ports, as far as that is due.
    fn watch(&mut self, busy: &[(PlacedPort, Vec<u64>)], now: Instant) {
        let is_same = |number: &u32, watched: &mut WatchedGuest| {
            busy.iter().any(|(port, _)| port.number == *number && port.guest == watched.guest)
        };
        self.guests.retain(is_same);
        for (port, _) in busy.iter().filter(|(port, _)| !port.guest.is_device) {
            let new = || WatchedGuest::new(port.guest.clone(), now);
            let watched = self.guests.entry(port.number).or_insert_with(new);
            if watched.next <= now {
                watched.look(now);
            }
        }
    }

    /// The batches between workers and the threads that serve each port, by index.
    pub(crate) fn flows(&self) -> Vec<BatchFlow> {
        let index_of =
            |worker: usize| self.threads.iter().position(|thread| thread.role == ThreadRole::Worker(worker));
        let mut flows = Vec::new();
        for (number, is_device, by_worker) in &self.busy {
            let role = if *is_device { ThreadRole::Driver } else { ThreadRole::Guest(*number) };
            for (worker, batches) in by_worker.iter().enumerate().filter(|(_, batches)| **batches > 0) {
                let Some(worker) = index_of(worker) else { continue };
                let ends = (0..self.threads.len()).filter(|index| self.threads[*index].role == role);
                flows.extend(ends.map(|end| BatchFlow { ends: (worker, end), batches: *batches }));
            }
        }
        flows
    }
}

/// The role of a thread of our own, by its name (`engine/threads.rs`, `driver/io.rs`). Helpers have CPUs of their own.
fn own_role(name: &str, is_switch: bool) -> Option<ThreadRole> {
    match is_switch {
        true => Some(ThreadRole::Worker(name.strip_prefix("worker")?.parse().ok()?)),
        false => name.strip_prefix("io-").map(|_| ThreadRole::Driver),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_and_io_threads_have_roles_and_others_have_none() {
        let roles = ["worker0", "worker63", "worker", "helper1", "vnic vm1"].map(|name| own_role(name, true));
        assert_eq!(roles, [Some(ThreadRole::Worker(0)), Some(ThreadRole::Worker(63)), None, None, None]);
        assert_eq!([own_role("io-0", false), own_role("worker0", false)], [Some(ThreadRole::Driver), None]);
    }

    #[test]
    fn a_device_port_is_served_by_all_threads_of_the_driver_process() {
        let thread = |tid, role| FoundThread {
            id: ThreadId { tid, start_ticks: 1 },
            name: String::new(),
            role,
            cpu: 0,
        };
        let mut crowd = Crowd::new(PathBuf::from("/proc"));
        crowd.threads = vec![
            thread(1, ThreadRole::Worker(1)),
            thread(2, ThreadRole::Driver),
            thread(3, ThreadRole::Guest(7)),
            thread(4, ThreadRole::Driver),
        ];
        crowd.busy = vec![(5, true, vec![900, 30]), (7, false, vec![0, 800]), (8, false, vec![0, 700])];
        let flow = |one, other, batches| BatchFlow { ends: (one, other), batches };
        assert_eq!(crowd.flows(), [flow(0, 1, 30), flow(0, 3, 30), flow(0, 2, 800)], "worker 0 does not run");
    }
}
