use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

use crate::{ForeignFd, HoldReason, LOOKS_MAX, Origin, PendingCloses, WAITING_MAX, discard, receive, start};

/// Longer than any test, so that waiting for a close is noticed.
const LINGER: Duration = Duration::from_secs(300);

/// A socket whose close(2) takes `LINGER`, or until its other end is dropped.
fn lingering() -> (OwnedFd, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (other, _) = listener.accept().unwrap();
    rustix::net::sockopt::set_socket_linger(&socket, Some(LINGER)).unwrap();
    socket.set_nonblocking(true).unwrap();
    while socket.write(&[0; 65536]).is_ok() {}
    (socket.into(), other)
}

/// Puts descriptors into the receive queue of the other end.
fn send(socket: &UnixStream, fds: &[&OwnedFd]) {
    let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
    let mut space = vec![std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(253))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
    let sent = sendmsg(socket, &[std::io::IoSlice::new(b"x")], &mut control, SendFlags::NOSIGNAL);
    assert_eq!(sent.unwrap(), 1);
}

/// Waits for a condition, as long as a busy machine may need.
fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let until = Instant::now() + Duration::from_secs(60);
    while !is_so() {
        assert!(Instant::now() < until, "{what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Whether the other end of a pipe or socket is seen to be closed.
fn is_closed(other: &mut UnixStream) -> bool {
    other.set_nonblocking(true).unwrap();
    matches!(other.read(&mut [0]), Ok(0))
}

#[test]
fn dropping_a_descriptor_that_lingers_does_not_wait() {
    let (origin, (socket, other)) = (Origin::new("vnic a"), lingering());
    drop(ForeignFd::new(socket, &origin));
    eventually("the close has begun", || origin.waiting() == 1);
    drop(other);
    eventually("it is closed", || origin.waiting() == 0);
}

#[test]
fn a_socket_with_one_in_its_receive_queue_is_dropped_without_waiting() {
    let (origin, (socket, other)) = (Origin::new("vnic a"), lingering());
    let (ours, theirs) = UnixStream::pair().unwrap();
    send(&theirs, &[&socket]);
    drop((socket, theirs));
    drop(ForeignFd::new(ours.into(), &origin));
    eventually("the close has begun", || origin.waiting() == 1);
    drop(other);
    eventually("it is closed", || origin.waiting() == 0);
}

#[test]
fn descriptors_that_do_not_close_delay_those_of_their_own_connection_alone() {
    let stuck: Vec<_> = (0..8).map(|_| (Origin::new("stuck"), lingering())).collect();
    let mut others = Vec::new();
    for (origin, (socket, other)) in stuck {
        drop(ForeignFd::new(socket, &origin));
        let (behind, end) = UnixStream::pair().unwrap();
        drop(ForeignFd::new(behind.into(), &origin));
        others.push((origin, other, end));
    }
    let (next, mut end) = UnixStream::pair().unwrap();
    let innocent = Origin::new("vnic b");
    drop(ForeignFd::new(next.into(), &innocent));
    eventually("others' are closed", || innocent.waiting() == 0);
    assert!(is_closed(&mut end));
    for (origin, other, mut end) in others {
        assert!(origin.waiting() == 2 && !is_closed(&mut end), "what is behind a stuck one waits");
        drop(other);
        eventually("all is closed", || origin.waiting() == 0);
        assert!(is_closed(&mut end));
    }
}

#[test]
fn a_connection_is_overdue_when_closing_takes_long_and_its_port_is_held_then() {
    static TOLD: Mutex<Vec<String>> = Mutex::new(Vec::new());
    start(|name| TOLD.lock().unwrap().push(name.to_owned()));
    let mut arrears = PendingCloses::new("slow one");
    let origin = arrears.begin();
    assert_eq!(arrears.held(Instant::now()), None);
    let (socket, other) = lingering();
    drop(ForeignFd::new(socket, &origin));
    assert!(!origin.is_overdue(), "it has begun a moment ago");
    eventually("it is overdue", || origin.is_overdue());
    eventually("it is told", || TOLD.lock().unwrap().iter().any(|name| name == "slow one"));
    let held = arrears.held(Instant::now());
    assert!(matches!(held, Some(HoldReason::For(left)) if left > Duration::ZERO), "{held:?}");
    assert_eq!(arrears.held(Instant::now() + Duration::from_secs(61)), None, "one may be stuck");
    drop(other);
    eventually("it is closed", || origin.waiting() == 0);
    drop(origin);
    assert!(matches!(arrears.held(Instant::now()), Some(HoldReason::For(_))), "it is not forgotten");
}

#[test]
fn a_port_with_many_stuck_connections_is_held_until_one_is_through() {
    let mut arrears = PendingCloses::new("vnic a");
    let mut stuck: Vec<_> = (0..4)
        .map(|_| {
            let (origin, (socket, other)) = (arrears.begin(), lingering());
            drop(ForeignFd::new(socket, &origin));
            (origin, other)
        })
        .collect();
    let late = || Instant::now() + Duration::from_secs(61);
    eventually("all take long", || stuck.iter().all(|(origin, _)| origin.is_overdue()));
    assert_eq!(arrears.held(late()), Some(HoldReason::Stuck(4)));
    let (origin, other) = stuck.pop().unwrap();
    drop(other);
    eventually("one is through", || origin.waiting() == 0);
    assert_ne!(arrears.held(late()), Some(HoldReason::Stuck(4)));
}

#[test]
fn a_connection_that_sends_more_than_is_closed_is_full_and_not_overdue() {
    let (origin, (socket, other)) = (Origin::new("vnic a"), lingering());
    drop(ForeignFd::new(socket, &origin));
    let (ours, _theirs) = UnixStream::pair().unwrap();
    for _ in 0..=WAITING_MAX + 1 {
        drop(ForeignFd::new(ours.try_clone().unwrap().into(), &origin));
    }
    assert!(origin.is_full());
    assert!(!origin.is_overdue(), "it may be this process that has no CPU");
    drop(other);
    eventually("all is closed", || origin.waiting() == 0);
    assert!(!origin.is_full());
}

#[test]
fn a_close_is_slow_by_looks_and_not_by_the_clock() {
    let origin = Origin::new("vnic a");
    let (ours, _theirs) = UnixStream::pair().unwrap();
    // No closing thread serves it, as if none got the CPU.
    origin.close_later(ours.into());
    let closing = origin.next();
    let late = Instant::now() + Duration::from_secs(3600);
    (1..LOOKS_MAX).for_each(|_| origin.look(late));
    assert!(!origin.is_overdue() && !origin.is_to_be_told());
    origin.look(late);
    assert!(origin.is_overdue() && origin.is_to_be_told());
    drop(closing);
}

#[test]
fn closing_is_paid_for() {
    let mut arrears = PendingCloses::new("vnic a");
    let (origin, mut sockets) = (arrears.begin(), Vec::new());
    for _ in 0..100 {
        let (ours, theirs) = UnixStream::pair().unwrap();
        sockets.push(theirs);
        drop(ForeignFd::new(ours.into(), &origin));
    }
    eventually("all is closed", || origin.waiting() == 0);
    drop(origin);
    eventually("it is known", || arrears.take_spent() > Duration::ZERO);
    assert_eq!(arrears.take_spent(), Duration::ZERO, "once");
}

#[test]
fn closing_for_a_connection_that_is_there_is_paid_for_too() {
    let mut closes = PendingCloses::new("vnic a");
    let origin = closes.begin();
    let (ours, _theirs) = UnixStream::pair().unwrap();
    (0..100).for_each(|_| drop(ForeignFd::new(ours.try_clone().unwrap().into(), &origin)));
    eventually("all is closed", || origin.waiting() == 0);
    // Its time is added after its last close.
    let mut spent = Duration::ZERO;
    eventually("it took some time", || {
        spent += origin.take_spent();
        spent > Duration::ZERO
    });
    origin.spend(Duration::from_secs(6));
    let held = closes.held_for_costs(Instant::now());
    assert!(matches!(held, Some(HoldReason::Costly(left)) if left > Duration::from_secs(9)), "{held:?}");
    assert_eq!(closes.held(Instant::now()), None, "where they are charged to something else");
    assert_eq!(closes.held_for_costs(Instant::now() + Duration::from_secs(11)), None);
}

#[test]
fn all_descriptors_that_a_message_can_bring_arrive() {
    let (one, other) = UnixStream::pair().unwrap();
    let file = one.try_clone().unwrap().into();
    send(&one, &[&file; 253]);
    let (origin, mut fds) = (Origin::new("vnic a"), Vec::new());
    let received = receive(other.as_fd(), &mut [0; 8], RecvFlags::empty(), &origin, &mut fds).unwrap();
    assert_eq!((received.bytes, received.is_cut, fds.len()), (1, false, 253));
    let nothing = receive(other.as_fd(), &mut [0; 8], RecvFlags::DONTWAIT, &origin, &mut fds);
    assert_eq!(nothing, Err(Errno::AGAIN));
}

#[test]
fn descriptors_that_nobody_wants_are_noticed() {
    let (mut one, other) = UnixStream::pair().unwrap();
    let (origin, (socket, end)) = (Origin::new("a client"), lingering());
    send(&one, &[&socket]);
    drop(socket);
    let take = || discard(other.as_fd(), &mut [0; 8], RecvFlags::DONTWAIT, &origin);
    assert_eq!(take(), Ok((1, true)));
    one.write_all(b"plain").unwrap();
    assert_eq!(take(), Ok((5, false)));
    drop(end);
    eventually("it is closed", || origin.waiting() == 0);
}
