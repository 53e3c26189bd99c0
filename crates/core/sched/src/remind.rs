//! Second signal: whether a guest that has not reacted to a signal gets another one.

use crate::bounds::{REACTION_NS, SETTLE_NS, WATCH_NS};
use crate::guest::GuestView;

/// A signal without reaction: by its event index and its posted buffers, the guest has not visited the ring since.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnansweredSignal {
    /// The time since it was sent, in ns.
    pub age_ns: u64,
}

/// The decision about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reminder {
    /// Nothing yet: decide again later.
    Watch,
    /// The guest is signalled once more.
    Signal,
    /// The guest is signalled once more if that has helped with guests that the view does not show.
    SignalByTrust,
    /// The guest is slow: no further signal.
    GiveUp,
}

/// Decides by the guest; `None` without a view.
///
/// A guest that sleeps after it was signalled has missed the signal while it went to sleep. One that runs, or waits for
/// a CPU, will find the packets.
#[must_use]
pub fn remind(signal: UnansweredSignal, guest: Option<&GuestView>) -> Reminder {
    match guest.filter(|guest| guest.is_known()) {
        None if signal.age_ns < REACTION_NS => Reminder::Watch,
        None => Reminder::SignalByTrust,
        Some(_) if signal.age_ns < SETTLE_NS => Reminder::Watch,
        Some(guest) if guest.is_blocked() => Reminder::Signal,
        Some(_) if signal.age_ns < WATCH_NS => Reminder::Watch,
        Some(_) => Reminder::GiveUp,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn signal(age_ns: u64) -> UnansweredSignal {
        UnansweredSignal { age_ns }
    }

    #[test]
    fn without_a_view_it_is_a_guess_after_100_us() {
        assert_eq!(remind(signal(REACTION_NS - 1), None), Reminder::Watch);
        assert_eq!(remind(signal(REACTION_NS), None), Reminder::SignalByTrust);
        assert_eq!(remind(signal(REACTION_NS), Some(&GuestView::default())), Reminder::SignalByTrust);
    }

    #[test]
    fn a_guest_that_sleeps_is_signalled_as_soon_as_the_view_can_be_trusted() {
        let sleeps = GuestView { blocked: 1, ..GuestView::default() };
        assert_eq!(remind(signal(SETTLE_NS - 1), Some(&sleeps)), Reminder::Watch);
        assert_eq!(remind(signal(SETTLE_NS), Some(&sleeps)), Reminder::Signal);
    }

    #[test]
    fn a_guest_that_runs_or_waits_for_a_cpu_is_not() {
        for awake in [
            GuestView { running: 1, blocked: 1, ..GuestView::default() },
            GuestView { waiting_here: 1, ..GuestView::default() },
            GuestView { waiting_elsewhere: 1, ..GuestView::default() },
        ] {
            assert_eq!(remind(signal(WATCH_NS - 1), Some(&awake)), Reminder::Watch);
            assert_eq!(remind(signal(WATCH_NS), Some(&awake)), Reminder::GiveUp);
        }
    }
}
