//! Descriptors of all kinds, with messages that need some and with those that need none.

use std::os::fd::AsFd;
use std::time::Duration;

use lasthop_vhost::message::{VRING_NO_FD, request};

use lasthop_rig::odd_fds::assortment;
use lasthop_rig::random::Random;
use lasthop_rig::rogue::{Desk, GUEST_ADDR, Rogue, region};
use lasthop_rig::sequences::Supply;
use lasthop_rig::victims::Victims;

fn memory_region(size: u64) -> Vec<u8> {
    [&[0; 8][..], &region(GUEST_ADDR + (1 << 40), size).encode()].concat()
}

/// Requests with which a descriptor comes, or none should.
fn requests() -> [(u32, Vec<u8>); 7] {
    let ring = 1_u64.to_ne_bytes().to_vec();
    [
        (request::SET_VRING_KICK, ring.clone()),
        (request::SET_VRING_CALL, ring.clone()),
        (request::SET_VRING_ERR, ring),
        (request::SET_BACKEND_REQ_FD, Vec::new()),
        (request::ADD_MEM_REG, memory_region(1 << 20)),
        (request::SET_LOG_FD, Vec::new()),
        (request::SET_VRING_CALL, VRING_NO_FD.to_ne_bytes().to_vec()),
    ]
}

#[test]
fn descriptors_of_any_kind_with_any_message_harm_nobody() {
    let files = tempfile::tempdir().expect("a directory");
    let all = assortment(files.path());
    // A vnic for each kind: one whose sessions end at once is served ever more rarely.
    let vnics: Vec<_> = (0..all.len()).map(|number| format!("bad{number}")).collect();
    let mut victims = Victims::beside(&vnics.iter().map(String::as_str).collect::<Vec<_>>());
    for (number, body) in requests() {
        for ((_, fd), vnic) in all.iter().zip(&vnics) {
            let (mut rogue, desk) = (Rogue::connect(&victims.switch, vnic), Desk::new(1));
            rogue.negotiate();
            rogue.share(&desk, &[]);
            // The kernel does not pass an io_uring to another process.
            if rogue.send(number, &body, &[fd.as_fd()]).is_ok() {
                // Some of these end the session.
                let _ = rogue.front.get_features();
            }
        }
        victims.talk(5);
    }
    victims.assert_free("bad0");
    victims.assert_unharmed();
}

/// Sessions of random messages, and the messages of each.
const SESSIONS: u64 = 60;
const MESSAGES: usize = 30;

#[test]
fn any_messages_in_any_order_with_any_descriptors_harm_nobody() {
    // Sessions of a vnic that end at once are accepted ever more rarely.
    let vnics: Vec<_> = (0..SESSIONS).map(|number| format!("bad{number}")).collect();
    let mut victims = Victims::beside(&vnics.iter().map(String::as_str).collect::<Vec<_>>());
    let (process, supply) = (victims.switch.switch_pid(), Supply::new());
    for (seed, vnic) in (0..).zip(&vnics) {
        let mut rogue = Rogue::connect(&victims.switch, vnic);
        rogue.set_patience(Duration::from_secs(1));
        // Half of them begin like a normal session.
        if seed % 2 == 0 {
            rogue.negotiate();
        }
        supply.send(&rogue, MESSAGES, &mut Random::new(seed));
        if seed % 10 == 0 {
            victims.talk(5);
            victims.talk_anew(2);
        }
    }
    assert_eq!(victims.switch.switch_pid(), process, "{}", victims.switch.log());
    victims.upgrade();
    victims.assert_free("bad0");
    victims.assert_unharmed();
}
