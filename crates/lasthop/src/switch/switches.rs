//! The switches of this process by name, and the modules that decide for them.

use std::collections::BTreeMap;
use std::sync::Arc;

use lasthop_modules::{BridgeSettings, FDB_ENTRIES_MAX, Switches, by_name};
use lasthop_verdict::{Module, PortId, SwitchId};

use crate::fault::{Fault, Kind};
use crate::report::SwitchInside;
use crate::switches::{SwitchName, SwitchSpec};

/// Names and the table that the workers use.
pub(super) struct NamedSwitches {
    numbers: BTreeMap<SwitchName, SwitchId>,
    table: Arc<Switches>,
}

impl NamedSwitches {
    /// The default switch alone.
    pub(super) fn new(default: &SwitchSpec) -> Result<Self, Fault> {
        let table = Arc::new(Switches::new(module(default)?));
        Ok(Self { numbers: [(default.name.clone(), SwitchId::DEFAULT)].into(), table })
    }

    /// What the workers are to use.
    pub(super) fn module(&self) -> Arc<dyn Module> {
        Arc::clone(&self.table) as Arc<dyn Module>
    }

    pub(super) fn add(&mut self, spec: &SwitchSpec) -> Result<(), Fault> {
        let name = &spec.name;
        if self.numbers.contains_key(name) {
            return Err(Fault::new(Kind::NameTaken, format!("there is a switch \"{name}\" already")));
        }
        let full = || Fault::new(Kind::Limit, "there is no room for one more switch; delete one first");
        let number = self.table.vacancy().ok_or_else(full)?;
        self.table = Arc::new(self.table.with(number, module(spec)?));
        self.numbers.insert(name.clone(), number);
        Ok(())
    }

    pub(super) fn remove(&mut self, name: &str) -> Result<(), Fault> {
        let number = self.find(name)?;
        if number == SwitchId::DEFAULT || self.table.ports(number).next().is_some() {
            return Err(Fault::refused(format!("switch \"{name}\" is in use; delete its vnics first")));
        }
        self.numbers.retain(|_, other| *other != number);
        self.table = Arc::new(self.table.without(number));
        Ok(())
    }

    pub(super) fn find(&self, name: &str) -> Result<SwitchId, Fault> {
        let found = self.numbers.iter().find(|(known, _)| known.as_str() == name);
        let gone = || Fault::new(Kind::NoSuchSwitch, format!("there is no switch \"{name}\""));
        found.map(|(_, number)| *number).ok_or_else(gone)
    }

    /// What each switch knows; `addresses` are the ports that the tables' lines name.
    pub(super) fn describe(&self, addresses: &[PortId]) -> Vec<SwitchInside> {
        let inside = |(name, number): (&SwitchName, &SwitchId)| SwitchInside {
            name: name.clone(),
            addresses: self.count(*number, addresses),
            counters: self.counters(*number),
        };
        self.numbers.iter().map(inside).collect()
    }

    fn count(&self, switch: SwitchId, addresses: &[PortId]) -> usize {
        let ports: std::collections::BTreeSet<PortId> = self.table.ports(switch).collect();
        addresses.iter().filter(|port| ports.contains(port)).count()
    }

    fn counters(&self, switch: SwitchId) -> BTreeMap<String, u64> {
        let counters = self.table.module(switch).map(Module::counters).unwrap_or_default();
        counters.into_iter().map(|(name, count)| (name.to_owned(), count)).collect()
    }
}

fn module(spec: &SwitchSpec) -> Result<Arc<dyn Module>, Fault> {
    let name = spec.module.as_str();
    let unknown = || Fault::params(format!("there is no module \"{name}\""));
    let bridge = BridgeSettings::with_entries(spec.table().unwrap_or(FDB_ENTRIES_MAX));
    by_name(name, &bridge).map(Arc::from).ok_or_else(unknown)
}
