//! Tuples: identify a packet's connection and its direction.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use lasthop_wire::Network;
use lasthop_wire::headers::{PROTO_ICMP, PROTO_ICMPV6, PROTO_SCTP, PROTO_TCP, PROTO_UDP};

/// An IPv4 address in the first four bytes, the others zero; or an IPv6 address. The tuple says which.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct IpBytes(pub [u8; 16]);

impl IpBytes {
    /// Reads 4 or 16 bytes; `None` for any other length.
    #[inline]
    pub fn from_slice(bytes: &[u8]) -> Option<Self> {
        if let Ok(address) = <[u8; 4]>::try_from(bytes) {
            return Some(Self(u128::from(u32::from_le_bytes(address)).to_le_bytes()));
        }
        bytes.try_into().ok().map(Self)
    }

    /// The address as a number. For IPv4 addresses only the upper 32 bits differ.
    #[inline]
    pub fn number(self) -> u128 {
        u128::from_be_bytes(self.0)
    }

    /// The address as a type of the standard library.
    #[must_use]
    pub fn to_ip(self, l3: Network) -> IpAddr {
        let [a, b, c, d, ..] = self.0;
        match l3 {
            Network::Ipv4 => IpAddr::V4(Ipv4Addr::new(a, b, c, d)),
            Network::Ipv6 => IpAddr::V6(Ipv6Addr::from(self.0)),
        }
    }
}

impl From<IpAddr> for IpBytes {
    fn from(address: IpAddr) -> Self {
        let mut bytes = [0; 16];
        match address {
            IpAddr::V4(address) => bytes[..4].copy_from_slice(&address.octets()),
            IpAddr::V6(address) => bytes = address.octets(),
        }
        Self(bytes)
    }
}

/// The direction of a packet: that of the connection's first packet, or that of replies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// The direction of the first packet.
    Original = 0,
    /// The direction of replies.
    Reply = 1,
}

impl Direction {
    /// Both directions, the original one first.
    pub const BOTH: [Self; 2] = [Self::Original, Self::Reply];

    /// The other direction.
    #[inline]
    #[must_use]
    pub fn inverse(self) -> Self {
        match self {
            Self::Original => Self::Reply,
            Self::Reply => Self::Original,
        }
    }

    /// 0 for original, 1 for reply.
    #[inline]
    pub fn index(self) -> usize {
        self as usize
    }
}

/// A connection's packets in one direction: zone, protocol, addresses and ports. For ICMP the identifier is `src_port`, type and
/// code are the two bytes of `dst_port`; protocols without ports have zeroes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CtTuple {
    /// Source address.
    pub src: IpBytes,
    /// Destination address.
    pub dst: IpBytes,
    /// Source port, or ICMP identifier.
    pub src_port: u16,
    /// Destination port, or ICMP type and code.
    pub dst_port: u16,
    /// Zone.
    pub zone: u16,
    /// IP protocol.
    pub proto: u8,
    /// Whether the addresses are IPv6 ones.
    pub is_ipv6: bool,
}

/// Words of a tuple.
pub const TUPLE_WORDS: usize = 5;
/// Shift of the zone in a tuple's last word.
pub const ZONE_SHIFT: u32 = 16;
/// Shift of the protocol there.
pub const PROTO_SHIFT: u32 = 8;
/// The addresses are IPv6 ones.
pub const IS_IPV6: u64 = 1;

impl CtTuple {
    /// The tuple of replies; `None` for ICMP types without a reply.
    #[inline]
    #[must_use]
    pub fn inverse(&self) -> Option<Self> {
        let (src_port, dst_port) = match self.proto {
            PROTO_ICMP | PROTO_ICMPV6 => {
                let [kind, code] = self.dst_port.to_be_bytes();
                (self.src_port, u16::from_be_bytes([icmp_pair(self.proto, kind)?, code]))
            }
            _ => (self.dst_port, self.src_port),
        };
        Some(Self { src: self.dst, dst: self.src, src_port, dst_port, ..*self })
    }

    /// The IP version.
    #[must_use]
    pub fn l3(&self) -> Network {
        if self.is_ipv6 { Network::Ipv6 } else { Network::Ipv4 }
    }

    /// Whether ports, or an ICMP identifier, can be translated.
    pub fn has_ports(&self) -> bool {
        matches!(self.proto, PROTO_TCP | PROTO_UDP | PROTO_SCTP | PROTO_ICMP | PROTO_ICMPV6)
    }

    /// Whether it is ICMP, where both directions have the same identifier.
    pub fn is_icmp(&self) -> bool {
        matches!(self.proto, PROTO_ICMP | PROTO_ICMPV6)
    }

    /// All fields as words, for a hash.
    #[inline]
    pub fn words(&self) -> [u64; TUPLE_WORDS] {
        let half = |bytes: &[u8; 16], at: usize| {
            bytes[at..].first_chunk().map_or(0, |bytes: &[u8; 8]| u64::from_le_bytes(*bytes))
        };
        let ports = u64::from(self.src_port) << 16 | u64::from(self.dst_port);
        let rest = u64::from(self.zone) << ZONE_SHIFT
            | u64::from(self.proto) << PROTO_SHIFT
            | u64::from(self.is_ipv6);
        let (src, dst) = (&self.src.0, &self.dst.0);
        [half(src, 0), half(dst, 0), half(src, 8), half(dst, 8), ports << 32 | rest]
    }

    /// Unpacks [`Self::words`].
    #[inline]
    pub fn from_words(words: [u64; TUPLE_WORDS]) -> Self {
        let [src, dst, src_high, dst_high, rest] = words;
        let address = |low: u64, high: u64| IpBytes((u128::from(low) | u128::from(high) << 64).to_le_bytes());
        Self {
            src: address(src, src_high),
            dst: address(dst, dst_high),
            src_port: (rest >> 48) as u16,
            dst_port: (rest >> 32) as u16,
            zone: Self::zone_in_words(rest),
            proto: (rest >> PROTO_SHIFT) as u8,
            is_ipv6: rest & IS_IPV6 != 0,
        }
    }

    /// Reads the zone from a tuple's last word.
    #[inline]
    pub fn zone_in_words(last: u64) -> u16 {
        (last >> ZONE_SHIFT) as u16
    }
}

impl fmt::Display for CtTuple {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (src, dst) = (self.src.to_ip(self.l3()), self.dst.to_ip(self.l3()));
        write!(f, "src={src},dst={dst},")?;
        if self.is_icmp() {
            let [kind, code] = self.dst_port.to_be_bytes();
            return write!(f, "id={},type={kind},code={code}", self.src_port);
        }
        write!(f, "sport={},dport={}", self.src_port, self.dst_port)
    }
}

/// The ICMP type that answers this one, or that this one answers (RFC 792, RFC 950, RFC 4443, RFC 4620).
fn icmp_pair(proto: u8, kind: u8) -> Option<u8> {
    Some(match (proto, kind) {
        (PROTO_ICMP, 0) => 8,
        (PROTO_ICMP, 8) => 0,
        (PROTO_ICMP, 13 | 15 | 17) => kind + 1,
        (PROTO_ICMP, 14 | 16 | 18) => kind - 1,
        (PROTO_ICMPV6, 128 | 139) => kind + 1,
        (PROTO_ICMPV6, 129 | 140) => kind - 1,
        _ => return None,
    })
}

/// Whether an ICMP type is a request, which may begin a connection.
pub fn is_icmp_request(proto: u8, kind: u8) -> bool {
    matches!((proto, kind), (PROTO_ICMP, 8 | 13 | 15 | 17) | (PROTO_ICMPV6, 128 | 139))
}

/// Whether an ICMP type reports an error, and so quotes a packet.
pub fn is_icmp_error(proto: u8, kind: u8) -> bool {
    match proto {
        PROTO_ICMP => matches!(kind, 3 | 4 | 5 | 11 | 12),
        PROTO_ICMPV6 => kind < 128,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tuple(proto: u8, src_port: u16, dst_port: u16) -> CtTuple {
        let address = |last| IpBytes::from(IpAddr::from([10, 0, 0, last]));
        let (src, dst) = (address(1), address(2));
        CtTuple { src, dst, src_port, dst_port, zone: 7, proto, is_ipv6: false }
    }

    #[test]
    fn the_inverse_of_the_inverse_is_the_tuple() {
        let tcp = tuple(PROTO_TCP, 1000, 80);
        let inverse = tcp.inverse().expect("TCP has replies");
        assert_eq!((inverse.src, inverse.src_port, inverse.dst_port), (tcp.dst, 80, 1000));
        assert_eq!(inverse.inverse(), Some(tcp));
        for (proto, other) in [(PROTO_ICMP, PROTO_ICMPV6), (PROTO_ICMPV6, PROTO_ICMP)] {
            for kind in 0..=255 {
                let icmp = tuple(proto, 9, u16::from_be_bytes([kind, 3]));
                let Some(inverse) = icmp.inverse() else { continue };
                assert_eq!(inverse.inverse(), Some(icmp));
                assert_ne!(
                    is_icmp_request(proto, kind),
                    is_icmp_request(proto, (inverse.dst_port >> 8) as u8)
                );
                assert!(!is_icmp_error(proto, kind) && !is_icmp_request(other, kind), "{proto} {kind}");
            }
        }
    }

    #[test]
    fn every_field_is_in_the_words() {
        let one = tuple(PROTO_UDP, 1, 2);
        let mut others = [one; 7];
        others[0].src.0[3] = 9;
        others[1].dst.0[15] = 9;
        others[2].src_port = 9;
        others[3].dst_port = 9;
        others[4].zone = 9;
        others[5].proto = 9;
        others[6].is_ipv6 = true;
        assert!(others.iter().all(|other| other.words() != one.words()));
        assert!(others.iter().all(|other| CtTuple::from_words(other.words()) == *other));
    }
}
