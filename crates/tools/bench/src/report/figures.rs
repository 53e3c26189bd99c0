use super::comparison::Row;
use super::spread::{Ratio, Spread};
use crate::sample::Placement;
use crate::workload::Metric;

/// A number with three significant digits, but without rounding before the decimal point.
pub(super) fn figure(value: f64) -> String {
    let decimals = match value.abs() {
        size if size >= 99.95 => 0,
        size if size >= 9.995 => 1,
        size if (0.0005..0.9995).contains(&size) => 3,
        _ => 2,
    };
    format!("{value:.decimals$}")
}

/// A number with its unit, as in `12.3 Mpps`.
pub(super) fn measure(value: f64, metric: Metric) -> String {
    let unit = if metric == Metric::CpuPercent { "%" } else { metric.unit() };
    format!("{} {unit}", figure(value))
}

/// As in `12.3 ±4%`; the deviation is left out for a single value.
pub(super) fn with_deviation(spread: &Spread) -> String {
    let median = figure(spread.median);
    if spread.samples == 1 { median } else { format!("{median} ±{:.0}%", spread.percent()) }
}

/// As in `1.50×`.
pub(super) fn times(ratio: &Ratio) -> String {
    format!("{}×", multiple(ratio.of_medians))
}

/// A factor: as [`figure`], but with at most two decimals.
fn multiple(value: f64) -> String {
    if (0.095..1.0).contains(&value) { format!("{value:.2}") } else { figure(value) }
}

/// As in `1.40–1.60`; `None` unless several rounds have both back ends.
pub(super) fn times_by_round(ratio: &Ratio) -> Option<String> {
    ratio.by_round.filter(|rounds| rounds.samples > 1).map(|rounds| range(&rounds, multiple))
}

fn range(spread: &Spread, figure: fn(f64) -> String) -> String {
    let (min, max) = (figure(spread.min), figure(spread.max));
    if min == max { min } else { format!("{min}–{max}") }
}

/// The quantity that a metric measures.
pub(super) fn subject(metric: Metric) -> &'static str {
    match metric {
        Metric::Mpps => "Packets received, Mpps",
        Metric::Gbps => "Frames received, Gbit/s",
        Metric::Micros => "Round trip, or way of a first packet, median, µs",
        Metric::CpuPercent => "Processor time of the back end, % of a core",
    }
}

/// Which way is better.
pub(super) fn direction(metric: Metric) -> &'static str {
    if metric.more_is_better() { "more is better" } else { "less is better" }
}

/// Name of a class of distances.
pub(super) fn placement_name(placement: Placement) -> &'static str {
    match placement {
        Placement::Near => "near",
        Placement::Far => "far",
    }
}

fn other(placement: Placement) -> Placement {
    match placement {
        Placement::Near => Placement::Far,
        Placement::Far => Placement::Near,
    }
}

/// As in `cores 42–55 ns apart`, and how many samples of the other placement were left out, if any.
pub(super) fn place_in_words(row: &Row) -> Vec<String> {
    let distance = |ns| format!("cores {} ns apart", range(&ns, |ns| format!("{ns:.0}")));
    let mut parts: Vec<String> = row.core_to_core_ns.map(distance).into_iter().collect();
    parts.extend(row.wake_up_ns.map(wake_up));
    if row.samples_left_out > 0 {
        let other = placement_name(other(row.placement));
        parts.push(format!("{} samples with {other} cores left out", row.samples_left_out));
    }
    parts
}

/// The minimum for any switch that sleeps.
fn wake_up(ns: Spread) -> String {
    format!("bare wake-up {} µs", figure(ns.median / 1e3))
}

/// As in `near 42–55 ns`, and how many samples of the other placement were left out, if any.
pub(super) fn place(row: &Row) -> Vec<String> {
    let name = placement_name(row.placement);
    let distance = |ns| format!("{name} {} ns", range(&ns, |ns| format!("{ns:.0}")));
    let mut parts = vec![row.core_to_core_ns.map_or(name.to_owned(), distance)];
    parts.extend(row.wake_up_ns.map(wake_up));
    if row.samples_left_out > 0 {
        parts.push(format!("{} {} left out", row.samples_left_out, placement_name(other(row.placement))));
    }
    parts
}
