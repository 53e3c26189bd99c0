//! The inputs of traced decisions, as reports have them: times as ages.

use lasthop_api::sched::{CpuReturnLine, DecisionInputsLine, GuestThreadCounts, RepetitionsLine};
use lasthop_engine::{CpuReturn, DecisionInputs, Repetitions, TracedDecision};
use lasthop_sched::{
    GuestView, LastOffer, LookRound, Notification, SharedThread, TransmitRing, UnansweredSignal,
};

/// How soon a helper gave its CPU back.
pub(super) fn cpu_return_line(back: CpuReturn) -> CpuReturnLine {
    let CpuReturn { frames, unseen_ns, leaving_ns } = back;
    CpuReturnLine { frames, unseen_ns, leaving_ns }
}

/// The threads of a guest. Only the transmit timer reads the view with times; elsewhere they are 0.
pub(super) fn thread_counts(guest: GuestView, inputs: DecisionInputs) -> GuestThreadCounts {
    let is_timed = matches!(inputs, DecisionInputs::TransmitTimer(_));
    GuestThreadCounts {
        running: guest.running,
        waiting_here: guest.waiting_here,
        waiting_elsewhere: guest.waiting_elsewhere,
        sleeping: guest.blocked,
        unseen: guest.unknown,
        slept_ns: is_timed.then_some(guest.blocked_for_ns),
        may_halt_poll: Some(guest.may_halt_poll),
    }
}

/// All else that a decision at `at_ns` used.
pub(super) fn inputs_line(inputs: DecisionInputs, at_ns: u64) -> Option<DecisionInputsLine> {
    let ago = |then_ns: u64| at_ns.saturating_sub(then_ns);
    let line = DecisionInputsLine::default();
    let offered = |last: Option<LastOffer>| DecisionInputsLine {
        offered_ago_ns: last.map(|offer| offer.age_ns),
        offer_taken: last.map(|offer| offer.was_taken),
        ..line
    };
    Some(match inputs {
        DecisionInputs::None => return None,
        DecisionInputs::Look(LookRound { idle_ns, learned_ns, max_ns, is_posted }, last) => {
            DecisionInputsLine {
                idle_ns: Some(idle_ns),
                learned_ns: Some(learned_ns),
                max_ns: Some(max_ns),
                is_posted: Some(is_posted),
                ..offered(last)
            }
        }
        DecisionInputs::Yield(waiting, last) => DecisionInputsLine { waiting, ..offered(last) },
        DecisionInputs::SecondSignal(UnansweredSignal { age_ns }) => {
            DecisionInputsLine { signalled_ago_ns: Some(age_ns), ..line }
        }
        DecisionInputs::Notify(Notification { first_ns, signalled_ns, has_progressed, is_full, .. }) => {
            DecisionInputsLine {
                first_ago_ns: Some(ago(first_ns)),
                signalled_ago_ns: signalled_ns.map(ago),
                has_progressed: Some(has_progressed),
                is_full: Some(is_full),
                ..line
            }
        }
        DecisionInputs::TransmitTimer(TransmitRing { visited_ns, worked_ns }) => DecisionInputsLine {
            visited_ago_ns: Some(ago(visited_ns)),
            worked_ago_ns: Some(ago(worked_ns)),
            ..line
        },
        DecisionInputs::Gathering(SharedThread { load_percent, saturated_ns }, idle_cpus) => {
            DecisionInputsLine {
                load_percent: Some(load_percent),
                saturated_ns: Some(saturated_ns),
                idle_cpus,
                ..line
            }
        }
    })
}

/// Sums over the repetitions, of the policies that have any.
pub(super) fn repetitions_line(decision: &TracedDecision) -> Option<RepetitionsLine> {
    let has_sums = matches!(decision.judged.inputs, DecisionInputs::Look(..) | DecisionInputs::Notify(_));
    let Repetitions { starts, idle_last_ns, idle_max_ns, idle_sum_ns } = decision.repetitions;
    has_sums.then_some(RepetitionsLine { starts, idle_last_ns, idle_max_ns, idle_sum_ns })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_become_ages_and_each_policy_has_its_own_inputs() {
        let line = inputs_line(
            DecisionInputs::TransmitTimer(TransmitRing { visited_ns: 900, worked_ns: 400 }),
            1000,
        );
        let expected =
            DecisionInputsLine { visited_ago_ns: Some(100), worked_ago_ns: Some(600), ..Default::default() };
        assert_eq!(line, Some(expected));
        assert_eq!(inputs_line(DecisionInputs::None, 1000), None);
        let last = LastOffer { age_ns: 7, was_taken: true };
        let line = inputs_line(DecisionInputs::Yield(None, Some(last)), 1000).expect("inputs");
        let told = (line.waiting, line.offered_ago_ns, line.offer_taken, line.idle_ns);
        assert_eq!(told, (None, Some(7), Some(true), None));
        let thread = SharedThread { load_percent: 70, saturated_ns: 0 };
        let line = inputs_line(DecisionInputs::Gathering(thread, Some(0)), 1000).expect("inputs");
        assert_eq!((line.load_percent, line.saturated_ns, line.idle_cpus), (Some(70), Some(0), Some(0)));
    }

    #[test]
    fn sleeping_times_are_told_where_they_were_read() {
        let guest = GuestView { running: 1, blocked: 2, blocked_for_ns: 5, ..GuestView::default() };
        let ring = DecisionInputs::TransmitTimer(TransmitRing { visited_ns: 0, worked_ns: 0 });
        assert_eq!(thread_counts(guest, ring).slept_ns, Some(5));
        let signal = DecisionInputs::SecondSignal(UnansweredSignal { age_ns: 1 });
        assert_eq!(thread_counts(guest, signal).slept_ns, None);
    }
}
