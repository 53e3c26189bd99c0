use serde::Serialize;
use serde_json::Value;

use super::comparison::{Comparison, Row};
use crate::sample::Sample;

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
