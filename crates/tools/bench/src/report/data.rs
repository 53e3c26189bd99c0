//! Reports for programs: tab-separated values, and JSON.

use std::fmt::Display;

use serde::Serialize;
use serde_json::Value;

use super::comparison::{Comparison, Row};
use super::figures::placement_name;
use crate::DriverChoice;
use crate::sample::{MemoryUse, RoundTrip, Sample};

/// A column's name, and its value for a sample.
type Column = (&'static str, fn(&Sample) -> String);

const RUN: [Column; 23] = [
    ("backend", |sample| plain(&sample.backend)),
    ("workload", |sample| plain(sample.workload)),
    ("kind", |sample| plain(sample.workload.kind)),
    ("frame_bytes", |sample| plain(sample.workload.frame_bytes)),
    ("touched", |sample| plain(sample.workload.touched)),
    ("ring_entries", |sample| plain(sample.workload.ring_entries)),
    ("flows", |sample| plain(sample.workload.flows)),
    ("macs", |sample| plain(sample.workload.macs)),
    ("idle_ports", |sample| plain(sample.workload.idle_ports)),
    ("in_order", |sample| plain(sample.workload.in_order)),
    ("packed", |sample| plain(sample.workload.packed)),
    ("mergeable", |sample| plain(sample.workload.mergeable)),
    ("tso", |sample| plain(sample.workload.tso)),
    ("nap_us", |sample| plain(sample.workload.nap.as_micros())),
    ("rx_path", |sample| of_driver(sample, |driver| driver.rx_path.clone())),
    ("tx_path", |sample| of_driver(sample, |driver| driver.tx_path.clone())),
    ("features", |sample| of_driver(sample, |driver| format!("{:#x}", driver.features))),
    ("switch_cpu", |sample| plain(sample.switch_cpu)),
    ("guest_cpus", |sample| plain(&sample.guest_cpus)),
    ("round", |sample| plain(sample.round)),
    ("core_to_core_ns", |sample| number(sample.core_to_core_ns)),
    ("placement", |sample| plain(placement_name(sample.placement))),
    ("wake_up_ns", |sample| known(sample.wake_up_ns.map(number))),
];

const COUNTS: [Column; 7] = [
    ("seconds", |sample| number(sample.seconds)),
    ("generator_cpu_seconds", |sample| number(sample.generator_cpu_seconds)),
    ("sent_frames", |sample| plain(sample.sent_frames)),
    ("received_frames", |sample| plain(sample.received_frames)),
    ("cpu_seconds", |sample| known(sample.cpu_seconds.map(number))),
    ("cpu_wait_seconds", |sample| known(sample.cpu_wait_seconds.map(number))),
    ("sleeps", |sample| known(sample.sleeps)),
];

const MEMORY: [Column; 5] = [
    ("rss_anon_kb", |sample| of_memory(sample, |memory| memory.rss_anon_kb)),
    ("rss_file_kb", |sample| of_memory(sample, |memory| memory.rss_file_kb)),
    ("rss_shmem_kb", |sample| of_memory(sample, |memory| memory.rss_shmem_kb)),
    ("vm_pte_kb", |sample| of_memory(sample, |memory| memory.vm_pte_kb)),
    ("huge_kb", |sample| of_memory(sample, |memory| memory.huge_kb)),
];

const ROUND_TRIP: [Column; 6] = [
    ("rtt_count", |sample| of_round_trip(sample, |trip| trip.count)),
    ("rtt_p50_ns", |sample| of_round_trip(sample, |trip| trip.p50_ns)),
    ("rtt_p90_ns", |sample| of_round_trip(sample, |trip| trip.p90_ns)),
    ("rtt_p99_ns", |sample| of_round_trip(sample, |trip| trip.p99_ns)),
    ("rtt_p999_ns", |sample| of_round_trip(sample, |trip| trip.p999_ns)),
    ("rtt_max_ns", |sample| of_round_trip(sample, |trip| trip.max_ns)),
];

/// Columns that can be computed from the others, for convenience.
const DERIVED: [Column; 5] = [
    ("pps", |sample| number(sample.pps())),
    ("cpu_percent", |sample| known(sample.cpu_percent().map(number))),
    ("loss_percent", |sample| number(sample.loss_percent())),
    ("value", |sample| known(sample.value().map(number))),
    ("unit", |sample| plain(sample.workload.metric().unit())),
];

const COLUMNS: [&[Column]; 5] = [&RUN, &COUNTS, &MEMORY, &ROUND_TRIP, &DERIVED];

/// All samples, one in each line after a line of names; fields are separated by tabs, and empty where a value is
/// unknown. Columns and their order do not depend on the samples.
#[must_use]
pub fn tsv(samples: &[Sample]) -> String {
    let heads = line(|(name, _)| (*name).to_owned());
    samples.iter().fold(heads, |text, sample| text + &line(|(_, field)| field(sample)))
}

fn line(field: impl Fn(&Column) -> String) -> String {
    let fields: Vec<String> = COLUMNS.concat().iter().map(field).collect();
    fields.join("\t") + "\n"
}

fn of_memory(sample: &Sample, field: fn(&MemoryUse) -> u64) -> String {
    known(sample.memory.as_ref().map(field))
}

fn of_driver(sample: &Sample, field: fn(&DriverChoice) -> String) -> String {
    known(sample.driver.as_ref().map(field))
}

fn of_round_trip(sample: &Sample, field: fn(&RoundTrip) -> u64) -> String {
    known(sample.round_trip.as_ref().map(field))
}

fn known(value: Option<impl Display>) -> String {
    value.map_or(String::new(), plain)
}

/// Empty for a number that is not finite, as a rate over no time.
fn number(value: f64) -> String {
    if value.is_finite() { plain(value) } else { String::new() }
}

/// Without tabs and line ends, which would shift the columns.
fn plain(value: impl Display) -> String {
    value.to_string().replace(char::is_control, " ")
}

/// Everything about a run. Its fields are the keys.
#[derive(Serialize)]
struct Run<'a> {
    settings: &'a Value,
    reference: &'a str,
    samples: &'a [Sample],
    comparison: Vec<Row>,
}

/// A run as JSON with the keys `settings`, `reference`, `samples` and `comparison`, over several lines. Numbers that are not
/// finite are written as null.
///
/// # Panics
///
/// Never: every field of a sample can be serialized.
#[must_use]
pub fn json(settings: &Value, samples: &[Sample], reference: &str) -> String {
    let comparison = Comparison::of(samples, reference).rows;
    let run = Run { settings, reference, samples, comparison };
    serde_json::to_string_pretty(&run).expect("maps have text keys and nothing fails to serialize") + "\n"
}
