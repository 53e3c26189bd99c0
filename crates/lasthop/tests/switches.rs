//! Several switches in one process: created and changed at run time, with no frame between them.

use lasthop_frontend::Guest;
use lasthop_rig::guests::{ONE, TWO, check_balance, controlled, frame, guest, receive, send};
use lasthop_rig::{Switch, eventually, lasthop, module, signal};
use rustix::process::Signal;
use serde_json::{Value, json};

const BROADCAST: [u8; 6] = [0xff; 6];

/// Two vnics in each of a bridge, another bridge, and a dummy.
fn start() -> Switch {
    let vnics = ["a1", "a2", "b1,switch=red", "b2,switch=red", "c1,switch=blue", "c2,switch=blue"];
    let mut words = vec!["--switch", "red,module=bridge,fdb-entries=64", "--switch", "blue,module=dummy"];
    words.extend(vnics.iter().flat_map(|vnic| ["--vnic", vnic]));
    let switch = Switch::start(&words);
    controlled(&switch);
    switch
}

/// Guests on both vnics of a switch, with the same two addresses in each switch.
fn pair(switch: &Switch, letter: char) -> [Guest; 2] {
    [guest(switch, &format!("{letter}1"), ONE), guest(switch, &format!("{letter}2"), TWO)]
}

/// Frames from the first to the second guest and back, which arrive; `number` distinguishes them from all others.
fn talk([one, two]: &mut [Guest; 2], number: u32) {
    for to in [BROADCAST, TWO] {
        let there = frame(to, ONE, number, 200);
        send(one, &there);
        assert_eq!(receive(two), there);
        let back = frame(ONE, TWO, number, 80);
        send(two, &back);
        assert_eq!(receive(one), back);
    }
    for guest in [one, two] {
        guest.reclaim(0).expect("a sound ring");
    }
}

fn counts(switch: &Switch) -> Vec<(String, u64, u64)> {
    let stats = switch.json(&["stats"]);
    let ports = stats["ports"].as_array().expect("ports").iter().filter(|port| port["name"] != "internal");
    let count = |value: &Value| value.as_u64().expect("a number");
    ports
        .map(|port| {
            let name = port["name"].as_str().expect("text").to_owned();
            (name, count(&port["rx_packets"]), count(&port["tx_packets"]))
        })
        .collect()
}

fn fdb(switch: &Switch, words: &[&str]) -> Vec<(String, String, String)> {
    let fdb = switch.json(&[&["fdb", "show"], words].concat());
    let text = |value: &Value| value.as_str().expect("text").to_owned();
    let line = |entry: &Value| (text(&entry["switch"]), text(&entry["mac"]), text(&entry["port"]));
    fdb["entries"].as_array().expect("entries").iter().map(line).collect()
}

#[test]
fn switches_share_addresses_and_no_frames() {
    let switch = start();
    let mut guests = ['a', 'b', 'c'].map(|letter| pair(&switch, letter));
    for round in 0..5 {
        for (at, pair) in guests.iter_mut().enumerate() {
            talk(pair, 10 * round + at as u32);
        }
    }
    // No guest has the address, so a bridge floods the frame.
    let [alone, listening] = &mut guests[0];
    send(alone, &frame([0x02, 0, 0, 0, 0, 7], ONE, 77, 60));
    receive(listening);
    check_balance(&switch);
    // Each guest got exactly the frames of its only neighbour.
    for (name, rx, tx) in counts(&switch) {
        let extra = |of: &str| u64::from(name == of);
        assert_eq!((rx, tx), (10 + extra("a1"), 10 + extra("a2")), "{name}");
    }
    let line = |switch: &str, mac: &str, port: &str| {
        (switch.to_owned(), format!("02:00:00:00:00:{mac}"), port.to_owned())
    };
    let red = [line("red", "01", "b1"), line("red", "02", "b2")];
    let all = [&[line("default", "01", "a1"), line("default", "02", "a2")][..], &red].concat();
    assert_eq!(fdb(&switch, &[]), all);
    assert_eq!(fdb(&switch, &["--switch", "red"]), red);
    let list = switch.json(&["switch", "list"]);
    let learned: Vec<_> = list["switches"]
        .as_array()
        .expect("switches")
        .iter()
        .map(|s| &s["counters"]["fdb_learned"])
        .collect();
    assert_eq!(learned, [&json!(2), &json!(2), &Value::Null]);
    let text = switch.ask(&["switch", "list"]).ok();
    let module = module();
    let controller = if module == "flow" { "embedded" } else { "-" };
    let expected = format!(
        "NAME     MODULE  VNICS  ADDRESSES  FDB ENTRIES  CONTROLLER\n\
         default  {module:6}      2          2        16384  {controller}\n\
         red      bridge      2          2           64  -\n\
         blue     dummy       2          -            -  -\n"
    );
    assert_eq!(text, expected);
}

#[test]
fn a_killed_switch_process_leaves_every_vnic_in_its_switch() {
    let switch = start();
    let late = format!("late,module={}", module());
    switch.ask(&["switch", "add", &late]).ok();
    switch.ask(&["vnic", "add", "d1,switch=late,mac=02:00:00:00:00:01"]).ok();
    switch.ask(&["switch", "add", "gone"]).ok();
    switch.ask(&["switch", "del", "gone"]).ok();
    // A controller receives an address a moment later.
    let line = format!("late     {:6}      1          1", module());
    let list = || Some(switch.ask(&["switch", "list"]).ok()).filter(|list| list.contains(&line));
    let before = (switch.json(&["vnic", "list"]), eventually("all addresses", list));
    drop(['a', 'b', 'c'].map(|letter| pair(&switch, letter)));
    signal(switch.switch_pid().expect("a switch process"), Signal::KILL);
    eventually("the next one", || switch.log().contains("running again").then_some(()));
    // It has taken over guests that hung up meanwhile, and notices that.
    let now = || (switch.json(&["vnic", "list"]), switch.ask(&["switch", "list"]).ok());
    eventually("all as before", || (now() == before).then_some(()));
    let mut guests = ['a', 'b', 'c'].map(|letter| pair(&switch, letter));
    for (number, pair) in (0..).zip(&mut guests) {
        talk(pair, number);
    }
    check_balance(&switch);
    assert!(
        counts(&switch).iter().all(|(name, rx, tx)| (*rx, *tx) == if name == "d1" { (0, 0) } else { (2, 2) })
    );
}

#[test]
fn switches_come_and_go_under_traffic() {
    let switch = Switch::start(&["--workers", "2", "--vnic", "a1", "--vnic", "a2"]);
    let mut first = pair(&switch, 'a');
    for round in 0..4 {
        let module = ["bridge", "dummy"][round % 2];
        switch.ask(&["switch", "add", &format!("red,module={module}")]).ok();
        for vnic in ["b1", "b2"] {
            switch.ask(&["vnic", "add", &format!("{vnic},switch=red")]).ok();
        }
        let mut second = pair(&switch, 'b');
        talk(&mut first, 2 * round as u32);
        talk(&mut second, 2 * round as u32 + 1);
        assert!(switch.ask(&["switch", "del", "red"]).refused().contains("still has ports (\"b1\", \"b2\")"));
        drop(second);
        for vnic in ["b1", "b2"] {
            switch.ask(&["vnic", "del", vnic]).ok();
        }
        assert_eq!(switch.ask(&["switch", "del", "red"]).ok(), "deleted switch red\n");
        talk(&mut first, 100);
    }
    check_balance(&switch);
    assert_eq!(switch.json(&["switch", "list"])["switches"].as_array().map(Vec::len), Some(1));
}

/// Ports whose packets the controller of one switch handles.
fn served(switch: &Switch, name: &str) -> Option<u64> {
    let list = switch.json(&["switch", "list"]);
    let own = list["switches"].as_array()?.iter().find(|line| line["name"] == name)?;
    own["counters"]["ports_served"].as_u64()
}

#[test]
fn a_switch_that_has_the_name_of_one_that_is_gone_has_nothing_else_of_it() {
    let switch = Switch::start(&[]);
    let is_served = |name: &str, ports: u64| {
        // A module without a controller decides immediately.
        let is_it = || (module() != "flow" || served(&switch, name) == Some(ports)).then_some(());
        eventually("its controller", is_it);
    };
    let add = |name: &str, vnics: &[&str]| {
        switch.ask(&["switch", "add", &format!("{name},module={}", module())]).ok();
        for vnic in vnics {
            switch.ask(&["vnic", "add", &format!("{vnic},switch={name}")]).ok();
        }
    };
    // The next one gets its number.
    add("red", &["x"]);
    is_served("red", 1);
    switch.ask(&["vnic", "del", "x"]).ok();
    switch.ask(&["switch", "del", "red"]).ok();
    add("blue", &["a1", "a2"]);
    add("red", &["b1", "b2"]);
    ["blue", "red"].iter().for_each(|name| is_served(name, 2));
    let mut guests = ['a', 'b'].map(|letter| pair(&switch, letter));
    for (number, pair) in (0..).zip(&mut guests) {
        talk(pair, number);
    }
    check_balance(&switch);
    let lists = ["blue", "red"].map(|name| fdb(&switch, &["--switch", name]));
    let ports = lists.map(|list| list.into_iter().map(|(_, _, port)| port).collect::<Vec<_>>());
    assert_eq!(ports, [["a1", "a2"], ["b1", "b2"]]);
}

#[test]
fn mistakes_are_refused_and_change_nothing() {
    let switch = Switch::start(&["--switch", "red", "--vnic", "vm1,switch=red,mac=02:00:00:00:00:01"]);
    for (words, why) in [
        (["switch", "add", "red"], "there is a switch \"red\" already"),
        (["switch", "add", "default"], "there is a switch \"default\" already"),
        (["switch", "del", "rad"], "did you mean \"red\""),
        (["switch", "del", "nothing-like-it"], "lasthop switch list"),
        (["switch", "del", "default"], "cannot be deleted"),
        (["switch", "del", "red"], "(\"vm1\"); delete them first"),
        (["vnic", "add", "vm2,switch=rad"], "did you mean \"red\""),
        (["vnic", "add", "vm2,switch=green"], "make it with: lasthop switch add green"),
        (["vnic", "add", "vm2,switch=red,mac=02:00:00:00:00:01"], "the address of \"vm1\" already"),
    ] {
        let message = switch.ask(&words).refused();
        assert!(message.contains(&switch.addressed(why)), "{words:?}: {message}");
    }
    assert!(switch.ask(&["fdb", "show", "--switch", "rod"]).refused().contains("did you mean \"red\""));
    switch.ask(&["vnic", "add", "vm2,mac=02:00:00:00:00:01"]).ok();
    let list = switch.json(&["switch", "list"]);
    let named: Vec<_> =
        list["switches"].as_array().expect("a list").iter().map(|s| (&s["name"], &s["vnics"])).collect();
    assert_eq!(named, [(&json!("default"), &json!(["vm2"])), (&json!("red"), &json!(["vm1"]))]);
    switch.ask(&["switch", "add", "blue,module=dummy"]).ok();
    assert!(switch.ask(&["fdb", "show", "--switch", "blue"]).refused().contains("no forwarding table"));
}

#[test]
fn a_file_names_switches_and_their_vnics() {
    let base = tempfile::tempdir().expect("a directory");
    let file = base.path().join("lasthop.toml");
    let text = "fdb-entries = 128\n[[switch]]\nname = \"red\"\nmodule = \"dummy\"\n[[vnic]]\nname = \"a\"\nswitch = \"red\"\n";
    std::fs::write(&file, text).expect("written");
    let file = file.to_str().expect("text");
    let switch = Switch::start(&["-c", file, "--switch", "blue", "--vnic", "b,switch=blue", "--vnic", "c"]);
    assert!(switch.log().contains("3 vnics in 3 switches"), "{}", switch.log());
    let list = switch.ask(&["vnic", "list"]).ok();
    let rows: Vec<Vec<&str>> = list.lines().map(|line| line.split_whitespace().take(2).collect()).collect();
    assert_eq!(rows, [["NAME", "SWITCH"], ["a", "red"], ["b", "blue"], ["c", "default"]]);
    assert!(switch.ask(&["vnic", "show", "a"]).ok().contains("switch        red\n"));
    assert_eq!(switch.json(&["switch", "list"])["switches"][0]["fdb_entries"], 128);
    let dir = base.path().join("other");
    let run = |words: &[&str]| {
        lasthop(&[&["run", "--dir", dir.to_str().expect("text"), "-c", file], words].concat()).refused()
    };
    assert!(run(&["--switch", "red"]).contains("a switch \"red\" already"));
    assert!(run(&["--switch", "default"]).contains("--module"));
    assert!(
        run(&["--vnic", "z,switch=rad"])
            .contains("port \"z\": there is no switch \"rad\"; did you mean \"red\"")
    );
}

#[test]
fn a_file_is_checked_applied_and_written_with_its_switches() {
    let switch = Switch::start(&["--switch", "red,fdb-entries=64", "--vnic", "a,switch=red", "--vnic", "b"]);
    let file = switch.base.path().join("lasthop.toml");
    let path = file.to_str().expect("text");
    let shown = switch.ask(&["config", "show"]).ok();
    std::fs::write(&file, &shown).expect("written");
    assert!(switch.ask(&["apply", "-c", path]).ok().contains("nothing to do"), "{shown}");
    let mac = "mac = \"02:00:00:00:00:01\"";
    let text = format!(
        "[[switch]]\nname = \"blue\"\nmodule = \"dummy\"\n[[vnic]]\nname = \"a\"\nswitch = \"blue\"\n{mac}\n\
         [[vnic]]\nname = \"b\"\n{mac}\n"
    );
    std::fs::write(&file, &text).expect("written");
    assert!(switch.ask(&["check", "-c", path]).ok().contains("is valid"), "one address in two switches");
    let said = switch.ask(&["apply", "-c", path]).ok();
    for line in ["- switch red\n", "+ switch blue\n", "~ port a switch: red -> blue (made anew"] {
        assert!(said.contains(line), "{said}");
    }
    let list = switch.ask(&["switch", "list"]).ok();
    assert!(list.contains("blue     dummy       1") && !list.contains("red"), "{list}");
    assert!(switch.ask(&["apply", "-c", path]).ok().contains("nothing to do"));
    assert!(switch.ask(&["vnic", "set", "a", "switch=default"]).refused().contains("make it anew"));
    std::fs::write(&file, text.replace("switch = \"blue\"", "switch = \"blu\"")).expect("written");
    assert!(switch.ask(&["apply", "-c", path]).refused().contains("did you mean \"blue\""));
    let checked = switch.ask(&["check", "-c", path]);
    assert!(
        checked.code == Some(1) && checked.out.contains("port \"a\": there is no switch \"blu\""),
        "{}",
        checked.out
    );
    std::fs::write(&file, "[[switch]]\nname = \"default\"\n").expect("written");
    assert!(switch.ask(&["check", "-c", path]).out.contains(":1: the switch \"default\" is there without"));
}

#[test]
fn several_ports_and_switches_at_once() {
    let switch = Switch::start(&["--switch", "red", "--switch", "blue"]);
    let [a, b, c, d] =
        ["a,switch=red", "b,switch=blue", "c", "d"].map(|text| format!("{text},backend=vhost-user"));
    let names = || {
        let ports = switch.json(&["port", "list"])["ports"].as_array().expect("ports").clone();
        ports.iter().map(|port| port["name"].as_str().expect("text").to_owned()).collect::<Vec<_>>()
    };
    let told = switch.ask(&["port", "add", &a, &b]).ok();
    assert!(told.contains("added a") && told.contains("added b"), "{told}");
    // Those before a refused one are there, and told.
    let answer = switch.ask(&["port", "add", &c, &a, &d]);
    assert!(answer.out.contains("added c") && !answer.out.contains("added d"), "{}", answer.out);
    assert!(answer.refused().contains("\"a\""));
    assert_eq!(names(), ["a", "b", "c"]);
    switch.ask(&["port", "del", "*"]).ok();
    let made = switch.json(&["port", "add", &c, &d]);
    assert_eq!((&made[0]["name"], &made[1]["name"]), (&json!("c"), &json!("d")));
    let told = switch.ask(&["switch", "del", "red", "blue"]).ok();
    assert_eq!(told, "deleted switch red\ndeleted switch blue\n");
}
