//! UDP and protocols without ports, and half-open connections.

use lasthop_conntrack::{CtBounds, CtPolicy, CtRefusal, CtRequest};

use crate::bench::{Bench, EST, INVALID, NEW, REPLY, Records, commit};
use crate::frames::{at, frame, ip, udp};

const CLIENT: &str = "[fd00::1]:4000";
const SERVER: &str = "[fd00::2]:53";

fn left_s(bench: &Bench) -> u64 {
    bench.tracker.next_record(0, bench.now_ms).expect("a connection").1.left_ms / 1000
}

#[test]
fn replies_make_a_connection_and_time_makes_a_stream() {
    let mut bench = Bench::default();
    let (out, back) = (udp(at(CLIENT), at(SERVER), b"?"), udp(at(SERVER), at(CLIENT), b"!"));
    assert_eq!((bench.state(&out, &commit()), left_s(&bench)), (NEW, 30));
    assert_eq!(bench.state(&out, &commit()), NEW, "it is new until there is a reply");
    assert_eq!((bench.state(&back, &commit()), left_s(&bench)), (REPLY, 30));
    assert_eq!((bench.state(&out, &commit()), left_s(&bench)), (EST, 30));
    bench.now_ms += 2001;
    assert_eq!((bench.state(&back, &commit()), left_s(&bench)), (REPLY, 120));
    bench.now_ms += 120_000;
    assert_eq!(bench.state(&back, &CtRequest::default()), NEW, "it is over, and this is another one");
}

#[test]
fn timeouts_are_those_of_the_policy_of_the_commit() {
    let mut bench = Bench::default();
    bench.tracker.set_policy(3, CtPolicy { udp_single_s: 7, ..CtPolicy::OVS });
    let request = CtRequest { policy: 3, ..commit() };
    bench.state(&udp(at(CLIENT), at(SERVER), b"?"), &request);
    assert_eq!(left_s(&bench), 7);
}

#[test]
fn lengths_are_held_against_the_packet() {
    let mut frame = udp(at("10.0.0.1:1"), at("10.0.0.2:2"), b"abc");
    // Without a checksum only the length is wrong.
    frame[40..42].fill(0);
    assert_eq!(Bench::default().state(&frame, &commit()), NEW);
    for len in [0, 7, 12, 0xffff_u16] {
        frame[38..40].copy_from_slice(&len.to_be_bytes());
        assert_eq!(Bench::default().state(&frame, &commit()), INVALID, "{len}");
    }
}

#[test]
fn datagrams_need_no_checksum_of_either_version() {
    for (client, server, at_byte) in [("10.0.0.1:1", "10.0.0.2:2", 40), (CLIENT, SERVER, 60)] {
        let mut frame = udp(at(client), at(server), b"abc");
        frame[at_byte..at_byte + 2].fill(0);
        assert_eq!(Bench::default().state(&frame, &commit()), NEW, "{client}");
        frame[at_byte] = 1;
        assert_eq!(Bench::default().state(&frame, &commit()), INVALID, "{client}");
    }
}

#[test]
fn protocols_without_ports_are_connections_of_two_addresses() {
    let (a, b) = ("10.0.0.1".parse().expect("an address"), "10.0.0.2".parse().expect("an address"));
    let mut bench = Bench::default();
    assert_eq!(bench.state(&frame(&ip(a, b, 47, &[0; 4])), &commit()), NEW);
    assert_eq!(bench.state(&frame(&ip(b, a, 47, &[9; 4])), &commit()), REPLY);
    assert_eq!((bench.state(&frame(&ip(a, b, 47, &[1; 4])), &commit()), left_s(&bench)), (EST, 600));
}

#[test]
fn fragments_are_not_tracked() {
    let mut first = udp(at("10.0.0.1:1"), at("10.0.0.2:2"), &[0; 24]);
    first[20] = 0x20;
    assert_eq!(Bench::default().state(&first, &commit()), INVALID);
}

#[test]
fn a_flood_of_half_open_connections_evicts_no_other_ports() {
    let bounds = CtBounds { connections_max: 1000, port_connections_max: 600, zone_connections_max: None };
    let bench = Bench::with(bounds);
    let peer = |port: u16| (at(&format!("10.0.0.9:{port}")), at("10.0.0.2:53"));
    let packet = |frame: &[u8], in_port: u16| {
        let image =
            lasthop_conntrack::PacketImage::parse(frame, frame.len() as u32, Default::default(), in_port);
        let (tracker, now_ms) = (&bench.tracker, bench.now_ms);
        let verdict = tracker.track(&image.expect("UDP"), &Default::default(), &commit(), now_ms);
        (verdict.metadata.state, verdict.refused)
    };
    for flood in 0..20_000_u32 {
        let [_, _, high, low] = flood.to_be_bytes();
        let frame = udp(at(&format!("10.7.{high}.{low}:7")), at("10.0.0.2:53"), b"");
        assert_eq!(packet(&frame, 66), (NEW, None::<CtRefusal>));
        if flood % 100 == 0 {
            let (client, server) = peer(flood as u16 / 100 + 1);
            assert_eq!(packet(&udp(client, server, b"?"), 1).0, NEW);
            assert_eq!(packet(&udp(server, client, b"!"), 2).0, REPLY);
        }
    }
    for port in 1..=200 {
        let (client, server) = peer(port);
        assert_eq!(packet(&udp(client, server, b"?"), 1).0, EST, "{port}");
    }
}

#[test]
fn a_connection_takes_less_than_300_bytes() {
    const CONNECTIONS: u32 = 50_000;
    let mut bench = Bench::with(CtBounds { port_connections_max: 1 << 20, ..CtBounds::default() });
    for number in 0..CONNECTIONS {
        let [_, high, middle, low] = number.to_be_bytes();
        let frame = udp(at(&format!("10.{high}.{middle}.{low}:7")), at("10.0.0.2:53"), b"");
        assert_eq!(bench.state(&frame, &commit()), NEW);
    }
    assert_eq!(bench.tracker.len(), CONNECTIONS);
    let bytes = bench.tracker.memory_bytes();
    assert!(bytes < 300 * CONNECTIONS as usize, "{bytes} bytes");
}
