//! Signals to guests. Notify: whether a receiver is signalled now or later (Hyper-Switch, 3.3). Second signal: whether a
//! guest that has not reacted to a signal gets another one.

use crate::bounds::{NOTIFY_DELAY_MAX_NS, REACTION_NS, RECENT_NS, SETTLE_NS, WATCH_NS};
use crate::guest::GuestView;

/// Packets in a receive ring of which its guest was not notified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Notification {
    /// Whether the guest wants a signal, by its event index or flag. A guest that has taken these packets, or polls, does
    /// not.
    pub is_wanted: bool,
    /// When the first of these packets was published.
    pub first_ns: u64,
    /// When the ring was signalled last, if it was.
    pub signalled_ns: Option<u64>,
    /// Whether the guest has used packets or posted buffers since then.
    pub has_progressed: bool,
    /// Whether the receive ring has no buffers left: the guest has to be notified before more packets can arrive.
    pub is_full: bool,
}

/// When the guest is signalled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notify {
    /// Now.
    Now,
    /// At this time, unless a later view says earlier.
    At(u64),
    /// Not at all: the guest polls, or has taken the packets.
    Unwanted,
}

/// Decides by the receiver; `None` without a view.
///
/// A receiver that sleeps is signalled at once, one that was interrupted recently and still runs a little later. All
/// its threads have to run, as it is unknown which thread an interrupt goes to. A guest that may halt-poll counts as one
/// that sleeps.
#[must_use]
pub fn notify(pending: &Notification, receiver: Option<&GuestView>, now_ns: u64) -> Notify {
    if !pending.is_wanted {
        return Notify::Unwanted;
    }
    let is_working = receiver.is_some_and(GuestView::is_working);
    let was_interrupted = pending.has_progressed
        && pending.signalled_ns.is_some_and(|at_ns| now_ns.saturating_sub(at_ns) < RECENT_NS);
    let due_ns = pending.first_ns.saturating_add(NOTIFY_DELAY_MAX_NS);
    if is_working && was_interrupted && !pending.is_full && now_ns < due_ns {
        // A clock that went back causes no delay beyond the bound.
        Notify::At(due_ns.min(now_ns.saturating_add(NOTIFY_DELAY_MAX_NS)))
    } else {
        Notify::Now
    }
}

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

    const PENDING: Notification = Notification {
        is_wanted: true,
        first_ns: 1_000_000,
        signalled_ns: Some(990_000),
        has_progressed: true,
        is_full: false,
    };
    const WORKS: GuestView = GuestView {
        running: 2,
        waiting_elsewhere: 0,
        waiting_here: 0,
        blocked: 0,
        unknown: 0,
        blocked_for_ns: 0,
        may_halt_poll: false,
    };

    #[test]
    fn a_receiver_that_was_interrupted_and_works_on_that_is_signalled_later() {
        assert_eq!(notify(&PENDING, Some(&WORKS), 1_010_000), Notify::At(1_050_000));
        assert_eq!(notify(&PENDING, Some(&WORKS), 1_050_000), Notify::Now);
    }

    #[test]
    fn any_other_receiver_is_signalled_at_once() {
        let now = |pending: Notification, guest: GuestView| {
            notify(&pending, Some(&guest), 1_010_000) == Notify::Now
        };
        assert!(now(PENDING, GuestView { running: 1, blocked: 1, ..WORKS }), "a thread sleeps");
        assert!(now(PENDING, GuestView { waiting_here: 1, ..WORKS }), "a thread waits for a CPU");
        assert!(now(PENDING, GuestView { unknown: 1, ..WORKS }), "a thread is not seen");
        assert!(now(PENDING, GuestView { may_halt_poll: true, ..WORKS }), "a thread may halt-poll");
        assert!(now(Notification { signalled_ns: None, ..PENDING }, WORKS), "it was never signalled");
        assert!(
            now(Notification { signalled_ns: Some(910_000), ..PENDING }, WORKS),
            "it was signalled long ago"
        );
        assert!(now(Notification { has_progressed: false, ..PENDING }, WORKS), "it has not reacted");
        assert!(now(Notification { is_full: true, ..PENDING }, WORKS), "its ring is full");
        assert_eq!(notify(&PENDING, None, 1_010_000), Notify::Now, "there is no view");
    }

    #[test]
    fn the_ring_s_own_suppression_wins() {
        let unwanted = Notification { is_wanted: false, ..PENDING };
        assert_eq!(
            notify(&unwanted, Some(&GuestView { running: 0, blocked: 1, ..WORKS }), 1_010_000),
            Notify::Unwanted
        );
    }

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
