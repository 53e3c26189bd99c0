//! The outer header of a packet that came through a tunnel, or is to go into one.

use std::net::{Ipv4Addr, Ipv6Addr};

/// Outer header and tunnel options (`OVS_KEY_ATTR_TUNNEL`, nested `OVS_TUNNEL_KEY_ATTR_*`).
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Tunnel {
    /// Tunnel's key: VNI, GRE key; at the low end of 64 bits.
    pub id: Option<u64>,
    /// Outer source, IPv4.
    pub ipv4_src: Option<Ipv4Addr>,
    /// Outer destination, IPv4. A packet with this or `ipv6_dst` is from a tunnel.
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
    /// The options of its kind of tunnel.
    pub options: TunnelOptions,
    /// Tunnel information belongs to a bridge (`OVS_TUNNEL_KEY_ATTR_IPV4_INFO_BRIDGE`).
    pub is_info_bridge: bool,
}

/// The options of one kind of tunnel. The bytes are as on the wire.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub enum TunnelOptions {
    /// Nothing.
    #[default]
    None,
    /// Geneve options (RFC 8926, 3.5), at most 252 bytes.
    Geneve(Vec<u8>),
    /// VXLAN group-based policy; `None` is the nested attribute without its value.
    VxlanGbp(Option<u32>),
    /// ERSPAN metadata (`struct erspan_metadata` of linux/erspan.h).
    Erspan(Vec<u8>),
}

/// The bits of a field that its mask looks at; nothing if it looks at none.
fn and<T: Copy, B: std::ops::BitAnd<Output = B> + Default + PartialEq>(
    key: Option<T>,
    mask: Option<T>,
    to: fn(T) -> B,
    from: fn(B) -> T,
) -> Option<T> {
    let mask = mask.filter(|mask| to(*mask) != B::default())?;
    key.map(|key| from(to(key) & to(mask)))
}

impl Tunnel {
    /// The bits that `mask` looks at; nothing if it looks at none.
    pub(crate) fn masked(&self, mask: &Self) -> Option<Self> {
        let masked = Self {
            id: and(self.id, mask.id, u64::from, u64::from),
            ipv4_src: and(self.ipv4_src, mask.ipv4_src, u32::from, Ipv4Addr::from),
            ipv4_dst: and(self.ipv4_dst, mask.ipv4_dst, u32::from, Ipv4Addr::from),
            ipv6_src: and(self.ipv6_src, mask.ipv6_src, u128::from, Ipv6Addr::from),
            ipv6_dst: and(self.ipv6_dst, mask.ipv6_dst, u128::from, Ipv6Addr::from),
            tos: and(self.tos, mask.tos, u8::from, u8::from),
            ttl: and(self.ttl, mask.ttl, u8::from, u8::from),
            dont_fragment: self.dont_fragment && mask.dont_fragment,
            csum: self.csum && mask.csum,
            oam: self.oam && mask.oam,
            tp_src: and(self.tp_src, mask.tp_src, u16::from, u16::from),
            tp_dst: and(self.tp_dst, mask.tp_dst, u16::from, u16::from),
            options: self.options.masked(&mask.options),
            is_info_bridge: self.is_info_bridge && mask.is_info_bridge,
        };
        (masked != Self::default()).then_some(masked)
    }
}

impl TunnelOptions {
    fn masked(&self, mask: &Self) -> Self {
        match (self, mask) {
            (Self::Geneve(key), Self::Geneve(mask)) => {
                masked_bytes(key, mask).map_or(Self::None, Self::Geneve)
            }
            (Self::Erspan(key), Self::Erspan(mask)) => {
                masked_bytes(key, mask).map_or(Self::None, Self::Erspan)
            }
            (Self::VxlanGbp(Some(key)), Self::VxlanGbp(Some(mask))) if *mask != 0 => {
                Self::VxlanGbp(Some(key & mask))
            }
            _ => Self::None,
        }
    }
}

fn masked_bytes(key: &[u8], mask: &[u8]) -> Option<Vec<u8>> {
    let looks = mask.iter().any(|byte| *byte != 0);
    looks.then(|| key.iter().zip(mask).map(|(key, mask)| key & mask).collect())
}
