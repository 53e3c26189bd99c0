//! The figures of Hyper-Switch (section 5.2.1) on a model, and the paper's statements about them.

use std::path::Path;

use anyhow::{Context, Result};

use crate::console::Progress;
use crate::linechart::LineFigure;
use crate::model::{Knob, Model};
use crate::scenario::{LabWork, Pattern, Scenario};
use crate::sim::{Architecture, RunResult};

/// The architectures that the paper compares, the product, and Hyper-Switch without offload.
const ARMS: [Arm; 5] = [
    Arm { name: "Hyper-Switch", architecture: Architecture::HyperSwitch, offloads: true },
    Arm { name: "KVM", architecture: Architecture::Kvm, offloads: true },
    Arm { name: "Xen", architecture: Architecture::Xen, offloads: true },
    Arm { name: "no offload", architecture: Architecture::HyperSwitch, offloads: false },
    Arm { name: "Lasthop", architecture: Architecture::Lasthop, offloads: true },
];
/// Workers of the product: one for each node of the Opteron.
const WORKERS: usize = 4;
const PAYLOADS: [u64; 8] = [64, 256, 1024, 2048, 4096, 16_384, 32_768, 65_483];
const ECHO_PAYLOADS: [u64; 5] = [1, 256, 1024, 4096, 16_384];
const PAIRS: [u64; 11] = [1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16];
const GUESTS: [u64; 8] = [2, 4, 8, 12, 16, 20, 24, 30];
/// From here on the paper averages over payloads (5.2.1, "between 4 KB and 64 KB").
const LARGE_PAYLOAD_BYTES: u64 = 4096;
/// A ratio comes out if it is within this share of the paper's.
const TOLERANCE_PERCENT: f64 = 25.0;
/// Each group of costs at these percentages, for the ranges.
const VARIATIONS_PERCENT: [u64; 2] = [50, 200];

/// A line of a figure.
#[derive(Clone, Copy)]
struct Arm {
    name: &'static str,
    architecture: Architecture,
    offloads: bool,
}

/// Settings of all runs of the figures.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FigureSettings {
    pub(crate) seed: u64,
    pub(crate) measured_ns: u64,
    pub(crate) window_bytes: u64,
}

/// The runs of the five figures on one model.
struct Runs {
    streams: Vec<Vec<RunResult>>,
    echoes: Vec<Vec<RunResult>>,
    pairs: Vec<Vec<RunResult>>,
    all_to_all: Vec<Vec<RunResult>>,
    mhz: u64,
}

/// Makes all figures: a TSV of each in `tables`, an SVG in `pictures`. Returns the statements of the paper, as a table in
/// Markdown.
///
/// # Errors
/// If a run fails, or a file cannot be written.
pub(crate) fn make(
    model: &Model,
    settings: FigureSettings,
    tables: &Path,
    pictures: &Path,
) -> Result<String> {
    for directory in [tables, pictures] {
        std::fs::create_dir_all(directory)
            .with_context(|| format!("cannot make \"{}\"", directory.display()))?;
    }
    let stated = runs(model, settings, &ARMS, "stated costs")?;
    for figure in figures(&stated, &model.name) {
        for (directory, extension, text) in [(tables, "tsv", figure.tsv()), (pictures, "svg", figure.svg())] {
            let path = directory.join(format!("lab-{}.{extension}", figure.name));
            std::fs::write(&path, text).with_context(|| format!("cannot write \"{}\"", path.display()))?;
        }
    }
    let mut varied = Vec::new();
    for (knob, name) in Knob::ALL {
        for percent in VARIATIONS_PERCENT {
            let words = format!("{name} at {percent} %");
            varied.push(statements(&runs(&model.varied(knob, percent), settings, &ARMS[..3], &words)?));
        }
    }
    Ok(table(&statements(&stated), &varied))
}

fn runs(model: &Model, settings: FigureSettings, arms: &[Arm], words: &str) -> Result<Runs> {
    let works = [&PAYLOADS[..], &ECHO_PAYLOADS, &PAIRS, &GUESTS];
    let mut progress = Progress::new(arms.len() * works.iter().map(|xs| xs.len()).sum::<usize>());
    let most = u64::from(crate::frame::PAYLOAD_BYTES_MAX);
    let mut series = |work: &dyn Fn(u64) -> (Pattern, u64), xs: &[u64]| {
        let line = |arm: &Arm| {
            let mut line = Vec::new();
            for (pattern, payload) in xs.iter().map(|x| work(*x)) {
                let work = LabWork::new(pattern, payload as u32);
                line.push(scenario(model, settings, *arm, work).run()?);
                progress.step(&format!("{words}: {} {work}", arm.name));
            }
            Ok(line)
        };
        arms.iter().map(line).collect::<Result<Vec<_>>>()
    };
    Ok(Runs {
        streams: series(&|payload| (Pattern::Pairs(1), payload), &PAYLOADS)?,
        echoes: series(&|payload| (Pattern::Echo, payload), &ECHO_PAYLOADS)?,
        pairs: series(&|pairs| (Pattern::Pairs(pairs as u16), most), &PAIRS)?,
        all_to_all: series(&|guests| (Pattern::AllToAll(guests as u16), most), &GUESTS)?,
        mhz: model.cpu.mhz,
    })
}

fn scenario(model: &Model, settings: FigureSettings, arm: Arm, work: LabWork) -> Scenario {
    let mut scenario = Scenario::new(model, arm.architecture, work);
    if !arm.offloads {
        scenario.choices.offload = None;
    }
    Scenario {
        seed: settings.seed,
        measured_ns: settings.measured_ns,
        window_bytes: settings.window_bytes,
        workers: WORKERS,
        ..scenario
    }
}

fn figures(runs: &Runs, model: &str) -> [LineFigure; 5] {
    let figure = |name,
                  title: &str,
                  x_name,
                  y_name,
                  xs: &[u64],
                  lines: &[Vec<RunResult>],
                  value: &dyn Fn(&RunResult) -> f64| {
        let lines =
            ARMS.iter().zip(lines).map(|(arm, line)| (arm.name, line.iter().map(value).collect())).collect();
        LineFigure { name, title: format!("{title}; model {model}"), x_name, y_name, xs: xs.to_vec(), lines }
    };
    let gbit = |result: &RunResult| result.gbit_per_s();
    let cycles = |result: &RunResult| {
        result.busy_ns as f64 * runs.mhz as f64 / 1000.0 / result.received.packets.max(1) as f64
    };
    let rate = |result: &RunResult| result.transactions_per_s();
    let gbit_per_s = "payload, Gbit/s";
    [
        figure(
            "hs4",
            "Figure 4: one pair",
            "payload of a packet, bytes",
            gbit_per_s,
            &PAYLOADS,
            &runs.streams,
            &gbit,
        ),
        figure(
            "hs5",
            "Figure 5: one pair",
            "payload of a packet, bytes",
            "cycles for a packet",
            &PAYLOADS,
            &runs.streams,
            &cycles,
        ),
        figure(
            "hs6",
            "Figure 6: request and response",
            "payload, bytes",
            "transactions for each second",
            &ECHO_PAYLOADS,
            &runs.echoes,
            &rate,
        ),
        figure("hs7", "Figure 7: pairs", "pairs of guests", gbit_per_s, &PAIRS, &runs.pairs, &gbit),
        figure("hs8", "Figure 8: all to all", "guests", gbit_per_s, &GUESTS, &runs.all_to_all, &gbit),
    ]
}

/// A statement of the paper with a number, and the lab's.
struct Statement {
    figure: u8,
    words: &'static str,
    unit: &'static str,
    paper: f64,
    lab: f64,
}

/// The mean of ratios of two lines of values, in percent above 1.
fn above_percent(one: &[f64], other: &[f64]) -> f64 {
    let ratios = one.iter().zip(other).map(|(one, other)| one / other);
    100.0 * (ratios.sum::<f64>() / one.len() as f64 - 1.0)
}

fn statements(runs: &Runs) -> Vec<Statement> {
    let gbit = |line: &[RunResult]| line.iter().map(RunResult::gbit_per_s).collect::<Vec<f64>>();
    let from = PAYLOADS.iter().position(|payload| *payload >= LARGE_PAYLOAD_BYTES).unwrap_or(0);
    let large: Vec<Vec<f64>> = runs.streams.iter().map(|line| gbit(&line[from..])).collect();
    let small: Vec<Vec<f64>> = runs.streams.iter().map(|line| gbit(&line[..from])).collect();
    let rates: Vec<Vec<f64>> =
        runs.echoes.iter().map(|line| line.iter().map(RunResult::transactions_per_s).collect()).collect();
    let pairs: Vec<Vec<f64>> = runs.pairs.iter().map(|line| gbit(line)).collect();
    let all: Vec<Vec<f64>> = runs.all_to_all.iter().map(|line| gbit(line)).collect();
    let most = |line: &[f64]| line.iter().copied().fold(0.0, f64::max);
    let at = |line: &[f64], count: u64| line[PAIRS.iter().position(|pairs| *pairs == count).unwrap_or(0)];
    let list = [
        (4, "Hyper-Switch over Xen, 4 to 64 KB", "%", 56.0, above_percent(&large[0], &large[2])),
        (4, "Hyper-Switch over KVM, 4 to 64 KB", "%", 61.0, above_percent(&large[0], &large[1])),
        (4, "Hyper-Switch over KVM, smaller (\"not much\")", "%", 0.0, above_percent(&small[0], &small[1])),
        (6, "Hyper-Switch over Xen, transactions", "%", 117.0, above_percent(&rates[0], &rates[2])),
        (6, "Hyper-Switch over KVM, transactions", "%", 222.0, above_percent(&rates[0], &rates[1])),
        (7, "Hyper-Switch, 1 pair", "Gbit/s", 16.2, at(&pairs[0], 1)),
        (7, "Hyper-Switch, 4 pairs", "Gbit/s", 62.7, at(&pairs[0], 4)),
        (7, "Hyper-Switch, 7 pairs", "Gbit/s", 81.0, at(&pairs[0], 7)),
        (
            7,
            "Hyper-Switch, each pair from 1 to 4",
            "Gbit/s",
            15.5,
            (at(&pairs[0], 4) - at(&pairs[0], 1)) / 3.0,
        ),
        (
            7,
            "Hyper-Switch, each pair from 4 to 7",
            "Gbit/s",
            6.1,
            (at(&pairs[0], 7) - at(&pairs[0], 4)) / 3.0,
        ),
        (
            7,
            "Hyper-Switch, each pair from 8 to 16",
            "Gbit/s",
            0.0,
            (at(&pairs[0], 16) - at(&pairs[0], 8)) / 8.0,
        ),
        (7, "KVM, peak", "Gbit/s", 47.0, most(&pairs[1])),
        (7, "Xen, peak", "Gbit/s", 31.0, most(&pairs[2])),
        (7, "Hyper-Switch over KVM, mean", "%", 55.0, above_percent(&pairs[0], &pairs[1])),
        (7, "Hyper-Switch over Xen, mean", "%", 146.0, above_percent(&pairs[0], &pairs[2])),
        (8, "Hyper-Switch, peak", "Gbit/s", 65.0, most(&all[0])),
        (8, "KVM, peak", "Gbit/s", 55.0, most(&all[1])),
        (8, "Xen, peak", "Gbit/s", 31.0, most(&all[2])),
    ];
    let statement = |(figure, words, unit, paper, lab)| Statement { figure, words, unit, paper, lab };
    list.map(statement).into_iter().collect()
}

/// Whether a value comes out: percentages as ratios, so that +61 % and +50 % are near. Of a rise of 0 a tenth of the
/// first rise counts as none.
fn comes_out(statement: &Statement) -> bool {
    let (paper, lab) = match statement.unit {
        "%" => (100.0 + statement.paper, 100.0 + statement.lab),
        _ => (statement.paper, statement.lab),
    };
    if paper == 0.0 {
        return lab.abs() < 1.55;
    }
    100.0 * (lab / paper - 1.0).abs() <= TOLERANCE_PERCENT
}

fn table(stated: &[Statement], varied: &[Vec<Statement>]) -> String {
    let mut text = "| figure | statement | paper | lab | lab, costs at 50 to 200 % | comes out |\n\
                    |---|---|---:|---:|---:|---|\n"
        .to_owned();
    for (at, Statement { figure, words, unit, paper, lab }) in stated.iter().enumerate() {
        let others = varied.iter().map(|statements| statements[at].lab);
        let (least, greatest) =
            others.fold((*lab, *lab), |(least, most), one| (least.min(one), most.max(one)));
        let verdict = if comes_out(&stated[at]) { "yes" } else { "no" };
        text += &format!(
            "| {figure} | {words} | {paper:.1} {unit} | {lab:.1} {unit} | {least:.1} to {greatest:.1} | {verdict} |\n"
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn statement(unit: &'static str, paper: f64, lab: f64) -> Statement {
        Statement { figure: 7, words: "", unit, paper, lab }
    }

    #[test]
    fn a_value_comes_out_if_it_is_near() {
        assert!(comes_out(&statement("Gbit/s", 81.0, 94.0)));
        assert!(!comes_out(&statement("Gbit/s", 31.0, 50.0)));
        assert!(comes_out(&statement("%", 61.0, 50.0)), "1.61 and 1.5 times");
        assert!(!comes_out(&statement("%", 222.0, 90.0)));
        assert!(comes_out(&statement("Gbit/s", 0.0, 1.0)) && !comes_out(&statement("Gbit/s", 0.0, 2.0)));
    }

    #[test]
    fn ratios_are_averaged() {
        assert!((above_percent(&[3.0, 2.0], &[2.0, 1.0]) - 75.0).abs() < 1e-9);
    }

    #[test]
    fn the_table_has_the_range_of_all_variations() {
        let varied = [vec![statement("%", 56.0, 20.0)], vec![statement("%", 56.0, 90.0)]];
        let text = table(&[statement("%", 56.0, 60.0)], &varied);
        assert!(text.ends_with("| 56.0 % | 60.0 % | 20.0 to 90.0 | yes |\n"), "{text}");
    }
}
