//! The copies of each guest's session that the supervisor keeps for the next switch process, should this one die.
//!
//! ```text
//!   guest ── connection ──┬── the switch process             tells: session, descriptors      (when the front end changes them)
//!                         └── a copy here, with memory ◄── marks of what is under way          (shared, always up to date)
//!
//!   it dies:  Bring descriptors, TakeOver ──► the next one: continues ── done, or a reason: then the guest has to connect again
//! ```

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use lasthop_fd_store::{FdIdentity, Inherited, RecordContents};
use lasthop_foreign::{ForeignFd, Origin, is_eventfd, is_memory, is_unix_socket};
use lasthop_vhost::{MEMORY_SLOTS_MAX, SessionMemory};
use rustix::net::{Shutdown, shutdown};
use serde_json::Value;
use thiserror::Error;

use super::records::SavedSessionRecord;

/// Switch processes in a row that may die while they take a session over; then its guest has to connect again.
const UNANSWERED_MAX: u32 = 2;
/// The same of those that die soon after, of this session or of another one.
const YOUNG_MAX: u32 = 5;
/// A switch process that lives for so long with a session does not die of it.
pub(super) const PROOF: Duration = Duration::from_millis(250);

/// One session.
#[derive(Debug)]
pub(super) struct SavedSession {
    attachment: u64,
    connection: ForeignFd,
    memory: ForeignFd,
    /// As told last; `Null` before the front end has said anything.
    session: Value,
    fds: BTreeMap<u32, ForeignFd>,
    /// How many of them there may be.
    fds_max: usize,
    /// How often it changed here.
    changes: u64,
    takeover: Takeover,
    /// Deaths in a row, while it was taken over and soon after.
    unanswered: u32,
    young: u32,
}

/// How far the present switch process is with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Takeover {
    /// It began the session itself, or none is there.
    None,
    /// It was told to take it over.
    Ordered,
    /// It took it over.
    Since(Instant),
}

impl SavedSession {
    /// Of a guest's connection that is about to be handed to the switch, for a port of this many queue pairs.
    pub(super) fn new(attachment: u64, connection: &ForeignFd, queues: u16) -> io::Result<Self> {
        Ok(Self {
            attachment,
            connection: connection.try_clone()?,
            memory: SessionMemory::create(rings(queues))?.into(),
            session: Value::Null,
            fds: BTreeMap::new(),
            fds_max: fds_max(queues),
            changes: 0,
            takeover: Takeover::None,
            unanswered: 0,
            young: 0,
        })
    }

    /// A saved session that another supervisor kept. None if the connection or the memory did not come: it cannot be taken over then.
    pub(super) fn of_kept(
        record: SavedSessionRecord,
        inherited: &Inherited,
        origin: &Origin,
        queues: u16,
    ) -> Option<Self> {
        let SavedSessionRecord { attachment, connection, memory, session, fds } = record;
        let find = |fd: &FdIdentity| Some(inherited.find(fd)?.of(origin));
        let connection = find(&connection)?;
        let Some(memory) = inherited.find(&memory) else {
            let _ = shutdown(&connection, Shutdown::Both);
            return None;
        };
        // The process that takes the session over finds that one is missing.
        let fds = fds.iter().filter_map(|(number, fd)| Some((*number, find(fd)?))).collect();
        Some(Self {
            attachment,
            connection,
            memory,
            session,
            fds,
            fds_max: fds_max(queues),
            changes: 0,
            takeover: Takeover::None,
            unanswered: 0,
            young: 0,
        })
    }

    /// The record by which another supervisor can continue with it.
    pub(super) fn record<'a>(&'a self, contents: &mut RecordContents<'a>) -> io::Result<SavedSessionRecord> {
        let fds = self.fds.iter().map(|(number, fd)| Ok((*number, contents.name(fd)?)));
        Ok(SavedSessionRecord {
            attachment: self.attachment,
            session: self.session.clone(),
            fds: fds.collect::<io::Result<_>>()?,
            connection: contents.name(&self.connection)?,
            memory: contents.name(&self.memory)?,
        })
    }

    pub(super) fn connection(&self) -> &ForeignFd {
        &self.connection
    }

    pub(super) fn attachment(&self) -> u64 {
        self.attachment
    }

    /// A copy of the memory, for the switch.
    pub(super) fn memory(&self) -> io::Result<ForeignFd> {
        self.memory.try_clone()
    }

    /// Descriptors that the switch got from the front end. The descriptors that did not arrive are found to be missing
    /// where they are needed.
    ///
    /// # Errors
    /// Descriptors that no session has. The process that sent them is not to be trusted.
    pub(super) fn keep(&mut self, numbers: Vec<u32>, fds: Vec<ForeignFd>) -> Result<(), NotKept> {
        if !fds.iter().all(|fd| may_be_kept(fd.as_fd())) {
            return Err(NotKept::Kind);
        }
        self.changes += 1;
        let origin = self.connection.origin();
        self.fds.extend(numbers.into_iter().zip(fds.into_iter().map(|fd| fd.of(origin))));
        if self.fds.len() > self.fds_max { Err(NotKept::TooMany(self.fds_max)) } else { Ok(()) }
    }

    /// The session as it is now, and which descriptors belong to it.
    pub(super) fn tell(&mut self, session: Value, numbers: &[u32]) {
        self.changes += 1;
        self.session = session;
        self.fds.retain(|number, _| numbers.contains(number));
    }

    /// The switch that had it is dead. False: it, and others before it, may have died of this, and that is enough. `is_next`: of
    /// those that it was told to take over and has not, this is the first.
    pub(super) fn survives(&mut self, is_next: bool) -> bool {
        match std::mem::replace(&mut self.takeover, Takeover::None) {
            Takeover::Ordered => self.unanswered += u32::from(is_next),
            Takeover::Since(since) if since.elapsed() < PROOF => {
                (self.unanswered, self.young) = (0, self.young + 1)
            }
            Takeover::Since(_) => (self.unanswered, self.young) = (0, 0),
            // It had nothing to do with the session, or had it from the beginning, and then nothing was counted before.
            Takeover::None => {}
        }
        self.unanswered < UNANSWERED_MAX && self.young < YOUNG_MAX
    }

    /// The switch that had it was ended in order.
    pub(super) fn begin_anew(&mut self) {
        (self.takeover, self.unanswered, self.young) = (Takeover::None, 0, 0);
    }

    /// Whether the present switch was told to take it over and has not answered.
    pub(super) fn is_told(&self) -> bool {
        self.takeover == Takeover::Ordered
    }

    /// The switch took it over.
    pub(super) fn is_taken_over(&mut self) {
        self.takeover = Takeover::Since(Instant::now());
    }

    /// Which session it is, and its version: a process that knows this version knows the session as it is now.
    pub(super) fn session_version(&self) -> SessionVersion {
        SessionVersion { attachment: self.attachment, changes: self.changes }
    }

    /// Copies of everything, for the next switch: session, connection and memory, and the descriptors with their numbers.
    pub(super) fn session_parts(&self) -> io::Result<SessionParts> {
        let fds = self.fds.iter().map(|(number, fd)| Ok((*number, fd.try_clone()?)));
        Ok(SessionParts {
            session: self.session.clone(),
            connection: self.connection.try_clone()?,
            memory: self.memory()?,
            fds: fds.collect::<io::Result<_>>()?,
        })
    }

    /// The present switch is told to take it over.
    pub(super) fn is_handed_over(&mut self) {
        self.takeover = Takeover::Ordered;
    }

    /// Ends the connection, of which others may have copies.
    pub(super) fn hang_up(self) {
        self.end_connection();
    }

    /// The same; the process that serves the session finds its end.
    pub(super) fn end_connection(&self) {
        let _ = shutdown(&self.connection, Shutdown::Both);
    }
}

/// One state of one session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SessionVersion {
    attachment: u64,
    changes: u64,
}

/// The parts of a session that the next switch gets.
#[derive(Debug)]
pub(super) struct SessionParts {
    pub(super) session: Value,
    pub(super) connection: ForeignFd,
    pub(super) memory: ForeignFd,
    pub(super) fds: Vec<(u32, ForeignFd)>,
}

/// Why descriptors are not kept.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub(super) enum NotKept {
    #[error("it handed over a descriptor that is neither memory nor an eventfd nor a UNIX socket")]
    Kind,
    #[error("it handed over more than {0} descriptors of one session")]
    TooMany(usize),
}

/// Whether sessions have descriptors of this kind. They can be closed by exec(2) and examined without waiting for another process. The
/// switch process has checked that too, but a stranger may control it.
fn may_be_kept(fd: BorrowedFd<'_>) -> bool {
    is_memory(fd) || is_eventfd(fd) || is_unix_socket(fd)
}

/// Most descriptors of a session with `queues` queue pairs: memory, kicks and calls, the back-end channel, chains in flight. Twice,
/// since new ones come before it is told which of the old ones are not needed any more.
fn fds_max(queues: u16) -> usize {
    2 * (MEMORY_SLOTS_MAX + 2 * usize::from(rings(queues)) + 2)
}

/// Rings of a port, a control ring included.
pub(crate) fn rings(queues: u16) -> u16 {
    queues.saturating_mul(2).saturating_add(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    fn saved_session() -> (SavedSession, UnixStream) {
        let (ours, theirs) = UnixStream::pair().expect("a pair");
        (SavedSession::new(1, &ours.into(), 1).expect("a saved session"), theirs)
    }

    #[test]
    fn a_session_that_two_switches_die_of_is_given_up() {
        let (mut saved_session, _guest) = saved_session();
        assert!(saved_session.survives(true), "it was begun by the one that died");
        saved_session.is_handed_over();
        assert!(saved_session.survives(true), "once");
        saved_session.is_handed_over();
        assert!(saved_session.survives(false), "of another one");
        saved_session.is_handed_over();
        assert!(!saved_session.survives(true), "twice");
    }

    #[test]
    fn a_session_that_many_switches_die_with_is_given_up() {
        let (mut saved_session, _guest) = saved_session();
        let mut deaths = 0..;
        while deaths.next().is_some() && saved_session.survives(false) {
            saved_session.is_handed_over();
            saved_session.is_taken_over();
        }
        assert_eq!(deaths.start, YOUNG_MAX + 1);
    }

    #[test]
    fn what_no_session_has_is_not_kept() {
        let (mut saved_session, guest) = saved_session();
        let (_read, write) = std::io::pipe().expect("a pipe");
        let pipe = ForeignFd::from(std::os::fd::OwnedFd::from(write));
        assert_eq!(saved_session.keep(vec![1], vec![pipe]), Err(NotKept::Kind));
        let fd = || ForeignFd::from(guest.try_clone().expect("a copy"));
        let many = fds_max(1) as u32;
        let kept = (0..many).map(|number| saved_session.keep(vec![number], vec![fd()]));
        assert!(kept.fold(Ok(()), Result::and).is_ok());
        assert_eq!(saved_session.keep(vec![many], vec![fd()]), Err(NotKept::TooMany(many as usize)));
    }

    #[test]
    fn descriptors_that_do_not_belong_to_it_any_more_are_closed() {
        let (mut saved_session, guest) = saved_session();
        let fd = || ForeignFd::from(guest.try_clone().expect("a copy"));
        saved_session.keep(vec![1, 2, 3], vec![fd(), fd(), fd()]).expect("sockets");
        saved_session.tell(Value::Bool(true), &[2]);
        let parts = saved_session.session_parts().expect("copies");
        assert_eq!(parts.fds.iter().map(|(number, _)| *number).collect::<Vec<_>>(), [2]);
    }
}
