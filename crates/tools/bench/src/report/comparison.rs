use serde::{Serialize, Serializer};

use super::spread::{Ratio, Spread, values};
use crate::DriverChoice;
use crate::sample::{Placement, RoundTrip, Sample};
use crate::workload::{Metric, TrafficKind, Workload};

/// The back end that moves no packet: its value is the upper limit of the generator.
pub const NULL_BACKEND: &str = "null";
/// The bare single copy, without a switch around it.
pub const LIMIT_BACKEND: &str = "limit";
/// A back end above this share of [`NULL_BACKEND`] is limited by the generator: both take turns on a packet, so a
/// generator that is not twice as fast as the back end affects the result.
const GENERATOR_SHARE_MAX: f64 = 0.5;
/// Below this share of the offered packets, the load is not the requested one.
const OFFERED_SHARE_MIN: f64 = 0.99;

/// A back end's role in a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// The base of all ratios.
    Reference,
    /// The reference with other settings: its name is that of the reference, a dash and a suffix.
    Variant,
    /// Another program.
    Peer,
    /// [`LIMIT_BACKEND`] or [`NULL_BACKEND`]: an upper limit.
    Ceiling,
}

/// One back end's results with one workload, all of the row's placement.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Cell {
    /// Name of the back end.
    pub backend: String,
    /// Its role.
    pub role: Role,
    /// In the unit of the row; `None` if no sample of the row's placement has a value.
    pub value: Option<Spread>,
    /// The ratio of the reference to this one; `None` for the reference itself.
    pub ratio: Option<Ratio>,
    /// Medians of the samples' percentiles and maxima, and the sum of their counts.
    pub round_trip: Option<RoundTrip>,
    /// The paths that the driver of stock guests chose, without duplicates.
    pub drivers: Vec<DriverChoice>,
    /// The generator may have been the limit: the value is more than half of that of [`NULL_BACKEND`].
    pub generator_limited: bool,
    /// In the median, less than 99 % of the offered packets arrived, so the load was not the requested one.
    pub short_of_offered: bool,
}

/// One workload.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// The workload.
    pub workload: Workload,
    /// Its metric, written as its unit.
    #[serde(rename = "unit", serialize_with = "unit")]
    pub metric: Metric,
    /// The placement of all samples that the figures of this row come from.
    pub placement: Placement,
    /// The distances of the cores in that placement; `None` without samples.
    pub core_to_core_ns: Option<Spread>,
    /// The time of a bare wake-up during the measurements, in ns; for workloads with long pauses.
    pub wake_up_ns: Option<Spread>,
    /// Samples of the other placement, which are left out.
    pub samples_left_out: usize,
    /// Back ends that have samples of this workload, in the comparison's order.
    pub cells: Vec<Cell>,
}

/// All back ends, workload by workload.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Comparison {
    /// The back end that ratios refer to.
    pub reference: String,
    /// Names: the reference, its variants, peers, ceilings; within each group in order of first appearance.
    pub backends: Vec<String>,
    /// In order of first appearance.
    pub rows: Vec<Row>,
}

impl Comparison {
    /// Compares the samples. Without samples of the reference there are no ratios.
    #[must_use]
    pub fn of(samples: &[Sample], reference: &str) -> Self {
        let mut backends = distinct(samples.iter().map(|sample| sample.backend.clone()));
        backends.sort_by_key(|backend| Role::of(backend, reference));
        let workloads = distinct(samples.iter().map(|sample| sample.workload));
        let rows = workloads.into_iter().map(|workload| Row::of(workload, samples, &backends, reference));
        Self { reference: reference.to_owned(), rows: rows.collect(), backends }
    }

    /// Rows grouped by metric, in order of first appearance within each.
    pub(super) fn by_metric(&self) -> Vec<(Metric, Vec<&Row>)> {
        let mut metrics = distinct(self.rows.iter().map(|row| row.metric));
        metrics.sort();
        let rows = |metric| self.rows.iter().filter(|row| row.metric == metric).collect();
        metrics.into_iter().map(|metric| (metric, rows(metric))).collect()
    }

    /// All cells of all rows.
    pub(super) fn cells(&self) -> impl Iterator<Item = &Cell> {
        self.rows.iter().flat_map(|row| &row.cells)
    }
}

impl Role {
    fn of(backend: &str, reference: &str) -> Self {
        match backend.strip_prefix(reference) {
            Some("") => Self::Reference,
            _ if backend == NULL_BACKEND || backend == LIMIT_BACKEND => Self::Ceiling,
            Some(rest) if rest.starts_with('-') => Self::Variant,
            _ => Self::Peer,
        }
    }
}

impl Row {
    fn of(workload: Workload, samples: &[Sample], backends: &[String], reference: &str) -> Self {
        let samples: Vec<&Sample> = samples.iter().filter(|sample| sample.workload == workload).collect();
        let placement = common_placement(&samples);
        let kept: Vec<&Sample> =
            samples.iter().copied().filter(|sample| sample.placement == placement).collect();
        let present = backends.iter().filter(|name| samples.iter().any(|sample| sample.backend == **name));
        let mut row = Self {
            workload,
            metric: workload.metric(),
            placement,
            core_to_core_ns: Spread::of(kept.iter().map(|sample| sample.core_to_core_ns)),
            wake_up_ns: Spread::of(kept.iter().filter_map(|sample| sample.wake_up_ns)),
            samples_left_out: samples.len() - kept.len(),
            cells: present.map(|backend| Cell::of(workload, backend, &kept, reference)).collect(),
        };
        row.mark_generator_limited();
        row
    }

    fn mark_generator_limited(&mut self) {
        let Some(most) = self.cell(NULL_BACKEND).and_then(Cell::median) else { return };
        if !self.metric.more_is_better() {
            return;
        }
        for cell in self.cells.iter_mut().filter(|cell| cell.backend != NULL_BACKEND) {
            cell.generator_limited = cell.median().is_some_and(|median| median > GENERATOR_SHARE_MAX * most);
        }
    }

    /// The results of one back end, if it has samples of this workload.
    #[must_use]
    pub fn cell(&self, backend: &str) -> Option<&Cell> {
        self.cells.iter().find(|cell| cell.backend == backend)
    }
}

impl Cell {
    fn of(workload: Workload, backend: &str, samples: &[&Sample], reference: &str) -> Self {
        let own = of_backend(samples, backend);
        let role = Role::of(backend, reference);
        let ratio = || Ratio::of(workload.metric(), &of_backend(samples, reference), &own);
        Self {
            backend: backend.to_owned(),
            role,
            value: Spread::of(values(&own)),
            ratio: if role == Role::Reference { None } else { ratio() },
            round_trip: median_round_trip(&own),
            drivers: distinct(own.iter().filter_map(|sample| sample.driver.clone())),
            generator_limited: false,
            short_of_offered: short_of_offered(workload, &own),
        }
    }

    /// The median of its values.
    #[must_use]
    pub fn median(&self) -> Option<f64> {
        self.value.map(|value| value.median)
    }
}

fn of_backend<'a>(samples: &[&'a Sample], backend: &str) -> Vec<&'a Sample> {
    samples.iter().copied().filter(|sample| sample.backend == backend).collect()
}

/// The placement in which the back end with the fewest values has most of them; near if both are equal.
fn common_placement(samples: &[&Sample]) -> Placement {
    let measured: Vec<&Sample> =
        samples.iter().copied().filter(|sample| sample.value().is_some_and(f64::is_finite)).collect();
    let backends = distinct(measured.iter().map(|sample| &sample.backend));
    let count = |backend: &String, placement| {
        measured.iter().filter(|sample| sample.backend == *backend && sample.placement == placement).count()
    };
    let least = |placement| backends.iter().map(|backend| count(backend, placement)).min();
    if least(Placement::Far) > least(Placement::Near) { Placement::Far } else { Placement::Near }
}

fn short_of_offered(workload: Workload, samples: &[&Sample]) -> bool {
    let TrafficKind::Offered { rate_pps } = workload.kind else { return false };
    let arrived = Spread::of(samples.iter().map(|sample| sample.pps()));
    arrived.is_some_and(|pps| pps.median < OFFERED_SHARE_MIN * rate_pps as f64)
}

fn median_round_trip(samples: &[&Sample]) -> Option<RoundTrip> {
    let trips: Vec<RoundTrip> = samples.iter().filter_map(|sample| sample.round_trip).collect();
    let median = |field: fn(&RoundTrip) -> u64| {
        Spread::of(trips.iter().map(|trip| field(trip) as f64)).map(|spread| spread.median.round() as u64)
    };
    Some(RoundTrip {
        count: trips.iter().map(|trip| trip.count).sum(),
        p50_ns: median(|trip| trip.p50_ns)?,
        p90_ns: median(|trip| trip.p90_ns)?,
        p99_ns: median(|trip| trip.p99_ns)?,
        p999_ns: median(|trip| trip.p999_ns)?,
        max_ns: median(|trip| trip.max_ns)?,
    })
}

/// Without duplicates, in order of first appearance.
fn distinct<T: PartialEq>(items: impl Iterator<Item = T>) -> Vec<T> {
    let mut seen = Vec::new();
    for item in items {
        if !seen.contains(&item) {
            seen.push(item);
        }
    }
    seen
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks for it")]
fn unit<S: Serializer>(metric: &Metric, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(metric.unit())
}
