//! All mistakes of a file at once, with messages for users: each mistake is left out, and the rest is read again.

use std::fmt;
use std::ops::{Range, RangeInclusive};

use lasthop_api::names;
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

/// The message for the user; the parser reports `message` for the `span` of `text`.
pub(crate) fn reworded(text: &str, span: Range<usize>, message: &str) -> String {
    let place = text.get(span.clone()).unwrap_or_default();
    let known = names::unknown_key(message, "-")
        .or_else(|| single_table(place, message))
        .or_else(|| wrong_type(key(text, span.start)?, message));
    known.unwrap_or_else(|| message.trim().replace('\n', ", "))
}

/// `[vnic]` where there may be several: a frequent mistake.
fn single_table(heading: &str, message: &str) -> Option<String> {
    let name = heading.trim_start().strip_prefix('[')?.split(']').next()?;
    let is_single = message.starts_with("invalid type: map, expected a sequence") && !name.starts_with('[');
    is_single.then(|| format!("[{name}] is one table, and there may be several: write [[{name}]]"))
}

/// The key of the value that begins at `start`; none if no key is before it in its line.
fn key(text: &str, start: usize) -> Option<&str> {
    let before = text.get(..start)?.rsplit('\n').next()?;
    Some(before.trim_end().strip_suffix('=')?.trim())
}

/// Quotes, or brackets, that are missing or too many: `invalid type: string "3", expected i64`.
fn wrong_type(key: &str, message: &str) -> Option<String> {
    let (found, expected) = message.trim().strip_prefix("invalid type: ")?.split_once(", expected ")?;
    let value = found.split_once('`').and_then(|(_, value)| value.strip_suffix('`'));
    Some(match expected {
        "a string" => match value {
            Some(value) => format!("{key} must be text in quotes: {key} = \"{value}\""),
            None => format!("{key} must be text in quotes"),
        },
        "a sequence" => match found.strip_prefix("string ") {
            Some(text) => format!("{key} must be a list: {key} = [{text}]"),
            None => format!("{key} must be a list, in [ and ]"),
        },
        "a boolean" => format!("{key} must be true or false, without quotes"),
        number if number.starts_with(['i', 'u']) => format!("{key} must be a whole number, without quotes"),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_key_is_that_before_the_value() {
        let text = "a = 1\nbc =  2\n";
        assert_eq!((key(text, 4), key(text, 12)), (Some("a"), Some("bc")));
        assert_eq!((key(text, 0), key(text, 99)), (None, None));
    }

    #[test]
    fn other_words_are_kept() {
        assert_eq!(reworded("a = 1", 4..5, "odd\nwords"), "odd, words");
        assert_eq!(wrong_type("a", "invalid type: map, expected a duck"), None);
    }
}
