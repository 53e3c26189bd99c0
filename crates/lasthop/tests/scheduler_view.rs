//! The view of the host's scheduler: open while a guest is attached, and sent to each switch process; the switch also
//! works without it.

use std::process::Command;
use std::sync::mpsc::{Sender, TryRecvError, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use lasthop_frontend::{Guest, GuestOptions};
use lasthop_rig::guests::{ONE, TWO, check_balance, frame, guest, guest_with, receive, send};
use lasthop_rig::{Switch, eventually, lasthop, may_see_scheduler, signal};
use lasthop_wire::Offload;
use rustix::process::{Signal, geteuid};
use serde_json::Value;

const VNICS: [&str; 4] = ["--vnic", "one", "--vnic", "two"];

fn start(words: &[&str]) -> Switch {
    Switch::start(&[&["--scheduler-view", "auto"], words].concat())
}

fn report(switch: &Switch) -> Value {
    switch.json(&["sched", "show"])
}

/// Both ways, so that the switch waits for an answer of each.
fn exchange(one: &mut Guest, two: &mut Guest, number: u32) {
    send(one, &frame(TWO, ONE, number, 60));
    assert_eq!(receive(two), frame(TWO, ONE, number, 60));
    send(two, &frame(ONE, TWO, number, 60));
    assert_eq!(receive(one), frame(ONE, TWO, number, 60));
}

/// The decisions of all workers that used the view of the guest.
fn decisions(report: &Value) -> u64 {
    sum_of(report, &["look_polls", "look_yields", "look_sleeps"])
}

/// The sum of these counters of all workers.
fn sum_of(report: &Value, counts: &[&str]) -> u64 {
    let of = |worker: &Value| counts.iter().filter_map(|count| worker[count].as_u64()).sum::<u64>();
    report["workers"].as_array().expect("workers").iter().map(of).sum()
}

/// Lets packets pass until a switch process makes decisions by the view.
fn decides_by_the_view(switch: &Switch, one: &mut Guest, two: &mut Guest) {
    let mut number = 0;
    eventually("a decision by the view", || {
        number += 1;
        exchange(one, two, number);
        (decisions(&report(switch)) > 0).then_some(())
    });
}

/// A thread that acts as a vCPU which works and sleeps by turns, from a message on until its sender is gone.
fn napping_vcpu() -> (JoinHandle<()>, Sender<()>) {
    const TURN: Duration = Duration::from_millis(1);
    let (begin, begun) = channel();
    let nap = move || {
        if begun.recv().is_err() {
            return;
        }
        while begun.try_recv() != Err(TryRecvError::Disconnected) {
            let start = Instant::now();
            while start.elapsed() < TURN {
                std::hint::spin_loop();
            }
            std::thread::sleep(TURN);
        }
    };
    let napper = std::thread::Builder::new().name("CPU 1/TCG".to_owned()).spawn(nap);
    (napper.expect("a thread"), begin)
}

/// Threads of this process act as the guests' vCPUs, by their names. A single test uses them, as each switch here sees
/// all of them.
#[test]
fn guests_are_seen_from_the_first_to_the_last_by_each_switch_process() {
    if !may_see_scheduler("scheduler-view") {
        return;
    }
    let (end, ended) = channel::<()>();
    let (tell, told) = channel();
    // Not of KVM, whose vCPUs may halt-poll.
    let vcpu = std::thread::Builder::new().name("CPU 0/TCG".to_owned()).spawn(move || {
        tell.send(rustix::thread::gettid().as_raw_nonzero().get()).expect("heard");
        let _ = ended.recv();
    });
    let (vcpu, tid) = (vcpu.expect("a thread"), told.recv().expect("its number"));
    let (napper, begin_naps) = napping_vcpu();
    let switch = start(&VNICS);
    let none = report(&switch);
    assert_eq!((&none["is_open"], &none["why"]), (&false.into(), &"no guest is attached".into()), "{none}");
    let (mut one, mut two) = (guest(&switch, "one", ONE), guest(&switch, "two", TWO));
    let seen = eventually("both guests", || {
        let report = report(&switch);
        let guests = report["guests"].as_array().expect("guests");
        let sleeps = |guest: &Value| guest["threads"][0]["activity"] == "sleeping";
        (guests.len() == 2 && guests.iter().all(sleeps)).then_some(report)
    });
    assert_eq!(seen["guests"][0]["threads"][0]["tid"], tid, "{seen}");
    assert_eq!(seen["guests"][0]["kind"], "vmm", "{seen}");
    assert_eq!(seen["policies"][0]["is_used"], false, "{seen}");
    switch.ask(&["sched", "set", "look=on"]).ok();
    decides_by_the_view(&switch, &mut one, &mut two);
    let doctor = switch.ask(&["doctor", "--switch"]).out;
    assert!(doctor.contains("view of the scheduler: 2 of 2 guests seen"), "{doctor}");

    let pid = switch.switch_pid().expect("a switch process");
    signal(pid, Signal::KILL);
    eventually("the next one", || switch.switch_pid().filter(|next| *next != pid));
    decides_by_the_view(&switch, &mut one, &mut two);
    switch.ask(&["upgrade"]).ok();
    decides_by_the_view(&switch, &mut one, &mut two);

    switch.ask(&["sched", "set", "look=off"]).ok();
    let policies = report(&switch)["policies"].clone();
    assert_eq!((&policies[0]["mode"], &policies[0]["is_used"]), (&"off".into(), &false.into()));
    assert!(switch.ask(&["sched", "set", "telepathy=on"]).err.contains("look, yield"));

    switch.ask(&["sched", "set", "transmit-timer=on"]).ok();
    begin_naps.send(()).expect("it waits");
    let mut number = 0;
    eventually("a timer, a thread that goes to sleep, and their trace", || {
        number += 1;
        exchange(&mut one, &mut two, number);
        let report = report(&switch);
        let traced = switch.json(&["sched", "trace"])["decisions"].to_string().contains("transmit-timer");
        let has = |count| sum_of(&report, &[count]) > 0;
        (has("transmits_timed") && has("sleep_events") && traced).then_some(())
    });

    drop((begin_naps, one, two));
    napper.join().expect("it ended");
    eventually("the end of the view", || (report(&switch)["is_open"] == false).then_some(()));
    drop(end);
    vcpu.join().expect("it ended");
}

/// A helper is found only while a CPU is idle, which on a busy machine may never be: the view is asked in any case.
#[test]
fn large_frames_ask_for_helpers_also_after_a_death() {
    const TRAIN: u32 = 8;
    if !may_see_scheduler("scheduler-view") {
        return;
    }
    let switch = start(&[&["--helper-cpus", "0-1", "--offload", "bytes=2048,idle=cpu"], &VNICS[..]].concat());
    let options = |mac| GuestOptions { mac, tx_slot_bytes: 10_000, ..GuestOptions::default() };
    let mut one = guest_with(&switch, "one", options(ONE));
    let mut two = guest_with(&switch, "two", options(TWO));
    let mut number = 0;
    let mut asked = |switch: &Switch| {
        eventually("large frames that ask for a helper", || {
            one.reclaim(0).expect("a sound ring");
            for number in number..number + TRAIN {
                assert!(one.send(0, &frame(TWO, ONE, number, 9000), Offload::default()).expect("sent"));
            }
            one.flush(0).expect("flushed");
            for number in number..number + TRAIN {
                assert_eq!(receive(&mut two), frame(TWO, ONE, number, 9000));
            }
            number += TRAIN;
            (sum_of(&report(switch), &["offloads_shared", "offloads_alone"]) > 0).then_some(())
        });
    };
    let helpers = report(&switch)["workers"].as_array().expect("workers").clone();
    let cpus: Vec<_> = helpers.iter().filter_map(|worker| worker["helper_cpu"].as_u64()).collect();
    assert_eq!(cpus, [0, 1], "{helpers:?}");
    switch.ask(&["sched", "set", "offload=on"]).ok();
    asked(&switch);
    assert!(switch.ask(&["sched", "show"]).ok().contains("CPU 1"));
    let pid = switch.switch_pid().expect("a switch process");
    signal(pid, Signal::KILL);
    eventually("the next one", || switch.switch_pid().filter(|next| *next != pid));
    asked(&switch);
    check_balance(&switch);
    let refused = lasthop(&["run", "--workers", "64", "--helper-cpus", "0"]);
    assert!(refused.err.contains("with 64 workers there may be 0 helpers"), "{refused:?}");
}

#[test]
fn without_rights_it_is_said_once_and_packets_pass() {
    let base = tempfile::tempdir().expect("a directory");
    let words = [&["--scheduler-view", "auto"], &VNICS[..]].concat();
    let switch = if geteuid().is_root() {
        let mut command = Command::new("setpriv");
        let less = "-bpf,-perfmon,-sys_admin";
        command.args(["--bounding-set", less, "--inh-caps", less, env!("CARGO_BIN_EXE_lasthop")]);
        Switch::spawn_by(command, base, &words)
    } else {
        Switch::spawn(base, &words)
    };
    eventually("the switch", || switch.log().contains("switch is running").then_some(()));
    for round in 0..2 {
        let (mut one, mut two) = (guest(&switch, "one", ONE), guest(&switch, "two", TWO));
        exchange(&mut one, &mut two, round);
        drop((one, two));
        let waits = || ["one", "two"].iter().all(|name| switch.port(name)["state"] == "waiting for guest");
        eventually("the guests' ends", || waits().then_some(()));
    }
    let said = switch.log().lines().filter(|line| line.contains("the view of the scheduler")).count();
    assert_eq!(said, 1, "{}", switch.log());
    let guest = guest(&switch, "one", ONE);
    let why = report(&switch)["why"].clone();
    assert!(why.as_str().expect("a reason").contains("the view of the scheduler"), "{why}");
    drop(guest);
}

#[test]
fn by_default_there_is_none() {
    let switch = Switch::start(&VNICS);
    let (mut one, mut two) = (guest(&switch, "one", ONE), guest(&switch, "two", TWO));
    exchange(&mut one, &mut two, 1);
    assert_eq!(report(&switch)["why"], "scheduler-view = \"off\"");
    assert!(!switch.log().contains("scheduler"), "{}", switch.log());
    assert!(lasthop(&["run", "--scheduler-view", "perhaps"]).err.contains("auto"));
}
