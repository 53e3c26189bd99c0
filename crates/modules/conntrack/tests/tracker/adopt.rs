//! Connections in memory that outlives a process.

use std::os::fd::AsFd;
use std::sync::Arc;

use lasthop_conntrack::{ConntrackTable, CtAdopted, CtBounds, CtDryRun, CtMetadata, CtRecord, CtRequest};
use lasthop_flow::{Masked, NatSource};
use lasthop_guestmem::{Mapping, Words, memfd};
use proptest::prelude::*;

use crate::bench::{Bench, EST, NEW, REPLY, SNAT, commit, nat, natted};
use crate::frames::{ACK, SYN, Tcp, at, ends, udp};

const BOUNDS: CtBounds =
    CtBounds { connections_max: 1000, port_connections_max: 1000, zone_connections_max: None };
/// Words in front of the places, and of each of these: the layout of version 3.
const HEADER_WORDS: usize = 512;
const PLACE_WORDS: usize = 32;
/// Connections, and those that shards may keep vacant.
const PLACES: usize = 1000 + 16 * 128;
/// The notes of the first shard's index.
const NOTES_AT: usize = 8;

struct File(std::os::fd::OwnedFd);

impl File {
    fn new() -> Self {
        Self(memfd("connections", ConntrackTable::memory_bytes_for(&BOUNDS) as u64).expect("memory"))
    }

    fn mapping(&self) -> Arc<Mapping> {
        let bytes = ConntrackTable::memory_bytes_for(&BOUNDS) as u64;
        Arc::new(Mapping::of_file(self.0.as_fd(), 0, bytes).expect("it can be mapped"))
    }

    /// Hands the memory to another process, which has checked nothing yet.
    fn fresh(&self, now_ms: u64) -> Bench {
        let tracker = ConntrackTable::in_memory(&self.mapping(), BOUNDS, now_ms).expect("room");
        Bench { tracker, now_ms, dry_run: CtDryRun::default() }
    }

    /// Hands the memory to another process, which checks all.
    fn bench(&self, now_ms: u64) -> (Bench, CtAdopted) {
        let bench = self.fresh(now_ms);
        while !bench.tracker.adopt(now_ms, 7) {}
        let adopted = bench.tracker.adopted();
        (bench, adopted)
    }

    fn words(&self) -> Words {
        let mapping = self.mapping();
        Words::new(&mapping, 0, mapping.len() / 8).expect("words")
    }
}

fn records(bench: &Bench) -> Vec<CtRecord> {
    let mut records = Vec::new();
    assert_eq!(bench.tracker.dump(0, None, bench.now_ms, usize::MAX, &mut records), None);
    records
}

fn establish(bench: &mut Bench, request: &CtRequest) -> (Vec<u8>, Vec<u8>) {
    let (client, server) = (at("10.0.0.1:1000"), at("198.51.100.1:80"));
    let (state, syn) = bench.pass(&Tcp::new(client, server, SYN, 0, 0).frame(), request);
    assert_eq!(state & !SNAT, NEW);
    let outside = ends(&syn).0;
    let answer = Tcp::new(server, outside, SYN | ACK, 0, 1).frame();
    bench.pass(&answer, &natted());
    let (state, _) = bench.pass(&Tcp::new(client, server, ACK, 1, 1).frame(), &natted());
    assert_eq!(state & !SNAT, EST);
    (Tcp::new(client, server, ACK, 1, 1).with(b"more").frame(), Tcp::new(server, outside, ACK, 1, 1).frame())
}

#[test]
fn the_next_process_goes_on_with_connections_and_their_translation() {
    let file = File::new();
    let (mut first, adopted) = file.bench(1_000_000);
    assert_eq!(adopted, CtAdopted::default());
    let request = CtRequest {
        mark: Masked::exact(7),
        labels: ([9; 16], [0xff; 16]),
        ..nat(NatSource::Src, ("192.0.2.1", ""), Some((5000, 5003)))
    };
    let (data, reply) = establish(&mut first, &request);
    let short = udp(at("10.0.0.9:1"), at("198.51.100.1:53"), b"");
    first.pass(&short, &commit());
    let before = records(&first);
    drop(first);
    let (mut next, adopted) = file.bench(1_029_999);
    assert_eq!(adopted, CtAdopted { kept: 2, ..CtAdopted::default() });
    let kept = |record: &CtRecord| CtRecord { left_ms: record.left_ms - 29_999, ..*record };
    assert_eq!(records(&next), before.iter().map(kept).collect::<Vec<_>>());
    let (state, out) = next.pass(&data, &natted());
    assert_eq!((state, ends(&out).0.ip()), (EST | SNAT, at("192.0.2.1:0").ip()));
    let (state, out) = next.pass(&reply, &natted());
    assert_eq!((state & REPLY, ends(&out).1), (REPLY, at("10.0.0.1:1000")));
    // Ports in use stay in use, and limits count the kept connections.
    for number in 2..5 {
        let other = Tcp::new(at(&format!("10.0.0.{number}:1000")), at("198.51.100.1:80"), SYN, 0, 0).frame();
        assert_eq!(next.pass(&other, &request).0 & !SNAT, NEW);
    }
    let fifth = Tcp::new(at("10.0.0.5:1000"), at("198.51.100.1:80"), SYN, 0, 0).frame();
    assert!(next.track(&fifth, &CtMetadata::default(), &request).refused.is_some());
    assert_eq!(next.tracker.zone(0).1, 5);
    // The third process sees the end of the short-lived connection.
    drop(next);
    let (third, adopted) = file.bench(1_030_000);
    assert_eq!((adopted.kept, adopted.over, third.tracker.len()), (4, 1, 4));
}

/// Connections that a process has checked.
fn looked_at(bench: &Bench) -> u32 {
    let CtAdopted { kept, over, dropped, .. } = bench.tracker.adopted();
    kept + over + dropped
}

/// The work in front of the first packet, counted: it does not grow with the number of connections.
#[test]
fn a_packet_finds_its_connection_before_others_are_looked_at() {
    for others in [0_u32, 10, 900] {
        let file = File::new();
        let (mut first, _) = file.bench(1_000_000);
        let request = nat(NatSource::Src, ("192.0.2.1", ""), Some((5000, 5003)));
        let (data, reply) = establish(&mut first, &request);
        for number in 0..others {
            let frame =
                udp(at(&format!("10.1.{}.{}:1", number / 200, number % 200)), at("198.51.100.1:53"), b"");
            first.pass(&frame, &commit());
        }
        drop(first);
        let mut next = file.fresh(1_000_001);
        assert_eq!((looked_at(&next), next.tracker.is_adopted()), (0, false));
        let (state, out) = next.pass(&reply, &natted());
        assert_eq!((state & REPLY, ends(&out).1), (REPLY, at("10.0.0.1:1000")));
        assert_eq!(looked_at(&next), 1);
        let (state, out) = next.pass(&data, &natted());
        assert_eq!((state, ends(&out).0.ip()), (EST | SNAT, at("192.0.2.1:0").ip()));
        assert_eq!(looked_at(&next), 1);
        // A new one gets no port of an unchecked connection, and slices check each connection once.
        let other = Tcp::new(at("10.0.0.2:1000"), at("198.51.100.1:80"), SYN, 0, 0).frame();
        let (state, out) = next.pass(&other, &request);
        assert_eq!(state & !SNAT, NEW);
        assert_ne!(ends(&out).0, ends(&establish_source(&data, &mut next)).0);
        while !next.tracker.adopt(next.now_ms, 5) {}
        assert_eq!(next.tracker.adopted(), CtAdopted { kept: others + 1, ..CtAdopted::default() });
        assert_eq!(next.tracker.len(), others + 2);
    }
}

/// A packet as it leaves.
fn establish_source(data: &[u8], bench: &mut Bench) -> Vec<u8> {
    bench.pass(data, &natted()).1
}

#[test]
fn requests_about_all_connections_mean_those_that_nobody_has_looked_at_as_well() {
    let file = File::new();
    let (mut first, _) = file.bench(1_000_000);
    for number in 0..100 {
        first.pass(&udp(at(&format!("10.0.0.{number}:1")), at("198.51.100.1:53"), b""), &commit());
    }
    drop(first);
    assert_eq!(records(&file.fresh(1_000_001)).len(), 100);
    assert_eq!(file.fresh(1_000_001).tracker.zone(0).1, 100);
    let flushed = file.fresh(1_000_001);
    while !flushed.tracker.flush_zone(0, 10) {}
    assert_eq!((flushed.tracker.len(), records(&flushed).len()), (0, 0));
    drop(flushed);
    assert_eq!(file.bench(1_000_001).1, CtAdopted::default());
}

/// A process may be killed while it has checked half of another one's connections.
#[test]
fn what_nobody_has_looked_at_is_kept_for_the_third_process() {
    let file = File::new();
    let (mut first, _) = file.bench(1_000_000);
    let frames: Vec<_> =
        (0..200).map(|number| udp(at(&format!("10.0.0.{number}:1")), at("198.51.100.1:53"), b"")).collect();
    frames.iter().for_each(|frame| drop(first.pass(frame, &commit())));
    drop(first);
    for step in [0, 1, 50, 150, 255] {
        let mut next = file.fresh(1_000_001);
        let _ = next.tracker.adopt(next.now_ms, step);
        let frame = &frames[step as usize % frames.len()];
        assert_eq!(next.state(frame, &natted()) & NEW, NEW, "it waits for its answer");
        assert!(next.track(frame, &CtMetadata::default(), &natted()).connection.is_some());
    }
    assert_eq!(file.bench(1_000_001).1.kept, 200);
}

#[test]
fn a_process_that_died_amid_a_change_leaves_a_connection_in_doubt() {
    let file = File::new();
    let (mut first, _) = file.bench(1_000_000);
    let (data, _) = establish(&mut first, &commit());
    drop(first);
    let words = file.words();
    let version = words.read(HEADER_WORDS);
    words.publish(HEADER_WORDS, version | 1);
    // Half of a packet's stores: the numbers of one side.
    words.publish(HEADER_WORDS + 6, 0x1234_5678_9abc_def0);
    let (mut next, adopted) = file.bench(1_000_001);
    assert_eq!(adopted, CtAdopted { kept: 1, doubted: 1, ..CtAdopted::default() });
    assert_eq!(next.state(&data, &natted()), EST, "windows are not held against it");
}

#[test]
fn another_layout_is_not_read() {
    let file = File::new();
    let (mut first, _) = file.bench(1_000_000);
    let _ = establish(&mut first, &commit());
    drop(first);
    file.words().publish(0, 5);
    let (next, adopted) = file.bench(1_000_000);
    assert_eq!((adopted, next.tracker.len()), (CtAdopted::default(), 0));
    drop(next);
    assert_eq!(file.bench(1_000_000).1, CtAdopted::default(), "nor by the one behind");
}

#[test]
fn memory_that_is_too_small_is_refused() {
    let mapping = Arc::new(Mapping::anonymous(4096).expect("memory"));
    assert!(ConntrackTable::in_memory(&mapping, BOUNDS, 0).is_none());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// The next process reads any words without harm, even those of a compromised process, and counts correctly:
    /// places, and the index with its notes. `looks` is the number of packets before the checks.
    #[test]
    fn any_words_are_read_without_harm(
        junk in prop::collection::vec((0..64_usize, 0..PLACE_WORDS, prop_oneof![any::<u64>(), 0..4_u64, any::<u32>().prop_map(u64::from)]), 0..200),
        // Zone 0 belongs to the first shard.
        heads in prop::collection::vec((0..128_usize, 0..130_u64, 0..130_u64), 0..64),
        notes in prop::collection::vec((0..4_usize, prop_oneof![any::<u64>(), 0..200_u64, Just(256 << 32 | 3)]), 0..4),
        live in prop::collection::vec(0..64_usize, 0..64),
        used in prop_oneof![Just(64), any::<u64>()],
        looks in 0..64_u32,
    ) {
        let file = File::new();
        let (mut first, _) = file.bench(1_000_000);
        let frame = |number: u32, is_later: bool| {
            let from = at(&format!("10.0.0.{number}:1000"));
            match number % 2 {
                0 => udp(from, at("198.51.100.1:53"), b""),
                _ => Tcp::new(from, at("198.51.100.1:80"), if is_later { ACK } else { SYN }, u32::from(is_later), u32::from(is_later)).frame(),
            }
        };
        for number in 0..64 {
            let _ = first.pass(&frame(number, false), &commit());
        }
        drop(first);
        let words = file.words();
        for (place, word, value) in junk {
            words.publish(HEADER_WORDS + place * PLACE_WORDS + word, value);
        }
        for (word, low, high) in heads {
            words.publish(HEADER_WORDS + PLACES * PLACE_WORDS + word, low | high << 32);
        }
        for (word, value) in notes {
            words.publish(NOTES_AT + word, value);
        }
        for place in live {
            let at = HEADER_WORDS + place * PLACE_WORDS;
            words.publish(at, words.read(at) | 1 << 32);
        }
        words.publish(1, used);
        let mut next = file.fresh(1_000_001);
        for number in 0..looks {
            let _ = next.track(&frame(number, true), &CtMetadata::default(), &commit());
        }
        while !next.tracker.adopt(next.now_ms, 16) {}
        prop_assert!(looks > 0 || next.tracker.adopted().kept == next.tracker.len());
        prop_assert_eq!(records(&next).len(), next.tracker.len() as usize);
        for number in 0..64 {
            let _ = next.track(&frame(number, true), &CtMetadata::default(), &commit());
        }
        // Every connection in the table is found.
        for record in records(&next) {
            prop_assert!(next.tracker.find(&record.tuples[0], next.now_ms).is_some());
            prop_assert!(next.tracker.find(&record.tuples[1], next.now_ms).is_some());
        }
        next.now_ms += 1000 * (u64::from(u32::MAX) + 10);
        while !next.tracker.sweep(next.now_ms, 100_000) {}
        prop_assert_eq!(next.tracker.len(), 0);
    }
}
