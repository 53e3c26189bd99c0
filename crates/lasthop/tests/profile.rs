//! `lasthop profile` on the built binary: a running switch with traffic, and possible disturbances.

use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lasthop_frontend::Guest;
use lasthop_rig::guests::{ONE, TWO, frame, guest, send};
use lasthop_rig::{Switch, eventually, signal};
use rustix::process::Signal;
use serde_json::Value;

const SWITCH: &[&str] = &["--vnic", "one", "--vnic", "two", "--workers", "1"];

/// Sends frames from one guest to the other until stopped.
fn talk(one: &mut Guest, two: &mut Guest, stop: &AtomicBool) {
    let (mut received, mut number) = (Vec::new(), 0);
    while !stop.load(Ordering::Relaxed) {
        send(one, &frame(TWO, ONE, number, 200));
        number += 1;
        assert!(two.wait(Some(Duration::from_secs(60))).expect("connected"), "frame {number} was lost");
        while two.recv(0, &mut received).expect("a sound ring").is_some() {}
    }
}

/// Runs `work` while the guests talk.
fn amid_traffic<R>(switch: &Switch, work: impl FnOnce() -> R) -> R {
    let (mut one, mut two) = (guest(switch, "one", ONE), guest(switch, "two", TWO));
    // The switch learns its address.
    send(&mut two, &frame([0xff; 6], TWO, 0, 60));
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let talker = scope.spawn(|| talk(&mut one, &mut two, &stop));
        let result = work();
        stop.store(true, Ordering::Relaxed);
        talker.join().expect("no frame is lost");
        result
    })
}

/// A client with recorded output and errors.
fn start(switch: &Switch, seconds: &str) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lasthop"));
    command.arg("--dir").arg(switch.dir()).args(["profile", "--for", seconds]);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it runs")
}

/// The sleeps of the thread that waits for the profile's end; `None` if no profile runs.
fn sleeps(switch: &Switch) -> Option<u64> {
    let pid = switch.switch_pid().expect("there");
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).expect("a process").flatten();
    let status = |thread: std::fs::DirEntry| std::fs::read_to_string(thread.path().join("status")).ok();
    let status = threads.filter_map(status).find(|status| status.starts_with("Name:\tprofile\n"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))?;
    line.trim().parse().ok()
}

fn is_running(switch: &Switch) -> bool {
    sleeps(switch).is_some()
}

fn cycles(of: &Value) -> u64 {
    of["cycles"]
        .as_array()
        .expect("stages")
        .iter()
        .map(|cost| cost["cycles"].as_u64().expect("a count"))
        .sum()
}

#[test]
fn stages_of_traffic_are_all_of_the_sampled_time() {
    let switch = Switch::start(SWITCH);
    let picture = switch.base.path().join("time.svg");
    let svg = picture.to_str().expect("text");
    let words = ["profile", "--for", "2", "--every", "2", "--svg", svg];
    let answer = amid_traffic(&switch, || switch.json(&words));
    let ports = answer["ports"].as_array().expect("ports");
    let one = ports.iter().find(|port| port["port"] == "one").expect("its packets were sampled");
    assert!(one["sampled_packets"].as_u64() > Some(0), "{answer}");
    for stage in ["fetch", "parse", "look-up", "queue", "copy", "publish", "completion"] {
        let costs = one["cycles"].as_array().expect("stages");
        let cost = costs.iter().find(|cost| cost["stage"] == stage).expect(stage);
        assert!(cost["cycles"].as_u64() > Some(0), "{stage}: {one}");
    }
    let worker = &answer["workers"][0];
    let sum = cycles(worker) + ports.iter().map(cycles).sum::<u64>();
    let sum = sum + worker["asleep_cycles"].as_u64().expect("a count");
    let around = worker["sampled_cycles"].as_u64().expect("a count");
    let percent = 100.0 * sum as f64 / around as f64;
    assert!((95.0..=105.0).contains(&percent), "{percent} % of {around}: {answer}");
    let processes = answer["processes"].as_array().expect("processes");
    let names: Vec<&str> = processes.iter().filter_map(|process| process["process"].as_str()).collect();
    assert!(names.contains(&"supervisor") && names.contains(&"switch"), "{names:?}");
    assert!(names.contains(&"guest one+two"), "this process is both guests: {names:?}");
    let drawn = std::fs::read_to_string(&picture).expect("a picture");
    assert!(drawn.contains("<svg") && drawn.contains("one (worker 0)"), "{drawn}");
}

#[test]
fn numbers_out_of_bounds_and_a_second_profile_are_refused_and_the_first_one_ends() {
    let switch = Switch::start(SWITCH);
    for seconds in ["0", "61"] {
        let said = switch.ask(&["profile", "--for", seconds]).refused();
        assert!(said.contains("1 to 60 seconds"), "{said}");
    }
    assert!(switch.ask(&["profile", "--every", "0"]).refused().contains("one round of 1 to"));
    let first = start(&switch, "5");
    eventually("the first one", || is_running(&switch).then_some(()));
    let said = switch.ask(&["profile", "--for", "1"]).refused();
    assert!(said.contains("a profile is running already"), "{said}");
    let output = first.wait_with_output().expect("our child");
    let said = String::from_utf8(output.stdout).expect("text");
    assert!(output.status.success() && said.contains("no packets in the sampled rounds"), "{said}");
    switch.ask(&["profile", "--for", "1"]).ok();
}

#[test]
fn a_profile_ends_with_its_client() {
    let switch = Switch::start(SWITCH);
    let mut client = start(&switch, "60");
    eventually("the profile", || is_running(&switch).then_some(()));
    client.kill().expect("killed");
    client.wait().expect("our child");
    eventually("its end", || (!is_running(&switch)).then_some(()));
    switch.ask(&["profile", "--for", "1"]).ok();
}

#[test]
fn a_switch_process_that_dies_meanwhile_is_named_and_the_next_one_can_be_profiled() {
    let switch = Switch::start(SWITCH);
    let client = start(&switch, "60");
    // Its thread answers the client first, and then sleeps from tick to tick.
    eventually("the profile", || sleeps(&switch).filter(|sleeps| *sleeps >= 5));
    let pid = switch.switch_pid().expect("there");
    signal(pid, Signal::KILL);
    let output = client.wait_with_output().expect("our child");
    let said = String::from_utf8(output.stderr).expect("text");
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains(&format!("process {pid}) ended amid the profile")), "{said}");
    eventually("the next one", || (switch.ask(&["profile", "--for", "1"]).code == Some(0)).then_some(()));
}
