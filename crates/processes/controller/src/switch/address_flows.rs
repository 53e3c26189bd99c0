//! Flows by address in place of flows by pair of addresses, for packets of ports with many pairs.
//!
//! ```text
//!   by pair      port, source, destination ──────────────────────────────────────────> outputs         sources x destinations
//!   by address   port, source ── recirculated, its source is checked ── port, destination ──> outputs  sources + destinations
//! ```
//!
//! The checks of a packet depend on its source, and its outputs on its destination. So two flows can decide what one flow for
//! the pair decides. A packet of a new pair finds both already, and is no miss. It is looked up twice, so ports with
//! few pairs have flows by pair. Ports with rules about connections recirculate packets for these, and keep such flows, too.

use lasthop_flow::Action;
use lasthop_module_api::DropReason;

use super::{Switch, vid_of};
use crate::decide::{Admitted, Decision, admit};
use crate::flows::Flow;
use crate::frame::{Frame, Looked};
use crate::gate::Stage;

/// The actions for packets of which only the source is checked.
fn to_destination() -> Vec<Action> {
    vec![Action::Recirc(Stage::Admitted.recirc_id())]
}

impl Flow {
    /// Whether it is the first one of two flows by address.
    pub(super) fn is_by_source(&self) -> bool {
        Stage::of(self.frame.recirc_id) == Stage::Entry && self.actions == to_destination()
    }
}

impl Switch {
    /// Whether this packet, which the port may send, gets flows by address, if there are no rules about connections.
    pub(super) fn goes_by_address(&self, frame: &Frame, decision: &Decision) -> bool {
        let has_many = || self.flows.sum(frame.port) >= self.pair_flows_max;
        Stage::of(frame.recirc_id) == Stage::Entry && !decision.is_watched && has_many()
    }

    /// The decision about packets by their source alone. With rules about connections there is none.
    pub(super) fn decide_by_source(&self, frame: &Frame, mut looked: Looked) -> Option<Decision> {
        self.ports.get(&frame.port).filter(|port| port.acl.is_none())?;
        let is_watched = self.is_watched(frame, &mut looked);
        Some(Decision { actions: to_destination(), looked, is_watched, ..Decision::default() })
    }

    /// Decides as for the flow: by source alone, or by the whole packet.
    pub(super) fn decide_again(
        &self,
        flow: &Flow,
        admitted: Result<Admitted, DropReason>,
        looked: Looked,
        now_ns: u64,
    ) -> Decision {
        let by_source = || self.decide_by_source(&flow.frame, looked).filter(|_| admitted.is_ok());
        let by_source = if flow.is_by_source() { by_source() } else { None };
        by_source.unwrap_or_else(|| self.decide(&flow.frame, admitted, looked, now_ns))
    }

    /// Installs both flows for an admitted packet of this VLAN.
    pub(super) fn install_by_address(
        &mut self,
        frame: &Frame,
        vid: Option<u16>,
        by_source: &Decision,
        now_ns: u64,
    ) {
        let frame_behind = Frame { recirc_id: Stage::Admitted.recirc_id(), ..*frame };
        let mut looked = Looked::default();
        let admitted_behind = admit(self.view(now_ns), &frame_behind, &mut looked);
        let by_destination = self.decide(&frame_behind, admitted_behind, looked, now_ns);
        // The second one first: the packets of the first one find it.
        self.install(&frame_behind, vid_of(admitted_behind), &by_destination, now_ns);
        self.install(frame, vid, by_source, now_ns);
    }
}
