//! The actions of a flow, in order.

use std::net::IpAddr;

use lasthop_module_api::DropReason;

use crate::group::{Arp, Ethernet, Group, Icmp, Ipv4, Ipv6, Lse, NeighbourDiscovery, Ports};
use crate::key::{Nsh, Vlan};
use crate::tunnel::Tunnel;

/// One step (`OVS_ACTION_ATTR_*`). The packet that remains after the last one is dropped silently.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// A copy to a port of the datapath. One that does not exist takes no copy.
    Output(u32),
    /// A copy to the control plane.
    Userspace(Userspace),
    /// Header fields or metadata are rewritten.
    Set(Rewrite),
    /// A tag is put in front.
    PushVlan(Vlan),
    /// The outermost tag is taken off, if there is one.
    PopVlan,
    /// Some packets take a detour.
    Sample(SampleAction),
    /// Once more through the table, with this recirculation id.
    Recirc(u32),
    /// A hash of the packet becomes its `dp_hash`.
    Hash(Hash),
    /// A label stack entry is put in front of the network header.
    PushMpls(MplsTag),
    /// The topmost label stack entry is taken off; the EtherType that the packet has then.
    PopMpls(u16),
    /// A label stack entry in front of the Ethernet header or, with `is_l3` in [`MplsTag`], of the network header.
    AddMpls(MplsTag),
    /// Connection tracking.
    Ct(Box<Conntrack>),
    /// The packet is untracked again.
    CtClear,
    /// The next output takes at most this many bytes, at least 14.
    Truncate(u32),
    /// An Ethernet header is put in front of a packet without one.
    PushEthernet(Ethernet),
    /// The Ethernet header is taken off.
    PopEthernet,
    /// A network service header is put in front.
    PushNsh(Box<Nsh>),
    /// The network service header is taken off.
    PopNsh,
    /// Packets beyond the meter's rate are dropped.
    Meter(u32),
    /// The steps are done to a copy.
    Clone(Vec<Action>),
    /// Which steps follow depends on the packet's length.
    CheckLength(CheckLength),
    /// Nothing more is done; why, as a number of the control plane's own: 0 is no error. See [`Action::drop_for`].
    Drop(u32),
}

/// Numbers of [`Action::Drop`] from here on are reasons by name: beyond those of the kernel and OVS.
const DROP_REASONS: u32 = 0x4c48_0000;

impl Action {
    /// A drop that counts under the name of `reason`.
    #[must_use]
    pub fn drop_for(reason: DropReason) -> Self {
        Self::Drop(DROP_REASONS | reason as u32)
    }
}

/// The drop reason of this number.
#[must_use]
pub fn drop_reason(number: u32) -> DropReason {
    let index = number.checked_sub(DROP_REASONS).and_then(|index| usize::try_from(index).ok());
    index.and_then(|index| DropReason::ALL.get(index)).copied().unwrap_or(DropReason::FlowDrop)
}

/// A copy for the control plane (`OVS_USERSPACE_ATTR_*`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Userspace {
    /// Port id that gets it; 0xffff_ffff where the datapath chooses by worker.
    pub port_id: u32,
    /// Returned to the control plane with the packet.
    pub user_data: Option<Vec<u8>>,
    /// Port whose tunnel header is returned with it.
    pub egress_tunnel_port: Option<u32>,
    /// Whether the flow's actions are wanted along with it.
    pub has_actions: bool,
}

/// A value and which bits of it count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Masked<T> {
    /// Bits outside of the mask are zero.
    pub value: T,
    /// Set bits are rewritten.
    pub mask: T,
}

impl<T: Group> Masked<T> {
    /// All bits of `value`.
    #[must_use]
    pub fn exact(value: T) -> Self {
        Self { value, mask: T::ones() }
    }

    /// Whether all bits count.
    #[must_use]
    pub fn is_exact(&self) -> bool {
        self.mask == T::ones()
    }
}

/// A rewritten field (`OVS_ACTION_ATTR_SET`, or `SET_MASKED` where the mask has a zero bit).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rewrite {
    /// Queueing priority.
    Priority(Masked<u32>),
    /// Packet mark.
    Mark(Masked<u32>),
    /// Ethernet addresses.
    Ethernet(Masked<Ethernet>),
    /// IPv4 addresses, TOS, TTL.
    Ipv4(Masked<Ipv4>),
    /// IPv6 addresses, traffic class, label, hop limit.
    Ipv6(Masked<Ipv6>),
    /// TCP ports.
    Tcp(Masked<Ports>),
    /// UDP ports.
    Udp(Masked<Ports>),
    /// SCTP ports.
    Sctp(Masked<Ports>),
    /// ICMP type and code.
    Icmp(Masked<Icmp>),
    /// ICMPv6 type and code.
    Icmpv6(Masked<Icmp>),
    /// ARP.
    Arp(Masked<Arp>),
    /// Neighbour discovery.
    Nd(Masked<NeighbourDiscovery>),
    /// Topmost label stack entry.
    Mpls(Masked<Lse>),
    /// Network service header: value and mask.
    Nsh(Box<(Nsh, Nsh)>),
    /// The outer header that the packet gets when it leaves by a tunnel port; never masked.
    Tunnel(Box<Tunnel>),
}

/// Some packets take a detour (`OVS_SAMPLE_ATTR_*`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SampleAction {
    /// How many: 0 none, 0xffff_ffff all.
    pub probability: u32,
    /// The actions for a copy of them.
    pub actions: Vec<Action>,
}

/// `struct ovs_action_hash`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hash {
    /// Its input.
    pub algorithm: HashAlgorithm,
    /// Where it starts from.
    pub basis: u32,
}

/// The input of a hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HashAlgorithm {
    /// Addresses, protocol and ports (0).
    L4,
    /// The same, equal for both directions (1).
    SymmetricL4,
}

/// A label stack entry to be put in front (`struct ovs_action_push_mpls`, `struct ovs_action_add_mpls`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MplsTag {
    /// The entry.
    pub lse: u32,
    /// 0x8847 or 0x8848.
    pub ether_type: u16,
    /// In front of the network header; else of the whole packet. Always true for a push.
    pub is_l3: bool,
}

/// Which steps follow depends on the packet's length (`OVS_CHECK_PKT_LEN_ATTR_*`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckLength {
    /// Bytes from the Ethernet header on, tags included.
    pub len_bytes: u16,
    /// For longer packets.
    pub greater: Vec<Action>,
    /// For others.
    pub less_equal: Vec<Action>,
}

/// Connection tracking (`OVS_CT_ATTR_*`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Conntrack {
    /// The connection is remembered.
    pub is_commit: bool,
    /// The same, and one that began in the other direction is forgotten.
    pub is_force_commit: bool,
    /// Zone; absent is 0.
    pub zone: Option<u16>,
    /// Mark and mask.
    pub mark: Option<Masked<u32>>,
    /// Labels and mask.
    pub labels: Option<([u8; 16], [u8; 16])>,
    /// Name of a helper, "ftp" or "tftp".
    pub helper: Option<String>,
    /// Address translation.
    pub nat: Option<Nat>,
    /// Which events are notified.
    pub event_mask: Option<u32>,
    /// Name of a timeout policy.
    pub timeout: Option<String>,
}

/// Address translation (`OVS_NAT_ATTR_*`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Nat {
    /// Which address of a new connection; `None` translates packets of connections that have a translation already.
    pub source: Option<NatSource>,
    /// The range to translate to.
    pub range: NatRange,
    /// The same client gets the same address again.
    pub is_persistent: bool,
    /// Port by a hash of the addresses.
    pub is_hashed: bool,
    /// Port at random.
    pub is_random: bool,
}

/// Which address is translated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NatSource {
    /// The source.
    Src,
    /// The destination.
    Dst,
}

/// Addresses and ports to choose from; absent ones stay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NatRange {
    /// First address.
    pub ip_min: Option<IpAddr>,
    /// Last address; absent is the first.
    pub ip_max: Option<IpAddr>,
    /// First port.
    pub proto_min: Option<u16>,
    /// Last port; absent is the first.
    pub proto_max: Option<u16>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drops_count_under_the_name_that_they_were_given() {
        for reason in DropReason::ALL {
            let Action::Drop(number) = Action::drop_for(*reason) else { panic!("another action") };
            assert_eq!(drop_reason(number), *reason);
        }
        assert_eq!((drop_reason(0), drop_reason(u32::MAX)), (DropReason::FlowDrop, DropReason::FlowDrop));
    }

    #[test]
    fn a_rewrite_is_exact_if_its_mask_has_all_bits() {
        let ports = Masked { value: Ports { src: 0x0100, dst: 0 }, mask: Ports { src: 0xff00, dst: 0 } };
        assert!(!ports.is_exact());
        assert!(Masked::exact(5_u32).is_exact());
    }
}
