//! A switch process that stands by: it continues with the guests of one that dies, and holds nothing of guests that left.

use std::time::Duration;

use lasthop_frontend::GuestOptions;
use lasthop_rig::guests::{ONE, TWO, frame, guest, guest_with, receive, send};
use lasthop_rig::talkers::Talker;
use lasthop_rig::{Switch, eventually, open_files, signal};
use rustix::process::Signal;

const READY: &str = "a stand-by switch process is ready, as process ";
/// Longer than the life of a process whose successor is started after a pause.
const LIFE: Duration = Duration::from_millis(300);

/// The processes that got ready, in their order.
fn ready(switch: &Switch) -> Vec<u32> {
    let log = switch.log();
    let numbers = log.split(READY).skip(1);
    numbers.map(|rest| rest.lines().next().expect("a line").parse().expect("a process id")).collect()
}

/// Waits for the stand-by number `count`, from 1, and returns its process id.
fn await_ready(switch: &Switch, count: usize) -> u32 {
    eventually("a stand-by", || ready(switch).get(count - 1).copied())
}

fn started() -> Switch {
    Switch::start(&["--standby", "on", "--vnic", "one", "--vnic", "two"])
}

#[test]
fn it_continues_with_the_guests_of_each_process_that_dies() {
    let switch = started();
    let one = guest_with(&switch, "one", GuestOptions { mac: ONE, ..GuestOptions::default() });
    let two = guest_with(&switch, "two", GuestOptions { mac: TWO, ..GuestOptions::default() });
    let talkers = [Talker::start(one, ONE, TWO), Talker::start(two, TWO, ONE)];
    for death in 1..=3 {
        talkers.iter().for_each(|talker| talker.hear(200));
        let standby = await_ready(&switch, death);
        let process = switch.switch_pid().expect("a switch process");
        assert_ne!(process, standby);
        std::thread::sleep(LIFE);
        signal(process, Signal::KILL);
        talkers.iter().for_each(|talker| talker.hear(200));
        let log = eventually("the news", || {
            Some(switch.log()).filter(|log| log.matches("running again").count() == death)
        });
        assert!(log.contains(&format!("process {standby} continues")), "{log}");
        assert!(log.contains(&format!("the switch process is running again, as process {standby}")), "{log}");
    }
    for talker in talkers {
        talker.end().reclaim(0).expect("a sound ring");
    }
    let stats = switch.json(&["stats"]);
    let ports = stats["ports"].as_array().expect("ports");
    let sum = |key: &str| ports.iter().filter_map(|port| port[key].as_u64()).sum::<u64>();
    assert_eq!(sum("forwarded"), sum("tx_packets"), "{stats}");
    switch.ask(&["stats", "--check"]).ok();
}

/// A guest that attached after the stand-by got ready is continued with, too.
#[test]
fn it_continues_with_guests_that_it_has_not_prepared_for() {
    let switch = started();
    let standby = await_ready(&switch, 1);
    let (mut one, mut two) = (guest(&switch, "one", ONE), guest(&switch, "two", TWO));
    std::thread::sleep(LIFE);
    signal(switch.switch_pid().expect("a switch process"), Signal::KILL);
    send(&mut one, &frame(TWO, ONE, 1, 60));
    assert_eq!(receive(&mut two), frame(TWO, ONE, 1, 60));
    assert_eq!(switch.switch_pid(), Some(standby));
}

/// The memory of a guest that left is free at once.
#[test]
fn it_ends_when_a_guest_leaves_and_another_one_stands_by() {
    let switch = started();
    let one = guest(&switch, "one", ONE);
    // The guest's memory is a file of its own.
    let mut number = 0;
    let standby = eventually("a stand-by with a guest", || {
        let pid = *ready(&switch).get(number)?;
        let has_memory = open_files(pid).iter().any(|(_, file)| file.contains("memfd"));
        number += usize::from(!has_memory && ready(&switch).len() > number + 1);
        has_memory.then_some(pid)
    });
    drop(one);
    eventually("its end", || (!switch.children().contains(&standby)).then_some(()));
    let next = eventually("the next one", || ready(&switch).last().copied().filter(|pid| *pid != standby));
    assert!(switch.children().contains(&next));
}

#[test]
fn it_knows_ports_that_were_added_later() {
    let switch = started();
    let first = await_ready(&switch, 1);
    switch.ask(&["port", "add", "three,backend=vhost-user"]).ok();
    let next = await_ready(&switch, 2);
    assert!(!switch.children().contains(&first), "there is one at most");
    std::thread::sleep(LIFE);
    signal(switch.switch_pid().expect("a switch process"), Signal::KILL);
    let (mut one, mut three) = (guest(&switch, "one", ONE), guest(&switch, "three", TWO));
    send(&mut one, &frame(TWO, ONE, 1, 60));
    assert_eq!(receive(&mut three), frame(TWO, ONE, 1, 60));
    assert_eq!(switch.switch_pid(), Some(next));
}

#[test]
fn another_one_follows_one_that_dies_and_an_upgrade_goes_without() {
    let mut switch = started();
    let (mut one, mut two) = (guest(&switch, "one", ONE), guest(&switch, "two", TWO));
    let first = await_ready(&switch, 1);
    signal(first, Signal::KILL);
    let second = await_ready(&switch, 2);
    switch.ask(&["upgrade"]).ok();
    assert_ne!(switch.switch_pid(), Some(second));
    let third = await_ready(&switch, 3);
    assert!(!switch.children().contains(&second), "there is one at most");
    send(&mut one, &frame(TWO, ONE, 1, 60));
    assert_eq!(receive(&mut two), frame(TWO, ONE, 1, 60));
    let children = switch.children();
    assert!(children.contains(&third));
    assert!(switch.end().success());
    assert!(children.iter().all(|pid| !std::path::Path::new(&format!("/proc/{pid}/exe")).exists()));
}
