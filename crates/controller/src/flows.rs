//! The flows that were installed, as the controller remembers them: found by name, and by the addresses that they depend on.

use std::collections::{BTreeSet, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};

use lasthop_flow::{Action, Ufid};

use crate::addresses::Place;
use crate::frame::{Frame, Looked, MAC_ONES};

/// What names of flows begin with that the controller made.
const MARK: [u8; 4] = *b"LHc1";

/// The name of the flow for these packets: the same whoever makes it, so that a controller that comes back makes none twice.
pub(crate) fn name(frame: &Frame, looked: &Looked) -> Ufid {
    let mut bytes = [0; 16];
    let (head, tail) = bytes.split_at_mut(MARK.len());
    head.copy_from_slice(&MARK);
    let digests: Vec<u8> =
        [0_u8, 1].iter().flat_map(|salt| digest((salt, frame, looked)).to_be_bytes()).collect();
    tail.copy_from_slice(&digests[..tail.len()]);
    Ufid(bytes)
}

fn digest(of: impl Hash) -> u64 {
    // Without a secret: others' packets decide about names, and of two flows with one name the second is not installed.
    let mut hasher = DefaultHasher::new();
    of.hash(&mut hasher);
    hasher.finish()
}

/// Whether a controller made it.
pub(crate) fn is_ours(ufid: Ufid) -> bool {
    ufid.0.starts_with(&MARK)
}

const LOWEST: Ufid = Ufid([0; 16]);
const HIGHEST: Ufid = Ufid([0xff; 16]);

/// A flow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Flow {
    /// Without what was not looked at.
    pub(crate) frame: Frame,
    pub(crate) looked: Looked,
    pub(crate) actions: Vec<Action>,
    /// The VLAN of its packets, if they get so far.
    pub(crate) vid: Option<u16>,
    /// When a packet last met it, or when it was made, in ns.
    pub(crate) used_ns: u64,
    /// Packets that met it.
    pub(crate) packets: u64,
    /// The round of counting that it was last seen in.
    pub(crate) round: u64,
    /// Its source could not be learned.
    pub(crate) is_stranger: bool,
}

impl Flow {
    fn source(&self) -> Option<Place> {
        self.vid.filter(|_| self.looked.src == MAC_ONES).map(|vid| (vid, self.frame.src))
    }

    fn destination(&self) -> Option<Place> {
        self.vid.filter(|_| self.looked.dst == MAC_ONES).map(|vid| (vid, self.frame.dst))
    }
}

/// All of one switch.
#[derive(Debug, Default)]
pub(crate) struct Flows {
    flows: HashMap<Ufid, Flow>,
    by_source: BTreeSet<(Place, Ufid)>,
    by_destination: BTreeSet<(Place, Ufid)>,
    /// By port, those whose source could not be learned.
    strangers: BTreeSet<(u32, Ufid)>,
    /// By port where their packets come in.
    sums: HashMap<u32, usize>,
}

impl Flows {
    pub(crate) fn len(&self) -> usize {
        self.flows.len()
    }

    /// Flows of packets from a port.
    pub(crate) fn sum(&self, port: u32) -> usize {
        self.sums.get(&port).copied().unwrap_or(0)
    }

    pub(crate) fn get(&self, ufid: Ufid) -> Option<&Flow> {
        self.flows.get(&ufid)
    }

    pub(crate) fn get_mut(&mut self, ufid: Ufid) -> Option<&mut Flow> {
        self.flows.get_mut(&ufid)
    }

    pub(crate) fn insert(&mut self, ufid: Ufid, flow: Flow) {
        self.remove(ufid);
        self.by_source.extend(flow.source().map(|place| (place, ufid)));
        self.by_destination.extend(flow.destination().map(|place| (place, ufid)));
        self.strangers.extend(flow.is_stranger.then_some((flow.frame.port, ufid)));
        *self.sums.entry(flow.frame.port).or_default() += 1;
        self.flows.insert(ufid, flow);
    }

    pub(crate) fn remove(&mut self, ufid: Ufid) -> Option<Flow> {
        let flow = self.flows.remove(&ufid)?;
        for (index, place) in
            [(&mut self.by_source, flow.source()), (&mut self.by_destination, flow.destination())]
        {
            place.map(|place| index.remove(&(place, ufid)));
        }
        self.strangers.remove(&(flow.frame.port, ufid));
        if let Some(sum) = self.sums.get_mut(&flow.frame.port) {
            *sum -= 1;
        }
        Some(flow)
    }

    /// Flows that depend on where an address is.
    pub(crate) fn about(&self, place: Place) -> Vec<Ufid> {
        let of = |index: &BTreeSet<(Place, Ufid)>| -> Vec<Ufid> {
            index.range((place, LOWEST)..=(place, HIGHEST)).map(|(_, ufid)| *ufid).collect()
        };
        [of(&self.by_source), of(&self.by_destination)].concat()
    }

    /// Flows from a port whose source could not be learned.
    pub(crate) fn strangers(&self, port: u32) -> Vec<Ufid> {
        self.strangers.range((port, LOWEST)..=(port, HIGHEST)).map(|(_, ufid)| *ufid).collect()
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
}
