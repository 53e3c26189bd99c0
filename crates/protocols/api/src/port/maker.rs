//! The program that made a port, if it says so.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::names;
use lasthop_runtime::fault::Fault;

/// The relay of Open vSwitch's database.
pub const OVS_RELAY: &str = "ovs-relay";

/// A program that makes ports, and removes them again. `lasthop apply` leaves its ports alone.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Maker(String);

impl FromStr for Maker {
    type Err = Fault;

    fn from_str(text: &str) -> Result<Self, Fault> {
        names::check(text, "program in made-by").map(|()| Self(text.to_owned()))
    }
}

impl TryFrom<String> for Maker {
    type Error = Fault;

    fn try_from(text: String) -> Result<Self, Fault> {
        text.parse()
    }
}

impl From<Maker> for String {
    fn from(maker: Maker) -> Self {
        maker.0
    }
}

impl fmt::Display for Maker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}
