//! Static entries of the forwarding table: the switch has them, and the supervisor knows them for the next switch.

use serde_json::Value;

use lasthop_api::fdb::{Flush, STATIC_ENTRIES_MAX, StaticEntry, too_many};
use lasthop_api::orders::Order;
use lasthop_runtime::fault::Fault;

use super::Supervisor;
use super::controller::ControllerQuestion;
use super::question::{Asker, OrderPurpose, switch_down};

impl Supervisor {
    pub(super) fn fdb_add(&mut self, entry: StaticEntry, asker: &Asker) -> Result<Option<Value>, Fault> {
        let port = self.ports.find(entry.vnic.as_str())?;
        if self.switches.static_entries.len() >= STATIC_ENTRIES_MAX {
            return Err(too_many());
        }
        self.change_fdb(Order::FdbAdd(entry.clone()), OrderPurpose::FdbAdded { port, entry }, asker)
    }

    pub(super) fn fdb_del(&mut self, entry: StaticEntry, asker: &Asker) -> Result<Option<Value>, Fault> {
        self.ports.find(entry.vnic.as_str())?;
        self.change_fdb(Order::FdbDel(entry.clone()), OrderPurpose::FdbDeleted(entry), asker)
    }

    pub(super) fn fdb_flush(&mut self, flush: Flush, asker: &Asker) -> Result<Option<Value>, Fault> {
        if let Some(vnic) = &flush.vnic {
            self.ports.find(vnic.as_str())?;
        }
        self.ask_controller(ControllerQuestion::Flush(flush), asker)
    }

    pub(super) fn change_fdb(
        &mut self,
        order: Order,
        what: OrderPurpose,
        asker: &Asker,
    ) -> Result<Option<Value>, Fault> {
        if !self.switch.process.is_up() {
            return Err(switch_down());
        }
        self.switch.order(order, what, Some(asker.clone()));
        Ok(None)
    }
}
