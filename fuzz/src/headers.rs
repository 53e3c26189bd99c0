//! Frames: their headers against an independent parser, how they are cut, their checksums.

use etherparse::{InternetSlice, Ipv6ExtensionSlice, NetSlice, SlicedPacket, TransportSlice};
use lasthop_wire::headers::{ETHERTYPE_IPV4, PROTO_TCP, PROTO_UDP, ethertype};
use lasthop_wire::key::{MINI_KEY4_WORDS, MINI_KEY6_WORDS, MiniKey, extract, field};
use lasthop_wire::too_big::{ANSWER_BYTES_MAX, answer};
use lasthop_wire::vnet::{F_NEEDS_CSUM, GSO_TCPV4, GSO_TCPV6, HEADER_BYTES, UDP_CSUM_OFFSET};
use lasthop_wire::{
    HeaderError, Key, Layers, Metadata, Network, Offload, Segmentation, Sum, check_partial, flow_hash,
};

use crate::input::{Input, Seed};

/// Bytes of a frame behind those of the input: enough for more segments than one frame may become.
const PADDING_BYTES_MAX: usize = 0x3fff;

/// A frame and the offloads that its sender asks for.
struct Case {
    offload: Offload,
    /// Where the head, or a piece, is cut.
    cut: usize,
    frame: Vec<u8>,
}

impl Case {
    fn decode(bytes: &[u8]) -> Self {
        let mut input = Input::new(bytes);
        let mut vnet = [0; HEADER_BYTES];
        vnet.iter_mut().for_each(|byte| *byte = input.u8());
        let (cut, padding) = (usize::from(input.u16()), usize::from(input.u16()) & PADDING_BYTES_MAX);
        let mut frame = input.rest().to_vec();
        frame.extend((0..padding).map(|at| (at * 31) as u8));
        Self { offload: Offload::parse(&vnet), cut: cut.min(frame.len()), frame }
    }
}

/// Panics when something does not hold for a frame.
pub fn run(bytes: &[u8]) {
    let case = Case::decode(bytes);
    assert_eq!(Offload::parse(&case.offload.emit(7)), case.offload);
    find_headers(&case);
    make_key(&case);
    complete_checksum(&case);
    cut_into_segments(&case);
    answer_too_long(&case);
}

/// An answer to a packet that is too long goes back to its sender, and is the last.
fn answer_too_long(case: &Case) {
    let (head, room) = (&case.frame[..case.cut], u32::from(case.offload.gso_size));
    let mut out = [0; ANSWER_BYTES_MAX];
    let Some(len) = answer(head, room, &mut out) else { return };
    let reply = &out[..len];
    let (Ok(layers), Ok(found)) = (Layers::parse(head), Layers::parse(reply)) else { panic!("{head:?}") };
    assert_eq!((&reply[..6], &reply[6..12]), (&head[6..12], &head[..6]));
    assert_eq!((found.l3, found.l3_offset), (layers.l3, layers.l3_offset));
    let (from, to) = found.addresses(reply).split_at(found.addresses(reply).len() / 2);
    assert_eq!([to, from].concat(), layers.addresses(head));
    assert_eq!(len, usize::from(found.l3_offset) + found.l3_len_bytes as usize);
    assert_eq!(answer(reply, 0, &mut [0; ANSWER_BYTES_MAX]), None);
}

fn find_headers(case: &Case) {
    let (frame, head) = (&case.frame[..], &case.frame[..case.cut]);
    let (found, found_in_head) = (Layers::parse(frame), Layers::parse(head));
    assert!(
        found_in_head == found || found_in_head == Err(HeaderError::Truncated),
        "{found_in_head:?} {found:?}"
    );
    assert_eq!(flow_hash(head, 1), flow_hash(head, 1));
    let oracle = SlicedPacket::from_ethernet(frame);
    let Ok(layers) = found else {
        let is_ipv4 = ethertype(frame).is_some_and(|(ethertype, _)| ethertype == ETHERTYPE_IPV4);
        let net = oracle.ok().and_then(|oracle| oracle.net);
        assert!(!is_ipv4 || !matches!(net, Some(InternetSlice::Ipv4(_))), "{found:?}, but it is IPv4");
        return;
    };
    // Two tags at most.
    assert!(matches!(layers.l3_offset, 14 | 18 | 22) && layers.l3_offset < layers.l4_offset);
    assert!(usize::from(layers.l4_offset) <= frame.len());
    if let Ok(len) = layers.tcp_header_len_bytes(frame) {
        assert!(usize::from(layers.l4_offset + len) <= frame.len() && len >= 20);
    }
    if let Ok(oracle) = oracle {
        compare(frame, &layers, &oracle);
    }
}

/// A key and the headers of a packet have the same values, where both have one.
fn make_key(case: &Case) {
    let head = &case.frame[..case.cut];
    let mut key = Key::default();
    let offsets = extract(head, case.frame.len(), &Metadata::default(), &mut key);
    assert!(usize::from(offsets.network) <= head.len() && usize::from(offsets.transport) <= head.len());
    check_briefs(head, &key);
    let Ok(layers) = Layers::parse(head) else { return };
    assert_eq!(offsets.network, layers.l3_offset);
    let ports = layers.ports(head).filter(|_| offsets.transport > 0);
    if let Some([a, b, c, d]) = ports {
        let of_key = [key.get(field::TP_SRC), key.get(field::TP_DST)];
        assert_eq!(of_key, [u64::from(u16::from_be_bytes([a, b])), u64::from(u16::from_be_bytes([c, d]))]);
        assert_eq!((offsets.transport, key.get(field::IP_PROTO)), (layers.l4_offset, layers.l4_proto.into()));
    }
}

/// A packet with a mini key is a usual one, and both of its keys say the same.
fn check_briefs(head: &[u8], key: &Key) {
    let is_usual = matches!(key.ip_proto(), PROTO_TCP | PROTO_UDP) && key.get(field::IP_FRAG) == 0;
    let flags = key.get(field::TCP_FLAGS);
    if let Some(mini_key) = MiniKey::<MINI_KEY4_WORDS>::of(head) {
        assert_eq!((is_usual, key.ethertype(), u64::from(mini_key.tcp_flags())), (true, 0x0800, flags));
    }
    if let Some(mini_key) = MiniKey::<MINI_KEY6_WORDS>::of(head) {
        assert_eq!((is_usual, key.ethertype(), u64::from(mini_key.tcp_flags())), (true, 0x86dd, flags));
    }
}

/// Where the oracle understands a frame too, it finds the same.
fn compare(frame: &[u8], layers: &Layers, oracle: &SlicedPacket<'_>) {
    let Some(net) = &oracle.net else { return };
    let (l3, addresses, len, fragment) = network_of(net);
    assert_eq!((layers.l3, layers.addresses(frame)), (l3, &addresses[..]));
    assert!(layers.l3_len_bytes == len || layers.l3_len_bytes == 0);
    if !matches!(layers.l4_proto, PROTO_TCP | PROTO_UDP) {
        return;
    }
    assert_eq!(
        (layers.is_fragment, layers.has_l4),
        (fragment != Fragment::Whole, fragment != Fragment::Later)
    );
    let Some(ports) = layers.ports(frame) else { return };
    let ports = (u16::from_be_bytes([ports[0], ports[1]]), u16::from_be_bytes([ports[2], ports[3]]));
    match &oracle.transport {
        Some(TransportSlice::Tcp(tcp)) => {
            assert_eq!(ports, (tcp.source_port(), tcp.destination_port()));
            assert_eq!(layers.tcp_header_len_bytes(frame).map(usize::from), Ok(tcp.header_len()));
        }
        Some(TransportSlice::Udp(udp)) => assert_eq!(ports, (udp.source_port(), udp.destination_port())),
        _ => {}
    }
}

/// Which part of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fragment {
    Whole,
    First,
    Later,
}

impl Fragment {
    fn of(is_fragment: bool, offset: u16) -> Self {
        match offset {
            0 if is_fragment => Self::First,
            0 => Self::Whole,
            _ => Self::Later,
        }
    }
}

fn network_of(net: &NetSlice<'_>) -> (Network, Vec<u8>, u32, Fragment) {
    match net {
        InternetSlice::Ipv4(ip) => {
            let header = ip.header();
            let addresses = [header.source(), header.destination()].concat();
            let fragment = Fragment::of(header.is_fragmenting_payload(), header.fragments_offset().value());
            (Network::Ipv4, addresses, u32::from(header.total_len()), fragment)
        }
        InternetSlice::Ipv6(ip) => {
            let header = ip.header();
            let addresses = [header.source(), header.destination()].concat();
            let offsets = ip.extensions().clone().into_iter().map(|extension| match extension {
                Ipv6ExtensionSlice::Fragment(fragment) => fragment.fragment_offset().value(),
                _ => 0,
            });
            let fragment = Fragment::of(ip.extensions().is_fragmenting_payload(), offsets.max().unwrap_or(0));
            (Network::Ipv6, addresses, u32::from(header.payload_length()) + 40, fragment)
        }
        InternetSlice::Arp(_) => panic!("we found an IP header where there is ARP"),
    }
}

/// The checksum as RFC 1071 words it: big-endian words, carries added in at once.
#[must_use]
pub fn checksum_of(bytes: &[u8]) -> u16 {
    let add = |sum: u16, pair: &[u8]| {
        let (sum, carry) =
            sum.overflowing_add(u16::from_be_bytes([pair[0], pair.get(1).copied().unwrap_or(0)]));
        sum + u16::from(carry)
    };
    !bytes.chunks(2).fold(0, add)
}

fn complete_checksum(case: &Case) {
    let len = case.frame.len() as u32;
    if !check_partial(&case.offload, &case.frame[..case.cut], len) {
        return;
    }
    let summed = &case.frame[usize::from(case.offload.csum_start)..];
    let field = usize::from(case.offload.csum_start) + usize::from(case.offload.csum_offset);
    assert!(field + 2 <= case.frame.len());
    let cut = case.cut % (summed.len() + 1);
    let mut sum = Sum::default();
    sum.add(&summed[..cut]);
    sum.add(&summed[cut..]);
    assert_eq!(sum.finish(), checksum_of(summed), "cut at {cut}");
}

fn cut_into_segments(case: &Case) {
    let (len, head) = (case.frame.len() as u32, &case.frame[..case.cut]);
    let Ok(plan) = Segmentation::plan(head, &case.offload, len) else { return };
    let mut end = plan.header_len();
    for index in 0..plan.count() {
        let payload = plan.payload(index);
        assert!(payload.start == end && payload.start < payload.end && payload.end <= len);
        assert!(payload.end - payload.start <= u32::from(case.offload.gso_size));
        end = payload.end;
        check_segment(&segment(&plan, index, case, head));
    }
    assert!(plan.payload(plan.count()).is_empty());
}

/// Segment `index` as a wire would carry it. Its checksum is made by sums of the headers and of the payload in two pieces, as a tunnel's end makes it.
fn segment(plan: &Segmentation, index: u32, case: &Case, head: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; plan.header_len() as usize];
    let offload = plan.write_header(index, head, &mut bytes);
    let payload = plan.payload(index);
    bytes.extend(&case.frame[payload.start as usize..payload.end as usize]);
    assert!(check_partial(&offload, &bytes, bytes.len() as u32) && offload.needs_csum() && !offload.is_gso());
    let start = usize::from(offload.csum_start);
    let field = start + usize::from(offload.csum_offset);
    let (headers, body) = bytes[start..].split_at(plan.header_len() as usize - start);
    let mut pieces = Sum::default();
    pieces.add(headers);
    let (first, second) = body.split_at(case.cut % (body.len() + 1));
    pieces.add(first);
    pieces.add(second);
    let sum = match checksum_of(&bytes[start..]) {
        0 if offload.csum_offset == UDP_CSUM_OFFSET => 0xffff,
        sum => sum,
    };
    assert_eq!(pieces.complete(&offload), sum);
    bytes[field..field + 2].copy_from_slice(&sum.to_be_bytes());
    bytes
}

/// A segment's lengths and checksums are right, as far as the oracle understands it.
fn check_segment(bytes: &[u8]) {
    let Ok(parsed) = SlicedPacket::from_ethernet(bytes) else { return };
    let (Some(net), Some(TransportSlice::Tcp(tcp))) = (&parsed.net, &parsed.transport) else { return };
    if let InternetSlice::Ipv4(ip) = net {
        assert_eq!(checksum_of(ip.header().slice()), 0);
    }
    let (_, addresses, ..) = network_of(net);
    let len = (tcp.slice().len() as u16).to_be_bytes();
    assert_eq!(checksum_of(&[&addresses[..], &[0, PROTO_TCP], &len, tcp.slice()].concat()), 0);
}

/// A TCP frame over IPv4 or IPv6 with a payload of `payload_bytes`, as Linux sends it; its checksum is left to be done.
#[must_use]
pub fn tcp_frame(l3: Network, tags: usize, payload_bytes: usize) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1];
    (0..tags).for_each(|tag| frame.extend([0x81, 0, 0, tag as u8]));
    let l4_len = 20 + payload_bytes;
    match l3 {
        Network::Ipv4 => {
            let len = ((20 + l4_len) as u16).to_be_bytes();
            frame.extend([
                8, 0, 0x45, 0, len[0], len[1], 0, 1, 0x40, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2,
            ]);
        }
        Network::Ipv6 => {
            let len = (l4_len as u16).to_be_bytes();
            frame.extend([0x86, 0xdd, 0x60, 0, 0, 0, len[0], len[1], 6, 64]);
            frame.extend([0xfd; 32]);
        }
    }
    frame.extend([0x30, 0x39, 0, 80, 0, 0, 0, 1, 0, 0, 0, 0, 0x50, 0x18, 1, 0, 0, 0, 0, 0]);
    frame.extend((0..payload_bytes).map(|at| at as u8));
    frame
}

/// The virtio-net header of such a frame.
#[must_use]
pub fn tcp_offload(l3: Network, tags: usize, gso_size: u16) -> Offload {
    let (gso_type, l3_bytes) = match l3 {
        Network::Ipv4 => (GSO_TCPV4, 20),
        Network::Ipv6 => (GSO_TCPV6, 40),
    };
    Offload {
        flags: F_NEEDS_CSUM,
        gso_type: if gso_size > 0 { gso_type } else { 0 },
        hdr_len: 0,
        gso_size,
        csum_start: 14 + 4 * tags as u16 + l3_bytes,
        csum_offset: 16,
    }
}

fn seed(frame: &[u8], offload: Offload, padding: u16) -> Vec<u8> {
    let mut seed = Seed::default();
    seed.bytes(&offload.emit(0)).u16(frame.len().min(128) as u16).u16(padding).bytes(frame);
    seed.into_bytes()
}

/// Frames as guests send them.
#[must_use]
pub fn seeds() -> Vec<(String, Vec<u8>)> {
    let mut seeds = Vec::new();
    for (name, l3) in [("ipv4", Network::Ipv4), ("ipv6", Network::Ipv6)] {
        for tags in 0..=3 {
            let frame = tcp_frame(l3, tags, 100);
            seeds.push((format!("{name}-tags{tags}"), seed(&frame, tcp_offload(l3, tags, 0), 0)));
            seeds.push((format!("{name}-tags{tags}-gso"), seed(&frame, tcp_offload(l3, tags, 48), 0)));
        }
    }
    let plain = [
        ("ipv6-extensions", with_extensions([0, 0])),
        ("ipv6-fragment-first", with_extensions([0, 1])),
        ("ipv6-fragment-later", with_extensions([1, 0])),
        ("ipv4-options", ipv4(10, 0, 6)),
        ("ipv4-fragment-first", ipv4(5, 0x2000, 6)),
        ("ipv4-fragment-later", ipv4(5, 1, 6)),
        ("ipv4-udp", ipv4(5, 0, 17)),
    ];
    seeds.extend(plain.map(|(name, frame)| (name.to_owned(), seed(&frame, Offload::default(), 0))));
    let mut arp = vec![0xff; 6];
    arp.extend([2, 0, 0, 0, 0, 1, 8, 6, 0, 1, 8, 0, 6, 4, 0, 1]);
    seeds.push(("arp".into(), seed(&arp, Offload::default(), 28)));
    seeds
}

/// Every extension header that is looked behind; a fragment header with these bits among them.
fn with_extensions(fragment: [u8; 2]) -> Vec<u8> {
    let mut frame = tcp_frame(Network::Ipv6, 0, 32);
    let fragment = [60, 0, fragment[0], fragment[1], 0, 0, 0, 9];
    let extensions =
        [[43, 0, 0, 0, 0, 0, 0, 0], [44, 0, 0, 0, 0, 0, 0, 0], fragment, [6, 0, 1, 4, 0, 0, 0, 0]];
    frame[20] = 0;
    frame[19] += 32;
    frame.splice(54..54, extensions.concat());
    frame
}

/// A header of this many words, most of them no-operation options, and the bits of a fragment.
fn ipv4(words: u8, fragment: u16, proto: u8) -> Vec<u8> {
    let mut frame = tcp_frame(Network::Ipv4, 0, 32);
    let options = usize::from(words - 5) * 4;
    (frame[14], frame[17], frame[23]) = (0x40 | words, frame[17] + options as u8, proto);
    frame[20..22].copy_from_slice(&fragment.to_be_bytes());
    frame.splice(34..34, vec![1; options]);
    if proto == PROTO_UDP {
        // The length where TCP has the upper half of a sequence number.
        frame[39] = 52;
    }
    frame
}

/// Tests, which `tests/targets.rs` runs.
#[expect(missing_docs, reason = "their names say it")]
pub mod checks {
    use super::*;

    pub fn seeds_are_what_they_say() {
        for (name, bytes) in seeds() {
            let case = Case::decode(&bytes);
            let plan = Segmentation::plan(&case.frame[..case.cut], &case.offload, case.frame.len() as u32);
            let is_ip = name != "arp" && !name.contains("tags3");
            assert_eq!(plan.is_ok(), name.ends_with("gso") && is_ip, "{name}: {plan:?}");
            assert_eq!(Layers::parse(&case.frame).is_ok(), is_ip, "{name}");
            let understood =
                SlicedPacket::from_ethernet(&case.frame).is_ok_and(|packet| packet.net.is_some());
            assert!(understood || !is_ip, "{name}");
        }
    }
}
