//! `lasthop vnic set`.

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::time::Duration;

use serde_json::{Value, json};

use lasthop_rig::guests::{ONE, TWO, frame, guest, receive, send};
use lasthop_rig::{Switch, eventually};

fn pair() -> Switch {
    Switch::start(&["--vnic", "one", "--vnic", "two"])
}

fn drops(switch: &Switch, port: &str, direction: &str, reason: &str) -> Option<u64> {
    switch.port(port)[direction][reason].as_u64()
}

#[test]
fn a_vnic_whose_link_is_down_passes_nothing_until_it_is_up() {
    let switch = pair();
    let (mut one, mut two) = (guest(&switch, "one", ONE), guest(&switch, "two", TWO));
    send(&mut two, &frame(ONE, TWO, 1, 60));
    receive(&mut one);
    let said = switch.ask(&["vnic", "set", "two", "link=down"]).ok();
    // Its front end does not ask for the configuration space: our guest has no channel for notifications.
    assert!(said.starts_with("two link: up -> down (its guest cannot be told"), "{said}");
    send(&mut one, &frame(TWO, ONE, 2, 60));
    send(&mut two, &frame(ONE, TWO, 3, 60));
    let both =
        || (drops(&switch, "one", "rx_drops", "link_down"), drops(&switch, "two", "rx_drops", "link_down"));
    eventually("the drops", || (both() == (Some(1), Some(1))).then_some(()));
    assert_eq!(drops(&switch, "two", "tx_drops", "link_down"), Some(1));
    assert!(switch.ask(&["vnic", "list"]).ok().contains("running, link down"));
    assert_eq!(switch.json(&["vnic", "show", "two"])["link"], "down");
    assert_eq!(switch.ask(&["vnic", "set", "two", "link=down"]).ok(), "two is like that already\n");
    switch.ask(&["vnic", "set", "two", "link=up"]).ok();
    send(&mut one, &frame(TWO, ONE, 4, 60));
    assert_eq!(receive(&mut two), frame(TWO, ONE, 4, 60), "and not the second");
    switch.ask(&["stats", "--check"]).ok();
}

#[test]
fn a_vnic_can_start_with_its_link_down_and_keeps_it_over_restarts() {
    let switch = Switch::start(&["--vnic", "one,link=down", "--vnic", "two"]);
    switch.ask(&["vnic", "set", "two", "link=down,mac=02:00:00:00:00:02"]).ok();
    let first = switch.switch_pid().expect("a switch process");
    lasthop_rig::signal(first, rustix::process::Signal::KILL);
    eventually("the next one", || switch.log().contains("running again").then_some(()));
    let mut one = guest(&switch, "one", ONE);
    send(&mut one, &frame(TWO, ONE, 1, 60));
    eventually("the drop", || (drops(&switch, "one", "rx_drops", "link_down") == Some(1)).then_some(()));
    let two = switch.json(&["vnic", "show", "two"]);
    assert_eq!((&two["link"], &two["mac"]), (&json!("down"), &json!("02:00:00:00:00:02")));
    switch.ask(&["stats", "--check"]).ok();
}

#[test]
fn an_address_changes_under_an_attached_guest() {
    let switch = pair();
    let (mut one, mut two) = (guest(&switch, "one", ONE), guest(&switch, "two", TWO));
    send(&mut one, &frame(TWO, ONE, 1, 60));
    receive(&mut two);
    let said = switch.ask(&["vnic", "set", "one", "mac=02:00:00:00:00:09"]).ok();
    assert!(said.starts_with("one mac: - -> 02:00:00:00:00:09 (the only one"), "{said}");
    // A controller receives it, and checks its flows, a moment later.
    eventually("the drop", || {
        send(&mut one, &frame(TWO, ONE, 2, 60));
        (drops(&switch, "one", "rx_drops", "source_spoofed") > Some(0)).then_some(())
    });
    let entered = || switch.json(&["fdb", "show"])["entries"][0]["mac"] == "02:00:00:00:00:09";
    eventually("its entry", || entered().then_some(()));
    let taken = switch.ask(&["vnic", "set", "two", "mac=02:00:00:00:00:09"]).refused();
    assert!(taken.contains("\"one\" already"), "{taken}");
    assert_eq!(switch.json(&["vnic", "show", "two"])["mac"], Value::Null, "refused and unchanged");
    switch.ask(&["vnic", "set", "one", "mac=none"]).ok();
    eventually("a frame from the old address", || {
        send(&mut one, &frame(TWO, ONE, 3, 60));
        two.wait(Some(Duration::from_millis(100))).expect("connected");
        let mut came = Vec::new();
        while two.recv(0, &mut came).expect("a sound ring").is_some() {
            two.reclaim(0).expect("a sound ring");
            if came == frame(TWO, ONE, 3, 60) {
                return Some(());
            }
        }
        None
    });
}

#[test]
fn what_a_guest_is_told_at_its_next_attachment_is_said() {
    let switch = pair();
    let first = guest(&switch, "one", ONE);
    let said = switch.ask(&["vnic", "set", "one", "mtu=1400,features-off=TSO"]).ok();
    assert_eq!(said.matches("(for the next guest that attaches)").count(), 2, "{said}");
    assert_eq!(first.config().mtu, 0);
    drop(first);
    eventually("the hang-up", || (switch.port("one")["state"] == "waiting for guest").then_some(()));
    let next = guest(&switch, "one", ONE);
    assert_eq!(next.config().mtu, 1400);
    assert!(!switch.ask(&["vnic", "show", "one"]).ok().contains("TSO4 "));
}

#[test]
fn what_cannot_change_is_refused_with_the_remedy() {
    let switch = pair();
    for (keys, words) in [
        ("queues=2", "lasthop port del one && lasthop port add one,backend=vhost-user,queues=2"),
        ("mode=connect,mtu=1400", "lasthop port add one,backend=vhost-user,mode=connect,mtu=1400"),
        ("mak=none", "did you mean \"mac\""),
        ("mtu=1", "68 to 65535"),
        ("mtu", "lasthop: \"mtu\" is not KEY=VALUE"),
        ("mac=", "lasthop: \"mac=\" is not KEY=VALUE"),
        ("mtu=none,mtu=1400", "\"mtu\" is given twice"),
        ("vlan=10,trunk=20", "port \"one\" has both vlan and trunk"),
        ("socket-owner=4294967295", "socket-owner=4294967295: no user or group has this number"),
        ("socket-group=no-such-group", "there is no group \"no-such-group\""),
    ] {
        let message = switch.ask(&["vnic", "set", "one", keys]).refused();
        assert!(message.contains(&switch.addressed(words)), "{keys}: {message}");
    }
    assert!(switch.ask(&["vnic", "set", "onne", "mtu=1400"]).refused().contains("did you mean \"one\""));
    assert_eq!(switch.json(&["vnic", "show", "one"])["mtu"], Value::Null);
}

#[test]
fn who_may_attach_is_set_at_start_and_changed_later() {
    let group = rustix::process::getegid().as_raw().to_string();
    let switch = Switch::start(&["--vnic", &format!("one,socket-mode=0600,socket-group={group}")]);
    let mode = || switch.path("one.sock").metadata().expect("there").permissions().mode() & 0o777;
    assert_eq!(mode(), 0o600);
    switch.ask(&["vnic", "set", "one", "socket-mode=0666"]).ok();
    assert_eq!(mode(), 0o666);
    let shown = switch.ask(&["vnic", "show", "one"]).ok();
    assert!(shown.contains(&format!("socket file   mode 0666, group {group}\n")), "{shown}");
    switch.ask(&["vnic", "set", "one", "socket-mode=none"]).ok();
    assert_eq!(mode(), 0o660);
    let owner = || switch.path("one.sock").metadata().expect("there").uid();
    let given = switch.ask(&["vnic", "set", "one", "socket-owner=12345"]);
    if rustix::process::geteuid().is_root() {
        given.ok();
        assert_eq!(owner(), 12345);
        switch.ask(&["vnic", "set", "one", "socket-owner=none"]).ok();
        assert_eq!(owner(), 0);
    } else {
        assert!(given.refused().contains("run the switch as root"));
    }
}

#[test]
fn a_refused_change_opens_no_socket() {
    let switch = Switch::start(&["--vnic", "one,mac=02:00:00:00:00:01", "--vnic", "two,socket-mode=0600"]);
    let refused = switch.ask(&["vnic", "set", "two", "socket-mode=0666,mac=02:00:00:00:00:01"]).refused();
    assert!(refused.contains("\"one\" already"), "{refused}");
    let mode = switch.path("two.sock").metadata().expect("there").permissions().mode() & 0o777;
    assert_eq!(mode, 0o600);
    assert_eq!(switch.json(&["vnic", "show", "two"])["socket_mode"], "0600");
}

#[test]
fn different_mtus_are_warned_of() {
    let switch = Switch::start(&["--vnic", "one,mtu=9000", "--vnic", "two"]);
    let text = "mtu is 9000, but two has 1500; larger packets to them may be lost";
    let shown = switch.ask(&["vnic", "show", "one"]).ok();
    assert!(shown.contains(&format!("warning       {text}")), "{shown}");
    let list = switch.ask(&["vnic", "list"]).ok();
    assert!(list.contains(&format!("\nwarning: one: {text}")), "{list}");
    switch.ask(&["vnic", "set", "two", "mtu=9000"]).ok();
    assert!(!switch.ask(&["vnic", "list"]).ok().contains("warning"));
}

#[test]
fn several_vnics_are_changed_shown_and_deleted_at_once() {
    let long = "0f3e1c52-8d0a-4b6e-9c1f-2a7d5e6b8c90-0f3e1c52-8d0a-4b6e-9c1f-2a7"; // 64 letters; a UUID has 36
    let switch = Switch::start(&["--vnic", "vm01", "--vnic", "vm02", "--vnic", "web", "--vnic", long]);
    let set = switch.ask(&["vnic", "set", "vm0*", "web", "mtu=1400"]).ok();
    let starts: Vec<&str> = set.lines().map(|line| line.split(' ').next().unwrap_or_default()).collect();
    assert_eq!(starts, ["vm01", "vm02", "web"], "a line each: {set}");
    let mtu = |name: &str| switch.json(&["vnic", "show", name])["mtu"].as_u64();
    assert_eq!((mtu("vm01"), mtu("vm02"), mtu("web"), mtu(long)), (Some(1400), Some(1400), Some(1400), None));
    let shown = switch.json(&["vnic", "show", "vm01", "web"]);
    assert_eq!((&shown[0]["name"], &shown[1]["name"]), (&json!("vm01"), &json!("web")));
    let stats = switch.json(&["stats", "vm0*"]);
    let names: Vec<&str> =
        stats["ports"].as_array().expect("ports").iter().filter_map(|port| port["name"].as_str()).collect();
    assert_eq!(names, ["vm01", "vm02"]);
    assert!(switch.ask(&["stats", "web", "wep"]).refused().contains("no port \"wep\"; did you mean \"web\""));
    assert!(switch.ask(&["vnic", "del", "x*"]).refused().contains("no name is like \"x*\""));
    assert_eq!(
        switch.ask(&["vnic", "del", "vm0?", long]).ok(),
        format!("deleted vm01\ndeleted vm02\ndeleted {long}\n")
    );
    assert_eq!(switch.json(&["vnic", "list"])["vnics"].as_array().map(Vec::len), Some(1));
}

#[test]
fn several_ports_are_listed_and_examined_by_pattern_and_state() {
    let switch = Switch::start(&["--vnic", "vm01", "--vnic", "vm02", "--vnic", "web,link=down"]);
    let _one = guest(&switch, "vm01", ONE);
    eventually("a running guest", || (switch.port("vm01")["state"] == "running").then_some(()));
    let listed = |words: &[&str], key: &str| {
        let list = switch.json(words);
        let ports = list[key].as_array().expect("ports").clone();
        ports.iter().filter_map(|port| port["name"].as_str().map(str::to_owned)).collect::<Vec<_>>()
    };
    for (words, names) in [
        (&["vm0*"][..], &["vm01", "vm02"][..]),
        (&["web", "vm?1"], &["vm01", "web"]),
        (&["--state", "running"], &["vm01"]),
        (&["vm0*", "--state", "no guest,link down"], &["vm02"]),
        (&["--state", "stopped"], &[]),
    ] {
        assert_eq!(listed(&[&["port", "list"], words].concat(), "ports"), names);
        assert_eq!(listed(&[&["vnic", "list"], words].concat(), "vnics"), names);
    }
    let table = switch.ask(&["port", "list", "vm02"]).ok();
    assert!(table.contains("\nvm02") && table.lines().count() == 2, "{table}");
    let none = switch.ask(&["port", "list", "vm01", "--backend", "tap"]).ok();
    assert_eq!(none, switch.addressed("no port is like that; all of them: lasthop port list\n"));
    let unknown = switch.ask(&["port", "list", "--state", "runing"]);
    assert!(
        unknown.code == Some(2) && unknown.err.contains("there are: no guest, connected, running, "),
        "{}",
        unknown.err
    );
    for command in [&["port", "list"][..], &["doctor"]] {
        let refused = |words: &[&str]| switch.ask(&[command, words].concat()).refused();
        assert!(refused(&["vm0*", "wep"]).contains("no port \"wep\"; did you mean \"web\""));
        assert!(refused(&["vm01", "x*"]).contains("no name is like \"x*\""));
    }
    let examined = switch.ask(&["doctor", "vm0*"]).refused_with_output();
    assert!(
        examined.starts_with("not ok: vm02 peer: ") && examined.contains("\nvm01: socket ok"),
        "{examined}"
    );
    assert!(!examined.contains("web"), "{examined}");
    let both = switch.ask(&["doctor", "vm01", "web"]).refused_with_output();
    assert!(both.contains("\nvm01: socket ok") && both.contains("\nweb: socket ok"), "{both}");
}
