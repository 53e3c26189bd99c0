//! Ports whose devices have to be made first: their clients wait, other clients do not.

use std::time::{Duration, Instant};

use lasthop_dpif::bounds::PARKED_MS_MAX;
use lasthop_dpif::family::VportMessage;
use lasthop_dpif::private::{JOIN, number};
use lasthop_dpif::server::{Family, PeerId};

use crate::wire::{ACK, Answers, DEL, GET, Wire, flow, flow_request, new_datapath, new_port, request};

const EBUSY: i32 = 16;
const EEXIST: i32 = 17;
const ENOENT: i32 = 2;
const ETIMEDOUT: i32 = 110;

/// A datapath and two clients; the first one waits for port "slow".
fn waiting() -> (Wire, PeerId, PeerId) {
    let mut wire = Wire::new();
    let (id, other) = (wire.client(), wire.client());
    wire.ask(id, new_datapath("dp0", 9));
    wire.datapath.being_made.insert("slow".to_owned());
    wire.server.received(id, new_port("slow", None, vec![0]), &mut wire.datapath).expect("in turn");
    assert_eq!(wire.read(id), None, "nothing is said yet");
    (wire, id, other)
}

fn begins(answers: &Answers) -> bool {
    answers.errors == [0] && answers.ports().len() == 1
}

fn del_port(number: u32) -> Vec<u8> {
    let wanted = VportMessage { number: Some(number), ..VportMessage::default() };
    request(Family::Vport, DEL, ACK, 1, |writer| wanted.encode(writer))
}

#[test]
fn a_client_waiting_for_a_device_is_answered_when_it_is_there() {
    let (mut wire, id, _) = waiting();
    assert!(wire.server.is_settling() && !wire.server.wants_input(id));
    wire.settle();
    assert_eq!(wire.read(id), None, "it is not there");
    wire.datapath.being_made.clear();
    wire.settle();
    assert!(begins(&wire.read(id).expect("END")));
    assert!(!wire.server.is_settling() && wire.server.wants_input(id));
    assert!(wire.datapath.unwanted.is_empty());
}

#[test]
fn others_go_on_meanwhile() {
    let (mut wire, id, other) = waiting();
    assert!(begins(&wire.ask(other, new_port("quick", None, vec![0]))));
    assert_eq!(wire.ask(other, flow_request(GET, 0, &flow(1, Vec::new()))).errors, [ENOENT]);
    wire.datapath.being_made.clear();
    wire.settle();
    assert_eq!(wire.read(id).expect("END").ports()[0].number, Some(2), "numbers are given when ports begin");
}

#[test]
fn later_messages_of_the_datagram_wait_in_order() {
    let mut wire = Wire::new();
    let id = wire.client();
    wire.ask(id, new_datapath("dp0", 9));
    wire.datapath.being_made = ["b", "d"].map(str::to_owned).into();
    let names = ["a", "b", "c", "d"];
    let datagram = names.map(|name| new_port(name, None, vec![0])).concat();
    wire.server.received(id, datagram, &mut wire.datapath).expect("in turn");
    wire.datapath.being_made.remove("b");
    wire.settle();
    assert!(wire.server.is_settling(), "for d");
    wire.datapath.being_made.remove("d");
    wire.settle();
    let answers = wire.read(id).expect("END");
    let told: Vec<_> = answers.ports().into_iter().filter_map(|port| port.name).collect();
    assert_eq!((told, answers.errors), (names.map(str::to_owned).to_vec(), vec![0; 4]));
}

#[test]
fn a_device_that_does_not_come_is_refused_in_the_end() {
    let (mut wire, id, _) = waiting();
    let begin = Instant::now();
    wire.settle_at(begin);
    wire.settle_at(begin + Duration::from_millis(PARKED_MS_MAX));
    assert_eq!(wire.read(id), None);
    wire.settle_at(begin + Duration::from_millis(PARKED_MS_MAX + 1));
    assert_eq!(wire.read(id).expect("END").errors, [ETIMEDOUT]);
    assert_eq!(wire.datapath.unwanted, ["slow"]);
    assert!(wire.server.wants_input(id) && !wire.server.is_settling());
    wire.datapath.being_made.clear();
    assert!(begins(&wire.ask(id, new_port("slow", None, vec![0]))), "another time");
}

#[test]
fn the_device_of_a_client_that_left_is_not_waited_for() {
    let (mut wire, id, _) = waiting();
    wire.server.disconnected(id);
    assert!(wire.server.is_settling(), "somebody has to be told");
    wire.settle();
    assert_eq!(wire.datapath.unwanted, ["slow"]);
    assert!(!wire.server.is_settling());
}

#[test]
fn a_device_stays_wanted_while_another_client_waits() {
    let (mut wire, id, other) = waiting();
    wire.server.received(other, new_port("slow", None, vec![0]), &mut wire.datapath).expect("in turn");
    wire.server.disconnected(id);
    wire.settle();
    assert!(wire.datapath.unwanted.is_empty());
    let (mut late, patient) = (wire.client(), other);
    wire.server.received(late, new_port("slow", None, vec![0]), &mut wire.datapath).expect("in turn");
    wire.datapath.being_made.clear();
    wire.settle();
    assert!(begins(&wire.read(patient).expect("END")), "the first one has it");
    assert_eq!(wire.read(late).expect("END").errors, [EEXIST]);
    late = wire.client();
    assert!(begins(&wire.ask(late, new_port("next", None, vec![0]))));
    assert!(wire.datapath.unwanted.is_empty(), "it has begun");
}

#[test]
fn a_datapath_begins_when_its_own_port_can() {
    let mut wire = Wire::new();
    let id = wire.client();
    wire.datapath.being_made.insert("ovs-system".to_owned());
    wire.server.received(id, new_datapath("ovs-system", 9), &mut wire.datapath).expect("in turn");
    assert!(wire.server.records().is_empty());
    wire.datapath.being_made.clear();
    wire.settle();
    assert_eq!(wire.read(id).expect("END").datapaths().len(), 1);
}

#[test]
fn the_device_of_a_refused_port_is_released() {
    let (mut wire, id, other) = waiting();
    let taken = wire.client();
    wire.server.received(taken, new_port("late", Some(1), vec![0]), &mut wire.datapath).expect("in turn");
    assert!(begins(&wire.read(taken).expect("END")));
    wire.datapath.being_made.insert("third".to_owned());
    wire.server.received(other, new_port("third", Some(2), vec![0]), &mut wire.datapath).expect("in turn");
    assert!(begins(&wire.ask(taken, new_port("quick", Some(2), vec![0]))));
    wire.settle();
    assert_eq!(wire.read(other).expect("END").errors, [EBUSY], "its number is another's");
    assert_eq!(wire.datapath.unwanted, ["third"]);
    assert_eq!(wire.read(id), None, "the first one waits");
}

#[test]
fn a_waiting_client_that_does_not_read_still_waits() {
    let (mut wire, id, other) = waiting();
    let member = number(JOIN, 0, Family::Vport.group().expect("it has one"));
    wire.server.disconnected(id);
    let id = wire.client();
    wire.ask(id, member);
    wire.server.received(id, new_port("slow", None, vec![0]), &mut wire.datapath).expect("in turn");
    for _ in 0..2000 {
        wire.ask(other, new_port("quick", Some(1), vec![0]));
        wire.ask(other, del_port(1));
    }
    wire.settle();
    assert!(wire.server.is_settling(), "for the device");
    wire.server.disconnected(id);
    wire.settle();
    assert_eq!(wire.datapath.unwanted, ["slow"]);
}
