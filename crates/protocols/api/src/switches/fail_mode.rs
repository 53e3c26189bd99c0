//! The behaviour of a switch of module flow without a controller.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::names;
use lasthop_runtime::fault::Fault;

/// The treatment of misses while there is no controller, and of packets from ports to which it gave no number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub enum FailMode {
    /// Forward them as a bridge.
    Standalone,
    /// Drop them.
    Secure,
}

impl FailMode {
    const NAMES: [(&str, Self); 2] = [("standalone", Self::Standalone), ("secure", Self::Secure)];

    /// Its word in the configuration file.
    pub fn as_str(self) -> &'static str {
        Self::NAMES.iter().find(|(_, mode)| *mode == self).map_or("", |(name, _)| name)
    }
}

impl std::str::FromStr for FailMode {
    type Err = Fault;

    fn from_str(text: &str) -> Result<Self, Fault> {
        let found = Self::NAMES.iter().find(|(name, _)| *name == text).map(|(_, mode)| *mode);
        let hint = || names::hint(text, Self::NAMES.iter().map(|(name, _)| *name));
        found.ok_or_else(|| {
            Fault::params(format!("fail-mode={text} is not a mode{}; use standalone or secure", hint()))
        })
    }
}

impl std::fmt::Display for FailMode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}
