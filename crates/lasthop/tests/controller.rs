//! A switch of module flow with the embedded controller, on the built binary.

use std::collections::BTreeSet;
use std::time::Duration;

use lasthop_dpif::client::Client;
use lasthop_rig::guests::{ONE, TWO, check_balance, frame, guest, receive, send};
use lasthop_rig::{Switch, copy_of_lasthop, eventually, open_files, signal, stop};
use rustix::process::Signal;
use serde_json::Value;

const FLOW: [&str; 2] = ["--module", "flow"];

/// A count of the switch "default", by name. An answer leaves out a controller that is slow to answer.
fn count(switch: &Switch, name: &str) -> u64 {
    eventually(name, || switch.json(&["switch", "list"])["switches"][0]["counters"][name].as_u64())
}

/// A switch with all its ports ready.
fn start(vnics: &[&str]) -> Switch {
    let words: Vec<&str> = vnics.iter().flat_map(|vnic| ["--vnic", vnic]).collect();
    let switch = Switch::start(&[&FLOW[..], &words].concat());
    served(&switch, vnics.len());
    switch
}

fn served(switch: &Switch, ports: usize) {
    eventually("the controller", || (count(switch, "ports_served") == ports as u64).then_some(()));
}

/// The sockets of a process, by their inodes.
fn sockets(pid: u32) -> BTreeSet<String> {
    open_files(pid).into_values().filter(|file| file.starts_with("socket:")).collect()
}

fn controller_pid(switch: &Switch) -> Option<u32> {
    switch.child_pid("controller-process")
}

#[test]
fn a_switch_that_says_that_it_runs_has_its_controller() {
    for moment in 0..10 {
        let switch = Switch::spawn(tempfile::tempdir().expect("a directory"), &["--vnic", "one"]);
        // As on a busy machine: the switch process has answered everything before the supervisor reads the first
        // message.
        while switch.children().is_empty() {
            std::thread::yield_now();
        }
        std::thread::sleep(moment * Duration::from_micros(100));
        stop(switch.pid());
        std::thread::sleep(Duration::from_millis(60));
        signal(switch.pid(), Signal::CONT);
        eventually("the switch", || switch.log().contains("switch is running").then_some(()));
        let process = switch.switch_pid().expect("a switch process");
        let before = sockets(process);
        // Its answer follows the effects of earlier messages.
        switch.ask(&["stats"]).ok();
        let after = sockets(process);
        assert!(
            !after.is_empty() && after.is_subset(&before),
            "connections came later: {before:?} {after:?}"
        );
    }
}

#[test]
fn guests_talk_by_flows_that_the_controller_installs() {
    let switch = start(&["one", "two", "three"]);
    let (mut one, mut two) = (guest(&switch, "one", ONE), guest(&switch, "two", TWO));
    for number in 0..50 {
        let there = frame(TWO, ONE, number, 60);
        send(&mut one, &there);
        assert_eq!(receive(&mut two), there);
        let back = frame(ONE, TWO, number, 1000);
        send(&mut two, &back);
        assert_eq!(receive(&mut one), back);
    }
    let misses = count(&switch, "misses_answered");
    assert!((2..50).contains(&misses), "{misses} of 100 frames were asked about");
    assert!(count(&switch, "flows_installed") >= 2);
    let fdb = switch.ask(&["fdb", "show"]).ok();
    assert!(fdb.contains("02:00:00:00:00:01 dev one") && fdb.contains("02:00:00:00:00:02 dev two"), "{fdb}");
    check_balance(&switch);
}

/// Addresses of each guest in [`many_pairs_of_addresses_are_no_misses_and_outlive_both_processes`].
const ADDRESSES: u8 = 12;

fn address(guest: u8, number: u8) -> [u8; 6] {
    [2, guest, 0, 0, 0, number]
}

#[test]
fn many_pairs_of_addresses_are_no_misses_and_outlive_both_processes() {
    let switch =
        Switch::start(&[&FLOW[..], &["--pair-flows", "8", "--vnic", "one", "--vnic", "two"]].concat());
    served(&switch, 2);
    let (mut one, mut two) = (guest(&switch, "one", ONE), guest(&switch, "two", TWO));
    // Each address is known once it has sent something.
    for number in 0..ADDRESSES {
        let hello = |from| frame([0xff; 6], address(from, number), 1, 60);
        send(&mut one, &hello(1));
        assert_eq!(receive(&mut two), hello(1));
        send(&mut two, &hello(2));
        assert_eq!(receive(&mut one), hello(2));
    }
    let mut number = 0;
    let mut all_pairs = || {
        for (from, to) in (0..ADDRESSES).flat_map(|from| (0..ADDRESSES).map(move |to| (from, to))) {
            number += 1;
            let there = frame(address(2, to), address(1, from), number, 60);
            send(&mut one, &there);
            assert_eq!(receive(&mut two), there);
        }
    };
    let before = count(&switch, "misses_answered");
    all_pairs();
    let misses = count(&switch, "misses_answered") - before;
    assert!(misses <= 2 * u64::from(ADDRESSES) + 8, "{misses} of 144 pairs were asked about");
    // The next controller takes the flows over, and so does the next switch process.
    let pid = controller_pid(&switch).expect("a controller process");
    signal(pid, Signal::KILL);
    eventually("the next one", || controller_pid(&switch).filter(|next| *next != pid));
    served(&switch, 2);
    all_pairs();
    let misses = count(&switch, "misses_answered");
    assert!(misses < 8, "{misses}: flows by address were taken over");
    let pid = switch.switch_pid().expect("a switch process");
    signal(pid, Signal::KILL);
    eventually("the next one", || switch.switch_pid().filter(|next| *next != pid));
    all_pairs();
    check_balance(&switch);
}

#[test]
fn known_flows_go_on_without_the_controller_and_the_next_one_takes_them_over() {
    let switch = start(&["one", "two", "three"]);
    let (mut one, mut two) = (guest(&switch, "one", ONE), guest(&switch, "two", TWO));
    let mut number = 0;
    let mut talk = || {
        number += 1;
        let there = frame(TWO, ONE, number, 60);
        send(&mut one, &there);
        assert_eq!(receive(&mut two), there);
        send(&mut two, &frame(ONE, TWO, number, 60));
        assert_eq!(receive(&mut one), frame(ONE, TWO, number, 60));
    };
    (0..20).for_each(|_| talk());
    let pid = controller_pid(&switch).expect("a controller process");
    signal(pid, Signal::KILL);
    (0..20).for_each(|_| talk());
    eventually("the next one", || controller_pid(&switch).filter(|next| *next != pid));
    served(&switch, 3);
    (0..20).for_each(|_| talk());
    assert!(count(&switch, "flows_adopted") >= 2, "{}", switch.log());
    let misses = count(&switch, "misses_answered");
    assert!(misses < 10, "{misses}: who takes flows over is not asked about their packets");
    let mut client = Client::connect(&switch.path("datapath.sock")).expect("connected");
    let datapaths = client.datapaths().expect("listed");
    assert_eq!(datapaths.len(), 1);
    let ports = client.ports(datapaths[0].datapath).expect("listed");
    assert_eq!(ports.len(), 4, "its own, and each vnic once");
    check_balance(&switch);
}

#[test]
fn an_upgrade_replaces_the_controller_too_and_flows_go_on() {
    let switch = start(&["one", "two"]);
    let (mut one, mut two) = (guest(&switch, "one", ONE), guest(&switch, "two", TWO));
    let program = copy_of_lasthop(switch.base.path(), "next");
    let runs = |pid: &u32| std::fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|exe| exe == program);
    let mut number = 0;
    let mut talk = || {
        number += 1;
        send(&mut one, &frame(TWO, ONE, number, 60));
        assert_eq!(receive(&mut two), frame(TWO, ONE, number, 60));
        send(&mut two, &frame(ONE, TWO, number, 60));
        assert_eq!(receive(&mut one), frame(ONE, TWO, number, 60));
    };
    talk();
    switch.ask(&["upgrade", program.to_str().expect("text")]).ok();
    eventually("the next controller, while guests talk", || {
        talk();
        controller_pid(&switch).filter(runs)
    });
    served(&switch, 2);
    talk();
    assert!(count(&switch, "flows_adopted") >= 2, "{}", switch.log());
    assert_eq!(count(&switch, "misses_answered"), 0, "{}", switch.log());
    let log = switch.log();
    let end = log.lines().find(|line| line.contains("to be replaced by that of")).expect("it says so");
    assert!(!end.contains("killed"), "packets in its hands would be lost: {end}");
    check_balance(&switch);
}

#[test]
fn the_controller_finds_the_next_switch_process() {
    let switch = start(&["one", "two"]);
    let (mut one, mut two) = (guest(&switch, "one", ONE), guest(&switch, "two", TWO));
    send(&mut one, &frame(TWO, ONE, 1, 60));
    assert_eq!(receive(&mut two), frame(TWO, ONE, 1, 60));
    let (pid, controller) = (switch.switch_pid().expect("a switch process"), controller_pid(&switch));
    signal(pid, Signal::KILL);
    eventually("the next one", || switch.switch_pid().filter(|next| *next != pid));
    let installed = count(&switch, "flows_installed");
    let mut number = 1;
    eventually("a flow", || {
        number += 1;
        send(&mut two, &frame(ONE, TWO, number, 60));
        assert_eq!(receive(&mut one), frame(ONE, TWO, number, 60));
        (count(&switch, "flows_installed") > installed).then_some(())
    });
    assert_eq!(controller_pid(&switch), controller, "it is the same one");
    check_balance(&switch);
}

#[test]
fn what_a_user_changes_reaches_flows_that_are_there() {
    let switch = start(&["one", "two"]);
    let (mut one, mut two) = (guest(&switch, "one", ONE), guest(&switch, "two", TWO));
    for number in 0..3 {
        send(&mut one, &frame(TWO, ONE, number, 60));
        assert_eq!(receive(&mut two), frame(TWO, ONE, number, 60));
    }
    switch.ask(&["vnic", "set", "one", "mac=02:00:00:00:00:09"]).ok();
    let spoofed = |switch: &Switch| switch.port("one")["rx_drops"]["source_spoofed"].as_u64().unwrap_or(0);
    let mut number = 10;
    eventually("the drop", || {
        number += 1;
        send(&mut one, &frame(TWO, ONE, number, 60));
        (spoofed(&switch) > 0).then_some(())
    });
    switch.ask(&["vnic", "set", "one", "mac=none"]).ok();
    eventually("a frame", || {
        number += 1;
        send(&mut one, &frame(TWO, ONE, number, 60));
        two.wait(Some(std::time::Duration::from_millis(100))).expect("connected").then_some(())
    });
    switch.ask(&["stats", "--check"]).ok();
}

#[test]
fn the_forwarding_table_is_the_controller_s() {
    let switch = start(&["one", "two,vlan=5"]);
    let mut one = guest(&switch, "one", ONE);
    send(&mut one, &frame(TWO, ONE, 1, 60));
    let shown = || switch.ask(&["fdb", "show"]).ok();
    eventually("an address", || shown().contains("02:00:00:00:00:01 dev one").then_some(()));
    switch.ask(&["fdb", "add", "02:00:00:00:00:07", "two"]).ok();
    eventually("the entry", || shown().contains("02:00:00:00:00:07 dev two vlan 5 static").then_some(()));
    switch.ask(&["fdb", "del", "02:00:00:00:00:07", "two"]).ok();
    eventually("its end", || (!shown().contains("02:00:00:00:00:07")).then_some(()));
    let flushed = switch.json(&["fdb", "flush"]);
    assert_eq!(flushed["flushed"], 1);
    assert!(!shown().contains("02:00:00:00:00:01"));
}

#[test]
fn rules_deny_are_listed_and_can_be_written_to_a_file() {
    let switch = start(&["one", "two"]);
    let deny = ["acl", "add", "silence", "--port", "one", "--direction", "egress", "--action", "deny"];
    let refusal = switch.ask(&deny).refused();
    let remedy = switch.addressed("lasthop switch set default fail-mode=secure");
    assert!(refusal.contains(&remedy), "{refusal}");
    switch.ask(&["switch", "set", "default", "fail-mode=secure"]).ok();
    switch.ask(&deny).ok();
    let refusal = switch.ask(&["switch", "set", "default", "module=bridge"]).refused();
    assert!(refusal.contains("only the embedded controller of module flow knows rules"), "{refusal}");
    let mut one = guest(&switch, "one", ONE);
    let denied =
        |switch: &Switch| switch.port("one")["rx_drops"]["acl_denied"].as_u64().filter(|count| *count > 0);
    let mut number = 0;
    eventually("the drop", || {
        number += 1;
        send(&mut one, &frame(TWO, ONE, number, 60));
        denied(&switch)
    });
    let doctor = switch.ask(&["doctor", "one"]).refused_with_output();
    assert!(doctor.contains(": rules deny them (acl_denied); "), "{doctor}");
    assert!(switch.ask(&["acl", "list"]).ok().contains("silence  one   egress     deny    all"));
    let file = switch.dir().join("written.toml");
    std::fs::write(&file, switch.ask(&["config", "show"]).ok()).expect("written");
    let file = file.to_str().expect("a path");
    switch.ask(&["check", "-c", file]).ok();
    assert!(switch.ask(&["apply", "-c", file]).ok().contains("nothing to do"));
    switch.ask(&["acl", "del", "silence"]).ok();
    assert!(
        switch.ask(&["apply", "-c", file, "--dry-run"]).out.contains("+ acl silence: one egress deny all")
    );
    let mut two = guest(&switch, "two", TWO);
    eventually("a frame", || {
        number += 1;
        send(&mut one, &frame(TWO, ONE, number, 60));
        two.wait(Some(Duration::from_millis(100))).expect("connected").then_some(())
    });
    switch.ask(&["stats", "--check"]).ok();
}

#[test]
fn connections_of_its_rules_are_listed() {
    let switch = start(&["one", "two"]);
    switch.ask(&["switch", "set", "default", "fail-mode=secure"]).ok();
    switch.ask(&["acl", "add", "ask", "--port", "one", "--direction", "egress", "--action", "allow"]).ok();
    let mut one = guest(&switch, "one", ONE);
    let _two = guest(&switch, "two", TWO);
    // UDP from 10.0.0.1:1000 to 10.0.0.2:53, without a checksum.
    let ip = [0x45, 0, 0, 36, 0, 0, 0, 0, 64, 17, 0x66, 0xc7, 10, 0, 0, 1, 10, 0, 0, 2];
    let udp = [3, 232, 0, 53, 0, 16, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8];
    let question = [&TWO[..], &ONE, &[8, 0], &ip, &udp, &[0; 10]].concat();
    let mut sent = 0;
    eventually("the connection", || {
        send(&mut one, &question);
        sent += 1;
        let all = switch.ask(&["conntrack", "list"]).ok();
        all.contains("udp,orig=(src=10.0.0.1,dst=10.0.0.2,sport=1000,dport=53)").then_some(())
    });
    // A packet that is still at the controller would make the connection again.
    eventually("all packets", || {
        let port = switch.port("one");
        (port["rx_packets"] == sent && port["injected"] == port["upcalls"]).then_some(())
    });
    assert_eq!(switch.json(&["conntrack", "stats"])["by_protocol"]["udp"], 1);
    switch.ask(&["conntrack", "flush", "--all"]).ok();
    assert_eq!(switch.json(&["conntrack", "stats"])["connections"], 0);
}

#[test]
fn a_rule_about_groups_is_one_for_their_ports() {
    let switch = start(&["one", "two"]);
    switch.ask(&["switch", "set", "default", "fail-mode=secure"]).ok();
    switch.ask(&["port", "set", "one", "groups=web,addresses=10.0.0.1"]).ok();
    let of_db = ["acl", "add", "web-only", "--group", "db", "--direction", "ingress"];
    let added = switch.ask(&[&of_db[..], &["--action", "allow", "--remote-group", "web"]].concat()).ok();
    assert!(added.contains("there is no port group db yet"), "{added}");
    switch.ask(&["acl", "add", "rest", "--group", "db", "--direction", "ingress", "--action", "deny"]).ok();
    switch.ask(&["port", "set", "two", "groups=db+backup"]).ok();
    let listed = switch.ask(&["acl", "list", "--port", "two"]).ok();
    assert!(listed.contains("remote-group web") && listed.contains("rest"), "{listed}");
    assert_eq!(
        switch.json(&["port", "show", "two"])["settings"]["groups"],
        serde_json::json!(["backup", "db"])
    );
    let refusal = switch.ask(&["acl", "add", "none", "--direction", "ingress", "--action", "deny"]).refused();
    assert!(refusal.contains("give it a port or a group"), "{refusal}");
    let mut one = guest(&switch, "one", ONE);
    let mut two = guest(&switch, "two", TWO);
    send(&mut two, &frame(ONE, TWO, 0, 60));
    receive(&mut one);
    // UDP from 10.0.0.1:1000 to 10.0.0.2:53, without a checksum.
    let ip = [0x45, 0, 0, 36, 0, 0, 0, 0, 64, 17, 0x66, 0xc7, 10, 0, 0, 1, 10, 0, 0, 2];
    let udp = [3, 232, 0, 53, 0, 16, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8];
    let question = [&TWO[..], &ONE, &[8, 0], &ip, &udp, &[0; 10]].concat();
    send(&mut one, &question);
    assert_eq!(receive(&mut two), question);
    switch.ask(&["port", "set", "one", "groups=none"]).ok();
    eventually("the drop", || {
        send(&mut one, &question);
        switch.port("one")["rx_drops"]["acl_denied"].as_u64()
    });
    let file = switch.dir().join("written.toml");
    std::fs::write(&file, switch.ask(&["config", "show"]).ok()).expect("written");
    let written = switch.ask(&["apply", "-c", file.to_str().expect("a path")]).ok();
    assert!(written.contains("nothing to do"), "{written}");
    check_balance(&switch);
}

#[test]
fn a_rule_is_in_effect_when_the_answer_comes() {
    const FRAMES: u32 = 20;
    let switch = start(&["one", "two"]);
    switch.ask(&["switch", "set", "default", "fail-mode=secure"]).ok();
    let mut one = guest(&switch, "one", ONE);
    let mut two = guest(&switch, "two", TWO);
    send(&mut two, &frame(ONE, TWO, 0, 60));
    receive(&mut one);
    for round in 1..4 {
        // A flow exists.
        for number in 0..2 {
            send(&mut one, &frame(TWO, ONE, number, 60));
            assert_eq!(receive(&mut two), frame(TWO, ONE, number, 60));
        }
        let deny = ["acl", "add", "silence", "--port", "one", "--direction", "egress", "--action", "deny"];
        switch.ask(&deny).ok();
        (0..FRAMES).for_each(|number| send(&mut one, &frame(TWO, ONE, number, 60)));
        let denied = || switch.port("one")["rx_drops"]["acl_denied"].as_u64().unwrap_or(0);
        eventually("all of them", || (denied() >= u64::from(round * FRAMES)).then_some(()));
        assert_eq!(denied(), u64::from(round * FRAMES));
        switch.ask(&["acl", "del", "silence"]).ok();
    }
    check_balance(&switch);
}

/// While the controller process does not run, no answer claims that rules are in effect.
#[test]
fn a_rule_that_flows_do_not_follow_yet_is_kept_and_said_to_be_late() {
    let switch = start(&["one"]);
    switch.ask(&["switch", "set", "default", "fail-mode=secure"]).ok();
    let controller = controller_pid(&switch).expect("a controller process");
    stop(controller);
    let deny = ["acl", "add", "late", "--port", "one", "--direction", "egress", "--action", "deny"];
    let refusal = switch.ask(&deny).refused();
    signal(controller, Signal::CONT);
    assert!(refusal.contains("flows do not follow them yet"), "{refusal}");
    assert!(switch.ask(&["acl", "list"]).ok().contains("late"));
    switch.ask(&["acl", "del", "late"]).ok();
}

/// A table without a silent controller's addresses says so.
#[test]
fn addresses_that_a_silent_controller_knows_are_said_to_be_missing() {
    let switch = start(&["one"]);
    let controller = controller_pid(&switch).expect("a controller process");
    stop(controller);
    let fdb = switch.json(&["fdb", "show"]);
    let shown = switch.ask(&["fdb", "show"]).ok();
    let switches = switch.json(&["switch", "list"]);
    signal(controller, Signal::CONT);
    assert_eq!(fdb["unanswered"], serde_json::json!(["default"]), "{fdb}");
    assert!(shown.contains("addresses of switch default are left out"), "{shown}");
    assert!(switches["switches"][0]["addresses"].is_null(), "{switches}");
    served(&switch, 1);
    let complete = || Some(switch.json(&["fdb", "show"])).filter(|fdb| fdb["unanswered"].is_null());
    eventually("all addresses", complete);
}

#[test]
fn a_guarded_port_sends_from_its_own_addresses() {
    let switch = start(&["one", "two"]);
    let guard = "mac=02:00:00:00:00:01,addresses=10.0.0.1,guard=mac+ip+arp+dhcp";
    let refusal = switch.ask(&["port", "set", "one", guard]).refused();
    assert!(refusal.contains("switch set default fail-mode=secure"), "{refusal}");
    switch.ask(&["switch", "set", "default", "fail-mode=secure"]).ok();
    switch.ask(&["port", "set", "one", guard]).ok();
    let refusal = switch.ask(&["port", "set", "one", "mac=none"]).refused();
    assert!(refusal.contains("has guard=mac, which checks its own address; give it one: mac="), "{refusal}");
    let mut one = guest(&switch, "one", ONE);
    // IPv4 from 10.0.0.2.
    let mut spoofed = frame(TWO, ONE, 1, 60);
    spoofed[12..14].copy_from_slice(&[8, 0]);
    spoofed[14..34].fill(0);
    spoofed[14] = 0x45;
    spoofed[17] = 40;
    spoofed[26..30].copy_from_slice(&[10, 0, 0, 2]);
    eventually("the drop", || {
        send(&mut one, &spoofed);
        switch.port("one")["rx_drops"]["ip_spoofed"].as_u64()
    });
    let doctor = switch.ask(&["doctor", "one"]).out;
    assert!(doctor.contains("an IP address that is not in its port's addresses="), "{doctor}");
    let shown = switch.json(&["port", "show", "one"]);
    assert_eq!(shown["settings"]["guard"], serde_json::json!(["mac", "ip", "arp", "dhcp"]));
    assert_eq!(shown["settings"]["addresses"], serde_json::json!(["10.0.0.1"]));
    switch.ask(&["stats", "--check"]).ok();
}

#[test]
fn vnics_and_switches_come_and_go_under_it() {
    let switch = start(&["one"]);
    switch.ask(&["vnic", "add", "two"]).ok();
    served(&switch, 2);
    let (mut one, mut two) = (guest(&switch, "one", ONE), guest(&switch, "two", TWO));
    send(&mut one, &frame(TWO, ONE, 1, 60));
    assert_eq!(receive(&mut two), frame(TWO, ONE, 1, 60));
    switch.ask(&["switch", "add", "red,module=flow"]).ok();
    switch.ask(&["vnic", "add", "three,switch=red"]).ok();
    let red = |list: &Value| list["switches"][1]["counters"]["ports_served"] == 1;
    eventually("the second switch", || red(&switch.json(&["switch", "list"])).then_some(()));
    switch.ask(&["vnic", "del", "three"]).ok();
    switch.ask(&["switch", "del", "red"]).ok();
    switch.ask(&["vnic", "del", "two"]).ok();
    served(&switch, 1);
    switch.ask(&["stats", "--check"]).ok();
}

#[test]
fn a_bridge_becomes_a_switch_of_flows_under_its_guests_and_one_again() {
    let switch = Switch::start(&["--module", "bridge", "--vnic", "one", "--vnic", "two"]);
    let (mut one, mut two) = (guest(&switch, "one", ONE), guest(&switch, "two", TWO));
    let mut number = 0;
    let mut talk = || {
        for _ in 0..5 {
            number += 1;
            send(&mut one, &frame(TWO, ONE, number, 60));
            assert_eq!(receive(&mut two), frame(TWO, ONE, number, 60));
        }
    };
    talk();
    switch.ask(&["switch", "set", "default", "module=flow"]).ok();
    talk();
    served(&switch, 2);
    talk();
    assert!(count(&switch, "flows_installed") > 0);
    switch.ask(&["switch", "set", "default", "module=bridge"]).ok();
    talk();
    check_balance(&switch);
}

#[test]
fn a_controller_that_hangs_is_ended_and_another_one_answers() {
    let switch = start(&["one", "two"]);
    let (mut one, mut two) = (guest(&switch, "one", ONE), guest(&switch, "two", TWO));
    send(&mut one, &frame(TWO, ONE, 1, 60));
    assert_eq!(receive(&mut two), frame(TWO, ONE, 1, 60));
    let pid = controller_pid(&switch).expect("a controller process");
    stop(pid);
    // Without a flow, so the controller is asked.
    let unasked = frame([2, 0, 0, 0, 7, 7], [2, 0, 0, 0, 9, 9], 2, 60);
    send(&mut one, &unasked);
    eventually("the next one", || controller_pid(&switch).filter(|next| *next != pid));
    let log = switch.log();
    assert!(log.contains(&format!("the controller process {pid} hangs")), "{log}");
    served(&switch, 2);
    let next = frame(TWO, [2, 0, 0, 0, 9, 8], 3, 60);
    send(&mut one, &next);
    let received = receive(&mut two);
    // The packet may have been late, not lost.
    let received = if received == unasked { receive(&mut two) } else { received };
    assert_eq!(received, next);
    switch.ask(&["stats", "--check"]).ok();
}

#[test]
fn who_asks_for_the_forwarding_table_at_once_with_others_has_all_of_it() {
    let switch = start(&["one", "two"]);
    let mut one = guest(&switch, "one", ONE);
    for number in 0..20 {
        send(&mut one, &frame(TWO, [2, 0, 0, 0, 1, number], number.into(), 60));
    }
    let count = || switch.json(&["fdb", "show"])["entries"].as_array().map_or(0, Vec::len);
    eventually("all addresses", || (count() == 20).then_some(()));
    std::thread::scope(|scope| {
        let ask = || (0..10).map(|_| count()).collect::<Vec<usize>>();
        let asking: Vec<_> = (0..8).map(|_| scope.spawn(ask)).collect();
        for counts in asking {
            assert_eq!(counts.join().expect("answered"), [20; 10]);
        }
    });
}
