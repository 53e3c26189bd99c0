//! The view of the host's scheduler that the supervisor passes: assigns threads to ports' guests.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use lasthop_engine::{PolicyDecision, ReportedRow, SchedulerView, TracedDecision};
use lasthop_foreign::ForeignFd;
use lasthop_module_api::PortId;
use lasthop_sched::{CpuPlace, CpuState, GuestVcpus, GuestView, Policy, ThreadState, last_ran};
use lasthop_sched_view::layout::Slot;
use lasthop_sched_view::{EventQueue, ViewReader, WakeUps};

use lasthop_api::placement::CpuPlaceNumbers;
use lasthop_api::sched::{DecisionLine, PolicyModes, SchedTrace, SeenGuest};
use lasthop_api::sched_table::{SchedTable, TableRow, activity_word, rule_word, touch_word};
use lasthop_runtime::clock;
use lasthop_runtime::fault::Fault;

use super::datapath::Datapath;
use super::traced_inputs::{cpu_return_line, inputs_line, repetitions_line, thread_counts};

/// Most decisions use the states alone, without times.
const NO_TIME: u64 = 0;

/// The view and the guests in it; replaced by each order.
#[derive(Debug)]
struct SeenGuests {
    view: ViewReader,
    sleepers: Option<Sleepers>,
    /// By port number.
    guests: Vec<GuestSlots>,
    /// By CPU number.
    places: Vec<CpuPlace>,
}

/// The threads of a port's guest; none if it is unknown.
#[derive(Clone, Debug, Default)]
struct GuestSlots {
    slots: Box<[Slot]>,
    may_halt_poll: bool,
    /// The threads' numbers on the host.
    tids: Box<[u32]>,
    is_ordered: bool,
}

/// Events of threads that go to sleep.
#[derive(Debug)]
struct Sleepers {
    wake_ups: WakeUps,
    /// By worker.
    queues: Vec<EventQueue<ForeignFd>>,
}

impl Sleepers {
    /// Maps the descriptors behind that of the view; `None` if there are none, or the kernel refuses: timers are the
    /// bound then.
    fn map(mut descriptors: impl Iterator<Item = ForeignFd>) -> Option<Self> {
        let wake_ups = WakeUps::map(descriptors.next()?.as_fd()).ok()?;
        let queues = descriptors.map(EventQueue::map).collect::<io::Result<_>>().ok()?;
        Some(Self { wake_ups, queues })
    }
}

impl SeenGuests {
    fn map(
        view: &ForeignFd,
        sleepers: Option<Sleepers>,
        seen: &[(PortId, &SeenGuest)],
        places: &[CpuPlaceNumbers],
    ) -> io::Result<Self> {
        let view = ViewReader::map(view.as_fd())?;
        let mut guests =
            vec![GuestSlots::default(); seen.iter().map(|(port, _)| port.index() + 1).max().unwrap_or(0)];
        for (port, guest) in seen {
            let all = guest.slots.iter().map(|(number, generation)| Slot::new(*number, *generation));
            let slots = all.collect::<Option<Box<[Slot]>>>().unwrap_or_default();
            let SeenGuest { may_halt_poll, is_ordered, .. } = **guest;
            let tids = guest.tids.clone().into();
            guests[port.index()] = GuestSlots { slots, may_halt_poll, tids, is_ordered };
        }
        let places = places.iter().copied().map(CpuPlace::of_numbers).collect();
        Ok(Self { view, sleepers, guests, places })
    }

    fn guest_at(&self, port: PortId, own_cpu: u16, now_ns: u64) -> Option<GuestView> {
        let guest = self.guests.get(port.index()).filter(|guest| !guest.slots.is_empty())?;
        let threads = guest.slots.iter().map(|slot| self.view.thread(*slot, now_ns));
        Some(GuestView { may_halt_poll: guest.may_halt_poll, ..GuestView::new(own_cpu, threads) })
    }
}

impl SchedulerView for SeenGuests {
    fn guest(&self, port: PortId, own_cpu: u16) -> Option<GuestView> {
        self.guest_at(port, own_cpu, NO_TIME)
    }

    fn timed_guest(&self, port: PortId, own_cpu: u16) -> Option<GuestView> {
        self.guest_at(port, own_cpu, clock::now_ns())
    }

    fn wake_when_asleep(&self, port: PortId, worker: usize) {
        if let (Some(sleepers), Some(guest)) = (&self.sleepers, self.guests.get(port.index())) {
            guest.slots.iter().for_each(|slot| sleepers.wake_ups.ask(*slot, worker));
        }
    }

    fn sleep_events(&self, worker: usize) -> Option<BorrowedFd<'_>> {
        Some(self.sleepers.as_ref()?.queues.get(worker)?.as_fd())
    }

    fn clear_events(&self, worker: usize) {
        if let Some(queue) = self.sleepers.as_ref().and_then(|sleepers| sleepers.queues.get(worker)) {
            queue.clear();
        }
    }

    fn cpu(&self, number: u16) -> Option<CpuState> {
        self.view.cpu(number, NO_TIME)
    }

    fn guest_cpu(&self, port: PortId) -> Option<u16> {
        let first = self.guests.get(port.index())?.slots.first()?;
        self.view.thread(*first, NO_TIME).map(|thread| thread.cpu)
    }

    fn vcpus(&self, port: PortId) -> GuestVcpus {
        let of = |guest: &GuestSlots| GuestVcpus { count: guest.slots.len(), is_ordered: guest.is_ordered };
        self.guests.get(port.index()).map(of).unwrap_or_default()
    }

    fn vcpu(&self, port: PortId, index: usize) -> Option<ThreadState> {
        let slot = *self.guests.get(port.index())?.slots.get(index)?;
        self.view.thread(slot, clock::now_ns())
    }

    fn vcpu_tid(&self, port: PortId, index: usize) -> Option<u32> {
        self.guests.get(port.index())?.tids.get(index).copied()
    }

    fn last_vcpu(&self, port: PortId) -> Option<usize> {
        let now_ns = clock::now_ns();
        let slots = self.guests.get(port.index())?.slots.iter();
        last_ran(slots.map(|slot| self.view.thread(*slot, now_ns)))
    }

    fn places(&self) -> &[CpuPlace] {
        &self.places
    }
}

impl Datapath {
    /// Has the workers use the view behind the first descriptor, and the events behind the others; without a descriptor
    /// they use none.
    pub(super) fn see_scheduler(
        &self,
        descriptors: Vec<ForeignFd>,
        policies: &PolicyModes,
        guests: &[SeenGuest],
        places: &[CpuPlaceNumbers],
    ) -> Result<(), Fault> {
        // The port may have been removed since the supervisor's order.
        let number = |guest: &SeenGuest| self.port_named(&guest.port).map(|port| port.number);
        let guests: Vec<_> = guests.iter().filter_map(|guest| Some((number(guest)?, guest))).collect();
        let mut descriptors = descriptors.into_iter();
        let view = descriptors.next();
        let sleepers = Sleepers::map(descriptors);
        let seen = view.map(|view| SeenGuests::map(&view, sleepers, &guests, places)).transpose();
        let seen = seen.map_err(|error| Fault::internal("map the view of the scheduler", error))?;
        let seen = seen.map(|seen| Arc::new(seen) as Arc<dyn SchedulerView>);
        self.engine()
            .set_scheduler_view(seen, policies.modes())
            .map_err(|error| Fault::refused(error.to_string()))
    }

    /// The last decisions of all workers, oldest first.
    pub(super) fn trace_scheduling(&self) -> Result<SchedTrace, Fault> {
        let (now_ns, workers) =
            self.engine().decisions().map_err(|error| Fault::refused(error.to_string()))?;
        let of_worker = |(worker, decisions): (usize, Vec<TracedDecision>)| {
            decisions.into_iter().map(move |decision| (worker, decision))
        };
        let mut decisions: Vec<_> = workers.into_iter().enumerate().flat_map(of_worker).collect();
        decisions.sort_by_key(|(_, decision)| decision.first_ns);
        let line = |(worker, decision)| self.decision_line(now_ns, worker, &decision);
        Ok(SchedTrace { decisions: decisions.into_iter().map(line).collect() })
    }

    /// The data movement table.
    pub(super) fn movement_table(&self) -> Result<SchedTable, Fault> {
        let (is_used, rows) =
            self.engine().movement_rows().map_err(|error| Fault::refused(error.to_string()))?;
        Ok(SchedTable { is_used, rows: rows.into_iter().map(|row| self.table_row(row)).collect() })
    }

    fn table_row(&self, ReportedRow { ring, tid, rule, row, hint, .. }: ReportedRow) -> TableRow {
        TableRow {
            vnic: self.name_of(ring.port),
            queue: ring.queue,
            tid,
            rule: rule_word(rule).to_owned(),
            activity: activity_word(row.activity).to_owned(),
            last_touch: row.last_touch.map(|touch| touch_word(touch).to_owned()),
            cpu: row.cpu,
            hint,
        }
    }

    fn decision_line(&self, now_ns: u64, worker: usize, decision: &TracedDecision) -> DecisionLine {
        let (policy, word) = decision_words(decision.decision);
        DecisionLine {
            worker,
            ago_us: now_ns.saturating_sub(decision.first_ns) / 1000,
            for_us: (decision.last_ns - decision.first_ns) / 1000,
            times: decision.times,
            policy: policy.name().to_owned(),
            decision: word.to_owned(),
            vnic: decision.port.map(|port| self.name_of(port)),
            guest: decision.judged.guest.map(|guest| thread_counts(guest, decision.judged.inputs)),
            cpu_return: decision.cpu_return.map(cpu_return_line),
            inputs: inputs_line(decision.judged.inputs, decision.first_ns),
            repetitions: repetitions_line(decision),
        }
    }
}

fn decision_words(decision: PolicyDecision) -> (Policy, &'static str) {
    match decision {
        PolicyDecision::LookPoll => (Policy::Look, "poll"),
        PolicyDecision::LookYield => (Policy::Look, "yield"),
        PolicyDecision::LookSleep => (Policy::Look, "sleep"),
        PolicyDecision::LookUnseen => (Policy::Look, "unseen"),
        PolicyDecision::Offer => (Policy::Yield, "offer"),
        PolicyDecision::SecondSignal => (Policy::SecondSignal, "signal"),
        PolicyDecision::NoSecondSignal => (Policy::SecondSignal, "none"),
        PolicyDecision::SignalDelayed => (Policy::Notify, "later"),
        PolicyDecision::SignalDrained => (Policy::Notify, "drained"),
        PolicyDecision::Timed => (Policy::TransmitTimer, "timer"),
        PolicyDecision::TimedPackets => (Policy::TransmitTimer, "packets"),
        PolicyDecision::TimedInVain => (Policy::TransmitTimer, "empty"),
        PolicyDecision::HelperLeft => (Policy::Offload, "given up"),
        PolicyDecision::SeparationHeld => (Policy::Gathering, "held"),
        PolicyDecision::Separated => (Policy::Gathering, "apart"),
        PolicyDecision::SeparatedEarly => (Policy::Gathering, "early"),
        PolicyDecision::SeparatedLate => (Policy::Gathering, "late"),
    }
}
