use std::collections::BTreeMap;
use std::net::IpAddr;

use proptest::prelude::*;

use super::*;
use crate::connection::{ASSURED, Progress};
use crate::tuple::IpBytes;

fn tuple(host: u16, port: u16, zone: u16) -> CtTuple {
    let [high, low] = host.to_be_bytes();
    let src = IpBytes::from(IpAddr::from([10, 0, high, low]));
    let dst = IpBytes::from(IpAddr::from([10, 9, 0, 1]));
    CtTuple { src, dst, src_port: port, dst_port: 80, zone, proto: 17, is_ipv6: false }
}

fn connection(tuple: CtTuple, in_port: u16, expires_ms: u64) -> Connection {
    let reply = tuple.inverse().expect("UDP has replies");
    Connection { in_port, ..Connection::new([tuple, reply], Progress::Other, expires_ms) }
}

fn bounds(connections_max: u32, port_connections_max: u32) -> CtBounds {
    CtBounds { connections_max, port_connections_max, zone_connections_max: None }
}

fn assure(table: &mut Table, index: u32) {
    let connection = table.get_mut(index).expect("it is there");
    connection.status |= ASSURED;
    let expires_ms = connection.expires_ms;
    table.follow(index, expires_ms);
}

/// The index and all lists say the same of each connection.
fn check(table: &Table) {
    let live: Vec<u32> = (0..table.places()).filter(|index| table.get(*index).is_some()).collect();
    assert_eq!(live.len(), table.len() as usize);
    let (mut ports, mut zones): (BTreeMap<u16, u32>, BTreeMap<u16, u32>) = (BTreeMap::new(), BTreeMap::new());
    for index in live {
        let connection = table.get(index).expect("it is there");
        *ports.entry(connection.in_port).or_default() += 1;
        *zones.entry(connection.zone()).or_default() += 1;
        for direction in [Direction::Original, Direction::Reply] {
            let tuple = connection.tuple(direction);
            assert_eq!(
                table.index.find(&table.slabs, tuple, table.key.of_tuple(tuple)),
                Some((index, direction))
            );
        }
        assert_eq!(connection.has(EVICTABLE), connection.is_evictable());
    }
    assert!(ports.iter().all(|(port, count)| table.port_len(*port) == *count));
    assert!(zones.iter().all(|(zone, count)| table.zone_len(*zone) == *count));
}

#[test]
fn a_table_takes_memory_as_it_fills_and_finds_everything() {
    let mut table = Table::new(bounds(1 << 20, 1 << 20), 0);
    assert!(table.bytes() < 8192, "an empty table takes {} bytes", table.bytes());
    for number in 0..20_000 {
        let inserted = table.insert(connection(tuple(number, 7, 0), 1, 1000), 0);
        assert!(inserted.is_ok());
    }
    check(&table);
    let each = table.bytes() as f64 / 20_000.0;
    assert!(each < 300.0, "{each} bytes for each connection");
    assert!(table.find(&tuple(20_000, 7, 0), 0).is_none());
    assert!(table.find(&tuple(5, 7, 1), 0).is_none(), "a zone is part of the tuple");
}

#[test]
fn an_ended_connection_is_not_found_and_its_tuple_is_free() {
    let mut table = Table::new(bounds(10, 10), 0);
    let first = table.insert(connection(tuple(1, 1, 0), 1, 1000), 0).expect("there is room");
    let id = table.id(first).expect("it is there");
    assert_eq!(table.insert(connection(tuple(1, 1, 0), 1, 1000), 999), Err(CtRefusal::TupleTaken));
    assert!(table.insert(connection(tuple(1, 1, 0), 1, 3000), 1000).is_ok());
    assert_eq!((table.len(), table.counters.expired), (1, 1));
    assert!(table.named(id).is_none(), "the name is not used again");
}

#[test]
fn a_sweep_is_bounded_and_comes_to_all_in_the_end() {
    let mut table = Table::new(bounds(5000, 5000), 0);
    for number in 0..3000 {
        // Up to 50 minutes: beyond a turn of the wheel.
        let _ = table.insert(connection(tuple(number, 1, 0), 1, 1000 * u64::from(number)), 0);
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
    assert_eq!((table.len(), table.counters.expired), (0, 3000));
}

#[test]
fn timers_can_be_moved_forward_and_back() {
    let mut table = Table::new(bounds(10, 10), 0);
    let short = table.insert(connection(tuple(1, 1, 0), 1, 900_000), 0).expect("there is room");
    let long = table.insert(connection(tuple(2, 1, 0), 1, 5000), 0).expect("there is room");
    table.follow(short, 2000);
    table.follow(long, 60_000);
    assert!(table.sweep(10_000, 1000));
    assert!(table.get(short).is_none() && table.get(long).is_some());
    assert!(table.sweep(70_000, 1000) && table.len() == 0);
}

#[test]
fn a_flood_of_one_port_evicts_its_own_half_open_ones() {
    let mut table = Table::new(bounds(1000, 600), 0);
    let mut others = Vec::new();
    for number in 0..100 {
        let index = table.insert(connection(tuple(number, 1, 0), 2, 10_000), 0).expect("there is room");
        if number % 2 == 0 {
            assure(&mut table, index);
        }
        others.push(table.id(index).expect("it is there"));
    }
    for number in 0..30_000 {
        assert!(table.insert(connection(tuple(number, 2, 0), 1, 10_000), 0).is_ok());
    }
    assert_eq!((table.port_len(1), table.port_len(2)), (600, 100));
    // A second port floods: the table is full, and the port with most connections pays.
    for number in 0..30_000 {
        assert!(table.insert(connection(tuple(number, 3, 0), 3, 10_000), 0).is_ok());
    }
    assert!(others.iter().all(|id| table.named(*id).is_some()), "a third port lost nothing");
    assert_eq!(table.len(), 1000);
    check(&table);
    // And a new connection of the third one finds room.
    assert!(table.insert(connection(tuple(1, 4, 0), 2, 10_000), 0).is_ok());
}

#[test]
fn assured_connections_are_not_evicted() {
    let mut table = Table::new(bounds(4, 3), 0);
    for number in 0..3 {
        let index = table.insert(connection(tuple(number, 1, 0), 1, 10_000), 0).expect("there is room");
        assure(&mut table, index);
    }
    assert_eq!(table.insert(connection(tuple(9, 1, 0), 1, 10_000), 0), Err(CtRefusal::PortShare));
    let last = table.insert(connection(tuple(9, 1, 0), 2, 10_000), 0).expect("another port's share");
    assure(&mut table, last);
    assert_eq!(table.insert(connection(tuple(8, 1, 0), 2, 10_000), 0), Err(CtRefusal::TableFull));
}

#[test]
fn zones_have_limits_of_their_own() {
    let limits = CtBounds { zone_connections_max: Some(2), ..bounds(100, 100) };
    let mut table = Table::new(limits, 0);
    table.set_zone_limit(5, Some(3));
    let mut insert = |zone, number| table.insert(connection(tuple(number, 1, zone), 1, 1000), 0);
    assert_eq!((0..4).filter(|number| insert(1, *number).is_ok()).count(), 2);
    assert_eq!((0..4).filter(|number| insert(5, *number).is_ok()).count(), 3);
    assert_eq!(insert(5, 9), Err(CtRefusal::ZoneLimit));
    assert!(!table.flush_zone(5, 1) && table.flush_zone(5, 10));
    assert_eq!((table.zone_len(5), table.zone_len(1)), (0, 2));
    check(&table);
}

proptest! {
    #[test]
    fn the_table_is_a_map_of_both_tuples(
        steps in prop::collection::vec((0..40_u16, 0..3_u16, 0..3_u16, 0..4_u8, 1..20_u64), 0..300),
    ) {
        let mut table = Table::new(bounds(1000, 1000), 0);
        let (mut model, mut now) = (BTreeMap::new(), 0);
        for (host, port, zone, what, seconds) in steps {
            let key = tuple(host, port, zone);
            let expires = now + seconds * 1000;
            let alive = model.get(&(host, port, zone)).is_some_and(|at: &u64| *at > now);
            match what {
                0 | 1 => {
                    let inserted = table.insert(connection(key, port, expires), now);
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
                        table.remove(index, End::Deleted);
                        model.remove(&(host, port, zone));
                    }
                }
                _ => {
                    now += seconds * 500;
                    table.sweep(now, 1000);
                }
            }
            check(&table);
        }
        for ((host, port, zone), expires) in model {
            prop_assert_eq!(table.find(&tuple(host, port, zone), now).is_some(), expires > now);
        }
    }
}
