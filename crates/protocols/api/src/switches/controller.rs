//! The controller of a switch of module flow, and the switch's behaviour without one.

use lasthop_runtime::fault::Fault;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::names;

/// The controller that gets the misses of a switch of module flow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub enum ControllerKind {
    /// The built-in controller: the switch is a bridge.
    #[default]
    Embedded,
    /// A client of the datapath socket, usually ovs-vswitchd.
    External,
    /// No controller.
    None,
}

impl ControllerKind {
    const NAMES: [(&str, Self); 3] =
        [("embedded", Self::Embedded), ("external", Self::External), ("none", Self::None)];

    /// Whether it is the default, which may be omitted.
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }

    /// Its word in the configuration file.
    pub fn as_str(self) -> &'static str {
        Self::NAMES.iter().find(|(_, kind)| *kind == self).map_or("", |(name, _)| name)
    }
}

impl std::str::FromStr for ControllerKind {
    type Err = Fault;

    fn from_str(text: &str) -> Result<Self, Fault> {
        let found = Self::NAMES.iter().find(|(name, _)| *name == text).map(|(_, kind)| *kind);
        let hint = || names::hint(text, Self::NAMES.iter().map(|(name, _)| *name));
        found.ok_or_else(|| {
            Fault::params(format!(
                "controller={text} is not a controller{}; use embedded, external or none",
                hint()
            ))
        })
    }
}

impl std::fmt::Display for ControllerKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

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
