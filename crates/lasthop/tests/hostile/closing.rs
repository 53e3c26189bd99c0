//! Descriptors whose close(2) blocks for as long as the front end wants: neither process waits for it.

use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::time::Duration;

use lasthop_vhost::message::request;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use rustix::process::Signal;

use lasthop_rig::odd_fds::{LingeringSocket, nested, watched};
use lasthop_rig::rogue::send_with_fds;
use lasthop_rig::rogue::{Desk, GUEST_ADDR, Rogue, region};
use lasthop_rig::starts::NoStarts;
use lasthop_rig::victims::Victims;
use lasthop_rig::{eventually, is_alive, signal, stop};

/// Longer than any test takes, so that a thread that waits for a close makes the test fail.
const LINGER: Duration = Duration::from_secs(3600);

fn lingering() -> LingeringSocket {
    LingeringSocket::new(LINGER)
}

/// Runs `work` before the switch handles it: afterwards, the copies that were sent are the last ones.
pub(crate) fn unseen<T>(victims: &Victims, act: impl FnOnce() -> T) -> T {
    let processes = [victims.switch.switch_pid().expect("it runs"), victims.switch.pid()];
    processes.iter().for_each(|pid| stop(*pid));
    let done = act();
    processes.iter().for_each(|pid| signal(*pid, Signal::CONT));
    done
}

/// Sends a lingering socket with a message, and keeps no copy; returns its other end.
fn send_lingering(victims: &Victims, rogue: &Rogue, number: u32, body: &[u8]) -> TcpStream {
    let socket = lingering();
    unseen(victims, || {
        // A session that has ended accepts none.
        let _ = rogue.send(number, body, &[socket.fd()]);
        socket.let_go()
    })
}

/// Waits for the log line that names a vnic whose descriptor takes long to close.
pub(crate) fn named(victims: &Victims, vnic: &str) {
    eventually("the vnic's name in the log", || {
        let line = format!("port {vnic}: a descriptor that it sent takes long to close");
        victims.switch.log().contains(&line).then_some(())
    });
}

/// Requests with a descriptor, required or not, each from its own vnic.
pub(crate) fn requests() -> [(&'static str, u32, Vec<u8>); 8] {
    let ring = 1_u64.to_ne_bytes().to_vec();
    let memory = [&[0; 8][..], &region(GUEST_ADDR + (1 << 40), 4096).encode()].concat();
    [
        ("kick", request::SET_VRING_KICK, ring.clone()),
        ("call", request::SET_VRING_CALL, ring.clone()),
        ("err", request::SET_VRING_ERR, ring),
        ("backend", request::SET_BACKEND_REQ_FD, Vec::new()),
        ("memory", request::ADD_MEM_REG, memory),
        ("log", request::SET_LOG_FD, Vec::new()),
        ("unwanted", request::GET_FEATURES, Vec::new()),
        ("unknown", 9999, Vec::new()),
    ]
}

#[test]
fn a_socket_that_lingers_with_any_message_holds_up_nobody() {
    let vnics = requests().map(|(vnic, ..)| vnic);
    let mut victims = Victims::beside(&vnics);
    let mut peers: Vec<TcpStream> = Vec::new();
    for (vnic, number, body) in requests() {
        let (mut rogue, desk) = (Rogue::connect(&victims.switch, vnic), Desk::new(1));
        rogue.negotiate();
        rogue.share(&desk, &[]);
        rogue.await_turn();
        peers.push(send_lingering(&victims, &rogue, number, &body));
        let _ = rogue.front.get_features(); // some of these end the session
    }
    victims.assert_unharmed();
    victims.upgrade();
    victims.assert_unharmed();
}

#[test]
fn descriptors_that_do_not_close_are_named_and_their_vnic_is_held() {
    let mut victims = Victims::beside(&["bad"]);
    let rogue = Rogue::connect(&victims.switch, "bad");
    let peer = send_lingering(&victims, &rogue, request::GET_FEATURES, &[]);
    named(&victims, "bad");
    // Its next message ends the session.
    let _ = rogue.send(request::GET_FEATURES, &[], &[]);
    rogue.await_end();
    let again = Rogue::connect(&victims.switch, "bad");
    again.await_end();
    eventually("the reason", || {
        victims.switch.log().contains("took long to close; it is held").then_some(())
    });
    victims.assert_unharmed();
    drop(peer);
}

/// Sends a lingering socket, and again within a UNIX socket that becomes a call descriptor, and disconnects.
fn send_nested(victims: &Victims, vnic: &str, leave: impl FnOnce(Rogue)) -> TcpStream {
    let (mut rogue, desk) = (Rogue::connect(&victims.switch, vnic), Desk::new(1));
    rogue.negotiate();
    rogue.share(&desk, &[]);
    let (socket, no_starts) = (lingering(), NoStarts::begin());
    let call = nested(socket.fd());
    let peer = socket.let_go();
    rogue.start_ring(0, Some(desk.kick.as_fd()), Some(call.as_fd())).expect("sent");
    rogue.await_turn();
    drop((call, no_starts));
    leave(rogue);
    peer
}

#[test]
fn a_socket_that_lingers_within_a_call_socket_holds_up_neither_process() {
    let mut victims = Victims::beside(&["leaves", "replaces", "killed"]);
    let replace = |mut rogue: Rogue| {
        // The supervisor has the last copy of the first one.
        rogue.start_ring(0, None, None).expect("sent");
        rogue.await_turn();
    };
    let mut peers = vec![send_nested(&victims, "leaves", drop), send_nested(&victims, "replaces", replace)];
    victims.assert_unharmed();
    peers.push(send_nested(&victims, "killed", |rogue| {
        let pid = victims.switch.switch_pid().expect("it runs");
        signal(pid, Signal::KILL);
        eventually("its end", || (!is_alive(pid)).then_some(()));
        drop(rogue);
    }));
    // The counters of the killed process's last milliseconds are lost, so they are not compared.
    victims.talk(10);
    victims.talk_anew(10);
    victims.operate();
    victims.attach_another();
    victims.upgrade();
    victims.talk(10);
}

#[test]
fn what_lies_unread_in_a_sessions_own_socket_holds_up_nobody() {
    let mut victims = Victims::beside(&["bad", "waiting"]);
    let (rogue, socket) = (Rogue::connect(&victims.switch, "bad"), lingering());
    // The first message ends the session; the second is not read.
    let peer = unseen(&victims, || {
        rogue.send_bytes(&[0xff; 12], &[]).expect("sent");
        rogue.send(request::GET_FEATURES, &[], &[socket.fd()]).expect("sent");
        socket.let_go()
    });
    rogue.await_end();
    // Second guests are refused without reading their messages.
    let mut first = Rogue::connect(&victims.switch, "waiting");
    first.await_turn();
    let second = Rogue::connect(&victims.switch, "waiting");
    let peers = [peer, send_lingering(&victims, &second, request::GET_FEATURES, &[])];
    second.await_end();
    drop(first);
    victims.assert_unharmed();
    victims.switch.ask(&["vnic", "del", "waiting"]).ok();
    victims.assert_unharmed();
    drop(peers);
}

#[test]
fn as_many_as_a_message_can_have_hold_up_nobody() {
    let mut victims = Victims::beside(&["bad"]);
    let rogue = Rogue::connect(&victims.switch, "bad");
    let sockets: Vec<_> = (0..40).map(|_| lingering()).collect();
    let peers: Vec<_> = unseen(&victims, || {
        let fds: Vec<BorrowedFd<'_>> = sockets.iter().map(LingeringSocket::fd).collect();
        rogue.send(request::GET_FEATURES, &[], &fds).expect("sent");
        sockets.into_iter().map(LingeringSocket::let_go).collect()
    });
    victims.assert_unharmed();
    named(&victims, "bad");
    drop(peers);
}

/// Epoll watches of the sender of datagrams: each datagram that is freed unread wakes all of them, some 10 ms in the
/// kernel.
const WATCHES: usize = 100_000;
/// Datagrams in one socket: few enough that its close is not a slow one.
const DATAGRAMS: usize = 5;

/// A socket whose close takes much CPU time of the closing process.
fn costly_to_close(sender: &UnixDatagram, directory: &Path) -> UnixDatagram {
    let path = directory.join("receiver");
    let receiver = UnixDatagram::bind(&path).expect("bound");
    for _ in 0..DATAGRAMS {
        sender.send_to(b"x", &path).expect("sent");
    }
    std::fs::remove_file(path).expect("removed");
    receiver
}

#[test]
fn a_front_end_whose_descriptors_cost_the_supervisor_much_to_close_has_to_leave() {
    let mut victims = Victims::beside(&["bad"]);
    let (mut rogue, directory) = (Rogue::connect(&victims.switch, "bad"), tempfile::tempdir().expect("one"));
    rogue.negotiate();
    let sender = UnixDatagram::unbound().expect("a socket");
    let watches = watched(sender.as_fd(), WATCHES);
    eventually("the end of the connection", || {
        let call = costly_to_close(&sender, directory.path());
        // The next message replaces it, and the supervisor closes the last copy.
        let sent = rogue.front.set_vring_call(0, Some(call.as_fd()));
        drop(call);
        (sent.is_err() || rogue.front.get_features().is_err()).then_some(())
    });
    eventually("the reason", || {
        let line = "port bad: closing descriptors of its front ends took too much CPU time";
        victims.switch.log().contains(line).then_some(())
    });
    drop(watches);
    victims.assert_unharmed();
}

/// A client of the control interface.
fn datapath_client(victims: &Victims) -> OwnedFd {
    let client = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
    let client = client.expect("a socket");
    let path = victims.switch.path("datapath.sock");
    connect(&client, &SocketAddrUnix::new(path).expect("short")).expect("it listens");
    client
}

fn is_closed(socket: BorrowedFd<'_>) -> bool {
    let mut byte = [0; 1];
    let read = rustix::net::recv(socket, &mut byte[..], rustix::net::RecvFlags::DONTWAIT);
    matches!(read, Ok((_, 0)) | Err(rustix::io::Errno::CONNRESET))
}

#[test]
fn clients_that_send_descriptors_are_sent_away_and_hold_up_nobody() {
    let mut victims = Victims::beside(&[]);
    let control: OwnedFd = victims.switch.connect("control.sock").into();
    let clients = [control, datapath_client(&victims)];
    let peers = [lingering(), lingering()];
    let peers = unseen(&victims, || {
        for (client, socket) in clients.iter().zip(&peers) {
            send_with_fds(client.as_fd(), b"x", &[socket.fd()]).expect("sent");
        }
        peers.map(LingeringSocket::let_go)
    });
    for client in &clients {
        eventually("the end of the connection", || is_closed(client.as_fd()).then_some(()));
    }
    victims.assert_unharmed();
    drop(peers);
}
