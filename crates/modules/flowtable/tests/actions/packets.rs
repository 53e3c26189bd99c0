//! Packets from an independent implementation, with checksums.

use etherparse::{IpFragOffset, IpNumber, Ipv4Header, Ipv6FlowLabel, Ipv6Header, TcpHeader, UdpHeader};
use proptest::prelude::*;

/// The fields of a packet, without its payload.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Spec {
    pub(crate) macs: [[u8; 6]; 2],
    pub(crate) net: Net,
    pub(crate) ports: [u16; 2],
    pub(crate) is_tcp: bool,
    /// UDP whose checksum is omitted.
    pub(crate) is_unsummed: bool,
    pub(crate) payload: Vec<u8>,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Net {
    V4 { src: [u8; 4], dst: [u8; 4], tos: u8, ttl: u8 },
    V6 { src: [u8; 16], dst: [u8; 16], label: u32, tclass: u8, hlimit: u8 },
}

impl Spec {
    /// UDP over IPv4 without options or tags.
    pub(crate) fn plain() -> Self {
        Self {
            macs: [[2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]],
            net: Net::V4 { src: [10, 0, 0, 1], dst: [10, 0, 0, 2], tos: 0, ttl: 64 },
            ports: [1000, 53],
            is_tcp: false,
            is_unsummed: false,
            payload: vec![7; 20],
        }
    }

    fn number(&self) -> IpNumber {
        if self.is_tcp { IpNumber::TCP } else { IpNumber::UDP }
    }

    fn ipv4(&self) -> Option<Ipv4Header> {
        self.ipv4_of(self.number(), self.l4_len_bytes())
    }

    fn ipv4_of(&self, number: IpNumber, len_bytes: usize) -> Option<Ipv4Header> {
        let Net::V4 { src, dst, tos, ttl } = self.net else { return None };
        let mut header = Ipv4Header::new(len_bytes as u16, ttl, number, src, dst).expect("it is short");
        header.dscp = (tos >> 2).try_into().expect("six bits");
        header.ecn = (tos & 3).try_into().expect("two bits");
        header.fragment_offset = IpFragOffset::ZERO;
        header.header_checksum = header.calc_header_checksum();
        Some(header)
    }

    fn ipv6(&self) -> Option<Ipv6Header> {
        self.ipv6_of(self.number(), self.l4_len_bytes())
    }

    fn ipv6_of(&self, number: IpNumber, len_bytes: usize) -> Option<Ipv6Header> {
        let Net::V6 { src, dst, label, tclass, hlimit } = self.net else { return None };
        Some(Ipv6Header {
            traffic_class: tclass,
            flow_label: Ipv6FlowLabel::try_new(label).expect("20 bits"),
            payload_length: len_bytes as u16,
            next_header: number,
            hop_limit: hlimit,
            source: src,
            destination: dst,
        })
    }

    fn l4_len_bytes(&self) -> usize {
        self.payload.len() + if self.is_tcp { 20 } else { 8 }
    }

    fn transport(&self) -> Vec<u8> {
        let [src, dst] = self.ports;
        if self.is_tcp {
            let mut header = TcpHeader::new(src, dst, 7, 512);
            header.ack = true;
            header.checksum = match (self.ipv4(), self.ipv6()) {
                (Some(ip), _) => header.calc_checksum_ipv4(&ip, &self.payload),
                (_, Some(ip)) => header.calc_checksum_ipv6(&ip, &self.payload),
                _ => unreachable!("it is one of them"),
            }
            .expect("it is short");
            return header.to_bytes().to_vec();
        }
        let mut header = UdpHeader {
            source_port: src,
            destination_port: dst,
            length: self.l4_len_bytes() as u16,
            checksum: 0,
        };
        if !self.is_unsummed {
            header.checksum = match (self.ipv4(), self.ipv6()) {
                (Some(ip), _) => header.calc_checksum_ipv4(&ip, &self.payload),
                (_, Some(ip)) => header.calc_checksum_ipv6(&ip, &self.payload),
                _ => unreachable!("it is one of them"),
            }
            .expect("it is short");
        }
        header.to_bytes().to_vec()
    }

    /// The packet without an Ethernet header.
    pub(crate) fn l3_bytes(&self) -> Vec<u8> {
        self.l3_bytes_of(self.number(), &[self.transport(), self.payload.clone()].concat())
    }

    fn l3_bytes_of(&self, number: IpNumber, rest: &[u8]) -> Vec<u8> {
        let ip = match (self.ipv4_of(number, rest.len()), self.ipv6_of(number, rest.len())) {
            (Some(ip), _) => ip.to_bytes().to_vec(),
            (_, Some(ip)) => ip.to_bytes().to_vec(),
            _ => unreachable!("it is one of them"),
        };
        [&ip, rest].concat()
    }

    /// A frame of another IP protocol; `rest` follows its IP header.
    pub(crate) fn frame_of(&self, number: u8, rest: &[u8]) -> Vec<u8> {
        let [src, dst] = self.macs;
        [&dst[..], &src, &self.ethertype().to_be_bytes(), &self.l3_bytes_of(IpNumber(number), rest)].concat()
    }

    pub(crate) fn ethertype(&self) -> u16 {
        if matches!(self.net, Net::V4 { .. }) { 0x0800 } else { 0x86dd }
    }

    /// The frame, with `between` in place of its EtherType.
    pub(crate) fn frame_with(&self, between: &[u8]) -> Vec<u8> {
        let [src, dst] = self.macs;
        [&dst[..], &src, between, &self.l3_bytes()].concat()
    }

    pub(crate) fn frame(&self) -> Vec<u8> {
        self.frame_with(&self.ethertype().to_be_bytes())
    }
}

/// Bytes that are often all zeros or ones, the corner cases of ones' complement.
fn byte() -> impl Strategy<Value = u8> {
    prop_oneof![2 => Just(0), 2 => Just(0xff), 3 => any::<u8>()]
}

fn address<const N: usize>() -> impl Strategy<Value = [u8; N]> {
    proptest::collection::vec(byte(), N).prop_map(|bytes| bytes.try_into().expect("as many as wanted"))
}

pub(crate) fn any_net() -> impl Strategy<Value = Net> {
    prop_oneof![
        (address(), address(), byte(), byte()).prop_map(|(src, dst, tos, ttl)| Net::V4 {
            src,
            dst,
            tos,
            ttl
        }),
        (address(), address(), 0..0x10_0000_u32, byte(), byte())
            .prop_map(|(src, dst, label, tclass, hlimit)| Net::V6 { src, dst, label, tclass, hlimit }),
    ]
}

pub(crate) fn any_spec() -> impl Strategy<Value = Spec> {
    let macs = any::<[[u8; 6]; 2]>();
    let kind = prop_oneof![Just((true, false)), Just((false, false)), Just((false, true))];
    (macs, any_net(), any::<[u16; 2]>(), kind, proptest::collection::vec(byte(), 0..200)).prop_map(
        |(macs, net, ports, (is_tcp, is_unsummed), payload)| Spec {
            macs,
            net,
            ports,
            is_tcp,
            is_unsummed,
            payload,
        },
    )
}
