//! The number of a port's flows from which on the embedded controller makes flows by address.

use std::str::FromStr;

use lasthop_runtime::fault::Fault;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::options::{value_of_number, whole_number};

/// The default: a usual guest has some dozens of flows, and a packet of flows by address is looked up twice.
pub const PAIR_FLOWS_DEFAULT: u32 = 1024;
/// As many flows as a switch may have, which no port reaches: flows are always by pair.
const NEVER: u32 = 200_000;

/// Flows of packets from one port from which on others are made for each address, not for each pair of addresses; 0 to
/// 200000.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "serde_json::Value")]
#[schemars(inline, with = "u32", extend("minimum" = 0, "maximum" = NEVER, "default" = PAIR_FLOWS_DEFAULT))]
pub struct PairFlows(pub u32);

impl Default for PairFlows {
    fn default() -> Self {
        Self(PAIR_FLOWS_DEFAULT)
    }
}

impl TryFrom<serde_json::Value> for PairFlows {
    type Error = Fault;

    fn try_from(value: serde_json::Value) -> Result<Self, Fault> {
        whole_number(&value, 0..=NEVER).map(Self).ok_or_else(|| {
            let range = format!("a whole number from 0 to {NEVER}");
            Fault::params(format!(
                "pair-flows must be {range} (default: {PAIR_FLOWS_DEFAULT}; {NEVER}: always by pair)"
            ))
        })
    }
}

impl FromStr for PairFlows {
    type Err = Fault;

    fn from_str(text: &str) -> Result<Self, Fault> {
        value_of_number(text).try_into()
    }
}
