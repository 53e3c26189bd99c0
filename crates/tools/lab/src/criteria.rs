//! The criteria of offload and place next to each other (Hyper-Switch, 5.2.3 "Design Evaluation", whose results the paper
//! leaves out).

use anyhow::Result;
use lasthop_sched::{CpuDistance, OffloadCriteria, PlaceCriteria};

use crate::console::Progress;
use crate::model::Model;
use crate::scenario::{LabWork, Scenario};
use crate::sim::{Architecture, Choices};

/// Criteria and their name.
type Criterion = (&'static str, Option<OffloadCriteria>, PlaceCriteria);

fn criteria() -> [Criterion; 9] {
    let usual = OffloadCriteria::default();
    let place = |whole_group, farthest| PlaceCriteria { whole_group, farthest };
    let paper = PlaceCriteria::default();
    let share = |blocked_packets_max| Some(OffloadCriteria { blocked_packets_max, ..usual });
    [
        ("no offload", None, paper),
        ("idle group of the LLC", Some(usual), place(true, CpuDistance::Llc)),
        ("idle group, near ones first (paper)", Some(usual), paper),
        ("idle CPU of the LLC", Some(usual), place(false, CpuDistance::Llc)),
        ("idle CPU, near ones first", Some(usual), place(false, CpuDistance::Far)),
        (
            "paper, a helper has 2 packets at most",
            Some(OffloadCriteria { helper_packets_max: 2, ..usual }),
            paper,
        ),
        (
            "paper, a helper has 8 packets at most",
            Some(OffloadCriteria { helper_packets_max: 8, ..usual }),
            paper,
        ),
        ("paper, receiver copies none", share(0), paper),
        ("paper, receiver copies 8", share(8), paper),
    ]
}

/// Runs workloads with each of the criteria. Returns Gbit/s as a table in Markdown.
///
/// # Errors
/// If a run fails.
pub(crate) fn table(model: &Model, works: &[LabWork], window_bytes: u64, seed: u64) -> Result<String> {
    let names: Vec<String> = works.iter().map(|work| format!(" `{work}` |")).collect();
    let mut text = format!("| Gbit/s |{}\n|---|{}\n", names.concat(), "---:|".repeat(works.len()));
    let mut progress = Progress::new(works.len() * criteria().len());
    for (name, offload, place) in criteria() {
        text += &format!("| {name} |");
        for &work in works {
            let scenario = Scenario::new(model, Architecture::HyperSwitch, work);
            let result = Scenario {
                seed,
                window_bytes,
                choices: Choices { offload, place, ..Choices::default() },
                ..scenario
            }
            .run()?;
            text += &format!(" {:.1} |", result.gbit_per_s());
            progress.step(&format!("{name}: {work}"));
        }
        text.push('\n');
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn criteria_matter_where_copies_are_offloaded_and_nowhere_else() {
        let model = Model::load("opteron").unwrap();
        let works = ["pairs=1", "pairs=1,payload=64"].map(|work| work.parse().unwrap());
        let text = table(&model, &works, 1 << 20, 1).unwrap();
        let column = |at: usize| -> Vec<&str> {
            text.lines().skip(2).map(|line| line.split('|').nth(at).unwrap().trim()).collect()
        };
        assert!(column(2).iter().any(|value| *value != column(2)[0]), "{text}");
        assert!(
            column(3).iter().all(|value| *value == column(3)[0]),
            "small packets are not offloaded: {text}"
        );
    }
}
