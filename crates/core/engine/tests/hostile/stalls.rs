//! Guests that flood, or do not post buffers.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use lasthop_module_api::{DropReason, PortPolicy};

use super::*;

#[test]
fn kicks_without_end_hold_up_nobody() {
    let mut scene = Scene::new();
    let (port, mut guest) = scene.attach("bad", GuestOptions::default());
    let stop = Arc::new(AtomicBool::new(false));
    let kicker = {
        let stop = Arc::clone(&stop);
        std::thread::spawn(move || {
            let mut kicks = 0_u64;
            while !stop.load(Ordering::Relaxed) {
                guest.kick(0).unwrap();
                kicks += 1;
            }
            (guest, kicks)
        })
    };
    (0..10).for_each(|_| scene.talk());
    stop.store(true, Ordering::Relaxed);
    let (mut guest, kicks) = kicker.join().unwrap();
    assert!(kicks > 1000, "{kicks} kicks");
    assert_eq!(scene.switch.port(port).state, PortState::Running);
    send(&mut guest, &frame(OTHER, BAD, 1, 64));
    assert_eq!(receive_mine(&mut scene.other, OTHER), frame(OTHER, BAD, 1, 64));
    scene.assert_unharmed();
}

#[test]
fn of_kicks_without_packets_few_are_heard_and_later_packets_are_found() {
    const KICKS: u64 = 100_000;
    let mut scene = Scene::new();
    let (port, mut bad) = scene.attach("bad", GuestOptions { rx_buffers: 4, ..GuestOptions::default() });
    let heard = |scene: &Scene| {
        scene.switch.engine.inspect(&[port]).unwrap()[0].iter().map(|ring| ring.kicks).sum::<u64>()
    };
    for number in 0..3 {
        // Kicks of both rings.
        (0..KICKS).for_each(|_| bad.kick(0).unwrap());
        assert!(heard(&scene) < KICKS / 50, "{} of {KICKS} kicks", heard(&scene));
        send(&mut bad, &frame(OTHER, BAD, number, 64));
        assert_eq!(receive_mine(&mut scene.other, OTHER), frame(OTHER, BAD, number, 64));
        // More frames than it has buffers: most wait until it posts them again.
        let frames: Vec<_> = (0..64).map(|number| frame(BAD, OTHER, number, 64)).collect();
        frames.iter().for_each(|frame| send(&mut scene.other, frame));
        frames.iter().for_each(|frame| assert_eq!(receive_mine(&mut bad, BAD), *frame));
        scene.other.reclaim(0).unwrap();
    }
    assert_eq!(scene.switch.port(port).counters.tx_drops.total(), 0);
    assert_eq!(scene.switch.port(port).state, PortState::Running);
}

#[test]
fn a_guest_that_posts_no_buffers_costs_only_who_sends_to_it() {
    let mut scene = Scene::new();
    let (port, mut bad) = scene.attach("bad", GuestOptions { rx_buffers: 1, ..GuestOptions::default() });
    let (third_port, mut third) = scene.attach("third", GuestOptions::default());
    send(&mut bad, &frame(THIRD, BAD, 0, 64));
    receive(&mut third);
    // It has one buffer, which it never returns: the first frame uses it up.
    let mut sent = 1;
    eventually("what it does not take is dropped by name", || {
        for _ in 0..64 {
            sent += u32::from(third.send(0, &frame(BAD, THIRD, sent, 64), Default::default()).unwrap());
        }
        third.flush(0).unwrap();
        third.reclaim(0).unwrap();
        let drops = scene.switch.port(third_port).counters.rx_drops;
        drops.of(DropReason::RxTimeout) > 0 && drops.of(DropReason::RxStalled) > 0
    });
    scene.talk();
    assert!(scene.switch.port(port).counters.tx_drops.total() > 0, "its own counters tell, too");
    assert_eq!(scene.switch.port(port).state, PortState::Running);
    // The third guest is not blocked: its frames to other ports arrive.
    third.reclaim(0).unwrap();
    send(&mut third, &frame(OTHER, THIRD, 7, 64));
    assert_eq!(receive_mine(&mut scene.other, OTHER), frame(OTHER, THIRD, 7, 64));
    scene.assert_unharmed();
}

#[test]
fn a_guest_that_never_takes_its_transmit_buffers_back_stops_only_itself() {
    let mut scene = Scene::new();
    let (port, mut bad) = scene.attach("bad", GuestOptions::default());
    let mut sent = 0;
    while bad.send(0, &frame(OTHER, BAD, sent, 64), Default::default()).unwrap() {
        bad.flush(0).unwrap();
        sent += 1;
    }
    eventually("all that it sent is taken", || {
        scene.switch.port(port).counters.rx_packets == u64::from(sent)
    });
    for number in 0..sent {
        assert_eq!(receive_mine(&mut scene.other, OTHER), frame(OTHER, BAD, number, 64));
    }
    scene.assert_unharmed();
}

#[test]
fn a_sender_without_mercy_does_not_cost_others_their_packets() {
    let mut scene = Scene::new();
    let (_, mut bad) = scene.attach("bad", GuestOptions::default());
    let stop = Arc::new(AtomicBool::new(false));
    let flood = {
        let stop = Arc::clone(&stop);
        std::thread::spawn(move || {
            // It sends to itself: all work is the switch's, and no other guest sees a frame.
            while !stop.load(Ordering::Relaxed) {
                while bad.send(0, &frame(BAD, BAD, 0, 1500), Default::default()).unwrap() {}
                bad.flush(0).unwrap();
                bad.reclaim(0).unwrap();
            }
        })
    };
    (0..10).for_each(|_| scene.talk());
    stop.store(true, Ordering::Relaxed);
    flood.join().unwrap();
    scene.assert_unharmed();
}

#[test]
fn a_broadcast_storm_beyond_its_limit_reaches_nobody() {
    let mut scene = Scene::new();
    let storm = lasthop_module_api::StormLimits { broadcast: 100, ..Default::default() };
    let settings =
        lasthop_engine::PortConfig { policy: PortPolicy { storm, ..PortPolicy::default() }, ..config("bad") };
    let (port, mut bad) = scene.switch.attach(settings, GuestOptions::default());
    let mut broadcast = frame(0xff, BAD, 0, 200);
    broadcast[..6].fill(0xff);
    let stop = Arc::new(AtomicBool::new(false));
    let flood = {
        let stop = Arc::clone(&stop);
        std::thread::spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                while bad.send(0, &broadcast, Default::default()).unwrap() {}
                bad.flush(0).unwrap();
                bad.reclaim(0).unwrap();
            }
        })
    };
    eventually("the excess is dropped by name", || {
        scene.talk();
        scene.switch.port(port).counters.rx_drops.of(DropReason::StormBroadcast) > 10_000
    });
    stop.store(true, Ordering::Relaxed);
    flood.join().unwrap();
    scene.assert_unharmed();
}
