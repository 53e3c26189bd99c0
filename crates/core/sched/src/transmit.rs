//! Transmit timer and block edge: whether a sender kicks, or the switch polls (Hyper-Switch, 3.3 and 3.5).

use crate::bounds::{TRANSMIT_DELAY_MAX_NS, TRANSMIT_WATCH_NS};
use crate::guest::GuestView;

/// A transmit ring that was empty for the useful polling time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransmitRing {
    /// When it was polled last.
    pub visited_ns: u64,
    /// When it had its last packet.
    pub worked_ns: u64,
}

/// The decision about the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transmit {
    /// The sender kicks when it posts a packet; the ring is not polled until then.
    Arm,
    /// The sender does not kick; the ring is polled at this time at the latest, or when the sender goes to sleep.
    VisitBy(u64),
    /// The ring is polled now: the timer has ended, or a thread of the sender went to sleep after the last poll.
    Visit,
}

/// Decides by the sender; `None` without a view.
///
/// A running sender posts packets without kicks, each of which would cost it an exit, and they wait for the timer. When
/// one of its threads goes to sleep, its packets are fetched at once: it may be the one that sent them. A sender that
/// sleeps as a whole posts nothing, and its first packet is worth a kick. So is that of one that sent nothing for a while,
/// and of one that may halt-poll: it may wait for the answer while it looks as if it ran.
#[must_use]
pub fn transmit(ring: TransmitRing, sender: Option<&GuestView>, now_ns: u64) -> Transmit {
    let Some(sender) = sender.filter(|sender| sender.is_known() && !sender.may_halt_poll) else {
        return Transmit::Arm;
    };
    if now_ns.saturating_sub(ring.worked_ns) >= TRANSMIT_WATCH_NS {
        return Transmit::Arm;
    }
    let due_ns = ring.visited_ns.saturating_add(TRANSMIT_DELAY_MAX_NS);
    let visited_ago_ns = now_ns.saturating_sub(ring.visited_ns);
    if sender.blocked > 0 && sender.blocked_for_ns < visited_ago_ns {
        Transmit::Visit
    } else if sender.is_blocked() {
        Transmit::Arm
    } else if now_ns >= due_ns {
        Transmit::Visit
    } else {
        // A clock that went back causes no delay beyond the bound.
        Transmit::VisitBy(due_ns.min(now_ns.saturating_add(TRANSMIT_DELAY_MAX_NS)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RING: TransmitRing = TransmitRing { visited_ns: 1_000_000, worked_ns: 900_000 };

    #[test]
    fn a_sender_that_runs_does_not_kick_and_its_packets_wait_for_the_timer() {
        for awake in [
            GuestView { running: 1, blocked: 1, blocked_for_ns: 70_000, ..GuestView::default() },
            GuestView { waiting_here: 1, ..GuestView::default() },
        ] {
            assert_eq!(transmit(RING, Some(&awake), 1_010_000), Transmit::VisitBy(1_050_000));
            assert_eq!(transmit(RING, Some(&awake), 1_050_000), Transmit::Visit);
        }
    }

    #[test]
    fn when_it_goes_to_sleep_its_packets_are_taken_and_then_it_kicks() {
        let sleeps = |blocked_for_ns| GuestView { blocked: 1, blocked_for_ns, ..GuestView::default() };
        assert_eq!(transmit(RING, Some(&sleeps(5_000)), 1_010_000), Transmit::Visit);
        assert_eq!(transmit(RING, Some(&sleeps(10_000)), 1_010_000), Transmit::Arm);
        assert_eq!(transmit(RING, Some(&sleeps(u64::MAX)), 1_010_000), Transmit::Arm);
    }

    #[test]
    fn each_thread_of_a_sender_may_be_the_one_that_sent() {
        let half_asleep = GuestView { running: 1, blocked: 1, blocked_for_ns: 5_000, ..GuestView::default() };
        assert_eq!(transmit(RING, Some(&half_asleep), 1_010_000), Transmit::Visit);
    }

    #[test]
    fn a_sender_without_packets_for_a_while_kicks() {
        let awake = GuestView { running: 1, ..GuestView::default() };
        let (last_ns, end_ns) = (RING.worked_ns + TRANSMIT_WATCH_NS - 1, RING.worked_ns + TRANSMIT_WATCH_NS);
        assert_eq!(transmit(RING, Some(&awake), last_ns), Transmit::Visit);
        assert_eq!(transmit(RING, Some(&awake), end_ns), Transmit::Arm);
    }

    #[test]
    fn a_sender_that_may_halt_poll_kicks() {
        let guest = GuestView { running: 1, may_halt_poll: true, ..GuestView::default() };
        assert_eq!(transmit(RING, Some(&guest), 1_010_000), Transmit::Arm);
    }

    #[test]
    fn a_sender_that_is_not_seen_kicks() {
        assert_eq!(transmit(RING, None, 1_010_000), Transmit::Arm);
        let half_seen = GuestView { running: 1, unknown: 1, ..GuestView::default() };
        assert_eq!(transmit(RING, Some(&half_seen), 1_010_000), Transmit::Arm);
    }
}
