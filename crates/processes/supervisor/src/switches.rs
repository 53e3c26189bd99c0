//! The switches: made, removed and listed. The supervisor's knowledge of them outlives the switch process.

use serde::Deserialize;
use serde_json::Value;

use lasthop_api::modules::FLOW;
use lasthop_api::orders::Order;
use lasthop_api::report::{SwitchInside, SwitchList, SwitchReport};
use lasthop_api::switches::{self, SwitchChange, SwitchName, SwitchSpec};
use lasthop_children::ChildRole;
use lasthop_fd_store::RecordKey;
use lasthop_runtime::fault::{Fault, Kind};
use lasthop_runtime::log::say;

use super::Supervisor;
use super::controller::ControllerQuestion;
use super::question::{Asker, OrderPurpose, switch_down, to_json};
use super::reports::Reports;

/// For a name that is not close to that of any switch.
const SEE_LIST: &str = "see the list: lasthop switch list";
/// Vnics named at most in a refusal.
const NAMED_MAX: usize = 3;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FdbParams {
    switch: Option<String>,
}

impl Supervisor {
    /// Makes a switch. None: the answer comes later.
    pub(super) fn switch_add(&mut self, spec: SwitchSpec, asker: &Asker) -> Result<(), Fault> {
        let name = spec.name.clone();
        if self.switches.all.iter().any(|other| other.name == name) {
            let why = format!("there is a switch \"{name}\" already; choose another name");
            return Err(Fault::new(Kind::NameTaken, why));
        }
        if !self.switch.process.is_up() {
            return Err(switch_down());
        }
        self.switches.all.push(spec.clone());
        self.store.is_late(RecordKey::Head);
        if let Err(fault) = switches::check_all(&self.switches.all) {
            self.switches.all.pop();
            return Err(fault);
        }
        self.switch.order(
            Order::AddSwitch(spec),
            OrderPurpose::SwitchAdded { name, is_new: true },
            Some(asker.clone()),
        );
        Ok(())
    }

    /// The switch process has taken a switch, or has not. A new one that it refuses is gone as if it never was.
    pub(super) fn switch_added(
        &mut self,
        name: &SwitchName,
        is_new: bool,
        result: Result<(), Fault>,
    ) -> Result<Value, Fault> {
        if result.is_err() && is_new {
            self.switches.forget(name, &mut self.store);
        }
        result?;
        let spec = switches::find(&self.switches.all, name.as_str(), SEE_LIST)?;
        if is_new {
            say!("switch {name}: module {}", spec.module.as_str());
        }
        to_json(&SwitchReport { addresses: Some(0), ..self.reports().describe_switch(spec, &[]) })
    }

    /// Changes a switch while it runs. None: the answer comes later.
    pub(super) fn switch_set(
        &mut self,
        change: &SwitchChange,
        asker: &Asker,
    ) -> Result<Option<Value>, Fault> {
        let old = switches::find(&self.switches.all, change.name.as_str(), SEE_LIST)?.clone();
        let spec = change.of(&old)?;
        if spec == old {
            return to_json(&self.reports().describe_switch(&spec, &[])).map(Some);
        }
        let as_new = |switch: &SwitchSpec| if switch.name == spec.name { &spec } else { switch }.clone();
        switches::check_all(&self.switches.all.iter().map(as_new).collect::<Vec<_>>())?;
        if !self.switch.process.is_up() {
            return Err(switch_down());
        }
        self.switch.order(
            Order::SetSwitch(spec.clone()),
            OrderPurpose::SwitchSet { spec },
            Some(asker.clone()),
        );
        Ok(None)
    }

    /// The switch process has changed a switch, or has not, and then it is as it was.
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
        self.store.is_late(RecordKey::Head);
        if spec.name.is_default() {
            self.settings.set_default_switch(&spec);
            self.switch.process.set_role(ChildRole::switch(&self.settings));
        }
        self.store.is_late(RecordKey::Head);
        say!("switch {}: {}", spec.name, spec.options_text());
        if is_other_module {
            self.switches.restore_entries_of(&spec.name, &self.ports, &mut self.switch);
        }
        self.ports.settle_placeholders(&spec.name, &self.switches, &mut self.switch, &self.poller);
        to_json(&self.reports().describe_switch(&spec, &[]))
    }

    pub(super) fn switch_del(&mut self, name: &str, asker: &Asker) -> Result<Option<Value>, Fault> {
        let spec = switches::find(&self.switches.all, name, SEE_LIST)?.clone();
        if spec.name.is_default() {
            let why = format!("the switch \"{name}\" cannot be deleted; leave it without vnics");
            return Err(Fault::refused(why));
        }
        let vnics = self.ports.vnics_of(&spec.name);
        if !vnics.is_empty() {
            return Err(in_use(&spec.name, &vnics));
        }
        self.switches.forget(&spec.name, &mut self.store);
        if !self.switch.process.is_up() {
            return Ok(Some(Value::Bool(true)));
        }
        let order = Order::RemoveSwitch { name: name.to_owned() };
        self.switch.order(order, OrderPurpose::SwitchRemoved { spec }, Some(asker.clone()));
        Ok(None)
    }

    pub(super) fn switch_list(&mut self, asker: &Asker) -> Result<Option<Value>, Fault> {
        if self.switch.process.is_up() {
            return self.ask_controller(ControllerQuestion::Switches, asker);
        }
        self.reports().list_switches(&[]).map(Some)
    }

    pub(super) fn fdb_show(&mut self, params: FdbParams, asker: &Asker) -> Result<Option<Value>, Fault> {
        if let Some(name) = &params.switch {
            let spec = switches::find(&self.switches.all, name, SEE_LIST)?;
            if spec.table().is_none() {
                let module = spec.module.as_str();
                let why = format!("switch \"{name}\" has no forwarding table: its module is {module}");
                return Err(Fault::refused(why));
            }
        }
        self.ask_controller(ControllerQuestion::Fdb { switch: params.switch }, asker)
    }
}

impl Reports<'_> {
    pub(super) fn list_switches(&self, inside: &[SwitchInside]) -> Result<Value, Fault> {
        let switches = self.switches.all.iter().map(|spec| self.describe_switch(spec, inside)).collect();
        to_json(&SwitchList { switches })
    }

    /// The numbers of vnics, of device ports and of workers, for the log.
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
            clients: inside.map(|inside| self.datapath_clients.of(&inside.askers)).unwrap_or_default(),
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
        "switch \"{name}\" still has vnics ({named}); delete them first: lasthop vnic del NAME, lasthop port del NAME"
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
        assert!(message(1).starts_with("switch \"red\" still has vnics (\"a\"); delete them first"));
        assert!(message(5).contains("\"a\", \"b\", \"c\", and 2 more); delete"), "{}", message(5));
    }
}
