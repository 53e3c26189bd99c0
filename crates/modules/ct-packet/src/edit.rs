//! Rewriting headers: changes in the image, with checksums that follow.
//!
//! Checksums change by the difference of the covered bytes (RFC 1624), so the rest of the packet is not needed. A
//! partial checksum holds the sum of the pseudo header, so it changes with addresses only, and a GSO frame of 64 KiB
//! stays whole.

use arrayvec::ArrayVec;
use lasthop_wire::headers::{PROTO_ICMP, PROTO_ICMPV6, PROTO_SCTP, PROTO_TCP, PROTO_UDP};
use lasthop_wire::{Layers, Network, Sum, crc32c};

use crate::packet::PacketImage;
use crate::tuple::{CtTuple, IpBytes};

/// Patches of one packet. An ICMP error has ten: addresses, ports and checksums. An acknowledgement after a helper's
/// change also has four SACK blocks.
const PATCHES_MAX: usize = 16;
/// Bytes of a patch: an address.
const PATCH_BYTES: usize = 16;
/// Bytes that a helper inserts; an EPRT command with an IPv6 address has 54.
pub const SPLICE_BYTES: usize = 64;

/// Bytes of the image to overwrite; the length stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CtPatch {
    /// Offset in the frame.
    pub at: u16,
    len: u8,
    bytes: [u8; PATCH_BYTES],
}

impl CtPatch {
    /// The new bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        self.bytes.get(..usize::from(self.len)).unwrap_or_default()
    }
}

/// Payload that a helper replaces by text of another length. The image then has the whole packet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CtSplice {
    /// Offset in the frame.
    pub at: u16,
    /// Bytes to remove.
    pub removed_bytes: u16,
    /// Bytes to insert.
    pub inserted: ArrayVec<u8, SPLICE_BYTES>,
}

/// Changes of a packet's headers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CtRewrites {
    patches: ArrayVec<CtPatch, PATCHES_MAX>,
    /// Applied after the patches.
    pub splice: Option<CtSplice>,
}

impl CtRewrites {
    /// Whether nothing changes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.patches.is_empty() && self.splice.is_none()
    }

    /// Changes that leave the frame's length as it is.
    #[must_use]
    pub fn patches(&self) -> &[CtPatch] {
        &self.patches
    }

    /// Applies the patches, without the splice.
    pub fn apply(&self, head: &mut [u8]) {
        for patch in &self.patches {
            let at = usize::from(patch.at);
            if let Some(place) = head.get_mut(at..at + usize::from(patch.len)) {
                place.copy_from_slice(patch.bytes());
            }
        }
    }

    /// Returns the image with all changes.
    #[must_use]
    pub fn applied(&self, head: &[u8]) -> Vec<u8> {
        let mut image = head.to_vec();
        self.apply(&mut image);
        if let Some(splice) = &self.splice {
            let at = usize::from(splice.at).min(image.len());
            let end = (at + usize::from(splice.removed_bytes)).min(image.len());
            image.splice(at..end, splice.inserted.iter().copied());
        }
        image
    }
}

/// A header lies beyond the image, or there are too many changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotInImage;

/// A checksum's field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SumField {
    at: usize,
    kind: SumKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SumKind {
    /// Sum of header and data.
    Complete,
    /// Same for UDP, where zero means that there is no checksum.
    Udp,
    /// Sum of the pseudo header, to be completed later.
    Partial,
}

/// Changes to one packet.
#[derive(Clone, Debug)]
pub struct Editor<'a> {
    packet: PacketImage<'a>,
    rewrites: CtRewrites,
}

impl<'a> Editor<'a> {
    /// No changes yet.
    #[must_use]
    pub fn new(packet: &PacketImage<'a>) -> Self {
        Self { packet: *packet, rewrites: CtRewrites::default() }
    }

    /// All changes.
    #[must_use]
    pub fn finish(self) -> CtRewrites {
        self.rewrites
    }

    /// Translates the packet of tuple `from` to tuple `to`.
    ///
    /// # Errors
    /// If a header lies beyond the image.
    pub fn translate(&mut self, from: &CtTuple, to: &CtTuple) -> Result<(), NotInImage> {
        let layers = self.packet.layers;
        let sum = self.transport_sum(&layers);
        self.addresses(&layers, from, to, sum, None)?;
        self.ports(&layers, from, to, sum, None)
    }

    /// Translates an ICMP error about a packet of tuple `inner` to one about `inner_to`. `outer` has its own addresses,
    /// before and after.
    ///
    /// # Errors
    /// As [`Self::translate`].
    pub fn translate_error(
        &mut self,
        inner: (&Layers, &CtTuple, &CtTuple),
        outer: (&CtTuple, &CtTuple),
    ) -> Result<(), NotInImage> {
        let layers = self.packet.layers;
        let sum = self.transport_sum(&layers);
        // A partial checksum is completed later, over the changed inner packet.
        let over_all = sum.filter(|sum| sum.kind != SumKind::Partial);
        let (inner_layers, from, to) = inner;
        // The image often lacks the packet's end; bytes behind the packet are padding.
        let end = self.packet.end().ok_or(NotInImage)?.min(self.packet.head.len());
        let inner_sum = transport_sum_at(inner_layers).filter(|sum| sum.at + 2 <= end);
        self.addresses(inner_layers, from, to, inner_sum, over_all)?;
        self.ports(inner_layers, from, to, inner_sum, over_all)?;
        let sum = if layers.l4_proto == PROTO_ICMPV6 { sum } else { None };
        self.addresses(&layers, outer.0, outer.1, sum, None)
    }

    /// Overwrites bytes of the transport header.
    ///
    /// # Errors
    /// As [`Self::translate`].
    pub fn put_transport(&mut self, at: usize, bytes: &[u8]) -> Result<(), NotInImage> {
        let layers = self.packet.layers;
        let sum = self.transport_sum(&layers).filter(|sum| sum.kind != SumKind::Partial);
        if (at - self.packet.l4()).is_multiple_of(2) {
            return self.put(at, bytes, sum, None);
        }
        // Words of the checksum begin at even offsets.
        let mut words: ArrayVec<u8, PATCH_BYTES> = ArrayVec::new();
        let around = [self.get::<1>(at - 1)?, self.get::<1>(at + bytes.len())?];
        for byte in around[0].iter().chain(bytes).chain(&around[1]) {
            words.try_push(*byte).map_err(|_| NotInImage)?;
        }
        self.put(at - 1, &words, sum, None)
    }

    /// Replaces payload by a longer or shorter one, and adjusts lengths and checksums. The image must have the whole
    /// packet.
    ///
    /// # Errors
    /// As [`Self::translate`], and for a frame to be segmented.
    pub fn splice(&mut self, splice: CtSplice) -> Result<(), NotInImage> {
        let packet = self.packet;
        let (l3, l4, end) =
            (usize::from(packet.layers.l3_offset), packet.l4(), packet.end().ok_or(NotInImage)?);
        if packet.head.len() < end || packet.offload.is_gso() {
            return Err(NotInImage);
        }
        let grown = |len: usize| len + splice.inserted.len() - usize::from(splice.removed_bytes);
        match packet.layers.l3 {
            Network::Ipv4 => {
                let len = (grown(end - l3) as u16).to_be_bytes();
                self.put(l3 + 2, &len, Some(SumField { at: l3 + 10, kind: SumKind::Complete }), None)?;
            }
            Network::Ipv6 => {
                let len = (grown(end - l3) - lasthop_wire::headers::IPV6_BYTES) as u16;
                self.put(l3 + 4, &len.to_be_bytes(), None, None)?;
            }
        }
        let Some(sum) = self.transport_sum(&packet.layers) else { return Err(NotInImage) };
        let (old_len, new_len) = (end - l4, grown(end - l4));
        let udp_length = l4 + 4;
        if packet.layers.l4_proto == PROTO_UDP {
            self.put(udp_length, &(new_len as u16).to_be_bytes(), None, None)?;
        }
        let new = match sum.kind {
            SumKind::Udp if self.get::<2>(sum.at)? == [0, 0] => [0, 0],
            SumKind::Partial => {
                let lens = [(old_len as u32).to_be_bytes(), (new_len as u32).to_be_bytes()];
                followed(sum.kind, self.get(sum.at)?, &lens[0], &lens[1])
            }
            SumKind::Complete | SumKind::Udp => self.sum_anew(&splice, sum, new_len)?,
        };
        self.write(sum.at, &new)?;
        self.rewrites.splice = Some(splice);
        Ok(())
    }

    /// Recomputes the transport checksum of the packet as it leaves.
    fn sum_anew(&self, splice: &CtSplice, field: SumField, len: usize) -> Result<[u8; 2], NotInImage> {
        let rewrites = CtRewrites { splice: Some(splice.clone()), ..self.rewrites.clone() };
        let mut image = rewrites.applied(self.packet.head);
        image.get_mut(field.at..field.at + 2).ok_or(NotInImage)?.fill(0);
        let l4 = self.packet.l4();
        let whole = PacketImage { head: &image, ..self.packet };
        let mut sum = whole.pseudo(len).ok_or(NotInImage)?;
        sum.add(image.get(l4..l4 + len).ok_or(NotInImage)?);
        let sum = if field.kind == SumKind::Udp { sum.finish_udp() } else { sum.finish() };
        Ok(sum.to_be_bytes())
    }

    /// The packet's own transport checksum.
    fn transport_sum(&self, layers: &Layers) -> Option<SumField> {
        let field = transport_sum_at(layers)?;
        let offload = &self.packet.offload;
        let at = usize::from(offload.csum_start) + usize::from(offload.csum_offset);
        let is_partial = offload.needs_csum() && at == field.at;
        Some(if is_partial { SumField { kind: SumKind::Partial, ..field } } else { field })
    }

    fn addresses(
        &mut self,
        layers: &Layers,
        from: &CtTuple,
        to: &CtTuple,
        sum: Option<SumField>,
        over_all: Option<SumField>,
    ) -> Result<(), NotInImage> {
        let l3 = usize::from(layers.l3_offset);
        // ICMP's checksum has no pseudo header.
        let of_transport = sum.filter(|_| layers.l4_proto != PROTO_ICMP);
        let (src, dst, len, own) = match layers.l3 {
            Network::Ipv4 => (12, 16, 4, Some(SumField { at: l3 + 10, kind: SumKind::Complete })),
            Network::Ipv6 => (8, 24, 16, None),
        };
        // The pseudo header uses the final destination.
        let of_dst = of_transport.filter(|_| !layers.is_source_routed);
        let fields = [(src, from.src, to.src, of_transport), (dst, from.dst, to.dst, of_dst)];
        for (at, IpBytes(old), IpBytes(new), of_transport) in fields {
            if old == new {
                continue;
            }
            // Another host than the connection's may have sent an ICMP error, so checksums change by the packet's own
            // addresses.
            let mut own_bytes = [0; PATCH_BYTES];
            let (old, new) = (&mut own_bytes[..len], &new[..len]);
            self.copy(l3 + at, old)?;
            let old = &*old;
            for field in [own, of_transport].into_iter().flatten() {
                self.follow(field, old, new, over_all)?;
            }
            self.put(l3 + at, new, None, over_all)?;
        }
        Ok(())
    }

    fn ports(
        &mut self,
        layers: &Layers,
        from: &CtTuple,
        to: &CtTuple,
        sum: Option<SumField>,
        over_all: Option<SumField>,
    ) -> Result<(), NotInImage> {
        let l4 = usize::from(layers.l4_offset);
        let before = [from.src_port.to_be_bytes(), from.dst_port.to_be_bytes()].concat();
        let after = [to.src_port.to_be_bytes(), to.dst_port.to_be_bytes()].concat();
        let sum = sum.filter(|sum| sum.kind != SumKind::Partial);
        match layers.l4_proto {
            _ if before == after => Ok(()),
            PROTO_TCP | PROTO_UDP => self.put(l4, &after, sum, over_all),
            PROTO_ICMP | PROTO_ICMPV6 => self.put(l4 + 4, &after[..2], sum, over_all),
            PROTO_SCTP => self.sctp_ports(l4, &before, &after, over_all),
            _ => Ok(()),
        }
    }

    fn sctp_ports(
        &mut self,
        l4: usize,
        before: &[u8],
        after: &[u8],
        over_all: Option<SumField>,
    ) -> Result<(), NotInImage> {
        let word = |bytes: &[u8]| bytes.first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes));
        let own = self.packet.layers.l4_proto == PROTO_SCTP;
        if own && !self.packet.offload.needs_csum() {
            let len = self.packet.end().and_then(|end| end.checked_sub(l4)).ok_or(NotInImage)?;
            let change = crc32c::change(word(before) ^ word(after), len as u32);
            let sum = u32::from_le_bytes(self.get(l4 + 8)?) ^ change;
            self.put(l4 + 8, &sum.to_le_bytes(), None, over_all)?;
        }
        self.put(l4, after, None, over_all)
    }

    /// Overwrites bytes, and adjusts the checksums that cover them.
    fn put(
        &mut self,
        at: usize,
        bytes: &[u8],
        sum: Option<SumField>,
        over_all: Option<SumField>,
    ) -> Result<(), NotInImage> {
        let mut old = [0; PATCH_BYTES];
        let old = old.get_mut(..bytes.len()).ok_or(NotInImage)?;
        self.copy(at, old)?;
        let old = &*old;
        if let Some(field) = sum {
            self.follow(field, old, bytes, over_all)?;
        }
        if let Some(field) = over_all {
            self.follow(field, old, bytes, None)?;
        }
        self.write(at, bytes)
    }

    /// Adjusts a checksum to changed bytes; `over_all` also covers that checksum.
    fn follow(
        &mut self,
        field: SumField,
        old: &[u8],
        new: &[u8],
        over_all: Option<SumField>,
    ) -> Result<(), NotInImage> {
        let before = self.get::<2>(field.at)?;
        if field.kind == SumKind::Udp && before == [0, 0] {
            return Ok(());
        }
        let after = followed(field.kind, before, old, new);
        if let Some(over_all) = over_all {
            self.follow(over_all, &before, &after, None)?;
        }
        self.write(field.at, &after)
    }

    /// Bytes of the image with the patches so far.
    fn get<const N: usize>(&self, at: usize) -> Result<[u8; N], NotInImage> {
        let mut bytes = [0; N];
        self.copy(at, &mut bytes)?;
        Ok(bytes)
    }

    fn copy(&self, at: usize, to: &mut [u8]) -> Result<(), NotInImage> {
        to.copy_from_slice(self.packet.head.get(at..at + to.len()).ok_or(NotInImage)?);
        for patch in &self.rewrites.patches {
            for (offset, byte) in (usize::from(patch.at)..).zip(patch.bytes()) {
                if let Some(place) = offset.checked_sub(at).and_then(|offset| to.get_mut(offset)) {
                    *place = *byte;
                }
            }
        }
        Ok(())
    }

    fn write(&mut self, at: usize, bytes: &[u8]) -> Result<(), NotInImage> {
        if at + bytes.len() > self.packet.head.len() {
            return Err(NotInImage);
        }
        let mut patch = CtPatch { at: at as u16, len: bytes.len() as u8, bytes: [0; PATCH_BYTES] };
        patch.bytes.get_mut(..bytes.len()).ok_or(NotInImage)?.copy_from_slice(bytes);
        let same =
            self.rewrites.patches.iter_mut().find(|other| (other.at, other.len) == (patch.at, patch.len));
        match same {
            Some(other) => *other = patch,
            None => self.rewrites.patches.try_push(patch).map_err(|_| NotInImage)?,
        }
        Ok(())
    }
}

/// Offset of a protocol's checksum.
fn transport_sum_at(layers: &Layers) -> Option<SumField> {
    let l4 = usize::from(layers.l4_offset);
    let (at, kind) = match layers.l4_proto {
        PROTO_TCP => (l4 + 16, SumKind::Complete),
        PROTO_UDP => (l4 + 6, SumKind::Udp),
        PROTO_ICMP | PROTO_ICMPV6 => (l4 + 2, SumKind::Complete),
        _ => return None,
    };
    Some(SumField { at, kind })
}

/// The checksum field after `old` was replaced by `new` (RFC 1624, equation 3).
fn followed(kind: SumKind, field: [u8; 2], old: &[u8], new: &[u8]) -> [u8; 2] {
    let field = u16::from_be_bytes(field);
    let mut sum = Sum::default();
    sum.add_word(if kind == SumKind::Partial { field } else { !field });
    for (old, new) in old.as_chunks::<2>().0.iter().zip(new.as_chunks::<2>().0) {
        sum.add_word(!u16::from_be_bytes(*old));
        sum.add_word(u16::from_be_bytes(*new));
    }
    let sum = match kind {
        SumKind::Complete => sum.finish(),
        SumKind::Udp => sum.finish_udp(),
        SumKind::Partial => sum.partial(),
    };
    sum.to_be_bytes()
}
