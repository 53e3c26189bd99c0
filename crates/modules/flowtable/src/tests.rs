//! Compares the table with a list that is searched from start to end.

use std::collections::HashMap;

use lasthop_flow::{Action, Ethernet, FlowKey, FlowStats, Ipv4, Match, Ports, Ufid, Userspace};
use lasthop_module_api::{BATCH_PACKETS_MAX, Header};
use lasthop_wire::{Key, Metadata, Offload};
use proptest::prelude::*;

use crate::bounds::{CACHE_TRIED_ONE_IN, FLOW_DATA_BYTES_MAX, FORMER_BYTES, OTHER_ENTRIES};
use crate::cache_key::CacheKey;
use crate::compact::Compact;
use crate::program::{Code, Step};
use crate::shared::{HITS, LOOKUPS, MISSES};
use crate::slot::{EntryId, Identity};
use crate::stats::Counted;
use crate::worker_state::WorkerState;
use crate::{FlowSelector, FlowSpec, FlowTable, InstallError};

fn udp(src: u8, dst: u8, port: u16) -> FlowKey {
    FlowKey {
        in_port: Some(1),
        ethernet: Some(Ethernet::default()),
        ether_type: Some(0x0800),
        ipv4: Some(Ipv4 {
            src: [10, 0, 0, src].into(),
            dst: [10, 0, 0, dst].into(),
            proto: 17,
            ..Ipv4::default()
        }),
        udp: Some(Ports { src: 1000, dst: port }),
        ..FlowKey::default()
    }
}

fn packet(key: &FlowKey) -> Key {
    Compact::of(&Match { key: key.clone(), mask: None }).expect("it is supported").key
}

/// A mask of some of the fields in which the keys here differ.
fn mask(bits: u8) -> FlowKey {
    let byte = |bit: u8| if bits >> bit & 1 == 1 { 0xff } else { 0 };
    let ip = Ipv4 {
        src: [0, 0, 0, byte(0)].into(),
        dst: [0, 0, 0, byte(1)].into(),
        proto: 0xff,
        ..Ipv4::default()
    };
    let ports = Ports { src: 0, dst: u16::from(byte(2)) };
    FlowKey { ether_type: Some(0xffff), ipv4: Some(ip), udp: Some(ports), ..FlowKey::default() }
}

fn ufid(number: u8) -> Ufid {
    Ufid([number; 16])
}

fn flow(number: u8, key: FlowKey, bits: u8, port: u32) -> FlowSpec {
    let matching = Match { key, mask: Some(mask(bits)) };
    FlowSpec { ufid: Some(ufid(number)), matching, actions: vec![Action::Output(port)], is_probe: false }
}

/// The way in which a packet is looked up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// By its mini key if it has one, or by its flow key.
    Usual,
    Other,
    /// In a batch that is looked up side by side.
    Foreseen,
}

/// The packet that a key of [`udp`] describes.
fn header(key: &FlowKey) -> Header {
    let (ip, udp) = (key.ipv4.unwrap(), key.udp.unwrap());
    let mut frame = [&[0; 12][..], &[8, 0, 0x45, 0, 0, 46, 0, 0, 0, 0, ip.ttl, ip.proto, 0, 0]].concat();
    frame.extend([ip.src.octets(), ip.dst.octets()].concat());
    frame.extend([udp.src.to_be_bytes(), udp.dst.to_be_bytes()].concat());
    frame.resize(60, 0);
    Header::new(&frame, 60, Offload::default())
}

/// Looks a packet up: the port of its flow's only output.
fn look_up(table: &FlowTable, local: &mut WorkerState, key: &FlowKey) -> Option<u16> {
    look_up_as(table, local, key, Way::Other)
}

fn look_up_as(table: &FlowTable, local: &mut WorkerState, flow_key: &FlowKey, way: Way) -> Option<u16> {
    let (key, mut cache_keys) = (packet(flow_key), [CacheKey::default(); BATCH_PACKETS_MAX]);
    local.begin(&table.shared);
    let hit = match way {
        Way::Usual => {
            let (headers, metadata) = ([header(flow_key)], Metadata { in_port: 1, ..Metadata::default() });
            let mut keys = [Key::default(); BATCH_PACKETS_MAX];
            local.prepare_batch(&table.shared, (&headers, &metadata), (&mut cache_keys, &mut keys));
            let at_once = local.known(&cache_keys[0], &keys[0]);
            at_once.or_else(|| local.look_up(&table.shared, &key, Some(&cache_keys[0])))
        }
        Way::Other => local.look_up(&table.shared, &key, None),
        Way::Foreseen => {
            local.batch_lookup(&table.shared, &[Key::default(), key]);
            local.look_up_in_batch(&table.shared, 1, &key)
        }
    };
    if let Some(hit) = hit {
        let slot = table.shared.flows.get(hit.flow as usize).expect("it was found");
        let counted = Counted { len_bytes: 60, tcp_flags: 0, now_ns: 5_000_000 };
        table.shared.stats.count(EntryId::of(hit.stats), || Some(slot), counted);
        assert_ne!(slot.identity(), Identity::default());
    }
    local.end(&table.shared);
    hit.map(|hit| {
        assert_eq!(Step(hit.program).code(), Code::Output);
        Step(hit.program).operand(0, 16) as u16
    })
}

#[derive(Clone, Debug)]
enum Turn {
    Install(u8, (u8, u8, u16), u8, u32),
    Replace(u8, u32),
    Remove(u8),
    Packet(usize, (u8, u8, u16), Way),
}

fn any_turn() -> impl Strategy<Value = Turn> {
    let key = || (0..4_u8, 0..4_u8, 0..3_u16);
    let way = prop_oneof![3 => Just(Way::Usual), 1 => Just(Way::Other), 1 => Just(Way::Foreseen)];
    prop_oneof![
        3 => (0..16_u8, key(), 0..8_u8, 0..1000_u32).prop_map(|(name, key, bits, port)| Turn::Install(name, key, bits, port)),
        1 => (0..16_u8, 0..1000_u32).prop_map(|(name, port)| Turn::Replace(name, port)),
        2 => (0..16_u8).prop_map(Turn::Remove),
        6 => (0..2_usize, key(), way).prop_map(|(worker, key, way)| Turn::Packet(worker, key, way)),
    ]
}

/// A flow of the list: its match, its port, and the number of packets that matched it.
struct Listed {
    compact: Compact,
    port: u32,
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn the_table_agrees_with_a_list(turns in prop::collection::vec(any_turn(), 1..200)) {
        let (table, mut list) = (FlowTable::default(), HashMap::<u8, Listed>::new());
        let mut states = [WorkerState::new(0, 1), WorkerState::new(1, 2)];
        let (mut packets, mut removed) = (0, Vec::new());
        for turn in turns {
            match turn {
                Turn::Install(name, (src, dst, port), bits, out) => {
                    let flow = flow(name, udp(src, dst, port), bits, out);
                    let compact = Compact::of(&flow.matching).unwrap();
                    let exists = list.contains_key(&name) || list.values().any(|listed| listed.compact == compact);
                    let wanted = if exists { Err(InstallError::Exists) } else { Ok(()) };
                    prop_assert_eq!(table.install(flow), wanted);
                    if !exists {
                        list.insert(name, Listed { compact, port: out });
                    }
                }
                Turn::Replace(name, out) => {
                    let done = table.replace(FlowSelector::Ufid(ufid(name)), vec![Action::Output(out)]);
                    prop_assert_eq!(done.is_ok(), list.contains_key(&name));
                    list.entry(name).and_modify(|listed| listed.port = out);
                }
                Turn::Remove(name) => {
                    let done = table.remove(FlowSelector::Ufid(ufid(name)));
                    prop_assert_eq!(done.is_ok(), list.remove(&name).is_some());
                    removed.extend(done);
                }
                Turn::Packet(worker, (src, dst, port), way) => {
                    let (of_packet, key) = (udp(src, dst, port), packet(&udp(src, dst, port)));
                    let found = look_up_as(&table, &mut states[worker], &of_packet, way);
                    let matching = |listed: &&Listed| key.masked(&listed.compact.mask) == listed.compact.key;
                    let wanted: Vec<u32> = list.values().filter(matching).map(|listed| listed.port).collect();
                    match found {
                        None => prop_assert!(wanted.is_empty()),
                        Some(port) => prop_assert!(wanted.contains(&u32::from(port)), "{port} {wanted:?}"),
                    }
                    packets += u64::from(found.is_some());
                }
            }
            prop_assert_eq!(table.len().0, list.len());
        }
        let living: u64 = dump(&table).iter().map(|(_, stats)| stats.packets).sum();
        let gone: u64 = removed.iter().map(|removed| table.final_stats(removed).unwrap().packets).sum();
        prop_assert_eq!(living + gone, packets, "every packet is counted once");
    }
}

#[test]
fn the_caches_are_left_alone_while_they_have_no_room_and_tried_again() {
    let (table, mut local) = (FlowTable::default(), WorkerState::new(0, 1));
    let flows = 3 * *OTHER_ENTRIES.end() as u32;
    (0..flows).for_each(|number| table.install(exact(number)).unwrap());
    let batch = |local: &mut WorkerState, numbers: std::ops::Range<u32>| {
        for number in numbers {
            let way = if local.is_warm() { Way::Other } else { Way::Foreseen };
            assert_eq!(look_up_as(&table, local, &numbered(number), way), Some((number % 1000) as u16));
        }
        local.learn();
        local.is_warm()
    };
    assert!((0..1000).all(|number| batch(&mut local, number..number + 1)), "there is room");
    (0..flows / 32).for_each(|number| _ = batch(&mut local, number * 32..(number + 1) * 32));
    let later = flows / 64..flows / 64 + 10 * CACHE_TRIED_ONE_IN;
    let warm = later.filter(|number| batch(&mut local, number * 32..(number + 1) * 32)).count();
    assert!((5..=80).contains(&warm), "{warm}");
    assert!((0..10_000).any(|_| batch(&mut local, 0..8) && batch(&mut local, 0..8)), "they are known by now");
}

#[test]
fn packets_that_differ_where_no_flow_looks_share_an_entry() {
    let (table, mut local) = (FlowTable::default(), WorkerState::new(0, 1));
    table.install(flow(1, udp(1, 0, 0), 1, 7)).unwrap();
    let mut look_up = |dst, port, way| look_up_as(&table, &mut local, &udp(1, dst, port), way);
    (0..50).for_each(|port| assert_eq!(look_up(port as u8, port, Way::Usual), Some(7)));
    (0..50).for_each(|port| assert_eq!(look_up(port as u8, port, Way::Other), Some(7)));
    table.install(flow(2, udp(1, 0, 9), 5, 8)).unwrap();
    table.remove(FlowSelector::Ufid(ufid(1))).unwrap();
    for way in [Way::Usual, Way::Other] {
        assert_eq!([8, 9, 10, 9].map(|port| look_up(3, port, way)), [None, Some(8), None, Some(8)]);
    }
    local.learn();
    // Cache misses: the first packet of each kind twice, and four packets without a flow.
    assert_eq!(local.counts[LOOKUPS] - local.counts[HITS], 4 + 4);
    assert_eq!(local.counts[MISSES], 4);
}

fn dump(table: &FlowTable) -> Vec<(std::sync::Arc<crate::Installed>, FlowStats)> {
    let (mut flows, mut cursor) = (Vec::new(), Some(0));
    while let Some(at) = cursor {
        let (more, next) = table.dump(at, 3);
        flows.extend(more.into_iter().map(|(_, flow, stats)| (flow, stats)));
        cursor = next;
    }
    flows
}

#[test]
fn a_flow_that_is_in_use_is_counted_to_the_end_before_its_place_is_given_away() {
    let table = FlowTable::default();
    let mut local = WorkerState::new(0, 1);
    table.install(flow(1, udp(1, 2, 3), 7, 5)).unwrap();
    let key = udp(1, 2, 3);
    assert_eq!(look_up(&table, &mut local, &key), Some(5));
    local.begin(&table.shared);
    let hit = local.look_up(&table.shared, &packet(&key), None).unwrap();
    let removed = table.remove(FlowSelector::Ufid(ufid(1))).unwrap();
    assert_eq!(table.final_stats(&removed), None, "a visit is under way");
    table.install(flow(2, udp(3, 2, 1), 7, 6)).unwrap();
    let slot = table.shared.flows.get(hit.flow as usize).unwrap();
    let counted = Counted { len_bytes: 40, tcp_flags: 2, now_ns: 9_000_000 };
    table.shared.stats.count(EntryId::of(hit.stats), || Some(slot), counted);
    local.end(&table.shared);
    let stats = FlowStats { packets: 2, bytes: 100, used_ms: 9, tcp_flags: 2 };
    assert_eq!(table.final_stats(&removed), Some(stats));
    assert_eq!(look_up(&table, &mut local, &key), None);
    assert_eq!(look_up(&table, &mut local, &udp(3, 2, 1)), Some(6));
}

#[test]
fn flows_have_names_or_matches_and_statistics_start_over() {
    let table = FlowTable::default();
    let unnamed = FlowSpec { ufid: None, ..flow(0, udp(1, 2, 3), 7, 5) };
    let matching = unnamed.matching.clone();
    let name = FlowSelector::Key(&matching.key);
    table.install(unnamed).unwrap();
    let mut local = WorkerState::new(0, 1);
    let key = udp(1, 2, 3);
    (0..3).for_each(|_| assert_eq!(look_up(&table, &mut local, &key), Some(5)));
    assert_eq!(table.get(name).unwrap().1.packets, 3);
    table.clear_stats(name).unwrap();
    assert_eq!(table.get(name).unwrap().1, FlowStats::default());
    look_up(&table, &mut local, &key);
    assert_eq!(table.get(name).unwrap().1, FlowStats { packets: 1, bytes: 60, used_ms: 5, tcp_flags: 0 });
    assert!(matches!(table.get(FlowSelector::Ufid(ufid(0))), Err(InstallError::Unknown)));
    table.remove(name).unwrap();
    assert!(matches!(table.remove(name), Err(InstallError::Unknown)));
    assert_eq!(table.len(), (0, 0));
}

#[test]
fn masks_are_bounded_and_come_back() {
    let table = FlowTable::default();
    let with_mask = |number: u32| {
        let key = FlowKey { ethernet: Some(Ethernet::default()), ..FlowKey::default() };
        let mask = FlowKey { dp_hash: Some(number + 1), ..FlowKey::default() };
        let ufid = Some(Ufid(u128::from(number).to_be_bytes()));
        FlowSpec { ufid, matching: Match { key, mask: Some(mask) }, actions: Vec::new(), is_probe: false }
    };
    (0..1024).for_each(|number| table.install(with_mask(number)).unwrap());
    assert!(matches!(table.install(with_mask(1024)), Err(InstallError::NoRoom(_))));
    table.remove(FlowSelector::Ufid(Ufid(7_u128.to_be_bytes()))).unwrap();
    assert_eq!(table.install(with_mask(1024)), Ok(()));
    assert_eq!(table.len(), (1024, 1024));
    let mut cursor = Some(0);
    while let Some(at) = cursor {
        cursor = table.flush(at, 100);
    }
    assert_eq!(table.len(), (0, 0));
}

/// One of many packets, and the flow that matches only this packet.
fn numbered(number: u32) -> FlowKey {
    let [_, b, c, d] = number.to_be_bytes();
    let ip = Ipv4 { src: [10, b, c, d].into(), proto: 17, ..Ipv4::default() };
    FlowKey { ipv4: Some(ip), ..udp(0, 0, 0) }
}

fn exact(number: u32) -> FlowSpec {
    let (matching, actions) =
        (Match { key: numbered(number), mask: None }, vec![Action::Output(number % 1000)]);
    FlowSpec { ufid: None, matching, actions, is_probe: false }
}

#[test]
fn many_flows_take_memory_for_statistics_only_where_they_are_met() {
    let table = FlowTable::default();
    let mut local = WorkerState::new(0, 1);
    local.begin(&table.shared);
    local.end(&table.shared);
    const FLOWS: u32 = 20_000;
    (0..FLOWS).for_each(|number| table.install(exact(number)).unwrap());
    assert!(table.shared.stats.memory_bytes() <= 64 << 10, "{}", table.shared.stats.memory_bytes());
    for number in (0..FLOWS).step_by(100).cycle().take(1000) {
        assert_eq!(look_up(&table, &mut local, &numbered(number)), Some((number % 1000) as u16));
    }
    // Each flow misses once, and again when another of the 200 has taken its place in the cache.
    assert!((700..=800).contains(&local.counts[HITS]), "{:?}", local.counts);
    assert!(table.shared.stats.memory_bytes() <= 64 << 10);
    let stats = table.get(FlowSelector::Key(&numbered(100))).unwrap().1;
    assert_eq!((stats.packets, stats.bytes), (5, 300));
}

#[test]
fn a_probe_is_there_by_name_and_no_packet_meets_it() {
    let table = FlowTable::default();
    let mut local = WorkerState::new(0, 1);
    table.install(flow(1, udp(1, 2, 3), 7, 5)).unwrap();
    let probe = || FlowSpec { ufid: None, is_probe: true, ..flow(1, udp(1, 2, 3), 7, 6) };
    assert_eq!(table.install(probe()), Ok(()));
    assert_eq!(table.install(probe()), Err(InstallError::Exists));
    let key = udp(1, 2, 3);
    assert_eq!(look_up(&table, &mut local, &key), Some(5));
    table.remove(FlowSelector::Ufid(ufid(1))).unwrap();
    assert_eq!(look_up(&table, &mut local, &key), None);
    assert_eq!(table.get(FlowSelector::Key(&udp(1, 2, 3))).unwrap().1, FlowStats::default());
    assert!(table.remove(FlowSelector::Key(&udp(1, 2, 3))).is_ok());
    assert_eq!(table.len(), (0, 0));
}

/// A flow with `len` bytes of user data.
fn with_data(number: u8, len: usize) -> FlowSpec {
    let userspace = Userspace { user_data: Some(vec![0; len]), ..Userspace::default() };
    FlowSpec { actions: vec![Action::Userspace(userspace)], ..flow(number, udp(number, 0, 0), 1, 1) }
}

#[test]
fn flow_data_is_bounded_until_the_last_reference() {
    const LEN: usize = FLOW_DATA_BYTES_MAX / 8 - 1024;
    let table = FlowTable::default();
    (0..8).for_each(|number| table.install(with_data(number, LEN)).expect("room"));
    let taken = table.data_bytes();
    assert!((8 * LEN..=FLOW_DATA_BYTES_MAX).contains(&taken));
    let is_full = |result| matches!(result, Err(InstallError::NoRoom(_)));
    assert!(is_full(table.install(with_data(8, LEN))));
    assert!(is_full(table.replace(FlowSelector::Ufid(ufid(0)), with_data(0, LEN).actions).map(drop)));
    assert_eq!((table.len(), table.data_bytes()), ((8, 1), taken), "nothing has changed");
    table.install(flow(9, udp(9, 0, 0), 1, 1)).expect("others are small");
    let removed = table.remove(FlowSelector::Ufid(ufid(0))).expect("it is there");
    assert!(is_full(table.install(with_data(8, LEN))), "somebody has it");
    drop(removed);
    table.install(with_data(8, LEN)).expect("room again");
    table.replace(FlowSelector::Ufid(ufid(1)), Vec::new()).expect("less than before");
    table.install(with_data(0, LEN)).expect("room again");
    while table.flush(0, usize::MAX).is_some() {}
    assert!(table.data_bytes() <= FORMER_BYTES, "{}", table.data_bytes());
}
