//! All switches, and their static addresses: both outlive the switch process, which has them, too.

use log::info;
use serde_json::Value;

use lasthop_api::acl::{self, AclRule};
use lasthop_api::fdb::StaticEntry;
use lasthop_api::orders::Order;
use lasthop_api::port::PortSpec;
use lasthop_api::switches::{self, SwitchName, SwitchSpec};
use lasthop_fd_store::{RecordKey, RecordStore};
use lasthop_runtime::fault::{Fault, Kind};

use super::port_table::PortTable;
use super::question::OrderPurpose;
use super::switch_process::SwitchProcess;

/// The switches, and the users' addresses.
#[derive(Debug)]
pub(super) struct SwitchTable {
    /// The default one first.
    pub(super) all: Vec<SwitchSpec>,
    pub(super) static_entries: Vec<StaticEntry>,
    /// Rules about connections, in order.
    pub(super) acl: Vec<AclRule>,
}

impl SwitchTable {
    /// These switches, without addresses.
    pub(super) fn new(all: Vec<SwitchSpec>) -> Self {
        Self { all, static_entries: Vec::new(), acl: Vec::new() }
    }

    /// Notes an address that the switch has added.
    pub(super) fn remember_entry(
        &mut self,
        port: u32,
        entry: StaticEntry,
        ports: &PortTable,
        store: &mut RecordStore,
    ) -> Result<(), Fault> {
        // Meanwhile its vnic may have been deleted, and another one of the same name made, which does not have it.
        if !ports.all.contains_key(&port) {
            let why = "the port was deleted while the address was being added";
            return Err(Fault::new(Kind::NoSuchVnic, why));
        }
        self.static_entries.push(entry);
        store.is_late(RecordKey::Head);
        Ok(())
    }

    /// Notes an address that the switch has removed.
    pub(super) fn forget_entry(&mut self, entry: &StaticEntry, store: &mut RecordStore) {
        self.static_entries.retain(|known| known != entry);
        store.is_late(RecordKey::Head);
    }

    /// Removes a vnic's addresses together with it.
    pub(super) fn forget_entries_of(&mut self, vnic: &str, store: &mut RecordStore) {
        self.static_entries.retain(|entry| entry.port.as_str() != vnic);
        store.is_late(RecordKey::Head);
    }

    /// Sends all addresses to a new switch process, which has its ports.
    pub(super) fn restore_entries(&self, process: &mut SwitchProcess) {
        for entry in self.static_entries.clone() {
            process.order(Order::FdbAdd(entry), OrderPurpose::Restored, None);
        }
    }

    /// Adds the static addresses of one switch again, after its table was replaced.
    pub(super) fn restore_entries_of(
        &self,
        switch: &SwitchName,
        ports: &PortTable,
        process: &mut SwitchProcess,
    ) {
        let is_own = |entry: &StaticEntry| {
            let mut ports = ports.all.values().filter(|port| port.spec.common.switch == *switch);
            ports.any(|port| port.spec.common.name == entry.port)
        };
        let own: Vec<StaticEntry> =
            self.static_entries.iter().filter(|entry| is_own(entry)).cloned().collect();
        for entry in own {
            process.order(Order::FdbAdd(entry), OrderPurpose::Restored, None);
        }
    }

    /// Sends a new switch process all switches except the default one, which it has.
    pub(super) fn replay(&self, process: &mut SwitchProcess) {
        for spec in self.all.clone().into_iter().filter(|spec| !spec.name.is_default()) {
            let name = spec.name.clone();
            process.order(Order::AddSwitch(spec), OrderPurpose::SwitchAdded { name, is_new: false }, None);
        }
    }

    /// Removes a switch.
    pub(super) fn forget(&mut self, name: &SwitchName, store: &mut RecordStore) {
        self.all.retain(|switch| switch.name != *name);
        store.is_late(RecordKey::Head);
    }

    /// Handles the switch process's reply about a removed switch; it is restored if the process refuses.
    pub(super) fn removed(
        &mut self,
        spec: SwitchSpec,
        result: Result<(), Fault>,
        store: &mut RecordStore,
    ) -> Result<Value, Fault> {
        store.is_late(RecordKey::Head);
        match &result {
            Ok(()) => info!("switch {}: deleted", spec.name),
            // Unless another one of this name was made meanwhile.
            Err(_) if self.all.iter().all(|other| other.name != spec.name) => self.all.push(spec),
            Err(_) => {}
        }
        result.map(|()| Value::Bool(true))
    }

    /// Refuses a port whose switch is unknown, or does not enforce the rules about the port.
    pub(super) fn check_switch_of(&self, port: &PortSpec) -> Result<(), Fault> {
        let switch = &port.common.switch;
        let remedy = format!("make it with: lasthop switch add {switch}");
        switches::find(&self.all, switch.as_str(), &remedy)?;
        acl::check_switch_of(&self.acl, &self.all, port)
    }

    pub(super) fn has_outside_controller(&self, port: &PortSpec) -> bool {
        self.all.iter().any(|switch| switch.name == port.common.switch && switch.has_outside_controller())
    }
}
