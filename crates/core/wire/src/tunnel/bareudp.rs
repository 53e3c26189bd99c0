//! Packets directly behind a UDP header: MPLS (RFC 7510), or IP of both versions.

use super::layer3::Inner;
use super::{OuterHeader, TunnelFault};
use crate::headers::{ETHERTYPE_IPV4, ETHERTYPE_IPV6, ETHERTYPES_MPLS};

/// The port that IANA assigned to MPLS.
pub const MPLS_PORT: u16 = 6635;

/// Finds the packet of a datagram, which has no other header. `is_mpls`: packets are MPLS; otherwise each says its
/// version of IP.
///
/// # Errors
/// [`TunnelFault`].
pub fn read(datagram: &[u8], is_mpls: bool, tunnel: &mut OuterHeader) -> Result<Inner, TunnelFault> {
    let first = datagram.first().ok_or(TunnelFault::Short)?;
    let ethertype = match first >> 4 {
        _ if is_mpls => ETHERTYPES_MPLS[0],
        4 => ETHERTYPE_IPV4,
        6 => ETHERTYPE_IPV6,
        _ => return Err(TunnelFault::Protocol),
    };
    Inner::bare(datagram, 0, ethertype, tunnel)
}

/// Whether a packet of this EtherType can be sent.
#[must_use]
pub fn takes(ethertype: u16, is_mpls: bool) -> bool {
    match ethertype {
        ETHERTYPE_IPV4 | ETHERTYPE_IPV6 => !is_mpls,
        _ => is_mpls && ETHERTYPES_MPLS.contains(&ethertype),
    }
}
