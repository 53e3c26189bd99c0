//! A configuration that has changed when the supervisor starts again.

use std::path::PathBuf;
use std::time::Duration;

use lasthop_frontend::Guest;

use crate::service::{Service, is_hung_up_on};
use lasthop_rig::eventually;
use lasthop_rig::guests::{ONE, TWO, frame, guest, receive, send};
use lasthop_rig::namespaces::{self, Namespace};

const THREE: [u8; 6] = [0x02, 0, 0, 0, 0, 3];

/// A service with its own file.
fn start(text: &str) -> (Service, PathBuf) {
    let base = tempfile::tempdir().expect("a directory");
    let file = base.path().join("lasthop.toml");
    std::fs::write(&file, text).expect("written");
    let words = file.to_str().expect("text").to_owned();
    (Service::start_in(base, &["-c", &words], "512"), file)
}

/// A file's vnics, each "NAME" or "NAME,KEY = VALUE,...".
fn vnics(options: &[&str]) -> String {
    let vnic = |options: &&str| {
        let (name, rest) = options.split_once(',').unwrap_or((options, ""));
        format!("[[vnic]]\nname = \"{name}\"\n{}\n", rest.replace(',', "\n"))
    };
    options.iter().map(vnic).collect()
}

fn waits_for_a_guest(service: &Service, vnic: &str) {
    eventually("its end", || (service.switch.port(vnic)["state"] == "waiting for guest").then_some(()));
}

fn names(service: &Service) -> Vec<String> {
    let list = service.switch.json(&["vnic", "list"]);
    let vnics = list["vnics"].as_array().expect("vnics");
    vnics.iter().map(|vnic| vnic["name"].as_str().expect("a name").to_owned()).collect()
}

fn talk(one: &mut Guest, two: &mut Guest) {
    send(one, &frame(TWO, ONE, 1, 60));
    assert_eq!(receive(two), frame(TWO, ONE, 1, 60));
}

#[test]
fn vnics_go_change_and_come_and_the_rest_goes_on() {
    let (service, file) = start(&vnics(&["one", "two", "gone", "anew"]));
    let (mut one, mut two) = (guest(&service.switch, "one", ONE), guest(&service.switch, "two", TWO));
    let mut gone = guest(&service.switch, "gone", THREE);
    let mut anew = guest(&service.switch, "anew", THREE);
    service.settle();
    let text = vnics(&["one", "two,mac = \"02:00:00:00:00:02\"", "anew,queues = 2", "fresh"]);
    std::fs::write(&file, text).expect("written");
    service.restart();
    assert_eq!(names(&service), ["anew", "fresh", "one", "two"]);
    let log = service.switch.log();
    let line = log.lines().find(|line| line.contains("continues where process")).expect("one line");
    let mac = "~ port two mac: - -> 02:00:00:00:00:02";
    for words in ["2 guests", "- port gone", mac, "~ port anew queues: 1 -> 2", "+ port fresh"] {
        assert!(line.contains(words), "{line}");
    }
    is_hung_up_on(&mut gone);
    is_hung_up_on(&mut anew);
    assert!(!service.switch.path("gone.sock").exists());
    talk(&mut one, &mut two);
    let shown = service.switch.ask(&["vnic", "show", "two"]).ok();
    assert!(shown.contains("02:00:00:00:00:02"), "{shown}");
    for name in ["fresh", "anew"] {
        drop(guest(&service.switch, name, THREE));
        waits_for_a_guest(&service, name);
    }
    // Nothing remains of the removed ones.
    let kept = service.descriptors()[2];
    service.kill();
    eventually("as many as before", || (service.kept().len() == kept).then_some(()));
}

#[test]
fn what_was_done_by_hand_stays() {
    let (service, _file) = start(&vnics(&["one", "two"]));
    service.switch.ask(&["switch", "add", "red"]).ok();
    service.switch.ask(&["vnic", "add", "three,switch=red"]).ok();
    service.switch.ask(&["vnic", "add", "four"]).ok();
    service.switch.ask(&["fdb", "add", "02:00:00:00:00:09", "four"]).ok();
    service.switch.ask(&["vnic", "del", "two"]).ok();
    let mut three = guest(&service.switch, "three", THREE);
    service.settle();
    service.switch.ask(&["switch", "set", "red", "module=flow,controller=none"]).ok();
    for end in [Service::kill, Service::restart] {
        service.settle();
        end(&service);
        assert!(service.switch.ask(&["config", "show"]).ok().contains("flow"), "red is what it was made");
        // Ports in the file exist again.
        assert_eq!(names(&service), ["four", "one", "three", "two"]);
        assert!(service.switch.ask(&["fdb", "show"]).ok().contains("02:00:00:00:00:09"));
        assert!(three.wait(Some(Duration::from_millis(100))).is_ok(), "it is attached");
        assert_eq!(service.switch.port("three")["state"], "running");
        service.switch.ask(&["vnic", "del", "two"]).ok();
    }
}

#[test]
fn another_switch_is_a_restart_of_the_switch_and_not_of_guests() {
    let (service, file) = start(&format!("workers = 1\n{}", vnics(&["one", "two"])));
    let (mut one, mut two) = (guest(&service.switch, "one", ONE), guest(&service.switch, "two", TWO));
    service.settle();
    let text = format!("workers = 2\nfdb-entries = 64\n{}", vnics(&["one", "two"]));
    std::fs::write(&file, text).expect("written");
    service.restart();
    let shown = service.switch.ask(&["config", "show"]).ok();
    assert!(shown.contains("workers = 2") && shown.contains("fdb-entries = 64"), "{shown}");
    talk(&mut one, &mut two);
    service.nobody_was_let_go();
}

/// Restarts it with a wrong file, which is corrected once the log has `words`; returns how often the service was
/// started.
fn mended(wrong: &str, words: &str) -> u64 {
    let (service, file) = start(&vnics(&["one", "two"]));
    let (mut one, mut two) = (guest(&service.switch, "one", ONE), guest(&service.switch, "two", TWO));
    service.settle();
    std::fs::write(&file, wrong).expect("written");
    service.ask_for_restart();
    eventually("that it is said", || (service.said(words) > 0).then_some(()));
    std::fs::write(&file, vnics(&["one", "two"])).expect("written");
    service.started(2);
    assert_eq!(service.said(words), 1, "{}", service.switch.log());
    talk(&mut one, &mut two);
    service.nobody_was_let_go();
    service.state()["starts"].as_u64().expect("a number") - 1
}

#[test]
fn a_file_that_is_wrong_is_said_and_guests_wait_until_it_is_right() {
    assert_eq!(mended("nonsense = 1\n", "guests wait until that is right"), 1);
}

#[test]
fn what_this_machine_does_not_have_is_said_and_tried_again_with_pauses() {
    let wrong = vnics(&["one", "two,socket-group = \"nobodys\""]);
    assert_eq!(mended(&wrong, "there is no group"), 2);
}

#[test]
fn device_ports_of_the_flags_and_by_hand_are_opened_anew() {
    if !namespaces::may() {
        return;
    }
    let namespace = Namespace::new();
    let service = Service::start_within(namespace.name(), &["--vnic", "one", "--host-port", "told"]);
    service.switch.ask(&["port", "add", "hand,tap=hand"]).ok();
    let mut one = guest(&service.switch, "one", ONE);
    let both_are_up = || {
        let list = service.switch.json(&["port", "list", "--backend", "tap"]);
        let ports = list["ports"].as_array().expect("ports");
        let up = ports.iter().filter(|port| port["state"] == "up").count();
        (up == 2 && ports.len() == 2).then_some(())
    };
    eventually("both ports", both_are_up);
    for end in [Service::kill, Service::restart] {
        service.settle();
        end(&service);
        eventually("both ports", both_are_up);
        assert!(one.wait(Some(Duration::from_millis(50))).is_ok(), "it is attached");
    }
    service.nobody_was_let_go();
    let starts = service.said("the driver process is running");
    assert_eq!(starts, 3, "once for each supervisor, and not for one that ends: {}", service.switch.log());
}
