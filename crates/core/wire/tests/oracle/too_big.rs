//! Answers to packets that are too long: read, and their checksums calculated, by the independent implementation.

use etherparse::icmpv4::DestUnreachableHeader;
use etherparse::{
    EtherType, Icmpv4Header, Icmpv4Type, Icmpv6Header, Icmpv6Type, IpNumber, Ipv4Header, Ipv6Header,
};
use lasthop_wire::too_big::{ANSWER_BYTES_MAX, ANSWERED_BYTES, answer};
use lasthop_wire::{Layers, Network};
use proptest::prelude::*;

use crate::packets::{any_packet, icmp_packet};

const ETHERNET: [u8; 12] = [2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
const ONE: [u8; 16] = [0xfd, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
const TWO: [u8; 16] = [0xfd, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2];

fn ethernet(kind: EtherType) -> Vec<u8> {
    [&ETHERNET[..], &kind.0.to_be_bytes()].concat()
}

/// A packet of UDP, changed by `edit`, of `len` bytes.
fn packet_v4(len: usize, edit: impl FnOnce(&mut Ipv4Header)) -> Vec<u8> {
    let payload = (len - 20) as u16;
    let mut header = Ipv4Header::new(payload, 9, IpNumber::UDP, [10, 0, 0, 2], [10, 0, 0, 1]).expect("fits");
    header.dont_fragment = true;
    edit(&mut header);
    header.header_checksum = header.calc_header_checksum();
    let mut frame = ethernet(EtherType::IPV4);
    header.write(&mut frame).expect("written");
    frame.extend((0..payload).map(|at| at as u8));
    frame
}

fn packet_v6(len: usize, edit: impl FnOnce(&mut Ipv6Header)) -> Vec<u8> {
    let payload_length = (len - 40) as u16;
    let next_header = IpNumber::UDP;
    let mut header = Ipv6Header {
        payload_length,
        next_header,
        hop_limit: 9,
        source: TWO,
        destination: ONE,
        ..Ipv6Header::default()
    };
    edit(&mut header);
    let mut frame = ethernet(EtherType::IPV6);
    header.write(&mut frame).expect("written");
    frame.extend((0..payload_length).map(|at| at as u8));
    frame
}

fn answered(frame: &[u8], frame_bytes_max: u32) -> Option<Vec<u8>> {
    let mut out = [0; ANSWER_BYTES_MAX];
    let seen = &frame[..frame.len().min(ANSWERED_BYTES)];
    let len = answer(seen, frame_bytes_max, &mut out)?;
    Some(out[..len].to_vec())
}

/// Checks the answer to a frame; the MTU in it.
fn check(frame: &[u8], reply: &[u8]) -> u32 {
    let layers = Layers::parse(frame).expect("it was answered");
    let (start, packet) = frame.split_at(layers.l3_offset.into());
    assert_eq!((&reply[..6], &reply[6..12]), (&frame[6..12], &frame[..6]));
    assert_eq!(reply[12..start.len()], start[12..]);
    let reply = &reply[start.len()..];
    let (mtu, quoted) = match layers.l3 {
        Network::Ipv4 => {
            let (header, rest) = Ipv4Header::from_slice(reply).expect("a header");
            let (icmp, quoted) = Icmpv4Header::from_slice(rest).expect("ICMP");
            assert_eq!(
                (header.source, header.destination),
                (packet[16..20].try_into().unwrap(), packet[12..16].try_into().unwrap())
            );
            assert_eq!((usize::from(header.total_len), header.protocol), (reply.len(), IpNumber::ICMP));
            assert_eq!(header.header_checksum, header.calc_header_checksum());
            assert_eq!(icmp.checksum, icmp.icmp_type.calc_checksum(quoted));
            let Icmpv4Type::DestinationUnreachable(DestUnreachableHeader::FragmentationNeeded {
                next_hop_mtu,
            }) = icmp.icmp_type
            else {
                panic!("{icmp:?}")
            };
            assert!(reply.len() <= 576 && next_hop_mtu >= 68);
            (u32::from(next_hop_mtu), quoted)
        }
        Network::Ipv6 => {
            let (header, rest) = Ipv6Header::from_slice(reply).expect("a header");
            let (icmp, quoted) = Icmpv6Header::from_slice(rest).expect("ICMPv6");
            assert_eq!((&header.source[..], &header.destination[..]), (&packet[24..40], &packet[8..24]));
            assert_eq!(
                (usize::from(header.payload_length), header.next_header),
                (rest.len(), IpNumber::IPV6_ICMP)
            );
            let sum = icmp.icmp_type.calc_checksum(header.source, header.destination, quoted);
            assert_eq!(Ok(icmp.checksum), sum);
            let Icmpv6Type::PacketTooBig { mtu } = icmp.icmp_type else { panic!("{icmp:?}") };
            assert!(reply.len() <= 1280 && mtu >= 1280);
            (mtu, quoted)
        }
    };
    assert_eq!(quoted, &packet[..quoted.len()]);
    assert!(mtu < layers.l3_len_bytes, "its sender could do nothing about it");
    mtu
}

#[test]
fn the_sender_learns_the_mtu() {
    let frame = packet_v4(1500, |_| ());
    assert_eq!(check(&frame, &answered(&frame, 1414).expect("answered")), 1400);
    let frame = packet_v6(1500, |_| ());
    assert_eq!(check(&frame, &answered(&frame, 1414).expect("answered")), 1400);
    // Behind a tag there is less room.
    let mut tagged = packet_v4(1500, |_| ());
    tagged.splice(12..12, [0x81, 0, 0, 5]);
    assert_eq!(check(&tagged, &answered(&tagged, 1414).expect("answered")), 1396);
    let short = packet_v4(200, |_| ());
    assert_eq!(check(&short, &answered(&short, 150).expect("answered")), 136);
}

#[test]
fn no_mtu_is_below_the_smallest() {
    let frame = packet_v4(1500, |_| ());
    for bytes in [0, 14, 60, 82] {
        assert_eq!(check(&frame, &answered(&frame, bytes).expect("answered")), 68);
    }
    let frame = packet_v6(1500, |_| ());
    for bytes in [0, 14, 1200, 1294] {
        assert_eq!(check(&frame, &answered(&frame, bytes).expect("answered")), 1280);
    }
    assert_eq!(answered(&packet_v6(1280, |_| ()), 1000), None, "it is no longer than that");
    assert_eq!(answered(&packet_v4(68, |_| ()), 0), None);
    assert_eq!(answered(&packet_v4(1400, |_| ()), 1414), None, "it fits");
}

#[test]
fn packets_that_must_not_be_answered_are_not() {
    assert_eq!(answered(&packet_v4(1500, |header| header.dont_fragment = false), 1414), None);
    let later = |header: &mut Ipv4Header| header.fragment_offset = 185.try_into().unwrap();
    assert_eq!(answered(&packet_v4(1500, later), 1414), None);
    assert!(answered(&packet_v4(1500, |header| header.more_fragments = true), 1414).is_some(), "the first");
    for bad in
        [[0; 4], [0, 1, 2, 3], [127, 0, 0, 1], [224, 0, 0, 1], [239, 1, 2, 3], [240, 0, 0, 1], [255; 4]]
    {
        assert_eq!(answered(&packet_v4(1500, |header| header.source = bad), 1414), None, "{bad:?}");
        assert_eq!(answered(&packet_v4(1500, |header| header.destination = bad), 1414), None, "{bad:?}");
    }
    let loopback = 1_u128.to_be_bytes();
    for bad in [[0; 16], loopback, [0xff; 16]] {
        assert_eq!(answered(&packet_v6(1500, |header| header.source = bad), 1414), None, "{bad:?}");
        assert_eq!(answered(&packet_v6(1500, |header| header.destination = bad), 1414), None, "{bad:?}");
    }
    for at in [0, 6] {
        let mut group = packet_v4(1500, |_| ());
        group[at] |= 1;
        assert_eq!(answered(&group, 1414), None, "an Ethernet address of a group at {at}");
    }
    let mut other = packet_v4(1500, |_| ());
    other[12..14].copy_from_slice(&[8, 6]);
    assert_eq!(answered(&other, 1414), None, "no IP");
}

#[test]
fn errors_of_icmp_are_not_answered_and_its_questions_are() {
    for kind in 0..=255_u8 {
        let mut frame = packet_v4(1500, |header| header.protocol = IpNumber::ICMP);
        frame[34] = kind;
        assert_eq!(answered(&frame, 1414).is_none(), matches!(kind, 3 | 4 | 5 | 11 | 12), "{kind}");
        let mut frame = packet_v6(1500, |header| header.next_header = IpNumber::IPV6_ICMP);
        frame[54] = kind;
        assert_eq!(answered(&frame, 1414).is_none(), kind < 128 || kind == 137, "{kind}");
        // Behind a header of options for the destination.
        let mut hidden = packet_v6(1500, |header| header.next_header = IpNumber(60));
        hidden[54..62].copy_from_slice(&[58, 0, 1, 4, 0, 0, 0, 0]);
        hidden[62] = kind;
        assert_eq!(answered(&hidden, 1414).is_none(), kind < 128 || kind == 137, "{kind}, hidden");
    }
}

proptest! {
    #[test]
    fn answers_are_sound_and_end(
        packet in prop_oneof![any_packet(), icmp_packet()],
        edits in proptest::collection::vec((any::<proptest::sample::Index>(), any::<u8>()), 0..4),
        tail in 0..1600_usize, frame_bytes_max in prop_oneof![0..200_u32, 0..2000_u32, any::<u32>()],
    ) {
        let mut frame = packet.bytes;
        frame.resize(frame.len() + tail, 7);
        for (at, byte) in edits {
            let at = at.index(frame.len().min(80));
            frame[at] = byte;
        }
        if let Some(reply) = answered(&frame, frame_bytes_max) {
            check(&frame, &reply);
            prop_assert!(answered(&reply, 0).is_none(), "an answer was answered");
        }
        for cut in [0, 11, 14, 20, 33, 34, 40, 54] {
            let _ = answered(&frame[..cut.min(frame.len())], frame_bytes_max);
        }
    }
}
