//! Addresses that ports learn from DHCP.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use etherparse::PacketBuilder;
use lasthop_api::acl::AclRule;
use lasthop_controller::Controller;
use lasthop_controller::bounds::DHCP_REQUESTS_PER_PORT;
use lasthop_module_api::{DropReason, Mac, PortGuard, PortId, PortPolicy, PortSettings};
use proptest::prelude::*;

use crate::support::{
    Copies, Rig, SECOND_NS, SWITCH, config, frame, mac, pair_flows_max, set_pair_flows_max,
};

/// A guest whose addresses are learned, the server, a guest with all guards, and another one whose addresses are learned.
const GUEST: u16 = 1;
const SERVER: u16 = 2;
const ROGUE: u16 = 3;
const OTHER: u16 = 4;
const ALL: [u8; 6] = [0xff; 6];
const XID: u32 = 0x1234_5678;
const GIVEN: [u8; 4] = [10, 0, 0, 50];
const STATIC: [u8; 4] = [10, 0, 0, 9];

fn guard(port: u16) -> PortGuard {
    let follows_dhcp = [GUEST, OTHER].contains(&port);
    let addresses = if port == ROGUE { vec![IpAddr::from(STATIC)] } else { Vec::new() };
    let checked =
        PortGuard { has_mac: true, has_ip: true, has_arp: true, has_dhcp: true, ..PortGuard::default() };
    PortGuard { addresses, follows_dhcp, ..checked }
}

fn settings(port: u16) -> PortSettings {
    let guard = if port == SERVER { PortGuard::default() } else { guard(port) };
    let policy = PortPolicy { mac: Some(Mac(mac(port as u8))), guard, ..PortPolicy::default() };
    PortSettings { name: format!("p{port}"), policy, ..PortSettings::default() }
}

fn controller(nonce: u32) -> Controller {
    let mut controller = Controller::new(nonce);
    controller.set_switch(&config());
    (1..=4).for_each(|port| controller.set_port(SWITCH, settings(port)));
    controller
}

fn rig() -> Rig {
    let mut rig = Rig::new(controller(0x6000_0000));
    rig.tables.ports = (1..=4).map(|port| (format!("p{port}"), PortId(port))).collect();
    rig.settle();
    rig
}

/// A DHCP message.
#[derive(Clone, Copy)]
struct Message {
    is_of_client: bool,
    kind: u8,
    xid: u32,
    chaddr: [u8; 6],
    ciaddr: [u8; 4],
    yiaddr: [u8; 4],
    lease_s: Option<u32>,
    requested: Option<[u8; 4]>,
}

const REQUEST: Message = Message {
    is_of_client: true,
    kind: 3,
    xid: XID,
    chaddr: [2, 0, 0, 0, 0, GUEST as u8],
    ciaddr: [0; 4],
    yiaddr: [0; 4],
    lease_s: None,
    requested: Some(GIVEN),
};
const ACK: Message =
    Message { is_of_client: false, kind: 5, yiaddr: GIVEN, lease_s: Some(600), requested: None, ..REQUEST };

impl Message {
    fn payload(&self) -> Vec<u8> {
        let mut bytes = vec![if self.is_of_client { 1 } else { 2 }, 1, 6, 0];
        bytes.extend(self.xid.to_be_bytes());
        bytes.extend([0; 4]);
        bytes.extend([self.ciaddr, self.yiaddr, [0; 4], [0; 4]].concat());
        bytes.extend(self.chaddr);
        bytes.extend([0; 10 + 64 + 128]);
        bytes.extend([99, 130, 83, 99, 53, 1, self.kind]);
        self.lease_s.iter().for_each(|lease_s| bytes.extend([&[51, 4][..], &lease_s.to_be_bytes()].concat()));
        self.requested.iter().for_each(|address| bytes.extend([&[50, 4][..], address].concat()));
        bytes.push(255);
        bytes
    }

    /// The frame from a port, to a broadcast address for a server.
    fn frame(&self, from: u16, to: [u8; 6]) -> Vec<u8> {
        let (source, ports) =
            if self.is_of_client { (self.ciaddr, (68, 67)) } else { ([10, 0, 0, 1], (67, 68)) };
        udp(from, to, (source, [255; 4]), ports, &self.payload())
    }
}

fn udp(
    from: u16,
    to: [u8; 6],
    (source, destination): ([u8; 4], [u8; 4]),
    ports: (u16, u16),
    payload: &[u8],
) -> Vec<u8> {
    let builder = PacketBuilder::ethernet2(mac(from as u8), to).ipv4(source, destination, 64);
    let mut bytes = Vec::new();
    builder.udp(ports.0, ports.1).write(&mut bytes, payload).expect("a datagram");
    bytes
}

fn udp6(from: u16, to: [u8; 6], source: Ipv6Addr, ports: (u16, u16), payload: &[u8]) -> Vec<u8> {
    let target: Ipv6Addr = "fe80::2".parse().expect("an address");
    let builder = PacketBuilder::ethernet2(mac(from as u8), to).ipv6(source.octets(), target.octets(), 64);
    let mut bytes = Vec::new();
    builder.udp(ports.0, ports.1).write(&mut bytes, payload).expect("a datagram");
    bytes
}

/// Sends a frame; returns its copies, and why it was dropped.
fn send(rig: &mut Rig, port: u16, frame: &[u8]) -> (Copies, Option<DropReason>) {
    rig.executed.clear();
    let copies = rig.send(port, frame);
    let reason = rig.drops.iter().copied().chain(rig.executed.iter().copied().flatten()).last();
    assert_eq!(copies.is_empty(), reason.is_some(), "copies, or a drop");
    (copies, reason)
}

/// Whether a guest may send from an address, the first time and by a flow.
fn may_use(rig: &mut Rig, port: u16, source: [u8; 4]) -> bool {
    let packet = udp(port, mac(SERVER as u8), (source, [10, 0, 0, 1]), (1000, 2000), b"x");
    let fates = [(); 2].map(|()| send(rig, port, &packet).1);
    assert!(fates == [None; 2] || fates == [Some(DropReason::IpSpoofed); 2], "{fates:?}");
    let header = [0x08, 0x06, 0, 1, 8, 0, 6, 4, 0, 2];
    let claim = [&header[..], &mac(port as u8), &source, &mac(2), &[10, 0, 0, 1], &[0; 18]].concat();
    let claims = send(rig, port, &frame(mac(SERVER as u8), mac(port as u8), &claim)).1;
    assert_eq!(claims.is_none(), fates[0].is_none(), "as in ARP");
    fates[0].is_none()
}

fn may_use6(rig: &mut Rig, port: u16, source: Ipv6Addr) -> bool {
    let packet = udp6(port, mac(SERVER as u8), source, (1000, 2000), b"x");
    let fates = [(); 2].map(|()| send(rig, port, &packet).1);
    assert!(fates == [None; 2] || fates == [Some(DropReason::IpSpoofed); 2], "{fates:?}");
    fates[0].is_none()
}

/// The client requests, and the server answers.
fn lease(rig: &mut Rig, request: Message, answer: Message) {
    let (copies, reason) = send(rig, GUEST, &request.frame(GUEST, ALL));
    assert_eq!((copies.len(), reason), (3, None), "it is flooded");
    let frame = answer.frame(SERVER, mac(GUEST as u8));
    assert_eq!(send(rig, SERVER, &frame).0, [(GUEST, frame)], "it is forwarded unchanged");
}

fn counter(rig: &Rig, name: &str) -> u64 {
    let stats = rig.controller.stats_of(SWITCH).expect("it is served");
    stats.counters().find(|(known, _)| *known == name).expect("a counter").1
}

#[test]
fn a_guest_may_use_the_address_that_a_server_gave_it_while_the_lease_lasts() {
    let mut rig = rig();
    assert!(!may_use(&mut rig, GUEST, GIVEN), "before");
    assert!(may_use(&mut rig, GUEST, [0; 4]), "to request one");
    lease(&mut rig, REQUEST, ACK);
    assert!(may_use(&mut rig, GUEST, GIVEN));
    assert!(!may_use(&mut rig, GUEST, [10, 0, 0, 51]) && !may_use(&mut rig, OTHER, GIVEN));
    let told = rig.controller.take_leases(rig.now_ns);
    assert_eq!((told.len(), told[0].1.leases[0].until_ns), (1, rig.now_ns + 600 * SECOND_NS));
    rig.now_ns += 599 * SECOND_NS;
    rig.settle();
    assert!(may_use(&mut rig, GUEST, GIVEN));
    assert_eq!(rig.controller.due_ns().map(|due_ns| due_ns <= rig.now_ns + SECOND_NS), Some(true));
    rig.now_ns += SECOND_NS;
    rig.settle();
    assert!(!may_use(&mut rig, GUEST, GIVEN), "its flow is gone, too");
    assert_eq!((counter(&rig, "leases_learned"), counter(&rig, "leases_ended")), (1, 1));
    assert!(rig.controller.take_leases(rig.now_ns)[0].1.leases.is_empty());
}

#[test]
fn each_message_of_dhcp_comes_to_the_controller() {
    let mut rig = rig();
    for number in 0..20 {
        let (request, answer) = (Message { xid: number, ..REQUEST }, Message { xid: number, ..ACK });
        let before = rig.misses;
        lease(&mut rig, request, answer);
        assert_eq!(rig.misses, before + 2);
    }
    assert_eq!(counter(&rig, "leases_refused"), 0);
    // A request of a port without leases needs no controller each time.
    let other = Message { chaddr: mac(SERVER as u8), ..REQUEST }.frame(SERVER, ALL);
    (0..5).for_each(|_| drop(send(&mut rig, SERVER, &other)));
    let before = rig.misses;
    send(&mut rig, SERVER, &other);
    assert_eq!(rig.misses, before);
}

#[test]
fn a_renewed_lease_lasts_longer_and_a_refusal_or_release_ends_it() {
    for (from, end) in [
        (GUEST, Message { kind: 7, ciaddr: GIVEN, requested: None, ..REQUEST }),
        (GUEST, Message { kind: 4, ..REQUEST }),
        (SERVER, Message { kind: 6, yiaddr: [0; 4], ..ACK }),
    ] {
        let mut rig = rig();
        lease(&mut rig, REQUEST, ACK);
        rig.now_ns += 500 * SECOND_NS;
        let renewal = Message { xid: 77, ciaddr: GIVEN, requested: None, ..REQUEST };
        lease(&mut rig, renewal, Message { xid: 77, ..ACK });
        rig.now_ns += 500 * SECOND_NS;
        assert!(may_use(&mut rig, GUEST, GIVEN));
        if from == SERVER {
            send(&mut rig, SERVER, &end.frame(SERVER, ALL));
            assert!(may_use(&mut rig, GUEST, GIVEN), "nothing was asked");
            send(&mut rig, GUEST, &REQUEST.frame(GUEST, ALL));
        }
        assert_eq!(send(&mut rig, from, &end.frame(from, ALL)).1, None);
        assert!(!may_use(&mut rig, GUEST, GIVEN), "{}", end.kind);
    }
}

/// Answers that teach nothing.
#[test]
fn a_forged_answer_teaches_nothing() {
    let to_guest = mac(GUEST as u8);
    let forgeries = [
        ("another transaction", SERVER, Message { xid: 1, ..ACK }),
        ("another client", SERVER, Message { chaddr: mac(OTHER as u8), ..ACK }),
        ("an offer", SERVER, Message { kind: 2, ..ACK }),
        ("without lease time", SERVER, Message { lease_s: None, ..ACK }),
        ("no time", SERVER, Message { lease_s: Some(0), ..ACK }),
        ("no address", SERVER, Message { yiaddr: [0; 4], ..ACK }),
        ("a group", SERVER, Message { yiaddr: [224, 0, 0, 1], ..ACK }),
        ("broadcast", SERVER, Message { yiaddr: [255; 4], ..ACK }),
        ("a fixed address of another port", SERVER, Message { yiaddr: STATIC, ..ACK }),
        ("of a client", SERVER, Message { is_of_client: true, ..ACK }),
    ];
    for (what, from, answer) in forgeries {
        let mut rig = rig();
        send(&mut rig, GUEST, &REQUEST.frame(GUEST, ALL));
        let payload = answer.payload();
        send(&mut rig, from, &udp(from, to_guest, ([10, 0, 0, 1], [255; 4]), (67, 68), &payload));
        assert_eq!(counter(&rig, "leases"), 0, "{what}");
        assert!(answer.yiaddr == [0; 4] || !may_use(&mut rig, GUEST, answer.yiaddr), "{what}");
    }
}

#[test]
fn guests_teach_each_other_nothing() {
    let mut rig = rig();
    // An answer without a request.
    send(&mut rig, SERVER, &ACK.frame(SERVER, mac(GUEST as u8)));
    assert!(!may_use(&mut rig, GUEST, GIVEN));
    assert_eq!(counter(&rig, "leases_refused"), 1);
    send(&mut rig, GUEST, &REQUEST.frame(GUEST, ALL));
    // Answers of guests, of the one that asked too.
    for from in [ROGUE, OTHER, GUEST] {
        let fate = send(&mut rig, from, &ACK.frame(from, ALL)).1;
        assert_eq!(fate, Some(DropReason::RogueServer), "from {from}");
    }
    assert!(!may_use(&mut rig, GUEST, GIVEN));
    // Another guest's request of the same transaction, for this guest and for itself.
    let mut other = Message { chaddr: mac(OTHER as u8), ..REQUEST };
    send(&mut rig, OTHER, &REQUEST.frame(OTHER, ALL));
    send(&mut rig, OTHER, &other.frame(OTHER, ALL));
    let (copies, _) = send(&mut rig, SERVER, &ACK.frame(SERVER, ALL));
    assert_eq!(copies.len(), 3, "all get the answer");
    assert!(may_use(&mut rig, GUEST, GIVEN) && !may_use(&mut rig, OTHER, GIVEN));
    // The same address for two.
    other.xid += 1;
    send(&mut rig, OTHER, &other.frame(OTHER, ALL));
    let again = Message { xid: other.xid, chaddr: other.chaddr, ..ACK };
    send(&mut rig, SERVER, &again.frame(SERVER, mac(OTHER as u8)));
    assert!(may_use(&mut rig, GUEST, GIVEN) && !may_use(&mut rig, OTHER, GIVEN));
}

#[test]
fn malformed_answers_are_forwarded_and_teach_nothing() {
    let mut rig = rig();
    let whole = ACK.payload();
    let end = whole.len() - 1;
    let overlong = [&whole[..end], &[120, 200, 1]].concat();
    let wide = [&whole[..240], &[51, 8, 0, 0, 0, 1, 0, 0, 0, 1], &whole[240..]].concat();
    for payload in [&whole[..100], &whole[..240], &overlong, &wide, &[]] {
        send(&mut rig, GUEST, &REQUEST.frame(GUEST, ALL));
        let frame = udp(SERVER, mac(GUEST as u8), ([10, 0, 0, 1], GIVEN), (67, 68), payload);
        assert_eq!(send(&mut rig, SERVER, &frame).0, [(GUEST, frame.clone())]);
        let mut fragment = frame.clone();
        fragment[20] = 0x20;
        send(&mut rig, SERVER, &fragment);
        assert!(!may_use(&mut rig, GUEST, GIVEN));
    }
}

#[test]
fn a_lease_without_end_ends_with_its_port() {
    let mut rig = rig();
    lease(&mut rig, REQUEST, Message { lease_s: Some(u32::MAX), ..ACK });
    rig.now_ns += 100_000_000 * SECOND_NS;
    rig.settle();
    assert!(may_use(&mut rig, GUEST, GIVEN));
    let mut changed = settings(GUEST);
    changed.policy.guard.follows_dhcp = false;
    rig.controller.set_port(SWITCH, changed);
    rig.settle();
    assert!(!may_use(&mut rig, GUEST, GIVEN));
    rig.controller.set_port(SWITCH, settings(GUEST));
    rig.settle();
    assert!(!may_use(&mut rig, GUEST, GIVEN), "it has to request again");
    lease(&mut rig, REQUEST, ACK);
    assert!(may_use(&mut rig, GUEST, GIVEN));
}

#[test]
fn a_flood_of_requests_is_bounded() {
    let mut rig = rig();
    for xid in 0..500 {
        send(&mut rig, GUEST, &Message { xid, ..REQUEST }.frame(GUEST, ALL));
    }
    assert_eq!(counter(&rig, "dhcp_requests_dropped"), 500 - DHCP_REQUESTS_PER_PORT as u64);
    assert!(rig.flow_count() < 50, "{} flows", rig.flow_count());
    send(&mut rig, SERVER, &Message { xid: 0, ..ACK }.frame(SERVER, mac(GUEST as u8)));
    assert!(!may_use(&mut rig, GUEST, GIVEN), "it is forgotten");
    send(&mut rig, SERVER, &Message { xid: 499, ..ACK }.frame(SERVER, mac(GUEST as u8)));
    assert!(may_use(&mut rig, GUEST, GIVEN));
    // Many addresses: the first ones make room.
    for last in 100..120 {
        let given = Message { yiaddr: [10, 0, 0, last], xid: last.into(), ..ACK };
        lease(&mut rig, Message { xid: last.into(), ..REQUEST }, given);
    }
    assert_eq!(counter(&rig, "leases"), 8);
    assert_eq!(counter(&rig, "leases_crowded_out"), 13);
}

/// Rules track packets and see them again: only an answer that they let through teaches.
#[test]
fn an_answer_that_a_rule_denies_teaches_nothing() {
    let rule = |text: &str| -> AclRule { serde_json::from_str(text).expect("a rule") };
    let ports = r#""port":["p1","p2"],"direction""#;
    let deny =
        r#"{"name":"no","port":"p1","direction":"ingress","protocol":"udp","sport":67,"action":"deny"}"#;
    let allow = format!(r#"{{"name":"yes",{ports}:"egress","action":"allow"}}"#);
    let rest = r#"{"name":"rest","port":"p1","direction":"ingress","action":"deny"}"#;
    for (rules, is_learned) in [(vec![deny, &allow], false), (vec![&allow[..], rest], true)] {
        let mut rig = rig();
        rig.controller.set_acl(SWITCH, rules.into_iter().map(rule).collect());
        rig.settle();
        send(&mut rig, GUEST, &REQUEST.frame(GUEST, ALL));
        let fate = send(&mut rig, SERVER, &ACK.frame(SERVER, mac(GUEST as u8))).1;
        assert_eq!(fate, if is_learned { None } else { Some(DropReason::AclDenied) });
        assert_eq!(counter(&rig, "leases"), u64::from(is_learned));
        assert_eq!(may_use(&mut rig, GUEST, GIVEN), is_learned);
    }
}

fn option(code: u16, data: &[u8]) -> Vec<u8> {
    [&code.to_be_bytes()[..], &(data.len() as u16).to_be_bytes(), data].concat()
}

/// A message of DHCPv6 with an association of these addresses.
fn message6(kind: u8, xid: u32, addresses: &[(Ipv6Addr, u32)]) -> Vec<u8> {
    let mut inside = vec![0; 12];
    for (address, valid_s) in addresses {
        inside.extend(option(5, &[&address.octets()[..], &[0; 4], &valid_s.to_be_bytes()].concat()));
    }
    [&[kind][..], &xid.to_be_bytes()[1..], &option(1, &[0, 3]), &option(3, &inside)].concat()
}

fn client6(rig: &mut Rig, port: u16, kind: u8, xid: u32, addresses: &[(Ipv6Addr, u32)]) {
    // Of `mac(port)`.
    let link_local = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0xff, 0xfe00, port);
    let to_servers = [0x33, 0x33, 0, 1, 0, 2];
    let payload = message6(kind, xid, addresses);
    assert_eq!(send(rig, port, &udp6(port, to_servers, link_local, (546, 547), &payload)).1, None);
}

fn server6(rig: &mut Rig, to: u16, kind: u8, xid: u32, addresses: &[(Ipv6Addr, u32)]) {
    let link_local: Ipv6Addr = "fe80::2".parse().expect("an address");
    let payload = message6(kind, xid, addresses);
    let frame = udp6(SERVER, mac(to as u8), link_local, (547, 546), &payload);
    assert_eq!(send(rig, SERVER, &frame).0, [(to, frame)]);
}

#[test]
fn addresses_of_dhcpv6_are_learned_too() {
    let [one, two]: [Ipv6Addr; 2] = ["fd00::51", "fd00::52"].map(|text| text.parse().expect("an address"));
    let mut rig = rig();
    for (xid, (request, answer)) in (100..).zip([(1, 7), (3, 2), (3, 10), (11, 7)]) {
        // A Solicit without rapid commit is answered by an Advertise only; other types are no answers, or no requests.
        client6(&mut rig, GUEST, request, xid, &[]);
        server6(&mut rig, GUEST, answer, xid, &[(one, 100)]);
        assert!(!may_use6(&mut rig, GUEST, one), "{request} {answer}");
    }
    client6(&mut rig, GUEST, 3, 6, &[]);
    server6(&mut rig, GUEST, 7, 7, &[(one, 100)]);
    assert!(!may_use6(&mut rig, GUEST, one), "another transaction");
    server6(&mut rig, GUEST, 7, 6, &[(one, 100), (two, 50)]);
    assert!(may_use6(&mut rig, GUEST, one) && may_use6(&mut rig, GUEST, two));
    rig.now_ns += 50 * SECOND_NS;
    rig.settle();
    assert!(may_use6(&mut rig, GUEST, one) && !may_use6(&mut rig, GUEST, two), "one lifetime is over");
    client6(&mut rig, GUEST, 5, 8, &[(one, 0)]);
    server6(&mut rig, GUEST, 7, 8, &[(one, 100)]);
    rig.now_ns += 99 * SECOND_NS;
    rig.settle();
    assert!(may_use6(&mut rig, GUEST, one), "renewed");
    client6(&mut rig, GUEST, 6, 9, &[(one, 0)]);
    server6(&mut rig, GUEST, 7, 9, &[(one, 0), (two, 100)]);
    assert!(!may_use6(&mut rig, GUEST, one) && may_use6(&mut rig, GUEST, two), "the server gave another one");
    client6(&mut rig, GUEST, 8, 10, &[(two, 0)]);
    assert!(!may_use6(&mut rig, GUEST, two), "released");
    // The transaction of another guest's request: the answer is for that guest.
    client6(&mut rig, OTHER, 3, 11, &[]);
    client6(&mut rig, GUEST, 3, 11, &[]);
    server6(&mut rig, GUEST, 7, 11, &[(one, 100)]);
    assert!(may_use6(&mut rig, GUEST, one) && !may_use6(&mut rig, OTHER, one));
}

#[test]
fn leases_survive_the_controller_and_the_switch_process() {
    let mut rig = rig();
    lease(&mut rig, REQUEST, ACK);
    let told = rig.controller.take_leases(rig.now_ns);
    let mut next = controller(0x7000_0000);
    for (switch, leases) in told {
        next.restore_leases(&switch, leases, rig.now_ns);
    }
    rig.replace_controller(next);
    rig.settle();
    assert!(may_use(&mut rig, GUEST, GIVEN) && !may_use(&mut rig, OTHER, GIVEN));
    rig.now_ns += 600 * SECOND_NS;
    rig.settle();
    assert!(!may_use(&mut rig, GUEST, GIVEN), "until they end");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    /// Requests, answers, releases and time in any order: the guest may use what a model says, and each packet is forwarded
    /// to the same ports as without DHCP.
    #[test]
    fn the_guest_has_the_leases_of_a_model(
        steps in prop::collection::vec((0_u8..5, 0_u32..3, 50_u8..53, 1_u32..40), 1..40),
        pair_flows_max in pair_flows_max(),
    ) {
        set_pair_flows_max(pair_flows_max);
        let mut rig = rig();
        let mut open: Vec<u32> = Vec::new();
        let mut model = std::collections::BTreeMap::<[u8; 4], u64>::new();
        for (kind, xid, last, seconds) in steps {
            let address = [10, 0, 0, last];
            match kind {
                0 => {
                    send(&mut rig, GUEST, &Message { xid, ..REQUEST }.frame(GUEST, ALL));
                    open.push(xid);
                }
                1 | 2 => {
                    let answer = Message { xid, yiaddr: address, lease_s: Some(seconds), ..ACK };
                    send(&mut rig, SERVER, &answer.frame(SERVER, mac(GUEST as u8)));
                    if open.contains(&xid) {
                        open.retain(|other| *other != xid);
                        model.insert(address, rig.now_ns + u64::from(seconds) * SECOND_NS);
                    }
                }
                3 => {
                    let release = Message { kind: 7, ciaddr: address, requested: None, ..REQUEST };
                    // Only from an address that it has.
                    let is_dropped = send(&mut rig, GUEST, &release.frame(GUEST, ALL)).1.is_some();
                    prop_assert_eq!(is_dropped, !model.contains_key(&address));
                    model.remove(&address);
                }
                _ => {
                    rig.now_ns += u64::from(seconds) / 4 * SECOND_NS;
                    rig.settle();
                }
            }
            let now_ns = rig.now_ns;
            model.retain(|_, until_ns| *until_ns > now_ns);
            let may = (50..53).filter(|last| may_use(&mut rig, GUEST, [10, 0, 0, *last])).count();
            prop_assert_eq!(may, model.len());
            for address in model.keys() {
                prop_assert!(may_use(&mut rig, GUEST, *address), "{}", Ipv4Addr::from(*address));
            }
        }
    }
}
