//! The writer's view of a shard: inserts connections within the limits, and removes them.

use std::sync::MutexGuard;
use std::sync::atomic::Ordering;

use lasthop_ct_packet::{CtTuple, Direction};

use crate::begun::Entry;
use crate::bounds::{CtRefusal, SHARDS};
use crate::connection::{Connection, CtId, is_evictable};
use crate::index::{CHAIN_MAX, Search};
use crate::links::ListKind;
use crate::place::Place;
use crate::real_table::RealTable;
use crate::shard::{Count, Shard, ShardState, Shared};

/// The reason why a connection is removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Expired,
    Evicted,
    Deleted,
}

/// Changes of packets that a writer follows up at most, so that its own work begins soon.
const CHANGES_MAX: u32 = 64;
/// Connections that are tried for an eviction, if other workers are using the first ones.
const EVICTIONS_MAX: u32 = 4;
/// Attempts to make room, since another worker may use the room first.
const ROOMS_MAX: u32 = 4;
/// Attempts to take a busy connection for its removal.
const REMOVALS_MAX: u32 = 16;

/// A shard, with its lock held.
#[derive(Debug)]
pub(crate) struct Table<'a> {
    pub(crate) shared: &'a Shared,
    pub(crate) shard: &'a Shard,
    pub(crate) state: MutexGuard<'a, ShardState>,
    /// The table that this one lies over, in a dry run.
    pub(crate) beneath: Option<RealTable<'a>>,
}

impl<'a> Table<'a> {
    /// Locks a zone's shard.
    pub(crate) fn of_zone(shared: &'a Shared, zone: u16) -> Self {
        Self::of_shard(shared, Shared::shard_number(zone))
    }

    /// Locks a shard.
    pub(crate) fn of_shard(shared: &'a Shared, number: usize) -> Self {
        let shard = &shared.shards[number % SHARDS];
        Self::with(shared, shard, shard.write())
    }

    fn with(shared: &'a Shared, shard: &'a Shard, state: MutexGuard<'a, ShardState>) -> Self {
        let mut table = Self { shared, shard, state, beneath: None };
        table.catch_up();
        table
    }

    /// Updates the lists.
    fn catch_up(&mut self) {
        self.list_begun();
        self.follow_changes();
    }

    #[inline]
    pub(crate) fn place(&self, index: u32) -> Option<Place<'a>> {
        self.shared.places.get(index)
    }

    /// Reads a connection. Workers may change its mutable fields meanwhile; only this writer can remove it.
    pub(crate) fn get(&self, index: u32) -> Option<Connection> {
        let place = self.place(index)?;
        place.version().is_live().then(|| place.connection())
    }

    pub(crate) fn id(&self, index: u32) -> Option<CtId> {
        let version = self.place(index)?.version();
        version.is_live().then_some(CtId { index, generation: version.generation() })
    }

    /// The connection with this identity, if it still exists.
    pub(crate) fn named(&self, id: CtId) -> Option<Connection> {
        self.id(id.index).filter(|found| *found == id).and_then(|_| self.get(id.index))
    }

    pub(crate) fn refuse(&self, refusal: CtRefusal) -> CtRefusal {
        self.shard.count(refusal as usize);
        refusal
    }

    /// Finds the connection with this tuple; removes it if it has expired.
    pub(crate) fn find(&mut self, tuple: &CtTuple, now_ms: u64) -> Option<(u32, Direction)> {
        let (index, direction) = self.search(tuple, now_ms)?;
        if self.place(index)?.expires_ms() > now_ms || !self.remove(index, End::Expired) {
            return Some((index, direction));
        }
        None
    }

    /// Same without the check for expiry; first checks a connection that another process left.
    fn search(&mut self, tuple: &CtTuple, now_ms: u64) -> Option<(u32, Direction)> {
        for _ in 0..CHAIN_MAX {
            let (index, direction) = self.found(tuple).or_else(|| self.copied(tuple, now_ms))?;
            if self.shared.adoption.is_known(index) || self.enter_kept(index, now_ms) {
                return Some((index, direction));
            }
        }
        None
    }

    /// Finds the connection with this tuple in any state.
    pub(crate) fn found(&self, tuple: &CtTuple) -> Option<(u32, Direction)> {
        let (words, places) = (tuple.words(), &self.shared.places);
        let hash = self.shared.key.of_words_of_tuple(&words);
        let search = || self.shard.index.find(places, hash, &words);
        let is_right = |search: &Search| match search {
            Search::Found(found) => places.get(found.index).is_some_and(|place| self.is_of_shard(place)),
            Search::Absent => true,
            // No other writer disturbs this search, so the chain is broken.
            Search::Unsure => false,
        };
        let search = Some(search()).filter(is_right).unwrap_or_else(|| {
            self.mend(hash);
            search()
        });
        match search {
            Search::Found(found) => Some((found.index, found.direction)),
            Search::Absent | Search::Unsure => None,
        }
    }

    /// Cuts a broken chain of a hash.
    pub(crate) fn mend(&self, hash: u32) {
        self.shard.index.mend(&self.shared.places, hash, |place| self.is_of_shard(place));
    }

    fn is_of_shard(&self, place: Place<'_>) -> bool {
        std::ptr::eq(self.shared.shard(place.zone()), self.shard)
    }

    /// Whether a hash's bucket has room for two more.
    pub(crate) fn has_room(&self, hash: u32) -> bool {
        let (index, places) = (&self.shard.index, &self.shared.places);
        let has_room = || index.has_room(places, hash, false);
        has_room() || {
            self.mend(hash);
            has_room()
        }
    }

    /// Whether no connection uses this tuple.
    pub(crate) fn is_free(&mut self, tuple: &CtTuple, now_ms: u64) -> bool {
        match self.beneath {
            None => self.find(tuple, now_ms).is_none(),
            Some(beneath) => self.is_free_over(beneath, tuple, now_ms),
        }
    }

    /// Inserts a connection, and evicts another one if necessary.
    pub(crate) fn insert(&mut self, connection: &Connection, now_ms: u64) -> Result<u32, CtRefusal> {
        let [original, reply] = connection.tuples;
        if !self.is_free(&original, now_ms) || !self.is_free(&reply, now_ms) {
            return Err(CtRefusal::TupleTaken);
        }
        let hashes = [self.shared.key.of_tuple(&original), self.shared.key.of_tuple(&reply)];
        if !hashes.iter().all(|hash| self.has_room(*hash)) {
            return Err(CtRefusal::TupleTaken);
        }
        self.insert_free(&Entry::of(connection), |place| place.enter(connection, hashes))
    }

    /// Whether [`Self::insert`] would insert a connection with these hashes without looking further: no connection has them, and their
    /// buckets have room.
    pub(crate) fn has_rooms(&self, hashes: [u32; 2]) -> bool {
        hashes.iter().all(|hash| self.shard.index.has_room(&self.shared.places, *hash, true))
    }

    /// Inserts a connection, which `enter` writes into its place. Its tuples and buckets are known to be free. Evicts another one if
    /// necessary.
    fn insert_free(&mut self, entry: &Entry, enter: impl FnOnce(Place<'_>)) -> Result<u32, CtRefusal> {
        let (index, place) = self.take_place(entry)?;
        enter(place);
        self.list(index, entry);
        self.shard.index.insert(&self.shared.places, index, 2 * self.state.len);
        self.shard.count(Count::Created as usize);
        Ok(index)
    }

    /// Takes a place for one more connection. Evicts another one if necessary.
    #[inline]
    pub(crate) fn take_place(&mut self, entry: &Entry) -> Result<(u32, Place<'a>), CtRefusal> {
        let port = entry.in_port;
        self.make_room(port, entry.zone)?;
        let links = &self.shared.links;
        let Some(index) = self.shared.places.take(links, &mut self.state.vacant) else {
            self.release_room(port);
            return Err(CtRefusal::TableFull);
        };
        Ok((index, self.place(index).ok_or(CtRefusal::TableFull)?))
    }

    /// Adds a connection in its place to the lists. Its room is counted already.
    pub(crate) fn list(&mut self, index: u32, entry: &Entry) {
        let links = &self.shared.links;
        self.state.len += 1;
        self.state.wheel.add(links, index, entry.expires_ms);
        self.state.zones.get_mut(entry.zone).members.push(links, ListKind::Zone, index, 0);
        if entry.is_evictable {
            self.make_evictable(index, entry.in_port, true);
        }
        self.follow_ports(index, true);
    }

    /// Marks the ports of a connection as in use or free, in ranges that are crowded.
    #[inline]
    fn follow_ports(&mut self, index: u32, is_taken: bool) {
        if self.state.crowds.is_empty() {
            return;
        }
        let Some(place) = self.place(index) else { return };
        Direction::BOTH
            .iter()
            .for_each(|direction| self.state.crowds.follow(&place.tuple(*direction), is_taken));
    }

    /// Makes room for one more connection within all limits, and counts it.
    pub(crate) fn make_room(&mut self, port: u16, zone: u16) -> Result<(), CtRefusal> {
        if self.beneath.is_some() {
            return self.make_room_beneath(port, zone);
        }
        if self.zone_limit(zone).is_some_and(|limit| self.zone_len(zone) >= limit) {
            return Err(CtRefusal::ZoneLimit);
        }
        let shared = self.shared;
        let port_len = &shared.port_lens[usize::from(port)];
        let mut rooms = 0;
        while !Shared::reserve(port_len, shared.port_connections_max) {
            rooms += 1;
            self.state.ports.set_flooding(port, true);
            if rooms > ROOMS_MAX || !self.evict_of_port(port) {
                return Err(CtRefusal::PortShare);
            }
        }
        rooms = 0;
        while !Shared::reserve(&shared.len, shared.connections_max) {
            rooms += 1;
            if rooms > ROOMS_MAX || !self.evict_of_heaviest() {
                port_len.fetch_sub(1, Ordering::Relaxed);
                return Err(CtRefusal::TableFull);
            }
        }
        Ok(())
    }

    pub(crate) fn release_room(&self, port: u16) {
        self.shared.port_lens[usize::from(port)].fetch_sub(1, Ordering::Relaxed);
        self.shared.len.fetch_sub(1, Ordering::Relaxed);
    }

    /// Evicts the oldest evictable connection of a port. Returns false if none is found without waiting.
    fn evict_of_port(&mut self, port: u16) -> bool {
        self.evict_own(port) || self.others().any(|mut other| other.evict_own(port))
    }

    /// Same for the port with most evictable connections, in the shard that has most of them.
    fn evict_of_heaviest(&mut self) -> bool {
        self.catch_up();
        let heaviest = |shard: &Shard| shard.heaviest.load(Ordering::Relaxed);
        let most = self.shared.shards.iter().map(heaviest).max().unwrap_or(0);
        let evict = |table: &mut Table<'_>| {
            let port = table.state.ports.heaviest();
            port.is_some_and(|port| table.evict_own(port))
        };
        if heaviest(self.shard) == most && evict(self) {
            return true;
        }
        let is_most = |other: &Table<'_>| heaviest(other.shard) == most;
        self.others().filter(is_most).any(|mut other| evict(&mut other))
            || evict(self)
            || self.others().any(|mut other| evict(&mut other))
    }

    /// Locks the other shards in turn, and skips those that are locked: no thread waits for a lock while it holds one.
    fn others(&self) -> impl Iterator<Item = Table<'a>> + use<'a> {
        let (shared, own) = (self.shared, std::ptr::from_ref(self.shard));
        let others = shared.shards.iter().filter(move |shard| !std::ptr::eq(*shard, own));
        others.filter_map(move |shard| Some(Table::with(shared, shard, shard.try_write()?)))
    }

    /// A commit of a first packet comes here with lists that lack connections, and changes: one may be assured meanwhile.
    fn evict_own(&mut self, port: u16) -> bool {
        self.catch_up();
        self.evict_listed(port)
    }

    /// The same among connections that are in the lists.
    pub(crate) fn evict_listed(&mut self, port: u16) -> bool {
        let mut next = self.state.ports.get(port).and_then(|entry| entry.evictable.first());
        for _ in 0..EVICTIONS_MAX {
            let Some(index) = next else { return false };
            next = self.shared.links.get(index, ListKind::Evictable).behind.checked_sub(1);
            if self.remove_listed(index, End::Evicted) {
                self.prefetch_next(next, ListKind::Evictable);
                return true;
            }
        }
        false
    }

    /// Prefetches what the next removals from a list read, each a step further than at the removal before: its place, then the heads
    /// of its chains, then their first and second connections. A flood of new connections evicts one for each.
    fn prefetch_next(&self, mut next: Option<u32>, kind: ListKind) {
        let (index, places) = (&self.shard.index, &self.shared.places);
        for steps_left in 0..4 {
            let Some((number, place)) = next.and_then(|next| Some((next, self.place(next)?))) else { return };
            match steps_left {
                0 => index.prefetch_chains(places, place, 1),
                1 => index.prefetch_chains(places, place, 0),
                2 => index.prefetch_heads(place),
                _ => place.prefetch(),
            }
            next = self.shared.links.get(number, kind).behind.checked_sub(1);
        }
    }

    /// Removes a connection. Returns false if it stays, since a worker that is changing it does not run.
    pub(crate) fn remove(&mut self, index: u32, end: End) -> bool {
        self.list_begun();
        self.remove_listed(index, end)
    }

    /// The same for a connection that is in the lists.
    fn remove_listed(&mut self, index: u32, end: End) -> bool {
        let Some(place) = self.place(index) else { return false };
        let mut tries = 0..REMOVALS_MAX;
        let version = tries.find_map(|_| place.quiet_version().filter(|version| place.take(*version)));
        let Some(version) = version else { return false };
        if !version.is_live() {
            place.give_back(version);
            return false;
        }
        let port = place.in_port();
        let shared = self.shared;
        self.shard.index.remove(&shared.places, index);
        self.state.wheel.remove(&shared.links, index);
        let zone = self.state.zones.get_mut(place.zone());
        zone.members.remove(&shared.links, ListKind::Zone, index);
        self.settle(index, port, false);
        self.follow_ports(index, false);
        place.vacate(version);
        shared.places.give_back(&shared.links, &mut self.state.vacant, index);
        self.state.len -= 1;
        self.release_room(port);
        self.shard.count(match end {
            End::Expired => Count::Expired,
            End::Evicted => Count::Evicted,
            End::Deleted => Count::Deleted,
        } as usize);
        true
    }

    /// Adds a connection to its port's list of evictable ones, or removes it.
    fn settle(&mut self, index: u32, port: u16, is_evictable: bool) {
        let links = &self.shared.links;
        let is_in = links.get(index, ListKind::Evictable).extra != 0;
        if is_in != is_evictable {
            self.make_evictable(index, port, is_evictable);
        }
    }

    /// Does that for a connection that is not in the list, or in it.
    fn make_evictable(&mut self, index: u32, port: u16, is_evictable: bool) {
        let links = &self.shared.links;
        let is_moved = self.state.ports.change(port, |entry| {
            if is_evictable {
                entry.evictable.push(links, ListKind::Evictable, index, 1);
            } else {
                entry.evictable.remove(links, ListKind::Evictable, index);
            }
        });
        if is_moved {
            self.shard.heaviest.store(self.state.ports.heaviest_class(), Ordering::Relaxed);
        }
    }

    /// Updates lists after changes by packets.
    pub(crate) fn follow_changes(&mut self) {
        for _ in 0..CHANGES_MAX {
            let Some(index) = self.shared.next_change(self.shard, &mut self.state) else { return };
            let Some(place) = self.place(index) else { continue };
            if !place.version().is_live() {
                continue;
            }
            let shard = self.shared.shard(place.zone());
            if std::ptr::eq(shard, self.shard) {
                self.follow(index);
            } else {
                // The place has a connection of another shard now.
                self.shared.note_change(shard, index);
            }
        }
    }

    /// Updates the lists of one connection.
    pub(crate) fn follow(&mut self, index: u32) {
        let Some(place) = self.place(index) else { return };
        let moving = place.moving(place.tuple(Direction::Original).proto);
        self.settle(index, place.in_port(), is_evictable(moving.status, &moving.progress));
        self.state.wheel.hasten(&self.shared.links, index, moving.expires_ms);
    }

    /// Removes expired connections, in at most `steps` steps. Returns true once all due slots are done.
    pub(crate) fn sweep(&mut self, now_ms: u64, steps: &mut u32) -> bool {
        while let Some(index) = self.state.wheel.due(now_ms, steps) {
            self.prefetch_next(
                self.shared.links.get(index, ListKind::Wheel).behind.checked_sub(1),
                ListKind::Wheel,
            );
            let expires_ms = self.place(index).map_or(0, Place::expires_ms);
            if expires_ms > now_ms || !self.remove(index, End::Expired) {
                self.state.wheel.put_off(&self.shared.links, index, expires_ms);
            }
        }
        *steps > 0
    }

    /// Removes at most `steps` connections of a zone. Returns true if none is left.
    pub(crate) fn flush_zone(&mut self, zone: u16, steps: u32) -> bool {
        for _ in 0..steps {
            let Some(first) = self.state.zones.get(zone).and_then(|entry| entry.members.first()) else {
                return true;
            };
            if !self.remove(first, End::Deleted) {
                return false;
            }
        }
        self.zone_len(zone) == 0
    }

    /// Removes connections of all zones, within the remaining steps.
    pub(crate) fn flush(&mut self, steps: &mut u32) -> bool {
        let mut slot = 0;
        while let Some((at, index)) = self.state.wheel.any(slot) {
            if *steps == 0 || !self.remove(index, End::Deleted) {
                return false;
            }
            (slot, *steps) = (at, *steps - 1);
        }
        true
    }

    pub(crate) fn zone_len(&self, zone: u16) -> u32 {
        self.state.zones.get(zone).map_or(0, |entry| entry.members.len()) + self.state.begun.of_zone(zone)
    }

    pub(crate) fn zone_limit(&self, zone: u16) -> Option<u32> {
        let default = || u32::try_from(self.shared.zone_connections_max.load(Ordering::Relaxed)).ok();
        self.state.zones.get(zone).and_then(|entry| entry.limit).or_else(default)
    }
}

#[cfg(test)]
pub(crate) mod tests;
