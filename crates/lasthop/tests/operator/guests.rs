//! Guests on the built binary that send single frames.

use std::time::Duration;

use lasthop_guest::{Guest, GuestOptions};
use lasthop_wire::Offload;

use crate::support::{Switch, eventually};

pub(crate) const ONE: [u8; 6] = [0x02, 0, 0, 0, 0, 1];
pub(crate) const TWO: [u8; 6] = [0x02, 0, 0, 0, 0, 2];
const WAIT: Duration = Duration::from_secs(20);

/// A frame of a type that no protocol uses (IEEE 802 local experimental).
pub(crate) fn frame(to: [u8; 6], from: [u8; 6], number: u8) -> Vec<u8> {
    let mut frame = [&to[..], &from, &[0x88, 0xb5, number]].concat();
    frame.resize(60, number);
    frame
}

/// A guest whose rings run.
pub(crate) fn guest(switch: &Switch, port: &str, mac: [u8; 6]) -> Guest {
    let options = GuestOptions { mac, ..GuestOptions::default() };
    let guest = Guest::connect(switch.path(&format!("{port}.sock")), options).expect("attached");
    eventually("the guest", || (switch.port(port)["state"] == "running").then_some(()));
    guest
}

pub(crate) fn send(guest: &mut Guest, frame: &[u8]) {
    guest.reclaim(0).expect("a sound ring");
    assert!(guest.send(0, frame, Offload::default()).expect("sent"), "the ring is full");
    guest.flush(0).expect("flushed");
}

pub(crate) fn receive(guest: &mut Guest) -> Vec<u8> {
    let mut frame = Vec::new();
    assert!(guest.wait(Some(WAIT)).expect("connected"), "no frame came");
    guest.recv(0, &mut frame).expect("a sound ring").expect("a frame");
    frame
}
