//! A run: events, steps of threads, and what they cause.
//!
//! ```text
//!   dispatch ──> step: guest | backend | helper ──> cost on this CPU ──> end of the step: effects ──> wake-ups, alarms
//!      ^                                                                                                │
//!      └────────────────────────────────────────────────────────────────────────────────────────────────┘
//! ```
//!
//! A step chooses its work when it begins, and its effects are seen when it ends: frames are published, a ring is visited,
//! copies are complete.

mod backend;
mod guest;
mod helping;
mod hyper;

use std::collections::VecDeque;

use anyhow::{Result, ensure};
use lasthop_fabric::Drops;
use lasthop_ring::AdaptivePoll;
use lasthop_sched::{
    Activity, GuestView, OffloadCriteria, PlaceCriteria, ThreadState as SchedState, TransmitRing,
};

use crate::copies::CopyQueue;
use crate::events::EventQueue;
use crate::flow::{Flow, FrameCounts, Received, Talk};
use crate::frame::FrameHead;
use crate::machine::{Machine, Role, ThreadState};
use crate::model::{Model, SwitchCosts};
use crate::random::Random;
use crate::switch::Switch;
pub(crate) use helping::HelpCounts;
use helping::Helping;

/// A step takes on work until it costs this much: signals and other threads wait no longer.
const STEP_NS: u64 = 20_000;

/// Which threads switch, and which copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Architecture {
    /// Workers switch and copy, as the product does.
    Lasthop,
    /// The sender switches; the receiver copies, or an idle CPU.
    HyperSwitch,
    /// The threads of a driver domain switch and copy.
    Xen,
    /// A thread for each card: the sender's switches, the receiver's copies.
    Kvm,
}

impl Architecture {
    /// All of them, with their names.
    pub(crate) const ALL: [(Self, &'static str); 4] = [
        (Self::Lasthop, "lasthop"),
        (Self::HyperSwitch, "hyper-switch"),
        (Self::Xen, "xen"),
        (Self::Kvm, "kvm"),
    ];

    /// The name that users write.
    pub(crate) fn name(self) -> &'static str {
        Self::ALL.iter().find(|(architecture, _)| *architecture == self).map_or("", |(_, name)| name)
    }

    fn costs(self, model: &Model) -> &SwitchCosts {
        match self {
            Self::Lasthop => &model.lasthop,
            Self::HyperSwitch => &model.hyper_switch,
            Self::Xen => &model.xen,
            Self::Kvm => &model.kvm,
        }
    }
}

/// The decisions that may be varied.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Choices {
    /// Whether copies are offloaded to idle CPUs, and which.
    pub(crate) offload: Option<OffloadCriteria>,
    /// Which idle CPU.
    pub(crate) place: PlaceCriteria,
    /// Whether a home with helpers signals after each frame, instead of at the end of its visit.
    pub(crate) early_signals: bool,
    /// Whether the data movement table says near which CPU a helper is sought.
    pub(crate) movement: bool,
    /// Helpers of a visit; the product has one.
    pub(crate) visit_helpers: usize,
}

impl Default for Choices {
    fn default() -> Self {
        Self {
            offload: Some(OffloadCriteria::default()),
            place: PlaceCriteria::default(),
            early_signals: false,
            movement: false,
            visit_helpers: 1,
        }
    }
}

/// A guest with one vCPU.
struct Guest {
    thread: usize,
    nics: Vec<u16>,
    /// It never sleeps, and no signal is sent to it.
    polls: bool,
    /// It sleeps for this time between two looks, if it is above 0.
    nap_ns: u64,
}

/// A card, as the lab sees it.
struct Port {
    guest: usize,
    cpu: usize,
    /// The backend thread that it is bound to.
    backend: usize,
    /// Flows that it sends, and the one that is next.
    flows: Vec<usize>,
    next_flow: usize,
    /// Flows of which packets came since the last sleep.
    touched: Vec<usize>,
    is_interrupted: bool,
    /// The guest takes packets without further signals (NAPI).
    is_polled: bool,
    /// The guest waits for room in the transmit ring.
    wants_room: bool,
    /// A visit that took nothing: no further one until something changes.
    is_stalled: bool,
    copies: CopyQueue,
    /// Frames that the fabric has taken and that are not paid for yet (not with Lasthop).
    staged: VecDeque<FrameHead>,
    /// A thread works on some of them: the next ones wait, so that the order stays.
    is_switching: bool,
    transmit: TransmitRing,
    /// The sender visits its own ring when it gets its CPU.
    must_visit: bool,
    transmit_alarm_ns: Option<u64>,
    /// The first packet of which the guest was not signalled.
    unsignalled_ns: Option<u64>,
    signalled_ns: Option<u64>,
}

/// A thread of the switch, or none with Hyper-Switch.
struct Backend {
    thread: usize,
    nics: Vec<u16>,
    next: usize,
    polling: AdaptivePoll,
    /// Senders have to kick, since it sleeps (Lasthop).
    is_armed: bool,
}

/// An order to copy: card and number of the job.
type CopyOrder = (u16, u64);

/// The work of a step, with effect at its end.
#[derive(Debug)]
enum Work {
    /// The guest publishes on the rings of its cards.
    Publish(usize),
    /// A worker visits a ring.
    Visit(u16),
    /// A worker with helpers has fetched frames of a ring, and copied them if that is true.
    Fetch(u16, bool),
    /// Copies of a worker with helpers are complete.
    Share(usize),
    /// A helper has copied a frame.
    Help(usize),
    /// Frames of a ring are switched, and wait for their copies.
    Switch(u16, Vec<FrameHead>),
    /// Copies are complete.
    Copy(Vec<CopyOrder>),
    /// Packets that waited for buffers are delivered.
    Drain,
    /// Nothing but costs.
    Settle,
}

/// A step that begins.
struct Step {
    cost_ns: u64,
    /// Bytes that are read or written.
    bytes: u64,
    work: Work,
}

#[derive(Debug)]
enum Event {
    StepEnd {
        cpu: usize,
    },
    Arrive {
        thread: usize,
    },
    /// A thread has polled for long enough.
    PollEnd {
        thread: usize,
        poll: u64,
    },
    /// A transmit timer of `sched::transmit` ends.
    TransmitDue {
        nic: u16,
    },
    /// A delayed signal of `sched::notify` is due.
    NotifyDue {
        nic: u16,
    },
    /// The pause of a guest's flow ends.
    PauseEnd {
        guest: usize,
    },
}

impl Event {
    /// For the hash of a run.
    fn digest(&self) -> u64 {
        match self {
            Self::StepEnd { cpu } => 1 << 32 | *cpu as u64,
            Self::Arrive { thread } => 2 << 32 | *thread as u64,
            Self::PollEnd { thread, .. } => 3 << 32 | *thread as u64,
            Self::TransmitDue { nic } => 4 << 32 | u64::from(*nic),
            Self::NotifyDue { nic } => 5 << 32 | u64::from(*nic),
            Self::PauseEnd { guest } => 6 << 32 | *guest as u64,
        }
    }
}

/// Sums at one time.
#[derive(Clone, Debug, Default)]
struct Totals {
    received: Received,
    visits: u64,
    busy_ns: Vec<u64>,
    offloaded: u64,
    stages: StageTimes,
}

/// Work of the product's workers and helpers, in ns on an undisturbed CPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct StageTimes {
    pub(crate) visit_ns: u64,
    /// Fetching, and finding destinations.
    pub(crate) packets_ns: u64,
    /// Copies of homes.
    pub(crate) own_ns: u64,
    /// Copies of helpers.
    pub(crate) helpers_ns: u64,
}

impl StageTimes {
    fn since(self, before: Self) -> Self {
        Self {
            visit_ns: self.visit_ns - before.visit_ns,
            packets_ns: self.packets_ns - before.packets_ns,
            own_ns: self.own_ns - before.own_ns,
            helpers_ns: self.helpers_ns - before.helpers_ns,
        }
    }
}

/// The result of a run.
#[derive(Clone, Debug)]
pub(crate) struct RunResult {
    /// The measured time.
    pub(crate) measured_ns: u64,
    /// Received in it.
    pub(crate) received: Received,
    /// Work of all CPUs in it, and of each.
    pub(crate) busy_ns: u64,
    pub(crate) cpus_ns: Vec<u64>,
    /// Work of the product's workers and helpers in it.
    pub(crate) stages: StageTimes,
    /// The product's helpers, in all of the run.
    pub(crate) help: HelpCounts,
    /// CPUs of workers and of guests.
    pub(crate) worker_cpus: Vec<usize>,
    pub(crate) guest_cpus: Vec<usize>,
    /// Times of complete requests in it, sorted.
    pub(crate) round_trips_ns: Vec<u64>,
    pub(crate) visits: u64,
    /// Copies by helpers in it.
    pub(crate) offloaded: u64,
    /// Packets dropped in all of the run.
    pub(crate) drops: Drops,
    /// Frames of the whole run.
    pub(crate) frames: FrameCounts,
    /// Of all events: equal runs have equal hashes.
    pub(crate) hash: u64,
}

impl RunResult {
    /// Payload in Gbit/s.
    pub(crate) fn gbit_per_s(&self) -> f64 {
        self.received.bytes as f64 * 8.0 / self.measured_ns as f64
    }

    /// Packets with payload, in millions for each second.
    pub(crate) fn mpps(&self) -> f64 {
        self.received.packets as f64 * 1e3 / self.measured_ns as f64
    }

    /// The time within which `percent` of all requests were complete; 0 without requests.
    pub(crate) fn round_trip_ns(&self, percent: usize) -> u64 {
        let at = self.round_trips_ns.len() * percent / 100;
        let last = self.round_trips_ns.len().saturating_sub(1);
        self.round_trips_ns.get(at.min(last)).copied().unwrap_or(0)
    }

    /// The busiest of some CPUs, in percent of the measured time.
    pub(crate) fn busiest_percent(&self, cpus: &[usize]) -> f64 {
        let most = cpus.iter().filter_map(|cpu| self.cpus_ns.get(*cpu)).max().copied().unwrap_or(0);
        100.0 * most as f64 / self.measured_ns as f64
    }

    /// Complete requests for each second.
    pub(crate) fn transactions_per_s(&self) -> f64 {
        self.received.transactions as f64 * 1e9 / self.measured_ns as f64
    }
}

/// A machine with guests, flows and a switch.
pub(crate) struct Simulation {
    now_ns: u64,
    events: EventQueue<Event>,
    machine: Machine,
    switch: Switch,
    flows: Vec<Flow>,
    guests: Vec<Guest>,
    ports: Vec<Port>,
    backends: Vec<Backend>,
    /// The helper of each CPU, and its orders.
    helpers: Vec<usize>,
    /// The product's helpers, if it has some.
    helping: Option<Helping>,
    orders: Vec<VecDeque<CopyOrder>>,
    works: Vec<Option<Work>>,
    next_swept: usize,
    /// Guests have posted buffers while packets waited for some.
    has_new_buffers: bool,
    taken: Vec<FrameHead>,
    signals: Vec<u16>,
    totals: Totals,
    hash: u64,
    architecture: Architecture,
    choices: Choices,
    model: Model,
    costs: SwitchCosts,
}

impl Simulation {
    /// A machine without guests.
    pub(crate) fn new(
        model: &Model,
        architecture: Architecture,
        choices: Choices,
        mut switch: Switch,
        workers: usize,
        helper_cpus: &[usize],
    ) -> Self {
        let mut machine = Machine::new(model);
        let cpus = machine.places.len();
        let helpers = match architecture {
            Architecture::HyperSwitch => (0..cpus).map(|cpu| machine.add(Role::Helper, cpu)).collect(),
            _ => Vec::new(),
        };
        let costs = architecture.costs(model).clone();
        let poll = (choices, costs.poll_max_ns);
        let helping = Helping::new(&mut machine, &mut switch, poll, workers, helper_cpus);
        Self {
            now_ns: 1,
            events: EventQueue::default(),
            machine,
            switch,
            flows: Vec::new(),
            guests: Vec::new(),
            ports: Vec::new(),
            backends: Vec::new(),
            helpers,
            helping,
            orders: vec![VecDeque::new(); cpus],
            works: (0..cpus).map(|_| None).collect(),
            next_swept: 0,
            has_new_buffers: false,
            taken: Vec::new(),
            signals: Vec::new(),
            totals: Totals::default(),
            hash: 0xcbf2_9ce4_8422_2325,
            architecture,
            choices,
            model: model.clone(),
            costs,
        }
    }

    /// Adds a backend thread on a CPU. Cards are bound to it later.
    pub(crate) fn add_backend(&mut self, cpu: usize) {
        let thread = self.machine.add(Role::Backend(self.backends.len()), cpu);
        let polling = AdaptivePoll::new(self.costs.poll_max_ns);
        self.backends.push(Backend { thread, nics: Vec::new(), next: 0, polling, is_armed: false });
    }

    /// Adds a guest on a CPU with further cards, bound to the given backend threads. With `polls` it never sleeps, but
    /// for `nap_ns` between two looks.
    pub(crate) fn add_guest(&mut self, cpu: usize, backends: &[usize], polls: bool, nap_ns: u64) {
        let guest = self.guests.len();
        let thread = self.machine.add(Role::Guest(guest), cpu);
        let first = self.ports.len() as u16;
        for (nic, &backend) in (first..).zip(backends) {
            if let Some(backend) = self.backends.get_mut(backend) {
                backend.nics.push(nic);
            }
            self.ports.push(Port {
                guest,
                cpu,
                backend,
                flows: Vec::new(),
                next_flow: 0,
                touched: Vec::new(),
                is_interrupted: false,
                is_polled: polls,
                wants_room: false,
                is_stalled: false,
                copies: CopyQueue::default(),
                staged: VecDeque::new(),
                is_switching: false,
                transmit: TransmitRing { visited_ns: 0, worked_ns: 0 },
                must_visit: false,
                transmit_alarm_ns: None,
                unsignalled_ns: None,
                signalled_ns: None,
            });
            if polls {
                self.switch.nics[usize::from(nic)].rx.suppress_calls();
            }
        }
        self.guests.push(Guest { thread, nics: (first..).take(backends.len()).collect(), polls, nap_ns });
    }

    /// Adds a conversation.
    pub(crate) fn add_flow(&mut self, flow: Flow) {
        self.ports[usize::from(flow.from)].flows.push(self.flows.len());
        self.flows.push(flow);
    }

    /// Lets each guest begin at another time: after up to `limit_ns` of other work.
    pub(crate) fn stagger(&mut self, random: &mut Random, limit_ns: u64) {
        for guest in &self.guests {
            self.machine.threads[guest.thread].debt_ns += random.below(limit_ns);
        }
    }

    /// Runs for `warm_up_ns`, then measures for `measured_ns`.
    ///
    /// # Errors
    /// If a frame was reordered, or is missing without a reason.
    pub(crate) fn run(mut self, warm_up_ns: u64, measured_ns: u64) -> Result<RunResult> {
        for guest in 0..self.guests.len() {
            self.wake(self.guests[guest].thread, None);
        }
        self.run_until(warm_up_ns.max(1));
        let before = self.totals();
        self.flows.iter_mut().for_each(|flow| flow.round_trips_ns.clear());
        self.run_until(warm_up_ns + measured_ns);
        let after = self.totals();
        let frames = self.frames();
        let disorder: u64 = self.flows.iter().map(|flow| flow.disorder).sum();
        ensure!(disorder == 0, "{disorder} frames came out of order");
        self.end_copies();
        let drops = self.switch.check(frames)?;
        let help = self.helping.as_ref().map_or_else(HelpCounts::default, Helping::counts);
        ensure!(help.late == 0, "{} CPUs were given back later than after one frame", help.late);
        let mut round_trips_ns: Vec<u64> =
            self.flows.iter().flat_map(|flow| flow.round_trips_ns.iter().copied()).collect();
        round_trips_ns.sort_unstable();
        let cpus_ns = after.busy_ns.iter().zip(&before.busy_ns).map(|(after, before)| after - before);
        let cpu_of = |thread: usize| self.machine.threads[thread].cpu;
        let busy = |totals: &Totals| totals.busy_ns.iter().sum::<u64>();
        Ok(RunResult {
            measured_ns,
            received: Received {
                packets: after.received.packets - before.received.packets,
                bytes: after.received.bytes - before.received.bytes,
                transactions: after.received.transactions - before.received.transactions,
            },
            busy_ns: busy(&after) - busy(&before),
            cpus_ns: cpus_ns.collect(),
            stages: after.stages.since(before.stages),
            help,
            worker_cpus: self.backends.iter().map(|backend| cpu_of(backend.thread)).collect(),
            guest_cpus: self.guests.iter().map(|guest| cpu_of(guest.thread)).collect(),
            round_trips_ns,
            visits: after.visits - before.visits,
            offloaded: after.offloaded - before.offloaded,
            drops,
            frames,
            hash: self.hash,
        })
    }

    fn totals(&self) -> Totals {
        let mut totals = Totals { busy_ns: self.machine.busy_ns(), ..self.totals.clone() };
        for flow in &self.flows {
            let one = flow.received();
            totals.received.packets += one.packets;
            totals.received.bytes += one.bytes;
            let is_echo = matches!(flow.talk, Talk::Echo { .. });
            totals.received.transactions += u64::from(is_echo) * one.transactions;
        }
        totals
    }

    fn frames(&self) -> FrameCounts {
        let mut sum = FrameCounts::default();
        for one in self.flows.iter().map(Flow::frames) {
            sum.sent += one.sent;
            sum.received += one.received;
            sum.skipped += one.skipped;
            sum.packets += one.packets;
        }
        sum
    }

    fn run_until(&mut self, end_ns: u64) {
        while let Some((at_ns, event)) = self.events.pop_before(end_ns) {
            self.now_ns = at_ns;
            for word in [at_ns, event.digest()] {
                self.hash = (self.hash ^ word).wrapping_mul(0x0100_0000_01b3);
            }
            self.handle(event);
        }
        self.now_ns = end_ns;
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::StepEnd { cpu } => {
                let Some(thread) = self.machine.end(cpu, self.now_ns) else { return };
                if let Some(work) = self.works[cpu].take() {
                    self.finish(thread, work);
                }
                if self.machine.continues(cpu) {
                    self.step(thread, 0);
                }
                self.dispatch(cpu);
            }
            Event::Arrive { thread } => {
                let cpu = self.machine.threads[thread].cpu;
                let is_wanted =
                    self.machine.has_helper(cpu) && self.machine.threads[thread].role != Role::Helper;
                if let Some(helping) = self.helping.as_mut().filter(|_| is_wanted) {
                    helping.note_wanted(cpu, self.now_ns);
                }
                if self.machine.arrive(thread) {
                    self.dispatch(cpu);
                } else if !self.machine.is_idle(cpu) {
                    self.abandon_orders(cpu);
                }
            }
            Event::PollEnd { thread, poll } => {
                let entry = &self.machine.threads[thread];
                if entry.state == ThreadState::Polling && entry.poll == poll && !entry.is_woken {
                    self.end_poll(thread);
                }
            }
            Event::TransmitDue { nic } => self.transmit_due(nic),
            Event::NotifyDue { nic } => self.notify_due(nic),
            Event::PauseEnd { guest } => self.wake(self.guests[guest].thread, None),
        }
    }

    /// Gives a free CPU to threads until one has work.
    fn dispatch(&mut self, cpu: usize) {
        while let Some((thread, switch_ns)) = self.machine.choose(cpu) {
            self.step(thread, switch_ns);
        }
    }

    /// Begins a step of the running thread, or lets it rest.
    fn step(&mut self, thread: usize, switch_ns: u64) {
        let (role, cpu) = (self.machine.threads[thread].role, self.machine.threads[thread].cpu);
        if role != Role::Helper {
            self.abandon_orders(cpu);
            let now_ns = self.now_ns;
            self.helping.iter_mut().for_each(|helping| helping.note_given_back(cpu, now_ns));
        }
        let step = match role {
            Role::Guest(guest) => self.guest_step(guest),
            Role::Backend(backend) => self.backend_step(backend),
            Role::Helper if self.helping.is_some() => self.seat_step(cpu),
            Role::Helper => self.helper_step(cpu),
        };
        let debt_ns = std::mem::take(&mut self.machine.threads[thread].debt_ns) + switch_ns;
        let step = step.or((debt_ns > 0).then_some(Step { cost_ns: 0, bytes: 0, work: Work::Settle }));
        let Some(step) = step else { return self.rest(thread) };
        let duration_ns = self.machine.begin(cpu, step.cost_ns + debt_ns, step.bytes, self.now_ns);
        self.works[cpu] = Some(step.work);
        if let Some(helping) = self.helping.as_mut().filter(|_| role == Role::Helper) {
            helping.note_step(cpu, duration_ns);
        }
        let entry = &mut self.machine.threads[thread];
        // A thread that has worked polls anew; a debt alone does not count.
        if step.cost_ns > 0 {
            entry.poll_until_ns = 0;
        }
        self.events.push(self.now_ns + duration_ns, Event::StepEnd { cpu });
    }

    /// The running thread has nothing to do: it polls for a while, then sleeps.
    fn rest(&mut self, thread: usize) {
        let poll_ns = match self.machine.threads[thread].role {
            Role::Guest(guest) if self.guests[guest].nap_ns > 0 => 0,
            Role::Guest(guest) => u64::from(self.guests[guest].polls) * u64::MAX / 2,
            Role::Backend(backend) => self.poll_ns(backend),
            Role::Helper => {
                let cpu = self.machine.threads[thread].cpu;
                self.helping.as_ref().map_or(self.costs.poll_max_ns, |helping| helping.poll_ns(cpu))
            }
        };
        let entry = &mut self.machine.threads[thread];
        if entry.poll_until_ns == 0 {
            entry.poll_until_ns = self.now_ns.saturating_add(poll_ns);
        }
        let until_ns = entry.poll_until_ns;
        if until_ns <= self.now_ns {
            entry.poll_until_ns = 0;
            if self.may_sleep(thread) {
                self.begin_nap(thread);
                return self.machine.rest(thread, false);
            }
            return self.look_again(thread);
        }
        entry.poll += 1;
        let poll = entry.poll;
        self.machine.rest(thread, true);
        if until_ns < u64::MAX / 4 {
            self.events.push(until_ns, Event::PollEnd { thread, poll });
        }
    }

    /// A guest that sleeps between two looks will look again.
    fn begin_nap(&mut self, thread: usize) {
        if let Role::Guest(guest) = self.machine.threads[thread].role
            && self.guests[guest].nap_ns > 0
        {
            self.events.push(self.now_ns + self.guests[guest].nap_ns, Event::PauseEnd { guest });
        }
    }

    /// Frames came while a worker armed its rings.
    fn look_again(&mut self, thread: usize) {
        let cpu = self.machine.threads[thread].cpu;
        let duration_ns = self.machine.begin(cpu, self.costs.visit_ns, 0, self.now_ns);
        self.works[cpu] = Some(Work::Settle);
        self.events.push(self.now_ns + duration_ns, Event::StepEnd { cpu });
    }

    fn end_poll(&mut self, thread: usize) {
        let cpu = self.machine.threads[thread].cpu;
        self.machine.threads[thread].state = ThreadState::Running;
        self.step(thread, 0);
        self.dispatch(cpu);
    }

    /// Whether a thread may sleep: a worker arms its rings and looks once more.
    fn may_sleep(&mut self, thread: usize) -> bool {
        match (self.architecture, self.machine.threads[thread].role) {
            (Architecture::Lasthop, Role::Backend(backend)) => self.arm(backend),
            _ => true,
        }
    }

    /// The effects of a step at its end.
    fn finish(&mut self, thread: usize, work: Work) {
        match work {
            Work::Publish(guest) => self.publish(guest, thread),
            Work::Visit(nic) => self.visit(nic, thread),
            Work::Fetch(nic, is_copied) => self.fetched(nic, thread, is_copied),
            Work::Share(backend) => self.shared(backend, thread),
            Work::Help(seat) => self.helped(seat),
            Work::Switch(nic, heads) => self.switched(nic, heads, thread),
            Work::Copy(orders) => self.copied(&orders, thread),
            Work::Drain => self.drained(thread),
            Work::Settle => {}
        }
    }

    /// Wakes a thread. `by`, if it is given, pays for the order.
    fn wake(&mut self, thread: usize, by: Option<usize>) {
        let sleeps = self.machine.threads[thread].state == ThreadState::Blocked;
        let Some(delay_ns) = self.machine.order(thread) else { return };
        if let Some(by) = by.filter(|_| sleeps) {
            self.machine.threads[by].debt_ns += self.model.cpu.ipi_ns;
        }
        self.events.push(self.now_ns + delay_ns, Event::Arrive { thread });
    }

    /// A guest as the production policies see it, from no CPU of its own.
    fn view(&self, guest: usize) -> GuestView {
        GuestView::new(u16::MAX, [Some(self.vcpu(guest))])
    }

    /// The thread of a guest, as the production policies see it.
    fn vcpu(&self, guest: usize) -> SchedState {
        let thread = &self.machine.threads[self.guests[guest].thread];
        let activity = match thread.state {
            ThreadState::Blocked if thread.is_woken => Activity::Runnable,
            ThreadState::Blocked => Activity::Blocked,
            ThreadState::Ready => Activity::Runnable,
            ThreadState::Running | ThreadState::Polling => Activity::Running,
        };
        SchedState { activity, cpu: thread.cpu as u16, for_ns: u64::MAX }
    }

    fn guest_thread(&self, nic: u16) -> usize {
        self.guests[self.ports[usize::from(nic)].guest].thread
    }

    fn is_asleep(&self, nic: u16) -> bool {
        self.machine.is_asleep(self.guest_thread(nic))
    }

    /// Frames that are copied become visible. A guest that polls sees them by itself.
    fn arrived(&mut self, nic: u16, copier_cpu: usize) {
        self.switch.nics[usize::from(nic)].arrivals.push_back(crate::nic::Arrival { copier_cpu });
        if self.polls(nic) {
            self.wake_guest(nic, None);
        }
    }

    fn polls(&self, nic: u16) -> bool {
        self.guests[self.ports[usize::from(nic)].guest].polls
    }

    /// Wakes a guest, unless it looks at its rings at times of its own.
    fn wake_guest(&mut self, nic: u16, by: Option<usize>) {
        if self.guests[self.ports[usize::from(nic)].guest].nap_ns == 0 {
            self.wake(self.guest_thread(nic), by);
        }
    }

    /// Sends a virtual interrupt.
    fn interrupt(&mut self, nic: u16, by: usize) {
        self.machine.threads[by].debt_ns += self.costs.signal_ns;
        let port = &mut self.ports[usize::from(nic)];
        port.is_interrupted = true;
        (port.signalled_ns, port.unsignalled_ns) = (Some(self.now_ns), None);
        self.wake(self.guest_thread(nic), Some(by));
    }
}
