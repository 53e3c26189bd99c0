//! Actions that the control plane has executed for a packet that it sent.

use std::sync::atomic::AtomicU64;

use lasthop_flow::Action;
use lasthop_wire::Metadata;

use crate::{FlowTable, UnsupportedFlow};

/// In the place of a flow's number, for userspace actions of packets that the control plane has executed: this bit, and the
/// execution's number.
pub const EXECUTED: u32 = 1 << 31;

/// The actions of a packet that the control plane sent.
#[derive(Debug)]
pub struct Execution {
    pub(crate) metadata: Metadata,
    pub(crate) program: Box<[AtomicU64]>,
    pub(crate) number: u32,
}

impl Execution {
    /// Has `actions` of the control plane of `table` done to a packet, which comes from `metadata.in_port` for all that it does. Packets that go back to the
    /// control plane by an action name `number`, below [`EXECUTED`], in the place of a flow.
    ///
    /// # Errors
    /// If there is something among them that is not done here.
    pub fn new(
        table: &FlowTable,
        metadata: Metadata,
        actions: &[Action],
        number: u32,
    ) -> Result<Self, UnsupportedFlow> {
        let program = table.compile(actions)?.into_iter().map(AtomicU64::new).collect();
        Ok(Self { metadata, program, number: number | EXECUTED })
    }
}
