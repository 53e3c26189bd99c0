//! Learns the addresses of ports from DHCP.
//!
//! ```text
//!   guest ── DHCPREQUEST ──> port with addresses=dhcp ── noted: xid, VLAN ──> server at another port
//!         <── DHCPACK ────── its chaddr is the port's mac, its xid was noted ──> lease: flows of the port follow
//! ```

use std::net::IpAddr;

use lasthop_api::leases::PortLeases;
use lasthop_flow::{Action, FlowKey};
use lasthop_module_api::{Mac, PortSettings};
use lasthop_wire::headers::ETHERTYPE_IPV6;

use super::{Admitted, Frame, Looked, Stage, Switch, admit};
use crate::bounds::ABOUT_FEW;
use crate::decide::is_drop;
use crate::dhcp::{self, ClientMessage, DhcpWay, GivenFor, ServerMessage, Transaction};

/// The Ethernet address of a port whose addresses are learned.
pub(super) fn learner(settings: &PortSettings) -> Option<Mac> {
    settings.policy.mac.filter(|_| settings.policy.guard.follows_dhcp)
}

impl Switch {
    /// Whether the controller has to see each such packet, by the port that it comes from.
    pub(super) fn is_watched(&self, frame: &Frame, looked: &mut Looked) -> bool {
        if self.leases.is_unused() {
            return false;
        }
        let is_from_learner =
            self.name_of(frame.port).is_some_and(|port| self.leases.learner(port).is_some());
        dhcp::is_watched(frame, is_from_learner, looked)
    }

    /// Learns from a packet that is about to be forwarded by these actions.
    pub(crate) fn overhear(&mut self, key: &FlowKey, packet: &[u8], actions: &[Action], now_ns: u64) {
        if self.leases.is_unused() || is_drop(actions) {
            return;
        }
        let Some((frame, way)) = Frame::of(key).and_then(|frame| Some((frame, dhcp::way(&frame)?))) else {
            return;
        };
        let Ok(Admitted { vid, .. }) = admit(self.view(now_ns), &frame, &mut Looked::default()) else {
            return;
        };
        match way {
            DhcpWay::ToServer if Stage::of(frame.recirc_id) == Stage::Entry => {
                self.hear_client(&frame, vid, packet, now_ns);
            }
            DhcpWay::ToServer => {}
            DhcpWay::ToClient => {
                let receivers = actions.iter().filter_map(|action| match action {
                    Action::Output(number) if *number != frame.port => Some(*number),
                    _ => None,
                });
                receivers.for_each(|number| self.hear_server(&frame, (vid, number), packet, now_ns));
            }
        }
    }

    fn hear_client(&mut self, frame: &Frame, vid: u16, packet: &[u8], now_ns: u64) {
        let Some((port, own)) = self.learner_at(frame.port) else { return };
        match dhcp::of_client(frame, vid, own, packet) {
            Some(ClientMessage::Request(transaction, named)) => {
                self.leases.request(&port, transaction, named, now_ns);
            }
            Some(ClientMessage::Release(addresses)) => {
                let mut has_changed = false;
                addresses.into_iter().for_each(|address| has_changed |= self.leases.end(&port, vid, address));
                self.follow_leases(&port, has_changed, now_ns);
            }
            None => {}
        }
    }

    fn hear_server(&mut self, frame: &Frame, (vid, number): (u16, u32), packet: &[u8], now_ns: u64) {
        let Some((port, own)) = self.learner_at(number) else { return };
        let Some(answer) = dhcp::of_server(frame, own, packet) else { return };
        let xid = match &answer {
            ServerMessage::Given(xid, _) | ServerMessage::Refused(xid) => *xid,
        };
        let is_ipv6 = frame.ether_type == ETHERTYPE_IPV6;
        let request = self.leases.take_request(&port, Transaction { is_ipv6, xid, vid }, now_ns);
        let Some(named) = request else {
            self.leases.counts.refused += 1;
            return;
        };
        let mut has_changed = false;
        match answer {
            ServerMessage::Given(_, all) => {
                all.into_iter().for_each(|given| has_changed |= self.on_given(&port, vid, given, now_ns));
            }
            ServerMessage::Refused(_) => {
                has_changed = named.is_some_and(|address| self.leases.end(&port, vid, address));
            }
        }
        self.follow_leases(&port, has_changed, now_ns);
    }

    /// Learns an address, unless it cannot be this port's. Returns whether the port's addresses have changed.
    fn on_given(&mut self, port: &str, vid: u16, (address, seconds): GivenFor, now_ns: u64) -> bool {
        if seconds == 0 {
            return self.leases.end(port, vid, address);
        }
        if !self.leases.has(port, address, vid) && !self.may_have(port, address, vid) {
            self.leases.counts.refused += 1;
            return false;
        }
        self.leases.give(port, vid, (address, seconds), now_ns)
    }

    /// Whether an address may be a port's own: it is a unicast address, and none of another port in the VLAN.
    fn may_have(&self, port: &str, address: IpAddr, vid: u16) -> bool {
        let is_odd = match address {
            IpAddr::V4(address) => address.is_broadcast(),
            IpAddr::V6(_) => false,
        };
        let is_fixed = |other: &PortSettings| {
            let PortSettings { name, policy, .. } = other;
            name != port && policy.vlans.carries(vid) && policy.guard.addresses.contains(&address)
        };
        !is_odd
            && !address.is_unspecified()
            && !address.is_multicast()
            && !address.is_loopback()
            && !self.settings.values().any(is_fixed)
            && !self.leases.is_of_other(port, address, vid)
    }

    /// The name and the Ethernet address of a port that learns its addresses.
    fn learner_at(&self, number: u32) -> Option<(String, Mac)> {
        let port = self.name_of(number)?;
        Some((port.to_owned(), self.leases.learner(port)?))
    }

    /// Ends leases in time.
    pub(crate) fn expire_leases(&mut self, now_ns: u64) {
        let ports = self.leases.expire(now_ns);
        ports.iter().for_each(|port| self.follow_leases(port, true, now_ns));
    }

    /// Takes over the leases that a former controller knew.
    pub(crate) fn restore_leases(&mut self, former: PortLeases, now_ns: u64) {
        let port = former.port.to_string();
        self.leases.restore(former, now_ns);
        self.follow_leases(&port, true, now_ns);
    }

    /// Has a port's flows follow its addresses, if these have changed.
    fn follow_leases(&mut self, name: &str, has_changed: bool, now_ns: u64) {
        let number = self.numbers.get(name).copied().filter(|_| has_changed);
        let found = number.and_then(|number| Some((number, self.ports.get_mut(&number)?)));
        let Some((number, port)) = found else { return };
        port.leased = self.leases.addresses(name).into();
        // The guest may use its address as soon as it has the answer, which follows these changes.
        if self.flows.sum(number) <= ABOUT_FEW {
            self.flows.of_port(number).into_iter().for_each(|ufid| self.revalidate(ufid, now_ns));
        } else {
            self.ports_with_other_leases.insert(number);
        }
    }
}
