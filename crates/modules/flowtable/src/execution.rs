//! Actions that the control plane has executed for a packet that it sent.

use std::sync::atomic::AtomicU64;

use lasthop_flow::Action;
use lasthop_wire::Metadata;

use crate::program::{Code, Step};
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

    /// Has the actions done, for the whole packet, that its fragments waited at
    /// ([`UpcallReason::Fragment`](lasthop_module_api::UpcallReason::Fragment)); `flow` and `words` are of the fragment that came last.
    /// None if they are not of a flow table.
    #[must_use]
    pub fn resumed(metadata: Metadata, flow: u32, words: &[u64]) -> Option<Self> {
        suspended_zone(words)?;
        let program = words.iter().copied().map(AtomicU64::new).collect();
        Some(Self { metadata, program, number: flow })
    }
}

/// The zone of the action `ct` that suspended actions begin with; none if they do not.
#[must_use]
pub fn suspended_zone(words: &[u64]) -> Option<u16> {
    let step = Step(*words.first()?);
    step.is(Code::Ct).then(|| step.operand(0, 16) as u16)
}
