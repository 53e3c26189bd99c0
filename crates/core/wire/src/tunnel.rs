//! Tunnels: the outer header of a packet as metadata, and the headers of Geneve, VXLAN, GRE, ERSPAN and bareudp.
//!
//! A tunnel port exchanges inner frames with the switch. The outer header of each frame follows its virtio-net header,
//! as metadata:
//!
//! ```text
//!   virtio-net header (12)  | tunnel (116): metadata, zeroes behind it               |  inner frame ...
//!
//!   metadata   | flags | TOS | TTL | layer 3, options' length | source port : 2 | destination port : 2 | id : 8 | sender : 4 |
//!              | addresses : 8 or 32 | options |
//! ```
//!
//! Numbers are big endian. The highest bit of the options' length says that the frame is a packet without an Ethernet
//! header behind a placeholder ([`layer3`]). Metadata from a driver is read once and checked ([`OuterHeader::parse`]).

pub mod bareudp;
pub mod erspan;
pub mod geneve;
pub mod gre;
pub mod layer3;
pub mod vxlan;
pub mod vxlan_gpe;

use core::fmt;

use crate::vnet;

/// Maximum bytes of options in the metadata: OVN uses 8, and longer ones are refused.
pub const OPTIONS_BYTES_MAX: usize = 64;
/// Bytes of metadata before the addresses.
const FIXED_BYTES: usize = 20;
/// Beside the options' length: the frame has a placeholder for an Ethernet header.
const LAYER3: u8 = 0x80;
/// Offset of the sender.
const SENDER: usize = 16;
/// Maximum bytes of the metadata.
pub const TUNNEL_BYTES: usize = FIXED_BYTES + 32 + OPTIONS_BYTES_MAX;
/// Bytes of the virtio-net header and the metadata.
pub const HEADER_BYTES: usize = vnet::HEADER_BYTES + TUNNEL_BYTES;

/// Bits of [`OuterHeader::flags`].
pub mod flag {
    /// The outer packet must not be fragmented.
    pub const DONT_FRAGMENT: u8 = 0x01;
    /// The outer datagram has a checksum.
    pub const CSUM: u8 = 0x02;
    /// Geneve's O bit: a control packet for the tunnel endpoint.
    pub const OAM: u8 = 0x04;
    /// The tunnel has an id.
    pub const KEY: u8 = 0x08;
    /// The addresses are IPv6.
    pub const IPV6: u8 = 0x10;
    /// The options are Geneve's.
    pub const GENEVE: u8 = 0x20;
    /// The options are a VXLAN group policy of four bytes.
    pub const GBP: u8 = 0x40;
    /// The options are those of ERSPAN; see [`super::erspan::ErspanOptions`].
    pub const ERSPAN: u8 = GENEVE | GBP;
    /// The bits that say which kind the options are, if there are any.
    pub const OPTIONS: u8 = GENEVE | GBP;
    /// An action asks to encapsulate the packet with this header. If not set, the packet came with it.
    pub const SEND: u8 = 0x80;
}

/// Options of a tunnel as on the wire, at most [`OPTIONS_BYTES_MAX`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OptionBytes {
    bytes: [u8; OPTIONS_BYTES_MAX],
    len: u8,
}

impl Default for OptionBytes {
    fn default() -> Self {
        Self { bytes: [0; OPTIONS_BYTES_MAX], len: 0 }
    }
}

impl OptionBytes {
    /// `None` if there is no room for them.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Option<Self> {
        let mut options = Self::default();
        options.bytes.get_mut(..bytes.len())?.copy_from_slice(bytes);
        options.len = bytes.len() as u8; // at most OPTIONS_BYTES_MAX
        Some(options)
    }

    /// The options as given.
    #[inline]
    #[must_use]
    pub fn get(&self) -> &[u8] {
        self.bytes.get(..usize::from(self.len)).unwrap_or_default()
    }

    /// The options, padded with zeroes.
    #[inline]
    #[must_use]
    pub fn padded(&self) -> &[u8; OPTIONS_BYTES_MAX] {
        &self.bytes
    }
}

/// The outer header of a packet, and the options of its tunnel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OuterHeader {
    /// [`flag`] bits.
    pub flags: u8,
    /// TOS or traffic class.
    pub tos: u8,
    /// TTL or hop limit.
    pub ttl: u8,
    /// Source port; 0 lets the sender choose.
    pub tp_src: u16,
    /// Destination port; 0 means that of the tunnel port.
    pub tp_dst: u16,
    /// Id of the virtual network, key of GRE (32 bits) or session of ERSPAN (10 bits).
    pub id: u64,
    /// Source address; an IPv4 address is in the lower 32 bits. 0 lets the host choose.
    pub src: u128,
    /// Destination address.
    pub dst: u128,
    /// The port of the switch that a packet to be sent came from, so that a driver can give each sender its share; 0 if
    /// it is not known, or the packet came through the tunnel. It is no part of the header.
    pub sender: u32,
    /// The packet has no Ethernet header: its frame begins with a placeholder.
    pub is_layer3: bool,
    /// The tunnel's options.
    pub options: OptionBytes,
}

impl OuterHeader {
    /// Whether a bit of `flags` is set.
    #[inline]
    #[must_use]
    pub fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    /// The options, if they are of `kind`, one of the values of [`flag::OPTIONS`]; else empty.
    #[inline]
    #[must_use]
    pub fn options_of(&self, kind: u8) -> &[u8] {
        if self.flags & flag::OPTIONS == kind { self.options.get() } else { &[] }
    }

    /// Parses metadata; later bytes are ignored. `None` if it is inconsistent.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let (fixed, rest) = bytes.split_first_chunk::<FIXED_BYTES>()?;
        let &[flags, tos, ttl, length, a, b, c, d, numbers @ ..] = fixed;
        let (id, sender) = (numbers.first_chunk().copied()?, numbers.last_chunk().copied()?);
        let mut tunnel = Self {
            flags,
            tos,
            ttl,
            tp_src: u16::from_be_bytes([a, b]),
            tp_dst: u16::from_be_bytes([c, d]),
            id: u64::from_be_bytes(id),
            sender: u32::from_be_bytes(sender),
            is_layer3: length & LAYER3 != 0,
            ..Self::default()
        };
        let rest = if flags & flag::IPV6 != 0 {
            let (addresses, rest) = rest.split_first_chunk::<32>()?;
            let [src, dst] = addresses.as_chunks::<16>().0 else { return None };
            (tunnel.src, tunnel.dst) = (u128::from_be_bytes(*src), u128::from_be_bytes(*dst));
            rest
        } else {
            let (&[a, b, c, d, e, f, g, h], rest) = rest.split_first_chunk::<8>()?;
            tunnel.src = u128::from(u32::from_be_bytes([a, b, c, d]));
            tunnel.dst = u128::from(u32::from_be_bytes([e, f, g, h]));
            rest
        };
        let options = rest.get(..usize::from(length & !LAYER3))?;
        let fits = match flags & flag::OPTIONS {
            0 => options.is_empty(),
            flag::GENEVE => options.len().is_multiple_of(4),
            flag::GBP => options.len() == vxlan::POLICY_BYTES,
            _ => options.len() == erspan::OPTIONS_BYTES,
        };
        tunnel.options = OptionBytes::of(options).filter(|_| fits)?;
        Some(tunnel)
    }

    /// Writes the metadata. Returns its length in bytes.
    #[must_use]
    pub fn emit(&self, out: &mut [u8; TUNNEL_BYTES]) -> usize {
        let (ports, id) = ([self.tp_src.to_be_bytes(), self.tp_dst.to_be_bytes()], self.id.to_be_bytes());
        let [[a, b], [c, d]] = ports;
        let length = self.options.len | if self.is_layer3 { LAYER3 } else { 0 };
        out[..8].copy_from_slice(&[self.flags, self.tos, self.ttl, length, a, b, c, d]);
        out[8..SENDER].copy_from_slice(&id);
        out[SENDER..FIXED_BYTES].copy_from_slice(&self.sender.to_be_bytes());
        let addresses = if self.has(flag::IPV6) { 16 } else { 4 };
        let mut at = FIXED_BYTES;
        for address in [self.src, self.dst] {
            out[at..at + addresses].copy_from_slice(&address.to_be_bytes()[16 - addresses..]);
            at += addresses;
        }
        let end = at + self.options.get().len();
        out[at..end].copy_from_slice(self.options.get());
        end
    }
}

/// Sets the sender in the metadata of a packet to be sent; shorter bytes are left as they are.
#[inline]
pub fn set_sender(metadata: &mut [u8], sender: u32) {
    if let Some(place) = metadata.get_mut(SENDER..FIXED_BYTES) {
        place.copy_from_slice(&sender.to_be_bytes());
    }
}

/// The reason why a datagram is not a packet of a tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TunnelFault {
    /// It ends before the tunnel header does, or before the inner Ethernet header does.
    Short,
    /// Its version or a flag is unknown.
    Version,
    /// The inner packet is neither an Ethernet frame nor one that the kind of tunnel carries without.
    Protocol,
    /// The lengths of Geneve's options are inconsistent.
    Options,
    /// The options are longer than [`OPTIONS_BYTES_MAX`].
    ManyOptions,
    /// GRE with routing information (RFC 1701), which RFC 2784 removed.
    Routing,
    /// The checksum of GRE is wrong.
    Checksum,
    /// ERSPAN without GRE's sequence number.
    Sequence,
}

impl fmt::Display for TunnelFault {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Short => "the datagram ends before its headers do",
            Self::Version => "the header has a version or a flag that is not known",
            Self::Protocol => "no frame or packet of a known protocol is inside",
            Self::Options => "the lengths of the options contradict their sum",
            Self::ManyOptions => "the options are longer than 64 bytes",
            Self::Routing => "the header has routing information",
            Self::Checksum => "the checksum is wrong",
            Self::Sequence => "there is no sequence number",
        })
    }
}

impl core::error::Error for TunnelFault {}

/// Bytes of the shortest inner frame: an Ethernet header.
pub(crate) const INNER_BYTES_MIN: usize = 14;
/// The largest virtual network identifier.
pub const VNI_MAX: u64 = 0xff_ffff;

/// Returns `end` if an inner frame can begin there.
fn inner_at(datagram: &[u8], end: usize) -> Result<usize, TunnelFault> {
    if datagram.len() >= end + INNER_BYTES_MIN { Ok(end) } else { Err(TunnelFault::Short) }
}

fn vni(bytes: [u8; 3]) -> u64 {
    let [a, b, c] = bytes;
    u64::from(u32::from_be_bytes([0, a, b, c]))
}

#[cfg(test)]
mod tests;
