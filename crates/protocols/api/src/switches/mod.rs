//! A user's settings of a switch: in the configuration file, in a request, and on the command line as
//! `NAME[,module=bridge|dummy|flow][,fdb-entries=N][,controller=embedded|external|none][,fail-mode=standalone|secure]`.
//!
//! There is always the switch `default`, to which vnics without a switch belong.

mod change;
mod controller;
mod name;

pub use change::SwitchChange;
pub use controller::{ControllerKind, FailMode};
pub use name::SwitchName;

use std::str::FromStr;

use lasthop_module_api::SWITCHES_MAX;
use lasthop_modules::FDB_ENTRIES_MAX;
use lasthop_runtime::fault::{Fault, Kind};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::modules::{FLOW, FdbEntries, ModuleName};
use crate::names;
use crate::options::{of_the_whole, options};

/// Largest sum of all switches' forwarding tables, 64 MiB: that of all switches with the default size.
pub(crate) const FDB_ENTRIES_TOTAL_MAX: usize = SWITCHES_MAX * FDB_ENTRIES_MAX;
/// The module without a forwarding table.
pub const DUMMY: &str = "dummy";

/// A switch as requested.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "switch", rename_all = "kebab-case")]
pub struct SwitchSpec {
    /// Unique name; not default, which is set up at the top of the file.
    #[schemars(extend("examples" = ["storage"]))]
    pub name: SwitchName,
    /// The module, which decides where its packets go.
    #[serde(default)]
    pub module: ModuleName,
    /// Slots of its forwarding table, of which the addresses behind one port take a quarter at most; not for module dummy.
    #[serde(default, alias = "fdb-entries", skip_serializing_if = "Option::is_none")]
    pub fdb_entries: Option<FdbEntries>,
    /// The controller that gets its packets without a flow, with module flow.
    #[serde(default, skip_serializing_if = "ControllerKind::is_default")]
    pub controller: ControllerKind,
    /// Packets without a flow while its controller is away, with module flow; secure with controller = external if left out.
    #[schemars(extend("default" = FailMode::Standalone))]
    #[serde(default, alias = "fail-mode", skip_serializing_if = "Option::is_none")]
    pub fail_mode: Option<FailMode>,
}

impl SwitchSpec {
    /// The keys, as on the command line.
    pub const KEYS: &[&str] = &["module", "fdb-entries", "controller", "fail-mode"];

    /// The default switch. It has no table size if its module has no table, and no controller if its module has none.
    pub fn default_of(
        module: ModuleName,
        fdb_entries: Option<FdbEntries>,
        controller: Option<ControllerKind>,
        fail_mode: Option<FailMode>,
    ) -> Self {
        let controller = controller.filter(|_| module.as_str() == FLOW).unwrap_or_default();
        let spec = Self { name: SwitchName::default(), module, fdb_entries, controller, fail_mode };
        let fdb_entries = fdb_entries.filter(|_| spec.table().is_some());
        Self { fdb_entries, ..spec }
    }

    /// A switch that a client of the datapath socket makes. Only its client knows which ports must be separated, so
    /// nothing passes without it.
    pub fn of_datapath(name: &str) -> Result<Self, Fault> {
        Ok(Self {
            name: name.parse()?,
            module: FLOW.parse()?,
            fdb_entries: None,
            controller: ControllerKind::External,
            fail_mode: None,
        })
    }

    /// Its options, as on the command line.
    pub fn options_text(&self) -> String {
        let module = format!("module={}", self.module.as_str());
        let table = self.table().map_or_else(String::new, |entries| format!(",fdb-entries={entries}"));
        let controller = match self.controller {
            ControllerKind::Embedded => String::new(),
            other => format!(",controller={other}"),
        };
        let fail_mode = match self.fail_mode() {
            mode if mode == self.usual_fail_mode() => String::new(),
            other => format!(",fail-mode={other}"),
        };
        format!("{module}{table}{controller}{fail_mode}")
    }

    /// Whether it forwards as a bridge without a controller. A switch with an external controller may have several
    /// networks, which must stay separate.
    pub fn stands_alone(&self) -> bool {
        self.fail_mode() == FailMode::Standalone
    }

    /// Its fail mode. An external controller may have several networks in the switch, which a bridge would join while
    /// the controller is away: so a bridge replaces it only if the user says so.
    pub fn fail_mode(&self) -> FailMode {
        self.fail_mode.unwrap_or(self.usual_fail_mode())
    }

    fn usual_fail_mode(&self) -> FailMode {
        if self.has_outside_controller() { FailMode::Secure } else { FailMode::Standalone }
    }

    /// Slots of its forwarding table; `None` if its module has no table.
    pub fn table(&self) -> Option<usize> {
        let entries = self.fdb_entries.map_or(FDB_ENTRIES_MAX, |entries| entries.0);
        (self.module.as_str() != DUMMY).then_some(entries)
    }

    /// Whether its controller is external.
    pub fn has_outside_controller(&self) -> bool {
        self.module.as_str() == FLOW && self.controller == ControllerKind::External
    }

    /// Whether its controller is the embedded one.
    pub fn has_embedded_controller(&self) -> bool {
        self.module.as_str() == FLOW && self.controller == ControllerKind::Embedded
    }

    /// Refuses keys that contradict each other.
    pub fn check(&self) -> Result<(), Fault> {
        if self.fdb_entries.is_some() && self.table().is_none() {
            let (name, module) = (&self.name, self.module.as_str());
            return Err(Fault::params(format!(
                "switch \"{name}\": module \"{module}\" has no forwarding table; leave fdb-entries out"
            )));
        }
        let asked = [("controller", self.controller.is_default()), ("fail-mode", self.fail_mode.is_none())];
        match asked.iter().find(|(_, is_default)| !is_default) {
            Some((key, _)) if self.module.as_str() != FLOW => {
                let (name, module) = (&self.name, self.module.as_str());
                Err(Fault::params(format!(
                    "switch \"{name}\": module \"{module}\" has no controller; leave {key} out, or set module to flow"
                )))
            }
            _ => Ok(()),
        }
    }
}

/// Refuses a switch that conflicts with earlier named ones.
pub fn check_beside(switch: &SwitchSpec, earlier: &[SwitchSpec]) -> Result<(), Fault> {
    switch.check()?;
    let is_twice = switch.name.is_default() || earlier.iter().any(|other| other.name == switch.name);
    if is_twice { Err(twice(&switch.name)) } else { Ok(()) }
}

/// Refuses a set of switches, with the default one first, that cannot run together.
pub fn check_all(switches: &[SwitchSpec]) -> Result<(), Fault> {
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

/// Finds the switch with this name; `remedy` is for a name that resembles no switch's.
pub fn find<'a>(switches: &'a [SwitchSpec], name: &str, remedy: &str) -> Result<&'a SwitchSpec, Fault> {
    let none_such = || {
        let hint = names::hint(name, switches.iter().map(|switch| switch.name.as_str()));
        let end = if hint.is_empty() { format!("; {remedy}") } else { hint };
        Fault::new(Kind::NoSuchSwitch, format!("there is no switch \"{name}\"{end}"))
    };
    switches.iter().find(|switch| switch.name.as_str() == name).ok_or_else(none_such)
}

impl FromStr for SwitchSpec {
    type Err = Fault;

    fn from_str(text: &str) -> Result<Self, Fault> {
        let (name, options) = options(text)?;
        let (controller, fail_mode) = Default::default();
        let mut spec = Self {
            name: name.parse()?,
            module: ModuleName::default(),
            fdb_entries: None,
            controller,
            fail_mode,
        };
        for (key, value) in options {
            match key {
                "module" => spec.module = value.parse()?,
                "controller" => spec.controller = value.parse()?,
                "fail-mode" => spec.fail_mode = Some(value.parse()?),
                "fdb-entries" => spec.fdb_entries = Some(value.parse()?),
                _ => return Err(unknown(key)),
            }
        }
        spec.check()?;
        Ok(spec)
    }
}

pub(super) fn unknown(key: &str) -> Fault {
    if let Some(fault) = of_the_whole(key) {
        return fault;
    }
    let hint = names::hint(key, SwitchSpec::KEYS.iter().copied());
    let known = SwitchSpec::KEYS.join(", ");
    Fault::params(format!("a switch has no option \"{key}\"{hint} (there are {known})"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::modules::FdbEntries;

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
    fn networks_of_a_controller_outside_do_not_come_together_without_it() {
        let mode = |text: &str| specs(&[text])[0].fail_mode();
        assert_eq!(mode("a,module=flow"), FailMode::Standalone);
        assert_eq!(mode("a,module=flow,controller=external"), FailMode::Secure);
        assert_eq!(mode("a,module=flow,controller=external,fail-mode=standalone"), FailMode::Standalone);
        assert_eq!(mode("a,module=flow,fail-mode=secure"), FailMode::Secure);
    }

    #[test]
    fn every_switch_may_have_a_table_of_the_default_size() {
        let all: Vec<String> = (0..SWITCHES_MAX).map(|number| format!("s{number}")).collect();
        assert_eq!(check_all(&specs(&all.iter().map(String::as_str).collect::<Vec<_>>())), Ok(()));
    }

    fn parse(text: &str) -> Result<SwitchSpec, String> {
        text.parse().map_err(|fault: Fault| fault.message)
    }

    #[test]
    fn every_option_arrives() {
        let spec = parse("red").expect("a name");
        assert_eq!((spec.name.as_str(), spec.module.as_str(), spec.table()), ("red", "flow", Some(16384)));
        let spec = parse("red,fdb-entries=64,module=bridge").expect("all options");
        assert_eq!((spec.fdb_entries, spec.table()), (Some(FdbEntries(64)), Some(64)));
        let spec = parse("blue,module=dummy").expect("a dummy");
        assert_eq!((spec.module.as_str(), spec.table()), ("dummy", None));
        let copy = serde_json::to_string(&spec).and_then(|json| serde_json::from_str(&json));
        assert_eq!(copy.ok(), Some(spec));
    }

    #[test]
    fn mistakes_are_named_with_a_remedy() {
        for (text, words) in [
            ("a b", "name of a switch"),
            ("a,modul=dummy", "did you mean \"module\""),
            ("a,module=brige", "did you mean \"bridge\""),
            ("a,fdb-entries=1", "64 to 1048576"),
            ("a,fdb-entries=64,fdb-entries=128", "twice"),
            ("a,module", "KEY=VALUE"),
            ("a,module=dummy,fdb-entries=64", "leave fdb-entries out"),
            ("a,module=flow,controller=extern", "did you mean \"external\""),
            ("a,module=bridge,controller=external", "set module to flow"),
            ("a,module=bridge,fail-mode=secure", "leave fail-mode out"),
            ("a,module=flow,fail-mode=secur", "did you mean \"secure\""),
        ] {
            let message = parse(text).expect_err(text);
            assert!(message.contains(words), "{text}: {message}");
        }
    }
}
