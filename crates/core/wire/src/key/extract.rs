//! Extracts the key from a packet's first bytes.
//!
//! The result equals that of the Open vSwitch datapath: a truncated or inconsistent header counts as absent, and its
//! fields are zero. Headers beyond the given bytes also count as absent.

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

/// Offsets of a packet's headers, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offsets {
    /// The header after the last EtherType: network header or MPLS entries.
    pub network: u16,
    /// The transport header whose fields are in the key; 0 if there is none.
    pub transport: u16,
}

/// Extracts into `key` the key of the packet that starts with `head`. Words about a tunnel are unchanged.
#[inline]
pub fn extract(head: &[u8], metadata: &Metadata, key: &mut Key) -> Offsets {
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
        ETHERTYPE_IPV4 => ipv4(head, network, key),
        ETHERTYPE_IPV6 => ipv6(head, network, key),
        ETHERTYPE_ARP | ETHERTYPE_RARP => arp(head, network, key),
        ETHERTYPE_NSH => nsh(head, network, key),
        _ if ETHERTYPES_MPLS.contains(&ethertype) => mpls(head, network, key),
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
        PROTO_TCP => tcp_flags(head, TRANSPORT),
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
fn ipv4(head: &[u8], offset: usize, key: &mut Key) -> Option<usize> {
    const MORE_FRAGMENTS: u16 = 0x2000;
    const FRAGMENT_OFFSET: u16 = 0x1fff;
    let header: &[u8; IPV4_BYTES_MIN] = fixed(head, offset)?;
    let header_len = usize::from(header[0] & 0xf) * 4;
    if header_len < IPV4_BYTES_MIN || head.len() < offset + header_len {
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
    transport(head, offset + header_len, proto, PROTO_ICMP, key)
}

/// Extracts ports, or ICMP type and code. Returns the transport header's offset.
#[inline]
fn transport(head: &[u8], offset: usize, proto: u8, icmp: u8, key: &mut Key) -> Option<usize> {
    let flags = match proto {
        PROTO_TCP => tcp_flags(head, offset)?,
        PROTO_UDP => 0,
        // The common header, which begins with the ports.
        PROTO_SCTP if head.len() >= offset + 12 => 0,
        _ if proto == icmp => {
            let &[kind, code, ..] = fixed::<8>(head, offset)?;
            key.0[6] |= u64::from(kind) << 48 | u64::from(code) << 32;
            return Some(offset);
        }
        _ => return None,
    };
    let ports: &[u8; 8] = fixed(head, offset)?;
    let [a, b, c, d, ..] = *ports;
    key.0[6] |= u64::from_be_bytes([a, b, c, d, 0, 0, 0, 0]) | u64::from(flags) << 16;
    Some(offset)
}

/// The flags of a TCP header, if it is whole.
#[inline]
fn tcp_flags(head: &[u8], offset: usize) -> Option<u16> {
    let header: &[u8; TCP_BYTES_MIN] = fixed(head, offset)?;
    let len = usize::from(header[12] >> 4) * 4;
    let is_whole = len >= TCP_BYTES_MIN && head.len() >= offset + len;
    is_whole.then(|| u16::from_be_bytes([header[12], header[13]]) & 0x0fff)
}

fn ipv6(head: &[u8], offset: usize, key: &mut Key) -> Option<usize> {
    let header: &[u8; IPV6_BYTES] = fixed(head, offset)?;
    let word = u32::from_be_bytes([header[0], header[1], header[2], header[3]]);
    let (tclass, label) = ((word >> 20) as u8, word & 0xf_ffff);
    for (place, word) in key.0[8..12].iter_mut().zip(header[8..].as_chunks::<8>().0) {
        *place = u64::from_be_bytes(*word);
    }
    let (proto, frag, behind) = ipv6_transport(head, offset);
    key.0[5] = u64::from_be_bytes([proto, tclass, header[7], frag, 0, 0, 0, 0]) | u64::from(label);
    let at = behind?;
    if proto == PROTO_ICMPV6 {
        return icmpv6(head, at, key);
    }
    transport(head, at, proto, PROTO_ICMPV6, key)
}

/// Protocol, fragment type, and offset of the transport header, of an IPv6 header at `offset` of `head`, as they are in
/// a key: the protocol of a later fragment is 44. It is 59 if the extension headers are invalid.
#[must_use]
pub fn ipv6_transport(head: &[u8], offset: usize) -> (u8, u8, Option<usize>) {
    let mut proto = head.get(offset + 6).copied().unwrap_or(NO_NEXT_HEADER);
    let mut at = offset + IPV6_BYTES;
    let mut frag = FRAGMENT_NONE;
    for _ in 0..=EXTENSION_HEADERS_MAX {
        let units = match proto {
            HOP_BY_HOP | ROUTING | DESTINATION | AUTHENTICATION | FRAGMENT => fixed::<8>(head, at),
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
    (NO_NEXT_HEADER, frag, None)
}

/// Extracts type and code, and the fields of neighbour solicitations and advertisements (RFC 4861, 4.3 and 4.4).
fn icmpv6(head: &[u8], offset: usize, key: &mut Key) -> Option<usize> {
    const SOLICITATION: u8 = 135;
    const ADVERTISEMENT: u8 = 136;
    transport(head, offset, PROTO_ICMPV6, PROTO_ICMPV6, key)?;
    let message = head.get(offset..).unwrap_or_default();
    let is_neighbour = matches!(message, [SOLICITATION | ADVERTISEMENT, 0, ..]);
    if let Some((fixed, options)) = message.split_first_chunk::<24>().filter(|_| is_neighbour) {
        let [_, _, _, _, _, _, _, _, target @ ..] = *fixed;
        key.put_wide(wide_field::ND_TARGET, u128::from_be_bytes(target));
        if !neighbour_options(options, key) {
            key.put_wide(wide_field::ND_TARGET, 0);
            key.put(field::LL_SRC, 0);
            key.put(field::LL_DST, 0);
        }
    }
    Some(offset)
}

/// Extracts the link-layer addresses from a message's options, up to the first invalid one. False if an address occurs
/// twice.
fn neighbour_options(mut options: &[u8], key: &mut Key) -> bool {
    while let [kind, units, ..] = *options {
        let len = usize::from(units) * 8;
        let Some(option) = options.get(..len).filter(|_| len > 0) else { return true };
        options = &options[len..];
        let place = match kind {
            1 => field::LL_SRC,
            2 => field::LL_DST,
            _ => continue,
        };
        let &[_, _, a, b, c, d, e, f] = option else { continue };
        if key.get(place) != 0 {
            return false;
        }
        key.put(place, u64::from_be_bytes([0, 0, a, b, c, d, e, f]));
    }
    true
}

/// Extracts ARP for Ethernet and IPv4 (RFC 826); for other kinds of ARP the key has only an EtherType.
fn arp(head: &[u8], offset: usize, key: &mut Key) -> Option<usize> {
    let bytes: &[u8; 28] = fixed(head, offset)?;
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
fn mpls(head: &[u8], offset: usize, key: &mut Key) -> Option<usize> {
    const BOTTOM: u32 = 0x100;
    for (index, place) in [field::MPLS_0, field::MPLS_1, field::MPLS_2].into_iter().enumerate() {
        let entry = u32::from_be_bytes(*fixed(head, offset + 4 * index)?);
        key.put(place, u64::from(entry));
        if entry & BOTTOM != 0 {
            break;
        }
    }
    None
}

/// Extracts a network service header that is whole and of a known metadata type (RFC 8300, 2.2 to 2.5).
fn nsh(head: &[u8], offset: usize, key: &mut Key) -> Option<usize> {
    const VERSION: u16 = 0xc000;
    let &[a, b, md_type, next, path @ ..] = fixed::<8>(head, offset)?;
    let first = u16::from_be_bytes([a, b]);
    let len = 4 * usize::from(first & 0x3f);
    let rest = head.get(offset..offset + len).filter(|_| first & VERSION == 0)?.get(8..)?;
    let context = match md_type {
        1 => u128::from_be_bytes(rest.try_into().ok()?),
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
