//! Address translation: choice of addresses and ports, both directions, with checksums.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use lasthop_conntrack::{CtMetadata, CtRefusal, CtRequest, PacketImage};
use lasthop_flow::{Nat, NatSource};
use lasthop_wire::Offload;
use lasthop_wire::vnet::{F_NEEDS_CSUM, GSO_TCPV4};

use crate::bench::{Bench, DNAT, EST, NEW, REPLY, Records, SNAT, commit, nat, natted};
use crate::frames::{ACK, SYN, Tcp, at, ends, udp};

const SRC: NatSource = NatSource::Src;
const DST: NatSource = NatSource::Dst;

/// Sends a packet, its reply, and the packet again. Returns source and destination as the server saw them.
fn there_and_back(
    bench: &mut Bench,
    client: &str,
    server: &str,
    request: &CtRequest,
) -> (SocketAddr, SocketAddr) {
    let (state, out) = bench.pass(&udp(at(client), at(server), b"question"), request);
    assert_eq!(state & NEW, NEW);
    let (from, to) = ends(&out);
    let (state, back) = bench.pass(&udp(to, from, b"answer"), &natted());
    assert_eq!((state & REPLY, ends(&back)), (REPLY, (at(server), at(client))));
    let (state, again) = bench.pass(&udp(at(client), at(server), b"question"), request);
    assert_eq!((state & EST, ends(&again)), (EST, (from, to)));
    (from, to)
}

#[test]
fn sources_and_destinations_are_translated_there_and_back() {
    let cases = [
        (
            "10.0.0.1:1000",
            "198.51.100.2:53",
            nat(SRC, ("192.0.2.1", ""), None),
            "192.0.2.1:1000",
            "198.51.100.2:53",
        ),
        (
            "10.0.0.1:1000",
            "198.51.100.2:53",
            nat(SRC, ("192.0.2.1", ""), Some((7, 7))),
            "192.0.2.1:7",
            "198.51.100.2:53",
        ),
        (
            "10.0.0.1:1000",
            "198.51.100.2:53",
            nat(SRC, ("", ""), Some((7, 7))),
            "10.0.0.1:7",
            "198.51.100.2:53",
        ),
        ("10.0.0.1:1000", "192.0.2.80:80", nat(DST, ("10.9.0.5", ""), None), "10.0.0.1:1000", "10.9.0.5:80"),
        (
            "10.0.0.1:1000",
            "192.0.2.80:80",
            nat(DST, ("10.9.0.5", ""), Some((8080, 8080))),
            "10.0.0.1:1000",
            "10.9.0.5:8080",
        ),
        (
            "[fd00::1]:1000",
            "[2001:db8::2]:53",
            nat(SRC, ("2001:db8::1", ""), None),
            "[2001:db8::1]:1000",
            "[2001:db8::2]:53",
        ),
        (
            "[fd00::1]:1000",
            "[2001:db8::2]:53",
            nat(DST, ("fd00::9", ""), Some((5, 5))),
            "[fd00::1]:1000",
            "[fd00::9]:5",
        ),
        (
            "10.0.0.1:1000",
            "198.51.100.2:53",
            nat(SRC, ("0.0.0.0", ""), None),
            "10.0.0.1:1000",
            "198.51.100.2:53",
        ),
    ];
    for (client, server, request, from, to) in cases {
        let found = there_and_back(&mut Bench::default(), client, server, &request);
        assert_eq!(found, (at(from), at(to)));
    }
}

#[test]
fn the_bits_name_the_translation_of_this_packet() {
    let mut bench = Bench::default();
    let (out, server) = (udp(at("10.0.0.1:1000"), at("198.51.100.2:53"), b""), at("198.51.100.2:53"));
    let request = nat(SRC, ("192.0.2.1", ""), None);
    assert_eq!(bench.pass(&out, &request).0, NEW | SNAT);
    let back = udp(server, at("192.0.2.1:1000"), b"");
    assert_eq!(bench.pass(&back, &CtRequest::default()).0, REPLY);
    assert_eq!(bench.pass(&back, &natted()).0, REPLY | DNAT);
    assert_eq!(bench.pass(&out, &natted()).0, EST | SNAT);
}

/// A client that gets no answer sends its first packet again. Flows of load balancers look for the address that it named.
#[test]
fn a_repeated_first_packet_is_translated_only_where_an_address_is_named() {
    let request = nat(DST, ("10.9.0.5", ""), Some((8080, 8080)));
    let (client, vip) = ("10.0.0.1:1000", "192.0.2.80:80");
    let other = nat(DST, ("10.9.0.6", ""), Some((8080, 8080)));
    for frame in [udp(at(client), at(vip), b""), Tcp::new(at(client), at(vip), SYN, 1, 0).frame()] {
        let mut bench = Bench::default();
        assert_eq!(bench.pass(&frame, &request).0, NEW | DNAT);
        let (state, out) = bench.pass(&frame, &natted());
        assert_eq!((state, ends(&out)), (NEW, (at(client), at(vip))));
        for request in [&request, &other] {
            let (state, out) = bench.pass(&frame, request);
            assert_eq!((state, ends(&out)), (NEW | DNAT, (at(client), at("10.9.0.5:8080"))));
        }
    }
}

#[test]
fn a_packet_is_translated_once_in_a_zone() {
    let mut bench = Bench::default();
    let request = nat(SRC, ("192.0.2.1", ""), None);
    let out = udp(at("10.0.0.1:1000"), at("198.51.100.2:53"), b"");
    let first = bench.track(&out, &CtMetadata::default(), &request);
    let translated = first.rewrites.applied(&out);
    // After an upcall only the metadata tells of the translation.
    let again = bench.track(&translated, &first.metadata, &request);
    assert!(again.rewrites.is_empty());
    assert_eq!((again.metadata, again.connection), (first.metadata, first.connection));
    assert_eq!(bench.tracker.len(), 1);
    // Another zone translates anew.
    let other = bench.track(&translated, &first.metadata, &CtRequest { zone: 9, ..request });
    assert_eq!(
        other.metadata.original.map(|tuple| tuple.src.to_ip(lasthop_wire::Network::Ipv4)),
        Some(at("192.0.2.1:0").ip())
    );
}

#[test]
fn clashes_get_another_port_of_the_same_class() {
    for (port, range) in [(300, 1..=511), (700, 600..=1023), (3000, 1024..=65535)] {
        let mut bench = Bench::default();
        let request = nat(SRC, ("192.0.2.1", ""), None);
        let mut ports = BTreeSet::new();
        for host in 1..=50 {
            let client = format!("10.0.0.{host}:{port}");
            let (from, _) = there_and_back(&mut bench, &client, "198.51.100.2:53", &request);
            assert!(range.contains(&from.port()), "{from}");
            assert!(ports.insert(from.port()), "{from} twice");
        }
        assert!(ports.contains(&port));
    }
}

#[test]
fn an_all_zero_source_keeps_addresses_and_changes_ports_that_clash() {
    let mut bench = Bench::default();
    let backend = nat(DST, ("10.9.0.5", ""), Some((80, 80)));
    // One client uses two addresses of one backend.
    let (first, _) = there_and_back(&mut bench, "10.0.0.1:1000", "192.0.2.80:80", &backend);
    let (second, _) = there_and_back(&mut bench, "10.0.0.1:1000", "192.0.2.81:80", &backend);
    assert_eq!((first, second.ip()), (at("10.0.0.1:1000"), first.ip()));
    assert_ne!(second.port(), 1000);
    let zero = nat(SRC, ("0.0.0.0", ""), None);
    let (third, _) = there_and_back(&mut bench, "10.0.0.1:1000", "10.9.0.5:80", &zero);
    assert!(third.ip() == first.ip() && third != first && third != second);
}

#[test]
fn addresses_are_spread_and_persistent_ones_stay() {
    let range = ("192.0.2.16", "192.0.2.31");
    let with = |is_persistent| {
        let mut request = nat(SRC, range, None);
        request.nat = request.nat.map(|nat| Nat { is_persistent, ..nat });
        request
    };
    for (is_persistent, least, most) in [(true, 1, 1), (false, 4, 16)] {
        let (mut bench, mut used) = (Bench::default(), BTreeSet::new());
        for server in 1..=60 {
            let server = format!("198.51.100.{server}:53");
            let (from, _) = there_and_back(&mut bench, "10.0.0.1:1000", &server, &with(is_persistent));
            used.insert(from.ip());
        }
        assert!((least..=most).contains(&used.len()), "{used:?}");
        assert!(used.iter().all(|ip| (at("192.0.2.16:0").ip()..=at("192.0.2.31:0").ip()).contains(ip)));
    }
}

#[test]
fn random_ports_are_random_and_hashed_ones_are_not() {
    let flags = |is_random, is_hashed| {
        let mut request = nat(SRC, ("192.0.2.1", ""), Some((20_000, 50_000)));
        request.nat = request.nat.map(|nat| Nat { is_random, is_hashed, ..nat });
        request
    };
    let ports = |request: &CtRequest| {
        let mut bench = Bench::default();
        let mut port = || {
            let (_, out) = bench.pass(&udp(at("10.0.0.1:1000"), at("198.51.100.2:53"), b""), request);
            assert!(bench.tracker.flush_zone(0, 10));
            ends(&out).0.port()
        };
        (0..20).map(|_| port()).collect::<BTreeSet<u16>>()
    };
    assert!(ports(&flags(true, false)).len() > 10);
    assert_eq!(ports(&flags(false, true)).len(), 1);
}

/// All ports of a range are used before any connection is refused, and a free one is found again.
fn exhaust(first: u16, last: u16) {
    let mut bench = Bench::default();
    let request = nat(SRC, ("192.0.2.1", ""), Some((first, last)));
    let (count, server) = (u32::from(last - first) + 1, at("198.51.100.2:53"));
    let client = |number: u32| {
        let [_, a, b, c] = number.to_be_bytes();
        SocketAddr::from(([10, a, b, c], 1000))
    };
    let mut ports = vec![0; 65536];
    for number in 0..count {
        let frame = udp(client(number), server, b"");
        let verdict = bench.track(&frame, &CtMetadata::default(), &request);
        assert_eq!(verdict.refused, None, "{number} of {count}");
        ports[usize::from(ends(&verdict.rewrites.applied(&frame)).0.port())] += 1;
    }
    assert!((first..=last).all(|port| ports[usize::from(port)] == 1));
    let late = udp(client(count), server, b"");
    let refused = bench.track(&late, &CtMetadata::default(), &request);
    assert_eq!(refused.refused, Some(CtRefusal::NatExhausted));
    assert_eq!((refused.metadata.state, bench.tracker.len()), (NEW, count));
    // Another server has a range of its own.
    let other = udp(client(count), at("198.51.100.3:53"), b"");
    assert_eq!(bench.track(&other, &CtMetadata::default(), &request).refused, None);
    // One connection is removed; its port is found.
    let gone = u16::try_from(u32::from(first) + count / 3).expect("a port");
    let (mut place, mut tuple) = (0, None);
    while let Some((next, record)) = bench.tracker.next_record(place, bench.now_ms) {
        place = next;
        tuple = tuple.or(Some(record.tuples[0])
            .filter(|_| record.tuples[1].dst_port == gone && record.tuples[0].dst.0[3] == 2));
    }
    assert!(bench.tracker.delete(&tuple.expect("it is there"), bench.now_ms));
    let verdict = bench.track(&late, &CtMetadata::default(), &request);
    assert_eq!((verdict.refused, ends(&verdict.rewrites.applied(&late)).0.port()), (None, gone));
}

#[test]
fn every_port_of_a_small_range_is_used() {
    exhaust(5000, 5000);
    exhaust(5000, 5099);
}

#[test]
fn every_port_of_a_large_range_is_used() {
    exhaust(30_000, 34_000);
}

#[test]
fn the_next_address_is_tried_when_one_has_no_port_left() {
    let bench = Bench::default();
    let request = nat(SRC, ("192.0.2.1", "192.0.2.2"), Some((5000, 5009)));
    let refused = (1..=20).filter(|host| {
        let frame = udp(at(&format!("10.0.0.{host}:1000")), at("198.51.100.2:53"), b"");
        // Without a dry run: its own tries may find a port where these find none, or the other way around.
        let image =
            PacketImage::parse(&frame, frame.len() as u32, Offload::default(), 1).expect("an IP packet");
        bench.tracker.track(&image, &CtMetadata::default(), &request, bench.now_ms).refused.is_some()
    });
    // Eight tries at random miss one of two addresses once in 128 times.
    assert!(refused.count() <= 2);
}

#[test]
fn a_tso_frame_stays_one_and_its_checksum_is_left_to_be_completed() {
    let mut bench = Bench::default();
    let request = nat(SRC, ("192.0.2.1", ""), Some((5000, 5000)));
    let (client, server) = (at("10.0.0.1:1000"), at("198.51.100.2:80"));
    bench.pass(&Tcp::new(client, server, SYN, 1000, 0).window(65535).frame(), &request);
    bench.pass(
        &Tcp::new(server, at("192.0.2.1:5000"), SYN | ACK, 5000, 1001).window(65535).frame(),
        &natted(),
    );
    bench.pass(&Tcp::new(client, server, ACK, 1001, 5001).frame(), &natted());
    let mut frame = Tcp::new(client, server, ACK, 1001, 5001).with(&vec![7; 60_000]).frame();
    // The sum of the pseudo header stands in the field, as Linux leaves it.
    let pseudo = |src: [u8; 4], dst: [u8; 4]| {
        !crate::frames::sum_of(&[&src[..], &dst, &[0, 6], &(60_020_u16).to_be_bytes()].concat())
    };
    frame[50..52].copy_from_slice(&pseudo([10, 0, 0, 1], [198, 51, 100, 2]).to_be_bytes());
    let offload = Offload {
        flags: F_NEEDS_CSUM,
        gso_type: GSO_TCPV4,
        hdr_len: 54,
        gso_size: 1448,
        csum_start: 34,
        csum_offset: 16,
    };
    let image = PacketImage::parse(&frame[..128], frame.len() as u32, offload, 1).expect("TCP");
    let verdict = bench.tracker.track(&image, &CtMetadata::default(), &natted(), bench.now_ms);
    assert_eq!((verdict.metadata.state, verdict.rewrites.splice.as_ref()), (EST | SNAT, None));
    let mut head = frame[..128].to_vec();
    verdict.rewrites.apply(&mut head);
    assert_eq!((ends(&head), head.len()), ((at("192.0.2.1:5000"), server), 128));
    assert_eq!(head[50..52], pseudo([192, 0, 2, 1], [198, 51, 100, 2]).to_be_bytes());
    assert_eq!(crate::frames::sum_of(&head[14..34]), 0);
}

#[test]
fn a_connection_that_was_committed_without_translation_stays_without() {
    let mut bench = Bench::default();
    let out = udp(at("10.0.0.1:1000"), at("198.51.100.2:53"), b"");
    bench.pass(&out, &commit());
    let (state, same) = bench.pass(&out, &nat(SRC, ("192.0.2.1", ""), None));
    assert_eq!((state, same), (NEW, out));
}

#[test]
fn a_udp_packet_without_checksum_gets_none() {
    let mut out = udp(at("10.0.0.1:1000"), at("198.51.100.2:53"), b"abc");
    out[40..42].fill(0);
    let verdict = Bench::default().track(&out, &CtMetadata::default(), &nat(SRC, ("192.0.2.1", ""), None));
    assert_eq!(verdict.rewrites.applied(&out)[40..42], [0, 0]);
}

#[test]
fn packets_without_headers_to_translate_are_refused_and_not_remembered() {
    let bench = Bench::default();
    let out = Tcp::new(at("10.0.0.1:1000"), at("198.51.100.2:80"), SYN, 1, 0).frame();
    // A UDP header's checksum is behind this image's end.
    let udp = udp(at("10.0.0.1:1000"), at("198.51.100.2:53"), b"abc");
    let image = PacketImage::parse(&udp[..40], udp.len() as u32, Offload::default(), 1).expect("UDP");
    let request = nat(SRC, ("192.0.2.1", ""), None);
    let verdict = bench.tracker.track(&image, &CtMetadata::default(), &request, bench.now_ms);
    assert_eq!((verdict.refused, bench.tracker.len()), (Some(CtRefusal::NotInImage), 0));
    let image = PacketImage::parse(&out[..50], out.len() as u32, Offload::default(), 1).expect("TCP");
    let verdict = bench.tracker.track(&image, &CtMetadata::default(), &request, bench.now_ms);
    assert_eq!(verdict.metadata.state, crate::bench::INVALID);
}

#[test]
fn tags_and_extension_headers_are_looked_behind() {
    let request = nat(SRC, ("2001:db8::1", ""), Some((5000, 5000)));
    let plain = Tcp::new(at("[fd00::1]:1000"), at("[2001:db8::2]:80"), SYN, 1, 0).frame();
    let wanted = Bench::default().pass(&plain, &request).1;
    let with = |at: usize, bytes: &[u8], frame: &[u8]| [&frame[..at], bytes, &frame[at..]].concat();
    let tagged = |frame: &[u8]| with(12, &[0x88, 0xa8, 0, 5, 0x81, 0, 0, 6], frame);
    // Destination options of eight bytes, which the pseudo header omits.
    let extended = |frame: &[u8]| {
        let mut frame = with(54, &[6, 0, 1, 4, 0, 0, 0, 0], frame);
        (frame[19], frame[20]) = (frame[19] + 8, 60);
        frame
    };
    let both = |frame: &[u8]| tagged(&extended(frame));
    let forms = [
        (tagged(&plain), tagged(&wanted)),
        (extended(&plain), extended(&wanted)),
        (both(&plain), both(&wanted)),
    ];
    for (frame, wanted) in forms {
        let verdict = Bench::default().track(&frame, &CtMetadata::default(), &request);
        assert_eq!(verdict.metadata.state, NEW | SNAT);
        assert_eq!(verdict.rewrites.applied(&frame), wanted);
    }
}
