//! The forwarding table: addresses learned from sources of frames, or configured.
//!
//! A learned address belongs to one VLAN. A configured one holds in one VLAN, or in all that its port carries. An
//! address ages from the time at which it was last seen, in a packet that came here or in the counters of a flow.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use lasthop_bridge_policy::entry_holds;
use lasthop_flow::KeyedState;
use lasthop_module_api::Vid;

use crate::bounds::MOVES_MAX;
use crate::ports::Port;

/// A VLAN, or 0 for none, and an address.
pub(crate) type FdbKey = (u16, u64);

/// A learned address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Learned {
    pub(crate) port: u32,
    pub(crate) seen_ns: u64,
}

/// A configured entry, or a port's own address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Static {
    pub(crate) port: u32,
    /// `None` for every VLAN that the port carries.
    pub(crate) vlan: Option<Vid>,
}

impl Static {
    fn holds_in(&self, vid: u16, ports: &BTreeMap<u32, Port>) -> bool {
        let carries = |vid| ports.get(&self.port).is_some_and(|port| port.carries(vid));
        entry_holds(self.vlan.map(Vid::get), vid, carries)
    }
}

/// An address that changed ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Move {
    pub(crate) fdb_key: FdbKey,
    pub(crate) from: u32,
    pub(crate) to: u32,
    pub(crate) count: u32,
    pub(crate) last_ns: u64,
}

/// The result of learning from a source address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LearnResult {
    /// The known address is unchanged.
    Unchanged,
    /// The address is new, or moved to another port.
    Changed,
}

/// Bounds and times.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AddressLimits {
    pub(crate) entries_max: usize,
    pub(crate) port_max: usize,
    pub(crate) ageing_ns: u64,
}

/// Events so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct AddressCounts {
    pub(crate) learned: u64,
    pub(crate) moved: u64,
    pub(crate) aged_out: u64,
    pub(crate) limit_hit: u64,
    pub(crate) table_full: u64,
}

/// All addresses of one switch.
#[derive(Clone, Debug)]
pub(crate) struct Addresses {
    limits: AddressLimits,
    learned: HashMap<FdbKey, Learned, KeyedState>,
    /// Number of addresses learned at each port.
    sums: HashMap<u32, usize, KeyedState>,
    statics: HashMap<u64, Vec<Static>, KeyedState>,
    moves: Vec<Move>,
    /// Ports that have room again after they had none.
    freed: BTreeSet<u32>,
    /// Whether the whole table has room again after it had none.
    is_unblocked: bool,
    pub(crate) counts: AddressCounts,
}

impl Addresses {
    pub(crate) fn new(limits: AddressLimits) -> Self {
        Self {
            limits,
            learned: HashMap::default(),
            sums: HashMap::default(),
            statics: HashMap::default(),
            moves: Vec::new(),
            freed: BTreeSet::new(),
            is_unblocked: false,
            counts: AddressCounts::default(),
        }
    }

    /// Replaces all configured entries. Forgets learned addresses that they cover.
    pub(crate) fn set_statics(
        &mut self,
        entries: impl Iterator<Item = (u64, Static)>,
        ports: &BTreeMap<u32, Port>,
    ) {
        self.statics.clear();
        for (mac, entry) in entries {
            self.statics.entry(mac).or_default().push(entry);
        }
        let taken = |fdb_key: &FdbKey| self.find_static(*fdb_key, ports).is_some();
        let fdb_keys: Vec<FdbKey> = self.learned.keys().filter(|fdb_key| taken(fdb_key)).copied().collect();
        fdb_keys.into_iter().for_each(|fdb_key| self.forget(fdb_key));
    }

    /// The static entry for an address and VLAN.
    pub(crate) fn find_static(&self, fdb_key: FdbKey, ports: &BTreeMap<u32, Port>) -> Option<Static> {
        let entries = self.statics.get(&fdb_key.1)?;
        entries.iter().find(|entry| entry.holds_in(fdb_key.0, ports)).copied()
    }

    /// Configured addresses at `port` in VLAN `vid`.
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

    /// The port of an address.
    pub(crate) fn find(&self, fdb_key: FdbKey, ports: &BTreeMap<u32, Port>, now_ns: u64) -> Option<u32> {
        match self.find_static(fdb_key, ports) {
            Some(entry) => Some(entry.port),
            None => self
                .learned
                .get(&fdb_key)
                .filter(|entry| !self.is_aged(entry, now_ns))
                .map(|entry| entry.port),
        }
    }

    fn is_aged(&self, entry: &Learned, now_ns: u64) -> bool {
        entry.seen_ns.saturating_add(self.limits.ageing_ns) < now_ns
    }

    /// Learns an address at `port`, which was seen at `seen_ns` at latest.
    pub(crate) fn learn(&mut self, fdb_key: FdbKey, number: u32, port: &Port, seen_ns: u64) -> LearnResult {
        let port_max = self.port_max(port);
        match self.learned.get(&fdb_key).copied() {
            Some(old) if old.port == number => self.refresh(fdb_key, old, seen_ns),
            Some(old) => {
                self.forget(fdb_key);
                self.note_move(fdb_key, (old.port, number), seen_ns);
                if self.insert(fdb_key, number, port_max, seen_ns) {
                    self.counts.moved += 1;
                }
                LearnResult::Changed
            }
            None if self.insert(fdb_key, number, port_max, seen_ns) => {
                self.counts.learned += 1;
                LearnResult::Changed
            }
            None => LearnResult::Unchanged,
        }
    }

    fn refresh(&mut self, fdb_key: FdbKey, old: Learned, seen_ns: u64) -> LearnResult {
        let was_aged = self.is_aged(&old, seen_ns);
        let seen_ns = old.seen_ns.max(seen_ns);
        self.learned.insert(fdb_key, Learned { seen_ns, ..old });
        if was_aged { LearnResult::Changed } else { LearnResult::Unchanged }
    }

    fn insert(&mut self, fdb_key: FdbKey, port: u32, port_max: usize, seen_ns: u64) -> bool {
        if self.sum(port) >= port_max {
            self.counts.limit_hit += 1;
            return false;
        }
        if self.learned.len() >= self.limits.entries_max {
            self.counts.table_full += 1;
            return false;
        }
        self.learned.insert(fdb_key, Learned { port, seen_ns });
        *self.sums.entry(port).or_default() += 1;
        true
    }

    /// Number of addresses learned at a port.
    pub(crate) fn sum(&self, port: u32) -> usize {
        self.sums.get(&port).copied().unwrap_or(0)
    }

    fn forget(&mut self, fdb_key: FdbKey) {
        self.is_unblocked |= self.learned.len() >= self.limits.entries_max;
        if let Some(entry) = self.learned.remove(&fdb_key)
            && let Some(sum) = self.sums.get_mut(&entry.port)
        {
            *sum -= 1;
            self.freed.insert(entry.port);
        }
    }

    /// Takes the ports that have room again since the last call; all ports, if the second value is true. `None` if no
    /// port has.
    pub(crate) fn take_freed(&mut self) -> Option<(BTreeSet<u32>, bool)> {
        let has_news = self.is_unblocked || !self.freed.is_empty();
        has_news.then(|| (std::mem::take(&mut self.freed), std::mem::take(&mut self.is_unblocked)))
    }

    /// Whether another address could be learned at a port.
    pub(crate) fn has_room(&self, number: u32, port: &Port) -> bool {
        self.sum(number) < self.port_max(port) && self.learned.len() < self.limits.entries_max
    }

    fn port_max(&self, port: &Port) -> usize {
        port.settings.macs_max.map_or(self.limits.port_max, |max| max as usize)
    }

    /// Notes that a packet of a flow from `port` had this source address. Learns nothing.
    pub(crate) fn seen(&mut self, fdb_key: FdbKey, port: u32, seen_ns: u64) {
        if let Some(entry) = self.learned.get_mut(&fdb_key).filter(|entry| entry.port == port) {
            entry.seen_ns = entry.seen_ns.max(seen_ns);
        }
    }

    pub(crate) fn learned(&self, fdb_key: FdbKey) -> Option<Learned> {
        self.learned.get(&fdb_key).copied()
    }

    /// Forgets aged addresses, and returns them.
    pub(crate) fn sweep(&mut self, now_ns: u64) -> Vec<FdbKey> {
        let aged = self.learned.iter().filter(|(_, entry)| self.is_aged(entry, now_ns));
        let fdb_keys: Vec<FdbKey> = aged.map(|(fdb_key, _)| *fdb_key).collect();
        self.counts.aged_out += fdb_keys.len() as u64;
        fdb_keys.iter().for_each(|fdb_key| self.forget(*fdb_key));
        fdb_keys
    }

    /// Forgets learned addresses, of one port or all, of one VLAN or all, and returns them.
    pub(crate) fn flush(&mut self, port: Option<u32>, vlan: Option<Vid>) -> Vec<FdbKey> {
        let chosen = self.learned.iter().filter(|((vid, _), entry)| {
            port.is_none_or(|port| entry.port == port) && vlan.is_none_or(|vlan| vlan.get() == *vid)
        });
        let fdb_keys: Vec<FdbKey> = chosen.map(|(fdb_key, _)| *fdb_key).collect();
        fdb_keys.iter().for_each(|fdb_key| self.forget(*fdb_key));
        fdb_keys
    }

    fn note_move(&mut self, fdb_key: FdbKey, (from, to): (u32, u32), now_ns: u64) {
        let known = self.moves.iter().position(|entry| entry.fdb_key == fdb_key);
        let count = known.and_then(|at| self.moves.get(at)).map_or(0, |entry| entry.count);
        let entry = Move { fdb_key, from, to, count: count.saturating_add(1), last_ns: now_ns };
        let oldest = || (0..self.moves.len()).min_by_key(|at| self.moves.get(*at).map(|entry| entry.last_ns));
        let at = known.or_else(|| oldest().filter(|_| self.moves.len() >= MOVES_MAX));
        match at.and_then(|at| self.moves.get_mut(at)) {
            Some(old) => *old = entry,
            None => self.moves.push(entry),
        }
    }

    /// Forgets a port, whose number another port may get.
    pub(crate) fn forget_port(&mut self, port: u32) -> Vec<FdbKey> {
        self.moves.retain(|entry| entry.from != port && entry.to != port);
        let fdb_keys = self.flush(Some(port), None);
        self.sums.remove(&port);
        fdb_keys
    }

    /// When the next address ages out, if there is one.
    pub(crate) fn ageing_due_ns(&self) -> Option<u64> {
        let ageing_ns = self.limits.ageing_ns + 1;
        self.learned.values().map(|entry| entry.seen_ns.saturating_add(ageing_ns)).min()
    }

    /// Live learned addresses.
    pub(crate) fn all_learned(&self, now_ns: u64) -> impl Iterator<Item = (FdbKey, Learned)> {
        let live = self.learned.iter().filter(move |(_, entry)| !self.is_aged(entry, now_ns));
        live.map(|(fdb_key, entry)| (*fdb_key, *entry))
    }

    /// Addresses that moved recently.
    pub(crate) fn moves(&self) -> &[Move] {
        &self.moves
    }
}
