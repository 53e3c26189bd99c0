//! Front ends that do not behave, at the built binary, next to two guests that talk and lose nothing.
//! docs/hostile-guests.md lists what else is tried.

mod support;

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use lasthop_guest::{Guest, GuestOptions};
use support::{Switch, eventually};

const GET_FEATURES: u32 = 1;
const GET_CONFIG: u32 = 24;
const WAIT: Duration = Duration::from_secs(20);

/// Two guests at a switch with a third vnic.
struct Scene {
    switch: Switch,
    one: Guest,
    two: Guest,
    sent: u64,
}

fn mac(number: u8) -> [u8; 6] {
    [2, 0, 0, 0, 0, number]
}

fn frame(to: u8, from: u8, number: u64) -> Vec<u8> {
    [&mac(to)[..], &mac(from), &[0x88, 0xb5], &number.to_be_bytes(), &[0; 40]].concat()
}

impl Scene {
    fn new() -> Self {
        // With addresses of their own: nothing of theirs is flooded to a vnic that nobody serves.
        let (one, two) = ("one,mac=02:00:00:00:00:01", "two,mac=02:00:00:00:00:02");
        let switch = Switch::start(&["--vnic", one, "--vnic", two, "--vnic", "bad"]);
        let attach = |vnic: &str, number| {
            let options = GuestOptions { mac: mac(number), ..GuestOptions::default() };
            let guest = Guest::connect(switch.path(&format!("{vnic}.sock")), options).expect("attached");
            eventually("the guest", || (switch.port(vnic)["state"] == "running").then_some(()));
            guest
        };
        let (one, two) = (attach("one", 1), attach("two", 2));
        Self { switch, one, two, sent: 0 }
    }

    fn talk(&mut self) {
        for _ in 0..20 {
            self.sent += 1;
            exchange(&mut self.one, &mut self.two, &frame(2, 1, self.sent));
            exchange(&mut self.two, &mut self.one, &frame(1, 2, self.sent));
        }
    }

    fn assert_unharmed(&mut self) {
        self.talk();
        self.switch.ask(&["stats", "--check"]).ok();
        for vnic in ["one", "two"] {
            let port = self.switch.port(vnic);
            assert_eq!(port["rx_packets"], self.sent);
            // What a controller was asked about came back from it.
            let returned = port["injected"].as_u64().expect("a count");
            assert_eq!(port["forwarded"].as_u64(), Some(self.sent + returned), "{port}");
            assert_eq!(port["rx_drops"], serde_json::json!({}), "{port}");
        }
    }

    fn bad(&self) -> UnixStream {
        let front = self.switch.connect("bad.sock");
        front.set_write_timeout(Some(WAIT)).expect("a socket");
        front
    }

    /// Waits until the log says for the `count`th time that the bad guest is gone, because of `why`.
    fn await_end(&self, count: usize, why: &str) {
        let line = "vnic bad: its guest is gone";
        eventually("the end", || (self.switch.log().matches(line).count() >= count).then_some(()));
        let log = self.switch.log();
        assert!(log.lines().filter(|it| it.contains(line)).all(|it| it.contains(why)), "{why}: {log}");
    }

    /// A guest like any other can attach where the bad one was.
    fn assert_port_is_free(&mut self) {
        let options = GuestOptions { mac: mac(3), ..GuestOptions::default() };
        let path = self.switch.path("bad.sock");
        let attached = || Guest::connect(&path, options.clone()).ok();
        let mut guest = eventually("the port is free", attached);
        eventually("the guest", || (self.switch.port("bad")["state"] == "running").then_some(()));
        exchange(&mut guest, &mut self.one, &frame(1, 3, 0));
    }
}

fn exchange(from: &mut Guest, to: &mut Guest, sent: &[u8]) {
    assert!(from.send(0, sent, Default::default()).expect("sent"), "the ring is full");
    from.flush(0).expect("flushed");
    let mut received = Vec::new();
    while to.recv(0, &mut received).expect("a sound ring").is_none() {
        assert!(to.wait(Some(WAIT)).expect("connected"), "no frame came");
    }
    assert_eq!(received, sent);
    from.reclaim(0).expect("a sound ring");
}

fn message(request: u32, body: &[u8]) -> Vec<u8> {
    let header = [request, 1, body.len() as u32].map(u32::to_ne_bytes).concat();
    [header, body.to_vec()].concat()
}

#[test]
fn half_a_message_holds_up_nobody() {
    let mut scene = Scene::new();
    let mut front = scene.bad();
    front.write_all(&message(5, &[0; 40])[..30]).expect("written");
    eventually("it is there", || (scene.switch.port("bad")["state"] == "connected").then_some(()));
    scene.talk();
    let shown = scene.switch.ask(&["vnic", "show", "bad"]).ok();
    assert!(shown.contains("state         connected"), "{shown}");
    drop(front);
    scene.await_end(1, "");
    scene.assert_port_is_free();
    scene.assert_unharmed();
}

#[test]
fn a_flood_of_messages_holds_up_nobody_and_unread_answers_end_it() {
    let mut scene = Scene::new();
    let mut front = scene.bad();
    let flood = message(GET_FEATURES, &[]).repeat(100);
    for _ in 0..50 {
        front.write_all(&flood).expect("written");
        let mut answers = vec![0; 100 * 20];
        front.read_exact(&mut answers).expect("each is answered");
    }
    scene.talk();
    let greedy = message(GET_CONFIG, &[[0; 4], 256_u32.to_ne_bytes(), [0; 4]].concat());
    let greedy = [greedy, vec![0; 256]].concat(); // a body of 268 bytes
    let greedy = [&greedy[..8], &268_u32.to_ne_bytes(), &greedy[12..]].concat();
    while front.write_all(&greedy).is_ok() {}
    scene.await_end(1, "replies wait to be read");
    scene.assert_port_is_free();
    scene.assert_unharmed();
}

#[test]
fn sessions_without_end_hold_up_nobody() {
    let mut scene = Scene::new();
    for round in 0..50 {
        let mut front = scene.bad();
        if round % 2 == 0 {
            front.write_all(&message(GET_FEATURES, &[])).expect("written");
        }
        drop(front);
        if round % 10 == 0 {
            scene.talk();
        }
    }
    scene.assert_port_is_free();
    scene.assert_unharmed();
    let fds = std::fs::read_dir(format!("/proc/{}/fd", scene.switch.pid())).expect("its descriptors").count();
    assert!(fds < 64, "{fds} descriptors");
}
