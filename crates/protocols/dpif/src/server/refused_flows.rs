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
use crate::family::FlowMessage;
use crate::refusal::{Errno, Refusal};

/// When such a flow was used last, in milliseconds of the monotonic clock; 0 would mean never.
const USED_MS: u64 = 1;

/// The flows, each with the reason.
#[derive(Debug, Default)]
pub(super) struct RefusedFlows(BTreeMap<(DatapathId, Ufid), Errno>);

impl RefusedFlows {
    /// Notes a refused flow. Beyond the bound the program does not hear of it.
    pub(super) fn note(&mut self, id: DatapathId, ufid: Ufid, errno: Errno) {
        if self.0.len() < REFUSED_FLOWS_MAX {
            self.0.insert((id, ufid), errno);
        }
    }

    /// Forgets a flow.
    pub(super) fn forget(&mut self, id: DatapathId, ufid: Option<Ufid>) {
        ufid.and_then(|ufid| self.0.remove(&(id, ufid)));
    }

    /// Forgets the flows of a datapath.
    pub(super) fn clear(&mut self, id: DatapathId) {
        self.0.retain(|(datapath, _), _| *datapath != id);
    }

    /// The reason in place of `refusal` for an unknown flow.
    pub(super) fn explain(&self, id: DatapathId, ufid: Option<Ufid>, refusal: Refusal) -> Refusal {
        let reason = ufid.filter(|_| refusal.errno == Errno::ENOENT).and_then(|ufid| self.0.get(&(id, ufid)));
        reason.map_or(refusal, |errno| Refusal::new(*errno, "the flow was refused before"))
    }

    /// Flows for a brief list, after this one.
    pub(super) fn listed(&self, id: DatapathId, after: Option<Ufid>) -> impl Iterator<Item = FlowMessage> {
        let from = after.map_or(Bound::Included((id, Ufid::default())), |ufid| Bound::Excluded((id, ufid)));
        let names = self.0.range((from, Bound::Unbounded)).map(|(name, _)| *name);
        names.take_while(move |(datapath, _)| *datapath == id).map(|(DatapathId(datapath), ufid)| {
            let stats = FlowStats { used_ms: USED_MS, ..FlowStats::default() };
            FlowMessage { datapath, ufid: Some(ufid), stats: Some(stats), ..FlowMessage::default() }
        })
    }
}
