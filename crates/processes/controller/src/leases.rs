//! Addresses that DHCP servers gave to ports, and the requests that servers may answer.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::IpAddr;

use lasthop_api::leases::{AddressLease, LEASES_IPV4_MAX, LEASES_IPV6_MAX, PortLeases};
use lasthop_module_api::Mac;

use crate::bounds::{DHCP_REQUEST_NS, DHCP_REQUESTS_PER_PORT, LEASES_TOLD_NS};
use crate::dhcp::{GivenFor, Transaction};

const SECOND_NS: u64 = 1_000_000_000;

/// Counters of events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LeaseCounts {
    pub(crate) learned: u64,
    pub(crate) ended: u64,
    pub(crate) refused: u64,
    pub(crate) crowded_out: u64,
    pub(crate) requests_dropped: u64,
}

/// A request that a server may answer.
#[derive(Clone, Copy, Debug)]
struct OpenRequest {
    transaction: Transaction,
    /// The address that it names.
    named: Option<IpAddr>,
    until_ns: u64,
}

/// A port that learns its addresses.
#[derive(Clone, Debug)]
struct Learner {
    mac: Mac,
    leases: Vec<AddressLease>,
    /// The newest at the end.
    requests: VecDeque<OpenRequest>,
}

/// The ports of a switch that learn their addresses, by name.
#[derive(Clone, Debug, Default)]
pub(crate) struct Leases {
    learners: BTreeMap<String, Learner>,
    /// Ports to report: with other addresses, and with other ends only.
    changed: BTreeSet<String>,
    renewed: BTreeSet<String>,
    told_ns: u64,
    pub(crate) counts: LeaseCounts,
}

impl Leases {
    /// Whether no port learns addresses.
    pub(crate) fn is_unused(&self) -> bool {
        self.learners.is_empty()
    }

    /// The Ethernet address of a port that learns addresses.
    pub(crate) fn learner(&self, port: &str) -> Option<Mac> {
        self.learners.get(port).map(|learner| learner.mac)
    }

    /// Begins or ceases to learn a port's addresses. Those of another Ethernet address are forgotten.
    pub(crate) fn set_learner(&mut self, port: &str, mac: Option<Mac>) {
        if self.learner(port) == mac {
            return;
        }
        let old = self.learners.remove(port);
        if old.is_some_and(|old| !old.leases.is_empty()) {
            self.changed.insert(port.to_owned());
        }
        if let Some(mac) = mac {
            let learner = Learner { mac, leases: Vec::new(), requests: VecDeque::new() };
            self.learners.insert(port.to_owned(), learner);
        }
    }

    /// Ceases without a report, as the port is gone. If it comes back, its leases are restored.
    pub(crate) fn forget_port(&mut self, port: &str) {
        self.learners.remove(port);
        self.changed.remove(port);
        self.renewed.remove(port);
    }

    /// The present addresses of a port.
    pub(crate) fn addresses(&self, port: &str) -> Vec<IpAddr> {
        let leases = self.learners.get(port).into_iter().flat_map(|learner| &learner.leases);
        let mut all: Vec<IpAddr> = leases.map(|lease| lease.address).collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    /// Another port than this one that has the address in the VLAN.
    pub(crate) fn is_of_other(&self, port: &str, address: IpAddr, vid: u16) -> bool {
        let has = |lease: &AddressLease| (lease.address, lease.vlan) == (address, vid);
        self.learners.iter().any(|(name, learner)| name != port && learner.leases.iter().any(has))
    }

    pub(crate) fn has(&self, port: &str, address: IpAddr, vid: u16) -> bool {
        let has = |lease: &AddressLease| (lease.address, lease.vlan) == (address, vid);
        self.learners.get(port).is_some_and(|learner| learner.leases.iter().any(has))
    }

    /// Notes a request of a port. A port's oldest one makes room.
    pub(crate) fn request(
        &mut self,
        port: &str,
        transaction: Transaction,
        named: Option<IpAddr>,
        now_ns: u64,
    ) {
        let Some(learner) = self.learners.get_mut(port) else { return };
        let requests = &mut learner.requests;
        requests.retain(|open| open.until_ns > now_ns && open.transaction != transaction);
        if requests.len() >= DHCP_REQUESTS_PER_PORT {
            requests.pop_front();
            self.counts.requests_dropped += 1;
        }
        requests.push_back(OpenRequest {
            transaction,
            named,
            until_ns: now_ns.saturating_add(DHCP_REQUEST_NS),
        });
    }

    /// Whether a port made this request; the address that it named. A DHCP server answers once, so the request is over then.
    /// Several DHCPv6 servers may answer.
    pub(crate) fn take_request(
        &mut self,
        port: &str,
        transaction: Transaction,
        now_ns: u64,
    ) -> Option<Option<IpAddr>> {
        let requests = &mut self.learners.get_mut(port)?.requests;
        let is_it = |open: &OpenRequest| open.transaction == transaction && open.until_ns > now_ns;
        let at = requests.iter().position(is_it)?;
        let named = requests.get(at)?.named;
        if !transaction.is_ipv6 {
            requests.remove(at);
        }
        Some(named)
    }

    /// Notes that a server gave an address to a port, or renewed it. Returns whether the port's addresses have changed.
    pub(crate) fn give(&mut self, port: &str, vid: u16, (address, seconds): GivenFor, now_ns: u64) -> bool {
        let until_ns = match seconds {
            u32::MAX => u64::MAX,
            seconds => now_ns.saturating_add(u64::from(seconds) * SECOND_NS),
        };
        let Some(learner) = self.learners.get_mut(port) else { return false };
        let lease = AddressLease { address, vlan: vid, until_ns };
        let mut own = learner.leases.iter_mut();
        if let Some(old) = own.find(|old| (old.address, old.vlan) == (address, vid)) {
            *old = lease;
            self.renewed.insert(port.to_owned());
            return false;
        }
        if learner.make_room(address) {
            self.counts.crowded_out += 1;
        }
        learner.leases.push(lease);
        self.counts.learned += 1;
        self.changed.insert(port.to_owned());
        true
    }

    /// Ends a port's lease; returns whether it had it.
    pub(crate) fn end(&mut self, port: &str, vid: u16, address: IpAddr) -> bool {
        self.end_some(port, |lease| (lease.address, lease.vlan) == (address, vid))
    }

    fn end_some(&mut self, port: &str, is_over: impl Fn(&AddressLease) -> bool) -> bool {
        let Some(learner) = self.learners.get_mut(port) else { return false };
        let before = learner.leases.len();
        learner.leases.retain(|lease| !is_over(lease));
        let ended = before - learner.leases.len();
        self.counts.ended += ended as u64;
        if ended > 0 {
            self.changed.insert(port.to_owned());
        }
        ended > 0
    }

    /// Ends leases in time; returns the ports that had some.
    pub(crate) fn expire(&mut self, now_ns: u64) -> Vec<String> {
        if self.due_ns().is_none_or(|due_ns| due_ns > now_ns) {
            return Vec::new();
        }
        let names: Vec<String> = self.learners.keys().cloned().collect();
        names.into_iter().filter(|port| self.end_some(port, |lease| lease.until_ns <= now_ns)).collect()
    }

    /// When the next lease ends.
    pub(crate) fn due_ns(&self) -> Option<u64> {
        let leases = self.learners.values().flat_map(|learner| &learner.leases);
        leases.map(|lease| lease.until_ns).filter(|until_ns| *until_ns != u64::MAX).min()
    }

    /// Takes over the leases that a former controller knew, unless the port has another Ethernet address since.
    pub(crate) fn restore(&mut self, former: PortLeases, now_ns: u64) {
        let former = former.bounded();
        if let Some(learner) = self.learners.get_mut(former.port.as_str())
            && former.mac == Some(learner.mac)
        {
            learner.leases = former.leases.into_iter().filter(|lease| lease.until_ns > now_ns).collect();
        }
    }

    /// Number of leases of all ports.
    pub(crate) fn len(&self) -> usize {
        self.learners.values().map(|learner| learner.leases.len()).sum()
    }

    /// The leases of ports that have changed, to be kept for the next controller: other addresses at once, other ends once a
    /// second.
    pub(crate) fn take_changed(&mut self, now_ns: u64) -> Vec<PortLeases> {
        if self.changed.is_empty() && self.told_due_ns().is_none_or(|due_ns| due_ns > now_ns) {
            return Vec::new();
        }
        self.told_ns = now_ns;
        self.changed.append(&mut self.renewed);
        let changed = std::mem::take(&mut self.changed).into_iter();
        let told = changed.filter_map(|name| {
            let learner = self.learners.get(&name);
            let leases = learner.map(|learner| learner.leases.clone()).unwrap_or_default();
            Some(PortLeases { port: name.parse().ok()?, mac: learner.map(|learner| learner.mac), leases })
        });
        told.collect()
    }

    /// When that is due for ends.
    pub(crate) fn told_due_ns(&self) -> Option<u64> {
        (!self.renewed.is_empty()).then(|| self.told_ns.saturating_add(LEASES_TOLD_NS))
    }
}

impl Learner {
    /// Makes room for a lease of this address: of all of its kind the one that ends first. Returns whether there was none.
    fn make_room(&mut self, address: IpAddr) -> bool {
        let max = if address.is_ipv4() { LEASES_IPV4_MAX } else { LEASES_IPV6_MAX };
        let alike = self.leases.iter().enumerate();
        let alike = alike.filter(|(_, lease)| lease.address.is_ipv4() == address.is_ipv4());
        if alike.clone().count() < max {
            return false;
        }
        if let Some((at, _)) = alike.min_by_key(|(_, lease)| lease.until_ns) {
            self.leases.remove(at);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: Mac = Mac([2, 0, 0, 0, 0, 1]);

    fn leases() -> Leases {
        let mut leases = Leases::default();
        leases.set_learner("vm1", Some(OWN));
        leases
    }

    fn transaction(xid: u32) -> Transaction {
        Transaction { is_ipv6: false, xid, vid: 0 }
    }

    fn address(last: u8) -> IpAddr {
        [10, 0, 0, last].into()
    }

    #[test]
    fn a_flood_of_requests_forgets_those_of_its_port_only() {
        let mut leases = leases();
        leases.set_learner("vm2", Some(Mac([2, 0, 0, 0, 0, 2])));
        leases.request("vm2", transaction(0), None, 0);
        (0..1000).for_each(|xid| leases.request("vm1", transaction(xid), None, 0));
        let dropped = 1000 - DHCP_REQUESTS_PER_PORT as u64;
        assert_eq!(leases.counts.requests_dropped, dropped);
        assert_eq!(leases.take_request("vm1", transaction(0), 1), None);
        assert_eq!(leases.take_request("vm1", transaction(999), 1), Some(None));
        assert_eq!(leases.take_request("vm1", transaction(999), 1), None, "one answer");
        assert_eq!(leases.take_request("vm2", transaction(0), DHCP_REQUEST_NS - 1), Some(None));
        assert_eq!(leases.take_request("vm1", transaction(998), DHCP_REQUEST_NS), None, "too late");
    }

    #[test]
    fn the_lease_that_ends_first_makes_room() {
        let mut leases = leases();
        for last in 1..=LEASES_IPV4_MAX as u8 + 1 {
            assert!(leases.give("vm1", 0, (address(last), u32::from(last) * 10), 0));
        }
        assert_eq!((leases.len(), leases.counts.crowded_out), (LEASES_IPV4_MAX, 1));
        assert!(!leases.addresses("vm1").contains(&address(1)));
        assert!(!leases.give("vm1", 0, (address(2), u32::MAX), 0), "only its end is another");
        assert_eq!(leases.expire(29 * SECOND_NS), Vec::<String>::new());
        assert_eq!(leases.due_ns(), Some(30 * SECOND_NS));
        assert_eq!(leases.expire(1_000 * SECOND_NS), ["vm1"]);
        assert_eq!(leases.addresses("vm1"), [address(2)], "it has no end");
        assert_eq!(leases.due_ns(), None);
    }

    #[test]
    fn the_next_controller_has_the_leases_of_the_same_mac() {
        let mut leases = leases();
        leases.give("vm1", 7, (address(5), 100), 0);
        leases.give("vm1", 7, (address(6), 10), 0);
        let [told] = leases.take_changed(0).try_into().expect("one port");
        assert!(leases.take_changed(1).is_empty());
        leases.give("vm1", 7, (address(5), 200), 1);
        assert!(leases.take_changed(1).is_empty() && leases.told_due_ns() == Some(LEASES_TOLD_NS));
        assert_eq!(leases.take_changed(LEASES_TOLD_NS).len(), 1);
        let mut next = super::tests::leases();
        next.restore(told.clone(), 50 * SECOND_NS);
        assert!(next.has("vm1", address(5), 7) && next.len() == 1);
        let mut other = Leases::default();
        other.set_learner("vm1", Some(Mac([2, 0, 0, 0, 0, 9])));
        other.restore(told, 0);
        assert_eq!(other.len(), 0);
    }

    #[test]
    fn a_port_with_another_mac_has_no_leases() {
        let mut leases = leases();
        leases.give("vm1", 0, (address(5), 100), 0);
        leases.take_changed(0);
        leases.set_learner("vm1", Some(Mac([2, 0, 0, 0, 0, 2])));
        assert_eq!(leases.len(), 0);
        assert!(leases.take_changed(0)[0].leases.is_empty());
        leases.set_learner("vm1", None);
        assert!(leases.is_unused() && leases.take_changed(0).is_empty());
    }
}
