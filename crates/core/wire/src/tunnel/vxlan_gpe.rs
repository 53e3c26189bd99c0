//! VXLAN with protocol extension (draft-ietf-nvo3-vxlan-gpe).
//!
//! ```text
//!   | 0 : 2, version : 2, I, P, B, O | 0 : 16 | next protocol : 8 | VNI : 24 | 0 : 8 |
//! ```

use super::layer3::Inner;
use super::vxlan::HEADER_BYTES;
use super::{OuterHeader, TunnelFault, VNI_MAX, flag, vni};
use crate::headers::{ETHERTYPE_IPV4, ETHERTYPE_IPV6, ETHERTYPE_NSH, ETHERTYPES_MPLS};

const HAS_VNI: u8 = 0x08;
const HAS_PROTOCOL: u8 = 0x04;
/// The next protocol of Ethernet frames.
const ETHERNET: u8 = 3;
/// Next protocols of other packets, and their EtherTypes.
const PROTOCOLS: [(u8, u16); 4] =
    [(1, ETHERTYPE_IPV4), (2, ETHERTYPE_IPV6), (4, ETHERTYPE_NSH), (5, ETHERTYPES_MPLS[0])];

/// Parses the header of a datagram into `tunnel`. As in the kernel, identifier and next protocol have to be there, and
/// control packets (O) are refused.
///
/// # Errors
/// [`TunnelFault`].
pub fn read(datagram: &[u8], tunnel: &mut OuterHeader) -> Result<Inner, TunnelFault> {
    let header = datagram.first_chunk::<HEADER_BYTES>().ok_or(TunnelFault::Short)?;
    let &[first, _, _, next, a, b, c, _] = header;
    if first != HAS_VNI | HAS_PROTOCOL {
        return Err(TunnelFault::Version);
    }
    tunnel.id = vni([a, b, c]);
    tunnel.flags |= flag::KEY;
    if next == ETHERNET {
        return Inner::frame(datagram, HEADER_BYTES);
    }
    let known = PROTOCOLS.iter().find(|(protocol, _)| *protocol == next);
    let (_, ethertype) = known.ok_or(TunnelFault::Protocol)?;
    Inner::bare(datagram, HEADER_BYTES, *ethertype, tunnel)
}

/// The header of a packet for this tunnel; `ethertype` is that of a packet without an Ethernet header. `None` if it has
/// no next protocol.
#[must_use]
pub fn write(tunnel: &OuterHeader, ethertype: Option<u16>) -> Option<[u8; HEADER_BYTES]> {
    let next = match ethertype {
        None => ETHERNET,
        Some(wanted) => PROTOCOLS.iter().find(|(_, ethertype)| *ethertype == wanted)?.0,
    };
    let [_, _, _, _, _, a, b, c] = (tunnel.id & VNI_MAX).to_be_bytes();
    Some([HAS_VNI | HAS_PROTOCOL, 0, 0, next, a, b, c, 0])
}
