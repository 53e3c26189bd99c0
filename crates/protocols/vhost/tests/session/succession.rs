//! A session's process dies, and another one continues the session: the front end gets no message.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};

use lasthop_vhost::message::request;
use lasthop_vhost::{
    ForeignFd, PreviousSession, SavedSession, Session, SessionMemory, Successor, TakeOverError, features,
};

use crate::host::{Call, Host, OFFERED, Recorder, started};

/// Rings of one queue pair.
const RINGS: u16 = 2;

/// The supervisor's state of a session.
struct SupervisorSide {
    memory: OwnedFd,
    connection: OwnedFd,
    session: SavedSession,
    fds: BTreeMap<u32, ForeignFd>,
}

impl SupervisorSide {
    /// A front end whose session is kept.
    fn host() -> (Host, Self) {
        Self::host_of(Recorder::new(OFFERED, 1))
    }

    fn host_of(device: Recorder) -> (Host, Self) {
        let mut host = Host::new(device);
        let (front, back) = std::os::unix::net::UnixStream::pair().unwrap();
        front.set_nonblocking(true).unwrap();
        let memory = SessionMemory::create(RINGS).unwrap();
        let mapped = SessionMemory::map(memory.as_fd(), RINGS).unwrap();
        let connection = OwnedFd::from(back.try_clone().unwrap());
        host.session = Some(Session::with_memory(back.into(), host.device.clone(), mapped).unwrap());
        host.front = front;
        (host, Self { memory, connection, session: SavedSession::default(), fds: BTreeMap::new() })
    }

    /// Takes over the session's update.
    fn hear(&mut self, host: &mut Host) {
        if let Some(update) = host.session().update() {
            self.fds.extend(update.fds);
            let numbers: Vec<u32> = update.session.fds().collect();
            self.fds.retain(|number, _| numbers.contains(number));
            assert_eq!(self.fds.len(), numbers.len(), "each once, and none is missing");
            self.session = update.session;
        }
        host.session().rest();
    }

    /// The session's process dies, and another one continues the session.
    fn succeed(self, host: &mut Host) -> Result<Recorder, TakeOverError> {
        // A killed process neither stops rings nor shuts anything down.
        std::mem::forget(host.session.take());
        let memory = SessionMemory::map(self.memory.as_fd(), RINGS).unwrap();
        let next_device = Recorder::new(OFFERED, 1);
        let previous = PreviousSession { memory, session: self.session, fds: self.fds };
        host.session =
            Some(Successor::prepare(self.connection.into(), next_device.clone(), previous)?.take_over()?);
        host.device = next_device.clone();
        Ok(next_device)
    }
}

#[test]
fn a_successor_has_all_that_was_said_and_says_nothing() {
    let (mut host, mut supervisor) = SupervisorSide::host();
    host.tell_u64(request::SET_FEATURES, OFFERED & !features::CSUM);
    host.tell_u64(request::NET_SET_MTU, 1400);
    host.run_pair();
    supervisor.hear(&mut host);
    let next_device = supervisor.succeed(&mut host).unwrap();
    let expected = [
        Call::Features(OFFERED & !features::CSUM),
        Call::Mtu(1400),
        Call::Memory(1),
        started(0, 0, true),
        started(1, 0, true),
    ];
    assert_eq!(next_device.calls(), expected);
    assert!(next_device.notes().running.values().all(|start| start.is_taken_over));
    assert!(host.reply().is_none(), "the front end was told nothing");
    assert_eq!(host.base_of(1), 0, "and is answered when it asks");
    assert!(host.session().update().is_some(), "which the next successor needs");
}

/// Tunnel ports' packets have longer headers by them.
#[test]
fn a_successor_s_device_knows_private_protocol_features_before_its_rings_run() {
    let private = 1 << 62;
    let mut device = Recorder::new(OFFERED, 1);
    device.offer.private = private;
    let (mut host, mut supervisor) = SupervisorSide::host_of(device);
    host.tell_u64(request::SET_FEATURES, OFFERED);
    host.tell_u64(request::SET_PROTOCOL_FEATURES, private | 1 << 3);
    assert!(host.device.calls().contains(&Call::ProtocolFeatures(private | 1 << 3)));
    host.run_pair();
    supervisor.hear(&mut host);
    let calls = supervisor.succeed(&mut host).unwrap().calls();
    let at = |call: Call| calls.iter().position(|other| *other == call);
    let told = at(Call::ProtocolFeatures(private | 1 << 3));
    assert!(told.is_some() && told < at(started(0, 0, true)), "{calls:?}");
}

#[test]
fn a_ring_that_was_stopped_stays_where_it_stood() {
    let (mut host, mut supervisor) = SupervisorSide::host();
    host.run_pair();
    host.device.notes().progress = 7;
    assert_eq!(host.base_of(0), 7);
    supervisor.hear(&mut host);
    let next_device = supervisor.succeed(&mut host).unwrap();
    assert_eq!(next_device.notes().running.keys().copied().collect::<Vec<_>>(), [1]);
    host.tell_eventfd(request::SET_VRING_KICK, 0);
    assert!(next_device.calls().contains(&started(0, 7, true)));
}

#[test]
fn what_cannot_be_gone_on_with_ends() {
    let take_over = |spoil: fn(&mut Host, &mut SupervisorSide)| {
        let (mut host, mut supervisor) = SupervisorSide::host();
        host.run_pair();
        supervisor.hear(&mut host);
        spoil(&mut host, &mut supervisor);
        let error = supervisor.succeed(&mut host).err().unwrap();
        let hung_up = std::io::Read::read(&mut host.front, &mut [0]);
        assert_eq!(hung_up.ok(), Some(0), "the front end sees the end of the connection");
        error.to_string()
    };
    let amid_message = take_over(|host, _| {
        host.send_bytes(&[1, 0, 0], &[]);
        host.ready().unwrap();
        host.session().rest();
    });
    assert_eq!(amid_message, "it was in the middle of a message");
    let untold = take_over(|host, _| host.ready().unwrap());
    assert_eq!(untold, amid_message, "nobody knows what it said last");
    let news_lost = take_over(|host, _| {
        host.tell_eventfd(request::SET_VRING_CALL, 0);
        drop(host.session().update());
        host.session().rest();
    });
    assert_eq!(news_lost, "the last message of its front end did not arrive");
    let without_ledger = take_over(|_, supervisor| {
        let mut told = [0; 4];
        rustix::io::pread(&supervisor.memory, &mut told[..], 8).unwrap();
        supervisor.memory = SessionMemory::create(RINGS).unwrap();
        rustix::io::pwrite(&supervisor.memory, &told, 8).unwrap();
    });
    assert_eq!(without_ledger, "ring 0: nothing is known of the ring");
}

#[test]
fn a_successor_that_does_not_get_ready_leaves_the_session_to_others() {
    let (mut host, mut supervisor) = SupervisorSide::host();
    host.run_pair();
    supervisor.hear(&mut host);
    supervisor.fds.pop_first();
    let memory = SessionMemory::map(supervisor.memory.as_fd(), RINGS).unwrap();
    let previous = PreviousSession { memory, session: supervisor.session, fds: supervisor.fds };
    let next_device = Recorder::new(OFFERED, 1);
    let error =
        Successor::prepare(supervisor.connection.into(), next_device, previous).err().unwrap().to_string();
    assert!(error.contains("of it is missing"), "{error}");
    assert_eq!(host.base_of(1), 0, "the front end is served as before");
}

#[test]
fn who_got_ready_and_is_not_needed_leaves_no_trace() {
    let (mut host, mut supervisor) = SupervisorSide::host();
    host.run_pair();
    supervisor.hear(&mut host);
    let fds = supervisor.fds.iter().map(|(number, fd)| (*number, fd.try_clone().unwrap())).collect();
    let memory = SessionMemory::map(supervisor.memory.as_fd(), RINGS).unwrap();
    let previous = PreviousSession { memory, session: supervisor.session.clone(), fds };
    let next_device = Recorder::new(OFFERED, 1);
    let connection = supervisor.connection.try_clone().unwrap();
    let successor = Successor::prepare(connection.into(), next_device.clone(), previous).unwrap();
    successor.touch(|| false);
    drop(successor);
    assert!(next_device.notes().running.is_empty(), "no ring was begun");
    assert_eq!(host.base_of(1), 0, "the front end is served as before");
    assert!(host.session().update().is_some(), "and its updates are new");
}

#[test]
fn updates_between_preparation_and_takeover_are_noticed() {
    let (mut host, mut supervisor) = SupervisorSide::host();
    host.run_pair();
    supervisor.hear(&mut host);
    let memory = SessionMemory::map(supervisor.memory.as_fd(), RINGS).unwrap();
    let previous = PreviousSession {
        memory,
        session: supervisor.session.clone(),
        fds: std::mem::take(&mut supervisor.fds),
    };
    let connection = supervisor.connection.try_clone().unwrap();
    let successor = Successor::prepare(connection.into(), Recorder::new(OFFERED, 1), previous).unwrap();
    host.tell_eventfd(request::SET_VRING_CALL, 0);
    drop(host.session().update());
    host.session().rest();
    std::mem::forget(host.session.take());
    let error = successor.take_over().err().unwrap().to_string();
    assert_eq!(error, "the last message of its front end did not arrive");
}
