//! A packet as a decision sees it, and the bits that the decision depends on.
//!
//! ```text
//!   FlowKey of a miss ──> Frame ──decide──> actions, Looked ──> Match: the widest flow whose packets are all decided alike
//! ```

use lasthop_bridge_policy::{Recorder, TCI_VID, digits_apart, refused_source_bits};
use lasthop_flow::{
    Arp, Ethernet, FlowKey, Icmp, Ipv4, Ipv6, Match, NeighbourDiscovery, Nsh, Ports, VLAN_PRESENT, Vlan,
};
use lasthop_module_api::{DropReason, FrameTag, Mac, NO_VID};
use lasthop_wire::headers::{
    ETHERTYPE_ARP, ETHERTYPE_IPV4, ETHERTYPE_IPV6, ETHERTYPE_NSH, ETHERTYPE_RARP, ETHERTYPE_VLAN,
    ETHERTYPES_MPLS, PROTO_ICMP, PROTO_ICMPV6, PROTO_SCTP, PROTO_TCP, PROTO_UDP,
};
use lasthop_wire::key::ETHERTYPE_802_2;

use crate::acl::PacketKind;
use crate::claims::Claims;
use crate::connection::Connection;

/// Priority bits of a TCI. Bit 12 says that there is a tag.
pub(crate) const TCI_PRIORITY: u16 = 0xe000;

/// ICMPv6 types of multicast listener and neighbour discovery, first and last (RFC 2710, 3; RFC 4861, 4).
const DISCOVERY_TYPES: (u8, u8) = (130, 137);
/// The type of MLDv2 reports (RFC 3810, 5.2).
const MLD2_REPORT: u8 = 143;

/// The fields of a packet that a bridge, and the rules of its ports, evaluate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Frame {
    pub(crate) port: u32,
    pub(crate) src: u64,
    pub(crate) dst: u64,
    /// EtherType behind all tags.
    pub(crate) ether_type: u16,
    /// EtherType and TCI of the first tag; EtherType 0 for no tag.
    pub(crate) outer: (u16, u16),
    /// EtherType of the second tag; 0 for none.
    pub(crate) inner: u16,
    /// The pass through the table; 0 for the first.
    pub(crate) recirc_id: u32,
    /// IP protocol; 0 for none.
    pub(crate) protocol: u8,
    pub(crate) icmpv6_type: u8,
    /// Its claims about its sender.
    pub(crate) claims: Claims,
    /// Its connection, once tracked.
    pub(crate) connection: Connection,
}

/// The bits that a decision depends on, besides the port and the presence of tags.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Looked {
    pub(crate) src: u64,
    pub(crate) dst: u64,
    pub(crate) ether_type: u16,
    /// Bits of the first tag.
    pub(crate) tci: u16,
    pub(crate) protocol: u8,
    pub(crate) icmpv6_type: u8,
    pub(crate) claims: Claims,
    pub(crate) connection: Connection,
}

impl Frame {
    /// `None` for packets without input port or Ethernet header, which never miss.
    pub(crate) fn of(key: &FlowKey) -> Option<Self> {
        let (port, ethernet) = (key.in_port?, key.ethernet?);
        let mut frame = Self {
            port,
            src: ethernet.src.to_bits(),
            dst: ethernet.dst.to_bits(),
            ether_type: key.ether_type.unwrap_or(ETHERTYPE_802_2),
            recirc_id: key.recirc_id.unwrap_or(0),
            protocol: protocol(key),
            icmpv6_type: key.icmpv6.map_or(0, |icmp| icmp.kind),
            claims: Claims::of(key),
            connection: Connection::of(&key.ct),
            ..Self::default()
        };
        let is_whole = |vlan: &&Vlan| vlan.tci & VLAN_PRESENT != 0;
        let mut tags = key.vlans.iter();
        if let Some(outer) = tags.next().filter(is_whole) {
            frame.outer = (outer.tpid, outer.tci);
            frame.inner = tags.next().filter(is_whole).map_or(0, |inner| inner.tpid);
        }
        // A frame that ends in a tag has its EtherType and nothing else.
        if let Some(cut) = key.vlans.iter().find(|vlan| vlan.tci & VLAN_PRESENT == 0) {
            frame.ether_type = cut.tpid;
        }
        Some(frame)
    }

    /// The tag with which it arrived.
    pub(crate) fn tag(&self) -> FrameTag {
        match (self.is_tagged(), self.vid()) {
            (false, _) => FrameTag::None,
            (true, NO_VID) => FrameTag::PriorityOnly,
            (true, _) => FrameTag::Vlan,
        }
    }

    /// The TCI of a tag of VLAN `vid`, new or in place of the first one.
    pub(crate) fn tci(&self, vid: u16) -> u16 {
        let kept = if self.is_tagged() { self.outer.1 & !TCI_VID } else { 0 };
        kept | VLAN_PRESENT | vid
    }

    /// The VID of the first tag, if that is an IEEE 802.1Q tag. A frame that ends in its tag looks untagged except for
    /// its EtherType.
    pub(crate) fn tag_vid(&self, looked: &mut Looked) -> Result<Option<u16>, DropReason> {
        if self.outer.0 == 0 {
            if self.ether_type == ETHERTYPE_VLAN {
                looked.ether_type = u16::MAX;
                return Err(DropReason::TooShort);
            }
            looked.ether_type |= apart_from_tag(self.ether_type);
        }
        Ok(self.is_tagged().then(|| self.vid()))
    }

    /// Its kind, as rules distinguish kinds.
    pub(crate) fn kind(&self, looked: &mut Looked) -> PacketKind {
        looked.ether_type = u16::MAX;
        match self.ether_type {
            ETHERTYPE_ARP => PacketKind::Arp,
            ETHERTYPE_IPV4 => PacketKind::Ipv4,
            ETHERTYPE_IPV6 if self.is_discovery(looked) => PacketKind::Discovery,
            ETHERTYPE_IPV6 => PacketKind::Ipv6,
            _ => PacketKind::Other,
        }
    }

    fn is_discovery(&self, looked: &mut Looked) -> bool {
        looked.protocol = u8::MAX;
        if self.protocol != PROTO_ICMPV6 {
            return false;
        }
        looked.icmpv6_type = u8::MAX;
        let (first, last) = DISCOVERY_TYPES;
        (first..=last).contains(&self.icmpv6_type) || self.icmpv6_type == MLD2_REPORT
    }

    pub(crate) fn is_tagged(&self) -> bool {
        self.outer.0 == ETHERTYPE_VLAN
    }

    pub(crate) fn vid(&self) -> u16 {
        self.outer.1 & TCI_VID
    }

    /// The frame without bits that the decision does not depend on.
    pub(crate) fn masked(self, looked: &Looked) -> Self {
        let tci = if self.outer.0 == 0 { 0 } else { self.outer.1 & (looked.tci | VLAN_PRESENT) };
        Self {
            src: self.src & looked.src,
            dst: self.dst & looked.dst,
            ether_type: self.ether_type & looked.ether_type,
            outer: (self.outer.0, tci),
            protocol: self.protocol & looked.protocol,
            icmpv6_type: self.icmpv6_type & looked.icmpv6_type,
            claims: self.claims.masked(&looked.claims),
            connection: self.connection.masked(&looked.connection),
            ..self
        }
    }

    /// The match for all packets that agree with this one in the recorded bits.
    pub(crate) fn to_match(self, looked: &Looked) -> Match {
        let frame = self.masked(looked);
        let tags = [(frame.outer.0, frame.outer.1), (frame.inner, VLAN_PRESENT)];
        let tags = tags.into_iter().filter(|(tpid, _)| *tpid != 0);
        let key = FlowKey {
            recirc_id: Some(frame.recirc_id),
            in_port: Some(frame.port),
            ethernet: Some(Ethernet { src: Mac::from_bits(frame.src), dst: Mac::from_bits(frame.dst) }),
            vlans: tags.clone().map(|(tpid, tci)| Vlan { tpid, tci }).collect(),
            ether_type: Some(frame.ether_type).filter(|_| looked.ether_type != 0),
            ct: frame.connection.to_key(&looked.connection, frame.ether_type),
            ..FlowKey::default()
        };
        let key = with_layers(key, &frame);
        let tci = [looked.tci | VLAN_PRESENT, VLAN_PRESENT];
        let mask = FlowKey {
            recirc_id: Some(u32::MAX),
            in_port: Some(u32::MAX),
            ethernet: Some(Ethernet { src: Mac::from_bits(looked.src), dst: Mac::from_bits(looked.dst) }),
            vlans: tags.zip(tci).map(|(_, tci)| Vlan { tpid: u16::MAX, tci }).collect(),
            ether_type: Some(looked.ether_type).filter(|bits| *bits != 0),
            icmpv6: Some(Icmp { kind: looked.icmpv6_type, code: 0 }).filter(|_| looked.icmpv6_type != 0),
            ct: looked.connection.to_key(&looked.connection, frame.ether_type),
            ..FlowKey::default()
        };
        let mask = looked.claims.added_to(mask, frame.ether_type, looked.protocol);
        Match { key, mask: Some(mask) }
    }

    /// The frame and bits from which [`Frame::to_match`] made this match; `None` if it did not.
    pub(crate) fn of_match(key: &FlowKey, mask: &FlowKey) -> Option<(Self, Looked)> {
        let looked = Looked {
            src: mask.ethernet.unwrap_or_default().src.to_bits(),
            dst: mask.ethernet.unwrap_or_default().dst.to_bits(),
            ether_type: mask.ether_type.unwrap_or(0),
            tci: mask.vlans.first().map_or(0, |vlan| vlan.tci & !VLAN_PRESENT),
            protocol: protocol(mask),
            icmpv6_type: mask.icmpv6.map_or(0, |icmp| icmp.kind),
            claims: Claims::of(mask),
            connection: Connection::of(&mask.ct),
        };
        let mut frame = Self::of(key)?;
        if key.ether_type.is_none() && looked.ether_type == 0 {
            frame.ether_type = 0;
        }
        let frame = frame.masked(&looked);
        let made = frame.to_match(&looked);
        let is_same = made.packets() == Match { key: key.clone(), mask: Some(mask.clone()) }.packets();
        is_same.then_some((frame, looked))
    }
}

/// The IP protocol; 0 for none.
fn protocol(key: &FlowKey) -> u8 {
    key.ipv4.map(|ip| ip.proto).or(key.ipv6.map(|ip| ip.proto)).unwrap_or(0)
}

/// Adds the groups of fields that a key of its EtherType and protocol has, without contents.
fn with_layers(mut key: FlowKey, frame: &Frame) -> FlowKey {
    match key.ether_type {
        Some(ETHERTYPE_IPV4) => key.ipv4 = Some(Ipv4 { proto: frame.protocol, ..Ipv4::default() }),
        Some(ETHERTYPE_IPV6) => key.ipv6 = Some(Ipv6 { proto: frame.protocol, ..Ipv6::default() }),
        Some(ETHERTYPE_ARP | ETHERTYPE_RARP) => key.arp = Some(Arp::default()),
        Some(ETHERTYPE_NSH) => key.nsh = Some(Nsh::default()),
        Some(kind) if ETHERTYPES_MPLS.contains(&kind) => key.mpls.push(0),
        _ => {}
    }
    if key.ipv4.is_none() && key.ipv6.is_none() {
        return frame.claims.added_to(key, frame.ether_type, frame.protocol);
    }
    match frame.protocol {
        PROTO_ICMP if key.ipv4.is_some() => key.icmp = Some(Icmp::default()),
        PROTO_TCP => (key.tcp, key.tcp_flags) = (Some(Ports::default()), Some(0)),
        PROTO_UDP => key.udp = Some(Ports::default()),
        PROTO_SCTP => key.sctp = Some(Ports::default()),
        PROTO_ICMPV6 if key.ipv6.is_some() => {
            key.icmpv6 = Some(Icmp { kind: frame.icmpv6_type, code: 0 });
            key.nd = Some(NeighbourDiscovery::default());
        }
        _ => {}
    }
    frame.claims.added_to(key, frame.ether_type, frame.protocol)
}

/// Records into a [`Looked`]. The addresses of the frame's port distinguish a refused source from permitted ones.
pub(crate) struct LookRecorder<'a, F> {
    pub(crate) looked: &'a mut Looked,
    pub(crate) port_addresses: F,
}

impl<I: Iterator<Item = u64>, F: Fn() -> I> Recorder for LookRecorder<'_, F> {
    fn tci(&mut self, bits: u16) {
        self.looked.tci |= bits;
    }

    fn source(&mut self, bits: u64) {
        self.looked.src |= bits;
    }

    fn destination(&mut self, bits: u64) {
        self.looked.dst |= bits;
    }

    fn refused_source(&mut self, source: u64) {
        self.looked.src |= refused_source_bits(source, (self.port_addresses)());
    }
}

impl Looked {
    /// Whether a flow is possible. It is not for frames that end in a tag: the control interface's matches cannot tell
    /// them from untagged ones.
    pub(crate) fn can_match(&self, frame: &Frame) -> bool {
        self.ether_type != u16::MAX || frame.ether_type != ETHERTYPE_VLAN
    }

    /// Whether `other` contains all these bits.
    pub(crate) fn is_within(&self, other: &Self) -> bool {
        self.src & !other.src == 0
            && self.dst & !other.dst == 0
            && self.ether_type & !other.ether_type == 0
            && self.tci & !other.tci == 0
            && self.protocol & !other.protocol == 0
            && self.icmpv6_type & !other.icmpv6_type == 0
            && self.claims.masked(&other.claims) == self.claims
            && self.connection.masked(&other.connection) == self.connection
    }
}

/// Bits of an EtherType that distinguish it from that of a tag.
pub(crate) fn apart_from_tag(ether_type: u16) -> u16 {
    digits_apart(ether_type.into(), ETHERTYPE_VLAN.into(), u64::MAX, u16::BITS) as u16
}

#[cfg(test)]
mod tests {
    use lasthop_bridge_policy::MAC_ONES;

    use super::*;

    fn frame() -> Frame {
        let (port, src, dst) = (7, 0x0200_0000_0001, 0x0200_0000_0002);
        Frame {
            port,
            src,
            dst,
            ether_type: 0x0800,
            outer: (ETHERTYPE_VLAN, 0xb005),
            inner: 0x88a8,
            ..Frame::default()
        }
    }

    #[test]
    fn a_flow_says_what_was_looked_at_and_no_more() {
        let all = Looked { src: MAC_ONES, dst: MAC_ONES, tci: TCI_VID, ..Looked::default() };
        let matching = frame().to_match(&all);
        assert_eq!(matching.check(), Ok(()));
        let mask = matching.mask.clone().expect("there is one");
        assert_eq!(mask.ether_type, None);
        assert_eq!(mask.vlans[0], Vlan { tpid: 0xffff, tci: 0x1fff });
        assert_eq!(mask.vlans[1], Vlan { tpid: 0xffff, tci: 0x1000 });
        let (read, looked) = Frame::of_match(&matching.key, &mask).expect("ours");
        assert_eq!((read, looked), (frame().masked(&all), all));
        let other = FlowKey { priority: Some(0), ..mask.clone() };
        assert!(Frame::of_match(&matching.key, &other).is_some(), "it looks at nothing more");
        let key = FlowKey { priority: Some(0), ..matching.key };
        assert!(Frame::of_match(&key, &FlowKey { priority: Some(1), ..mask }).is_none());
    }

    #[test]
    fn flows_of_any_ethertype_are_complete() {
        for ether_type in [0x0800, 0x0806, 0x86dd, 0x8035, 0x8847, 0x8848, 0x894f, 4, 0x88cc, 0x8100] {
            let frame = Frame { ether_type, outer: (0, 0), inner: 0, ..frame() };
            let bits = apart_from_tag(ether_type);
            let looked = Looked { ether_type: bits, ..Looked::default() };
            let matching = frame.to_match(&looked);
            assert_eq!(matching.check(), Ok(()), "{ether_type:#x}");
            let mask = matching.mask.clone().expect("there is one");
            assert_eq!(Frame::of_match(&matching.key, &mask), Some((frame.masked(&looked), looked)));
            assert_eq!(bits == 0, ether_type == ETHERTYPE_VLAN);
        }
    }
}
