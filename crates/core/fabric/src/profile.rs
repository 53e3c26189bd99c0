//! The profile of a worker's stages, measured where packets pass.

use lasthop_module_api::PortId;
use lasthop_stages::{StageMeter, StageProfile, Stages, WorkStage};

use crate::Fabric;

impl Fabric {
    /// Begins a profile. A running profile is discarded.
    pub fn begin_profile(&mut self, meter: Box<StageMeter>) {
        self.senders.stages = Stages::begin(meter);
    }

    /// Ends the profile. Returns its results, if there was one.
    pub fn end_profile(&mut self) -> Option<StageProfile> {
        std::mem::take(&mut self.senders.stages).finish()
    }

    /// Begins a round at `now_ns`. `has_worked`: the previous one had packets.
    #[inline]
    pub fn next_round(&mut self, now_ns: u64, has_worked: bool) {
        self.senders.stages.next_round(now_ns, has_worked);
    }

    /// Ends `stage` of the worker's work.
    #[inline]
    pub fn mark(&self, stage: WorkStage) {
        self.senders.stages.mark(stage);
    }

    /// Ends a visit.
    #[inline]
    pub fn mark_visit(&mut self, port: PortId, packets: usize) {
        self.senders.stages.mark_visit(port, packets);
    }

    /// Ends the worker's sleep.
    pub fn mark_sleep(&self) {
        self.senders.stages.mark_sleep();
    }

    /// Notes that another worker uses the thread until the next mark.
    #[inline]
    pub fn mark_away(&self) {
        self.senders.stages.mark_away();
    }
}
