//! Ports that start flows without end: others' first packets go ahead of theirs.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use lasthop_rig::eventually;
use lasthop_rig::guests::{TWO, frame};
use lasthop_rig::rogue::Rogue;
use lasthop_rig::victims::Victims;

const FLOODING: [&str; 4] = ["bad0", "bad1", "bad2", "bad3"];
const ROUNDS: usize = 200;

/// Stops the work of other threads when dropped, also by a panic.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Sends frames from ever new addresses to another of these ports.
fn flood((dir, port): (&Path, u8), is_over: &AtomicBool, flooding: &AtomicUsize) {
    let (own, other) = ([2, 0, 0, 0, 7, port], [2, 0, 0, 0, 7, port ^ 1]);
    let (_rogue, mut desk) = Rogue::start(dir, FLOODING[usize::from(port)], 1);
    // From here on its address is known, and frames to it are not flooded.
    desk.send(0, &frame(TWO, own, 0, 60));
    let mut number = 0_u32;
    while !is_over.load(Ordering::Relaxed) {
        for _ in 0..64 {
            number += 1;
            let [b, c, d] = [number >> 16, number >> 8, number].map(|part| part as u8);
            desk.send(0, &frame(other, [2, 6, port, b, c, d], number, 60));
        }
        if number == 64 {
            flooding.fetch_add(1, Ordering::Relaxed);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Packets of a port that its flood lost.
fn lost(victims: &Victims, vnic: &str) -> u64 {
    victims.switch.port(vnic)["rx_drops"]["no_flow"].as_u64().unwrap_or(0)
}

#[test]
fn first_packets_of_others_are_all_delivered_while_four_ports_start_flows_without_end() {
    let mut victims = Victims::beside(&FLOODING);
    let dir = victims.switch.dir();
    let (is_over, flooding) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        let _ends = Ends(&is_over);
        for port in 0..4 {
            let (dir, is_over, flooding) = (&dir, &is_over, &flooding);
            scope.spawn(move || flood((dir, port), is_over, flooding));
        }
        let all_flood = || (flooding.load(Ordering::Relaxed) == 4).then_some(());
        eventually("floods", all_flood);
        // More than their lines take, so these are full.
        let are_full = || FLOODING.iter().all(|vnic| lost(&victims, vnic) > 0).then_some(());
        eventually("more flows than their lines take", are_full);
        let before: u64 = FLOODING.iter().map(|vnic| lost(&victims, vnic)).sum();
        victims.talk_anew(ROUNDS);
        let after: u64 = FLOODING.iter().map(|vnic| lost(&victims, vnic)).sum();
        assert!(after > before, "they still flooded");
    });
    let (one, rounds) = (victims.switch.port("one"), ROUNDS as u64);
    assert!(one["upcalls"].as_u64() >= Some(rounds), "each was a new flow: {one}");
    assert_eq!(one["upcalls"], one["injected"], "each came back: {one}");
    victims.assert_unharmed();
}
