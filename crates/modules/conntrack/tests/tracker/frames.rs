//! Frames with right checksums, and a check of frames that shares no code with the crate.

use std::net::{IpAddr, SocketAddr};

pub(crate) const FIN: u8 = 1;
pub(crate) const SYN: u8 = 2;
pub(crate) const RST: u8 = 4;
pub(crate) const ACK: u8 = 0x10;

pub(crate) const TCP: u8 = 6;
pub(crate) const UDP: u8 = 17;
pub(crate) const ICMP: u8 = 1;
pub(crate) const ICMPV6: u8 = 58;
pub(crate) const SCTP: u8 = 132;

/// Parses an address and port.
pub(crate) fn at(text: &str) -> SocketAddr {
    text.parse().expect("an address and port")
}

/// The Internet checksum as in RFC 1071.
pub(crate) fn sum_of(bytes: &[u8]) -> u16 {
    let add = |sum: u16, pair: &[u8]| {
        let word = u16::from_be_bytes([pair[0], pair.get(1).copied().unwrap_or(0)]);
        let (sum, carry) = sum.overflowing_add(word);
        sum + u16::from(carry)
    };
    !bytes.chunks(2).fold(0, add)
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

fn pseudo(src: IpAddr, dst: IpAddr, proto: u8, len: usize) -> Vec<u8> {
    [octets(src), octets(dst), (len as u32).to_be_bytes().to_vec(), vec![0, 0, 0, proto]].concat()
}

/// An IP packet without a link header.
pub(crate) fn ip(src: IpAddr, dst: IpAddr, proto: u8, payload: &[u8]) -> Vec<u8> {
    let mut packet = Vec::new();
    if src.is_ipv4() {
        let len = ((20 + payload.len()) as u16).to_be_bytes();
        packet.extend([0x45, 0, len[0], len[1], 0, 1, 0x40, 0, 64, proto, 0, 0]);
        packet.extend(octets(src));
        packet.extend(octets(dst));
        let sum = sum_of(&packet).to_be_bytes();
        packet[10..12].copy_from_slice(&sum);
    } else {
        let len = (payload.len() as u16).to_be_bytes();
        packet.extend([0x60, 0, 0, 0, len[0], len[1], proto, 64]);
        packet.extend(octets(src));
        packet.extend(octets(dst));
    }
    packet.extend(payload);
    packet
}

/// A frame around an IP packet.
pub(crate) fn frame(packet: &[u8]) -> Vec<u8> {
    let ethertype = if packet[0] >> 4 == 4 { [8, 0] } else { [0x86, 0xdd] };
    [&[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1][..], &ethertype, packet].concat()
}

fn summed(src: IpAddr, dst: IpAddr, proto: u8, mut l4: Vec<u8>, at: usize) -> Vec<u8> {
    let sum = sum_of(&[pseudo(src, dst, proto, l4.len()), l4.clone()].concat());
    let sum = if proto == UDP && sum == 0 { 0xffff } else { sum };
    l4[at..at + 2].copy_from_slice(&sum.to_be_bytes());
    frame(&ip(src, dst, proto, &l4))
}

/// A TCP segment.
#[derive(Clone, Debug)]
pub(crate) struct Tcp {
    pub(crate) src: SocketAddr,
    pub(crate) dst: SocketAddr,
    pub(crate) flags: u8,
    pub(crate) seq: u32,
    pub(crate) ack: u32,
    pub(crate) window: u16,
    pub(crate) options: Vec<u8>,
    pub(crate) payload: Vec<u8>,
}

impl Tcp {
    pub(crate) fn new(src: SocketAddr, dst: SocketAddr, flags: u8, seq: u32, ack: u32) -> Self {
        Self { src, dst, flags, seq, ack, window: 8192, options: Vec::new(), payload: Vec::new() }
    }

    pub(crate) fn with(mut self, payload: &[u8]) -> Self {
        self.payload = payload.to_vec();
        self
    }

    pub(crate) fn options(mut self, options: &[u8]) -> Self {
        self.options = options.to_vec();
        self.options.resize(options.len().next_multiple_of(4), 1);
        self
    }

    pub(crate) fn window(mut self, window: u16) -> Self {
        self.window = window;
        self
    }

    pub(crate) fn frame(&self) -> Vec<u8> {
        let mut l4 = [self.src.port().to_be_bytes(), self.dst.port().to_be_bytes()].concat();
        l4.extend(self.seq.to_be_bytes());
        l4.extend(self.ack.to_be_bytes());
        l4.extend([((20 + self.options.len()) as u8) << 2, self.flags]);
        l4.extend(self.window.to_be_bytes());
        l4.extend([0; 4]);
        l4.extend(&self.options);
        l4.extend(&self.payload);
        summed(self.src.ip(), self.dst.ip(), TCP, l4, 16)
    }
}

pub(crate) fn udp(src: SocketAddr, dst: SocketAddr, payload: &[u8]) -> Vec<u8> {
    let mut l4 = [src.port().to_be_bytes(), dst.port().to_be_bytes()].concat();
    l4.extend(((8 + payload.len()) as u16).to_be_bytes());
    l4.extend([0; 2]);
    l4.extend(payload);
    summed(src.ip(), dst.ip(), UDP, l4, 6)
}

/// An ICMP message of the addresses' version; `rest` follows the checksum.
pub(crate) fn icmp(src: IpAddr, dst: IpAddr, kind: u8, code: u8, rest: &[u8]) -> Vec<u8> {
    let mut l4 = [&[kind, code, 0, 0], rest].concat();
    if src.is_ipv4() {
        let sum = sum_of(&l4);
        l4[2..4].copy_from_slice(&sum.to_be_bytes());
        return frame(&ip(src, dst, ICMP, &l4));
    }
    summed(src, dst, ICMPV6, l4, 2)
}

pub(crate) fn echo(src: &str, dst: &str, is_reply: bool, id: u16) -> Vec<u8> {
    let (src, dst): (IpAddr, IpAddr) = (src.parse().expect("an address"), dst.parse().expect("an address"));
    let kind = match (src.is_ipv4(), is_reply) {
        (true, false) => 8,
        (true, true) => 0,
        (false, false) => 128,
        (false, true) => 129,
    };
    let [high, low] = id.to_be_bytes();
    icmp(src, dst, kind, 0, &[high, low, 0, 1, b'p', b'i', b'n', b'g'])
}

/// "Port unreachable" about a frame, with the first `bytes` of its IP packet.
pub(crate) fn unreachable(from: &str, about: &[u8], bytes: usize) -> Vec<u8> {
    let inner = &about[14..];
    let inner = &inner[..bytes.min(inner.len())];
    let from: IpAddr = from.parse().expect("an address");
    let rest = [&[0; 4], inner].concat();
    if from.is_ipv4() {
        let to = IpAddr::from([inner[12], inner[13], inner[14], inner[15]]);
        return icmp(from, to, 3, 3, &rest);
    }
    let to: [u8; 16] = inner[8..24].try_into().expect("an address");
    icmp(from, IpAddr::from(to), 1, 4, &rest)
}

/// The sum of all words of a packet, with the pseudo header for protocols that have one; it is 0xffff for a right
/// packet.
fn l4_sum(packet: &[u8]) -> u16 {
    let (src, dst, proto, l4) = parts(packet);
    if proto == ICMP {
        sum_of(l4)
    } else {
        sum_of(&[pseudo(src, dst, proto, l4.len()), l4.to_vec()].concat())
    }
}

/// Addresses, protocol and transport packet.
pub(crate) fn parts(packet: &[u8]) -> (IpAddr, IpAddr, u8, &[u8]) {
    if packet[0] >> 4 == 4 {
        let address = |at: usize| IpAddr::from([packet[at], packet[at + 1], packet[at + 2], packet[at + 3]]);
        return (address(12), address(16), packet[9], &packet[20..]);
    }
    let address = |at: usize| IpAddr::from(<[u8; 16]>::try_from(&packet[at..at + 16]).expect("16 bytes"));
    (address(8), address(24), packet[6], &packet[40..])
}

/// Checks all checksums and lengths of a frame, also those of the packet in an ICMP error as far as it is there.
pub(crate) fn assert_right(frame: &[u8]) {
    let packet = &frame[14..];
    let is_ipv4 = packet[0] >> 4 == 4;
    let len = if is_ipv4 {
        assert_eq!(sum_of(&packet[..20]), 0, "the IPv4 header's checksum");
        usize::from(u16::from_be_bytes([packet[2], packet[3]]))
    } else {
        usize::from(u16::from_be_bytes([packet[4], packet[5]])) + 40
    };
    assert_eq!(len, packet.len());
    let (_, _, proto, l4) = parts(packet);
    match proto {
        TCP | UDP | ICMP | ICMPV6 => assert_eq!(l4_sum(packet), 0, "the transport checksum"),
        _ => {}
    }
    let is_error = (proto == ICMP && matches!(l4[0], 3 | 11 | 12)) || (proto == ICMPV6 && l4[0] < 128);
    if !is_error {
        return;
    }
    let inner = &l4[8..];
    if inner[0] >> 4 == 4 {
        assert_eq!(sum_of(&inner[..20]), 0, "the inner IPv4 header's checksum");
    }
    let total = if inner[0] >> 4 == 4 {
        usize::from(u16::from_be_bytes([inner[2], inner[3]]))
    } else {
        usize::from(u16::from_be_bytes([inner[4], inner[5]])) + 40
    };
    if inner.len() == total {
        assert_eq!(l4_sum(inner), 0, "the inner transport checksum");
    }
}

/// Source and destination of a frame of TCP or UDP.
pub(crate) fn ends(frame: &[u8]) -> (SocketAddr, SocketAddr) {
    let (src, dst, _, l4) = parts(&frame[14..]);
    let port = |at: usize| u16::from_be_bytes([l4[at], l4[at + 1]]);
    (SocketAddr::new(src, port(0)), SocketAddr::new(dst, port(2)))
}
