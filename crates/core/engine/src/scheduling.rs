//! Polling, yielding and second signals of a thread, by the state of the host's scheduler where that is known.
//!
//! ```text
//!   a round without packets ──> state of the last receiver ──> look: poll, yield or sleep
//!                           ├─> state of the own CPU ────────> yield: keep the CPU, or offer it
//!                           └─> state of the guest signalled ─> second signal, or none (`reminders.rs`)
//!   each ms of a thread with several workers ──> number of idle CPUs ──> gathering: a worker leaves, or not (`crowd_watch.rs`)
//! ```
//!
//! Each state is read once a round at most, those of guests never while there are packets. Without a view, or with a
//! policy that is off, nothing here has an effect.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use lasthop_module_api::PortId;
use lasthop_ring::CoreReturn;
use lasthop_sched::{
    CpuDistance, CpuState, GuestView, IDLE_CPUS_MAX, LastOffer, Look, LookRound, Modes, Notification, Notify,
    Occupancy, Policy, Reminder, Separation, SharedThread, Transmit, TransmitRing, UnansweredSignal, look,
    notify, occupy, remind, separate, transmit,
};

use crate::decision_trace::{
    CpuReturn, DecisionInputs, DecisionTrace, Judged, PolicyDecision, TracedDecision,
};
use crate::movement_table::{Delivery, MovementTable};
use crate::scheduler_view::{SchedulerView, own_cpu};

/// Time in ns within which packets count as the result of a second signal, as in `ring/signal_retry.rs`.
const ANSWER_NS: u64 = 400_000;

/// Counts of the policies' decisions since the worker started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PolicyCounters {
    /// Look: kept polling, since the guest that owes an answer runs on another CPU.
    pub look_polls: u64,
    /// Look: yielded the CPU to a guest that waits for it.
    pub look_yields: u64,
    /// Look: armed its rings before the end of the learned time, since the guest sleeps or waits for another CPU.
    pub look_sleeps: u64,
    /// Look: the time that was not spent polling, compared with the learned time, in us.
    pub look_spared_us: u64,
    /// Look: used the learned time, since the guest's state is unknown.
    pub look_unseen: u64,
    /// Yield: kept the CPU, where it would have been offered without a view.
    pub offers_spared: u64,
    /// Yield: offered the CPU.
    pub offers: u64,
    /// Offers of both policies after which another thread took the CPU.
    pub offers_taken: u64,
    /// Second signal: sent to a guest that slept.
    pub second_signals: u64,
    /// Second signals after which packets came within 0.4 ms.
    pub second_signals_answered: u64,
    /// Notify: signals that were delayed.
    pub signals_delayed: u64,
    /// Notify: signals that were omitted, since one of their ring was delayed already.
    pub signals_joined: u64,
    /// Notify: delayed signals that were not sent, since the guest had taken the packets by then.
    pub signals_drained: u64,
    /// Transmit timer: quiet rings that got a timer instead of kicks.
    pub transmits_timed: u64,
    /// Transmit timer: visits that found packets, each of which spared a kick.
    pub kicks_spared: u64,
    /// Transmit timer: visits that found none.
    pub timed_in_vain: u64,
    /// Events of threads that went to sleep.
    pub sleep_events: u64,
    /// Second signal: not sent to a guest that was awake, where one would have been sent without a view.
    pub second_signals_spared: u64,
    /// Offload: visits with large frames that were shared with a helper.
    pub offloads_shared: u64,
    /// Offload: visits with large frames for which no helper's CPU was idle.
    pub offloads_alone: u64,
    /// Offload: orders that a helper gave up, since another thread wanted its CPU.
    pub helps_given_up: u64,
    /// Movement: vCPUs that slept when packets were written for them, and ran next on the CPU that wrote.
    pub landed_same: u64,
    /// Movement: the same, on another CPU of its last-level cache.
    pub landed_near: u64,
    /// Movement: the same, elsewhere.
    pub landed_far: u64,
    /// Movement: visits with large frames for which a helper was sought near another CPU than without the table.
    pub offloads_moved: u64,
    /// Gathering: windows after which no worker left a thread with much to do, since no CPU was idle.
    pub separations_held: u64,
    /// Gathering: workers that left it.
    pub separations: u64,
    /// Gathering: those of them that left earlier than without a view, since several CPUs were idle.
    pub separations_early: u64,
    /// Gathering: those of them that left although no CPU was idle, since the thread had been saturated for long.
    pub separations_late: u64,
}

/// A worker's view and policies.
#[derive(Debug, Default)]
pub(crate) struct Scheduling {
    view: Option<Arc<dyn SchedulerView>>,
    modes: Modes,
    /// When the CPU came back from the last offer, and whether another thread had taken it.
    last: Option<(u64, bool)>,
    /// Last time at which the CPU would have been offered without a view.
    probed_ns: u64,
    /// Time of the last second signal, until it is known whether it was answered.
    reminded_ns: Option<u64>,
    /// Time of the last signal after which a guess would have sent a second one.
    guessed_ns: u64,
    trace: DecisionTrace,
    /// The table, while the policy movement is used.
    pub(crate) movement: Option<Arc<MovementTable>>,
    pub(crate) counters: PolicyCounters,
}

/// The step after a round without packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IdleStep {
    /// Arm the rings that have had no packets for this many ns.
    Arm(u64),
    /// Offer the CPU, then poll the rings again.
    Offer,
}

impl Scheduling {
    pub(crate) fn set(&mut self, view: Option<Arc<dyn SchedulerView>>, modes: Modes) {
        if view.is_some() {
            self.trace.begin();
        }
        (self.view, self.modes) = (view, modes);
    }

    /// Whether the policy uses the state of the last receiver.
    #[inline]
    pub(crate) fn looks(&self) -> bool {
        self.view.is_some() && self.modes.is_used(Policy::Look)
    }

    /// Whether the CPU's state decides when it is offered.
    pub(crate) fn yields(&self) -> bool {
        self.view.is_some() && self.modes.is_used(Policy::Yield)
    }

    /// Whether a guest's state decides about a second signal.
    #[inline]
    pub(crate) fn reminds(&self) -> bool {
        self.view.is_some() && self.modes.is_used(Policy::SecondSignal)
    }

    /// Decides about a signal that the guest of `port` has not answered.
    pub(crate) fn remind(&self, signal: UnansweredSignal, port: PortId) -> (Reminder, Judged) {
        let guest = self.guest(Some(port));
        let judged = Judged { guest, inputs: DecisionInputs::SecondSignal(signal) };
        (remind(signal, guest.as_ref()), judged)
    }

    /// Whether signals to running guests may be delayed.
    #[inline]
    pub(crate) fn notifies(&self) -> bool {
        self.view.is_some() && self.modes.is_used(Policy::Notify)
    }

    /// Decides when to signal the guest of `port`.
    pub(crate) fn notify(&self, pending: &Notification, port: PortId, now: u64) -> (Notify, Judged) {
        if !self.notifies() {
            return (Notify::Now, Judged::default());
        }
        let guest = self.guest(Some(port));
        let judged = Judged { guest, inputs: DecisionInputs::Notify(*pending) };
        (notify(pending, guest.as_ref(), now), judged)
    }

    /// Counts a signal of `worker` to the guest of `port` that is delayed, or omitted since one is delayed already. The
    /// first one asks for an event when the guest goes to sleep.
    pub(crate) fn note_delay(
        &mut self,
        (port, worker): (PortId, usize),
        is_joined: bool,
        judged: Judged,
        now: u64,
    ) {
        if is_joined {
            self.counters.signals_joined += 1;
        } else {
            self.counters.signals_delayed += 1;
            self.view.iter().for_each(|view| view.wake_when_asleep(port, worker));
        }
        self.trace.enter(now, PolicyDecision::SignalDelayed, Some(port), judged);
    }

    /// Counts a delayed signal that was not sent, since the guest of `port` has taken the packets.
    pub(crate) fn note_drained(&mut self, port: PortId, judged: Judged, now: u64) {
        self.counters.signals_drained += 1;
        self.trace.enter(now, PolicyDecision::SignalDrained, Some(port), judged);
    }

    /// Whether senders that run may have a timer instead of kicks.
    #[inline]
    pub(crate) fn times_transmits(&self) -> bool {
        self.view.is_some() && self.modes.is_used(Policy::TransmitTimer)
    }

    /// Decides about a quiet transmit ring of the guest of `port`, whose home is `worker`.
    pub(crate) fn transmit(
        &self,
        ring: TransmitRing,
        port: PortId,
        worker: usize,
        now: u64,
    ) -> (Transmit, Judged) {
        let Some(view) = self.view.as_ref().filter(|_| self.times_transmits()) else {
            return (Transmit::Arm, Judged::default());
        };
        // Before the state is read: a thread that goes to sleep in between makes an event.
        view.wake_when_asleep(port, worker);
        let guest = view.timed_guest(port, own_cpu());
        let judged = Judged { guest, inputs: DecisionInputs::TransmitTimer(ring) };
        (transmit(ring, guest.as_ref(), now), judged)
    }

    /// Counts a ring of `port` that got a timer.
    pub(crate) fn note_timed(&mut self, now: u64, port: PortId, judged: Judged) {
        self.counters.transmits_timed += 1;
        self.trace.enter(now, PolicyDecision::Timed, Some(port), judged);
    }

    /// Counts a visit to a timed ring of `port`.
    pub(crate) fn note_timed_visit(&mut self, now: u64, port: PortId, judged: Judged, has_packets: bool) {
        let decision = if has_packets {
            self.counters.kicks_spared += 1;
            PolicyDecision::TimedPackets
        } else {
            self.counters.timed_in_vain += 1;
            PolicyDecision::TimedInVain
        };
        self.trace.enter(now, decision, Some(port), judged);
    }

    /// The number of idle CPUs among these, [`IDLE_CPUS_MAX`] at most; `None` if the view shows none of them, or does not decide
    /// which thread serves a worker.
    pub(crate) fn idle_cpus(&self, cpus: &[u16], is_idle: impl Fn(&CpuState) -> bool) -> Option<u16> {
        let view = self.view.as_ref().filter(|_| self.modes.is_used(Policy::Gathering))?;
        let (own, mut idle, mut is_known) = (own_cpu(), 0, false);
        for &cpu in cpus {
            let Some(state) = view.cpu(cpu) else { continue };
            is_known = true;
            // The calling thread has this CPU, so the state may be outdated.
            idle += u16::from(cpu != own && is_idle(&state));
            if idle == IDLE_CPUS_MAX {
                break;
            }
        }
        is_known.then_some(idle)
    }

    /// Decides whether a worker leaves a thread that serves several, by the number of idle CPUs.
    pub(crate) fn separates(&mut self, thread: SharedThread, idle_cpus: Option<u16>, now: u64) -> bool {
        let separation = separate(thread, idle_cpus);
        let decision = match separation {
            Separation::Together => None,
            Separation::Held => Some(PolicyDecision::SeparationHeld),
            Separation::Apart => Some(PolicyDecision::Separated),
            Separation::Early => Some(PolicyDecision::SeparatedEarly),
            Separation::Late => Some(PolicyDecision::SeparatedLate),
        };
        if let (Some(decision), Some(_)) = (decision, idle_cpus) {
            self.counters.separations_held += u64::from(separation == Separation::Held);
            self.counters.separations += u64::from(separation.is_apart());
            self.counters.separations_early += u64::from(separation == Separation::Early);
            self.counters.separations_late += u64::from(separation == Separation::Late);
            let inputs = DecisionInputs::Gathering(thread, idle_cpus);
            self.trace.enter(now, decision, None, Judged { guest: None, inputs });
        }
        separation.is_apart()
    }

    /// The view, if large frames may be shared with helpers.
    pub(crate) fn offload_view(&self) -> Option<Arc<dyn SchedulerView>> {
        self.view.clone().filter(|_| self.modes.is_used(Policy::Offload))
    }

    /// The view, if there is one.
    pub(crate) fn shared_view(&self) -> Option<Arc<dyn SchedulerView>> {
        self.view.clone()
    }

    /// Updates the rows of the queues that packets went to, if there is a table.
    pub(crate) fn note_delivery(&mut self, to: &Delivery) {
        let (Some(view), Some(movement)) = (&self.view, &self.movement) else { return };
        movement.deliver(&**view, to, |landed| {
            *match landed {
                CpuDistance::Same => &mut self.counters.landed_same,
                CpuDistance::Group | CpuDistance::Llc => &mut self.counters.landed_near,
                CpuDistance::Node | CpuDistance::Far => &mut self.counters.landed_far,
            } += 1;
        });
    }

    /// Whether another thread waits for this thread's CPU, as far as the view shows.
    pub(crate) fn is_own_cpu_wanted(&self) -> bool {
        self.view.as_ref().and_then(|view| view.cpu(own_cpu())).is_some_and(|cpu| cpu.waiting > 0)
    }

    /// Counts that this helper gives its CPU to another thread.
    pub(crate) fn note_return(&mut self, now: u64, back: CpuReturn) {
        self.counters.helps_given_up += 1;
        self.trace.enter_return(now, back);
    }

    /// The descriptor of this worker's events, if the view has any.
    pub(crate) fn sleep_events(&self, worker: usize) -> Option<BorrowedFd<'_>> {
        self.view.as_ref()?.sleep_events(worker)
    }

    /// Counts an event, and makes room for further ones.
    pub(crate) fn clear_events(&mut self, worker: usize) {
        self.counters.sleep_events += 1;
        self.view.iter().for_each(|view| view.clear_events(worker));
    }

    /// Whether this is the first call for a signal of this time.
    pub(crate) fn is_guess_due(&mut self, signalled_ns: u64) -> bool {
        std::mem::replace(&mut self.guessed_ns, signalled_ns) != signalled_ns
    }

    /// Counts a second signal to the guest of `port`, which slept.
    pub(crate) fn note_reminder(&mut self, now: u64, port: PortId, judged: Judged) {
        self.counters.second_signals += 1;
        self.reminded_ns = Some(now);
        self.trace.enter(now, PolicyDecision::SecondSignal, Some(port), judged);
    }

    /// Counts a second signal that was not sent, since the guest of `port` is awake.
    pub(crate) fn note_spared(&mut self, now: u64, port: PortId, judged: Judged) {
        self.counters.second_signals_spared += 1;
        self.trace.enter(now, PolicyDecision::NoSecondSignal, Some(port), judged);
    }

    /// Notes the time of the last packets.
    pub(crate) fn note_answer(&mut self, worked_ns: u64) {
        if let Some(reminded_ns) = self.reminded_ns.take_if(|at| *at < worked_ns) {
            self.counters.second_signals_answered += u64::from(worked_ns - reminded_ns < ANSWER_NS);
        }
    }

    /// The last decisions, oldest first.
    pub(crate) fn traced(&self) -> Vec<TracedDecision> {
        self.trace.entries()
    }

    /// The step after a round without packets at `now`; the last packets went to port `debtor`.
    pub(crate) fn idle_step(&mut self, round: &LookRound, debtor: Option<PortId>, now: u64) -> IdleStep {
        let guest = self.guest(debtor);
        let known = guest.as_ref().filter(|guest| guest.is_known());
        let judged =
            Judged { guest: known.copied(), inputs: DecisionInputs::Look(*round, self.last_offer(now)) };
        let step = match (look(round, known), known) {
            (Look::Yield, _) if self.offer_is_due(Some(&WANTED), now) => {
                self.counters.look_yields += 1;
                self.trace.enter(now, PolicyDecision::LookYield, debtor, judged);
                return IdleStep::Offer;
            }
            (Look::Poll | Look::Yield, _) => IdleStep::Arm(round.max_ns),
            (Look::Sleep, _) => IdleStep::Arm(0),
        };
        let decision = match (step, known) {
            (_, None) => {
                self.counters.look_unseen += 1;
                PolicyDecision::LookUnseen
            }
            (IdleStep::Arm(0), _) => {
                self.counters.look_sleeps += 1;
                self.counters.look_spared_us += round.learned_ns.saturating_sub(round.idle_ns) / 1000;
                PolicyDecision::LookSleep
            }
            _ => {
                self.counters.look_polls += 1;
                PolicyDecision::LookPoll
            }
        };
        self.trace.enter(now, decision, debtor, judged);
        step
    }

    fn guest(&self, debtor: Option<PortId>) -> Option<GuestView> {
        self.view.as_ref()?.guest(debtor?, own_cpu())
    }

    /// Whether the CPU has to be offered at `now`.
    pub(crate) fn occupies(&mut self, now: u64) -> Occupancy {
        let own = self.view.as_ref().and_then(|view| view.cpu(own_cpu()));
        let is_probe_due = now.saturating_sub(self.probed_ns) >= lasthop_sched::bounds::OFFER_NS;
        if is_probe_due {
            self.probed_ns = now;
        }
        if self.offer_is_due(own.as_ref(), now) {
            self.counters.offers += 1;
            let inputs = DecisionInputs::Yield(own.map(|cpu| cpu.waiting), self.last_offer(now));
            self.trace.enter(now, PolicyDecision::Offer, None, Judged { guest: None, inputs });
            return Occupancy::Offer;
        }
        self.counters.offers_spared += u64::from(is_probe_due);
        Occupancy::Keep
    }

    fn offer_is_due(&self, own: Option<&CpuState>, now: u64) -> bool {
        occupy(own, self.last_offer(now)) == Occupancy::Offer
    }

    fn last_offer(&self, now: u64) -> Option<LastOffer> {
        self.last.map(|(at, was_taken)| LastOffer { age_ns: now.saturating_sub(at), was_taken })
    }

    /// Notes that the CPU was offered, and came back.
    pub(crate) fn note_offer(&mut self, back: CoreReturn) {
        (self.last, self.probed_ns) = (Some((back.at_ns, back.was_taken)), back.at_ns);
        self.counters.offers_taken += u64::from(back.was_taken);
    }
}

/// A CPU that a guest's thread waits for.
const WANTED: CpuState = CpuState { occupant: lasthop_sched::Occupant::Thread(0), waiting: 1 };

#[cfg(test)]
mod tests {
    use super::*;
    use lasthop_sched::{Mode, Occupant};
    use std::sync::Mutex;

    const PORT: PortId = PortId(3);
    const ROUND: LookRound =
        LookRound { idle_ns: 60_000, learned_ns: 50_000, max_ns: 200_000, is_posted: false };

    /// A view with the same state for each CPU, and one guest.
    #[derive(Debug, Default)]
    struct FakeView {
        guest: Mutex<GuestView>,
        waiting: Mutex<u32>,
    }

    impl SchedulerView for FakeView {
        fn guest(&self, port: PortId, _: u16) -> Option<GuestView> {
            (port == PORT).then(|| *self.guest.lock().unwrap())
        }

        fn cpu(&self, _: u16) -> Option<CpuState> {
            Some(CpuState { occupant: Occupant::Thread(1), waiting: *self.waiting.lock().unwrap() })
        }
    }

    fn seeing() -> (Scheduling, Arc<FakeView>) {
        let (mut scheduling, view) = (Scheduling::default(), Arc::new(FakeView::default()));
        let mut modes = Modes::default();
        modes.set(Policy::SecondSignal, Mode::On);
        scheduling.set(Some(Arc::clone(&view) as Arc<dyn SchedulerView>), modes);
        (scheduling, view)
    }

    #[test]
    fn policies_decide_with_a_view_and_unless_they_are_off() {
        let (mut scheduling, view) = seeing();
        let mut modes = Modes::default();
        [Policy::Look, Policy::Yield].into_iter().for_each(|policy| modes.set(policy, Mode::On));
        scheduling.set(Some(view), modes);
        assert!(scheduling.looks() && scheduling.yields());
        modes.set(Policy::Look, Mode::Off);
        scheduling.set(scheduling.view.clone(), modes);
        assert!(!scheduling.looks() && scheduling.yields());
        scheduling.set(None, modes);
        assert!(!scheduling.looks() && !scheduling.yields());
    }

    #[test]
    fn a_thread_polls_yields_or_sleeps_as_the_receiver_does() {
        let (mut scheduling, view) = seeing();
        let mut step = |guest: GuestView, port, now| {
            *view.guest.lock().unwrap() = guest;
            scheduling.idle_step(&ROUND, port, now)
        };
        let none = GuestView::default();
        assert_eq!(step(GuestView { running: 1, ..none }, Some(PORT), 1), IdleStep::Arm(ROUND.max_ns));
        assert_eq!(step(GuestView { blocked: 1, ..none }, Some(PORT), 2), IdleStep::Arm(0));
        assert_eq!(step(GuestView { waiting_here: 1, ..none }, Some(PORT), 3), IdleStep::Offer);
        let unseen = [(GuestView { running: 1, unknown: 1, ..none }, Some(PORT)), (none, None)];
        for (guest, port) in unseen {
            assert_eq!(step(guest, port, 4), IdleStep::Arm(0), "the learned time is over");
        }
        let expected = PolicyCounters {
            look_polls: 1,
            look_yields: 1,
            look_sleeps: 1,
            look_unseen: 2,
            ..PolicyCounters::default()
        };
        assert_eq!(scheduling.counters, expected);
    }

    #[test]
    fn a_guest_that_sleeps_is_reminded_and_its_answer_is_counted() {
        let (mut scheduling, view) = seeing();
        assert!(scheduling.reminds(), "where there is a view");
        let signal = UnansweredSignal { age_ns: 30_000 };
        *view.guest.lock().unwrap() = GuestView { running: 1, ..GuestView::default() };
        assert_eq!(scheduling.remind(signal, PORT).0, Reminder::Watch);
        assert!(
            scheduling.is_guess_due(100) && !scheduling.is_guess_due(100) && scheduling.is_guess_due(200)
        );
        *view.guest.lock().unwrap() = GuestView { blocked: 1, ..GuestView::default() };
        let (reminder, judged) = scheduling.remind(signal, PORT);
        assert_eq!(reminder, Reminder::Signal);
        for (sent_ns, worked_ns) in [(1000, 900), (1000, 1000 + ANSWER_NS - 1), (2_000_000, 3_000_000)] {
            scheduling.note_reminder(sent_ns, PORT, judged);
            scheduling.note_answer(worked_ns);
        }
        scheduling.note_spared(4_000_000, PORT, judged);
        let counters = scheduling.counters;
        let counts =
            (counters.second_signals, counters.second_signals_answered, counters.second_signals_spared);
        assert_eq!(counts, (3, 1, 1), "one in time, one later, one before the signal");
        let decisions: Vec<_> =
            scheduling.traced().iter().map(|entry| (entry.decision, entry.times)).collect();
        assert_eq!(decisions, [(PolicyDecision::SecondSignal, 3), (PolicyDecision::NoSecondSignal, 1)]);
        assert_eq!(scheduling.traced()[0].judged, judged, "the state by which it was decided");
    }

    /// A view of CPUs 0 to 3, of which some are idle, and one is waited for.
    #[derive(Debug, Default)]
    struct CpuView {
        idle: Vec<u16>,
        waited_for: Option<u16>,
    }

    impl SchedulerView for CpuView {
        fn guest(&self, _: PortId, _: u16) -> Option<GuestView> {
            None
        }

        fn cpu(&self, number: u16) -> Option<CpuState> {
            let is_idle = self.idle.contains(&number);
            let occupant = if is_idle { Occupant::Idle { for_ns: 0 } } else { Occupant::Thread(1) };
            let waiting = u32::from(self.waited_for == Some(number));
            (number < 4).then_some(CpuState { occupant, waiting })
        }
    }

    #[test]
    fn idle_cpus_are_those_that_nothing_has_or_waits_for() {
        let mut modes = Modes::default();
        modes.set(Policy::Gathering, Mode::On);
        let is_idle = |cpu: &CpuState| matches!(cpu.occupant, Occupant::Idle { .. }) && cpu.waiting == 0;
        let count = |view: CpuView, modes: Modes, cpus: &[u16]| {
            let mut scheduling = Scheduling::default();
            scheduling.set(Some(Arc::new(view)), modes);
            scheduling.idle_cpus(cpus, is_idle)
        };
        // This thread may have one of the CPUs, and change it.
        let idle = |idle: &[u16]| CpuView { idle: idle.to_vec(), waited_for: None };
        assert_eq!(count(idle(&[]), modes, &[0, 1, 2, 3]), Some(0));
        assert_eq!(count(idle(&[0, 1, 2, 3]), modes, &[0, 1, 2, 3]), Some(IDLE_CPUS_MAX));
        assert_eq!(count(idle(&[0, 1, 2, 3]), modes, &[]), None);
        assert_eq!(count(idle(&[]), modes, &[7, 8]), None, "CPUs that the view does not show");
        assert_eq!(count(idle(&[]), modes, &[0, 8]), Some(0));
        assert_eq!(count(CpuView { idle: vec![2], waited_for: Some(2) }, modes, &[2]), Some(0));
        assert_eq!(count(idle(&[]), Modes::default(), &[0, 1]), None, "the policy is off");
        assert_eq!(Scheduling::default().idle_cpus(&[0, 1], is_idle), None, "no view");
    }

    #[test]
    fn separations_are_counted_and_traced_where_idle_cpus_decide() {
        let mut scheduling = Scheduling::default();
        let thread = |load_percent, saturated_ns| SharedThread { load_percent, saturated_ns };
        assert!(scheduling.separates(thread(61, 0), None, 1), "without a view");
        assert!(!scheduling.separates(thread(60, 0), None, 2));
        assert_eq!((scheduling.counters, scheduling.traced().len()), (PolicyCounters::default(), 0));
        let decided = [(70, 0, 0), (70, 0, 0), (70, 0, 1), (50, 0, 1), (50, 0, 2), (100, u64::MAX, 0)].map(
            |(load, saturated_ns, idle)| scheduling.separates(thread(load, saturated_ns), Some(idle), 3),
        );
        assert_eq!(decided, [false, false, true, false, true, true]);
        let expected = PolicyCounters {
            separations_held: 2,
            separations: 3,
            separations_early: 1,
            separations_late: 1,
            ..PolicyCounters::default()
        };
        assert_eq!(scheduling.counters, expected);
        let traced = scheduling.traced();
        let decisions: Vec<_> = traced.iter().map(|entry| (entry.decision, entry.times)).collect();
        let expected = [
            (PolicyDecision::SeparationHeld, 2),
            (PolicyDecision::Separated, 1),
            (PolicyDecision::SeparatedEarly, 1),
            (PolicyDecision::SeparatedLate, 1),
        ];
        assert_eq!(decisions, expected);
        assert_eq!(traced[0].judged.inputs, DecisionInputs::Gathering(thread(70, 0), Some(0)));
    }

    #[test]
    fn an_offer_that_nothing_took_is_not_repeated_at_once() {
        let (mut scheduling, view) = seeing();
        let (start_ns, back) = (100_000, CoreReturn { at_ns: 100_000, was_taken: false, is_scarce: false });
        *view.waiting.lock().unwrap() = 1;
        assert_eq!(scheduling.occupies(start_ns), Occupancy::Offer);
        scheduling.note_offer(back);
        assert_eq!(scheduling.occupies(start_ns + 19_999), Occupancy::Keep);
        assert_eq!(scheduling.occupies(start_ns + 20_000), Occupancy::Offer);
        scheduling.note_offer(CoreReturn { at_ns: start_ns + 40_000, was_taken: true, ..back });
        assert_eq!(scheduling.occupies(start_ns + 40_000), Occupancy::Offer, "it is still waited for");
        *view.waiting.lock().unwrap() = 0;
        assert_eq!(scheduling.occupies(start_ns + 60_000), Occupancy::Keep);
        let counters = scheduling.counters;
        assert_eq!((counters.offers, counters.offers_taken, counters.offers_spared), (3, 1, 1));
    }
}
