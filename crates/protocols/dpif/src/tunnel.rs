//! Outer headers as attributes (`OVS_TUNNEL_KEY_ATTR_*`).

use std::net::{Ipv4Addr, Ipv6Addr};

use lasthop_flow::{Tunnel, TunnelOptions};

use crate::attr::{Attr, Attrs, Writer};
use crate::refusal::Refusal;
use crate::uapi::{tunnel as uapi, vport};

/// Bytes of Geneve options (RFC 8926, 3.4: a length of 6 bits, in words).
const GENEVE_BYTES_MAX: usize = 252;
/// Bytes of `struct erspan_metadata`.
const ERSPAN_BYTES_MAX: usize = 12;

/// Decodes an outer header, or its mask.
///
/// # Errors
/// EINVAL for attributes that are unknown or have a wrong length, and for options of two kinds at once.
pub(crate) fn decode(attrs: Attrs<'_>) -> Result<Tunnel, Refusal> {
    let mut tunnel = Tunnel::default();
    for attr in attrs {
        decode_attr(&mut tunnel, &attr?)?;
    }
    Ok(tunnel)
}

fn decode_attr(tunnel: &mut Tunnel, attr: &Attr<'_>) -> Result<(), Refusal> {
    match attr.kind {
        uapi::ID => tunnel.id = Some(u64::from_be_bytes(array(attr)?)),
        uapi::IPV4_SRC => tunnel.ipv4_src = Some(Ipv4Addr::from(array::<4>(attr)?)),
        uapi::IPV4_DST => tunnel.ipv4_dst = Some(Ipv4Addr::from(array::<4>(attr)?)),
        uapi::IPV6_SRC => tunnel.ipv6_src = Some(Ipv6Addr::from(array::<16>(attr)?)),
        uapi::IPV6_DST => tunnel.ipv6_dst = Some(Ipv6Addr::from(array::<16>(attr)?)),
        uapi::TOS => tunnel.tos = Some(u8::from_be_bytes(array(attr)?)),
        uapi::TTL => tunnel.ttl = Some(u8::from_be_bytes(array(attr)?)),
        uapi::DONT_FRAGMENT => tunnel.dont_fragment = flag(attr)?,
        uapi::CSUM => tunnel.csum = flag(attr)?,
        uapi::OAM => tunnel.oam = flag(attr)?,
        uapi::TP_SRC => tunnel.tp_src = Some(u16::from_be_bytes(array(attr)?)),
        uapi::TP_DST => tunnel.tp_dst = Some(u16::from_be_bytes(array(attr)?)),
        uapi::IPV4_INFO_BRIDGE => tunnel.is_info_bridge = flag(attr)?,
        uapi::PAD => {}
        _ => return decode_options(tunnel, attr),
    }
    Ok(())
}

fn decode_options(tunnel: &mut Tunnel, attr: &Attr<'_>) -> Result<(), Refusal> {
    let options = match attr.kind {
        uapi::GENEVE_OPTS => TunnelOptions::Geneve(geneve(attr.payload)?),
        uapi::VXLAN_OPTS => TunnelOptions::VxlanGbp(vxlan(attr.nested())?),
        uapi::ERSPAN_OPTS if attr.payload.len() <= ERSPAN_BYTES_MAX => {
            TunnelOptions::Erspan(attr.payload.to_vec())
        }
        _ => return Err(Refusal::invalid("the tunnel has an attribute of a type that is not known here")),
    };
    if tunnel.options != TunnelOptions::None {
        return Err(Refusal::invalid("the tunnel has options of more than one kind"));
    }
    tunnel.options = options;
    Ok(())
}

fn geneve(bytes: &[u8]) -> Result<Vec<u8>, Refusal> {
    let fits = bytes.len() <= GENEVE_BYTES_MAX && bytes.len().is_multiple_of(4);
    fits.then(|| bytes.to_vec())
        .ok_or(Refusal::invalid("Geneve options are at most 252 bytes, in words of four"))
}

fn vxlan(attrs: Attrs<'_>) -> Result<Option<u32>, Refusal> {
    let mut policy = None;
    for attr in attrs {
        let attr = attr?;
        if attr.kind != vport::VXLAN_EXT_GBP {
            return Err(Refusal::invalid("the VXLAN header has an option that is not known here"));
        }
        policy = Some(u32::from_ne_bytes(array(&attr)?));
    }
    Ok(policy)
}

fn array<const N: usize>(attr: &Attr<'_>) -> Result<[u8; N], Refusal> {
    attr.array()
        .map_err(|_| Refusal::invalid("an attribute of the tunnel does not have the length of its type"))
}

fn flag(attr: &Attr<'_>) -> Result<bool, Refusal> {
    array::<0>(attr).map(|_| true)
}

/// Encodes an outer header, or its mask.
pub(crate) fn encode(writer: &mut Writer, tunnel: &Tunnel) {
    writer.put_some(uapi::ID, tunnel.id.map(u64::to_be_bytes));
    writer.put_some(uapi::IPV4_SRC, tunnel.ipv4_src.map(|address| address.octets()));
    writer.put_some(uapi::IPV4_DST, tunnel.ipv4_dst.map(|address| address.octets()));
    writer.put_some(uapi::IPV6_SRC, tunnel.ipv6_src.map(|address| address.octets()));
    writer.put_some(uapi::IPV6_DST, tunnel.ipv6_dst.map(|address| address.octets()));
    writer.put_some(uapi::TOS, tunnel.tos.map(u8::to_be_bytes));
    writer.put_some(uapi::TTL, tunnel.ttl.map(u8::to_be_bytes));
    writer.put_flag(uapi::DONT_FRAGMENT, tunnel.dont_fragment);
    writer.put_flag(uapi::CSUM, tunnel.csum);
    writer.put_some(uapi::TP_SRC, tunnel.tp_src.map(u16::to_be_bytes));
    writer.put_some(uapi::TP_DST, tunnel.tp_dst.map(u16::to_be_bytes));
    writer.put_flag(uapi::OAM, tunnel.oam);
    writer.put_flag(uapi::IPV4_INFO_BRIDGE, tunnel.is_info_bridge);
    match &tunnel.options {
        TunnelOptions::None => {}
        TunnelOptions::Geneve(options) => writer.put(uapi::GENEVE_OPTS, options),
        TunnelOptions::Erspan(metadata) => writer.put(uapi::ERSPAN_OPTS, metadata),
        TunnelOptions::VxlanGbp(policy) => writer.nest(uapi::VXLAN_OPTS, |nested| {
            nested.put_some(vport::VXLAN_EXT_GBP, policy.map(u32::to_ne_bytes));
        }),
    }
}
