//! `lasthop stats --prometheus`, read by a parser that accepts only the exposition format 0.0.4.

use std::collections::{BTreeMap, BTreeSet};

use lasthop_rig::guests::{ONE, TWO, frame, guest, receive, send};
use lasthop_rig::namespaces::{Namespace, may};
use lasthop_rig::{Switch, eventually, signal, stop};
use rustix::process::Signal;

/// Samples by name and labels; panics at lines that Prometheus would refuse or misunderstand.
fn parse(text: &str) -> BTreeMap<String, f64> {
    let (mut samples, mut seen) = (BTreeMap::new(), BTreeSet::new());
    let mut family = (String::new(), String::new());
    assert!(text.ends_with('\n'));
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if let Some(help) = line.strip_prefix("# HELP ") {
            let name = help.split(' ').next().unwrap_or_default();
            let kind = lines.next().and_then(|line| line.strip_prefix(&format!("# TYPE {name} ")));
            let kind = kind.unwrap_or_else(|| panic!("no type behind {line}"));
            assert!(["counter", "gauge"].contains(&kind) && help.ends_with('.'), "{line}");
            assert_eq!(kind == "counter", name.ends_with("_total"), "{name}");
            assert!(seen.insert(name.to_owned()), "{name} twice");
            family = (name.to_owned(), kind.to_owned());
            continue;
        }
        let (sample, value) = line.rsplit_once(' ').expect("a value");
        let (name, labels) = sample.split_once('{').expect("labels");
        assert_eq!(name, family.0, "a sample outside of its family");
        assert!(
            name.starts_with("lasthop_")
                && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_')
        );
        check_labels(labels.strip_suffix('}').expect("an end of labels"));
        let value: f64 = value.parse().expect("a number");
        assert!(value >= 0.0 && samples.insert(sample.to_owned(), value).is_none(), "{sample} twice");
    }
    samples
}

fn check_labels(mut labels: &str) {
    while !labels.is_empty() {
        let (name, rest) = labels.split_once("=\"").expect("a label");
        assert!(name.bytes().all(|byte| byte.is_ascii_lowercase()), "{name}");
        let (value, rest) = rest.split_once('"').expect("an end of a value");
        assert!(!value.is_empty() && !value.contains(['\\', '\n']), "{value}");
        labels = rest.strip_prefix(',').unwrap_or(rest);
    }
}

#[test]
fn counters_are_written_for_prometheus() {
    let switch = Switch::start(&["--vnic", "one", "--vnic", "two", "--vnic", "off"]);
    let (mut one, mut two) = (guest(&switch, "one", ONE), guest(&switch, "two", TWO));
    let hello = frame([0xff; 6], ONE, 1, 100);
    send(&mut one, &hello);
    assert_eq!(receive(&mut two), hello);
    send(&mut one, &frame([0x01, 0x80, 0xc2, 0, 0, 0], ONE, 2, 60));
    let drops = "lasthop_port_receive_drop_reasons_total{port=\"one\",reason=\"link_local\"}";
    let samples = eventually("the drop", || {
        let samples = parse(&switch.ask(&["stats", "--prometheus"]).ok());
        samples.contains_key(drops).then_some(samples)
    });
    let of = |name: &str, port: &str| samples[&format!("lasthop_port_{name}{{port=\"{port}\"}}")];
    assert_eq!((of("receive_packets_total", "one"), of("receive_bytes_total", "one")), (2.0, 160.0));
    assert_eq!((of("transmit_packets_total", "two"), of("receive_dropped_total", "one")), (1.0, 1.0));
    assert_eq!((of("running", "two"), of("running", "off"), of("conserved", "one")), (1.0, 0.0, 1.0));
    for port in ["two", "off"] {
        assert_eq!(
            (of("receive_dropped_total", port), of("transmit_dropped_total", port)),
            (0.0, 0.0),
            "{port}"
        );
    }
    assert!(of("counting_since_timestamp_seconds", "one") > 1.7e9);
    assert!(samples["lasthop_worker_cpu_seconds_total{worker=\"0\"}"] > 0.0);
    assert!(samples.contains_key("lasthop_worker_scarce_total{worker=\"0\"}"));
    assert_eq!(switch.ask(&["stats", "--prometheus", "--watch"]).code, Some(2));
    let busy = switch.ask(&["stats", "--workers"]).ok();
    assert!(busy.lines().nth(1).is_some_and(|line| line.contains('%')), "{busy}");
}

#[test]
fn counters_say_since_when_and_survive_the_switch_process() {
    let switch = Switch::start(&["--vnic", "one", "--vnic", "two"]);
    let (mut one, mut two) = (guest(&switch, "one", ONE), guest(&switch, "two", TWO));
    let hello = frame([0xff; 6], ONE, 1, 100);
    send(&mut one, &hello);
    assert_eq!(receive(&mut two), hello);
    let before = switch.json(&["stats"]);
    let since = |stats: &serde_json::Value| stats["ports"][1]["since_ms"].as_u64().expect("a time");
    assert!(
        since(&before) > 1_700_000_000_000 && before["time_ms"].as_u64() >= Some(since(&before)),
        "{before}"
    );
    signal(switch.switch_pid().expect("a switch process"), Signal::KILL);
    eventually("the next one", || switch.log().contains("running again").then_some(()));
    let after = switch.json(&["stats"]);
    assert_eq!(since(&after), since(&before));
    assert_eq!(switch.port("one")["rx_packets"], 1, "{after}");
    assert!(after["time_ms"].as_u64() > before["time_ms"].as_u64());
}

#[test]
fn devices_and_processes_are_told_of_for_prometheus() {
    if !may() {
        return;
    }
    let host = Namespace::new();
    let switch = Switch::start_in(host.name(), &["--vnic", "one"]);
    switch.ask(&["port", "add", "t0,tap=t0"]).ok();
    eventually("the tap", || (switch.json(&["port", "show", "t0"])["state"] == "up").then_some(()));
    let mut one = guest(&switch, "one", ONE);
    send(&mut one, &frame([0xff; 6], ONE, 1, 100));
    let samples = || parse(&switch.ask(&["stats", "--prometheus"]).ok());
    let sent = "lasthop_device_transmit_packets_total{port=\"t0\"}";
    let before = eventually("a frame", || Some(samples()).filter(|told| told.get(sent) > Some(&0.0)));
    assert!(before["lasthop_device_transmit_bytes_total{port=\"t0\"}"] >= 100.0);
    assert!(before.contains_key("lasthop_device_receive_packets_total{port=\"t0\"}"));
    assert!(!before.contains_key("lasthop_device_transmit_packets_total{port=\"one\"}"));
    let build = format!("lasthop_build_info{{version=\"{}\"}}", env!("CARGO_PKG_VERSION"));
    assert_eq!(before.get(&build), Some(&1.0), "{before:?}");
    let restarts = "lasthop_process_restarts_total{process=\"driver\"}";
    assert_eq!((before[restarts], before["lasthop_process_restarts_total{process=\"switch\"}"]), (0.0, 0.0));
    let only = parse(&switch.ask(&["stats", "--prometheus", "one"]).ok());
    assert!(!only.contains_key(sent), "{only:?}");
    let driver = || switch.json(&["port", "show", "t0"])["driver"]["pid"].as_u64();
    let first = driver().expect("a driver process");
    stop(first as u32);
    let late = samples();
    assert!(late["lasthop_port_receive_packets_total{port=\"one\"}"] >= 1.0 && late[sent] >= before[sent]);
    signal(first as u32, Signal::KILL);
    eventually("another one", || driver().filter(|pid| *pid != first));
    assert_eq!(samples()[restarts], 1.0);
}
