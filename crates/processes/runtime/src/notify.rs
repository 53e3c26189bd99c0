//! Messages to a service manager (sd_notify(3)): that the switch serves, that it ends, and its state in one line.
//!
//! They also hand it descriptors to keep, which the next start gets back (`FDSTORE`).
//!
//! Datagrams to the socket that `NOTIFY_SOCKET` names. They are sent without waiting: one that finds no room is made up
//! again later, from what holds then.

use std::ffi::OsStr;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixDatagram;
use std::time::{Duration, Instant};

use log::warn;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, sendmsg_addr};

/// Names the socket; the inner processes do not have it.
pub const VARIABLE: &str = "NOTIFY_SOCKET";
/// How many descriptors the manager keeps. Managers that do not say (systemd before 254) have it set by the unit.
const ROOM_VARIABLE: &str = "FDSTORE";
/// Pause after a line that changes without the phase: guests that come and go are not to keep the manager busy.
const STATUS_PAUSE: Duration = Duration::from_secs(1);
/// Pause after a datagram that was not taken.
const RETRY_PAUSE: Duration = Duration::from_millis(100);

/// How far the service is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// Ports are not open yet.
    Starting,
    /// Guests can attach.
    Serving,
    /// The service ends in a moment.
    Ending,
}

/// The service manager, if there is one.
#[derive(Debug)]
pub struct Manager {
    way: Option<Way>,
    /// The last message to it.
    told: (Phase, String),
    /// Nothing but a phase is told before this, and that only if nothing failed.
    not_before: Option<Instant>,
    has_failed: bool,
    /// It does not know all.
    is_late: bool,
}

impl Manager {
    /// The one that started this process. A socket that cannot be used is none, and the log says so.
    pub fn of_environment() -> Self {
        let name = std::env::var_os(VARIABLE).filter(|name| !name.is_empty());
        let way = name.and_then(|name| {
            let failed = |error: &io::Error| {
                warn!("{VARIABLE}={}: {error}; the service manager is told nothing", name.display());
            };
            Way::to(&name).inspect_err(failed).ok()
        });
        Self::by(way)
    }

    fn by(way: Option<Way>) -> Self {
        let told = (Phase::Starting, String::new());
        Self { way, told, not_before: None, has_failed: false, is_late: false }
    }

    /// Whether anybody wants to know.
    pub fn is_there(&self) -> bool {
        self.way.is_some()
    }

    /// When [`Self::tell`] is to be called again at the latest.
    pub fn due(&self) -> Option<Instant> {
        self.not_before.filter(|_| self.is_late)
    }

    /// Tells changes: at once if it is the phase, else when the pause is over.
    pub fn tell(&mut self, phase: Phase, status: String, now: Instant) {
        let Some(way) = &self.way else { return };
        let wanted = (phase, status);
        self.is_late = wanted != self.told;
        let is_pressing = phase != self.told.0 && !self.has_failed;
        let is_early = self.not_before.is_some_and(|start| now < start);
        if !self.is_late || (is_early && !is_pressing) {
            return;
        }
        self.has_failed = way.send(&message(self.told.0, &wanted)).is_err();
        let pause = if self.has_failed { RETRY_PAUSE } else { STATUS_PAUSE };
        self.not_before = Some(now + pause);
        if !self.has_failed {
            (self.told, self.is_late) = (wanted, false);
        }
    }

    /// Says why the service is not ready yet, and that this may take `longer` from now.
    pub fn tell_wait(&self, why: &str, longer: Duration) {
        if let Some(way) = &self.way {
            let _ =
                way.send(&format!("STATUS={}\nEXTEND_TIMEOUT_USEC={}", one_line(why), longer.as_micros()));
        }
    }

    /// Says why the service ends, on the way out.
    pub fn tell_end(&self, why: &str) {
        if let Some(way) = &self.way {
            let _ = way.send(&format!("STATUS={}", one_line(why)));
        }
    }
}

/// The variables for a manager that knows of the phase `before`.
fn message(before: Phase, (phase, status): &(Phase, String)) -> String {
    let word = match phase {
        _ if *phase == before => "",
        Phase::Starting => "",
        Phase::Serving => "READY=1\n",
        Phase::Ending => "STOPPING=1\n",
    };
    format!("{word}STATUS={}", one_line(status))
}

/// A newline would begin another variable.
fn one_line(text: &str) -> String {
    text.replace(['\n', '\r'], " ")
}

/// Where descriptors are kept for the next start.
#[derive(Debug)]
pub struct FdStore {
    way: Way,
    /// How many it takes.
    pub room: usize,
}

impl FdStore {
    /// That of the manager who started this process, if it has one.
    pub fn of_environment() -> Option<Self> {
        let room = std::env::var(ROOM_VARIABLE).ok()?.parse().ok().filter(|room| *room > 0)?;
        let way = Way::to(&std::env::var_os(VARIABLE)?).ok()?;
        Some(Self { way, room })
    }

    /// Has a descriptor kept under `name`, also when its other end is gone. One that is the same open file as another that is
    /// kept is not kept twice.
    pub fn keep(&self, name: &str, fd: BorrowedFd<'_>) -> io::Result<()> {
        self.way.send_with(&format!("FDSTORE=1\nFDPOLL=0\nFDNAME={name}"), &[fd])
    }

    /// Has the descriptors under `name` closed.
    pub fn release(&self, name: &str) -> io::Result<()> {
        self.way.send(&format!("FDSTOREREMOVE=1\nFDNAME={name}"))
    }
}

/// A socket of ours, and the manager's address: it may be bound anew while we run.
#[derive(Debug)]
struct Way {
    socket: UnixDatagram,
    manager: SocketAddrUnix,
}

impl Way {
    /// `name` is a path, or with a leading `@` an abstract socket (sd_notify(3)).
    fn to(name: &OsStr) -> io::Result<Self> {
        let manager = match name.as_bytes() {
            [b'@', rest @ ..] => SocketAddrUnix::new_abstract_name(rest)?,
            [b'/', ..] => SocketAddrUnix::new(name)?,
            _ => return Err(io::Error::other("neither a path nor an abstract socket")),
        };
        let socket = UnixDatagram::unbound()?;
        socket.set_nonblocking(true)?;
        Ok(Self { socket, manager })
    }

    fn send(&self, text: &str) -> io::Result<()> {
        self.send_with(text, &[])
    }

    /// With one descriptor at most.
    fn send_with(&self, text: &str, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() {
            control.push(SendAncillaryMessage::ScmRights(fds));
        }
        let bytes = [IoSlice::new(text.as_bytes())];
        sendmsg_addr(&self.socket, &self.manager, &bytes, &mut control, SendFlags::NOSIGNAL)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A manager's socket in a directory, and the sender of messages to it.
    fn pair(dir: &std::path::Path) -> (UnixDatagram, Manager) {
        let path = dir.join("notify");
        let ear = UnixDatagram::bind(&path).expect("bound");
        ear.set_nonblocking(true).expect("a socket");
        (ear, Manager::by(Some(Way::to(path.as_os_str()).expect("a path"))))
    }

    fn heard(ear: &UnixDatagram) -> Option<String> {
        let mut bytes = [0; 256];
        let length = ear.recv(&mut bytes).ok()?;
        Some(String::from_utf8_lossy(&bytes[..length]).into_owned())
    }

    #[test]
    fn phases_are_told_once_and_at_once() {
        let dir = tempfile::tempdir().expect("a directory");
        let (ear, mut manager) = pair(dir.path());
        let now = Instant::now();
        manager.tell(Phase::Starting, String::new(), now);
        assert_eq!((heard(&ear), manager.due()), (None, None));
        manager.tell(Phase::Serving, "one".to_owned(), now);
        manager.tell(Phase::Serving, "one".to_owned(), now);
        manager.tell(Phase::Ending, "two\nREADY=1".to_owned(), now);
        assert_eq!(heard(&ear).as_deref(), Some("READY=1\nSTATUS=one"));
        assert_eq!(heard(&ear).as_deref(), Some("STOPPING=1\nSTATUS=two READY=1"));
        assert_eq!((heard(&ear), manager.due()), (None, None));
    }

    #[test]
    fn lines_that_change_often_are_told_after_a_pause() {
        let dir = tempfile::tempdir().expect("a directory");
        let (ear, mut manager) = pair(dir.path());
        let now = Instant::now();
        manager.tell(Phase::Serving, "one".to_owned(), now);
        heard(&ear).expect("the first");
        manager.tell(Phase::Serving, "two".to_owned(), now);
        assert_eq!((heard(&ear), manager.due()), (None, Some(now + STATUS_PAUSE)));
        manager.tell(Phase::Serving, "three".to_owned(), now + STATUS_PAUSE);
        assert_eq!((heard(&ear).as_deref(), manager.due()), (Some("STATUS=three"), None));
        manager.tell(Phase::Serving, "four".to_owned(), now + STATUS_PAUSE);
        manager.tell(Phase::Serving, "three".to_owned(), now + STATUS_PAUSE);
        assert_eq!((heard(&ear), manager.due()), (None, None), "nothing is new");
    }

    #[test]
    fn what_was_not_taken_is_told_again() {
        let dir = tempfile::tempdir().expect("a directory");
        let (ear, mut manager) = pair(dir.path());
        drop(ear);
        let now = Instant::now();
        manager.tell(Phase::Serving, "one".to_owned(), now);
        assert_eq!(manager.due(), Some(now + RETRY_PAUSE));
        std::fs::remove_file(dir.path().join("notify")).expect("left over");
        let ear = UnixDatagram::bind(dir.path().join("notify")).expect("bound");
        manager.tell(Phase::Serving, "two".to_owned(), now);
        ear.set_nonblocking(true).expect("a socket");
        assert_eq!(heard(&ear), None, "too early");
        manager.tell(Phase::Serving, "two".to_owned(), now + RETRY_PAUSE);
        assert_eq!((heard(&ear).as_deref(), manager.due()), (Some("READY=1\nSTATUS=two"), None));
    }

    #[test]
    fn other_addresses_are_refused() {
        assert!(Way::to(OsStr::new("vsock:2:9999")).is_err());
        assert!(Way::to(OsStr::new(&format!("/{}", "x".repeat(200)))).is_err());
    }
}
