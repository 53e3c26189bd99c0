//! Where addresses are: learned from sources of frames, or entered by the user.
//!
//! A learned address is of one VLAN. One that was entered holds in one VLAN, or in all that its port carries. Ageing is by
//! the time that an address was last seen, in a packet that came here or in the counters of a flow.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use lasthop_verdict::Vid;

use crate::bounds::MOVES_MAX;
use crate::ports::Port;

/// A VLAN, or none, and an address.
pub(crate) type Place = (u16, u64);

/// A learned address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Learned {
    pub(crate) port: u32,
    pub(crate) seen_ns: u64,
}

/// An entry of the user's, or a port's own address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Static {
    pub(crate) port: u32,
    /// `None` is every VLAN that the port carries.
    pub(crate) vlan: Option<Vid>,
}

impl Static {
    fn holds_in(&self, vid: u16, ports: &BTreeMap<u32, Port>) -> bool {
        let carries = || ports.get(&self.port).is_some_and(|port| port.carries(vid));
        self.vlan.map_or_else(carries, |own| own.get() == vid)
    }
}

/// An address that changed ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Move {
    pub(crate) place: Place,
    pub(crate) from: u32,
    pub(crate) to: u32,
    pub(crate) count: u32,
    pub(crate) last_ns: u64,
}

/// What came of a source address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lesson {
    /// What is known of addresses is as before.
    Nothing,
    /// The address is reached through another port than before, or is known at all.
    News,
}

/// Bounds and times.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) entries_max: usize,
    pub(crate) port_max: usize,
    pub(crate) ageing_ns: u64,
}

/// Events so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) learned: u64,
    pub(crate) moved: u64,
    pub(crate) aged_out: u64,
    pub(crate) limit_hit: u64,
    pub(crate) table_full: u64,
}

/// All addresses of one switch.
#[derive(Debug)]
pub(crate) struct Addresses {
    limits: Limits,
    learned: HashMap<Place, Learned>,
    /// By port: how many were learned there.
    sums: HashMap<u32, usize>,
    statics: HashMap<u64, Vec<Static>>,
    moves: Vec<Move>,
    /// Ports that have room for an address more than they had.
    freed: BTreeSet<u32>,
    /// The whole table has, and had none.
    is_unblocked: bool,
    pub(crate) counts: Counts,
}

impl Addresses {
    pub(crate) fn new(limits: Limits) -> Self {
        Self {
            limits,
            learned: HashMap::new(),
            sums: HashMap::new(),
            statics: HashMap::new(),
            moves: Vec::new(),
            freed: BTreeSet::new(),
            is_unblocked: false,
            counts: Counts::default(),
        }
    }

    /// Takes these in place of all that were entered before. What was learned where they hold is forgotten; those places.
    pub(crate) fn set_statics(
        &mut self,
        entries: impl Iterator<Item = (u64, Static)>,
        ports: &BTreeMap<u32, Port>,
    ) {
        self.statics.clear();
        for (mac, entry) in entries {
            self.statics.entry(mac).or_default().push(entry);
        }
        let taken = |place: &Place| self.find_static(*place, ports).is_some();
        let places: Vec<Place> = self.learned.keys().filter(|place| taken(place)).copied().collect();
        places.into_iter().for_each(|place| self.forget(place));
    }

    /// The entry of the user's for an address in VLAN `place.0`.
    pub(crate) fn find_static(&self, place: Place, ports: &BTreeMap<u32, Port>) -> Option<Static> {
        let entries = self.statics.get(&place.1)?;
        entries.iter().find(|entry| entry.holds_in(place.0, ports)).copied()
    }

    /// Addresses of the user's at `port` in VLAN `vid`.
    pub(crate) fn statics_of(
        &self,
        port: u32,
        vid: u16,
        ports: &BTreeMap<u32, Port>,
    ) -> impl Iterator<Item = u64> {
        let entries =
            self.statics.iter().flat_map(|(mac, entries)| entries.iter().map(|entry| (*mac, *entry)));
        entries.filter(move |(_, entry)| entry.port == port && entry.holds_in(vid, ports)).map(|(mac, _)| mac)
    }

    /// Where an address is reached.
    pub(crate) fn find(&self, place: Place, ports: &BTreeMap<u32, Port>, now_ns: u64) -> Option<u32> {
        match self.find_static(place, ports) {
            Some(entry) => Some(entry.port),
            None => {
                self.learned.get(&place).filter(|entry| !self.is_aged(entry, now_ns)).map(|entry| entry.port)
            }
        }
    }

    fn is_aged(&self, entry: &Learned, now_ns: u64) -> bool {
        entry.seen_ns.saturating_add(self.limits.ageing_ns) < now_ns
    }

    /// Learns that an address is behind `port`, which was seen `seen_ns` ago at latest.
    pub(crate) fn learn(&mut self, place: Place, number: u32, port: &Port, seen_ns: u64) -> Lesson {
        let port_max = self.port_max(port);
        match self.learned.get(&place).copied() {
            Some(old) if old.port == number => self.refresh(place, old, seen_ns),
            Some(old) => {
                self.forget(place);
                self.note_move(place, (old.port, number), seen_ns);
                if self.insert(place, number, port_max, seen_ns) {
                    self.counts.moved += 1;
                }
                Lesson::News
            }
            None if self.insert(place, number, port_max, seen_ns) => {
                self.counts.learned += 1;
                Lesson::News
            }
            None => Lesson::Nothing,
        }
    }

    fn refresh(&mut self, place: Place, old: Learned, seen_ns: u64) -> Lesson {
        let was_aged = self.is_aged(&old, seen_ns);
        let seen_ns = old.seen_ns.max(seen_ns);
        self.learned.insert(place, Learned { seen_ns, ..old });
        if was_aged { Lesson::News } else { Lesson::Nothing }
    }

    fn insert(&mut self, place: Place, port: u32, port_max: usize, seen_ns: u64) -> bool {
        if self.sum(port) >= port_max {
            self.counts.limit_hit += 1;
            return false;
        }
        if self.learned.len() >= self.limits.entries_max {
            self.counts.table_full += 1;
            return false;
        }
        self.learned.insert(place, Learned { port, seen_ns });
        *self.sums.entry(port).or_default() += 1;
        true
    }

    /// Addresses learned from a port.
    pub(crate) fn sum(&self, port: u32) -> usize {
        self.sums.get(&port).copied().unwrap_or(0)
    }

    fn forget(&mut self, place: Place) {
        self.is_unblocked |= self.learned.len() >= self.limits.entries_max;
        if let Some(entry) = self.learned.remove(&place)
            && let Some(sum) = self.sums.get_mut(&entry.port)
        {
            *sum -= 1;
            self.freed.insert(entry.port);
        }
    }

    /// Ports that have more room for addresses since this was last called; all, if the second one says so.
    pub(crate) fn take_freed(&mut self) -> (BTreeSet<u32>, bool) {
        (std::mem::take(&mut self.freed), std::mem::take(&mut self.is_unblocked))
    }

    /// Whether another address could be learned from a port.
    pub(crate) fn has_room(&self, number: u32, port: &Port) -> bool {
        self.sum(number) < self.port_max(port) && self.learned.len() < self.limits.entries_max
    }

    fn port_max(&self, port: &Port) -> usize {
        port.settings.macs_max.map_or(self.limits.port_max, |max| max as usize)
    }

    /// The address was in a packet of a flow from `port`. Nothing is learned.
    pub(crate) fn seen(&mut self, place: Place, port: u32, seen_ns: u64) {
        if let Some(entry) = self.learned.get_mut(&place).filter(|entry| entry.port == port) {
            entry.seen_ns = entry.seen_ns.max(seen_ns);
        }
    }

    pub(crate) fn learned(&self, place: Place) -> Option<Learned> {
        self.learned.get(&place).copied()
    }

    /// Forgets what has aged out; those places.
    pub(crate) fn sweep(&mut self, now_ns: u64) -> Vec<Place> {
        let aged = self.learned.iter().filter(|(_, entry)| self.is_aged(entry, now_ns));
        let places: Vec<Place> = aged.map(|(place, _)| *place).collect();
        self.counts.aged_out += places.len() as u64;
        places.iter().for_each(|place| self.forget(*place));
        places
    }

    /// Forgets learned addresses, of one port or all, of one VLAN or all; those places.
    pub(crate) fn flush(&mut self, port: Option<u32>, vlan: Option<Vid>) -> Vec<Place> {
        let chosen = self.learned.iter().filter(|((vid, _), entry)| {
            port.is_none_or(|port| entry.port == port) && vlan.is_none_or(|vlan| vlan.get() == *vid)
        });
        let places: Vec<Place> = chosen.map(|(place, _)| *place).collect();
        places.iter().for_each(|place| self.forget(*place));
        places
    }

    fn note_move(&mut self, place: Place, (from, to): (u32, u32), now_ns: u64) {
        let known = self.moves.iter().position(|entry| entry.place == place);
        let count = known.and_then(|at| self.moves.get(at)).map_or(0, |entry| entry.count);
        let entry = Move { place, from, to, count: count.saturating_add(1), last_ns: now_ns };
        let oldest = || (0..self.moves.len()).min_by_key(|at| self.moves.get(*at).map(|entry| entry.last_ns));
        let at = known.or_else(|| oldest().filter(|_| self.moves.len() >= MOVES_MAX));
        match at.and_then(|at| self.moves.get_mut(at)) {
            Some(old) => *old = entry,
            None => self.moves.push(entry),
        }
    }

    /// A port goes: its number may be another's next.
    pub(crate) fn forget_port(&mut self, port: u32) -> Vec<Place> {
        self.moves.retain(|entry| entry.from != port && entry.to != port);
        let places = self.flush(Some(port), None);
        self.sums.remove(&port);
        places
    }

    /// When the next one is aged, if there is one.
    pub(crate) fn ageing_due_ns(&self) -> Option<u64> {
        let ageing_ns = self.limits.ageing_ns + 1;
        self.learned.values().map(|entry| entry.seen_ns.saturating_add(ageing_ns)).min()
    }

    /// Live learned addresses.
    pub(crate) fn all_learned(&self, now_ns: u64) -> impl Iterator<Item = (Place, Learned)> {
        let live = self.learned.iter().filter(move |(_, entry)| !self.is_aged(entry, now_ns));
        live.map(|(place, entry)| (*place, *entry))
    }

    /// Addresses that moved lately.
    pub(crate) fn moves(&self) -> &[Move] {
        &self.moves
    }
}
