//! Checks of ports' claims: addresses, and services.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use etherparse::PacketBuilder;
use lasthop_controller::Controller;
use lasthop_module_api::{DropReason, Mac, PortGuard, PortId, PortPolicy, PortSettings};
use proptest::prelude::*;

use crate::support::{Rig, SWITCH, config, frame, mac, pair_flows_max, set_pair_flows_max};

const OWN: [u8; 4] = [10, 0, 0, 1];
const OTHER: [u8; 4] = [10, 0, 0, 2];
const LINK_LOCAL: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0);

fn own6() -> Ipv6Addr {
    "fd00::1".parse().expect("an address")
}

/// The address that a router often has.
fn router() -> Ipv6Addr {
    "fe80::1".parse().expect("an address")
}

/// The link-local address of the first port's Ethernet address.
fn link_local() -> Ipv6Addr {
    "fe80::ff:fe00:1".parse().expect("an address")
}

fn guard() -> PortGuard {
    let addresses = vec![IpAddr::from(OWN), IpAddr::from(own6())];
    PortGuard {
        addresses,
        has_mac: true,
        has_ip: true,
        has_arp: true,
        has_dhcp: true,
        ..PortGuard::default()
    }
}

fn controller(nonce: u32) -> Controller {
    controller_of(nonce, guard(), true)
}

fn controller_of(nonce: u32, guard: PortGuard, has_mac: bool) -> Controller {
    let mut controller = Controller::new(nonce);
    controller.set_switch(&config());
    for port in 1..=2_u8 {
        let guard = if port == 1 { guard.clone() } else { PortGuard::default() };
        let mac = Some(Mac(mac(port))).filter(|_| has_mac);
        let policy = PortPolicy { mac, guard, ..PortPolicy::default() };
        let settings = PortSettings { name: format!("p{port}"), policy, ..PortSettings::default() };
        controller.set_port(SWITCH, settings);
    }
    controller
}

/// Two ports; the first one is guarded.
fn rig() -> Rig {
    rig_of(guard(), true)
}

fn rig_of(guard: PortGuard, has_mac: bool) -> Rig {
    let mut rig = Rig::new(controller_of(0x4000_0000, guard, has_mac));
    rig.tables.ports = (1..=2).map(|port| (format!("p{port}"), PortId(port))).collect();
    rig.settle();
    rig
}

/// Sends a frame from the guarded port twice, and returns the drop reasons: the controller decides first, then its
/// flow.
fn fates(rig: &mut Rig, frame: &[u8]) -> [Option<DropReason>; 2] {
    [(); 2].map(|()| {
        rig.executed.clear();
        let copies = rig.send(1, frame);
        let reason = rig.drops.iter().copied().chain(rig.executed.iter().copied().flatten()).last();
        assert_eq!(copies.len(), usize::from(reason.is_none()), "a copy, or a drop");
        reason
    })
}

fn udp(src: [u8; 4], ports: (u16, u16)) -> Vec<u8> {
    let builder = PacketBuilder::ethernet2(mac(1), mac(2)).ipv4(src, OTHER, 64).udp(ports.0, ports.1);
    let mut bytes = Vec::new();
    builder.write(&mut bytes, b"x").expect("a datagram");
    bytes
}

fn udp6(src: Ipv6Addr, ports: (u16, u16)) -> Vec<u8> {
    let target: Ipv6Addr = "fd00::2".parse().expect("an address");
    let ip = PacketBuilder::ethernet2(mac(1), mac(2)).ipv6(src.octets(), target.octets(), 64);
    let mut bytes = Vec::new();
    ip.udp(ports.0, ports.1).write(&mut bytes, b"x").expect("a datagram");
    bytes
}

fn arp(sender: [u8; 4], sender_mac: [u8; 6]) -> Vec<u8> {
    let header = [0x08, 0x06, 0, 1, 8, 0, 6, 4, 0, 2];
    let body = [&header[..], &sender_mac, &sender, &mac(2), &OTHER, &[0; 18]].concat();
    frame(mac(2), mac(1), &body)
}

/// An ICMPv6 message with a target address and its Ethernet address.
fn icmpv6(kind: u8, source: Ipv6Addr, target: Ipv6Addr, target_mac: [u8; 6]) -> Vec<u8> {
    discovery(kind, (source, target), &[&[2, 1], &target_mac[..]].concat())
}

/// A solicitation of a neighbour that states the Ethernet address of its source.
fn solicitation(source: Ipv6Addr, source_mac: [u8; 6]) -> Vec<u8> {
    discovery(135, (source, "fd00::2".parse().expect("an address")), &[&[1, 1], &source_mac[..]].concat())
}

fn discovery(kind: u8, (source, target): (Ipv6Addr, Ipv6Addr), options: &[u8]) -> Vec<u8> {
    let body = [&[0_u8; 4][..], &target.octets(), options].concat();
    let all: Ipv6Addr = "ff02::1".parse().expect("an address");
    let ip = PacketBuilder::ethernet2(mac(1), mac(2)).ipv6(source.octets(), all.octets(), 255);
    let message = ip.icmpv6_raw(kind, 0, [0x60, 0, 0, 0]);
    let mut bytes = Vec::new();
    message.write(&mut bytes, &body[4..]).expect("a message");
    bytes
}

#[test]
fn a_port_sends_from_its_own_addresses_only() {
    let mut rig = rig();
    let spoofed = Some(DropReason::IpSpoofed);
    let others: Ipv6Addr = "fd00::2".parse().expect("an address");
    assert_eq!(fates(&mut rig, &udp(OWN, (1, 2))), [None; 2]);
    assert_eq!(fates(&mut rig, &udp(OTHER, (1, 2))), [spoofed; 2]);
    assert_eq!(fates(&mut rig, &udp([0; 4], (68, 67))), [None; 2], "a request for an address");
    assert_eq!(fates(&mut rig, &udp6(own6(), (1, 2))), [None; 2]);
    assert_eq!(fates(&mut rig, &udp6(link_local(), (1, 2))), [None; 2]);
    assert_eq!(fates(&mut rig, &udp6(router(), (1, 2))), [spoofed; 2]);
    assert_eq!(fates(&mut rig, &udp6(Ipv6Addr::UNSPECIFIED, (1, 2))), [None; 2]);
    assert_eq!(fates(&mut rig, &udp6(others, (1, 2))), [spoofed; 2]);
}

#[test]
fn a_port_claims_its_own_addresses_only() {
    let mut rig = rig();
    let spoofed = Some(DropReason::ArpSpoofed);
    let others: Ipv6Addr = "fd00::2".parse().expect("an address");
    assert_eq!(fates(&mut rig, &arp(OWN, mac(1))), [None; 2]);
    assert_eq!(fates(&mut rig, &arp([0; 4], mac(1))), [None; 2], "a probe");
    assert_eq!(fates(&mut rig, &arp(OTHER, mac(1))), [spoofed; 2]);
    assert_eq!(fates(&mut rig, &arp(OWN, mac(2))), [spoofed; 2]);
    assert_eq!(fates(&mut rig, &icmpv6(136, own6(), own6(), mac(1))), [None; 2]);
    assert_eq!(fates(&mut rig, &icmpv6(136, own6(), others, mac(1))), [spoofed; 2]);
    assert_eq!(fates(&mut rig, &icmpv6(136, own6(), own6(), mac(2))), [spoofed; 2]);
    assert_eq!(fates(&mut rig, &icmpv6(135, own6(), others, mac(2))), [None; 2], "a question claims nothing");
}

#[test]
fn a_port_claims_no_link_local_address_but_its_own() {
    let mut rig = rig();
    let spoofed = Some(DropReason::ArpSpoofed);
    assert_eq!(fates(&mut rig, &icmpv6(136, link_local(), link_local(), mac(1))), [None; 2]);
    assert_eq!(fates(&mut rig, &icmpv6(136, link_local(), router(), mac(1))), [spoofed; 2]);
    assert_eq!(fates(&mut rig, &icmpv6(136, link_local(), router(), mac(2))), [spoofed; 2]);
    assert_eq!(fates(&mut rig, &solicitation(link_local(), mac(1))), [None; 2]);
    assert_eq!(fates(&mut rig, &solicitation(own6(), mac(1))), [None; 2]);
    assert_eq!(fates(&mut rig, &solicitation(own6(), mac(2))), [spoofed; 2]);
    assert_eq!(fates(&mut rig, &solicitation(router(), mac(1))), [spoofed; 2]);
    let probe = icmpv6(135, Ipv6Addr::UNSPECIFIED, router(), mac(1));
    assert_eq!(fates(&mut rig, &probe), [None; 2], "duplicates are detected for any address");
    for source in [link_local(), Ipv6Addr::UNSPECIFIED] {
        assert_eq!(fates(&mut rig, &icmpv6(133, source, router(), mac(1))), [None; 2]);
        assert_eq!(fates(&mut rig, &icmpv6(143, source, router(), mac(1))), [None; 2]);
    }
    assert_eq!(fates(&mut rig, &icmpv6(133, router(), router(), mac(1))), [spoofed; 2]);
}

/// Receivers use one of the addresses; the key has none.
#[test]
fn a_message_with_two_ethernet_addresses_claims_too_much() {
    let mut rig = rig();
    for (kind, option) in [(135, 1), (136, 2)] {
        let stated = [&[option, 1], &mac(1)[..]].concat();
        let twice = discovery(kind, (link_local(), router()), &[&stated[..], &stated].concat());
        assert_eq!(fates(&mut rig, &twice), [Some(DropReason::ArpSpoofed); 2], "{kind}");
    }
}

#[test]
fn link_local_addresses_can_be_listed_or_all_be_own() {
    let spoofed = Some(DropReason::ArpSpoofed);
    let listed = PortGuard { addresses: vec![router().into()], ..guard() };
    let mut rig = rig_of(listed, true);
    assert_eq!(fates(&mut rig, &icmpv6(136, router(), router(), mac(1))), [None; 2]);
    assert_eq!(fates(&mut rig, &icmpv6(136, link_local(), link_local(), mac(1))), [None; 2]);
    let mut rig = rig_of(PortGuard { has_any_link_local: true, ..guard() }, true);
    assert_eq!(fates(&mut rig, &icmpv6(136, router(), router(), mac(1))), [None; 2]);
    assert_eq!(fates(&mut rig, &icmpv6(136, router(), router(), mac(2))), [spoofed; 2]);
    let mut rig = rig_of(PortGuard { has_mac: false, ..guard() }, false);
    let claim = icmpv6(136, link_local(), link_local(), mac(1));
    assert_eq!(fates(&mut rig, &claim), [spoofed; 2], "without mac= there is no address made of it");
}

/// The packet with this extension header behind its IPv6 header.
fn extended(frame: &[u8], kind: u8, mut header: Vec<u8>) -> Vec<u8> {
    let (before, behind) = frame.split_at(54);
    let mut before = before.to_vec();
    (header[0], before[20]) = (before[20], kind);
    let len = u16::from_be_bytes([before[18], before[19]]) + header.len() as u16;
    before[18..20].copy_from_slice(&len.to_be_bytes());
    [before, header, behind.to_vec()].concat()
}

/// A header of destination options with this length.
fn options(bytes: usize) -> Vec<u8> {
    let mut header = vec![0; bytes];
    header[1] = (bytes / 8 - 1) as u8;
    header
}

#[test]
fn claims_behind_the_bytes_that_are_read_do_not_pass() {
    const DESTINATION: u8 = 60;
    let mut rig = rig();
    let unread = Some(DropReason::ActionImpossible);
    let (rogue, spoofed) = (Some(DropReason::RogueServer), Some(DropReason::ArpSpoofed));
    let advertisement = icmpv6(134, own6(), own6(), mac(1));
    let claim = icmpv6(136, own6(), "fd00::2".parse().expect("an address"), mac(1));
    let offer = udp6(own6(), (547, 546));
    for (frame, reason) in [(&advertisement, rogue), (&claim, spoofed), (&offer, rogue)] {
        assert_eq!(fates(&mut rig, &extended(frame, DESTINATION, options(24))), [reason; 2]);
        assert_eq!(fates(&mut rig, &extended(frame, DESTINATION, options(72))), [unread; 2]);
        let many = (0..10).fold(frame.clone(), |frame, _| extended(&frame, DESTINATION, options(8)));
        assert_eq!(fates(&mut rig, &many), [unread; 2]);
        // All of the first fragment is extension headers.
        let first = vec![0, 0, 0, 1, 0, 0, 0, 7];
        let split = extended(&extended(frame, DESTINATION, options(8)), 44, first);
        assert_eq!(fates(&mut rig, &split[..54 + 16]), [unread; 2]);
    }
    let late = [&[200, 6][..], &[0; 46], &[2, 1], &mac(2)].concat();
    assert_eq!(fates(&mut rig, &discovery(136, (own6(), own6()), &late)), [unread; 2]);
    let early = [&[200, 6][..], &[0; 46]].concat();
    assert_eq!(fates(&mut rig, &discovery(136, (own6(), own6()), &early)), [None; 2]);
    let harmless = udp6(own6(), (5, 6));
    assert_eq!(fates(&mut rig, &extended(&harmless, DESTINATION, options(56))), [None; 2]);
}

#[test]
fn a_port_is_no_server_of_addresses_and_no_router() {
    let mut rig = rig();
    let rogue = Some(DropReason::RogueServer);
    assert_eq!(fates(&mut rig, &udp(OWN, (67, 68))), [rogue; 2]);
    assert_eq!(fates(&mut rig, &udp(OWN, (67, 69))), [None; 2]);
    assert_eq!(fates(&mut rig, &udp6(own6(), (547, 546))), [rogue; 2]);
    assert_eq!(fates(&mut rig, &icmpv6(134, own6(), own6(), mac(1))), [rogue; 2]);
    assert_eq!(fates(&mut rig, &icmpv6(137, own6(), own6(), mac(1))), [rogue; 2]);
}

#[test]
fn a_guest_that_makes_addresses_up_meets_few_flows() {
    let mut rig = rig();
    for number in 0..500_u16 {
        let [high, low] = (number * 131).to_be_bytes();
        rig.send(1, &udp([10, high, low, 7], (1, 2)));
        rig.send(1, &arp([10, high, low, 7], mac(1)));
        let invented = Ipv6Addr::from(LINK_LOCAL.to_bits() | u128::from(number) << 40);
        rig.send(1, &udp6(invented, (1, 2)));
        rig.send(1, &icmpv6(136, own6(), invented, mac(1)));
    }
    assert!(rig.flow_count() < 200, "{} flows", rig.flow_count());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    /// A packet's flow decides about another packet as the controller does about it alone, and the next controller
    /// takes over all flows.
    #[test]
    fn flows_decide_as_the_controller_does(
        packets in prop::collection::vec((0_u8..12, 0_u8..4, 0_u16..4), 1..30),
        pair_flows_max in pair_flows_max(),
    ) {
        set_pair_flows_max(pair_flows_max);
        let packet = |(kind, last, port): (u8, u8, u16)| {
            let v4 = if last == 3 { [0; 4] } else { [10, 0, 0, last] };
            let v6 = Ipv6Addr::from(Ipv4Addr::from(v4).to_bits() as u128 | 0xfd00 << 112);
            let local = [0, link_local().to_bits(), router().to_bits(), own6().to_bits()][usize::from(last)];
            match kind {
                0 => udp(v4, (66 + port, 68)),
                1 => udp6(v6, (546 + port, 546)),
                2 => arp(v4, mac(last)),
                3 => icmpv6(136, v6, v6, mac(last)),
                4 => icmpv6(134 + port as u8, own6(), v6, mac(1)),
                5 => solicitation(Ipv6Addr::from(local), mac(port as u8)),
                6 => icmpv6(136, own6(), Ipv6Addr::from(local), mac(1)),
                7 => icmpv6(133, Ipv6Addr::from(local), v6, mac(1)),
                8 => extended(&udp6(v6, (546 + port, 546)), 60, options(usize::from(last) * 24 + 8)),
                9 => udp6(v6, (port / 2, port % 2)),
                10 => icmpv6(port as u8, v6, v6, mac(1)),
                _ => frame(mac(2), mac(1), &[&[0x88, 0xb5][..], &[last; 46]].concat()),
            }
        };
        let mut all = rig();
        for each in &packets {
            let mut alone = rig();
            prop_assert_eq!(fates(&mut all, &packet(*each)), fates(&mut alone, &packet(*each)), "{:?}", each);
        }
        let flows = all.flow_count();
        all.replace_controller(controller(0x5000_0000));
        all.settle();
        prop_assert_eq!(all.flow_count(), flows);
    }
}
