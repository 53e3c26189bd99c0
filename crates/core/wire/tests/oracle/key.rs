use etherparse::{
    ArpPacketSlice, Icmpv4Slice, Icmpv6Slice, InternetSlice, LinkExtSlice, LinkSlice, SlicedPacket,
    TransportSlice,
};
use lasthop_wire::key::{Field, PLAIN_KEY_WORDS, VLAN_PRESENT, extract, field, wide_field};
use lasthop_wire::{Key, Metadata};
use proptest::prelude::*;

use crate::packets::{any_packet, arp_packet, icmp_packet};

fn key_of(bytes: &[u8]) -> Key {
    let mut key = Key(std::array::from_fn(|word| if word < PLAIN_KEY_WORDS { u64::MAX } else { 0 }));
    extract(bytes, bytes.len(), &Metadata::default(), &mut key);
    key
}

/// The key built from the independent parser's results.
#[derive(Default)]
struct Oracle(Key);

impl Oracle {
    fn put(&mut self, field: Field, value: impl Into<u64>) {
        self.0.put(field, value.into());
    }

    fn number(bytes: &[u8]) -> u64 {
        bytes.iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
    }

    fn link(&mut self, packet: &SlicedPacket<'_>) {
        let Some(LinkSlice::Ethernet2(ethernet)) = &packet.link else { panic!("every frame has one") };
        self.put(field::ETH_DST, Self::number(&ethernet.destination()));
        self.put(field::ETH_SRC, Self::number(&ethernet.source()));
        let mut ethertype = ethernet.ether_type().0;
        let places = [(field::VLAN_TPID, field::VLAN_TCI), (field::CVLAN_TPID, field::CVLAN_TCI)];
        for (extension, (tpid, tci)) in packet.link_exts.iter().zip(places) {
            let LinkExtSlice::Vlan(tag) = extension else { panic!("no packet here has another") };
            self.put(tpid, ethertype);
            self.put(tci, u16::from_be_bytes([tag.slice()[0], tag.slice()[1]]) | VLAN_PRESENT);
            ethertype = tag.ether_type().0;
        }
        self.put(field::ETH_TYPE, ethertype);
    }

    fn arp(&mut self, arp: &ArpPacketSlice<'_>) {
        self.put(field::IP_PROTO, arp.operation().0);
        self.put(field::LL_SRC, Self::number(arp.sender_hw_addr()));
        self.put(field::LL_DST, Self::number(arp.target_hw_addr()));
        self.put(field::IPV4_SRC, Self::number(arp.sender_protocol_addr()));
        self.put(field::IPV4_DST, Self::number(arp.target_protocol_addr()));
    }

    fn net(&mut self, net: &InternetSlice<'_>) {
        match net {
            InternetSlice::Arp(arp) => return self.arp(arp),
            InternetSlice::Ipv4(ip) => {
                let header = ip.header();
                self.put(field::IPV4_SRC, Self::number(&header.source()));
                self.put(field::IPV4_DST, Self::number(&header.destination()));
                self.put(field::IP_TOS, header.dcp().value() << 2 | header.ecn().value());
                self.put(field::IP_TTL, header.ttl());
                let later = header.fragments_offset().value() > 0;
                self.put(field::IP_FRAG, if later { 2_u8 } else { u8::from(header.more_fragments()) });
            }
            InternetSlice::Ipv6(ip) => {
                let header = ip.header();
                self.0.put_wide(wide_field::IPV6_SRC, u128::from_be_bytes(header.source()));
                self.0.put_wide(wide_field::IPV6_DST, u128::from_be_bytes(header.destination()));
                self.put(field::IP_TOS, header.traffic_class());
                self.put(field::IP_TTL, header.hop_limit());
                self.put(field::IPV6_LABEL, header.flow_label().value());
                let mut fragments = ip.extensions().clone().into_iter().filter_map(|extension| {
                    let etherparse::Ipv6ExtensionSlice::Fragment(fragment) = extension else { return None };
                    Some(fragment.fragment_offset().value() > 0)
                });
                let frag = fragments.next().map_or(0, |later| 1 + u8::from(later));
                self.put(field::IP_FRAG, frag);
                if frag == 2 {
                    self.put(field::IP_PROTO, 44_u8);
                    return;
                }
            }
        }
        let proto = net.ip_payload_ref().map_or(0, |payload| payload.ip_number.0);
        self.put(field::IP_PROTO, proto);
    }

    fn ports(&mut self, source: u16, destination: u16) {
        self.put(field::TP_SRC, source);
        self.put(field::TP_DST, destination);
    }

    fn transport(&mut self, transport: &TransportSlice<'_>) {
        match transport {
            TransportSlice::Tcp(tcp) => {
                self.ports(tcp.source_port(), tcp.destination_port());
                let flags = [
                    tcp.fin(),
                    tcp.syn(),
                    tcp.rst(),
                    tcp.psh(),
                    tcp.ack(),
                    tcp.urg(),
                    tcp.ece(),
                    tcp.cwr(),
                    tcp.ns(),
                ];
                let flags = flags.iter().rev().fold(0_u16, |bits, flag| bits << 1 | u16::from(*flag));
                self.put(field::TCP_FLAGS, flags);
            }
            TransportSlice::Udp(udp) => self.ports(udp.source_port(), udp.destination_port()),
            TransportSlice::Icmpv4(icmp) => self.icmpv4(icmp),
            TransportSlice::Icmpv6(icmp) => self.icmpv6(icmp),
            TransportSlice::Igmp(_) => {}
        }
    }

    fn icmpv4(&mut self, icmp: &Icmpv4Slice<'_>) {
        self.ports(u16::from(icmp.type_u8()), u16::from(icmp.code_u8()));
    }

    fn icmpv6(&mut self, icmp: &Icmpv6Slice<'_>) {
        self.ports(u16::from(icmp.type_u8()), u16::from(icmp.code_u8()));
    }
}

fn oracle_of(bytes: &[u8]) -> Key {
    let packet = SlicedPacket::from_ethernet(bytes).unwrap();
    let mut oracle = Oracle::default();
    oracle.link(&packet);
    oracle.net(packet.net.as_ref().unwrap());
    if let Some(transport) = &packet.transport {
        oracle.transport(transport);
    }
    oracle.0
}

/// The independent parser does not parse the payload of fragments, not even of first ones, unless they are whole
/// packets.
fn without_ports(mut key: Key) -> Key {
    key.0[6] = 0;
    key
}

proptest! {
    #[test]
    fn agrees_with_the_oracle(packet in prop_oneof![any_packet(), icmp_packet(), arp_packet()]) {
        let (key, oracle) = (key_of(&packet.bytes), oracle_of(&packet.bytes));
        if key.get(field::IP_FRAG) > 0 {
            prop_assert_eq!(without_ports(key), without_ports(oracle));
        } else {
            prop_assert_eq!(key, oracle);
        }
    }

    #[test]
    fn a_cut_packet_has_the_same_fields_or_none(
        packet in prop_oneof![any_packet(), icmp_packet(), arp_packet()],
        cut in any::<prop::sample::Index>(),
    ) {
        let cut = 14 + cut.index(packet.bytes.len() - 13);
        let (whole, part) = (key_of(&packet.bytes), key_of(&packet.bytes[..cut]));
        prop_assert_eq!((part.0[2], part.0[3] >> 16), (whole.0[2], whole.0[3] >> 16));
        let fields = [field::IPV4_SRC, field::IPV4_DST, field::IP_TTL, field::TP_SRC, field::TP_DST, field::TCP_FLAGS];
        for field in fields {
            prop_assert!([0, whole.get(field)].contains(&part.get(field)), "{:?}", field);
        }
    }
}
