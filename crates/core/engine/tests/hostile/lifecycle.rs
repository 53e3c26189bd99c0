//! Guests that attach, leave and change under traffic.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use lasthop_guestmem::memfd;
use lasthop_vhost::message::MemoryRegionMessage;

use super::*;

const MIB: u64 = 1 << 20;

/// A region beyond the guest's own memory.
fn spare(number: u64) -> MemoryRegionMessage {
    MemoryRegionMessage {
        guest_addr: (1 << 40) + number * MIB,
        size: MIB,
        user_addr: (1 << 46) + number * MIB,
        offset: 0,
    }
}

#[test]
fn memory_slots_come_and_go_under_traffic() {
    let mut scene = Scene::new();
    let (port, mut guest) = scene.attach("bad", GuestOptions::default());
    let file = memfd("spare", MIB).unwrap();
    for number in 0..30 {
        send(&mut guest, &frame(OTHER, BAD, number, 64));
        guest.front().add_mem_reg(spare(u64::from(number)), file.as_fd()).unwrap();
        send(&mut guest, &frame(OTHER, BAD, 1000 + number, 64));
        if number % 2 == 0 {
            guest.front().rem_mem_reg(spare(u64::from(number))).unwrap();
        }
        scene.one_frame();
    }
    let counters = || scene.switch.port(port).counters;
    eventually("all is taken", || counters().rx_packets == 60 && counters().waiting == 0);
    assert_eq!(counters().rx_drops.total(), 0, "{:?}", counters().rx_drops);
    for number in 0..30 {
        assert_eq!(scene.held(), frame(OTHER, BAD, number, 64));
        assert_eq!(scene.held(), frame(OTHER, BAD, 1000 + number, 64));
    }
    scene.assert_unharmed();
}

#[test]
fn memory_that_does_not_fit_is_refused_and_changes_nothing() {
    let mut scene = Scene::new();
    let (port, mut guest) = scene.attach("bad", GuestOptions::default());
    let file = memfd("spare", MIB).unwrap();
    let on_disk = std::fs::File::open(std::env::current_exe().unwrap()).unwrap();
    let overlapping = MemoryRegionMessage { guest_addr: 0x1_0000_0000, ..spare(0) };
    let huge = MemoryRegionMessage { size: 1 << 50, ..spare(0) };
    let wrapping = MemoryRegionMessage { guest_addr: u64::MAX - 4096, ..spare(0) };
    let beyond = MemoryRegionMessage { offset: 4096, ..spare(0) };
    for region in [overlapping, huge, wrapping, beyond] {
        assert!(guest.front().add_mem_reg(region, file.as_fd()).is_err(), "{region:?}");
    }
    assert!(guest.front().add_mem_reg(spare(0), on_disk.as_fd()).is_err(), "not shared memory");
    assert_eq!(scene.switch.port(port).state, PortState::Running);
    send(&mut guest, &frame(OTHER, BAD, 1, 64));
    assert_eq!(receive(&mut scene.other), frame(OTHER, BAD, 1, 64));
    scene.assert_unharmed();
}

#[test]
fn sparse_regions_without_end_are_refused_beyond_the_vnics_memory_max() {
    let mut scene = Scene::new();
    let (port, mut guest) = scene.attach("bad", GuestOptions::default());
    const REGION: u64 = 64 << 30;
    let file = memfd("sparse", REGION).unwrap();
    let taken = (0..75_u64)
        .map(|number| MemoryRegionMessage { size: REGION, ..spare((number + 1) * (REGION / MIB)) })
        .filter(|region| guest.front().add_mem_reg(*region, file.as_fd()).is_ok());
    assert_eq!(taken.count(), 15, "of 1 TiB, less the guest's own");
    let (_, mut third) = scene.attach("third", GuestOptions::default());
    send(&mut third, &frame(OTHER, THIRD, 1, 64));
    assert_eq!(receive_mine(&mut scene.other, OTHER), frame(OTHER, THIRD, 1, 64));
    assert_eq!(scene.switch.port(port).state, PortState::Running);
    send(&mut guest, &frame(OTHER, BAD, 1, 64));
    assert_eq!(receive_mine(&mut scene.other, OTHER), frame(OTHER, BAD, 1, 64));
    scene.assert_unharmed();
}

#[test]
fn a_guest_that_takes_its_memory_away_stops_and_is_named() {
    let mut scene = Scene::new();
    let (port, guest) = scene.attach("bad", GuestOptions::default());
    let (_, mut third) = scene.attach("third", GuestOptions::default());
    rustix::fs::ftruncate(rustix::io::dup(guest.memory_file()).unwrap(), 0).unwrap();
    send(&mut third, &frame(0xff, THIRD, 0, 64));
    scene.await_stop(port, "cut short");
    scene.assert_unharmed();
    std::mem::forget(guest); // its destructor would touch its own lost memory
    eventually("the port serves again once another guest has come", || {
        scene.switch.port(port).state != PortState::Running
    });
}

#[test]
fn a_port_that_was_stopped_tells_where_its_rings_stood() {
    let mut scene = Scene::new();
    let (port, mut guest) =
        scene.attach("bad", GuestOptions { start_position: 65_530, ..GuestOptions::default() });
    let (_, mut third) = scene.attach("third", GuestOptions::default());
    for number in 0..20 {
        send(&mut guest, &frame(OTHER, BAD, number, 64));
        assert_eq!(receive(&mut scene.other), frame(OTHER, BAD, number, 64));
    }
    block_calls(&guest);
    send(&mut third, &frame(0xff, THIRD, 0, 64));
    scene.await_stop(port, "a call eventfd blocks");
    scene.talk();
    let bases = guest.stop().unwrap();
    assert_eq!((bases[0], bases[1]), (65_531, 65_530_u16.wrapping_add(20)), "one was received, 20 were sent");
    empty_calls(&guest);
    guest.start(&bases).unwrap();
    eventually("other call descriptors heal it", || scene.switch.port(port).state == PortState::Running);
    assert_eq!(receive(&mut guest), frame(0xff, THIRD, 0, 64));
    guest.reclaim(0).unwrap();
    send(&mut guest, &frame(OTHER, BAD, 20, 64));
    assert_eq!(receive_mine(&mut scene.other, OTHER), frame(OTHER, BAD, 20, 64));
    scene.assert_unharmed();
}

#[test]
fn ports_and_guests_come_and_go_next_to_others() {
    let mut scene = Scene::new();
    for round in 0..10 {
        let (port, mut guest) = scene.attach(&format!("bad{round}"), GuestOptions::default());
        send(&mut guest, &frame(OTHER, BAD, round, 64));
        assert_eq!(receive(&mut scene.other), frame(OTHER, BAD, round, 64));
        send(&mut guest, &frame(OTHER, BAD, round, 64)); // perhaps under way when it goes
        match round % 3 {
            0 => drop(guest.stop().unwrap()),
            1 => drop(guest),
            _ => guest.reset().unwrap(),
        }
        scene.switch.engine.remove_port(port).unwrap();
        scene.drain_other();
        scene.talk();
    }
    scene.assert_nothing_lost();
}

#[test]
fn a_front_end_that_never_comes_to_rest_holds_up_nobody() {
    let mut scene = Scene::new();
    let (port, mut guest) = scene.attach("bad", GuestOptions::default());
    let stop = Arc::new(AtomicBool::new(false));
    let restless = {
        let stop = Arc::clone(&stop);
        std::thread::spawn(move || {
            let mut rounds = 0;
            while !stop.load(Ordering::Relaxed) {
                guest.share_anew(1 + rounds % 4).unwrap();
                guest.front().set_vring_enable(0, false).unwrap();
                guest.front().set_vring_enable(0, true).unwrap();
                let bases = guest.stop().unwrap();
                guest.start(&bases).unwrap();
                rounds += 1;
            }
            (guest, rounds)
        })
    };
    (0..10).for_each(|_| scene.talk());
    stop.store(true, Ordering::Relaxed);
    let (mut guest, rounds) = restless.join().unwrap();
    assert!(rounds > 0);
    assert_eq!(scene.switch.port(port).state, PortState::Running);
    send(&mut guest, &frame(OTHER, BAD, 1, 64));
    assert_eq!(receive_mine(&mut scene.other, OTHER), frame(OTHER, BAD, 1, 64));
    scene.assert_unharmed();
}

/// Has a guest stop, move and start its rings until it is told to end, or its port is removed; returns how often.
fn change_without_end(mut guest: Guest, stop: Arc<AtomicBool>) -> JoinHandle<(Guest, u16)> {
    std::thread::spawn(move || {
        let mut rounds = 0;
        while !stop.load(Ordering::Relaxed) {
            let moved = guest.share_anew(1 + rounds % 4).is_ok();
            let stopped = guest.stop().ok().filter(|_| moved);
            if stopped.is_none_or(|bases| guest.start(&bases).is_err()) {
                break;
            }
            rounds += 1;
        }
        (guest, rounds)
    })
}

#[test]
fn sessions_change_side_by_side_while_the_switch_rests_and_ports_go() {
    let mut scene = Scene::new();
    let stop = Arc::new(AtomicBool::new(false));
    let changing = [0, 1, 2].map(|number| {
        let (port, guest) = scene.attach(&format!("bad{number}"), GuestOptions::default());
        (port, change_without_end(guest, Arc::clone(&stop)))
    });
    for _ in 0..10 {
        scene.switch.engine.pause_sessions().unwrap();
        scene.switch.engine.quiesce(Duration::from_millis(10)).unwrap();
        scene.switch.engine.resume().unwrap();
        scene.talk();
    }
    let [stays, also, goes] = changing;
    scene.switch.engine.remove_port(goes.0).unwrap();
    scene.talk();
    let (_, rounds) = goes.1.join().unwrap();
    assert!(rounds > 0);
    stop.store(true, Ordering::Relaxed);
    for (port, thread) in [stays, also] {
        let (mut guest, rounds) = thread.join().unwrap();
        assert!(rounds > 0);
        eventually("its rings run", || scene.switch.port(port).state == PortState::Running);
        send(&mut guest, &frame(OTHER, BAD, 1, 64));
        assert_eq!(receive_mine(&mut scene.other, OTHER), frame(OTHER, BAD, 1, 64));
    }
    scene.assert_nothing_lost();
}

/// Fills the call eventfds and makes them blocking.
fn block_calls(guest: &Guest) {
    use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
    for call in guest.call_fds() {
        while rustix::io::write(call, &(u64::MAX - 1).to_ne_bytes()).is_err() {
            let _ = rustix::io::read(call, &mut [0_u8; 8][..]);
        }
        fcntl_setfl(call, fcntl_getfl(call).unwrap() - OFlags::NONBLOCK).unwrap();
    }
}

fn empty_calls(guest: &Guest) {
    for call in guest.call_fds() {
        let _ = rustix::io::read(call, &mut [0_u8; 8][..]);
    }
}

impl Scene {
    /// Sends one frame from one to the other, behind other frames, which it keeps.
    fn one_frame(&mut self) {
        let number = 1 << 20 | self.sent_alone;
        let mine = frame(OTHER, ONE, number, 200);
        send(&mut self.one, &mine);
        self.one.reclaim(0).unwrap();
        self.sent_alone += 1;
        let until = std::time::Instant::now() + PATIENCE;
        loop {
            assert!(std::time::Instant::now() < until);
            let bytes = receive(&mut self.other);
            if bytes == mine {
                return;
            }
            self.held.push_back(bytes);
        }
    }

    /// The next frame of the bad guest that has arrived.
    fn held(&mut self) -> Vec<u8> {
        self.held.pop_front().unwrap_or_else(|| receive(&mut self.other))
    }

    /// Discards frames left over from guests that have left.
    fn drain_other(&mut self) {
        let mut bytes = Vec::new();
        while self.other.recv(0, &mut bytes).unwrap().is_some() {}
    }
}
