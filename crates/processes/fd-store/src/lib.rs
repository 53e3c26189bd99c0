//! The descriptors that the service manager keeps for the next supervisor, should this one end: systemd's store of descriptors.
//! Beside it, the supervisor's copies of guests' sessions, for the next switch process and for these records.
//!
//! **Purpose.** A [`RecordStore`] keeps records, and the descriptors that these name, up to date in the manager. [`Inherited`] has the
//! descriptors that the manager gave to this process. A [`SavedGuestSession`] has copies of a session's descriptors and its last
//! reported state. It decides whether another switch process may take the session over.
//!
//! **Contract.** A record is rewritten in place, so the manager receives only new descriptors. If a process is killed
//! at any moment, its records are complete, and at worst some descriptors are in no record.
//!
//! **Not checked.** The text of records. The content of a session's state: the switch process that takes it over checks that.
//!
//! **Threading.** All values belong to one thread.
//!
//! ```text
//!   lasthop-head     record: switches, static addresses, the switch process ┐ names descriptors by their identity,
//!   lasthop-port-N   record: vnic, guest's session, counters                ┘ which must be in the store before
//!   lasthop-M, lhM   a descriptor: listening socket, connection, memory of guest or session, kick, call, process
//! ```
//!
//! **Bounds.** The manager hands all names over in one environment variable, whose length Linux limits. So the bytes of all
//! names are bounded (`NAMES_BYTES_MAX`), beside the number of descriptors that the manager takes. Numbers are used again,
//! and numbers from 1000 on have short names. A session has at most 256 KiB of state, and twice the descriptors
//! that its port's queues need. It is given up after two deaths in a row during a takeover, or five within 250 ms after one
//! (`saved_session.rs`).
#![deny(unsafe_code)] // files called sys.rs alone may have some

mod identity;
mod inherited;
mod names;
mod record;
mod saved_session;
mod sys;

pub use identity::FdIdentity;
pub use inherited::Inherited;
pub use record::TEXT_BYTES_MAX;
pub use saved_session::{NotKept, SavedGuestSession, SavedSessionRecord, SessionParts, SessionVersion};

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use log::warn;
use rustix::io::Errno;

use lasthop_runtime::clock::{Pause, earlier};
use lasthop_runtime::descriptors::is_shortage;
use lasthop_runtime::notify::FdStore;

use names::{FULL_ROOM, HEAD_NAME, Names, PORT_NAMES, bytes_of};
use record::Record;

/// The pause between two rounds: a front end with many messages must not keep this process or the manager busy. The
/// next supervisor does not know a front end's messages of the last pause, and then that front end has to connect
/// again.
const PAUSE: Duration = Duration::from_millis(2);
/// The longest pause before a record is tried again that the system had no descriptors or memory for. Pauses begin with
/// `PAUSE` and double. A crash meanwhile costs this guest its connection.
const RETRY_PAUSE_MAX: Duration = Duration::from_secs(2);

/// Descriptors that the head may need: its record, control socket, switch process and memory of flows. The last two
/// count twice: the store holds the next ones before it releases the last ones, as otherwise no supervisor could ensure
/// the end of a process.
const HEAD_ROOM: usize = 6;

/// The owner of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RecordKey {
    /// Everything that exists once.
    Head,
    /// The port with this number.
    Port(u32),
}

impl RecordKey {
    fn name(self) -> String {
        match self {
            Self::Head => HEAD_NAME.to_owned(),
            Self::Port(port) => format!("{PORT_NAMES}{port}"),
        }
    }
}

/// A text, and the descriptors that it names.
#[derive(Debug, Default)]
pub struct RecordContents<'a> {
    /// The text of the record.
    pub text: Vec<u8>,
    fds: Vec<(FdIdentity, BorrowedFd<'a>)>,
}

impl<'a> RecordContents<'a> {
    /// Adds a descriptor; returns its name for the text.
    pub fn name(&mut self, fd: &'a impl AsFd) -> io::Result<FdIdentity> {
        let identity = FdIdentity::of(fd)?;
        self.fds.push((identity, fd.as_fd()));
        Ok(identity)
    }
}

#[derive(Debug)]
struct Slot {
    record: Record,
    uses: BTreeSet<FdIdentity>,
}

/// A record that the system had no descriptors or memory for.
#[derive(Clone, Copy, Debug)]
struct Retry {
    at: Instant,
    pause: Pause,
}

/// The part of the manager's store that we use. Without such a manager, nothing is kept.
#[derive(Debug, Default)]
pub struct RecordStore {
    fd_store: Option<FdStore>,
    /// Names of the kept descriptors.
    stored: BTreeMap<FdIdentity, String>,
    slots: BTreeMap<RecordKey, Slot>,
    /// Records that are out of date.
    late: BTreeSet<RecordKey>,
    /// Records that are tried again after a pause.
    retries: BTreeMap<RecordKey, Retry>,
    /// Names of unused descriptors that were kept for this process.
    useless: Vec<String>,
    names: Names,
    /// Records for which there was no room; they are retried when something else was removed.
    turned_away: BTreeSet<RecordKey>,
    /// Whether an unused descriptor may be in the store.
    is_untidy: bool,
    not_before: Option<Instant>,
    /// The last error, as logged.
    trouble: Option<String>,
}

impl RecordStore {
    /// The store of the manager that started this process.
    pub fn of_environment() -> Self {
        Self { fd_store: FdStore::of_environment(), ..Self::default() }
    }

    /// Whether there is a store.
    pub fn is_on(&self) -> bool {
        self.fd_store.is_some()
    }

    /// Records the descriptors that were kept for this process. [`Self::tidy`] removes unused ones.
    pub fn adopt(&mut self, inherited: Inherited) {
        let Inherited { head, ports, fds, useless } = inherited;
        let slot = |(record, _): (Record, Vec<u8>)| Slot { record, uses: BTreeSet::new() };
        self.slots.extend(head.map(|head| (RecordKey::Head, slot(head))));
        self.slots.extend(ports.into_iter().map(|(port, record)| (RecordKey::Port(port), slot(record))));
        self.stored.extend(fds.into_iter().map(|(identity, (name, _))| (identity, name)));
        self.useless = useless;
        let records = self.slots.keys().map(|key| key.name());
        let descriptors = self.stored.values().chain(&self.useless).cloned();
        records.chain(descriptors).for_each(|name| self.names.add(&name));
        self.is_untidy = true;
    }

    /// Notes that the content of a record has changed.
    pub fn is_late(&mut self, key: RecordKey) {
        if self.is_on() {
            self.late.insert(key);
        }
    }

    /// When records have to be written.
    pub fn due(&self) -> Option<Instant> {
        let round = self.is_behind().then(|| self.not_before.unwrap_or_else(Instant::now));
        self.retries.values().map(|retry| Some(retry.at)).fold(round, earlier)
    }

    fn is_behind(&self) -> bool {
        self.is_on() && (!self.late.is_empty() || self.is_untidy)
    }

    /// Whether records have to be written now.
    pub fn is_due(&self, now: Instant) -> bool {
        let is_round_due = self.is_behind() && self.not_before.is_none_or(|at| at <= now);
        is_round_due || self.retries.values().any(|retry| retry.at <= now)
    }

    /// Ends the pause.
    pub fn end_pause(&mut self) {
        self.not_before = None;
    }

    /// Takes the records to update at `now`.
    pub fn take_late(&mut self, now: Instant) -> BTreeSet<RecordKey> {
        self.not_before = Some(now + PAUSE);
        let again = self.retries.iter().filter(|(_, retry)| retry.at <= now).map(|(key, _)| *key);
        self.late.extend(again);
        // A close that failed may succeed now.
        self.is_untidy |= self.trouble.is_some() && !self.late.is_empty();
        std::mem::take(&mut self.late)
    }

    /// Updates a record; without contents removes it, with all descriptors that only it names. A record is retried
    /// later if the manager was busy or the system had no descriptors or memory, and when there is more room if the
    /// store was full.
    pub fn settle(&mut self, key: RecordKey, contents: Option<RecordContents<'_>>) {
        let done = match contents {
            Some(contents) => self.enter(key, &contents),
            None => self.forget(key),
        };
        self.conclude(key, done);
    }

    /// Notes whether a record that [`Self::take_late`] returned was updated, and tries it again after a passing error.
    pub fn conclude(&mut self, key: RecordKey, done: io::Result<()>) {
        let before = self.retries.remove(&key);
        match done {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.is_late(key),
            Err(error) if is_passing(&error) && self.is_on() => {
                let mut pause = before.map_or(Pause::new(PAUSE, RETRY_PAUSE_MAX), |retry| retry.pause);
                let at = self.not_before.unwrap_or_else(Instant::now) + pause.take();
                self.retries.insert(key, Retry { at, pause });
                self.complain(format!("{error}, trying again"));
            }
            Err(error) => self.complain(error.to_string()),
        }
    }

    fn enter(&mut self, key: RecordKey, contents: &RecordContents<'_>) -> io::Result<()> {
        self.check_room(key, contents).inspect_err(|_| {
            self.turned_away.insert(key);
        })?;
        for (identity, fd) in &contents.fds {
            self.put(*identity, *fd)?;
        }
        if !self.slots.contains_key(&key) {
            let record = Record::create()?;
            self.keep(&key.name(), record.as_fd())?;
            self.slots.insert(key, Slot { record, uses: BTreeSet::new() });
        }
        let Some(slot) = self.slots.get_mut(&key) else { return Ok(()) };
        slot.record.write(&contents.text)?;
        let uses = contents.fds.iter().map(|(identity, _)| *identity).collect();
        let before = std::mem::replace(&mut slot.uses, uses);
        self.let_go(before)
    }

    fn forget(&mut self, key: RecordKey) -> io::Result<()> {
        if !self.slots.contains_key(&key) {
            return Ok(());
        }
        self.release(&key.name())?;
        let uses = self.slots.remove(&key).map(|slot| slot.uses).unwrap_or_default();
        self.let_go(uses)
    }

    /// Stores a descriptor, unless it is stored already.
    fn put(&mut self, identity: FdIdentity, fd: BorrowedFd<'_>) -> io::Result<()> {
        if self.stored.contains_key(&identity) {
            return Ok(());
        }
        let name = self.names.first();
        self.keep(&name, fd)?;
        self.stored.insert(identity, name);
        Ok(())
    }

    /// Checks that there is room for all descriptors of a record: half a session would be useless, and take room from a
    /// whole one.
    fn check_room(&self, key: RecordKey, contents: &RecordContents<'_>) -> io::Result<()> {
        let Some(fd_store) = &self.fd_store else { return Ok(()) };
        let fresh: BTreeSet<_> = contents
            .fds
            .iter()
            .map(|(identity, _)| identity)
            .filter(|fd| !self.stored.contains_key(fd))
            .collect();
        let of_record = (!self.slots.contains_key(&key)).then(|| key.name());
        let needed = fresh.len() + usize::from(of_record.is_some());
        let of_head = self.slots.get(&RecordKey::Head).map_or(0, |head| 1 + head.uses.len());
        let reserved = if key == RecordKey::Head { 0 } else { HEAD_ROOM.saturating_sub(of_head) };
        let room = fd_store.room;
        if needed == 0 {
            return Ok(());
        }
        if self.stored.len() + self.slots.len() + needed + reserved > room {
            return Err(full(room));
        }
        let names = self.names.next().take(fresh.len()).chain(of_record);
        let bytes: usize = names.map(|name| bytes_of(&name)).sum();
        self.names.check_room(bytes + reserved * bytes_of(HEAD_NAME))
    }

    fn keep(&mut self, name: &str, fd: BorrowedFd<'_>) -> io::Result<()> {
        let Some(fd_store) = &self.fd_store else { return Ok(()) };
        fd_store.keep(name, fd)?;
        self.names.add(name);
        Ok(())
    }

    fn release(&mut self, name: &str) -> io::Result<()> {
        let Some(fd_store) = &self.fd_store else { return Ok(()) };
        fd_store.release(name)?;
        self.names.remove(name);
        self.late.append(&mut self.turned_away);
        Ok(())
    }

    /// Closes descriptors that no record names any more. Notes any that remain.
    fn let_go(&mut self, identities: impl IntoIterator<Item = FdIdentity>) -> io::Result<()> {
        for identity in identities {
            let is_used = self.slots.values().any(|slot| slot.uses.contains(&identity));
            if let (false, Some(name)) = (is_used, self.stored.get(&identity).cloned()) {
                self.release(&name).inspect_err(|_| self.is_untidy = true)?;
                self.stored.remove(&identity);
            }
        }
        Ok(())
    }

    /// Closes all unused descriptors in the store, if there may be any: those of records that `is_wanted` refuses, and
    /// those that no record names.
    pub fn tidy(&mut self, is_wanted: impl Fn(RecordKey) -> bool) {
        if !self.is_untidy {
            return;
        }
        let tidied = self.try_to_tidy(is_wanted);
        self.is_untidy = tidied.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock);
        // Otherwise a missing manager would be asked forever, each time after a pause.
        if let Err(error) = tidied
            && !self.is_untidy
        {
            self.complain(error.to_string());
        }
    }

    fn try_to_tidy(&mut self, is_wanted: impl Fn(RecordKey) -> bool) -> io::Result<()> {
        while let Some(name) = self.useless.last().cloned() {
            self.release(&name)?;
            self.useless.pop();
        }
        let obsolete: Vec<RecordKey> = self.slots.keys().copied().filter(|key| !is_wanted(*key)).collect();
        obsolete.into_iter().try_for_each(|key| self.forget(key))?;
        let used: BTreeSet<FdIdentity> =
            self.slots.values().flat_map(|slot| slot.uses.iter().copied()).collect();
        let left: Vec<FdIdentity> = self.stored.keys().filter(|held| !used.contains(held)).copied().collect();
        self.let_go(left)
    }

    /// Logs an error, once.
    fn complain(&mut self, why: String) {
        if self.trouble.as_ref() != Some(&why) {
            warn!(
                "the service manager does not keep all: {why}. Guests may have to connect again when this process ends"
            );
            self.trouble = Some(why);
        }
    }
}

/// Whether the system may have descriptors and memory for the same step later.
fn is_passing(error: &io::Error) -> bool {
    is_shortage(error) || Errno::from_io_error(error) == Some(Errno::INTR)
}

fn full(room: usize) -> io::Error {
    let remedy = if room < FULL_ROOM {
        format!("raise FileDescriptorStoreMax= and FDSTORE= of the unit, up to {FULL_ROOM}")
    } else {
        "run a second service for further guests".to_owned()
    };
    io::Error::other(format!("its room for {room} descriptors is full; {remedy}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::names::NAMES_BYTES_MAX;
    use rustix::event::{EventfdFlags, eventfd};
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixDatagram;

    /// A store at a manager that only forgets, with an open descriptor.
    struct Rig {
        store: RecordStore,
        manager: UnixDatagram,
        fd: OwnedFd,
        _dir: tempfile::TempDir,
    }

    impl Rig {
        fn new(room: usize) -> Self {
            let dir = tempfile::tempdir().expect("a directory");
            let path = dir.path().join("notify");
            let manager = UnixDatagram::bind(&path).expect("bound");
            manager.set_nonblocking(true).expect("a socket");
            let fd_store = Some(FdStore::to(path.as_os_str(), room).expect("a path"));
            let fd = eventfd(0, EventfdFlags::CLOEXEC).expect("an eventfd");
            Self { store: RecordStore { fd_store, ..RecordStore::default() }, manager, fd, _dir: dir }
        }

        /// Settles a record with `count` descriptors of its own, however often the manager is busy.
        fn settle(&mut self, port: u32, count: u64) {
            let key = RecordKey::Port(port);
            self.store.is_late(key);
            while self.store.is_behind() {
                let is_late = !self.store.take_late(Instant::now()).is_empty();
                while self.manager.recv(&mut [0; 256]).is_ok() {}
                let identity = |inode| FdIdentity::made_up(u64::from(port), inode);
                let fds = (0..count).map(|inode| (identity(inode), self.fd.as_fd())).collect();
                let contents = RecordContents { text: Vec::new(), fds };
                if is_late {
                    self.store.settle(key, Some(contents).filter(|_| count > 0));
                }
                self.store.late.retain(|late| *late == key);
                self.store.tidy(|_| true);
            }
        }

        fn names(&self) -> Vec<String> {
            let records = self.store.slots.keys().map(|key| key.name());
            records.chain(self.store.stored.values().cloned()).collect()
        }

        fn complaint(&self) -> &str {
            self.store.trouble.as_deref().unwrap_or_default()
        }
    }

    #[test]
    fn as_many_as_the_unit_allows_fit_and_no_more() {
        let mut rig = Rig::new(FULL_ROOM);
        for port in 0..256 {
            assert_eq!(rig.complaint(), "");
            rig.settle(port, 63);
        }
        // The head's places are kept free.
        assert_eq!(rig.names().len(), FULL_ROOM - 64);
        assert!(
            rig.complaint().contains("its room for 16384 descriptors is full; run a second"),
            "{}",
            rig.complaint()
        );
    }

    #[test]
    fn names_that_cannot_be_handed_over_are_refused_until_others_have_gone() {
        let mut rig = Rig::new(60_000);
        let mut port = 0;
        while rig.complaint().is_empty() {
            port += 1;
            rig.settle(port, 99);
        }
        let bytes = |rig: &Rig| rig.names().join(":").len();
        assert!(rig.complaint().contains("its descriptors would exceed 122880 bytes"), "{}", rig.complaint());
        assert!((NAMES_BYTES_MAX - 1000..NAMES_BYTES_MAX).contains(&bytes(&rig)), "{}", bytes(&rig));
        assert!(!rig.store.slots.contains_key(&RecordKey::Port(port)));
        rig.settle(1, 0);
        rig.settle(port, 99);
        assert!(rig.store.slots.contains_key(&RecordKey::Port(port)));
        assert!(bytes(&rig) < NAMES_BYTES_MAX);
        let unique: BTreeSet<String> = rig.names().into_iter().collect();
        assert_eq!(unique.len(), rig.names().len());
    }

    #[test]
    fn long_names_of_an_earlier_version_count_and_go() {
        let (mut rig, fd) = (Rig::new(100), |_| eventfd(0, EventfdFlags::CLOEXEC).expect("an eventfd"));
        let names = ["lasthop-4711", "lasthop-2", "lasthop-99999999"];
        rig.store.adopt(Inherited::of_named(names.map(|name| (name.to_owned(), fd(name))).into_iter()));
        rig.settle(1, 2);
        rig.store.tidy(|_| true);
        assert_eq!(rig.names(), ["lasthop-port-1", "lasthop-1", "lasthop-3"]);
        rig.settle(1, 0);
        rig.settle(2, 3);
        assert_eq!(rig.names(), ["lasthop-port-2", "lasthop-1", "lasthop-2", "lasthop-3"]);
    }
    #[test]
    fn a_record_is_tried_again_after_pauses_that_double() {
        let mut rig = Rig::new(100);
        let (key, mut now) = (RecordKey::Port(1), Instant::now());
        rig.store.is_late(key);
        let mut pauses = Vec::new();
        for errno in [Errno::TOOMANYREFS, Errno::NOBUFS, Errno::NOMEM].into_iter().chain([Errno::MFILE; 9]) {
            assert!(rig.store.is_due(now));
            assert_eq!(rig.store.take_late(now), BTreeSet::from([key]));
            rig.store.conclude(key, Err(errno.into()));
            rig.store.tidy(|_| true);
            let due = rig.store.due().expect("again");
            assert!(!rig.store.is_due(due - Duration::from_micros(1)));
            pauses.push((due - now - PAUSE).as_millis());
            now = due;
        }
        assert_eq!(pauses, [2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2000, 2000]);
        // A change of the session does not wait for it, and success ends it.
        rig.store.is_late(key);
        assert_eq!(rig.store.take_late(now - RETRY_PAUSE_MAX), BTreeSet::from([key]));
        rig.settle(1, 3);
        assert_eq!((rig.names().len(), rig.store.retries.len()), (4, 0));
    }

    #[test]
    fn what_does_not_fit_is_not_tried_again_by_itself() {
        let mut rig = Rig::new(10);
        rig.settle(1, 20);
        assert!(rig.complaint().contains("is full"), "{}", rig.complaint());
        let text = vec![b'x'; 8 << 20];
        rig.store.settle(RecordKey::Port(2), Some(RecordContents { text, fds: Vec::new() }));
        assert!(rig.complaint().contains("too many to be kept"), "{}", rig.complaint());
        assert_eq!(rig.store.due(), None);
    }
}
