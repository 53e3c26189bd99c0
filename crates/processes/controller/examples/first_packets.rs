//! Sends first packets through the control interface, the controller and the flow table in one thread, to count
//! instructions of 64 batches of 32 packets, without the sockets and the workers:
//!
//! ```text
//! cargo build --release -p lasthop-controller --example first_packets
//! valgrind --tool=callgrind --toggle-collect='first_packets::answer*' target/release/examples/first_packets 64 32
//! ```

#![allow(clippy::print_stdout, reason = "a measurement says what it found")]

#[allow(dead_code, reason = "the tests use all of it")]
#[path = "../tests/bridge/support.rs"]
mod support;

use lasthop_controller::{Controller, SwitchConfig};
use lasthop_dpif::server::{DatapathUpcall, PeerId};
use lasthop_module_api::{Module as _, PortId, PortSettings};
use support::{Rig, SWITCH, frame};

/// Addresses of each guest, which the switch has learned.
const ADDRESSES: u32 = 1024;

fn address(guest: u8, number: u32) -> [u8; 6] {
    let [_, _, high, low] = number.to_be_bytes();
    [2, guest, 0, 0, high, low]
}

fn packet(to: [u8; 6], from: [u8; 6]) -> Vec<u8> {
    frame(
        to,
        from,
        &[&[8, 0, 0x45, 0, 0, 46, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2][..], &[0; 26]].concat(),
    )
}

/// A switch with two ports, and all addresses of both.
fn rig() -> Rig {
    let mut rig = Rig::new(Controller::new(0x100));
    rig.controller.set_switch(&SwitchConfig::named(SWITCH));
    for (number, name) in [(1, "one"), (2, "two")] {
        let settings = PortSettings { name: name.to_owned(), ..PortSettings::default() };
        rig.tables.ports.insert(name.to_owned(), PortId(number));
        rig.tables.module.port_added(PortId(number), &settings).expect("room");
        rig.controller.set_port(SWITCH, settings);
    }
    rig.settle();
    for number in 0..ADDRESSES {
        for guest in [1, 2] {
            rig.send(guest.into(), &packet([0xff; 6], address(guest, number)));
        }
    }
    rig
}

/// Passes upcalls to the controller and its requests back, until none is left.
#[inline(never)]
fn answer(rig: &mut Rig, upcalls: Vec<DatapathUpcall>) {
    for upcall in upcalls {
        let _ = rig.server.upcall(upcall);
    }
    loop {
        let mut is_quiet = !rig.controller.turn(rig.now_ns);
        for (link, peer) in [PeerId(1), PeerId(2)].into_iter().enumerate() {
            while let Some(datagram) = rig.server.output(peer) {
                rig.controller.received(link, datagram, rig.now_ns);
                rig.server.sent(peer, &mut rig.tables);
                is_quiet = false;
            }
            while rig.server.wants_input(peer)
                && let Some(datagram) = rig.controller.output(link).map(<[u8]>::to_vec)
            {
                rig.controller.sent(link);
                rig.server.received(peer, datagram, &mut rig.tables).expect("a good client");
                is_quiet = false;
            }
        }
        if is_quiet {
            return;
        }
    }
}

fn send(rig: &mut Rig, from: u32, packets: u32) {
    let mut upcalls = Vec::new();
    for number in from..from + packets {
        let frame = packet(address(2, number % ADDRESSES), address(1, number / ADDRESSES));
        upcalls.extend(rig.raised_by(1, &frame));
    }
    answer(rig, upcalls);
    // The packets themselves.
    rig.settle();
}

fn main() {
    let mut arguments = std::env::args().skip(1).map(|word| word.parse().expect("a number"));
    let [batches, packets] = [64, 32].map(|usual: u32| arguments.next().unwrap_or(usual));
    let mut rig = rig();
    let before = rig.flow_count();
    for batch in 0..batches {
        send(&mut rig, batch * packets, packets);
        if batch % 32 == 31 {
            rig.now_ns += support::SECOND_NS;
        }
    }
    println!("{} flows more", rig.flow_count() - before);
}
