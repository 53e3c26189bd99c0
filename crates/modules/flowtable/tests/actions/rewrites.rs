//! A rewritten packet equals one that the independent implementation writes with the new fields.

use lasthop_flow::{Action, Arp, Ethernet, Icmp, Ipv4, Ipv6, Lse, Masked, Ports, Rewrite};
use lasthop_module_api::{DropReason, Mac};
use lasthop_wire::vnet::F_NEEDS_CSUM;
use lasthop_wire::{Offload, Sum};
use proptest::prelude::*;

use crate::packets::{Net, Spec, any_net, any_spec};
use crate::support::{module, outcome, result};

/// `old` with the bits of `mask` from `new`.
fn mixed<const N: usize>(old: [u8; N], new: [u8; N], mask: [u8; N]) -> [u8; N] {
    std::array::from_fn(|at| old[at] & !mask[at] | new[at] & mask[at])
}

/// Returns the rewrite of `spec`'s network header to that of `new` under `mask`, and the expected packet.
fn network_rewrite(spec: &Spec, new: &Net, mask: &Net) -> Option<(Rewrite, Spec)> {
    let mut then = spec.clone();
    let rewrite = match (&mut then.net, new, mask) {
        (
            Net::V4 { src, dst, tos, ttl },
            Net::V4 { src: s, dst: d, tos: t, ttl: l },
            Net::V4 { src: ms, dst: md, tos: mt, ttl: ml },
        ) => {
            *src = mixed(*src, *s, *ms);
            *dst = mixed(*dst, *d, *md);
            [*tos, *ttl] = mixed([*tos, *ttl], [*t, *l], [*mt, *ml]);
            let group = |src: &[u8; 4], dst: &[u8; 4], tos, ttl| Ipv4 {
                src: (*src).into(),
                dst: (*dst).into(),
                tos,
                ttl,
                ..Ipv4::default()
            };
            Rewrite::Ipv4(Masked { value: group(s, d, *t, *l), mask: group(ms, md, *mt, *ml) })
        }
        (
            Net::V6 { src, dst, label, tclass, hlimit },
            Net::V6 { src: s, dst: d, label: b, tclass: t, hlimit: h },
            Net::V6 { src: ms, dst: md, label: mb, tclass: mt, hlimit: mh },
        ) => {
            *src = mixed(*src, *s, *ms);
            *dst = mixed(*dst, *d, *md);
            *label = *label & !mb | b & mb;
            [*tclass, *hlimit] = mixed([*tclass, *hlimit], [*t, *h], [*mt, *mh]);
            let group = |src: &[u8; 16], dst: &[u8; 16], label, tclass, hlimit| Ipv6 {
                src: (*src).into(),
                dst: (*dst).into(),
                label,
                tclass,
                hlimit,
                ..Ipv6::default()
            };
            Rewrite::Ipv6(Masked { value: group(s, d, *b, *t, *h), mask: group(ms, md, *mb, *mt, *mh) })
        }
        _ => return None,
    };
    Some((rewrite, then))
}

fn checksum_at(spec: &Spec) -> usize {
    let l4 = if matches!(spec.net, Net::V4 { .. }) { 34 } else { 54 };
    l4 + if spec.is_tcp { 16 } else { 6 }
}

/// Compares frames. A sum of zero has two forms: one from computing it anew, one from updating it.
fn assert_same(found: &[u8], wanted: &[u8], spec: &Spec) {
    let (mut found, mut wanted) = (found.to_vec(), wanted.to_vec());
    let mut places = vec![checksum_at(spec)];
    places.extend(matches!(spec.net, Net::V4 { .. }).then_some(24));
    for at in places {
        for frame in [&mut found, &mut wanted] {
            if frame[at..at + 2] == [0xff, 0xff] && !spec.is_unsummed {
                frame[at..at + 2].copy_from_slice(&[0, 0]);
            }
        }
    }
    assert_eq!(found, wanted);
}

/// The same frame with a partial transport checksum: the field holds the sum of the pseudo header.
fn left_partial(spec: &Spec) -> (Vec<u8>, Offload) {
    let (mut frame, at) = (spec.frame(), checksum_at(spec));
    let csum_start = if matches!(spec.net, Net::V4 { .. }) { 34 } else { 54 };
    let proto = if spec.is_tcp { 6 } else { 17 };
    let len = frame.len() - csum_start;
    let pseudo = match spec.net {
        Net::V4 { src, dst, .. } => Sum::pseudo_v4(src, dst, proto, len as u16),
        Net::V6 { src, dst, .. } => Sum::pseudo_v6(src, dst, proto, len as u32),
    };
    frame[at..at + 2].copy_from_slice(&pseudo.partial().to_be_bytes());
    let offload = Offload {
        flags: F_NEEDS_CSUM,
        csum_start: csum_start as u16,
        csum_offset: (at - csum_start) as u16,
        ..Offload::default()
    };
    (frame, offload)
}

/// A frame with a partial checksum after its receiver has completed it.
fn completed(mut frame: Vec<u8>, offload: &Offload) -> Vec<u8> {
    let start = usize::from(offload.csum_start);
    let at = start + usize::from(offload.csum_offset);
    let mut sum = Sum::default();
    sum.add(&frame[start..]);
    frame[at..at + 2].copy_from_slice(&sum.finish_udp().to_be_bytes());
    frame
}

proptest! {
    #[test]
    fn network_headers(spec in any_spec(), new in any_net(), mask in any_net()) {
        let Some((rewrite, then)) = network_rewrite(&spec, &new, &mask) else { return Ok(()) };
        let found = result(vec![Action::Set(rewrite)], &spec.frame());
        assert_same(&found.expect("it is possible"), &then.frame(), &then);
    }

    #[test]
    fn network_headers_over_partial_checksums(mut spec in any_spec(), new in any_net(), mask in any_net()) {
        spec.is_unsummed = false;
        let Some((rewrite, then)) = network_rewrite(&spec, &new, &mask) else { return Ok(()) };
        let (frame, offload) = left_partial(&spec);
        let found = outcome(&module(vec![Action::Set(rewrite), Action::Output(2)]), &frame, offload);
        prop_assert_eq!(found.offloads[0], offload);
        assert_same(&completed(found.copies[0].1.clone(), &offload), &then.frame(), &then);
    }

    #[test]
    fn ports(spec in any_spec(), new: [u16; 2], mask: [u16; 2], is_partial: bool) {
        let is_partial = is_partial && !spec.is_unsummed;
        let mut then = spec.clone();
        then.ports = std::array::from_fn(|at| spec.ports[at] & !mask[at] | new[at] & mask[at]);
        let group = |[src, dst]: [u16; 2]| Ports { src, dst };
        let masked = Masked { value: group(new), mask: group(mask) };
        let rewrite = if spec.is_tcp { Rewrite::Tcp(masked) } else { Rewrite::Udp(masked) };
        let (frame, offload) = if is_partial { left_partial(&spec) } else { (spec.frame(), Offload::default()) };
        let found = outcome(&module(vec![Action::Set(rewrite), Action::Output(2)]), &frame, offload);
        let bytes = found.copies[0].1.clone();
        let bytes = if is_partial { completed(bytes, &offload) } else { bytes };
        assert_same(&bytes, &then.frame(), &then);
    }

    #[test]
    fn addresses(spec in any_spec(), new: [[u8; 6]; 2], mask: [[u8; 6]; 2]) {
        let mut then = spec.clone();
        then.macs = std::array::from_fn(|at| mixed(spec.macs[at], new[at], mask[at]));
        let group = |[src, dst]: [[u8; 6]; 2]| Ethernet { src: Mac(src), dst: Mac(dst) };
        let rewrite = Rewrite::Ethernet(Masked { value: group(new), mask: group(mask) });
        prop_assert_eq!(result(vec![Action::Set(rewrite)], &spec.frame()), Ok(then.frame()));
    }
}

#[test]
fn later_fragments_have_no_checksum_to_follow() {
    let mut frame = Spec::plain().frame();
    (frame[20], frame[21]) = (0, 9);
    let rewrite = Rewrite::Ipv4(Masked::exact(Ipv4 { src: [9, 9, 9, 9].into(), ..Ipv4::default() }));
    let found = result(vec![Action::Set(rewrite)], &frame).expect("it is possible");
    assert_eq!((&found[26..30], &found[34..]), (&[9; 4][..], &frame[34..]));
}

#[test]
fn a_checksum_that_is_not_in_sight_forbids_other_addresses() {
    let behind = |options: u8| {
        let net = Net::V6 { src: [1; 16], dst: [2; 16], label: 0, tclass: 0, hlimit: 9 };
        let mut frame = Spec { net, ..Spec::plain() }.frame();
        (frame[20], frame[18], frame[19]) = (60, 0, 28 + options);
        let mut header = vec![0; options.into()];
        (header[0], header[1]) = (17, options / 8 - 1);
        frame.splice(54..54, header);
        frame
    };
    let rewrite = |src: [u8; 16], hlimit| {
        let value = Ipv6 { src: src.into(), hlimit, ..Ipv6::default() };
        let mask = Ipv6 { src: [0xff; 16].into(), hlimit: 0xff, ..Ipv6::default() };
        vec![Action::Set(Rewrite::Ipv6(Masked { value, mask }))]
    };
    // The UDP header begins 134 bytes into the frame, beyond the image's 128, or ends 126 bytes into it.
    assert_eq!(result(rewrite([3; 16], 8), &behind(80)), Err(DropReason::ActionImpossible));
    assert_eq!(result(rewrite([3; 16], 8), &behind(64)).map(|found| found[21]), Ok(8));
}

#[test]
fn long_packets_of_other_protocols_get_other_addresses() {
    let v6 = Net::V6 { src: [1; 16], dst: [2; 16], label: 0, tclass: 0, hlimit: 9 };
    let any4 = Net::V4 { src: [9; 4], dst: [8; 4], tos: 0, ttl: 0 };
    let all4 = Net::V4 { src: [0xff; 4], dst: [0xff; 4], tos: 0, ttl: 0 };
    let any6 = Net::V6 { src: [9; 16], dst: [8; 16], label: 0, tclass: 0, hlimit: 0 };
    let all6 = Net::V6 { src: [0xff; 16], dst: [0xff; 16], label: 0, tclass: 0, hlimit: 0 };
    let payload = vec![7; 400];
    // ICMP, IGMP, IPIP, 6in4, GRE, ESP, OSPF; ICMP for IPv6 has no meaning in IPv4.
    for number in [1, 2, 4, 41, 47, 50, 58, 89] {
        let (rewrite, then) = network_rewrite(&Spec::plain(), &any4, &all4).expect("the same version");
        let found = result(vec![Action::Set(rewrite)], &Spec::plain().frame_of(number, &payload));
        assert_eq!(found, Ok(then.frame_of(number, &payload)), "{number}");
    }
    let spec = Spec { net: v6, ..Spec::plain() };
    for number in [4, 41, 47, 50, 89] {
        let (rewrite, then) = network_rewrite(&spec, &any6, &all6).expect("the same version");
        let found = result(vec![Action::Set(rewrite)], &spec.frame_of(number, &payload));
        assert_eq!(found, Ok(then.frame_of(number, &payload)), "{number}");
    }
    // A header of TCP that contradicts itself has a checksum nevertheless.
    let (rewrite, _) = network_rewrite(&Spec::plain(), &any4, &all4).expect("the same version");
    let found = result(vec![Action::Set(rewrite)], &Spec::plain().frame_of(6, &vec![0; 400]));
    assert_eq!(found, Err(DropReason::ActionImpossible));
}

#[test]
fn absent_fields_cannot_be_rewritten() {
    let impossible = Err(DropReason::ActionImpossible);
    let tcp = vec![Action::Set(Rewrite::Tcp(Masked::exact(Ports { src: 1, dst: 2 })))];
    assert_eq!(result(tcp, &Spec::plain().frame()), impossible);
    let ipv6 = vec![Action::Set(Rewrite::Ipv6(Masked::exact(Ipv6::default())))];
    assert_eq!(result(ipv6, &Spec::plain().frame()), impossible);
    let mpls = vec![Action::Set(Rewrite::Mpls(Masked::exact(Lse { lse: 1 })))];
    assert_eq!(result(mpls, &Spec::plain().frame()), impossible);
    let arp = vec![Action::Set(Rewrite::Arp(Masked::exact(Arp::default())))];
    assert_eq!(result(arp, &Spec::plain().frame()), impossible);
}

#[test]
fn icmp_and_its_checksum() {
    let echo = |kind: u8| {
        let mut message = [kind, 0, 0, 0, 1, 2, 3, 4, 5, 6];
        let mut sum = Sum::default();
        sum.add(&message);
        message[2..4].copy_from_slice(&sum.finish().to_be_bytes());
        let mut frame = Spec::plain().frame();
        frame.truncate(34);
        (frame[23], frame[24], frame[25]) = (1, 0, 0);
        [frame, message.to_vec()].concat()
    };
    let kind = Masked { value: Icmp { kind: 0, code: 0 }, mask: Icmp { kind: 0xff, code: 0 } };
    assert_eq!(result(vec![Action::Set(Rewrite::Icmp(kind))], &echo(8)), Ok(echo(0)));
}

#[test]
fn arp_and_mpls_have_none() {
    let arp = |operation: u8, address: [u8; 4]| {
        let mut frame = vec![2; 12];
        frame.extend([8, 6, 0, 1, 8, 0, 6, 4, 0, operation]);
        frame.extend([&[3; 6][..], &address, &[4; 6], &[10, 0, 0, 9]].concat());
        frame
    };
    let value = Arp { op: 2, sip: [10, 0, 0, 7].into(), ..Arp::default() };
    let mask = Arp { op: u16::MAX, sip: [0xff; 4].into(), ..Arp::default() };
    let rewrite = Rewrite::Arp(Masked { value, mask });
    assert_eq!(result(vec![Action::Set(rewrite)], &arp(1, [10, 0, 0, 1])), Ok(arp(2, [10, 0, 0, 7])));
    let mpls = |entry: u32| Spec::plain().frame_with(&[&[0x88, 0x47][..], &entry.to_be_bytes()].concat());
    let rewrite = Rewrite::Mpls(Masked { value: Lse { lse: 0x20 }, mask: Lse { lse: 0xff } });
    assert_eq!(result(vec![Action::Set(rewrite)], &mpls(0x1_2140)), Ok(mpls(0x1_2120)));
}
