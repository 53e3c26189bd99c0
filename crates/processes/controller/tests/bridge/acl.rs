//! Rules about connections, over the real flow table and its connection tracking.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};

use etherparse::PacketBuilder;
use lasthop_api::acl::{AclAction, AclDirection, AclProtocol, AclRule};
use lasthop_controller::Controller;
use lasthop_module_api::{DropReason, PortGuard, PortId, PortPolicy, PortSettings, PortVlans, Vid};
use proptest::prelude::*;

use crate::support::{Rig, SWITCH, config, frame, mac, pair_flows_max, set_pair_flows_max};

/// A rule as in the configuration file, without a name.
fn rule(text: &str) -> AclRule {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let rule: AclRule = serde_json::from_str(&format!(r#"{{"name":"r{number}",{text}}}"#)).expect("a rule");
    rule.check().expect("keys that go together");
    rule
}

fn rules(texts: &[&str]) -> Vec<AclRule> {
    texts.iter().map(|text| rule(text)).collect()
}

const HTTPS: &str = r#""port":"p1","direction":"ingress","action":"allow","protocol":"tcp","dport":443"#;
const NOTHING_IN: &str = r#""port":"p1","direction":"ingress","action":"deny""#;

fn controller(ports: u16, acl: &[AclRule]) -> Controller {
    static NONCE: AtomicU32 = AtomicU32::new(0x8000_0000);
    let mut controller = Controller::new(NONCE.fetch_add(0x100, Ordering::Relaxed));
    controller.set_switch(&config());
    for port in 1..=ports {
        controller.set_port(SWITCH, PortSettings { name: format!("p{port}"), ..PortSettings::default() });
    }
    controller.set_acl(SWITCH, acl.to_vec());
    controller
}

fn rig(ports: u16, acl: &[AclRule]) -> Rig {
    let mut rig = Rig::new(controller(ports, acl));
    rig.tables.ports = (1..=ports).map(|port| (format!("p{port}"), PortId(port))).collect();
    rig.settle();
    assert!(rig.controller.is_settled());
    // Addresses are learned from frames that rules do not concern.
    for port in 1..=ports {
        rig.send(port, &frame([0xff; 6], mac(port as u8), &[&[8, 6][..], &[0; 46]].concat()));
    }
    rig
}

fn address(port: u16) -> [u8; 4] {
    [10, 0, 0, port as u8]
}

fn ip_of(from: u16, to: u16) -> etherparse::PacketBuilderStep<etherparse::IpHeaders> {
    PacketBuilder::ethernet2(mac(from as u8), mac(to as u8)).ipv4(address(from), address(to), 64)
}

/// Segments of one connection in order: SYN, SYN-ACK, ACK, then one byte of data each way.
struct Conversation {
    client: (u16, u16),
    server: (u16, u16),
}

impl Conversation {
    fn segment(&self, is_reply: bool, flags: &str, seq: u32, ack: u32, data: &[u8]) -> Vec<u8> {
        let (from, to) = if is_reply { (self.server, self.client) } else { (self.client, self.server) };
        let mut builder = ip_of(from.0, to.0).tcp(from.1, to.1, seq, 8192);
        if flags.contains('S') {
            builder = builder.syn();
        }
        if flags.contains('A') {
            builder = builder.ack(ack);
        }
        let mut bytes = Vec::new();
        builder.write(&mut bytes, data).expect("a segment");
        bytes
    }

    fn syn(&self) -> Vec<u8> {
        self.segment(false, "S", 100, 0, &[])
    }

    fn syn_ack(&self) -> Vec<u8> {
        self.segment(true, "SA", 500, 101, &[])
    }

    fn ack(&self) -> Vec<u8> {
        self.segment(false, "A", 101, 501, &[])
    }

    fn data(&self, is_reply: bool) -> Vec<u8> {
        let (seq, ack) = if is_reply { (501, 101) } else { (101, 501) };
        self.segment(is_reply, "A", seq, ack, b"x")
    }

    fn open(&self, rig: &mut Rig) {
        let (client, server) = (self.client.0, self.server.0);
        assert_eq!(to(rig, client, &self.syn()), [server]);
        assert_eq!(to(rig, server, &self.syn_ack()), [client]);
        assert_eq!(to(rig, client, &self.ack()), [server]);
    }

    fn is_open(&self, rig: &mut Rig) -> [bool; 2] {
        [(self.client.0, false), (self.server.0, true)]
            .map(|(from, is_reply)| !to(rig, from, &self.data(is_reply)).is_empty())
    }
}

fn udp(from: (u16, u16), to: (u16, u16)) -> Vec<u8> {
    let mut bytes = Vec::new();
    ip_of(from.0, to.0).udp(from.1, to.1).write(&mut bytes, b"x").expect("a datagram");
    bytes
}

/// No port.
const NONE: [u16; 0] = [];

fn to(rig: &mut Rig, port: u16, frame: &[u8]) -> Vec<u16> {
    rig.executed.clear();
    rig.send(port, frame).into_iter().map(|(port, _)| port).collect()
}

/// Why the last frame was dropped: by a flow, or when it was executed for the controller.
fn reason(rig: &Rig) -> Option<DropReason> {
    rig.drops.iter().copied().chain(rig.executed.iter().copied().flatten()).last()
}

#[test]
fn a_web_server_is_reached_on_its_port_and_talks_outwards() {
    let mut rig = rig(2, &rules(&[HTTPS, NOTHING_IN]));
    let https = Conversation { client: (2, 40_000), server: (1, 443) };
    https.open(&mut rig);
    assert_eq!(https.is_open(&mut rig), [true, true]);
    let ssh = Conversation { client: (2, 40_000), server: (1, 22) };
    for _ in 0..2 {
        assert_eq!(to(&mut rig, 2, &ssh.syn()), NONE);
        assert_eq!(reason(&rig), Some(DropReason::AclDenied));
    }
    let outwards = Conversation { client: (1, 50_000), server: (2, 22) };
    outwards.open(&mut rig);
    assert_eq!(outwards.is_open(&mut rig), [true, true]);
    assert_eq!(to(&mut rig, 2, &udp((2, 53), (1, 9))), NONE, "no answer to anything");
    assert_eq!(to(&mut rig, 1, &udp((1, 9), (2, 53))), [2]);
    assert_eq!(to(&mut rig, 2, &udp((2, 53), (1, 9))), [1], "now it is one");
}

#[test]
fn new_connections_that_a_rule_allows_alike_need_no_controller() {
    let mut rig = rig(2, &rules(&[HTTPS, NOTHING_IN]));
    Conversation { client: (2, 40_000), server: (1, 443) }.open(&mut rig);
    let misses = rig.misses;
    for port in 40_001..40_050 {
        Conversation { client: (2, port), server: (1, 443) }.open(&mut rig);
    }
    assert_eq!(rig.misses, misses);
}

#[test]
fn a_change_of_rules_is_one_for_living_connections() {
    let mut rig = rig(2, &rules(&[HTTPS, NOTHING_IN]));
    let (https, outwards) = (
        Conversation { client: (2, 40_000), server: (1, 443) },
        Conversation { client: (1, 50_000), server: (2, 22) },
    );
    https.open(&mut rig);
    outwards.open(&mut rig);
    rig.controller.set_acl(SWITCH, rules(&[NOTHING_IN]));
    rig.settle();
    assert_eq!(https.is_open(&mut rig), [false, false]);
    assert_eq!(outwards.is_open(&mut rig), [true, true]);
    rig.controller.set_acl(SWITCH, rules(&[HTTPS, NOTHING_IN]));
    rig.settle();
    assert_eq!(https.is_open(&mut rig), [true, true]);
    rig.controller.set_acl(SWITCH, Vec::new());
    rig.settle();
    assert_eq!(to(&mut rig, 2, &Conversation { client: (2, 40_000), server: (1, 22) }.syn()), [1]);
}

/// A port with an address, in a group.
fn in_group(port: u16, group: &str) -> PortSettings {
    let guard = PortGuard { addresses: vec![address(port).into()], ..PortGuard::default() };
    let policy = PortPolicy { guard, groups: vec![group.to_owned()], ..PortPolicy::default() };
    PortSettings { name: format!("p{port}"), policy, ..PortSettings::default() }
}

#[test]
fn a_group_is_reached_by_the_group_that_a_rule_names() {
    const FROM_WEB: &str = r#""group":"db","direction":"ingress","action":"allow","remote_group":["web"]"#;
    const NOTHING_IN: &str = r#""group":"db","direction":"ingress","action":"deny""#;
    let mut rig = rig(3, &rules(&[FROM_WEB, NOTHING_IN]));
    let datagram = udp((2, 7000), (1, 7000));
    assert_eq!(to(&mut rig, 2, &datagram), [1], "no port is in the group of the rules");
    rig.controller.set_port(SWITCH, in_group(1, "db"));
    rig.settle();
    assert_eq!(to(&mut rig, 2, &datagram), NONE, "no port is in the other group");
    rig.controller.set_port(SWITCH, in_group(2, "web"));
    rig.settle();
    assert_eq!(to(&mut rig, 2, &datagram), [1]);
    assert_eq!(to(&mut rig, 3, &udp((3, 7000), (1, 7000))), NONE);
    assert_eq!(reason(&rig), Some(DropReason::AclDenied));
    rig.controller.set_port(SWITCH, in_group(2, "lb"));
    rig.settle();
    assert_eq!(to(&mut rig, 2, &datagram), NONE, "living connections are decided on again");
    rig.controller.set_port(SWITCH, in_group(3, "web"));
    rig.settle();
    assert_eq!(to(&mut rig, 3, &udp((3, 7000), (1, 7000))), [1]);
    rig.controller.remove_port(SWITCH, "p3");
    rig.controller.set_port(SWITCH, PortSettings { name: "p3".to_owned(), ..PortSettings::default() });
    rig.settle();
    assert_eq!(to(&mut rig, 3, &udp((3, 7001), (1, 7000))), NONE, "its address went with it");
}

#[test]
fn a_connection_to_a_router_opens_nothing_behind_it() {
    let mut rig = rig(3, &rules(&[NOTHING_IN, r#""port":"p3","direction":"egress","action":"allow""#]));
    // From 2 to 3's Ethernet address, with 1's IP address; 3 allows it.
    let denied = Conversation { client: (2, 40_000), server: (1, 22) };
    let by_way_of = |bytes: &[u8], destination, source| frame(destination, source, &bytes[12..]);
    assert_eq!(to(&mut rig, 2, &by_way_of(&denied.syn(), mac(3), mac(2))), [3]);
    // The router forwards it, and 1 does not treat it as a known connection.
    assert_eq!(to(&mut rig, 3, &by_way_of(&denied.syn(), mac(1), mac(3))), NONE);
    assert_eq!(reason(&rig), Some(DropReason::AclDenied));
}

#[test]
fn a_flood_reaches_those_that_allow_it() {
    let mut rig = rig(3, &rules(&[NOTHING_IN]));
    let mut broadcast = udp((2, 5000), (9, 5000));
    broadcast[..6].copy_from_slice(&[0xff; 6]);
    assert_eq!(to(&mut rig, 2, &broadcast), [3]);
    // The answer of a DHCP server is flooded, too.
    let mut answer = udp((2, 67), (9, 68));
    answer[..6].copy_from_slice(&[0xff; 6]);
    assert_eq!(to(&mut rig, 2, &answer), [1, 3]);
    let other = frame([0xff; 6], mac(2), &[&[0x88, 0xb5][..], &[0; 46]].concat());
    assert_eq!(to(&mut rig, 2, &other), [3], "rules for everything are about other protocols, too");
}

#[test]
fn a_flood_reaches_many_ports_with_rules() {
    let allowed = |port: u16| {
        rule(&format!(
            r#""port":"p{port}","direction":"ingress","action":"allow","protocol":"udp","dport":68"#
        ))
    };
    let acl: Vec<_> = (2..=41).map(allowed).collect();
    let mut rig = rig(41, &acl);
    let mut answer = udp((1, 67), (99, 68));
    answer[..6].copy_from_slice(&[0xff; 6]);
    let all: Vec<u16> = (2..=41).collect();
    assert_eq!(to(&mut rig, 1, &answer), all);
    assert_eq!(to(&mut rig, 1, &answer), all, "of connections that were committed");
    let misses = rig.misses;
    assert_eq!(to(&mut rig, 1, &answer), all);
    assert_eq!(rig.misses, misses, "by flows");
}

#[test]
fn packets_that_belong_to_no_connection_are_dropped_by_name() {
    let mut rig = rig(2, &rules(&[HTTPS, NOTHING_IN]));
    let https = Conversation { client: (2, 40_000), server: (1, 443) };
    https.open(&mut rig);
    let outside = https.segment(false, "A", 0x7000_0000, 501, b"x");
    assert_eq!(to(&mut rig, 2, &outside), NONE);
    assert_eq!(reason(&rig), Some(DropReason::AclInvalid));
}

#[test]
fn tags_are_edited_behind_the_rules() {
    let acl = rules(&[HTTPS, NOTHING_IN]);
    let mut rig = rig(2, &acl);
    let vid = Vid::try_from(5).expect("a VLAN");
    let set = |rig: &mut Rig, port: u16, vlans| {
        let policy = PortPolicy { vlans, ..PortPolicy::default() };
        let settings = PortSettings { name: format!("p{port}"), policy, ..PortSettings::default() };
        rig.controller.set_port(SWITCH, settings);
        rig.settle();
    };
    set(&mut rig, 1, PortVlans::Access(vid));
    set(&mut rig, 2, PortVlans::Trunk { carried: None, native: None });
    let https = Conversation { client: (2, 40_000), server: (1, 443) };
    let tagged = |bytes: &[u8]| [&bytes[..12], &[0x81, 0, 0, 5], &bytes[12..]].concat();
    let copies = rig.send(2, &tagged(&https.syn()));
    assert_eq!(copies, [(1, https.syn())]);
    assert_eq!(rig.send(1, &https.syn_ack()), [(2, tagged(&https.syn_ack()))]);
}

#[test]
fn flows_and_connections_outlive_the_controller() {
    let acl = rules(&[HTTPS, NOTHING_IN]);
    let mut rig = rig(2, &acl);
    let https = Conversation { client: (2, 40_000), server: (1, 443) };
    https.open(&mut rig);
    let flows = rig.flow_count();
    rig.replace_controller(controller(2, &acl));
    rig.settle();
    assert_eq!(rig.flow_count(), flows, "flows are taken over");
    assert_eq!(https.is_open(&mut rig), [true, true]);
    rig.replace_controller(controller(2, &rules(&[NOTHING_IN])));
    rig.settle();
    assert_eq!(https.is_open(&mut rig), [false, false]);
}

/// The port, the decision about connections with another one, and a UDP port; `None` for all.
type ModelRule = (u16, AclDirection, AclAction, Option<u16>, Option<u16>);

/// UDP between three ports, under rules that change; one decision after the other, as the rules say.
#[derive(Clone, Debug)]
enum Step {
    Send { from: u16, to: u16, ports: (u16, u16) },
    Rules(Vec<ModelRule>),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let side = prop_oneof![Just(AclDirection::Ingress), Just(AclDirection::Egress)];
    let action = prop_oneof![Just(AclAction::Allow), Just(AclAction::Deny)];
    let rule = (1_u16..=3, side, action, prop::option::of(1_u16..=3), prop::option::of(1000_u16..1003));
    let ends = (1_u16..=3, 1_u16..=3, (1000_u16..1003, 1000_u16..1003));
    let send = ends.prop_filter_map("to another", |(from, to, ports)| {
        (from != to).then_some(Step::Send { from, to, ports })
    });
    prop::collection::vec(
        prop_oneof![8 => send, 1 => prop::collection::vec(rule, 0..5).prop_map(Step::Rules)],
        1..60,
    )
}

type Ends = ((u16, u16), (u16, u16));

/// A direct model of the rules: connections by port and original direction.
#[derive(Default)]
struct Model {
    rules: Vec<ModelRule>,
    known: HashMap<u16, Vec<Ends>>,
}

impl Model {
    fn passes(&mut self, port: u16, (from, to): Ends) -> bool {
        if self.rules.iter().all(|rule| rule.0 != port) {
            return true;
        }
        let known = self.known.entry(port).or_default();
        let began = known.iter().copied().find(|ends| *ends == (from, to) || *ends == (to, from));
        let (from, to) = began.unwrap_or((from, to));
        let direction = if from.0 == port { AclDirection::Egress } else { AclDirection::Ingress };
        let remote = if direction == AclDirection::Egress { to.0 } else { from.0 };
        let deciding = self.rules.iter().find(|(of, side, _, peer, dport)| {
            (*of, *side) == (port, direction)
                && peer.is_none_or(|peer| peer == remote)
                && dport.is_none_or(|dport| dport == to.1)
        });
        let is_allowed = deciding.is_none_or(|rule| rule.2 == AclAction::Allow);
        if is_allowed && began.is_none() {
            known.push((from, to));
        }
        is_allowed
    }
}

fn acl_of(rules: &[ModelRule]) -> Vec<AclRule> {
    let one = |(port, direction, action, peer, dport): &(
        u16,
        AclDirection,
        AclAction,
        Option<u16>,
        Option<u16>,
    )| {
        AclRule {
            protocol: Some(AclProtocol::Ip(17)).filter(|_| dport.is_some()),
            remote: peer.map(|peer| format!("10.0.0.{peer}/32").parse().expect("a prefix")),
            dport: dport.map(|port| port.to_string().parse().expect("a port")),
            ..rule(&format!(r#""port":"p{port}","direction":"{direction}","action":"{action}""#))
        }
    };
    rules.iter().map(one).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, failure_persistence: None, ..ProptestConfig::default() })]

    /// Datagrams pass as the model says, after any rules before.
    #[test]
    fn datagrams_pass_as_rules_say(steps in steps(), pair_flows_max in pair_flows_max()) {
        set_pair_flows_max(pair_flows_max);
        let mut rig = rig(3, &[]);
        let mut model = Model::default();
        for step in steps {
            match step {
                Step::Rules(rules) => {
                    rig.controller.set_acl(SWITCH, acl_of(&rules));
                    rig.settle();
                    model.rules = rules;
                }
                Step::Send { from, to: port, ports } => {
                    let ends = ((from, ports.0), (port, ports.1));
                    let passes = model.passes(from, ends) && model.passes(port, ends);
                    let wanted = if passes { vec![port] } else { vec![] };
                    prop_assert_eq!(to(&mut rig, from, &udp(ends.0, ends.1)), wanted, "{:?}", ends);
                }
            }
        }
    }
}
