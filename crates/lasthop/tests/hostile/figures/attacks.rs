//! The attacks. Each continues until it is stopped, even if the switch refuses it.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use lasthop_frontend::{Guest, GuestOptions};
use lasthop_guestmem::memfd;
use lasthop_vhost::features;
use lasthop_vhost::message::{MemoryRegionMessage, VhostMessage, request};
use rustix::fs::{FallocateFlags, fallocate};

use lasthop_rig::guests::{TWO, frame};
use lasthop_rig::odd_fds::{LingeringSocket, assortment, nested, watched, watched_eventfd};
use lasthop_rig::rogue::{Desk, FEATURES, GUEST_ADDR, Rogue, event_fd, kick, region, sparse_memory};

use super::senders::{again_and_again, attach, connect, while_it_goes_on};
use super::{Attack, Ground, NEIGHBOURS, socket_of};

const LINGER: Duration = Duration::from_secs(3600);
/// Lingering sockets; each holds some megabytes of kernel memory.
const LINGERING_MAX: usize = 48;
const WATCHES: usize = 500_000;
/// The address of memory besides the desk.
const FAR: u64 = 1 << 40;
const STRIDE: u64 = 2 << 20;
const SPARSE_BYTES: u64 = 64 << 30;
const PUNCHED_BYTES: u64 = 1 << 30;
const BIG_BYTES: u64 = 1 << 30;
/// Bytes of a frame that touches many pages.
const LARGE: u32 = 60_000;

pub(super) const ATTACKS: &[Attack] = &[
    Attack::new("descriptors whose close waits", |ground| linger(ground, false)),
    Attack::new("the same in the queue of a call socket", |ground| linger(ground, true)),
    Attack::new("call with 500,000 watches", slow_calls),
    Attack::new("the session's own socket with as many", slow_answers),
    Attack::new("75 regions of 64 GiB to 32 TiB", address_space),
    Attack::new("frames all over sparse memory", sparse_frames),
    Attack::new("holes punched into 1 GiB", punch),
    Attack::new("features set again and again, 32 rings", toggle),
    Attack::new("half a message", half_a_message),
    Attack::new("call descriptors changed without end", change_calls),
    Attack::new("control queue without end", control_queue),
    Attack::new("four ports that start flows without end", start_flows),
    Attack::new("ring without kick descriptor, sending", without_kick),
    Attack::new("memory of 1 GiB mapped, touched and unmapped again and again", come_and_go),
    Attack::new("messages without end", ask),
    Attack::new("connections without end", connect_again),
    Attack::new("descriptors of all kinds", odd_descriptors),
    Attack::new("kicks without end", kick_again),
    Attack::new("none, but a thread that takes a CPU", spin),
    Attack::new("memory cut short", cut_short),
    Attack::new("idle clients on the control socket", idle_clients),
    Attack {
        is_supervisor_stopped: true,
        ..Attack::new("call descriptors changed, and the supervisor stopped", change_calls)
    },
    Attack::new("everything at once", everything),
];

fn linger(ground: &Ground<'_>, is_nested: bool) {
    let mut peers = Vec::new();
    again_and_again(ground, || {
        let (mut rogue, desk) = attach(ground.dir, "bad0", 1, &[])?;
        while ground.goes_on() && peers.len() < LINGERING_MAX {
            let socket = LingeringSocket::new(LINGER);
            if is_nested {
                let call = nested(socket.fd());
                peers.push(socket.let_go_elsewhere());
                let started = rogue.start_ring(0, Some(desk.kick.as_fd()), Some(call.as_fd()));
                // Its last close blocks, too.
                std::thread::spawn(move || drop(call));
                started.ok()?;
            } else {
                let sent = rogue.send(request::SET_LOG_FD, &[], &[socket.fd()]);
                peers.push(socket.let_go_elsewhere());
                sent.ok()?;
            }
            rogue.front.get_features().ok()?;
        }
        std::thread::sleep(Duration::from_millis(20));
        None
    });
}

/// Frames to itself: each used buffer causes a call.
fn slow_calls(ground: &Ground<'_>) {
    let (slow, _watches) = watched_eventfd(WATCHES);
    again_and_again(ground, || {
        let (mut rogue, mut desk) = attach(ground.dir, "bad0", 1, &[])?;
        (0..2).try_for_each(|ring| rogue.front.set_vring_call(ring, Some(slow.as_fd())).ok())?;
        while ground.goes_on() && !rogue.is_ended() {
            desk.send(0, &frame([1, 0x80, 0xc2, 0, 0, 0], [2, 8, 0, 0, 0, 1], 1, 60));
            std::thread::sleep(Duration::from_millis(2));
        }
        Some(())
    });
}

/// Every reply wakes all watches of the front end's socket.
fn slow_answers(ground: &Ground<'_>) {
    again_and_again(ground, || {
        let rogue = connect(ground.dir, "bad0")?;
        let _watches = watched(rogue.stream.as_fd(), WATCHES);
        while ground.goes_on() {
            rogue.send(request::GET_FEATURES, &[], &[]).ok()?;
            rogue.answer().ok()?;
        }
        Some(())
    });
}

fn address_space(ground: &Ground<'_>) {
    again_and_again(ground, || {
        let (mut rogue, _desk) = attach(ground.dir, "bad0", 1, &[])?;
        for number in 0..75_u64 {
            let bytes = 1 << (36 + number % 10);
            let _ = rogue.front.add_mem_reg(region(number << 46, bytes), sparse_memory(bytes).as_fd());
        }
        std::thread::sleep(Duration::from_millis(1));
        Some(())
    });
}

fn sink(ground: &Ground<'_>) -> Option<Guest> {
    let options = GuestOptions { mac: NEIGHBOURS[1], ..GuestOptions::default() };
    Guest::connect(socket_of(ground.dir, "bad1"), options).ok()
}

fn far(bytes: u64) -> MemoryRegionMessage {
    region(GUEST_ADDR + FAR, bytes)
}

/// Writes the start of a frame for the sink to a place in memory.
fn write_head(file: BorrowedFd<'_>, at: u64) -> Option<()> {
    let head = [&[0; 12], &frame(NEIGHBOURS[1], NEIGHBOURS[0], 0, 60)[..14]].concat();
    rustix::io::pwrite(file, &head, at).ok().map(drop)
}

/// Sends frames that begin `stride` bytes apart to the sink, until the end of the file.
fn send_all_over(
    ground: &Ground<'_>,
    (desk, sink): (&mut Desk, &mut Guest),
    (file, bytes): (&OwnedFd, u64),
    stride: u64,
) -> Option<()> {
    let (mut at, mut received, mut refused) = (0, Vec::new(), 0);
    while ground.goes_on() && at + u64::from(LARGE) <= bytes && refused < 1000 {
        write_head(file.as_fd(), at)?;
        if desk.publish(0, &[(GUEST_ADDR + FAR + at, LARGE)]) {
            (at, refused) = (at + stride, 0);
        } else {
            refused += 1;
            std::thread::sleep(Duration::from_micros(100));
        }
        while sink.recv(0, &mut received).ok()?.is_some() {}
        sink.wait(Some(Duration::ZERO)).ok()?;
    }
    Some(())
}

fn sparse_frames(ground: &Ground<'_>) {
    let mut sink = sink(ground);
    again_and_again(ground, || {
        let sink = sink.as_mut()?;
        sink.send(0, &frame([0xff; 6], NEIGHBOURS[1], 0, 60), Default::default()).ok()?;
        let file = sparse_memory(SPARSE_BYTES);
        let (_rogue, mut desk) = attach(ground.dir, "bad0", 1, &[(far(SPARSE_BYTES), file.as_fd())])?;
        send_all_over(ground, (&mut desk, sink), (&file, SPARSE_BYTES), STRIDE)
    });
}

fn punch(ground: &Ground<'_>) {
    let mut sink = sink(ground);
    let file = memfd("punched", PUNCHED_BYTES).expect("a memfd");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            super::lowest_priority();
            while ground.goes_on() {
                let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                let _ = fallocate(&file, FallocateFlags::KEEP_SIZE, 0, PUNCHED_BYTES);
                let _ = fallocate(&file, hole, 0, PUNCHED_BYTES);
            }
        });
        again_and_again(ground, || {
            let (_rogue, mut desk) = attach(ground.dir, "bad0", 1, &[(far(PUNCHED_BYTES), file.as_fd())])?;
            send_all_over(ground, (&mut desk, sink.as_mut()?), (&file, PUNCHED_BYTES), 1 << 18)
        });
    });
}

/// The switch has touched all of it at the end, so it has to unmap all of it.
fn come_and_go(ground: &Ground<'_>) {
    let mut sink = sink(ground);
    let file = memfd("big", BIG_BYTES).expect("a memfd");
    fallocate(&file, FallocateFlags::KEEP_SIZE, 0, BIG_BYTES).expect("filled");
    again_and_again(ground, || {
        let (_rogue, mut desk) = attach(ground.dir, "bad0", 1, &[(far(BIG_BYTES), file.as_fd())])?;
        send_all_over(ground, (&mut desk, sink.as_mut()?), (&file, BIG_BYTES), LARGE.into())
    });
}

fn toggle(ground: &Ground<'_>) {
    again_and_again(ground, || {
        let (mut rogue, _desk) = attach(ground.dir, "bad0", 16, &[])?;
        rogue.set_patience(Duration::from_millis(100));
        while ground.goes_on() && !rogue.is_ended() {
            let _ = rogue.toggle_features(2);
        }
        Some(())
    });
}

fn half_a_message(ground: &Ground<'_>) {
    let half = VhostMessage::new(request::SET_MEM_TABLE, vec![0; 40]).encode();
    again_and_again(ground, || {
        let rogue = connect(ground.dir, "bad0")?;
        rogue.send_bytes(&half[..30], &[]).ok()?;
        while ground.goes_on() && !rogue.is_ended() {
            std::thread::sleep(Duration::from_millis(10));
        }
        Some(())
    });
}

/// Each causes a report to the supervisor.
fn change_calls(ground: &Ground<'_>) {
    again_and_again(ground, || {
        let (mut rogue, desk) = attach(ground.dir, "bad0", 1, &[])?;
        rogue.set_patience(Duration::from_millis(100));
        while ground.goes_on() && !rogue.is_ended() {
            let _ = rogue.front.set_vring_call(0, Some(desk.call.as_fd()));
        }
        Some(())
    });
}

/// Two pairs, with the control ring at the place of the desk's third pair.
fn control_queue(ground: &Ground<'_>) {
    const COMMAND: [u8; 4] = [4, 0, 2, 0];
    again_and_again(ground, || {
        let (mut rogue, mut desk) = (connect(ground.dir, "bad1")?, Desk::new(3));
        rogue.try_to_negotiate(FEATURES | features::CTRL_VQ | features::MQ).ok()?;
        rogue.try_to_share(&desk, &[]).ok()?;
        for index in 0..4 {
            rogue.start_ring(index, Some(desk.kick.as_fd()), Some(desk.call.as_fd())).ok()?;
        }
        rogue.start_ring_at(4, 5, (Some(desk.kick.as_fd()), Some(desk.call.as_fd()))).ok()?;
        let (command, answer) = (desk.len_bytes() - 64, desk.len_bytes() - 32);
        desk.write(command, &COMMAND);
        while ground.goes_on() && !rogue.is_ended() {
            desk.reclaim(2);
            let ring = desk.ring(2);
            while ring.add(&[(GUEST_ADDR + command, 4)], &[(GUEST_ADDR + answer, 1)], 0).is_some() {}
            ring.publish();
            kick(desk.kick.as_fd());
        }
        Some(())
    });
}

/// Each port floods another of the four with frames from new source addresses. It has begun when all of them do.
fn start_flows(ground: &Ground<'_>) {
    let flooding = AtomicUsize::new(0);
    let flood_from = |port: u8| {
        super::lowest_priority();
        let (own, other) = ([2, 0, 0, 0, 7, port], [2, 0, 0, 0, 7, port ^ 1]);
        let mut number = 0_u32;
        while_it_goes_on(ground, || {
            let (rogue, mut desk) = attach(ground.dir, &format!("bad{port}"), 1, &[])?;
            // From here on its address is known, and frames to it are not flooded.
            desk.send(0, &frame(TWO, own, 0, 60));
            std::thread::sleep(Duration::from_millis(100));
            while ground.goes_on() && !rogue.is_ended() {
                for _ in 0..64 {
                    number += 1;
                    let [b, c, d] = [number >> 16, number >> 8, number].map(|part| part as u8);
                    desk.send(0, &frame(other, [2, 6, port, b, c, d], number, 60));
                }
                if number == 64 && flooding.fetch_add(1, Ordering::Relaxed) == 3 {
                    ground.begin();
                }
                std::thread::sleep(Duration::from_millis(1));
            }
            Some(())
        });
    };
    std::thread::scope(|scope| (0..4).for_each(|port| drop(scope.spawn(move || flood_from(port)))));
}

fn without_kick(ground: &Ground<'_>) {
    again_and_again(ground, || {
        let (mut rogue, mut desk) = attach(ground.dir, "bad0", 1, &[])?;
        rogue.front.set_vring_kick(1, None).ok()?;
        while ground.goes_on() && !rogue.is_ended() {
            desk.send(0, &frame([1, 0x80, 0xc2, 0, 0, 0], NEIGHBOURS[0], 0, 60));
            std::thread::sleep(Duration::from_micros(200));
        }
        Some(())
    });
}

fn ask(ground: &Ground<'_>) {
    let flood = VhostMessage::new(request::GET_FEATURES, Vec::new()).encode().repeat(50);
    again_and_again(ground, || {
        let (rogue, _desk) = attach(ground.dir, "bad0", 1, &[])?;
        while ground.goes_on() {
            rogue.send_bytes(&flood, &[]).ok()?;
            (0..50).try_for_each(|_| rogue.answer().ok().map(drop))?;
        }
        Some(())
    });
}

fn connect_again(ground: &Ground<'_>) {
    again_and_again(ground, || {
        let rogue = connect(ground.dir, "bad0")?;
        rogue.send(request::GET_FEATURES, &[], &[]).ok()
    });
}

fn odd_descriptors(ground: &Ground<'_>) {
    let files = tempfile::tempdir().expect("a directory");
    let all = assortment(files.path());
    let ring = 1_u64.to_ne_bytes();
    let mut kinds = all.iter().cycle();
    again_and_again(ground, || {
        let rogue = connect(ground.dir, "bad0")?;
        let (_, fd) = kinds.next()?;
        let within = nested(event_fd().as_fd());
        for (number, body) in [
            (request::SET_VRING_CALL, &ring[..]),
            (request::SET_VRING_KICK, &ring[..]),
            (request::SET_BACKEND_REQ_FD, &[]),
            (request::SET_LOG_FD, &[]),
        ] {
            let _ = rogue.send(number, body, &[within.as_fd()]);
            let _ = rogue.send(number, body, &[fd.as_fd()]);
        }
        Some(())
    });
}

/// No attack: the effect of a lack of CPU time alone.
fn spin(ground: &Ground<'_>) {
    ground.begin();
    while ground.goes_on() {
        std::hint::spin_loop();
    }
}

fn kick_again(ground: &Ground<'_>) {
    again_and_again(ground, || {
        let (_rogue, desk) = attach(ground.dir, "bad0", 1, &[])?;
        while ground.goes_on() {
            kick(desk.kick.as_fd());
        }
        Some(())
    });
}

fn cut_short(ground: &Ground<'_>) {
    again_and_again(ground, || {
        let (rogue, mut desk) = attach(ground.dir, "bad0", 1, &[])?;
        rustix::fs::ftruncate(&desk.file, 0).ok()?;
        kick(desk.kick.as_fd());
        std::thread::sleep(Duration::from_millis(2));
        rustix::fs::ftruncate(&desk.file, desk.len_bytes()).ok()?;
        desk.send(0, &frame([1, 0x80, 0xc2, 0, 0, 0], NEIGHBOURS[0], 0, 60));
        drop(rogue);
        Some(())
    });
}

fn idle_clients(ground: &Ground<'_>) {
    let mut clients: Vec<UnixStream> = Vec::new();
    again_and_again(ground, || {
        if clients.len() >= 64 {
            clients.drain(..32);
        }
        clients.push(UnixStream::connect(ground.dir.join("control.sock")).ok()?);
        std::thread::sleep(Duration::from_millis(1));
        Some(())
    });
}

fn everything(ground: &Ground<'_>) {
    fn remap(ground: &Ground<'_>) {
        again_and_again(ground, || {
            let (mut rogue, _desk): (Rogue, Desk) = attach(ground.dir, "bad2", 1, &[])?;
            while ground.goes_on() {
                let (hole, region) = (sparse_memory(1 << 30), region(1 << 42, 1 << 30));
                rogue.front.add_mem_reg(region, hole.as_fd()).ok()?;
                rogue.front.rem_mem_reg(region).ok()?;
            }
            Some(())
        });
    }
    fn trickle(ground: &Ground<'_>) {
        let question = VhostMessage::new(request::GET_FEATURES, Vec::new()).encode();
        again_and_again(ground, || {
            let rogue = connect(ground.dir, "bad3")?;
            for byte in question.iter().cycle().take_while(|_| ground.goes_on()) {
                rogue.send_bytes(&[*byte], &[]).ok()?;
                std::thread::sleep(Duration::from_millis(1));
            }
            Some(())
        });
    }
    std::thread::scope(|scope| {
        for work in [toggle, control_queue, remap, trickle, idle_clients] {
            scope.spawn(move || {
                super::lowest_priority();
                work(ground);
            });
        }
    });
}
