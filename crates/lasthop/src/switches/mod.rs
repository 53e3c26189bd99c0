//! What a user says of a switch: in the configuration file, on the command line, in a request.
//!
//! There is always the switch `default`, which vnics belong to that name no other.

mod controller;
mod name;
mod parse;

pub(crate) use controller::ControllerKind;
pub(crate) use name::SwitchName;

use lasthop_modules::FDB_ENTRIES_MAX;
use lasthop_verdict::SWITCHES_MAX;
use serde::{Deserialize, Serialize};

use crate::config::{FLOW, FdbEntries, ModuleName};
use crate::fault::{Fault, Kind};
use crate::names;
use crate::vnic::VnicSpec;

/// Slots of all switches' forwarding tables together, 64 MiB: as many as all switches have by default.
const FDB_ENTRIES_TOTAL_MAX: usize = SWITCHES_MAX * FDB_ENTRIES_MAX;
/// The module without a forwarding table.
const DUMMY: &str = "dummy";

/// One switch as asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SwitchSpec {
    pub(crate) name: SwitchName,
    #[serde(default)]
    pub(crate) module: ModuleName,
    /// Slots of its forwarding table; the bridge's default if not given.
    #[serde(default, alias = "fdb-entries", skip_serializing_if = "Option::is_none")]
    pub(crate) fdb_entries: Option<FdbEntries>,
    /// Whom it asks, if its module is flow.
    #[serde(default, skip_serializing_if = "ControllerKind::is_default")]
    pub(crate) controller: ControllerKind,
}

impl SwitchSpec {
    /// The keys, as on the command line.
    pub(crate) const KEYS: &[&str] = &["module", "fdb-entries", "controller"];

    /// The switch that is always there. A table is not meant for a module that has none.
    pub(crate) fn default_of(
        module: ModuleName,
        fdb_entries: Option<FdbEntries>,
        controller: Option<ControllerKind>,
    ) -> Self {
        let controller = controller.unwrap_or_default();
        let spec = Self { name: SwitchName::default(), module, fdb_entries, controller };
        let fdb_entries = fdb_entries.filter(|_| spec.table().is_some());
        Self { fdb_entries, ..spec }
    }

    /// One that a client of the control interface makes.
    pub(crate) fn of_datapath(name: &str) -> Result<Self, Fault> {
        Ok(Self {
            name: name.parse()?,
            module: FLOW.parse()?,
            fdb_entries: None,
            controller: ControllerKind::External,
        })
    }

    /// Its options as on the command line.
    pub(crate) fn options_text(&self) -> String {
        let module = format!("module={}", self.module.as_str());
        let table = self.table().map_or_else(String::new, |entries| format!(",fdb-entries={entries}"));
        let controller = match self.controller {
            ControllerKind::Embedded => String::new(),
            other => format!(",controller={other}"),
        };
        format!("{module}{table}{controller}")
    }

    /// Whether it forwards as a bridge while nobody is to be asked about packets of no flow.
    pub(crate) fn stands_alone(&self) -> bool {
        true
    }

    /// Slots of its forwarding table; none if its module has no table.
    pub(crate) fn table(&self) -> Option<usize> {
        let entries = self.fdb_entries.map_or(FDB_ENTRIES_MAX, |entries| entries.0);
        (self.module.as_str() != DUMMY).then_some(entries)
    }

    /// Whether somebody decides about its flows whom the supervisor does not start.
    pub(crate) fn has_outside_controller(&self) -> bool {
        false
    }

    /// Refuses keys that do not go together.
    pub(crate) fn check(&self) -> Result<(), Fault> {
        if self.fdb_entries.is_some() && self.table().is_none() {
            let (name, module) = (&self.name, self.module.as_str());
            return Err(Fault::params(format!(
                "switch \"{name}\": module \"{module}\" has no forwarding table; leave fdb-entries out"
            )));
        }
        if self.module.as_str() != FLOW && !self.controller.is_default() {
            let (name, module) = (&self.name, self.module.as_str());
            return Err(Fault::params(format!(
                "switch \"{name}\": module \"{module}\" asks nobody; leave controller out, or set module to flow"
            )));
        }
        Ok(())
    }
}

/// Refuses a switch that cannot be beside the named ones that were asked for before it.
pub(crate) fn check_beside(switch: &SwitchSpec, earlier: &[SwitchSpec]) -> Result<(), Fault> {
    switch.check()?;
    let is_twice = switch.name.is_default() || earlier.iter().any(|other| other.name == switch.name);
    if is_twice { Err(twice(&switch.name)) } else { Ok(()) }
}

/// Refuses a set of switches, the default one first, that cannot run together.
pub(crate) fn check_all(switches: &[SwitchSpec]) -> Result<(), Fault> {
    for (at, switch) in switches.iter().enumerate().skip(1) {
        check_beside(switch, &switches[1..at])?;
    }
    if switches.len() > SWITCHES_MAX {
        let why = format!("there are {SWITCHES_MAX} switches, and that is the limit; delete one first");
        return Err(Fault::new(Kind::Limit, why));
    }
    let total: usize = switches.iter().filter_map(SwitchSpec::table).sum();
    if total > FDB_ENTRIES_TOTAL_MAX {
        let why = format!(
            "the forwarding tables of all switches would have {total} entries, and {FDB_ENTRIES_TOTAL_MAX} \
             is the limit; give a switch fewer fdb-entries"
        );
        return Err(Fault::new(Kind::Limit, why));
    }
    Ok(())
}

fn twice(name: &SwitchName) -> Fault {
    if *name == SwitchName::default() {
        return Fault::params(format!(
            "the switch \"{name}\" is there without being asked for; set its module and fdb-entries at the top of \
             the configuration file, or by --module and --fdb-entries"
        ));
    }
    Fault::params(format!("there is a switch \"{name}\" already; give one another name"))
}

/// Refuses vnics of switches that there are not.
pub(crate) fn check_members<'a>(
    switches: &[SwitchSpec],
    vnics: impl IntoIterator<Item = &'a VnicSpec>,
) -> Result<(), Fault> {
    vnics.into_iter().try_for_each(|vnic| {
        let remedy = format!("make it with --switch {0} or a [[switch]] in the file", vnic.switch);
        let found = find(switches, vnic.switch.as_str(), &remedy);
        found
            .map(drop)
            .map_err(|fault| Fault { message: format!("vnic \"{}\": {fault}", vnic.name), ..fault })
    })
}

/// The switch with this name; `remedy` is for a name that is not even close to one.
pub(crate) fn find<'a>(
    switches: &'a [SwitchSpec],
    name: &str,
    remedy: &str,
) -> Result<&'a SwitchSpec, Fault> {
    let none_such = || {
        let hint = names::hint(name, switches.iter().map(|switch| switch.name.as_str()));
        let end = if hint.is_empty() { format!("; {remedy}") } else { hint };
        Fault::new(Kind::NoSuchSwitch, format!("there is no switch \"{name}\"{end}"))
    };
    switches.iter().find(|switch| switch.name.as_str() == name).ok_or_else(none_such)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn specs(texts: &[&str]) -> Vec<SwitchSpec> {
        texts.iter().map(|text| text.parse().expect("a switch")).collect()
    }

    fn refusal(texts: &[&str]) -> String {
        check_all(&specs(texts)).expect_err("refused").message
    }

    #[test]
    fn switches_that_cannot_run_together_are_refused_with_the_remedy() {
        assert_eq!(check_all(&specs(&["default", "a", "b,module=dummy"])), Ok(()));
        assert!(refusal(&["default", "a", "b", "a"]).contains("a switch \"a\" already"));
        assert!(refusal(&["default", "default,module=dummy"]).contains("--module"));
        let many: Vec<String> = (0..=SWITCHES_MAX).map(|number| format!("s{number},module=dummy")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        assert!(refusal(&many).contains("256 switches"));
        assert_eq!(check_all(&specs(&many[1..])), Ok(()));
        let large = ["default", "b", "c", "d", "e"].map(|name| format!("{name},fdb-entries=1048576"));
        assert!(refusal(&large.each_ref().map(String::as_str)).contains("fewer fdb-entries"));
    }

    #[test]
    fn every_switch_may_have_a_table_of_the_default_size() {
        let all: Vec<String> = (0..SWITCHES_MAX).map(|number| format!("s{number}")).collect();
        assert_eq!(check_all(&specs(&all.iter().map(String::as_str).collect::<Vec<_>>())), Ok(()));
    }

    #[test]
    fn a_vnic_of_no_switch_is_refused_with_a_close_name() {
        let check = |switches: &[&str], vnic: &str| {
            check_members(&specs(switches), [&vnic.parse().expect("a vnic")]).map_err(|fault| fault.message)
        };
        assert_eq!(check(&["default"], "vm1"), Ok(()));
        assert_eq!(check(&["default", "red"], "vm1,switch=red"), Ok(()));
        let why = check(&["default", "red"], "vm1,switch=ret").expect_err("no such switch");
        assert_eq!(why, "vnic \"vm1\": there is no switch \"ret\"; did you mean \"red\"?");
        let why = check(&["default"], "vm1,switch=red").expect_err("no such switch");
        assert!(why.ends_with("make it with --switch red or a [[switch]] in the file"), "{why}");
    }
}
