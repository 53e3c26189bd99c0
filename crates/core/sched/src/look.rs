//! Look: whether a thread without packets polls, yields its CPU, or sleeps.

use crate::bounds::SETTLE_NS;
use crate::guest::GuestView;

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

#[cfg(test)]
mod tests {
    use super::*;

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
}
