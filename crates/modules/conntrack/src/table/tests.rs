use std::collections::BTreeMap;
use std::net::IpAddr;

use proptest::prelude::*;

use lasthop_ct_packet::IpBytes;

use super::*;
use crate::bounds::CtBounds;
use crate::connection::{ASSURED, Progress};
use crate::memory::TableMemory;
use crate::place::{Change, Moving};

pub(crate) fn tuple(host: u16, port: u16, zone: u16) -> CtTuple {
    let [high, low] = host.to_be_bytes();
    let src = IpBytes::from(IpAddr::from([10, 0, high, low]));
    let dst = IpBytes::from(IpAddr::from([10, 9, 0, 1]));
    CtTuple { src, dst, src_port: port, dst_port: 80, zone, proto: 17, is_ipv6: false }
}

pub(crate) fn connection(tuple: CtTuple, in_port: u16, expires_ms: u64) -> Connection {
    let reply = tuple.inverse().expect("UDP has replies");
    Connection { in_port, ..Connection::new([tuple, reply], Progress::Other, expires_ms) }
}

fn bounds(connections_max: u32, port_connections_max: u32) -> CtBounds {
    CtBounds { connections_max, port_connections_max, zone_connections_max: None }
}

/// Connections of all zones.
pub(crate) struct World(pub(crate) Shared);

impl World {
    pub(crate) fn new(connections_max: u32, port_connections_max: u32) -> Self {
        let bounds = bounds(connections_max, port_connections_max);
        Self(Shared::new(TableMemory::new(Shared::places_for(&bounds)).expect("memory"), bounds, 0))
    }

    pub(crate) fn insert(&self, connection: &Connection, now_ms: u64) -> Result<u32, CtRefusal> {
        Table::of_zone(&self.0, connection.zone()).insert(connection, now_ms)
    }

    pub(crate) fn find(&self, tuple: &CtTuple, now_ms: u64) -> Option<(u32, Direction)> {
        Table::of_zone(&self.0, tuple.zone).find(tuple, now_ms)
    }

    pub(crate) fn remove(&self, index: u32) {
        let zone = self.0.places.get(index).expect("a place").zone();
        assert!(Table::of_zone(&self.0, zone).remove(index, End::Deleted));
    }

    /// Returns true once all shards are swept.
    pub(crate) fn sweep(&self, now_ms: u64, steps: u32) -> bool {
        (0..SHARDS).all(|number| Table::of_shard(&self.0, number).sweep(now_ms, &mut steps.clone()))
    }

    fn change(&self, index: u32, change: impl Fn(&mut Connection)) {
        let place = self.0.places.get(index).expect("it is there");
        let done = place.update(|place| {
            let mut connection = place.connection();
            change(&mut connection);
            Some(((), Change::Packet(Moving::of(&connection), None)))
        });
        assert!(done.is_some());
        self.0.note_change(self.0.shard(place.zone()), index);
    }

    pub(crate) fn assure(&self, index: u32) {
        self.change(index, |connection| connection.status |= ASSURED);
    }

    pub(crate) fn len(&self) -> u32 {
        self.0.len.load(Ordering::Relaxed)
    }

    pub(crate) fn port_len(&self, port: u16) -> u32 {
        self.0.port_lens[usize::from(port)].load(Ordering::Relaxed)
    }

    pub(crate) fn zone_len(&self, zone: u16) -> u32 {
        Table::of_zone(&self.0, zone).zone_len(zone)
    }

    fn expired(&self) -> u64 {
        self.0.shards.iter().map(|shard| shard.counted(Count::Expired as usize)).sum()
    }

    fn id(&self, index: u32) -> CtId {
        Table::of_shard(&self.0, 0).id(index).expect("it is there")
    }

    fn is_there(&self, id: CtId) -> bool {
        Table::of_shard(&self.0, 0).named(id).is_some()
    }

    /// Checks that the index and all lists agree about each connection.
    pub(crate) fn check(&self) {
        let shared = &self.0;
        (0..SHARDS).for_each(|number| drop(Table::of_shard(shared, number)));
        let is_live = |index: &u32| shared.places.get(*index).is_some_and(|place| place.version().is_live());
        let live: Vec<u32> = (0..shared.places.used()).filter(is_live).collect();
        assert_eq!(live.len(), self.len() as usize);
        let (mut ports, mut zones): (BTreeMap<u16, u32>, BTreeMap<u16, u32>) =
            (BTreeMap::new(), BTreeMap::new());
        for index in live {
            let connection = shared.places.get(index).expect("it is there").connection();
            *ports.entry(connection.in_port).or_default() += 1;
            *zones.entry(connection.zone()).or_default() += 1;
            for direction in [Direction::Original, Direction::Reply] {
                let tuple = connection.tuple(direction);
                let hash = shared.key.of_tuple(tuple);
                let search = shared.shard(tuple.zone).index.find(&shared.places, hash, &tuple.words());
                let Search::Found(found) = search else { panic!("{tuple} is lost: {search:?}") };
                assert_eq!((found.index, found.direction), (index, direction));
            }
            let is_listed = shared.links.get(index, ListKind::Evictable).extra == 1;
            assert_eq!(is_listed, connection.is_evictable());
        }
        assert!(ports.iter().all(|(port, count)| self.port_len(*port) == *count));
        assert!(zones.iter().all(|(zone, count)| self.zone_len(*zone) == *count));
    }
}

#[test]
fn a_table_takes_memory_as_it_fills_and_finds_everything() {
    let table = World::new(1 << 20, 1 << 20);
    assert_eq!(table.0.places.used(), 0);
    for number in 0..20_000 {
        let inserted = table.insert(&connection(tuple(number, 7, 0), 1, 1000), 0);
        assert!(inserted.is_ok());
    }
    table.check();
    let used = table.0.places.used();
    assert!((20_000..20_064).contains(&used), "{used} places");
    assert!(table.find(&tuple(20_000, 7, 0), 0).is_none());
    assert!(table.find(&tuple(5, 7, 1), 0).is_none(), "a zone is part of the tuple");
}

#[test]
fn an_ended_connection_is_not_found_and_its_tuple_is_free() {
    let table = World::new(10, 10);
    let first = table.insert(&connection(tuple(1, 1, 0), 1, 1000), 0).expect("there is room");
    let id = table.id(first);
    assert_eq!(table.insert(&connection(tuple(1, 1, 0), 1, 1000), 999), Err(CtRefusal::TupleTaken));
    assert!(table.insert(&connection(tuple(1, 1, 0), 1, 3000), 1000).is_ok());
    assert_eq!((table.len(), table.expired()), (1, 1));
    assert!(!table.is_there(id), "the name is not used again");
}

#[test]
fn a_sweep_is_bounded_and_comes_to_all_in_the_end() {
    let table = World::new(5000, 5000);
    for number in 0..3000 {
        // Up to 50 minutes, beyond a turn of the wheel.
        let _ = table.insert(&connection(tuple(number, 1, 0), 1, 1000 * u64::from(number)), 0);
    }
    for second in 0..3100_u64 {
        while !table.sweep(second * 1000, 64) {}
        let left = table.len();
        let wanted = 3000_u64.saturating_sub(second);
        assert!(
            u64::from(left) >= wanted.saturating_sub(1) && u64::from(left) <= wanted + 2,
            "{second}: {left}"
        );
    }
    assert_eq!((table.len(), table.expired()), (0, 3000));
}

#[test]
fn timers_can_be_moved_forward_and_back() {
    let table = World::new(10, 10);
    let short = table.insert(&connection(tuple(1, 1, 0), 1, 900_000), 0).expect("there is room");
    let long = table.insert(&connection(tuple(2, 1, 0), 1, 5000), 0).expect("there is room");
    table.change(short, |connection| connection.expires_ms = 2000);
    table.change(long, |connection| connection.expires_ms = 60_000);
    let ids = [table.id(short), table.id(long)];
    assert!(table.sweep(10_000, 1000));
    assert_eq!(ids.map(|id| table.is_there(id)), [false, true]);
    assert!(table.sweep(70_000, 1000) && table.len() == 0);
}

#[test]
fn a_flood_of_one_port_evicts_its_own_half_open_ones() {
    let table = World::new(1000, 600);
    let mut others = Vec::new();
    for number in 0..100 {
        let index = table.insert(&connection(tuple(number, 1, 0), 2, 10_000), 0).expect("there is room");
        if number % 2 == 0 {
            table.assure(index);
        }
        others.push(table.id(index));
    }
    for number in 0..30_000 {
        assert!(table.insert(&connection(tuple(number, 2, 0), 1, 10_000), 0).is_ok());
    }
    assert_eq!((table.port_len(1), table.port_len(2)), (600, 100));
    // A second port floods: the table is full, and the port with most connections pays.
    for number in 0..30_000 {
        assert!(table.insert(&connection(tuple(number, 3, 0), 3, 10_000), 0).is_ok());
    }
    assert!(others.iter().all(|id| table.is_there(*id)), "a third port lost nothing");
    assert_eq!(table.len(), 1000);
    table.check();
    // A new connection of the third port finds room.
    assert!(table.insert(&connection(tuple(1, 4, 0), 2, 10_000), 0).is_ok());
}

#[test]
fn assured_connections_are_not_evicted() {
    let table = World::new(4, 3);
    for number in 0..3 {
        let index = table.insert(&connection(tuple(number, 1, 0), 1, 10_000), 0).expect("there is room");
        table.assure(index);
    }
    assert_eq!(table.insert(&connection(tuple(9, 1, 0), 1, 10_000), 0), Err(CtRefusal::PortShare));
    let last = table.insert(&connection(tuple(9, 1, 0), 2, 10_000), 0).expect("another port's share");
    table.assure(last);
    assert_eq!(table.insert(&connection(tuple(8, 1, 0), 2, 10_000), 0), Err(CtRefusal::TableFull));
}

#[test]
fn zones_have_limits_of_their_own() {
    let limits = CtBounds { zone_connections_max: Some(2), ..bounds(100, 100) };
    let table = World(Shared::new(TableMemory::new(Shared::places_for(&limits)).expect("memory"), limits, 0));
    Table::of_zone(&table.0, 5).state.zones.get_mut(5).limit = Some(3);
    let insert = |zone, number| table.insert(&connection(tuple(number, 1, zone), 1, 1000), 0);
    assert_eq!((0..4).filter(|number| insert(1, *number).is_ok()).count(), 2);
    assert_eq!((0..4).filter(|number| insert(5, *number).is_ok()).count(), 3);
    assert_eq!(insert(5, 9), Err(CtRefusal::ZoneLimit));
    assert!(!Table::of_zone(&table.0, 5).flush_zone(5, 1) && Table::of_zone(&table.0, 5).flush_zone(5, 10));
    assert_eq!((table.zone_len(5), table.zone_len(1)), (0, 2));
    table.check();
}

proptest! {
    #[test]
    fn the_table_is_a_map_of_both_tuples(
        steps in prop::collection::vec((0..40_u16, 0..3_u16, 0..3_u16, 0..4_u8, 1..20_u64), 0..300),
    ) {
        let table = World::new(1000, 1000);
        let (mut model, mut now) = (BTreeMap::new(), 0);
        for (host, port, zone, what, seconds) in steps {
            let key = tuple(host, port, zone);
            let expires = now + seconds * 1000;
            let alive = model.get(&(host, port, zone)).is_some_and(|at: &u64| *at > now);
            match what {
                0 | 1 => {
                    let inserted = table.insert(&connection(key, port, expires), now);
                    prop_assert_eq!(inserted.is_ok(), !alive);
                    if inserted.is_ok() {
                        model.insert((host, port, zone), expires);
                    }
                }
                2 => {
                    let found = table.find(&key.inverse().expect("UDP has replies"), now);
                    prop_assert_eq!(found.is_some(), alive);
                    if let Some((index, direction)) = found {
                        prop_assert_eq!(direction, Direction::Reply);
                        table.remove(index);
                        model.remove(&(host, port, zone));
                    }
                }
                _ => {
                    now += seconds * 500;
                    table.sweep(now, 1000);
                }
            }
            table.check();
        }
        for ((host, port, zone), expires) in model {
            prop_assert_eq!(table.find(&tuple(host, port, zone), now).is_some(), expires > now);
        }
    }
}
