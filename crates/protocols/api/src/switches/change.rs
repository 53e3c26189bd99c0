//! Changes of a running switch's keys.

use serde::{Deserialize, Serialize};

use crate::modules::{FLOW, FdbEntries, ModuleName};
use crate::options::options;
use lasthop_runtime::fault::Fault;

use super::{ControllerKind, FailMode, SwitchName, SwitchSpec};
use crate::switches::unknown;

/// The name of the switch, and the keys to change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SwitchChange {
    pub name: SwitchName,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    module: Option<ModuleName>,
    #[serde(default, alias = "fdb-entries", skip_serializing_if = "Option::is_none")]
    fdb_entries: Option<FdbEntries>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    controller: Option<ControllerKind>,
    #[serde(default, alias = "fail-mode", skip_serializing_if = "Option::is_none")]
    fail_mode: Option<FailMode>,
}

impl SwitchChange {
    /// Parses the text of the command line: `KEY=VALUE[,KEY=VALUE]...`.
    pub fn parse(name: SwitchName, keys: &str) -> Result<Self, Fault> {
        let text = format!("{name},{keys}");
        let mut change = Self { name, module: None, fdb_entries: None, controller: None, fail_mode: None };
        for (key, value) in options(&text)?.1 {
            match key {
                "module" => change.module = Some(value.parse()?),
                "fdb-entries" => change.fdb_entries = Some(value.parse()?),
                "controller" => change.controller = Some(value.parse()?),
                "fail-mode" => change.fail_mode = Some(value.parse()?),
                _ => return Err(unknown(key)),
            }
        }
        Ok(change)
    }

    /// The change to exactly `wanted`.
    pub fn to(wanted: &SwitchSpec) -> Self {
        let (fail_mode, fdb_entries) = (wanted.fail_mode(), wanted.table().map(FdbEntries));
        let SwitchSpec { name, module, controller, .. } = wanted.clone();
        Self {
            name,
            fdb_entries,
            controller: (module.as_str() == FLOW).then_some(controller),
            fail_mode: (module.as_str() == FLOW).then_some(fail_mode),
            module: Some(module),
        }
    }

    /// The switch with the changes. Keys that its module does not use are not kept for another module.
    ///
    /// # Errors
    /// One sentence with the remedy, for keys that contradict each other, or that cannot change.
    pub fn of(&self, old: &SwitchSpec) -> Result<SwitchSpec, Fault> {
        let module = self.module.clone().unwrap_or_else(|| old.module.clone());
        let is_flow = module.as_str() == FLOW;
        let same = SwitchSpec { module: module.clone(), ..old.clone() };
        let new = SwitchSpec {
            fdb_entries: self.fdb_entries.or(old.fdb_entries.filter(|_| same.table().is_some())),
            controller: self.controller.unwrap_or(if is_flow {
                old.controller
            } else {
                ControllerKind::default()
            }),
            fail_mode: self.fail_mode.or(old.fail_mode.filter(|_| is_flow)),
            ..same
        };
        new.check()?;
        if is_flow && old.module.as_str() == FLOW && new.table() != old.table() {
            return Err(Fault::params(format!(
                "switch \"{}\": fdb-entries of module flow cannot change; set module=bridge first, then both",
                old.name
            )));
        }
        Ok(new)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn changed(old: &str, keys: &str) -> Result<String, String> {
        let old: SwitchSpec = old.parse().expect("a switch");
        let change = SwitchChange::parse(old.name.clone(), keys).map_err(|fault| fault.message)?;
        let json = serde_json::to_string(&change).expect("JSON");
        assert_eq!(serde_json::from_str::<SwitchChange>(&json).ok(), Some(change.clone()));
        change.of(&old).map(|spec| spec.options_text()).map_err(|fault| fault.message)
    }

    #[test]
    fn what_is_not_named_stays() {
        let stays = changed("a,module=flow,controller=none", "fail-mode=secure");
        assert_eq!(stays.as_deref(), Ok("module=flow,fdb-entries=16384,controller=none,fail-mode=secure"));
        assert_eq!(changed("a,fdb-entries=64", "module=flow").as_deref(), Ok("module=flow,fdb-entries=64"));
        assert_eq!(changed("a,fdb-entries=64", "module=dummy").as_deref(), Ok("module=dummy"));
        assert_eq!(
            changed("a,module=flow,controller=external", "module=bridge").as_deref(),
            Ok("module=bridge,fdb-entries=16384")
        );
    }

    #[test]
    fn what_cannot_be_is_refused_with_a_remedy() {
        for (old, keys, words) in [
            ("a,module=flow", "fdb-entries=64", "set module=bridge first"),
            ("a,module=bridge", "controller=external", "set module to flow"),
            ("a", "modul=flow", "did you mean \"module\""),
        ] {
            let message = changed(old, keys).expect_err(keys);
            assert!(message.contains(words), "{keys}: {message}");
        }
    }
}
