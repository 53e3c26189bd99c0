//! A worker's meter: which rounds have marks, and the times within them.

use std::cell::Cell;

use lasthop_module_api::{PORTS_MAX, PortId};

use crate::{PortTicks, RoundTime, STAGES, StageProfile, StageTicks, TickClock, WorkStage};

/// A longer lap, in ticks, is discarded: the thread lost its CPU. One to two milliseconds of usual time stamp counters.
const LAP_TICKS_MAX: u64 = 4_000_000;
/// Rounds that are timed as a whole before each warm-up. So the others need no bookkeeping.
const REFERENCE_ROUNDS: u64 = 16;
/// Rounds of at least this many ns are not compared: the thread lost its CPU, or had very much work.
const ROUND_NS_MAX: u64 = 1_000_000;
/// The use of a round for the profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RoundKind {
    /// None.
    Plain,
    /// Timed as a whole.
    Reference,
    /// Has marks, whose times are discarded.
    WarmUp,
    Sampled,
}

/// Times within a round that has marks, in ticks.
#[derive(Debug, Default)]
struct RoundLaps {
    laps: [Cell<u64>; STAGES],
    asleep: Cell<u64>,
    interrupted: Cell<u64>,
    marks: Cell<u64>,
    /// Outside of stages and sleep.
    lost: Cell<u64>,
    begun: u64,
    /// The sum of the stages of its visits.
    visits: u64,
}

/// Measures the stages of a worker's work in one random round of `every`.
#[derive(Debug)]
pub struct StageMeter {
    pub(crate) clock: TickClock,
    mark_ticks: u64,
    every: u64,
    random: u64,
    /// Rounds until the next sampled one.
    left: u64,
    kind: RoundKind,
    at: Cell<u64>,
    /// Other workers have used the thread since the last mark.
    is_away: Cell<bool>,
    /// Of the present round, whichever kind it has.
    has_slept: Cell<bool>,
    is_shared: Cell<bool>,
    begun_ns: u64,
    round: RoundLaps,
    ports: Vec<PortTicks>,
    profile: StageProfile,
}

impl StageMeter {
    /// Samples one round of `every` on average; `seed` selects them.
    #[must_use]
    pub fn new(clock: TickClock, every: u32, seed: u64) -> Self {
        Self {
            clock,
            mark_ticks: 0,
            every: u64::from(every.max(1)),
            random: seed | 1,
            left: 1,
            kind: RoundKind::Plain,
            at: Cell::new(clock()),
            is_away: Cell::new(false),
            has_slept: Cell::new(false),
            is_shared: Cell::new(false),
            begun_ns: 0,
            round: RoundLaps::default(),
            ports: vec![PortTicks::default(); PORTS_MAX],
            profile: StageProfile::default(),
        }
    }

    /// Sets the cost of a mark.
    pub(crate) fn set_mark_ticks(&mut self, ticks: u64) {
        (self.mark_ticks, self.profile.mark_ticks) = (ticks, ticks);
    }

    /// The round has slept.
    pub(crate) fn note_sleep(&self) {
        self.has_slept.set(true);
    }

    /// Another worker uses the thread until the next mark.
    pub(crate) fn note_away(&self) {
        self.is_away.set(true);
        self.is_shared.set(true);
    }

    /// The time since the last mark, without the mark's own cost. Zero if other workers used the thread or the CPU was
    /// lost.
    fn lap(&self) -> u64 {
        let now = (self.clock)();
        let ticks = now.saturating_sub(self.at.replace(now)).saturating_sub(self.mark_ticks);
        self.round.marks.set(self.round.marks.get() + 1);
        if self.is_away.take() {
            self.lose(ticks);
            return 0;
        }
        ticks
    }

    fn lose(&self, ticks: u64) {
        self.round.lost.set(self.round.lost.get() + ticks);
    }

    #[cold]
    pub(crate) fn mark(&self, stage: WorkStage) {
        let ticks = self.lap();
        if ticks > LAP_TICKS_MAX {
            self.round.interrupted.set(self.round.interrupted.get() + 1);
            return self.lose(ticks);
        }
        let lap = &self.round.laps[stage as usize];
        lap.set(lap.get() + ticks);
    }

    #[cold]
    pub(crate) fn mark_sleep(&self) {
        self.round.asleep.set(self.round.asleep.get() + self.lap());
    }

    /// Ends a visit to `port`. Its own time belongs to no stage.
    #[cold]
    pub(crate) fn end_visit(&mut self, port: PortId, packets: usize) {
        let laps = self.round.laps.each_ref().map(Cell::take);
        let ticks = laps.iter().sum::<u64>();
        self.round.visits += ticks;
        if self.kind == RoundKind::Sampled {
            match self.ports.get_mut(port.index()).filter(|_| packets > 0) {
                Some(of_port) => {
                    of_port.visits += 1;
                    of_port.packets += packets as u64;
                    add(&mut of_port.ticks, &laps);
                }
                None => self.profile.own[WorkStage::Poll as usize] += ticks,
            }
        }
        let now = (self.clock)();
        self.lose(now.saturating_sub(self.at.replace(now)));
    }

    /// Ends the present round, and begins the next one at `now_ns`. `has_worked`: the present one had packets. Returns
    /// whether the next one has marks.
    pub(crate) fn next_round(&mut self, now_ns: u64, has_worked: bool) -> bool {
        if self.kind != RoundKind::Plain {
            self.end_round(now_ns, has_worked);
        }
        self.profile.rounds += 1;
        self.left -= 1;
        if self.left > 1 + REFERENCE_ROUNDS {
            return false;
        }
        self.begin_round(now_ns)
    }

    #[cold]
    fn begin_round(&mut self, now_ns: u64) -> bool {
        self.kind = match self.left {
            0 => RoundKind::Sampled,
            1 => RoundKind::WarmUp,
            _ => RoundKind::Reference,
        };
        self.begun_ns = now_ns;
        self.has_slept.set(false);
        self.is_shared.set(false);
        if self.kind == RoundKind::Reference {
            return false;
        }
        if self.kind == RoundKind::Sampled {
            self.left = 1 + self.next_random() % (2 * self.every - 1);
            self.profile.sampled += 1;
        }
        self.is_away.set(false);
        let begun = (self.clock)();
        self.round = RoundLaps { begun, ..RoundLaps::default() };
        self.at.set(begun);
        true
    }

    #[cold]
    fn end_round(&mut self, now_ns: u64, has_worked: bool) {
        let kind = std::mem::replace(&mut self.kind, RoundKind::Plain);
        let ticks = if kind == RoundKind::Sampled { self.end_laps(has_worked) } else { 0 };
        let ns = now_ns.saturating_sub(self.begun_ns);
        if !has_worked || self.has_slept.get() || self.is_shared.get() || ns >= ROUND_NS_MAX {
            return;
        }
        match kind {
            RoundKind::Plain => {}
            RoundKind::Reference => self.profile.around.count(ns),
            RoundKind::WarmUp => self.profile.marked.count(ns),
            RoundKind::Sampled => {
                self.profile.marked.count(ns);
                self.profile.within.count(ticks);
            }
        }
    }

    /// Ends the last stage of a sampled round, and adds the time that belongs to no port to the worker's; a round without packets
    /// counts as polling. Returns the sum of all stages.
    fn end_laps(&mut self, has_worked: bool) -> u64 {
        self.mark(WorkStage::Other);
        let RoundLaps { laps, asleep, interrupted, marks, lost, begun, visits } =
            std::mem::take(&mut self.round);
        let laps = laps.map(Cell::into_inner);
        let ticks = visits + laps.iter().sum::<u64>();
        let not_theirs = marks.get() * self.mark_ticks + lost.get();
        self.profile.outside += (self.at.get() - begun).saturating_sub(not_theirs);
        self.profile.asleep += asleep.get();
        self.profile.interrupted += interrupted.get();
        for (stage, ticks) in WorkStage::ALL.into_iter().zip(laps) {
            let stage = match stage {
                WorkStage::Kick | WorkStage::Control => stage,
                _ if has_worked => stage,
                _ => WorkStage::Poll,
            };
            self.profile.own[stage as usize] += ticks;
        }
        ticks
    }

    /// Xorshift: the selection must not correlate with a pattern of the traffic.
    fn next_random(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random
    }

    /// Returns the results. A round that has marks ends here, and counts as sampled: it may have slept for most of the profile.
    pub(crate) fn finish(mut self) -> StageProfile {
        if matches!(self.kind, RoundKind::WarmUp | RoundKind::Sampled) {
            if self.kind == RoundKind::WarmUp {
                self.profile.sampled += 1;
                self.lose(self.round.visits);
            }
            self.mark(WorkStage::Control);
            self.end_laps(true);
        }
        let ports = (0..).map(PortId).zip(std::mem::take(&mut self.ports));
        let seen = ports.filter(|(_, port)| port.visits > 0).collect();
        StageProfile { ports: seen, ..self.profile }
    }
}

impl RoundTime {
    fn count(&mut self, time: u64) {
        self.rounds += 1;
        self.time += time;
    }
}

fn add(sum: &mut StageTicks, ticks: &StageTicks) {
    sum.iter_mut().zip(ticks).for_each(|(sum, ticks)| *sum += ticks);
}

#[cfg(test)]
mod tests {
    use super::*;

    thread_local! {
        static NOW: Cell<u64> = const { Cell::new(0) };
    }

    fn now() -> u64 {
        NOW.get()
    }

    fn pass(ticks: u64) {
        NOW.set(NOW.get() + ticks);
    }

    fn meter(every: u32) -> StageMeter {
        StageMeter::new(now, every, 7)
    }

    fn spend(meter: &StageMeter, stages: &[(WorkStage, u64)]) {
        for (stage, ticks) in stages {
            pass(*ticks);
            meter.mark(*stage);
        }
    }

    #[test]
    fn stages_of_a_visit_are_its_ports_and_add_up_to_all_that_passed() {
        let mut meter = meter(1);
        assert!(meter.next_round(1000, false), "each one is sampled");
        let visit =
            [(WorkStage::Other, 5), (WorkStage::Fetch, 30), (WorkStage::Copy, 70), (WorkStage::Copy, 2)];
        spend(&meter, &visit);
        meter.end_visit(PortId(3), 4);
        spend(&meter, &[(WorkStage::Fetch, 11), (WorkStage::Other, 1)]);
        meter.end_visit(PortId(4), 0);
        spend(&meter, &[(WorkStage::Kick, 9)]);
        pass(6);
        assert!(meter.next_round(1134, true));
        let profile = meter.finish();
        let (port, ticks) = &profile.ports[0];
        assert_eq!((profile.ports.len(), *port, ticks.visits, ticks.packets), (1, PortId(3), 1, 4));
        assert_eq!(ticks.ticks[WorkStage::Copy as usize], 72);
        assert_eq!(ticks.ticks.iter().sum::<u64>(), 107);
        assert_eq!(profile.own[WorkStage::Poll as usize], 12, "a visit without packets");
        assert_eq!((profile.own[WorkStage::Kick as usize], profile.own[WorkStage::Other as usize]), (9, 6));
        assert_eq!(profile.within, RoundTime { rounds: 1, time: 134 }, "all that passed");
        assert_eq!(profile.outside, 134, "measured around them");
    }

    #[test]
    fn a_round_without_packets_is_looking_for_some_but_for_kicks_and_tasks() {
        let mut meter = meter(1);
        meter.next_round(0, false);
        spend(&meter, &[(WorkStage::Other, 8), (WorkStage::Kick, 3), (WorkStage::Control, 2)]);
        pass(1);
        meter.next_round(14, false);
        let profile = meter.finish();
        let own = |stage: WorkStage| profile.own[stage as usize];
        assert_eq!((own(WorkStage::Poll), own(WorkStage::Kick), own(WorkStage::Control)), (9, 3, 2));
        assert_eq!(
            (profile.within.rounds, profile.ports.len()),
            (0, 0),
            "only rounds with packets are compared"
        );
    }

    #[test]
    fn sleep_time_of_others_and_lost_cpu_time_are_no_stages() {
        let mut meter = meter(1);
        meter.next_round(0, false);
        pass(500);
        meter.mark_sleep();
        pass(300);
        meter.is_away.set(true);
        meter.mark(WorkStage::Fetch);
        pass(LAP_TICKS_MAX + 1);
        meter.mark(WorkStage::Copy);
        spend(&meter, &[(WorkStage::Copy, 10)]);
        meter.end_visit(PortId(0), 1);
        let profile = meter.finish();
        assert_eq!((profile.asleep, profile.interrupted, profile.outside), (500, 1, 510));
        assert_eq!(profile.ports[0].1.ticks.iter().sum::<u64>(), 10);
    }

    /// Passes `rounds` rounds with packets, whose visit takes 100 ticks, and their marks further `marks`.
    fn pass_rounds(meter: &mut StageMeter, rounds: u64, marks: u64) {
        for _ in 0..rounds {
            let has_marks = meter.next_round(now(), true);
            pass(100);
            if has_marks {
                pass(marks);
                meter.mark(WorkStage::Copy);
                meter.end_visit(PortId(1), 1);
            }
        }
        meter.next_round(now(), true);
    }

    #[test]
    fn one_round_of_many_is_sampled_and_the_ones_before_are_the_measure_around() {
        let mut meter = meter(64);
        pass_rounds(&mut meter, 64_000, 0);
        let profile = meter.finish();
        assert_eq!(profile.rounds, 64_001);
        assert!((900..=1100).contains(&profile.sampled), "{}", profile.sampled);
        let references = profile.around.rounds / profile.sampled;
        assert!((REFERENCE_ROUNDS - 4..=REFERENCE_ROUNDS).contains(&references), "{references}");
        assert_eq!(profile.around.time, 100 * profile.around.rounds);
        assert_eq!(profile.within.time, 100 * profile.within.rounds);
    }

    #[test]
    fn the_round_before_a_sampled_one_is_discarded_but_counts_as_cost() {
        let mut meter = meter(64);
        pass_rounds(&mut meter, 64_000, 60);
        let profile = meter.finish();
        let (sampled, marked) = (profile.within.rounds, profile.marked.rounds);
        assert!(
            (2 * sampled - 60..=2 * sampled).contains(&marked),
            "{marked} of {sampled}: each with a warm-up, but few"
        );
        assert_eq!(profile.marked.time, 160 * marked);
        assert_eq!(profile.ports[0].1.packets, sampled, "packets of warm-ups are none");
        assert_eq!(profile.around.time, 100 * profile.around.rounds, "no marks in them");
    }

    #[test]
    fn rounds_with_sleep_or_other_workers_are_not_compared() {
        let mut meter = meter(1);
        meter.next_round(0, false);
        for flag in [&meter.has_slept, &meter.is_shared] {
            flag.set(true);
        }
        meter.next_round(50, true);
        meter.next_round(50 + ROUND_NS_MAX, true);
        meter.next_round(60 + ROUND_NS_MAX, true);
        assert_eq!(meter.finish().within.rounds, 1);
    }
}
