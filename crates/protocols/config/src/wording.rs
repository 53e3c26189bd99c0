//! Mistakes that the parser finds, as messages with the key and the remedy.

use std::ops::Range;

use lasthop_api::names;

/// The message for the user; the parser reports `message` for the `span` of `text`.
pub(crate) fn of(text: &str, span: Range<usize>, message: &str) -> String {
    let place = text.get(span.clone()).unwrap_or_default();
    let known = names::unknown_key(message)
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
        assert_eq!(of("a = 1", 4..5, "odd\nwords"), "odd, words");
        assert_eq!(wrong_type("a", "invalid type: map, expected a duck"), None);
    }
}
