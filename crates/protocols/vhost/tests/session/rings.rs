//! When rings start, stop and continue.

use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

use lasthop_vhost::message::{FLAG_NEED_REPLY, RingStateMessage, request};
use lasthop_vhost::{ProtocolError, SessionEnd, features};
use rustix::fs::{OFlags, fcntl_getfl};

use crate::host::{
    Call, ENTRIES, Host, OFFERED, Recorder, USER, addresses, event, memory_file, region, started,
};

type Step<'a> = &'a dyn Fn(&mut Host) -> Option<u64>;

#[test]
fn a_ring_starts_when_all_is_there_in_whatever_order() {
    let file = memory_file();
    let steps: [Step<'_>; 4] = [
        &|host| host.tell_memory(&[region()], &[&file]),
        &|host| host.tell_ring(request::SET_VRING_NUM, 1, u32::from(ENTRIES)),
        &|host| host.tell(request::SET_VRING_ADDR, addresses(1, USER).encode(), &[]),
        &|host| host.tell_eventfd(request::SET_VRING_KICK, 1),
    ];
    for order in [[0, 1, 2, 3], [3, 2, 1, 0], [3, 0, 1, 2], [1, 3, 2, 0], [2, 3, 0, 1]] {
        let mut host = Host::plain();
        for (done, step) in order.iter().enumerate() {
            assert_eq!(host.running(), [], "{order:?} after {done}");
            steps[*step](&mut host);
        }
        assert_eq!(host.running(), [1], "{order:?}");
    }
}

#[test]
fn a_ring_starts_with_what_was_told() {
    let mut host = Host::plain();
    let _file = host.run_pair();
    host.base_of(1);
    host.tell_u64(request::SET_FEATURES, features::EVENT_IDX);
    host.tell_ring(request::SET_VRING_NUM, 1, 64);
    host.tell_ring(request::SET_VRING_BASE, 1, 0xfffe);
    host.tell_no_fd(request::SET_VRING_CALL, 1);
    host.device.calls();
    host.tell_no_fd(request::SET_VRING_KICK, 1);
    let expected = Call::Start { index: 1, base: 0xfffe, kick: false, call: false, enabled: true };
    assert_eq!(host.device.calls(), [expected]);
    assert_eq!(host.device.notes().running[&1].ring.entries(), 64);
}

#[test]
fn a_second_kick_restarts_with_the_new_eventfd() {
    let mut host = Host::plain();
    let _file = host.run_pair();
    host.device.notes().progress = 5;
    host.tell_eventfd(request::SET_VRING_KICK, 1);
    assert_eq!(host.device.calls(), [Call::Stop(1), started(1, 5, true)]);
}

#[test]
fn get_base_stops_until_the_next_kick() {
    let mut host = Host::plain();
    let file = host.run_pair();
    host.device.notes().progress = 11;
    assert_eq!(host.base_of(0), 11);
    assert_eq!(host.device.calls(), [Call::Stop(0)]);
    assert_eq!(host.base_of(0), 11, "asked again");
    assert_eq!(host.device.calls(), []);
    host.tell_memory(&[region()], &[&file]);
    assert_eq!(host.running(), [1], "memory does not start it");
    host.device.calls();
    host.tell_eventfd(request::SET_VRING_KICK, 0);
    assert_eq!(host.device.calls(), [started(0, 11, true)]);
}

#[test]
fn the_base_of_a_ring_that_never_ran_is_what_was_set() {
    let mut host = Host::plain();
    host.tell_ring(request::SET_VRING_BASE, 1, 0x1234);
    assert_eq!(host.base_of(1), 0x1234);
    assert_eq!(host.device.calls(), []);
}

#[test]
fn a_ring_that_the_device_lost_has_no_base_and_its_session_ends() {
    for flags in [1, 1 | FLAG_NEED_REPLY] {
        let mut host = Host::acknowledged();
        let _file = host.run_pair();
        host.flags = flags;
        host.device.notes().running.clear();
        host.send(request::GET_VRING_BASE, RingStateMessage { index: 0, value: 0 }.encode(), &[]);
        let end = host.ready().unwrap_err();
        assert!(matches!(end, SessionEnd::LostPosition(0)), "{end}");
        assert!(host.reply().is_none(), "any reply would be taken for a position");
    }
}

#[test]
fn a_ring_that_was_lost_before_has_no_base_until_it_gets_one() {
    let mut host = Host::plain();
    let _file = host.run_pair();
    host.device.notes().running.clear();
    host.tell_u64(request::SET_STATUS, 0);
    host.tell_ring(request::SET_VRING_BASE, 0, 7);
    assert_eq!(host.base_of(0), 7);
    host.send(request::GET_VRING_BASE, RingStateMessage { index: 1, value: 0 }.encode(), &[]);
    assert!(matches!(host.ready(), Err(SessionEnd::LostPosition(1))));
}

#[test]
fn another_place_restarts_a_ring_and_the_same_does_not() {
    let mut host = Host::plain();
    let _file = host.run_pair();
    host.tell(request::SET_VRING_ADDR, addresses(0, USER).encode(), &[]);
    host.tell_ring(request::SET_VRING_NUM, 0, u32::from(ENTRIES));
    assert_eq!(host.device.calls(), []);
    host.tell(request::SET_VRING_ADDR, addresses(0, USER + 0x8_0000).encode(), &[]);
    assert_eq!(host.device.calls(), [Call::Stop(0), started(0, 0, true)]);
}

#[test]
fn a_call_at_run_time_reaches_the_running_ring() {
    let mut host = Host::plain();
    let _file = host.run_pair();
    host.tell_eventfd(request::SET_VRING_CALL, 0);
    host.tell_no_fd(request::SET_VRING_CALL, 1);
    assert_eq!(host.device.calls(), [Call::Signal(0, true), Call::Signal(1, false)]);
    host.tell_eventfd(request::SET_VRING_ERR, 0);
    host.tell_no_fd(request::SET_VRING_ERR, 0);
    assert_eq!(host.device.calls(), []);
}

#[test]
fn eventfds_do_not_block() {
    let mut host = Host::plain();
    let _file = host.run_pair();
    let notes = host.device.notes();
    let start = &notes.running[&0];
    for fd in [&start.kick, &start.call] {
        let flags = fcntl_getfl(fd.as_ref().unwrap()).unwrap();
        assert!(flags.contains(OFlags::NONBLOCK));
    }
}

#[test]
fn calls_may_go_through_a_unix_socket_but_kicks_may_not() {
    // User Mode Linux passes one end of a socket pair as its call descriptor.
    let mut host = Host::acknowledged();
    let (socket, _other) = UnixStream::pair().unwrap();
    let zero = || 0_u64.to_ne_bytes().to_vec();
    assert_eq!(host.tell(request::SET_VRING_CALL, zero(), &[socket.as_fd()]), Some(0));
    let flags = fcntl_getfl(&socket).unwrap();
    assert!(flags.contains(OFlags::NONBLOCK), "a full one must not block the switch");
    assert_eq!(host.tell(request::SET_VRING_KICK, zero(), &[socket.as_fd()]), Some(1));
}

#[test]
fn calls_may_go_through_nothing_that_a_writer_cannot_get_out_of() {
    let mut host = Host::acknowledged();
    let (_read, write) = rustix::pipe::pipe().unwrap();
    let udp = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    for fd in [write.as_fd(), udp.as_fd()] {
        assert_eq!(host.tell(request::SET_VRING_CALL, 0_u64.to_ne_bytes().to_vec(), &[fd]), Some(1));
        assert!(host.last_refusal().contains("not an eventfd"));
    }
}

#[test]
fn descriptors_that_are_no_eventfds_are_refused() {
    let mut host = Host::acknowledged();
    let file = lasthop_guestmem::memfd("no-eventfd", 4096).unwrap();
    let zero = || 0_u64.to_ne_bytes().to_vec();
    for number in [request::SET_VRING_KICK, request::SET_VRING_CALL, request::SET_VRING_ERR] {
        assert_eq!(host.tell(number, zero(), &[file.as_fd()]), Some(1));
        assert_eq!(
            host.last_refusal(),
            format!(
                "{} with a file descriptor that is not an eventfd; the front end must pass one",
                request::name(number)
            )
        );
        assert_eq!(host.tell(number, zero(), &[]), Some(1));
        assert!(host.last_refusal().ends_with("with 0 file descriptors, 1 needed"));
        let fd = event();
        assert_eq!(host.tell(number, zero(), &[fd.as_fd(), fd.as_fd()]), Some(1));
        assert!(host.last_refusal().ends_with("with 2 file descriptors, 1 needed"));
    }
}

#[test]
fn the_back_end_channel_is_a_unix_stream() {
    let mut host = Host::acknowledged();
    let udp = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let (datagram, _other) = std::os::unix::net::UnixDatagram::pair().unwrap();
    let (_read, write) = rustix::pipe::pipe().unwrap();
    for fd in [udp.as_fd(), datagram.as_fd(), write.as_fd(), event().as_fd()] {
        assert_eq!(host.tell(request::SET_BACKEND_REQ_FD, Vec::new(), &[fd]), Some(1));
        assert!(host.last_refusal().contains("that is not a UNIX stream socket"));
    }
    let (stream, _other) = std::os::unix::net::UnixStream::pair().unwrap();
    assert_eq!(host.tell(request::SET_BACKEND_REQ_FD, Vec::new(), &[stream.as_fd()]), Some(0));
}

#[test]
fn rings_wait_to_be_enabled_once_bit_30_is_acknowledged() {
    let mut host = Host::plain();
    host.tell_u64(request::SET_FEATURES, OFFERED | features::PROTOCOL_FEATURES);
    let _file = host.run_pair();
    assert!(host.device.notes().running.values().all(|start| !start.enabled));
    for enable in [1, 1, 0] {
        host.tell_ring(request::SET_VRING_ENABLE, 1, enable);
    }
    assert_eq!(host.device.calls(), [Call::Enabled(1, true), Call::Enabled(1, false)]);
}

#[test]
fn dropping_bit_30_later_enables_running_rings() {
    let mut host = Host::plain();
    host.tell_u64(request::SET_FEATURES, OFFERED | features::PROTOCOL_FEATURES);
    let _file = host.run_pair();
    host.tell_u64(request::SET_FEATURES, OFFERED);
    let expected =
        [Call::Stop(0), Call::Stop(1), Call::Features(OFFERED), started(0, 0, true), started(1, 0, true)];
    assert_eq!(host.device.calls(), expected);
    host.tell_u64(request::SET_FEATURES, OFFERED);
    assert_eq!(host.device.calls(), [Call::Features(OFFERED)], "unchanged: rings keep running");
}

#[test]
fn resets_stop_rings_and_keep_memory_and_positions() {
    for (number, still_enabled) in
        [(request::RESET_DEVICE, false), (request::RESET_OWNER, false), (request::SET_STATUS, true)]
    {
        let mut host = Host::plain();
        host.tell_u64(request::SET_FEATURES, OFFERED | features::PROTOCOL_FEATURES);
        let _file = host.run_pair();
        host.tell_ring(request::SET_VRING_ENABLE, 0, 1);
        host.device.notes().progress = 9;
        host.device.calls();
        host.tell_u64(number, 0);
        assert_eq!(host.device.calls(), [Call::Stop(0), Call::Stop(1), Call::Features(0)]);
        assert_eq!(host.base_of(1), 9);
        host.tell_u64(request::SET_FEATURES, OFFERED | features::PROTOCOL_FEATURES);
        assert_eq!(host.running(), [], "waits for a kick");
        host.device.calls();
        host.tell_eventfd(request::SET_VRING_KICK, 0);
        assert_eq!(host.device.calls(), [started(0, 9, still_enabled)]);
    }
}

#[test]
fn rings_beyond_the_offer_end_the_session() {
    for number in
        [request::SET_VRING_NUM, request::SET_VRING_BASE, request::GET_VRING_BASE, request::SET_VRING_ENABLE]
    {
        let mut host = Host::acknowledged();
        host.send(number, [2_u32.to_ne_bytes(), [1, 0, 0, 0]].concat(), &[]);
        let end = host.ready().unwrap_err();
        assert!(end.to_string().contains(&format!("{} names ring 2", request::name(number))), "{end}");
    }
    for number in [request::SET_VRING_KICK, request::SET_VRING_CALL, request::SET_VRING_ERR] {
        let mut host = Host::acknowledged();
        host.send(number, 0x1ff_u64.to_ne_bytes().to_vec(), &[]);
        let expected = ProtocolError::NoSuchRing { request: request::name(number), index: 0xff, rings: 2 };
        assert!(matches!(host.ready(), Err(SessionEnd::Protocol(error)) if error == expected));
    }
    let mut host = Host::acknowledged();
    host.send(request::SET_VRING_ADDR, addresses(u32::MAX, 0).encode(), &[]);
    assert!(matches!(host.ready(), Err(SessionEnd::Protocol(ProtocolError::NoSuchRing { .. }))));
}

#[test]
fn the_control_ring_counts_if_it_is_offered() {
    let mut host = Host::new(Recorder::new(OFFERED | features::CTRL_VQ, 2));
    assert_eq!(host.ask(request::GET_QUEUE_NUM), Some(4));
    host.tell_ring(request::SET_VRING_NUM, 4, 64);
    host.send(request::SET_VRING_NUM, [5_u32.to_ne_bytes(), [64, 0, 0, 0]].concat(), &[]);
    assert!(host.ready().is_err());
}

#[test]
fn impossible_rings_are_refused() {
    let mut host = Host::acknowledged();
    for entries in [0, 3, 65536, u32::MAX] {
        assert_eq!(host.tell_ring(request::SET_VRING_NUM, 0, entries), Some(1), "{entries}");
    }
    assert_eq!(host.tell_ring(request::SET_VRING_BASE, 0, 0x1_0000), Some(1));
    assert_eq!(host.tell_ring(request::SET_VRING_ENABLE, 0, 2), Some(1));
    let _file = host.run_pair();
    let outside = host.tell(request::SET_VRING_ADDR, addresses(0, 0x1000).encode(), &[]);
    assert_eq!(outside, Some(1));
    assert!(host.last_refusal().contains("descriptor area at 0x1000"));
    assert_eq!(host.running(), [1]);
    host.tell(request::SET_VRING_ADDR, addresses(0, USER).encode(), &[]);
    assert_eq!(host.running(), [0, 1]);
}

#[test]
fn a_device_that_fails_to_start_says_why() {
    let mut host = Host::acknowledged();
    let _file = host.run_pair();
    host.base_of(0);
    host.device.notes().failure = Some("no worker is left".to_owned());
    assert_eq!(host.tell_eventfd(request::SET_VRING_KICK, 0), Some(1));
    assert_eq!(host.last_refusal(), "ring 0 cannot be started: no worker is left");
    host.device.notes().failure = None;
    assert_eq!(host.tell_eventfd(request::SET_VRING_KICK, 0), Some(0));
    assert_eq!(host.running(), [0, 1]);
}

#[test]
fn dropping_the_session_stops_its_rings_in_order() {
    let mut host = Host::plain();
    let _file = host.run_pair();
    host.session = None;
    assert_eq!(host.device.calls(), [Call::Stop(0), Call::Stop(1)]);
}
