//! A guest that left leaves no memory behind. This test has a process of its own, since it counts the process's
//! mappings.

mod support;

use lasthop_frontend::GuestOptions;
use support::{TestSwitch, config, eventually, frame, receive, send};

fn mapped_memfds() -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().filter(|line| line.contains("memfd:")).count()
}

#[test]
fn the_memory_of_a_guest_that_left_is_unmapped() {
    let mut switch = TestSwitch::start("bridge", 2);
    let (_, mut one) = switch.attach(config("one"), GuestOptions::default());
    let (_, mut other) = switch.attach(config("other"), GuestOptions::default());
    send(&mut one, &frame(2, 1, 0, 64));
    receive(&mut other);
    assert!(mapped_memfds() >= 4, "the guests' and the switch's mappings");
    drop((one, other));
    switch.join_sessions();
    eventually("nothing is mapped", || mapped_memfds() == 0);
}
