//! Names of network devices with `*` for any part of them: `eth1`, `br*`.

use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use lasthop_runtime::fault::Fault;

/// Patterns in one list.
const PATTERNS_MAX: usize = 64;
/// Bytes of a pattern: a device's name has at most 15 (IFNAMSIZ), with stars between them.
const PATTERN_BYTES_MAX: usize = 32;
/// The same as a regular expression, for editors.
const PATTERN_PATTERN: &str = "^[!$-+.0-~-]{1,32}$";

/// Devices that a controller may use as ports.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "Vec<String>", into = "Vec<String>")]
#[schemars(inline, extend("maxItems" = PATTERNS_MAX, "items" = { "type": "string", "pattern": PATTERN_PATTERN }))]
pub struct DevicePatterns(Vec<String>);

impl DevicePatterns {
    /// Whether the list has a device.
    pub fn allow(&self, device: &str) -> bool {
        self.0.iter().any(|pattern| is_like(device, pattern))
    }
}

/// Whether a name matches a pattern: its first part at the start, its last part at the end, the others in between in
/// order.
pub(crate) fn is_like(name: &str, pattern: &str) -> bool {
    let Some((first, rest)) = pattern.split_once('*') else { return name == pattern };
    let Some(mut left) = name.strip_prefix(first) else { return false };
    let mut parts: Vec<&str> = rest.split('*').collect();
    let last = parts.pop().unwrap_or_default();
    for part in parts {
        let Some(at) = left.find(part) else { return false };
        left = &left[at + part.len()..];
    }
    left.ends_with(last)
}

impl TryFrom<Vec<String>> for DevicePatterns {
    type Error = Fault;

    fn try_from(patterns: Vec<String>) -> Result<Self, Fault> {
        if patterns.len() > PATTERNS_MAX {
            let why = format!("datapath-devices has {} names; at most {PATTERNS_MAX}", patterns.len());
            return Err(Fault::params(why));
        }
        let is_fit = |pattern: &&String| {
            let is_plain = |byte: u8| byte.is_ascii_graphic() && !b"/,#\"".contains(&byte);
            (1..=PATTERN_BYTES_MAX).contains(&pattern.len()) && pattern.bytes().all(is_plain)
        };
        match patterns.iter().find(|pattern| !is_fit(pattern)) {
            Some(odd) => Err(Fault::params(format!(
                "datapath-devices: \"{odd}\" cannot be a device's name; write names like eth1, or br* for all that begin so"
            ))),
            None => Ok(Self(patterns)),
        }
    }
}

impl From<DevicePatterns> for Vec<String> {
    fn from(patterns: DevicePatterns) -> Self {
        patterns.0
    }
}

impl FromStr for DevicePatterns {
    type Err = Fault;

    /// Parses names with commas in between; an empty text is an empty list.
    fn from_str(text: &str) -> Result<Self, Fault> {
        let names = text.split(',').filter(|_| !text.is_empty());
        names.map(str::to_owned).collect::<Vec<_>>().try_into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_stands_for_any_part_of_a_name() {
        let of = |text: &str| text.parse::<DevicePatterns>().expect(text);
        for (text, allowed, others) in [
            ("eth1", &["eth1"][..], &["eth10", "eth", "xeth1"][..]),
            ("br*,eth1", &["br", "br0", "br-int", "eth1"], &["xbr0", "eth2"]),
            ("*", &["a", "eth0"], &[]),
            ("v*-*x", &["v1-2x", "v-x"], &["v1x", "v-", "w-x"]),
            ("ab*ba", &["abba", "abxba"], &["aba"]),
            ("", &[], &["eth0"]),
        ] {
            assert!(allowed.iter().all(|name| of(text).allow(name)), "{text}");
            assert!(!others.iter().any(|name| of(text).allow(name)), "{text}");
        }
    }

    #[test]
    fn what_can_be_no_name_is_refused() {
        for text in ["a,,b", "a b", "a/b", &"x".repeat(33), &"a,".repeat(65)] {
            assert!(text.parse::<DevicePatterns>().is_err(), "{text}");
        }
    }
}
