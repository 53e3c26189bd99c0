//! DHCP messages between ports that learn their addresses from them, and servers at other ports.
//!
//! Flows forward none of these messages: the controller sees each of them, and forwards it by the usual decision.

use std::net::{IpAddr, Ipv4Addr};

use lasthop_module_api::Mac;
use lasthop_wire::dhcp::{self, DhcpMessage, Dhcpv6Message};
use lasthop_wire::headers::{ETHERTYPE_IPV4, ETHERTYPE_IPV6, PROTO_UDP};

use crate::acl::{DHCP, DHCPV6};
use crate::frame::{Frame, Looked};
use crate::gate::Stage;
use crate::ranges::is_within;

/// The direction of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DhcpWay {
    ToServer,
    ToClient,
}

/// A client's transaction, as its answer repeats it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Transaction {
    pub(crate) is_ipv6: bool,
    pub(crate) xid: u32,
    pub(crate) vid: u16,
}

/// A message of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ClientMessage {
    /// It requests an address, this one if it names one.
    Request(Transaction, Option<IpAddr>),
    /// It does not use these addresses any more.
    Release(Vec<IpAddr>),
}

/// An address in an answer, and for how many seconds it is given; 0 for no longer.
pub(crate) type GivenFor = (IpAddr, u32);

/// An answer of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ServerMessage {
    Given(u32, Vec<GivenFor>),
    /// The client must not use the address that it requested.
    Refused(u32),
}

/// Whether a message passes between a server and a client, by UDP ports.
pub(crate) fn way(frame: &Frame) -> Option<DhcpWay> {
    way_looked_at(frame, &mut Looked::default())
}

fn way_looked_at(frame: &Frame, looked: &mut Looked) -> Option<DhcpWay> {
    looked.ether_type = u16::MAX;
    let (server, client) = match frame.ether_type {
        ETHERTYPE_IPV4 => DHCP,
        ETHERTYPE_IPV6 => DHCPV6,
        _ => return None,
    };
    looked.protocol = u8::MAX;
    let (claims, seen) = (&frame.claims, &mut looked.claims);
    let mut is_between = |from, to| {
        is_within(claims.udp_src, from, from, &mut seen.udp_src)
            && is_within(claims.udp_dst, to, to, &mut seen.udp_dst)
    };
    match () {
        () if frame.protocol != PROTO_UDP => None,
        () if is_between(server, client) => Some(DhcpWay::ToClient),
        () if is_between(client, server) => Some(DhcpWay::ToServer),
        () => None,
    }
}

/// Whether the controller has to see each such packet: answers at each stage, since it is the last one that shows who gets them, and
/// what a port that learns sends. Records the bits that decide.
pub(crate) fn is_watched(frame: &Frame, is_from_learner: bool, looked: &mut Looked) -> bool {
    match way_looked_at(frame, looked) {
        Some(DhcpWay::ToClient) => true,
        Some(DhcpWay::ToServer) => is_from_learner && Stage::of(frame.recirc_id) == Stage::Entry,
        None => false,
    }
}

/// Reads a client's message in a frame from its port; `None` for others, and for another client's.
pub(crate) fn of_client(frame: &Frame, vid: u16, own: Mac, packet: &[u8]) -> Option<ClientMessage> {
    let payload = dhcp::udp_payload(packet)?;
    if frame.ether_type == ETHERTYPE_IPV6 {
        return of_client_ipv6(vid, payload);
    }
    let message = DhcpMessage::parse(payload)?;
    if !message.is_of_client || message.client_mac != own.0 {
        return None;
    }
    let named = |address: Ipv4Addr| Some(IpAddr::V4(address)).filter(|address| !address.is_unspecified());
    let (requested, used) = (message.requested.and_then(named), named(message.client));
    match message.kind {
        dhcp::DHCPREQUEST => {
            let transaction = Transaction { is_ipv6: false, xid: message.xid, vid };
            Some(ClientMessage::Request(transaction, requested.or(used)))
        }
        dhcp::DHCPRELEASE => Some(ClientMessage::Release(used.into_iter().collect())),
        dhcp::DHCPDECLINE => Some(ClientMessage::Release(requested.into_iter().collect())),
        _ => None,
    }
}

fn of_client_ipv6(vid: u16, payload: &[u8]) -> Option<ClientMessage> {
    let message = Dhcpv6Message::parse(payload)?;
    match message.kind {
        dhcp::SOLICIT if !message.has_rapid_commit() => None,
        dhcp::SOLICIT | dhcp::REQUEST | dhcp::CONFIRM | dhcp::RENEW | dhcp::REBIND => {
            Some(ClientMessage::Request(Transaction { is_ipv6: true, xid: message.xid, vid }, None))
        }
        dhcp::RELEASE | dhcp::DECLINE => {
            Some(ClientMessage::Release(message.addresses().map(|given| given.address.into()).collect()))
        }
        _ => None,
    }
}

/// Reads an answer in a frame to a port. `None` for other messages, for another client's, and for one without lease time.
pub(crate) fn of_server(frame: &Frame, own: Mac, packet: &[u8]) -> Option<ServerMessage> {
    let payload = dhcp::udp_payload(packet)?;
    let to = Mac::from_bits(frame.dst);
    if frame.ether_type == ETHERTYPE_IPV6 {
        // The client's Ethernet address is not in the message, but a server sends it to the client alone (RFC 8415, 18.3.10).
        let message =
            Dhcpv6Message::parse(payload).filter(|message| message.kind == dhcp::REPLY && to == own)?;
        let given = message.addresses().map(|given| (given.address.into(), given.valid_s));
        return Some(ServerMessage::Given(message.xid, given.collect()));
    }
    let message = DhcpMessage::parse(payload)?;
    let is_to_own = message.client_mac == own.0 && (to == own || to.is_group());
    match message.kind {
        _ if message.is_of_client || !is_to_own => None,
        dhcp::DHCPACK => {
            Some(ServerMessage::Given(message.xid, vec![(message.given.into(), message.lease_s?)]))
        }
        dhcp::DHCPNAK => Some(ServerMessage::Refused(message.xid)),
        _ => None,
    }
}
