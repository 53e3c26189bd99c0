//! Clients that misbehave.

use lasthop_dpif::bounds::{ANSWER_BYTES_MAX, PEERS_MAX};
use lasthop_dpif::family::FlowMessage;
use lasthop_dpif::private::{Hello, JOIN, number};
use lasthop_dpif::server::{DisconnectReason, PeerId};
use lasthop_flow::Action;
use proptest::prelude::*;

use crate::wire::{CREATE, DUMP, GET, NEW, Wire, flow, flow_request, new_datapath, new_port};

#[test]
fn a_client_without_hello_is_not_served() {
    let mut wire = Wire::new();
    let stranger = PeerId(7);
    assert_eq!(
        wire.server.received(stranger, new_datapath("dp0", 9), &mut wire.datapath),
        Err(DisconnectReason::NoHello)
    );
    assert_eq!(
        wire.server.received(stranger, Vec::new(), &mut wire.datapath),
        Err(DisconnectReason::NoHello)
    );
    assert!(wire.server.records().is_empty());
}

#[test]
fn there_are_so_many_clients_and_no_more() {
    let mut wire = Wire::new();
    let clients: Vec<_> = (0..PEERS_MAX).map(|_| wire.client()).collect();
    let hello = Hello { protocol: 16, port_id: 0, process: 1 }.encode();
    let late = PeerId(1 << 40);
    assert_eq!(wire.server.received(late, hello.clone(), &mut wire.datapath), Err(DisconnectReason::TooMany));
    wire.server.disconnected(clients[0]);
    assert_eq!(wire.server.received(late, hello, &mut wire.datapath), Ok(()));
}

#[test]
fn a_client_that_does_not_read_is_not_read_from() {
    let mut wire = Wire::new();
    let id = wire.client();
    wire.ask(id, new_datapath("dp0", 9));
    for flow_number in 0..3000 {
        wire.ask(id, flow_request(NEW, CREATE, &flow(flow_number, vec![Action::Output(1); 8])));
    }
    let dump = flow_request(GET, DUMP, &FlowMessage::default());
    wire.server.received(id, dump.clone(), &mut wire.datapath).expect("in turn");
    assert!(!wire.server.wants_input(id));
    let other = wire.client();
    assert!(wire.server.wants_input(other), "others are");
    let (mut waiting, mut largest) = (0, 0);
    while let Some(datagram) = wire.server.output(id).map(<[u8]>::len) {
        waiting += datagram;
        largest = largest.max(datagram);
        wire.server.sent(id, &mut wire.datapath);
    }
    assert!(waiting > 2 * ANSWER_BYTES_MAX && largest < 20 * 1024, "{waiting} bytes, {largest} in one");
    assert!(wire.server.wants_input(id), "all is read");
    wire.server.received(id, dump.clone(), &mut wire.datapath).expect("in turn");
    assert_eq!(wire.server.received(id, dump, &mut wire.datapath), Err(DisconnectReason::OutOfTurn));
    assert!(wire.server.output(id).is_none(), "it is forgotten");
}

#[test]
fn groups_are_few() {
    let mut wire = Wire::new();
    let id = wire.client();
    wire.port_id(id);
    let mut errors = Vec::new();
    for group in 0..10 {
        wire.server.received(id, number(JOIN, 0, group), &mut wire.datapath).expect("in turn");
        let answer = wire.next(id).expect("an answer");
        wire.next(id);
        errors.push(answer[16]);
    }
    assert_eq!(errors, [0, 0, 0, 0, 0, 0, 0, 0, 28, 28]);
}

proptest! {
    /// Requests with some changed bytes, in any order: each datagram ends, and the next one is accepted.
    #[test]
    fn any_request_ends(
        requests in prop::collection::vec((0..6_usize, any::<prop::sample::Index>(), any::<u8>()), 1..40),
    ) {
        let mut wire = Wire::new();
        let id = wire.client();
        for (which, at, value) in requests {
            let mut datagram = match which {
                0 => new_datapath("dp0", 9),
                1 => new_port("vm1", None, vec![0]),
                2 => flow_request(NEW, CREATE, &flow(1, vec![Action::PopVlan])),
                3 => flow_request(GET, DUMP, &FlowMessage::default()),
                4 => number(JOIN, 0, 1),
                _ => [new_port("vm2", None, vec![0]), flow_request(GET, DUMP, &FlowMessage::default())].concat(),
            };
            let at = at.index(datagram.len());
            datagram[at] = value;
            prop_assert!(wire.server.wants_input(id));
            wire.server.received(id, datagram, &mut wire.datapath).expect("in turn");
            while wire.next(id).is_some() {}
        }
    }
}
