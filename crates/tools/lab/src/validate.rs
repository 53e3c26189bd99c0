//! The lab next to a machine: values that were measured, and those of the model.

use anyhow::{Context, Result, ensure};

use crate::console::Progress;
use crate::frame::HEAD_BYTES;
use crate::model::{Measured, MeasuredUnit, Model};
use crate::scenario::{LabWork, Pattern, Scenario};
use crate::sim::{Architecture, RunResult};

/// The stated error of the lab: values outside of it make `validate` fail. The model of two CPUs reaches 24 %.
pub(crate) const ERROR_PERCENT_MAX: f64 = 30.0;
/// Measured time of each other value: thousands of packets.
const MEASURED_NS: u64 = 4_000_000;
/// Measured time of round trips with pauses: enough of them for a mean of 1 us.
const PAUSED_NS: u64 = 2_000_000_000;

/// Runs each measured workload of a model on the product's architecture. Returns a table in Markdown, and whether each
/// value that calibrates nothing is within the stated error.
///
/// # Errors
/// If the model has no measured values, or a run fails.
pub(crate) fn table(model: &Model, seed: u64) -> Result<(String, bool)> {
    ensure!(
        !model.measured.is_empty(),
        "model \"{}\" has no measured values; add [[measured]] tables, or choose two-cpus",
        model.name
    );
    let mut text = "| workload | measured | lab | error | |\n|---|---:|---:|---:|---|\n".to_owned();
    let mut progress = Progress::new(model.measured.len());
    let (mut is_within, mut errors) = (true, Vec::new());
    for measured in &model.measured {
        let lab = value(model, measured, seed)?;
        let error = 100.0 * (lab / measured.value - 1.0);
        let unit = match measured.unit {
            MeasuredUnit::Mpps => "Mpps",
            MeasuredUnit::GbitPerS => "Gbit/s",
            MeasuredUnit::RoundTripUs => "us",
        };
        let remark = if measured.calibrates { "gave costs to the model" } else { "" };
        if !measured.calibrates {
            is_within &= error.abs() <= ERROR_PERCENT_MAX;
            errors.push(error.abs());
        }
        text += &format!(
            "| `{}` | {:.2} {unit} | {lab:.2} {unit} | {error:+.0} % | {remark} |\n",
            measured.workload, measured.value
        );
        progress.step(&measured.workload);
    }
    let most = errors.iter().copied().fold(0.0, f64::max);
    let mean = errors.iter().sum::<f64>() / errors.len().max(1) as f64;
    text +=
        &format!("\nOf {} values the mean error is {mean:.0} %, the greatest {most:.0} %.\n", errors.len());
    Ok((text, is_within))
}

fn value(model: &Model, measured: &Measured, seed: u64) -> Result<f64> {
    let work: LabWork = measured
        .workload
        .parse()
        .map_err(anyhow::Error::msg)
        .with_context(|| format!("measured workload \"{}\"", measured.workload))?;
    let scenario = Scenario::new(model, Architecture::Lasthop, work);
    let mut scenario = Scenario { seed, measured_ns: MEASURED_NS, ..scenario };
    if matches!(work.pattern, Pattern::BareEcho(1..)) {
        scenario.measured_ns = PAUSED_NS;
    }
    let result = scenario.run()?;
    Ok(match measured.unit {
        MeasuredUnit::Mpps => result.mpps(),
        MeasuredUnit::GbitPerS => {
            result.received.packets as f64 * f64::from(work.payload_bytes + HEAD_BYTES as u32) * 8.0
                / result.measured_ns as f64
        }
        MeasuredUnit::RoundTripUs => round_trip_us(&result, work),
    })
}

/// The mean round trip, without the pauses between them.
fn round_trip_us(result: &RunResult, work: LabWork) -> f64 {
    let pause_us = if let Pattern::BareEcho(pause_us) = work.pattern { f64::from(pause_us) } else { 0.0 };
    1e6 / result.transactions_per_s() - pause_us
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_model_of_two_cpus_is_within_its_stated_error() {
        let (text, is_within) = table(&Model::load("two-cpus").unwrap(), 1).unwrap();
        assert!(is_within, "{text}");
    }

    #[test]
    fn a_wrong_model_is_noticed() {
        let mut model = Model::load("two-cpus").unwrap();
        model.measured.retain(|measured| !measured.calibrates);
        model.measured[0].value *= 2.0;
        assert!(!table(&model, 1).unwrap().1);
        model.measured.clear();
        assert!(table(&model, 1).unwrap_err().to_string().contains("no measured values"));
    }
}
