//! A session's process dies, and another one goes on with it: the front end is told nothing and asked nothing.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};

use lasthop_vhost::message::request;
use lasthop_vhost::{ForeignFd, Kept, KeptSession, Legacy, Session, Successor, TakeOverError, features};

use crate::host::{Call, Host, OFFERED, Recorder, started};

/// Rings of one queue pair.
const RINGS: u16 = 2;

/// What a supervisor has of a session.
struct Keeper {
    memory: OwnedFd,
    connection: OwnedFd,
    session: KeptSession,
    fds: BTreeMap<u32, ForeignFd>,
}

impl Keeper {
    /// A front end whose session is kept.
    fn host() -> (Host, Self) {
        let mut host = Host::plain();
        let (front, back) = std::os::unix::net::UnixStream::pair().unwrap();
        front.set_nonblocking(true).unwrap();
        let memory = Kept::create(RINGS).unwrap();
        let kept = Kept::map(memory.as_fd(), RINGS).unwrap();
        let connection = OwnedFd::from(back.try_clone().unwrap());
        host.session = Some(Session::with_kept(back.into(), host.device.clone(), kept).unwrap());
        host.front = front;
        (host, Self { memory, connection, session: KeptSession::default(), fds: BTreeMap::new() })
    }

    /// Hears what the session has to tell.
    fn hear(&mut self, host: &mut Host) {
        if let Some(news) = host.session().news() {
            self.fds.extend(news.fds);
            let numbers: Vec<u32> = news.session.fds().collect();
            self.fds.retain(|number, _| numbers.contains(number));
            assert_eq!(self.fds.len(), numbers.len(), "each once, and none is missing");
            self.session = news.session;
        }
        host.session().rest();
    }

    /// The process of the session dies, and another one goes on.
    fn succeed(self, host: &mut Host) -> Result<Recorder, TakeOverError> {
        // A killed process neither stops rings nor shuts anything down.
        std::mem::forget(host.session.take());
        let kept = Kept::map(self.memory.as_fd(), RINGS).unwrap();
        let heir = Recorder::new(OFFERED, 1);
        let legacy = Legacy { kept, session: self.session, fds: self.fds };
        host.session = Some(Successor::prepare(self.connection.into(), heir.clone(), legacy)?.go_on()?);
        host.device = heir.clone();
        Ok(heir)
    }
}

#[test]
fn a_successor_has_all_that_was_said_and_says_nothing() {
    let (mut host, mut keeper) = Keeper::host();
    host.tell_u64(request::SET_FEATURES, OFFERED & !features::CSUM);
    host.tell_u64(request::NET_SET_MTU, 1400);
    host.run_pair();
    keeper.hear(&mut host);
    let heir = keeper.succeed(&mut host).unwrap();
    let expected = [
        Call::Features(OFFERED & !features::CSUM),
        Call::Mtu(1400),
        Call::Memory(1),
        started(0, 0, true),
        started(1, 0, true),
    ];
    assert_eq!(heir.calls(), expected);
    assert!(heir.notes().running.values().all(|start| start.is_taken_over));
    assert!(host.reply().is_none(), "the front end was told nothing");
    assert_eq!(host.base_of(1), 0, "and is answered when it asks");
    assert!(host.session().news().is_some(), "which is news for the next successor");
}

#[test]
fn a_ring_that_was_stopped_stays_where_it_stood() {
    let (mut host, mut keeper) = Keeper::host();
    host.run_pair();
    host.device.notes().progress = 7;
    assert_eq!(host.base_of(0), 7);
    keeper.hear(&mut host);
    let heir = keeper.succeed(&mut host).unwrap();
    assert_eq!(heir.notes().running.keys().copied().collect::<Vec<_>>(), [1]);
    host.tell_eventfd(request::SET_VRING_KICK, 0);
    assert!(heir.calls().contains(&started(0, 7, true)));
}

#[test]
fn what_cannot_be_gone_on_with_ends() {
    let take_over = |spoil: fn(&mut Host, &mut Keeper)| {
        let (mut host, mut keeper) = Keeper::host();
        host.run_pair();
        keeper.hear(&mut host);
        spoil(&mut host, &mut keeper);
        let error = keeper.succeed(&mut host).err().unwrap();
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
        drop(host.session().news());
        host.session().rest();
    });
    assert_eq!(news_lost, "what its front end said last did not arrive");
    let without_ledger = take_over(|_, keeper| {
        let mut told = [0; 4];
        rustix::io::pread(&keeper.memory, &mut told[..], 8).unwrap();
        keeper.memory = Kept::create(RINGS).unwrap();
        rustix::io::pwrite(&keeper.memory, &told, 8).unwrap();
    });
    assert_eq!(without_ledger, "ring 0: nothing is known of the ring");
}

#[test]
fn a_successor_that_does_not_get_ready_leaves_the_session_to_others() {
    let (mut host, mut keeper) = Keeper::host();
    host.run_pair();
    keeper.hear(&mut host);
    keeper.fds.pop_first();
    let kept = Kept::map(keeper.memory.as_fd(), RINGS).unwrap();
    let legacy = Legacy { kept, session: keeper.session, fds: keeper.fds };
    let heir = Recorder::new(OFFERED, 1);
    let error = Successor::prepare(keeper.connection.into(), heir, legacy).err().unwrap().to_string();
    assert!(error.contains("of it is missing"), "{error}");
    assert_eq!(host.base_of(1), 0, "the front end is served as before");
}

#[test]
fn who_got_ready_and_is_not_needed_leaves_no_trace() {
    let (mut host, mut keeper) = Keeper::host();
    host.run_pair();
    keeper.hear(&mut host);
    let fds = keeper.fds.iter().map(|(number, fd)| (*number, fd.try_clone().unwrap())).collect();
    let kept = Kept::map(keeper.memory.as_fd(), RINGS).unwrap();
    let legacy = Legacy { kept, session: keeper.session.clone(), fds };
    let heir = Recorder::new(OFFERED, 1);
    let connection = keeper.connection.try_clone().unwrap();
    let successor = Successor::prepare(connection.into(), heir.clone(), legacy).unwrap();
    successor.touch(|| false);
    drop(successor);
    assert!(heir.notes().running.is_empty(), "no ring was begun");
    assert_eq!(host.base_of(1), 0, "the front end is served as before");
    assert!(host.session().news().is_some(), "and its news are news");
}

#[test]
fn news_between_getting_ready_and_going_on_are_noticed() {
    let (mut host, mut keeper) = Keeper::host();
    host.run_pair();
    keeper.hear(&mut host);
    let kept = Kept::map(keeper.memory.as_fd(), RINGS).unwrap();
    let legacy = Legacy { kept, session: keeper.session.clone(), fds: std::mem::take(&mut keeper.fds) };
    let connection = keeper.connection.try_clone().unwrap();
    let successor = Successor::prepare(connection.into(), Recorder::new(OFFERED, 1), legacy).unwrap();
    host.tell_eventfd(request::SET_VRING_CALL, 0);
    drop(host.session().news());
    host.session().rest();
    std::mem::forget(host.session.take());
    let error = successor.go_on().err().unwrap().to_string();
    assert_eq!(error, "what its front end said last did not arrive");
}
