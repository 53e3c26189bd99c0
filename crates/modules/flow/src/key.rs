//! The flow key: the header fields and metadata of a packet.

use arrayvec::ArrayVec;

use crate::group::{Arp, Ethernet, Group, Icmp, Ipv4, Ipv6, NeighbourDiscovery, Ports, Tuple4, Tuple6};
use crate::tunnel::Tunnel;
use crate::{MPLS_MAX, VLANS_MAX};

/// `frag` of a whole datagram.
pub const FRAGMENT_NONE: u8 = 0;
/// `frag` of a first fragment, which has a transport header.
pub const FRAGMENT_FIRST: u8 = 1;
/// `frag` of a later fragment, which has none.
pub const FRAGMENT_LATER: u8 = 2;
/// Bit 12 of a tag control word: here it is not DEI, but marks that a tag is present (`VLAN_CFI_MASK`).
pub const VLAN_PRESENT: u16 = 0x1000;

/// Bits of a connection's state (`OVS_CS_F_*`).
pub mod ct_state {
    /// Beginning of a new connection.
    pub const NEW: u32 = 0x01;
    /// Part of an existing connection.
    pub const ESTABLISHED: u32 = 0x02;
    /// Related to an existing connection, as an ICMP error is.
    pub const RELATED: u32 = 0x04;
    /// In reply direction.
    pub const REPLY: u32 = 0x08;
    /// Could not be tracked.
    pub const INVALID: u32 = 0x10;
    /// Was tracked.
    pub const TRACKED: u32 = 0x20;
    /// Source was translated.
    pub const SRC_NAT: u32 = 0x40;
    /// Destination was translated.
    pub const DST_NAT: u32 = 0x80;
}

/// One VLAN tag.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Vlan {
    /// 0x8100 or 0x88a8: the EtherType before the tag. In a mask, 0 matches any.
    pub tpid: u16,
    /// Priority, [`VLAN_PRESENT`], VLAN identifier. In a key, 0 is a frame that ends behind its TPID.
    pub tci: u16,
}

/// Network service header (RFC 8300, 2).
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Nsh {
    /// Flags.
    pub flags: u8,
    /// Hops left.
    pub ttl: u8,
    /// Metadata type: 1, or 2.
    pub md_type: u8,
    /// Next protocol.
    pub next_proto: u8,
    /// Service path identifier (24 bits) and service index.
    pub path: u32,
    /// The context.
    pub context: NshContext,
}

/// Metadata of a network service header.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub enum NshContext {
    /// Not specified.
    #[default]
    None,
    /// Four words of metadata type 1.
    Md1([u32; 4]),
    /// Type-length-values of metadata type 2 in wire format, at most 244 bytes; they can be pushed and not matched.
    Md2(Vec<u8>),
}

/// The fields of connection tracking (`OVS_KEY_ATTR_CT_*`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct CtKey {
    /// [`ct_state`] bits.
    pub state: Option<u32>,
    /// Zone.
    pub zone: Option<u16>,
    /// Mark.
    pub mark: Option<u32>,
    /// Labels: 128 bits, in the byte order of the attribute.
    pub labels: Option<[u8; 16]>,
    /// Addresses and ports of the original direction, IPv4.
    pub tuple4: Option<Tuple4>,
    /// Addresses and ports of the original direction, IPv6.
    pub tuple6: Option<Tuple6>,
}

/// A packet's metadata and headers; or, as a mask, the bits of them that are matched.
///
/// A group that a key lacks is not in the packet. A group that a mask lacks matches anything. VLAN tags are an
/// exception: a packet matches only keys with as many tags as it has (up to `VLANS_MAX`), and a mask has as many tags
/// as its key.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct FlowKey {
    /// Recirculation id; 0 is the first pass through the table.
    pub recirc_id: Option<u32>,
    /// Result of a hash action; 0 is none.
    pub dp_hash: Option<u32>,
    /// Queueing priority.
    pub priority: Option<u32>,
    /// Datapath port that received the packet; absent for packets that the control plane made.
    pub in_port: Option<u32>,
    /// Packet mark.
    pub mark: Option<u32>,
    /// Outer header of the tunnel.
    pub tunnel: Option<Box<Tunnel>>,
    /// Connection tracking.
    pub ct: CtKey,
    /// Ethernet addresses; absent in packets without Ethernet header.
    pub ethernet: Option<Ethernet>,
    /// VLAN tags, outermost first.
    pub vlans: ArrayVec<Vlan, VLANS_MAX>,
    /// EtherType behind all tags. A key without it is a frame with an 802.2 header.
    pub ether_type: Option<u16>,
    /// IPv4.
    pub ipv4: Option<Ipv4>,
    /// IPv6.
    pub ipv6: Option<Ipv6>,
    /// ARP and RARP.
    pub arp: Option<Arp>,
    /// MPLS label stack entries, topmost first.
    pub mpls: ArrayVec<u32, MPLS_MAX>,
    /// Network service header.
    pub nsh: Option<Nsh>,
    /// TCP ports.
    pub tcp: Option<Ports>,
    /// TCP flags, 12 bits.
    pub tcp_flags: Option<u16>,
    /// UDP ports.
    pub udp: Option<Ports>,
    /// SCTP ports.
    pub sctp: Option<Ports>,
    /// ICMP.
    pub icmp: Option<Icmp>,
    /// ICMPv6.
    pub icmpv6: Option<Icmp>,
    /// Neighbour discovery, with ICMPv6.
    pub nd: Option<NeighbourDiscovery>,
}

impl FlowKey {
    /// Returns the bits of the key under `mask`. Groups whose mask is zero are omitted; tags stay.
    #[must_use]
    pub fn masked(&self, mask: &Self) -> Self {
        let tags = self.vlans.iter().zip(&mask.vlans);
        Self {
            recirc_id: group(self.recirc_id, mask.recirc_id),
            dp_hash: group(self.dp_hash, mask.dp_hash),
            priority: group(self.priority, mask.priority),
            in_port: group(self.in_port, mask.in_port),
            mark: group(self.mark, mask.mark),
            tunnel: self
                .tunnel
                .as_ref()
                .zip(mask.tunnel.as_ref())
                .and_then(|(key, mask)| key.masked(mask).map(Box::new)),
            ct: self.ct.masked(&mask.ct),
            ethernet: group(self.ethernet, mask.ethernet),
            vlans: tags
                .map(|(key, mask)| Vlan { tpid: key.tpid & mask.tpid, tci: key.tci & mask.tci })
                .collect(),
            ether_type: half(self.ether_type, mask.ether_type),
            ipv4: group(self.ipv4, mask.ipv4),
            ipv6: group(self.ipv6, mask.ipv6),
            arp: group(self.arp, mask.arp),
            mpls: self.mpls.iter().zip(&mask.mpls).map(|(key, mask)| key & mask).collect(),
            nsh: self.nsh.as_ref().zip(mask.nsh.as_ref()).map(|(key, mask)| key.masked(mask)),
            tcp: group(self.tcp, mask.tcp),
            tcp_flags: half(self.tcp_flags, mask.tcp_flags),
            udp: group(self.udp, mask.udp),
            sctp: group(self.sctp, mask.sctp),
            icmp: group(self.icmp, mask.icmp),
            icmpv6: group(self.icmpv6, mask.icmpv6),
            nd: group(self.nd, mask.nd),
        }
    }
}

fn group<G: Group>(key: Option<G>, mask: Option<G>) -> Option<G> {
    let mask = mask.filter(|mask| *mask != G::default())?;
    key.map(|key| key.masked(mask))
}

fn half(key: Option<u16>, mask: Option<u16>) -> Option<u16> {
    let mask = mask.filter(|mask| *mask != 0)?;
    key.map(|key| key & mask)
}

impl CtKey {
    fn masked(&self, mask: &Self) -> Self {
        let labels = self.labels.zip(mask.labels).map(|(mut key, mask)| {
            key.iter_mut().zip(mask).for_each(|(byte, mask)| *byte &= mask);
            key
        });
        Self {
            state: group(self.state, mask.state),
            zone: half(self.zone, mask.zone),
            mark: group(self.mark, mask.mark),
            labels: labels.filter(|_| mask.labels != Some([0; 16])),
            tuple4: group(self.tuple4, mask.tuple4),
            tuple6: group(self.tuple6, mask.tuple6),
        }
    }
}

impl Nsh {
    fn masked(&self, mask: &Self) -> Self {
        let context = match (&self.context, &mask.context) {
            (NshContext::Md1(key), NshContext::Md1(mask)) => {
                let mut words = *key;
                words.iter_mut().zip(mask).for_each(|(word, mask)| *word &= mask);
                NshContext::Md1(words)
            }
            _ => NshContext::None,
        };
        Self {
            flags: self.flags & mask.flags,
            ttl: self.ttl & mask.ttl,
            md_type: self.md_type & mask.md_type,
            next_proto: self.next_proto & mask.next_proto,
            path: self.path & mask.path,
            context,
        }
    }
}
