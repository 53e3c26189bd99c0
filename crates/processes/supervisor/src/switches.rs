//! The switches: made, removed and listed. The supervisor's state of them outlives the switch process.

use log::info;
use serde_json::Value;

use lasthop_api::modules::FLOW;
use lasthop_api::orders::Order;
use lasthop_api::report::{SwitchInside, SwitchList, SwitchReport};
use lasthop_api::switches::{self, SwitchChange, SwitchName, SwitchSpec};
use lasthop_children::ChildRole;
use lasthop_fd_store::{RecordKey, RecordStore};
use lasthop_listeners::Caller;
use lasthop_runtime::fault::{Fault, Kind};

use super::port_table::PortTable;
use super::question::{OrderPurpose, switch_process_down, to_json};
use super::reports::Reports;
use super::switch_table::SwitchTable;
use super::{Outputs, Supervisor};

/// For a name that resembles no switch's.
pub(super) const SEE_LIST: &str = "see the list: lasthop switch list";
/// Largest number of vnics that a refusal names.
const NAMED_MAX: usize = 3;

impl SwitchTable {
    /// Adds a switch. The reply comes when the switch process has it.
    pub(super) fn add(&mut self, spec: SwitchSpec, caller: &Caller, out: &mut Outputs) -> Result<(), Fault> {
        let name = spec.name.clone();
        if self.all.iter().any(|other| other.name == name) {
            let why = format!("there is a switch \"{name}\" already; choose another name");
            return Err(Fault::new(Kind::NameTaken, why));
        }
        if !out.switch_process.process.is_up() {
            return Err(switch_process_down());
        }
        self.all.push(spec.clone());
        out.store.is_late(RecordKey::Head);
        if let Err(fault) = switches::check_all(&self.all) {
            self.all.pop();
            return Err(fault);
        }
        let purpose = OrderPurpose::SwitchAdded { name, is_new: true };
        out.switch_process.order(Order::AddSwitch(spec), purpose, Some(caller.clone()));
        Ok(())
    }

    /// Handles the switch process's reply about a switch. A refused new one is removed.
    pub(super) fn added(
        &mut self,
        name: &SwitchName,
        is_new: bool,
        result: Result<(), Fault>,
        store: &mut RecordStore,
    ) -> Result<SwitchSpec, Fault> {
        if result.is_err() && is_new {
            self.forget(name, store);
        }
        result?;
        let spec = switches::find(&self.all, name.as_str(), SEE_LIST)?;
        if is_new {
            info!("switch {name}: module {}", spec.module.as_str());
        }
        Ok(spec.clone())
    }

    /// A switch with a user's changes, and whether there are any.
    fn changed(&self, change: &SwitchChange) -> Result<(SwitchSpec, bool), Fault> {
        let old = switches::find(&self.all, change.name.as_str(), SEE_LIST)?;
        let spec = change.of(old)?;
        let as_new = |switch: &SwitchSpec| if switch.name == spec.name { &spec } else { switch }.clone();
        let is_other = spec != *old;
        if is_other {
            switches::check_all(&self.all.iter().map(as_new).collect::<Vec<_>>())?;
        }
        Ok((spec, is_other))
    }

    /// Removes a switch without ports. `None`: the reply comes later.
    pub(super) fn delete(
        &mut self,
        name: &str,
        caller: &Caller,
        ports: &PortTable,
        out: &mut Outputs,
    ) -> Result<Option<Value>, Fault> {
        let spec = switches::find(&self.all, name, SEE_LIST)?.clone();
        if spec.name.is_default() {
            let why = format!("the switch \"{name}\" cannot be deleted; leave it without ports");
            return Err(Fault::refused(why));
        }
        let vnics = ports.vnics_of(&spec.name);
        if !vnics.is_empty() {
            return Err(in_use(&spec.name, &vnics));
        }
        self.forget(&spec.name, &mut out.store);
        if !out.switch_process.process.is_up() {
            return Ok(Some(Value::Bool(true)));
        }
        let order = Order::RemoveSwitch { name: name.to_owned() };
        out.switch_process.order(order, OrderPurpose::SwitchRemoved { spec }, Some(caller.clone()));
        Ok(None)
    }
}

impl Supervisor {
    /// Changes a switch while it runs. `None`: the reply comes later.
    pub(super) fn switch_set(
        &mut self,
        change: &SwitchChange,
        caller: &Caller,
    ) -> Result<Option<Value>, Fault> {
        let (spec, is_other) = self.switches.changed(change)?;
        self.switches.check_rules_with(&spec, &self.ports.table)?;
        if !is_other {
            return to_json(&self.reports().describe_switch(&spec, &[])).map(Some);
        }
        if !self.out.switch_process.process.is_up() {
            return Err(switch_process_down());
        }
        let order = Order::SetSwitch(spec.clone());
        self.out.switch_process.order(order, OrderPurpose::SwitchSet { spec }, Some(caller.clone()));
        Ok(None)
    }

    /// Handles the switch process's reply about a change; a refused one has no effect.
    pub(super) fn switch_is_set(
        &mut self,
        spec: SwitchSpec,
        result: Result<(), Fault>,
    ) -> Result<Value, Fault> {
        result?;
        let Some(own) = self.switches.all.iter_mut().find(|switch| switch.name == spec.name) else {
            return Err(Fault::new(Kind::NoSuchSwitch, "the switch was deleted while it was changed"));
        };
        let is_other_module = own.module != spec.module;
        *own = spec.clone();
        self.out.store.is_late(RecordKey::Head);
        if spec.name.is_default() {
            self.settings.set_default_switch(&spec);
            self.out.switch_process.process.set_role(ChildRole::switch_process(&self.settings));
        }
        info!("switch {}: {}", spec.name, spec.options_text());
        let Outputs { switch_process, poller, .. } = &mut self.out;
        if is_other_module {
            self.switches.restore_entries_of(&spec.name, &self.ports.table, switch_process);
        }
        self.ports.table.settle_placeholders(&spec.name, &self.switches, switch_process, poller);
        to_json(&self.reports().describe_switch(&spec, &[]))
    }
}

impl Reports<'_> {
    pub(super) fn list_switches(&self, inside: &[SwitchInside]) -> SwitchList {
        let switches = self.switches.all.iter().map(|spec| self.describe_switch(spec, inside)).collect();
        SwitchList { switches }
    }

    /// The numbers of vnics, device ports and workers, for the log.
    pub(super) fn sizes_text(&self) -> String {
        let devices = self.ports.all.values().filter(|port| port.device().is_some()).count();
        let vnics = self.ports.all.len() - devices;
        let plural =
            |number: usize, noun: &str| format!("{number} {noun}{}", if number == 1 { "" } else { "s" });
        let devices = if devices > 0 {
            format!(" and {} over devices", plural(devices, "port"))
        } else {
            String::new()
        };
        let vnics = plural(vnics, "vnic");
        match self.switches.all.as_slice() {
            [only] => format!("{vnics}{devices}, module {}", only.module.as_str()),
            all => format!("{vnics}{devices} in {} switches", all.len()),
        }
    }

    pub(super) fn describe_switch(&self, spec: &SwitchSpec, inside: &[SwitchInside]) -> SwitchReport {
        let inside = inside.iter().find(|inside| inside.name == spec.name);
        SwitchReport {
            name: spec.name.clone(),
            module: spec.module.as_str().to_owned(),
            fdb_entries: spec.table(),
            vnics: self.ports.vnics_of(&spec.name),
            addresses: inside.map(|inside| inside.addresses),
            counters: inside.map(|inside| inside.counters.clone()).unwrap_or_default(),
            controller: (spec.module.as_str() == FLOW).then_some(spec.controller),
            clients: inside.map(|inside| self.datapath_clients.of(&inside.callers)).unwrap_or_default(),
        }
    }
}

fn in_use(name: &SwitchName, vnics: &[String]) -> Fault {
    let mut named: Vec<String> = vnics.iter().take(NAMED_MAX).map(|vnic| format!("\"{vnic}\"")).collect();
    if vnics.len() > NAMED_MAX {
        named.push(format!("and {} more", vnics.len() - NAMED_MAX));
    }
    let named = named.join(", ");
    Fault::refused(format!(
        "switch \"{name}\" still has ports ({named}); delete them first: lasthop port del NAME"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_switch_in_use_names_some_of_its_vnics() {
        let name = "red".parse().expect("a name");
        let vnics = ["a", "b", "c", "d", "e"].map(str::to_owned);
        let message = |count: usize| in_use(&name, &vnics[..count]).message;
        assert!(message(1).starts_with("switch \"red\" still has ports (\"a\"); delete them first"));
        assert!(message(5).contains("\"a\", \"b\", \"c\", and 2 more); delete"), "{}", message(5));
    }
}
