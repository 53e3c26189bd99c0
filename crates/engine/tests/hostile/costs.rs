//! Guests whose front ends make the kernel work for long on the switch's account.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::event::{EventfdFlags, epoll, eventfd};

use super::*;

/// Watches of a slow call: some 5 ms for each write, and more on a busy machine.
const WATCHES: usize = 64_000;
/// Watches of one file in one epoll instance: each by a descriptor of its own.
const DESCRIPTORS: usize = 200;

/// What makes writes to an eventfd slow, as long as it lives.
struct Watches {
    _copies: Vec<OwnedFd>,
    _epolls: Vec<OwnedFd>,
}

fn watch_from_everywhere(event: BorrowedFd<'_>) -> Watches {
    let copies: Vec<OwnedFd> = (0..DESCRIPTORS).map(|_| event.try_clone_to_owned().unwrap()).collect();
    let watch = |_| {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        for (number, copy) in (0..).zip(&copies) {
            let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
            epoll::add(&epoll, copy, epoll::EventData::new_u64(number), flags).unwrap();
        }
        epoll
    };
    let epolls = (0..WATCHES / DESCRIPTORS).map(watch).collect();
    Watches { _copies: copies, _epolls: epolls }
}

#[test]
fn a_guest_whose_calls_take_the_kernel_long_is_stopped_and_then_held() {
    let mut scene = Scene::new();
    let (port, mut bad) = scene.attach("bad", GuestOptions::default());
    let (_, mut third) = scene.attach("third", GuestOptions::default());
    let slow = eventfd(0, EventfdFlags::NONBLOCK).unwrap();
    let watches = watch_from_everywhere(slow.as_fd());
    let (mut number, mut received) = (0, Vec::new());
    for offence in 1..=4 {
        bad.front().set_vring_call(0, Some(slow.as_fd())).unwrap();
        eventually("the port is stopped by name", || {
            send(&mut third, &frame(BAD, THIRD, number, 64));
            third.reclaim(0).unwrap();
            // Who takes what came and asks for it is signalled again.
            while bad.recv(0, &mut received).unwrap().is_some() {}
            bad.wait(Some(Duration::ZERO)).unwrap();
            number += 1;
            match scene.switch.port(port).state {
                PortState::Stopped(why) => why.contains("a call eventfd is slow"),
                _ => false,
            }
        });
        drop(bad);
        eventually("the port is free", || scene.switch.port(port).state == PortState::Waiting);
        let socket = scene.switch.serve(port);
        match Guest::over(socket, GuestOptions::default()) {
            Ok(guest) => bad = guest,
            Err(error) => {
                assert!(offence == 4 && error.to_string().contains("refused"), "{offence}: {error}");
                break;
            }
        }
        assert!(offence < 4, "it is not held");
        // It has to learn where the guest is once more.
        send(&mut bad, &frame(THIRD, BAD, number, 64));
    }
    drop(watches);
    scene.assert_unharmed();
}

#[test]
fn guests_on_a_crowded_machine_are_taken_for_no_offenders() {
    let mut scene = Scene::new();
    let stop = Arc::new(AtomicBool::new(false));
    let crowd: Vec<_> = (0..4 * std::thread::available_parallelism().unwrap().get())
        .map(|_| {
            let stop = Arc::clone(&stop);
            std::thread::spawn(move || while !stop.load(Ordering::Relaxed) {})
        })
        .collect();
    (0..3).for_each(|_| scene.talk());
    stop.store(true, Ordering::Relaxed);
    crowd.into_iter().for_each(|thread| thread.join().unwrap());
    scene.assert_unharmed();
}

#[test]
fn a_ring_that_nobody_kicks_leaves_the_core_to_others_while_it_is_quiet() {
    let mut scene = Scene::new();
    let (_, mut quiet) = scene.attach("bad", GuestOptions::default());
    quiet.front().set_vring_kick(1, None).unwrap();
    for number in 0..3 {
        assert!(quiet.send(0, &frame(OTHER, BAD, number, 64), Default::default()).unwrap());
        let ring = quiet.transmit_ring(0).unwrap();
        ring.publish(); // and no kick
        assert_eq!(receive_mine(&mut scene.other, OTHER), frame(OTHER, BAD, number, 64));
        let sleeps = || scene.switch.engine.stats().unwrap().workers[0].sleeps;
        let before = sleeps();
        eventually("the worker sleeps again and again", || sleeps() > before + 100);
    }
    scene.assert_unharmed();
}
