//! The switches' settings that the controller gets, and the addresses that it reports.

use lasthop_module_api::{Mac, Vid};

use crate::bounds::{ADDRESSES_MAX, PAIR_FLOWS_MAX};

/// A switch of module flow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SwitchConfig {
    /// Its name, and its datapath's.
    pub name: String,
    /// Largest number of learned addresses.
    pub addresses_max: usize,
    /// Flows of packets from one port from which on others are made by address, not by pair of addresses; `usize::MAX` for
    /// never.
    pub pair_flows_max: usize,
}

impl SwitchConfig {
    /// A switch with the default bounds.
    #[must_use]
    pub fn named(name: &str) -> Self {
        Self { name: name.to_owned(), addresses_max: ADDRESSES_MAX, pair_flows_max: PAIR_FLOWS_MAX }
    }
}

/// A configured address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StaticAddress {
    /// The address.
    pub mac: Mac,
    /// Its VLAN; `None` for all that the port carries.
    pub vlan: Option<Vid>,
    /// The port's name.
    pub port: String,
}

/// An entry of the forwarding table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    /// The address.
    pub mac: Mac,
    /// Its VLAN; `None` for untagged, or for all that a static entry's port carries.
    pub vlan: Option<u16>,
    /// The port's name.
    pub port: String,
    /// Time since it was last seen as a source, in ns; 0 for static entries.
    pub age_ns: u64,
    /// Whether it is configured; then it neither ages nor moves.
    pub is_static: bool,
}

/// An address that moved to another port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MovedAddress {
    /// The address.
    pub mac: Mac,
    /// Name of the last port.
    pub from: String,
    /// Name of the present port.
    pub to: String,
    /// Number of moves.
    pub count: u32,
    /// Time since the last move, in ns.
    pub age_ns: u64,
}
