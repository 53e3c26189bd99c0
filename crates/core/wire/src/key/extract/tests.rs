use proptest::prelude::*;

use super::*;
use crate::key::{CtWords, Field};

const METADATA: Metadata = Metadata {
    recirc_id: 1,
    dp_hash: 2,
    priority: 3,
    mark: 4,
    in_port: 5,
    link: LinkLayer::Ethernet,
    ct: CtWords([6, 7, 8, 9, 10, 11, 12, 13]),
};

fn key_of(head: &[u8]) -> (Key, Offsets) {
    let mut key = Key([u64::MAX; super::super::KEY_WORDS]);
    let offsets = extract(head, head.len(), &METADATA, &mut key);
    (key, offsets)
}

/// Bytes of a frame that a switch looks at.
const IMAGE_BYTES: usize = 128;

/// The key of the frame's first bytes.
fn key_of_image(frame: &[u8]) -> (Key, Offsets) {
    let mut key = Key([u64::MAX; super::super::KEY_WORDS]);
    let head = frame.get(..IMAGE_BYTES).unwrap_or(frame);
    let offsets = extract(head, frame.len(), &METADATA, &mut key);
    (key, offsets)
}

/// An IPv6 header of destination options, of a multiple of eight bytes.
fn options(next: u8, bytes: usize) -> Vec<u8> {
    let mut header = vec![0; bytes];
    (header[0], header[1]) = (next, (bytes / 8 - 1) as u8);
    header
}

/// A neighbour advertisement.
fn advertisement(options: &[u8]) -> Vec<u8> {
    [&[136, 0, 0, 0, 0, 0, 0, 0][..], &[0xfe; 16], options].concat()
}

fn frame(ethertype: u16, rest: &[u8]) -> Vec<u8> {
    let macs = [0xa0, 1, 2, 3, 4, 5, 0xb0, 7, 8, 9, 10, 11];
    [&macs[..], &ethertype.to_be_bytes(), rest].concat()
}

fn fields<const N: usize>(key: &Key, fields: [Field; N]) -> [u64; N] {
    fields.map(|field| key.get(field))
}

fn ipv4_packet(proto: u8, fragment: [u8; 2], rest: &[u8]) -> Vec<u8> {
    let [high, low] = fragment;
    let header = [0x45, 7, 0, 0, 0, 0, high, low, 64, proto, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
    frame(ETHERTYPE_IPV4, &[&header, rest].concat())
}

fn ipv6_packet(next: u8, rest: &[u8]) -> Vec<u8> {
    let mut header = vec![0x65, 0xab, 0xcd, 0xef, 0, 0, next, 63];
    header.extend([0xfd; 32]);
    frame(ETHERTYPE_IPV6, &[&header, rest].concat())
}

#[test]
fn metadata_and_addresses_have_their_places() {
    let (key, offsets) = key_of(&frame(0x88b5, &[1, 2, 3]));
    use field::*;
    assert_eq!(fields(&key, [RECIRC_ID, DP_HASH, PRIORITY, MARK, IN_PORT]), [1, 2, 3, 4, 5]);
    assert_eq!(fields(&key, [ETH_DST, ETH_SRC, ETH_TYPE]), [0xa001_0203_0405, 0xb007_0809_0a0b, 0x88b5]);
    assert_eq!((&key.0[4..CT_WORD], offsets), (&[0; 14][..], Offsets { network: 14, transport: 0 }));
}

#[test]
fn a_packet_without_ethernet_header_has_its_type_from_outside() {
    let bytes = &ipv4_packet(PROTO_UDP, [0, 0], &[0, 1, 0, 2, 0, 8, 0, 0])[14..];
    let mut key = Key::default();
    let metadata = Metadata { link: LinkLayer::None(ETHERTYPE_IPV4), ..METADATA };
    let offsets = extract(bytes, bytes.len(), &metadata, &mut key);
    use field::*;
    assert_eq!(fields(&key, [NO_ETHERNET, ETH_DST, ETH_TYPE, TP_SRC, TP_DST]), [1, 0, 0x0800, 1, 2]);
    assert_eq!(offsets, Offsets { network: 0, transport: 20 });
}

#[test]
fn tags_say_that_they_are_there() {
    use field::*;
    let tags = [VLAN_TPID, VLAN_TCI, CVLAN_TPID, CVLAN_TCI, ETH_TYPE];
    let inner = [0x60, 5, 0x81, 0, 0, 6, 0x81, 0, 0, 7];
    let (key, offsets) = key_of(&frame(0x88a8, &inner));
    assert_eq!(fields(&key, tags), [0x88a8, 0x7005, 0x8100, 0x1006, 0x8100]);
    assert_eq!(offsets.network, 22);
    let (key, _) = key_of(&frame(0x8100, &inner[..2]));
    assert_eq!(fields(&key, tags), [0, 0, 0, 0, 0x8100], "nothing follows the tag");
}

#[test]
fn frames_with_a_length_have_the_type_of_their_802_2_header() {
    let snap = |rest: &[u8]| {
        let (key, offsets) = key_of(&frame(38, rest));
        (key.get(field::ETH_TYPE) as u16, offsets.network)
    };
    assert_eq!(snap(&[0xaa, 0xaa, 3, 0, 0, 0, 8, 6]), (0x0806, 22));
    assert_eq!(snap(&[0xaa, 0xaa, 3, 0, 0, 0, 5, 0xff]), (ETHERTYPE_802_2, 22));
    assert_eq!(snap(&[0xaa, 0xaa, 3, 0, 0, 1, 8, 6]), (ETHERTYPE_802_2, 14));
    assert_eq!(snap(&[0x42, 0x42, 3, 0, 0, 0, 0]), (ETHERTYPE_802_2, 14));
}

#[test]
fn transport_headers_count_if_they_are_whole() {
    use field::*;
    let tcp = |len_words: u8, bytes: usize| {
        let mut header = vec![0; bytes];
        (header[1], header[3], header[12], header[13]) = (80, 90, len_words << 4 | 1, 0x12);
        let (key, offsets) = key_of(&ipv4_packet(PROTO_TCP, [0, 0], &header));
        (fields(&key, [TP_SRC, TP_DST, TCP_FLAGS]), offsets.transport)
    };
    assert_eq!(tcp(6, 24), ([80, 90, 0x112], 34));
    assert_eq!(tcp(6, 23), ([0; 3], 0));
    assert_eq!(tcp(4, 24), ([0; 3], 0));
    for (proto, bytes) in [(PROTO_UDP, 8), (PROTO_SCTP, 12), (PROTO_ICMP, 8)] {
        let header = [3, 4, 0, 9, 0, 0, 0, 0, 0, 0, 0, 0];
        let wanted = if proto == PROTO_ICMP { [3, 4, 0] } else { [0x304, 9, 0] };
        let (key, _) = key_of(&ipv4_packet(proto, [0, 0], &header[..bytes]));
        assert_eq!(fields(&key, [TP_SRC, TP_DST, TCP_FLAGS]), wanted);
        let (key, offsets) = key_of(&ipv4_packet(proto, [0, 0], &header[..bytes - 1]));
        assert_eq!((fields(&key, [TP_SRC, TP_DST, IP_TTL]), offsets.transport), ([0, 0, 64], 0));
    }
}

#[test]
fn later_fragments_have_no_ports() {
    let of = |bits| {
        let (key, _) = key_of(&ipv4_packet(PROTO_UDP, bits, &[0, 1, 0, 2, 0, 8, 0, 0]));
        fields(&key, [field::IP_FRAG, field::IP_PROTO, field::TP_SRC])
    };
    assert_eq!(of([0x40, 0]), [0, 17, 1]);
    assert_eq!(of([0x20, 0]), [1, 17, 1]);
    assert_eq!(of([0x20, 1]), [2, 17, 0]);
    let of = |bits: [u8; 2], next| {
        let rest = [&[next, 9, bits[0], bits[1], 0, 0, 0, 1][..], &[0, 1, 0, 2, 0, 8, 0, 0]].concat();
        let (key, _) = key_of(&ipv6_packet(FRAGMENT, &rest));
        fields(&key, [field::IP_FRAG, field::IP_PROTO, field::TP_SRC])
    };
    assert_eq!(of([0, 0], PROTO_UDP), [1, 17, 1], "alone, and yet a fragment");
    assert_eq!(of([0, 1], PROTO_UDP), [1, 17, 1]);
    assert_eq!(of([0, 8], PROTO_UDP), [2, 44, 0]);
    assert_eq!(of([0, 8], DESTINATION), [2, 44, 0]);
}

#[test]
fn extension_headers_are_followed_as_far_as_they_go() {
    let of = |next: u8, rest: &[u8]| {
        let (key, offsets) = key_of(&ipv6_packet(next, rest));
        assert_eq!(fields(&key, [field::IP_TOS, field::IP_TTL, field::IPV6_LABEL]), [0x5a, 63, 0xb_cdef]);
        assert_eq!(key.get_wide(wide_field::IPV6_DST), u128::MAX / 255 * 0xfd);
        (key.get(field::IP_PROTO) as u8, offsets.transport)
    };
    let udp = [0, 1, 0, 2, 0, 8, 0, 0];
    let chain = [
        [ROUTING, 0, 0, 0, 0, 0, 0, 0],
        [AUTHENTICATION, 0, 0, 0, 0, 0, 0, 0],
        [PROTO_UDP, 0, 0, 0, 0, 0, 0, 0],
        udp,
    ];
    assert_eq!(of(HOP_BY_HOP, &chain.concat()), (PROTO_UDP, 54 + 24));
    assert_eq!(of(HOP_BY_HOP, &chain.concat()[..20]), (NO_NEXT_HEADER, 0), "cut");
    assert_eq!(of(NO_NEXT_HEADER, &udp), (NO_NEXT_HEADER, 0));
    let long = [[DESTINATION, 0, 0, 0, 0, 0, 0, 0]; EXTENSION_HEADERS_MAX + 1].concat();
    assert_eq!(of(DESTINATION, &long), (NO_NEXT_HEADER, 0), "too many");
}

#[test]
fn arp_is_that_of_ethernet_for_ipv4() {
    let mut arp = vec![0, 1, 8, 0, 6, 4, 0, 2];
    arp.extend(1..=20);
    use field::*;
    let of =
        |arp: &[u8]| fields(&key_of(&frame(0x0806, arp)).0, [IP_PROTO, LL_SRC, IPV4_SRC, LL_DST, IPV4_DST]);
    assert_eq!(of(&arp), [2, 0x0102_0304_0506, 0x0708_090a, 0x0b0c_0d0e_0f10, 0x1112_1314]);
    assert_eq!(of(&arp[..27]), [0; 5]);
    arp[6] = 1;
    assert_eq!(of(&arp)[0], 0, "operations have eight bits");
    arp[5] = 6;
    assert_eq!(of(&arp), [0; 5]);
}

#[test]
fn neighbour_discovery_has_its_target_and_addresses_once() {
    use field::*;
    let of = |kind: u8, options: &[u8]| {
        let message = [&[kind, 0, 0, 0, 0, 0, 0, 0][..], &[0xfe; 16], options].concat();
        let (key, _) = key_of(&ipv6_packet(PROTO_ICMPV6, &message));
        (key.get_wide(wide_field::ND_TARGET) != 0, fields(&key, [LL_SRC, LL_DST, TP_SRC]))
    };
    let (source, target) = ([1, 1, 2, 0, 0, 0, 0, 1], [2, 1, 2, 0, 0, 0, 0, 2]);
    let both = [[14, 1, 0, 0, 0, 0, 0, 0], source, target].concat();
    assert_eq!(of(135, &both), (true, [0x0200_0000_0001, 0x0200_0000_0002, 135]));
    assert_eq!(of(135, &both[..20]), (true, [0x0200_0000_0001, 0, 135]));
    assert_eq!(of(136, &[source, source].concat()), (false, [0, 0, 136]));
    assert_eq!(of(136, &[1, 0]), (true, [0, 0, 136]));
    assert_eq!(of(128, &both), (false, [0, 0, 128]));
}

#[test]
fn mpls_entries_end_at_the_bottom_of_the_stack() {
    use field::*;
    let of = |entries: &[u32]| {
        let bytes: Vec<u8> = entries.iter().flat_map(|entry| entry.to_be_bytes()).collect();
        fields(&key_of(&frame(0x8847, &bytes)).0, [MPLS_0, MPLS_1, MPLS_2])
    };
    assert_eq!(of(&[0x1040, 0x2140, 0x3140]), [0x1040, 0x2140, 0]);
    assert_eq!(of(&[0x1040, 0x2040, 0x3040, 0x4140]), [0x1040, 0x2040, 0x3040]);
    assert_eq!(of(&[0x1040]), [0x1040, 0, 0]);
}

/// A frame with a network service header of these parts, with a length in the header's own units.
fn service_frame(first: u16, md_type: u8, rest: &[u8]) -> Vec<u8> {
    let [a, b] = first.to_be_bytes();
    frame(ETHERTYPE_NSH, &[&[a, b, md_type, 3, 0, 0x12, 0x34, 0xfe], rest].concat())
}

#[test]
fn service_headers_count_if_they_are_whole() {
    use nsh_field::*;
    let of = |first: u16, md_type: u8, rest: &[u8]| {
        let (key, offsets) = key_of(&service_frame(first, md_type, rest));
        assert_eq!((key.get(field::ETH_TYPE), offsets.transport), (0x894f, 0));
        (fields(&key, [FLAGS, TTL, MD_TYPE, NEXT_PROTOCOL, PATH]), key.get_wide(CONTEXT))
    };
    let context: Vec<u8> = (1..=16).collect();
    let words = 0x0102_0304_0506_0708_090a_0b0c_0d0e_0f10;
    assert_eq!(of(0x2fc6, 1, &context), ([2, 63, 1, 3, 0x1234fe], words));
    assert_eq!(of(0x0042, 2, &[]), ([0, 1, 2, 3, 0x1234fe], 0));
    assert_eq!(of(0x0043, 2, &context), ([0, 1, 2, 3, 0x1234fe], 0), "type 2 is not looked into");
    let nothing = ([0; 5], 0);
    assert_eq!(of(0x0fc6, 1, &context[..15]), nothing, "cut");
    assert_eq!(of(0x0fc5, 1, &context), nothing, "type 1 has one length");
    assert_eq!(of(0x0fc1, 2, &context), nothing, "shorter than its base");
    assert_eq!(of(0x4fc6, 1, &context), nothing, "another version");
    assert_eq!(of(0x0fc6, 3, &context), nothing, "an unknown type");
}

#[test]
fn headers_behind_the_image_are_told_from_absent_ones() {
    let told = |frame: &[u8]| {
        let key = key_of_image(frame).0;
        (key.is_unread(), fields(&key, [field::IP_PROTO, field::TP_SRC]))
    };
    let far = |proto: u8, rest: &[u8]| ipv6_packet(DESTINATION, &[&options(proto, 72)[..], rest].concat());
    assert_eq!(told(&far(PROTO_ICMPV6, &[134, 0, 0, 0, 0, 0, 0, 0])), (true, [58, 0]));
    assert_eq!(
        told(&far(PROTO_ICMPV6, &[134, 0, 0, 0, 0, 0, 0])),
        (false, [58, 0]),
        "the frame lacks it, too"
    );
    assert_eq!(told(&far(PROTO_UDP, &[2, 35, 2, 34, 0, 8, 0, 0])), (true, [17, 0]));
    assert_eq!(told(&far(50, &[0; 40])), (false, [50, 0]), "the key has nothing of it");
    let chain = [[DESTINATION, 0, 0, 0, 0, 0, 0, 0]; 10].concat();
    assert_eq!(told(&ipv6_packet(DESTINATION, &chain)), (true, [59, 0]));
}

#[test]
fn the_options_of_tcp_may_be_behind_the_image() {
    let mut tcp = vec![0; 60];
    (tcp[0], tcp[1], tcp[3], tcp[12], tcp[13]) = (1, 2, 22, 0xf0, 2);
    let mut ip = vec![0; 60];
    (ip[0], ip[8], ip[9]) = (0x4f, 64, PROTO_TCP);
    let whole = frame(ETHERTYPE_IPV4, &[ip, tcp].concat());
    let wanted = [0x102, 22, 2, 0];
    let of = |key: &Key| fields(key, [field::TP_SRC, field::TP_DST, field::TCP_FLAGS, field::UNREAD]);
    assert_eq!(of(&key_of_image(&whole).0), wanted);
    let cut = &whole[..whole.len() - 1];
    assert_eq!(of(&key_of_image(cut).0), [0; 4], "the frame lacks some of them");
}

#[test]
fn options_of_discovery_behind_the_image_are_noted() {
    let address = [2, 1, 2, 0, 0, 0, 0, 1];
    let of = |unknown: usize, rest: &[u8]| {
        let mut option = vec![0; unknown];
        (option[0], option[1]) = (200, (unknown / 8) as u8);
        let message = advertisement(&[&option[..], rest].concat());
        let key = key_of_image(&ipv6_packet(PROTO_ICMPV6, &message)).0;
        (key.is_unread(), key.get(field::LL_DST))
    };
    assert_eq!(of(40, &address), (false, 0x0200_0000_0001));
    assert_eq!(of(48, &address), (true, 0));
    assert_eq!(of(48, &[]), (false, 0), "nothing is missing");
    assert_eq!(of(80, &[]), (false, 0), "nothing but a part that has no field");
    assert_eq!(of(80, &address), (true, 0));
}

/// Parts of packets whose headers may end behind the image.
fn long_packet() -> impl Strategy<Value = Vec<u8>> {
    let extension = (prop::sample::select(vec![HOP_BY_HOP, ROUTING, DESTINATION, AUTHENTICATION]), 0_u8..6);
    let proto = prop::sample::select(vec![PROTO_TCP, PROTO_UDP, PROTO_SCTP, PROTO_ICMPV6, 50, 59]);
    let rest = prop::collection::vec(any::<u8>(), 0..80);
    (prop::collection::vec(extension, 0..6), proto, 0_u8..16, 0_u8..6, rest).prop_map(
        |(extensions, proto, tcp_len, unknown, mut rest)| {
            if let (PROTO_TCP, Some(byte)) = (proto, rest.get_mut(12)) {
                *byte = tcp_len << 4;
            }
            if proto == PROTO_ICMPV6 {
                let mut option = vec![0; usize::from(unknown) * 8];
                option.iter_mut().zip([200, unknown]).for_each(|(byte, value)| *byte = value);
                rest = advertisement(&[&option[..], &[2, 1, 2, 0, 0, 0, 0, 1], &rest].concat());
            }
            let followers = extensions.iter().skip(1).map(|(kind, _)| *kind).chain([proto]);
            let mut headers = Vec::new();
            for ((kind, units), next) in extensions.iter().zip(followers) {
                let bytes = if *kind == AUTHENTICATION { 4 * (units + 2) } else { 8 * (units + 1) };
                let mut header = vec![0; bytes.into()];
                (header[0], header[1]) = (next, *units);
                headers.extend(header);
            }
            let first = extensions.first().map_or(proto, |(kind, _)| *kind);
            ipv6_packet(first, &[headers, rest].concat())
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4000, ..ProptestConfig::default() })]

    /// The key of an image is that of the whole frame, or says that fields are missing.
    #[test]
    fn an_image_is_enough_or_says_that_it_is_not(frame in long_packet()) {
        let (of_image, of_frame) = (key_of_image(&frame), key_of(&frame));
        prop_assert!(of_image.0.is_unread() || of_image == of_frame, "{:?} {:?}", of_image, of_frame);
        if frame.len() <= IMAGE_BYTES {
            prop_assert!(!of_image.0.is_unread());
        }
    }
}

proptest! {
    #[test]
    fn never_panics_and_offsets_lie_inside(
        ethertype in prop_oneof![Just(0x0800_u16), Just(0x86dd), Just(0x8100), Just(0x0806), Just(0x8847), Just(0x894f), any::<u16>()],
        start in prop::sample::select(vec![0x45, 0x46, 0x60]),
        rest in prop::collection::vec(any::<u8>(), 0..120),
        cut in 0..134_usize,
    ) {
        let mut bytes = frame(ethertype, &[&[start], &rest[..]].concat());
        bytes.truncate(cut);
        let (key, offsets) = key_of(&bytes);
        prop_assert!(usize::from(offsets.network) <= bytes.len() || bytes.len() < 14);
        prop_assert!(usize::from(offsets.transport) < bytes.len().max(1));
        let ethertype = key.ethertype();
        let is_long = matches!(ethertype, ETHERTYPE_IPV6 | ETHERTYPE_ARP | ETHERTYPE_RARP | ETHERTYPE_NSH)
            || ETHERTYPES_MPLS.contains(&ethertype);
        prop_assert!(is_long || key.0[super::super::KEY_WORDS_SHORT..CT_WORD].iter().all(|word| *word == 0));
        prop_assert_eq!(CtWords::of(&key), METADATA.ct);
    }
}
