//! CPUs, and threads that are pinned to them, in virtual time: a fair scheduler without preemption inside a step.

use std::collections::VecDeque;

use lasthop_sched::{CpuDistance, CpuPlace, distance};

use crate::model::{CpuCosts, Model};

/// The work of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// A guest's only vCPU.
    Guest(usize),
    /// A thread of the switch: a worker, a netback or a vhost-net thread.
    Backend(usize),
    /// Offloaded work on an otherwise idle CPU. It gives way to all others.
    Helper,
}

/// The state of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ThreadState {
    /// It sleeps.
    Blocked,
    /// It waits for its CPU.
    Ready,
    /// It works.
    Running,
    /// It has its CPU and polls.
    Polling,
}

/// A thread.
#[derive(Debug)]
pub(crate) struct Thread {
    pub(crate) role: Role,
    pub(crate) cpu: usize,
    pub(crate) state: ThreadState,
    /// Whether an order to wake up is on its way.
    pub(crate) is_woken: bool,
    /// Work that it caused and that is not charged yet.
    pub(crate) debt_ns: u64,
    /// Charged work: the thread with the least goes first.
    used_ns: u64,
    /// Distinguishes the alarms of different polls.
    pub(crate) poll: u64,
    pub(crate) poll_until_ns: u64,
}

/// A CPU.
#[derive(Debug, Default)]
struct Cpu {
    running: Option<usize>,
    last: Option<usize>,
    queue: VecDeque<usize>,
    /// Threads that were woken and have not arrived.
    awaited: u32,
    since_ns: u64,
    busy_ns: u64,
}

/// All CPUs and threads.
pub(crate) struct Machine {
    pub(crate) places: Vec<CpuPlace>,
    pub(crate) threads: Vec<Thread>,
    cpus: Vec<Cpu>,
    costs: CpuCosts,
    /// When the memory of each node has done all that was asked of it.
    node_free_ns: Vec<u64>,
}

impl Machine {
    /// A machine without threads.
    pub(crate) fn new(model: &Model) -> Self {
        let places = model.places();
        let nodes = places.iter().map(|place| usize::from(place.node) + 1).max().unwrap_or(1);
        let cpus = places.iter().map(|_| Cpu::default()).collect();
        Self { places, threads: Vec::new(), cpus, costs: model.cpu.clone(), node_free_ns: vec![0; nodes] }
    }

    /// Adds a thread that sleeps.
    pub(crate) fn add(&mut self, role: Role, cpu: usize) -> usize {
        let state = ThreadState::Blocked;
        let (is_woken, debt_ns, used_ns, poll, poll_until_ns) = Default::default();
        self.threads.push(Thread { role, cpu, state, is_woken, debt_ns, used_ns, poll, poll_until_ns });
        self.threads.len() - 1
    }

    /// The distance between two CPUs.
    pub(crate) fn distance(&self, one: usize, other: usize) -> CpuDistance {
        distance(&self.places, one, other)
    }

    /// Whether no thread but a helper has or awaits the CPU.
    pub(crate) fn is_idle(&self, cpu: usize) -> bool {
        let cpu = &self.cpus[cpu];
        let is_helper = |thread: usize| self.threads[thread].role == Role::Helper;
        cpu.awaited == 0
            && cpu.running.is_none_or(is_helper)
            && cpu.queue.iter().all(|thread| is_helper(*thread))
    }

    /// Whether a helper works on the CPU.
    pub(crate) fn has_helper(&self, cpu: usize) -> bool {
        let running = self.cpus[cpu].running.map(|thread| &self.threads[thread]);
        running.is_some_and(|thread| thread.role == Role::Helper && thread.state == ThreadState::Running)
    }

    /// Whether a thread sleeps and no order to wake up is on its way.
    pub(crate) fn is_asleep(&self, thread: usize) -> bool {
        self.threads[thread].state == ThreadState::Blocked && !self.threads[thread].is_woken
    }

    /// Orders a thread to wake up. Returns the time until it can run, if it sleeps or polls and has no order yet.
    pub(crate) fn order(&mut self, thread: usize) -> Option<u64> {
        let entry = &mut self.threads[thread];
        let delay_ns = match entry.state {
            _ if entry.is_woken => return None,
            ThreadState::Polling => self.costs.poll_ns,
            ThreadState::Blocked if self.cpus[entry.cpu].running.is_some() => self.costs.ipi_ns,
            ThreadState::Blocked => self.costs.wake_ns,
            ThreadState::Ready | ThreadState::Running => return None,
        };
        entry.is_woken = true;
        self.cpus[entry.cpu].awaited += u32::from(entry.role != Role::Helper);
        Some(delay_ns)
    }

    /// A woken thread arrives at its CPU. True if the CPU has to choose a thread now.
    pub(crate) fn arrive(&mut self, thread: usize) -> bool {
        let cpu_number = self.threads[thread].cpu;
        let least_ns = self.cpus[cpu_number].running.map_or(0, |running| self.threads[running].used_ns);
        let entry = &mut self.threads[thread];
        entry.is_woken = false;
        let cpu = &mut self.cpus[cpu_number];
        cpu.awaited -= u32::from(entry.role != Role::Helper);
        match entry.state {
            ThreadState::Polling if cpu.running == Some(thread) => cpu.running = None,
            ThreadState::Blocked => {
                entry.used_ns = entry.used_ns.max(least_ns.saturating_sub(self.costs.slice_ns / 2))
            }
            _ => {}
        }
        if entry.state != ThreadState::Ready {
            entry.state = ThreadState::Ready;
            cpu.queue.push_back(thread);
        }
        self.displace_poller(cpu_number)
    }

    /// A thread that polls gives way to one that waits. True if the CPU is free then.
    fn displace_poller(&mut self, cpu: usize) -> bool {
        let Some(running) = self.cpus[cpu].running else { return true };
        if self.threads[running].state != ThreadState::Polling {
            return false;
        }
        self.leave(cpu, running);
        true
    }

    /// Takes the CPU from a thread that could continue. A helper sleeps instead of waiting.
    fn leave(&mut self, cpu: usize, thread: usize) {
        let is_helper = self.threads[thread].role == Role::Helper;
        self.threads[thread].state = if is_helper { ThreadState::Blocked } else { ThreadState::Ready };
        if !is_helper {
            self.cpus[cpu].queue.push_back(thread);
        }
        self.cpus[cpu].running = None;
    }

    /// After a step: whether the running thread continues. If not, its CPU is free.
    pub(crate) fn continues(&mut self, cpu: usize) -> bool {
        let Some(thread) = self.cpus[cpu].running else { return false };
        let used_ns = self.threads[thread].used_ns;
        let is_helper = self.threads[thread].role == Role::Helper;
        let least_ns = self.cpus[cpu].queue.iter().map(|other| self.threads[*other].used_ns).min();
        let gives_way =
            least_ns.is_some_and(|least_ns| is_helper || used_ns >= least_ns + self.costs.slice_ns / 4);
        if gives_way {
            self.leave(cpu, thread);
        }
        !gives_way
    }

    /// Gives a free CPU to the thread with the least work so far. Returns it and the cost of the switch.
    pub(crate) fn choose(&mut self, cpu: usize) -> Option<(usize, u64)> {
        let entry = &self.cpus[cpu];
        if entry.running.is_some() {
            return None;
        }
        let key = |thread: usize| (self.threads[thread].role == Role::Helper, self.threads[thread].used_ns);
        let at = (0..entry.queue.len()).min_by_key(|at| key(entry.queue[*at]))?;
        let entry = &mut self.cpus[cpu];
        let thread = entry.queue.remove(at)?;
        let is_other = entry.last.is_some_and(|last| last != thread);
        (entry.running, entry.last) = (Some(thread), Some(thread));
        self.threads[thread].state = ThreadState::Running;
        Some((thread, u64::from(is_other) * self.costs.context_switch_ns))
    }

    /// The running thread has no work: it sleeps, or polls with its CPU.
    pub(crate) fn rest(&mut self, thread: usize, polls: bool) {
        let cpu = self.threads[thread].cpu;
        self.threads[thread].state = if polls { ThreadState::Polling } else { ThreadState::Blocked };
        if !polls {
            self.cpus[cpu].running = None;
        }
    }

    /// Begins a step of `cost_ns` that reads or writes `bytes`. Returns its duration on this CPU, now.
    pub(crate) fn begin(&mut self, cpu: usize, cost_ns: u64, bytes: u64, now_ns: u64) -> u64 {
        let place = self.places[cpu];
        let is_working = |other: usize| {
            self.cpus[other].running.is_some_and(|thread| self.threads[thread].state == ThreadState::Running)
        };
        let shares = (0..self.cpus.len())
            .any(|other| other != cpu && self.places[other].group == place.group && is_working(other));
        let percent = 100 + if shares { self.costs.group_shared_percent } else { 0 };
        let free_ns = &mut self.node_free_ns[usize::from(place.node)];
        *free_ns = (*free_ns).max(now_ns) + bytes * 1000 / self.costs.node_bytes_per_us;
        let duration_ns = (cost_ns * percent / 100).max(*free_ns - now_ns).max(1);
        self.cpus[cpu].since_ns = now_ns;
        duration_ns
    }

    /// Ends the step of a CPU. Returns the thread.
    pub(crate) fn end(&mut self, cpu: usize, now_ns: u64) -> Option<usize> {
        let entry = &mut self.cpus[cpu];
        let duration_ns = now_ns - entry.since_ns;
        entry.busy_ns += duration_ns;
        let thread = entry.running?;
        self.threads[thread].used_ns += duration_ns;
        Some(thread)
    }

    /// The time that each CPU has worked.
    pub(crate) fn busy_ns(&self) -> Vec<u64> {
        self.cpus.iter().map(|cpu| cpu.busy_ns).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(roles: &[Role]) -> Machine {
        let mut machine = Machine::new(&Model::load("opteron").unwrap());
        for role in roles {
            machine.add(*role, 0);
        }
        machine
    }

    fn start(machine: &mut Machine, thread: usize) -> bool {
        assert!(machine.order(thread).is_some());
        assert_eq!(machine.order(thread), None, "one order is enough");
        machine.arrive(thread)
    }

    #[test]
    fn threads_of_one_cpu_take_turns() {
        let mut machine = machine(&[Role::Guest(0), Role::Guest(1)]);
        assert!(start(&mut machine, 0));
        assert_eq!(machine.choose(0), Some((0, 0)));
        assert!(!start(&mut machine, 1), "the CPU is taken");
        let (mut now_ns, mut turns) = (0, [0_u64, 0]);
        for _ in 0..2000 {
            now_ns += machine.begin(0, 10_000, 0, now_ns);
            turns[machine.end(0, now_ns).unwrap()] += 1;
            if !machine.continues(0) {
                assert!(machine.choose(0).is_some());
            }
        }
        assert!(turns[0].abs_diff(turns[1]) < 200, "{turns:?}");
    }

    #[test]
    fn a_helper_gives_way_after_its_step() {
        let mut machine = machine(&[Role::Helper, Role::Guest(0)]);
        assert!(start(&mut machine, 0));
        machine.choose(0);
        assert!(machine.is_idle(0) && machine.continues(0));
        assert!(!start(&mut machine, 1), "not within a step");
        assert!(!machine.is_idle(0) && !machine.continues(0));
        assert_eq!(machine.choose(0).unwrap().0, 1);
        assert_eq!(machine.threads[0].state, ThreadState::Blocked);
    }

    #[test]
    fn neighbours_and_memory_slow_a_step_down() {
        let mut machine = machine(&[Role::Guest(0)]);
        let other = machine.add(Role::Guest(1), 1);
        start(&mut machine, 0);
        machine.choose(0);
        assert_eq!(machine.begin(0, 1000, 0, 0), 1000);
        assert!(machine.order(other).is_some() && machine.arrive(other));
        machine.choose(1);
        assert_eq!(machine.begin(0, 1000, 0, 0), 1250, "the module is shared");
        let bytes_per_ms = 1000 * 15_000;
        assert_eq!(machine.begin(0, 1000, bytes_per_ms, 0), 1_000_000, "the node's memory is busy");
        assert_eq!(machine.begin(8, 1000, 0, 0), 1000, "not that of others");
    }
}
