//! The actions of a flow, in order.

use std::net::IpAddr;

use lasthop_module_api::DropReason;

use crate::group::{Arp, Ethernet, Group, Icmp, Ipv4, Ipv6, Lse, NeighbourDiscovery, Ports};
use crate::key::{Nsh, Vlan};
use crate::tunnel::Tunnel;

/// One action (`OVS_ACTION_ATTR_*`). The packet that remains after the last one is discarded silently.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Sends a copy to a port of the datapath. If the port does not exist, the copy is dropped.
    Output(u32),
    /// Sends a copy to the control plane.
    Userspace(Userspace),
    /// Rewrites header fields or metadata.
    Set(Rewrite),
    /// Pushes a VLAN tag.
    PushVlan(Vlan),
    /// Pops the outermost VLAN tag, if there is one.
    PopVlan,
    /// Executes actions on a random sample of the packets.
    Sample(SampleAction),
    /// Looks the packet up again, with this recirculation id.
    Recirc(u32),
    /// Sets `dp_hash` to a hash of the packet.
    Hash(Hash),
    /// Pushes a label stack entry before the network header.
    PushMpls(MplsTag),
    /// Pops the topmost label stack entry, and sets this EtherType.
    PopMpls(u16),
    /// Pushes a label stack entry before the Ethernet header or, with `is_l3` in [`MplsTag`], before the network
    /// header.
    AddMpls(MplsTag),
    /// Connection tracking.
    Ct(Box<Conntrack>),
    /// Makes the packet untracked.
    CtClear,
    /// Truncates the next output to this many bytes, at least 14.
    Truncate(u32),
    /// Pushes an Ethernet header on a packet without one.
    PushEthernet(Ethernet),
    /// Pops the Ethernet header.
    PopEthernet,
    /// Pushes a network service header.
    PushNsh(Box<Nsh>),
    /// Pops the network service header.
    PopNsh,
    /// Drops packets that exceed the meter's rate.
    Meter(u32),
    /// Executes the actions on a copy.
    Clone(Vec<Action>),
    /// Chooses actions by the packet's length.
    CheckLength(CheckLength),
    /// Drops the packet for a reason, which is a number that the control plane chooses; 0 is no error. See
    /// [`Action::drop_for`].
    Drop(u32),
}

/// Numbers of [`Action::Drop`] from here on are drop reasons of the switch: those of the kernel and OVS are below.
const DROP_REASONS: u32 = 0x4c48_0000;

impl Action {
    /// A drop that is counted under the name of `reason`.
    #[must_use]
    pub fn drop_for(reason: DropReason) -> Self {
        Self::Drop(DROP_REASONS | reason as u32)
    }
}

/// The drop reason of the switch with this number.
#[must_use]
pub fn drop_reason(number: u32) -> DropReason {
    let index = number.checked_sub(DROP_REASONS).and_then(|index| usize::try_from(index).ok());
    index.and_then(|index| DropReason::ALL.get(index)).copied().unwrap_or(DropReason::FlowDrop)
}

/// A copy for the control plane (`OVS_USERSPACE_ATTR_*`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Userspace {
    /// Port id of the receiving socket; 0xffff_ffff if the datapath chooses it by worker.
    pub port_id: u32,
    /// Data that is returned to the control plane with the packet.
    pub user_data: Option<Vec<u8>>,
    /// Port whose tunnel header is returned with the packet.
    pub egress_tunnel_port: Option<u32>,
    /// Whether the flow's actions are returned with the packet.
    pub has_actions: bool,
}

/// A value and its mask.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Masked<T> {
    /// The new value; bits outside of the mask are zero.
    pub value: T,
    /// The bits that are rewritten.
    pub mask: T,
}

impl<T: Group> Masked<T> {
    /// Returns `value` with a full mask.
    #[must_use]
    pub fn exact(value: T) -> Self {
        Self { value, mask: T::ones() }
    }

    /// Whether the mask is full.
    #[must_use]
    pub fn is_exact(&self) -> bool {
        self.mask == T::ones()
    }
}

/// A rewritten field (`OVS_ACTION_ATTR_SET`, or `SET_MASKED` if the mask has a zero bit).
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
    /// The outer header that a tunnel port will push; never masked.
    Tunnel(Box<Tunnel>),
}

/// Executes actions on a random sample (`OVS_SAMPLE_ATTR_*`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SampleAction {
    /// Probability: 0 is none, 0xffff_ffff all packets.
    pub probability: u32,
    /// The actions for a copy of a sampled packet.
    pub actions: Vec<Action>,
}

/// `struct ovs_action_hash`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hash {
    /// The input of the hash.
    pub algorithm: HashAlgorithm,
    /// Start value.
    pub basis: u32,
}

/// The input of a hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HashAlgorithm {
    /// Addresses, protocol and ports (0).
    L4,
    /// The same, with equal results for both directions (1).
    SymmetricL4,
}

/// A label stack entry to be pushed (`struct ovs_action_push_mpls`, `struct ovs_action_add_mpls`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MplsTag {
    /// The label stack entry.
    pub lse: u32,
    /// 0x8847 or 0x8848.
    pub ether_type: u16,
    /// Whether it is pushed before the network header; otherwise before the whole packet. Always true for `PushMpls`.
    pub is_l3: bool,
}

/// Chooses actions by the packet's length (`OVS_CHECK_PKT_LEN_ATTR_*`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckLength {
    /// Length in bytes, including Ethernet header and tags.
    pub len_bytes: u16,
    /// The actions for longer packets.
    pub greater: Vec<Action>,
    /// The actions for all others.
    pub less_equal: Vec<Action>,
}

/// Connection tracking (`OVS_CT_ATTR_*`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Conntrack {
    /// Whether the connection is committed.
    pub is_commit: bool,
    /// As `is_commit`; a connection that began in the other direction is deleted.
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
    /// Mask of the events that are notified.
    pub event_mask: Option<u32>,
    /// Name of a timeout policy.
    pub timeout: Option<String>,
}

/// Address translation (`OVS_NAT_ATTR_*`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Nat {
    /// The address of a new connection that is translated. `None` translates only packets of connections that have a
    /// translation.
    pub source: Option<NatSource>,
    /// The range to translate to.
    pub range: NatRange,
    /// Whether a client keeps its address over several connections.
    pub is_persistent: bool,
    /// Whether the port is chosen by a hash of the addresses.
    pub is_hashed: bool,
    /// Whether the port is chosen at random.
    pub is_random: bool,
}

/// The address that is translated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NatSource {
    /// The source.
    Src,
    /// The destination.
    Dst,
}

/// The range of addresses and ports. Absent parts are not translated.
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
