//! Front ends that keep their sessions busy or block them: new flows of others, operators and upgrades are not delayed.

use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use lasthop_vhost::message::{VhostMessage, request};
use rustix::fs::ftruncate;
use rustix::process::Signal;

use lasthop_rig::odd_fds::{LingeringSocket, watched};
use lasthop_rig::rogue::{Desk, GUEST_ADDR, Rogue, region, sparse_memory};
use lasthop_rig::victims::Victims;
use lasthop_rig::{eventually, signal};

/// How often features are set, which stops and starts all rings each time: many times the burst of a session.
const TOGGLES: usize = 150;
const AT_ONCE: usize = 48;
/// All of them take at least twice as long: 64 changes each, of which a front end has 200 a second in the long run.
const SLOWED: Duration = Duration::from_secs(20);
/// Longer than the life of a switch process for whose death the supervisor blames its guests.
const LIFE: Duration = Duration::from_millis(300);

#[test]
fn rings_that_are_started_without_end_are_slowed_down_and_delay_nobody() {
    let mut victims = Victims::beside(&["bad,queues=16"]);
    let (mut rogue, _desk) = Rogue::attach(&victims.switch, "bad", 16);
    // Within its burst.
    let start = Instant::now();
    rogue.toggle_features(AT_ONCE).expect("written");
    rogue.await_turn();
    let took = start.elapsed();
    let start = Instant::now();
    rogue.toggle_features(TOGGLES).expect("there is room for all of them");
    rogue.send(request::GET_FEATURES, &[], &[]).expect("written");
    for _ in 0..3 {
        victims.talk(10);
        victims.talk_anew(20);
        victims.operate();
    }
    victims.attach_another();
    // Three times as many would have taken three times as long, or somewhat more: its share of the time does not
    // suffice yet, unless everything else took long, too.
    rogue.set_patience(6 * took);
    assert!(rogue.answer().is_err() || start.elapsed() > SLOWED, "it was not slowed down");
    victims.upgrade();
    victims.talk_anew(5);
    // A session that has to wait may be disconnected.
    drop(rogue);
    eventually("its end", || (victims.switch.port("bad")["state"] == "waiting for guest").then_some(()));
    victims.assert_unharmed();
}

#[test]
fn a_session_that_waits_in_a_system_call_is_waited_for_by_nobody() {
    let mut victims = Victims::beside(&["bad"]);
    let (rogue, _desk) = Rogue::attach(&victims.switch, "bad", 1);
    // Longer than any guest here waits for a frame.
    let socket = LingeringSocket::new(Duration::from_secs(60));
    let message = VhostMessage::new(request::SET_LOG_FD, Vec::new()).encode();
    rogue.send_bytes(&message[..1], &[socket.fd()]).expect("written");
    let peer = socket.let_go();
    // The switch has the only copy, and has to close it.
    rogue.send_bytes(&message[1..], &[]).expect("written");
    victims.talk_anew(20);
    victims.operate();
    victims.attach_another();
    victims.upgrade();
    victims.switch.ask(&["vnic", "del", "bad"]).ok();
    victims.switch.ask(&["vnic", "add", "bad"]).ok();
    drop((rogue, peer));
    victims.assert_free("bad");
    victims.assert_unharmed();
}

#[test]
fn half_a_message_is_waited_for_by_no_upgrade() {
    let mut victims = Victims::beside(&["bad"]);
    let rogue = Rogue::connect(&victims.switch, "bad");
    let half = VhostMessage::new(request::SET_MEM_TABLE, vec![0; 40]).encode();
    rogue.send(request::GET_FEATURES, &[], &[]).expect("written");
    rogue.send_bytes(&half[..30], &[]).expect("written");
    for _ in 0..2 {
        victims.upgrade();
        victims.talk_anew(5);
    }
    rogue.await_end();
    victims.assert_unharmed();
}

#[test]
fn memory_that_was_cut_short_keeps_nobody_from_an_upgrade() {
    let mut victims = Victims::beside(&["bad"]);
    let (rogue, desk) = Rogue::attach(&victims.switch, "bad", 1);
    ftruncate(&desk.file, 0).expect("its own file");
    for _ in 0..2 {
        victims.upgrade();
        victims.talk_anew(5);
    }
    rogue.await_end();
    victims.assert_unharmed();
}

#[test]
fn answers_that_take_the_kernel_long_are_slowed_down() {
    // Some 5 ms for each write, and more on a busy machine: at the usual charge, 2 s are hundreds of writes.
    const WATCHES: usize = 64_000;
    const ANSWERS: usize = 100;
    let mut victims = Victims::beside(&["bad"]);
    let mut rogue = Rogue::connect(&victims.switch, "bad");
    let _watches = watched(rogue.stream.as_fd(), WATCHES);
    // A reply beyond its allowance costs it a second.
    rogue.set_patience(Duration::from_millis(500));
    let answered = (0..ANSWERS)
        .take_while(|_| rogue.send(request::GET_FEATURES, &[], &[]).is_ok() && rogue.answer().is_ok())
        .count();
    assert!(answered < ANSWERS, "it was not slowed down");
    victims.assert_unharmed();
}

/// Stops, moves and starts rings until stopped; reconnects when the switch hangs up.
fn change_without_end(socket: &Path, is_over: &AtomicBool) {
    let (desk, moved) = (Desk::new(4), sparse_memory(1 << 36));
    while !is_over.load(Ordering::Relaxed) {
        // It is accepted ever more rarely.
        if let Ok(stream) = UnixStream::connect(socket) {
            let mut rogue = Rogue::over(stream);
            rogue.set_patience(Duration::from_millis(500));
            (0..)
                .take_while(|_| !is_over.load(Ordering::Relaxed))
                .try_for_each(|round| change(&mut rogue, &desk, moved.as_fd(), round));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// `None` if the switch does not answer: its process was killed amid a message, or the session has to wait.
fn change(rogue: &mut Rogue, desk: &Desk, moved: BorrowedFd<'_>, round: u16) -> Option<()> {
    rogue.front.get_features().ok()?;
    let more = region(GUEST_ADDR + (1 << 40), 1 << (30 + round % 6));
    rogue.front.set_mem_table(&[desk.region(), more], &[desk.file.as_fd(), moved]).ok()?;
    for index in 0..8 {
        rogue.start_ring(index, Some(desk.kick.as_fd()), Some(desk.call.as_fd())).ok()?;
    }
    rogue.toggle_features(2).ok()?;
    rogue.front.get_vring_base(round % 8).ok().map(drop)
}

#[test]
fn sessions_change_side_by_side_while_processes_die_and_are_replaced() {
    let vnics = ["bad1", "bad2", "bad3"];
    let mut victims =
        Victims::beside(&vnics.map(|vnic| format!("{vnic},queues=4")).each_ref().map(|it| &it[..]));
    let is_over = AtomicBool::new(false);
    let sockets = vnics.map(|vnic| victims.switch.path(&format!("{vnic}.sock")));
    std::thread::scope(|scope| {
        sockets.iter().for_each(|socket| _ = scope.spawn(|| change_without_end(socket, &is_over)));
        for _ in 0..2 {
            victims.talk_anew(10);
            victims.upgrade();
            victims.talk_anew(10);
            // For one that dies soon, the supervisor would blame its guests.
            std::thread::sleep(LIFE);
            let process = victims.switch.switch_pid().expect("a switch process");
            signal(process, Signal::KILL);
            eventually("the next one", || victims.switch.switch_pid().filter(|next| *next != process));
        }
        victims.attach_another();
        is_over.store(true, Ordering::Relaxed);
    });
    victims.talk_anew(10);
    victims.operate();
    let log = victims.switch.log();
    assert!(!["one", "two"].iter().any(|vnic| log.contains(&format!("port {vnic}: its guest"))), "{log}");
}
