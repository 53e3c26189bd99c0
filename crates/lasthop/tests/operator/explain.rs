//! `lasthop explain`.

use std::time::Duration;

use etherparse::PacketBuilder;
use serde_json::Value;

use lasthop_rig::guests::{ONE, TWO, frame, guest, receive, send};
use lasthop_rig::{Answer, Switch, eventually};

const TO_TWO: &str = "dl_src=02:00:00:00:00:01,dl_dst=02:00:00:00:00:02,nw_src=10.0.0.1,nw_dst=10.0.0.2";

fn explain(switch: &Switch, words: &[&str]) -> Answer {
    switch.ask(&[&["explain", "--from", "one"], words].concat())
}

fn last_line(answer: &Answer) -> &str {
    answer.out.lines().last().unwrap_or_default()
}

/// The first packet of a connection from one to two.
fn syn(port: u16) -> Vec<u8> {
    let step = PacketBuilder::ethernet2(ONE, TWO).ipv4([10, 0, 0, 1], [10, 0, 0, 2], 64);
    let mut frame = Vec::new();
    step.tcp(4000, port, 1, 64_240).syn().write(&mut frame, &[]).expect("it is short");
    frame
}

/// All that a packet could change.
fn state(switch: &Switch) -> [Value; 4] {
    let ports = switch.json(&["stats"])["ports"].clone();
    [
        ports,
        switch.json(&["fdb", "show"]),
        switch.json(&["flow", "show"]),
        switch.json(&["conntrack", "list"]),
    ]
}

/// A configuration in which port two takes HTTPS only.
fn guarded() -> Switch {
    let file = "[[vnic]]\nname = \"one\"\nmac = \"02:00:00:00:00:01\"\n\
                [[vnic]]\nname = \"two\"\nmac = \"02:00:00:00:00:02\"\n\
                [[acl]]\nname = \"https\"\nport = \"two\"\ndirection = \"ingress\"\naction = \"allow\"\nprotocol = \"tcp\"\ndport = 443\n\
                [[acl]]\nname = \"rest\"\nport = \"two\"\ndirection = \"ingress\"\naction = \"deny\"\n";
    let base = tempfile::tempdir().expect("a directory");
    let path = base.path().join("lasthop.toml");
    std::fs::write(&path, file).expect("written");
    let switch = Switch::start(&["-c", path.to_str().expect("text")]);
    let served = || switch.json(&["switch", "list"])["switches"][0]["counters"]["ports_served"] == 2;
    eventually("the controller", || served().then_some(()));
    switch
}

#[test]
fn the_rule_that_decides_is_named_and_nothing_changes() {
    let switch = guarded();
    let (_one, _two) = (guest(&switch, "one", ONE), guest(&switch, "two", TWO));
    eventually("both guests", || (switch.port("two")["state"] == "running").then_some(()));
    let before = state(&switch);
    let https = explain(&switch, &[&format!("tcp,{TO_TWO},tp_dst=443")]);
    assert_eq!((last_line(&https), https.code), ("delivered to two", Some(0)), "{}", https.out);
    assert!(https.out.contains("[[acl]] \"https\" of two (ingress) allows its connection"), "{}", https.out);
    assert!(https.out.contains("would be remembered: tcp"), "{}", https.out);
    let ssh = explain(&switch, &[&format!("tcp,{TO_TWO},tp_dst=22")]);
    let end = "dropped: acl_denied by [[acl]] \"rest\" of two (ingress)";
    assert_eq!((last_line(&ssh), ssh.code), (end, Some(3)), "{}", ssh.out);
    let spoofed = explain(&switch, &["arp,dl_src=02:00:00:00:00:07"]);
    assert!(
        last_line(&spoofed).starts_with("dropped: source_spoofed by mac=02:00:00:00:00:01"),
        "{}",
        spoofed.out
    );
    for (before, after) in before.iter().zip(state(&switch)) {
        assert_eq!(*before, after, "nothing changes");
    }
}

#[test]
fn flows_and_connections_of_packets_that_came_are_found() {
    let switch = guarded();
    let (mut one, mut two) = (guest(&switch, "one", ONE), guest(&switch, "two", TWO));
    let words = format!("tcp,{TO_TWO},tp_src=4000,tp_dst=443");
    let json = switch.json(&["explain", "--from", "one", &words]);
    let steps = json["steps"].as_array().expect("steps");
    let key = steps.iter().find_map(|step| step["key"].as_str()).expect("a pass");
    assert!(key.contains("tcp(src=4000,dst=443)"), "{key}");
    let syn = syn(443);
    send(&mut one, &syn);
    assert_eq!(receive(&mut two), syn);
    eventually("its flow", || explain(&switch, &[&words]).out.contains("\n  flow ").then_some(()));
    let again = explain(&switch, &[&words]);
    assert!(
        again.out.contains("state=SynSent") && !again.out.contains("would be remembered"),
        "{}",
        again.out
    );
    assert_eq!(last_line(&again), "delivered to two");
}

#[test]
fn a_bridge_tells_its_reasons() {
    let switch = Switch::start(&[
        "--module",
        "bridge",
        "--vnic",
        "one,vlan=5",
        "--vnic",
        "two,vlan=5",
        "--vnic",
        "three,vlan=6",
    ]);
    let (mut one, mut two) = (guest(&switch, "one", ONE), guest(&switch, "two", TWO));
    let unknown = explain(&switch, &[&format!("udp,{TO_TWO}")]);
    assert!(unknown.out.contains("02:00:00:00:00:02 is unknown: flooded"), "{}", unknown.out);
    assert_eq!((last_line(&unknown), unknown.code), ("delivered to two", Some(0)), "and not to another VLAN");
    send(&mut two, &frame(ONE, TWO, 1, 60));
    receive(&mut one);
    let known = explain(&switch, &[&format!("udp,{TO_TWO}")]);
    assert!(known.out.contains("02:00:00:00:00:02 is at two (learned"), "{}", known.out);
    let tagged = explain(&switch, &[&format!("udp,dl_vlan=5,{TO_TWO}")]);
    assert_eq!((last_line(&tagged), tagged.code), ("dropped: vlan_tagged", Some(3)), "{}", tagged.out);
    switch.ask(&["vnic", "set", "one", "link=down"]).ok();
    let down = explain(&switch, &[&format!("udp,{TO_TWO}")]);
    assert_eq!(last_line(&down), "dropped: link_down", "{}", down.out);
}

#[test]
fn packets_are_taken_from_captures_and_written_as_bytes() {
    let switch = Switch::start(&["--module", "bridge", "--vnic", "one", "--vnic", "two"]);
    let (mut one, mut two) = (guest(&switch, "one", ONE), guest(&switch, "two", TWO));
    let file = switch.path("taken.pcapng");
    let path = file.to_str().expect("text").to_owned();
    let dir = switch.dir();
    let capturing = std::thread::spawn(move || {
        let dir = dir.to_str().expect("text").to_owned();
        lasthop_rig::lasthop(&[
            "--dir",
            &dir,
            "capture",
            "one",
            "-Q",
            "in",
            "-c",
            "2",
            "-w",
            &path,
            "--duration",
            "60",
        ])
    });
    let mut number = 0;
    while !capturing.is_finished() {
        send(&mut one, &frame(TWO, ONE, number, 60 + usize::from(number % 2 == 1)));
        receive(&mut two);
        number += 1;
        std::thread::sleep(Duration::from_millis(20));
    }
    capturing.join().expect("the capture").ok();
    let words = ["--file", file.to_str().expect("text"), "--packet-number", "2"];
    let second = explain(&switch, &words);
    assert_eq!(last_line(&second), "delivered to two", "{}{}", second.out, second.err);
    let none = explain(&switch, &["--file", file.to_str().expect("text"), "--packet-number", "3"]);
    assert!(none.refused().contains("has 2 packets, and no packet 3"));
    let log = switch.base.path().join("log");
    assert!(
        explain(&switch, &["--file", log.to_str().expect("text")]).refused().contains("is no capture file")
    );
    let hex = explain(&switch, &["020000000002 020000000001 0800 45000014", "--length", "60"]);
    assert!(hex.out.starts_with("60 bytes from one") && last_line(&hex) == "delivered to two", "{}", hex.out);
}

#[test]
fn without_a_control_plane_the_bridge_stands_in_or_nothing_does() {
    let words = ["--module", "flow", "--controller", "external", "--vnic", "one", "--vnic", "two"];
    let switch = Switch::start(&words);
    let (_one, _two) = (guest(&switch, "one", ONE), guest(&switch, "two", TWO));
    let secure = explain(&switch, &[&format!("udp,{TO_TWO}")]);
    assert_eq!((last_line(&secure), secure.code), ("dropped: no_flow", Some(3)), "{}", secure.out);
    assert!(secure.out.contains("fail-mode secure"), "{}", secure.out);
    switch.ask(&["switch", "set", "default", "fail-mode=standalone"]).ok();
    let alone = explain(&switch, &[&format!("udp,{TO_TWO}")]);
    assert!(alone.out.contains("forwards as a bridge"), "{}", alone.out);
    switch.ask(&["flow", "join", "one", "two"]).ok();
    let joined = explain(&switch, &[&format!("udp,{TO_TWO}")]);
    assert!(joined.out.contains("actions: ") && last_line(&joined) == "delivered to two", "{}", joined.out);
}

#[test]
fn a_wrong_question_has_one_clear_answer() {
    let switch = Switch::start(&["--vnic", "one"]);
    for (words, said) in [
        (&["tpc"][..], "no protocol"),
        (&["--file", "/nowhere"], "cannot open"),
        (&["udp", "--length", "5"], "length of the frame"),
    ] {
        let refused = explain(&switch, words).refused();
        assert!(refused.contains(said) && refused.lines().count() == 1, "{words:?}: {refused}");
    }
    let gone = switch.ask(&["explain", "--from", "eno", "udp"]).refused();
    assert!(gone.contains("there is no port \"eno\""), "{gone}");
}
