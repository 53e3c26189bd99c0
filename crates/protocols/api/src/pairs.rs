//! Settings of several keys in one text, as `packets=256,kib=256`: what is wrong with one.

use std::fmt::Display;
use std::ops::RangeInclusive;

use crate::names;
use lasthop_runtime::fault::Fault;

/// The value of a key of `setting` as a number in `range`.
pub(crate) fn number(
    setting: &str,
    (key, value): (&str, &str),
    range: RangeInclusive<u32>,
    default: impl Display,
) -> Result<u32, Fault> {
    let (least, most) = (range.start(), range.end());
    value.parse().ok().filter(|number| range.contains(number)).ok_or_else(|| {
        Fault::params(format!(
            "{setting}: {key}={value} is not a whole number from {least} to {most} (default: {default})"
        ))
    })
}

/// The error about a key that `setting` does not have.
pub(crate) fn unknown(setting: &str, key: &str, keys: &[&str], default: impl Display) -> Fault {
    let hint = names::hint(key, keys.iter().copied());
    let known = keys.join(", ");
    Fault::params(format!("{setting} has no \"{key}\"{hint} (there are {known}, as in {default})"))
}
