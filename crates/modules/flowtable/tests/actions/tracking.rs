//! Tests connection tracking as an action, and its fields in keys.

use std::net::Ipv4Addr;

use lasthop_flow::ct_state::{ESTABLISHED, INVALID, NEW, REPLY, SRC_NAT, TRACKED};
use lasthop_flow::{
    Action, Conntrack, CtKey, Ethernet, FlowKey, Group, Ipv4, Masked, Match, Nat, NatRange, NatSource, Ports,
    Tuple4, Tuple6,
};
use lasthop_flowtable::{Execution, FlowModule, describe};
use lasthop_module_api::{DropReason, PortId, UpcallReason};
use lasthop_wire::Offload;
use lasthop_wire::vnet::{F_NEEDS_CSUM, GSO_TCPV4};
use proptest::prelude::*;

use crate::packets::{Net, Spec};
use crate::support::{NOW_NS, Outcome, all_of, install, outcome, outcome_from};

const ZONE: u16 = 5;
const SECOND_NS: u64 = 1_000_000_000;

fn look_up() -> Conntrack {
    Conntrack { zone: Some(ZONE), ..Conntrack::default() }
}

fn commit() -> Conntrack {
    Conntrack { is_commit: true, ..look_up() }
}

fn ct(conntrack: Conntrack) -> Action {
    Action::Ct(Box::new(conntrack))
}

/// A module whose first pass executes `actions` and recirculates packets.
fn module_of(actions: Vec<Action>) -> FlowModule {
    let module = FlowModule::for_workers(1);
    install(&module, all_of(None, 0), [actions, vec![Action::Recirc(1)]].concat());
    module
}

/// Only packets of the second pass with these fields go to port 2.
fn install_second(module: &FlowModule, ct: CtKey, mask: CtKey, actions: Vec<Action>) {
    let Match { key, mask: rest } = all_of(None, 1);
    let key = FlowKey { ct, ..key };
    let mask = FlowKey { ct: mask, ..rest.unwrap_or_default() };
    install(module, Match { key, mask: Some(mask) }, actions);
}

fn state(bits: u32) -> CtKey {
    CtKey { state: Some(bits), ..CtKey::default() }
}

fn ports(outcome: &Outcome) -> Vec<u16> {
    outcome.copies.iter().map(|(port, ..)| *port).collect()
}

/// The reply to a packet.
fn answer(spec: &Spec) -> Spec {
    let [a, b] = spec.ports;
    let net = match spec.net {
        Net::V4 { src, dst, tos, ttl } => Net::V4 { src: dst, dst: src, tos, ttl },
        Net::V6 { src, dst, label, tclass, hlimit } => Net::V6 { src: dst, dst: src, label, tclass, hlimit },
    };
    Spec { ports: [b, a], net, ..spec.clone() }
}

fn from(module: &FlowModule, port: u16, spec: &Spec) -> Outcome {
    outcome_from(module, PortId(port), (&spec.frame(), Offload::default()), NOW_NS)
}

/// The key in the upcall of a packet that misses in the second pass.
fn told(module: &FlowModule, spec: &Spec) -> CtKey {
    let outcome = from(module, 1, spec);
    let [(upcall, frame)] = &outcome.upcalls[..] else { panic!("no upcall: {outcome:?}") };
    assert_eq!((upcall.reason, upcall.metadata.recirc_id), (UpcallReason::Miss, 1));
    describe(frame, &upcall.metadata).ct
}

#[test]
fn a_firewall_lets_answers_in_and_nothing_else() {
    let module = module_of(vec![ct(look_up())]);
    let inside = |bits| CtKey { state: Some(bits), ..CtKey::default() };
    install_second(&module, inside(TRACKED | NEW), state(0xff), vec![ct(commit()), Action::Output(2)]);
    install_second(&module, inside(TRACKED | ESTABLISHED), state(0xff), vec![Action::Output(3)]);
    let replies = TRACKED | ESTABLISHED | REPLY;
    install_second(&module, inside(replies), state(0xff), vec![Action::Output(4)]);
    let (question, other) = (Spec::plain(), Spec { ports: [9, 9], ..Spec::plain() });
    assert_eq!(ports(&from(&module, 1, &question)), [2]);
    assert_eq!(ports(&from(&module, 2, &answer(&question))), [4]);
    assert_eq!(ports(&from(&module, 1, &question)), [3]);
    assert_eq!(ports(&from(&module, 2, &answer(&other))), [2], "it begins one of its own");
    assert_eq!(module.table().connections().len(), 2);
}

#[test]
fn each_field_of_the_connection_is_matched_and_told() {
    let mark = Some(Masked { value: 0x1234, mask: 0xffff });
    let labels = Some(([7; 16], [0x0f; 16]));
    let module = module_of(vec![ct(Conntrack { mark, labels, ..commit() })]);
    let Net::V4 { src, dst, .. } = Spec::plain().net else { panic!("IPv4") };
    let tuple = Tuple4 { src: src.into(), dst: dst.into(), src_port: 1000, dst_port: 53, proto: 17 };
    let wanted = CtKey {
        state: Some(TRACKED | NEW),
        zone: Some(ZONE),
        mark: Some(0x1234),
        labels: Some([7; 16]),
        tuple4: Some(tuple),
        tuple6: None,
    };
    assert_eq!(told(&module, &Spec::plain()), wanted);
    let reply = told(&module, &answer(&Spec::plain()));
    assert_eq!(
        reply,
        CtKey { state: Some(TRACKED | ESTABLISHED | REPLY), ..wanted },
        "the tuple is the original one"
    );
    let fields = [
        (state(TRACKED | NEW), state(0xff), state(TRACKED)),
        (zone(ZONE), zone(u16::MAX), zone(ZONE + 1)),
        (of_mark(0x1200), of_mark(0xff00), of_mark(0x1300)),
        (of_labels(7), of_labels(0xff), of_labels(6)),
        (of_tuple(tuple), of_tuple(Tuple4::ones()), of_tuple(Tuple4 { src_port: 1001, ..tuple })),
        (
            of_tuple(tuple),
            of_tuple(Tuple4 { dst: Ipv4Addr::BROADCAST, ..Tuple4::default() }),
            of_tuple(Tuple4 { dst: [10, 0, 0, 9].into(), ..tuple }),
        ),
    ];
    for (key, mask, other) in fields {
        let module = module_of(vec![ct(Conntrack { mark, labels, ..commit() })]);
        install_second(&module, other, mask, vec![Action::Output(9)]);
        assert_eq!(ports(&from(&module, 1, &Spec::plain())), [0_u16; 0], "{other:?}");
        // Another flow, since packets of the missed one wait for it.
        let module = module_of(vec![ct(Conntrack { mark, labels, ..commit() })]);
        install_second(&module, key, mask, vec![Action::Output(2)]);
        assert_eq!(ports(&from(&module, 1, &Spec::plain())), [2], "{key:?}");
    }
}

fn zone(zone: u16) -> CtKey {
    CtKey { zone: Some(zone), ..CtKey::default() }
}

fn of_mark(mark: u32) -> CtKey {
    CtKey { mark: Some(mark), ..CtKey::default() }
}

fn of_labels(byte: u8) -> CtKey {
    CtKey { labels: Some([byte; 16]), ..CtKey::default() }
}

fn of_tuple(tuple: Tuple4) -> CtKey {
    CtKey { tuple4: Some(tuple), ..CtKey::default() }
}

#[test]
fn the_original_direction_of_ipv6_is_told() {
    let net = Net::V6 { src: [1; 16], dst: [2; 16], label: 0, tclass: 0, hlimit: 9 };
    let spec = Spec { net, ..Spec::plain() };
    let tuple = Tuple6 { src: [1; 16].into(), dst: [2; 16].into(), src_port: 1000, dst_port: 53, proto: 17 };
    let ct = told(&module_of(vec![ct(look_up())]), &spec);
    assert_eq!((ct.tuple6, ct.tuple4, ct.state), (Some(tuple), None, Some(TRACKED | NEW)));
}

#[test]
fn a_packet_is_untracked_before_and_after() {
    let cleared = told(&module_of(vec![ct(commit()), Action::CtClear]), &Spec::plain());
    let zeros =
        CtKey { state: Some(0), zone: Some(0), mark: Some(0), labels: Some([0; 16]), ..CtKey::default() };
    assert_eq!(cleared, zeros);
    assert_eq!(told(&module_of(vec![]), &Spec::plain()), zeros);
    let other = Spec { payload: vec![], ..Spec::plain() };
    let frame = other.frame_of(89, &[0; 3]);
    let module = module_of(vec![ct(look_up())]);
    install_second(&module, state(TRACKED | NEW), state(0xff), vec![Action::Output(2)]);
    assert_eq!(ports(&outcome(&module, &frame, Offload::default())), [2], "any protocol is tracked");
    let arp = [&[0xff; 6][..], &[2; 6], &[8, 6], &[0; 28]].concat();
    let module = module_of(vec![ct(look_up())]);
    install_second(&module, state(TRACKED | INVALID), state(0xff), vec![Action::Output(2)]);
    assert_eq!(ports(&outcome(&module, &arp, Offload::default())), [2], "but ARP");
}

fn source_nat(to: &str) -> Option<Nat> {
    let range = NatRange { ip_min: to.parse().ok(), ..NatRange::default() };
    Some(Nat { source: Some(NatSource::Src), range, ..Nat::default() })
}

/// Packets from port 1 get another source address, and their replies return to port 1.
fn translator() -> FlowModule {
    let module = FlowModule::for_workers(1);
    let from = |port: u32| {
        let Match { key, mask } = all_of(None, 0);
        let mask = mask.map(|mask| FlowKey { in_port: Some(u32::MAX), ..mask });
        Match { key: FlowKey { in_port: Some(port), ..key }, mask }
    };
    let out = ct(Conntrack { nat: source_nat("192.0.2.1"), ..commit() });
    install(&module, from(1), vec![out, Action::Output(2)]);
    let back = ct(Conntrack { nat: Some(Nat::default()), ..look_up() });
    install(&module, from(2), vec![back, Action::Recirc(1)]);
    let replies = TRACKED | ESTABLISHED | REPLY;
    install_second(&module, state(replies | 0x80), state(0xff), vec![Action::Output(1)]);
    module
}

#[test]
fn addresses_and_checksums_are_translated_there_and_back() {
    let module = translator();
    let question = Spec::plain();
    let Net::V4 { dst, tos, ttl, .. } = question.net else { panic!("IPv4") };
    let outside = Spec { net: Net::V4 { src: [192, 0, 2, 1], dst, tos, ttl }, ..question.clone() };
    let sent = from(&module, 1, &question);
    assert_eq!(sent.copies[..], [(2, outside.frame(), u32::MAX)]);
    let back = from(&module, 2, &answer(&outside));
    assert_eq!(back.copies[..], [(1, answer(&question).frame(), u32::MAX)]);
}

#[test]
fn a_frame_to_be_segmented_stays_one_and_its_checksum_partial() {
    let module = translator();
    let spec = Spec { is_tcp: true, payload: vec![3; 60_000], ..Spec::plain() };
    let mut frame = spec.frame();
    frame[14 + 20 + 16..14 + 20 + 18].copy_from_slice(&partial_sum([10, 0, 0, 1], [10, 0, 0, 2], 60_020));
    let offload = Offload {
        flags: F_NEEDS_CSUM,
        gso_type: GSO_TCPV4,
        hdr_len: 54,
        gso_size: 1448,
        csum_start: 34,
        csum_offset: 16,
    };
    let sent = outcome(&module, &frame, offload);
    let [(2, bytes, u32::MAX)] = &sent.copies[..] else { panic!("{:?}", sent.drops) };
    assert_eq!((sent.offloads[0], bytes.len()), (offload, frame.len()));
    assert_eq!(bytes[26..30], [192, 0, 2, 1]);
    assert_eq!(bytes[50..52], partial_sum([192, 0, 2, 1], [10, 0, 0, 2], 60_020));
    assert_eq!(bytes[54..], frame[54..]);
}

/// The sum of a TCP pseudo header, not complemented.
fn partial_sum(src: [u8; 4], dst: [u8; 4], len: u32) -> [u8; 2] {
    let words = [src, dst, [0, 6, 0, 0], [0; 4], len.to_be_bytes()].concat();
    let words = words.chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]])));
    let mut sum: u32 = words.sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    (sum as u16).to_be_bytes()
}

#[test]
fn what_the_control_plane_sends_back_keeps_its_state() {
    let module = module_of(vec![ct(look_up())]);
    let sent = from(&module, 1, &Spec::plain());
    let (upcall, frame) = &sent.upcalls[0];
    let nat = Conntrack { nat: source_nat("192.0.2.1"), ..commit() };
    let actions = [ct(nat), Action::Recirc(2)];
    let Match { key, mask } = all_of(None, 2);
    let bits = TRACKED | NEW | SRC_NAT;
    let (key, mask) =
        (FlowKey { ct: state(bits), ..key }, mask.map(|mask| FlowKey { ct: state(0xff), ..mask }));
    install(&module, Match { key, mask }, vec![Action::Output(2)]);
    assert!(module.begin(upcall.ticket));
    let execution = Execution::new(module.table(), upcall.metadata, &actions, 0).expect("it is supported");
    module.execute_next(execution).expect("there is room");
    let done = outcome_from(&module, PortId::INTERNAL, (frame, Offload::default()), NOW_NS);
    assert_eq!((ports(&done), done.drops), (vec![2], vec![]));
    assert_eq!(done.copies[0].1[26..30], [192, 0, 2, 1]);
}

#[test]
fn a_commit_beyond_a_limit_is_dropped_by_name() {
    let module = module_of(vec![ct(commit())]);
    install_second(&module, CtKey::default(), CtKey::default(), vec![Action::Output(2)]);
    module.table().connections().set_zone_limit(ZONE, Some(1));
    assert_eq!(ports(&from(&module, 1, &Spec::plain())), [2]);
    let other = from(&module, 1, &Spec { ports: [7, 7], ..Spec::plain() });
    assert_eq!((ports(&other), &other.drops[..]), (vec![], &[DropReason::CtZoneLimit][..]));
    assert_eq!(ports(&from(&module, 1, &Spec::plain())), [2], "the one that is there goes on");
    let range = NatRange {
        ip_min: "192.0.2.1".parse().ok(),
        proto_min: Some(99),
        proto_max: Some(99),
        ..NatRange::default()
    };
    let nat = Some(Nat { source: Some(NatSource::Src), range, ..Nat::default() });
    let module = module_of(vec![ct(Conntrack { nat, ..commit() })]);
    install_second(&module, CtKey::default(), CtKey::default(), vec![Action::Output(2)]);
    assert_eq!(ports(&from(&module, 1, &Spec::plain())), [2]);
    let other = from(&module, 1, &Spec { ports: [7, 53], ..Spec::plain() });
    assert_eq!(other.drops, [DropReason::CtNatExhausted]);
}

#[test]
fn connections_end_with_the_batches_time() {
    let module = module_of(vec![ct(commit())]);
    let at = |spec: &Spec, now_ns| {
        let outcome = outcome_from(&module, PortId(1), (&spec.frame(), Offload::default()), now_ns);
        let (upcall, frame) = outcome.upcalls[0].clone();
        // No packet waits for this one.
        module.settle(upcall.ticket);
        describe(&frame, &upcall.metadata).ct.state
    };
    assert_eq!(at(&Spec::plain(), NOW_NS), Some(TRACKED | NEW));
    assert_eq!(at(&answer(&Spec::plain()), NOW_NS + 29 * SECOND_NS), Some(TRACKED | ESTABLISHED | REPLY));
    let much_later = NOW_NS + 1000 * SECOND_NS;
    assert_eq!(at(&answer(&Spec::plain()), much_later), Some(TRACKED | NEW), "it begins anew");
}

/// A flow for each state, which matches on every field of a connection.
fn with_flows(actions: Vec<Action>) -> FlowModule {
    let module = module_of(actions);
    let exact = CtKey { state: Some(0xff), zone: Some(u16::MAX), mark: Some(0xf), ..CtKey::default() };
    for (number, bits) in (0..64_u32).zip(2..) {
        let key = CtKey {
            state: Some(number | TRACKED),
            zone: Some(ZONE),
            mark: Some(number & 1),
            ..CtKey::default()
        };
        if number & TRACKED == 0 {
            install_second(&module, key, exact, vec![Action::Output(bits)]);
        }
    }
    let tuple = |port| of_tuple(Tuple4 { src_port: port, ..Tuple4::default() });
    for port in 1000..1003 {
        let mask = CtKey {
            tuple4: of_tuple(Tuple4 { src_port: 0xffff, ..Tuple4::default() }).tuple4,
            mark: Some(0xf),
            ..CtKey::default()
        };
        let key = CtKey { mark: Some(3), ..tuple(port) };
        install_second(&module, key, mask, vec![Action::Output(100 + u32::from(port))]);
    }
    module
}

proptest! {
    /// Cache and table agree on packets that `ct` has seen, in any order.
    #[test]
    fn cache_and_table_decide_alike(
        steps in prop::collection::vec((0_u16..4, any::<bool>(), any::<bool>()), 1..60),
        mark in prop::sample::select(vec![0_u32, 1, 3]),
        is_translated in any::<bool>(),
    ) {
        let nat = if is_translated { source_nat("192.0.2.7") } else { None };
        let mark = Some(Masked { value: mark, mask: 0xf });
        let actions = vec![ct(Conntrack { mark, nat, ..commit() })];
        let (cached, bare) = (with_flows(actions.clone()), with_flows(actions));
        bare.bypass_caches(0);
        for (port, is_answer, is_tcp) in steps {
            let question = Spec { ports: [1000 + port, 53], is_tcp, ..Spec::plain() };
            let spec = if is_answer { answer(&question) } else { question };
            let (one, other) = (from(&cached, 1, &spec), from(&bare, 1, &spec));
            prop_assert_eq!((&one.copies, &one.drops), (&other.copies, &other.drops));
            prop_assert_eq!(one.upcalls.len(), other.upcalls.len());
        }
    }
}

/// Fields of other layers are matched after `ct`, too.
#[test]
fn headers_are_matched_as_they_are_after_translation() {
    let module = module_of(vec![ct(Conntrack { nat: source_nat("192.0.2.1"), ..commit() })]);
    let Match { key, mask } = all_of(Some(0x0800), 1);
    let ip = |src: [u8; 4]| Some(Ipv4 { src: src.into(), proto: 17, ..Ipv4::default() });
    let key = FlowKey {
        ipv4: ip([192, 0, 2, 1]),
        udp: Some(Ports::default()),
        ethernet: Some(Ethernet::default()),
        ..key
    };
    let mask = mask.map(|mask| FlowKey { ipv4: ip([0xff; 4]), ..mask });
    install(&module, Match { key, mask }, vec![Action::Output(2)]);
    assert_eq!(ports(&from(&module, 1, &Spec::plain())), [2]);
}
