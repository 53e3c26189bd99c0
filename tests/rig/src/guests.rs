//! Guests of our own on the vnics of a running switch, and their frames.

use std::time::Duration;

use lasthop_frontend::{Guest, GuestOptions};
use lasthop_wire::Offload;
use serde_json::Value;

use super::{Switch, eventually};

pub const ONE: [u8; 6] = [0x02, 0, 0, 0, 0, 1];
pub const TWO: [u8; 6] = [0x02, 0, 0, 0, 0, 2];
pub const WAIT: Duration = Duration::from_secs(120);

/// A frame of a type that no protocol uses (IEEE 802 local experimental), with a number in it.
pub fn frame(to: [u8; 6], from: [u8; 6], number: u32, len: usize) -> Vec<u8> {
    let mut frame = [&to[..], &from, &[0x88, 0xb5], &number.to_be_bytes()].concat();
    frame.resize(len, number as u8);
    frame
}

/// A guest whose rings run.
pub fn guest(switch: &Switch, port: &str, mac: [u8; 6]) -> Guest {
    guest_with(switch, port, GuestOptions { mac, ..GuestOptions::default() })
}

pub fn guest_with(switch: &Switch, port: &str, options: GuestOptions) -> Guest {
    let guest = Guest::connect(switch.path(&format!("{port}.sock")), options).expect("attached");
    running(switch, port);
    guest
}

pub fn running(switch: &Switch, port: &str) {
    eventually("the guest", || (switch.port(port)["state"] == "running").then_some(()));
}

/// Sends a frame; waits while the ring is full.
pub fn send(guest: &mut Guest, frame: &[u8]) {
    eventually("room in the ring", || {
        guest.reclaim(0).expect("a sound ring");
        guest.send(0, frame, Offload::default()).expect("sent").then_some(())
    });
    guest.flush(0).expect("flushed");
}

pub fn receive(guest: &mut Guest) -> Vec<u8> {
    let mut frame = Vec::new();
    assert!(guest.wait(Some(WAIT)).expect("connected"), "no frame came");
    guest.recv(0, &mut frame).expect("a sound ring").expect("a frame");
    frame
}

/// Waits until the embedded controllers serve all vnics. Before that a bridge stands in for them, which keeps learned
/// addresses to itself and installs no flows.
pub fn controlled(switch: &Switch) {
    let is_served = |line: &Value| {
        let vnics = line["vnics"].as_array().map_or(0, Vec::len);
        line["controller"] != "embedded" || line["counters"]["ports_served"] == vnics
    };
    eventually("the controllers", || {
        let list = switch.json(&["switch", "list"]);
        list["switches"].as_array().expect("switches").iter().all(is_served).then_some(())
    });
}

fn sum(stats: &Value, key: &str) -> u64 {
    stats["ports"].as_array().expect("ports").iter().filter_map(|port| port[key].as_u64()).sum()
}

pub fn check_balance(switch: &Switch) {
    switch.ask(&["stats", "--check"]).ok();
    let stats = switch.json(&["stats"]);
    assert_eq!(sum(&stats, "forwarded"), sum(&stats, "tx_packets"), "{stats}");
}
