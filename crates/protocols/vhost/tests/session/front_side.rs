//! The blocking front end against a session on another thread.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::thread::JoinHandle;
use std::time::Duration;

use lasthop_vhost::features::{self, protocol};
use lasthop_vhost::front::{FrontEnd, FrontError};
use lasthop_vhost::{Session, SessionEnd};
use rustix::event::{PollFd, PollFlags, poll};

use crate::host::{Call, ENTRIES, OFFERED, Recorder, USER, addresses, event, memory_file, region, started};

/// Serves a session until it ends.
fn serve(socket: OwnedFd, device: Recorder) -> JoinHandle<SessionEnd> {
    let mut session = Session::new(socket.into(), device).unwrap();
    std::thread::spawn(move || {
        loop {
            let flags = if session.wants_write() { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
            poll(&mut [PollFd::from_borrowed_fd(session.fd(), flags)], None).unwrap();
            if let Err(end) = session.ready() {
                return end;
            }
        }
    })
}

fn connect() -> (FrontEnd, Recorder, JoinHandle<SessionEnd>) {
    let (front, back) = UnixStream::pair().unwrap();
    let device = Recorder::new(OFFERED, 1);
    let server = serve(back.into(), device.clone());
    (FrontEnd::new(front).unwrap(), device, server)
}

#[test]
fn a_whole_life() {
    let (mut front, device, server) = connect();
    front.set_owner().unwrap();
    assert_eq!(front.get_features().unwrap(), OFFERED | features::PROTOCOL_FEATURES);
    assert_eq!(front.get_protocol_features().unwrap(), protocol::OFFERED);
    front.set_protocol_features(protocol::OFFERED).unwrap();
    assert_eq!((front.get_queue_num().unwrap(), front.get_max_mem_slots().unwrap()), (2, 509));
    assert_eq!(front.get_config(8).unwrap(), [0x52, 0x54, 0, 1, 2, 3, 1, 0]);
    front.set_mtu(1500).unwrap();
    front.set_features(features::CSUM | features::PROTOCOL_FEATURES).unwrap();
    front.set_status(11).unwrap();
    assert_eq!(front.get_status().unwrap(), 11);
    let (file, kick, call) = (memory_file(), event(), event());
    front.set_mem_table(&[region()], &[file.as_fd()]).unwrap();
    front.rem_mem_reg(region()).unwrap();
    front.add_mem_reg(region(), file.as_fd()).unwrap();
    front.set_vring_num(0, ENTRIES).unwrap();
    front.set_vring_base(0, 5).unwrap();
    front.set_vring_addr(addresses(0, USER)).unwrap();
    front.set_vring_call(0, Some(call.as_fd())).unwrap();
    front.set_vring_kick(0, Some(kick.as_fd())).unwrap();
    front.set_vring_enable(0, true).unwrap();
    assert_eq!(front.get_vring_base(0).unwrap(), 5);
    front.set_vring_kick(0, None).unwrap();
    front.reset_device().unwrap();
    drop(front);
    assert!(matches!(server.join().unwrap(), SessionEnd::HungUp));
    let expected = [
        Call::Mtu(1500),
        Call::Features(features::CSUM),
        Call::Memory(1),
        Call::Memory(0),
        Call::Memory(1),
        started(0, 5, false),
        Call::Enabled(0, true),
        Call::Stop(0),
        Call::Start { index: 0, base: 5, kick: false, call: true, enabled: true },
        Call::Stop(0),
        Call::Features(0),
    ];
    assert_eq!(device.calls(), expected);
}

#[test]
fn a_refusal_is_an_error_and_the_session_goes_on() {
    let (mut front, _device, server) = connect();
    front.set_protocol_features(protocol::REPLY_ACK).unwrap();
    assert!(matches!(front.set_mem_table(&[region()], &[]), Err(FrontError::Refused(_))));
    assert!(matches!(front.set_mtu(1), Err(FrontError::Refused(_))));
    assert!(matches!(front.get_config(257), Err(FrontError::Refused(_))));
    front.set_owner().unwrap();
    drop(front);
    assert!(matches!(server.join().unwrap(), SessionEnd::HungUp));
}

#[test]
fn an_end_of_the_session_is_an_error() {
    let (mut front, _device, server) = connect();
    front.set_mtu(1).unwrap(); // the front end was not told
    assert!(matches!(server.join().unwrap(), SessionEnd::Refused(_)));
    assert!(matches!(front.get_features(), Err(FrontError::HungUp(_))));
}

#[test]
fn a_silent_back_end_is_not_waited_for_for_ever() {
    let (front, _back) = UnixStream::pair().unwrap();
    let mut front = FrontEnd::new(front).unwrap();
    front.set_reply_timeout(Duration::from_millis(10)).unwrap();
    assert!(matches!(front.get_features(), Err(FrontError::TimedOut(_))));
}

#[test]
fn arguments_that_do_not_fit_are_refused_before_they_are_sent() {
    let (front, _back) = UnixStream::pair().unwrap();
    let mut front = FrontEnd::new(front).unwrap();
    assert!(matches!(front.set_vring_kick(256, None), Err(FrontError::Argument(_))));
    assert!(matches!(front.set_mem_table(&[region(); 9], &[]), Err(FrontError::Argument(_))));
}
