//! Messages to a service manager (sd_notify(3)): whether the switch serves or ends, and its state in one line.
//!
//! They also pass descriptors that the manager keeps for the next start (`FDSTORE`).
//!
//! Datagrams to the socket in `NOTIFY_SOCKET`, without blocking: one without room is replaced later by one with the
//! state at that time.

use std::ffi::OsStr;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixDatagram;
use std::time::{Duration, Instant};

use log::warn;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, sendmsg_addr};

/// Has the socket's name; inner processes do not get it.
pub const VARIABLE: &str = "NOTIFY_SOCKET";
/// Number of descriptors that the manager keeps. The unit sets it for managers that do not (systemd before 254).
const ROOM_VARIABLE: &str = "FDSTORE";
/// Pause after a change of the line without a change of phase, so that guests that come and go do not keep the manager
/// busy.
const STATUS_PAUSE: Duration = Duration::from_secs(1);
/// Pause after a refused datagram.
const RETRY_PAUSE: Duration = Duration::from_millis(100);

/// The phase of the service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// Ports are not open yet.
    Starting,
    /// Guests can attach.
    Serving,
    /// The service is about to end.
    Ending,
}

/// The service manager, if there is one.
#[derive(Debug)]
pub struct Manager {
    way: Option<Way>,
    /// The last message.
    told: (Phase, String),
    /// Before this only a new phase is sent, and that only after a success.
    not_before: Option<Instant>,
    has_failed: bool,
    /// Whether the last message is out of date.
    is_late: bool,
}

impl Manager {
    /// The manager that started this process. Without a usable socket there is none, and the log says so.
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

    /// Whether there is a manager.
    pub fn is_there(&self) -> bool {
        self.way.is_some()
    }

    /// When to call [`Self::tell`] again at the latest.
    pub fn due(&self) -> Option<Instant> {
        self.not_before.filter(|_| self.is_late)
    }

    /// Sends changes: a new phase at once, others after the pause.
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

    /// Reports why the service is not ready yet, and that this may take `longer` from now.
    pub fn tell_wait(&self, why: &str, longer: Duration) {
        if let Some(way) = &self.way {
            let _ =
                way.send(&format!("STATUS={}\nEXTEND_TIMEOUT_USEC={}", one_line(why), longer.as_micros()));
        }
    }

    /// Reports why the service ends.
    pub fn tell_end(&self, why: &str) {
        if let Some(way) = &self.way {
            let _ = way.send(&format!("STATUS={}", one_line(why)));
        }
    }
}

/// The variables for a manager that knows the phase `before`.
fn message(before: Phase, (phase, status): &(Phase, String)) -> String {
    let word = match phase {
        _ if *phase == before => "",
        Phase::Starting => "",
        Phase::Serving => "READY=1\n",
        Phase::Ending => "STOPPING=1\n",
    };
    format!("{word}STATUS={}", one_line(status))
}

/// Joins lines, since a newline would begin another variable.
fn one_line(text: &str) -> String {
    text.replace(['\n', '\r'], " ")
}

/// The manager's store of descriptors for the next start.
#[derive(Debug)]
pub struct FdStore {
    way: Way,
    /// Number of descriptors that it takes.
    pub room: usize,
}

impl FdStore {
    /// The store of the manager that started this process, if it has one.
    pub fn of_environment() -> Option<Self> {
        let room = std::env::var(ROOM_VARIABLE).ok()?.parse().ok().filter(|room| *room > 0)?;
        Self::to(&std::env::var_os(VARIABLE)?, room).ok()
    }

    /// The store of a manager with `room` descriptors. Public for the tests of `fd-store`.
    pub fn to(manager: &OsStr, room: usize) -> io::Result<Self> {
        Ok(Self { way: Way::to(manager)?, room })
    }

    /// Stores a descriptor under `name`, even if its other end is gone. The same open file is not stored twice.
    pub fn keep(&self, name: &str, fd: BorrowedFd<'_>) -> io::Result<()> {
        self.way.send_with(&format!("FDSTORE=1\nFDPOLL=0\nFDNAME={name}"), &[fd])
    }

    /// Has the descriptors under `name` closed.
    pub fn release(&self, name: &str) -> io::Result<()> {
        self.way.send(&format!("FDSTOREREMOVE=1\nFDNAME={name}"))
    }
}

/// A socket, and the manager's address, which may be bound again meanwhile.
#[derive(Debug)]
struct Way {
    socket: UnixDatagram,
    manager: SocketAddrUnix,
}

impl Way {
    /// `name` is a path, or an abstract socket with a leading `@` (sd_notify(3)).
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

    /// Sends a message with at most one descriptor.
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

    /// A manager's socket in a directory, and a sender to it.
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
