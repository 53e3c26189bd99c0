use std::collections::BTreeMap;

use super::comparison::{Cell, Comparison, LIMIT_BACKEND, NULL_BACKEND};
use crate::sample::Placement;

/// Follows a figure that the generator may have limited.
const GENERATOR_LIMITED: &str = "*";
/// Follows a figure that was measured below the requested load.
const SHORT_OF_OFFERED: &str = "†";

/// The marks of a cell, which directly follow its value.
pub(super) fn marks(cell: &Cell) -> String {
    let mark = |on, mark| if on { mark } else { "" };
    mark(cell.generator_limited, GENERATOR_LIMITED).to_owned() + mark(cell.short_of_offered, SHORT_OF_OFFERED)
}

/// Explains the marks and ceilings that occur.
pub(super) fn footnotes(comparison: &Comparison) -> Vec<String> {
    let any = |test: fn(&Cell) -> bool| comparison.cells().any(test);
    let notes = [
        (
            any(|cell| cell.generator_limited),
            format!(
                "{GENERATOR_LIMITED} limited by the generator: more than half of what it reaches with the \
                 {NULL_BACKEND} back end, so the back end may be faster than this."
            ),
        ),
        (
            any(|cell| cell.short_of_offered),
            format!("{SHORT_OF_OFFERED} less than 99% of the offered packets arrived: not the same load."),
        ),
        (
            any(|cell| cell.backend == LIMIT_BACKEND),
            format!("{LIMIT_BACKEND}: the bare single copy, without a switch around it."),
        ),
        (
            any(|cell| cell.backend == NULL_BACKEND),
            format!("{NULL_BACKEND}: next to nothing is done; the most that the generator can reach."),
        ),
    ];
    notes.into_iter().filter_map(|(applies, note)| applies.then_some(note)).collect()
}

/// The path that testpmd as a guest chose with each back end, with its features.
pub(super) fn driver_notes(comparison: &Comparison) -> Vec<String> {
    let mut backends: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for cell in comparison.cells() {
        for driver in &cell.drivers {
            let names = backends.entry(driver.to_string()).or_default();
            if !names.contains(&cell.backend.as_str()) {
                names.push(&cell.backend);
            }
        }
    }
    let note = |(driver, names): (String, Vec<&str>)| {
        format!("testpmd as a guest of {}: {driver}.", names.join(", "))
    };
    backends.into_iter().map(note).collect()
}

/// Explains the ratios.
pub(super) fn ratio_note(comparison: &Comparison) -> Option<String> {
    let reference = &comparison.reference;
    let any = comparison.cells().any(|cell| cell.ratio.is_some());
    any.then(|| {
        format!("n×: how many times better {reference} is by the medians; below 1× it is the worse one.")
    })
}

/// Explains near and far.
pub(super) fn placement_note() -> String {
    format!(
        "near, far: a cache line goes from the switch's core to the generator's in at most {} ns, or takes longer; \
         only samples of one class are compared.",
        Placement::NEAR_NS_MAX
    )
}
