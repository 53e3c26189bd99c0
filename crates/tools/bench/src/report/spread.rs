//! The spread of several samples of one thing, and how many times better one spread is than another.

use serde::Serialize;

use crate::sample::Sample;
use crate::workload::Metric;

/// Several measurements of one thing.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Spread {
    /// The median; for an even number, the mean of the two in the middle.
    pub median: f64,
    /// The minimum.
    pub min: f64,
    /// The maximum.
    pub max: f64,
    /// The number of samples, at least 1.
    pub samples: usize,
}

impl Spread {
    /// The spread of all finite values; `None` if there is none.
    #[must_use]
    pub fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut values: Vec<f64> = values.into_iter().filter(|value| value.is_finite()).collect();
        values.sort_by(f64::total_cmp);
        let (min, max) = (*values.first()?, *values.last()?);
        Some(Self { median: median(&values), min, max, samples: values.len() })
    }

    /// The largest deviation from the median, in percent of the median; 0 if the median is 0.
    #[must_use]
    pub fn percent(&self) -> f64 {
        let distance = (self.max - self.median).max(self.median - self.min);
        if self.median == 0.0 { 0.0 } else { 100.0 * distance / self.median }
    }
}

fn median(sorted: &[f64]) -> f64 {
    let middle = sorted.len() / 2;
    if sorted.len() % 2 == 1 { sorted[middle] } else { f64::midpoint(sorted[middle - 1], sorted[middle]) }
}

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
