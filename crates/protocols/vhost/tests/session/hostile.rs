//! Bytes, messages and file descriptors that no front end should send.

use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use lasthop_foreign::{ForeignFd, WAITING_MAX};
use lasthop_vhost::message::{BODY_BYTES_MAX, VhostMessage, request};
use lasthop_vhost::{MESSAGES_PER_TURN, Protocol, ProtocolError, SessionEnd};
use proptest::prelude::*;

use crate::host::{Host, OFFERED, Recorder, USER, addresses, event, memory_file, region};

fn header(number: u32, flags: u32, size: u32) -> Vec<u8> {
    [number, flags, size].iter().flat_map(|word| word.to_ne_bytes()).collect()
}

#[test]
fn a_message_in_pieces_is_put_together() {
    let mut host = Host::acknowledged();
    let file = memory_file();
    let message = VhostMessage {
        request: request::SET_MEM_TABLE,
        flags: 9,
        body: lasthop_vhost::front::encode_memory_table(&[region()]),
    };
    let bytes = message.encode();
    host.send_bytes(&bytes[..1], &[file.as_fd()]);
    for byte in &bytes[1..] {
        host.ready().unwrap();
        assert!(host.reply().is_none());
        host.front.write_all(&[*byte]).unwrap();
    }
    host.ready().unwrap();
    assert_eq!(host.reply().unwrap().u64(), Ok(0));
}

#[test]
fn half_a_message_then_nothing_is_a_hang_up() {
    for bytes in [&header(1, 1, 0)[..5], &header(2, 1, 8)[..]] {
        let mut host = Host::plain();
        host.send_bytes(bytes, &[]);
        host.ready().unwrap();
        host.ready().unwrap();
        host.front.shutdown(std::net::Shutdown::Write).unwrap();
        assert!(matches!(host.ready(), Err(SessionEnd::HungUp)));
    }
}

/// A descriptor whose close(2) blocks until its other end is dropped.
fn lingering() -> (OwnedFd, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (other, _) = listener.accept().unwrap();
    rustix::net::sockopt::set_socket_linger(&socket, Some(Duration::from_secs(3600))).unwrap();
    socket.set_nonblocking(true).unwrap();
    while socket.write(&[0; 65536]).is_ok() {}
    (socket.into(), other)
}

#[test]
fn a_session_with_too_much_to_close_is_not_read_until_that_is_done() {
    let mut host = Host::plain();
    let origin = host.session().socket().origin().clone();
    let (first, other) = lingering();
    drop(ForeignFd::new(first, &origin));
    for _ in 0..=WAITING_MAX + 1 {
        drop(ForeignFd::new(event(), &origin));
    }
    host.send(request::GET_FEATURES, Vec::new(), &[]);
    host.ready().expect("a machine without a CPU to spare looks the same");
    assert!(host.reply().is_none());
    drop(other);
    let until = Instant::now() + Duration::from_secs(60);
    while origin.is_full() {
        assert!(Instant::now() < until, "they are closed");
        std::thread::sleep(Duration::from_millis(1));
    }
    host.ready().unwrap();
    assert_eq!(host.reply().unwrap().request, request::GET_FEATURES);
}

#[test]
fn what_was_served_before_the_end_is_answered() {
    let mut host = Host::plain();
    host.send(request::GET_FEATURES, Vec::new(), &[]);
    host.send_bytes(&header(1, 2, 0), &[]);
    assert!(matches!(host.ready(), Err(SessionEnd::Protocol(ProtocolError::Version(2)))));
    assert_eq!(host.reply().unwrap().request, request::GET_FEATURES);
}

#[test]
fn a_front_end_that_takes_no_replies_has_hung_up() {
    let mut host = Host::plain();
    host.send(request::GET_FEATURES, Vec::new(), &[]);
    host.front.shutdown(std::net::Shutdown::Read).unwrap();
    assert!(matches!(host.ready(), Err(SessionEnd::HungUp)));
}

#[test]
fn other_versions_end_the_session() {
    for flags in [0, 2, 3, 8] {
        let mut host = Host::plain();
        host.send_bytes(&header(1, flags, 0), &[]);
        let end = host.ready().unwrap_err();
        assert!(matches!(end, SessionEnd::Protocol(ProtocolError::Version(_))), "{flags}: {end}");
    }
}

#[test]
fn a_body_beyond_the_limit_ends_the_session_before_it_comes() {
    for (size, ends) in [(BODY_BYTES_MAX, false), (BODY_BYTES_MAX + 1, true), (u32::MAX, true)] {
        let mut host = Host::plain();
        host.send_bytes(&header(request::GET_FEATURES, 1, size), &[]);
        match host.ready() {
            Ok(()) => assert!(!ends),
            Err(SessionEnd::Protocol(ProtocolError::BodyTooLarge(name, got))) => {
                assert!(ends);
                assert_eq!((name.as_str(), got), ("GET_FEATURES", size));
            }
            Err(end) => panic!("{end}"),
        }
    }
}

#[test]
fn bodies_that_are_too_short_end_the_session() {
    for (number, least) in [
        (request::SET_FEATURES, 8),
        (request::SET_PROTOCOL_FEATURES, 8),
        (request::SET_MEM_TABLE, 8),
        (request::SET_VRING_NUM, 8),
        (request::GET_VRING_BASE, 8),
        (request::SET_VRING_ADDR, 40),
        (request::SET_VRING_KICK, 8),
        (request::NET_SET_MTU, 8),
        (request::SET_STATUS, 8),
        (request::GET_CONFIG, 12),
        (request::ADD_MEM_REG, 40),
        (request::REM_MEM_REG, 40),
    ] {
        let mut host = Host::acknowledged();
        let end = host.try_tell(number, vec![0; least - 1], &[]).unwrap_err();
        let expected = ProtocolError::BodyTooShort(request::name(number), least - 1);
        assert!(matches!(end, SessionEnd::Protocol(error) if error == expected));
    }
}

#[test]
fn replies_to_nothing_end_the_session() {
    let mut host = Host::plain();
    host.send_bytes(&header(1, 5, 0), &[]);
    assert!(matches!(host.ready(), Err(SessionEnd::Protocol(ProtocolError::UnexpectedReply(_)))));
}

#[test]
fn a_flood_is_served_in_turns() {
    let mut host = Host::plain();
    let flood: Vec<u8> = (0..100).flat_map(|_| header(request::GET_FEATURES, 1, 0)).collect();
    host.send_bytes(&flood, &[]);
    let mut left = 100;
    while left > 0 {
        host.ready().unwrap();
        let replies = std::iter::from_fn(|| host.reply()).count();
        assert_eq!(replies, left.min(MESSAGES_PER_TURN));
        left -= replies;
    }
}

#[test]
fn replies_that_nobody_reads_are_bounded() {
    let mut host = Host::plain();
    let config = [header(request::GET_CONFIG, 1, 12), header(0, 256, 0)].concat();
    let end = (0..100_000).find_map(|_| {
        host.send_bytes(&config, &[]);
        host.ready().err()
    });
    assert!(matches!(end, Some(SessionEnd::Protocol(ProtocolError::RepliesUnread(_)))));
}

#[test]
fn waiting_replies_leave_when_there_is_room() {
    let mut host = Host::plain();
    let config = [header(request::GET_CONFIG, 1, 12), header(0, 256, 0)].concat();
    let mut asked = 0;
    while !host.session().wants_write() {
        host.send_bytes(&config, &[]);
        host.ready().unwrap();
        asked += 1;
    }
    let mut answered = 0;
    while answered < asked {
        answered += std::iter::from_fn(|| host.reply()).count();
        host.ready().unwrap();
    }
    assert!(!host.session().wants_write());
    assert!(host.reply().is_none());
}

/// Whether all sent descriptors are closed here: the other end of a socket sees it.
fn is_closed(other: &UnixStream) -> bool {
    other.set_nonblocking(true).unwrap();
    matches!(std::io::Read::read(&mut &*other, &mut [0]), Ok(0))
}

/// Waits until another thread has closed all sent descriptors.
fn await_close(other: &UnixStream) {
    other.set_nonblocking(false).unwrap();
    other.set_read_timeout(Some(std::time::Duration::from_secs(120))).unwrap();
    assert_eq!(std::io::Read::read(&mut &*other, &mut [0]).unwrap(), 0);
}

#[test]
fn descriptors_that_nobody_wants_are_closed() {
    let mut host = Host::acknowledged();
    let (sent, other) = UnixStream::pair().unwrap();
    host.tell(request::GET_FEATURES, Vec::new(), &[sent.as_fd(); 8]);
    host.tell(77, Vec::new(), &[sent.as_fd()]);
    host.tell(request::SET_VRING_KICK, 0x100_u64.to_ne_bytes().to_vec(), &[sent.as_fd()]);
    host.tell(request::SET_VRING_CALL, vec![0; 8], &[sent.as_fd(); 3]);
    assert!(!is_closed(&other));
    drop(sent);
    await_close(&other);
}

#[test]
fn more_than_eight_descriptors_end_the_session() {
    let (sent, other) = UnixStream::pair().unwrap();
    let mut host = Host::plain();
    host.send(request::GET_FEATURES, Vec::new(), &[sent.as_fd(); 9]);
    assert!(matches!(host.ready(), Err(SessionEnd::Protocol(ProtocolError::TooManyFds))));
    drop(host);
    let mut host = Host::plain();
    let message = header(request::SET_FEATURES, 1, 8);
    host.send_bytes(&message, &[sent.as_fd(); 5]);
    host.send_bytes(&[0; 8], &[sent.as_fd(); 4]);
    assert!(matches!(host.ready(), Err(SessionEnd::Protocol(ProtocolError::TooManyFds))));
    drop((sent, host));
    await_close(&other);
}

/// A body that is often meaningful.
fn bodies() -> impl Strategy<Value = Vec<u8>> {
    let words = [0_u32, 1, 2, 3, 8, 64, 256, 0x100, 0x101, 0x7000_0000, u32::MAX];
    prop_oneof![
        prop::collection::vec(any::<u8>(), 0..80),
        prop::collection::vec(prop::sample::select(words.to_vec()), 0..20)
            .prop_map(|words| words.iter().flat_map(|word| word.to_ne_bytes()).collect()),
        (0..3_u32).prop_map(|index| addresses(index, USER).encode()),
        Just(lasthop_vhost::front::encode_memory_table(&[region()])),
        Just(lasthop_vhost::front::encode_memory_region(region())),
    ]
}

fn messages() -> impl Strategy<Value = (VhostMessage, Vec<usize>)> {
    let numbers = prop_oneof![8 => 0..42_u32, 1 => any::<u32>()];
    let flags = prop_oneof![4 => Just(9_u32), 4 => Just(1), 1 => any::<u32>()];
    let message =
        (numbers, flags, bodies()).prop_map(|(request, flags, body)| VhostMessage { request, flags, body });
    (message, prop::collection::vec(0..4_usize, 0..3))
}

/// One file of each kind.
fn files() -> [OwnedFd; 4] {
    [event(), memory_file(), event(), UnixStream::pair().unwrap().0.into()]
}

proptest! {
    #[test]
    fn random_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..400), version in any::<bool>()) {
        let mut host = Host::plain();
        let mut bytes = bytes;
        if version && bytes.len() > 12 {
            let start = header(u32::from(bytes[0]) % 42, 9, u32::from(bytes[8]));
            bytes[..12].copy_from_slice(&start);
        }
        if !bytes.is_empty() {
            host.send_bytes(&bytes, &[]);
        }
        host.front.shutdown(std::net::Shutdown::Write).unwrap();
        let turns = (0..64).take_while(|_| host.ready().is_ok()).count();
        prop_assert!(turns < 64, "a closed connection ends");
    }

    #[test]
    fn random_messages_never_panic(script in prop::collection::vec(messages(), 1..40)) {
        let mut host = Host::acknowledged();
        let files = files();
        for (message, chosen) in script {
            let fds: Vec<BorrowedFd<'_>> = chosen.iter().map(|index| files[*index].as_fd()).collect();
            host.send_bytes(&message.encode(), &fds);
            if host.ready().is_err() {
                break;
            }
        }
        host.session = None;
        prop_assert_eq!(host.running(), Vec::<u16>::new());
    }

    #[test]
    fn the_state_machine_needs_no_socket(script in prop::collection::vec(messages(), 1..40)) {
        let mut protocol = Protocol::new(Recorder::new(OFFERED, 1));
        let files = files();
        for (message, chosen) in script {
            let fds = chosen.iter().map(|index| files[*index].try_clone().unwrap().into()).collect();
            match protocol.handle(&message, fds) {
                Ok(reply) => prop_assert!(reply.is_none_or(|reply| reply.flags == 5)),
                Err(SessionEnd::Protocol(_) | SessionEnd::Refused(_)) => break,
                Err(end) => prop_assert!(false, "{}", end),
            }
        }
    }
}
