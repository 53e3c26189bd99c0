//! The marks of a worker: nothing without a profile.

use std::hint::black_box;

use lasthop_module_api::PortId;

use crate::{StageMeter, StageProfile, WorkStage};

/// The cost of a mark is the least average over this many marks, in several trials.
const TRIAL_MARKS: u64 = 64;
const TRIALS: usize = 16;

/// A worker's meter while there is a profile.
#[derive(Debug, Default)]
pub struct Stages {
    is_on: bool,
    meter: Option<Box<StageMeter>>,
}

impl Stages {
    /// Begins a profile.
    #[must_use]
    pub fn begin(meter: Box<StageMeter>) -> Self {
        let mut stages = Self { is_on: true, meter: Some(meter) };
        let ticks = stages.mark_ticks();
        stages.meter.iter_mut().for_each(|meter| meter.set_mark_ticks(ticks));
        stages.is_on = false;
        stages
    }

    /// The cost of a mark, as the code of a visit calls it.
    fn mark_ticks(&self) -> u64 {
        let Some(clock) = self.meter.as_ref().map(|meter| meter.clock) else { return 0 };
        let trial = || {
            let before = clock();
            (0..TRIAL_MARKS).for_each(|_| black_box(self).mark(WorkStage::Other));
            clock().saturating_sub(before) / TRIAL_MARKS
        };
        (0..TRIALS).map(|_| trial()).min().unwrap_or_default()
    }

    /// Ends `stage`.
    #[inline(always)]
    pub fn mark(&self, stage: WorkStage) {
        if self.is_on {
            self.mark_on(stage);
        }
    }

    #[cold]
    #[inline(never)]
    fn mark_on(&self, stage: WorkStage) {
        self.meter.iter().for_each(|meter| meter.mark(stage));
    }

    /// Ends the profile. Returns its results, if there was one.
    #[must_use]
    pub fn finish(self) -> Option<StageProfile> {
        self.meter.map(|meter| meter.finish())
    }

    /// Begins a round at `now_ns`. `has_worked`: the previous one had packets.
    #[inline]
    pub fn next_round(&mut self, now_ns: u64, has_worked: bool) {
        if let Some(meter) = &mut self.meter {
            self.is_on = meter.next_round(now_ns, has_worked);
        }
    }

    /// Ends a visit.
    #[inline]
    pub fn mark_visit(&mut self, port: PortId, packets: usize) {
        if self.is_on {
            self.meter.iter_mut().for_each(|meter| meter.end_visit(port, packets));
        }
    }

    /// Ends the worker's sleep.
    pub fn mark_sleep(&self) {
        if let Some(meter) = &self.meter {
            meter.note_sleep();
            if self.is_on {
                meter.mark_sleep();
            }
        }
    }

    /// Notes that another worker uses the thread until the next mark.
    #[inline]
    pub fn mark_away(&self) {
        if let Some(meter) = &self.meter {
            meter.note_away();
        }
    }
}
