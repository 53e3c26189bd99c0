//! The supervisor's copies of guests' sessions, for the next switch process after a death.
//!
//! ```text
//!   guest ── connection ──┬── the switch process             reports: session, descriptors    (when the front end changes them)
//!                         └── a copy here, with memory ◄── marks of work in progress           (shared, always current)
//!
//!   it dies:  Bring descriptors, TakeOver ──► the next one: continues ── done, or a reason: then the guest has to reconnect
//! ```

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use lasthop_foreign::{ForeignFd, Origin, is_eventfd, is_memory, is_unix_socket};
use lasthop_vhost::{MEMORY_SLOTS_MAX, SessionMemory};
use rustix::net::{Shutdown, shutdown};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use thiserror::Error;

use crate::{FdIdentity, Inherited, RecordContents};

/// Switch processes in a row that may die while they take a session over; then its guest has to reconnect.
const UNANSWERED_MAX: u32 = 2;
/// Same for those that die soon afterwards, of this session or another one.
const YOUNG_MAX: u32 = 5;
/// Age at which a switch process with a session is safe from it.
const PROOF: Duration = Duration::from_millis(250);

/// Bytes of a session as JSON: twice those of one with all rings and memory slots, and less than a record of the next
/// supervisor has room for.
const SESSION_BYTES_MAX: usize = 256 * 1024;

/// The copy of one session.
#[derive(Debug)]
pub struct SavedGuestSession {
    attachment: u64,
    connection: ForeignFd,
    memory: ForeignFd,
    /// The last report; `Null` before the front end has sent anything.
    session: Value,
    fds: BTreeMap<u32, ForeignFd>,
    /// Largest number of them.
    fds_max: usize,
    /// Number of changes here.
    changes: u64,
    takeover: Takeover,
    /// Deaths in a row during a takeover, and soon after one.
    unanswered: u32,
    young: u32,
}

/// The state of the session at the present switch process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Takeover {
    /// It began the session itself, or there is no process.
    None,
    /// It has an order to take the session over.
    Ordered,
    /// It took the session over at this time.
    Since(Instant),
}

impl SavedGuestSession {
    /// A copy for a connection that is about to be passed to the switch, for a port with this many queue pairs. `attachment`:
    /// the number of the connection, which no other one has.
    ///
    /// # Errors
    /// The process or the system has no descriptor or memory left.
    pub fn new(attachment: u64, connection: &ForeignFd, queues: u16) -> io::Result<Self> {
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

    /// A session that another supervisor kept. `None` if the connection or the memory is missing: it cannot be taken
    /// over then. Its descriptors count as those of `origin`.
    pub fn of_kept(
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
        // The process that takes the session over notices a missing one.
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

    /// The record from which another supervisor can continue. Its descriptors are added to `contents`.
    ///
    /// # Errors
    /// The identity of a descriptor cannot be determined ([`FdIdentity::of`]).
    pub fn record<'a>(&'a self, contents: &mut RecordContents<'a>) -> io::Result<SavedSessionRecord> {
        let fds = self.fds.iter().map(|(number, fd)| Ok((*number, contents.name(fd)?)));
        Ok(SavedSessionRecord {
            attachment: self.attachment,
            session: self.session.clone(),
            fds: fds.collect::<io::Result<_>>()?,
            connection: contents.name(&self.connection)?,
            memory: contents.name(&self.memory)?,
        })
    }

    /// The connection to the guest's front end.
    pub fn connection(&self) -> &ForeignFd {
        &self.connection
    }

    /// The number of the connection.
    pub fn attachment(&self) -> u64 {
        self.attachment
    }

    /// The virtio features that its guest negotiated, as the switch process told them; 0 before.
    pub fn features(&self) -> u64 {
        self.session.pointer("/session/features").and_then(Value::as_u64).unwrap_or_default()
    }

    /// A copy of the memory's descriptor, for the switch.
    ///
    /// # Errors
    /// The process or the system has no descriptor left.
    pub fn memory(&self) -> io::Result<ForeignFd> {
        self.memory.try_clone()
    }

    /// Keeps descriptors that the switch got from the front end. A missing descriptor is noticed where it is needed.
    ///
    /// # Errors
    /// Descriptors that no session can have: the process that sent them is not to be trusted.
    pub fn keep(&mut self, numbers: Vec<u32>, fds: Vec<ForeignFd>) -> Result<(), NotKept> {
        if !fds.iter().all(|fd| may_be_kept(fd.as_fd())) {
            return Err(NotKept::Kind);
        }
        self.changes += 1;
        let origin = self.connection.origin();
        self.fds.extend(numbers.into_iter().zip(fds.into_iter().map(|fd| fd.of(origin))));
        if self.fds.len() > self.fds_max { Err(NotKept::TooMany(self.fds_max)) } else { Ok(()) }
    }

    /// Sets the session's present state, and which descriptors belong to it.
    ///
    /// # Errors
    /// A state that no session has: the switch process is not to be trusted.
    pub fn tell(&mut self, session: Value, numbers: &[u32]) -> Result<(), NotKept> {
        if session.to_string().len() > SESSION_BYTES_MAX {
            return Err(NotKept::TooLong);
        }
        self.changes += 1;
        self.session = session;
        self.fds.retain(|number, _| numbers.contains(number));
        Ok(())
    }

    /// Handles the death of its switch process. Returns false if the session may have killed that and earlier ones, too
    /// often. `is_next`: it is the first session that was ordered and not taken over yet.
    pub fn survives(&mut self, is_next: bool) -> bool {
        match std::mem::replace(&mut self.takeover, Takeover::None) {
            Takeover::Ordered => self.unanswered += u32::from(is_next),
            Takeover::Since(since) if since.elapsed() < PROOF => {
                (self.unanswered, self.young) = (0, self.young + 1)
            }
            Takeover::Since(_) => (self.unanswered, self.young) = (0, 0),
            // The process had nothing to do with the session, or began it: then no death was counted.
            Takeover::None => {}
        }
        self.unanswered < UNANSWERED_MAX && self.young < YOUNG_MAX
    }

    /// Handles the regular end of its switch process.
    pub fn begin_anew(&mut self) {
        (self.takeover, self.unanswered, self.young) = (Takeover::None, 0, 0);
    }

    /// Whether the present switch has an open order to take it over.
    pub fn is_told(&self) -> bool {
        self.takeover == Takeover::Ordered
    }

    /// Notes that the switch took it over.
    pub fn is_taken_over(&mut self) {
        self.takeover = Takeover::Since(Instant::now());
    }

    /// The session and its version: a process that knows this version knows its present state.
    pub fn session_version(&self) -> SessionVersion {
        SessionVersion { attachment: self.attachment, changes: self.changes }
    }

    /// Copies of everything for the next switch: session, connection and memory, and the numbered descriptors. The session's
    /// offer is without the virtio features that this switch is `lacking`: it would otherwise accept them from a guest that
    /// has not negotiated yet.
    ///
    /// # Errors
    /// The process or the system has no descriptor left.
    pub fn session_parts(&self, lacking: u64) -> io::Result<SessionParts> {
        let fds = self.fds.iter().map(|(number, fd)| Ok((*number, fd.try_clone()?)));
        Ok(SessionParts {
            session: self.offering_without(lacking),
            connection: self.connection.try_clone()?,
            memory: self.memory()?,
            fds: fds.collect::<io::Result<_>>()?,
        })
    }

    fn offering_without(&self, features: u64) -> Value {
        let mut session = self.session.clone();
        if let Some(offered) = session.pointer_mut("/session/offer/features")
            && let Some(bits) = offered.as_u64()
        {
            *offered = (bits & !features).into();
        }
        session
    }

    /// Notes the order to take it over.
    pub fn is_handed_over(&mut self) {
        self.takeover = Takeover::Ordered;
    }

    /// Ends the connection, of which others may have copies.
    pub fn hang_up(self) {
        self.end_connection();
    }

    /// Same; the process that serves the session notices the end.
    pub fn end_connection(&self) {
        let _ = shutdown(&self.connection, Shutdown::Both);
    }
}

/// A state of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionVersion {
    /// The number of the connection.
    pub attachment: u64,
    changes: u64,
}

/// The parts of a session for the next switch.
#[derive(Debug)]
pub struct SessionParts {
    /// The last report of a switch process; `Null` before the front end has sent anything.
    pub session: Value,
    /// The connection to the front end.
    pub connection: ForeignFd,
    /// The memory with marks of work in progress.
    pub memory: ForeignFd,
    /// The descriptors from the front end, by the numbers in the report.
    pub fds: Vec<(u32, ForeignFd)>,
}

/// The record of a guest's session.
#[derive(Debug, Serialize, Deserialize)]
pub struct SavedSessionRecord {
    attachment: u64,
    connection: FdIdentity,
    memory: FdIdentity,
    session: Value,
    fds: BTreeMap<u32, FdIdentity>,
}

/// Why descriptors or a state are refused.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum NotKept {
    /// A descriptor is of a kind that no session has.
    #[error("it handed over a descriptor that is neither memory nor an eventfd nor a UNIX socket")]
    Kind,
    /// There are more descriptors than this.
    #[error("it handed over more than {0} descriptors of one session")]
    TooMany(usize),
    /// The state has too many bytes.
    #[error("it reported a session of more than {SESSION_BYTES_MAX} bytes")]
    TooLong,
}

/// Whether sessions may have descriptors of this kind. exec(2) can close them, and examining them waits for no other
/// process. The switch process has checked that, too, but an attacker may control it.
fn may_be_kept(fd: BorrowedFd<'_>) -> bool {
    is_memory(fd) || is_eventfd(fd) || is_unix_socket(fd)
}

/// Most descriptors of a session with `queues` queue pairs: memory, kicks and calls, the back-end channel, the
/// in-flight file. Twice, since new ones arrive before the old ones are released.
fn fds_max(queues: u16) -> usize {
    2 * (MEMORY_SLOTS_MAX + 2 * usize::from(rings(queues)) + 2)
}

/// Number of a port's rings, including a control ring.
fn rings(queues: u16) -> u16 {
    queues.saturating_mul(2).saturating_add(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    fn saved_session() -> (SavedGuestSession, UnixStream) {
        let (ours, theirs) = UnixStream::pair().expect("a pair");
        (SavedGuestSession::new(1, &ours.into(), 1).expect("a saved session"), theirs)
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
    fn a_switch_that_lacks_features_offers_none_of_them() {
        let (mut saved_session, _guest) = saved_session();
        let offered_by = |saved_session: &SavedGuestSession, lacking| {
            let parts = saved_session.session_parts(lacking).expect("copies");
            parts.session.pointer("/session/offer/features").and_then(Value::as_u64)
        };
        assert_eq!(offered_by(&saved_session, 1), None, "the front end has sent nothing yet");
        let mut session = serde_json::json!({"session": lasthop_vhost::SavedSession::default()});
        for (place, bits) in [("/session/offer/features", 0x4_0000_0021_u64), ("/session/features", 1)] {
            *session.pointer_mut(place).expect("a session has them") = bits.into();
        }
        saved_session.tell(session, &[]).expect("a session");
        assert_eq!(saved_session.features(), 1);
        assert_eq!(offered_by(&saved_session, 0), Some(0x4_0000_0021));
        assert_eq!(offered_by(&saved_session, 0xc_0000_0000), Some(0x21));
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
        saved_session.tell(Value::Bool(true), &[2]).expect("a short state");
        let parts = saved_session.session_parts(0).expect("copies");
        assert_eq!(parts.fds.iter().map(|(number, _)| *number).collect::<Vec<_>>(), [2]);
    }

    #[test]
    fn a_state_that_is_longer_than_any_session_is_not_kept() {
        let (mut saved_session, _guest) = saved_session();
        let text = |bytes: usize| Value::String("x".repeat(bytes - 2));
        saved_session.tell(text(SESSION_BYTES_MAX), &[]).expect("as long as it may be");
        let kept = saved_session.session_version();
        assert_eq!(saved_session.tell(text(SESSION_BYTES_MAX + 1), &[]), Err(NotKept::TooLong));
        assert_eq!(saved_session.session_version(), kept);
    }
}
