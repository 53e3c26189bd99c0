//! Header fields are rewritten in a packet's image, and its checksums follow (RFC 1624).
//!
//! A checksum that is complete changes by what its words change. One that its sender left to be completed holds the sum of
//! the pseudo header alone, not complemented: it follows addresses, and nothing else, since the rest is still to be summed.

use lasthop_verdict::{DropReason, Header};
use lasthop_wire::headers::{
    ETHERTYPE_ARP, ETHERTYPE_IPV4, ETHERTYPE_IPV6, ETHERTYPE_RARP, ETHERTYPES_MPLS, PROTO_ICMP, PROTO_ICMPV6,
    PROTO_TCP, PROTO_UDP,
};
use lasthop_wire::key::{FRAGMENT_LATER, Link, Offsets, extract, field};
use lasthop_wire::{Key, Layers, Metadata, Sum};

use crate::program::{GROUP_BYTES_MAX, Kind};

/// Value and mask of a group, as images in bytes.
pub(crate) struct Masks {
    pub(crate) value: [u8; GROUP_BYTES_MAX],
    pub(crate) mask: [u8; GROUP_BYTES_MAX],
}

/// Rewrites `kind` in a packet.
pub(crate) fn rewrite(header: &mut Header, link: Link, kind: Kind, masks: &Masks) -> Result<(), DropReason> {
    if kind == Kind::Ethernet {
        return ethernet(header, link, masks);
    }
    let mut key = Key::default();
    let offsets = extract(header.bytes(), link, &Metadata::default(), &mut key);
    let mut editor = Editor { network: usize::from(offsets.network), offsets, key, header };
    match kind {
        Kind::Ethernet => Ok(()),
        Kind::Ipv4 => editor.ipv4(masks),
        Kind::Ipv6 => editor.ipv6(masks, link),
        Kind::Tcp => editor.ports(masks, PROTO_TCP),
        Kind::Udp => editor.ports(masks, PROTO_UDP),
        Kind::Icmp => editor.icmp(masks, PROTO_ICMP),
        Kind::Icmpv6 => editor.icmp(masks, PROTO_ICMPV6),
        Kind::Arp => editor.arp(masks),
        Kind::Mpls => editor.mpls(masks),
    }
}

/// The group has the source first, the frame the destination.
fn ethernet(header: &mut Header, link: Link, masks: &Masks) -> Result<(), DropReason> {
    if link != Link::Ethernet {
        return Err(DropReason::ActionImpossible);
    }
    let bytes = header.bytes_mut().first_chunk_mut::<12>().ok_or(DropReason::ActionImpossible)?;
    apply(&mut bytes[6..], masks, 0);
    apply(&mut bytes[..6], masks, 6);
    Ok(())
}

/// Writes the group's bytes from `from` on over as many bytes of the packet.
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

/// Where the checksum of a transport protocol is in its header, and whether it covers addresses.
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

    /// A complete checksum at `at` follows a change.
    fn follow(&mut self, at: usize, (before, after): (u16, u16)) -> Result<(), DropReason> {
        let sum = add(add(!self.word(at)?, !before), after);
        self.put_word(at, !sum)
    }

    /// Whether the checksum at `at` was left to be completed.
    fn is_partial(&self, at: usize) -> bool {
        let offload = &self.header.offload;
        offload.needs_csum() && usize::from(offload.csum_start) + usize::from(offload.csum_offset) == at
    }

    /// The transport checksum follows a change of addresses.
    fn follow_addresses(&mut self, change: (u16, u16)) -> Result<(), DropReason> {
        if change.0 == change.1 || self.key.get(field::IP_FRAG) == u64::from(FRAGMENT_LATER) {
            return Ok(());
        }
        let proto = self.key.ip_proto();
        if self.offsets.transport == 0 {
            // Either there is no transport header, or it is in the part that is not known here.
            let is_whole = self.header.frame_len_bytes() as usize == self.header.bytes().len();
            return if is_whole { Ok(()) } else { Err(DropReason::ActionImpossible) };
        }
        let Some(offset) = transport_checksum(proto) else { return Ok(()) };
        if proto == PROTO_ICMPV6 && self.key.ethertype() == ETHERTYPE_IPV4 {
            return Ok(());
        }
        let at = usize::from(self.offsets.transport) + offset;
        if self.is_partial(at) {
            let (before, after) = change;
            let sum = add(add(self.word(at)?, !before), after);
            return self.put_word(at, sum);
        }
        self.follow_transport(at, proto, change)
    }

    /// A complete transport checksum follows a change; UDP may do without one, which is 0.
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
        // A header that is there has a TTL or addresses, or else nothing to be harmed.
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

    fn ipv6(&mut self, masks: &Masks, link: Link) -> Result<(), DropReason> {
        self.is(ETHERTYPE_IPV6)?;
        let network = self.network;
        // With segments left in a routing header, the destination is not the one that is summed.
        let layers = (link == Link::Ethernet).then(|| Layers::parse(self.header.bytes()).ok()).flatten();
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
        // (Where in the packet, how long, where in the group.)
        for (at, len, from) in [(14, 4, 0), (24, 4, 4), (6, 2, 8), (8, 6, 10), (18, 6, 16)] {
            apply(&mut bytes[at..at + len], masks, from);
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
