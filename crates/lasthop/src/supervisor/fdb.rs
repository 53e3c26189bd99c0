//! Static entries of the forwarding table: the switch has them, and the supervisor knows them for the next switch.

use serde_json::Value;

use crate::fault::{Fault, Kind};
use crate::fdb::{Flush, STATIC_ENTRIES_MAX, StaticEntry, too_many};
use crate::orders::Order;

use super::Supervisor;
use super::controller::PlaneQuestion;
use super::orders::{Asker, What, switch_down};

impl Supervisor {
    pub(super) fn fdb_add(&mut self, entry: StaticEntry, asker: &Asker) -> Result<Option<Value>, Fault> {
        let port = self.find(entry.vnic.as_str())?;
        if self.static_entries.len() >= STATIC_ENTRIES_MAX {
            return Err(too_many());
        }
        self.change_fdb(Order::FdbAdd(entry.clone()), What::FdbAdded { port, entry }, asker)
    }

    pub(super) fn fdb_del(&mut self, entry: StaticEntry, asker: &Asker) -> Result<Option<Value>, Fault> {
        self.find(entry.vnic.as_str())?;
        self.change_fdb(Order::FdbDel(entry.clone()), What::FdbDeleted(entry), asker)
    }

    pub(super) fn fdb_flush(&mut self, flush: Flush, asker: &Asker) -> Result<Option<Value>, Fault> {
        if let Some(vnic) = &flush.vnic {
            self.find(vnic.as_str())?;
        }
        self.ask_plane(PlaneQuestion::Flush(flush), asker)
    }

    pub(super) fn change_fdb(
        &mut self,
        order: Order,
        what: What,
        asker: &Asker,
    ) -> Result<Option<Value>, Fault> {
        if !self.lives.is_up() {
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
        Ok(())
    }

    /// The switch has taken out an address.
    pub(super) fn forget_entry(&mut self, entry: &StaticEntry) {
        self.static_entries.retain(|known| known != entry);
    }

    /// A vnic goes with its addresses.
    pub(super) fn forget_entries_of(&mut self, vnic: &str) {
        self.static_entries.retain(|entry| entry.vnic.as_str() != vnic);
    }

    /// Tells a new switch, which has its ports, of all entries.
    pub(super) fn restore_entries(&mut self) {
        for entry in self.static_entries.clone() {
            self.order(Order::FdbAdd(entry), What::Restored, None);
        }
    }
}
