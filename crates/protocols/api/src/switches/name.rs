//! Names of switches.

use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::names;
use lasthop_runtime::fault::Fault;

/// A name in the form of a vnic's: `[A-Za-z0-9._-]{1,64}`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String", into = "String")]
#[schemars(inline, extend("pattern" = names::NAME_PATTERN))]
pub struct SwitchName(String);

impl SwitchName {
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether it is the switch of vnics without a switch.
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

impl Default for SwitchName {
    fn default() -> Self {
        Self("default".to_owned())
    }
}

impl FromStr for SwitchName {
    type Err = Fault;

    fn from_str(text: &str) -> Result<Self, Fault> {
        names::check(text, "switch")?;
        Ok(Self(text.to_owned()))
    }
}

impl TryFrom<String> for SwitchName {
    type Error = Fault;

    fn try_from(text: String) -> Result<Self, Fault> {
        text.parse()
    }
}

impl From<SwitchName> for String {
    fn from(name: SwitchName) -> Self {
        name.0
    }
}

impl fmt::Display for SwitchName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_switch_may_be_named_as_a_vnic_may() {
        for name in ["a", "default", "tenant-7.prod_x", "control"] {
            assert_eq!(name.parse::<SwitchName>().map(String::from), Ok(name.to_owned()));
        }
        for name in ["", "a b", "a/b", "a,b", &"x".repeat(65)] {
            let fault = name.parse::<SwitchName>().expect_err(name);
            assert!(fault.message.contains("name of a switch"), "{fault}");
        }
    }
}
