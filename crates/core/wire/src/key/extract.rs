//! Extracts the key from a packet's first bytes.
//!
//! The result equals that of the Open vSwitch datapath: a truncated or inconsistent header counts as absent, and its
//! fields are zero. A header beyond the given bytes, but not beyond the frame, also counts as absent, and the key says so
//! ([`field::UNREAD`]).

use super::{
    CT_WORD, CT_WORDS, ETHERTYPE_802_2, FRAGMENT_FIRST, FRAGMENT_LATER, FRAGMENT_NONE, Key, LinkLayer,
    Metadata, TUNNEL_WORD, VLAN_PRESENT, field, nsh_field, wide_field,
};
use crate::headers::{
    DESTINATION, ETHERTYPE_ARP, ETHERTYPE_IPV4, ETHERTYPE_IPV6, ETHERTYPE_NSH, ETHERTYPE_RARP,
    ETHERTYPE_VLAN, ETHERTYPE_VLAN_SERVICE, ETHERTYPES_MPLS, EXTENSION_HEADERS_MAX, FRAGMENT, HOP_BY_HOP,
    IPV4_BYTES_MIN, IPV6_BYTES, MACS_BYTES, PROTO_ICMP, PROTO_ICMPV6, PROTO_SCTP, PROTO_TCP, PROTO_UDP,
    ROUTING, TCP_BYTES_MIN,
};

/// Smaller numbers in the EtherType field are lengths (IEEE 802.3, 3.2.6).
const ETHERTYPE_MIN: u16 = 0x0600;

/// A further IPv6 extension header (RFC 4302), and "no next header" (RFC 8200, 4.7).
const AUTHENTICATION: u8 = 51;
const NO_NEXT_HEADER: u8 = 59;

/// The common header of an SCTP packet (RFC 9260, 3.1), which begins with the ports.
const SCTP_BYTES: usize = 12;
/// Bytes of a neighbour solicitation or advertisement before its options.
const ND_BYTES: usize = 24;

/// Offsets of a packet's headers, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offsets {
    /// The header after the last EtherType: network header or MPLS entries.
    pub network: u16,
    /// The transport header whose fields are in the key; 0 if there is none.
    pub transport: u16,
}

/// A packet's first bytes, and the length of its frame.
#[derive(Clone, Copy)]
struct Start<'a> {
    head: &'a [u8],
    frame_bytes: usize,
}

impl<'a> Start<'a> {
    /// `N` bytes at `offset`.
    #[inline]
    fn bytes<const N: usize>(self, offset: usize, key: &mut Key) -> Option<&'a [u8; N]> {
        let found = fixed(self.head, offset);
        if found.is_none() {
            self.note_missing(offset + N, key);
        }
        found
    }

    /// Notes that there are no bytes up to `end`.
    #[cold]
    fn note_missing(self, end: usize, key: &mut Key) {
        if end <= self.frame_bytes {
            key.put(field::UNREAD, 1);
        }
    }
}

/// Extracts into `key` the key of the packet that starts with `head` and has `frame_bytes`. Words about a tunnel are
/// unchanged.
#[inline]
pub fn extract(head: &[u8], frame_bytes: usize, metadata: &Metadata, key: &mut Key) -> Offsets {
    let start = Start { head, frame_bytes };
    let (seen, tracked) = key.0.split_at_mut(CT_WORD);
    seen.fill(0);
    tracked[..CT_WORDS].copy_from_slice(&metadata.ct.0);
    key.0[0] = u64::from(metadata.recirc_id) << 32 | u64::from(metadata.dp_hash);
    key.0[1] = u64::from(metadata.priority) << 32 | u64::from(metadata.mark);
    key.0[2] = u64::from(metadata.in_port) << 48;
    let (ethertype, network) = match metadata.link {
        LinkLayer::Ethernet => ethernet(head, key),
        LinkLayer::None(ethertype) => {
            key.put(field::NO_ETHERNET, 1);
            (ethertype, 0)
        }
    };
    key.0[3] |= u64::from(ethertype);
    let transport = match ethertype {
        ETHERTYPE_IPV4 => ipv4(start, network, key),
        ETHERTYPE_IPV6 => ipv6(start, network, key),
        ETHERTYPE_ARP | ETHERTYPE_RARP => arp(start, network, key),
        ETHERTYPE_NSH => nsh(start, network, key),
        _ if ETHERTYPES_MPLS.contains(&ethertype) => mpls(start, network, key),
        _ => None,
    };
    // Far below 64 Ki: at most eight extension headers of 2 KiB.
    Offsets { network: network as u16, transport: transport.unwrap_or(0) as u16 }
}

/// As [`extract`], for a packet that came in by `in_port` and has no other metadata. It must be untagged IPv4 with TCP
/// or UDP, without options, and not a fragment; for another packet the result is false, and `key` is undefined.
#[inline(always)]
pub fn extract_usual4(head: &[u8], in_port: u16, key: &mut Key) -> bool {
    const NETWORK: usize = MACS_BYTES + 2;
    const TRANSPORT: usize = NETWORK + IPV4_BYTES_MIN;
    /// EtherType, version and header length.
    const PLAIN_IPV4: u64 = (ETHERTYPE_IPV4 as u64) << 8 | 0x45;
    /// "More fragments", or a fragment offset.
    const FRAGMENTS: u64 = 0x3fff << 48;
    let Some(window) = head.first_chunk::<{ TRANSPORT + 8 }>() else { return false };
    let word = |at: usize| window[at..].first_chunk().map_or(0, |bytes| u64::from_be_bytes(*bytes));
    let (start, middle) = (word(MACS_BYTES), word(MACS_BYTES + 8));
    if start >> 40 != PLAIN_IPV4 || middle & FRAGMENTS != 0 {
        return false;
    }
    let proto = (middle >> 32) as u8;
    let flags = match proto {
        PROTO_UDP => Some(0),
        PROTO_TCP => fixed(head, TRANSPORT).and_then(|header| tcp_flags(header, head.len() - TRANSPORT)),
        _ => None,
    };
    let Some(flags) = flags else { return false };
    let tos_and_ttl = (start >> 32 & 0xff) << 48 | (middle >> 40 & 0xff) << 40;
    key.0[..2].fill(0);
    key.0[2] = u64::from(in_port) << 48 | word(0) >> 16;
    key.0[3] = word(4) << 16 | u64::from(ETHERTYPE_IPV4);
    key.0[4] = 0;
    key.0[5] = u64::from(proto) << 56 | tos_and_ttl;
    key.0[6] = word(TRANSPORT) >> 32 << 32 | u64::from(flags) << 16;
    key.0[7] = word(TRANSPORT - 8);
    key.0[8..TUNNEL_WORD].fill(0);
    true
}

/// `N` bytes at `offset`.
#[inline]
fn fixed<const N: usize>(head: &[u8], offset: usize) -> Option<&[u8; N]> {
    head.get(offset..)?.first_chunk()
}

#[inline]
fn u16_at(head: &[u8], offset: usize) -> Option<u16> {
    fixed(head, offset).map(|bytes| u16::from_be_bytes(*bytes))
}

/// Extracts addresses and tags. Returns the last EtherType, and the offset after it.
#[inline]
fn ethernet(head: &[u8], key: &mut Key) -> (u16, usize) {
    let Some(bytes) = head.first_chunk::<14>() else { return (0, head.len()) };
    let [_, _, _, _, last @ .., _, _] = bytes;
    let first = bytes.first_chunk::<8>().map_or(0, |first| u64::from_be_bytes(*first));
    key.0[2] |= first >> 16;
    key.0[3] = u64::from_be_bytes(*last) << 16; // the last two bytes of the destination are shifted out
    let ethertype = u16::from_be_bytes([bytes[12], bytes[13]]);
    if ethertype >= ETHERTYPE_MIN && !is_tag(ethertype) {
        return (ethertype, MACS_BYTES + 2);
    }
    behind_tags(head, key)
}

#[inline]
fn is_tag(ethertype: u16) -> bool {
    matches!(ethertype, ETHERTYPE_VLAN | ETHERTYPE_VLAN_SERVICE)
}

#[inline(never)]
fn behind_tags(head: &[u8], key: &mut Key) -> (u16, usize) {
    let mut offset = MACS_BYTES;
    for (tpid, tci) in [(field::VLAN_TPID, field::VLAN_TCI), (field::CVLAN_TPID, field::CVLAN_TCI)] {
        // A tag counts only if an EtherType follows it.
        let Some(&[a, b, c, d, _, _]) = fixed(head, offset) else { break };
        let ethertype = u16::from_be_bytes([a, b]);
        if !is_tag(ethertype) {
            break;
        }
        key.put(tpid, u64::from(ethertype));
        key.put(tci, u64::from(u16::from_be_bytes([c, d]) | VLAN_PRESENT));
        offset += 4;
    }
    match u16_at(head, offset) {
        None => (0, offset),
        Some(ethertype) if ethertype >= ETHERTYPE_MIN => (ethertype, offset + 2),
        Some(_) => behind_802_2(head, offset + 2),
    }
}

/// The EtherType in an 802.2 SNAP header, if there is one, and the offset after the header.
fn behind_802_2(head: &[u8], offset: usize) -> (u16, usize) {
    match fixed(head, offset) {
        Some(&[0xaa, 0xaa, _, 0, 0, 0, a, b]) => {
            let ethertype = u16::from_be_bytes([a, b]);
            let known = if ethertype >= ETHERTYPE_MIN { ethertype } else { ETHERTYPE_802_2 };
            (known, offset + 8)
        }
        _ => (ETHERTYPE_802_2, offset),
    }
}

#[inline]
fn ipv4(start: Start<'_>, offset: usize, key: &mut Key) -> Option<usize> {
    const MORE_FRAGMENTS: u16 = 0x2000;
    const FRAGMENT_OFFSET: u16 = 0x1fff;
    let header: &[u8; IPV4_BYTES_MIN] = start.bytes(offset, key)?;
    let header_len = usize::from(header[0] & 0xf) * 4;
    if header_len < IPV4_BYTES_MIN {
        return None;
    }
    if start.head.len() < offset + header_len {
        start.note_missing(offset + header_len, key);
        return None;
    }
    let [.., a, b, c, d, e, f, g, h] = *header;
    key.0[7] = u64::from_be_bytes([a, b, c, d, e, f, g, h]);
    let bits = u16::from_be_bytes([header[6], header[7]]);
    let frag = match bits & (MORE_FRAGMENTS | FRAGMENT_OFFSET) {
        0 => FRAGMENT_NONE,
        MORE_FRAGMENTS => FRAGMENT_FIRST,
        _ => FRAGMENT_LATER,
    };
    let (proto, tos, ttl) = (header[9], header[1], header[8]);
    key.0[5] = u64::from_be_bytes([proto, tos, ttl, frag, 0, 0, 0, 0]);
    if frag == FRAGMENT_LATER {
        return None;
    }
    transport(start, offset + header_len, proto, PROTO_ICMP, key)
}

/// Extracts ports, or ICMP type and code. Returns the transport header's offset.
#[inline]
fn transport(start: Start<'_>, offset: usize, proto: u8, icmp: u8, key: &mut Key) -> Option<usize> {
    let flags = match proto {
        PROTO_TCP => {
            let header = start.bytes(offset, key)?;
            tcp_flags(header, start.frame_bytes.saturating_sub(offset))?
        }
        PROTO_UDP => 0,
        PROTO_SCTP => {
            start.bytes::<SCTP_BYTES>(offset, key)?;
            0
        }
        _ if proto == icmp => {
            let &[kind, code, ..] = start.bytes::<8>(offset, key)?;
            key.0[6] |= u64::from(kind) << 48 | u64::from(code) << 32;
            return Some(offset);
        }
        _ => return None,
    };
    let ports: &[u8; 8] = start.bytes(offset, key)?;
    let [a, b, c, d, ..] = *ports;
    key.0[6] |= u64::from_be_bytes([a, b, c, d, 0, 0, 0, 0]) | u64::from(flags) << 16;
    Some(offset)
}

/// The flags of a TCP header, if the `room` in the frame is enough for its options.
#[inline]
fn tcp_flags(header: &[u8; TCP_BYTES_MIN], room: usize) -> Option<u16> {
    let len = usize::from(header[12] >> 4) * 4;
    let is_whole = len >= TCP_BYTES_MIN && room >= len;
    is_whole.then(|| u16::from_be_bytes([header[12], header[13]]) & 0x0fff)
}

fn ipv6(start: Start<'_>, offset: usize, key: &mut Key) -> Option<usize> {
    let header: &[u8; IPV6_BYTES] = start.bytes(offset, key)?;
    let word = u32::from_be_bytes([header[0], header[1], header[2], header[3]]);
    let (tclass, label) = ((word >> 20) as u8, word & 0xf_ffff);
    for (place, word) in key.0[8..12].iter_mut().zip(header[8..].as_chunks::<8>().0) {
        *place = u64::from_be_bytes(*word);
    }
    let (proto, frag, behind) = ipv6_transport(start, (header[6], offset + IPV6_BYTES), key);
    key.0[5] = u64::from_be_bytes([proto, tclass, header[7], frag, 0, 0, 0, 0]) | u64::from(label);
    let at = behind?;
    if proto == PROTO_ICMPV6 {
        return icmpv6(start, at, key);
    }
    transport(start, at, proto, PROTO_ICMPV6, key)
}

/// Protocol, fragment type, and offset of the transport header behind extension headers, of which the first is `proto`
/// and begins at `at`. The protocol of a later fragment is 44. It is 59 if the extension headers are invalid, or cannot
/// all be read.
fn ipv6_transport(
    start: Start<'_>,
    (mut proto, mut at): (u8, usize),
    key: &mut Key,
) -> (u8, u8, Option<usize>) {
    let mut frag = FRAGMENT_NONE;
    for _ in 0..=EXTENSION_HEADERS_MAX {
        let units = match proto {
            HOP_BY_HOP | ROUTING | DESTINATION | AUTHENTICATION | FRAGMENT => fixed::<8>(start.head, at),
            _ => return (proto, frag, Some(at)),
        };
        let Some(header) = units else { break };
        at += match proto {
            AUTHENTICATION => 4 * (usize::from(header[1]) + 2),
            FRAGMENT if u16::from_be_bytes([header[2], header[3]]) & 0xfff8 != 0 => {
                return (FRAGMENT, FRAGMENT_LATER, None);
            }
            FRAGMENT => {
                frag = FRAGMENT_FIRST;
                8
            }
            _ => 8 * (usize::from(header[1]) + 1),
        };
        proto = header[0];
    }
    // Beyond the given bytes, or one more than is looked at.
    start.note_missing(at + 8, key);
    (NO_NEXT_HEADER, frag, None)
}

/// Extracts type and code, and the fields of neighbour solicitations and advertisements (RFC 4861, 4.3 and 4.4).
fn icmpv6(start: Start<'_>, offset: usize, key: &mut Key) -> Option<usize> {
    const SOLICITATION: u8 = 135;
    const ADVERTISEMENT: u8 = 136;
    transport(start, offset, PROTO_ICMPV6, PROTO_ICMPV6, key)?;
    if !matches!(fixed(start.head, offset), Some([SOLICITATION | ADVERTISEMENT, 0])) {
        return Some(offset);
    }
    if let Some(fixed) = start.bytes::<ND_BYTES>(offset, key) {
        let [_, _, _, _, _, _, _, _, target @ ..] = *fixed;
        key.put_wide(wide_field::ND_TARGET, u128::from_be_bytes(target));
        if !neighbour_options(start, offset + ND_BYTES, key) {
            key.put_wide(wide_field::ND_TARGET, 0);
            key.put(field::LL_SRC, 0);
            key.put(field::LL_DST, 0);
        }
    }
    Some(offset)
}

/// Extracts the link-layer addresses from a message's options, up to the first invalid one. False if an address occurs
/// twice.
fn neighbour_options(start: Start<'_>, mut at: usize, key: &mut Key) -> bool {
    loop {
        // The shortest option has eight bytes.
        let Some(&[kind, units, a, b, c, d, e, f]) = start.bytes(at, key) else { return true };
        let len = usize::from(units) * 8;
        if len == 0 || at + len > start.frame_bytes {
            return true;
        }
        at += len;
        let place = match kind {
            1 if len == 8 => field::LL_SRC,
            2 if len == 8 => field::LL_DST,
            _ => continue,
        };
        if key.get(place) != 0 {
            return false;
        }
        key.put(place, u64::from_be_bytes([0, 0, a, b, c, d, e, f]));
    }
}

/// Extracts ARP for Ethernet and IPv4 (RFC 826); for other kinds of ARP the key has only an EtherType.
fn arp(start: Start<'_>, offset: usize, key: &mut Key) -> Option<usize> {
    let bytes: &[u8; 28] = start.bytes(offset, key)?;
    let (kind, addresses) = bytes.split_first_chunk::<8>()?;
    let [0, 1, 8, 0, 6, 4, high, low] = *kind else { return None };
    let operation = if high == 0 { low } else { 0 };
    key.put(field::IP_PROTO, u64::from(operation));
    let number = |at: usize, len: usize| {
        addresses[at..at + len].iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
    };
    key.put(field::LL_SRC, number(0, 6));
    key.put(field::IPV4_SRC, number(6, 4));
    key.put(field::LL_DST, number(10, 6));
    key.put(field::IPV4_DST, number(16, 4));
    None
}

/// Extracts the topmost MPLS entries, up to the bottom of the stack.
fn mpls(start: Start<'_>, offset: usize, key: &mut Key) -> Option<usize> {
    const BOTTOM: u32 = 0x100;
    for (index, place) in [field::MPLS_0, field::MPLS_1, field::MPLS_2].into_iter().enumerate() {
        let entry = u32::from_be_bytes(*start.bytes(offset + 4 * index, key)?);
        key.put(place, u64::from(entry));
        if entry & BOTTOM != 0 {
            break;
        }
    }
    None
}

/// Extracts a network service header that is whole and of a known metadata type (RFC 8300, 2.2 to 2.5).
fn nsh(start: Start<'_>, offset: usize, key: &mut Key) -> Option<usize> {
    const VERSION: u16 = 0xc000;
    let &[a, b, md_type, next, path @ ..] = start.bytes::<8>(offset, key)?;
    let first = u16::from_be_bytes([a, b]);
    let len = 4 * usize::from(first & 0x3f);
    if first & VERSION != 0 || len < 8 || offset + len > start.frame_bytes {
        return None;
    }
    let context = match md_type {
        1 if len == 24 => u128::from_be_bytes(*start.bytes(offset + 8, key)?),
        2 => 0,
        _ => return None,
    };
    key.put(nsh_field::FLAGS, u64::from(first >> 12 & 3));
    key.put(nsh_field::TTL, u64::from(first >> 6 & 0x3f));
    key.put(nsh_field::MD_TYPE, u64::from(md_type));
    key.put(nsh_field::NEXT_PROTOCOL, u64::from(next));
    key.put(nsh_field::PATH, u64::from(u32::from_be_bytes(path)));
    key.put_wide(nsh_field::CONTEXT, context);
    None
}

#[cfg(test)]
mod tests;
