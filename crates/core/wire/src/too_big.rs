//! ICMP answers to packets that are too long for their path: "fragmentation needed" (RFC 792, RFC 1191) and "packet too big" (RFC 4443, 3.2).
//!
//! ```text
//!   the packet  | Ethernet: A to B | tags | IP: a to b | ...                           |
//!   its answer  | Ethernet: B to A | tags | IP: b to a | ICMP, MTU | IP: a to b | ...  |
//! ```
//!
//! Its receiver seems to have sent it, as with the tunnel devices of Linux: they have no address of their own, either.

use crate::checksum::Sum;
use crate::headers::{
    IPV4_BYTES_MIN, IPV6_BYTES, Layers, MACS_BYTES, Network, PROTO_ICMP, PROTO_ICMPV6, VLAN_TAGS_MAX,
};

/// Bytes of the longest Ethernet header that is looked into.
const ETHERNET_BYTES_MAX: usize = MACS_BYTES + 4 * VLAN_TAGS_MAX + 2;
/// Bytes of the header of ICMP and ICMPv6, with the MTU.
const ICMP_BYTES: usize = 8;
/// Maximum bytes of an answer of IPv4 (RFC 1812, 4.3.2.3).
const IPV4_ANSWER_BYTES_MAX: usize = 576;
/// Maximum bytes of an answer of IPv6: what every link takes (RFC 4443, 2.4).
const IPV6_ANSWER_BYTES_MAX: usize = 1280;
/// Maximum bytes of an answer, with its Ethernet header.
pub const ANSWER_BYTES_MAX: usize = ETHERNET_BYTES_MAX + IPV6_ANSWER_BYTES_MAX;
/// Bytes of a frame that are enough to answer it: more would not be quoted.
pub const ANSWERED_BYTES: usize = ANSWER_BYTES_MAX - IPV6_BYTES - ICMP_BYTES;

/// The smallest MTU of IPv4 (RFC 791) and of IPv6 (RFC 8200, 5), in bytes.
const IPV4_MTU_MIN: u32 = 68;
const IPV6_MTU_MIN: u32 = 1280;

/// "Internetwork control" (RFC 1812, 4.3.2.5), and the usual TTL.
const TOS: u8 = 0xc0;
const TTL: u8 = 64;
/// IPv4's "don't fragment", in the first byte of its word.
const DONT_FRAGMENT: u8 = 0x40;

/// Writes the answer to the frame that begins with `head`, whose path takes frames of `frame_bytes_max` bytes, Ethernet header counted.
/// Returns its length in bytes.
///
/// `None` if there is to be none (RFC 1122, 3.2.2; RFC 4443, 2.4): the frame is no IP packet, or not the first fragment of one; it is an
/// ICMP error; a source or destination is not one host's; a packet of IPv4 lacks DF. Nor is there one if its sender could do
/// nothing about it: the packet is no longer than the MTU of the answer, which is never below the smallest one of its version of IP.
#[must_use]
pub fn answer(head: &[u8], frame_bytes_max: u32, out: &mut [u8; ANSWER_BYTES_MAX]) -> Option<usize> {
    let layers = Layers::parse(head).ok()?;
    let (ethernet, rest) = head.split_at_checked(layers.l3_offset.into())?;
    let (destination, source) = (ethernet.first_chunk::<6>()?, ethernet.get(6..MACS_BYTES)?);
    let is_of_group = (destination[0] | source[0]) & 1 != 0;
    if is_of_group || !layers.has_l4 || is_icmp_error(&layers, head) {
        return None;
    }
    let packet = rest.get(..rest.len().min(layers.l3_len_bytes as usize))?;
    let mtu = frame_bytes_max.saturating_sub(u32::from(layers.l3_offset));
    let (start, place) = out.split_at_mut_checked(ethernet.len())?;
    start.copy_from_slice(ethernet);
    start[..6].copy_from_slice(source);
    start[6..MACS_BYTES].copy_from_slice(destination);
    let len = match layers.l3 {
        Network::Ipv4 => answer_v4(packet, layers.l3_len_bytes, mtu.max(IPV4_MTU_MIN), place)?,
        Network::Ipv6 => answer_v6(packet, layers.l3_len_bytes, mtu.max(IPV6_MTU_MIN), place)?,
    };
    Some(ethernet.len() + len)
}

/// Also of a redirection of IPv6, which is never answered, and of messages whose type is not in sight.
fn is_icmp_error(layers: &Layers, head: &[u8]) -> bool {
    let kind = head.get(usize::from(layers.l4_offset)).copied();
    match layers.l4_proto {
        // Unreachable, quench, redirect, time exceeded, parameter problem.
        PROTO_ICMP if layers.l3 == Network::Ipv4 => {
            kind.is_none_or(|kind| matches!(kind, 3 | 4 | 5 | 11 | 12))
        }
        PROTO_ICMPV6 if layers.l3 == Network::Ipv6 => kind.is_none_or(|kind| kind < 128 || kind == 137),
        _ => false,
    }
}

/// Whether an address may be one of a host elsewhere: not "this network", loopback, multicast or broadcast.
fn is_host_v4(address: [u8; 4]) -> bool {
    !matches!(address[0], 0 | 127 | 224..)
}

fn is_host_v6(address: [u8; 16]) -> bool {
    address[0] != 0xff && u128::from_be_bytes(address) > 1 // neither multicast nor :: nor ::1
}

fn answer_v4(packet: &[u8], len_bytes: u32, mtu: u32, out: &mut [u8]) -> Option<usize> {
    let header = packet.first_chunk::<IPV4_BYTES_MIN>()?;
    let (source, destination) = (*header[12..].first_chunk()?, *header[16..].first_chunk()?);
    let is_fixed = header[6] & DONT_FRAGMENT != 0;
    if !is_fixed || len_bytes <= mtu || !is_host_v4(source) || !is_host_v4(destination) {
        return None;
    }
    let quoted = packet.len().min(IPV4_ANSWER_BYTES_MAX - IPV4_BYTES_MIN - ICMP_BYTES);
    let len = IPV4_BYTES_MIN + ICMP_BYTES + quoted;
    let (header, rest) = out.get_mut(..len)?.split_first_chunk_mut::<IPV4_BYTES_MIN>()?;
    let [a, b] = (len as u16).to_be_bytes(); // at most IPV4_ANSWER_BYTES_MAX
    header[..12].copy_from_slice(&[0x45, TOS, a, b, 0, 0, DONT_FRAGMENT, 0, TTL, PROTO_ICMP, 0, 0]);
    header[12..16].copy_from_slice(&destination);
    header[16..].copy_from_slice(&source);
    let mut sum = Sum::default();
    sum.add(header);
    header[10..12].copy_from_slice(&sum.finish().to_be_bytes());
    let [a, b] = (mtu as u16).to_be_bytes(); // below the length of a packet
    rest[..ICMP_BYTES].copy_from_slice(&[3, 4, 0, 0, 0, 0, a, b]);
    rest[ICMP_BYTES..].copy_from_slice(&packet[..quoted]);
    let mut sum = Sum::default();
    sum.add(rest);
    rest[2..4].copy_from_slice(&sum.finish().to_be_bytes());
    Some(len)
}

fn answer_v6(packet: &[u8], len_bytes: u32, mtu: u32, out: &mut [u8]) -> Option<usize> {
    let header = packet.first_chunk::<IPV6_BYTES>()?;
    let (source, destination) = (*header[8..].first_chunk()?, *header[24..].first_chunk()?);
    if len_bytes <= mtu || !is_host_v6(source) || !is_host_v6(destination) {
        return None;
    }
    let quoted = packet.len().min(IPV6_ANSWER_BYTES_MAX - IPV6_BYTES - ICMP_BYTES);
    let payload = ICMP_BYTES + quoted;
    let (header, rest) = out.get_mut(..IPV6_BYTES + payload)?.split_first_chunk_mut::<IPV6_BYTES>()?;
    let [a, b] = (payload as u16).to_be_bytes(); // at most IPV6_ANSWER_BYTES_MAX
    header[..8].copy_from_slice(&[0x60, 0, 0, 0, a, b, PROTO_ICMPV6, TTL]);
    header[8..24].copy_from_slice(&destination);
    header[24..].copy_from_slice(&source);
    rest[..4].copy_from_slice(&[2, 0, 0, 0]);
    rest[4..ICMP_BYTES].copy_from_slice(&mtu.to_be_bytes());
    rest[ICMP_BYTES..].copy_from_slice(&packet[..quoted]);
    let mut sum = Sum::pseudo_v6(destination, source, PROTO_ICMPV6, payload as u32);
    sum.add(rest);
    rest[2..4].copy_from_slice(&sum.finish().to_be_bytes());
    Some(IPV6_BYTES + payload)
}
