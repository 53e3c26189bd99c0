//! Packets with and without flows.

use std::sync::atomic::AtomicBool;

use lasthop_dpif::family::PacketMessage;
use lasthop_flow::Action;

use crate::plane::{Ends, Plane, two_guests, two_vnics};
use lasthop_rig::eventually;
use lasthop_rig::guests::{ONE, TWO, WAIT, check_balance, frame, receive, send};

fn number_of(frame: &[u8]) -> u32 {
    u32::from_be_bytes([frame[14], frame[15], frame[16], frame[17]])
}

#[test]
fn flows_carry_packets_between_ports_of_a_datapath_and_count_them() {
    let switch = two_vnics(&[]);
    let (mut one, mut two) = two_guests(&switch);
    let (mut plane, first, second) = Plane::of_two(&switch, "default");
    assert_eq!((first, second), (1, 2));
    plane.join(first, second);
    plane.join(second, first);
    for number in 0..40 {
        let there = frame(TWO, ONE, number, 100);
        send(&mut one, &there);
        assert_eq!(receive(&mut two), there);
        let back = frame(ONE, TWO, number, 200);
        send(&mut two, &back);
        assert_eq!(receive(&mut one), back);
    }
    let flows = plane.client.flows(plane.datapath).expect("dumped");
    let mut counted: Vec<_> = flows.iter().filter_map(|flow| flow.stats).collect();
    counted.sort_by_key(|stats| stats.bytes);
    let counted: Vec<_> = counted.iter().map(|stats| (stats.packets, stats.bytes)).collect();
    assert_eq!(counted, [(40, 4000), (40, 8000)]);
    let ports = plane.client.ports(plane.datapath).expect("listed");
    let stats = ports.iter().find(|port| port.name.as_deref() == Some("one")).and_then(|port| port.stats);
    let stats = stats.expect("counters");
    assert_eq!((stats.rx_packets, stats.tx_packets, stats.rx_bytes), (40, 40, 4000));
    let datapath = plane.client.datapaths().expect("listed").remove(0).stats.expect("counters");
    assert_eq!((datapath.hit, datapath.missed, datapath.flows), (80, 0, 2));
    check_balance(&switch);
}

#[test]
fn packets_of_no_flow_go_by_the_control_plane_and_none_is_lost() {
    let switch = two_vnics(&[]);
    let (mut one, mut two) = two_guests(&switch);
    let (mut plane, _, second) = Plane::of_two(&switch, "default");
    plane.place(TWO, second);
    plane.listen(&switch);
    let stop = AtomicBool::new(false);
    let mut numbers: Vec<u32> = std::thread::scope(|scope| {
        let _ends = Ends(&stop);
        scope.spawn(|| plane.serve(&stop));
        // The limit of pending packets.
        (0..64).for_each(|number| send(&mut one, &frame(TWO, ONE, number, 100)));
        let numbers = (0..64).map(|_| number_of(&receive(&mut two))).collect();
        eventually("a flow", || {
            (switch.json(&["switch", "list"])["switches"][0]["counters"]["flows"] == 1).then_some(())
        });
        numbers
    });
    // The order is preserved for a time that is too short on a slow machine.
    numbers.sort_unstable();
    assert!(numbers.iter().copied().eq(0..64), "{numbers:?}");
    check_balance(&switch);
}

#[test]
fn a_packet_that_the_control_plane_cannot_send_on_is_counted_and_holds_up_nothing() {
    let switch = two_vnics(&["--fail-mode", "secure"]);
    let (mut one, mut two) = two_guests(&switch);
    let (mut plane, first, second) = Plane::of_two(&switch, "default");
    plane.listen(&switch);
    send(&mut one, &frame(TWO, ONE, 1, 100));
    let asked = plane.next(WAIT).expect("it is asked");
    let actions = Some(vec![Action::Output(second)]);
    let short = PacketMessage { packet: asked.packet[..5].to_vec(), actions, ..asked };
    assert!(plane.client.execute(&short).is_err());
    eventually("a drop", || (switch.port("one")["rx_drops"]["no_flow"] == 1).then_some(()));
    assert_eq!(switch.port("one")["injected"], 1);
    plane.join(first, second);
    send(&mut one, &frame(TWO, ONE, 2, 100));
    assert_eq!(number_of(&receive(&mut two)), 2, "by its flow");
    check_balance(&switch);
}

#[test]
fn ports_of_the_embedded_controller_are_not_joined() {
    let switch = lasthop_rig::Switch::start(&["--module", "flow", "--vnic", "one", "--vnic", "two"]);
    let refused = switch.ask(&["flow", "join", "one", "two"]).refused();
    let remedy = switch.addressed("lasthop switch set default controller=none");
    assert!(refused.contains(&remedy), "{refused}");
    switch.ask(&["switch", "set", "default", "controller=none"]).ok();
    switch.ask(&["flow", "join", "one", "two"]).ok();
}

#[test]
fn joined_ports_exchange_whatever_comes() {
    let switch = two_vnics(&["--fail-mode", "secure"]);
    let (mut one, mut two) = two_guests(&switch);
    let told = switch.ask(&["flow", "join", "one", "two"]).ok();
    assert_eq!(told.trim(), "joined one and two by 14 flows");
    let tagged = |tpid: u8, inner: &[u8]| {
        [&TWO[..], &ONE, &[0x80 + tpid, if tpid == 1 { 0 } else { 0xa8 }, 0, 5], inner].concat()
    };
    let frames = [
        frame(TWO, ONE, 1, 60),
        tagged(1, &[0x88, 0xb5, 1, 1, 1, 1]),
        tagged(8, &[0x81, 0, 0, 6, 0x88, 0xb5, 2, 2]),
        [&[0xff; 6][..], &ONE, &[8, 6], &[0; 28]].concat(),
    ];
    for sent in frames.map(|frame| [frame, vec![0; 60]].concat()) {
        send(&mut one, &sent);
        assert_eq!(receive(&mut two), sent);
        send(&mut two, &sent);
        assert_eq!(receive(&mut one), sent);
    }
    assert!(switch.ask(&["flow", "join", "one", "two"]).refused().contains("File exists"));
    check_balance(&switch);
}
