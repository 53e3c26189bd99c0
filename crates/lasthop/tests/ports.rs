//! Device ports of the built binary: wires and taps in namespaces, and changes of them.

use std::net::UdpSocket;

use lasthop_frontend::Guest;
use lasthop_rig::guests::{ONE, TWO, WAIT, check_balance, frame, guest, receive, send};
use lasthop_rig::namespaces::{Namespace, may};
use lasthop_rig::{Switch, eventually, is_alive, signal, stop};
use rustix::process::Signal;
use serde_json::{Value, json};

/// A switch in a namespace with the device `wire`, which leads to `eth0` in another namespace.
struct Lab {
    switch: Switch,
    host: Namespace,
    outside: Namespace,
}

impl Lab {
    fn new(words: &[&str]) -> Self {
        let (host, outside) = (Namespace::new(), Namespace::new());
        host.wire("wire", &outside, "eth0");
        outside.ip("addr add 192.0.2.9/24 dev eth0");
        Self { switch: Switch::start_in(host.name(), words), host, outside }
    }

    fn show(&self, port: &str) -> Value {
        self.switch.json(&["port", "show", port])
    }

    fn until(&self, port: &str, state: &str) {
        eventually(&format!("{port} {state}"), || (self.show(port)["state"] == state).then_some(()));
    }

    fn sent(&self, port: &str) -> u64 {
        self.show(port)["counters"]["to_device"]["frames"].as_u64().expect("a number")
    }
}

/// Makes a namespace resolve an unused address: its ARP requests are broadcasts.
fn shout(namespace: &Namespace) {
    namespace.within(|| {
        let socket = UdpSocket::bind("192.0.2.9:0").expect("bound");
        // There is no answer, and the kernel may report that at the next time.
        let _ = socket.send_to(b"x", "192.0.2.77:9");
    });
}

/// Waits for an ARP request among other frames.
fn hear_arp(guest: &mut Guest) -> Vec<u8> {
    loop {
        let frame = receive(guest);
        if frame[12..14] == [8, 6] {
            return frame;
        }
    }
}

#[test]
fn a_wire_carries_frames_both_ways_and_its_port_says_how() {
    if !may() {
        return;
    }
    let lab = Lab::new(&["--vnic", "vm1", "--uplink", "wire"]);
    lab.until("wire", "up");
    let mut vm1 = guest(&lab.switch, "vm1", ONE);
    shout(&lab.outside);
    assert_eq!(hear_arp(&mut vm1)[..6], [0xff; 6]);
    let before = lab.sent("wire");
    send(&mut vm1, &frame([0xff; 6], ONE, 1, 100));
    eventually("the frame on the wire", || (lab.sent("wire") > before).then_some(()));
    let shown = lab.show("wire");
    assert_eq!(
        (&shown["backend"], &shown["device"], &shown["mtu"]),
        (&json!("af_packet"), &json!("wire"), &json!(1500))
    );
    assert_eq!((&shown["has_link"], &shown["counters"]["conserved"]), (&json!(true), &json!(true)));
    assert!(shown["features"].as_array().expect("features").contains(&json!("HOST_TSO4")), "{shown}");
    let text = lab.switch.ask(&["port", "show", "wire"]).ok();
    for words in [
        "device        wire (uplink)\nstate         up",
        "backend       af_packet: ",
        "driver        process ",
    ] {
        assert!(text.contains(words), "{text}");
    }
    let list = lab.switch.ask(&["port", "list"]).ok();
    assert!(list.contains("wire  wire    uplink  up     af_packet"), "{list}");
    assert_eq!(lab.switch.json(&["vnic", "list"])["vnics"].as_array().map(Vec::len), Some(1));
    check_balance(&lab.switch);
}

#[test]
fn a_device_comes_and_goes_and_its_port_with_it() {
    if !may() {
        return;
    }
    let lab = Lab::new(&["--vnic", "vm1"]);
    let said = lab.switch.ask(&["port", "add", "late"]).ok();
    assert!(said.contains("added late over late (no device): there is no device \"late\""), "{said}");
    for _ in 0..2 {
        lab.until("late", "no device");
        lab.host.wire("late", &lab.outside, "eth1");
        lab.until("late", "up");
        lab.outside.ip("link set eth1 down");
        lab.until("late", "no carrier");
        lab.host.ip("link set late down");
        lab.until("late", "down");
        lab.host.ip("link set late up");
        lab.outside.ip("link set eth1 up");
        lab.until("late", "up");
        lab.host.ip("link set late mtu 1400");
        eventually("the MTU", || (lab.show("late")["mtu"] == 1400).then_some(()));
        let vm1 = lab.switch.json(&["vnic", "show", "vm1"]);
        let warning = vm1["warnings"][0].as_str().unwrap_or_default();
        assert!(warning.starts_with("mtu is 1500, but late has 1400"), "{vm1}");
        lab.host.ip("link del late");
    }
    lab.until("late", "no device");
    lab.host.ip("link set wire name late");
    lab.until("late", "up");
    lab.host.ip("link set late name other");
    lab.until("late", "no device");
    eventually("the port to be left", || {
        (lab.show("late")["inside"]["state"] == "waiting for guest").then_some(())
    });
    lab.host.ip("link set other name late");
    lab.until("late", "up");
    lab.host.ip(&format!("link set late netns {}", lab.outside.name()));
    lab.until("late", "no device");
    assert_eq!(lab.switch.ask(&["port", "del", "late"]).ok(), "deleted late\n");
}

/// A datagram to be fragmented later, which another VMM's guest may send (virtio 1.2, 5.1.6, `VIRTIO_NET_HDR_GSO_UDP`). Linux 6.18 fills no slot of a
/// packet socket's ring behind it.
#[test]
fn a_frame_that_stops_the_ring_costs_the_port_some_frames() {
    if !may() {
        return;
    }
    let host = Namespace::new();
    let guest =
        host.within(|| lasthop_netdev::tap("tap9", lasthop_netdev::TapOptions::default())).expect("a tap");
    let guest = &guest.descriptors[0];
    let switch = Switch::start_in(host.name(), &["--vnic", "vm1", "--port", "tap9,device=tap9,uplink=false"]);
    let lab = Lab { switch, host, outside: Namespace::new() };
    lab.until("tap9", "up");
    let mut vm1 = self::guest(&lab.switch, "vm1", ONE);
    let plain = [&[0; 12][..], &frame([0xff; 6], TWO, 1, 100)].concat();
    rustix::io::write(guest, &plain).expect("written");
    assert_eq!(receive(&mut vm1)[..6], [0xff; 6]);
    let mut later =
        [&[1, 3, 42, 0, 0xd0, 7, 34, 0, 6, 0, 0, 0][..], &frame([0xff; 6], TWO, 1, 3000)].concat();
    later[24..46]
        .copy_from_slice(&[8, 0, 0x45, 0, 11, 0xaa, 0, 0, 0, 0, 64, 17, 0, 0, 192, 0, 2, 8, 192, 0, 2, 9]);
    rustix::io::write(guest, &later).expect("written");
    let choice = || lab.show("tap9")["backend_why"].to_string();
    eventually("system calls", || {
        rustix::io::write(guest, &plain).expect("written");
        choice().contains("received by system calls, since a frame stopped its ring").then_some(())
    });
    lab.until("tap9", "up");
    eventually("a frame that passes", || {
        rustix::io::write(guest, &plain).expect("written");
        vm1.recv(0, &mut Vec::new()).expect("a sound ring")
    });
    let counters = &lab.show("tap9")["counters"];
    assert_eq!(counters["conserved"], json!(true), "{counters}");
    assert!(counters["missed"].as_u64().expect("a number") >= 2, "{counters}");
}

#[test]
fn guests_have_a_link_while_a_tracked_uplink_has_one() {
    if !may() {
        return;
    }
    let words = ["--vnic", "vm1", "--vnic", "vm2,link=down", "--vnic", "vm3,switch=red", "--switch", "red"];
    let lab = Lab::new(
        &[&words[..], &["--uplink", "wire,link-tracking=true", "--uplink", "other,link-tracking=true"]]
            .concat(),
    );
    let shown = |vnic: &str| lab.switch.ask(&["vnic", "show", vnic]).ok();
    let cut = |vnic: &str| shown(vnic).contains("link down with its uplinks");
    eventually("a link", || (!cut("vm1")).then_some(()));
    let mut vm1 = guest(&lab.switch, "vm1", ONE);
    lab.outside.ip("link set eth0 down");
    eventually("no link", || cut("vm1").then_some(()));
    let before = lab.switch.port("vm1")["rx_drops"]["link_down"].as_u64().unwrap_or(0);
    send(&mut vm1, &frame(TWO, ONE, 1, 60));
    eventually("a drop", || {
        (lab.switch.port("vm1")["rx_drops"]["link_down"].as_u64() > Some(before)).then_some(())
    });
    assert!(!cut("vm3"), "another switch's guests have no part in it");
    lab.switch.ask(&["vnic", "set", "vm1", "storm-broadcast=7"]).ok();
    assert!(cut("vm1"), "other settings change nothing about it");
    lab.host.wire("other", &lab.outside, "eth1");
    eventually("a link", || (!cut("vm1")).then_some(()));
    assert!(shown("vm2").contains("link down") && !cut("vm2"), "{}", shown("vm2"));
    lab.host.ip("link del other");
    eventually("no link", || cut("vm1").then_some(()));
    lab.switch.ask(&["port", "del", "other"]).ok();
    lab.switch.ask(&["port", "del", "wire"]).ok();
    eventually("a link, as nothing is tracked", || (!cut("vm1")).then_some(()));
}

/// Frames between two guests arrive, all of them.
fn talk(from: &mut Guest, to: &mut Guest) {
    for number in 0..50 {
        let sent = frame(TWO, ONE, number, 200);
        send(from, &sent);
        loop {
            let got = receive(to);
            if got[12..14] == [0x88, 0xb5] && got[6..12] == ONE {
                assert_eq!(got, sent);
                break;
            }
        }
    }
}

#[test]
fn guests_go_on_without_the_driver_which_is_started_again() {
    if !may() {
        return;
    }
    let lab =
        Lab::new(&["--vnic", "vm1", "--vnic", "vm2", "--uplink", "wire", "--host-port", "host=192.0.2.1/24"]);
    let (mut vm1, mut vm2) = (guest(&lab.switch, "vm1", ONE), guest(&lab.switch, "vm2", TWO));
    for port in ["wire", "host"] {
        lab.until(port, "up");
    }
    send(&mut vm2, &frame([0xff; 6], TWO, 0, 60));
    let driver = || lab.show("wire")["driver"]["pid"].as_u64().and_then(|pid| u32::try_from(pid).ok());
    let index = lab.host.ip("-o link show host");
    let first = driver().expect("a driver process");
    signal(first, Signal::KILL);
    talk(&mut vm1, &mut vm2);
    for port in ["wire", "host"] {
        eventually("another driver", || driver().is_some_and(|pid| pid != first).then_some(()));
        lab.until(port, "up");
    }
    let shown = lab.show("wire");
    assert_eq!(shown["driver"]["restarts"], 1);
    assert_eq!(shown["driver"]["last_end"]["why"], "was killed by signal 9");
    assert_eq!(lab.host.ip("-o link show host")[..9], index[..9], "the tap stayed");
    shout(&lab.outside);
    hear_arp(&mut vm1);
    assert_eq!(lab.switch.port("vm1")["rx_drops"], json!({}));
    check_balance(&lab.switch);
}

#[test]
fn a_driver_that_stands_still_holds_nobody_up() {
    if !may() {
        return;
    }
    let lab = Lab::new(&["--vnic", "vm1", "--vnic", "vm2", "--uplink", "wire"]);
    let (mut vm1, mut vm2) = (guest(&lab.switch, "vm1", ONE), guest(&lab.switch, "vm2", TWO));
    lab.until("wire", "up");
    let pid = lab.show("wire")["driver"]["pid"].as_u64().and_then(|pid| u32::try_from(pid).ok());
    let pid = pid.expect("a driver process");
    stop(pid);
    // Floods also go to the wire, more of them than it has buffers for.
    for number in 0..2000 {
        send(&mut vm1, &frame([0xff; 6], ONE, number, 200));
        receive_own(&mut vm2);
    }
    talk(&mut vm1, &mut vm2);
    assert_eq!(lab.show("wire")["state"], "up", "shown without its counters");
    let waiting = lab.switch.port("vm1")["waiting"].as_u64().expect("a number");
    assert!(waiting <= 256, "{waiting} frames wait, more than a sender's ring has");
    signal(pid, Signal::CONT);
    shout(&lab.outside);
    hear_arp(&mut vm1);
    eventually("nothing waiting", || (lab.switch.port("vm1")["waiting"] == 0).then_some(()));
    check_balance(&lab.switch);
}

/// The next frame of the first guest.
fn receive_own(guest: &mut Guest) {
    while receive(guest)[6..12] != ONE {}
}

#[test]
fn a_switch_that_is_started_again_has_its_ports_again() {
    if !may() {
        return;
    }
    let lab = Lab::new(&["--vnic", "vm1", "--uplink", "wire"]);
    lab.until("wire", "up");
    let driver = lab.show("wire")["driver"]["pid"].clone();
    signal(lab.switch.switch_pid().expect("a switch process"), Signal::KILL);
    eventually("the switch", || lab.switch.log().contains("running again").then_some(()));
    eventually("the port", || {
        let shown = lab.show("wire");
        (shown["state"] == "up" && shown["inside"]["state"] == "running").then_some(())
    });
    let mut vm1 = guest(&lab.switch, "vm1", ONE);
    shout(&lab.outside);
    hear_arp(&mut vm1);
    assert_eq!(lab.show("wire")["driver"]["pid"], driver, "the same driver");
}

#[test]
fn the_driver_ends_with_its_supervisor_and_leaves_nothing() {
    if !may() {
        return;
    }
    let lab = Lab::new(&["--uplink", "wire", "--host-port", "host=192.0.2.1/24"]);
    lab.until("host", "up");
    assert!(lab.switch.log().contains("with 0 vnics and 2 ports over devices"), "{}", lab.switch.log());
    let driver = lab.show("wire")["driver"]["pid"].as_u64().and_then(|pid| u32::try_from(pid).ok());
    let driver = driver.expect("a driver process");
    assert!(lab.host.ip("-d link show wire").contains("promiscuity 1"));
    signal(lab.switch.pid(), Signal::KILL);
    eventually("the end of the driver", || (!is_alive(driver)).then_some(()));
    eventually("the end of the tap", || (!lab.host.ip("link").contains("host")).then_some(()));
    assert!(lab.host.ip("-d link show wire").contains("promiscuity 0"));
}

#[test]
fn uplinks_exchange_frames_if_both_are_for_transit() {
    if !may() {
        return;
    }
    let lab = Lab::new(&["--uplink", "wire,transit=true"]);
    lab.host.wire("second", &lab.outside, "eth1");
    lab.host.wire("third", &lab.outside, "eth2");
    for port in ["second", "third,transit=true"] {
        lab.switch.ask(&["port", "add", port]).ok();
    }
    for port in ["wire", "second", "third"] {
        lab.until(port, "up");
    }
    let (mut second, third) = (lab.sent("second"), lab.sent("third"));
    shout(&lab.outside);
    eventually("the frame at the other one for transit", || (lab.sent("third") > third).then_some(()));
    second = lab.sent("second") - second;
    assert_eq!(second, 0, "not at the one that is not");
}

#[test]
fn the_doctor_knows_wires() {
    if !may() {
        return;
    }
    let lab = Lab::new(&["--vnic", "vm1,isolated=true", "--uplink", "wire", "--uplink", "gone"]);
    lab.until("wire", "up");
    let examine = || lab.switch.ask(&["doctor"]);
    let said = examine().refused_with_output();
    assert!(said.contains("not ok: gone device: there is no device \"gone\""), "{said}");
    assert!(said.contains("wire: driver ok - device ok - drops ok"), "{said}");
    assert!(!said.contains("isolated"), "the wire is not: {said}");
    lab.switch.ask(&["port", "del", "gone"]).ok();
    lab.outside.ip("link set eth0 down");
    lab.until("wire", "no carrier");
    let said = lab.switch.ask(&["doctor", "wire"]).refused_with_output();
    assert!(said.contains("not ok: wire device: wire has no carrier"), "{said}");
}

#[test]
fn the_doctor_counts_ports_as_ports() {
    if !may() {
        return;
    }
    let lab = Lab::new(&["--uplink", "wire"]);
    lab.until("wire", "up");
    let said = lab.switch.ask(&["doctor"]).ok();
    assert!(said.starts_with("ok: nothing is wrong with 1 port\n"), "{said}");
}

#[test]
fn a_dummy_joins_two_uplinks() {
    if !may() {
        return;
    }
    let lab = Lab::new(&["--module", "dummy", "--uplink", "wire", "--uplink", "second"]);
    lab.host.wire("second", &lab.outside, "eth1");
    for port in ["wire", "second"] {
        lab.until(port, "up");
    }
    let before = lab.sent("second");
    shout(&lab.outside);
    eventually("the frame at the other one", || (lab.sent("second") > before).then_some(()));
    assert!(lab.switch.ask(&["port", "add", "third,vlan=5"]).refused().contains("leave out those keys"));
}

#[test]
fn names_and_devices_are_shared_by_none() {
    if !may() {
        return;
    }
    let lab = Lab::new(&["--vnic", "vm1", "--uplink", "wire"]);
    let refused = |words: &[&str]| lab.switch.ask(words).refused();
    for (words, why) in [
        (&["vnic", "add", "wire"][..], "there is a port \"wire\" already"),
        (&["port", "add", "vm1"][..], "there is a port \"vm1\" already"),
        (&["port", "add", "wire"][..], "there is a port \"wire\" already"),
        (&["port", "add", "again,device=wire"][..], "the device \"wire\" is that of port \"wire\""),
        (&["port", "set", "wire", "link=down"][..], "link is for vhost-user ports"),
        (
            &["port", "set", "wire", "host=off"][..],
            "make it anew: lasthop port del wire && lasthop port add wire,host=off",
        ),
        (&["vnic", "del", "wire"][..], "\"wire\" is a port; use: lasthop port show wire"),
        (&["vnic", "show", "wire"][..], "\"wire\" is a port"),
        (&["port", "show", "wrie"][..], "there is no port \"wrie\""),
        (&["port", "add", "x,switch=red"][..], "there is no switch \"red\""),
    ] {
        let message = refused(words);
        assert!(message.contains(&lab.switch.addressed(why)), "{words:?}: {message}");
    }
    let misfit = lab.switch.ask(&["port", "add", "vm2,backend=vhost-user,host=off"]);
    assert!(
        misfit.code == Some(2) && misfit.err.contains("host is for devices; leave it out"),
        "{}",
        misfit.err
    );
    assert!(lab.switch.ask(&["switch", "del", "default"]).refused().contains("cannot be deleted"));
}

#[test]
fn ports_of_every_backend_are_listed_changed_and_removed_by_the_same_words() {
    if !may() {
        return;
    }
    let lab = Lab::new(&["--vnic", "vm1", "--port", "wire"]);
    lab.switch.ask(&["port", "add", "tap7,backend=tap"]).ok();
    let listed = |words: &[&str]| -> Vec<String> {
        let list = lab.switch.json(&[&["port", "list"], words].concat());
        let ports = list["ports"].as_array().expect("ports").iter();
        ports.map(|port| port["name"].as_str().expect("a name").to_owned()).collect()
    };
    assert_eq!(listed(&[]), ["tap7", "vm1", "wire"]);
    for (backend, name) in [("vhost-user", "vm1"), ("device", "wire"), ("tap", "tap7")] {
        assert_eq!(listed(&["--backend", backend]), [name]);
    }
    lab.switch.ask(&["port", "set", "*", "vlan=5,storm-unknown=1000"]).ok();
    for name in ["vm1", "wire", "tap7"] {
        let settings = lab.switch.json(&["port", "show", name])["settings"].clone();
        assert_eq!(
            (settings["vlan"].as_u64(), settings["storm_unknown"].as_u64()),
            (Some(5), Some(1000)),
            "{name}"
        );
    }
    lab.until("wire", "up");
    let refused = lab.switch.ask(&["port", "show", "wire", "--qemu"]).refused();
    assert!(refused.contains("no guest attaches to it"), "{refused}");
    assert_eq!(lab.switch.ask(&["vnic", "del", "*"]).ok(), "deleted vm1\n", "guests' ports alone");
    assert_eq!(lab.switch.ask(&["port", "del", "*"]).ok(), "deleted tap7\ndeleted wire\n");
    eventually("the tap to go", || (!lab.host.ip("-o link").contains("tap7")).then_some(()));
}

#[test]
fn what_runs_is_written_as_a_file_and_applied() {
    if !may() {
        return;
    }
    let lab = Lab::new(&[
        "--vnic",
        "vm1",
        "--uplink",
        "wire,vlan=5,link-tracking=true",
        "--host-port",
        "host=192.0.2.1/24,mtu=1400",
    ]);
    lab.until("host", "up");
    let shown = lab.host.ip("-o addr show host");
    assert!(shown.contains("192.0.2.1/24"), "{shown}");
    assert!(lab.host.ip("-o link show host").contains("mtu 1400"));
    let file = lab.switch.base.path().join("now.toml");
    let path = file.to_str().expect("text");
    let config = lab.switch.ask(&["config", "show"]).ok();
    assert!(config.contains("[[port]]\nname = \"wire\"\nlink-tracking = true\nvlan = 5\n"), "{config}");
    std::fs::write(&file, &config).expect("written");
    assert!(lab.switch.ask(&["check", "-c", path]).ok().contains("is valid"));
    assert!(lab.switch.ask(&["apply", "-c", path]).ok().contains("nothing to do"));
    let other = config.replace("vlan = 5", "vlan = 6").replace("name = \"host\"\n", "name = \"home\"\n");
    std::fs::write(&file, other).expect("written");
    let said = lab.switch.ask(&["apply", "-c", path]).ok();
    for line in
        ["- port host\n", "~ port wire vlan: 5 -> 6\n", "+ port home\n", "1 added, 1 removed, 1 changed"]
    {
        assert!(said.contains(line), "{said}");
    }
    for port in ["wire", "home"] {
        lab.until(port, "up");
    }
    assert!(lab.switch.ask(&["vlan", "show"]).ok().contains("wire"));
}

#[test]
fn a_capture_shows_what_a_wire_carries() {
    if !may() {
        return;
    }
    let lab = Lab::new(&["--uplink", "wire", "--vnic", "vm1"]);
    lab.until("wire", "up");
    let _vm1 = guest(&lab.switch, "vm1", ONE);
    let file = lab.switch.base.path().join("wire.pcapng");
    let words = ["capture", "wire", "--count", "1", "-w", file.to_str().expect("text")];
    std::thread::scope(|scope| {
        let capture = scope.spawn(|| lab.switch.ask(&words));
        while !capture.is_finished() {
            shout(&lab.outside);
            std::thread::sleep(WAIT / 1000);
        }
        capture.join().expect("ended").ok();
    });
    assert!(file.metadata().expect("a file").len() > 100);
}

#[test]
fn a_wire_that_is_a_bridges_port_is_warned_of_and_the_loopback_is_refused() {
    if !may() {
        return;
    }
    let lab = Lab::new(&["--vnic", "vm1", "--uplink", "wire"]);
    lab.until("wire", "up");
    let is_warned =
        || lab.switch.ask(&["doctor", "wire"]).out.contains("wire is a port of a Linux bridge, too");
    assert!(!is_warned());
    lab.host.ip("link add virbr7 type bridge");
    lab.host.ip("link set wire master virbr7");
    eventually("the warning", || is_warned().then_some(()));
    let shown = lab.switch.ask(&["port", "show", "wire"]).ok();
    assert!(shown.contains("a port of a Linux bridge"), "{shown}");
    lab.host.ip("link set wire nomaster");
    eventually("no warning any more", || (!is_warned()).then_some(()));
    let refused = lab.switch.ask(&["port", "add", "lo"]);
    assert!(refused.err.contains("no Ethernet device"), "{}", refused.err);
    assert_eq!(refused.code, Some(2));
}

#[test]
fn the_hosts_port_has_the_same_address_after_each_start() {
    if !may() {
        return;
    }
    let host = Namespace::new();
    let mac = || {
        let mut switch = Switch::start_in(host.name(), &["--host-port", "br0=192.0.2.1/24", "--vnic", "vm1"]);
        let mac = eventually("an address", || {
            switch.json(&["port", "show", "br0"])["mac"].as_str().map(str::to_owned)
        });
        assert_eq!(switch.end().code(), Some(0));
        mac
    };
    let first = mac();
    assert_eq!((&first[..9], mac()), ("02:6c:68:", first.clone()));
}

#[test]
fn an_address_of_the_host_and_of_a_guest_is_told_at_both_and_its_remedy_works() {
    if !may() {
        return;
    }
    let lab = Lab::new(&["--vnic", "vm1", "--host-port", "host=192.0.2.1/24"]);
    lab.until("host", "up");
    let shown = lab.show("host")["mac"].as_str().expect("an address").to_owned();
    let mac: Vec<u8> = shown.split(':').map(|byte| u8::from_str_radix(byte, 16).expect("a byte")).collect();
    let mac = mac.try_into().expect("six bytes");
    let mut vm1 = guest(&lab.switch, "vm1", mac);
    let place = || {
        let entries = lab.switch.json(&["fdb", "show"])["entries"].clone();
        let entry = entries.as_array().expect("a list").iter().find(|entry| entry["mac"] == shown)?.clone();
        entry["port"].as_str().map(str::to_owned)
    };
    let host_speaks = || {
        lab.host.within(|| {
            let socket = UdpSocket::bind("192.0.2.1:0").expect("bound");
            socket.set_broadcast(true).expect("set");
            socket.send_to(b"x", "192.0.2.255:9").expect("sent");
        });
    };
    for _ in 0..2 {
        eventually("the guest's address", || {
            send(&mut vm1, &frame([0xff; 6], mac, 1, 60));
            (place().as_deref() == Some("vm1")).then_some(())
        });
        eventually("the host's address", || {
            host_speaks();
            (place().as_deref() == Some("host")).then_some(())
        });
    }
    let said = lab.switch.ask(&["doctor"]).out;
    let duplicate = format!("learning: duplicate MAC address {shown}: it is seen from ");
    for port in ["vm1", "host"] {
        assert!(said.contains(&format!("not ok: {port} {duplicate}")), "{said}");
    }
    assert!(said.contains("host: driver ok - device ok - learning NOT OK - drops ok"), "{said}");
    let remedy =
        said.lines().find_map(|line| line.split_once("or the host's port host: ")).expect("a remedy").1;
    let command = format!("lasthop --dir {} ", lab.switch.dir().display());
    for step in remedy.split(" && ") {
        let words =
            step.strip_prefix(&command).expect("of this switch").replace("ADDRESS", "02:00:00:00:00:09");
        lab.switch.ask(&words.split(' ').collect::<Vec<_>>()).ok();
    }
    eventually("the other address", || (lab.show("host")["mac"] == "02:00:00:00:00:09").then_some(()));
    assert_eq!(lab.switch.ask(&["doctor", "--switch"]).code, Some(0), "an address is no fault of the switch");
}
