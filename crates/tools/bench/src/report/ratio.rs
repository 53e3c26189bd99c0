use serde::Serialize;

use super::spread::Spread;
use crate::sample::Sample;
use crate::workload::Metric;

/// How many times better the reference is than another back end: above 1 the reference is better, for every metric.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Ratio {
    /// The ratio of the medians.
    pub of_medians: f64,
    /// The ratios of samples of the same round; `None` if no round has both.
    pub by_round: Option<Spread>,
}

impl Ratio {
    /// The ratio of the reference's samples to another's, all of one workload and placement; `None` if a median is
    /// missing or 0.
    pub(super) fn of(metric: Metric, reference: &[&Sample], other: &[&Sample]) -> Option<Self> {
        let median = |samples: &[&Sample]| Spread::of(values(samples)).map(|spread| spread.median);
        let of_medians = oriented(metric, median(reference)?, median(other)?)?;
        let pairs = other.iter().filter_map(|sample| Some((partner(sample, reference)?, sample.value()?)));
        let by_round = Spread::of(pairs.filter_map(|(reference, other)| oriented(metric, reference, other)));
        Some(Self { of_medians, by_round })
    }
}

/// The finite values of the samples.
pub(super) fn values(samples: &[&Sample]) -> impl Iterator<Item = f64> {
    samples.iter().filter_map(|sample| sample.value())
}

fn partner(sample: &Sample, reference: &[&Sample]) -> Option<f64> {
    reference.iter().find(|candidate| candidate.round == sample.round)?.value()
}

fn oriented(metric: Metric, reference: f64, other: f64) -> Option<f64> {
    let ratio = if metric.more_is_better() { reference / other } else { other / reference };
    (ratio.is_finite() && ratio > 0.0).then_some(ratio)
}
