//! The switches of this process by name, and their modules.

use std::collections::BTreeMap;
use std::sync::Arc;

use lasthop_flowtable::{Executions, FlowModule};
use lasthop_module_api::{Module, PortId, PortSettings, SwitchId};
use lasthop_modules::{Bridge, BridgeSettings, Dummy, FDB_ENTRIES_MAX, Switches, Unattached, by_name};

use lasthop_api::modules::FLOW;
use lasthop_api::report::SwitchInside;
use lasthop_api::switches::{ControllerKind, SwitchName, SwitchSpec};
use lasthop_runtime::fault::{Fault, Kind};

/// The switches' names, and the table that the workers use.
pub(super) struct NamedSwitches {
    numbers: BTreeMap<SwitchName, SwitchId>,
    table: Arc<Switches>,
    /// Flow tables of switches that have one, by number.
    flow_tables: BTreeMap<SwitchId, Arc<FlowModule>>,
    /// Frames that the port `internal` sends.
    executions: Arc<Executions>,
    workers: usize,
    /// The controllers of flow switches.
    controllers: BTreeMap<SwitchName, ControllerKind>,
    /// The switch of ports that belong to no switch, once there is such a port.
    nowhere: Option<SwitchId>,
    /// CLOCK_MONOTONIC, in nanoseconds, at the start of the workers' clock.
    clock_origin_ns: u64,
}

impl NamedSwitches {
    /// Starts with the default switch only, for this number of workers.
    pub(super) fn new(default: &SwitchSpec, workers: usize) -> Result<Self, Fault> {
        let executions = Arc::<Executions>::default();
        let mut this = Self {
            numbers: [(default.name.clone(), SwitchId::DEFAULT)].into(),
            table: Arc::new(Switches::new(Arc::new(Dummy::default()))),
            flow_tables: BTreeMap::new(),
            executions: Arc::clone(&executions),
            workers,
            controllers: BTreeMap::new(),
            nowhere: None,
            clock_origin_ns: 0,
        };
        let module = this.make(default, SwitchId::DEFAULT)?;
        this.table = Arc::new(Switches::new(module).with_internal(executions));
        Ok(this)
    }

    /// Sets when the workers' clock began.
    pub(super) fn set_clock_origin(&mut self, origin_ns: u64) {
        self.clock_origin_ns = origin_ns;
        self.flow_tables.values().for_each(|module| module.table().set_clock_origin(origin_ns));
    }

    /// The list in which packets of the port `internal` are announced.
    pub(super) fn executions(&self) -> Arc<Executions> {
        Arc::clone(&self.executions)
    }

    /// The flow table of a switch, if it has one.
    pub(super) fn flow_table(&self, switch: SwitchId) -> Option<&Arc<FlowModule>> {
        self.flow_tables.get(&switch)
    }

    /// Makes a switch's module.
    fn make(&mut self, spec: &SwitchSpec, number: SwitchId) -> Result<Arc<dyn Module>, Fault> {
        let name = spec.module.as_str();
        let bridge = BridgeSettings::with_entries(spec.table().unwrap_or(FDB_ENTRIES_MAX));
        if name != FLOW {
            let unknown = || Fault::params(format!("there is no module \"{name}\""));
            return by_name(name, &bridge).map(Arc::from).ok_or_else(unknown);
        }
        self.controllers.insert(spec.name.clone(), spec.controller);
        let module = FlowModule::in_waiting(self.workers, Box::new(Bridge::new(&bridge)));
        let module = Arc::new(module);
        module.set_stands_alone(spec.stands_alone());
        module.table().set_clock_origin(self.clock_origin_ns);
        self.flow_tables.insert(number, Arc::clone(&module));
        Ok(module)
    }

    /// The module for the workers.
    pub(super) fn module(&self) -> Arc<dyn Module> {
        Arc::clone(&self.table) as Arc<dyn Module>
    }

    pub(super) fn add(&mut self, spec: &SwitchSpec) -> Result<(), Fault> {
        let name = &spec.name;
        if self.numbers.contains_key(name) {
            return Err(Fault::new(Kind::NameTaken, format!("there is a switch \"{name}\" already")));
        }
        let number = self.vacancy()?;
        let module = self.make(spec, number)?;
        self.table = Arc::new(self.table.with(number, module));
        self.numbers.insert(name.clone(), number);
        Ok(())
    }

    fn vacancy(&self) -> Result<SwitchId, Fault> {
        let full = || Fault::new(Kind::Limit, "there is no room for one more switch; delete one first");
        self.table.vacancy().ok_or_else(full)
    }

    /// Whether an external controller may use a device of this name, which need not exist yet.
    pub(super) fn is_for_outside(&self, name: &str) -> bool {
        self.find(name).is_err() || self.controller_of(name) == Some(ControllerKind::External)
    }

    /// Whether the controller process is the controller of a switch.
    pub(super) fn has_own_controller(&self, name: &str) -> bool {
        self.find(name).is_ok() && self.controller_of(name) == Some(ControllerKind::Embedded)
    }

    fn controller_of(&self, name: &str) -> Option<ControllerKind> {
        self.controllers.iter().find(|(known, _)| known.as_str() == name).map(|(_, kind)| *kind)
    }

    /// Whether `spec` gives a switch another controller.
    pub(super) fn has_other_controller(&self, spec: &SwitchSpec) -> bool {
        self.controllers.get(&spec.name).is_some_and(|kind| *kind != spec.controller)
    }

    /// A switch without a name that forwards nothing, and whether this call made it.
    pub(super) fn nowhere(&mut self) -> Result<(SwitchId, bool), Fault> {
        if let Some(number) = self.nowhere {
            return Ok((number, false));
        }
        let number = self.vacancy()?;
        self.table = Arc::new(self.table.with(number, Arc::new(Unattached)));
        self.nowhere = Some(number);
        Ok((number, true))
    }

    /// Changes a switch that has these ports; returns whether workers have to be told.
    pub(super) fn replace(
        &mut self,
        spec: &SwitchSpec,
        ports: &[(PortId, PortSettings)],
    ) -> Result<bool, Fault> {
        let number = self.find(spec.name.as_str())?;
        let old = self.flow_tables.get(&number).map(Arc::clone);
        if let Some(table) = old.as_ref().filter(|_| spec.module.as_str() == FLOW) {
            table.set_stands_alone(spec.stands_alone());
            self.controllers.insert(spec.name.clone(), spec.controller);
            return Ok(false);
        }
        let module = self.make(spec, number)?;
        let told = ports.iter().try_for_each(|(port, settings)| module.port_added(*port, settings));
        if let Err(why) = told {
            self.flow_tables.remove(&number);
            self.flow_tables.extend(old.map(|table| (number, table)));
            return Err(Fault::refused(why));
        }
        if spec.module.as_str() != FLOW {
            self.flow_tables.remove(&number);
            self.controllers.remove(&spec.name);
        }
        self.table = Arc::new(self.table.with(number, module));
        Ok(true)
    }

    pub(super) fn remove(&mut self, name: &str) -> Result<(), Fault> {
        let number = self.find(name)?;
        if number == SwitchId::DEFAULT || self.table.ports(number).next().is_some() {
            return Err(Fault::refused(format!("switch \"{name}\" is in use; delete its ports first")));
        }
        self.numbers.retain(|_, other| *other != number);
        self.controllers.retain(|known, _| known.as_str() != name);
        self.flow_tables.remove(&number);
        self.table = Arc::new(self.table.without(number));
        Ok(())
    }

    pub(super) fn find(&self, name: &str) -> Result<SwitchId, Fault> {
        let found = self.numbers.iter().find(|(known, _)| known.as_str() == name);
        let gone = || Fault::new(Kind::NoSuchSwitch, format!("there is no switch \"{name}\""));
        found.map(|(_, number)| *number).ok_or_else(gone)
    }

    /// The name of a switch.
    pub(super) fn name_of(&self, switch: SwitchId) -> Option<&SwitchName> {
        self.numbers.iter().find(|(_, number)| **number == switch).map(|(name, _)| name)
    }

    /// The name of a switch's module.
    pub(super) fn module_name(&self, switch: SwitchId) -> &'static str {
        self.table.module(switch).map_or("nowhere", Module::name)
    }

    /// The state of each switch; `addresses` are the ports that the tables' lines name.
    pub(super) fn describe(&self, addresses: &[PortId]) -> Vec<SwitchInside> {
        let inside = |(name, number): (&SwitchName, &SwitchId)| SwitchInside {
            name: name.clone(),
            addresses: self.count(*number, addresses),
            counters: self.counters(*number),
            callers: Vec::new(),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_switch_is_for_outside_as_long_as_its_controller_is() {
        let spec = |text: &str| text.parse::<SwitchSpec>().expect("a switch");
        let mut switches = NamedSwitches::new(&spec("default"), 1).expect("a switch");
        assert!(switches.is_for_outside("a"), "there is none yet");
        switches.add(&spec("a,module=flow")).expect("room");
        for (text, is_outside) in [
            ("a,module=flow", false),
            ("a,module=flow,controller=external", true),
            ("a,module=bridge", false),
            ("a,module=flow,controller=external", true),
            ("a,module=flow,controller=none", false),
        ] {
            switches.replace(&spec(text), &[]).expect("it changes");
            assert_eq!(switches.is_for_outside("a"), is_outside, "{text}");
        }
    }

    #[test]
    fn a_switch_has_its_own_controller_as_long_as_it_is_of_flows_and_embedded() {
        let spec = |text: &str| text.parse::<SwitchSpec>().expect("a switch");
        let mut switches = NamedSwitches::new(&spec("default"), 1).expect("a switch");
        assert!(!switches.has_own_controller("ovs-system"), "there is none yet");
        switches.add(&SwitchSpec::of_datapath("ovs-system").expect("a name")).expect("room");
        assert!(!switches.has_own_controller("ovs-system"), "it is that of who made the datapath");
        switches.add(&spec("a,module=flow")).expect("room");
        for (text, has_own) in [
            ("a,module=flow", true),
            ("a,module=flow,controller=external", false),
            ("a,module=flow", true),
            ("a,module=bridge", false),
            ("a,module=flow,controller=none", false),
        ] {
            switches.replace(&spec(text), &[]).expect("it changes");
            assert_eq!(switches.has_own_controller("a"), has_own, "{text}");
        }
    }
}
