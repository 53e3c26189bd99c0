//! The threads that move packets, and the batches between them.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use lasthop_runtime::thread_sample::{SampledThread, threads_of};
use lasthop_sched::BatchFlow;
use lasthop_sched_view::ThreadId;
use lasthop_sched_view::guest_threads::GuestKind;

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
    /// Further ports of its guest: a VMM may have several.
    further_ports: Vec<u32>,
    /// The CPU that it uses, or used last.
    pub(crate) cpu: usize,
    /// It used more than half of a CPU.
    pub(crate) is_busy: bool,
    /// It starts threads or processes, which would inherit its CPUs for good, so it is not moved: user-mode Linux.
    pub(crate) has_heirs: bool,
}

impl FoundThread {
    /// A thread at one port that is not busy.
    #[cfg(test)]
    pub(crate) fn of(id: ThreadId, role: ThreadRole) -> Self {
        Self {
            id,
            name: "waiting".to_owned(),
            role,
            further_ports: Vec::new(),
            cpu: 0,
            is_busy: false,
            has_heirs: false,
        }
    }

    fn serves(&self, port: u32) -> bool {
        self.role == ThreadRole::Guest(port) || self.further_ports.contains(&port)
    }
}

/// A thread before its CPU time is known.
struct Candidate {
    tid: u32,
    role: ThreadRole,
    further_ports: Vec<u32>,
    has_heirs: bool,
    sample: SampledThread,
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
        self.watch(busy, now);
        let used_before = std::mem::take(&mut self.used_ns);
        let mut used: Vec<(u64, FoundThread)> = Vec::new();
        for Candidate { tid, role, further_ports, has_heirs, sample } in self.candidates(processes) {
            let id = ThreadId { tid, start_ticks: sample.start_ticks };
            let before = used_before.get(&tid).filter(|(known, _)| *known == id).map(|(_, used_ns)| *used_ns);
            self.used_ns.insert(tid, (id, sample.used_ns));
            let Some(before) = before else { continue };
            let ran_ns = sample.used_ns.saturating_sub(before);
            let is_part = |part: u32| u128::from(ran_ns) * u128::from(part) >= period.as_nanos();
            if is_part(USED_PART) {
                let SampledThread { name, cpu, .. } = sample;
                used.push((
                    ran_ns,
                    FoundThread { id, name, role, further_ports, cpu, is_busy: is_part(2), has_heirs },
                ));
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

    /// Our threads that move packets, and those of the watched guests, each once.
    fn candidates(&self, processes: PacketProcesses) -> Vec<Candidate> {
        let mut found = Vec::new();
        for pid in [processes.switch, processes.driver].into_iter().flatten() {
            let is_switch = processes.switch == Some(pid);
            for tid in threads_of(&self.proc, pid) {
                let Some(sample) = SampledThread::read(&self.proc, pid, tid) else { continue };
                let role = own_role(&sample.name, is_switch);
                let further_ports = Vec::new();
                found.extend(role.map(|role| Candidate {
                    tid,
                    role,
                    further_ports,
                    has_heirs: false,
                    sample,
                }));
            }
        }
        let ours = found.len();
        for (number, watched) in &self.guests {
            let kind = watched.found.as_ref().map(|found| found.kind);
            for id in watched.threads() {
                if let Some(known) = found[ours..].iter_mut().find(|known| known.tid == id.tid) {
                    known.further_ports.push(*number);
                    continue;
                }
                // /proc has each thread as a process, too.
                let sample = SampledThread::read(&self.proc, id.tid, id.tid);
                let Some(sample) = sample.filter(|sample| sample.start_ticks == id.start_ticks) else {
                    continue;
                };
                found.push(Candidate {
                    tid: id.tid,
                    role: ThreadRole::Guest(*number),
                    further_ports: Vec::new(),
                    has_heirs: kind == Ok(GuestKind::UserMode),
                    sample,
                });
            }
        }
        found
    }

    /// Why the threads of a busy guest are unknown, with its port's number.
    pub(crate) fn unknown(&self) -> Option<(u32, &str)> {
        self.guests
            .iter()
            .find_map(|(number, watched)| Some((*number, watched.found.as_ref().err()?.as_str())))
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

    /// The batches between workers and the threads that serve each port, by index. A worker whose own thread does not run is
    /// served by the first one's (`engine/worker_thread.rs`).
    pub(crate) fn flows(&self) -> Vec<BatchFlow> {
        let index_of =
            |worker: usize| self.threads.iter().position(|thread| thread.role == ThreadRole::Worker(worker));
        let serving = |worker: usize| index_of(worker).or_else(|| index_of(0));
        let mut flows: BTreeMap<(usize, usize), u64> = BTreeMap::new();
        for (number, is_device, by_worker) in &self.busy {
            let is_end = |thread: &FoundThread| match is_device {
                true => thread.role == ThreadRole::Driver,
                false => thread.serves(*number),
            };
            for (worker, batches) in by_worker.iter().enumerate().filter(|(_, batches)| **batches > 0) {
                let Some(worker) = serving(worker) else { continue };
                for end in (0..self.threads.len()).filter(|index| is_end(&self.threads[*index])) {
                    let sum = flows.entry((worker, end)).or_default();
                    *sum = sum.saturating_add(*batches);
                }
            }
        }
        flows.into_iter().map(|(ends, batches)| BatchFlow { ends, batches }).collect()
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

    fn thread(tid: u32, role: ThreadRole) -> FoundThread {
        FoundThread::of(ThreadId { tid, start_ticks: 1 }, role)
    }

    fn flow(one: usize, other: usize, batches: u64) -> BatchFlow {
        BatchFlow { ends: (one, other), batches }
    }

    #[test]
    fn a_device_port_is_served_by_all_threads_of_the_driver_process() {
        let mut crowd = Crowd::new(PathBuf::from("/proc"));
        crowd.threads = vec![
            thread(1, ThreadRole::Worker(1)),
            thread(2, ThreadRole::Driver),
            thread(3, ThreadRole::Guest(7)),
            thread(4, ThreadRole::Driver),
        ];
        crowd.busy = vec![(5, true, vec![900, 30]), (7, false, vec![0, 800]), (8, false, vec![0, 700])];
        assert_eq!(
            crowd.flows(),
            [flow(0, 1, 30), flow(0, 2, 800), flow(0, 3, 30)],
            "worker 0 has no thread that runs"
        );
    }

    #[test]
    fn the_first_thread_serves_workers_whose_own_ones_rest() {
        let mut crowd = Crowd::new(PathBuf::from("/proc"));
        crowd.threads = vec![thread(1, ThreadRole::Worker(0)), thread(2, ThreadRole::Guest(7))];
        crowd.busy = vec![(7, false, vec![100, 800])];
        assert_eq!(crowd.flows(), [flow(0, 1, 900)]);
        crowd.threads.push(thread(3, ThreadRole::Worker(1)));
        assert_eq!(crowd.flows(), [flow(0, 1, 100), flow(2, 1, 800)]);
    }

    #[test]
    fn a_thread_of_a_guest_with_two_ports_is_one_thread() {
        let mut crowd = Crowd::new(PathBuf::from("/proc"));
        let both = FoundThread { further_ports: vec![8], ..thread(2, ThreadRole::Guest(7)) };
        crowd.threads = vec![thread(1, ThreadRole::Worker(0)), both];
        crowd.busy = vec![(7, false, vec![300]), (8, false, vec![400])];
        assert_eq!(crowd.flows(), [flow(0, 1, 700)]);
    }
}
