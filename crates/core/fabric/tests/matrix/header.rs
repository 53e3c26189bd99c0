//! A second, independent definition of the virtio-net header (virtio 1.2, 5.1.6).

pub(crate) const NEEDS_CSUM: u8 = 1;
pub(crate) const DATA_VALID: u8 = 2;
pub(crate) const TCPV4: u8 = 1;
pub(crate) const UFO: u8 = 3;
pub(crate) const TCPV6: u8 = 4;
pub(crate) const UDP_L4: u8 = 5;
pub(crate) const ECN: u8 = 0x80;

/// The header, without the number of buffers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct VnetHeader {
    pub(crate) flags: u8,
    pub(crate) gso_type: u8,
    pub(crate) hdr_len: u16,
    pub(crate) gso_size: u16,
    pub(crate) csum_start: u16,
    pub(crate) csum_offset: u16,
}

impl VnetHeader {
    /// The first 10 of the 10 or 12 bytes.
    pub(crate) fn to_bytes(self) -> Vec<u8> {
        let Self { flags, gso_type, hdr_len, gso_size, csum_start, csum_offset } = self;
        let halves = [hdr_len, gso_size, csum_start, csum_offset].map(u16::to_le_bytes);
        [&[flags, gso_type][..], &halves.concat()].concat()
    }

    pub(crate) fn of(bytes: &[u8]) -> Self {
        let half = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        let (hdr_len, gso_size) = (half(2), half(4));
        let (csum_start, csum_offset) = (half(6), half(8));
        Self { flags: bytes[0], gso_type: bytes[1], hdr_len, gso_size, csum_start, csum_offset }
    }
}
