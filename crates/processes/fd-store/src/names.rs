//! Names of kept descriptors. The manager hands all of them over in one environment variable.

use std::collections::BTreeSet;
use std::io;

/// The prefix of most of our names.
pub(crate) const PREFIX: &str = "lasthop-";
pub(crate) const HEAD_NAME: &str = "lasthop-head";
pub(crate) const PORT_NAMES: &str = "lasthop-port-";
/// The prefix of short names.
const SHORT_PREFIX: &str = "lh";
/// Descriptors with lower numbers have long names. Earlier versions know only these, so a downgrade keeps the guests of a
/// small installation.
const SHORT_FROM: u64 = 1000;
const RADIX: u32 = 36;
/// The largest number of a short name, whose three digits let [`FULL_ROOM`] descriptors fit.
const NUMBER_MAX: u64 = 36 * 36 * 36 - 1;

/// Bytes of all names, each with a colon. Linux starts no program with a variable of more than 128 KiB
/// (MAX_ARG_STRLEN). The rest is for names of others, such as the sockets of a .socket unit.
pub(crate) const NAMES_BYTES_MAX: usize = 120 << 10;
/// The number of descriptors whose names fit in any case.
pub(crate) const FULL_ROOM: usize = 16384;

/// Bytes of a name in the variable.
pub(crate) fn bytes_of(name: &str) -> usize {
    name.len() + 1
}

/// Whether a descriptor with this name is ours.
pub(crate) fn is_ours(name: &str) -> bool {
    name.starts_with(PREFIX) || number_of(name).is_some()
}

fn name_of(number: u64) -> String {
    if number < SHORT_FROM {
        return format!("{PREFIX}{number}");
    }
    let (mut rest, mut digits) = (number, Vec::new());
    while rest > 0 {
        digits.extend(char::from_digit((rest % u64::from(RADIX)) as u32, RADIX));
        rest /= u64::from(RADIX);
    }
    SHORT_PREFIX.chars().chain(digits.into_iter().rev()).collect()
}

/// The number of a descriptor in a name of this version or of an earlier one; `None` for records and others.
fn number_of(name: &str) -> Option<u64> {
    if let Some(digits) = name.strip_prefix(PREFIX) {
        return digits.parse().ok();
    }
    let number = u64::from_str_radix(name.strip_prefix(SHORT_PREFIX)?, RADIX).ok()?;
    ((SHORT_FROM..=NUMBER_MAX).contains(&number) && name_of(number) == name).then_some(number)
}

/// The names in use. The lowest free number is used next, so that names stay short.
#[derive(Debug, Default)]
pub(crate) struct Names {
    /// Free numbers up to `last`.
    free: BTreeSet<u64>,
    last: u64,
    /// Bytes of all names in use, each with a colon.
    bytes: usize,
}

impl Names {
    /// The name of the next descriptor.
    pub(crate) fn first(&self) -> String {
        name_of(self.free.first().copied().unwrap_or(self.last + 1))
    }

    /// The names of the next descriptors.
    pub(crate) fn next(&self) -> impl Iterator<Item = String> {
        self.free.iter().copied().chain(self.last + 1..).map(name_of)
    }

    /// Notes a name that is in use from now on.
    pub(crate) fn add(&mut self, name: &str) {
        self.bytes += bytes_of(name);
        // Earlier versions counted on without end. Their higher numbers are never ours.
        match number_of(name).filter(|number| *number <= NUMBER_MAX) {
            Some(number) if number > self.last => {
                self.free.extend(self.last + 1..number);
                self.last = number;
            }
            Some(number) => drop(self.free.remove(&number)),
            None => {}
        }
    }

    /// Notes a name that is free from now on.
    pub(crate) fn remove(&mut self, name: &str) {
        self.bytes = self.bytes.saturating_sub(bytes_of(name));
        self.free.extend(number_of(name).filter(|number| *number <= self.last));
    }

    /// Checks that names with that many more bytes can be handed over.
    pub(crate) fn check_room(&self, bytes: usize) -> io::Result<()> {
        if self.bytes + bytes <= NAMES_BYTES_MAX {
            return Ok(());
        }
        Err(io::Error::other(format!(
            "the names of its descriptors would exceed {NAMES_BYTES_MAX} bytes, and Linux would not start the service \
             again with them; run a second service for further guests, or give guests fewer queues"
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn names_are_read_as_they_were_made() {
        let all: BTreeSet<String> = (1..=NUMBER_MAX).map(name_of).collect();
        assert_eq!(all.len() as u64, NUMBER_MAX);
        assert!((1..=NUMBER_MAX).all(|number| number_of(&name_of(number)) == Some(number)));
        assert_eq!((name_of(999), name_of(1000)), ("lasthop-999".to_owned(), "lhrs".to_owned()));
        assert_eq!(number_of("lasthop-4711123"), Some(4_711_123), "of an earlier version");
        assert!(
            is_ours("lasthop-head") && is_ours("lasthop-port-7") && is_ours("lasthop-1") && is_ours("lhrs")
        );
        for other in ["lh", "lh1", "lhRS", "lh0rs", "lh+rs", "lh1000", "lhsocket", "lasthop.socket", "rs"] {
            assert!(!is_ours(other), "{other}");
        }
    }

    #[test]
    fn the_lowest_free_number_is_next() {
        let mut names = Names::default();
        ["lasthop-2", "lasthop-4", "lasthop-head", "lasthop-9000000000", "lasthop-port-1"]
            .iter()
            .for_each(|name| names.add(name));
        let next = |names: &Names| names.next().take(3).collect::<Vec<_>>();
        assert_eq!(next(&names), ["lasthop-1", "lasthop-3", "lasthop-5"]);
        names.add("lasthop-1");
        names.remove("lasthop-2");
        names.remove("lasthop-9000000000");
        assert_eq!(next(&names), ["lasthop-2", "lasthop-3", "lasthop-5"]);
        assert_eq!(names.bytes, "lasthop-1:lasthop-4:lasthop-head:lasthop-port-1:".len());
    }

    /// Whether a program starts with these names.
    fn starts_with(names: &str) -> bool {
        Command::new("true").env("LISTEN_FDNAMES", names).status().is_ok()
    }

    #[test]
    fn a_full_store_is_handed_over() {
        let mut names = Names::default();
        let ports = (0..1023).map(|port| format!("{PORT_NAMES}{}", u32::MAX - port));
        let mut all: Vec<String> = std::iter::once(HEAD_NAME.to_owned()).chain(ports).collect();
        all.iter().for_each(|name| names.add(name));
        while all.len() < FULL_ROOM {
            let name = names.first();
            names.check_room(bytes_of(&name)).expect("room");
            names.add(&name);
            all.push(name);
        }
        assert!(starts_with(&all.join(":")));
        assert!(starts_with(&"x".repeat(NAMES_BYTES_MAX)), "all that is allowed");
        assert!(!starts_with(&"x".repeat(128 << 10)));
    }
}
