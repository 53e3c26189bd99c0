//! VXLAN (RFC 7348), with group policy (draft-smith-vxlan-group-policy).
//!
//! ```text
//!   | G, 0 : 3, I, 0 : 3 | 0, D, 0 : 2, A, 0 : 3 | policy : 16 | VNI : 24 | 0 : 8 |
//! ```

use super::{OptionBytes, OuterHeader, TunnelFault, VNI_MAX, flag, inner_at, vni};

/// The port that IANA assigned.
pub const PORT: u16 = 4789;
/// Bytes of the header.
pub const HEADER_BYTES: usize = 8;
/// Bytes of a group policy in the options: the second byte has D and A, the policy follows.
pub const POLICY_BYTES: usize = 4;
const HAS_VNI: u8 = 0x08;
const HAS_POLICY: u8 = 0x80;
/// "Do not learn" and "policy applied".
const POLICY_FLAGS: u8 = 0x48;

/// Parses the header of a datagram into `tunnel`. Returns the offset of the inner frame. `has_policy`: the port has the
/// group policy extension; without it, its flags are refused.
///
/// # Errors
/// [`TunnelFault`].
pub fn read(datagram: &[u8], has_policy: bool, tunnel: &mut OuterHeader) -> Result<usize, TunnelFault> {
    let header = datagram.first_chunk::<HEADER_BYTES>().ok_or(TunnelFault::Short)?;
    let &[first, flags, high, low, a, b, c, _] = header;
    let known = HAS_VNI | if has_policy { HAS_POLICY } else { 0 };
    if first & !known != 0 || first & HAS_VNI == 0 {
        return Err(TunnelFault::Version);
    }
    if first & HAS_POLICY != 0 {
        let policy = OptionBytes::of(&[0, flags & POLICY_FLAGS, high, low]);
        tunnel.options = policy.ok_or(TunnelFault::ManyOptions)?;
        tunnel.flags |= flag::GBP;
    } else if flags != 0 || high != 0 || low != 0 {
        return Err(TunnelFault::Version);
    }
    tunnel.id = vni([a, b, c]);
    tunnel.flags |= flag::KEY;
    inner_at(datagram, HEADER_BYTES)
}

/// The header of a packet for this tunnel.
#[must_use]
pub fn write(tunnel: &OuterHeader, has_policy: bool) -> [u8; HEADER_BYTES] {
    let [_, _, _, _, _, a, b, c] = (tunnel.id & VNI_MAX).to_be_bytes();
    match *tunnel.options_of(flag::GBP) {
        [_, flags, high, low] if has_policy => {
            [HAS_VNI | HAS_POLICY, flags & POLICY_FLAGS, high, low, a, b, c, 0]
        }
        _ => [HAS_VNI, 0, 0, 0, a, b, c, 0],
    }
}
