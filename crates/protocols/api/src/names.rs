//! The form of names, and "did you mean": names close to a mistyped one.

use lasthop_runtime::fault::Fault;

/// Longest name, in bytes: it is part of a socket's path, which may have 107, and leaves 38 to its directory. A UUID has 36.
pub(crate) const NAME_BYTES_MAX: usize = 64;
/// The same as a regular expression, for editors.
pub(crate) const NAME_PATTERN: &str = "^[A-Za-z0-9._-]{1,64}$";
/// Largest number of offered names.
const OFFERS_MAX: usize = 3;

/// Refuses a text that cannot be the name of a `kind`; does not check reserved names.
pub fn check(text: &str, kind: &str) -> Result<(), Fault> {
    let is_fit = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    match (text.bytes().all(is_fit), text.len()) {
        (true, 1..=NAME_BYTES_MAX) => Ok(()),
        (true, length) if length > NAME_BYTES_MAX => Err(Fault::params(format!(
            "\"{text}\" is too long for the name of a {kind}: it has {length} characters; use at most {NAME_BYTES_MAX}"
        ))),
        _ => Err(Fault::params(format!(
            "\"{text}\" cannot be the name of a {kind}; use 1 to {NAME_BYTES_MAX} letters, digits, '.', '_' and '-'"
        ))),
    }
}

/// The value that one of two words names, for the setting `key`.
pub(crate) fn either<T>(key: &str, text: &str, [one, other]: [(&str, T); 2]) -> Result<T, Fault> {
    match text {
        _ if text == one.0 => Ok(one.1),
        _ if text == other.0 => Ok(other.1),
        _ => Err(Fault::params(format!("{key} must be \"{}\" or \"{}\", not \"{text}\"", one.0, other.0))),
    }
}

/// The names that differ from `word` by few changes, nearest first.
pub fn close<'a>(word: &str, names: impl IntoIterator<Item = &'a str>) -> Vec<&'a str> {
    let reach = (word.chars().count() / 3).clamp(1, 3);
    let mut near: Vec<_> = names.into_iter().map(|name| (distance(word, name), name)).collect();
    near.retain(|(changes, _)| *changes <= reach);
    near.sort();
    near.into_iter().take(OFFERS_MAX).map(|(_, name)| name).collect()
}

/// `; did you mean "x"?`, or nothing if no name is close.
pub fn hint<'a>(word: &str, names: impl IntoIterator<Item = &'a str>) -> String {
    let offers: Vec<String> = close(word, names).iter().map(|name| format!("\"{name}\"")).collect();
    if offers.is_empty() { String::new() } else { format!("; did you mean {}?", offers.join(" or ")) }
}

/// Converts serde's message about an unknown key into ours: "unknown field `a`, expected one of `b`, `c`". `joint` joins
/// the words of keys where this one was written: "-" in files, "_" at the control interface.
pub fn unknown_key(message: &str, joint: &str) -> Option<String> {
    let mut quoted = message.strip_prefix("unknown field")?.split('`').skip(1).step_by(2);
    let key = quoted.next()?;
    let mut known: Vec<&str> = quoted.collect();
    // The other place's spelling may be known, too, but one of the two is enough for a hint.
    let (spellings, other) = (known.clone(), if joint == "-" { "_" } else { "-" });
    let usual = |name: &str| name.replace(other, joint);
    known.retain(|name| !name.contains(other) || !spellings.contains(&usual(name).as_str()));
    let hint = hint(key, known.iter().copied());
    Some(format!("unknown key \"{key}\"{hint} (there are {})", known.join(", ")))
}

/// Insertions, deletions and replacements between two words, ignoring case.
fn distance(one: &str, other: &str) -> usize {
    let lower = |text: &str| text.to_lowercase().chars().collect::<Vec<_>>();
    let (one, other) = (lower(one), lower(other));
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (above, letter) in one.iter().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], above + 1);
        for (column, candidate) in other.iter().enumerate() {
            let replaced = diagonal + usize::from(letter != candidate);
            diagonal = row[column + 1];
            row[column + 1] = replaced.min(diagonal + 1).min(row[column] + 1);
        }
    }
    row[other.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distance_counts_changes() {
        assert_eq!(distance("mode", "mode"), 0);
        assert_eq!(distance("MODE", "mode"), 0);
        assert_eq!(distance("modul", "module"), 1);
        assert_eq!(distance("kitten", "sitting"), 3);
        assert_eq!(distance("", "abc"), 3);
    }

    #[test]
    fn a_name_that_is_too_long_is_told_its_length() {
        assert_eq!(check(&"x".repeat(64), "port"), Ok(()));
        let message = |text: &str| check(text, "port").expect_err(text).message;
        let long = message(&"x".repeat(70));
        assert!(long.ends_with("name of a port: it has 70 characters; use at most 64"), "{long}");
        for text in ["", "a b", &"x y".repeat(30)] {
            assert!(message(text).ends_with("use 1 to 64 letters, digits, '.', '_' and '-'"), "{text}");
        }
    }

    #[test]
    fn a_key_with_two_spellings_is_listed_once() {
        let message = "unknown field `fdb`, expected one of `name`, `fdb_entries`, `fdb-entries`, `top-key`";
        for (joint, entries) in [("-", "fdb-entries"), ("_", "fdb_entries")] {
            let text = unknown_key(message, joint).expect("an unknown key");
            assert_eq!(text, format!("unknown key \"fdb\" (there are name, {entries}, top-key)"));
        }
    }

    #[test]
    fn only_close_names_are_offered_nearest_first() {
        assert_eq!(close("modul", ["cpus", "module", "vnic"]), ["module"]);
        assert_eq!(close("web12", ["web1", "db", "web2", "mail"]), ["web1", "web2"]);
        assert_eq!(hint("zebra", ["cpus", "module"]), "");
        assert_eq!(hint("queue", ["queues", "mtu"]), "; did you mean \"queues\"?");
    }
}
