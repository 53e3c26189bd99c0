//! Rewrites header fields in a packet's image, and updates its checksums (RFC 1624).
//!
//! A complete checksum is updated by the changed words. A partial one is the sum of the pseudo header alone, not
//! complemented. Only changes of addresses affect it, since the rest is summed later.

use lasthop_module_api::{DropReason, Header};
use lasthop_wire::headers::{
    ETHERTYPE_ARP, ETHERTYPE_IPV4, ETHERTYPE_IPV6, ETHERTYPE_NSH, ETHERTYPE_RARP, ETHERTYPES_MPLS,
    IPV6_BYTES, PROTO_ICMP, PROTO_ICMPV6, PROTO_SCTP, PROTO_TCP, PROTO_UDP,
};
use lasthop_wire::key::{FRAGMENT_LATER, FRAGMENT_NONE, LinkLayer, Offsets, extract, field, nsh_field};
use lasthop_wire::{Key, Layers, Metadata, Sum, crc32c};

use crate::program::{GROUP_BYTES_MAX, Kind};

/// The common header of an SCTP packet (RFC 9260, 3.1), with the checksum at its end.
const SCTP_BYTES: usize = 12;
const SCTP_CHECKSUM_AT: usize = 8;
/// Bytes of a solicitation or advertisement before its options.
const ND_BYTES: usize = 24;

/// Value and mask of a group, as images in bytes.
pub(crate) struct Masks {
    pub(crate) value: [u8; GROUP_BYTES_MAX],
    pub(crate) mask: [u8; GROUP_BYTES_MAX],
}

/// Rewrites `kind` in a packet.
pub(crate) fn rewrite(
    header: &mut Header,
    link: LinkLayer,
    kind: Kind,
    masks: &Masks,
) -> Result<(), DropReason> {
    if kind == Kind::Ethernet {
        return ethernet(header, link, masks);
    }
    let mut key = Key::default();
    let frame_bytes = header.frame_len_bytes() as usize;
    let offsets = extract(header.bytes(), frame_bytes, &Metadata { link, ..Metadata::default() }, &mut key);
    let mut editor = Editor { network: usize::from(offsets.network), offsets, key, header };
    match kind {
        Kind::Ethernet => Ok(()),
        Kind::Ipv4 => editor.ipv4(masks),
        Kind::Ipv6 => editor.ipv6(masks, link),
        Kind::Tcp => editor.ports(masks, PROTO_TCP),
        Kind::Udp => editor.ports(masks, PROTO_UDP),
        Kind::Icmp => editor.icmp(masks, PROTO_ICMP),
        Kind::Icmpv6 => editor.icmp(masks, PROTO_ICMPV6),
        Kind::Sctp => editor.sctp(masks),
        Kind::Arp => editor.arp(masks),
        Kind::Nd => editor.neighbour(masks),
        Kind::Nsh => editor.nsh(masks),
        Kind::Mpls => editor.mpls(masks),
    }
}

/// The group starts with the source, the frame with the destination.
fn ethernet(header: &mut Header, link: LinkLayer, masks: &Masks) -> Result<(), DropReason> {
    if link != LinkLayer::Ethernet {
        return Err(DropReason::ActionImpossible);
    }
    let bytes = header.bytes_mut().first_chunk_mut::<12>().ok_or(DropReason::ActionImpossible)?;
    apply(&mut bytes[6..], masks, 0);
    apply(&mut bytes[..6], masks, 6);
    Ok(())
}

/// Copies the group's bytes from `from` on into the packet.
fn apply(bytes: &mut [u8], masks: &Masks, from: usize) {
    for ((byte, value), mask) in bytes.iter_mut().zip(&masks.value[from..]).zip(&masks.mask[from..]) {
        *byte = *byte & !mask | value & mask;
    }
}

/// The sum of an even number of bytes.
fn sum_of(bytes: &[u8]) -> u16 {
    let mut sum = Sum::default();
    sum.add(bytes);
    sum.partial()
}

/// Adds in ones' complement.
fn add(a: u16, b: u16) -> u16 {
    let (sum, carry) = a.overflowing_add(b);
    sum + u16::from(carry)
}

/// The offset of the checksum in a transport header; `None` if it does not cover addresses, or if there is none.
fn transport_checksum(proto: u8) -> Option<usize> {
    match proto {
        PROTO_TCP => Some(16),
        PROTO_UDP => Some(6),
        PROTO_ICMPV6 => Some(2),
        _ => None,
    }
}

struct Editor<'a> {
    header: &'a mut Header,
    key: Key,
    offsets: Offsets,
    network: usize,
}

impl Editor<'_> {
    fn bytes(&mut self, at: usize, len: usize) -> Result<&mut [u8], DropReason> {
        self.header.bytes_mut().get_mut(at..at + len).ok_or(DropReason::ActionImpossible)
    }

    /// Sums `len` bytes at `at`, writes, and sums again.
    fn change(
        &mut self,
        (at, len): (usize, usize),
        write: impl FnOnce(&mut [u8]),
    ) -> Result<(u16, u16), DropReason> {
        let bytes = self.bytes(at, len)?;
        let before = sum_of(bytes);
        write(bytes);
        Ok((before, sum_of(bytes)))
    }

    fn word(&mut self, at: usize) -> Result<u16, DropReason> {
        let bytes = self.bytes(at, 2)?;
        Ok(u16::from_be_bytes([bytes[0], bytes[1]]))
    }

    fn put_word(&mut self, at: usize, word: u16) -> Result<(), DropReason> {
        self.bytes(at, 2)?.copy_from_slice(&word.to_be_bytes());
        Ok(())
    }

    /// Updates a complete checksum at `at` for a change.
    fn follow(&mut self, at: usize, (before, after): (u16, u16)) -> Result<(), DropReason> {
        let sum = add(add(!self.word(at)?, !before), after);
        self.put_word(at, !sum)
    }

    /// Whether the checksum at `at` is partial.
    fn is_partial(&self, at: usize) -> bool {
        let offload = &self.header.offload;
        offload.needs_csum() && usize::from(offload.csum_start) + usize::from(offload.csum_offset) == at
    }

    /// Updates the transport checksum for a change of addresses.
    fn follow_addresses(&mut self, change: (u16, u16)) -> Result<(), DropReason> {
        if change.0 == change.1 || self.key.get(field::IP_FRAG) == u64::from(FRAGMENT_LATER) {
            return Ok(());
        }
        let (proto, is_ipv4) = (self.key.ip_proto(), self.key.ethertype() == ETHERTYPE_IPV4);
        let offset = transport_checksum(proto).filter(|_| !is_ipv4 || proto != PROTO_ICMPV6);
        if self.offsets.transport == 0 && (offset.is_some() || self.key.is_unread()) {
            // There is no transport header, or it is beyond the image.
            let is_whole = self.header.frame_len_bytes() as usize == self.header.bytes().len();
            return if is_whole { Ok(()) } else { Err(DropReason::ActionImpossible) };
        }
        let Some(offset) = offset else { return Ok(()) };
        let at = usize::from(self.offsets.transport) + offset;
        if self.is_partial(at) {
            let (before, after) = change;
            let sum = add(add(self.word(at)?, !before), after);
            return self.put_word(at, sum);
        }
        self.follow_transport(at, proto, change)
    }

    /// Updates a complete transport checksum for a change. UDP may omit it (0).
    fn follow_transport(&mut self, at: usize, proto: u8, change: (u16, u16)) -> Result<(), DropReason> {
        if proto == PROTO_UDP && self.word(at)? == 0 {
            return Ok(());
        }
        self.follow(at, change)?;
        if proto == PROTO_UDP && self.word(at)? == 0 {
            self.put_word(at, 0xffff)?;
        }
        Ok(())
    }

    fn is(&self, ethertype: u16) -> Result<(), DropReason> {
        // The packet must have the header that the action rewrites.
        let is_it = self.key.ethertype() == ethertype;
        if is_it { Ok(()) } else { Err(DropReason::ActionImpossible) }
    }

    fn ipv4(&mut self, masks: &Masks) -> Result<(), DropReason> {
        self.is(ETHERTYPE_IPV4)?;
        let network = self.network;
        let header_len = usize::from(self.bytes(network, 1)?[0] & 0xf) * 4;
        if header_len < 20 || self.bytes(network, header_len).is_err() {
            return Err(DropReason::ActionImpossible);
        }
        let addresses = self.change((network + 12, 8), |bytes| apply(bytes, masks, 0))?;
        // Type of service is the second byte of the group's third word, TTL the third.
        let rest = self.change((network, 10), |bytes| {
            apply(&mut bytes[1..2], masks, 9);
            apply(&mut bytes[8..9], masks, 10);
        })?;
        self.follow(network + 10, addresses)?;
        self.follow(network + 10, rest)?;
        self.follow_addresses(addresses)
    }

    fn ipv6(&mut self, masks: &Masks, link: LinkLayer) -> Result<(), DropReason> {
        self.is(ETHERTYPE_IPV6)?;
        let network = self.network;
        // With segments left in a routing header, the checksum covers another destination.
        let layers = (link == LinkLayer::Ethernet).then(|| Layers::parse(self.header.bytes()).ok()).flatten();
        let is_routed = layers.is_some_and(|layers| layers.is_source_routed);
        let source = self.change((network + 8, 16), |bytes| apply(bytes, masks, 0))?;
        let destination = self.change((network + 24, 16), |bytes| apply(bytes, masks, 16))?;
        let words = self.bytes(network, 8)?;
        let [a, b, c, d] = [words[0], words[1], words[2], words[3]];
        let old = u32::from_be_bytes([a, b, c, d]);
        let number = |bytes: &[u8; GROUP_BYTES_MAX]| {
            let label = u32::from_be_bytes([bytes[32], bytes[33], bytes[34], bytes[35]]) & 0xf_ffff;
            u32::from(bytes[37]) << 20 | label
        };
        let mask = number(&masks.mask);
        words[..4].copy_from_slice(&(old & !mask | number(&masks.value) & mask).to_be_bytes());
        apply(&mut words[7..8], masks, 38);
        self.follow_addresses(source)?;
        if is_routed { Ok(()) } else { self.follow_addresses(destination) }
    }

    /// The transport header, if it is of this protocol.
    fn transport(&self, proto: u8) -> Result<usize, DropReason> {
        let is_it = self.offsets.transport > 0 && self.key.ip_proto() == proto;
        if is_it { Ok(usize::from(self.offsets.transport)) } else { Err(DropReason::ActionImpossible) }
    }

    fn ports(&mut self, masks: &Masks, proto: u8) -> Result<(), DropReason> {
        let at = self.transport(proto)?;
        let change = self.change((at, 4), |bytes| apply(bytes, masks, 0))?;
        let checksum = at + transport_checksum(proto).unwrap_or(0);
        if self.is_partial(checksum) { Ok(()) } else { self.follow_transport(checksum, proto, change) }
    }

    fn icmp(&mut self, masks: &Masks, proto: u8) -> Result<(), DropReason> {
        let at = self.transport(proto)?;
        let change = self.change((at, 2), |bytes| apply(bytes, masks, 0))?;
        if self.is_partial(at + 2) { Ok(()) } else { self.follow(at + 2, change) }
    }

    /// ARP has no checksum.
    fn arp(&mut self, masks: &Masks) -> Result<(), DropReason> {
        let is_arp = matches!(self.key.ethertype(), ETHERTYPE_ARP | ETHERTYPE_RARP);
        let bytes = self.bytes(self.network, 28)?;
        if !is_arp || bytes[..6] != [0, 1, 8, 0, 6, 4] {
            return Err(DropReason::ActionImpossible);
        }
        // Offset in the packet, length, offset in the group.
        for (at, len, from) in [(14, 4, 0), (24, 4, 4), (6, 2, 8), (8, 6, 10), (18, 6, 16)] {
            apply(&mut bytes[at..at + len], masks, from);
        }
        Ok(())
    }

    fn sctp(&mut self, masks: &Masks) -> Result<(), DropReason> {
        let at = self.transport(PROTO_SCTP)?;
        let len = self.datagram_end()?.checked_sub(at).ok_or(DropReason::ActionImpossible)?;
        let word = |bytes: &[u8]| bytes.first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes));
        let bytes = self.bytes(at, SCTP_BYTES)?;
        let old = word(bytes);
        apply(&mut bytes[..4], masks, 0);
        let difference = old ^ word(bytes);
        let checksum = word(&bytes[SCTP_CHECKSUM_AT..]) ^ crc32c::change(difference, len as u32);
        bytes[SCTP_CHECKSUM_AT..SCTP_BYTES].copy_from_slice(&checksum.to_le_bytes());
        Ok(())
    }

    /// The end of an IP packet that is no fragment; bytes behind it are Ethernet padding.
    fn datagram_end(&mut self) -> Result<usize, DropReason> {
        let network = self.network;
        let end = match self.key.ethertype() {
            ETHERTYPE_IPV4 => network + usize::from(self.word(network + 2)?),
            _ => network + IPV6_BYTES + usize::from(self.word(network + 4)?),
        };
        let is_whole = self.key.get(field::IP_FRAG) == u64::from(FRAGMENT_NONE);
        let is_here = is_whole && end <= self.header.frame_len_bytes() as usize;
        if is_here { Ok(end) } else { Err(DropReason::ActionImpossible) }
    }

    /// Rewrites target and link-layer addresses of a solicitation or advertisement; missing options are not added.
    fn neighbour(&mut self, masks: &Masks) -> Result<(), DropReason> {
        let at = self.transport(PROTO_ICMPV6)?;
        let is_neighbour = matches!(self.bytes(at, ND_BYTES)?, [135 | 136, 0, ..]);
        if !is_neighbour {
            return Err(DropReason::ActionImpossible);
        }
        let mut change = self.change((at + 8, 16), |bytes| apply(bytes, masks, 0))?;
        for (kind, from) in [(1, 16), (2, 22)] {
            if let Some(option) = self.neighbour_option(at + ND_BYTES, kind) {
                let (before, after) = self.change((option + 2, 6), |bytes| apply(bytes, masks, from))?;
                change = (add(change.0, before), add(change.1, after));
            }
        }
        if self.is_partial(at + 2) { Ok(()) } else { self.follow(at + 2, change) }
    }

    /// Finds the first option of a type with a length of eight bytes (RFC 4861, 4.6.1).
    fn neighbour_option(&mut self, mut at: usize, kind: u8) -> Option<usize> {
        loop {
            let &[found, units] = self.bytes(at, 2).ok()?.first_chunk()?;
            let len = 8 * usize::from(units);
            if len == 0 || self.bytes(at, len).is_err() {
                return None;
            }
            if (found, units) == (kind, 1) {
                return Some(at);
            }
            at += len;
        }
    }

    /// Rewrites flags, TTL, path, and the context of metadata type 1. There is no checksum.
    fn nsh(&mut self, masks: &Masks) -> Result<(), DropReason> {
        self.is(ETHERTYPE_NSH)?;
        let (network, md_type) = (self.network, self.key.get(nsh_field::MD_TYPE));
        if md_type == 0 {
            return Err(DropReason::ActionImpossible);
        }
        let bits = |image: &[u8]| u16::from(image[0] & 3) << 12 | u16::from(image[1] & 0x3f) << 6;
        let (value, mask) = (bits(&masks.value), bits(&masks.mask));
        let first = self.word(network)? & !mask | value & mask;
        self.put_word(network, first)?;
        apply(self.bytes(network + 4, 4)?, masks, 4);
        if md_type == 1 {
            apply(self.bytes(network + 8, 16)?, masks, 8);
        }
        Ok(())
    }

    fn mpls(&mut self, masks: &Masks) -> Result<(), DropReason> {
        if !ETHERTYPES_MPLS.contains(&self.key.ethertype()) {
            return Err(DropReason::ActionImpossible);
        }
        apply(self.bytes(self.network, 4)?, masks, 0);
        Ok(())
    }
}
