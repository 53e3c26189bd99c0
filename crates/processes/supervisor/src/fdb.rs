//! Requests about forwarding tables: the switch has the entries, and the supervisor keeps static ones for the next
//! switch process.

use serde::Deserialize;
use serde_json::Value;

use lasthop_api::fdb::{Flush, STATIC_ENTRIES_MAX, StaticEntry, too_many};
use lasthop_api::orders::Order;
use lasthop_api::switches;
use lasthop_listeners::Caller;
use lasthop_runtime::fault::Fault;

use super::Outputs;
use super::port_table::PortTable;
use super::question::{OrderPurpose, Question, switch_process_down};
use super::switch_table::SwitchTable;
use super::switches::SEE_LIST;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FdbParams {
    switch: Option<String>,
}

impl SwitchTable {
    /// Adds a static address. The reply comes when the switch has it.
    pub(super) fn add_entry(
        &self,
        entry: StaticEntry,
        caller: &Caller,
        ports: &PortTable,
        out: &mut Outputs,
    ) -> Result<Option<Value>, Fault> {
        let port = ports.find(entry.port.as_str())?;
        if self.static_entries.len() >= STATIC_ENTRIES_MAX {
            return Err(too_many());
        }
        order(Order::FdbAdd(entry.clone()), OrderPurpose::FdbAdded { port, entry }, caller, out)
    }

    /// Removes a static address. The reply comes when the switch has done so.
    pub(super) fn delete_entry(
        &self,
        entry: StaticEntry,
        caller: &Caller,
        ports: &PortTable,
        out: &mut Outputs,
    ) -> Result<Option<Value>, Fault> {
        ports.find(entry.port.as_str())?;
        order(Order::FdbDel(entry.clone()), OrderPurpose::FdbDeleted(entry), caller, out)
    }

    /// The question for the addresses of one switch or all. Refuses a switch without a table.
    pub(super) fn fdb_question(&self, FdbParams { switch }: FdbParams) -> Result<Question, Fault> {
        if let Some(name) = &switch {
            let spec = switches::find(&self.all, name, SEE_LIST)?;
            if spec.table().is_none() {
                let module = spec.module.as_str();
                let why = format!("switch \"{name}\" has no forwarding table: its module is {module}");
                return Err(Fault::refused(why));
            }
        }
        Ok(Question::Fdb { switch })
    }
}

impl PortTable {
    /// The request to forget learned addresses. Refuses an unknown vnic.
    pub(super) fn flush(&self, flush: Flush) -> Result<Question, Fault> {
        if let Some(port) = &flush.port {
            self.find(port.as_str())?;
        }
        Ok(Question::Flush(flush))
    }
}

fn order(
    order: Order,
    what: OrderPurpose,
    caller: &Caller,
    out: &mut Outputs,
) -> Result<Option<Value>, Fault> {
    if !out.switch_process.process.is_up() {
        return Err(switch_process_down());
    }
    out.switch_process.order(order, what, Some(caller.clone()));
    Ok(None)
}
