//! The view of the host's scheduler that the supervisor passes: assigns threads to ports' guests.

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;

use lasthop_engine::{PolicyDecision, SchedulerView, TracedDecision};
use lasthop_foreign::ForeignFd;
use lasthop_module_api::PortId;
use lasthop_sched::{CpuState, GuestView, Policy};
use lasthop_sched_view::ViewReader;
use lasthop_sched_view::layout::Slot;

use lasthop_api::sched::{DecisionLine, GuestThreadCounts, PolicyModes, SchedTrace, SeenGuest};
use lasthop_runtime::fault::Fault;

use super::datapath::Datapath;

/// The engine and its policies use the states alone, without times.
const NO_TIME: u64 = 0;

/// The view and the guests in it; replaced by each order.
#[derive(Debug)]
struct SeenGuests {
    view: ViewReader,
    /// By port number; empty for a port whose guest is unknown.
    slots: Vec<Box<[Slot]>>,
}

impl SeenGuests {
    fn map(view: &ForeignFd, guests: &[(PortId, &SeenGuest)]) -> io::Result<Self> {
        let view = ViewReader::map(view.as_fd())?;
        let mut slots =
            vec![Box::default(); guests.iter().map(|(port, _)| port.index() + 1).max().unwrap_or(0)];
        for (port, guest) in guests {
            let all = guest.slots.iter().map(|(number, generation)| Slot::new(*number, *generation));
            slots[port.index()] = all.collect::<Option<Box<[Slot]>>>().unwrap_or_default();
        }
        Ok(Self { view, slots })
    }
}

impl SchedulerView for SeenGuests {
    fn guest(&self, port: PortId, own_cpu: u16) -> Option<GuestView> {
        let slots = self.slots.get(port.index()).filter(|slots| !slots.is_empty())?;
        Some(GuestView::new(own_cpu, slots.iter().map(|slot| self.view.thread(*slot, NO_TIME))))
    }

    fn cpu(&self, number: u16) -> Option<CpuState> {
        self.view.cpu(number, NO_TIME)
    }
}

impl Datapath {
    /// Has the workers use the view behind the descriptor; without a descriptor they use none.
    pub(super) fn see_scheduler(
        &self,
        view: Option<&ForeignFd>,
        policies: &PolicyModes,
        guests: &[SeenGuest],
    ) -> Result<(), Fault> {
        // The port may have been removed since the supervisor's order.
        let number = |guest: &SeenGuest| self.port_named(&guest.port).map(|port| port.number);
        let guests: Vec<_> = guests.iter().filter_map(|guest| Some((number(guest)?, guest))).collect();
        let seen = view.map(|view| SeenGuests::map(view, &guests)).transpose();
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
            guest: decision.guest.as_ref().map(thread_counts),
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
    }
}

fn thread_counts(guest: &GuestView) -> GuestThreadCounts {
    GuestThreadCounts {
        running: guest.running,
        waiting_here: guest.waiting_here,
        waiting_elsewhere: guest.waiting_elsewhere,
        sleeping: guest.blocked,
    }
}
