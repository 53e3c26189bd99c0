//! Guests whose front ends make the kernel work long on the switch's account.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lasthop_guestmem::memfd;
use lasthop_vhost::message::MemoryRegionMessage;
use rustix::event::{EventfdFlags, epoll, eventfd};

use super::*;

/// Watches of a slow call: some 5 ms for each write, and more on a busy machine.
const WATCHES: usize = 64_000;
/// Watches of a very slow call: some 20 ms for each write, which is twice what is very slow.
const MANY_WATCHES: usize = 256_000;
/// Watches of one file in one epoll instance; each needs a descriptor.
const DESCRIPTORS: usize = 200;

/// Watches that slow down writes to an eventfd while they exist.
struct Watches {
    _copies: Vec<OwnedFd>,
    _epolls: Vec<OwnedFd>,
}

fn watch_from_everywhere(event: BorrowedFd<'_>, watches: usize) -> Watches {
    let copies: Vec<OwnedFd> = (0..DESCRIPTORS).map(|_| event.try_clone_to_owned().unwrap()).collect();
    let watch = |_| {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        for (number, copy) in (0..).zip(&copies) {
            let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
            epoll::add(&epoll, copy, epoll::EventData::new_u64(number), flags).unwrap();
        }
        epoll
    };
    let epolls = (0..watches / DESCRIPTORS).map(watch).collect();
    Watches { _copies: copies, _epolls: epolls }
}

#[test]
fn a_guest_whose_calls_take_the_kernel_long_is_stopped_and_then_held() {
    // On a slow machine these are very slow, too.
    let times = times_until_held(WATCHES);
    assert!((2..=4).contains(&times), "held the {times}. time");
}

#[test]
fn a_guest_whose_calls_take_the_kernel_very_long_is_held_the_second_time() {
    assert_eq!(times_until_held(MANY_WATCHES), 2);
}

/// Stops of a port, whose call has that many watches, until it is held.
fn times_until_held(watches: usize) -> u32 {
    let mut scene = Scene::new();
    let (port, mut bad) = scene.attach("bad", GuestOptions::default());
    let (_, mut third) = scene.attach("third", GuestOptions::default());
    let slow = eventfd(0, EventfdFlags::NONBLOCK).unwrap();
    let watches = watch_from_everywhere(slow.as_fd(), watches);
    let (mut number, mut received) = (0, Vec::new());
    let mut times = 0;
    loop {
        bad.front().set_vring_call(0, Some(slow.as_fd())).unwrap();
        eventually("the port is stopped by name", || {
            send(&mut third, &frame(BAD, THIRD, number, 64));
            third.reclaim(0).unwrap();
            // The switch signals the guest again once it has taken all frames and enabled signals.
            while bad.recv(0, &mut received).unwrap().is_some() {}
            bad.wait(Some(Duration::ZERO)).unwrap();
            number += 1;
            match scene.switch.port(port).state {
                PortState::Stopped(why) => why.contains("a call eventfd is slow"),
                _ => false,
            }
        });
        times += 1;
        drop(bad);
        eventually("the port is free", || scene.switch.port(port).state == PortState::Waiting);
        let socket = scene.switch.serve(port);
        match Guest::over(socket, GuestOptions::default()) {
            Ok(guest) => bad = guest,
            Err(error) => {
                assert!(error.to_string().contains("refused"), "{times}: {error}");
                break;
            }
        }
        assert!(times < 4, "it is not held");
        // The module has to learn the guest's address again.
        send(&mut bad, &frame(THIRD, BAD, number, 64));
    }
    drop(watches);
    scene.assert_unharmed();
    times
}

#[test]
fn guests_on_a_crowded_machine_are_taken_for_no_offenders() {
    let mut scene = Scene::new();
    let hogs = 4 * std::thread::available_parallelism().unwrap().get();
    let crowd: Vec<_> = (0..hogs).map(|_| Hog::on(None)).collect();
    (0..3).for_each(|_| scene.talk());
    drop(crowd);
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

/// Address of a guest's additional memory.
const AT: u64 = 1 << 40;
/// Distance between frames in sparse memory: each needs page tables of its own.
const STRIDE: u64 = 2 << 20;
const SLOTS: u64 = 1 << 15;
/// It names 64 GiB. The switch meters one visit in 64, so it fills two or three times its bound now and then.
const FILLED_MIB_MAX: u64 = 4096;
/// Bytes of each such frame.
const SPARSE_FRAME: usize = 60_000;

/// Adds memory without a page in it to a guest.
fn add_memory(guest: &mut Guest, bytes: u64) -> OwnedFd {
    let file = memfd("more", bytes).unwrap();
    let region = MemoryRegionMessage { guest_addr: AT, size: bytes, user_addr: AT, offset: 0 };
    guest.front().add_mem_reg(region, file.as_fd()).unwrap();
    file
}

impl Scene {
    fn is_stopped_for(&self, port: PortId, words: &str) -> bool {
        matches!(self.switch.port(port).state, PortState::Stopped(why) if why.contains(words))
    }
}

fn filled_mib(file: &OwnedFd) -> u64 {
    (rustix::fs::fstat(file).unwrap().st_blocks as u64 * 512) >> 20
}

#[test]
fn a_guest_that_sends_from_sparse_memory_is_stopped_before_the_switch_has_filled_much() {
    let mut scene = Scene::new();
    let (port, mut bad) = scene.attach("bad", GuestOptions::default());
    let (_, mut third) = scene.attach("third", GuestOptions::default());
    send(&mut third, &frame(0xff, THIRD, 0, 64));
    let file = add_memory(&mut bad, SLOTS * STRIDE);
    let head = [&[0; 12], &frame(THIRD, BAD, 0, 64)[..14]].concat();
    let (mut slot, mut received) = (0, Vec::new());
    eventually("the port is stopped by name", || {
        for _ in 0..100 {
            rustix::io::pwrite(&file, &head, slot * STRIDE).unwrap();
            let ring = bad.transmit_ring(0).unwrap();
            slot += u64::from(ring.add(&[(AT + slot * STRIDE, SPARSE_FRAME as u32)], &[], 0).is_some());
            ring.publish();
            while ring.take_used().unwrap().is_some() {}
        }
        bad.kick(0).unwrap();
        while third.recv(0, &mut received).unwrap().is_some() {}
        scene.is_stopped_for(port, "its memory is sparse")
    });
    assert!(filled_mib(&file) < FILLED_MIB_MAX, "{} MiB", filled_mib(&file));
    scene.assert_unharmed();
}

#[test]
fn a_guest_that_receives_into_sparse_memory_is_stopped_and_who_sends_to_it_is_not() {
    let mut scene = Scene::new();
    let (port, mut bad) = scene.attach("bad", GuestOptions { rx_buffers: 1, ..GuestOptions::default() });
    let (third_port, mut third) = scene.attach("third", GuestOptions::default());
    send(&mut bad, &frame(THIRD, BAD, 0, 64));
    receive(&mut third);
    let file = add_memory(&mut bad, SLOTS * STRIDE);
    let (large, mut slot) = (frame(BAD, THIRD, 1, SPARSE_FRAME), 0);
    eventually("the port is stopped by name", || {
        for _ in 0..64 {
            let ring = bad.receive_ring(0).unwrap();
            slot += u64::from(ring.add(&[], &[(AT + slot * STRIDE, 1 << 16)], 0).is_some());
            ring.publish();
            let _ = third.send(0, &large, Default::default()).unwrap();
        }
        third.flush(0).unwrap();
        third.reclaim(0).unwrap();
        let ring = bad.receive_ring(0).unwrap();
        while ring.take_used().unwrap().is_some() {}
        scene.is_stopped_for(port, "its memory is sparse")
    });
    assert!(filled_mib(&file) < FILLED_MIB_MAX, "{} MiB", filled_mib(&file));
    assert_eq!(scene.switch.port(third_port).state, PortState::Running);
    scene.assert_unharmed();
}

#[test]
fn a_guest_whose_memory_stalls_workers_is_stopped_by_name() {
    use rustix::fs::{FallocateFlags, fallocate};
    const BYTES: u64 = 384 << 20;
    // A wait that another session's munmap may explain does not count.
    let mut scene = Scene::alone();
    let (port, mut bad) = scene.attach("bad", GuestOptions::default());
    let file = add_memory(&mut bad, BYTES);
    let stop = Arc::new(AtomicBool::new(false));
    let puncher = {
        let stop = Arc::clone(&stop);
        std::thread::spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                fallocate(&file, FallocateFlags::KEEP_SIZE, 0, BYTES).unwrap();
                fallocate(&file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 0, BYTES).unwrap();
            }
        })
    };
    let mut number = 0_u64;
    eventually("the port is stopped by name", || {
        for _ in 0..50 {
            let ring = bad.transmit_ring(0).unwrap();
            let _ = ring.add(&[(AT + number * 64 * 4096 % BYTES, 64)], &[], 0);
            number += 1;
            ring.publish();
            while ring.take_used().unwrap().is_some() {}
            bad.kick(0).unwrap();
            std::thread::yield_now();
        }
        scene.is_stopped_for(port, "stalls the switch")
    });
    stop.store(true, Ordering::Relaxed);
    puncher.join().unwrap();
    scene.assert_unharmed();
}
