//! Whether a vnic's link is up, as the operator wants it.

use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::names;
use lasthop_runtime::fault::Fault;

/// The administrative state of a vnic (IF-MIB, RFC 2863: ifAdminStatus).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase", try_from = "String")]
#[schemars(inline, !try_from)]
pub enum LinkState {
    /// Packets pass.
    #[default]
    Up,
    /// Frames from the guest and to it are dropped as `link_down`.
    Down,
}

impl LinkState {
    pub fn is_up(self) -> bool {
        self == Self::Up
    }
}

impl FromStr for LinkState {
    type Err = Fault;

    fn from_str(text: &str) -> Result<Self, Fault> {
        match text {
            "up" => Ok(Self::Up),
            "down" => Ok(Self::Down),
            _ => {
                let hint = names::hint(text, ["up", "down"]);
                Err(Fault::params(format!("link={text} is unknown; use link=up or link=down{hint}")))
            }
        }
    }
}

impl TryFrom<String> for LinkState {
    type Error = Fault;

    fn try_from(text: String) -> Result<Self, Fault> {
        text.parse()
    }
}
