//! The outer header of a packet that came through a tunnel, or is to go into one.

use std::net::{Ipv4Addr, Ipv6Addr};

/// Outer header and tunnel options (`OVS_KEY_ATTR_TUNNEL`, nested `OVS_TUNNEL_KEY_ATTR_*`).
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Tunnel {
    /// Tunnel's key: VNI, GRE key; at the low end of 64 bits.
    pub id: Option<u64>,
    /// Outer source, IPv4.
    pub ipv4_src: Option<Ipv4Addr>,
    /// Outer destination, IPv4. Either this or `ipv6_dst` is what makes a packet one from a tunnel.
    pub ipv4_dst: Option<Ipv4Addr>,
    /// Outer source, IPv6.
    pub ipv6_src: Option<Ipv6Addr>,
    /// Outer destination, IPv6.
    pub ipv6_dst: Option<Ipv6Addr>,
    /// Outer TOS or traffic class.
    pub tos: Option<u8>,
    /// Outer TTL or hop limit.
    pub ttl: Option<u8>,
    /// Outer DF flag.
    pub dont_fragment: bool,
    /// Outer checksum.
    pub csum: bool,
    /// OAM flag (Geneve).
    pub oam: bool,
    /// Outer source port.
    pub tp_src: Option<u16>,
    /// Outer destination port.
    pub tp_dst: Option<u16>,
    /// What the kind of tunnel adds.
    pub options: TunnelOptions,
    /// Tunnel information belongs to a bridge (`OVS_TUNNEL_KEY_ATTR_IPV4_INFO_BRIDGE`).
    pub is_info_bridge: bool,
}

/// What one kind of tunnel adds to its header. The bytes are as on the wire.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub enum TunnelOptions {
    /// Nothing.
    #[default]
    None,
    /// Geneve options (RFC 8926, 3.5), at most 252 bytes.
    Geneve(Vec<u8>),
    /// VXLAN group-based policy; `None` is the nested attribute without its value.
    VxlanGbp(Option<u32>),
    /// ERSPAN metadata.
    Erspan(Vec<u8>),
}
