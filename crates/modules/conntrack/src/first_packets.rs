//! Connections whose first packet is delivered before the lists have them.
//!
//! ```text
//!   first packet ── lock: place, index ──> delivery ── lock, unless it is taken: lists, growth of the index, room ahead
//!                                                 └ or the next writer of the shard does this first
//! ```
//!
//! So a packet does not wait for work that no other packet needs at once. Searches find the connection from the start, and its room is
//! counted. All lists are in the process's own memory: to the next process such a connection is one like the others.
//!
//! **Room ahead.** A port that floods the table beyond its limit evicts one of its connections for each that begins. From the second one
//! on that happens behind a delivery, for the next connections: such a port has up to a batch of connections less than its limit.

use std::sync::atomic::Ordering;

use crate::begun::Entry;
use crate::bounds::{CT_BATCH_MAX, CtRefusal};
use crate::place::Beginning;
use crate::shard::{Count, Shared};
use crate::table::Table;

/// Connections that are listed with the lock held once, behind a delivery. A commit of another worker may wait for this many.
const LISTED_AT_ONCE: u32 = 8;
/// Connections for which room is made ahead: a batch, but at most 1/64 of a port's limit.
const AHEAD_MAX: u32 = CT_BATCH_MAX as u32;
const AHEAD_SHARE: u32 = 64;

impl Shared {
    /// Does what the commits of first packets in this zone left for later, unless another writer is at work.
    pub(crate) fn finish_begun(&self, zone: u16) {
        let shard = self.shard(zone);
        // Other workers add some meanwhile, and list them by themselves.
        for _ in 0..CT_BATCH_MAX as u32 / LISTED_AT_ONCE {
            let Some(state) = shard.try_write() else { return };
            let mut table = Table { shared: self, shard, state, beneath: None };
            // First, since a connection that is assured meanwhile is not evicted.
            table.follow_changes();
            if !table.finish_some() {
                return;
            }
        }
    }
}

impl<'a> Table<'a> {
    /// Locks a zone's shard for [`Self::begin`]. The lists may lack connections.
    #[inline]
    pub(crate) fn for_first_packet(shared: &'a Shared, zone: u16) -> Self {
        let shard = shared.shard(zone);
        Self { shared, shard, state: shard.write(), beneath: None }
    }

    /// Inserts the connection of a first packet. Its tuples and buckets are known to be free. Evicts another one if necessary.
    #[inline]
    pub(crate) fn begin(&mut self, entry: Entry, beginning: &Beginning) -> Result<(), CtRefusal> {
        if self.state.begun.is_full() {
            self.list_begun();
        }
        let (index, place) = self.take_place(&entry)?;
        place.begin(beginning);
        self.shard.index.enter(place, index);
        self.state.begun.push(index, entry);
        self.shard.count(Count::Created as usize);
        Ok(())
    }

    /// Enters all begun connections into the lists.
    #[inline]
    pub(crate) fn list_begun(&mut self) {
        while let Some((index, entry)) = self.state.begun.take() {
            self.list_one(index, &entry);
        }
    }

    fn list_one(&mut self, index: u32, entry: &Entry) {
        self.list(index, entry);
        self.shard.index.grow(&self.shared.places, 2 * self.state.len);
    }

    /// Lists some of the begun connections, and makes room for as many. Returns false if those were all.
    fn finish_some(&mut self) -> bool {
        for _ in 0..LISTED_AT_ONCE {
            let Some((index, entry)) = self.state.begun.take() else { return false };
            self.list_one(index, &entry);
            self.make_room_ahead(entry.in_port);
        }
        true
    }

    /// Evicts connections of a port that floods the table, until there is room ahead: two for each that began, so that room accrues.
    fn make_room_ahead(&mut self, port: u16) {
        if !self.state.ports.get(port).is_some_and(|entry| entry.is_flooding) {
            return;
        }
        let Shared { port_connections_max: max, port_lens, .. } = self.shared;
        let ahead = AHEAD_MAX.min(max / AHEAD_SHARE);
        let len = || port_lens[usize::from(port)].load(Ordering::Relaxed);
        // Others ended by themselves.
        let is_over = ahead == 0 || len() < max.saturating_sub(2 * ahead);
        for _ in 0..2 {
            if is_over || len() > max - ahead && !self.evict_listed(port) {
                return self.state.ports.set_flooding(port, false);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::Arc;

    use lasthop_ct_packet::CtTuple;
    use lasthop_guestmem::Mapping;
    use proptest::prelude::*;

    use super::*;
    use crate::bounds::CtBounds;
    use crate::conntrack_table::ConntrackTable;
    use crate::links::ListKind;
    use crate::place::{BeginningProgress, status_word};
    use crate::real_table::RealTable;
    use crate::table::tests::{World, tuple};

    /// Begins a connection as a first packet of a port does.
    fn begin(shared: &Shared, tuple: CtTuple, in_port: u16, expires_ms: u64) -> Result<(), CtRefusal> {
        let tuples = [tuple, tuple.inverse().expect("UDP has replies")].map(|tuple| tuple.words());
        let beginning = Beginning {
            tuples,
            hashes: tuples.each_ref().map(|words| shared.key.of_words_of_tuple(words)),
            status: status_word(0, in_port, 0, None),
            expires_ms,
            mark: 0,
            labels: [0; 2],
            bytes: 60,
            progress: BeginningProgress::Udp(0),
        };
        let entry = Entry { in_port, zone: tuple.zone, expires_ms, is_evictable: true };
        Table::for_first_packet(shared, tuple.zone).begin(entry, &beginning)
    }

    /// Number of connections that are in no list.
    fn unlisted(shared: &Shared, zone: u16) -> u32 {
        shared.shard(zone).peek().begun.of_zone(zone)
    }

    /// Number of connections of a zone, without listing any.
    fn zone_len(shared: &Shared, zone: u16) -> u32 {
        let table = Table::for_first_packet(shared, zone);
        table.zone_len(zone)
    }

    #[test]
    fn a_connection_is_found_at_once_and_listed_later() {
        let world = World::new(100, 100);
        assert_eq!(begin(&world.0, tuple(1, 1, 5), 1, 1000), Ok(()));
        let found = world.0.shard(5).index.find(
            &world.0.places,
            world.0.key.of_tuple(&tuple(1, 1, 5)),
            &tuple(1, 1, 5).words(),
        );
        assert!(matches!(found, crate::index::Search::Found(_)), "without a lock");
        assert_eq!((world.len(), world.port_len(1), unlisted(&world.0, 5)), (1, 1, 1));
        world.0.finish_begun(6);
        assert_eq!(unlisted(&world.0, 5), 1, "of another shard");
        let lock = world.0.shard(5).write();
        world.0.finish_begun(5);
        drop(lock);
        assert_eq!(unlisted(&world.0, 5), 1, "it waits for no lock");
        world.0.finish_begun(5);
        assert_eq!(unlisted(&world.0, 5), 0);
        assert_eq!(world.0.links.get(0, ListKind::Evictable).extra, 1);
        world.check();
    }

    #[test]
    fn any_other_writer_lists_first() {
        let world = World::new(100, 100);
        for number in 0..20 {
            assert_eq!(begin(&world.0, tuple(number, 1, 5), 1, 1000), Ok(()));
        }
        assert!(world.sweep(5000, 1000) && world.len() == 0);
        world.check();
    }

    #[test]
    fn a_flood_finds_room_that_was_made_ahead() {
        let world = World::new(10_000, 6400);
        let evicted = || world.0.shard(5).counted(Count::Evicted as usize);
        for number in 0..6400 {
            assert_eq!(begin(&world.0, tuple(number, 1, 5), 1, 1000), Ok(()));
            world.0.finish_begun(5);
        }
        assert_eq!((world.port_len(1), evicted()), (6400, 0), "a port at its limit loses none");
        for number in 0..500 {
            let before = evicted();
            assert_eq!(begin(&world.0, tuple(number, 2, 5), 1, 1000), Ok(()));
            assert_eq!(evicted() - before, u64::from(number == 0), "only the first one has to wait");
            world.0.finish_begun(5);
        }
        assert_eq!(world.port_len(1), 6400 - AHEAD_MAX);
        world.check();
        // The flood is over as others end.
        for number in 0..200 {
            let (index, _) = world.find(&tuple(number, 2, 5), 0).expect("it is new");
            world.remove(index);
        }
        let before = evicted();
        for number in 0..200 {
            assert_eq!(begin(&world.0, tuple(number, 3, 5), 1, 1000), Ok(()));
            world.0.finish_begun(5);
        }
        assert_eq!((world.port_len(1), evicted() - before), (6400 - AHEAD_MAX, 0));
        for number in 200..200 + AHEAD_MAX as u16 {
            assert_eq!(begin(&world.0, tuple(number, 3, 5), 1, 1000), Ok(()));
            world.0.finish_begun(5);
        }
        assert_eq!((world.port_len(1), evicted() - before), (6400, 0));
    }

    #[test]
    fn a_connection_that_is_assured_is_not_evicted() {
        let world = World::new(10, 3);
        for number in 0..3 {
            assert_eq!(begin(&world.0, tuple(number, 1, 5), 1, 1000), Ok(()));
        }
        let indexes = (0..3).map(|number| world.find(&tuple(number, 1, 5), 0).expect("it is new").0);
        // By packets, which take no lock: the lists do not know it yet.
        indexes.collect::<Vec<_>>().into_iter().for_each(|index| world.assure(index));
        assert_eq!(begin(&world.0, tuple(9, 1, 5), 1, 1000), Err(CtRefusal::PortShare));
    }

    #[test]
    fn a_dry_run_knows_that_the_newest_ones_can_be_evicted() {
        let world = World::new(10, 3);
        for number in 0..3 {
            assert_eq!(begin(&world.0, tuple(number, 1, 5), 1, 1000), Ok(()));
        }
        let copied = std::cell::RefCell::default();
        let real = RealTable { shared: &world.0, copied: &copied };
        assert_eq!(real.has_room((1, 5), 0), Ok(()));
        assert_eq!(unlisted(&world.0, 5), 3, "it changes nothing");
        assert_eq!(begin(&world.0, tuple(9, 1, 5), 1, 1000), Ok(()));
    }

    #[test]
    fn a_small_limit_is_used_up() {
        let world = World::new(100, 10);
        for number in 0..100 {
            assert_eq!(begin(&world.0, tuple(number, 1, 5), 1, 1000), Ok(()));
            world.0.finish_begun(5);
        }
        assert_eq!(world.port_len(1), 10);
        world.check();
    }

    #[test]
    fn the_next_process_has_connections_without_lists() {
        let bounds = CtBounds { connections_max: 1000, ..CtBounds::default() };
        let bytes = ConntrackTable::memory_bytes_for(&bounds);
        let memory = Arc::new(Mapping::anonymous(bytes).expect("memory"));
        let table = || ConntrackTable::in_memory(&memory, bounds, 0).expect("room");
        let earlier = table();
        for number in 0..50 {
            assert_eq!(begin(&earlier.shared, tuple(number, 1, 5), 1, 1000), Ok(()));
        }
        assert_eq!(unlisted(&earlier.shared, 5), 50);
        let next = table();
        while !next.adopt(0, 7) {}
        assert_eq!((next.adopted().kept, next.port_connections(1)), (50, 50));
        assert!((0..50).all(|number| next.find(&tuple(number, 1, 5), 0).is_some()));
    }

    proptest! {
        #[test]
        fn limits_hold_and_lists_agree(
            steps in prop::collection::vec((0..60_u16, 0..2_u16, 0..2_u16, 0..8_u8), 0..400),
        ) {
            const LIMIT: u32 = 15;
            let world = World::new(70, 40);
            Table::of_zone(&world.0, 1).state.zones.get_mut(1).limit = Some(LIMIT);
            let mut zones = [BTreeSet::new(), BTreeSet::new()];
            for (host, port, zone, kind) in steps {
                let key = tuple(host, port, zone);
                let known = &mut zones[usize::from(zone)];
                match kind {
                    0..5 if !known.contains(&(host, port)) => {
                        let is_full = zone == 1 && zone_len(&world.0, 1) >= LIMIT;
                        let began = begin(&world.0, key, port, 1000);
                        prop_assert_eq!(began, if is_full { Err(CtRefusal::ZoneLimit) } else { Ok(()) });
                        known.extend(began.ok().map(|()| (host, port)));
                    }
                    5 => {
                        if let Some((index, _)) = world.find(&key, 0) {
                            world.remove(index);
                            known.remove(&(host, port));
                        }
                    }
                    6 => world.check(),
                    _ => world.0.finish_begun(zone),
                }
                // Some were evicted.
                for (zone, known) in (0..).zip(&mut zones) {
                    let is_there = |host, port| {
                        let words = tuple(host, port, zone).words();
                        let (shard, hash) = (world.0.shard(zone), world.0.key.of_words_of_tuple(&words));
                        matches!(shard.index.find(&world.0.places, hash, &words), crate::index::Search::Found(_))
                    };
                    known.retain(|(host, port)| is_there(*host, *port));
                }
                let count = zones.iter().map(BTreeSet::len).sum::<usize>();
                prop_assert_eq!(world.len() as usize, count, "those that are counted are found");
                prop_assert!(world.port_len(0) <= 40 && world.port_len(1) <= 40 && world.len() <= 70);
            }
            world.check();
        }
    }
}
