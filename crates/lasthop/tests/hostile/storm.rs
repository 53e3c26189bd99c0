//! Everything at once, and slow front ends.

use std::io::Read;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lasthop_vhost::message::{VhostMessage, request};

use lasthop_rig::fds;
use lasthop_rig::guests::frame;
use lasthop_rig::odd_fds::{assortment, nested};
use lasthop_rig::rogue::{Desk, Rogue, event_fd, kick, region, sparse_memory};
use lasthop_rig::victims::Victims;

/// Stops the work of other threads when dropped, also by a panic.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Stops and starts rings, and sends frames to unknown addresses.
fn toggle(dir: &Path, is_over: &AtomicBool) {
    let (mut rogue, mut desk) = Rogue::start(dir, "bad0", 1);
    let mut number = 0_u32;
    while !is_over.load(Ordering::Relaxed) {
        number += 1;
        let [a, b, c, d] = number.to_be_bytes();
        desk.send(0, &frame([2, 9, a, b, c, d], [2, 8, a, b, c, d], number, 60));
        if rogue.toggle_features(2).is_err() {
            return;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Adds and removes regions, each a file without allocated pages.
fn remap(dir: &Path, is_over: &AtomicBool) {
    let (mut rogue, _desk) = Rogue::start(dir, "bad1", 1);
    while !is_over.load(Ordering::Relaxed) {
        let (hole, region) = (sparse_memory(1 << 30), region(1 << 42, 1 << 30));
        let done =
            rogue.front.add_mem_reg(region, hole.as_fd()).and_then(|()| rogue.front.rem_mem_reg(region));
        if done.is_err() {
            return;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Opens and ends sessions with all kinds of descriptors, including nested ones.
fn pass_descriptors(dir: &Path, is_over: &AtomicBool) {
    let files = tempfile::tempdir().expect("a directory");
    let all = assortment(files.path());
    for (_, fd) in all.iter().cycle().take_while(|_| !is_over.load(Ordering::Relaxed)) {
        let rogue = Rogue::at(dir, "bad2");
        let within = nested(event_fd().as_fd());
        let ring = 1_u64.to_ne_bytes();
        // The kernel does not pass an io_uring to another process, and sessions end meanwhile.
        let _ = rogue.send(request::SET_VRING_CALL, &ring, &[within.as_fd()]);
        let _ = rogue.send(request::SET_BACKEND_REQ_FD, &[], &[fd.as_fd()]);
        let _ = rogue.send(request::SET_VRING_KICK, &ring, &[fd.as_fd()]);
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Sends single bytes with pauses, and reads replies equally slowly.
fn trickle(dir: &Path, is_over: &AtomicBool) {
    let mut rogue = Rogue::at(dir, "bad3");
    let question = VhostMessage::new(request::GET_FEATURES, Vec::new()).encode();
    for byte in question.iter().cycle().take_while(|_| !is_over.load(Ordering::Relaxed)) {
        if rogue.send_bytes(&[*byte], &[]).is_err() {
            return;
        }
        std::thread::sleep(Duration::from_millis(1));
        rogue.stream.set_nonblocking(true).expect("a socket");
        let _ = rogue.stream.read(&mut [0]);
        rogue.stream.set_nonblocking(false).expect("a socket");
    }
}

#[test]
fn everything_at_once_harms_nobody() {
    let mut victims = Victims::beside(&["bad0", "bad1", "bad2", "bad3"]);
    let (pid, dir) = (victims.switch.pid(), victims.switch.dir());
    let before = fds(pid);
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _ends = Ends(&is_over);
        for work in [toggle, remap, pass_descriptors, trickle] {
            let (dir, is_over) = (&dir, &is_over);
            scope.spawn(move || work(dir, is_over));
        }
        for _ in 0..5 {
            victims.talk(20);
            victims.talk_anew(5);
            victims.operate();
            victims.attach_another();
        }
        victims.upgrade();
        victims.talk(20);
    });
    victims.assert_unharmed();
    victims.assert_free("bad1");
    assert!(fds(pid) < before + 32, "{} descriptors, {before} before", fds(pid));
}

#[test]
fn bells_that_ring_themselves_harm_nobody() {
    let mut victims = Victims::beside(&["bad0", "bad1"]);
    // Kick and call of both vnics are one eventfd: each call is a kick.
    let bell = event_fd();
    let mut sessions: Vec<_> =
        ["bad0", "bad1"].map(|vnic| (Rogue::connect(&victims.switch, vnic), Desk::new(1))).into();
    for (rogue, desk) in &mut sessions {
        rogue.negotiate();
        rogue.share(desk, &[]);
        for ring in 0..2 {
            rogue.start_ring(ring, Some(bell.as_fd()), Some(bell.as_fd())).expect("sent");
        }
        rogue.await_turn();
    }
    for number in 0..50 {
        for (_, desk) in &mut sessions {
            desk.send(0, &frame([0xff; 6], [2, 7, 0, 0, 0, 1], number, 60));
        }
        kick(bell.as_fd());
        victims.talk(1);
    }
    drop(sessions);
    victims.assert_free("bad0");
    victims.talk_anew(10);
    victims.operate();
}
