//! The product's helpers next to no helpers: gains, the share of time of each stage, placements, and the latency of a ring
//! that has no large frames.

use anyhow::Result;
use lasthop_sched::{OffloadCriteria, PlaceCriteria};

use crate::console::Progress;
use crate::desk::usual_offload;
use crate::model::Model;
use crate::scenario::{LabWork, Scenario};
use crate::sim::{Architecture, Choices, RunResult, StageTimes};

/// The workloads of the table, if none is given.
pub(crate) const WORKS: [&str; 13] = [
    "pairs=1,payload=1448",
    "pairs=1,payload=8948",
    "pairs=1,payload=65483",
    "fan-in=4,payload=1448",
    "fan-in=4,payload=8948",
    "fan-in=4,payload=65483",
    "pairs=4,payload=1448",
    "pairs=4,payload=8948",
    "pairs=4,payload=65483",
    "all-to-all=8,payload=1448",
    "all-to-all=8,payload=8948",
    "all-to-all=8,payload=65483",
    "beside=1,payload=65483",
];
/// A helper on each CPU without a worker.
const HELPERS: usize = 63;

/// Settings of all runs of the table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GainSettings {
    pub(crate) seed: u64,
    pub(crate) window_bytes: u64,
    pub(crate) place: PlaceCriteria,
    pub(crate) early_signals: bool,
    pub(crate) movement: bool,
    /// Helpers of a visit; the product has one.
    pub(crate) visit_helpers: usize,
    /// The criteria of the column "helpers".
    pub(crate) offload: OffloadCriteria,
}

/// Runs workloads without a shared frame, with those of the product's settings, and with helpers that share frames of any length.
/// Returns a table in Markdown.
///
/// # Errors
/// If a run fails.
pub(crate) fn table(model: &Model, works: &[LabWork], settings: GainSettings) -> Result<String> {
    let mut text = "| workload | alone, Gbit/s | helpers | any length | worker alone: visit, look-up, copy | worker, copy, with helpers | busiest CPU \
                    alone: worker, guest | with helpers | near | p99 alone | p99 with helpers |\n\
                    |---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|\n"
        .to_owned();
    let mut progress = Progress::new(works.len());
    for &work in works {
        let run = |helpers, offload| -> Result<RunResult> {
            let GainSettings { seed, window_bytes, place, early_signals, movement, visit_helpers, .. } =
                settings;
            let choices = Choices { offload: Some(offload), place, early_signals, movement, visit_helpers };
            let scenario = Scenario::new(model, Architecture::Lasthop, work);
            Scenario { seed, window_bytes, choices, helpers, ..scenario }.run()
        };
        let from = |packet_bytes_min| OffloadCriteria { packet_bytes_min, ..usual_offload() };
        let alone = run(HELPERS, from(u32::MAX))?;
        let helped = run(HELPERS, settings.offload)?;
        let any = run(HELPERS, from(1))?;
        text += &row(work, &alone, &helped, &any);
        progress.step(&work.to_string());
    }
    Ok(text)
}

fn row(work: LabWork, alone: &RunResult, helped: &RunResult, any: &RunResult) -> String {
    let ratio = |one: &RunResult| one.gbit_per_s() / alone.gbit_per_s();
    let busiest = |one: &RunResult| {
        [&one.worker_cpus, &one.guest_cpus]
            .map(|cpus| format!("{:.0} %", one.busiest_percent(cpus)))
            .join(", ")
    };
    let near = match any.help.desk.both_free {
        0 => "-".to_owned(),
        both => format!("{} of {both}", any.help.desk.near),
    };
    let p99 = |one: &RunResult| match one.round_trip_ns(99) {
        0 => "-".to_owned(),
        ns => format!("{:.1} us", ns as f64 / 1000.0),
    };
    format!(
        "| `{work}` | {:.1} | {:.2} x | {:.2} x | {} | {:.0} % | {} | {} | {near} | {} | {} |\n",
        alone.gbit_per_s(),
        ratio(helped),
        ratio(any),
        shares(alone).map(|share| format!("{share:.0} %")).join(", "),
        shares(any)[2],
        busiest(alone),
        busiest(any),
        p99(alone),
        p99(helped),
    )
}

/// Shares of a worker's time: visits, look-up, copies.
fn shares(result: &RunResult) -> [f64; 3] {
    let StageTimes { visit_ns, packets_ns, own_ns, .. } = result.stages;
    let whole_ns = result.measured_ns * result.worker_cpus.len().max(1) as u64;
    [visit_ns, packets_ns, own_ns].map(|ns| 100.0 * ns as f64 / whole_ns as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(work: &str, helpers: usize) -> RunResult {
        let model = Model::load("opteron").unwrap();
        let choices = Choices { offload: Some(usual_offload()), ..Choices::default() };
        let scenario = Scenario::new(&model, Architecture::Lasthop, work.parse().unwrap());
        Scenario { choices, helpers, measured_ns: 5_000_000, ..scenario }.run().unwrap()
    }

    #[test]
    fn helpers_gain_where_the_worker_is_the_limit_and_near_ones_are_chosen() {
        let [alone, helped] = [0, HELPERS].map(|helpers| run("fan-in=4", helpers));
        assert!(helped.offloaded > 50 && helped.gbit_per_s() > 1.2 * alone.gbit_per_s());
        let desk = helped.help.desk;
        assert!(desk.both_free > 20 && desk.near * 100 >= desk.both_free * 95, "{desk:?}");
    }

    #[test]
    fn cut_frames_gain_where_the_worker_is_the_limit() {
        let mut model = Model::load("two-cpus").unwrap();
        (model.topology.cpus, model.topology.cpus_per_llc, model.topology.cpus_per_node) = (4, 4, 4);
        let [alone, helped] = [0, 1].map(|helpers| {
            let choices = Choices { offload: Some(usual_offload()), ..Choices::default() };
            let work = "bare-stream=1,payload=64948,tso=off".parse().unwrap();
            let scenario = Scenario::new(&model, Architecture::Lasthop, work);
            Scenario { choices, helpers, measured_ns: 5_000_000, ..scenario }.run().unwrap()
        });
        assert!(helped.offloaded > 50 && helped.gbit_per_s() > 1.3 * alone.gbit_per_s());
        assert_eq!((helped.frames.skipped, helped.drops.total()), (0, 0));
        assert!(helped.frames.packets >= 45 * helped.received.packets, "a segment is a packet");
    }

    #[test]
    fn checksums_and_far_receivers_are_criteria() {
        let shared = |work: &str, offload| {
            let scenario =
                Scenario::new(&Model::load("epyc").unwrap(), Architecture::Lasthop, work.parse().unwrap());
            let choices = Choices { offload: Some(offload), ..Choices::default() };
            let run =
                Scenario { choices, helpers: HELPERS, measured_ns: 5_000_000, ..scenario }.run().unwrap();
            assert_eq!((run.frames.skipped, run.drops.total()), (0, 0));
            run.offloaded > 50
        };
        let summed = OffloadCriteria { summed_bytes_min: 4096, ..usual_offload() };
        let far = OffloadCriteria { far_bytes_min: 4096, ..usual_offload() };
        // Some of four pairs are far from the worker, one is near it.
        assert_eq!(
            ["pairs=1,payload=8948", "pairs=4,payload=8948"].map(|work| shared(work, far)),
            [false, true]
        );
        let [plain, unsummed] = ["fan-in=4,payload=8948", "fan-in=4,payload=8948,csum=off"];
        assert_eq!([plain, unsummed].map(|work| shared(work, usual_offload())), [false, false]);
        assert_eq!([plain, unsummed].map(|work| shared(work, summed)), [false, true]);
    }

    #[test]
    fn further_helpers_of_a_visit_copy_too() {
        let [one, two] = [1, 2].map(|visit_helpers| {
            let model = Model::load("opteron").unwrap();
            let choices = Choices { offload: Some(usual_offload()), visit_helpers, ..Choices::default() };
            let scenario = Scenario::new(&model, Architecture::Lasthop, "pairs=4".parse().unwrap());
            let scenario = Scenario { choices, helpers: HELPERS, measured_ns: 5_000_000, ..scenario };
            scenario.run().unwrap()
        });
        assert!(two.stages.helpers_ns > one.stages.helpers_ns && two.gbit_per_s() > one.gbit_per_s());
    }

    #[test]
    fn short_frames_are_not_shared() {
        let [alone, helped] = [0, HELPERS].map(|helpers| run("pairs=2,payload=1448", helpers));
        assert_eq!((alone.offloaded, helped.offloaded, helped.help.desk.shared), (0, 0, 0));
        assert!((helped.gbit_per_s() / alone.gbit_per_s() - 1.0).abs() < 0.01, "the same without sharing");
    }

    #[test]
    fn a_cpu_is_given_back_within_a_frame() {
        // The helper sits on the CPU of the guests, which take it back after each nap.
        let model = Model::load("two-cpus").unwrap();
        let work = "bare-stream=1,payload=64948,nap-us=500".parse().unwrap();
        let choices = Choices { offload: Some(usual_offload()), ..Choices::default() };
        let scenario = Scenario::new(&model, Architecture::Lasthop, work);
        let help = Scenario { choices, helpers: 1, ..scenario }.run().unwrap().help;
        assert!(help.given_up > 0 && help.late == 0, "{help:?}");
        assert!(help.delay_ns_max > 0 && help.delay_ns_max <= help.step_ns_max, "{help:?}");
    }
}
