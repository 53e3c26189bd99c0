//! The last decisions of policies, for operators who ask why a thread polled, slept or signalled.

use std::collections::VecDeque;

use lasthop_module_api::PortId;
use lasthop_sched::{
    GuestView, LastOffer, LookRound, Notification, SharedThread, TransmitRing, UnansweredSignal,
};

/// Entries of one worker, 48 KiB: some seconds of a guest with little traffic.
pub const TRACE_ENTRIES_MAX: usize = 256;

/// A decision of a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PolicyDecision {
    /// Look: kept polling, since the guest runs on another CPU.
    LookPoll,
    /// Look: yielded the CPU to the guest, which waits for it.
    LookYield,
    /// Look: armed the rings.
    LookSleep,
    /// Look: used the learned time, since the guest's state is unknown.
    LookUnseen,
    /// Yield: offered the CPU.
    Offer,
    /// Second signal: sent, since the guest sleeps.
    SecondSignal,
    /// Second signal: not sent, since the guest runs or waits for a CPU.
    NoSecondSignal,
    /// Notify: delayed, or part of a delayed one.
    SignalDelayed,
    /// Notify: a delayed signal was not sent, since the guest has taken the packets.
    SignalDrained,
    /// Transmit timer: a quiet ring has a timer instead of kicks.
    Timed,
    /// Transmit timer: a visit found packets.
    TimedPackets,
    /// Transmit timer: a visit found none.
    TimedInVain,
    /// Offload: a helper gave its CPU back to another thread.
    HelperLeft,
    /// Gathering: no worker left a thread with much to do, since no CPU was idle.
    SeparationHeld,
    /// Gathering: a worker left it for an idle CPU.
    Separated,
    /// Gathering: a worker left earlier than without a view, since several CPUs were idle.
    SeparatedEarly,
    /// Gathering: a worker left although no CPU was idle, since the thread had been saturated for long.
    SeparatedLate,
}

/// How soon a helper gave its CPU back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuReturn {
    /// Frames that it took between its last look that showed no waiting thread and the one that showed one.
    pub frames: u32,
    /// Time between these looks in ns, or since it had the order: the thread waited no longer, as far as the view shows.
    pub unseen_ns: u64,
    /// Time from the second look until it had published its last frame and went to sleep, in ns.
    pub leaving_ns: u64,
}

/// The inputs of a decision beside the guest's threads. Times in ns since the engine started, or before the decision.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DecisionInputs {
    /// It is not a decision of `lasthop_sched`.
    #[default]
    None,
    /// Of look: the round, and the last offer of the CPU, which counts where the guest waits for it.
    Look(LookRound, Option<LastOffer>),
    /// Of yield: threads that wait for the CPU (`None`: the view does not show it), and the last offer.
    Yield(Option<u32>, Option<LastOffer>),
    /// Of second signal.
    SecondSignal(UnansweredSignal),
    /// Of notify.
    Notify(Notification),
    /// Of the transmit timer.
    TransmitTimer(TransmitRing),
    /// Of gathering: the thread, and the number of idle CPUs.
    Gathering(SharedThread, Option<u16>),
}

/// The state of the world by which a policy decided.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Judged {
    /// The guest's threads, if they were known.
    pub guest: Option<GuestView>,
    /// All else.
    pub inputs: DecisionInputs,
}

/// Sums over the repetitions of a decision, since only the first one's inputs are kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Repetitions {
    /// Of look: pauses between packets in which it was decided. Of notify: signals that were not joined to a delayed one.
    pub starts: u64,
    /// Of look: time without packets at the last decision, in ns.
    pub idle_last_ns: u64,
    /// The longest such time, in ns.
    pub idle_max_ns: u64,
    /// Sum over the pauses of the time without packets at the last decision in each, in ns.
    pub idle_sum_ns: u64,
}

impl Repetitions {
    fn new(inputs: &DecisionInputs, now_ns: u64) -> Self {
        let mut sums = Self::default();
        sums.add(inputs, now_ns, now_ns);
        sums
    }

    /// Adds a decision at `now_ns`; the one before was at `last_ns`.
    fn add(&mut self, inputs: &DecisionInputs, last_ns: u64, now_ns: u64) {
        match inputs {
            DecisionInputs::Look(round, _) => {
                let began = |now_ns: u64, idle_ns: u64| now_ns.saturating_sub(idle_ns);
                let is_same =
                    self.starts > 0 && began(last_ns, self.idle_last_ns) == began(now_ns, round.idle_ns);
                self.starts += u64::from(!is_same);
                let counted_ns = if is_same { self.idle_last_ns } else { 0 };
                self.idle_sum_ns += round.idle_ns.saturating_sub(counted_ns);
                self.idle_last_ns = round.idle_ns;
                self.idle_max_ns = self.idle_max_ns.max(round.idle_ns);
            }
            DecisionInputs::Notify(pending) => self.starts += u64::from(pending.first_ns == now_ns),
            _ => {}
        }
    }
}

/// A decision, and how often it was repeated without another one in between.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TracedDecision {
    /// Time of the first decision, in ns since the engine started.
    pub first_ns: u64,
    /// Time of the last one.
    pub last_ns: u64,
    /// Number of repetitions.
    pub times: u64,
    /// The decision.
    pub decision: PolicyDecision,
    /// The port of the guest in question, if there is one.
    pub port: Option<PortId>,
    /// The guest's threads at the first decision, if they were known, and all else that it used.
    pub judged: Judged,
    /// Sums over all repetitions.
    pub repetitions: Repetitions,
    /// How soon a helper gave its CPU back; each time has an entry of its own.
    pub cpu_return: Option<CpuReturn>,
}

impl TracedDecision {
    /// The first decision of an entry.
    fn new(now_ns: u64, decision: PolicyDecision, port: Option<PortId>, judged: Judged) -> Self {
        let repetitions = Repetitions::new(&judged.inputs, now_ns);
        Self {
            first_ns: now_ns,
            last_ns: now_ns,
            times: 1,
            decision,
            port,
            judged,
            repetitions,
            cpu_return: None,
        }
    }
}

/// A worker's trace. Without a view it has no memory and stays empty.
#[derive(Debug, Default)]
pub(crate) struct DecisionTrace(VecDeque<TracedDecision>);

impl DecisionTrace {
    /// Allocates the trace.
    pub(crate) fn begin(&mut self) {
        self.0.reserve_exact(TRACE_ENTRIES_MAX.saturating_sub(self.0.len()));
    }

    /// Adds that a helper gave its CPU back at `now_ns`.
    pub(crate) fn enter_return(&mut self, now_ns: u64, back: CpuReturn) {
        let entry = TracedDecision::new(now_ns, PolicyDecision::HelperLeft, None, Judged::default());
        self.push(TracedDecision { cpu_return: Some(back), ..entry });
    }

    /// Adds a decision; removes the oldest one if the trace is full.
    pub(crate) fn enter(
        &mut self,
        now_ns: u64,
        decision: PolicyDecision,
        port: Option<PortId>,
        judged: Judged,
    ) {
        if let Some(last) = self.0.back_mut().filter(|last| (last.decision, last.port) == (decision, port)) {
            last.repetitions.add(&judged.inputs, last.last_ns, now_ns);
            (last.last_ns, last.times) = (now_ns, last.times + 1);
            return;
        }
        self.push(TracedDecision::new(now_ns, decision, port, judged));
    }

    fn push(&mut self, entry: TracedDecision) {
        if self.0.len() >= TRACE_ENTRIES_MAX {
            self.0.pop_front();
        }
        self.0.push_back(entry);
    }

    /// The entries, oldest first.
    pub(crate) fn entries(&self) -> Vec<TracedDecision> {
        self.0.iter().copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_return_of_a_cpu_has_an_entry_and_the_oldest_ones_go() {
        let mut trace = DecisionTrace::default();
        trace.begin();
        let back = |unseen_ns| CpuReturn { frames: 1, unseen_ns, leaving_ns: 300 };
        for number in 0..=TRACE_ENTRIES_MAX as u64 {
            trace.enter_return(number, back(number));
        }
        let entries = trace.entries();
        assert_eq!((entries.len(), entries[0].cpu_return), (TRACE_ENTRIES_MAX, Some(back(1))));
    }

    #[test]
    fn pauses_of_repeated_decisions_are_added_up() {
        let mut trace = DecisionTrace::default();
        // Packets at 100 and at 500.
        for (now_ns, idle_ns) in [(110, 10), (150, 50), (560, 60), (590, 90)] {
            let round = LookRound { idle_ns, learned_ns: 50, max_ns: 200, is_posted: false };
            let judged = Judged { guest: None, inputs: DecisionInputs::Look(round, None) };
            trace.enter(now_ns, PolicyDecision::LookPoll, Some(PortId(1)), judged);
        }
        let expected = Repetitions { starts: 2, idle_last_ns: 90, idle_max_ns: 90, idle_sum_ns: 140 };
        assert_eq!(trace.entries()[0].repetitions, expected);
        for (now_ns, first_ns) in [(600, 600), (610, 600), (700, 700)] {
            let pending = Notification {
                is_wanted: true,
                first_ns,
                signalled_ns: None,
                has_progressed: true,
                is_full: false,
            };
            let judged = Judged { guest: None, inputs: DecisionInputs::Notify(pending) };
            trace.enter(now_ns, PolicyDecision::SignalDelayed, Some(PortId(1)), judged);
        }
        let last = trace.entries()[1];
        assert_eq!((last.times, last.repetitions.starts), (3, 2), "one was joined");
    }

    #[test]
    fn repetitions_are_one_entry_and_the_oldest_entries_go() {
        let mut trace = DecisionTrace::default();
        trace.begin();
        let room = trace.0.capacity();
        for now_ns in 0..3 {
            trace.enter(now_ns, PolicyDecision::LookPoll, Some(PortId(1)), Judged::default());
        }
        let entry = trace.entries()[0];
        assert_eq!((entry.first_ns, entry.last_ns, entry.times, trace.entries().len()), (0, 2, 3, 1));
        for number in 0..2 * TRACE_ENTRIES_MAX as u64 {
            let port = Some(PortId((number % 2) as u16));
            trace.enter(number + 10, PolicyDecision::LookSleep, port, Judged::default());
        }
        assert_eq!(trace.entries().len(), TRACE_ENTRIES_MAX);
        assert_eq!(trace.entries()[0].first_ns, 10 + TRACE_ENTRIES_MAX as u64);
        assert_eq!(trace.0.capacity(), room, "it takes no more memory");
        assert!(size_of::<TracedDecision>() * TRACE_ENTRIES_MAX <= 48 << 10);
    }
}
