//! Commit, force, marks, labels, zones, limits, deletion.

use lasthop_conntrack::{CtCommit, CtMetadata, CtRefusal, CtRequest, PacketImage};
use lasthop_flow::Masked;

use crate::bench::{Bench, EST, INVALID, NEW, REPLY, Records, commit};
use crate::frames::{ACK, SYN, Tcp, at, udp};

fn out() -> Vec<u8> {
    udp(at("10.0.0.1:1000"), at("10.0.0.2:53"), b"?")
}

fn back() -> Vec<u8> {
    udp(at("10.0.0.2:53"), at("10.0.0.1:1000"), b"!")
}

#[test]
fn marks_and_labels_are_written_by_commits_and_seen_by_both_directions() {
    let mut bench = Bench::default();
    let (mut value, mut mask) = ([0; 16], [0; 16]);
    (value[3], mask[3]) = (0xab, 0xf0);
    let request =
        CtRequest { mark: Masked { value: 0x1234, mask: 0xffff }, labels: (value, mask), ..commit() };
    let verdict = bench.track(&out(), &CtMetadata::default(), &request);
    assert_eq!((verdict.metadata.mark, verdict.metadata.labels[3]), (0x1234, 0xa0));
    let lookup = CtRequest::default();
    let seen = bench.track(&back(), &CtMetadata::default(), &lookup).metadata;
    assert_eq!((seen.mark, seen.labels[3], seen.state), (0x1234, 0xa0, REPLY));
    let original = seen.original.expect("a tuple");
    assert_eq!((original.src_port, original.dst_port), (1000, 53));
    let other = CtRequest { mark: Masked { value: 0xff00_0000, mask: 0xff00_0000 }, ..commit() };
    assert_eq!(bench.track(&back(), &CtMetadata::default(), &other).metadata.mark, 0xff00_1234);
    assert_eq!(bench.track(&out(), &CtMetadata::default(), &lookup).metadata.mark, 0xff00_1234);
}

#[test]
fn zones_know_nothing_of_each_other() {
    let mut bench = Bench::default();
    assert_eq!(bench.state(&out(), &CtRequest { zone: 1, ..commit() }), NEW);
    assert_eq!(bench.state(&back(), &CtRequest { zone: 1, ..CtRequest::default() }), REPLY);
    assert_eq!(bench.state(&back(), &CtRequest { zone: 2, ..CtRequest::default() }), NEW);
    let in_1 = bench.track(&out(), &CtMetadata::default(), &CtRequest { zone: 1, ..commit() }).metadata;
    let in_2 = bench.track(&out(), &in_1, &CtRequest { zone: 2, ..commit() }).metadata;
    assert_eq!((in_1.state, in_2.state, in_2.zone), (EST, NEW, 2));
    assert_eq!(
        (bench.tracker.zone(1), bench.tracker.zone(2), bench.tracker.zone(3)),
        ((None, 1), (None, 1), (None, 0))
    );
    assert!(bench.tracker.flush_zone(1, 10));
    assert_eq!((bench.tracker.zone(1).1, bench.tracker.zone(2).1), (0, 1));
}

#[test]
fn a_forced_commit_turns_a_connection_round() {
    let mut bench = Bench::default();
    bench.state(&out(), &commit());
    let force = CtRequest { commit: CtCommit::Force, ..CtRequest::default() };
    let first = bench.tracker.next_record(0, bench.now_ms).expect("a connection").1;
    assert_eq!(bench.state(&out(), &force), NEW);
    assert_eq!(bench.tracker.next_record(0, bench.now_ms).expect("a connection").1.id, first.id);
    assert_eq!(bench.state(&back(), &force), NEW);
    let turned = bench.tracker.next_record(0, bench.now_ms).expect("a connection").1;
    assert_eq!((turned.tuples[0], bench.tracker.len()), (first.tuples[1], 1));
    assert_eq!(bench.state(&out(), &CtRequest::default()), REPLY);
}

#[test]
fn a_packet_that_was_new_at_the_look_up_is_new_at_the_commit() {
    let mut bench = Bench::default();
    let looked_up = bench.track(&out(), &CtMetadata::default(), &CtRequest::default()).metadata;
    assert_eq!((looked_up.state, bench.tracker.len()), (NEW, 0));
    let committed = bench.track(&out(), &looked_up, &commit());
    assert_eq!((committed.metadata.state, bench.tracker.len()), (NEW, 1));
    // Another packet of the connection was looked up earlier, and commits after a reply: it finds the first one's
    // connection.
    bench.state(&back(), &commit());
    let late = bench.track(&out(), &looked_up, &commit());
    assert_eq!((late.connection, bench.tracker.len()), (committed.connection, 1));
    assert_eq!(late.metadata.state, NEW, "what was said of a packet stays");
}

#[test]
fn a_forced_commit_without_a_first_packet_is_invalid() {
    let (client, server) = (at("10.0.0.1:1000"), at("10.0.0.2:80"));
    let mut bench = Bench::default();
    bench.state(&Tcp::new(client, server, SYN, 1000, 0).frame(), &commit());
    let force = CtRequest { commit: CtCommit::Force, ..CtRequest::default() };
    let answer = Tcp::new(server, client, SYN | ACK, 5000, 1001).frame();
    let verdict = bench.track(&answer, &CtMetadata::default(), &force);
    assert_eq!((verdict.metadata.state, verdict.refused, bench.tracker.len()), (INVALID, None, 0));
}

#[test]
fn excess_over_a_limit_is_refused_by_name_and_counted() {
    let bench = Bench::default();
    bench.tracker.set_default_zone_limit(Some(1));
    bench.tracker.set_zone_limit(7, Some(2));
    let refused = |zone, port: u16| {
        let frame = udp(at(&format!("10.0.0.1:{port}")), at("10.0.0.2:53"), b"?");
        let image = PacketImage::parse(&frame, frame.len() as u32, Default::default(), 1).expect("UDP");
        let request = CtRequest { zone, ..commit() };
        let verdict = bench.tracker.track(&image, &CtMetadata::default(), &request, bench.now_ms);
        assert_eq!(verdict.metadata.state, NEW);
        verdict.refused
    };
    assert_eq!([refused(0, 1), refused(0, 2), refused(0, 1)], [None, Some(CtRefusal::ZoneLimit), None]);
    assert_eq!([refused(7, 1), refused(7, 2), refused(7, 3)], [None, None, Some(CtRefusal::ZoneLimit)]);
    let counters = bench.tracker.counters();
    assert_eq!((counters.created, counters.refused[CtRefusal::ZoneLimit as usize]), (3, 2));
}

#[test]
fn a_connection_is_deleted_by_either_tuple() {
    let mut bench = Bench::default();
    for direction in 0..2 {
        bench.state(&out(), &commit());
        let record = bench.tracker.next_record(0, bench.now_ms).expect("a connection").1;
        assert_eq!(bench.tracker.record_of(record.id, bench.now_ms), Some(record));
        assert!(bench.tracker.delete(&record.tuples[direction], bench.now_ms));
        assert!(!bench.tracker.delete(&record.tuples[direction], bench.now_ms));
        assert_eq!(bench.tracker.record_of(record.id, bench.now_ms), None);
    }
    assert_eq!(bench.tracker.counters().deleted, 2);
}

#[test]
fn a_dump_has_each_connection_once() {
    let mut bench = Bench::default();
    for port in 1..=500 {
        bench.state(&udp(at(&format!("10.0.0.1:{port}")), at("10.0.0.2:53"), b"?"), &commit());
    }
    let (mut place, mut ports) = (0, Vec::new());
    while let Some((next, record)) = bench.tracker.next_record(place, bench.now_ms) {
        ports.push(record.tuples[0].src_port);
        place = next;
        // Packets that arrive during the dump do not disturb it.
        bench.state(&udp(at(&format!("10.0.0.3:{place}")), at("10.0.0.2:53"), b"?"), &CtRequest::default());
    }
    ports.sort_unstable();
    assert_eq!(ports, (1..=500).collect::<Vec<u16>>());
}
