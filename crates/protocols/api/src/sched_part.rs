//! Which report about the scheduler is asked for.

use lasthop_runtime::fault::Fault;
use serde_json::Value;

use crate::orders::Order;
use crate::sched::SchedTrace;
use crate::sched_table::SchedTable;

/// Reports about the scheduler that the switch process makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SchedPart {
    /// The last decisions.
    Trace,
    /// The data movement table.
    Table,
}

impl SchedPart {
    /// The order that asks for it.
    pub fn order(self) -> Order {
        match self {
            Self::Trace => Order::SchedTrace,
            Self::Table => Order::SchedTable,
        }
    }

    /// The report of a process without a view, or of a version that knows none.
    ///
    /// # Errors
    /// None in practice: the reports are plain values.
    pub fn nothing(self) -> Result<Value, Fault> {
        let value = match self {
            Self::Trace => serde_json::to_value(SchedTrace::default()),
            Self::Table => serde_json::to_value(SchedTable::default()),
        };
        value.map_err(|error| Fault::internal("write a report", error))
    }
}
