//! Connections in memory that outlives a process.

use std::os::fd::AsFd;
use std::sync::Arc;

use lasthop_conntrack::{ConntrackTable, CtAdopted, CtBounds, CtMetadata, CtRecord, CtRequest, PacketImage};
use lasthop_flow::{Masked, NatSource};
use lasthop_guestmem::{Mapping, Words, memfd};
use lasthop_wire::Offload;
use proptest::prelude::*;

use crate::bench::{Bench, EST, NEW, REPLY, SNAT, commit, nat, natted};
use crate::frames::{ACK, SYN, Tcp, at, ends, udp};

const BOUNDS: CtBounds =
    CtBounds { connections_max: 1000, port_connections_max: 1000, zone_connections_max: None };
/// Words in front of the places, and of each of these: the layout of version 1.
const HEADER_WORDS: usize = 512;
const PLACE_WORDS: usize = 32;

struct File(std::os::fd::OwnedFd);

impl File {
    fn new() -> Self {
        Self(memfd("connections", ConntrackTable::memory_bytes_for(&BOUNDS) as u64).expect("memory"))
    }

    fn mapping(&self) -> Arc<Mapping> {
        let bytes = ConntrackTable::memory_bytes_for(&BOUNDS) as u64;
        Arc::new(Mapping::of_file(self.0.as_fd(), 0, bytes).expect("it can be mapped"))
    }

    /// Another process has it.
    fn bench(&self, now_ms: u64) -> (Bench, CtAdopted) {
        let (tracker, adopted) = ConntrackTable::in_memory(&self.mapping(), BOUNDS, now_ms).expect("room");
        (Bench { tracker, now_ms }, adopted)
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
    // Ports that are in use stay so, and limits count what was kept.
    for number in 2..5 {
        let other = Tcp::new(at(&format!("10.0.0.{number}:1000")), at("198.51.100.1:80"), SYN, 0, 0).frame();
        assert_eq!(next.pass(&other, &request).0 & !SNAT, NEW);
    }
    let fifth = Tcp::new(at("10.0.0.5:1000"), at("198.51.100.1:80"), SYN, 0, 0).frame();
    assert!(next.track(&fifth, &CtMetadata::default(), &request).refused.is_some());
    assert_eq!(next.tracker.zone(0).1, 5);
    // And the third process sees the end of what was short.
    drop(next);
    let (third, adopted) = file.bench(1_030_000);
    assert_eq!((adopted.kept, adopted.over, third.tracker.len()), (4, 1, 4));
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
    // Half of what a packet stores: the numbers of one side.
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

    /// The next process reads any words, even of one that was taken over, without harm, and has what it counts.
    #[test]
    fn any_words_are_read_without_harm(
        junk in prop::collection::vec((0..64_usize, 0..PLACE_WORDS, prop_oneof![any::<u64>(), 0..4_u64, any::<u32>().prop_map(u64::from)]), 0..200),
        live in prop::collection::vec(0..64_usize, 0..64),
        used in prop_oneof![Just(64), any::<u64>()],
    ) {
        let file = File::new();
        let (mut first, _) = file.bench(1_000_000);
        for number in 0..64 {
            let from = at(&format!("10.0.0.{number}:1000"));
            let frame = if number % 2 == 0 { udp(from, at("198.51.100.1:53"), b"") } else { Tcp::new(from, at("198.51.100.1:80"), SYN, 0, 0).frame() };
            let _ = first.pass(&frame, &commit());
        }
        drop(first);
        let words = file.words();
        for (place, word, value) in junk {
            words.publish(HEADER_WORDS + place * PLACE_WORDS + word, value);
        }
        for place in live {
            let at = HEADER_WORDS + place * PLACE_WORDS;
            words.publish(at, words.read(at) | 1 << 32);
        }
        words.publish(1, used);
        let (mut next, adopted) = file.bench(1_000_001);
        prop_assert_eq!(adopted.kept, next.tracker.len());
        prop_assert_eq!(records(&next).len(), adopted.kept as usize);
        for number in 0..64 {
            let from = at(&format!("10.0.0.{number}:1000"));
            for frame in [udp(from, at("198.51.100.1:53"), b""), Tcp::new(from, at("198.51.100.1:80"), ACK, 1, 1).frame()] {
                let image = PacketImage::parse(&frame, frame.len() as u32, Offload::default(), 1).expect("an IP packet");
                let _ = next.tracker.track(&image, &CtMetadata::default(), &commit(), next.now_ms);
            }
        }
        next.now_ms += 1000 * (u64::from(u32::MAX) + 10);
        while !next.tracker.sweep(next.now_ms, 100_000) {}
        prop_assert_eq!(next.tracker.len(), 0);
    }
}
