//! All mistakes of a file at once: each mistake is left out, and the rest is read again.

use std::fmt;
use std::ops::RangeInclusive;

use serde::Serialize;

/// Mistakes shown at most; a file with more has another problem.
pub(crate) const MISTAKES_MAX: usize = 100;

/// A mistake in a file, and its lines.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Mistake {
    /// Counted from 1; 0 for none.
    pub line: usize,
    /// The sentence, with its remedy.
    pub message: String,
    /// Last line of the mistake.
    #[serde(skip)]
    pub(super) last_line: usize,
}

impl Mistake {
    pub(super) fn new(lines: RangeInclusive<usize>, message: impl Into<String>) -> Self {
        Self { line: *lines.start(), last_line: *lines.end(), message: message.into() }
    }

    /// A mistake that no line makes alone: this machine cannot do all that the file asks for.
    pub fn of_machine(message: String) -> Self {
        Self { line: 0, last_line: 0, message }
    }
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.line, self.message)
    }
}

/// The result of `parse` for `text`, or all its mistakes, in order of their lines.
pub(super) fn collect<T>(text: &str, parse: impl Fn(&str) -> Result<T, Mistake>) -> Result<T, Vec<Mistake>> {
    let mut rest = text.to_owned();
    let mut found = Vec::new();
    loop {
        match parse(&rest) {
            Ok(result) if found.is_empty() => return Ok(result),
            Ok(_) => break,
            Err(mistake) => {
                let cleared = without(&rest, &mistake);
                let is_stuck = cleared == rest;
                found.push(mistake);
                if is_stuck || found.len() == MISTAKES_MAX {
                    break;
                }
                rest = cleared;
            }
        }
    }
    found.sort_by_key(|mistake| mistake.line);
    Err(found)
}

/// The text with the lines of a mistake empty; if that is a table's heading, with the whole table empty.
fn without(text: &str, mistake: &Mistake) -> String {
    let is_heading = |line: &str| line.trim_start().starts_with('[');
    let first = mistake.line.saturating_sub(1);
    let lines: Vec<&str> = text.lines().collect();
    let mut last = mistake.last_line.max(mistake.line).saturating_sub(1);
    if lines.get(first).copied().is_some_and(is_heading) {
        let after = lines.iter().skip(first + 1).position(|line| is_heading(line));
        last = after.map_or(lines.len(), |after| first + after);
    }
    let kept = lines.iter().enumerate();
    kept.map(
        |(index, line)| if (first..=last).contains(&index) { "\n".to_owned() } else { format!("{line}\n") },
    )
    .collect()
}
