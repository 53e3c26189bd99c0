//! ICMP: requests and replies, and errors about other connections, also translated.

use lasthop_conntrack::{CtMetadata, CtRequest};
use lasthop_flow::{NatSource, ct_state};

use crate::bench::{Bench, DNAT, EST, INVALID, NEW, RELATED, REPLY, SNAT, commit, nat, natted};
use crate::frames::{SYN, Tcp, at, echo, ends, icmp, parts, udp, unreachable};

#[test]
fn questions_begin_connections_and_answers_belong_to_them() {
    for (a, b) in [("10.0.0.1", "10.0.0.2"), ("fd00::1", "fd00::2")] {
        let mut bench = Bench::default();
        assert_eq!(bench.state(&echo(b, a, true, 7), &commit()), INVALID);
        assert_eq!(bench.state(&echo(a, b, false, 7), &commit()), NEW);
        assert_eq!(bench.state(&echo(b, a, true, 8), &commit()), INVALID);
        assert_eq!(bench.state(&echo(b, a, true, 7), &commit()), REPLY);
        assert_eq!(bench.state(&echo(a, b, false, 7), &commit()), EST);
        assert_eq!(bench.state(&echo(b, a, false, 7), &commit()), NEW, "the other one asks himself");
    }
}

#[test]
fn neighbour_discovery_and_unknown_types_are_not_tracked() {
    let (a, b) = ("fd00::1".parse().expect("an address"), "fd00::2".parse().expect("an address"));
    for kind in 130..=200 {
        if !matches!(kind, 139 | 140) {
            assert_eq!(Bench::default().state(&icmp(a, b, kind, 0, &[0; 20]), &commit()), INVALID, "{kind}");
        }
    }
    let (a, b) = ("10.0.0.1".parse().expect("an address"), "10.0.0.2".parse().expect("an address"));
    for kind in [1, 2, 9, 10, 19, 40, 128, 255] {
        assert_eq!(Bench::default().state(&icmp(a, b, kind, 0, &[0; 20]), &commit()), INVALID, "{kind}");
    }
}

#[test]
fn an_error_is_related_to_the_connection_of_the_packet_inside() {
    for (client, server, router) in
        [("10.0.0.1:1000", "10.0.0.2:53", "10.0.0.9"), ("[fd00::1]:1000", "[fd00::2]:53", "fd00::9")]
    {
        let mut bench = Bench::default();
        let out = udp(at(client), at(server), b"question");
        assert_eq!(bench.state(&unreachable(router, &out, 200), &commit()), INVALID, "of nothing");
        bench.state(&out, &commit());
        let error = unreachable(router, &out, 200);
        let verdict = bench.track(&error, &CtMetadata::default(), &CtRequest::default());
        assert_eq!(verdict.metadata.state, RELATED | ct_state::REPLY);
        assert_eq!(verdict.metadata.original.map(|tuple| tuple.src_port), Some(1000));
        assert_eq!(bench.tracker.len(), 1);
        // An error about a reply goes in the original direction.
        let back = udp(at(server), at(client), b"answer");
        assert_eq!(bench.state(&unreachable(router, &back, 200), &commit()), RELATED);
        // Another host than the sender of the quoted packet gets the error.
        let mut other = error.clone();
        let at = if client.starts_with('[') { 14 + 39 } else { 14 + 19 };
        other[at] ^= 4;
        assert_eq!(bench.state(&other, &commit()), INVALID);
    }
}

#[test]
fn an_error_is_translated_inside_and_outside() {
    for (client, server, mapped, router) in [
        ("10.0.0.1:1000", "198.51.100.2:53", "192.0.2.1", "198.51.100.9"),
        ("[fd00::1]:1000", "[2001:db8::2]:53", "2001:db8:1::1", "2001:db8::9"),
    ] {
        for bytes in [28 + 20, 200] {
            let mut bench = Bench::default();
            let request = nat(NatSource::Src, (mapped, ""), Some((5000, 5000)));
            let question = udp(at(client), at(server), b"question");
            let (state, out) = bench.pass(&question, &request);
            assert_eq!(state, NEW | SNAT);
            let (state, error) = bench.pass(&unreachable(router, &out, bytes), &natted());
            assert_eq!(state, RELATED | ct_state::REPLY | DNAT);
            let (src, dst, _, l4) = parts(&error[14..]);
            assert_eq!((src, dst), (router.parse().expect("an address"), at(client).ip()));
            // The error quotes the packet as the client sent it.
            assert_eq!(l4[8..], question[14..][..l4.len() - 8]);
        }
    }
}

#[test]
fn an_error_about_a_tcp_segment_of_which_eight_bytes_are_there_is_translated() {
    let mut bench = Bench::default();
    let syn = Tcp::new(at("10.0.0.1:1000"), at("198.51.100.2:80"), SYN, 1, 0).frame();
    let (_, out) = bench.pass(&syn, &nat(NatSource::Src, ("192.0.2.1", ""), Some((5000, 5000))));
    let mut error = unreachable("198.51.100.9", &out, 28);
    let (_, fixed) = bench.pass(&error, &natted());
    assert_eq!(fixed[14 + 28..], syn[14..][..28]);
    // Padding behind it does not belong to the packet.
    error.extend([7; 10]);
    let verdict = bench.track(&error, &CtMetadata::default(), &natted());
    assert_eq!(verdict.rewrites.applied(&error), [&fixed[..], &[7; 10]].concat());
}

#[test]
fn an_error_from_behind_a_translated_destination_hides_it() {
    let mut bench = Bench::default();
    let out = udp(at("10.0.0.1:1000"), at("192.0.2.80:53"), b"question");
    let request = nat(NatSource::Dst, ("10.9.0.5", ""), Some((5353, 5353)));
    let (state, to_backend) = bench.pass(&out, &request);
    assert_eq!((state, ends(&to_backend).1), (NEW | DNAT, at("10.9.0.5:5353")));
    let (state, error) = bench.pass(&unreachable("10.9.0.5", &to_backend, 200), &natted());
    assert_eq!(state, RELATED | ct_state::REPLY | SNAT);
    let (src, dst, _, l4) = parts(&error[14..]);
    assert_eq!((src, dst), ("192.0.2.80".parse().expect("an address"), at("10.0.0.1:0").ip()));
    assert_eq!(l4[8..], out[14..]);
}

#[test]
fn identifiers_are_translated_when_they_clash() {
    let mut bench = Bench::default();
    let request = nat(NatSource::Src, ("192.0.2.1", ""), None);
    let (_, first) = bench.pass(&echo("10.0.0.1", "198.51.100.2", false, 7), &request);
    let (_, second) = bench.pass(&echo("10.0.0.2", "198.51.100.2", false, 7), &request);
    let id = |frame: &[u8]| u16::from_be_bytes([frame[38], frame[39]]);
    assert_eq!(id(&first), 7);
    assert_ne!(id(&second), 7);
    let (state, answer) = bench.pass(&echo("198.51.100.2", "192.0.2.1", true, id(&second)), &natted());
    assert_eq!((state, id(&answer)), (REPLY | DNAT, 7));
    assert_eq!(parts(&answer[14..]).1, at("10.0.0.2:0").ip());
}
