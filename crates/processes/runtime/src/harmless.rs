//! Text from other processes, made harmless for a terminal or a log.

use std::borrow::Cow;

/// Replaces a removed character.
const REPLACEMENT: &str = "\u{fffd}";

/// Removes characters that control a terminal or break a line.
pub fn harmless(text: &str) -> Cow<'_, str> {
    without(text, char::is_control)
}

/// Same for several lines.
pub fn harmless_lines(text: &str) -> Cow<'_, str> {
    without(text, |one: char| one.is_control() && one != '\n' && one != '\t')
}

fn without(text: &str, is_left_out: impl Fn(char) -> bool) -> Cow<'_, str> {
    if text.contains(&is_left_out) { text.replace(is_left_out, REPLACEMENT).into() } else { text.into() }
}

/// Truncates the text to `bytes_max` bytes, with three dots at the end.
pub fn shortened(text: &str, bytes_max: usize) -> Cow<'_, str> {
    if text.len() <= bytes_max {
        return text.into();
    }
    format!("{}...", &text[..text.floor_char_boundary(bytes_max)]).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_steers_a_terminal_is_left_out() {
        let nasty = "a\x1b[2Jb\r\nlasthop: c\t\u{9b}1m\x7fd";
        assert_eq!(harmless(nasty), "a\u{fffd}[2Jb\u{fffd}\u{fffd}lasthop: c\u{fffd}\u{fffd}1m\u{fffd}d");
        assert_eq!(harmless_lines(nasty), "a\u{fffd}[2Jb\u{fffd}\nlasthop: c\t\u{fffd}1m\u{fffd}d");
        assert!(matches!(harmless("größe 1"), Cow::Borrowed("größe 1")));
    }

    #[test]
    fn long_text_is_cut_between_characters() {
        assert_eq!(shortened("größe", 5), "grö...");
        assert_eq!(shortened("größe", 3), "gr...");
        assert_eq!(shortened("größe", 7), "größe");
    }
}
