//! Joins TCP segments of one connection into one large frame with GSO metadata: the reverse of [`crate::gso`].
//!
//! ```text
//!   segments     | headers 1 | 1400 |   | headers 2 | 1400 |   | headers 3 | 300 |
//!   large frame  | headers   | 1400 | 1400 | 300 |              gso_size 1400, checksum partial
//! ```
//!
//! Only segments are joined that [`crate::gso::Segmentation`] makes again byte for byte: the receiver of the large frame can
//! restore the packets that came. So their headers are alike, except for fields that it counts on, and their checksums are right.

use crate::checksum::Sum;
use crate::gso::{FRAME_BYTES_MAX, SEGMENTS_MAX, TCP_CSUM_OFFSET};
use crate::headers::{IPV4_BYTES_MIN, IPV6_BYTES, Layers, Network, PROTO_TCP};
use crate::vnet::{F_NEEDS_CSUM, GSO_SIZE_BYTES_MIN, GSO_TCPV4, GSO_TCPV6, Offload};

/// Bytes of an Ethernet header with one VLAN tag: [`FRAME_BYTES_MAX`] has room for no more.
const ETHERNET_BYTES_MAX: usize = 14 + 4;
/// Bytes of the longest headers of a segment that is joined: TCP's are at most 60.
pub const HEAD_BYTES_MAX: usize = ETHERNET_BYTES_MAX + IPV6_BYTES + 60;
/// Bytes of an IP packet.
const PACKET_BYTES_MAX: u32 = FRAME_BYTES_MAX - ETHERNET_BYTES_MAX as u32;

/// Offsets in an IPv4 header, in bytes.
const IPV4_TOTAL_LENGTH: usize = 2;
const IPV4_IDENTIFICATION: usize = 4;
const IPV4_CHECKSUM: usize = 10;
/// Offset in an IPv6 header, in bytes.
const IPV6_PAYLOAD_LENGTH: usize = 4;
/// Offsets in a TCP header, in bytes, and its flags (RFC 9293, 3.1).
const TCP_SEQUENCE: usize = 4;
const TCP_DATA_OFFSET: usize = 12;
const TCP_FLAGS: usize = 13;
const TCP_CHECKSUM: usize = TCP_CSUM_OFFSET as usize;
const PSH: u8 = 0x08;
const ACK: u8 = 0x10;

/// A frame with a TCP segment that others may be joined to.
#[derive(Clone, Copy, Debug)]
pub struct TcpSegment {
    /// The headers, then zeroes. Fields that may differ within a large frame are zero, too.
    head: [u8; HEAD_BYTES_MAX],
    l3: Network,
    l3_offset: usize,
    l4_offset: usize,
    header_len: usize,
    payload_bytes: u32,
    identification: u16,
    sequence: u32,
    checksum: u16,
    is_pushed: bool,
}

impl TcpSegment {
    /// Parses a frame of `frame_len_bytes` bytes that begins with `head`, which should have [`HEAD_BYTES_MAX`] bytes of it.
    /// `None` if it can be no part of a large frame: it is not TCP, or a fragment, has IP options, extension headers or padding, no
    /// payload, another flag than ACK and PSH, or a wrong checksum of IPv4.
    #[must_use]
    pub fn parse(head: &[u8], frame_len_bytes: u32) -> Option<Self> {
        let head = head.get(..head.len().min(frame_len_bytes as usize))?;
        let layers = Layers::parse(head).ok().filter(|layers| !layers.is_fragment)?;
        let tcp_len = usize::from(layers.tcp_header_len_bytes(head).ok()?);
        let (l3_offset, l4_offset) = (usize::from(layers.l3_offset), usize::from(layers.l4_offset));
        let l3_len = match layers.l3 {
            Network::Ipv4 => IPV4_BYTES_MIN,
            Network::Ipv6 => IPV6_BYTES,
        };
        let header_len = l4_offset + tcp_len;
        let payload_bytes = frame_len_bytes.checked_sub(header_len as u32).filter(|bytes| *bytes > 0)?;
        let is_plain = l3_offset <= ETHERNET_BYTES_MAX && l4_offset == l3_offset + l3_len;
        if !is_plain || l3_offset as u32 + layers.l3_len_bytes != frame_len_bytes {
            return None;
        }
        let mut segment = Self {
            head: [0; HEAD_BYTES_MAX],
            l3: layers.l3,
            l3_offset,
            l4_offset,
            header_len,
            payload_bytes,
            identification: 0,
            sequence: 0,
            checksum: 0,
            is_pushed: false,
        };
        segment.head.get_mut(..header_len)?.copy_from_slice(head.get(..header_len)?);
        segment.take_out().then_some(segment)
    }

    /// Moves fields that may differ out of `head`. Returns false if the others are not as they have to be.
    fn take_out(&mut self) -> bool {
        let (l3, tcp) = self.head[self.l3_offset..].split_at_mut(self.l4_offset - self.l3_offset);
        match self.l3 {
            Network::Ipv4 => {
                let told = take(l3, IPV4_CHECKSUM);
                let mut sum = Sum::default();
                sum.add(l3);
                if sum.finish() != told {
                    return false;
                }
                self.identification = take(l3, IPV4_IDENTIFICATION);
                take(l3, IPV4_TOTAL_LENGTH);
            }
            Network::Ipv6 => _ = take(l3, IPV6_PAYLOAD_LENGTH),
        }
        self.sequence = u32::from(take(tcp, TCP_SEQUENCE)) << 16 | u32::from(take(tcp, TCP_SEQUENCE + 2));
        self.checksum = take(tcp, TCP_CHECKSUM);
        self.is_pushed = tcp[TCP_FLAGS] & PSH != 0;
        tcp[TCP_FLAGS] &= !PSH;
        tcp[TCP_FLAGS] == ACK && tcp[TCP_DATA_OFFSET] & 0x0f == 0
    }

    /// Bytes of its headers; the payload follows.
    #[inline]
    #[must_use]
    pub fn header_len(&self) -> u32 {
        self.header_len as u32
    }

    /// The sum of its pseudo header and TCP header, to which the caller adds the payload for [`Self::is_intact`].
    #[must_use]
    pub fn sum_of_headers(&self) -> Sum {
        let mut sum = self.pseudo_header(self.payload_bytes);
        sum.add(&self.head[self.l4_offset..self.header_len]);
        sum.add(&self.sequence.to_be_bytes());
        // The flags are the second byte of their word.
        sum.add_word(if self.is_pushed { u16::from(PSH) } else { 0 });
        sum
    }

    /// Whether its TCP checksum is that of its headers and payload.
    #[must_use]
    pub fn is_intact(&self, sum: Sum) -> bool {
        sum.finish() == self.checksum
    }

    fn pseudo_header(&self, payload_bytes: u32) -> Sum {
        let (from, len) = match self.l3 {
            Network::Ipv4 => (12, 8),
            Network::Ipv6 => (8, 32),
        };
        let from = self.l3_offset + from;
        let mut sum = Sum::default();
        sum.add(&self.head[from..from + len]);
        sum.add_word(u16::from(PROTO_TCP));
        // Below 65536: it is part of an IP packet's length.
        sum.add_word((self.header_len - self.l4_offset) as u16 + payload_bytes as u16);
        sum
    }
}

/// Reads a field, and leaves zeroes.
fn take(header: &mut [u8], at: usize) -> u16 {
    let field = u16::from_be_bytes([header[at], header[at + 1]]);
    put(header, at, 0);
    field
}

fn put(header: &mut [u8], at: usize, value: u16) {
    header[at..at + 2].copy_from_slice(&value.to_be_bytes());
}

/// A large frame: a segment, and those that were joined to it.
#[derive(Clone, Copy, Debug)]
pub struct Coalesced {
    first: TcpSegment,
    payload_bytes: u32,
    count: u32,
    /// The last segment was pushed, or shorter than the first.
    is_closed: bool,
    is_pushed: bool,
}

impl Coalesced {
    /// A frame of one segment.
    #[must_use]
    pub fn of(first: TcpSegment) -> Self {
        let (payload_bytes, is_pushed) = (first.payload_bytes, first.is_pushed);
        let is_closed = is_pushed || payload_bytes < u32::from(GSO_SIZE_BYTES_MIN);
        Self { first, payload_bytes, count: 1, is_closed, is_pushed }
    }

    /// Its first segment.
    #[must_use]
    pub fn first(&self) -> &TcpSegment {
        &self.first
    }

    /// The number of its segments, 1 to [`SEGMENTS_MAX`].
    #[must_use]
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Whether `next` can be joined: it is the next segment of the connection, its headers are those that the large frame's headers
    /// stand for, and there is room.
    #[must_use]
    pub fn takes(&self, next: &TcpSegment) -> bool {
        let packet_bytes = (self.first.header_len - self.first.l3_offset) as u32 + self.payload_bytes;
        !self.is_closed
            && self.count < SEGMENTS_MAX
            && next.payload_bytes <= self.first.payload_bytes
            && packet_bytes + next.payload_bytes <= PACKET_BYTES_MAX
            && next.sequence == self.first.sequence.wrapping_add(self.payload_bytes)
            && self.counts_to(next)
            && next.header_len == self.first.header_len
            && next.l4_offset == self.first.l4_offset
            && next.head == self.first.head
    }

    /// IPv4 numbers packets; those of IPv6 have no number.
    fn counts_to(&self, next: &TcpSegment) -> bool {
        let number = self.first.identification.wrapping_add(self.count as u16); // at most SEGMENTS_MAX
        self.first.l3 == Network::Ipv6 || next.identification == number
    }

    /// Joins `next`, whose checksum is right, if [`Self::takes`] it. Returns whether it did.
    #[must_use]
    pub fn join(&mut self, next: &TcpSegment) -> bool {
        if !self.takes(next) {
            return false;
        }
        self.payload_bytes += next.payload_bytes;
        self.count += 1;
        self.is_pushed = next.is_pushed;
        self.is_closed = next.is_pushed || next.payload_bytes < self.first.payload_bytes;
        true
    }

    /// The headers of the large frame: as many bytes as [`TcpSegment::header_len`] of the first segment, behind which all payload lies, then
    /// zeroes. The checksum is partial, as the returned [`Offload`] says. A frame of one segment needs no other headers than it came with.
    #[must_use]
    pub fn header(&self) -> ([u8; HEAD_BYTES_MAX], Offload) {
        let TcpSegment { mut head, l3, l3_offset, l4_offset, header_len, identification, sequence, .. } =
            self.first;
        let (network, tcp) = head[l3_offset..].split_at_mut(l4_offset - l3_offset);
        // takes() bounds the packet to 65535 bytes.
        let l4_bytes = (header_len - l4_offset) as u32 + self.payload_bytes;
        let gso_type = match l3 {
            Network::Ipv4 => {
                put(network, IPV4_TOTAL_LENGTH, (IPV4_BYTES_MIN as u32 + l4_bytes) as u16);
                put(network, IPV4_IDENTIFICATION, identification);
                let mut sum = Sum::default();
                sum.add(network);
                put(network, IPV4_CHECKSUM, sum.finish());
                GSO_TCPV4
            }
            Network::Ipv6 => {
                put(network, IPV6_PAYLOAD_LENGTH, l4_bytes as u16);
                GSO_TCPV6
            }
        };
        tcp[TCP_SEQUENCE..TCP_SEQUENCE + 4].copy_from_slice(&sequence.to_be_bytes());
        tcp[TCP_FLAGS] |= if self.is_pushed { PSH } else { 0 };
        put(tcp, TCP_CHECKSUM, self.first.pseudo_header(self.payload_bytes).partial());
        let offload = Offload {
            flags: F_NEEDS_CSUM,
            gso_type,
            hdr_len: header_len as u16,                // at most HEAD_BYTES_MAX
            gso_size: self.first.payload_bytes as u16, // part of a packet
            csum_start: l4_offset as u16,
            csum_offset: TCP_CSUM_OFFSET,
        };
        (head, offload)
    }
}
