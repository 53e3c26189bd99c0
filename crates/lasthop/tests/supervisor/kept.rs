//! Guests under load, while the supervisor ends several times.

use std::time::Duration;

use lasthop_dpif::client::Client;
use lasthop_frontend::GuestOptions;
use rustix::process::Signal;

use crate::service::{Service, is_hung_up_on, kinds};
use lasthop_rig::guests::{ONE, TWO, check_balance, frame, guest, guest_with, receive, send};
use lasthop_rig::talkers::Talker;
use lasthop_rig::{ProcessStat, eventually, signal};

/// How often each kind of end happens in each test.
const ENDS: usize = 4;

fn talkers(service: &Service, options: &GuestOptions) -> [Talker; 2] {
    let with = |mac| GuestOptions { mac, ..options.clone() };
    let one = guest_with(&service.switch, "one", with(ONE));
    let two = guest_with(&service.switch, "two", with(TWO));
    service.settle();
    [Talker::start(one, ONE, TWO), Talker::start(two, TWO, ONE)]
}

fn guests_do_not_notice(words: &[&str], options: &GuestOptions, end: impl Fn(&Service)) {
    let service = Service::start(&[words, &["--vnic", "one,queues=2", "--vnic", "two,queues=2"]].concat());
    let talkers = talkers(&service, options);
    let mut held = None;
    for _ in 0..ENDS {
        talkers.iter().for_each(|talker| talker.hear(200));
        end(&service);
        talkers.iter().for_each(|talker| talker.hear(200));
        match held {
            None => held = Some(service.descriptors()),
            Some(held) => service.has_descriptors(held),
        }
    }
    let heard: u32 = talkers.iter().map(Talker::heard).sum();
    for talker in talkers {
        talker.end().reclaim(0).expect("a sound ring");
    }
    service.nobody_was_let_go();
    assert_eq!(service.said("continues where process"), ENDS, "{}", service.switch.log());
    let counted = |name: &&str| service.switch.port(name)["tx_packets"].as_u64();
    let counted: u64 = ["one", "two"].iter().filter_map(counted).sum();
    assert!(counted > u64::from(heard) / 2, "counters began anew: {counted} of {heard}");
}

#[test]
fn a_supervisor_that_is_killed() {
    guests_do_not_notice(&[], &GuestOptions::default(), Service::kill);
}

#[test]
fn a_service_that_is_restarted() {
    guests_do_not_notice(&[], &GuestOptions::default(), Service::restart);
}

#[test]
fn several_regions_small_rings_and_workers() {
    let options = GuestOptions {
        ring_entries: 16,
        regions: 8,
        queue_pairs: 2,
        start_position: 65_500,
        rx_buffer_bytes: 256,
        ..GuestOptions::default()
    };
    guests_do_not_notice(&["--workers", "3"], &options, Service::kill);
}

#[test]
fn guests_whose_front_ends_keep_track_of_chains_in_flight() {
    let options = GuestOptions { inflight: true, ..GuestOptions::default() };
    guests_do_not_notice(&[], &options, Service::kill);
}

#[test]
fn a_restart_loses_nothing_that_a_ring_still_held() {
    let service = Service::start(&["--vnic", "one", "--vnic", "two"]);
    let talkers = talkers(&service, &GuestOptions::default());
    for _ in 0..ENDS {
        talkers.iter().for_each(|talker| talker.hear(200));
        service.restart();
    }
    talkers.into_iter().for_each(|talker| drop(talker.end()));
    let stats = service.switch.json(&["stats"]).to_string();
    assert!(!stats.contains("\"restart\""), "{stats}");
    check_balance(&service.switch);
}

#[test]
fn both_processes_killed_in_turns_and_at_once() {
    let service = Service::start(&["--vnic", "one", "--vnic", "two"]);
    let talkers = talkers(&service, &GuestOptions::default());
    for round in 0..ENDS {
        talkers.iter().for_each(|talker| talker.hear(200));
        if round % 2 == 0 {
            signal(service.inner().expect("a switch process"), Signal::KILL);
        }
        service.kill();
        talkers.iter().for_each(|talker| talker.hear(200));
        // Longer than the life of a process for whose death the supervisor blames its guests.
        std::thread::sleep(Duration::from_millis(300));
        signal(service.inner().expect("a switch process"), Signal::KILL);
    }
    talkers.iter().for_each(|talker| talker.hear(200));
    talkers.into_iter().for_each(|talker| drop(talker.end()));
    service.nobody_was_let_go();
}

/// Whether all threads of a process have ended; it may still be a zombie.
fn has_ended(pid: u32) -> bool {
    ProcessStat::of(pid).is_none_or(|stat| stat.state == 'Z')
}

/// Such a process has to be killed: no other process ends it, and it does not notice the end of its supervisor.
#[test]
fn two_switch_processes_never_serve_one_guest() {
    let service = Service::start(&["--vnic", "one", "--vnic", "two"]);
    let talkers = talkers(&service, &GuestOptions::default());
    for _ in 0..ENDS {
        talkers.iter().for_each(|talker| talker.hear(200));
        let old = service.inner().expect("a switch process");
        signal(old, Signal::STOP);
        service.kill();
        assert!(has_ended(old), "it would go on if somebody continued it");
        talkers.iter().for_each(|talker| talker.hear(200));
    }
    talkers.into_iter().for_each(|talker| drop(talker.end()));
    service.nobody_was_let_go();
}

#[test]
fn what_is_kept_is_what_there_is() {
    let service = Service::start(&["--vnic", "one", "--vnic", "two"]);
    // The control socket, the switch process and flows; a socket and counters for each vnic.
    let expected = [("head", 1), ("other", 7), ("port", 2)];
    eventually("all of it", || {
        (kinds(&service.kept()).into_iter().collect::<Vec<_>>() == expected).then_some(())
    });
    let one = guest(&service.switch, "one", ONE);
    // Its connection, the session's memory, a region, and kick and call of two rings.
    eventually("a session", || (service.kept().len() == 10 + 7).then_some(()));
    drop(one);
    service.switch.ask(&["vnic", "del", "two"]).ok();
    eventually("its end", || (service.kept().len() == 10 - 3).then_some(()));
}

#[test]
fn a_service_that_is_stopped_hangs_up() {
    let mut service = Service::start(&["--vnic", "one", "--vnic", "two"]);
    let mut one = guest(&service.switch, "one", ONE);
    service.settle();
    assert_eq!(service.switch.end().code(), Some(0));
    is_hung_up_on(&mut one);
    assert!(service.kept().is_empty());
}

#[test]
fn without_a_store_an_end_is_an_end() {
    let base = tempfile::tempdir().expect("a directory");
    let service = Service::start_in(base, &["--vnic", "one"], "0");
    let mut one = guest(&service.switch, "one", ONE);
    service.kill();
    is_hung_up_on(&mut one);
    assert_eq!((service.said("continues where"), service.kept().len()), (0, 0));
    drop(guest(&service.switch, "one", ONE));
}

#[test]
fn a_store_that_is_too_small_is_said_and_those_that_fit_go_on() {
    let base = tempfile::tempdir().expect("a directory");
    // Head, control socket, process, flows; record, socket, counters of each vnic; a session of seven; the next process and its flows.
    let service = Service::start_in(base, &["--vnic", "one", "--vnic", "two"], "19");
    let mut one = guest(&service.switch, "one", ONE);
    service.settle();
    let two = guest(&service.switch, "two", TWO);
    let said = "its room for 19 descriptors is full; raise FileDescriptorStoreMax=";
    eventually("that it is said", || (service.said(said) == 1).then_some(()));
    service.kill();
    drop(two);
    let mut two = guest(&service.switch, "two", TWO);
    send(&mut one, &frame(TWO, ONE, 1, 60));
    assert_eq!(receive(&mut two), frame(TWO, ONE, 1, 60));
}

#[test]
fn the_next_process_and_its_flows_find_room() {
    let base = tempfile::tempdir().expect("a directory");
    // Head, control socket, process, flows; record, socket, counters of each vnic; one more.
    let service = Service::start_in(base, &["--vnic", "one", "--vnic", "two"], "11");
    service.settle();
    let numbers = || {
        let numbers = service.state()["numbers"].as_array().expect("numbers").clone();
        numbers.into_iter().filter_map(|number| number.as_u64()).collect::<Vec<_>>()
    };
    let before = numbers();
    assert_eq!(before.len(), 4 + 3 + 2, "the last counters would take what the next process needs");
    while service.said("the next one begins without flows") == 0 {
        // As after a crash: a killed process is hardly the victim of a flow.
        let process = eventually("a switch process", || service.inner());
        signal(process, Signal::ABORT);
        eventually("the next one", || service.inner().filter(|next| *next != process));
    }
    service.settle();
    let kept = numbers();
    assert_eq!(kept.len(), 4 + 3 + 2, "{kept:?}");
    let fresh = kept.iter().filter(|number| !before.contains(number)).count();
    assert_eq!(fresh, 2, "another process and other flows: {before:?}, {kept:?}");
    service.kill();
    assert_eq!(service.said("continues where process"), 1, "{}", service.switch.log());
}

#[test]
fn who_found_no_room_is_kept_when_another_one_has_gone() {
    let base = tempfile::tempdir().expect("a directory");
    let service = Service::start_in(base, &["--vnic", "one", "--vnic", "two"], "19");
    let one = guest(&service.switch, "one", ONE);
    service.settle();
    let mut two = guest(&service.switch, "two", TWO);
    eventually("that it is said", || (service.said("is full") == 1).then_some(()));
    drop(one);
    eventually("its end", || (service.switch.port("one")["state"] == "waiting for guest").then_some(()));
    service.settle();
    // Head, control socket, process, flows; record, socket, counters of each vnic; the session.
    assert_eq!(service.kept().len(), 4 + 6 + 7);
    service.kill();
    assert!(two.wait(Some(Duration::from_millis(100))).is_ok(), "it is attached");
    assert_eq!(service.switch.port("two")["state"], "running");
    assert_eq!(service.said("has to connect again"), 0, "{}", service.switch.log());
}

#[test]
fn datapaths_numbers_and_flows_are_there_again() {
    let words = ["--module", "flow", "--controller", "none", "--vnic", "one", "--vnic", "two"];
    let service = Service::start(&words);
    let connect = || Client::connect(&service.switch.path("datapath.sock")).expect("connected");
    let joined = ["flow", "join", "two", "one", "--datapath", "default"];
    service.switch.ask(&joined).ok();
    let ports = |client: &mut Client| -> Vec<_> {
        let ports = client.ports(1).expect("listed").into_iter();
        ports.map(|port| (port.name.unwrap_or_default(), port.number)).collect()
    };
    let before = ports(&mut connect());
    assert_eq!(before.len(), 3, "{before:?}");
    let flows = || -> Vec<String> {
        let flows = connect().flows(1).expect("listed");
        let mut flows: Vec<String> = flows.iter().map(|flow| format!("{flow:?}")).collect();
        flows.sort();
        flows
    };
    let installed = flows();
    assert!(!installed.is_empty());
    service.settle();
    service.kill();
    assert_eq!(ports(&mut connect()), before);
    assert_eq!(flows(), installed, "their packets are not asked about");
}
