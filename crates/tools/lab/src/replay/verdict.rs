//! Whether the production functions give a recorded decision for the recorded state.

use lasthop_sched::{
    GuestView, Look, LookRound, Notify, Occupancy, Policy, Reminder, Separation, Transmit, look, notify,
    occupy, remind, separate, transmit,
};

use super::inputs;
use super::trace_file::{Recorded, Word};

/// The result for a line of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Verdict {
    /// The function gives this decision for the recorded inputs.
    Same,
    /// It does for some values of the inputs that the trace does not tell.
    Possible,
    /// It does not.
    Unexplained,
    /// No function of `sched` makes this decision.
    NotReplayed,
}

/// Judges a line by its first decision, and a pause by its length.
pub(crate) fn judge(recorded: &Recorded) -> Verdict {
    let (policy, _) = recorded.word.names();
    let is_explained = match policy {
        Policy::Look => is_look_explained(recorded),
        Policy::Yield => is_offer_explained(recorded),
        Policy::SecondSignal => is_reminder_explained(recorded),
        Policy::Notify => is_notify_explained(recorded),
        Policy::TransmitTimer => is_timer_explained(recorded),
        Policy::Gathering => is_separation_explained(recorded),
        Policy::Offload | Policy::Movement => return Verdict::NotReplayed,
    };
    match (is_explained, recorded.inputs.is_some()) {
        (false, _) => Verdict::Unexplained,
        (true, true) => Verdict::Same,
        (true, false) => Verdict::Possible,
    }
}

fn known(guest: Option<&GuestView>) -> Option<&GuestView> {
    guest.filter(|guest| guest.is_known())
}

fn is_look_explained(recorded: &Recorded) -> bool {
    let guest = known(recorded.guest.as_ref());
    let is_guest_right = (recorded.word == Word::Unseen) == guest.is_none();
    let fits = |round: LookRound| match (recorded.word, look(&round, guest)) {
        (Word::Unseen, _) | (Word::Poll, Look::Poll) | (Word::Sleep, Look::Sleep) => true,
        (Word::Yield, Look::Yield) => inputs::offers(recorded).into_iter().any(inputs::is_offered),
        // An offer is not repeated at once if nothing took the last one.
        (Word::Poll, Look::Yield) => !inputs::offers(recorded).into_iter().all(inputs::is_offered),
        _ => false,
    };
    is_guest_right && inputs::rounds(recorded).into_iter().any(fits) && is_longest_pause_explained(recorded)
}

/// Nothing polls or yields longer than the hysteresis, whatever the guest did after the first decision.
fn is_longest_pause_explained(recorded: &Recorded) -> bool {
    let Some(sums) = recorded.repetitions.filter(|_| matches!(recorded.word, Word::Poll | Word::Yield))
    else {
        return true;
    };
    let awake = GuestView { running: 1, ..GuestView::default() };
    let longest = |round: LookRound| LookRound { idle_ns: sums.idle_max_ns, ..round };
    inputs::rounds(recorded).into_iter().any(|round| look(&longest(round), Some(&awake)) == Look::Poll)
}

fn is_offer_explained(recorded: &Recorded) -> bool {
    let offers = inputs::offers(recorded);
    let is_offered =
        |cpu: Option<_>| offers.iter().any(|last| occupy(cpu.as_ref(), *last) == Occupancy::Offer);
    inputs::own_cpus(recorded).into_iter().any(is_offered)
}

fn is_reminder_explained(recorded: &Recorded) -> bool {
    let fits = |reminder| match recorded.word {
        Word::Signal => reminder == Reminder::Signal,
        _ => matches!(reminder, Reminder::Watch | Reminder::GiveUp),
    };
    let signals = inputs::signals(recorded);
    let is_any =
        |guest: Option<GuestView>| signals.iter().any(|signal| fits(remind(*signal, guest.as_ref())));
    inputs::guests(recorded).into_iter().any(is_any)
}

fn is_notify_explained(recorded: &Recorded) -> bool {
    let fits = |notified| match recorded.word {
        Word::Later => matches!(notified, Notify::At(_)),
        _ => notified == Notify::Now,
    };
    let pending = inputs::notifications(recorded);
    let is_any = |guest: Option<GuestView>| {
        pending.iter().any(|pending| fits(notify(pending, guest.as_ref(), recorded.at_ns)))
    };
    inputs::guests(recorded).into_iter().any(is_any)
}

fn is_timer_explained(recorded: &Recorded) -> bool {
    let fits = |decided| match recorded.word {
        Word::Timer => matches!(decided, Transmit::VisitBy(_)),
        _ => decided == Transmit::Visit,
    };
    let rings = inputs::rings(recorded);
    let is_any = |guest: Option<GuestView>| {
        rings.iter().any(|ring| fits(transmit(*ring, guest.as_ref(), recorded.at_ns)))
    };
    inputs::guests(recorded).into_iter().any(is_any)
}

fn is_separation_explained(recorded: &Recorded) -> bool {
    let Some((thread, idle_cpus)) = inputs::shared_thread(recorded) else { return recorded.inputs.is_none() };
    let expected = match recorded.word {
        Word::Held => Separation::Held,
        Word::Early => Separation::Early,
        Word::Late => Separation::Late,
        _ => Separation::Apart,
    };
    separate(thread, idle_cpus) == expected
}
