//! Packets of one established connection through a table, for a count of instructions.
//!
//! ```text
//! valgrind --tool=callgrind --toggle-collect='*measured*' target/release/examples/track_instructions plain
//! ```
//!
//! Divide by the packets that it prints. `nat`: a connection with source NAT.
#![allow(clippy::print_stdout, reason = "a measurement says what it found")]

#[path = "../benches/track/frames.rs"]
mod frames;

use std::hint::black_box;

use frames::{NOW_MS, commit, established, image, segment, snat};
use lasthop_conntrack::{ConntrackTable, CtMetadata, CtRequest, PacketImage};
use lasthop_flow::Nat;

const PACKETS: u32 = 10_000;

#[inline(never)]
fn measured(table: &ConntrackTable, image: &PacketImage<'_>, request: &CtRequest) {
    let before = CtMetadata::default();
    for _ in 0..PACKETS {
        black_box(table.track(image, &before, request, NOW_MS));
    }
}

fn main() {
    let is_nat = std::env::args().nth(1).as_deref() == Some("nat");
    let table = established(1, &if is_nat { snat() } else { commit(0) });
    let request = CtRequest { nat: is_nat.then(Nat::default), ..CtRequest::default() };
    let frame = segment(0, false);
    measured(&table, &image(&frame), &request);
    println!("{PACKETS} packets, {} bytes for a connection", table.memory_bytes());
}
