//! Bounds on one port's pending upcalls, as a setting: `packets=256,kib=256,rate=20000`.

use std::fmt;
use std::str::FromStr;

use lasthop_engine::UpcallLimits;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::pairs::{number, unknown};
use lasthop_runtime::fault::Fault;

const SETTING: &str = "upcalls";
const KEYS: [&str; 3] = ["packets", "kib", "rate"];
/// As much as a control plane handles in some milliseconds, so that forged packets are dropped early, and the first
/// packets of a flow are not.
const DEFAULT: UpcallBounds = UpcallBounds { packets: 256, kib: 256, rate: 20_000 };
/// With more, one port could fill a worker's ring.
const PACKETS_MAX: u32 = 4096;
/// A frame of 64 KiB as segments, and some more.
const KIB_MIN: u32 = 128;
/// Half the size of a worker's ring.
const KIB_MAX: u32 = 2048;
const RATE_MAX: u32 = 10_000_000;

/// Bounds on misses on their way to the controller, for each port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String", into = "String")]
#[schemars(inline, extend("default" = DEFAULT))]
pub struct UpcallBounds {
    packets: u32,
    kib: u32,
    /// Per second and worker; 0 for no limit.
    rate: u32,
}

impl UpcallBounds {
    pub fn limits(self) -> UpcallLimits {
        UpcallLimits { packets: self.packets, bytes: self.kib << 10, rate: self.rate }
    }
}

impl Default for UpcallBounds {
    fn default() -> Self {
        DEFAULT
    }
}

impl fmt::Display for UpcallBounds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { packets, kib, rate } = self;
        write!(f, "packets={packets},kib={kib},rate={rate}")
    }
}

impl From<UpcallBounds> for String {
    fn from(upcalls: UpcallBounds) -> Self {
        upcalls.to_string()
    }
}

impl TryFrom<String> for UpcallBounds {
    type Error = Fault;

    fn try_from(text: String) -> Result<Self, Fault> {
        text.parse()
    }
}

impl FromStr for UpcallBounds {
    type Err = Fault;

    fn from_str(text: &str) -> Result<Self, Fault> {
        let mut all = DEFAULT;
        for pair in text.split(',') {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            let (place, range) = match key {
                "packets" => (&mut all.packets, 1..=PACKETS_MAX),
                "kib" => (&mut all.kib, KIB_MIN..=KIB_MAX),
                "rate" => (&mut all.rate, 0..=RATE_MAX),
                _ => return Err(unknown(SETTING, key, &KEYS, DEFAULT)),
            };
            *place = number(SETTING, (key, value), range, DEFAULT)?;
        }
        Ok(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_out_is_as_usual() {
        assert_eq!("rate=0".parse(), Ok(UpcallBounds { rate: 0, ..DEFAULT }));
        let all = "packets=64,kib=2048,rate=5".parse::<UpcallBounds>().expect("all keys");
        assert_eq!((all.limits().bytes, all.to_string().parse()), (2 << 20, Ok(all)));
    }

    #[test]
    fn what_is_wrong_is_named_with_what_would_be_right() {
        let cases = [
            ("packets=0", "packets=0 is not a whole number from 1 to 4096"),
            ("kib=64", "from 128 to 2048"),
            ("rate=many", "rate=many is not"),
            ("pakets=4", "did you mean \"packets\""),
            ("", "upcalls has no \"\""),
            ("rate", "rate= is not"),
        ];
        for (text, words) in cases {
            let fault = text.parse::<UpcallBounds>().expect_err(text);
            assert!(fault.message.contains(words), "{text}: {fault}");
        }
    }
}
