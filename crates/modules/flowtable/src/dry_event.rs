//! Events of a packet's way through the table, as a dry run tells them.

use std::sync::Arc;

use lasthop_conntrack::{CtRequest, CtTrial};
use lasthop_flow::{FlowKey, tunnel_told};
use lasthop_module_api::{DropReason, PortId, UpcallReason};
use lasthop_wire::OuterHeader;

use crate::action_packet::{ActionPacket, EVERYTHING};
use crate::describe::unpack;
use crate::flow_memory::Installed;

/// Something that happens to a packet.
#[derive(Clone, Debug)]
pub enum DryEvent {
    /// It goes through the table.
    Pass(DryPass),
    /// It is tracked: zone, and whether its connection is to be remembered.
    Tracked(Box<DryTracked>),
    /// A meter lets it pass, or not.
    Metered {
        /// Number of the meter.
        meter: u32,
        /// Whether it passes.
        passes: bool,
    },
    /// This and the next events up to the end of the list happen to a share of such packets, in 2^32.
    Sampled(u32),
    /// The packet's length was compared with a limit.
    LengthChecked {
        /// The length that it is compared with.
        limit_bytes: u32,
        /// Whether it is longer.
        is_greater: bool,
    },
    /// A copy goes to a port.
    Output(Box<DryOutput>),
    /// A copy is for a number that no port has.
    NumberGone(u16),
    /// It has no flow: the control plane decides.
    Missed,
    /// A copy goes to the control plane by an action: which of the flow's userspace actions.
    Userspace(u16),
    /// It waits for more of it: its other fragments, or its payload.
    Suspended,
    /// A copy is dropped that should have gone somewhere.
    Lost(DropReason),
    /// A list of actions ends before its end.
    Ended(DropReason),
}

/// A pass through the table.
#[derive(Clone, Debug)]
pub struct DryPass {
    /// The fields by which it is looked up.
    pub key: Box<FlowKey>,
    /// Its flow.
    pub flow: Option<Arc<Installed>>,
    /// Other flows that match it, too.
    pub rivals: usize,
    /// An answer of the control plane is taken in place of a flow; see [`crate::FlowModule::dry_run`].
    pub is_answered: bool,
}

/// A packet in `ct(...)`.
#[derive(Clone, Debug)]
pub struct DryTracked {
    /// The request.
    pub request: CtRequest,
    /// The result; `None` if the packet cannot be tracked, or is a fragment.
    pub trial: Option<CtTrial>,
    /// Why it is dropped, if it is.
    pub refused: Option<DropReason>,
}

/// A copy for a port.
#[derive(Clone, Debug)]
pub struct DryOutput {
    /// The number by which the flow names the port.
    pub number: u16,
    /// The port.
    pub port: PortId,
    /// Bytes of it at most, if it is cut.
    pub truncate_len_bytes: Option<u32>,
    /// The copy as it leaves, with a tunnel's header that was set.
    pub key: FlowKey,
    /// Whether the flow has set a tunnel's header.
    pub is_tunnelled: bool,
}

impl DryOutput {
    pub(crate) fn of(copy: &ActionPacket<'_>, (number, port): (u16, PortId), truncate: u32) -> Box<Self> {
        let (key, _) = copy.key();
        let mut told = unpack(&key);
        let tunnel = Some(copy.header().tunnel()).filter(|tunnel| !tunnel.is_empty());
        let tunnel = tunnel.filter(|_| !copy.came_by_tunnel() || copy.with_first_tunnel().is_some());
        told.tunnel = tunnel.and_then(OuterHeader::parse).map(|outer| Box::new(tunnel_told(&outer)));
        let truncate_len_bytes = (truncate != EVERYTHING).then_some(truncate);
        let is_tunnelled = told.tunnel.is_some();
        Box::new(Self { number, port, truncate_len_bytes, key: told, is_tunnelled })
    }
}

impl DryEvent {
    pub(crate) fn asked(reason: UpcallReason) -> Self {
        match reason {
            UpcallReason::Miss => Self::Missed,
            UpcallReason::Action { step, .. } => Self::Userspace(step),
            UpcallReason::Suspended { .. } => Self::Suspended,
        }
    }
}
