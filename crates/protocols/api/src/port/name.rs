//! Names of ports.

use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};

use crate::names;
use lasthop_runtime::fault::Fault;

/// Names with other meanings: the switch's own port, and the control socket's file.
const RESERVED: &[&str] = &["internal", "control", ".", ".."];

/// A name for a file, a table and a log line: `[A-Za-z0-9._-]{1,64}`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String", into = "String")]
#[schemars(inline, extend("pattern" = names::NAME_PATTERN))]
pub struct Name(String);

impl Name {
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Reads a required name where others are optional.
    pub(super) fn some<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Self>, D::Error> {
        Self::deserialize(from).map(Some)
    }
}

impl FromStr for Name {
    type Err = Fault;

    fn from_str(text: &str) -> Result<Self, Fault> {
        names::check(text, "port")?;
        if RESERVED.contains(&text) {
            return Err(Fault::params(format!(
                "the name \"{text}\" is the switch's own; choose another one"
            )));
        }
        Ok(Self(text.to_owned()))
    }
}

impl TryFrom<String> for Name {
    type Error = Fault;

    fn try_from(text: String) -> Result<Self, Fault> {
        text.parse()
    }
}

impl From<Name> for String {
    fn from(name: Name) -> Self {
        name.0
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_letters_digits_and_three_signs() {
        for name in ["a", "vm1", "web-01.prod_x", &"x".repeat(64)] {
            assert_eq!(name.parse::<Name>().map(String::from), Ok(name.to_owned()));
        }
        for name in ["", "a b", "a/b", "ä", "a,b", "internal", "control", ".", "..", &"x".repeat(65)] {
            assert!(name.parse::<Name>().is_err(), "{name}");
        }
    }
}
