//! Lasthop's cgroup and the shares in it: they survive the death of any process, and nothing is left at the end.

use std::path::{Path, PathBuf};

use lasthop_frontend::Guest;
use lasthop_rig::guests::{ONE, TWO, frame, guest, receive, send};
use lasthop_rig::{Switch, eventually, signal};
use rustix::process::{Signal, geteuid};
use serde_json::Value;

const VNICS: [&str; 6] = ["--workers", "2", "--vnic", "one", "--vnic", "two"];
const SKIPPED: &[u8] = b"skip shares: only root with a cpu controller of cgroup version 1 has shares here\n";

/// Whether groups can be made here.
fn can_share() -> bool {
    let groups = std::fs::read_to_string("/proc/self/cgroup").expect("groups");
    let has_cpu =
        |line: &str| line.split(':').nth(1).is_some_and(|all| all.split(',').any(|one| one == "cpu"));
    let can = geteuid().is_root() && groups.lines().any(has_cpu);
    if !can {
        let _ = std::io::Write::write_all(&mut std::io::stderr(), SKIPPED);
    }
    can
}

fn start(mode: &str) -> Switch {
    Switch::start(&[&["--shares", mode], &VNICS[..]].concat())
}

fn report(switch: &Switch) -> Value {
    switch.json(&["sched", "show"])["shares"].clone()
}

/// The directory of the group, once it is there.
fn group(switch: &Switch) -> PathBuf {
    eventually("a group", || report(switch)["group"].as_str().map(PathBuf::from))
}

fn numbers(file: PathBuf) -> Vec<u32> {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    text.lines().map(|line| line.parse().expect("a number")).collect()
}

/// The groups below the group.
fn below(group: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(group).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).filter(|path| path.is_dir()).collect()
}

/// The threads of the workers of this process, once each is alone in a group.
fn await_shares(group: &Path, process: u32) -> Vec<u32> {
    eventually("a group for each worker", || {
        let threads: Vec<Vec<u32>> =
            below(group).into_iter().map(|share| numbers(share.join("tasks"))).collect();
        let is_its = |tid: &u32| Path::new(&format!("/proc/{process}/task/{tid}")).exists();
        let are_its =
            threads.len() == 2 && threads.iter().all(|tids| tids.len() == 1 && tids.iter().all(is_its));
        are_its.then(|| threads.concat())
    })
}

/// Both processes and their children are in this group.
fn holds(group: &Path, switch: &Switch) {
    let processes = [switch.children(), vec![switch.pid()]].concat();
    assert!(processes.len() >= 3, "{processes:?}");
    eventually("all processes in the group", || {
        let members = numbers(group.join("cgroup.procs"));
        processes.iter().all(|process| members.contains(process)).then_some(())
    });
}

/// Packets both ways, so that one worker has to work.
fn talk(one: &mut Guest, two: &mut Guest, rounds: u32) {
    for number in 0..rounds {
        send(one, &frame(TWO, ONE, number, 60));
        assert_eq!(receive(two), frame(TWO, ONE, number, 60));
        send(two, &frame(ONE, TWO, number, 60));
        assert_eq!(receive(one), frame(ONE, TWO, number, 60));
    }
}

#[test]
fn an_idle_worker_lends_its_share_to_one_with_packets() {
    if !can_share() {
        return;
    }
    let mut switch = start("steal");
    let group = group(&switch);
    holds(&group, &switch);
    await_shares(&group, switch.switch_pid().expect("a switch process"));
    let (mut one, mut two) = (guest(&switch, "one", ONE), guest(&switch, "two", TWO));
    let lent = eventually("a share that is lent", || {
        talk(&mut one, &mut two, 500);
        let report = report(&switch);
        let is = |load: &str| {
            report["threads"].as_array().is_some_and(|all| all.iter().any(|of| of["load"] == load))
        };
        (is("io") && is("idle")).then_some(report)
    });
    let threads = lent["threads"].as_array().expect("threads");
    let weights: Vec<(&str, u64)> = threads
        .iter()
        .map(|thread| {
            (thread["load"].as_str().expect("a load"), thread["weight"].as_u64().expect("a weight"))
        })
        .collect();
    assert!(weights.contains(&("io", 1536)) && weights.contains(&("idle", 512)), "{lent}");
    assert!(
        lent["weights_changed"].as_u64() >= Some(2) && lent["periods_lent"].as_u64() >= Some(1),
        "{lent}"
    );
    assert!(switch.ask(&["sched", "show"]).ok().contains(&format!("shares: steal, in {}", group.display())));
    drop((one, two));
    assert!(switch.end().success());
    assert!(!group.exists(), "the group is left");
}

#[test]
fn groups_survive_the_death_of_any_process_and_end_with_the_service() {
    if !can_share() {
        return;
    }
    let mut first = start("steal");
    let group = group(&first);
    let dead = first.switch_pid().expect("a switch process");
    let before = await_shares(&group, dead);
    signal(dead, Signal::KILL);
    let next = eventually("another switch process", || first.switch_pid().filter(|pid| *pid != dead));
    let after = await_shares(&group, next);
    assert!(after.iter().all(|tid| !before.contains(tid)));
    holds(&group, &first);

    signal(first.pid(), Signal::KILL);
    first.wait();
    assert!(group.exists(), "a killed supervisor removes nothing");
    let base = std::mem::replace(&mut first.base, tempfile::tempdir().expect("a directory"));
    let mut second = Switch::spawn(base, &[&["--shares", "steal"], &VNICS[..]].concat());
    eventually("the switch", || second.log().contains("switch is running").then_some(()));
    assert_eq!(self::group(&second), group);
    await_shares(&group, second.switch_pid().expect("a switch process"));
    holds(&group, &second);

    signal(second.pid(), Signal::KILL);
    second.wait();
    let base = std::mem::replace(&mut second.base, tempfile::tempdir().expect("a directory"));
    let mut third = Switch::spawn(base, &VNICS);
    eventually("the end of the group of a killed supervisor", || (!group.exists()).then_some(()));
    eventually("the switch", || third.log().contains("switch is running").then_some(()));
    assert!(third.end().success());
}

#[test]
fn the_mode_changes_while_the_service_runs() {
    if !can_share() {
        return;
    }
    let mut switch = start("none");
    assert_eq!((&report(&switch)["mode"], &report(&switch)["group"]), (&"none".into(), &Value::Null));
    let home = std::fs::read_to_string(format!("/proc/{}/cgroup", switch.pid())).expect("groups");
    switch.ask(&["sched", "set", "shares=group"]).ok();
    let group = group(&switch);
    holds(&group, &switch);
    assert_eq!(below(&group), Vec::<PathBuf>::new());
    switch.ask(&["sched", "set", "shares=steal"]).ok();
    await_shares(&group, switch.switch_pid().expect("a switch process"));
    switch.ask(&["sched", "set", "shares=group"]).ok();
    eventually("the end of the shares", || below(&group).is_empty().then_some(()));
    holds(&group, &switch);
    assert!(switch.ask(&["config", "show"]).ok().contains("shares = \"group\""));
    switch.ask(&["sched", "set", "shares=none"]).ok();
    eventually("the end of the group", || (!group.exists()).then_some(()));
    for process in [switch.children(), vec![switch.pid()]].concat() {
        let now = std::fs::read_to_string(format!("/proc/{process}/cgroup")).expect("groups");
        assert_eq!(now, home, "process {process}");
    }
    let refused = switch.ask(&["sched", "set", "shares=more"]).err;
    assert!(refused.contains("\"steal\""), "{refused}");
    assert!(switch.end().success());
}
