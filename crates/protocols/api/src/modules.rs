//! The modules that a switch can have, by name, and the size of their forwarding table.

use lasthop_modules::{FDB_ENTRIES_LIMIT, FDB_ENTRIES_MAX, FDB_ENTRIES_MIN};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::names;
use lasthop_runtime::fault::Fault;

/// Slots of the bridge's forwarding table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "i64")]
#[schemars(inline, extend("minimum" = FDB_ENTRIES_MIN, "maximum" = FDB_ENTRIES_LIMIT, "default" = FDB_ENTRIES_MAX))]
pub struct FdbEntries(pub usize);

impl TryFrom<i64> for FdbEntries {
    type Error = Fault;

    fn try_from(entries: i64) -> Result<Self, Fault> {
        let range = FDB_ENTRIES_MIN..=FDB_ENTRIES_LIMIT;
        let fitting = usize::try_from(entries).ok().filter(|entries| range.contains(entries));
        fitting.map(Self).ok_or_else(|| {
            Fault::params(format!(
                "fdb-entries={entries} is out of range; a forwarding table has {FDB_ENTRIES_MIN} to {FDB_ENTRIES_LIMIT}"
            ))
        })
    }
}

impl std::str::FromStr for FdbEntries {
    type Err = Fault;

    fn from_str(text: &str) -> Result<Self, Fault> {
        let number = text.parse::<i64>();
        number.map_err(|_| Fault::params(format!("fdb-entries={text} is not a whole number")))?.try_into()
    }
}

/// The module whose decisions are the controller's.
pub const FLOW: &str = "flow";
/// All modules.
const MODULES: [&str; 3] = ["bridge", "dummy", FLOW];

/// The name of an existing module.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String")]
#[schemars(inline, extend("enum" = MODULES, "default" = FLOW))]
pub struct ModuleName(String);

impl ModuleName {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Default for ModuleName {
    fn default() -> Self {
        Self(FLOW.to_owned())
    }
}

impl TryFrom<String> for ModuleName {
    type Error = Fault;

    fn try_from(name: String) -> Result<Self, Fault> {
        name.parse()
    }
}

impl std::str::FromStr for ModuleName {
    type Err = Fault;

    fn from_str(name: &str) -> Result<Self, Fault> {
        if MODULES.contains(&name) {
            return Ok(Self(name.to_owned()));
        }
        let hint = names::hint(name, MODULES.iter().copied());
        let known = MODULES.join(", ");
        Err(Fault::params(format!("there is no module \"{name}\"{hint} (there are {known})")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_simple_module_has_a_name() {
        assert!(lasthop_modules::NAMES.iter().all(|name| MODULES.contains(name) && *name != FLOW));
    }
}
