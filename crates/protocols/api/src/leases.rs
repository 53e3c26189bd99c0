//! Addresses that DHCP servers gave to ports: the controller process sees them, and the supervisor keeps them for its successor.

use std::net::IpAddr;

use lasthop_module_api::{Mac, NO_VID, PortPolicy};
use serde::{Deserialize, Serialize};

use crate::port::{Name, mac_text};

/// Largest number of IPv4 addresses of one port: a guest has one for each client on it.
pub const LEASES_IPV4_MAX: usize = 8;
/// Largest number of IPv6 addresses of one port: a server gives one for each of its prefixes.
pub const LEASES_IPV6_MAX: usize = 16;

/// An address that a server gave to a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AddressLease {
    pub address: IpAddr,
    /// The VLAN in which it was given; `NO_VID` for none.
    pub vlan: u16,
    /// The end of the lease by CLOCK_MONOTONIC, in ns; `u64::MAX` for none.
    pub until_ns: u64,
}

/// All such addresses of a port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortLeases {
    pub port: Name,
    /// The Ethernet address to which they were given.
    #[serde(default, with = "mac_text", skip_serializing_if = "Option::is_none")]
    pub mac: Option<Mac>,
    pub leases: Vec<AddressLease>,
}

impl PortLeases {
    /// Whether there are any, and the port still learns addresses, with the same Ethernet address.
    #[must_use]
    pub fn fit(&self, policy: &PortPolicy) -> bool {
        policy.guard.follows_dhcp && self.mac == policy.mac && !self.leases.is_empty()
    }

    /// The same with no more leases than a port may have.
    #[must_use]
    pub fn bounded(mut self) -> Self {
        let (mut ipv4, mut ipv6) = (0..LEASES_IPV4_MAX, 0..LEASES_IPV6_MAX);
        self.leases.retain(|lease| match lease.address {
            IpAddr::V4(_) => ipv4.next().is_some(),
            IpAddr::V6(_) => ipv6.next().is_some(),
        });
        self
    }

    /// The leases that last at this time, as a report shows them.
    #[must_use]
    pub fn report(&self, now_ns: u64) -> Vec<LeaseReport> {
        let lasting = self.leases.iter().filter(|lease| lease.until_ns > now_ns);
        lasting.map(|lease| LeaseReport::of(lease, now_ns)).collect()
    }
}

/// An address that a server gave to a port, as users see it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseReport {
    pub address: IpAddr,
    pub vlan: Option<u16>,
    /// Time until the lease ends, in seconds; null if it has no end.
    pub seconds_left: Option<u64>,
}

impl LeaseReport {
    fn of(lease: &AddressLease, now_ns: u64) -> Self {
        let left_ns = Some(lease.until_ns).filter(|until_ns| *until_ns != u64::MAX);
        Self {
            address: lease.address,
            vlan: Some(lease.vlan).filter(|vlan| *vlan != NO_VID),
            seconds_left: left_ns.map(|until_ns| until_ns.saturating_sub(now_ns) / 1_000_000_000),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lease(address: IpAddr, until_ns: u64) -> AddressLease {
        AddressLease { address, vlan: NO_VID, until_ns }
    }

    #[test]
    fn reports_have_the_seconds_left_and_no_more_leases_than_there_may_be() {
        let [v4, v6]: [IpAddr; 2] = [[10, 0, 0, 5].into(), [0, 0, 0, 0, 0, 0, 0, 1].into()];
        let many = (1..=20).flat_map(|number| [lease(v4, number << 30), lease(v6, u64::MAX)]);
        let port = "vm1".parse().expect("a name");
        let leases = PortLeases { port, mac: None, leases: many.collect() }.bounded();
        assert_eq!(leases.leases.len(), LEASES_IPV4_MAX + LEASES_IPV6_MAX);
        let shown = leases.report(1 << 30);
        assert_eq!(shown.len(), leases.leases.len() - 1, "one has ended");
        assert_eq!((shown[0].seconds_left, shown[0].vlan), (None, None));
        assert_eq!(shown[1].seconds_left, Some(1));
    }
}
