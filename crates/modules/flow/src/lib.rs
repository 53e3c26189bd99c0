//! Flow keys, masks and actions as values, shared by the control interface and the flow table.
//!
//! **Purpose.** [`FlowKey`] has the fields of a packet; a second one as its mask has the bits that are matched.
//! [`Action`] is one action on packets that match. The control interface (the Open vSwitch datapath protocol) reads and
//! writes these types. The flow table compiles them into its own compact form and back. The two do not depend on each
//! other. [`KeyedState`] hashes these values in maps.
//!
//! **Contract.** A value holds exactly the given groups: a group that a key lacks is absent here, not zero, so a dump
//! shows the installed flow. A group that a mask lacks matches anything. Every [`Group`] has one image in bytes, that
//! of the structure in linux/openvswitch.h, to which masks are applied bit by bit. Numbers are in the host's byte order
//! except in images.
//!
//! **Not checked.** A key may be inconsistent (TCP without IP): only [`Match::check`] applies the rules of the kernel's
//! datapath. Ports, meters and recirculation ids may not exist.
//!
//! **Threading.** Plain values.
//!
//! ```text
//!   control interface                this crate                           flow table
//!   OVS_KEY_ATTR_* bytes <---> FlowKey, mask, [Action] <---> compact key, mask, compiled actions
//!
//!   FlowKey  recirc_id dp_hash priority in_port mark | tunnel | ct.* | ethernet vlans[0..2] ether_type |
//!            ipv4 ipv6 arp mpls nsh | tcp udp sctp icmp icmpv6 tcp_flags | nd
//! ```
//!
//! # Examples
//!
//! ```
//! use lasthop_flow::{Ethernet, FlowKey, Ipv4, Match, Ports};
//!
//! let udp = FlowKey {
//!     ethernet: Some(Ethernet::default()),
//!     ether_type: Some(0x0800),
//!     ipv4: Some(Ipv4 { proto: 17, ..Ipv4::default() }),
//!     udp: Some(Ports::default()),
//!     ..FlowKey::default()
//! };
//! assert!(Match { key: udp.clone(), mask: None }.check().is_ok());
//! // A key of UDP has ports.
//! let error = Match { key: FlowKey { udp: None, ..udp }, mask: None }.check().unwrap_err();
//! assert!(error.to_string().contains("lacks attributes"));
//! ```
#![forbid(unsafe_code)]

mod action;
mod check;
mod group;
mod key;
mod keyed_hash;
mod outer;
mod size;
mod tunnel;

pub use action::{
    Action, CheckLength, Conntrack, Hash, HashAlgorithm, Masked, MplsTag, Nat, NatRange, NatSource, Rewrite,
    SampleAction, Userspace, drop_reason,
};
pub use check::{Match, MatchError};
pub use group::{Arp, Ethernet, Group, Icmp, Ipv4, Ipv6, Lse, NeighbourDiscovery, Ports, Tuple4, Tuple6};
pub use key::{
    CtKey, FRAGMENT_FIRST, FRAGMENT_LATER, FRAGMENT_NONE, FlowKey, Nsh, NshContext, VLAN_PRESENT, Vlan,
    ct_state,
};
pub use keyed_hash::{KeyedHasher, KeyedState};
pub use outer::{UnsupportedOptions, outer_header, outer_header_mask, tunnel_of, tunnel_told};
pub use tunnel::{Tunnel, TunnelOptions};

/// Number of VLAN tags that a key can match.
pub const VLANS_MAX: usize = 2;
/// Number of MPLS label stack entries that a key can match.
pub const MPLS_MAX: usize = 3;

/// The name that a control plane gives a flow (OVS_FLOW_ATTR_UFID).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ufid(pub [u8; 16]);

/// A flow's statistics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlowStats {
    /// Number of packets that matched.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Time of the last matching packet, in milliseconds of CLOCK_MONOTONIC; 0 is never.
    pub used_ms: u64,
    /// All TCP flags of matching packets, or-ed.
    pub tcp_flags: u16,
}
