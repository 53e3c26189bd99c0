//! The inputs of a recorded decision as arguments of the production functions; where the trace does not tell one, the values
//! around which decisions change.

use lasthop_api::sched::DecisionInputsLine;
use lasthop_sched::bounds::{
    DISTRUST_NS, NOTIFY_DELAY_MAX_NS, OFFER_NS, REACTION_NS, SETTLE_NS, TRANSMIT_DELAY_MAX_NS, WATCH_NS,
};
use lasthop_sched::{
    CpuState, GuestView, LastOffer, LookRound, Notification, Occupancy, Occupant, SharedThread, TransmitRing,
    UnansweredSignal, occupy,
};

use super::trace_file::Recorded;

/// A polling time that no thread reaches.
const LONG_NS: u64 = 1_000_000_000;

/// A CPU with this number of waiting threads.
pub(crate) fn cpu(waiting: u32) -> CpuState {
    CpuState { occupant: Occupant::Thread(0), waiting }
}

/// Whether a CPU that a guest waits for is offered.
pub(crate) fn is_offered(last: Option<LastOffer>) -> bool {
    occupy(Some(&cpu(1)), last) == Occupancy::Offer
}

fn or<T: Copy>(known: Option<T>, others: &[T]) -> Vec<T> {
    known.map_or_else(|| others.to_vec(), |known| vec![known])
}

/// The possible rounds of a decision of look.
pub(crate) fn rounds(recorded: &Recorded) -> Vec<LookRound> {
    let inputs = recorded.inputs.unwrap_or_default();
    let mut rounds = Vec::new();
    for max_ns in or(inputs.max_ns, &[LONG_NS, 0]) {
        for learned_ns in or(inputs.learned_ns, &[0, LONG_NS]) {
            for is_posted in or(inputs.is_posted, &[false, true]) {
                let idle_ns = or(inputs.idle_ns, &[0, SETTLE_NS, max_ns]);
                rounds.extend(idle_ns.into_iter().map(|idle_ns| LookRound {
                    idle_ns,
                    learned_ns,
                    max_ns,
                    is_posted,
                }));
            }
        }
    }
    rounds
}

/// The possible last offers of the CPU.
pub(crate) fn offers(recorded: &Recorded) -> Vec<Option<LastOffer>> {
    let offer = |age_ns, was_taken| Some(LastOffer { age_ns, was_taken });
    match recorded.inputs {
        Some(DecisionInputsLine { offered_ago_ns, offer_taken, .. }) => {
            vec![offered_ago_ns.and_then(|age_ns| offer(age_ns, offer_taken.unwrap_or(false)))]
        }
        None => {
            vec![None, offer(0, false), offer(0, true), offer(OFFER_NS, false), offer(DISTRUST_NS, false)]
        }
    }
}

/// The possible states of the own CPU.
pub(crate) fn own_cpus(recorded: &Recorded) -> Vec<Option<CpuState>> {
    match recorded.inputs {
        Some(inputs) => vec![inputs.waiting.map(cpu)],
        None => vec![None, Some(cpu(0)), Some(cpu(1))],
    }
}

/// The possible signals of a decision of second signal.
pub(crate) fn signals(recorded: &Recorded) -> Vec<UnansweredSignal> {
    let ages = or(recorded.inputs.unwrap_or_default().signalled_ago_ns, &[SETTLE_NS, REACTION_NS, WATCH_NS]);
    ages.into_iter().map(|age_ns| UnansweredSignal { age_ns }).collect()
}

/// The possible notifications of a decision of notify.
pub(crate) fn notifications(recorded: &Recorded) -> Vec<Notification> {
    let now_ns = recorded.at_ns;
    let pending = |first_ago_ns: u64, signalled_ago_ns: Option<u64>, has_progressed, is_full| Notification {
        is_wanted: true,
        first_ns: now_ns.saturating_sub(first_ago_ns),
        signalled_ns: signalled_ago_ns.map(|age_ns| now_ns.saturating_sub(age_ns)),
        has_progressed,
        is_full,
    };
    match recorded.inputs {
        Some(DecisionInputsLine { first_ago_ns, signalled_ago_ns, has_progressed, is_full, .. }) => {
            vec![pending(
                first_ago_ns.unwrap_or(0),
                signalled_ago_ns,
                has_progressed.unwrap_or(false),
                is_full.unwrap_or(false),
            )]
        }
        None => vec![pending(0, Some(0), true, false), pending(NOTIFY_DELAY_MAX_NS, None, true, false)],
    }
}

/// The possible rings of a decision of the transmit timer.
pub(crate) fn rings(recorded: &Recorded) -> Vec<TransmitRing> {
    let ns = |age_ns: u64| recorded.at_ns.saturating_sub(age_ns);
    let inputs = recorded.inputs.unwrap_or_default();
    let slept_ns = recorded.guest.map_or(0, |guest| guest.blocked_for_ns);
    let visited = or(inputs.visited_ago_ns, &[0, slept_ns.saturating_add(1), TRANSMIT_DELAY_MAX_NS]);
    let ring = |visited_ago: u64| TransmitRing {
        visited_ns: ns(visited_ago),
        worked_ns: ns(inputs.worked_ago_ns.unwrap_or(0)),
    };
    visited.into_iter().map(ring).collect()
}

/// The possible thread of a decision of gathering, with its idle CPUs. Each switch that makes such a decision records both.
pub(crate) fn shared_thread(recorded: &Recorded) -> Option<(SharedThread, Option<u16>)> {
    let inputs = recorded.inputs?;
    let (load_percent, saturated_ns) = (inputs.load_percent?, inputs.saturated_ns?);
    Some((SharedThread { load_percent, saturated_ns }, inputs.idle_cpus))
}

/// The possible states of the guest. A switch of an earlier version did not record it for some decisions.
pub(crate) fn guests(recorded: &Recorded) -> Vec<Option<GuestView>> {
    let works = GuestView { running: 1, ..GuestView::default() };
    let sleeps = GuestView { blocked: 1, ..GuestView::default() };
    let Some(guest) = recorded.guest else {
        return if recorded.inputs.is_some() { vec![None] } else { vec![None, Some(works), Some(sleeps)] };
    };
    let mut guests = Vec::new();
    for may_halt_poll in or(recorded.tells_halt_poll.then_some(guest.may_halt_poll), &[false, true]) {
        for blocked_for_ns in or(recorded.tells_sleep.then_some(guest.blocked_for_ns), &[0, LONG_NS]) {
            guests.push(Some(GuestView { may_halt_poll, blocked_for_ns, ..guest }));
        }
    }
    guests
}
