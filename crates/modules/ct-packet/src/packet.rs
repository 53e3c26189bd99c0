//! A packet as connection tracking sees it: its header image, the offsets of its headers, and its offload requests.

use lasthop_wire::headers::{PROTO_ICMP, PROTO_ICMPV6, PROTO_SCTP, PROTO_TCP, PROTO_UDP};
use lasthop_wire::vnet::F_DATA_VALID;
use lasthop_wire::{HeaderError, Layers, Network, Offload, Sum};

use crate::tuple::{CtTuple, IpBytes};

/// The state of a packet's transport checksum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ChecksumState {
    /// Unknown: the tracker verifies it if the image has the whole packet, and trusts it otherwise.
    #[default]
    Unknown,
    /// Verified, or left to be completed.
    Right,
    /// Verified as wrong.
    Wrong,
}

/// A packet as connection tracking sees it.
#[derive(Clone, Copy, Debug)]
pub struct PacketImage<'a> {
    /// The first bytes of the frame: at least 128 if it has them, and more for packets of helpers
    /// ([`crate::HELPER_IMAGE_BYTES`]).
    pub head: &'a [u8],
    /// The offsets of its headers.
    pub layers: Layers,
    /// Length of the whole frame.
    pub frame_len_bytes: u32,
    /// The offloads that its sender asked for.
    pub offload: Offload,
    /// The port that it came in by.
    pub in_port: u16,
    /// The state of its transport checksum.
    pub checksum: ChecksumState,
}

impl<'a> PacketImage<'a> {
    /// Parses an Ethernet frame.
    ///
    /// # Errors
    /// As [`Layers::parse`]: packets that do not parse cannot be tracked.
    pub fn parse(
        head: &'a [u8],
        frame_len_bytes: u32,
        offload: Offload,
        in_port: u16,
    ) -> Result<Self, HeaderError> {
        let is_right = offload.needs_csum() || offload.flags & F_DATA_VALID != 0;
        let checksum = if is_right { ChecksumState::Right } else { ChecksumState::Unknown };
        Ok(Self { head, layers: Layers::parse(head)?, frame_len_bytes, offload, in_port, checksum })
    }

    /// Reads `N` bytes at an offset of the image.
    #[inline]
    pub fn bytes<const N: usize>(&self, at: usize) -> Option<[u8; N]> {
        self.head.get(at..)?.first_chunk().copied()
    }

    /// Two bytes as a number.
    #[inline]
    #[must_use]
    pub fn word(&self, at: usize) -> Option<u16> {
        self.bytes(at).map(u16::from_be_bytes)
    }

    /// Four bytes as a number.
    #[inline]
    #[must_use]
    pub fn long(&self, at: usize) -> Option<u32> {
        self.bytes(at).map(u32::from_be_bytes)
    }

    /// Offset of the transport header.
    #[inline]
    pub fn l4(&self) -> usize {
        usize::from(self.layers.l4_offset)
    }

    /// Offset of the IP packet's end in the frame; padding may follow. `None` if the frame is shorter than its header
    /// says.
    #[inline]
    pub fn end(&self) -> Option<usize> {
        let frame = self.frame_len_bytes as usize;
        match self.layers.l3_len_bytes as usize {
            0 => Some(frame),
            len => Some(usize::from(self.layers.l3_offset) + len).filter(|end| *end <= frame),
        }
    }

    /// The packet's tuple in a zone; `None` if the image lacks a header, or for a later fragment.
    #[inline]
    pub fn tuple(&self, zone: u16) -> Option<CtTuple> {
        if !self.layers.has_l4 {
            return None;
        }
        tuple_at(self.head, &self.layers, zone)
    }

    /// Whether the transport checksum is known to be wrong. Sums at most the bytes of the image.
    pub fn has_wrong_checksum(&self) -> bool {
        match self.checksum {
            ChecksumState::Right => false,
            ChecksumState::Wrong => true,
            ChecksumState::Unknown => self.sums_wrong().unwrap_or(false),
        }
    }

    /// `None` if the image alone does not tell.
    fn sums_wrong(&self) -> Option<bool> {
        let (l4, end) = (self.l4(), self.end()?);
        let payload = self.head.get(l4..end)?;
        let len = end - l4;
        let pseudo = match (self.layers.l4_proto, self.layers.l3) {
            // Zero is no checksum. IPv6 allows that for tunnels only (RFC 6935); as in the kernel it is accepted of all.
            (PROTO_UDP, _) if self.word(l4 + 6)? == 0 => return Some(false),
            (PROTO_TCP | PROTO_UDP, _) | (PROTO_ICMPV6, Network::Ipv6) => self.pseudo(len)?,
            (PROTO_ICMP, Network::Ipv4) => Sum::default(),
            _ => return None,
        };
        let mut sum = pseudo;
        sum.add(payload);
        Some(sum.finish() != 0)
    }

    /// The sum of the pseudo header for a transport packet of `len` bytes; `None` if the packet's destination is not
    /// the final one.
    pub fn pseudo(&self, len: usize) -> Option<Sum> {
        if self.layers.is_source_routed {
            return None;
        }
        let addresses = self.layers.addresses(self.head);
        let mut sum = Sum::default();
        sum.add(addresses);
        sum.add(&(len as u32).to_be_bytes());
        sum.add_word(u16::from(self.layers.l4_proto));
        (!addresses.is_empty()).then_some(sum)
    }
}

/// The tuple of the packet that starts with `head` and has these `layers`.
#[inline]
pub fn tuple_at(head: &[u8], layers: &Layers, zone: u16) -> Option<CtTuple> {
    let addresses = layers.addresses(head);
    let (src, dst) = addresses.split_at(addresses.len() / 2);
    let l4 = usize::from(layers.l4_offset);
    let word = |at: usize| head.get(at..)?.first_chunk().map(|bytes| u16::from_be_bytes(*bytes));
    let (src_port, dst_port) = match layers.l4_proto {
        PROTO_TCP | PROTO_UDP | PROTO_SCTP => (word(l4)?, word(l4 + 2)?),
        // The identifier, then type and code.
        PROTO_ICMP | PROTO_ICMPV6 => (word(l4 + 4)?, word(l4)?),
        _ => (0, 0),
    };
    Some(CtTuple {
        src: IpBytes::from_slice(src)?,
        dst: IpBytes::from_slice(dst)?,
        src_port,
        dst_port,
        zone,
        proto: layers.l4_proto,
        is_ipv6: layers.l3 == Network::Ipv6,
    })
}
