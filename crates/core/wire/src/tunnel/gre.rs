//! GRE (RFC 2784) with key and sequence number (RFC 2890), around Ethernet frames and IP or MPLS packets.
//!
//! ```text
//!   | C, R, K, S, s, recursion : 3, 0 : 5, version : 3 | protocol : 16 | checksum : 16, 0 : 16 | key : 32 | sequence number : 32 |
//! ```
//!
//! C, K and S say which of the last three fields exist. R and s belong to routing (RFC 1701), and are refused. By RFC
//! 2784, 2.3 datagrams with the first bit of the recursion control are dropped, and other reserved bits are ignored.

use super::layer3::Inner;
use super::{OuterHeader, TunnelFault, flag};
use crate::Sum;

/// Maximum bytes of the header that [`write`] makes.
pub const HEADER_BYTES_MAX: usize = 16;
/// Number of the protocol in IP headers.
pub const IP_PROTOCOL: u8 = 47;
/// "Transparent Ethernet bridging".
pub const PROTOCOL_ETHERNET: u16 = 0x6558;
const CHECKSUM: u16 = 0x8000;
const ROUTING: u16 = 0x4800;
const KEY: u16 = 0x2000;
const SEQUENCE: u16 = 0x1000;
/// The first bit of the recursion control.
const RESERVED: u16 = 0x0400;
const VERSION: u16 = 0x0007;
/// Offset of the checksum, if there is one.
const CHECKSUM_AT: usize = 4;

/// A parsed header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GreHeader {
    /// The EtherType of the inner packet.
    pub protocol: u16,
    /// Bytes of the header.
    pub len_bytes: usize,
    /// Sequence number.
    pub sequence: Option<u32>,
}

/// Parses the header of a datagram, and stores its checksum and key bits in `tunnel`. [`is_sound`] verifies the
/// checksum.
///
/// # Errors
/// [`TunnelFault`].
pub fn read_header(datagram: &[u8], tunnel: &mut OuterHeader) -> Result<GreHeader, TunnelFault> {
    let (&[a, b, c, d], mut rest) = datagram.split_first_chunk::<4>().ok_or(TunnelFault::Short)?;
    let bits = u16::from_be_bytes([a, b]);
    if bits & ROUTING != 0 {
        return Err(TunnelFault::Routing);
    }
    if bits & (VERSION | RESERVED) != 0 {
        return Err(TunnelFault::Version);
    }
    let mut word = |bit: u16| {
        if bits & bit == 0 {
            return Ok(None);
        }
        let (word, behind) = rest.split_first_chunk::<4>().ok_or(TunnelFault::Short)?;
        rest = behind;
        Ok(Some(u32::from_be_bytes(*word)))
    };
    let (checksum, key, sequence) = (word(CHECKSUM)?, word(KEY)?, word(SEQUENCE)?);
    tunnel.flags |= if checksum.is_some() { flag::CSUM } else { 0 };
    if let Some(key) = key {
        (tunnel.flags, tunnel.id) = (tunnel.flags | flag::KEY, u64::from(key));
    }
    let len_bytes = datagram.len() - rest.len();
    Ok(GreHeader { protocol: u16::from_be_bytes([c, d]), len_bytes, sequence })
}

/// Parses the header of a datagram with an Ethernet frame, or with a packet of the EtherType that is GRE's protocol.
///
/// # Errors
/// [`TunnelFault`].
pub fn read(datagram: &[u8], tunnel: &mut OuterHeader) -> Result<Inner, TunnelFault> {
    let header = read_header(datagram, tunnel)?;
    match header.protocol {
        PROTOCOL_ETHERNET => Inner::frame(datagram, header.len_bytes),
        ethertype => Inner::bare(datagram, header.len_bytes, ethertype, tunnel),
    }
}

/// Verifies the checksum, if there is one; `sum` is that of the whole datagram.
///
/// # Errors
/// [`TunnelFault::Checksum`].
pub fn is_sound(tunnel: &OuterHeader, sum: Sum) -> Result<(), TunnelFault> {
    if tunnel.has(flag::CSUM) && sum.finish() != 0 { Err(TunnelFault::Checksum) } else { Ok(()) }
}

/// Writes the header of a frame for this tunnel, or of a packet of this EtherType without an Ethernet header. Returns its
/// length in bytes. [`write_checksum`] fills in the checksum.
#[must_use]
pub fn write(tunnel: &OuterHeader, ethertype: Option<u16>, out: &mut [u8; HEADER_BYTES_MAX]) -> usize {
    let key = tunnel.has(flag::KEY).then_some(tunnel.id as u32);
    write_header(ethertype.unwrap_or(PROTOCOL_ETHERNET), tunnel.has(flag::CSUM), key, None, out)
}

/// Writes a header. Returns its length in bytes.
pub(super) fn write_header(
    protocol: u16,
    has_checksum: bool,
    key: Option<u32>,
    sequence: Option<u32>,
    out: &mut [u8; HEADER_BYTES_MAX],
) -> usize {
    let words = [(CHECKSUM, has_checksum.then_some(0)), (KEY, key), (SEQUENCE, sequence)];
    let (mut bits, mut at) = (0, 4);
    for (bit, word) in words {
        let Some(word) = word else { continue };
        out[at..at + 4].copy_from_slice(&word.to_be_bytes());
        (bits, at) = (bits | bit, at + 4);
    }
    out[..2].copy_from_slice(&bits.to_be_bytes());
    out[2..4].copy_from_slice(&protocol.to_be_bytes());
    at
}

/// Writes the checksum into a header that has one; `sum` is of the header, with a zero checksum, and of all
/// bytes after it.
pub fn write_checksum(sum: Sum, header: &mut [u8]) {
    if let Some(place) = header.get_mut(CHECKSUM_AT..CHECKSUM_AT + 2) {
        place.copy_from_slice(&sum.finish().to_be_bytes());
    }
}
