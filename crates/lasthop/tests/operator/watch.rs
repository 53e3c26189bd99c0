//! `lasthop stats --watch`.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use lasthop_rig::guests::{ONE, TWO, frame, guest, receive, send};
use lasthop_rig::{Switch, eventually};

/// A watch that ends with the test.
struct Watch {
    child: Child,
    lines: Option<std::io::Lines<BufReader<std::process::ChildStdout>>>,
}

impl Watch {
    fn start(switch: &Switch, words: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_lasthop"));
        command.arg("--dir").arg(switch.dir()).arg("stats").args(words).stdout(Stdio::piped());
        let mut child = command.spawn().expect("the binary runs");
        let lines = child.stdout.take().map(|out| BufReader::new(out).lines());
        Self { child, lines }
    }

    fn line(&mut self) -> String {
        self.lines.as_mut().expect("open").next().expect("a line").expect("text")
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn rates_come_as_blocks_with_an_empty_line_behind_each() {
    let switch = Switch::start(&["--vnic", "one", "--vnic", "two"]);
    let mut watch = Watch::start(&switch, &["--watch", "0.1"]);
    for _ in 0..2 {
        assert!(watch.line().starts_with("VNIC  STATE"));
        assert!(watch.line().starts_with("one   no guest"));
        assert!(watch.line().starts_with("two   no guest"));
        assert_eq!(watch.line().split_whitespace().collect::<Vec<_>>(), ["all", "0", "0", "0", "0", "0"]);
        assert_eq!(watch.line(), "");
    }
}

#[test]
fn packets_are_seen_in_one_interval_and_it_ends_when_nobody_reads() {
    let switch = Switch::start(&["--vnic", "one", "--vnic", "two"]);
    let (mut one, mut two) = (guest(&switch, "one", ONE), guest(&switch, "two", TWO));
    let mut watch = Watch::start(&switch, &["one", "--watch", "0.1", "--json"]);
    let first: Value = serde_json::from_str(&watch.line()).expect("an object a line");
    assert_eq!(first["ports"][0]["rx_packets_per_s"], 0.0);
    send(&mut one, &frame(TWO, ONE, 1, 60));
    receive(&mut two);
    let rates = eventually("the packet", || {
        let rates: Value = serde_json::from_str(&watch.line()).expect("an object a line");
        (rates["ports"][0]["rx_packets_per_s"] != 0.0).then_some(rates)
    });
    let (seconds, port) = (rates["seconds"].as_f64().expect("a number"), &rates["ports"][0]);
    let packets = port["rx_packets_per_s"].as_f64().expect("a number") * seconds;
    let bits = port["rx_bits_per_s"].as_f64().expect("a number") * seconds;
    assert!((packets - 1.0).abs() < 1e-6 && (bits - 480.0).abs() < 1e-3, "{rates}");
    assert_eq!(rates["ports"].as_array().map(Vec::len), Some(1));
    watch.lines = None;
    let status = eventually("its end", || watch.child.try_wait().expect("our child"));
    assert_eq!(status.code(), Some(0));
}

#[test]
fn totals_are_sorted_by_name_or_by_what_is_lost() {
    let switch = Switch::start(&["--vnic", "two", "--vnic", "one", "--vnic", "off"]);
    let mut two = guest(&switch, "two", TWO);
    let names = |words: &[&str]| {
        let text = switch.ask(&[&["stats"], words].concat()).ok();
        let rows =
            text.lines().skip(1).take(3).map(|line| line.split(' ').next().unwrap_or_default().to_owned());
        rows.collect::<Vec<_>>()
    };
    assert_eq!(names(&[]), ["off", "one", "two"]);
    switch.ask(&["port", "set", "two", "link=down"]).ok();
    send(&mut two, &frame(ONE, TWO, 1, 60));
    eventually("the drop", || (names(&["--sort", "drops"])[0] == "two").then_some(()));
    assert_eq!(names(&["--sort", "drops"]), ["two", "off", "one"]);
    assert_eq!(switch.json(&["stats", "--sort", "drops"])["ports"][0]["name"], "two");
    assert_eq!(switch.ask(&["stats", "--sort", "drops", "--workers"]).code, Some(2));
}

#[test]
fn it_goes_on_when_the_switch_process_is_started_again() {
    let switch = Switch::start(&["--vnic", "one"]);
    let mut watch = Watch::start(&switch, &["--watch", "0.1", "--json"]);
    watch.line();
    lasthop_rig::signal(switch.switch_pid().expect("a switch process"), rustix::process::Signal::KILL);
    eventually("the next one", || switch.log().contains("running again").then_some(()));
    let ports =
        |line: &str| serde_json::from_str::<Value>(line).expect("JSON")["ports"].as_array().map(Vec::len);
    // The internal port and the vnic.
    eventually("its counters", || (ports(&watch.line()) == Some(2)).then_some(()));
    eventually("and more", || (ports(&watch.line()) == Some(2)).then_some(()));
}

#[test]
fn a_name_in_the_wrong_place_is_told() {
    let switch = Switch::start(&["--vnic", "one"]);
    let answer = switch.ask(&["stats", "--watch", "one"]);
    assert_eq!(answer.code, Some(2));
    assert!(answer.err.contains("lasthop stats NAME --watch"), "{}", answer.err);
}
