//! Flows that were refused to a client that does not wait for answers (`RUNS_AHEAD`).
//!
//! Such a client told its program that they are installed. The program hears of the refusal as of a flow that is no longer of use:
//!
//! ```text
//!   ovs-vswitchd                                     switch
//!   install flow F, without a wait              ──>  refused: F, EEXIST
//!   list flows in brief, twice a second         ──>
//!                                               <──  its flows, and F: last used at the machine's start
//!   remove F, as idle for long                  ──>
//!                                               <──  EEXIST; F is forgotten
//! ```
//!
//! OVS also learns the reason when it changes the flow before. It logs EEXIST no more than from the kernel. Full lists do not have
//! these flows.

use std::collections::BTreeMap;
use std::ops::Bound;

use lasthop_flow::{FlowStats, Ufid};

use crate::bounds::REFUSED_FLOWS_MAX;
use crate::datapath::DatapathId;
use crate::family::FlowParts;
use crate::refusal::{Errno, Refusal};
use crate::uapi::flow as uapi;

/// The fields that OVS omits in its brief lists.
const BRIEF: u32 = uapi::OMIT_KEY | uapi::OMIT_MASK | uapi::OMIT_ACTIONS;
/// When such a flow was used last, in milliseconds of the monotonic clock; 0 would mean never.
const USED_MS: u64 = 1;

/// The flows, each with the reason.
#[derive(Debug, Default)]
pub(super) struct RefusedFlows {
    reasons: BTreeMap<(DatapathId, Ufid), Errno>,
    /// Number of refusals so far.
    total: u64,
}

impl RefusedFlows {
    /// Notes a refused flow. Beyond the bound the program does not hear of it.
    pub(super) fn note(&mut self, id: DatapathId, ufid: Ufid, errno: Errno) {
        self.total += 1;
        if self.reasons.len() < REFUSED_FLOWS_MAX {
            self.reasons.insert((id, ufid), errno);
        }
    }

    /// Number of flows refused so far.
    pub(super) fn total(&self) -> u64 {
        self.total
    }

    /// Forgets a flow; returns the reason.
    pub(super) fn take(&mut self, id: DatapathId, ufid: Option<Ufid>) -> Option<Errno> {
        self.reasons.remove(&(id, ufid?))
    }

    /// The reason in place of `refusal` for an unknown flow.
    pub(super) fn explain(&self, id: DatapathId, ufid: Option<Ufid>, refusal: Refusal) -> Refusal {
        let reason = || self.reasons.get(&(id, ufid?)).copied();
        let reason = Some(()).filter(|()| refusal.errno == Errno::ENOENT).and_then(|()| reason());
        reason.map_or(refusal, |errno| Refusal::new(errno, "the flow was refused before"))
    }

    /// Forgets the flows of a datapath.
    pub(super) fn clear(&mut self, id: DatapathId) {
        self.reasons.retain(|(datapath, _), _| *datapath != id);
    }

    /// Flows for a brief list, after this one.
    pub(super) fn listed(&self, id: DatapathId, after: Option<Ufid>) -> impl Iterator<Item = Ufid> {
        let from = after.map_or(Bound::Included((id, Ufid::default())), |ufid| Bound::Excluded((id, ufid)));
        let flows = self.reasons.range((from, Bound::Unbounded)).map(|(key, _)| *key);
        flows.take_while(move |(datapath, _)| *datapath == id).map(|(_, ufid)| ufid)
    }
}

/// Whether a list without these fields has refused flows.
pub(super) fn is_brief(omitted: u32) -> bool {
    omitted & BRIEF == BRIEF
}

/// A refused flow in a list.
pub(super) fn parts(ufid: Ufid) -> FlowParts<'static> {
    let stats = FlowStats { used_ms: USED_MS, ..FlowStats::default() };
    FlowParts { ufid: Some(ufid), stats: Some(stats), ..FlowParts::default() }
}
