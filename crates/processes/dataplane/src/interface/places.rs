//! The datapaths of this process: the switch and the ports of each.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;

use lasthop_dpif::datapath::{DatapathId, Meter, RemovalId};
use lasthop_dpif::server::{PeerId, Reader};
use lasthop_engine::{Engine, EngineStats, Injections, PortStats};
use lasthop_flow::KeyedState;
use lasthop_flowtable::{FlowModule, Removed};
use lasthop_module_api::{PortId, SwitchId};

use super::super::flow_memory::{FlowMemory, RecordPlace};
use super::connection_memory::ConnectionMemories;
use super::connections::CtSettings;
use super::flows::RefusedFlows;
use super::packets::{Executed, OutgoingPacket, PendingExecutions};
use super::unanswered_upcalls::{Traffic, UnansweredUpcalls};

/// A port in a datapath.
#[derive(Clone, Debug)]
pub(super) struct Member {
    pub(super) name: String,
    /// `None` for a number without a port; the datapath's own port may be one.
    pub(super) port: Option<PortId>,
}

/// A datapath.
pub(super) struct Place {
    pub(super) switch: SwitchId,
    pub(super) module: Arc<FlowModule>,
    /// The name of a switch that was made for the datapath, and is removed with it.
    pub(super) made: Option<String>,
    /// Whether it belongs to the embedded controller; external clients do not see its connections.
    pub(super) is_reserved: bool,
    /// Ports by number.
    pub(super) members: BTreeMap<u32, Member>,
    pub(super) meters: BTreeMap<u32, Meter>,
    /// The number of its flow table in upcalls.
    pub(super) origin: u16,
    pub(super) executed: Executed,
    /// By slot of the flow table: the flow's place in memory that outlives this process.
    pub(super) records: Vec<Option<RecordPlace>>,
    /// The memory of the last record, to be used again.
    pub(super) record_bytes: Vec<u8>,
}

/// All datapaths, and statistics that are read later.
#[derive(Default)]
pub(super) struct Places {
    all: BTreeMap<DatapathId, Place>,
    pub(super) removals: BTreeMap<RemovalId, (Arc<FlowModule>, Removed)>,
    pub(super) last_removal: u64,
    last_origin: u16,
    pub(super) under_way: Arc<PendingExecutions>,
    /// Packets of clients that go to a worker together at the end of the turn; they count as under way.
    pub(super) outgoing: Injections<OutgoingPacket>,
    /// Clients that are embedded controllers. They use existing switches and ports; nothing is made for them.
    pub(super) controllers: BTreeSet<PeerId>,
    /// Upcalls to them that they have not answered.
    pub(super) to_answer: UnansweredUpcalls,
    pub(super) refused_flows: RefusedFlows,
    /// Whether upcalls are enabled.
    pub(super) can_ask: bool,
    /// Counts changes of meters, zone limits and timeout policies.
    pub(super) setting_changes: u64,
    /// The memory in which a successor finds flows, if there is one.
    pub(super) flow_memory: Option<FlowMemory>,
    /// The memory in which a successor finds connections.
    pub(super) connection_memory: ConnectionMemories,
    /// Whether the lack of room there was logged.
    pub(super) is_memory_full: bool,
    /// Limits and timeout policies of clients.
    pub(super) ct_settings: CtSettings,
    /// The secret of packets' hashes, which choose among the readers of a port's misses.
    pub(super) upcall_hash: KeyedState,
    told: RefCell<ReportedCounters>,
}

/// Counters that were reported to clients.
#[derive(Default)]
struct ReportedCounters {
    stats: EngineStats,
    is_of_this_turn: bool,
}

impl Places {
    pub(super) fn insert(&mut self, id: DatapathId, place: Place) {
        self.all.insert(id, place);
    }

    pub(super) fn remove(&mut self, id: DatapathId) -> Option<Place> {
        self.all.remove(&id)
    }

    /// A datapath, and the memory in which its flows outlive this process.
    pub(super) fn with_memory(&mut self, id: DatapathId) -> (Option<&mut Place>, Option<&mut FlowMemory>) {
        (self.all.get_mut(&id), self.flow_memory.as_mut())
    }

    /// Each datapath, by number.
    pub(super) fn all(&self) -> impl Iterator<Item = (DatapathId, &Place)> {
        self.all.iter().map(|(id, place)| (*id, place))
    }

    pub(super) fn get(&self, id: DatapathId) -> Option<&Place> {
        self.all.get(&id)
    }

    pub(super) fn get_mut(&mut self, id: DatapathId) -> Option<&mut Place> {
        self.all.get_mut(&id)
    }

    /// A number for upcalls that no datapath has or had recently. Upcalls of a deleted datapath are dropped, even if
    /// another one has its switch or that switch's number. Never 0, which means none.
    pub(super) fn fresh_origin(&mut self) -> u16 {
        loop {
            self.last_origin = self.last_origin.wrapping_add(1).max(1);
            if self.of_origin(self.last_origin).is_none() {
                return self.last_origin;
            }
        }
    }

    /// The datapath with this number in upcalls.
    pub(super) fn of_origin(&self, origin: u16) -> Option<(DatapathId, &Place)> {
        self.all.iter().find(|(_, place)| place.origin == origin).map(|(id, place)| (*id, place))
    }

    /// Whether a port is in a datapath.
    pub(super) fn has(&self, port: PortId) -> bool {
        let mut members = self.all.values().flat_map(|place| place.members.values());
        members.any(|member| member.port == Some(port))
    }

    /// The state of a client as a reader of upcalls of sparse lines, or of busy ones.
    pub(super) fn reader(&self, reader: Reader, traffic: Traffic, now: Instant) -> Reader {
        match self.controllers.contains(&reader.client) {
            true => self.to_answer.of(reader, traffic, now),
            false => reader,
        }
    }

    /// Notes that a packet came back from a client of a datapath.
    pub(super) fn answered(&mut self, id: DatapathId, hash: u64) {
        if self.all.get(&id).is_some_and(|place| place.is_reserved) {
            self.to_answer.answered(hash, Instant::now());
        }
    }

    /// Has the next turn read counters again.
    pub(super) fn forget_stats(&mut self) {
        self.told.get_mut().is_of_this_turn = false;
    }

    /// Forgets ports' counters after a removal, since another port may get the number.
    pub(super) fn forget_ports(&mut self) {
        self.told = RefCell::default();
    }

    /// A port's counters, as of this turn. While workers do not answer, the last reported ones: clients take a counter
    /// that goes back for an error.
    pub(super) fn stats_of<R>(
        &self,
        engine: &Engine,
        port: PortId,
        tell: impl FnOnce(&PortStats) -> R,
    ) -> Option<R> {
        let mut told = self.told.borrow_mut();
        if !std::mem::replace(&mut told.is_of_this_turn, true)
            && let Ok(stats) = engine.stats()
        {
            told.stats = stats;
        }
        told.stats.ports.iter().find(|one| one.port == port).map(tell)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn place(origin: u16) -> Place {
        let (made, members, meters, executed) = Default::default();
        let module = Arc::new(FlowModule::for_workers(1));
        let (is_reserved, records, record_bytes) = Default::default();
        let switch = SwitchId(3);
        Place { switch, module, made, is_reserved, members, meters, origin, executed, records, record_bytes }
    }

    #[test]
    fn a_datapath_that_comes_is_not_asked_what_one_before_it_was_to_be() {
        let mut places = Places::default();
        let first = places.fresh_origin();
        places.insert(DatapathId(1), place(first));
        assert_eq!(places.of_origin(first).map(|(id, _)| id), Some(DatapathId(1)));
        places.remove(DatapathId(1));
        let second = places.fresh_origin();
        places.insert(DatapathId(1), place(second));
        assert!(places.of_origin(first).is_none(), "the same datapath, of the same switch");
        let others: Vec<u16> = (0..=u16::MAX).map(|_| places.fresh_origin()).collect();
        assert!(!others.contains(&second) && !others.contains(&0));
    }
}
