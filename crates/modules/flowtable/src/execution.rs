//! Actions that the control plane has executed for a packet that it sent.

use std::sync::atomic::AtomicU64;

use lasthop_flow::Action;
use lasthop_module_api::DropReason;
use lasthop_wire::{Metadata, OuterHeader};

use crate::program::{Code, Step, read_ct};
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
    /// The tunnel that the packet came by.
    pub(crate) tunnel: Option<OuterHeader>,
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
        Ok(Self { metadata, program, number: number | EXECUTED, tunnel: None })
    }

    /// The same for a packet that came by `tunnel`.
    #[must_use]
    pub fn with_tunnel(self, tunnel: Option<OuterHeader>) -> Self {
        Self { tunnel, ..self }
    }

    /// Has the actions done, for the whole packet, that what came of it waited at
    /// ([`UpcallReason::Suspended`](lasthop_module_api::UpcallReason::Suspended)); `flow` and `words` are of the fragment that came last.
    /// None if they are not of a flow table.
    #[must_use]
    pub fn resumed(metadata: Metadata, flow: u32, words: &[u64]) -> Option<Self> {
        suspended_zone(words)?;
        let program = words.iter().copied().map(AtomicU64::new).collect();
        Some(Self { metadata, program, number: flow, tunnel: None })
    }

    /// As [`Self::resumed`], of a packet all of which is in `frame`: the first of the actions is done here, on more of the packet than
    /// a worker sees. The packet came in by this port, it is `now_ms` by CLOCK_MONOTONIC.
    ///
    /// # Errors
    /// Why it has to be dropped.
    pub fn resumed_behind_ct(
        table: &FlowTable,
        mut metadata: Metadata,
        (flow, words): (u32, &[u64]),
        frame: &mut Vec<u8>,
        (port, now_ms): (u16, u64),
    ) -> Result<Self, DropReason> {
        let impossible = DropReason::ActionImpossible;
        suspended_zone(words).ok_or(impossible)?;
        let rest: Box<[AtomicU64]> = words.iter().skip(1).copied().map(AtomicU64::new).collect();
        let (request, len) = read_ct(Step(words.first().copied().ok_or(impossible)?), &rest);
        table.tracking.track_whole((frame, &mut metadata.ct), &request, (port, now_ms))?;
        let program = words.iter().skip(1 + len).copied().map(AtomicU64::new).collect();
        Ok(Self { metadata, program, number: flow, tunnel: None })
    }
}

/// The zone of the action `ct` that suspended actions begin with; none if they do not.
#[must_use]
pub fn suspended_zone(words: &[u64]) -> Option<u16> {
    let step = Step(*words.first()?);
    step.is(Code::Ct).then(|| step.operand(0, 16) as u16)
}
