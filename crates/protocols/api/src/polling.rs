//! How long threads that move packets poll before they sleep, and on which CPUs.

use std::str::FromStr;

use lasthop_engine::HYSTERESIS_US_DEFAULT;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use lasthop_runtime::fault::Fault;

use crate::names::either;

/// Largest value, in microseconds: a core is busy this long after each packet.
const HYSTERESIS_US_MAX: u32 = 10_000;

/// A time in microseconds, 0 (sleep at once) to 10000, for the switch's workers and the driver's threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "serde_json::Value")]
#[schemars(inline, with = "u32", extend("maximum" = HYSTERESIS_US_MAX, "default" = HYSTERESIS_US_DEFAULT))]
pub struct Hysteresis(pub u32);

impl Default for Hysteresis {
    fn default() -> Self {
        Self(HYSTERESIS_US_DEFAULT)
    }
}

impl TryFrom<i64> for Hysteresis {
    type Error = Fault;

    fn try_from(number: i64) -> Result<Self, Fault> {
        let number = u32::try_from(number).ok().filter(|number| *number <= HYSTERESIS_US_MAX);
        number.map(Self).ok_or_else(out_of_range)
    }
}

/// Reads a number only: text would have a unit.
impl TryFrom<serde_json::Value> for Hysteresis {
    type Error = Fault;

    fn try_from(value: serde_json::Value) -> Result<Self, Fault> {
        value.as_i64().ok_or_else(out_of_range)?.try_into()
    }
}

impl FromStr for Hysteresis {
    type Err = Fault;

    fn from_str(text: &str) -> Result<Self, Fault> {
        text.parse::<i64>().map_err(|_| out_of_range())?.try_into()
    }
}

impl std::fmt::Display for Hysteresis {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// CPUs on which threads that move packets busy-poll.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub enum PollCpus {
    /// Those that no other thread computes on.
    #[default]
    Spare,
    /// All.
    Any,
}

impl PollCpus {
    /// Whether threads poll beside others that compute.
    #[must_use]
    pub fn is_any(self) -> bool {
        self == Self::Any
    }
}

impl FromStr for PollCpus {
    type Err = Fault;

    fn from_str(text: &str) -> Result<Self, Fault> {
        either("busy-poll-cpus", text, [("spare", Self::Spare), ("any", Self::Any)])
    }
}

fn out_of_range() -> Fault {
    Fault::params(format!(
        "hysteresis-us must be a whole number of microseconds from 0 to {HYSTERESIS_US_MAX} (default: {HYSTERESIS_US_DEFAULT})"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpus_are_spare_ones_or_any() {
        assert_eq!("spare".parse(), Ok(PollCpus::default()));
        assert!("any".parse::<PollCpus>().is_ok_and(PollCpus::is_any));
        let fault = "all".parse::<PollCpus>().expect_err("another word");
        assert_eq!(fault.message, "busy-poll-cpus must be \"spare\" or \"any\", not \"all\"");
    }

    #[test]
    fn numbers_in_range_only() {
        assert_eq!("0".parse(), Ok(Hysteresis(0)));
        assert_eq!("10000".parse(), Ok(Hysteresis(10_000)));
        for text in ["-1", "10001", "50us", ""] {
            let fault = text.parse::<Hysteresis>().expect_err(text);
            assert!(fault.message.contains("0 to 10000"), "{text}: {fault}");
        }
    }
}
