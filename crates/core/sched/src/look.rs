//! A thread without packets. Look: whether it polls, yields its CPU, or sleeps. Yield: whether it keeps its CPU while it
//! polls.

use crate::bounds::{DISTRUST_NS, OFFER_NS, SETTLE_NS};
use crate::guest::{CpuState, GuestView};

/// A round in which a thread found nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LookRound {
    /// For how long it has found nothing, in ns.
    pub idle_ns: u64,
    /// The polling time that adaptive polling has learned, in ns.
    pub learned_ns: u64,
    /// The longest polling time, in ns.
    pub max_ns: u64,
    /// Whether buffers or packets are posted that were not handled yet.
    pub is_posted: bool,
}

/// The next step of the thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// It continues to poll.
    Poll,
    /// It yields its CPU, and polls when it has it again.
    Yield,
    /// It sleeps until it is woken.
    Sleep,
}

/// Decides by the guest that owes an answer, which is the receiver of the last packets; `None` without a view.
///
/// Polling is useful while that guest works on the answer on another CPU. It obstructs a guest that waits for this CPU,
/// and is useless for one that sleeps: its signal wakes it, and its kick wakes this thread. A guest that was signalled
/// a moment ago may not be awake yet.
#[must_use]
pub fn look(round: &LookRound, debtor: Option<&GuestView>) -> Look {
    let by_time =
        |look_ns: u64| if round.idle_ns < look_ns.min(round.max_ns) { Look::Poll } else { Look::Sleep };
    let Some(debtor) = debtor.filter(|debtor| debtor.is_known()) else { return by_time(round.learned_ns) };
    if round.idle_ns >= round.max_ns {
        Look::Sleep
    } else if debtor.waiting_here > 0 {
        Look::Yield
    } else if debtor.running > 0 {
        Look::Poll
    } else if debtor.is_blocked() && !round.is_posted && round.idle_ns >= SETTLE_NS {
        Look::Sleep
    } else {
        by_time(round.learned_ns)
    }
}

/// The last time that a thread offered its CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LastOffer {
    /// The time since the CPU came back, in ns.
    pub age_ns: u64,
    /// Whether another thread took it.
    pub was_taken: bool,
}

/// A thread's decision about its CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Occupancy {
    /// The thread keeps its CPU.
    Keep,
    /// The thread offers its CPU by sched_yield.
    Offer,
}

/// Decides by the state of the thread's own CPU (`None` without a view) and its last offer, if there was one.
///
/// If the count of waiting threads is too high, the cost is an offer every 20 us, as without a view. If it is too low,
/// those threads wait at most a millisecond, and no longer than the kernel's time slices.
#[must_use]
pub fn occupy(own: Option<&CpuState>, last: Option<LastOffer>) -> Occupancy {
    let is_older_than = |ns: u64| last.is_none_or(|offer| offer.age_ns >= ns);
    let is_due = match own {
        None => is_older_than(OFFER_NS),
        Some(cpu) if cpu.waiting == 0 => is_older_than(DISTRUST_NS),
        Some(_) => last.is_none_or(|offer| offer.was_taken) || is_older_than(OFFER_NS),
    };
    if is_due { Occupancy::Offer } else { Occupancy::Keep }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guest::Occupant;

    const ROUND: LookRound =
        LookRound { idle_ns: 60_000, learned_ns: 50_000, max_ns: 200_000, is_posted: false };
    const NONE: GuestView = GuestView {
        running: 0,
        waiting_elsewhere: 0,
        waiting_here: 0,
        blocked: 0,
        unknown: 0,
        blocked_for_ns: 0,
        may_halt_poll: false,
    };

    #[test]
    fn without_a_view_it_looks_for_the_learned_time() {
        assert_eq!(look(&ROUND, None), Look::Sleep);
        assert_eq!(look(&LookRound { idle_ns: 49_999, ..ROUND }, None), Look::Poll);
        let half_seen = GuestView { running: 1, unknown: 1, ..NONE };
        assert_eq!(look(&ROUND, Some(&half_seen)), Look::Sleep);
        assert_eq!(
            look(&LookRound { idle_ns: 0, ..ROUND }, Some(&NONE)),
            Look::Poll,
            "a guest without threads"
        );
    }

    #[test]
    fn it_polls_while_the_guest_works_elsewhere_and_no_longer_than_it_may() {
        let works = GuestView { running: 1, blocked: 3, ..NONE };
        assert_eq!(look(&ROUND, Some(&works)), Look::Poll);
        assert_eq!(look(&LookRound { idle_ns: 200_000, ..ROUND }, Some(&works)), Look::Sleep);
    }

    #[test]
    fn a_guest_that_waits_for_this_cpu_gets_it_at_once() {
        let waits = GuestView { waiting_here: 1, running: 1, ..NONE };
        assert_eq!(look(&LookRound { idle_ns: 0, ..ROUND }, Some(&waits)), Look::Yield);
    }

    #[test]
    fn it_sleeps_when_the_guest_does_once_it_has_had_time_to_wake_up() {
        let sleeps = GuestView { blocked: 2, ..NONE };
        let round = LookRound { idle_ns: SETTLE_NS, ..ROUND };
        assert_eq!(look(&round, Some(&sleeps)), Look::Sleep);
        assert_eq!(look(&LookRound { idle_ns: SETTLE_NS - 1, ..round }, Some(&sleeps)), Look::Poll);
        assert_eq!(look(&LookRound { is_posted: true, ..round }, Some(&sleeps)), Look::Poll);
        let queues = GuestView { waiting_elsewhere: 1, ..NONE };
        assert_eq!(look(&round, Some(&queues)), Look::Poll, "it runs soon");
    }

    fn cpu(waiting: u32) -> CpuState {
        CpuState { occupant: Occupant::Thread(1), waiting }
    }

    fn offer(age_ns: u64, was_taken: bool) -> Option<LastOffer> {
        Some(LastOffer { age_ns, was_taken })
    }

    #[test]
    fn without_a_view_it_is_offered_every_20_us() {
        assert_eq!(occupy(None, offer(OFFER_NS - 1, true)), Occupancy::Keep);
        assert_eq!(occupy(None, offer(OFFER_NS, false)), Occupancy::Offer);
    }

    #[test]
    fn it_is_offered_at_once_if_something_waits() {
        assert_eq!(occupy(Some(&cpu(1)), None), Occupancy::Offer);
        assert_eq!(occupy(Some(&cpu(1)), offer(0, true)), Occupancy::Offer);
        assert_eq!(occupy(Some(&cpu(1)), offer(0, false)), Occupancy::Keep, "the count is wrong");
        assert_eq!(occupy(Some(&cpu(1)), offer(OFFER_NS, false)), Occupancy::Offer);
    }

    #[test]
    fn it_is_hardly_ever_offered_if_nothing_waits() {
        assert_eq!(occupy(Some(&cpu(0)), offer(OFFER_NS, true)), Occupancy::Keep);
        assert_eq!(occupy(Some(&cpu(0)), offer(DISTRUST_NS, false)), Occupancy::Offer);
    }
}
