//! All processes of the switch die, and only its guests' front ends know its chains in flight (INFLIGHT_SHMFD).

use std::collections::HashSet;

use lasthop_frontend::{ALL_FEATURES, Guest, GuestOptions};
use lasthop_rig::guests::{ONE, TWO, frame, guest_with, running, send};
use lasthop_rig::{Switch, eventually, signal};
use lasthop_vhost::features::{IN_ORDER, RING_PACKED};
use lasthop_wire::Offload;
use rustix::process::Signal;

/// How often everything dies.
const DEATHS: usize = 6;
/// Frames of a burst, and bursts between two deaths.
const BURST: u32 = 16;
const ROUNDS: usize = 200;
const VNICS: [&str; 6] = ["--vnic", "one", "--vnic", "two", "--vnic", "three"];
const THREE: [u8; 6] = [0x02, 0, 0, 0, 0, 3];
const ALL: [u8; 6] = [0xff; 6];

fn options(mac: [u8; 6], rx_buffers: u16) -> GuestOptions {
    GuestOptions { mac, rx_buffers, inflight: true, ring_entries: 64, ..GuestOptions::default() }
}

/// Kills supervisor and switch process; another switch runs in the same directory, and its guests continue there.
fn everything_dies<const N: usize>(switch: &mut Switch, guests: [(&str, &mut Guest); N]) {
    let inner = switch.switch_pid().expect("a switch process");
    // The switch process dies first, so that it has no time to finish anything.
    signal(inner, Signal::KILL);
    signal(switch.pid(), Signal::KILL);
    switch.wait();
    let base = std::mem::replace(&mut switch.base, tempfile::tempdir().expect("a directory"));
    *switch = Switch::spawn(base, &VNICS);
    eventually("the next switch", || switch.log().contains("switch is running").then_some(()));
    for (name, guest) in guests {
        guest.resume(switch.connect(&format!("{name}.sock"))).expect("attached");
        running(switch, name);
    }
}

/// The numbers that a guest received, without duplicates and in order.
#[derive(Default)]
struct Ear {
    seen: HashSet<u32>,
    last: u32,
}

impl Ear {
    fn listen(&mut self, guest: &mut Guest) {
        let mut bytes = Vec::new();
        while guest.recv(0, &mut bytes).expect("a sound ring").is_some() {
            let number = u32::from_be_bytes(bytes[14..18].try_into().expect("a number"));
            let to = bytes[..6].try_into().expect("an address");
            assert_eq!(bytes, frame(to, ONE, number, 200), "damaged");
            assert!(number > self.last, "{number} came after {}", self.last);
            assert!(self.seen.insert(number), "{number} came twice");
            self.last = number;
        }
    }
}

fn restarts(switch: &Switch) -> u64 {
    switch.port("one")["rx_drops"]["restart"].as_u64().unwrap_or_default()
}

#[test]
fn what_was_in_flight_is_given_back_undelivered_and_nothing_comes_twice() {
    everything_dies_again_and_again(ALL_FEATURES);
}

#[test]
fn what_was_in_flight_in_order_is_given_back_in_order() {
    everything_dies_again_and_again(ALL_FEATURES | IN_ORDER);
}

#[test]
fn what_was_in_flight_in_packed_rings_is_given_back() {
    everything_dies_again_and_again(ALL_FEATURES | RING_PACKED);
}

fn everything_dies_again_and_again(features: u64) {
    let mut switch = Switch::start(&VNICS);
    let mut one = guest_with(&switch, "one", GuestOptions { features, ..options(ONE, 64) });
    let mut two = guest_with(&switch, "two", options(TWO, 64));
    let (mut ear, mut number) = (Ear::default(), 0);
    for _ in 0..DEATHS {
        for _ in 0..ROUNDS {
            for _ in 0..BURST {
                let sent = one.send(0, &frame(TWO, ONE, number + 1, 200), Offload::default());
                number += u32::from(sent.expect("connected"));
            }
            one.flush(0).expect("connected");
            one.reclaim(0).expect("each chain comes back once");
            ear.listen(&mut two);
        }
        everything_dies(&mut switch, [("one", &mut one), ("two", &mut two)]);
    }
    eventually("all chains", || {
        ear.listen(&mut two);
        one.reclaim(0).expect("each chain comes back once");
        (one.in_flight(0).expect("a sound ring") == 0).then_some(())
    });
    let heard = ear.seen.len();
    send(&mut one, &frame(TWO, ONE, number + 1, 200));
    eventually("one more", || {
        ear.listen(&mut two);
        (ear.seen.len() > heard).then_some(())
    });
    switch.ask(&["stats", "--check"]).ok();
}

/// Floods frames that one guest receives and another one has no room for, so that frames with one delivered copy wait;
/// returns how many the next switch gave back.
fn given_back(switch: &mut Switch, guests: [&mut Guest; 3], ear: &mut Ear, number: &mut u32) -> u64 {
    let [one, two, three] = guests;
    one.reclaim(0).expect("each chain comes back once");
    for _ in 0..BURST {
        *number += 1;
        assert!(one.send(0, &frame(ALL, ONE, *number, 200), Offload::default()).expect("connected"));
    }
    one.flush(0).expect("connected");
    eventually("the frames", || {
        ear.listen(two);
        (ear.last == *number).then_some(())
    });
    everything_dies(switch, [("one", one), ("two", two), ("three", three)]);
    ear.listen(two);
    restarts(switch)
}

#[test]
fn what_was_delivered_to_one_guest_and_waits_for_another_one_does_not_come_again() {
    // A bridge, as frames that go to the control plane are no longer in flight.
    let mut switch = Switch::start(&[&VNICS[..], &["--module", "bridge"]].concat());
    let mut one = guest_with(&switch, "one", options(ONE, 64));
    let mut two = guest_with(&switch, "two", options(TWO, 64));
    let mut three = guest_with(&switch, "three", options(THREE, 4));
    let (mut ear, mut number) = (Ear::default(), 0);
    // They wait for 300 ms, which may be over before everything dies; then it is repeated.
    let lost = eventually("frames in flight", || {
        let guests = [&mut one, &mut two, &mut three];
        let lost = given_back(&mut switch, guests, &mut ear, &mut number);
        (lost > 0).then_some(lost)
    });
    assert!(lost <= u64::from(BURST), "{lost}");
    switch.ask(&["stats", "--check"]).ok();
    eventually("all chains", || {
        ear.listen(&mut two);
        one.reclaim(0).expect("each chain comes back once");
        (one.in_flight(0).expect("a sound ring") == 0).then_some(())
    });
    number += 1;
    send(&mut one, &frame(TWO, ONE, number, 200));
    eventually("one more", || {
        ear.listen(&mut two);
        (ear.last == number).then_some(())
    });
}

#[test]
fn without_a_file_rings_go_on_from_the_used_index() {
    let mut switch = Switch::start(&VNICS);
    let without = |mac| GuestOptions { inflight: false, ..options(mac, 64) };
    let mut one = guest_with(&switch, "one", without(ONE));
    let mut two = guest_with(&switch, "two", without(TWO));
    everything_dies(&mut switch, [("one", &mut one), ("two", &mut two)]);
    let mut ear = Ear::default();
    send(&mut one, &frame(TWO, ONE, 1, 200));
    eventually("a frame", || {
        ear.listen(&mut two);
        (ear.last == 1).then_some(())
    });
}
