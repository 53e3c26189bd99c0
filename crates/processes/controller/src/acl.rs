//! A port's rules about connections, and the connections that they allow.
//!
//! The first rule that applies decides; without one the connection is allowed. Each evaluation records the bits that it
//! depended on, as few leading digits as tell a value from those in a rule. So one flow serves all connections like it.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::rc::Rc;

use ipnet::IpNet;
use lasthop_api::acl::{AclAction, AclDirection, AclProtocol, AclRule, PortRanges};
use lasthop_bridge_policy::{MAC_ONES, digits_apart};
use lasthop_module_api::{DropReason, PortSettings};
use lasthop_wire::headers::{PROTO_ICMP, PROTO_ICMPV6, PROTO_SCTP, PROTO_TCP, PROTO_UDP};

use crate::groups::{AddressSet, Groups};
use crate::ranges::{is_within, range_digits};

/// Ports of DHCP servers and clients (RFC 2131, 4.1), and of DHCPv6 (RFC 8415, 7.2).
pub(crate) const DHCP: (u16, u16) = (67, 68);
pub(crate) const DHCPV6: (u16, u16) = (547, 546);

/// The rules of one port, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PortAcl {
    rules: Vec<PortRule>,
    /// Hash of port, rules, and addresses of groups that they name. It is the mark of connections that they allowed.
    digest: u32,
}

/// A rule, and the addresses of its remote groups.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct PortRule {
    rule: AclRule,
    remote: Option<Rc<AddressSet>>,
}

/// The kind of a packet, by EtherType and protocol.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum PacketKind {
    Arp,
    /// ICMPv6 between neighbours, routers and multicast listeners, which has no connections.
    Discovery,
    Ipv4,
    Ipv6,
    #[default]
    Other,
}

/// A connection as rules see it; or, as a mask, the bits that they evaluated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct ConnectionTuple {
    pub(crate) src: u128,
    pub(crate) dst: u128,
    /// Source port, or ICMP type.
    pub(crate) src_port: u16,
    /// Destination port, or ICMP code.
    pub(crate) dst_port: u16,
    pub(crate) protocol: u8,
}

impl ConnectionTuple {
    /// The bits of both masks.
    pub(crate) fn or(self, other: Self) -> Self {
        Self {
            src: self.src | other.src,
            dst: self.dst | other.dst,
            src_port: self.src_port | other.src_port,
            dst_port: self.dst_port | other.dst_port,
            protocol: self.protocol | other.protocol,
        }
    }
}

/// A connection that is about to pass a port.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Attempt<'a> {
    pub(crate) kind: PacketKind,
    pub(crate) direction: AclDirection,
    pub(crate) tuple: &'a ConnectionTuple,
    pub(crate) remote_mac: u64,
    pub(crate) vid: u16,
}

/// The bits that rules evaluated, besides the EtherType.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct AttemptBits {
    pub(crate) tuple: ConnectionTuple,
    pub(crate) remote_mac: u64,
}

/// The decision about a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) enum AclVerdict<'a> {
    /// By this rule, or since there is none about it.
    Allowed {
        rule: Option<&'a AclRule>,
    },
    Denied {
        rule: &'a AclRule,
    },
}

impl AclVerdict<'_> {
    /// Why its packets are dropped, if they are.
    pub(crate) fn reason(&self) -> Option<DropReason> {
        matches!(self, Self::Denied { .. }).then_some(DropReason::AclDenied)
    }
}

impl PortAcl {
    /// The rules of one port among all; `None` if it has none.
    pub(crate) fn of(port: &PortSettings, rules: &[AclRule], groups: &Groups) -> Option<Self> {
        let own = rules.iter().filter(|rule| rule.protects(&port.name, &port.policy.groups));
        let rules: Vec<PortRule> =
            own.map(|rule| PortRule { rule: rule.clone(), remote: groups.addresses(rule) }).collect();
        let mut hasher = DefaultHasher::new();
        (&port.name, &rules).hash(&mut hasher);
        // The mark 0 belongs to connections that no rules allowed.
        let digest = (hasher.finish() as u32).max(1);
        (!rules.is_empty()).then_some(Self { rules, digest })
    }

    /// The mark of connections in VLAN `vid` that these rules allowed.
    pub(crate) fn mark(&self, vid: u16) -> u32 {
        (self.digest ^ u32::from(vid) << 16).max(1)
    }

    /// Decides about a connection.
    pub(crate) fn evaluate(&self, attempt: &Attempt<'_>, bits: &mut AttemptBits) -> AclVerdict<'_> {
        let deciding = self.rules.iter().find(|rule| applies(rule, attempt, bits));
        match deciding.map(|deciding| &deciding.rule) {
            Some(rule) if rule.action == AclAction::Deny => AclVerdict::Denied { rule },
            rule => AclVerdict::Allowed { rule },
        }
    }
}

/// Whether a rule matches this connection.
fn applies(PortRule { rule, remote }: &PortRule, attempt: &Attempt<'_>, bits: &mut AttemptBits) -> bool {
    rule.direction == attempt.direction
        && rule.vlan.is_none_or(|vlan| vlan.get() == attempt.vid)
        && has_remote_mac(rule, attempt, bits)
        && has_kind(rule, attempt, bits)
        && has_addresses(rule, attempt, bits)
        && remote.as_ref().is_none_or(|remote| has_remote(remote, attempt, bits))
        && has_ports(rule, attempt, bits)
}

fn has_remote_mac(rule: &AclRule, attempt: &Attempt<'_>, bits: &mut AttemptBits) -> bool {
    let Some(mac) = rule.remote_mac.map(|mac| mac.to_bits()) else { return true };
    let is_same = mac == attempt.remote_mac;
    bits.remote_mac |= if is_same { MAC_ONES } else { digits_apart(attempt.remote_mac, mac, MAC_ONES, 48) };
    is_same
}

/// Whether the rule matches packets of this kind and protocol.
fn has_kind(rule: &AclRule, attempt: &Attempt<'_>, bits: &mut AttemptBits) -> bool {
    let is_ip = matches!(attempt.kind, PacketKind::Ipv4 | PacketKind::Ipv6 | PacketKind::Discovery);
    match rule.protocol {
        Some(AclProtocol::Arp) => attempt.kind == PacketKind::Arp,
        Some(AclProtocol::Ip(_)) if !is_ip => false,
        Some(AclProtocol::Ip(number)) => {
            bits.tuple.protocol = u8::MAX;
            number == attempt.tuple.protocol
        }
        None => match attempt.kind {
            PacketKind::Arp | PacketKind::Discovery => false,
            PacketKind::Other => {
                rule.remote.is_none() && rule.local.is_none() && rule.remote_group.is_empty()
            }
            PacketKind::Ipv4 => !is_dhcp_answer(attempt, DHCP, bits),
            PacketKind::Ipv6 => !is_dhcp_answer(attempt, DHCPV6, bits),
        },
    }
}

/// Whether it is a DHCP server's answer to the port, which a client may receive without a connection.
fn is_dhcp_answer(attempt: &Attempt<'_>, (server, client): (u16, u16), bits: &mut AttemptBits) -> bool {
    if attempt.direction == AclDirection::Egress {
        return false;
    }
    bits.tuple.protocol = u8::MAX;
    let ConnectionTuple { protocol, src_port, dst_port, .. } = *attempt.tuple;
    protocol == PROTO_UDP
        && is_within(src_port, server, server, &mut bits.tuple.src_port)
        && is_within(dst_port, client, client, &mut bits.tuple.dst_port)
}

fn has_addresses(rule: &AclRule, attempt: &Attempt<'_>, bits: &mut AttemptBits) -> bool {
    let ConnectionTuple { src, dst, .. } = *attempt.tuple;
    let (seen, mask) = (&mut bits.tuple, attempt.kind);
    match attempt.direction {
        AclDirection::Ingress => {
            has_address(rule.remote, src, mask, &mut seen.src)
                && has_address(rule.local, dst, mask, &mut seen.dst)
        }
        AclDirection::Egress => {
            has_address(rule.remote, dst, mask, &mut seen.dst)
                && has_address(rule.local, src, mask, &mut seen.src)
        }
    }
}

/// Whether the other side has one of the group's addresses.
fn has_remote(remote: &AddressSet, attempt: &Attempt<'_>, bits: &mut AttemptBits) -> bool {
    let (address, seen) = match attempt.direction {
        AclDirection::Ingress => (attempt.tuple.src, &mut bits.tuple.src),
        AclDirection::Egress => (attempt.tuple.dst, &mut bits.tuple.dst),
    };
    match attempt.kind {
        PacketKind::Ipv4 => remote.has(address, u32::BITS, seen),
        PacketKind::Ipv6 => remote.has(address, u128::BITS, seen),
        PacketKind::Arp | PacketKind::Discovery | PacketKind::Other => false,
    }
}

fn has_address(prefix: Option<IpNet>, address: u128, kind: PacketKind, bits: &mut u128) -> bool {
    let (first, last, width) = match prefix {
        None => return true,
        Some(IpNet::V4(net)) if kind == PacketKind::Ipv4 => {
            (net.network().to_bits().into(), net.broadcast().to_bits().into(), u32::BITS)
        }
        Some(IpNet::V6(net)) if kind == PacketKind::Ipv6 => {
            (net.network().to_bits(), net.broadcast().to_bits(), u128::BITS)
        }
        Some(_) => return false,
    };
    *bits |= range_digits(address, first, last, width);
    (first..=last).contains(&address)
}

fn has_ports(rule: &AclRule, attempt: &Attempt<'_>, bits: &mut AttemptBits) -> bool {
    let ConnectionTuple { src_port, dst_port, protocol, .. } = *attempt.tuple;
    let seen = &mut bits.tuple;
    match protocol {
        PROTO_TCP | PROTO_UDP | PROTO_SCTP => {
            is_among(src_port, rule.sport.as_ref(), &mut seen.src_port)
                && is_among(dst_port, rule.dport.as_ref(), &mut seen.dst_port)
        }
        PROTO_ICMP | PROTO_ICMPV6 => {
            is_number(src_port, rule.icmp_type, &mut seen.src_port)
                && is_number(dst_port, rule.icmp_code, &mut seen.dst_port)
        }
        _ => true,
    }
}

fn is_among(port: u16, ranges: Option<&PortRanges>, bits: &mut u16) -> bool {
    ranges.is_none_or(|ranges| ranges.iter().any(|range| is_within(port, range.first, range.last, bits)))
}

fn is_number(value: u16, wanted: Option<u8>, bits: &mut u16) -> bool {
    wanted.is_none_or(|wanted| is_within(value, wanted.into(), wanted.into(), bits))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(texts: &[&str]) -> PortAcl {
        let rule = |text: &&str| -> AclRule {
            let json = format!(r#"{{"name":"r{}","port":"web",{text}}}"#, text.len());
            serde_json::from_str(&json).expect("a rule")
        };
        let port = PortSettings { name: "web".to_owned(), ..PortSettings::default() };
        let rules: Vec<AclRule> = texts.iter().map(rule).collect();
        PortAcl::of(&port, &rules, &Groups::default()).expect("rules")
    }

    fn tcp(src: [u8; 4], dst_port: u16) -> ConnectionTuple {
        let (src, dst) = (u32::from_be_bytes(src).into(), u32::from_be_bytes([10, 0, 0, 1]).into());
        ConnectionTuple { src, dst, src_port: 40000, dst_port, protocol: PROTO_TCP }
    }

    fn is_allowed(acl: &PortAcl, direction: AclDirection, tuple: &ConnectionTuple) -> (bool, AttemptBits) {
        let attempt = Attempt { kind: PacketKind::Ipv4, direction, tuple, remote_mac: 7, vid: 0 };
        let mut bits = AttemptBits::default();
        let verdict = acl.evaluate(&attempt, &mut bits);
        (verdict.reason().is_none(), bits)
    }

    const HTTPS: &str = r#""direction":"ingress","action":"allow","protocol":"tcp","dport":443"#;
    const NOTHING: &str = r#""direction":"ingress","action":"deny""#;

    #[test]
    fn a_web_server_takes_two_rules() {
        let acl = rules(&[HTTPS, NOTHING]);
        let (is_in, bits) = is_allowed(&acl, AclDirection::Ingress, &tcp([9, 9, 9, 9], 443));
        assert!(is_in);
        assert_eq!((bits.tuple.protocol, bits.tuple.dst_port, bits.tuple.src), (0xff, 0xffff, 0));
        let (is_in, bits) = is_allowed(&acl, AclDirection::Ingress, &tcp([9, 9, 9, 9], 0x8000));
        assert!(!is_in);
        assert_eq!(bits.tuple.dst_port, 0xf000, "one flow for all ports that begin so");
        assert!(is_allowed(&acl, AclDirection::Egress, &tcp([9, 9, 9, 9], 22)).0);
    }

    #[test]
    fn a_rule_for_everything_leaves_answers_of_dhcp_and_neighbours_alone() {
        let acl = rules(&[NOTHING]);
        let answer =
            ConnectionTuple { src_port: 67, dst_port: 68, protocol: PROTO_UDP, ..tcp([10, 0, 0, 2], 0) };
        assert!(is_allowed(&acl, AclDirection::Ingress, &answer).0);
        let other = ConnectionTuple { dst_port: 69, ..answer };
        assert!(!is_allowed(&acl, AclDirection::Ingress, &other).0);
        let tuple = &ConnectionTuple::default();
        for (kind, is_passing) in
            [(PacketKind::Arp, true), (PacketKind::Discovery, true), (PacketKind::Other, false)]
        {
            let attempt = Attempt { kind, direction: AclDirection::Ingress, tuple, remote_mac: 0, vid: 0 };
            let verdict = acl.evaluate(&attempt, &mut AttemptBits::default());
            assert_eq!(verdict.reason().is_none(), is_passing, "{kind:?}");
        }
    }

    #[test]
    fn prefixes_are_told_apart_by_few_digits() {
        let acl = rules(&[r#""direction":"ingress","action":"deny","remote":"10.32.0.0/11""#]);
        let (is_in, bits) = is_allowed(&acl, AclDirection::Ingress, &tcp([10, 33, 0, 1], 1));
        assert_eq!((is_in, bits.tuple.src), (false, 0xfff0_0000));
        let (is_in, bits) = is_allowed(&acl, AclDirection::Ingress, &tcp([192, 33, 0, 1], 1));
        assert_eq!((is_in, bits.tuple.src), (true, 0xf000_0000));
    }

    #[test]
    fn marks_tell_ports_rules_and_vlans_apart() {
        let (one, other) = (rules(&[NOTHING]), rules(&[HTTPS, NOTHING]));
        assert_ne!(one.mark(0), other.mark(0));
        assert_ne!(one.mark(0), one.mark(5));
        assert_ne!(one.mark(0), 0);
    }
}
