//! Effects of time and of other clients: flows age, addresses move, controllers die, users install flows of their own.

use std::sync::atomic::{AtomicU32, Ordering};

use lasthop_controller::{Controller, SwitchConfig};
use lasthop_dpif::datapath::{Datapath, DatapathId, FlowInstall, FlowName};
use lasthop_flow::{Action, Ethernet, FlowKey, Match, Ufid};
use lasthop_module_api::{DropReason, PortId, PortPolicy, PortSettings, PortVlans, StormLimits};

use crate::support::{Rig, SECOND_NS, SWITCH, config, frame, mac, set_pair_flows_max};

const BROADCAST: [u8; 6] = [0xff; 6];

fn ip(destination: [u8; 6], source: [u8; 6]) -> Vec<u8> {
    frame(destination, source, &[&[8, 0][..], &[0; 46]].concat())
}

fn controller(ports: u16) -> Controller {
    static NONCE: AtomicU32 = AtomicU32::new(0);
    let mut controller = Controller::new(NONCE.fetch_add(0x100, Ordering::Relaxed));
    controller.set_switch(&config());
    for port in 1..=ports {
        controller.set_port(SWITCH, settings(port));
    }
    controller
}

fn with(policy: PortPolicy, port: u16) -> PortSettings {
    PortSettings { policy, ..settings(port) }
}

fn settings(port: u16) -> PortSettings {
    PortSettings { name: format!("p{port}"), ..PortSettings::default() }
}

fn rig(ports: u16) -> Rig {
    let mut rig = Rig::new(controller(ports));
    rig.tables.ports = (1..=ports).map(|port| (format!("p{port}"), PortId(port))).collect();
    rig.settle();
    assert!(rig.controller.is_settled());
    rig
}

fn to(rig: &mut Rig, port: u16, frame: &[u8]) -> Vec<u16> {
    rig.send(port, frame).into_iter().map(|(port, _)| port).collect()
}

/// Their removals fill 31 datagrams.
const MANY_FLOWS: u32 = 2000;

fn wait(rig: &mut Rig, seconds: u64) {
    for _ in 0..seconds {
        rig.now_ns += SECOND_NS;
        rig.settle();
    }
}

#[test]
fn flows_that_nobody_uses_go_and_those_in_use_stay() {
    let mut rig = rig(3);
    assert_eq!(to(&mut rig, 1, &ip(mac(2), mac(1))), [2, 3]);
    assert_eq!(to(&mut rig, 2, &ip(mac(1), mac(2))), [1]);
    assert_eq!(rig.flow_count(), 2);
    for _ in 0..15 {
        assert_eq!(to(&mut rig, 2, &ip(mac(1), mac(2))), [1]);
        wait(&mut rig, 1);
    }
    assert_eq!((rig.flow_count(), rig.misses), (1, 2));
    wait(&mut rig, 15);
    assert_eq!(rig.flow_count(), 0);
    assert_eq!(to(&mut rig, 1, &ip(mac(2), mac(1))), [2], "its address is known for five minutes");
}

#[test]
fn a_controller_that_leaves_answers_for_packets_that_are_under_way() {
    let mut rig = rig(3);
    // A worker hands it over before the controller leaves; it is reported afterwards.
    let early = rig.raised_by(1, &ip(BROADCAST, mac(1)));
    rig.controller.leave();
    assert!(!rig.controller.has_left());
    rig.settle();
    assert!(rig.controller.has_left() && rig.controller.is_idle());
    for upcall in early {
        rig.server.upcall(upcall);
    }
    let copies: Vec<u16> = rig.settle().into_iter().map(|(port, _)| port).collect();
    assert_eq!(copies, [2, 3]);
    let asked = rig.misses;
    rig.send(2, &ip(mac(1), mac(2)));
    assert_eq!(rig.misses, asked, "no controller is asked any more");
    rig.replace_controller(controller(3));
    rig.settle();
    assert_eq!(to(&mut rig, 2, &ip(mac(1), mac(2))), [1], "the next one has learned it from a flow");
}

#[test]
fn an_address_whose_flow_has_traffic_does_not_age() {
    let mut rig = rig(3);
    to(&mut rig, 1, &ip(BROADCAST, mac(1)));
    to(&mut rig, 2, &ip(BROADCAST, mac(2)));
    for _ in 0..100 {
        to(&mut rig, 1, &ip(BROADCAST, mac(1)));
        wait(&mut rig, 4);
    }
    assert_eq!(rig.misses, 2, "the rest met a flow");
    assert_eq!(to(&mut rig, 3, &ip(mac(1), mac(3))), [1]);
    assert_eq!(to(&mut rig, 3, &ip(mac(2), mac(3))), [1, 2], "it was silent");
}

#[test]
fn flows_follow_an_address_that_moves() {
    let mut rig = rig(3);
    to(&mut rig, 1, &ip(BROADCAST, mac(1)));
    assert_eq!(to(&mut rig, 3, &ip(mac(1), mac(3))), [1]);
    let misses = rig.misses;
    to(&mut rig, 2, &ip(BROADCAST, mac(1)));
    assert_eq!(to(&mut rig, 3, &ip(mac(1), mac(3))), [2], "the flow was changed");
    assert_eq!(rig.misses, misses + 1, "by the guest that moved, and no other packet");
    to(&mut rig, 1, &ip(BROADCAST, mac(1)));
    assert_eq!(to(&mut rig, 3, &ip(mac(1), mac(3))), [1], "and back");
    let moves = rig.controller.moves(SWITCH, rig.now_ns);
    assert_eq!((moves[0].count, moves[0].from.as_str(), moves[0].to.as_str()), (2, "p2", "p1"));
}

#[test]
fn who_comes_after_a_controller_takes_over_what_it_left() {
    let mut rig = rig(3);
    to(&mut rig, 1, &ip(BROADCAST, mac(1)));
    to(&mut rig, 2, &ip(mac(1), mac(2)));
    to(&mut rig, 2, &ip(mac(1), mac(2)));
    to(&mut rig, 1, &ip(BROADCAST, mac(1)));
    let (flows, misses) = (rig.flow_count(), rig.misses);
    rig.replace_controller(Controller::new(0x8000_0000));
    assert_eq!(to(&mut rig, 2, &ip(mac(1), mac(2))), [1], "known flows go on");
    let records = rig.server.records().clone();
    rig.replace_controller(controller(3));
    rig.settle();
    assert!(rig.controller.is_settled());
    let now = rig.server.records();
    assert_eq!(now.len(), 1);
    let numbers = |records: &std::collections::BTreeMap<DatapathId, lasthop_dpif::server::DatapathRecord>| {
        records
            .values()
            .flat_map(|known| known.ports.iter())
            .map(|(n, port)| (*n, port.name.clone()))
            .collect::<Vec<_>>()
    };
    assert_eq!(numbers(now), numbers(&records), "no port was made twice");
    assert_eq!((rig.flow_count(), rig.controller.stats().adopted), (flows, flows as u64));
    assert_eq!(to(&mut rig, 2, &ip(mac(1), mac(2))), [1]);
    assert_eq!(to(&mut rig, 3, &ip(mac(1), mac(3))), [1], "addresses were learned from flows");
    assert_eq!(rig.misses, misses + 1);
}

#[test]
fn flows_of_a_switch_that_has_changed_meanwhile_are_changed_when_they_are_taken_over() {
    let mut rig = rig(3);
    to(&mut rig, 1, &ip(BROADCAST, mac(1)));
    rig.replace_controller(Controller::new(0x8000_0000));
    let mut next = controller(3);
    next.set_port(SWITCH, with(PortPolicy { is_isolated: true, ..PortPolicy::default() }, 1));
    next.set_port(SWITCH, with(PortPolicy { is_isolated: true, ..PortPolicy::default() }, 2));
    rig.replace_controller(next);
    rig.settle();
    let misses = rig.misses;
    assert_eq!(to(&mut rig, 1, &ip(BROADCAST, mac(1))), [3]);
    assert_eq!(rig.misses, misses);
}

#[test]
fn ports_that_come_and_go_are_in_existing_floods_or_not() {
    let mut rig = rig(3);
    assert_eq!(to(&mut rig, 1, &ip(BROADCAST, mac(1))), [2, 3]);
    rig.tables.ports.insert("p4".to_owned(), PortId(4));
    rig.controller.set_port(SWITCH, settings(4));
    rig.settle();
    assert_eq!(to(&mut rig, 1, &ip(BROADCAST, mac(1))), [2, 3, 4]);
    rig.controller.remove_port(SWITCH, "p2");
    rig.settle();
    assert_eq!(to(&mut rig, 1, &ip(BROADCAST, mac(1))), [3, 4]);
    assert_eq!(rig.misses, 1);
}

#[test]
fn a_port_that_is_not_there_yet_is_asked_for_again() {
    let mut rig = rig(1);
    rig.controller.set_port(SWITCH, settings(2));
    rig.settle();
    assert!(!rig.controller.is_settled());
    let words = rig.controller.take_log_lines();
    assert!(
        matches!(&words[..], [word] if word.contains("p2") && word.contains("no such port")),
        "{words:?}"
    );
    rig.tables.ports.insert("p2".to_owned(), PortId(2));
    wait(&mut rig, 1);
    assert!(rig.controller.is_settled());
    assert_eq!(to(&mut rig, 1, &ip(BROADCAST, mac(1))), [2]);
}

#[test]
fn packets_that_a_busy_controller_does_not_answer_for_are_given_back() {
    let mut rig = rig(2);
    for number in 0..100 {
        rig.ask(1, &ip(mac(100 + number), mac(1)));
        rig.hear();
    }
    let dropped = rig.controller.stats().overrun;
    assert!(dropped > 0 && dropped < 100, "{dropped}");
    rig.settle();
    let given_back = rig.executed.iter().filter(|why| **why == Some(DropReason::NoFlow)).count();
    assert_eq!((rig.executed.len(), given_back as u64), (100, dropped));
    assert_eq!(to(&mut rig, 1, &ip(mac(199), mac(1))), [2], "it answers again");
}

#[test]
fn packets_of_other_ports_are_answered_for_while_some_have_the_switch_behind() {
    let mut rig = rig(3);
    for number in 0..300 {
        rig.ask(1, &ip([2, 9, 9, 9, (number >> 8) as u8, number as u8], mac(1)));
        rig.hear();
    }
    let dropped = rig.controller.stats().overrun;
    assert!(dropped > 0, "the switch is behind");
    rig.ask(2, &ip(mac(1), mac(2)));
    rig.hear();
    assert_eq!(rig.controller.stats().overrun, dropped);
    rig.settle();
    assert_eq!(rig.executed.last(), Some(&None), "it was sent on");
}

#[test]
fn first_packets_are_answered_at_once_while_many_idle_flows_are_removed() {
    let mut rig = rig(3);
    for number in 0..MANY_FLOWS {
        let [_, a, b, c] = number.to_be_bytes();
        rig.ask(1, &ip(mac(3), [2, 9, 9, a, b, c]));
        if number % 16 == 0 {
            rig.settle();
        }
    }
    rig.settle();
    assert!(rig.flow_count() > MANY_FLOWS as usize / 2, "{} flows", rig.flow_count());
    rig.now_ns += 12 * SECOND_NS;
    rig.controller.turn(rig.now_ns);
    // From here on the controller knows that they are idle.
    rig.list();
    rig.controller.turn(rig.now_ns);
    let before = rig.executed.len();
    rig.ask(2, &ip(mac(1), mac(2)));
    rig.hear();
    assert_eq!(rig.controller.stats().overrun, 0);
    let datagrams = (0..).take_while(|_| !rig.has_execution() && rig.serve_one()).count();
    assert!(rig.has_execution() && datagrams <= 4, "{datagrams} datagrams with changes came before");
    rig.settle();
    assert_eq!(rig.executed[before..], [None], "it was sent on");
    wait(&mut rig, 2);
    assert_eq!(rig.flow_count(), 1, "all idle flows are gone");
}

#[test]
fn packets_for_switches_that_nobody_serves_any_more_are_given_back() {
    let mut rig = rig(2);
    rig.ask(1, &ip(mac(2), mac(1)));
    rig.controller.remove_switch(SWITCH);
    rig.settle();
    assert_eq!(rig.executed, [Some(DropReason::NoFlow)]);
}

#[test]
fn flows_of_others_are_left_alone() {
    let mut rig = rig(2);
    let key = FlowKey {
        in_port: Some(1),
        ethernet: Some(Ethernet::default()),
        ether_type: Some(0x1234),
        ..FlowKey::default()
    };
    let mask = FlowKey { in_port: Some(u32::MAX), ether_type: Some(0xffff), ..FlowKey::default() };
    let ufid = Some(Ufid([7; 16]));
    let install = FlowInstall {
        ufid,
        matches: Match { key, mask: Some(mask) },
        actions: vec![Action::Output(1)],
        is_probe: false,
        is_new: true,
    };
    rig.tables.flow_install(DatapathId(1), install).expect("there is room");
    wait(&mut rig, 30);
    rig.replace_controller(controller(2));
    wait(&mut rig, 30);
    assert!(rig.tables.flow(DatapathId(1), &FlowName::Ufid(Ufid([7; 16]))).is_some());
    assert_eq!(rig.flow_count(), 1);
}

#[test]
fn flows_that_somebody_took_away_are_made_again() {
    let mut rig = rig(2);
    assert_eq!(to(&mut rig, 1, &ip(mac(2), mac(1))), [2]);
    assert_eq!(rig.tables.flows_flush(DatapathId(1), 0), None);
    wait(&mut rig, 5);
    // A packet that misses a missing flow has it installed again.
    assert_eq!(to(&mut rig, 1, &ip(mac(2), mac(1))), [2]);
    let misses = rig.misses;
    assert_eq!(to(&mut rig, 1, &ip(mac(2), mac(1))), [2]);
    assert_eq!((rig.misses, rig.flow_count()), (misses, 1));
}

#[test]
fn floods_are_limited_by_meters() {
    let mut rig = rig(2);
    let storm = StormLimits { broadcast: 10, ..StormLimits::default() };
    rig.controller.set_port(SWITCH, with(PortPolicy { storm, ..PortPolicy::default() }, 1));
    rig.settle();
    let passed = (0..100).filter(|_| !to(&mut rig, 1, &ip(BROADCAST, mac(1))).is_empty()).count();
    assert_eq!(passed, 10, "a second's worth at once");
    assert_eq!(to(&mut rig, 1, &ip([0x33, 0x33, 0, 0, 0, 1], mac(1))), [2]);
    rig.controller.set_port(SWITCH, settings(1));
    rig.settle();
    assert!((0..100).all(|_| !to(&mut rig, 1, &ip(BROADCAST, mac(1))).is_empty()));
}

#[test]
fn made_up_sources_at_a_port_with_its_own_address_meet_some_flows() {
    let mut rig = rig(2);
    let own = lasthop_module_api::Mac(mac(1));
    rig.controller.set_port(SWITCH, with(PortPolicy { mac: Some(own), ..PortPolicy::default() }, 1));
    rig.settle();
    let mut state = 1_u64;
    for _ in 0..2000 {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let [a, b, c, d, e, f, ..] = state.to_be_bytes();
        assert_eq!(to(&mut rig, 1, &ip(mac(2), [a, b, c, d, e, f])), [0; 0]);
    }
    assert!(rig.misses < 60, "{} packets were asked about", rig.misses);
    assert_eq!(to(&mut rig, 1, &ip(mac(2), mac(1))), [2]);
}

#[test]
fn the_next_switch_process_gets_the_flows_of_the_last_one_before_anybody_is_asked() {
    let mut rig = rig(3);
    to(&mut rig, 1, &ip(BROADCAST, mac(1)));
    to(&mut rig, 2, &ip(mac(1), mac(2)));
    let misses = rig.misses;
    rig.replace_tables();
    rig.controller.reconnected(0x4000_0000);
    rig.settle();
    assert_eq!((to(&mut rig, 2, &ip(mac(1), mac(2))), rig.misses), (vec![1], misses));
    assert_eq!(to(&mut rig, 3, &ip(mac(2), mac(3))), [2], "it still knows where everybody is");
}

#[test]
fn a_port_that_gets_the_number_of_one_that_is_gone_gets_none_of_its_packets() {
    let mut rig = rig(2);
    to(&mut rig, 2, &ip(BROADCAST, mac(2)));
    for number in 0..200 {
        assert_eq!(to(&mut rig, 1, &ip(mac(2), [2, 0, 0, 0, 1, number])), [2]);
    }
    rig.tables.ports.insert("p3".to_owned(), PortId(3));
    rig.controller.remove_port(SWITCH, "p2");
    rig.controller.set_port(SWITCH, settings(3));
    let has_p3 = |rig: &Rig| {
        rig.server.records().values().any(|known| known.ports.values().any(|port| port.name == "p3"))
    };
    while !has_p3(&rig) {
        rig.controller.turn(rig.now_ns);
        while !has_p3(&rig) && rig.serve_one() {}
    }
    let stale = rig.tables.flows().iter().filter(|flow| flow.actions == [Action::Output(2)]).count();
    assert_eq!(stale, 0);
    rig.settle();
    assert!(rig.controller.is_settled());
    assert_eq!(to(&mut rig, 1, &ip(mac(2), mac(1))), [3], "nobody knows where it is");
}

#[test]
fn what_was_learned_goes_with_a_ports_vlans() {
    let access = |port, vid: u16| {
        let vlans = PortVlans::Access(vid.try_into().expect("a VLAN"));
        with(PortPolicy { vlans, ..PortPolicy::default() }, port)
    };
    let mut rig = rig(3);
    for port in 1..=3 {
        rig.controller.set_port(SWITCH, access(port, 10));
    }
    rig.settle();
    to(&mut rig, 2, &ip(BROADCAST, mac(2)));
    assert_eq!(to(&mut rig, 1, &ip(mac(2), mac(1))), [2]);
    rig.controller.set_port(SWITCH, access(2, 20));
    rig.settle();
    assert_eq!(to(&mut rig, 1, &ip(mac(2), mac(1))), [3], "it is in another VLAN");
}

#[test]
fn what_one_guest_makes_up_leaves_masks_for_others() {
    let mut rig = rig(3);
    let own = lasthop_module_api::Mac(mac(1));
    rig.controller.set_port(SWITCH, with(PortPolicy { mac: Some(own), ..PortPolicy::default() }, 1));
    rig.settle();
    // Bit by bit, as far from the wanted value as possible.
    let apart = |value: [u8; 6], bit: usize| {
        let mut value = value;
        value[bit / 8] ^= 0x80 >> (bit % 8);
        value
    };
    let kinds = (0..16).map(|bit| (0x8100_u16 ^ 0x8000 >> bit).to_be_bytes());
    for kind in kinds {
        for bit in 0..48 {
            let rest = [&kind[..], &[0; 46]].concat();
            to(&mut rig, 1, &frame(mac(2), apart(mac(1), bit), &rest));
            to(&mut rig, 1, &frame(apart([1, 0x80, 0xc2, 0, 0, 0], bit), mac(1), &rest));
        }
    }
    let masks = rig.tables.module.table().len().1;
    assert!(masks < 256, "{masks} masks");
}

#[test]
fn an_address_that_moves_has_no_strangers_looked_at_where_there_is_no_room() {
    let mut rig = rig(6);
    let mut small = Controller::new(0x2000_0000);
    small.set_switch(&SwitchConfig { addresses_max: 4, ..SwitchConfig::named(SWITCH) });
    (1..=6).for_each(|port| small.set_port(SWITCH, settings(port)));
    rig.replace_controller(small);
    rig.settle();
    for port in 1..=4 {
        to(&mut rig, port, &ip(BROADCAST, mac(port as u8)));
    }
    for number in 0..100 {
        to(&mut rig, 5, &ip(BROADCAST, [2, 0, 0, 0, 1, number]));
    }
    let before = rig.controller.stats().revalidated;
    to(&mut rig, 6, &ip(BROADCAST, mac(1)));
    assert_eq!(rig.controller.addresses(SWITCH, rig.now_ns).expect("it is served").len(), 4, "all of them");
    let looked_at = rig.controller.stats().revalidated - before;
    assert!(looked_at < 10, "{looked_at} flows");
}

#[test]
fn many_flows_of_an_address_that_moves_to_and_fro_are_looked_at_once_in_a_while() {
    const FLOWS: u8 = 200;
    const MOVES: u16 = 40;
    let mut rig = rig(3);
    to(&mut rig, 1, &ip(BROADCAST, mac(1)));
    let other = |number: u8| [2, 0, 0, 0, 1, number];
    for number in 0..FLOWS {
        assert_eq!(to(&mut rig, 3, &ip(mac(1), other(number))), [1]);
    }
    let (before, mut number) = (rig.controller.stats().revalidated, 0);
    for at in 0..MOVES {
        // Without a flow yet, so that it is seen.
        number += 1;
        to(&mut rig, 2 - at % 2, &ip([2, 0, 0, 0, 2, number], mac(1)));
        rig.now_ns += SECOND_NS / 100;
    }
    let moves = rig.controller.moves(SWITCH, rig.now_ns)[0].count;
    assert_eq!(moves, u32::from(MOVES));
    let looked_at = |rig: &Rig| rig.controller.stats().revalidated - before;
    let once = u64::from(FLOWS) + u64::from(MOVES);
    assert!(looked_at(&rig) <= once, "{} looks at flows", looked_at(&rig));
    to(&mut rig, 2, &ip([2, 0, 0, 0, 3, 0], mac(1)));
    rig.now_ns += SECOND_NS;
    rig.settle();
    assert!(looked_at(&rig) <= 2 * once + 1, "{} looks at flows", looked_at(&rig));
    let misses = rig.misses;
    for number in 0..FLOWS {
        assert_eq!(to(&mut rig, 3, &ip(mac(1), other(number))), [2], "where it is at last");
    }
    assert_eq!(rig.misses, misses);
    rig.now_ns += SECOND_NS;
    to(&mut rig, 1, &ip(BROADCAST, mac(1)));
    assert_eq!(
        to(&mut rig, 3, &ip(mac(1), other(0))),
        [1],
        "one more move after a pause is followed at once"
    );
}

#[test]
fn the_next_switch_process_has_packets_of_all_ports_asked_about_or_of_none() {
    const PORTS: u16 = 200;
    let mut rig = rig(PORTS);
    assert_eq!(rig.heard_ports(), usize::from(PORTS));
    rig.replace_tables();
    rig.replace_controller(controller(PORTS));
    while rig.heard_ports() < usize::from(PORTS) {
        assert_eq!(rig.heard_ports(), 0);
        rig.controller.turn(rig.now_ns);
        rig.list();
        rig.serve_one();
    }
    rig.settle();
    assert!(rig.controller.is_settled());
}

#[test]
fn many_pairs_of_addresses_need_a_flow_for_each_address() {
    const SOURCES: u8 = 20;
    const DESTINATIONS: u8 = 10;
    let pair = |source: u8, destination: u8| ip(mac(100 + destination), mac(source));
    // Sources have their flows from the floods already.
    for (pair_flows_max, made) in [(usize::MAX, (200, 200)), (0, (10, 10)), (60, (68, 67))] {
        set_pair_flows_max(pair_flows_max);
        let mut rig = rig(3);
        (0..SOURCES).for_each(|source| drop(rig.send(1, &ip(BROADCAST, mac(source)))));
        (0..DESTINATIONS).for_each(|source| drop(rig.send(2, &ip(BROADCAST, mac(100 + source)))));
        let before = (rig.flow_count(), rig.misses);
        for (destination, source) in (0..DESTINATIONS).flat_map(|to| (0..SOURCES).map(move |from| (to, from)))
        {
            assert_eq!(to(&mut rig, 1, &pair(source, destination)), [2]);
        }
        assert_eq!((rig.flow_count() - before.0, rig.misses - before.1), made, "{pair_flows_max}");
        let again = rig.misses;
        for source in 0..SOURCES {
            assert_eq!(to(&mut rig, 1, &pair(source, 9)), [2]);
        }
        assert_eq!(rig.misses, again);
        // An address that moves takes all pairs with it.
        rig.send(3, &ip(BROADCAST, mac(100)));
        assert_eq!(to(&mut rig, 1, &pair(7, 0)), [3]);
        assert_eq!(to(&mut rig, 1, &pair(8, 1)), [2]);
        // A source that moves is seen where it is.
        assert_eq!(to(&mut rig, 3, &pair(7, 1)), [2]);
        assert_eq!(to(&mut rig, 2, &ip(mac(7), mac(101))), [3]);
    }
}
