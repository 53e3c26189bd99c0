//! Groups of ports for rules about connections: `groups=web+db` of a port, `group` and `remote-group` of a rule.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::names;
use lasthop_runtime::fault::Fault;

/// Largest number of groups of one port, or in one key of a rule.
const GROUPS_MAX: usize = 16;

/// Names of groups, in alphabetical order without duplicates.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "OneOrMany", into = "Vec<String>")]
#[schemars(inline, extend("default" = []))]
pub struct GroupNames(Vec<String>);

#[derive(Deserialize, JsonSchema)]
#[schemars(inline)]
#[serde(untagged, expecting = "the name of a group or a list of names was expected")]
enum OneOrMany {
    One(#[schemars(pattern(names::NAME_PATTERN))] String),
    Many(Vec<String>),
}

impl GroupNames {
    /// Sorts and checks names.
    pub fn new(mut names: Vec<String>) -> Result<Self, Fault> {
        names.iter().try_for_each(|name| names::check(name, "group"))?;
        names.sort_unstable();
        names.dedup();
        if names.len() > GROUPS_MAX {
            let count = names.len();
            return Err(Fault::params(format!("there are {count} groups in one key; at most {GROUPS_MAX}")));
        }
        Ok(Self(names))
    }

    /// Parses text such as `web+db`.
    pub fn parse(text: &str) -> Result<Self, Fault> {
        Self::new(text.split('+').map(str::to_owned).collect())
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn names(&self) -> &[String] {
        &self.0
    }

    /// Whether the list has one of these groups.
    pub fn have_any(&self, groups: &[String]) -> bool {
        self.0.iter().any(|name| groups.contains(name))
    }
}

impl TryFrom<OneOrMany> for GroupNames {
    type Error = Fault;

    fn try_from(given: OneOrMany) -> Result<Self, Fault> {
        match given {
            OneOrMany::One(name) => Self::new(vec![name]),
            OneOrMany::Many(names) => Self::new(names),
        }
    }
}

impl From<GroupNames> for Vec<String> {
    fn from(groups: GroupNames) -> Self {
        groups.0
    }
}

impl fmt::Display for GroupNames {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0.join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_names_in_order() {
        let groups = GroupNames::parse("web+db+web").expect("names");
        assert_eq!(groups.to_string(), "db,web");
        assert!(groups.have_any(&["web".to_owned()]) && !groups.have_any(&["lb".to_owned()]));
        let read = |json: &str| serde_json::from_str::<GroupNames>(json).map_err(|error| error.to_string());
        assert_eq!(read(r#"["web","db"]"#).as_ref(), Ok(&groups));
        assert_eq!(read(r#""db""#), GroupNames::parse("db").map_err(|fault| fault.message));
        assert_eq!(serde_json::to_string(&groups).expect("JSON"), r#"["db","web"]"#);
        assert!(GroupNames::parse("a b").expect_err("a space").message.contains("name of a group"));
        let many = (0..17).map(|number| format!("g{number}")).collect();
        assert!(GroupNames::new(many).expect_err("many").message.contains("at most 16"));
    }
}
