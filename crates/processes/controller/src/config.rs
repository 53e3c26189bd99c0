//! Settings of switches that the controller gets, and addresses that it reports.

use lasthop_module_api::{Mac, Vid};

use crate::bounds::ADDRESSES_MAX;

/// A switch of module flow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SwitchConfig {
    /// Its name, and that of its datapath.
    pub name: String,
    /// Addresses that are learned there.
    pub addresses_max: usize,
}

impl SwitchConfig {
    /// A switch with room for as many addresses as the bridge has by default.
    #[must_use]
    pub fn named(name: &str) -> Self {
        Self { name: name.to_owned(), addresses_max: ADDRESSES_MAX }
    }
}

/// An address that the user entered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StaticAddress {
    /// The address.
    pub mac: Mac,
    /// In this VLAN; `None` is in all that the port carries.
    pub vlan: Option<Vid>,
    /// The port's name.
    pub port: String,
}

/// One line of a forwarding table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    /// The address.
    pub mac: Mac,
    /// In which VLAN; `None` is untagged, or all that a static entry's port carries.
    pub vlan: Option<u16>,
    /// The port's name.
    pub port: String,
    /// Time since it was last seen as a source, in ns; 0 for static entries.
    pub age_ns: u64,
    /// Set by configuration; neither ages nor moves.
    pub is_static: bool,
}

/// An address that was seen on another port than before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MovedAddress {
    /// The address.
    pub mac: Mac,
    /// Name of the port where it was.
    pub from: String,
    /// Name of the port where it is since.
    pub to: String,
    /// Times that it moved.
    pub count: u32,
    /// Time since the last move, in ns.
    pub age_ns: u64,
}
