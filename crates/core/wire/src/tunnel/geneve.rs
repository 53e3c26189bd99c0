//! Geneve (RFC 8926).
//!
//! ```text
//!   | version : 2, options' length : 6 | O, C, 0 : 6 | protocol : 16 | VNI : 24 | 0 : 8 |  options: | class : 16 | C, type : 8 | 0 : 3, length : 5 | data |
//! ```

use super::{OPTIONS_BYTES_MAX, OptionBytes, OuterHeader, TunnelFault, VNI_MAX, flag, inner_at, vni};

/// The port that IANA assigned.
pub const PORT: u16 = 6081;
/// Bytes of the header before the options.
pub const BASE_BYTES: usize = 8;
/// Maximum bytes of the header that [`write`] makes.
pub const HEADER_BYTES_MAX: usize = BASE_BYTES + OPTIONS_BYTES_MAX;
/// "Transparent Ethernet bridging".
const PROTOCOL: [u8; 2] = [0x65, 0x58];
const VERSION: u8 = 0xc0;
const OPTIONS_WORDS: u8 = 0x3f;
const OAM: u8 = 0x80;
const CRITICAL: u8 = 0x40;
/// Bytes of an option before its data.
const OPTION_BYTES: usize = 4;

/// Parses the header of a datagram into `tunnel`. Returns the offset of the inner frame.
///
/// Options are not interpreted, not even critical ones: flows match on them and decide about the packet.
///
/// # Errors
/// [`TunnelFault`].
pub fn read(datagram: &[u8], tunnel: &mut OuterHeader) -> Result<usize, TunnelFault> {
    let (base, rest) = datagram.split_first_chunk::<BASE_BYTES>().ok_or(TunnelFault::Short)?;
    let &[first, bits, protocol @ .., a, b, c, _] = base;
    if first & VERSION != 0 {
        return Err(TunnelFault::Version);
    }
    if protocol != PROTOCOL {
        return Err(TunnelFault::Protocol);
    }
    let len = 4 * usize::from(first & OPTIONS_WORDS);
    let options = rest.get(..len).ok_or(TunnelFault::Short)?;
    check_options(options)?;
    tunnel.options = OptionBytes::of(options).ok_or(TunnelFault::ManyOptions)?;
    tunnel.id = vni([a, b, c]);
    tunnel.flags |= flag::KEY;
    if bits & OAM != 0 {
        tunnel.flags |= flag::OAM;
    }
    if len > 0 {
        tunnel.flags |= flag::GENEVE;
    }
    inner_at(datagram, BASE_BYTES + len)
}

fn check_options(mut options: &[u8]) -> Result<(), TunnelFault> {
    while !options.is_empty() {
        let [_, _, _, length, ..] = *options else { return Err(TunnelFault::Options) };
        let len = OPTION_BYTES + 4 * usize::from(length & 0x1f);
        options = options.get(len..).ok_or(TunnelFault::Options)?;
    }
    Ok(())
}

/// Whether there is a critical option, which the receiver has to know.
fn has_critical(mut options: &[u8]) -> bool {
    while let [_, _, kind, length, ..] = *options {
        if kind & 0x80 != 0 {
            return true;
        }
        options = options.get(OPTION_BYTES + 4 * usize::from(length & 0x1f)..).unwrap_or_default();
    }
    false
}

/// Writes the header of a packet for this tunnel. Returns its length in bytes.
#[must_use]
pub fn write(tunnel: &OuterHeader, out: &mut [u8; HEADER_BYTES_MAX]) -> usize {
    let options = tunnel.options_of(flag::GENEVE);
    let [_, _, _, _, _, a, b, c] = (tunnel.id & VNI_MAX).to_be_bytes();
    let oam = if tunnel.has(flag::OAM) { OAM } else { 0 };
    let critical = if has_critical(options) { CRITICAL } else { 0 };
    let words = (options.len() / 4) as u8; // at most 16
    let [d, e] = PROTOCOL;
    out[..BASE_BYTES].copy_from_slice(&[words, oam | critical, d, e, a, b, c, 0]);
    let end = BASE_BYTES + options.len();
    out[BASE_BYTES..end].copy_from_slice(options);
    end
}
