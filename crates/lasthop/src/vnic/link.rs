//! Whether a vnic's link is up, as the operator wants it.

use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::fault::Fault;
use crate::names;

/// The administrative state of a vnic (IF-MIB, RFC 2863: ifAdminStatus).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", try_from = "String")]
pub(crate) enum Link {
    /// Packets pass.
    #[default]
    Up,
    /// What comes from the guest and what goes to it is dropped as `link_down`.
    Down,
}

impl Link {
    pub(crate) fn is_up(self) -> bool {
        self == Self::Up
    }
}

impl FromStr for Link {
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

impl TryFrom<String> for Link {
    type Error = Fault;

    fn try_from(text: String) -> Result<Self, Fault> {
        text.parse()
    }
}
