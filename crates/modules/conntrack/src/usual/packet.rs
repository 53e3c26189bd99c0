//! Packets that may be usual: their headers, read by constant offsets.

use std::sync::atomic::Ordering;

use lasthop_ct_packet::{Direction, TUPLE_WORDS};
use lasthop_wire::headers::{PROTO_TCP, PROTO_UDP};
use lasthop_wire::vnet::{F_DATA_VALID, F_NEEDS_CSUM};
use lasthop_wire::{Offload, Sum};

use super::UsualEnds;
use crate::place::Place;
use crate::tcp::Segment;
use crate::tcp::plain::{PLAIN_FLAGS, PlainSegment};
use crate::tcp::state::{ACK, SYN};

const ETHERNET_BYTES: usize = 14;
/// Bytes of a tag.
const TAG_BYTES: usize = 4;
/// Offset of the EtherType; EtherType of a tag.
const TYPE_AT: usize = 12;
const TAG_TYPE: [u8; 2] = [0x81, 0];
/// EtherTypes, as a little-endian load reads them.
const IPV4: u16 = 0x00_08;
const IPV6: u16 = 0xdd_86;
/// Bytes of a TCP header without options.
const TCP_BYTES: usize = 20;
/// Bytes of the headers up to TCP without options, over IPv4.
pub const WINDOW4_BYTES: usize = ETHERNET_BYTES + 20 + TCP_BYTES;
/// The same over IPv6.
pub const WINDOW6_BYTES: usize = ETHERNET_BYTES + 40 + TCP_BYTES;
const UDP_BYTES: u32 = 8;
/// A time stamp option with its padding (RFC 7323, appendix A); words of a header with only that option, and without
/// options.
const TIME_STAMP: [u8; 4] = [1, 1, 8, 10];
const STAMPED_WORDS: u32 = 8;
const PLAIN_WORDS: u32 = 5;

/// A packet that may be usual. `WINDOW`: bytes of the headers up to TCP without options, which depend on the IP version.
#[derive(Clone, Copy, Debug)]
pub struct UsualPacket<'a, const WINDOW: usize> {
    /// The frame without its first four bytes if it has a tag, so that all headers are at the same offsets.
    head: &'a [u8],
    window: &'a [u8; WINDOW],
    tag_bytes: u32,
    offload: &'a Offload,
}

/// One of IPv4.
pub type UsualPacket4<'a> = UsualPacket<'a, WINDOW4_BYTES>;
/// One of IPv6. A UDP datagram needs 12 bytes of payload.
pub type UsualPacket6<'a> = UsualPacket<'a, WINDOW6_BYTES>;

impl<'a, const WINDOW: usize> UsualPacket<'a, WINDOW> {
    /// Bytes of a tag, for [`Self::with_tag`].
    pub const TAG_BYTES: usize = TAG_BYTES;
    pub(super) const IS_IPV6: bool = WINDOW == WINDOW6_BYTES;
    const TYPE: u16 = if Self::IS_IPV6 { IPV6 } else { IPV4 };
    /// Offsets of protocol, addresses, and transport header.
    const PROTO_AT: usize = ETHERNET_BYTES + if Self::IS_IPV6 { 6 } else { 9 };
    const ADDRESSES_AT: usize = ETHERNET_BYTES + if Self::IS_IPV6 { 8 } else { 12 };
    const L4_AT: usize = WINDOW - TCP_BYTES;
    const IP_BYTES: u32 = (Self::L4_AT - ETHERNET_BYTES) as u32;

    /// Reads a frame that begins with `head` and has a mini key of this IP version ([`lasthop_wire::key::MiniKey`]). `None` if it is
    /// not usual.
    #[inline(always)]
    #[must_use]
    pub fn of(head: &'a [u8], offload: &'a Offload) -> Option<Self> {
        match Self::is_untagged(head) {
            true => Self::with_tag::<0>(head, offload),
            false => Self::with_tag::<TAG_BYTES>(head, offload),
        }
    }

    /// Whether a frame has this IP version behind its Ethernet header.
    #[inline(always)]
    #[must_use]
    pub fn is_untagged(head: &[u8]) -> bool {
        head.get(TYPE_AT..TYPE_AT + 2) == Some(&Self::TYPE.to_le_bytes()[..])
    }

    /// As [`Self::of`], for a frame with `TAG` bytes of a tag: none or [`Self::TAG_BYTES`].
    // `TAG` is constant, so that a loop over frames of one kind knows all offsets.
    #[inline(always)]
    #[must_use]
    pub fn with_tag<const TAG: usize>(head: &'a [u8], offload: &'a Offload) -> Option<Self> {
        if TAG != 0 && *head.get(TYPE_AT..)?.first_chunk()? != TAG_TYPE {
            return None;
        }
        let head = head.get(TAG..)?;
        let window: &[u8; WINDOW] = head.first_chunk()?;
        let is_ip = load(window, TYPE_AT) as u16 == Self::TYPE;
        is_ip.then_some(Self { head, window, tag_bytes: TAG as u32, offload })
    }

    /// The IP protocol.
    #[inline(always)]
    #[must_use]
    pub fn proto(&self) -> u8 {
        self.window[Self::PROTO_AT]
    }

    /// Ports; the source's is in the upper half.
    #[inline(always)]
    fn ports(&self) -> u32 {
        ((load(self.window, Self::L4_AT - 4) >> 32) as u32).swap_bytes()
    }

    /// Length of the IP packet; `None` if the frame is shorter, or the length is invalid.
    #[inline(always)]
    fn len_bytes(&self, frame_len_bytes: u32) -> Option<u32> {
        let of_ipv4 = || u32::from(((load(self.window, TYPE_AT) >> 32) as u16).swap_bytes());
        let of_ipv6 = || u32::from(((load(self.window, TYPE_AT) >> 48) as u16).swap_bytes()) + Self::IP_BYTES;
        let len = if Self::IS_IPV6 { of_ipv6() } else { of_ipv4() };
        let is_right = self.offload.flags & (F_NEEDS_CSUM | F_DATA_VALID) != 0;
        let is_whole = ETHERNET_BYTES as u32 + self.tag_bytes + len <= frame_len_bytes;
        (is_whole && (is_right || !Self::is_summed_wrong(self.head, len))).then_some(len)
    }

    /// The numbers of a valid plain segment.
    #[inline(always)]
    pub(super) fn segment(&self, frame_len_bytes: u32) -> Option<PlainSegment> {
        /// Masks of the header's length and flags in `rest`.
        const WORDS: u64 = 0xf0;
        const FLAGS: u64 = (PLAIN_FLAGS as u64) << 8;
        const PLAIN: u64 = (PLAIN_WORDS as u64) << 4 | (ACK as u64) << 8;
        const STAMPED: u64 = (STAMPED_WORDS as u64) << 4 | (ACK as u64) << 8;
        let rest = load(self.window, Self::L4_AT + 12);
        let words = match rest & (WORDS | FLAGS) {
            PLAIN => PLAIN_WORDS,
            STAMPED if self.is_stamped() => STAMPED_WORDS,
            _ => return None,
        };
        let payload_bytes = self.len_bytes(frame_len_bytes)?.checked_sub(Self::IP_BYTES + 4 * words)?;
        let seq_and_ack = load(self.window, Self::L4_AT + 4).swap_bytes();
        Some(PlainSegment { seq_and_ack, payload_bytes, window: ((rest >> 16) as u16).swap_bytes() })
    }

    /// Whether the first option is a time stamp, which fills a header of [`STAMPED_WORDS`].
    #[inline(always)]
    fn is_stamped(&self) -> bool {
        let options = || self.head.get(WINDOW..)?.first_chunk::<12>();
        options().is_some_and(|options| options.starts_with(&TIME_STAMP))
    }

    /// Whether it is a valid datagram.
    #[inline(always)]
    pub(super) fn is_datagram(&self, frame_len_bytes: u32) -> bool {
        let len = u32::from((load(self.window, Self::L4_AT + 4) as u16).swap_bytes());
        let is_sound = |packet: u32| len >= UDP_BYTES && Self::IP_BYTES + len <= packet;
        self.len_bytes(frame_len_bytes).is_some_and(|packet| {
            packet >= Self::IP_BYTES + UDP_BYTES && (self.offload.is_gso() || is_sound(packet))
        })
    }

    /// Whether the transport checksum is wrong. Sums at most the bytes of the image; trusts a packet that the image does not have as a
    /// whole.
    // It gets no reference to the packet, which would then be in memory, not in registers, in the usual case, too.
    #[inline(never)]
    fn is_summed_wrong(head: &[u8], len_bytes: u32) -> bool {
        let end = ETHERNET_BYTES + len_bytes as usize;
        let (Some(transport), Some(addresses)) =
            (head.get(Self::L4_AT..end), head.get(Self::ADDRESSES_AT..Self::L4_AT))
        else {
            return false;
        };
        if head[Self::PROTO_AT] == PROTO_UDP && transport.get(6..8) == Some(&[0, 0]) {
            return false;
        }
        let mut sum = Sum::default();
        sum.add(addresses);
        sum.add_word(transport.len() as u16);
        sum.add_word(head[Self::PROTO_AT].into());
        sum.add(transport);
        sum.finish() != 0
    }

    /// Whether it is a SYN without other flags, with a valid header.
    pub(super) fn is_syn(&self, frame_len_bytes: u32) -> bool {
        let [length, flags, ..] = (load(self.window, Self::L4_AT + 12)).to_le_bytes();
        let header_bytes = 4 * u32::from(length >> 4);
        let is_read = || self.head.len() >= Self::L4_AT + header_bytes as usize;
        let is_in = |packet: u32| packet >= Self::IP_BYTES + header_bytes;
        flags == SYN
            && header_bytes >= TCP_BYTES as u32
            && is_read()
            && self.len_bytes(frame_len_bytes).is_some_and(is_in)
    }

    /// The segment of a packet that [`Self::is_syn`].
    pub(super) fn syn(&self, frame_len_bytes: u32) -> Option<Segment> {
        let transport_bytes = self.len_bytes(frame_len_bytes)?.checked_sub(Self::IP_BYTES)?;
        Segment::read(self.head.get(Self::L4_AT..)?, transport_bytes as usize)
    }

    /// The words of its tuple ([`lasthop_ct_packet::CtTuple::words`]); `last` has zone, IP version and protocol.
    #[inline(always)]
    pub(super) fn tuple_words(&self, last: u64) -> [u64; TUPLE_WORDS] {
        let last = u64::from(self.ports()) << 32 | last;
        if !Self::IS_IPV6 {
            let addresses = load(self.window, Self::ADDRESSES_AT);
            return [addresses & 0xffff_ffff, addresses >> 32, 0, 0, last];
        }
        let [src, src_high, dst, dst_high] =
            [0, 8, 16, 24].map(|at| load(self.window, Self::ADDRESSES_AT + at));
        [src, dst, src_high, dst_high, last]
    }

    /// Whether a connection has the tuple of an IPv6 packet, whose last word is `last`.
    #[inline(always)]
    pub(super) fn is_of6(&self, place: Place<'_>, direction: Direction, last: u64) -> bool {
        let own = place.tuple_atomics(direction);
        let has = |word: usize, value| own[word].load(Ordering::Relaxed) == value;
        let has_at = |word, at| has(word, load(self.window, Self::ADDRESSES_AT + at));
        has(TUPLE_WORDS - 1, last) && has_at(0, 0) && has_at(1, 16) && has_at(2, 8) && has_at(3, 24)
    }

    /// The ends of an IPv4 packet; no meaning for others.
    #[inline(always)]
    #[must_use]
    pub fn ends4(&self) -> UsualEnds {
        UsualEnds { addresses: load(self.window, Self::ADDRESSES_AT), ports: self.ports() }
    }
}

impl UsualPacket4<'_> {
    /// Writes the packet's new ends into its image, `head`. Checksums change by the difference (RFC 1624, equation 3);
    /// a partial one changes with addresses only.
    #[inline]
    pub fn translate(&self, head: &mut [u8], to: &UsualEnds) {
        match self.tag_bytes {
            0 => self.translate_at::<0>(head, to),
            _ => self.translate_tagged(head, to),
        }
    }

    #[inline(never)]
    fn translate_tagged(&self, head: &mut [u8], to: &UsualEnds) {
        if let Some(behind) = head.get_mut(TAG_BYTES..) {
            self.translate_at::<TAG_BYTES>(behind, to);
        }
    }

    /// Same for a frame with `TAG` bytes of a tag.
    #[inline(always)]
    fn translate_at<const TAG: usize>(&self, head: &mut [u8], to: &UsualEnds) {
        let (from, Some(window)) = (self.ends4(), head.first_chunk_mut()) else { return };
        // Both halves of a word contribute to the sum in the same way.
        let halves = |word: u64| (word & 0xffff_ffff) + (word >> 32);
        let of_addresses = halves(!from.addresses) + halves(to.addresses);
        let (old_ports, ports) = (from.ports.swap_bytes(), to.ports.swap_bytes());
        let of_all = of_addresses + u64::from(!old_ports) + u64::from(ports);
        let sum_at = Self::L4_AT + if self.proto() == PROTO_TCP { 16 } else { 6 };
        let partial_at = usize::from(self.offload.csum_start) + usize::from(self.offload.csum_offset);
        let field = field_of(window, sum_at);
        if self.offload.needs_csum() && partial_at == sum_at + TAG {
            put_field(window, sum_at, followed(field, of_addresses).partial());
        } else if self.proto() == PROTO_TCP {
            put_field(window, sum_at, followed(!field, of_all).finish());
        } else if field != 0 {
            put_field(window, sum_at, followed(!field, of_all).finish_udp());
        }
        let header_sum_at = ETHERNET_BYTES + 10;
        let header_sum = followed(!field_of(window, header_sum_at), of_addresses).finish();
        put_field(window, header_sum_at, header_sum);
        window[Self::ADDRESSES_AT..Self::L4_AT].copy_from_slice(&to.addresses.to_le_bytes());
        window[Self::L4_AT..Self::L4_AT + 4].copy_from_slice(&ports.to_le_bytes());
    }
}

/// Reads eight bytes of the window.
#[inline(always)]
fn load<const WINDOW: usize>(window: &[u8; WINDOW], at: usize) -> u64 {
    window[at..].first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

fn field_of(window: &[u8; WINDOW4_BYTES], at: usize) -> u16 {
    u16::from_be_bytes([window[at], window[at + 1]])
}

fn put_field(window: &mut [u8; WINDOW4_BYTES], at: usize, value: u16) {
    window[at..at + 2].copy_from_slice(&value.to_be_bytes());
}

fn followed(field: u16, difference: u64) -> Sum {
    let mut sum = Sum::default();
    sum.add_word(field);
    sum.add_partial(difference, 8);
    sum
}
