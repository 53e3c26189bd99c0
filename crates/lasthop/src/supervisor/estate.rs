//! What the supervisor keeps of each guest's session for the next switch process, should this one die.
//!
//! ```text
//!   guest ── connection ──┬── the switch process             tells: session, descriptors      (when the front end changes them)
//!                         └── a copy here, with memory ◄── marks of what is under way          (shared, always up to date)
//!
//!   it dies:  Bring descriptors, TakeOver ──► the next one: goes on ── done, or why not: then the guest has to connect again
//! ```

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use lasthop_vhost::Kept;
use rustix::net::{Shutdown, shutdown};
use serde_json::Value;

/// Switch processes in a row that may die of one session, or of some among several; then its guest has to connect again.
const DEATHS_MAX: u32 = 2;
/// A switch process that lives for so long with a session does not die of it.
const PROOF: Duration = Duration::from_secs(1);

/// One session.
#[derive(Debug)]
pub(super) struct Estate {
    attachment: u64,
    connection: OwnedFd,
    memory: OwnedFd,
    /// As told last; `Null` before the front end has said anything.
    session: Value,
    fds: BTreeMap<u32, OwnedFd>,
    heir: Heir,
    deaths: u32,
}

/// How far the present switch process is with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Heir {
    /// It began the session itself, or none is there.
    None,
    /// It was told to take it over.
    Told,
    /// It took it over.
    Since(Instant),
}

impl Estate {
    /// Of a guest's connection that is about to be handed to the switch, for a port of so many queue pairs.
    pub(super) fn new(attachment: u64, connection: &OwnedFd, queues: u16) -> io::Result<Self> {
        Ok(Self {
            attachment,
            connection: connection.try_clone()?,
            memory: Kept::create(rings(queues))?,
            session: Value::Null,
            fds: BTreeMap::new(),
            heir: Heir::None,
            deaths: 0,
        })
    }

    pub(super) fn attachment(&self) -> u64 {
        self.attachment
    }

    /// A copy of the memory, for the switch.
    pub(super) fn memory(&self) -> io::Result<OwnedFd> {
        self.memory.try_clone()
    }

    /// Descriptors that the switch got from the front end. Those that did not arrive are found to be missing by who needs
    /// them.
    pub(super) fn keep(&mut self, numbers: Vec<u32>, fds: Vec<OwnedFd>) {
        self.fds.extend(numbers.into_iter().zip(fds));
    }

    /// The session as it is now, and which descriptors belong to it.
    pub(super) fn tell(&mut self, session: Value, numbers: &[u32]) {
        self.session = session;
        self.fds.retain(|number, _| numbers.contains(number));
    }

    /// The switch that had it is dead. False: it may have died of this, and that is enough.
    pub(super) fn survives(&mut self, is_suspect: bool) -> bool {
        let heir = std::mem::replace(&mut self.heir, Heir::None);
        let proved = match heir {
            Heir::None => true,
            Heir::Told => false,
            Heir::Since(since) => since.elapsed() >= PROOF,
        };
        if proved {
            self.deaths = 0;
        } else if is_suspect || heir == Heir::Told {
            self.deaths += 1;
        }
        self.deaths < DEATHS_MAX
    }

    /// Whether the present switch was told to take it over and has not answered.
    pub(super) fn is_told(&self) -> bool {
        self.heir == Heir::Told
    }

    /// The switch took it over.
    pub(super) fn is_taken_over(&mut self) {
        self.heir = Heir::Since(Instant::now());
    }

    /// Copies of everything, for the next switch: session, connection and memory, and the descriptors with their numbers.
    pub(super) fn bequeath(&mut self) -> io::Result<Bequest> {
        let fds = self.fds.iter().map(|(number, fd)| Ok((*number, fd.try_clone()?)));
        let bequest = Bequest {
            session: self.session.clone(),
            connection: self.connection.try_clone()?,
            memory: self.memory()?,
            fds: fds.collect::<io::Result<_>>()?,
        };
        self.heir = Heir::Told;
        Ok(bequest)
    }

    /// Ends the connection, of which others may have copies.
    pub(super) fn hang_up(self) {
        let _ = shutdown(&self.connection, Shutdown::Both);
    }
}

/// What the next switch gets.
#[derive(Debug)]
pub(super) struct Bequest {
    pub(super) session: Value,
    pub(super) connection: OwnedFd,
    pub(super) memory: OwnedFd,
    pub(super) fds: Vec<(u32, OwnedFd)>,
}

/// Rings of a port, a control ring included.
pub(crate) fn rings(queues: u16) -> u16 {
    queues.saturating_mul(2).saturating_add(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    fn estate() -> (Estate, UnixStream) {
        let (ours, theirs) = UnixStream::pair().expect("a pair");
        (Estate::new(1, &ours.into(), 1).expect("an estate"), theirs)
    }

    #[test]
    fn a_session_that_two_switches_die_of_is_given_up() {
        let (mut estate, _guest) = estate();
        assert!(estate.survives(true), "it was begun by the one that died");
        estate.bequeath().expect("copies");
        assert!(estate.survives(true), "once");
        estate.bequeath().expect("copies");
        estate.is_taken_over();
        assert!(!estate.survives(true), "twice");
    }

    #[test]
    fn who_has_answered_is_no_suspect_while_others_have_not() {
        let (mut estate, _guest) = estate();
        for _ in 0..5 {
            estate.bequeath().expect("copies");
            estate.is_taken_over();
            assert!(estate.survives(false));
        }
    }

    #[test]
    fn descriptors_that_do_not_belong_to_it_any_more_are_closed() {
        let (mut estate, guest) = estate();
        let fd = || OwnedFd::from(guest.try_clone().expect("a copy"));
        estate.keep(vec![1, 2, 3], vec![fd(), fd(), fd()]);
        estate.tell(Value::Bool(true), &[2]);
        let bequest = estate.bequeath().expect("copies");
        assert_eq!(bequest.fds.iter().map(|(number, _)| *number).collect::<Vec<_>>(), [2]);
    }
}
