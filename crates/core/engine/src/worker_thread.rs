//! Which thread serves which worker.
//!
//! While there is little to do, the first thread serves all workers in turn, and the other workers' threads are idle.
//! So both directions of a conversation find the same thread awake, and guests keep the cores that the work does not
//! need. A worker whose load does not fit beside the others goes to its own thread, and returns when it has had little
//! to do for long (`load.rs`). With the policy gathering idle CPUs decide, too (`crowd_watch.rs`).
//!
//! ```text
//!   thread 0   worker 0, worker 1, worker 2      polls, or sleeps until one of them has an event
//!                 |  ^
//!        crowded  |  | about to sleep, after little work
//!                 v  |
//!   thread 1   worker 1                          polls, or sleeps until it has an event
//!              none                              waits for its worker
//! ```

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Instant;

use lasthop_module_api::PortId;
use lasthop_ring::{AdaptivePoll, CoreYield, SignalRetry};
use lasthop_sched::{LookRound, Occupancy};

use crate::EngineSettings;
use crate::answers::Answers;
use crate::clock::{now_ns, reading_ns};
use crate::crowd_watch::CrowdWatch;
use crate::events::Gate;
use crate::load::Gathering;
use crate::scheduling::IdleStep;
use crate::worker::Worker;
use crate::worker_pool::WorkerPool;

/// How often a busy worker polls for kicks and tasks; an armed ring that is kicked waits for at most this long.
const POLL_NS: u64 = 20_000;
/// Same for a worker whose thread has found no packets for this long: the answer to its packets may come from an armed
/// ring.
const IDLE_POLL_NS: u64 = 2_000;

/// Where a reading of the clock is a system call, polls are this many times as far apart as a reading takes. So they leave most of
/// the CPU to the packets.
const READINGS_A_POLL: u64 = 8;

/// How often a thread polls for kicks and tasks, in ns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PollIntervals {
    busy_ns: u64,
    /// After it has found no packets for as long.
    idle_ns: u64,
}

impl PollIntervals {
    /// `reading_ns`: the time that a reading of the clock takes.
    fn new(reading_ns: u64) -> Self {
        let least_ns = reading_ns * READINGS_A_POLL;
        Self { busy_ns: POLL_NS.max(least_ns), idle_ns: IDLE_POLL_NS.max(least_ns) }
    }

    /// By the time for which it has found no packets.
    fn after(self, idle_ns: u64) -> u64 {
        if idle_ns >= self.idle_ns { self.idle_ns } else { self.busy_ns }
    }
}

/// A thread and the workers that it serves.
pub(crate) struct WorkerThread {
    number: usize,
    gathering: Gathering,
    pool: Arc<WorkerPool<Worker>>,
    started: Instant,
    cpus: Vec<usize>,
    workers: Vec<Worker>,
    /// Workers that move to this thread.
    arrivals: Receiver<Worker>,
    role: Role,
    adaptive_poll: AdaptivePoll,
    signal_retry: SignalRetry,
    /// Start of the last round, if it found packets.
    busy_since_ns: Option<u64>,
    /// Whether this round is the first one after a sleep, and rings are active.
    is_woken: bool,
    worked_ns: u64,
    core_yield: CoreYield,
    /// The longest busy-poll, in ns.
    look_max_ns: u64,
    polls: PollIntervals,
    /// The port that received the last packets; its guest is expected to answer.
    debtor: Option<PortId>,
    answers: Answers,
}

/// The role of a thread among the others.
enum Role {
    First {
        /// Channels to the workers' own threads, by number; `None` for this one.
        homes: Vec<Option<Sender<Worker>>>,
        /// Tells which of several workers has an event.
        gate: Gate,
        /// This thread's load in percent, for the others.
        load: Arc<AtomicU64>,
        crowd: CrowdWatch,
    },
    Other {
        first: Sender<Worker>,
        load_of_first: Arc<AtomicU64>,
    },
    /// That of a helper, which stays with it.
    Helper,
}

/// Makes a [`WorkerThread`] for each worker, each for its own operating system thread.
pub(crate) fn worker_threads(
    workers: Vec<Worker>,
    pool: &Arc<WorkerPool<Worker>>,
    settings: &EngineSettings,
    started: Instant,
) -> std::io::Result<Vec<WorkerThread>> {
    let load = Arc::new(AtomicU64::new(0));
    let (to_first, to_this) = channel();
    let (mut homes, mut arrivals) = (vec![None], vec![to_this]);
    let helpers = pool.helpers();
    for (number, (sender, receiver)) in (1..workers.len()).map(|number| (number, channel())) {
        homes.push((!helpers.is_one(number)).then_some(sender));
        arrivals.push(receiver);
    }
    let gate = Gate::new()?;
    workers.first().map_or(Ok(()), |first| gate.open(first.events(), first.number()))?;
    let crowd = CrowdWatch::new(&settings.cpus);
    let first = Role::First { homes, gate, load: Arc::clone(&load), crowd };
    let other = |number: usize| match helpers.is_one(number) {
        true => Role::Helper,
        false => Role::Other { first: to_first.clone(), load_of_first: Arc::clone(&load) },
    };
    let roles = std::iter::once(first).chain((1..).map(other));
    let polls = PollIntervals::new(reading_ns());
    let worker_thread = |((worker, arrivals), role): ((Worker, _), _)| WorkerThread {
        number: worker.number(),
        gathering: settings.gathering,
        pool: Arc::clone(pool),
        started,
        cpus: helpers.cpu_of(worker.number()).map_or_else(|| settings.cpus.clone(), |cpu| vec![cpu]),
        workers: vec![worker],
        arrivals,
        role,
        adaptive_poll: AdaptivePoll::new(u64::from(settings.hysteresis_us) * 1000),
        signal_retry: SignalRetry::default(),
        busy_since_ns: None,
        is_woken: false,
        worked_ns: 0,
        core_yield: CoreYield::new(settings.polls_on_any_cpu),
        look_max_ns: u64::from(settings.hysteresis_us) * 1000,
        polls,
        debtor: None,
        answers: Answers::default(),
    };
    Ok(workers.into_iter().zip(arrivals).zip(roles).map(worker_thread).collect())
}

impl WorkerThread {
    /// Runs until all workers were told to stop.
    pub(crate) fn run(mut self) {
        self.choose_cpus();
        for worker in std::mem::take(&mut self.workers) {
            self.take(worker);
        }
        self.serve();
        if matches!(self.role, Role::First { .. }) {
            return; // the others wait as long as it may send them a worker
        }
        while let Ok(worker) = self.arrivals.recv() {
            self.take(worker);
            self.serve();
        }
    }

    fn choose_cpus(&self) {
        if self.cpus.is_empty() {
            return;
        }
        let mut set = rustix::thread::CpuSet::new();
        for &cpu in self.cpus.iter().filter(|cpu| **cpu < rustix::thread::CpuSet::MAX_CPU) {
            set.set(cpu);
        }
        // If CPUs went offline since the command line was checked, the worker stays unpinned, which is slower only.
        let _ = rustix::thread::sched_setaffinity(None, &set);
    }

    /// Serves this thread's workers until there is none.
    fn serve(&mut self) {
        while !self.workers.is_empty() {
            // The packets that ended a sleep do not wait for all this: another round follows before the next sleep.
            let is_woken = std::mem::take(&mut self.is_woken);
            if !is_woken {
                self.accept_workers();
            }
            let now = now_ns(self.started);
            if !is_woken {
                self.count_load(now);
            }
            let worked = self.round(now);
            if worked {
                self.signal_retry.found(now);
            } else {
                let (worked_ns, signal_retry) = (self.worked_ns, &mut self.signal_retry);
                self.workers.iter_mut().for_each(|worker| worker.retry_signals(now, worked_ns, signal_retry));
            }
            if self.workers.iter().any(Worker::is_active) {
                self.stay_awake(worked, now);
            } else if !is_woken {
                self.sleep(now);
            }
            self.leave_stages();
            self.workers.retain(|worker| !worker.is_stopping());
        }
    }

    /// Adds a worker to this thread.
    fn take(&mut self, mut worker: Worker) {
        self.pool.watchdog().watch_me(worker.number());
        self.pool.helpers().sit(worker.number());
        worker.set_thread(self.number);
        worker.load.begin(now_ns(self.started));
        self.workers.push(worker);
    }

    /// Does not count time between workers as any worker's.
    fn leave_stages(&self) {
        if self.workers.len() > 1 {
            self.workers.iter().for_each(|worker| worker.fabric.mark_away());
        }
    }

    /// Adds the workers that were sent to the first thread. Their sender wakes the first worker afterwards.
    fn accept_workers(&mut self) {
        while let Role::First { homes, gate, .. } = &self.role
            && let Ok(mut worker) = self.arrivals.try_recv()
        {
            if gate.open(worker.events(), worker.number()).is_ok() {
                worker.stay.come_back(now_ns(self.started));
                self.take(worker);
            } else {
                // The kernel has no memory for its events: this thread would sleep through them.
                worker.stay.leave(now_ns(self.started));
                send_home(homes, worker);
            }
        }
    }

    /// Does a round of each worker; returns whether one had packets.
    fn round(&mut self, now: u64) -> bool {
        if let [only] = &mut self.workers[..] {
            let worked = only.step(now, &mut self.adaptive_poll);
            self.busy_since_ns = worked.then_some(now);
            return worked;
        }
        let (mut worked, mut since, mut lost_ns) = (false, now, 0);
        for worker in &mut self.workers {
            if worker.step(now, &mut self.adaptive_poll) {
                let until = now_ns(self.started);
                lost_ns += worker.load.add(until - since);
                (worked, since) = (true, until);
            }
            worker.fabric.mark_away();
        }
        self.workers.iter_mut().for_each(|worker| worker.load.lose(lost_ns));
        worked
    }

    /// Adds the time of the last round of a lone worker, and acts on its load.
    fn count_load(&mut self, now: u64) {
        if let (Some(since), [only]) = (self.busy_since_ns.take(), &mut self.workers[..]) {
            let lost_ns = only.load.add(now - since);
            only.load.lose(lost_ns);
        }
        let is_over = self.workers.iter().all(|worker| worker.load.is_over(now));
        self.look_for_idle_cpus(is_over, now);
        if is_over {
            self.workers.iter_mut().for_each(|worker| worker.load.begin(now));
            self.share_out(now);
        }
    }

    /// Looks now and then, and before a decision, for idle CPUs on which a worker of this thread could run.
    fn look_for_idle_cpus(&mut self, is_over: bool, now: u64) {
        let (Role::First { crowd, .. }, [first, _, ..]) = (&mut self.role, &self.workers[..]) else { return };
        if is_over || crowd.is_due(now) {
            let helpers = self.pool.helpers();
            crowd.look(now, |cpus| first.scheduling.idle_cpus(cpus, |cpu| helpers.is_idle(cpu)));
        }
    }

    /// Moves a worker to its own thread if they have too much to do together.
    fn share_out(&mut self, now: u64) {
        let Role::First { homes, gate, load, crowd } = &mut self.role else { return };
        let loads = self.workers.iter().map(|worker| {
            let number = worker.number();
            (homes[number].is_some().then_some(number), worker.load.percent())
        });
        let percent = loads.clone().map(|(_, percent)| percent).sum();
        load.store(percent, Ordering::Relaxed);
        let (thread, idle_cpus) = crowd.end_window(percent, now);
        let busiest = self.gathering.worker_to_move(loads);
        let Some(at) =
            busiest.and_then(|number| self.workers.iter().position(|worker| worker.number() == number))
        else {
            return;
        };
        let scheduling = &mut self.workers[0].scheduling;
        if !self.gathering.leaves(|| scheduling.separates(thread, idle_cpus, now)) {
            return;
        }
        crowd.note_leave();
        let mut worker = self.workers.swap_remove(at);
        worker.stay.leave(now);
        gate.close(worker.events());
        send_home(homes, worker);
    }

    /// Called while rings are active.
    fn stay_awake(&mut self, worked: bool, now: u64) {
        if worked {
            self.worked_ns = now;
            self.note_debtor();
            self.note_answer(now);
        }
        let poll_ns = self.polls.after(now - self.worked_ns);
        let look_ns = self.adaptive_poll.ns();
        self.workers.iter_mut().for_each(|worker| worker.poll_events_if_due(now, poll_ns, look_ns));
        if !worked {
            self.arm_or_yield(now);
        }
    }

    /// Arms rings that had no packets for the adaptive polling time, or for a moment on a scarce core. If another thread
    /// wants the core meanwhile, arms all rings without packets.
    fn arm_or_yield(&mut self, now: u64) {
        if self.core_yield.is_scarce(now) {
            return self.arm_idle_rings(now, self.core_yield.look_ns(now, self.adaptive_poll.ns()));
        }
        match self.idle_step(now) {
            IdleStep::Arm(look_ns) => self.arm_idle_rings(now, look_ns),
            IdleStep::Offer => {
                self.offer_core();
                return;
            }
        }
        if self.workers.iter().any(Worker::is_active) && self.is_crowded(now) {
            self.arm_idle_rings(now, 0);
        }
    }

    fn arm_idle_rings(&mut self, now: u64, look_ns: u64) {
        self.workers.iter_mut().for_each(|worker| worker.arm_idle_rings(now, look_ns));
    }

    /// Decides after which time rings without packets are armed: by the state of the guest that owes an answer, or the
    /// adaptive polling time.
    fn idle_step(&mut self, now: u64) -> IdleStep {
        let learned_ns = match self.answers.is_expecting() {
            true => self.adaptive_poll.ns().max(self.adaptive_poll.short_ns()),
            false => self.adaptive_poll.ns(),
        };
        // A guest that may have missed its signal is not left waiting until that is known.
        let is_reminding = self.workers.iter().any(|worker| worker.is_reminding_soon(now));
        let is_posted =
            is_reminding || self.workers.iter().any(|worker| worker.fabric.deadline_ns().is_some());
        let round = LookRound {
            idle_ns: now.saturating_sub(self.worked_ns),
            learned_ns: if is_reminding { self.look_max_ns } else { learned_ns },
            max_ns: self.look_max_ns,
            is_posted,
        };
        match self.workers.first_mut().map(|worker| &mut worker.scheduling) {
            Some(scheduling) if scheduling.looks() => scheduling.idle_step(&round, self.debtor, now),
            _ => IdleStep::Arm(learned_ns),
        }
    }

    /// Notes the receiver of this round's packets.
    fn note_debtor(&mut self) {
        if self.workers.first().is_some_and(|worker| worker.scheduling.looks()) {
            self.debtor = self.workers.iter().rev().find_map(Worker::debtor);
        }
    }

    /// Learns from this round's packets which ring answers which.
    fn note_answer(&mut self, now: u64) {
        if !self.answers.is_over() {
            let look_ns = self.adaptive_poll.short_ns();
            self.workers.iter().for_each(|worker| self.answers.learn(&worker.first_packets, now, look_ns));
        }
    }

    /// Offers the core; returns whether another thread took it.
    fn offer_core(&mut self) -> bool {
        let Self { workers, started, core_yield, .. } = self;
        let back = core_yield.offer(|| now_ns(*started), std::thread::yield_now);
        if let Some(first) = workers.first_mut() {
            first.scheduling.note_offer(back);
            first.count_offer(back, *core_yield);
        }
        back.was_taken
    }

    /// Offers the core if the view says that it is wanted, or now and then without a view. Returns whether another
    /// thread took it.
    fn is_crowded(&mut self, now: u64) -> bool {
        let is_due = match self.workers.first_mut().map(|worker| &mut worker.scheduling) {
            Some(scheduling) if scheduling.yields() => scheduling.occupies(now) == Occupancy::Offer,
            _ => self.core_yield.is_due(now),
        };
        is_due && self.offer_core()
    }

    /// Sleeps, as no ring is active, unless another thread can wait for its rings.
    fn sleep(&mut self, now: u64) {
        if self.give_back(now) {
            return;
        }
        if let [only] = &mut self.workers[..] {
            let sleep_ns = only.prepare_sleep(now);
            only.poll_events(sleep_ns);
        } else {
            self.sleep_together(now);
        }
        let now = now_ns(self.started);
        self.workers.iter_mut().for_each(|worker| worker.wake(now));
        self.begin_conversation(now);
        self.is_woken = self.workers.iter().any(Worker::is_active);
    }

    /// After a sleep, and a long silence, also polls the ring from which the answer to the packets is expected that ended it.
    fn begin_conversation(&mut self, now: u64) {
        // Timers and tasks end sleeps, too. After a short silence, these may be the answer to the last packets.
        if now.saturating_sub(self.worked_ns) < self.look_max_ns {
            return;
        }
        let mut asker = None;
        for worker in &mut self.workers {
            let first = worker.begin_conversation();
            asker = asker.or(first);
        }
        if let Some(answering) = self.answers.begin(asker) {
            self.workers.iter_mut().for_each(|worker| worker.expect_answer(answering, now));
        }
    }

    /// Returns the worker to the first thread if it has little to do; returns whether it did.
    fn give_back(&mut self, now: u64) -> bool {
        let Role::Other { first, load_of_first } = &self.role else { return false };
        let Some(worker) = self.workers.pop() else { return false };
        let load_of_first = load_of_first.load(Ordering::Relaxed);
        if !self.gathering.may_come_back(worker.stay, now, worker.load.percent(), load_of_first) {
            self.workers.push(worker);
            return false;
        }
        match first.send(worker) {
            Ok(()) => {
                self.pool.mailbox(0).wake();
                true
            }
            // The first thread has ended, and so will this one.
            Err(refused) => {
                self.workers.push(refused.0);
                false
            }
        }
    }

    /// Sleeps until one of several workers has an event.
    fn sleep_together(&mut self, now: u64) {
        let Role::First { gate, .. } = &self.role else { return };
        let sleep_ns = self.workers.iter_mut().map(|worker| worker.prepare_sleep(now)).min().unwrap_or(0);
        let wanted = gate.wait(sleep_ns);
        for worker in &mut self.workers {
            worker.fabric.mark_sleep();
            let is_wanted = wanted.contains(&worker.number());
            if is_wanted || wanted.is_empty() {
                worker.count_sleep(sleep_ns);
            }
            if is_wanted {
                worker.take_events(Some(0));
            }
        }
    }
}

fn send_home(homes: &[Option<Sender<Worker>>], worker: Worker) {
    if let Some(home) = &homes[worker.number()] {
        // Its thread waits for it as long as the first one exists.
        let _ = home.send(worker);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn polls_are_further_apart_where_the_clock_is_a_system_call() {
        let usual = PollIntervals::new(31);
        assert_eq!(usual, PollIntervals::new(0), "by the vDSO");
        assert_eq!([0, 1999, 2000].map(|idle_ns| usual.after(idle_ns)), [POLL_NS, POLL_NS, IDLE_POLL_NS]);
        let slow = PollIntervals::new(15_000);
        assert_eq!([0, 119_999, 120_000].map(|idle_ns| slow.after(idle_ns)), [120_000; 3]);
    }
}
