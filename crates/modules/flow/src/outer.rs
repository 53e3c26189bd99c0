//! Converts tunnel headers between the form of flows and that of packets.

use std::net::{Ipv4Addr, Ipv6Addr};

use lasthop_wire::tunnel::{OptionBytes, OuterHeader, erspan, flag};

use crate::key::FlowKey;
use crate::tunnel::{Tunnel, TunnelOptions};

/// Options of a tunnel that packets cannot carry here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnsupportedOptions(pub &'static str);

/// All bits of a field.
const EVERY: u8 = u8::MAX;

/// Returns the tunnel header in a packet's key; `None` if there is none, or one that is not supported here.
#[must_use]
pub fn tunnel_of(key: &FlowKey) -> Option<OuterHeader> {
    key.tunnel.as_deref().and_then(|tunnel| outer_header(tunnel).ok())
}

/// Converts the tunnel header of a key or of an action.
///
/// # Errors
/// If options have a type or length that packets cannot carry here.
pub fn outer_header(tunnel: &Tunnel) -> Result<OuterHeader, UnsupportedOptions> {
    let options = options(&tunnel.options)?;
    let of_options = match (&tunnel.options, options.get().len()) {
        (_, 0) => 0,
        (TunnelOptions::VxlanGbp(_), _) => flag::GBP,
        (TunnelOptions::Erspan(_), _) => flag::ERSPAN,
        _ => flag::GENEVE,
    };
    let is_ipv6 = tunnel.ipv6_dst.is_some_and(|address| !address.is_unspecified());
    let flags = flags(tunnel) | of_options | if is_ipv6 { flag::IPV6 } else { 0 };
    Ok(OuterHeader { flags, options, ..fields(tunnel) })
}

/// Converts the mask of a tunnel header.
///
/// # Errors
/// As [`outer_header`].
pub fn outer_header_mask(mask: &Tunnel) -> Result<(OuterHeader, u64), UnsupportedOptions> {
    // A match on options includes their length.
    let options_len = if mask.options == TunnelOptions::None { 0 } else { u64::from(EVERY) };
    let flags = flags(mask) | flag::IPV6;
    Ok((OuterHeader { flags, options: options(&mask.options)?, ..fields(mask) }, options_len))
}

fn flags(tunnel: &Tunnel) -> u8 {
    let of = |is_set: bool, flag: u8| if is_set { flag } else { 0 };
    of(tunnel.dont_fragment, flag::DONT_FRAGMENT)
        | of(tunnel.csum, flag::CSUM)
        | of(tunnel.oam, flag::OAM)
        | of(tunnel.id.is_some(), flag::KEY)
}

fn fields(tunnel: &Tunnel) -> OuterHeader {
    let address = |v4: Option<Ipv4Addr>, v6: Option<Ipv6Addr>| {
        let v4 = v4.map_or(0, |address| u128::from(u32::from(address)));
        v4 | v6.map_or(0, u128::from)
    };
    OuterHeader {
        tos: tunnel.tos.unwrap_or(0),
        ttl: tunnel.ttl.unwrap_or(0),
        tp_src: tunnel.tp_src.unwrap_or(0),
        tp_dst: tunnel.tp_dst.unwrap_or(0),
        id: tunnel.id.unwrap_or(0),
        src: address(tunnel.ipv4_src, tunnel.ipv6_src),
        dst: address(tunnel.ipv4_dst, tunnel.ipv6_dst),
        ..OuterHeader::default()
    }
}

fn options(options: &TunnelOptions) -> Result<OptionBytes, UnsupportedOptions> {
    let bytes = match options {
        TunnelOptions::None | TunnelOptions::VxlanGbp(None) => return Ok(OptionBytes::default()),
        TunnelOptions::Geneve(bytes) => OptionBytes::of(bytes),
        TunnelOptions::VxlanGbp(Some(policy)) => OptionBytes::of(&policy.to_be_bytes()),
        TunnelOptions::Erspan(bytes) if bytes.len() != erspan::OPTIONS_BYTES => {
            return Err(UnsupportedOptions("options of ERSPAN that are not 12 bytes"));
        }
        TunnelOptions::Erspan(bytes) => OptionBytes::of(bytes),
    };
    bytes.ok_or(UnsupportedOptions("tunnel options of more than 64 bytes"))
}

/// Converts a packet's header for the control plane.
#[must_use]
pub fn tunnel_told(outer: &OuterHeader) -> Tunnel {
    let has = |flag| outer.has(flag);
    let (is_ipv6, bytes) = (has(flag::IPV6), outer.options.get());
    let four = |address: u128| (!is_ipv6).then(|| Ipv4Addr::from(address as u32));
    let six = |address: u128| is_ipv6.then(|| Ipv6Addr::from(address));
    let options = match (outer.flags & flag::OPTIONS, bytes) {
        (flag::GBP, &[a, b, c, d]) => TunnelOptions::VxlanGbp(Some(u32::from_be_bytes([a, b, c, d]))),
        (flag::GENEVE, bytes) => TunnelOptions::Geneve(bytes.to_vec()),
        (flag::ERSPAN, bytes) => TunnelOptions::Erspan(bytes.to_vec()),
        _ => TunnelOptions::None,
    };
    let port = |port: u16| (port != 0).then_some(port);
    Tunnel {
        id: has(flag::KEY).then_some(outer.id),
        ipv4_src: four(outer.src),
        ipv4_dst: four(outer.dst),
        ipv6_src: six(outer.src),
        ipv6_dst: six(outer.dst),
        tos: Some(outer.tos),
        ttl: Some(outer.ttl),
        dont_fragment: has(flag::DONT_FRAGMENT),
        csum: has(flag::CSUM),
        oam: has(flag::OAM),
        tp_src: port(outer.tp_src),
        tp_dst: port(outer.tp_dst),
        options,
        is_info_bridge: false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tunnel(options: TunnelOptions) -> Tunnel {
        Tunnel {
            id: Some(5),
            ipv4_src: Some([10, 0, 0, 1].into()),
            ipv4_dst: Some([10, 0, 0, 2].into()),
            tos: Some(4),
            ttl: Some(64),
            csum: true,
            tp_src: Some(1000),
            tp_dst: Some(6081),
            options,
            ..Tunnel::default()
        }
    }

    #[test]
    fn a_header_is_described_as_flows_have_it() {
        let kinds = [
            TunnelOptions::None,
            TunnelOptions::Geneve(vec![1, 2, 3, 0]),
            TunnelOptions::VxlanGbp(Some(7)),
            TunnelOptions::Erspan(vec![1, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 0]),
        ];
        let of_gre = Tunnel { tp_src: None, tp_dst: None, ..tunnel(TunnelOptions::None) };
        assert_eq!(outer_header(&of_gre).map(|outer| tunnel_told(&outer)), Ok(of_gre), "it has no ports");
        for options in kinds {
            let of_ipv4 = tunnel(options.clone());
            assert_eq!(outer_header(&of_ipv4).map(|outer| tunnel_told(&outer)), Ok(of_ipv4));
            let (src, dst) = (Some(Ipv6Addr::from(1)), Some(Ipv6Addr::from(2)));
            let of_ipv6 =
                Tunnel { ipv4_src: None, ipv4_dst: None, ipv6_src: src, ipv6_dst: dst, ..tunnel(options) };
            assert_eq!(outer_header(&of_ipv6).map(|outer| tunnel_told(&outer)), Ok(of_ipv6));
        }
    }

    #[test]
    fn options_that_packets_do_not_carry_are_refused() {
        assert!(outer_header(&tunnel(TunnelOptions::Geneve(vec![0; 64]))).is_ok());
        assert!(outer_header(&tunnel(TunnelOptions::Geneve(vec![0; 68]))).is_err());
        assert!(outer_header(&tunnel(TunnelOptions::Erspan(vec![0; 12]))).is_ok());
        assert!(outer_header(&tunnel(TunnelOptions::Erspan(vec![0; 8]))).is_err());
        let key = FlowKey { tunnel: Some(Box::new(tunnel(TunnelOptions::None))), ..FlowKey::default() };
        assert_eq!(tunnel_of(&key).map(|outer| outer.dst), Some(0x0a00_0002));
        assert_eq!(tunnel_of(&FlowKey::default()), None);
    }
}
