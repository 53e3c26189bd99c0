//! The virtio-net header (virtio 1.2, 5.1.6): offload metadata that travels with a frame.

/// The checksum at `csum_start + csum_offset` holds only the pseudo header's sum (virtio 1.2, 5.1.6).
pub const F_NEEDS_CSUM: u8 = 1;
/// The checksums of the packet were verified.
pub const F_DATA_VALID: u8 = 2;

/// Not a GSO frame.
pub const GSO_NONE: u8 = 0;
/// TCP over IPv4, to be segmented.
pub const GSO_TCPV4: u8 = 1;
/// TCP over IPv6, to be segmented.
pub const GSO_TCPV6: u8 = 4;
/// UDP over IPv4 or IPv6, to be cut into datagrams of its own (virtio 1.3, 5.1.6; USO).
pub const GSO_UDP_L4: u8 = 5;
/// An IP packet to be cut into fragments ([`crate::Fragmentation`]). It exists only inside the switch.
pub const GSO_FRAGMENTS: u8 = 0x40;
/// TCP with the CWR flag set, which only the first segment carries.
pub const GSO_ECN: u8 = 0x80;

/// Offset of the checksum in a UDP header, in bytes.
pub const UDP_CSUM_OFFSET: u16 = 6;

/// Bytes of the header with `num_buffers` (VERSION_1 or MRG_RXBUF).
pub const HEADER_BYTES: usize = 12;
/// Bytes of the legacy header, without `num_buffers`.
pub const HEADER_BYTES_LEGACY: usize = 10;
/// Smallest accepted `gso_size` of TCP in bytes. A smaller one would make thousands of segments of one frame.
pub const GSO_SIZE_BYTES_MIN: u16 = 48;

/// A frame's offload metadata: the virtio-net header without `num_buffers`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offload {
    /// `F_NEEDS_CSUM`, `F_DATA_VALID`.
    pub flags: u8,
    /// `GSO_*`, with `GSO_ECN` possibly or-ed in.
    pub gso_type: u8,
    /// Bytes of all headers, for a GSO frame. The sender's value is an untrusted hint.
    pub hdr_len: u16,
    /// Payload bytes per segment.
    pub gso_size: u16,
    /// Offset of the first byte to be summed, from the start of the Ethernet header.
    pub csum_start: u16,
    /// Offset of the checksum field from `csum_start`.
    pub csum_offset: u16,
}

impl Offload {
    /// Parses the header as a guest wrote it (little endian): 12 bytes, of which the last two are ignored.
    #[inline]
    #[must_use]
    pub fn parse(bytes: &[u8; HEADER_BYTES]) -> Self {
        let half = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        Self {
            flags: bytes[0],
            gso_type: bytes[1],
            hdr_len: half(2),
            gso_size: half(4),
            csum_start: half(6),
            csum_offset: half(8),
        }
    }

    /// The header for a guest; `num_buffers` is the number of receive buffers that the packet spans.
    #[inline]
    #[must_use]
    pub fn emit(&self, num_buffers: u16) -> [u8; HEADER_BYTES] {
        let mut out = [0; HEADER_BYTES];
        out[0] = self.flags;
        out[1] = self.gso_type;
        out[2..4].copy_from_slice(&self.hdr_len.to_le_bytes());
        out[4..6].copy_from_slice(&self.gso_size.to_le_bytes());
        out[6..8].copy_from_slice(&self.csum_start.to_le_bytes());
        out[8..10].copy_from_slice(&self.csum_offset.to_le_bytes());
        out[10..12].copy_from_slice(&num_buffers.to_le_bytes());
        out
    }

    /// Whether the checksum is partial.
    #[inline]
    #[must_use]
    pub fn needs_csum(&self) -> bool {
        self.flags & F_NEEDS_CSUM != 0
    }

    /// Whether the frame is to be segmented.
    #[inline]
    #[must_use]
    pub fn is_gso(&self) -> bool {
        self.gso_type != GSO_NONE
    }

    /// Whether the packet was reassembled from fragments and is to be fragmented again.
    #[must_use]
    pub fn is_fragmented(&self) -> bool {
        self.gso_type == GSO_FRAGMENTS
    }

    /// `gso_type` without the ECN bit.
    #[must_use]
    pub fn gso_kind(&self) -> u8 {
        self.gso_type & !GSO_ECN
    }
}
