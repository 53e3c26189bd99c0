//! The TCP header fields that connection tracking reads.

use arrayvec::ArrayVec;

use lasthop_ct_packet::PacketImage;

use super::is_before;
use super::state::{ACK, FIN, SYN, are_sane};

/// Bytes of a TCP header without options.
const HEADER_BYTES_MIN: usize = 20;
const OPTION_END: u8 = 0;
const OPTION_NO_OPERATION: u8 = 1;
const OPTION_WINDOW_SCALE: u8 = 3;
const OPTION_SACK_PERMITTED: u8 = 4;
const OPTION_SACK: u8 = 5;
/// Blocks that fit into 40 bytes of options (RFC 2018, 3).
pub(crate) const SACK_BLOCKS_MAX: usize = 4;
/// Largest shift of a window (RFC 7323, 2.3).
const SCALE_MAX: u8 = 14;

/// The fields of a segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Segment {
    pub(crate) seq: u32,
    pub(crate) ack: u32,
    pub(crate) window: u16,
    pub(crate) flags: u8,
    /// Whether its header has options at all.
    pub(super) has_options: bool,
    pub(super) is_sack_permitted: bool,
    pub(super) scale: Option<u8>,
    /// The highest right edge of its SACK blocks that lies behind `ack`.
    pub(super) sack: Option<u32>,
    pub(crate) payload_bytes: u32,
}

impl Segment {
    /// Reads the segment of a packet; `None` if the header is incomplete or the flags are invalid.
    #[inline]
    pub(crate) fn of(packet: &PacketImage<'_>) -> Option<Self> {
        let l4 = packet.l4();
        Self::read(packet.head.get(l4..)?, packet.end()?.checked_sub(l4)?)
    }

    /// The same for a segment of `len` bytes that begins with these.
    #[inline]
    pub(crate) fn read(head: &[u8], len: usize) -> Option<Self> {
        let header: &[u8; HEADER_BYTES_MIN] = head.first_chunk()?;
        let header_len = usize::from(header[12] >> 4) * 4;
        let payload_bytes = len.checked_sub(header_len)?;
        let options = head.get(HEADER_BYTES_MIN..header_len)?;
        let flags = header[13];
        if !are_sane(flags) {
            return None;
        }
        let long =
            |at: usize| u32::from_be_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
        let mut segment = Self {
            seq: long(4),
            ack: long(8),
            window: u16::from_be_bytes([header[14], header[15]]),
            flags,
            has_options: !options.is_empty(),
            payload_bytes: payload_bytes as u32,
            ..Self::default()
        };
        segment.read_options(options);
        Some(segment)
    }

    /// The sequence number behind the segment.
    #[inline]
    pub(super) fn end(&self) -> u32 {
        let flags = u32::from(self.flags & SYN != 0) + u32::from(self.flags & FIN != 0);
        self.seq.wrapping_add(self.payload_bytes).wrapping_add(flags)
    }

    #[inline]
    pub(super) fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    #[inline]
    pub(super) fn is_ack(&self) -> bool {
        self.has(ACK)
    }

    #[inline]
    fn read_options(&mut self, options: &[u8]) {
        /// Two no-operations and a time stamp, as in most segments.
        const TIMESTAMP_ONLY: [u8; 4] = [1, 1, 8, 10];
        if options.len() == 12 && options.starts_with(&TIMESTAMP_ONLY) {
            return;
        }
        let mut sack = self.ack;
        for (_, kind, value) in Options(0, options) {
            match (kind, value) {
                (OPTION_SACK_PERMITTED, []) => self.is_sack_permitted = true,
                (OPTION_WINDOW_SCALE, [scale]) => self.scale = Some((*scale).min(SCALE_MAX)),
                (OPTION_SACK, blocks) if self.sack.is_none() && blocks.len().is_multiple_of(8) => {
                    for block in blocks.as_chunks::<8>().0 {
                        let [.., a, b, c, d] = *block;
                        let right = u32::from_be_bytes([a, b, c, d]);
                        if is_before(sack, right) {
                            sack = right;
                        }
                    }
                    self.sack = Some(sack);
                }
                _ => {}
            }
        }
    }
}

/// Offsets of a SACK block's two edges in the image, and their values adjusted by `to`.
pub(crate) fn adjusted_sack_blocks(
    packet: &PacketImage<'_>,
    to: impl Fn(u32) -> u32,
) -> ArrayVec<(usize, [u8; 8]), SACK_BLOCKS_MAX> {
    let l4 = packet.l4();
    let header_len = packet.head.get(l4 + 12).map_or(0, |byte| usize::from(byte >> 4) * 4);
    let options = packet.head.get(l4 + HEADER_BYTES_MIN..l4 + header_len).unwrap_or_default();
    let mut adjusted = ArrayVec::new();
    for (at, kind, value) in Options(0, options) {
        if kind != OPTION_SACK || !value.len().is_multiple_of(8) {
            continue;
        }
        for (index, block) in value.as_chunks::<8>().0.iter().enumerate() {
            let [a, b, c, d, e, f, g, h] = *block;
            let left = to(u32::from_be_bytes([a, b, c, d])).to_be_bytes();
            let right = to(u32::from_be_bytes([e, f, g, h])).to_be_bytes();
            let mut bytes = [0; 8];
            bytes[..4].copy_from_slice(&left);
            bytes[4..].copy_from_slice(&right);
            // A header has no room for more.
            let _ = adjusted.try_push((l4 + HEADER_BYTES_MIN + at + 8 * index, bytes));
        }
    }
    adjusted
}

/// Iterates over options: offset of the value, kind, value. Ends at the first malformed one.
struct Options<'a>(usize, &'a [u8]);

impl<'a> Iterator for Options<'a> {
    type Item = (usize, u8, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            match *self.1 {
                [] | [OPTION_END, ..] => return None,
                [OPTION_NO_OPERATION, ref rest @ ..] => (self.0, self.1) = (self.0 + 1, rest),
                [kind, len, ..] => {
                    let value = self.1.get(2..usize::from(len))?;
                    let at = self.0 + 2;
                    (self.0, self.1) = (self.0 + usize::from(len), self.1.get(usize::from(len)..)?);
                    return Some((at, kind, value));
                }
                _ => return None,
            }
        }
    }
}
