//! The controller of a switch of module flow.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::names;
use lasthop_runtime::fault::Fault;

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
