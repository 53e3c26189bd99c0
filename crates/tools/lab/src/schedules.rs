//! Random schedules: machines with random costs, guests at random places, random traffic. Each run checks that no frame is
//! reordered, and that each is accounted for.

use anyhow::{Context, Result};
use lasthop_sched::{CpuDistance, OffloadCriteria, PlaceCriteria};

use crate::console::Progress;
use crate::frame::PAYLOAD_BYTES_MAX;
use crate::model::{Knob, Model};
use crate::random::Random;
use crate::scenario::{LabWork, Pattern, Scenario};
use crate::sim::{Architecture, Choices};

/// Virtual time of a schedule, in ns.
const SCHEDULE_NS: u64 = 400_000;
/// Schedules for each step of the progress bar.
const STEP: u64 = 1000;

/// Sums over schedules.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ScheduleCounts {
    pub(crate) frames: u64,
    pub(crate) offloaded: u64,
    pub(crate) drops: u64,
}

/// Tries schedules number `first` to `first + count`. A failure names the number of the schedule, which repeats it.
///
/// # Errors
/// If a frame came out of order, or is missing without a reason.
pub(crate) fn try_all(first: u64, count: u64) -> Result<ScheduleCounts> {
    let model = Model::load("opteron")?;
    let mut progress = Progress::new(count.div_ceil(STEP) as usize);
    let mut counts = ScheduleCounts::default();
    for number in first..first + count {
        let result = schedule(&model, number).run().with_context(|| {
            format!("schedule {number}; repeat it with `lasthop-lab schedules --first {number} --count 1`")
        })?;
        counts.frames += result.frames.received;
        counts.offloaded += result.offloaded;
        counts.drops += result.drops.total();
        if number % STEP == 0 {
            progress.step("random schedules");
        }
    }
    Ok(counts)
}

/// The schedule of a number.
fn schedule(model: &Model, number: u64) -> Scenario {
    let mut random = Random::new(number);
    let mut model = model.clone();
    for (knob, _) in Knob::ALL {
        model = model.varied(knob, 10 + random.below(300));
    }
    let architecture = Architecture::ALL[random.below(4) as usize].0;
    let count = 1 + random.below(5) as u16;
    let pattern = match random.below(4) {
        0 => Pattern::Pairs(count),
        1 => Pattern::AllToAll(1 + count),
        2 => Pattern::Echo,
        _ => Pattern::BareStream(count),
    };
    // A guest that polls is the product's bench.
    let architecture =
        if matches!(pattern, Pattern::BareStream(_)) { Architecture::Lasthop } else { architecture };
    let payload_bytes = 1 + match random.below(3) {
        0 => random.below(64),
        1 => random.below(9000),
        _ => random.below(u64::from(PAYLOAD_BYTES_MAX)),
    } as u32;
    let farthest = [CpuDistance::Llc, CpuDistance::Node, CpuDistance::Far][random.below(3) as usize];
    let criteria = OffloadCriteria {
        packet_bytes_min: random.below(4096) as u32,
        blocked_packets_max: random.below(6) as u32,
        ..OffloadCriteria::default()
    };
    let mut scenario = Scenario {
        choices: Choices {
            offload: (random.below(5) > 0).then_some(criteria),
            place: PlaceCriteria { whole_group: random.below(2) > 0, farthest },
            early_signals: false,
            movement: false,
            visit_helpers: 1,
        },
        window_bytes: 1 + random.below(1 << 20),
        workers: 1 + random.below(4) as usize,
        seed: random.next(),
        warm_up_ns: 0,
        measured_ns: 1 + random.below(SCHEDULE_NS),
        ..Scenario::new(&model, architecture, LabWork::new(pattern, payload_bytes))
    };
    add_helpers(&mut scenario, &mut random);
    scenario
}

/// Helpers of the product in half of its schedules, and workloads that came with them.
fn add_helpers(scenario: &mut Scenario, random: &mut Random) {
    if scenario.architecture != Architecture::Lasthop {
        return;
    }
    scenario.choices.early_signals = random.below(2) > 0;
    scenario.helpers = [0, 1, 2, 6][random.below(4) as usize];
    let work = &mut scenario.work;
    match (work.pattern, random.below(3)) {
        (Pattern::Pairs(count), 0) => work.pattern = Pattern::FanIn(count),
        (Pattern::Pairs(count), 1) => work.pattern = Pattern::Beside(count),
        (Pattern::BareStream(count), 0) => work.pattern = Pattern::BareFanIn(count),
        _ => {}
    }
    if matches!(work.pattern, Pattern::BareStream(_) | Pattern::BareFanIn(_)) {
        work.nap_us = [0, 0, 5, 50][random.below(4) as usize];
    }
    if let Some(offload) = scenario.choices.offload.as_mut().filter(|_| random.below(2) > 0) {
        offload.helper_packets_max = 2 + random.below(32) as u32;
    }
    scenario.choices.movement = random.below(2) > 0;
    // The last draws: schedules that were tried before stay the same unless these change them.
    scenario.work.is_cut = random.below(4) == 0 && scenario.work.can_be_cut();
    scenario.choices.visit_helpers = [1, 1, 2, 3][random.below(4) as usize];
    let work = &mut scenario.work;
    work.is_summed = random.below(4) == 0 && work.is_stream() && !work.is_cut;
    if let Some(offload) = scenario.choices.offload.as_mut().filter(|_| random.below(2) > 0) {
        offload.packet_bytes_min = PAYLOAD_BYTES_MAX / 2;
        offload.summed_bytes_min = random.below(9000) as u32;
        offload.far_bytes_min = random.below(9000) as u32;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_schedule_reorders_or_loses_frames() {
        let counts = try_all(0, 100).unwrap();
        assert!(counts.frames > 2000 && counts.offloaded > 10, "{counts:?}");
        assert_eq!(try_all(90, 10).unwrap(), try_all(90, 10).unwrap(), "the same again");
    }
}
