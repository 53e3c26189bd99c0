//! One port's outside: its socket, and which connection the switch has.
//!
//! ```text
//!              confirmed          guest there           attach
//!   Down ────────────────► Idle ───────────────► (fd) ─────────► Attached ──┐
//!    ▲ switch gone          ▲ ▲                                             │ detached
//!    └──────────────────────┘ └─────────────────────────────────────────────┘
//! ```

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::io::Errno;

use crate::clock::{Pause, earlier};
use crate::fault::Fault;
use crate::log::say_of_others;
use crate::vnic::{Mode, VnicSpec};

use super::sockets::{ListenSocket, check_length, connect_to};

/// Mode of a port's socket file: its owner and group may attach a guest.
const SOCKET_MODE: u32 = 0o660;
/// How long a second connection may wait for the first one's hang-up, which can be on its way.
const HOLD: Duration = Duration::from_secs(1);
/// Pause between attempts to connect; doubles.
const RETRY_MIN: Duration = Duration::from_millis(100);
const RETRY_MAX: Duration = Duration::from_secs(1);
/// Pause after `accept` failed for lack of descriptors or memory.
const ACCEPT_PAUSE: Duration = Duration::from_secs(1);

/// What the switch knows of the port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Life {
    /// Nothing: guests wait in the socket's backlog.
    Down,
    /// It has the port and no guest.
    Idle,
    /// It has the connection with this number.
    Attached(u64),
}

/// How the port gets its connections.
#[derive(Debug)]
enum Role {
    Listen {
        socket: ListenSocket,
        held: Option<(OwnedFd, Instant)>,
        /// No `accept` before this.
        paused_until: Option<Instant>,
        /// A refusal was logged since the last attachment.
        is_refusal_said: bool,
    },
    Connect {
        next: Instant,
        pause: Pause,
        /// The reason for which it waits, as logged last.
        said: Option<Errno>,
    },
}

/// A vnic with its socket.
#[derive(Debug)]
pub(super) struct Port {
    pub(super) spec: VnicSpec,
    pub(super) path: PathBuf,
    /// The listener is in the set of watched descriptors.
    pub(super) is_watched: bool,
    life: Life,
    role: Role,
}

impl Port {
    /// Makes the socket, or gets ready to connect.
    pub(super) fn open(spec: VnicSpec, dir: &Path) -> Result<Self, Fault> {
        let path = spec.socket_in(dir);
        check_length(&path)?;
        let role = match spec.mode {
            Mode::Listen => {
                let socket = ListenSocket::bind(&path, SOCKET_MODE)?;
                Role::Listen { socket, held: None, paused_until: None, is_refusal_said: false }
            }
            Mode::Connect => {
                Role::Connect { next: Instant::now(), pause: Pause::new(RETRY_MIN, RETRY_MAX), said: None }
            }
        };
        Ok(Self { spec, path, is_watched: false, life: Life::Down, role })
    }

    /// The listening socket, to be watched while it may be accepted from.
    pub(super) fn listener(&self) -> Option<BorrowedFd<'_>> {
        match &self.role {
            Role::Listen { socket, .. } => Some(socket.as_fd()),
            Role::Connect { .. } => None,
        }
    }

    /// Whether a readable listener is of interest now.
    pub(super) fn may_accept(&self) -> bool {
        self.life != Life::Down && matches!(self.role, Role::Listen { paused_until: None, .. })
    }

    /// One line on what a guest has to do.
    pub(super) fn invitation(&self) -> String {
        let path = self.path.display();
        match self.spec.mode {
            Mode::Listen => format!("connect its guest to {path}"),
            Mode::Connect => format!("its guest has to listen at {path}"),
        }
    }

    /// The switch has the port now.
    pub(super) fn confirm(&mut self) {
        self.life = Life::Idle;
        if let Role::Connect { next, .. } = &mut self.role {
            *next = Instant::now();
        }
    }

    /// The switch is gone, and with it the connection.
    pub(super) fn down(&mut self) {
        self.life = Life::Down;
        if let Role::Listen { held, .. } = &mut self.role {
            *held = None;
        }
    }

    /// The switch has got a connection.
    pub(super) fn attached(&mut self, attachment: u64) {
        self.life = Life::Attached(attachment);
    }

    /// The connection ended. False if it was not the current one.
    pub(super) fn detached(&mut self, attachment: u64) -> bool {
        if self.life != Life::Attached(attachment) {
            return false;
        }
        self.life = Life::Idle;
        match &mut self.role {
            Role::Listen { is_refusal_said, .. } => *is_refusal_said = false,
            // A pause also here, so that a peer which hangs up at once makes no busy loop.
            Role::Connect { next, pause, .. } => *next = Instant::now() + pause.take(),
        }
        true
    }

    /// When [`Self::advance`] has something to do without an event.
    pub(super) fn due(&self) -> Option<Instant> {
        match &self.role {
            Role::Listen { held, paused_until, .. } => {
                let held = held.as_ref().map(|(_, until)| *until);
                if self.life == Life::Down { None } else { earlier(held, *paused_until) }
            }
            Role::Connect { next, .. } => (self.life == Life::Idle).then_some(*next),
        }
    }

    /// Does what can be done now; a connection that comes out of it is for the switch.
    pub(super) fn advance(&mut self, now: Instant) -> Option<OwnedFd> {
        match (self.life, &self.role) {
            (Life::Down, _) => None,
            (_, Role::Listen { .. }) => self.accept(now),
            (Life::Idle, Role::Connect { next, .. }) if *next <= now => self.connect(now),
            _ => None,
        }
    }

    fn accept(&mut self, now: Instant) -> Option<OwnedFd> {
        let is_idle = self.life == Life::Idle;
        let Role::Listen { socket, held, paused_until, is_refusal_said } = &mut self.role else {
            return None;
        };
        paused_until.take_if(|until| *until <= now);
        if let Some((fd, until)) = held.take() {
            match (is_idle, until > now) {
                (true, _) => return Some(fd),
                (false, true) => *held = Some((fd, until)),
                (false, false) => say_refused(&self.spec, is_refusal_said),
            }
        }
        if paused_until.is_some() {
            return None;
        }
        match socket.accept() {
            Ok(None) => None,
            Ok(Some(stream)) if is_idle => Some(stream.into()),
            Ok(Some(stream)) if held.is_none() => {
                *held = Some((stream.into(), now + HOLD));
                None
            }
            Ok(Some(_)) => {
                say_refused(&self.spec, is_refusal_said);
                None
            }
            Err(error) => {
                say_of_others!(
                    "vnic {}: cannot accept a connection: {error}; trying again in a second",
                    self.spec.name
                );
                *paused_until = Some(now + ACCEPT_PAUSE);
                None
            }
        }
    }

    fn connect(&mut self, now: Instant) -> Option<OwnedFd> {
        let Role::Connect { next, pause, said } = &mut self.role else { return None };
        match connect_to(&self.path) {
            Ok(fd) => {
                *said = None;
                pause.reset();
                Some(fd)
            }
            Err(error) => {
                if *said != Some(error) {
                    let path = self.path.display();
                    say_of_others!(
                        "vnic {}: waits until a guest listens at {path} ({error})",
                        self.spec.name
                    );
                    *said = Some(error);
                }
                *next = now + pause.take();
                None
            }
        }
    }
}

/// Logs the first refusal since a guest attached; the others are like it.
fn say_refused(spec: &VnicSpec, is_said: &mut bool) {
    if !*is_said {
        say_of_others!(
            "vnic {}: refused a second guest, it has one already; give each guest a vnic of its own",
            spec.name
        );
        *is_said = true;
    }
}

#[cfg(test)]
mod tests {
    use std::io::{ErrorKind, Read};
    use std::os::unix::net::{UnixListener, UnixStream};

    use super::*;

    fn port(options: &str, dir: &Path) -> Port {
        let mut port = Port::open(options.parse().expect("a vnic"), dir).expect("a port");
        port.confirm();
        port
    }

    fn is_closed(stream: &mut UnixStream) -> bool {
        stream.set_nonblocking(true).expect("set");
        match stream.read(&mut [0]) {
            Ok(0) => true,
            Err(error) => error.kind() == ErrorKind::ConnectionReset,
            Ok(_) => false,
        }
    }

    #[test]
    fn a_second_guest_waits_for_the_first_ones_hang_up() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut port = port("a", dir.path());
        let now = Instant::now();
        let _first = UnixStream::connect(&port.path).expect("connected");
        assert!(port.advance(now).is_some());
        port.attached(1);
        let _second = UnixStream::connect(&port.path).expect("connected");
        assert!(port.advance(now).is_none());
        assert_eq!(port.due(), Some(now + HOLD));
        assert!(!port.detached(7), "not the current one");
        assert!(port.detached(1));
        assert!(port.advance(now).is_some());
        assert_eq!(port.due(), None);
    }

    #[test]
    fn a_second_guest_is_refused_after_a_while_and_a_third_at_once() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut port = port("a", dir.path());
        let now = Instant::now();
        port.attached(1);
        let mut second = UnixStream::connect(&port.path).expect("connected");
        assert!(port.advance(now).is_none());
        let mut third = UnixStream::connect(&port.path).expect("connected");
        assert!(port.advance(now).is_none());
        assert!(is_closed(&mut third) && !is_closed(&mut second));
        assert!(port.advance(now + HOLD).is_none());
        assert!(is_closed(&mut second));
        assert_eq!(port.due(), None);
    }

    #[test]
    fn without_a_switch_guests_wait_in_the_backlog() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut port = port("a", dir.path());
        port.down();
        let mut guest = UnixStream::connect(&port.path).expect("connected");
        assert!(!port.may_accept() && port.advance(Instant::now()).is_none());
        assert!(!is_closed(&mut guest));
        port.confirm();
        assert!(port.may_accept() && port.advance(Instant::now()).is_some());
    }

    #[test]
    fn connecting_is_tried_again_with_growing_pauses_for_ever() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut port = port("a,mode=connect", dir.path());
        let mut now = port.due().expect("at once").max(Instant::now());
        for pause_ms in [100, 200, 400, 800, 1000, 1000] {
            assert!(port.advance(now).is_none());
            assert_eq!(port.due(), Some(now + Duration::from_millis(pause_ms)));
            now += Duration::from_millis(pause_ms);
        }
        let _guest = UnixListener::bind(&port.path).expect("bound");
        assert!(port.advance(now).is_some());
        port.attached(1);
        assert_eq!(port.due(), None);
        assert!(port.detached(1));
        assert!(port.due().is_some_and(|due| due > now - Duration::from_secs(5)));
    }
}
