//! docs/sandbox.md has the lists as they are.

use crate::sandbox::Role;
use crate::sandbox::calls::{Call, Refusal};

const DOCUMENT: &str = include_str!("../../../../../docs/sandbox.md");

/// A row of the document: the call, whether with certain arguments only, why, whether tests meet it.
fn row(call: &Call) -> String {
    let terms = if call.terms.is_empty() { "" } else { " (some)" };
    let kept = if call.kept { "kept" } else { "" };
    format!("| `{}`{terms} | {} | {kept} |", call.name, call.why)
}

#[test]
fn the_document_has_each_call_with_its_reason() {
    let missing: Vec<String> = Role::Switch
        .calls()
        .chain(Role::Switch.refusals().iter().map(|Refusal(call)| call))
        .map(row)
        .filter(|row| !DOCUMENT.contains(row.as_str()))
        .collect();
    assert!(missing.is_empty(), "docs/sandbox.md lacks:\n{}", missing.join("\n"));
    let rows = DOCUMENT.lines().filter(|line| line.starts_with("| `")).count();
    let entries = Role::Switch.calls().count() + Role::Switch.refusals().len();
    assert_eq!(rows, entries, "docs/sandbox.md has rows of what is no entry");
}
