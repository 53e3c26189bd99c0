//! Packets in parts, as etherparse represents them.

use etherparse::{IpHeaders, IpNumber, TcpHeader, TransportHeader};

/// Whether the transport's checksum is complete, or its field has only the pseudo header's sum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Checksum {
    Complete,
    Partial,
}

/// A packet, or a frame without IP, which has only link and payload.
#[derive(Clone, Debug)]
pub(crate) struct Packet {
    /// MAC addresses and VLAN tags.
    pub(crate) link: Vec<u8>,
    pub(crate) ip: Option<(IpHeaders, TransportHeader)>,
    pub(crate) payload: Vec<u8>,
}

impl Packet {
    pub(crate) fn tcp(&self) -> Option<&TcpHeader> {
        match &self.ip.as_ref()?.1 {
            TransportHeader::Tcp(tcp) => Some(tcp),
            _ => None,
        }
    }

    pub(crate) fn is_v6(&self) -> bool {
        matches!(self.ip, Some((IpHeaders::Ipv6(..), _)))
    }

    pub(crate) fn is_fragment(&self) -> bool {
        match self.ip.as_ref().map(|(ip, _)| ip) {
            Some(IpHeaders::Ipv4(header, _)) => header.is_fragmenting_payload(),
            Some(IpHeaders::Ipv6(_, extensions)) => extensions.fragment.is_some(),
            None => false,
        }
    }

    /// Offset of the transport header.
    pub(crate) fn l4_offset(&self) -> usize {
        self.link.len() + 2 + self.ip.as_ref().map_or(0, |(ip, _)| ip.header_len())
    }

    /// Offset of the payload.
    pub(crate) fn headers_bytes(&self) -> usize {
        self.l4_offset() + self.ip.as_ref().map_or(0, |(_, transport)| transport.header_len())
    }

    /// Offset of the checksum in the transport header.
    pub(crate) fn csum_offset(&self) -> usize {
        if self.tcp().is_some() { 16 } else { 6 }
    }

    /// Its segments of at most `size` bytes of payload.
    pub(crate) fn cut(&self, size: usize) -> Vec<Self> {
        let count = self.payload.len().div_ceil(size);
        let part = |(index, payload): (usize, &[u8])| {
            let (mut ip, mut transport) = self.ip.clone().expect("only IP is cut");
            if let IpHeaders::Ipv4(header, _) = &mut ip {
                header.identification = header.identification.wrapping_add(index as u16);
            }
            if let TransportHeader::Tcp(tcp) = &mut transport {
                tcp.sequence_number = tcp.sequence_number.wrapping_add((index * size) as u32);
                tcp.cwr &= index == 0;
                tcp.fin &= index + 1 == count;
                tcp.psh &= index + 1 == count;
            }
            Self { link: self.link.clone(), ip: Some((ip, transport)), payload: payload.to_vec() }
        };
        self.payload.chunks(size).enumerate().map(part).collect()
    }

    /// The frame, with valid lengths and IPv4 header checksum.
    pub(crate) fn bytes(&self, checksum: Checksum) -> Vec<u8> {
        let mut bytes = self.link.clone();
        let Some((mut ip, mut transport)) = self.ip.clone() else {
            bytes.extend([0x88, 0xb5]);
            bytes.extend(&self.payload);
            return bytes;
        };
        let l4_bytes = transport.header_len() + self.payload.len();
        ip.set_next_headers(if self.tcp().is_some() { IpNumber::TCP } else { IpNumber::UDP });
        ip.set_payload_len(l4_bytes).unwrap();
        if let IpHeaders::Ipv4(header, _) = &mut ip {
            header.header_checksum = header.calc_header_checksum();
        }
        if let TransportHeader::Udp(udp) = &mut transport {
            udp.length = l4_bytes as u16;
        }
        sum_up(&ip, &mut transport, &self.payload, checksum);
        bytes.extend(if self.is_v6() { [0x86, 0xdd] } else { [8, 0] });
        ip.write(&mut bytes).unwrap();
        transport.write(&mut bytes).unwrap();
        bytes.extend(&self.payload);
        bytes
    }
}

fn sum_up(ip: &IpHeaders, transport: &mut TransportHeader, payload: &[u8], checksum: Checksum) {
    let partial = partial(ip, transport, payload.len());
    let complete = |complete: u16| if checksum == Checksum::Complete { complete } else { partial };
    match (ip, transport) {
        (IpHeaders::Ipv4(ip, _), TransportHeader::Tcp(tcp)) => {
            tcp.checksum = complete(tcp.calc_checksum_ipv4(ip, payload).unwrap());
        }
        (IpHeaders::Ipv6(ip, _), TransportHeader::Tcp(tcp)) => {
            tcp.checksum = complete(tcp.calc_checksum_ipv6(ip, payload).unwrap());
        }
        (IpHeaders::Ipv4(ip, _), TransportHeader::Udp(udp)) => {
            udp.checksum = complete(udp.calc_checksum_ipv4(ip, payload).unwrap());
        }
        (IpHeaders::Ipv6(ip, _), TransportHeader::Udp(udp)) => {
            udp.checksum = complete(udp.calc_checksum_ipv6(ip, payload).unwrap());
        }
        (_, other) => panic!("no packet here is {other:?}"),
    }
}

/// The pseudo header's sum, not complemented (RFC 768, RFC 9293, RFC 8200, 8.1).
fn partial(ip: &IpHeaders, transport: &TransportHeader, payload_bytes: usize) -> u16 {
    let addresses = match ip {
        IpHeaders::Ipv4(header, _) => [header.source, header.destination].concat(),
        IpHeaders::Ipv6(header, _) => [header.source, header.destination].concat(),
    };
    let proto = if matches!(transport, TransportHeader::Udp(_)) { 17 } else { 6 };
    let words = addresses.chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]])));
    let mut sum: u32 = words.sum::<u32>() + proto + (transport.header_len() + payload_bytes) as u32;
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}
