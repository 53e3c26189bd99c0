//! Removals of all flows: a part at a time, so that other clients and packets do not wait for large tables.

use lasthop_dpif::bounds::FLUSH_MESSAGES;
use lasthop_dpif::datapath::DatapathId;
use lasthop_dpif::family::FlowMessage;
use lasthop_dpif::message::Messages;
use lasthop_dpif::server::{Family, PeerId};

use crate::wire::{ACK, CREATE, DEL, GET, NEW, Wire, flow, flow_request, new_datapath, request};

const ENOENT: i32 = 2;
const FLOWS: u32 = 100;

/// A datapath with flows, and two clients.
fn filled() -> (Wire, PeerId, PeerId) {
    let mut wire = Wire::new();
    let (id, other) = (wire.client(), wire.client());
    wire.ask(id, new_datapath("dp0", 9));
    for number in 1..=FLOWS {
        assert_eq!(wire.ask(id, install(number)).errors, [0]);
    }
    (wire, id, other)
}

fn install(number: u32) -> Vec<u8> {
    flow_request(NEW, CREATE | ACK, &flow(number, Vec::new()))
}

fn flush() -> Vec<u8> {
    let all = FlowMessage { datapath: 1, ..FlowMessage::default() };
    request(Family::Flow, DEL, ACK, 1, |writer| all.encode(writer))
}

impl Wire {
    fn flows_left(&self) -> usize {
        self.datapath.flow_count(DatapathId(1))
    }

    /// Continues the client's request, with `messages` granted in each turn, and reads all answers.
    /// Returns the number of turns, and the errors.
    fn finish(&mut self, id: PeerId, messages: usize) -> (u32, Vec<i32>) {
        let (mut turns, mut errors) = (0, Vec::new());
        while self.server.has_work(id) || self.server.output(id).is_some() {
            self.server.grant(messages);
            match self.server.output(id).map(<[u8]>::to_vec) {
                Some(datagram) => {
                    errors.extend(Messages::new(&datagram).filter_map(|message| message.error()))
                }
                None => turns += 1,
            }
            self.server.sent(id, &mut self.datapath);
        }
        (turns, errors)
    }
}

#[test]
fn a_flush_takes_its_part_of_each_turn_and_is_acknowledged_at_its_end() {
    let (mut wire, id, other) = filled();
    wire.server.grant(1 + FLUSH_MESSAGES);
    wire.server.received(id, flush(), &mut wire.datapath).expect("in turn");
    let left = wire.flows_left();
    assert!(left > 0 && left < FLOWS as usize, "{left} flows are left after one part");
    assert!(wire.server.has_work(id) && !wire.server.wants_input(id));
    assert_eq!(wire.read(id), None, "it is not done");
    wire.server.grant(1000);
    assert_eq!(
        wire.ask(other, flow_request(GET, 0, &flow(1, Vec::new()))).errors,
        [ENOENT],
        "others are served"
    );
    let (turns, errors) = wire.finish(id, FLUSH_MESSAGES);
    assert!(turns > 5, "{turns} turns");
    assert_eq!((errors, wire.flows_left(), wire.server.wants_input(id)), (vec![0], 0, true));
}

#[test]
fn later_messages_of_the_client_wait_for_the_end_of_its_flush() {
    let (mut wire, id, _) = filled();
    wire.server.grant(1 + FLUSH_MESSAGES);
    let datagram = [flush(), install(FLOWS + 1), flush(), install(FLOWS + 2)].concat();
    wire.server.received(id, datagram, &mut wire.datapath).expect("in turn");
    let (_, errors) = wire.finish(id, 1);
    assert_eq!((errors, wire.flows_left()), (vec![0; 4], 1), "only the flow after the last flush is left");
}

#[test]
fn a_client_that_leaves_ends_its_flush() {
    let (mut wire, id, other) = filled();
    wire.server.grant(1 + FLUSH_MESSAGES);
    wire.server.received(id, flush(), &mut wire.datapath).expect("in turn");
    wire.server.disconnected(id);
    let left = wire.flows_left();
    assert_eq!((wire.finish(other, 1000).0, wire.server.has_work(id)), (0, false));
    assert_eq!(wire.flows_left(), left);
    assert_eq!((wire.ask(other, flush()).errors, wire.flows_left()), (vec![0], 0));
}
