//! Static entries of the forwarding table: the switch has them, and the supervisor knows them for the next switch.

use serde_json::Value;

use lasthop_api::fdb::{Flush, STATIC_ENTRIES_MAX, StaticEntry, too_many};
use lasthop_api::orders::Order;
use lasthop_api::switches::SwitchName;
use lasthop_runtime::fault::{Fault, Kind};

use super::Supervisor;
use super::controller::ControllerQuestion;
use super::question::{Asker, OrderPurpose, switch_down};
use super::store::Key;

impl Supervisor {
    pub(super) fn fdb_add(&mut self, entry: StaticEntry, asker: &Asker) -> Result<Option<Value>, Fault> {
        let port = self.find(entry.vnic.as_str())?;
        if self.static_entries.len() >= STATIC_ENTRIES_MAX {
            return Err(too_many());
        }
        self.change_fdb(Order::FdbAdd(entry.clone()), OrderPurpose::FdbAdded { port, entry }, asker)
    }

    pub(super) fn fdb_del(&mut self, entry: StaticEntry, asker: &Asker) -> Result<Option<Value>, Fault> {
        self.find(entry.vnic.as_str())?;
        self.change_fdb(Order::FdbDel(entry.clone()), OrderPurpose::FdbDeleted(entry), asker)
    }

    pub(super) fn fdb_flush(&mut self, flush: Flush, asker: &Asker) -> Result<Option<Value>, Fault> {
        if let Some(vnic) = &flush.vnic {
            self.find(vnic.as_str())?;
        }
        self.ask_controller(ControllerQuestion::Flush(flush), asker)
    }

    pub(super) fn change_fdb(
        &mut self,
        order: Order,
        what: OrderPurpose,
        asker: &Asker,
    ) -> Result<Option<Value>, Fault> {
        if !self.process.is_up() {
            return Err(switch_down());
        }
        self.order(order, what, Some(asker.clone()));
        Ok(None)
    }

    /// The switch has entered an address.
    pub(super) fn remember_entry(&mut self, port: u32, entry: StaticEntry) -> Result<(), Fault> {
        // In between its vnic may have been deleted, and another one of the same name made, which does not have it.
        if !self.ports.contains_key(&port) {
            let why = "the vnic was deleted while the address was being added";
            return Err(Fault::new(Kind::NoSuchVnic, why));
        }
        self.static_entries.push(entry);
        self.store.is_late(Key::Head);
        Ok(())
    }

    /// The switch has taken out an address.
    pub(super) fn forget_entry(&mut self, entry: &StaticEntry) {
        self.static_entries.retain(|known| known != entry);
        self.store.is_late(Key::Head);
    }

    /// A vnic goes with its addresses.
    pub(super) fn forget_entries_of(&mut self, vnic: &str) {
        self.static_entries.retain(|entry| entry.vnic.as_str() != vnic);
        self.store.is_late(Key::Head);
    }

    /// Tells a new switch, which has its ports, of all entries.
    pub(super) fn restore_entries(&mut self) {
        for entry in self.static_entries.clone() {
            self.order(Order::FdbAdd(entry), OrderPurpose::Restored, None);
        }
    }

    /// Enters the static addresses of one switch again, after its table was replaced.
    pub(super) fn restore_entries_of(&mut self, switch: &SwitchName) {
        let is_own = |entry: &StaticEntry| {
            let mut ports = self.ports.values().filter(|port| port.spec.switch == *switch);
            ports.any(|port| port.spec.name == entry.vnic)
        };
        let own: Vec<StaticEntry> =
            self.static_entries.iter().filter(|entry| is_own(entry)).cloned().collect();
        for entry in own {
            self.order(Order::FdbAdd(entry), OrderPurpose::Restored, None);
        }
    }
}
