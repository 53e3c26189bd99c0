//! The setting `tunnel-gro`.

use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use lasthop_runtime::fault::Fault;

/// Whether packets out of tunnels are joined on receipt (generic receive offload).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub enum TunnelGro {
    /// Where the kernel coalesces datagrams.
    #[default]
    Auto,
    /// Never.
    Off,
}

impl FromStr for TunnelGro {
    type Err = Fault;

    fn from_str(text: &str) -> Result<Self, Fault> {
        match text {
            "auto" => Ok(Self::Auto),
            "off" => Ok(Self::Off),
            _ => Err(Fault::params(format!("tunnel-gro must be \"auto\" or \"off\", not \"{text}\""))),
        }
    }
}
