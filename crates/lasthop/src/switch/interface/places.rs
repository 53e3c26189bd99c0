//! What the switch keeps of datapaths: which switch each is, and which ports it has.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use lasthop_control::datapath::{DatapathId, Meter, RemovalId};
use lasthop_engine::{Engine, PortStats, Stats};
use lasthop_flow::Userspace;
use lasthop_flowtable::{FlowModule, Removed};
use lasthop_verdict::{PortId, SwitchId};

use super::packets::UnderWay;

/// A port in a datapath.
#[derive(Clone, Debug)]
pub(super) struct Member {
    pub(super) name: String,
    /// None: a number without a port, as that of the datapath's own may be.
    pub(super) port: Option<PortId>,
}

/// A datapath.
pub(super) struct Place {
    pub(super) switch: SwitchId,
    pub(super) module: Arc<FlowModule>,
    /// Its switch was made for it and goes with it: its name.
    pub(super) made: Option<String>,
    /// By number.
    pub(super) members: BTreeMap<u32, Member>,
    pub(super) meters: BTreeMap<u32, Meter>,
}

/// All datapaths, and what is asked for later.
#[derive(Default)]
pub(super) struct Places {
    all: BTreeMap<DatapathId, Place>,
    pub(super) removals: BTreeMap<RemovalId, (Arc<FlowModule>, Removed)>,
    pub(super) last_removal: u64,
    /// Userspace actions of packets that the control plane has executed, the last ones, by number.
    pub(super) executed: VecDeque<(u32, Vec<Userspace>)>,
    pub(super) last_execution: u32,
    pub(super) under_way: Arc<UnderWay>,
    /// Workers hand over packets of no flow.
    pub(super) can_ask: bool,
    /// Rises when a meter is set or taken out.
    pub(super) meter_changes: u64,
    /// Counters, as of this turn.
    stats: RefCell<Option<Stats>>,
}

impl Places {
    pub(super) fn insert(&mut self, id: DatapathId, place: Place) {
        self.all.insert(id, place);
    }

    pub(super) fn remove(&mut self, id: DatapathId) -> Option<Place> {
        self.all.remove(&id)
    }

    pub(super) fn get(&self, id: DatapathId) -> Option<&Place> {
        self.all.get(&id)
    }

    pub(super) fn get_mut(&mut self, id: DatapathId) -> Option<&mut Place> {
        self.all.get_mut(&id)
    }

    /// The datapath that a switch is.
    pub(super) fn of_switch(&self, switch: SwitchId) -> Option<(DatapathId, &Place)> {
        self.all.iter().find(|(_, place)| place.switch == switch).map(|(id, place)| (*id, place))
    }

    /// Whether a port is in a datapath.
    pub(super) fn has(&self, port: PortId) -> bool {
        let mut members = self.all.values().flat_map(|place| place.members.values());
        members.any(|member| member.port == Some(port))
    }

    /// What is counted is asked for again in the next turn.
    pub(super) fn forget_stats(&mut self) {
        self.stats.take();
    }

    /// A port's counters, as of this turn; none if workers do not answer.
    pub(super) fn stats_of<R>(
        &self,
        engine: &Engine,
        port: PortId,
        tell: impl FnOnce(&PortStats) -> R,
    ) -> Option<R> {
        let mut stats = self.stats.borrow_mut();
        let stats = stats.get_or_insert_with(|| engine.stats().unwrap_or_default());
        stats.ports.iter().find(|one| one.port == port).map(tell)
    }
}
