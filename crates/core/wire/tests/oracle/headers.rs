use etherparse::{InternetSlice, NetSlice, SlicedPacket, TransportSlice};
use lasthop_wire::headers::PROTO_TCP;
use lasthop_wire::{HeaderError, Layers, Network, flow_hash};
use proptest::prelude::*;

use crate::packets::{any_packet, tcp_packet};

/// The independent parser's result, in the crate's terms: (version, addresses, protocol, length, fragment?).
fn network_of(net: &NetSlice<'_>) -> (Network, Vec<u8>, u8, u32, bool) {
    let proto = net.ip_payload_ref().unwrap().ip_number.0;
    match net {
        InternetSlice::Ipv4(ip) => {
            let header = ip.header();
            let addresses = [header.source(), header.destination()].concat();
            (Network::Ipv4, addresses, proto, u32::from(header.total_len()), header.is_fragmenting_payload())
        }
        InternetSlice::Ipv6(ip) => {
            let header = ip.header();
            let addresses = [header.source(), header.destination()].concat();
            let fragment = ip.extensions().is_fragmenting_payload();
            (Network::Ipv6, addresses, proto, u32::from(header.payload_length()) + 40, fragment)
        }
        InternetSlice::Arp(_) => panic!("no packet here is one"),
    }
}

proptest! {
    #[test]
    fn agrees_with_the_oracle(packet in any_packet()) {
        let layers = Layers::parse(&packet.bytes).unwrap();
        let oracle = SlicedPacket::from_ethernet(&packet.bytes).unwrap();
        let (l3, addresses, proto, len, is_fragment) = network_of(oracle.net.as_ref().unwrap());
        prop_assert_eq!(layers.l3, l3);
        prop_assert_eq!(layers.addresses(&packet.bytes), &addresses);
        prop_assert_eq!(layers.l3_len_bytes, len);
        prop_assert_eq!(layers.is_fragment, is_fragment);
        prop_assert!(!layers.is_source_routed);
        prop_assert_eq!(usize::from(layers.l3_offset), packet.l3_offset);
        if !layers.has_l4 {
            prop_assert!(is_fragment);
            return Ok(());
        }
        prop_assert_eq!((layers.l4_proto, usize::from(layers.l4_offset)), (proto, packet.l4_offset));
        let ports = layers.ports(&packet.bytes).unwrap();
        let ports = (u16::from_be_bytes([ports[0], ports[1]]), u16::from_be_bytes([ports[2], ports[3]]));
        match oracle.transport {
            Some(TransportSlice::Tcp(tcp)) => {
                prop_assert_eq!(ports, (tcp.source_port(), tcp.destination_port()));
                let len = layers.tcp_header_len_bytes(&packet.bytes).unwrap();
                prop_assert_eq!(usize::from(len), tcp.header_len());
            }
            Some(TransportSlice::Udp(udp)) => prop_assert_eq!(ports, (udp.source_port(), udp.destination_port())),
            _ => prop_assert!(is_fragment, "the oracle does not look into fragments"),
        }
    }

    #[test]
    fn a_cut_head_is_truncated_or_tells_the_same(packet in tcp_packet(8), cut in any::<prop::sample::Index>()) {
        let cut = cut.index(packet.payload_offset);
        let head = &packet.bytes[..cut];
        match Layers::parse(head) {
            Ok(layers) => {
                prop_assert_eq!(Ok(layers), Layers::parse(&packet.bytes));
                prop_assert!(layers.l4_proto == PROTO_TCP && cut >= packet.l4_offset);
                prop_assert_eq!(layers.tcp_header_len_bytes(head), Err(HeaderError::Truncated));
            }
            Err(error) => prop_assert_eq!((error, cut < packet.l4_offset), (HeaderError::Truncated, true)),
        }
    }

    #[test]
    fn a_flow_keeps_its_hash(packet in tcp_packet(8), key: u64, sequence: [u8; 4]) {
        let mut next = packet.clone();
        next.bytes[packet.l4_offset + 4..packet.l4_offset + 8].copy_from_slice(&sequence);
        next.bytes.push(0);
        prop_assert_eq!(flow_hash(&packet.bytes, key), flow_hash(&next.bytes, key));
        next.bytes[packet.l4_offset + 1] ^= 1;
        prop_assert_ne!(flow_hash(&packet.bytes, key), flow_hash(&next.bytes, key));
    }
}
