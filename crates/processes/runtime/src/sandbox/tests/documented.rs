//! docs/design/sandbox.md has the actual lists.

use crate::sandbox::calls::{Call, Refusal, common, controller, driver, switch};

const DOCUMENT: &str = include_str!("../../../../../../docs/design/sandbox.md");

/// A row of the document: the call, whether arguments are restricted, the reason, whether tests use it.
fn row(call: &Call) -> String {
    let terms = if call.terms.is_empty() { "" } else { " (some)" };
    let kept = if call.kept { "kept" } else { "" };
    format!("| `{}`{terms} | {} | {kept} |", call.name, call.why)
}

fn rows<'a>(calls: impl Iterator<Item = &'a Call>) -> String {
    calls.map(|call| row(call) + "\n").collect()
}

/// The rows of the table below a heading.
fn table(heading: &str) -> String {
    let (_, behind) = DOCUMENT.split_once(&format!("\n{heading}\n")).expect("the heading");
    let lines = behind.lines().take_while(|line| !line.starts_with('#'));
    lines.filter(|line| line.starts_with("| `")).map(|line| format!("{line}\n")).collect()
}

#[test]
fn the_document_has_each_call_with_its_reason() {
    for (heading, rows) in [
        ("### All processes", rows(common::CALLS.iter())),
        ("### The switch process", rows(switch::CALLS.iter())),
        ("### The driver process", rows(driver::CALLS.iter())),
        ("### The controller process", rows(controller::CALLS.iter())),
        ("### Refused", rows(common::REFUSALS.iter().map(|Refusal(call)| call))),
    ] {
        assert!(table(heading) == rows, "below {heading} docs/design/sandbox.md should have:\n{rows}");
    }
}
