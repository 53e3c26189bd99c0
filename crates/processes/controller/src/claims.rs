//! A packet's own claims about its sender; or, as a mask, the bits of them that a decision depends on.

use lasthop_flow::{Arp, FlowKey, Ipv4, Ipv6, NeighbourDiscovery, Ports};
use lasthop_module_api::Mac;
use lasthop_wire::headers::{ETHERTYPE_ARP, ETHERTYPE_IPV4, ETHERTYPE_IPV6};

/// Addresses and UDP ports. IPv4 addresses are in the low bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Claims {
    /// IP source address.
    pub(crate) src: u128,
    /// The sender's address in ARP, or the target of neighbour discovery.
    pub(crate) target: u128,
    /// The Ethernet address for `target`, as the packet states it.
    pub(crate) target_mac: u64,
    /// The Ethernet address for `src`, as neighbour discovery states it; 0 for none.
    pub(crate) src_mac: u64,
    pub(crate) udp_src: u16,
    pub(crate) udp_dst: u16,
}

impl Claims {
    /// Reads a packet's key, or a mask.
    pub(crate) fn of(key: &FlowKey) -> Self {
        let src4 = key.ipv4.map(|ip| u128::from(ip.src.to_bits()));
        let src6 = key.ipv6.map(|ip| ip.src.to_bits());
        let by_arp = key.arp.map(|arp| (u128::from(arp.sip.to_bits()), arp.sha.to_bits()));
        let by_nd = key.nd.map(|nd| (nd.target.to_bits(), nd.tll.to_bits()));
        let (target, target_mac) = by_arp.or(by_nd).unwrap_or_default();
        let src_mac = key.nd.map_or(0, |nd| nd.sll.to_bits());
        let udp = key.udp.unwrap_or_default();
        let src = src4.or(src6).unwrap_or(0);
        Self { src, target, target_mac, src_mac, udp_src: udp.src, udp_dst: udp.dst }
    }

    /// The bits that are set in `mask`.
    pub(crate) fn masked(self, mask: &Self) -> Self {
        Self {
            src: self.src & mask.src,
            target: self.target & mask.target,
            target_mac: self.target_mac & mask.target_mac,
            src_mac: self.src_mac & mask.src_mac,
            udp_src: self.udp_src & mask.udp_src,
            udp_dst: self.udp_dst & mask.udp_dst,
        }
    }

    /// Adds these fields to a key or mask of packets of this EtherType and IP protocol. Leaves groups without a set bit
    /// unchanged.
    pub(crate) fn added_to(self, mut key: FlowKey, ether_type: u16, proto: u8) -> FlowKey {
        let has_target = self.target != 0 || self.target_mac != 0;
        let has_ip = self.src != 0 || proto != 0;
        let mac = Mac::from_bits(self.target_mac);
        match ether_type {
            ETHERTYPE_IPV4 if has_ip => {
                key.ipv4 = Some(Ipv4 { src: (self.src as u32).into(), proto, ..Ipv4::default() });
            }
            ETHERTYPE_IPV6 if has_ip => {
                key.ipv6 = Some(Ipv6 { src: self.src.into(), proto, ..Ipv6::default() });
            }
            ETHERTYPE_ARP if has_target => {
                key.arp = Some(Arp { sip: (self.target as u32).into(), sha: mac, ..Arp::default() });
            }
            _ => {}
        }
        if ether_type == ETHERTYPE_IPV6 && (has_target || self.src_mac != 0) {
            let (target, sll) = (self.target.into(), Mac::from_bits(self.src_mac));
            key.nd = Some(NeighbourDiscovery { target, sll, tll: mac });
        }
        if self.udp_src != 0 || self.udp_dst != 0 {
            key.udp = Some(Ports { src: self.udp_src, dst: self.udp_dst });
        }
        key
    }
}
