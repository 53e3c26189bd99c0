use etherparse::{NetHeaders, PacketHeaders, TcpHeader, TransportHeader};
use lasthop_wire::gso::check;
use lasthop_wire::headers::PROTO_UDP;
use lasthop_wire::vnet::{F_NEEDS_CSUM, GSO_ECN, GSO_TCPV4, GSO_TCPV6, GSO_UDP_L4};
use lasthop_wire::{Layers, Network, Offload, Segmentation, Sum, check_partial};
use proptest::prelude::*;

use crate::packets::{Packet, gso_packet, tcp_packet};

/// Payload of 128 segments of the smallest size.
const PAYLOAD_BYTES_MAX: usize = 128 * 48;

fn offload_of(packet: &Packet, gso_size: u16, ecn: bool) -> Offload {
    let layers = Layers::parse(&packet.bytes).unwrap();
    let ecn = if ecn { GSO_ECN } else { 0 };
    let (gso_type, csum_offset) = match layers.l3 {
        _ if layers.l4_proto == PROTO_UDP => (GSO_UDP_L4, 6),
        Network::Ipv4 => (GSO_TCPV4 | ecn, 16),
        Network::Ipv6 => (GSO_TCPV6 | ecn, 16),
    };
    let csum_start = packet.l4_offset as u16;
    Offload { flags: F_NEEDS_CSUM, gso_type, hdr_len: 0, gso_size, csum_start, csum_offset }
}

/// Segment `index` as sent on the wire, with its checksum completed.
fn segment(plan: &Segmentation, index: u32, packet: &Packet, head: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; plan.header_len() as usize];
    let offload = plan.write_header(index, head, &mut bytes);
    let payload = plan.payload(index);
    bytes.extend(&packet.bytes[payload.start as usize..payload.end as usize]);
    assert!(check_partial(&offload, &bytes, bytes.len() as u32) && offload.needs_csum() && !offload.is_gso());
    let start = usize::from(offload.csum_start);
    let mut sum = Sum::default();
    sum.add(&bytes[start..]);
    let field = start + usize::from(offload.csum_offset);
    let sum = if offload.csum_offset == 6 { sum.finish_udp() } else { sum.finish() };
    bytes[field..field + 2].copy_from_slice(&sum.to_be_bytes());
    bytes
}

fn checksum_of(tcp: &TcpHeader, net: &NetHeaders, payload: &[u8]) -> u16 {
    match net {
        NetHeaders::Ipv4(ip, _) => tcp.calc_checksum_ipv4(ip, payload).unwrap(),
        NetHeaders::Ipv6(ip, _) => tcp.calc_checksum_ipv6(ip, payload).unwrap(),
        NetHeaders::Arp(_) => panic!("no packet here is one"),
    }
}

fn datagram_checksum(udp: &etherparse::UdpHeader, net: &NetHeaders, payload: &[u8]) -> u16 {
    match net {
        NetHeaders::Ipv4(ip, _) => udp.calc_checksum_ipv4(ip, payload).unwrap(),
        NetHeaders::Ipv6(ip, _) => udp.calc_checksum_ipv6(ip, payload).unwrap(),
        NetHeaders::Arp(_) => panic!("no packet here is one"),
    }
}

/// The expected headers of segment `index` of `count`, from those of the frame.
fn expected<'a>(
    whole: &PacketHeaders<'a>,
    payload: &[u8],
    index: u32,
    count: u32,
    skipped: u32,
) -> (Option<NetHeaders>, Option<TransportHeader>) {
    let (mut net, mut transport) = (whole.net.clone().unwrap(), whole.transport.clone().unwrap());
    let l4_len = transport.header_len() + payload.len();
    match &mut net {
        NetHeaders::Ipv4(ip, _) => {
            ip.set_payload_len(l4_len).unwrap();
            ip.identification = ip.identification.wrapping_add(index as u16);
            ip.header_checksum = ip.calc_header_checksum();
        }
        NetHeaders::Ipv6(ip, extensions) => ip.set_payload_length(extensions.header_len() + l4_len).unwrap(),
        NetHeaders::Arp(_) => panic!("no packet here is one"),
    }
    match &mut transport {
        TransportHeader::Tcp(tcp) => {
            tcp.sequence_number = tcp.sequence_number.wrapping_add(skipped);
            tcp.cwr &= index == 0;
            tcp.fin &= index + 1 == count;
            tcp.psh &= index + 1 == count;
            tcp.checksum = checksum_of(tcp, &net, payload);
        }
        TransportHeader::Udp(udp) => {
            udp.length = l4_len as u16;
            udp.checksum = datagram_checksum(udp, &net, payload);
        }
        other => panic!("no packet here is {other:?}"),
    }
    (Some(net), Some(transport))
}

proptest! {
    #[test]
    fn segments_agree_with_the_oracle(
        packet in gso_packet(PAYLOAD_BYTES_MAX),
        gso_size in prop_oneof![48..200_u16, 48..9000_u16],
        padding in prop_oneof![Just(0_usize), 1..50_usize],
        head_bytes in 0..600_usize,
        ecn: bool,
    ) {
        let mut packet = packet;
        let payload = packet.bytes[packet.payload_offset..].to_vec();
        let whole_bytes = packet.bytes.clone();
        let whole = PacketHeaders::from_ethernet_slice(&whole_bytes).unwrap();
        packet.bytes.extend(vec![0xee; padding]);
        let head = &packet.bytes[..head_bytes.clamp(packet.payload_offset, packet.bytes.len())];
        let offload = offload_of(&packet, gso_size, ecn);
        let plan = Segmentation::plan(head, &offload, packet.bytes.len() as u32).unwrap();
        prop_assert_eq!(plan.count() as usize, payload.len().div_ceil(usize::from(gso_size)));
        prop_assert_eq!(plan.header_len() as usize, packet.payload_offset);
        prop_assert_eq!(check(head, &offload, packet.bytes.len() as u32), Ok(packet.payload_offset as u16));
        let mut reassembled = Vec::<u8>::new();
        for index in 0..plan.count() {
            let bytes = segment(&plan, index, &packet, head);
            let parsed = PacketHeaders::from_ethernet_slice(&bytes).unwrap();
            let carried = parsed.payload.slice();
            let (net, transport) = expected(&whole, carried, index, plan.count(), reassembled.len() as u32);
            prop_assert_eq!((&parsed.link, &parsed.link_exts), (&whole.link, &whole.link_exts));
            prop_assert_eq!((parsed.net, parsed.transport), (net, transport));
            prop_assert!(index + 1 == plan.count() || carried.len() == usize::from(gso_size));
            reassembled.extend(carried);
        }
        prop_assert_eq!(reassembled, payload);
    }

    #[test]
    fn pseudo_sums_agree_with_the_oracle(packet in tcp_packet(300)) {
        let headers = PacketHeaders::from_ethernet_slice(&packet.bytes).unwrap();
        let (net, Some(TransportHeader::Tcp(tcp))) = (headers.net.unwrap(), headers.transport) else {
            panic!("every packet here is TCP");
        };
        let mut bytes = packet.bytes[packet.l4_offset..].to_vec();
        bytes[16..18].fill(0);
        let mut sum = match &net {
            NetHeaders::Ipv4(ip, _) => Sum::pseudo_v4(ip.source, ip.destination, 6, bytes.len() as u16),
            NetHeaders::Ipv6(ip, _) => Sum::pseudo_v6(ip.source, ip.destination, 6, bytes.len() as u32),
            NetHeaders::Arp(_) => panic!("no packet here is one"),
        };
        sum.add(&bytes);
        prop_assert_eq!(sum.finish(), checksum_of(&tcp, &net, headers.payload.slice()));
    }

    #[test]
    fn a_head_without_all_headers_is_refused(packet in tcp_packet(100), cut in any::<prop::sample::Index>()) {
        let head = &packet.bytes[..cut.index(packet.payload_offset)];
        prop_assert!(Segmentation::plan(head, &offload_of(&packet, 48, false), packet.bytes.len() as u32).is_err());
    }
}
