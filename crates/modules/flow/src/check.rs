//! Checks keys and masks by the rules of the kernel's datapath, so that control planes find the behaviour that they
//! know.

use std::fmt;

use lasthop_wire::headers::{
    ETHERTYPE_ARP, ETHERTYPE_IPV4, ETHERTYPE_IPV6, ETHERTYPE_NSH, ETHERTYPE_RARP, ETHERTYPES_MPLS,
    PROTO_ICMP, PROTO_ICMPV6, PROTO_SCTP, PROTO_TCP, PROTO_UDP,
};

use crate::group::Ipv4;
use crate::key::{FRAGMENT_LATER, FlowKey, VLAN_PRESENT};
use crate::tunnel::TunnelOptions;

/// Ports of one datapath (`DP_MAX_PORTS`).
const PORTS_MAX: u32 = 65_536;
const LABEL_MAX: u32 = 0xf_ffff;

/// ICMPv6 types of neighbour solicitation and advertisement (RFC 4861, 4.3 and 4.4).
const ND_TYPES: [u8; 2] = [135, 136];

/// The reason that a match is refused: one sentence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MatchError(pub &'static str);

impl fmt::Display for MatchError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl std::error::Error for MatchError {}

/// A flow's match.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Match {
    /// The required bits.
    pub key: FlowKey,
    /// The mask; without one every bit of every field in the key must match.
    pub mask: Option<FlowKey>,
}

impl Match {
    /// The mask, or all bits of the key's fields.
    #[must_use]
    pub fn masked_key(&self) -> FlowKey {
        self.mask.as_ref().map_or_else(|| self.key.clone(), |mask| self.key.masked(mask))
    }

    /// A canonical form of the match: the key under the mask, and the mask without groups of zeros. Two matches with
    /// equal canonical forms match the same packets.
    #[must_use]
    pub fn packets(&self) -> (FlowKey, Option<FlowKey>) {
        (self.masked_key(), self.mask.as_ref().map(|mask| mask.masked(mask)))
    }

    /// Checks that the key is complete for its kind of packet, and that the mask has only fields which all matching
    /// packets have.
    ///
    /// # Errors
    /// The first error that is found.
    pub fn check(&self) -> Result<(), MatchError> {
        check_values(&self.key)?;
        let wanted = Layers::of_key(&self.key);
        if !Layers::present(&self.key).has_all(wanted) {
            return Err(MatchError(
                "the flow key lacks attributes that its EtherType or IP protocol calls for",
            ));
        }
        let Some(mask) = &self.mask else { return Ok(()) };
        check_vlan_mask(&self.key, mask)?;
        check_metadata_mask(&self.key, mask)?;
        check_options_mask(&self.key, mask)?;
        if !Layers::of_mask(&self.key, mask).has_all(Layers::present(mask).without_zeros(mask)) {
            return Err(MatchError(
                "the mask looks at attributes without an exact EtherType or IP protocol for them",
            ));
        }
        Ok(())
    }
}

fn check_values(key: &FlowKey) -> Result<(), MatchError> {
    let rules = [
        (key.in_port.is_none_or(|port| port < PORTS_MAX), "the input port is beyond 65535"),
        (key.ipv6.is_none_or(|ip| ip.label <= LABEL_MAX), "the IPv6 flow label is longer than 20 bits"),
        (key.ipv4.is_none_or(|ip| ip.frag <= FRAGMENT_LATER), "the IPv4 fragment type is unknown"),
        (key.ipv6.is_none_or(|ip| ip.frag <= FRAGMENT_LATER), "the IPv6 fragment type is unknown"),
        (key.arp.is_none_or(|arp| arp.op <= 0xff), "the ARP operation is beyond 255"),
        (key.ct.state.is_none_or(|state| state <= 0xff), "the connection state has unknown bits"),
        (
            key.ethernet.is_some() || key.ether_type.is_some(),
            "a packet without Ethernet header needs an EtherType",
        ),
    ];
    match rules.iter().find(|(holds, _)| !holds) {
        Some((_, why)) => Err(MatchError(why)),
        None => check_tags(key).and_then(|()| check_tunnel(key)),
    }
}

fn check_tags(key: &FlowKey) -> Result<(), MatchError> {
    let is_cut = |tci: u16| tci & VLAN_PRESENT == 0;
    if key.vlans.iter().any(|vlan| is_cut(vlan.tci) && vlan.tci != 0) {
        return Err(MatchError("a VLAN TCI lacks the bit 0x1000, which says that there is a tag"));
    }
    let cut = key.vlans.iter().position(|vlan| is_cut(vlan.tci));
    let is_last = |at: usize| at + 1 == key.vlans.len() && key.ether_type.is_none();
    if cut.is_some_and(|at| !is_last(at)) {
        return Err(MatchError("something follows a VLAN header that is cut short"));
    }
    Ok(())
}

fn check_tunnel(key: &FlowKey) -> Result<(), MatchError> {
    let Some(tunnel) = &key.tunnel else { return Ok(()) };
    let v4 = tunnel.ipv4_dst.is_some_and(|address| !address.is_unspecified());
    let v6 = tunnel.ipv6_dst.is_some_and(|address| !address.is_unspecified());
    if !v4 && !v6 && !tunnel.is_info_bridge {
        return Err(MatchError("the tunnel's destination address is zero"));
    }
    if tunnel.ttl.is_none() {
        return Err(MatchError("the tunnel has no TTL"));
    }
    Ok(())
}

/// A match requires a tag to be present or absent; it cannot leave that open.
fn check_vlan_mask(key: &FlowKey, mask: &FlowKey) -> Result<(), MatchError> {
    if mask.vlans.len() > key.vlans.len() {
        return Err(MatchError("the mask has more VLAN tags than the key"));
    }
    if mask.vlans.iter().any(|vlan| vlan.tci & VLAN_PRESENT == 0) {
        return Err(MatchError("the VLAN mask has to look at the bit 0x1000 of the TCI"));
    }
    if mask.vlans.iter().any(|vlan| vlan.tpid != 0xffff) {
        return Err(MatchError("the mask of a VLAN tag has to look at its whole EtherType"));
    }
    Ok(())
}

/// A field of a mask must be in the key. Input port and tunnel are exceptions: every packet has them, and they are zero
/// if absent.
fn check_metadata_mask(key: &FlowKey, mask: &FlowKey) -> Result<(), MatchError> {
    fn is_beyond<T: Default + PartialEq>(key: &Option<T>, mask: &Option<T>) -> bool {
        key.is_none() && mask.as_ref().is_some_and(|mask| *mask != T::default())
    }
    let beyond = is_beyond(&key.recirc_id, &mask.recirc_id)
        || is_beyond(&key.dp_hash, &mask.dp_hash)
        || is_beyond(&key.priority, &mask.priority)
        || is_beyond(&key.mark, &mask.mark)
        || is_beyond(&key.ethernet, &mask.ethernet)
        || is_beyond(&key.ct.state, &mask.ct.state)
        || is_beyond(&key.ct.zone, &mask.ct.zone)
        || is_beyond(&key.ct.mark, &mask.ct.mark)
        || is_beyond(&key.ct.labels, &mask.ct.labels)
        || is_beyond(&key.ct.tuple4, &mask.ct.tuple4)
        || is_beyond(&key.ct.tuple6, &mask.ct.tuple6);
    if beyond { Err(MatchError("the mask looks at an attribute that the key does not have")) } else { Ok(()) }
}

/// Geneve options are matched at fixed offsets, so that mask and key must have the same length.
fn check_options_mask(key: &FlowKey, mask: &FlowKey) -> Result<(), MatchError> {
    let options = |key: &FlowKey| key.tunnel.as_ref().map(|tunnel| tunnel.options.clone());
    match (options(key), options(mask)) {
        (Some(TunnelOptions::Geneve(key)), Some(TunnelOptions::Geneve(mask))) if key.len() != mask.len() => {
            Err(MatchError("the mask of Geneve options does not have their length"))
        }
        _ => Ok(()),
    }
}

/// The groups behind the Ethernet header that are present or required, one bit each.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Layers(u16);

impl Layers {
    const IPV4: u16 = 1 << 0;
    const IPV6: u16 = 1 << 1;
    const ARP: u16 = 1 << 2;
    const MPLS: u16 = 1 << 3;
    const NSH: u16 = 1 << 4;
    const TCP: u16 = 1 << 5;
    const TCP_FLAGS: u16 = 1 << 6;
    const UDP: u16 = 1 << 7;
    const SCTP: u16 = 1 << 8;
    const ICMP: u16 = 1 << 9;
    const ICMPV6: u16 = 1 << 10;
    const ND: u16 = 1 << 11;

    fn has_all(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    fn present(key: &FlowKey) -> Self {
        let bits = [
            (key.ipv4.is_some(), Self::IPV4),
            (key.ipv6.is_some(), Self::IPV6),
            (key.arp.is_some(), Self::ARP),
            (!key.mpls.is_empty(), Self::MPLS),
            (key.nsh.is_some(), Self::NSH),
            (key.tcp.is_some(), Self::TCP),
            (key.tcp_flags.is_some(), Self::TCP_FLAGS),
            (key.udp.is_some(), Self::UDP),
            (key.sctp.is_some(), Self::SCTP),
            (key.icmp.is_some(), Self::ICMP),
            (key.icmpv6.is_some(), Self::ICMPV6),
            (key.nd.is_some(), Self::ND),
        ];
        Self(bits.iter().filter(|(is_there, _)| *is_there).fold(0, |all, (_, bit)| all | bit))
    }

    /// Removes the groups that are zero in `mask`.
    fn without_zeros(self, mask: &FlowKey) -> Self {
        fn zero<T: Default + PartialEq>(group: Option<T>) -> bool {
            group.is_none_or(|group| group == T::default())
        }
        let zeros = [
            (zero(mask.ipv4), Self::IPV4),
            (zero(mask.ipv6), Self::IPV6),
            (zero(mask.arp), Self::ARP),
            (mask.mpls.iter().all(|lse| *lse == 0), Self::MPLS),
            (zero(mask.nsh.clone()), Self::NSH),
            (zero(mask.tcp), Self::TCP),
            (zero(mask.tcp_flags), Self::TCP_FLAGS),
            (zero(mask.udp), Self::UDP),
            (zero(mask.sctp), Self::SCTP),
            (zero(mask.icmp), Self::ICMP),
            (zero(mask.icmpv6), Self::ICMPV6),
            (zero(mask.nd), Self::ND),
        ];
        Self(zeros.iter().filter(|(is_zero, _)| *is_zero).fold(self.0, |all, (_, bit)| all & !bit))
    }

    fn of_key(key: &FlowKey) -> Self {
        let v4 = key.ipv4.unwrap_or_default();
        let v6 = key.ipv6.unwrap_or_default();
        match key.ether_type {
            Some(ETHERTYPE_IPV4) => Self(Self::IPV4 | transport4(v4)),
            Some(ETHERTYPE_IPV6) if v6.frag == FRAGMENT_LATER => Self(Self::IPV6),
            Some(ETHERTYPE_IPV6) => Self(Self::IPV6 | transport6(v6.proto) | neighbour(key)),
            Some(ETHERTYPE_ARP | ETHERTYPE_RARP) => Self(Self::ARP),
            Some(ETHERTYPE_NSH) => Self(Self::NSH),
            Some(kind) if ETHERTYPES_MPLS.contains(&kind) => Self(Self::MPLS),
            _ => Self(0),
        }
    }

    /// The groups that a mask may have: those of the key, as far as the mask ensures that the packet has them.
    fn of_mask(key: &FlowKey, mask: &FlowKey) -> Self {
        const NETWORK: u16 = Layers::IPV4 | Layers::IPV6 | Layers::ARP | Layers::MPLS | Layers::NSH;
        let mut allowed = Self::of_key(key).0;
        let proto = mask.ipv4.map(|ip| ip.proto).or(mask.ipv6.map(|ip| ip.proto)).unwrap_or(0);
        if mask.ether_type != Some(0xffff) {
            allowed = 0;
        }
        if proto != 0xff {
            allowed &= NETWORK;
        }
        if mask.icmpv6.is_none_or(|icmp| icmp.kind != 0xff) {
            allowed &= !Self::ND;
        }
        Self(allowed)
    }
}

fn transport4(ip: Ipv4) -> u16 {
    match ip.proto {
        _ if ip.frag == FRAGMENT_LATER => 0,
        PROTO_ICMP => Layers::ICMP,
        proto => transport(proto),
    }
}

fn transport6(proto: u8) -> u16 {
    if proto == PROTO_ICMPV6 { Layers::ICMPV6 } else { transport(proto) }
}

fn transport(proto: u8) -> u16 {
    match proto {
        PROTO_TCP => Layers::TCP | Layers::TCP_FLAGS,
        PROTO_UDP => Layers::UDP,
        PROTO_SCTP => Layers::SCTP,
        _ => 0,
    }
}

fn neighbour(key: &FlowKey) -> u16 {
    let is_icmpv6 = key.ipv6.is_some_and(|ip| ip.proto == PROTO_ICMPV6);
    let is_nd = key.icmpv6.is_some_and(|icmp| ND_TYPES.contains(&icmp.kind));
    if is_icmpv6 && is_nd { Layers::ND } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Ethernet, Group, Ports, Vlan};

    fn tcp() -> FlowKey {
        FlowKey {
            ethernet: Some(Ethernet::default()),
            ether_type: Some(ETHERTYPE_IPV4),
            ipv4: Some(Ipv4 { proto: PROTO_TCP, ..Ipv4::default() }),
            tcp: Some(Ports::default()),
            tcp_flags: Some(0),
            ..FlowKey::default()
        }
    }

    fn check(key: FlowKey, mask: FlowKey) -> Result<(), MatchError> {
        Match { key, mask: Some(mask) }.check()
    }

    #[test]
    fn a_key_is_complete() {
        let exact = |key| Match { key, mask: None }.check();
        assert_eq!(exact(tcp()), Ok(()));
        assert!(exact(FlowKey { tcp: None, ..tcp() }).is_err());
        assert!(exact(FlowKey { ipv4: None, ..tcp() }).is_err());
        let later = Ipv4 { proto: PROTO_TCP, frag: FRAGMENT_LATER, ..Ipv4::default() };
        assert_eq!(exact(FlowKey { ipv4: Some(later), tcp: None, tcp_flags: None, ..tcp() }), Ok(()));
        assert!(exact(FlowKey { ethernet: None, ether_type: None, ..FlowKey::default() }).is_err());
    }

    #[test]
    fn a_mask_looks_at_ports_only_where_there_are_any() {
        let proto = |proto| Some(Ipv4 { proto, ..Ipv4::default() });
        let mask =
            |ether_type, ipv4| FlowKey { ether_type, ipv4, tcp: Some(Ports::ones()), ..FlowKey::default() };
        assert_eq!(check(tcp(), mask(Some(0xffff), proto(0xff))), Ok(()));
        assert!(check(tcp(), mask(Some(0xffff), proto(0xf0))).is_err());
        assert!(check(tcp(), mask(Some(0xff00), proto(0xff))).is_err());
        let nothing = FlowKey { tcp: Some(Ports::default()), ..FlowKey::default() };
        assert_eq!(check(tcp(), nothing), Ok(()), "a mask of zeros looks at nothing");
    }

    #[test]
    fn a_mask_looks_at_nothing_that_the_key_does_not_have() {
        let mask = |priority| FlowKey { priority: Some(priority), ..FlowKey::default() };
        assert!(check(tcp(), mask(1)).is_err());
        assert_eq!(check(tcp(), mask(0)), Ok(()));
        assert_eq!(check(FlowKey { priority: Some(0), ..tcp() }, mask(1)), Ok(()));
        let in_port = FlowKey { in_port: Some(u32::MAX), ..FlowKey::default() };
        assert_eq!(check(tcp(), in_port), Ok(()));
        let options = |bytes: &[u8], ttl| {
            let options = TunnelOptions::Geneve(bytes.to_vec());
            let dst = Some([1, 1, 1, 1].into());
            Some(Box::new(crate::Tunnel { options, ttl, ipv4_dst: dst, ..crate::Tunnel::default() }))
        };
        let key = FlowKey { tunnel: options(&[0; 8], Some(64)), ..tcp() };
        let mask = |bytes| FlowKey { tunnel: options(bytes, None), ..FlowKey::default() };
        assert_eq!(check(key.clone(), mask(&[0xff; 8])), Ok(()));
        assert!(check(key, mask(&[0xff; 4])).is_err());
    }

    #[test]
    fn bits_outside_the_mask_make_no_difference() {
        let mask = FlowKey { tcp: Some(Ports { src: 0, dst: 0xffff }), ..FlowKey::default() };
        let from = |src| Match {
            key: FlowKey { tcp: Some(Ports { src, dst: 80 }), ..tcp() },
            mask: Some(mask.clone()),
        };
        assert_eq!(from(1).masked_key(), from(2).masked_key());
        assert_eq!(from(1).masked_key().tcp, Some(Ports { src: 0, dst: 80 }));
        assert_eq!(from(1).masked_key().ipv4, None);
        let mut other = from(3);
        other.mask.as_mut().expect("it has one").ipv4 = Some(Ipv4::default());
        assert_ne!(other.mask, from(1).mask);
        assert_eq!(other.packets(), from(1).packets(), "a mask of zeros looks at nothing");
    }

    #[test]
    fn tags_are_there_or_not() {
        let tagged = |tpid, tci| {
            let mut key = tcp();
            key.vlans.push(Vlan { tpid, tci });
            key
        };
        assert_eq!(Match { key: tagged(0x8100, 0x1005), mask: None }.check(), Ok(()));
        assert!(Match { key: tagged(0x8100, 0x0005), mask: None }.check().is_err());
        assert!(Match { key: tagged(0x8100, 0), mask: None }.check().is_err(), "nothing follows a cut tag");
        let vlan_only = |tci| {
            let mut mask = FlowKey::default();
            mask.vlans.push(Vlan { tpid: 0xffff, tci });
            mask
        };
        assert_eq!(check(tagged(0x8100, 0x1005), vlan_only(0x1fff)), Ok(()));
        assert!(check(tagged(0x8100, 0x1005), vlan_only(0x0fff)).is_err());
        assert!(check(tcp(), vlan_only(0x1fff)).is_err(), "more tags than the key");
    }
}
