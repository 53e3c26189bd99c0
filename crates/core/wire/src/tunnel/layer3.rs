//! Inner packets without an Ethernet header. Between driver and switch each has a placeholder in front, which is an
//! Ethernet header of zeroes with the packet's EtherType, and a bit in the metadata says so. Only flows see the packet
//! without it.

use super::{INNER_BYTES_MIN, OuterHeader, TunnelFault, inner_at};
use crate::headers::{
    ETHERTYPE_IPV4, ETHERTYPE_IPV6, ETHERTYPE_NSH, ETHERTYPES_MPLS, IPV4_BYTES_MIN, IPV6_BYTES,
};

/// Bytes of the placeholder.
pub const PLACEHOLDER_BYTES: usize = INNER_BYTES_MIN;

/// The packet inside of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Inner {
    /// Its offset.
    pub at: usize,
    /// Its EtherType; `None` if it begins with an Ethernet header.
    pub ethertype: Option<u16>,
}

impl Inner {
    /// An Ethernet frame at `end`, if there is room for one.
    ///
    /// # Errors
    /// [`TunnelFault::Short`].
    pub(super) fn frame(datagram: &[u8], end: usize) -> Result<Self, TunnelFault> {
        inner_at(datagram, end).map(|at| Self { at, ethertype: None })
    }

    /// A packet of this EtherType at `at`, if it can be one; `tunnel` is told that it has no Ethernet header.
    ///
    /// # Errors
    /// [`TunnelFault::Protocol`] for an EtherType that is not carried without an Ethernet header, or that contradicts
    /// the packet's first bits; [`TunnelFault::Short`].
    pub(super) fn bare(
        datagram: &[u8],
        at: usize,
        ethertype: u16,
        tunnel: &mut OuterHeader,
    ) -> Result<Self, TunnelFault> {
        let packet = datagram.get(at..).unwrap_or_default();
        let (len_bytes, version) = fixed_header(ethertype).ok_or(TunnelFault::Protocol)?;
        if packet.len() < len_bytes {
            return Err(TunnelFault::Short);
        }
        if version.is_some_and(|version| packet.first().is_some_and(|first| first >> 4 != version)) {
            return Err(TunnelFault::Protocol);
        }
        tunnel.is_layer3 = true;
        Ok(Self { at, ethertype: Some(ethertype) })
    }
}

/// Bytes of the fixed header of a packet that may lack an Ethernet header, and its IP version.
fn fixed_header(ethertype: u16) -> Option<(usize, Option<u8>)> {
    match ethertype {
        ETHERTYPE_IPV4 => Some((IPV4_BYTES_MIN, Some(4))),
        ETHERTYPE_IPV6 => Some((IPV6_BYTES, Some(6))),
        ETHERTYPE_NSH => Some((8, None)),
        _ if ETHERTYPES_MPLS.contains(&ethertype) => Some((4, None)),
        _ => None,
    }
}

/// The placeholder of a packet.
#[must_use]
pub fn placeholder(ethertype: u16) -> [u8; PLACEHOLDER_BYTES] {
    let mut bytes = [0; PLACEHOLDER_BYTES];
    bytes[PLACEHOLDER_BYTES - 2..].copy_from_slice(&ethertype.to_be_bytes());
    bytes
}

/// The EtherType in a placeholder at the start of `frame`; `None` if no packet follows it.
#[must_use]
pub fn ethertype_in(frame: &[u8]) -> Option<u16> {
    let (head, _) = frame.split_first_chunk::<PLACEHOLDER_BYTES>().filter(|(_, rest)| !rest.is_empty())?;
    head.last_chunk().map(|bytes| u16::from_be_bytes(*bytes))
}
