//! Memory of all kinds, and overlapping rings.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};

use lasthop_ring::DESC_NEXT;
use lasthop_ring::Descriptor;
use lasthop_vhost::message::{MemoryRegionMessage, RingAddressMessage};
use rustix::fs::{MemfdFlags, SealFlags, ftruncate, memfd_create};

use lasthop_rig::eventually;
use lasthop_rig::guests::{TWO, frame};
use lasthop_rig::odd_fds::{assortment, sealed_memory};
use lasthop_rig::rogue::{Desk, GUEST_ADDR, RING_ENTRIES, Rogue, USER_ADDR, kick, region, sparse_memory};
use lasthop_rig::sys::{map_with_faults_that_wait, secret_memory};
use lasthop_rig::victims::Victims;

const BYTES: u64 = 2 << 20;

/// Kinds of memory of a front end; some are impossible on some hosts.
fn memories(disk: File, shared: File) -> Vec<OwnedFd> {
    let huge = memfd_create("huge", MemfdFlags::CLOEXEC | MemfdFlags::HUGETLB).ok();
    let sized = [huge, secret_memory(), Some(disk.into()), Some(shared.into())];
    let mut all: Vec<OwnedFd> = sized.into_iter().flatten().collect();
    all.retain(|file| ftruncate(file, BYTES).is_ok());
    all.extend([SealFlags::WRITE, SealFlags::FUTURE_WRITE].map(|seals| sealed_memory(BYTES, seals)));
    all
}

fn whole(file_bytes: u64) -> MemoryRegionMessage {
    MemoryRegionMessage { guest_addr: GUEST_ADDR, size: file_bytes, user_addr: USER_ADDR, offset: 0 }
}

/// Starts a transmit ring at any address; this may end the session.
fn start_at(rogue: &mut Rogue, desk: &Desk, address: RingAddressMessage) {
    let front = &mut rogue.front;
    let _ = front.set_vring_num(1, RING_ENTRIES);
    let _ = front.set_vring_base(1, 0);
    let _ = front.set_vring_addr(RingAddressMessage { index: 1, ..address });
    let _ = front.set_vring_call(1, Some(desk.call.as_fd()));
    let _ = front.set_vring_kick(1, Some(desk.kick.as_fd()));
    let _ = front.set_vring_enable(1, true);
    let _ = front.get_features();
    kick(desk.kick.as_fd());
}

fn at(descriptors: u64, available: u64, used: u64) -> RingAddressMessage {
    let [descriptors, available, used] = [descriptors, available, used].map(|place| USER_ADDR + place);
    RingAddressMessage { descriptors, available, used, ..RingAddressMessage::default() }
}

#[test]
fn memory_of_any_kind_is_taken_or_refused_and_harms_nobody() {
    let directory = tempfile::tempdir().expect("a directory");
    let disk = tempfile::tempfile_in(directory.path()).expect("a file");
    let shared = tempfile::tempfile_in("/dev/shm").expect("a file");
    let mut all = memories(disk, shared);
    all.extend(assortment(directory.path()).into_iter().map(|(_, fd)| fd));
    let vnics: Vec<_> = (0..all.len()).map(|number| format!("bad{number}")).collect();
    let mut victims = Victims::beside(&vnics.iter().map(String::as_str).collect::<Vec<_>>());
    for (file, vnic) in all.iter().zip(&vnics) {
        let (mut rogue, desk) = (Rogue::connect(&victims.switch, vnic), Desk::new(1));
        rogue.negotiate();
        // The kernel does not pass an io_uring to another process.
        if rogue.front.set_mem_table(&[whole(BYTES)], &[file.as_fd()]).is_ok() {
            start_at(&mut rogue, &desk, at(0, 0x1000, 0x2000));
        }
    }
    victims.talk(5);
    victims.assert_free("bad0");
    victims.assert_unharmed();
}

#[test]
fn rings_that_lie_in_each_other_harm_nobody() {
    let mut victims = Victims::beside(&["bad0", "bad1", "bad2", "bad3"]);
    // The table overlaps the available ring, or the used ring, or all three overlap: used entries overwrite the index
    // that is read.
    let places = [at(0, 0, 0x2000), at(0, 0x1000, 0), at(0, 0, 0), at(0, 0x1000, 0x1000)];
    let mut sessions = Vec::new();
    for (number, address) in places.into_iter().enumerate() {
        let (mut rogue, mut desk) = (Rogue::connect(&victims.switch, &format!("bad{number}")), Desk::new(1));
        rogue.negotiate();
        rogue.share(&desk, &[]);
        // The switch reads the same bytes as each of the overlapping structures.
        for index in 0..RING_ENTRIES {
            let next = Descriptor { addr: GUEST_ADDR, len: 64, flags: DESC_NEXT, next: index };
            desk.ring(0).set_raw_descriptor(index, next);
        }
        desk.send(0, &frame(TWO, [2, 0, 0, 0, 0, 9], 1, 60));
        start_at(&mut rogue, &desk, address);
        victims.talk(5);
        sessions.push((rogue, desk));
    }
    victims.talk_anew(5);
    drop(sessions);
    victims.assert_free("bad0");
    victims.assert_unharmed();
}

/// Such faults affect only the process that registered for them: the switch has its own mapping.
#[test]
fn memory_whose_faults_wait_in_the_front_end_holds_up_nobody() {
    let mut victims = Victims::beside(&["bad"]);
    let file = sparse_memory(BYTES);
    if !map_with_faults_that_wait(file.as_fd(), BYTES as usize) {
        std::io::Write::write_all(&mut std::io::stderr(), b"\nskip userfaultfd: this kernel has none\n")
            .expect("written");
        return;
    }
    let (mut rogue, mut desk) = (Rogue::connect(&victims.switch, "bad"), Desk::new(1));
    rogue.negotiate();
    rogue.share(&desk, &[(region(GUEST_ADDR + BYTES, BYTES), file.as_fd())]);
    for index in 0..2 {
        rogue.start_ring(index, Some(desk.kick.as_fd()), Some(desk.call.as_fd())).expect("sent");
    }
    rogue.await_turn();
    // Zeroes out of a hole, with a header of zeroes before them.
    assert!(desk.publish(0, &[(GUEST_ADDR + BYTES, 72)]), "there is room");
    let received = || (victims.switch.port("bad")["rx_packets"] == 1).then_some(());
    eventually("the frame", received);
    victims.talk(5);
    drop(rogue);
    victims.assert_free("bad");
    victims.assert_unharmed();
}

#[test]
fn regions_that_are_the_same_memory_twice_harm_nobody() {
    let mut victims = Victims::beside(&["bad"]);
    let (mut rogue, desk) = (Rogue::connect(&victims.switch, "bad"), Desk::new(1));
    rogue.negotiate();
    let twin = |number: u64| {
        let far = number << 40;
        let MemoryRegionMessage { guest_addr, size, user_addr, offset } = desk.region();
        MemoryRegionMessage { guest_addr: guest_addr + far, size, user_addr: user_addr + far, offset }
    };
    let more: Vec<_> = (1..8).map(|number| (twin(number), desk.file.as_fd())).collect();
    rogue.share(&desk, &more);
    let far = |at: u64, number: u64| at + (number << 40);
    let mut address = at(0, 0x1000, 0x2000);
    (address.available, address.used) = (far(address.available, 3), far(address.used, 7));
    start_at(&mut rogue, &desk, address);
    for round in 0..20 {
        let hole = sparse_memory(1 << 30);
        let region = MemoryRegionMessage { size: 1 << 30, ..twin(16 + round) };
        let _ = rogue.front.add_mem_reg(region, hole.as_fd());
        let _ = rogue.front.rem_mem_reg(region);
        victims.talk(1);
    }
    drop(rogue);
    victims.assert_free("bad");
    victims.assert_unharmed();
}
