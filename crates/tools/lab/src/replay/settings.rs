//! Other settings: which recorded decisions they change, and what the signals would have been.

use lasthop_sched::{
    GuestView, LastOffer, Look, LookRound, Modes, Occupancy, Policy, Reminder, look, occupy, remind,
};

use super::inputs;
use super::range::Range;
use super::trace_file::{Recorded, Word};

/// Settings in place of those of the recorded switch.
#[derive(Clone, Debug, Default)]
pub(crate) struct OtherSettings {
    /// The longest polling time, in ns; `None`: the recorded one.
    pub(crate) max_ns: Option<u64>,
    /// Policies with another mode.
    pub(crate) changed: Vec<Policy>,
    pub(crate) modes: Modes,
}

impl OtherSettings {
    /// Whether the policy is turned off. All that have decisions in a trace were on.
    pub(crate) fn is_off(&self, policy: Policy) -> bool {
        self.changed.contains(&policy) && !self.modes.is_used(policy)
    }

    /// The round with the other hysteresis. Adaptive polling learns a share of it.
    pub(crate) fn round(&self, round: LookRound) -> LookRound {
        let Some(max_ns) = self.max_ns else { return round };
        let learned_ns = u128::from(round.learned_ns) * u128::from(max_ns) / u128::from(round.max_ns.max(1));
        LookRound { max_ns, learned_ns: u64::try_from(learned_ns).unwrap_or(u64::MAX).min(max_ns), ..round }
    }

    /// The decision of look about a round with the recorded settings' inputs.
    pub(crate) fn step(&self, round: LookRound, guest: Option<&GuestView>, last: Option<LastOffer>) -> Look {
        step(self.round(round), guest.filter(|_| !self.is_off(Policy::Look)), last)
    }

    /// Number of a line's decisions that differ; `None` if the trace lacks the inputs.
    pub(crate) fn differing(&self, line: &Recorded) -> Option<Range> {
        let (all, none) = (Range::exactly(line.times), Range::exactly(0));
        let (policy, _) = line.word.names();
        Some(match policy {
            Policy::Look => return self.differing_looks(line),
            _ if !self.is_off(policy) => none,
            Policy::Yield => {
                let inputs = line.inputs.map(|_| inputs::offers(line))?;
                let differs = inputs.into_iter().all(|last| occupy(None, last) == Occupancy::Keep);
                self.first_of(line, differs)
            }
            Policy::SecondSignal => {
                line.inputs?;
                let unseen = remind(*inputs::signals(line).first()?, None);
                match (line.word, unseen) {
                    (Word::Signal, Reminder::Watch) => all,
                    // A guess signals if second signals have been worth it, which the trace does not tell.
                    (_, Reminder::SignalByTrust) => Range { least: 0, most: line.times },
                    _ => none,
                }
            }
            Policy::Notify | Policy::TransmitTimer => all,
            // By load alone a held worker leaves, and none leaves early.
            Policy::Gathering if matches!(line.word, Word::Held | Word::Early) => all,
            Policy::Gathering => none,
            Policy::Offload | Policy::Movement => return None,
        })
    }

    /// The first decision is known, its repetitions are not.
    fn first_of(&self, line: &Recorded, differs: bool) -> Range {
        Range { least: u64::from(differs), most: line.times - u64::from(!differs) }
    }

    fn differing_looks(&self, line: &Recorded) -> Option<Range> {
        let sums = line.repetitions?;
        line.inputs?.idle_ns?;
        let (&round, &last) = (inputs::rounds(line).first()?, inputs::offers(line).first()?);
        let guest = line.guest.as_ref();
        let differs = |idle_ns: u64| {
            let round = LookRound { idle_ns, ..round };
            step(round, guest, last) != self.step(round, guest, last)
        };
        let first = differs(round.idle_ns);
        if line.times == 1 {
            return Some(Range::exactly(u64::from(first)));
        }
        // Decisions of one state change at most twice with the idle time: look at the ends, and at the start of a pause.
        let start = if sums.starts > 1 { differs(0) } else { first };
        let others = [start, differs(sums.idle_last_ns), differs(sums.idle_max_ns)];
        Some(if others == [first; 3] {
            Range::exactly(if first { line.times } else { 0 })
        } else {
            self.first_of(line, first)
        })
    }
}

/// The step of a thread after a round: a CPU that nothing took a moment ago is not offered again.
fn step(round: LookRound, guest: Option<&GuestView>, last: Option<LastOffer>) -> Look {
    match look(&round, guest.filter(|guest| guest.is_known())) {
        Look::Yield if !inputs::is_offered(last) => Look::Poll,
        step => step,
    }
}

/// Signals and visits, as recorded and with other settings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SignalSums {
    /// Second signals.
    pub(crate) second: Counted,
    /// Signals of receive rings that notify delayed, joined or left out.
    pub(crate) receive: Counted,
    /// Kicks of senders, in place of visits that found packets.
    pub(crate) kicks: Counted,
    /// Visits by timers.
    pub(crate) visits: Counted,
}

/// A count as recorded, and with other settings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counted {
    pub(crate) recorded: Range,
    pub(crate) other: Range,
}

impl Counted {
    fn add(&mut self, recorded: Range, other: Range) {
        self.recorded = self.recorded.plus(recorded);
        self.other = self.other.plus(other);
    }
}

/// The signals of a trace.
pub(crate) fn signal_sums(trace: &[Recorded], settings: &OtherSettings) -> SignalSums {
    let mut sums = SignalSums::default();
    let none = Range::exactly(0);
    let mut delayed = none;
    let mut requested = 0_u64;
    let mut drained = 0_u64;
    for line in trace {
        let all = Range::exactly(line.times);
        let (policy, _) = line.word.names();
        let is_off = settings.is_off(policy);
        match line.word {
            Word::Signal | Word::NoSignal => {
                let recorded = if line.word == Word::Signal { all } else { none };
                // A guess signals after 100 us if that has been worth it, which the trace does not tell.
                let guessed = Range { least: 0, most: line.times };
                sums.second.add(recorded, if is_off { guessed } else { recorded });
            }
            Word::Later => {
                let sent = match line.repetitions {
                    Some(sums) => Range::exactly(sums.starts.min(line.times)),
                    None => Range { least: 0, most: line.times },
                };
                delayed = delayed.plus(sent);
                requested = requested.saturating_add(line.times);
            }
            Word::Drained => drained = drained.saturating_add(line.times),
            Word::Packets => {
                sums.kicks.add(none, if is_off { all } else { none });
                sums.visits.add(all, if is_off { none } else { all });
            }
            Word::Empty => sums.visits.add(all, if is_off { none } else { all }),
            _ => {}
        }
    }
    let sent = delayed.minus(drained);
    let other = if settings.is_off(Policy::Notify) { Range::exactly(requested) } else { sent };
    sums.receive.add(sent, other);
    sums
}
