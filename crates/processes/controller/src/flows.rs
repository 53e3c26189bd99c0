//! The installed flows as the controller remembers them: by name, and by the addresses that they depend on.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::{BuildHasher, RandomState};
use std::ops::Bound;

use lasthop_bridge_policy::MAC_ONES;
use lasthop_flow::{Action, Ufid};

use crate::addresses::FdbKey;
use crate::bounds::ABOUT_FEW;
use crate::frame::{Frame, Looked};

/// Prefix of the names of a controller's flows.
const MARK: [u8; 4] = *b"LHc1";

/// Whether a controller made the flow.
pub(crate) fn is_ours(ufid: Ufid) -> bool {
    ufid.0.starts_with(&MARK)
}

/// A flow's port and name.
pub(crate) type FlowPlace = (u32, Ufid);

/// In front of all flows.
pub(crate) const FIRST_PLACE: FlowPlace = (0, LOWEST);

const LOWEST: Ufid = Ufid([0; 16]);
const HIGHEST: Ufid = Ufid([0xff; 16]);

/// A flow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Flow {
    /// The frame, with only the bits that the decision depended on.
    pub(crate) frame: Frame,
    pub(crate) looked: Looked,
    pub(crate) actions: Vec<Action>,
    /// The VLAN of its packets, if they are admitted.
    pub(crate) vid: Option<u16>,
    /// Time of the last packet, or of the installation, in ns.
    pub(crate) used_ns: u64,
    /// Number of its packets.
    pub(crate) packets: u64,
    /// The last counting round that reported it.
    pub(crate) round: u64,
    /// Whether its source could not be learned.
    pub(crate) is_unlearned: bool,
}

impl Flow {
    fn source(&self) -> Option<FdbKey> {
        self.vid.filter(|_| self.looked.src == MAC_ONES).map(|vid| (vid, self.frame.src))
    }

    fn destination(&self) -> Option<FdbKey> {
        self.vid.filter(|_| self.looked.dst == MAC_ONES).map(|vid| (vid, self.frame.dst))
    }
}

/// The fields that all packets of a flow share; they identify the flow.
type Likeness = (Frame, Looked);

/// All flows of one switch.
#[derive(Debug, Default)]
pub(crate) struct Flows {
    flows: HashMap<Ufid, Flow>,
    names: HashMap<Likeness, Ufid>,
    /// The secret for new names: guests choose the packets, and must not be able to choose the name of another flow.
    secret: RandomState,
    by_source: BTreeSet<(FdbKey, Ufid)>,
    by_destination: BTreeSet<(FdbKey, Ufid)>,
    /// Flows whose source could not be learned, by port.
    unlearned: BTreeSet<(u32, Ufid)>,
    /// Flows by their packets' input port.
    by_port: BTreeMap<u32, BTreeSet<Ufid>>,
}

impl Flows {
    pub(crate) fn len(&self) -> usize {
        self.flows.len()
    }

    /// The name of the flow for these packets, existing or new.
    pub(crate) fn name(&self, frame: &Frame, looked: &Looked) -> Ufid {
        self.names.get(&(*frame, *looked)).copied().unwrap_or_else(|| self.new_name(frame, looked))
    }

    fn new_name(&self, frame: &Frame, looked: &Looked) -> Ufid {
        let mut bytes = [0; 16];
        let (head, tail) = bytes.split_at_mut(MARK.len());
        head.copy_from_slice(&MARK);
        let digest = |salt: u8| self.secret.hash_one((salt, frame, looked)).to_be_bytes();
        tail.copy_from_slice(&[digest(0), digest(1)].as_flattened()[..tail.len()]);
        Ufid(bytes)
    }

    /// Whether the flow for these packets may have this name: no other flow has the name, and the flow has no other
    /// name.
    pub(crate) fn is_free_for(&self, ufid: Ufid, frame: &Frame, looked: &Looked) -> bool {
        let likeness = (*frame, *looked);
        let is_own = |flow: &Flow| (flow.frame, flow.looked) == likeness;
        self.flows.get(&ufid).is_none_or(is_own) && self.names.get(&likeness).is_none_or(|name| *name == ufid)
    }

    /// Number of flows of packets from a port.
    pub(crate) fn sum(&self, port: u32) -> usize {
        self.by_port.get(&port).map_or(0, BTreeSet::len)
    }

    /// A flow to evict for one more of `port`: one of the port with most flows, if that has more than twice as many.
    pub(crate) fn evictable_for(&self, port: u32) -> Option<Ufid> {
        let most = self.by_port.values().max_by_key(|flows| flows.len())?;
        // Names are random, so no guest can choose the flow.
        most.first().copied().filter(|_| most.len() > 2 * self.sum(port))
    }

    pub(crate) fn get(&self, ufid: Ufid) -> Option<&Flow> {
        self.flows.get(&ufid)
    }

    pub(crate) fn get_mut(&mut self, ufid: Ufid) -> Option<&mut Flow> {
        self.flows.get_mut(&ufid)
    }

    pub(crate) fn insert(&mut self, ufid: Ufid, flow: Flow) {
        self.remove(ufid);
        self.by_source.extend(flow.source().map(|fdb_key| (fdb_key, ufid)));
        self.by_destination.extend(flow.destination().map(|fdb_key| (fdb_key, ufid)));
        self.unlearned.extend(flow.is_unlearned.then_some((flow.frame.port, ufid)));
        self.by_port.entry(flow.frame.port).or_default().insert(ufid);
        self.names.insert((flow.frame, flow.looked), ufid);
        self.flows.insert(ufid, flow);
    }

    pub(crate) fn remove(&mut self, ufid: Ufid) -> Option<Flow> {
        let flow = self.flows.remove(&ufid)?;
        for (index, fdb_key) in
            [(&mut self.by_source, flow.source()), (&mut self.by_destination, flow.destination())]
        {
            fdb_key.map(|fdb_key| index.remove(&(fdb_key, ufid)));
        }
        self.unlearned.remove(&(flow.frame.port, ufid));
        let likeness = (flow.frame, flow.looked);
        if self.names.get(&likeness) == Some(&ufid) {
            self.names.remove(&likeness);
        }
        if let Entry::Occupied(mut own) = self.by_port.entry(flow.frame.port) {
            own.get_mut().remove(&ufid);
            if own.get().is_empty() {
                own.remove();
            }
        }
        Some(flow)
    }

    /// Flows that depend on an address.
    pub(crate) fn about(&self, fdb_key: FdbKey) -> Vec<Ufid> {
        let of = |index: &BTreeSet<(FdbKey, Ufid)>| -> Vec<Ufid> {
            index.range((fdb_key, LOWEST)..=(fdb_key, HIGHEST)).map(|(_, ufid)| *ufid).collect()
        };
        [of(&self.by_source), of(&self.by_destination)].concat()
    }

    /// Flows of a port whose source could not be learned.
    pub(crate) fn unlearned(&self, port: u32) -> Vec<Ufid> {
        self.unlearned.range((port, LOWEST)..=(port, HIGHEST)).map(|(_, ufid)| *ufid).collect()
    }

    pub(crate) fn names(&self) -> Vec<Ufid> {
        self.flows.keys().copied().collect()
    }

    pub(crate) fn into_flows(self) -> impl Iterator<Item = Flow> {
        self.flows.into_values()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (Ufid, &Flow)> {
        self.flows.iter().map(|(ufid, flow)| (*ufid, flow))
    }

    /// Whether more than a few flows of a port have sources that could not be learned.
    pub(crate) fn has_many_unlearned(&self, port: u32) -> bool {
        self.unlearned.range((port, LOWEST)..=(port, HIGHEST)).nth(ABOUT_FEW).is_some()
    }

    /// Up to `max` flows behind a place, by port and name; the next place is that of the last one.
    pub(crate) fn behind(&self, (port, ufid): FlowPlace, max: usize) -> Vec<FlowPlace> {
        let of_port = |(number, flows): (&u32, &BTreeSet<Ufid>)| -> Vec<FlowPlace> {
            let from = if *number == port { Bound::Excluded(ufid) } else { Bound::Unbounded };
            flows.range((from, Bound::Unbounded)).take(max).map(|ufid| (*number, *ufid)).collect()
        };
        self.by_port.range(port..).flat_map(of_port).take(max).collect()
    }
}
