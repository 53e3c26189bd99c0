//! ERSPAN (draft-foschiano-erspan-03): mirrored Ethernet frames behind GRE with a sequence number. Type II has version 1, type III version 2.
//!
//! ```text
//!   both     | version : 4, VLAN : 12 | COS : 3, En or BSO : 2, T : 1, session : 10 |
//!   type II  | 0 : 12, index : 20 |
//!   type III | time stamp : 32 | security group : 16 | P : 1, frame type : 5, hardware : 6, direction : 1, granularity : 2, O : 1 |
//! ```
//!
//! O says that eight platform specific bytes follow; they are skipped.

use super::gre::{self, GreHeader};
use super::{OptionBytes, OuterHeader, TunnelFault, flag, inner_at};

/// Protocols of GRE: type II and type III.
pub const PROTOCOLS: [u16; 2] = [0x88be, 0x22eb];
/// The largest number of a session.
pub const SESSION_MAX: u16 = 0x3ff;
/// The largest index of type II.
pub const INDEX_MAX: u32 = 0xf_ffff;
/// Bytes of the options of ERSPAN in metadata and flows: `struct erspan_metadata` of linux/erspan.h.
pub const OPTIONS_BYTES: usize = 12;
/// Maximum bytes of the header that [`write`] makes.
pub const HEADER_BYTES_MAX: usize = gre::HEADER_BYTES_MAX + TYPE_3_BYTES;
const TYPE_2_BYTES: usize = 8;
const TYPE_3_BYTES: usize = 12;
/// Bytes of the platform specific part after the header of type III.
const PLATFORM_BYTES: usize = 8;
/// "En": the frame still has its VLAN tag.
const TAG_IN_FRAME: u16 = 0x1800;
/// The frame type is valid.
const HAS_FRAME_TYPE: u8 = 0x80;
const FRAME_TYPE: u8 = 0x7c;
const EGRESS: u8 = 0x08;
const HAS_PLATFORM: u8 = 0x01;

/// An ERSPAN header as options of a tunnel.
///
/// The bytes are `struct erspan_metadata`: the version in host order; then the index for type II, or time stamp,
/// security group and the last 16 bits for type III.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErspanOptions {
    /// Type II.
    Index(u32),
    /// Type III.
    Mirror {
        /// Whether the frame left the mirrored port; otherwise it came in.
        is_egress: bool,
        /// Id of the mirroring engine, at most 0x3f.
        hardware: u8,
    },
}

impl ErspanOptions {
    /// Parses options. `None` if the version is unknown or the length is wrong.
    #[must_use]
    pub fn of(options: &[u8]) -> Option<Self> {
        let (version, rest) = options.split_first_chunk::<4>()?;
        let rest: &[u8; 8] = rest.try_into().ok()?;
        let &[a, b, c, d, .., high, low] = rest;
        match u32::from_ne_bytes(*version) {
            1 => Some(Self::Index(u32::from_be_bytes([a, b, c, d]) & INDEX_MAX)),
            2 => Some(Self::mirror(high, low)),
            _ => None,
        }
    }

    fn mirror(high: u8, low: u8) -> Self {
        Self::Mirror { is_egress: low & EGRESS != 0, hardware: (high & 3) << 4 | low >> 4 }
    }
}

/// Parses the header of a datagram into `tunnel`. Returns the offset of the mirrored frame.
///
/// The version, not the protocol, says which header it is: the first versions of Linux sent type III in the protocol of
/// type II.
///
/// # Errors
/// [`TunnelFault`].
pub fn read(datagram: &[u8], tunnel: &mut OuterHeader) -> Result<usize, TunnelFault> {
    let GreHeader { protocol, len_bytes: at, sequence } = gre::read_header(datagram, tunnel)?;
    if !PROTOCOLS.contains(&protocol) {
        return Err(TunnelFault::Protocol);
    }
    if sequence.is_none() {
        return Err(TunnelFault::Sequence);
    }
    let header = datagram.get(at..).and_then(|rest| rest.first_chunk::<TYPE_2_BYTES>());
    let &[first, _, high, low, field @ ..] = header.ok_or(TunnelFault::Short)?;
    let (version, mut end) = (first >> 4, at + TYPE_2_BYTES);
    let mut options = [0; OPTIONS_BYTES];
    options[..4].copy_from_slice(&u32::from(version).to_ne_bytes());
    options[4..8].copy_from_slice(&field);
    match version {
        1 => options[4..8].copy_from_slice(&(u32::from_be_bytes(field) & INDEX_MAX).to_be_bytes()),
        2 => {
            let rest = datagram.get(end..).and_then(|rest| rest.first_chunk::<4>());
            let rest = rest.ok_or(TunnelFault::Short)?;
            if rest[2] & HAS_FRAME_TYPE != 0 && rest[2] & FRAME_TYPE != 0 {
                return Err(TunnelFault::Protocol);
            }
            options[8..].copy_from_slice(rest);
            end += 4 + if rest[3] & HAS_PLATFORM != 0 { PLATFORM_BYTES } else { 0 };
        }
        _ => return Err(TunnelFault::Version),
    }
    tunnel.id = u64::from(u16::from_be_bytes([high, low]) & SESSION_MAX);
    tunnel.flags |= flag::KEY | flag::ERSPAN;
    tunnel.options = OptionBytes::of(&options).ok_or(TunnelFault::ManyOptions)?;
    inner_at(datagram, end)
}

/// Fields of a header that belong to the packet, not to its tunnel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ErspanStamp {
    /// Sequence number of GRE.
    pub sequence: u32,
    /// Time stamp of type III, in units of 100 us.
    pub time_100us: u32,
    /// The frame's VLAN tag, if it has one: priority, DEI and VLAN.
    pub tag: Option<u16>,
}

/// Writes the header of a frame for this tunnel. Returns its length in bytes; `None` if the tunnel has no valid ERSPAN
/// options. [`gre::write_checksum`] fills in the checksum.
#[must_use]
pub fn write(tunnel: &OuterHeader, stamp: ErspanStamp, out: &mut [u8; HEADER_BYTES_MAX]) -> Option<usize> {
    let options = ErspanOptions::of(tunnel.options_of(flag::ERSPAN))?;
    let (protocol, len_bytes) = match options {
        ErspanOptions::Index(_) => (PROTOCOLS[0], TYPE_2_BYTES),
        ErspanOptions::Mirror { .. } => (PROTOCOLS[1], TYPE_3_BYTES),
    };
    let mut gre = [0; gre::HEADER_BYTES_MAX];
    let at = gre::write_header(protocol, tunnel.has(flag::CSUM), None, Some(stamp.sequence), &mut gre);
    out[..at].copy_from_slice(&gre[..at]);
    let header = header(options, tunnel.id as u16 & SESSION_MAX, stamp);
    out[at..at + len_bytes].copy_from_slice(&header[..len_bytes]);
    Some(at + len_bytes)
}

/// A header of type III, or one of type II padded with zeroes.
fn header(options: ErspanOptions, session: u16, stamp: ErspanStamp) -> [u8; TYPE_3_BYTES] {
    let tag = stamp.tag.unwrap_or(0);
    let [vlan_high, vlan_low] = (tag & 0xfff).to_be_bytes();
    let priority = tag & 0xe000;
    match options {
        ErspanOptions::Index(index) => {
            let in_frame = if stamp.tag.is_some() { TAG_IN_FRAME } else { 0 };
            let [high, low] = (priority | in_frame | session).to_be_bytes();
            let [a, b, c, d] = index.to_be_bytes();
            [0x10 | vlan_high, vlan_low, high, low, a, b, c, d, 0, 0, 0, 0]
        }
        ErspanOptions::Mirror { is_egress, hardware } => {
            let [high, low] = (priority | session).to_be_bytes();
            let [a, b, c, d] = stamp.time_100us.to_be_bytes();
            let kind = HAS_FRAME_TYPE | hardware >> 4 & 3;
            let last = hardware << 4 | if is_egress { EGRESS } else { 0 };
            [0x20 | vlan_high, vlan_low, high, low, a, b, c, d, 0, 0, kind, last]
        }
    }
}
