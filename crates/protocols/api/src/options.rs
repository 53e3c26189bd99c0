//! Options of vnics, ports and switches on the command line: `NAME[,KEY=VALUE]...`.

use std::ops::RangeInclusive;
use std::str::FromStr;

use lasthop_module_api::StormLimits;
use lasthop_runtime::fault::Fault;

/// A key and its value.
pub(crate) type Setting<'a> = (&'a str, &'a str);

/// Splits `NAME[,KEY=VALUE]...` into the name and the options, each key once.
pub(crate) fn options(text: &str) -> Result<(&str, Vec<Setting<'_>>), Fault> {
    match text.split_once(',') {
        Some((name, rest)) => Ok((name, settings(rest)?)),
        None => Ok((text, Vec::new())),
    }
}

/// Splits `KEY=VALUE[,KEY=VALUE]...`, each key once.
pub(crate) fn settings(text: &str) -> Result<Vec<Setting<'_>>, Fault> {
    let mut options: Vec<Setting<'_>> = Vec::new();
    for part in text.split(',') {
        let (key, value) = option(part)?;
        if options.iter().any(|(earlier, _)| *earlier == key) {
            return Err(Fault::params(format!("\"{key}\" is given twice; leave one out")));
        }
        options.push((key, value));
    }
    Ok(options)
}

fn option(part: &str) -> Result<Setting<'_>, Fault> {
    match part.split_once('=') {
        Some((key, value)) if !value.is_empty() => Ok((key, value)),
        _ => Err(Fault::params(format!("\"{part}\" is not KEY=VALUE"))),
    }
}

/// A whole number in `range`, without a unit; text is none.
pub(crate) fn whole_number(value: &serde_json::Value, range: RangeInclusive<u32>) -> Option<u32> {
    let number = value.as_u64().and_then(|number| u32::try_from(number).ok());
    number.filter(|number| range.contains(number))
}

/// The value of a setting that is a whole number, from the command line; null for other text.
pub(crate) fn value_of_number(text: &str) -> serde_json::Value {
    text.parse::<u64>().map_or(serde_json::Value::Null, Into::into)
}

/// Parses a key's value as a number.
pub(crate) fn number<N: FromStr + BoundedNumber>(key: &str, value: &str) -> Result<N, Fault> {
    value.parse().map_err(|_| Fault::params(format!("{key}={value} is not a number up to {}", N::MAX)))
}

/// A number type with its largest value, for messages.
pub(crate) trait BoundedNumber {
    /// The largest value.
    const MAX: u32;
}

impl BoundedNumber for u16 {
    const MAX: u32 = u16::MAX as u32;
}

impl BoundedNumber for u32 {
    const MAX: u32 = StormLimits::RATE_MAX;
}

/// Settings of the whole program, which it is started with.
const OF_THE_WHOLE: &[&str] = &[
    "workers",
    "cpus",
    "hysteresis-us",
    "busy-poll-cpus",
    "upcalls",
    "sandbox",
    "control-group",
    "datapath-devices",
    "scheduler-view",
    "helper-cpus",
    "offload",
    "placement",
    "placement-batches",
    "shares",
    "standby",
    "tunnel-gro",
    "huge-pages",
    "receive-steering",
    "pair-flows",
];

/// The error about a key that is a setting of the whole program, not of a vnic or switch.
pub(crate) fn of_the_whole(key: &str) -> Option<Fault> {
    OF_THE_WHOLE.contains(&key).then(|| {
        Fault::params(format!(
            "{key} is a setting of the whole program, not of a vnic or switch, and takes a restart: lasthop run --{key}, or {key} at the top of the file"
        ))
    })
}
