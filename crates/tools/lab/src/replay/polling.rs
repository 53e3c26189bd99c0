//! How long a worker was awake in the pauses between packets, and how long it would have been with other settings. It polled,
//! or had offered its CPU.
//!
//! ```text
//!   packets ──────────── idle time ─────────────> packets, or sleep
//!           poll, poll, poll, poll │ with other settings it sleeps here
//! ```
//!
//! A line tells the first pause's beginning, the last pause's length, the longest one and the sum. The lengths of the others
//! are bounded by these.

use std::collections::BTreeMap;

use lasthop_sched::bounds::SETTLE_NS;
use lasthop_sched::{Look, LookRound};

use super::inputs;
use super::range::Range;
use super::settings::{Counted, OtherSettings};
use super::trace_file::{Recorded, Word};

/// Times of lines are rounded to us, at both ends.
const ROUNDING_NS: u64 = 3000;

/// A pause that may continue in the worker's next line.
#[derive(Clone, Copy, Debug)]
struct Pause {
    /// Virtual time of the last packets before it, in ns.
    began_ns: u64,
    /// Idle time at which the thread began to poll, in ns: later than 0 if it had slept since the packets.
    since_ns: u64,
    /// Idle time at its last decision so far, in ns.
    idle_ns: u64,
    /// Idle time at which a thread with the other settings went to sleep, if it did.
    stopped_ns: Option<u64>,
    /// Idle time until which it would have polled on, where the recorded thread went to sleep.
    open_ns: Option<u64>,
    /// Whether the last decision was to sleep.
    is_asleep: bool,
}

impl Pause {
    /// A pause since packets at `began_ns`, in which the thread polls from idle time `since_ns` on.
    fn new(began_ns: u64, since_ns: u64) -> Self {
        Self { began_ns, since_ns, idle_ns: since_ns, stopped_ns: None, open_ns: None, is_asleep: false }
    }

    /// Adds decisions with idle times from `first_ns` to `last_ns`; the other settings sleep from `stop_ns` on.
    fn extend(&mut self, first_ns: u64, last_ns: u64, stop_ns: u64, word: Word) {
        if self.stopped_ns.is_none() && stop_ns <= last_ns {
            self.stopped_ns = Some(stop_ns.max(first_ns.min(last_ns)));
        }
        self.idle_ns = last_ns;
        self.is_asleep = word == Word::Sleep;
        self.open_ns = (self.is_asleep && stop_ns > last_ns).then_some(stop_ns);
    }

    /// Its polling time; the next pause began at `next_ns`.
    fn polled(&self, next_ns: Option<u64>) -> Counted {
        let recorded = Range::exactly(self.idle_ns);
        let other = match (self.stopped_ns, self.open_ns) {
            (Some(stopped_ns), _) => Range::exactly(stopped_ns.max(self.since_ns)),
            (None, Some(open_ns)) => {
                let gap_ns = next_ns.map_or(open_ns, |next_ns| next_ns.saturating_sub(self.began_ns));
                Range { least: self.idle_ns, most: open_ns.min(gap_ns).max(self.idle_ns) }
            }
            (None, None) => recorded,
        };
        Counted { recorded: recorded.minus(self.since_ns), other: other.minus(self.since_ns) }
    }
}

/// The polling times of one worker, in ns.
#[derive(Debug, Default)]
struct Worker {
    pause: Option<Pause>,
    polled: Counted,
}

impl Worker {
    fn add(&mut self, polled: Counted) {
        self.polled.recorded = self.polled.recorded.plus(polled.recorded);
        self.polled.other = self.polled.other.plus(polled.other);
    }

    fn close(&mut self, next_ns: Option<u64>) {
        if let Some(pause) = self.pause.take() {
            self.add(pause.polled(next_ns));
        }
    }

    /// Adds a line; returns `None` if it lacks inputs.
    fn enter(&mut self, line: &Recorded, settings: &OtherSettings) -> Option<()> {
        let (sums, idle_ns) = (line.repetitions?, line.inputs?.idle_ns?);
        let stop_ns = stop_ns(line, settings)?;
        let began_ns = line.at_ns.saturating_sub(idle_ns);
        let is_same =
            |pause: &Pause| pause.began_ns.abs_diff(began_ns) <= ROUNDING_NS && pause.idle_ns <= idle_ns;
        let mut first = Pause::new(began_ns, 0);
        match self.pause.take_if(|pause| is_same(pause)) {
            Some(pause) if pause.is_asleep => {
                self.add(pause.polled(Some(line.at_ns)));
                first = Pause::new(began_ns, idle_ns);
            }
            Some(pause) => first = pause,
            None => self.close(Some(began_ns)),
        }
        if sums.starts <= 1 {
            first.extend(idle_ns, sums.idle_last_ns.max(idle_ns), stop_ns, line.word);
            self.pause = Some(first);
            return Some(());
        }
        let between_ns = sums.idle_sum_ns.saturating_sub(sums.idle_last_ns).saturating_sub(first.since_ns);
        self.add(bounded(sums.starts - 1, between_ns, sums.idle_max_ns, stop_ns, first.stopped_ns.is_some()));
        let began_ns = line.end_ns().saturating_sub(sums.idle_last_ns);
        let mut last = Pause::new(began_ns, 0);
        last.extend(0, sums.idle_last_ns, stop_ns, line.word);
        self.pause = Some(last);
        Some(())
    }
}

/// Bounds of the polling time in `count` pauses of together `sum_ns`, none longer than `longest_ns`, of which a thread polls at
/// most `stop_ns` each. One of them may have ended earlier (`has_stopped`).
fn bounded(count: u64, sum_ns: u64, longest_ns: u64, stop_ns: u64, has_stopped: bool) -> Counted {
    let recorded = Range::exactly(sum_ns);
    if stop_ns >= longest_ns && !has_stopped {
        return Counted { recorded, other: recorded };
    }
    // The least: as many pauses as possible are as long as possible.
    let (longest_ns, cut_ns) = (longest_ns.max(1), stop_ns.min(longest_ns));
    let sum_of_others_ns = if has_stopped { sum_ns.saturating_sub(longest_ns) } else { sum_ns };
    let (long, rest_ns) = (sum_of_others_ns / longest_ns, sum_of_others_ns % longest_ns);
    let least = long.saturating_mul(cut_ns).saturating_add(rest_ns.min(cut_ns)).min(sum_ns);
    let most = sum_ns.min(count.saturating_mul(stop_ns)).max(least);
    Counted { recorded, other: Range { least, most } }
}

/// The idle time from which on look decides to sleep with other settings, in ns, if the guest stays as it was. Decisions change
/// at these times only.
fn stop_ns(line: &Recorded, settings: &OtherSettings) -> Option<u64> {
    let (&round, &last) = (inputs::rounds(line).first()?, inputs::offers(line).first()?);
    let LookRound { learned_ns, max_ns, .. } = settings.round(round);
    let mut times_ns = [0, SETTLE_NS, learned_ns, max_ns];
    times_ns.sort_unstable();
    let is_asleep = |idle_ns: &u64| {
        settings.step(LookRound { idle_ns: *idle_ns, ..round }, line.guest.as_ref(), last) == Look::Sleep
    };
    times_ns.into_iter().find(is_asleep)
}

/// The polling times of each worker, in ns, and the number of lines of look without inputs.
pub(crate) fn polled(trace: &[Recorded], settings: &OtherSettings) -> (BTreeMap<usize, Counted>, usize) {
    let (mut workers, mut without) = (BTreeMap::<usize, Worker>::new(), 0);
    let is_look =
        |line: &&Recorded| matches!(line.word, Word::Poll | Word::Yield | Word::Sleep | Word::Unseen);
    for line in trace.iter().filter(is_look) {
        without += usize::from(workers.entry(line.worker).or_default().enter(line, settings).is_none());
    }
    workers.values_mut().for_each(|worker| worker.close(None));
    (workers.into_iter().map(|(number, worker)| (number, worker.polled)).collect(), without)
}

#[cfg(test)]
mod tests {
    use super::super::trace_file::parse;
    use super::*;

    /// A pause of 12 to 60 us in which the guest runs, then a decision at 90 us by which the guest sleeps.
    const TRACE: &str = r#"{"decisions":[
        {"worker":0,"ago_us":988,"for_us":48,"times":40,"policy":"look","decision":"poll","vnic":"vm1",
         "guest":{"running":1,"waiting_here":0,"waiting_elsewhere":0,"sleeping":0},
         "inputs":{"idle_ns":12000,"learned_ns":50000,"max_ns":200000,"is_posted":false},
         "repetitions":{"starts":1,"idle_last_ns":60000,"idle_max_ns":60000,"idle_sum_ns":60000}},
        {"worker":0,"ago_us":910,"for_us":0,"times":1,"policy":"look","decision":"sleep","vnic":"vm1",
         "guest":{"running":0,"waiting_here":0,"waiting_elsewhere":0,"sleeping":1},
         "inputs":{"idle_ns":90000,"learned_ns":50000,"max_ns":200000,"is_posted":false},
         "repetitions":{"starts":1,"idle_last_ns":90000,"idle_max_ns":90000,"idle_sum_ns":90000}}]}"#;

    fn other_us(max_us: Option<u64>, is_look_off: bool) -> (Range, Range) {
        let changed = if is_look_off { vec![lasthop_sched::Policy::Look] } else { Vec::new() };
        let settings =
            OtherSettings { max_ns: max_us.map(|us| 1000 * us), changed, ..OtherSettings::default() };
        let (workers, without) = polled(&parse(TRACE.as_bytes()).expect("a trace"), &settings);
        assert_eq!(without, 0);
        (workers[&0].recorded.thousands(), workers[&0].other.thousands())
    }

    #[test]
    fn a_pause_over_two_lines_counts_once() {
        assert_eq!(other_us(None, false), (Range::exactly(90), Range::exactly(90)));
    }

    #[test]
    fn a_shorter_hysteresis_ends_the_pause_and_a_longer_one_does_not_wake_the_guest() {
        assert_eq!(other_us(Some(40), false).1, Range::exactly(40));
        assert_eq!(other_us(Some(400), false).1, Range::exactly(90));
        assert_eq!(other_us(None, true).1, Range::exactly(50), "the learned time");
    }

    #[test]
    fn time_asleep_does_not_count() {
        let asleep = TRACE
            .replace(r#""decision":"poll""#, r#""decision":"sleep""#)
            .replace(r#""running":1"#, r#""running":0"#);
        let (workers, _) = polled(&parse(asleep.as_bytes()).expect("a trace"), &OtherSettings::default());
        assert_eq!(workers[&0].recorded.thousands(), Range::exactly(60), "it slept from 60 to 90 us");
    }

    #[test]
    fn where_the_hysteresis_ended_a_pause_a_longer_one_ends_with_it_or_with_the_next_packets() {
        let runs = TRACE.replace(r#""running":0"#, r#""running":1"#).replace("90000", "200000");
        let settings = OtherSettings { max_ns: Some(400_000), ..OtherSettings::default() };
        let (workers, _) = polled(&parse(runs.as_bytes()).expect("a trace"), &settings);
        assert_eq!(
            workers[&0].other.thousands(),
            Range { least: 260, most: 460 },
            "another pause, as it began later"
        );
    }

    #[test]
    fn lengths_that_are_not_known_are_bounded() {
        let of = |stop_ns| bounded(3, 100, 60, stop_ns, false).other;
        assert_eq!(of(60), Range::exactly(100));
        assert_eq!(of(20), Range { least: 40, most: 60 }, "60 and 40, or three of at least 20");
        assert_eq!(of(0), Range::exactly(0));
    }
}
