//! The installed flows as the controller remembers them: by name, and by the addresses that they depend on.

use std::collections::{BTreeSet, HashMap};
use std::hash::BuildHasher;

use lasthop_bridge_policy::MAC_ONES;
use lasthop_flow::{Action, KeyedState, Ufid};

use crate::addresses::FdbKey;
use crate::bounds::ABOUT_FEW;
use crate::claims::Claims;
use crate::connection::Connection;
use crate::frame::{Frame, Looked};
use crate::slot_lists::SlotLists;

/// Prefix of the names of a controller's flows.
const MARK: [u8; 4] = *b"LHc1";

/// Whether a controller made the flow.
pub(crate) fn is_ours(ufid: Ufid) -> bool {
    ufid.0.starts_with(&MARK)
}

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
    /// By slot: the name and the flow, boxed so that growth moves little.
    slots: Vec<Option<(Ufid, Box<Flow>)>>,
    free: Vec<u32>,
    by_name: HashMap<Ufid, u32, KeyedState>,
    /// Names of flows that have another one than [`Flows::own_name`]: those of an earlier controller.
    names: HashMap<Likeness, Ufid, KeyedState>,
    /// The secret for new names: guests choose the packets, and must not be able to choose the name of another flow.
    secret: KeyedState,
    by_source: SlotLists<FdbKey>,
    by_destination: SlotLists<FdbKey>,
    /// Flows whose source could not be learned, by port.
    unlearned: BTreeSet<(u32, Ufid)>,
    /// Flows by their packets' input port, the oldest first.
    by_port: SlotLists<u32>,
}

impl Flows {
    pub(crate) fn len(&self) -> usize {
        self.by_name.len()
    }

    /// The name of the flow for these packets, existing or new.
    pub(crate) fn name(&self, frame: &Frame, looked: &Looked) -> Ufid {
        self.earlier_name(frame, looked).unwrap_or_else(|| self.own_name(frame, looked))
    }

    fn earlier_name(&self, frame: &Frame, looked: &Looked) -> Option<Ufid> {
        // Mostly there are none, and a look-up hashes some hundred bytes.
        if self.names.is_empty() { None } else { self.names.get(&(*frame, *looked)).copied() }
    }

    fn own_name(&self, frame: &Frame, looked: &Looked) -> Ufid {
        let mut bytes = [0; 16];
        let (head, tail) = bytes.split_at_mut(MARK.len());
        head.copy_from_slice(&MARK);
        // Two of 200,000 names are the same with a probability of 1e-9; then packets of one flow miss each time.
        let digest = self.digest(frame, looked);
        let more = self.secret.hash_one(digest);
        tail.copy_from_slice(&[digest.to_be_bytes(), more.to_be_bytes()].as_flattened()[..tail.len()]);
        Ufid(bytes)
    }

    /// The keyed hash of all fields. Most flows depend on addresses only, so it skips groups without a bit.
    fn digest(&self, frame: &Frame, looked: &Looked) -> u64 {
        let Frame { port, src, dst, ether_type, outer, inner, recirc_id, protocol, icmpv6_type, .. } = frame;
        let fields = (port, src, dst, ether_type, outer, inner, recirc_id, protocol, icmpv6_type);
        let Looked { src, dst, ether_type, tci, protocol, icmpv6_type, .. } = looked;
        let bits = (src, dst, ether_type, tci, protocol, icmpv6_type);
        let claims = [&frame.claims, &looked.claims]
            .map(|claims| Some(claims).filter(|one| **one != Claims::default()));
        let connections = [&frame.connection, &looked.connection];
        let connections = connections.map(|one| Some(one).filter(|one| **one != Connection::default()));
        self.secret.hash_one((fields, bits, claims, connections))
    }

    /// Whether the flow for these packets may have this name: no other flow has the name, and the flow has no other
    /// name.
    pub(crate) fn is_free_for(&self, ufid: Ufid, frame: &Frame, looked: &Looked) -> bool {
        let is_for = |flow: &Flow| (&flow.frame, &flow.looked) == (frame, looked);
        let own = self.own_name(frame, looked);
        let has_own_name = || own != ufid && self.get(own).is_some_and(is_for);
        self.get(ufid).is_none_or(is_for)
            && self.earlier_name(frame, looked).is_none_or(|name| name == ufid)
            && !has_own_name()
    }

    /// Number of flows of packets from a port.
    pub(crate) fn sum(&self, port: u32) -> usize {
        self.by_port.len(port)
    }

    /// A flow to evict for one more of `port`: the oldest of a port with most flows, if that has more than twice as
    /// many.
    pub(crate) fn evictable_for(&self, port: u32) -> Option<Ufid> {
        let (most, oldest) = self.by_port.longest()?;
        self.name_in(oldest).filter(|_| most > 2 * self.sum(port))
    }

    fn name_in(&self, slot: u32) -> Option<Ufid> {
        self.slots.get(slot as usize)?.as_ref().map(|(ufid, _)| *ufid)
    }

    pub(crate) fn get(&self, ufid: Ufid) -> Option<&Flow> {
        let slot = *self.by_name.get(&ufid)?;
        self.slots.get(slot as usize)?.as_ref().map(|(_, flow)| &**flow)
    }

    pub(crate) fn get_mut(&mut self, ufid: Ufid) -> Option<&mut Flow> {
        let slot = *self.by_name.get(&ufid)?;
        self.slots.get_mut(slot as usize)?.as_mut().map(|(_, flow)| &mut **flow)
    }

    /// Adds a flow under any name, in place of the one that has it.
    pub(crate) fn insert(&mut self, ufid: Ufid, flow: Flow) {
        self.remove(ufid);
        if self.own_name(&flow.frame, &flow.looked) != ufid {
            self.names.insert((flow.frame, flow.looked), ufid);
        }
        self.insert_new(ufid, flow);
    }

    /// Adds a flow under a new name of [`Self::name`].
    pub(crate) fn insert_new(&mut self, ufid: Ufid, flow: Flow) {
        // There are at most FLOWS_MAX flows and those of an earlier controller, far fewer than slots have numbers.
        let slot = self.free.pop().unwrap_or(self.slots.len() as u32);
        if let Some(fdb_key) = flow.source() {
            self.by_source.enter(fdb_key, slot);
        }
        if let Some(fdb_key) = flow.destination() {
            self.by_destination.enter(fdb_key, slot);
        }
        if flow.is_unlearned {
            self.unlearned.insert((flow.frame.port, ufid));
        }
        self.by_port.enter(flow.frame.port, slot);
        self.by_name.insert(ufid, slot);
        let flow = Some((ufid, Box::new(flow)));
        match self.slots.get_mut(slot as usize) {
            Some(place) => *place = flow,
            None => self.slots.push(flow),
        }
    }

    pub(crate) fn remove(&mut self, ufid: Ufid) -> Option<Flow> {
        let slot = self.by_name.remove(&ufid)?;
        let (_, flow) = self.slots.get_mut(slot as usize)?.take()?;
        self.free.push(slot);
        if let Some(fdb_key) = flow.source() {
            self.by_source.leave(fdb_key, slot);
        }
        if let Some(fdb_key) = flow.destination() {
            self.by_destination.leave(fdb_key, slot);
        }
        if flow.is_unlearned {
            self.unlearned.remove(&(flow.frame.port, ufid));
        }
        self.by_port.leave(flow.frame.port, slot);
        if self.earlier_name(&flow.frame, &flow.looked) == Some(ufid) {
            self.names.remove(&(flow.frame, flow.looked));
        }
        Some(*flow)
    }

    /// Flows that depend on an address.
    pub(crate) fn about(&self, fdb_key: FdbKey) -> Vec<Ufid> {
        let slots = self.by_source.of(fdb_key).chain(self.by_destination.of(fdb_key));
        slots.filter_map(|slot| self.name_in(slot)).collect()
    }

    /// Flows of packets from a port.
    pub(crate) fn of_port(&self, port: u32) -> Vec<Ufid> {
        self.by_port.of(port).filter_map(|slot| self.name_in(slot)).collect()
    }

    /// Flows of a port whose source could not be learned.
    pub(crate) fn unlearned(&self, port: u32) -> Vec<Ufid> {
        self.unlearned.range((port, LOWEST)..=(port, HIGHEST)).map(|(_, ufid)| *ufid).collect()
    }

    pub(crate) fn names(&self) -> Vec<Ufid> {
        self.iter().map(|(ufid, _)| ufid).collect()
    }

    pub(crate) fn into_flows(self) -> impl Iterator<Item = Flow> {
        self.slots.into_iter().flatten().map(|(_, flow)| *flow)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (Ufid, &Flow)> {
        self.slots.iter().flatten().map(|(ufid, flow)| (*ufid, &**flow))
    }

    /// Whether more than a few flows of a port have sources that could not be learned.
    pub(crate) fn has_many_unlearned(&self, port: u32) -> bool {
        self.unlearned.range((port, LOWEST)..=(port, HIGHEST)).nth(ABOUT_FEW).is_some()
    }

    /// The first flow in the slots from `slot` on, and its slot.
    pub(crate) fn at_or_behind(&self, slot: usize) -> Option<(usize, Ufid, &Flow)> {
        let slots = self.slots.iter().enumerate().skip(slot);
        let mut flows =
            slots.filter_map(|(slot, flow)| flow.as_ref().map(|(ufid, flow)| (slot, *ufid, &**flow)));
        flows.next()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flow(frame: Frame) -> Flow {
        let (actions, vid, used_ns, packets, round, is_unlearned) = Default::default();
        Flow { frame, looked: Looked::default(), actions, vid, used_ns, packets, round, is_unlearned }
    }

    #[test]
    fn a_flow_keeps_the_name_that_an_earlier_controller_gave_it() {
        let (mut flows, looked) = (Flows::default(), Looked::default());
        let [own, earlier] = [1, 2].map(|port| Frame { port, ..Frame::default() });
        let name = flows.name(&own, &looked);
        flows.insert(name, flow(own));
        assert!(flows.names.is_empty(), "an own name needs no entry");
        let given = Ufid(*b"LHc1 given name.");
        assert!(flows.is_free_for(given, &earlier, &looked));
        flows.insert(given, flow(earlier));
        assert_eq!(flows.name(&earlier, &looked), given);
        assert!(!flows.is_free_for(given, &own, &looked), "it is another flow's");
        let other = Ufid(*b"LHc1 other name.");
        for frame in [own, earlier] {
            assert!(!flows.is_free_for(other, &frame, &looked), "the flow has a name: {frame:?}");
        }
        flows.remove(given);
        assert!(flows.names.is_empty() && flows.is_free_for(other, &earlier, &looked));
        assert_eq!(flows.name(&own, &looked), name);
    }

    #[test]
    fn each_field_of_a_packet_changes_its_flows_name() {
        let flows = Flows::default();
        let claims = Claims { udp_src: 1, ..Claims::default() };
        let connection = Connection { mark: 1, ..Connection::default() };
        let frame = Frame::default();
        let frames = [
            frame,
            Frame { port: 1, ..frame },
            Frame { src: 1, ..frame },
            Frame { dst: 1, ..frame },
            Frame { ether_type: 1, ..frame },
            Frame { outer: (1, 0), ..frame },
            Frame { inner: 1, ..frame },
            Frame { recirc_id: 1, ..frame },
            Frame { protocol: 1, ..frame },
            Frame { icmpv6_type: 1, ..frame },
            Frame { claims, ..frame },
            Frame { connection, ..frame },
        ];
        let bits = Looked::default();
        let looked = [
            Looked { src: 1, ..bits },
            Looked { dst: 1, ..bits },
            Looked { ether_type: 1, ..bits },
            Looked { tci: 1, ..bits },
            Looked { protocol: 1, ..bits },
            Looked { icmpv6_type: 1, ..bits },
            Looked { claims, ..bits },
            Looked { connection, ..bits },
        ];
        let by_frame = frames.iter().map(|frame| flows.name(frame, &bits));
        let names: BTreeSet<Ufid> =
            by_frame.chain(looked.iter().map(|bits| flows.name(&frame, bits))).collect();
        assert_eq!(names.len(), frames.len() + looked.len());
        assert!(names.iter().all(|name| is_ours(*name)));
    }
}
