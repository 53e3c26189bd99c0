//! Who decides for a switch of module flow.

use serde::{Deserialize, Serialize};

use crate::fault::Fault;
use crate::names;

/// Whom a switch of module flow asks about packets of no flow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum ControllerKind {
    /// The controller process of this very program: the switch is a bridge.
    #[default]
    Embedded,
    /// Who comes over the control interface: ovs-vswitchd, as a rule.
    External,
    /// Nobody.
    None,
}

impl ControllerKind {
    const NAMES: [(&str, Self); 3] =
        [("embedded", Self::Embedded), ("external", Self::External), ("none", Self::None)];

    /// Whether it need not be said.
    pub(crate) fn is_default(&self) -> bool {
        *self == Self::default()
    }

    /// As in the configuration file.
    pub(crate) fn as_str(self) -> &'static str {
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
