//! The server's state of datapaths and ports: names, numbers, and port ids for misses.

use std::collections::BTreeMap;

use super::refused_flows::RefusedFlows;
use crate::bounds::{DATAPATHS_MAX, MASKS_CACHE_SIZE, PORTS_MAX};
use crate::datapath::{Datapath, DatapathId, Port};
use crate::family::{DatapathMessage, DatapathStats, VportMessage};
use crate::refusal::{Errno, Refusal};
use crate::uapi::dp;

/// A datapath as clients made it. It outlives the switch process, so that the next one continues.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DatapathRecord {
    /// Name of the datapath and of its port 0.
    pub name: String,
    /// `OVS_DP_F_*`.
    pub user_features: u32,
    /// Stored for clients only; it has no effect.
    pub masks_cache_size: u32,
    /// Port ids for misses by worker, if the features say so.
    pub per_cpu_port_ids: Vec<u32>,
    /// Ports by number.
    pub ports: BTreeMap<u32, Port>,
    /// Misses lost for lack of room or of a reader.
    pub lost: u64,
    /// Flows refused to clients that did not wait for the answer.
    pub refused_late: u64,
}

impl DatapathRecord {
    /// A new datapath without ports.
    #[must_use]
    pub fn named(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            user_features: 0,
            masks_cache_size: MASKS_CACHE_SIZE,
            per_cpu_port_ids: Vec::new(),
            ports: BTreeMap::new(),
            lost: 0,
            refused_late: 0,
        }
    }

    /// The datapath's message.
    pub(super) fn message(&self, id: DatapathId, datapath: &dyn Datapath) -> DatapathMessage {
        let (stats, megaflow_stats) = datapath.stats(id);
        DatapathMessage {
            datapath: id.0,
            name: Some(self.name.clone()),
            stats: Some(DatapathStats { lost: stats.lost + self.lost, ..stats }),
            megaflow_stats: Some(megaflow_stats),
            user_features: Some(self.user_features),
            masks_cache_size: Some(self.masks_cache_size),
            per_cpu_port_ids: Some(self.per_cpu_port_ids.clone()).filter(|ids| !ids.is_empty()),
            ..DatapathMessage::default()
        }
    }

    /// The message of one of its ports.
    pub(super) fn port_message(&self, id: DatapathId, port: &Port, datapath: &dyn Datapath) -> VportMessage {
        let view = datapath.port_view(id, port.number);
        VportMessage {
            datapath: id.0,
            number: Some(port.number),
            kind: Some(port.kind),
            name: Some(port.name.clone()),
            options: port.options,
            upcall_port_ids: Some(port.upcall_port_ids.clone()),
            stats: Some(view.stats),
            ifindex: view.ifindex,
            netns_id: view.netns_id,
        }
    }

    pub(super) fn ports_from(&self, number: u32) -> impl Iterator<Item = &Port> {
        self.ports.range(number..).map(|(_, port)| port)
    }

    /// The lowest free number; 0 is the datapath's own port.
    pub(super) fn free_number(&self) -> Result<u32, Refusal> {
        let taken = self.ports.range(1..).map(|(number, _)| *number);
        let free =
            (1..PORTS_MAX).zip(taken.chain(std::iter::repeat(0))).find(|(number, taken)| number != taken);
        free.map(|(number, _)| number)
            .ok_or(Refusal::new(Errno::EFBIG, "the datapath has as many ports as it can"))
    }

    /// The port id for a miss: by worker, or one of the port's, the same one for packets with the same lower half of
    /// `hash`.
    pub(super) fn upcall_port_id(&self, number: u32, worker: usize, hash: u64) -> Option<u32> {
        let list = if self.is_per_cpu() {
            return pick(&self.per_cpu_port_ids, worker as u64);
        } else {
            &self.ports.get(&number)?.upcall_port_ids
        };
        pick(list, u64::from(hash as u32))
    }

    /// Directs misses of ports without a reader to `port_id`. Port 0 sends no packets unless its client configures it.
    pub(super) fn direct_unheard(&mut self, port_id: u32, is_heard: impl Fn(u32) -> bool) {
        let ports = self.ports.range_mut(1..).map(|(_, port)| &mut port.upcall_port_ids);
        for ids in ports.filter(|ids| !ids.iter().any(|id| is_heard(*id))) {
            *ids = vec![port_id];
        }
    }

    /// All port ids for misses.
    pub(super) fn upcall_port_ids(&self) -> Vec<u32> {
        if self.is_per_cpu() {
            return self.per_cpu_port_ids.clone();
        }
        self.ports.values().flat_map(|port| port.upcall_port_ids.iter().copied()).collect()
    }

    pub(super) fn is_per_cpu(&self) -> bool {
        self.user_features & dp::F_DISPATCH_UPCALL_PER_CPU != 0
    }
}

fn pick(list: &[u32], at: u64) -> Option<u32> {
    let at = at.checked_rem(list.len() as u64)?;
    list.get(usize::try_from(at).ok()?).copied().filter(|id| *id != 0)
}

/// All datapaths.
#[derive(Debug, Default)]
pub(super) struct State {
    datapaths: BTreeMap<DatapathId, DatapathRecord>,
    /// The highest number of a datapath so far.
    last_id: i32,
    /// The port whose subscription the present request ends.
    pub(super) left_port: Option<(DatapathId, u32)>,
    /// Flows refused to clients that do not wait for answers.
    pub(super) refused_flows: RefusedFlows,
}

impl State {
    pub(super) fn datapath(&self, id: DatapathId) -> Option<&DatapathRecord> {
        self.datapaths.get(&id)
    }

    pub(super) fn datapath_mut(&mut self, id: DatapathId) -> Option<&mut DatapathRecord> {
        self.datapaths.get_mut(&id)
    }

    /// The datapath of this number, for requests about its flows or meters.
    pub(super) fn expect(&self, id: DatapathId) -> Result<&DatapathRecord, Refusal> {
        self.datapath(id).ok_or(no_datapath())
    }

    pub(super) fn expect_mut(&mut self, id: DatapathId) -> Result<&mut DatapathRecord, Refusal> {
        self.datapath_mut(id).ok_or(no_datapath())
    }

    pub(super) fn datapaths_after(&self, after: i32) -> impl Iterator<Item = (DatapathId, &DatapathRecord)> {
        let from = DatapathId(after.saturating_add(1));
        self.datapaths.range(from..).map(|(id, known)| (*id, known))
    }

    /// Finds a datapath by name, if there is one; else by number.
    pub(super) fn find(&self, id: DatapathId, name: Option<&str>) -> Result<DatapathId, Refusal> {
        let mut all = self.datapaths.iter();
        let found = match name {
            Some(name) => all.find(|(_, known)| known.name == name).map(|(id, _)| *id),
            None => self.datapaths.contains_key(&id).then_some(id),
        };
        found.ok_or(no_datapath())
    }

    /// Finds a port by name.
    pub(super) fn port_named(&self, name: &str) -> Option<(DatapathId, u32)> {
        let ports =
            self.datapaths.iter().flat_map(|(id, known)| known.ports.values().map(|port| (*id, port)));
        ports.into_iter().find(|(_, port)| port.name == name).map(|(id, port)| (id, port.number))
    }

    /// A fresh number for a datapath: a client that does not know yet that one was removed must not confuse the two.
    pub(super) fn free_id(&self) -> Result<DatapathId, Refusal> {
        if self.datapaths.len() >= DATAPATHS_MAX {
            return Err(Refusal::new(Errno::ENOSPC, "the limit of datapaths is reached"));
        }
        let fresh = self.last_id.checked_add(1);
        let lowest = || (1..).find(|id| !self.datapaths.contains_key(&DatapathId(*id)));
        fresh.or_else(lowest).map(DatapathId).ok_or(no_datapath())
    }

    pub(super) fn insert(&mut self, id: DatapathId, known: DatapathRecord) {
        self.last_id = self.last_id.max(id.0);
        self.datapaths.insert(id, known);
    }

    pub(super) fn remove(&mut self, id: DatapathId) {
        self.datapaths.remove(&id);
        self.refused_flows.clear(id);
    }

    pub(super) fn records(&self) -> &BTreeMap<DatapathId, DatapathRecord> {
        &self.datapaths
    }
}

fn no_datapath() -> Refusal {
    Refusal::new(Errno::ENODEV, "there is no such datapath")
}
