//! Queue pairs that move between workers, on the built binary: their guests do not notice, also if the switch process is
//! killed meanwhile, and with more than 16 workers.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use lasthop_frontend::GuestOptions;
use lasthop_rig::guests::{ONE, TWO, check_balance, frame, guest, guest_with, receive, running, send};
use lasthop_rig::talkers::Talker;
use lasthop_rig::{Switch, eventually, signal};
use rustix::process::Signal;
use serde_json::Value;

/// The time between two deaths: longer than the life of a process for whose death the supervisor blames its guests.
const LIFE: Duration = Duration::from_millis(300);

/// The workers of a port's queue pairs.
fn homes(switch: &Switch, port: &str) -> Vec<u64> {
    let report = switch.json(&["sched", "show"]);
    let queues = report["queues"].as_array().expect("queues").iter();
    queues.filter(|home| home["port"] == port).filter_map(|home| home["worker"].as_u64()).collect()
}

#[test]
fn queues_move_between_twenty_workers() {
    let switch = Switch::start(&["--workers", "20", "--vnic", "one,queues=2", "--vnic", "two"]);
    let options = GuestOptions { mac: ONE, queue_pairs: 2, ..GuestOptions::default() };
    let (mut one, mut two) = (guest_with(&switch, "one", options), guest(&switch, "two", TWO));
    running(&switch, "one");
    assert_eq!(switch.json(&["stats"])["workers"].as_array().map(Vec::len), Some(20));
    for number in 0..20_u32 {
        let worker = number.to_string();
        let told = switch.ask(&["sched", "move", "one", &worker]).ok();
        assert_eq!(told.trim(), format!("queue 0 of one is served by worker {number}"));
        switch.ask(&["sched", "move", "two:0", &(19 - number).to_string()]).ok();
        switch.ask(&["sched", "move", "one:1", &(number / 2).to_string()]).ok();
        let number_64 = u64::from(number);
        assert_eq!(homes(&switch, "one"), [number_64, number_64 / 2]);
        assert_eq!(homes(&switch, "two"), [19 - number_64]);
        send(&mut one, &frame(TWO, ONE, number, 60));
        assert_eq!(receive(&mut two), frame(TWO, ONE, number, 60));
        one.reclaim(0).expect("a sound ring");
    }
    let shown = switch.ask(&["sched", "show"]).ok();
    assert!(shown.contains("VNIC  QUEUE  WORKER") && shown.contains("one       0      19"), "{shown}");
    check_balance(&switch);
    assert_eq!(switch.port("one")["rx_packets"], 20, "sums over the workers");
}

#[test]
fn a_move_that_is_not_possible_is_refused_with_the_remedy() {
    let switch = Switch::start(&["--workers", "2", "--vnic", "one", "--vnic", "off"]);
    let _one = guest(&switch, "one", ONE);
    running(&switch, "one");
    for (queue, worker, remedy) in [
        ("none", "1", "no port \"none\""),
        ("one:1", "1", "it has one queue, 0"),
        ("one", "2", "the workers are 0 to 1"),
        ("off", "1", "start the guest's driver"),
        ("one:x", "1", "vm1:2"),
        ("one", "many", "invalid"),
    ] {
        let answer = switch.ask(&["sched", "move", queue, worker]);
        assert!(answer.code != Some(0) && answer.err.contains(remedy), "{queue} {worker}: {answer:?}");
    }
}

fn sum(stats: &Value, key: &str) -> u64 {
    let ports = stats["ports"].as_array().expect("ports");
    ports.iter().filter_map(|port| port[key].as_u64()).sum()
}

#[test]
fn guests_do_not_notice_moves_and_deaths_amid_them() {
    let switch = Switch::start(&["--workers", "3", "--vnic", "one,queues=2", "--vnic", "two,queues=2"]);
    let with = |mac| GuestOptions { mac, queue_pairs: 2, ..GuestOptions::default() };
    let talkers = [
        Talker::start(guest_with(&switch, "one", with(ONE)), ONE, TWO),
        Talker::start(guest_with(&switch, "two", with(TWO)), TWO, ONE),
    ];
    let (moves, is_over) = (AtomicU32::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let queues = ["one:0", "two:0", "one:1", "two:1"];
            for (round, queue) in (0_usize..).zip(queues.into_iter().cycle()) {
                if is_over.load(Ordering::Relaxed) {
                    return;
                }
                // Nothing is there while the switch process is replaced.
                let moved = switch.ask(&["sched", "move", queue, &(round % 3).to_string()]);
                moves.fetch_add(u32::from(moved.code == Some(0)), Ordering::Relaxed);
            }
        });
        for _ in 0..4 {
            let before = moves.load(Ordering::Relaxed);
            talkers.iter().for_each(|talker| talker.hear(500));
            eventually("moves", || (moves.load(Ordering::Relaxed) > before + 8).then_some(()));
            std::thread::sleep(LIFE);
            let pid = eventually("the switch process", || switch.switch_pid());
            signal(pid, Signal::KILL);
            eventually("the next one", || switch.switch_pid().filter(|next| *next != pid));
            talkers.iter().for_each(|talker| talker.hear(500));
        }
        is_over.store(true, Ordering::Relaxed);
    });
    for talker in talkers {
        talker.end().reclaim(0).expect("a sound ring");
    }
    let stats = switch.json(&["stats"]);
    assert_eq!(sum(&stats, "forwarded"), sum(&stats, "tx_packets"), "{stats}");
}
