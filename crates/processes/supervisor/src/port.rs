//! The supervisor's side of a port: its socket, and the connection that the switch has.
//!
//! ```text
//!              confirmed          guest there           attach
//!   Down ────────────────► Idle ───────────────► (fd) ─────────► Attached ──┐
//!    ▲ switch gone          ▲ ▲                                             │ detached
//!    └──────────────────────┘ └─────────────────────────────────────────────┘
//! ```

use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use lasthop_device_ports::DevicePort;
use lasthop_foreign::{ForeignFd, HoldReason, PendingCloses};
use lasthop_sched_view::FrontEndProcess;
use log::{info, warn};
use rustix::io::Errno;
use rustix::net::{Shutdown, shutdown};

use lasthop_api::facts::ConnectionFacts;
use lasthop_api::leases::PortLeases;
use lasthop_api::orders::SwitchPort;
use lasthop_api::port::{LinkState, MemoryMax, PortBackend, PortCommon, PortSpec, VnicMode};
use lasthop_api::report::Ended;
use lasthop_listeners::{ListenSocket, SocketAccess, check_length, connect_to};
use lasthop_runtime::clock::{Pause, earlier};
use lasthop_runtime::fault::Fault;

use lasthop_device_ports::placeholder::Placeholder;

/// How long a second connection may wait for the first one's hang-up, which may be pending: on a busy machine for
/// longer than a second.
const PARK_TIME: Duration = Duration::from_secs(3);
/// Pause between attempts to connect, and after a guest that hung up at once; doubles.
const RETRY_MIN: Duration = Duration::from_millis(100);
const RETRY_MAX: Duration = Duration::from_secs(1);
/// An attachment shorter than this causes a pause: front ends that fail in a loop must not flood the log.
const SHORT: Duration = Duration::from_secs(1);
/// After an attachment this long the pauses are short again.
const LONG: Duration = Duration::from_secs(10);
/// Pause after `accept` failed for lack of descriptors or memory.
const ACCEPT_PAUSE: Duration = Duration::from_secs(1);

/// Pause before the next check of descriptors that did not close.
const STUCK_PAUSE: Duration = Duration::from_secs(60);

/// The state of the port at the switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AttachState {
    /// Unknown to the switch: guests wait in the socket's backlog.
    Down,
    /// The switch has the port, without a guest.
    Idle,
    /// The switch has the connection with this number.
    Attached { number: u64, since: Instant },
}

/// How the port gets its connections.
#[derive(Debug)]
enum Role {
    Listen {
        socket: ListenSocket,
        parked: Option<(ForeignFd, Instant)>,
        /// No connection is accepted before.
        paused_until: Option<Instant>,
        /// The pause after a guest that hangs up at once.
        pause: Pause,
        /// Whether a refusal was logged since the last attachment.
        is_refusal_said: bool,
    },
    Connect {
        next: Instant,
        pause: Pause,
        /// The last logged reason to wait.
        said: Option<Errno>,
    },
    /// Connections lead to the driver process.
    Device {
        device: Box<DevicePort>,
        /// The next connection is not made before.
        next: Instant,
        pause: Pause,
    },
}

impl Role {
    fn listen(socket: ListenSocket) -> Self {
        let pause = Pause::new(RETRY_MIN, RETRY_MAX);
        Self::Listen { socket, parked: None, paused_until: None, pause, is_refusal_said: false }
    }
}

/// A port with its socket, or its device.
#[derive(Debug)]
pub(super) struct Port {
    pub(super) spec: PortSpec,
    pub(super) path: PathBuf,
    /// Whether the listener is being watched.
    pub(super) is_watched: bool,
    /// Whether the switch has a pending order to change it.
    pub(super) is_changing: bool,
    /// Whether its link is down because its uplinks have none, as the switch was told.
    pub(super) is_cut: bool,
    /// The network device that represents it, for external controllers.
    pub(super) placeholder: Option<Placeholder>,
    life: AttachState,
    role: Role,
    /// The last refused request of the front end, until the next one attaches.
    refusal: Option<String>,
    /// The end of the last connection, and its time.
    last_end: Option<(String, Instant)>,
    /// The process at the other end, if the system tells.
    peer_pid: Option<i32>,
    peer_user: Option<u32>,
    /// Descriptors of front ends that this process has not closed yet.
    pub(super) arrears: PendingCloses,
    /// Number of refused guests, and the time of the last one.
    refused_guests: u64,
    last_refused: Option<Instant>,
    /// Addresses that DHCP servers gave to it.
    pub(super) kept_leases: Option<PortLeases>,
}

impl Port {
    /// Makes the socket, or prepares to connect or to open the device; a port over a device has no socket file.
    pub(super) fn open(spec: PortSpec, dir: &Path) -> Result<Self, Fault> {
        let path = spec.socket_in(dir);
        let (next, pause) = (Instant::now(), Pause::new(RETRY_MIN, RETRY_MAX));
        let role = match &spec.backend {
            PortBackend::VhostUser(backend) => {
                check_length(&path)?;
                match backend.mode {
                    VnicMode::Listen => Role::listen(ListenSocket::bind(&path, SocketAccess::of(backend)?)?),
                    VnicMode::Connect => Role::Connect { next, pause, said: None },
                }
            }
            PortBackend::Device(_) => Role::Device { device: Box::new(DevicePort::new(false)), next, pause },
            // A tunnel port is made once, like an internal port's tap.
            PortBackend::Tap(_) | PortBackend::Tunnel(_) => {
                Role::Device { device: Box::new(DevicePort::new(true)), next, pause }
            }
        };
        Ok(Self::with_role(spec, path, role))
    }

    /// Like `open`, with the last supervisor's socket, and device and inode of its file.
    pub(super) fn go_on(
        spec: PortSpec,
        dir: &Path,
        kept: Option<(ForeignFd, (u64, u64))>,
    ) -> Result<Self, Fault> {
        let path = spec.socket_in(dir);
        let kept = kept.filter(|_| spec.vhost_user().is_some_and(|backend| backend.mode == VnicMode::Listen));
        match kept.and_then(|(socket, file)| ListenSocket::of_kept(socket, &path, file)) {
            Some(socket) => Ok(Self::with_role(spec, path, Role::listen(socket))),
            None => Self::open(spec, dir),
        }
    }

    /// Like `open`, for a controller's request.
    pub(super) fn on_request(spec: PortSpec, dir: &Path) -> Result<Self, Fault> {
        let mut port = Self::open(spec, dir)?;
        if let Some(device) = port.device_mut() {
            device.is_requested = true;
        }
        Ok(port)
    }

    fn with_role(spec: PortSpec, path: PathBuf, role: Role) -> Self {
        let arrears = PendingCloses::new(&format!("port {}", spec.common.name));
        Self {
            spec,
            path,
            is_watched: false,
            is_changing: false,
            is_cut: false,
            placeholder: None,
            arrears,
            life: AttachState::Down,
            role,
            refusal: None,
            last_end: None,
            peer_pid: None,
            peer_user: None,
            refused_guests: 0,
            last_refused: None,
            kept_leases: None,
        }
    }

    /// Addresses that DHCP servers gave to it, for the next controller process or supervisor; `None` without any.
    pub(super) fn leases(&self) -> Option<&PortLeases> {
        self.kept_leases.as_ref().filter(|leases| leases.fit(&self.spec.common.policy))
    }

    /// The state of a port over a device; `None` for a vhost-user port.
    pub(super) fn device(&self) -> Option<&DevicePort> {
        match &self.role {
            Role::Device { device, .. } => Some(device),
            Role::Listen { .. } | Role::Connect { .. } => None,
        }
    }

    pub(super) fn device_mut(&mut self) -> Option<&mut DevicePort> {
        match &mut self.role {
            Role::Device { device, .. } => Some(device),
            Role::Listen { .. } | Role::Connect { .. } => None,
        }
    }

    /// The port with the settings `to`, in the form for the switch.
    pub(super) fn as_told(&self, to: &PortSpec) -> SwitchPort {
        let link = if self.is_cut { LinkState::Down } else { to.common.link };
        let placeholder = self.placeholder.as_ref().map(Placeholder::host_device);
        let device = self.device().and_then(DevicePort::host_device).or(placeholder);
        SwitchPort {
            common: PortCommon {
                link,
                // The default is omitted, since older programs do not know the key.
                memory_max: to.common.memory_max.filter(|max| *max != MemoryMax::default()),
                // A tap's MTU is not offered to a guest.
                mtu: to.common.mtu.filter(|_| to.is_vhost_user()),
                ..to.common.clone()
            },
            leads: to.leads(),
            is_requested: self.is_requested(),
            device,
            is_tunnel: matches!(to.backend, PortBackend::Tunnel(_)),
        }
    }

    /// Whether a controller requested it.
    pub(super) fn is_requested(&self) -> bool {
        self.device().is_some_and(|device| device.is_requested)
    }

    /// Whether guests have a link here.
    pub(super) fn has_guest_link(&self) -> bool {
        self.is_attached() && self.spec.common.link.is_up() && !self.is_cut
    }

    /// Whether the switch waits for a connection, which may be made now.
    pub(super) fn may_join(&self, now: Instant) -> bool {
        self.life == AttachState::Idle && matches!(self.role, Role::Device { next, .. } if next <= now)
    }

    /// Whether the switch has the port.
    pub(super) fn is_known(&self) -> bool {
        self.life != AttachState::Down
    }

    pub(super) fn is_attached(&self) -> bool {
        matches!(self.life, AttachState::Attached { .. })
    }

    /// Changes the owner, group and mode of the socket's file from those in `from` to those in `to`.
    pub(super) fn set_access(&self, from: &PortSpec, to: &PortSpec) -> Result<(), Fault> {
        let Some((from, to)) = from.vhost_user().zip(to.vhost_user()) else { return Ok(()) };
        let (before, access) = (SocketAccess::of(from)?, SocketAccess::of(to)?);
        if access == before || !matches!(self.role, Role::Listen { .. }) {
            return Ok(());
        }
        access.apply(Some(before), &self.path)
    }

    /// The listening socket, to be watched while connections may be accepted.
    pub(super) fn listener(&self) -> Option<BorrowedFd<'_>> {
        match &self.role {
            Role::Listen { socket, .. } => Some(socket.as_fd()),
            Role::Connect { .. } | Role::Device { .. } => None,
        }
    }

    /// The listening socket, and device and inode of its file.
    pub(super) fn listening(&self) -> Option<(&ListenSocket, (u64, u64))> {
        match &self.role {
            Role::Listen { socket, .. } => Some((socket, socket.file()?)),
            Role::Connect { .. } | Role::Device { .. } => None,
        }
    }

    /// Leaves the listening socket to the next supervisor.
    pub(super) fn leave(&mut self) {
        if let Role::Listen { socket, .. } = &mut self.role {
            socket.leave();
        }
    }

    /// Whether a connection may be accepted now.
    pub(super) fn may_accept(&self) -> bool {
        self.life != AttachState::Down && matches!(self.role, Role::Listen { paused_until: None, .. })
    }

    /// One line about the guest's next step.
    pub(super) fn invitation(&self) -> String {
        let path = self.path.display();
        if self.is_requested() {
            return format!("the controller of {} asked for it", self.spec.common.switch);
        }
        match self.spec.vhost_user().map(|backend| backend.mode) {
            None => format!("its device is {}", self.spec.device_name()),
            Some(VnicMode::Listen) => format!("connect its guest to {path}"),
            Some(VnicMode::Connect) => format!("its guest has to listen at {path}"),
        }
    }

    /// Notes that the switch has the port; a guest whose session is taken over stays attached.
    pub(super) fn confirm(&mut self) {
        if matches!(self.life, AttachState::Attached { .. }) {
            return;
        }
        self.life = AttachState::Idle;
        if let Role::Connect { next, .. } | Role::Device { next, .. } = &mut self.role {
            *next = Instant::now();
        }
    }

    /// Notes the end of the switch process, and so of the connection.
    pub(super) fn down(&mut self) {
        self.life = AttachState::Down;
        if let Role::Listen { parked, .. } = &mut self.role {
            *parked = None;
        }
    }

    /// Notes that the switch got a connection.
    pub(super) fn attached(&mut self, number: u64, now: Instant) {
        self.life = AttachState::Attached { number, since: now };
        self.refusal = None;
    }

    /// Notes a refused request of the front end. Without a front end it belongs to an earlier port of this name.
    pub(super) fn refused(&mut self, why: String) {
        if matches!(self.life, AttachState::Attached { .. }) {
            self.refusal = Some(why);
        }
    }

    /// Facts for the diagnosis of a guest without a network.
    pub(super) fn connection(&self) -> ConnectionFacts {
        let millis = |since: Instant| since.elapsed().as_millis() as u64;
        let attached_ms = match self.life {
            AttachState::Attached { since, .. } => Some(millis(since)),
            AttachState::Down | AttachState::Idle => None,
        };
        let waits = match &self.role {
            Role::Connect { said, .. } if attached_ms.is_none() => *said,
            _ => None,
        };
        ConnectionFacts {
            attached_ms,
            peer_pid: self.peer_pid.filter(|_| attached_ms.is_some()),
            waits_because: waits.map(|error| error.to_string()),
            waits_errno: waits.map(Errno::raw_os_error),
            last_end: self
                .last_end
                .as_ref()
                .map(|(why, when)| Ended { why: why.clone(), ago_ms: millis(*when) }),
            refused_guests: self.refused_guests,
            refused_ago_ms: self.last_refused.map(millis),
        }
    }

    /// Notes the process at the other end of a connection.
    pub(super) fn meet(&mut self, fd: &ForeignFd) {
        self.peer_pid = lasthop_engine::peer_process(fd.as_fd());
        self.peer_user = lasthop_engine::peer_user(fd.as_fd());
    }

    /// The process at the other end and its user, if the system tells.
    pub(super) fn front_end(&self) -> Option<FrontEndProcess> {
        Some(FrontEndProcess { pid: self.peer_pid?, user: Some(self.peer_user?) })
    }

    /// Notes how a connection ended.
    pub(super) fn end(&mut self, why: &str) {
        self.last_end = Some((why.to_owned(), Instant::now()));
    }

    /// The last refused request of the present front end, or else of the last one.
    pub(super) fn last_refusal(&self) -> Option<&str> {
        self.refusal.as_deref()
    }

    /// Notes the end of a connection. Returns false if it was not the current one.
    pub(super) fn detached(&mut self, attachment: u64, now: Instant) -> bool {
        let AttachState::Attached { number, since } = self.life else { return false };
        if number != attachment {
            return false;
        }
        self.life = AttachState::Idle;
        match &mut self.role {
            Role::Listen { is_refusal_said, paused_until, pause, .. } => {
                *is_refusal_said = false;
                let pause = pause_after(now.saturating_duration_since(since), pause);
                *paused_until = (*paused_until).max(pause.map(|pause| now + pause));
            }
            // Also pauses here, so that a peer that hangs up at once causes no busy loop.
            Role::Connect { next, pause, .. } => *next = now + pause.take(),
            Role::Device { next, pause, .. } => {
                let pause = pause_after(now.saturating_duration_since(since), pause);
                *next = now + pause.unwrap_or_default();
            }
        }
        true
    }

    /// When [`Self::advance`] has work without an event.
    pub(super) fn due(&self) -> Option<Instant> {
        match &self.role {
            Role::Listen { parked, paused_until, .. } => {
                let parked = parked.as_ref().map(|(_, until)| *until);
                match self.life {
                    AttachState::Down => None,
                    // A held port opens after the pause.
                    AttachState::Idle => *paused_until,
                    AttachState::Attached { .. } => earlier(parked, *paused_until),
                }
            }
            Role::Connect { next, .. } => (self.life == AttachState::Idle).then_some(*next),
            Role::Device { .. } => None,
        }
    }

    /// When a device port has work without an event, if there is a driver process.
    pub(super) fn device_due(&self) -> Option<Instant> {
        let Role::Device { device, next, .. } = &self.role else { return None };
        match self.life {
            AttachState::Down => None,
            AttachState::Idle => {
                let joins = device.has_unsent() || device.is_driven;
                earlier(device.due(), joins.then_some(*next))
            }
            AttachState::Attached { .. } => earlier(device.due(), device.stale()),
        }
    }

    /// Notes a failed connection: the next attempt comes after a pause.
    pub(super) fn postpone(&mut self, now: Instant) {
        if let Role::Device { next, pause, .. } = &mut self.role {
            *next = now + pause.take();
        }
    }

    /// Takes all possible steps; returns a connection for the switch if one results.
    pub(super) fn advance(&mut self, now: Instant) -> Option<ForeignFd> {
        match (self.life, &self.role) {
            (AttachState::Down, _) => None,
            (_, Role::Listen { .. }) => self.accept(now),
            (AttachState::Idle, Role::Connect { next, .. }) if *next <= now => self.connect(now),
            _ => None,
        }
    }

    fn accept(&mut self, now: Instant) -> Option<ForeignFd> {
        let is_idle = self.life == AttachState::Idle;
        let in_arrears = is_idle.then(|| self.in_arrears(now)).flatten();
        let Role::Listen { socket, parked, paused_until, is_refusal_said, .. } = &mut self.role else {
            return None;
        };
        if let Some(in_arrears) = in_arrears {
            hold(&self.spec, in_arrears, paused_until, now);
        }
        paused_until.take_if(|until| *until <= now);
        if is_idle && paused_until.is_some() {
            return None;
        }
        if let Some((fd, until)) = parked.take() {
            match (is_idle, until > now) {
                (true, _) => return Some(fd),
                (false, true) => *parked = Some((fd, until)),
                (false, false) => {
                    hang_up(&fd);
                    self.refused_guests += 1;
                    self.last_refused = Some(now);
                    say_refused(&self.spec, is_refusal_said);
                }
            }
        }
        if paused_until.is_some() {
            return None;
        }
        match socket.accept(&self.arrears.begin()) {
            Ok(None) => None,
            Ok(Some(socket)) if is_idle => Some(socket),
            Ok(Some(socket)) if parked.is_none() => {
                *parked = Some((socket, now + PARK_TIME));
                None
            }
            Ok(Some(socket)) => {
                hang_up(&socket);
                self.refused_guests += 1;
                self.last_refused = Some(now);
                say_refused(&self.spec, is_refusal_said);
                None
            }
            Err(error) => {
                warn!(limited = true, port:% = self.spec.common.name; "port {}: cannot accept a connection: {error}; trying again in a second",
                    self.spec.common.name);
                *paused_until = Some(now + ACCEPT_PAUSE);
                None
            }
        }
    }

    /// Why no front end is accepted, if pending closes of earlier ones are the reason.
    pub(super) fn in_arrears(&mut self, now: Instant) -> Option<HoldReason> {
        self.arrears.held(now).or_else(|| self.arrears.held_for_costs(now))
    }

    fn connect(&mut self, now: Instant) -> Option<ForeignFd> {
        let in_arrears = self.in_arrears(now);
        let Role::Connect { next, pause, said } = &mut self.role else { return None };
        if let Some(held) = in_arrears {
            let mut until = None;
            hold(&self.spec, held, &mut until, now);
            *next = until.unwrap_or(now);
            return None;
        }
        match connect_to(&self.path) {
            Ok(fd) => {
                *said = None;
                pause.reset();
                Some(ForeignFd::new(fd, &self.arrears.begin()))
            }
            Err(error) => {
                if *said != Some(error) {
                    let path = self.path.display();
                    info!(limited = true, port:% = self.spec.common.name; "port {}: waits until a guest listens at {path} ({error})",
                        self.spec.common.name);
                    *said = Some(error);
                }
                *next = now + pause.take();
                None
            }
        }
    }
}

/// The pause before the next guest, if the last one's attachment of `length` was too short.
fn pause_after(length: Duration, pause: &mut Pause) -> Option<Duration> {
    if length >= LONG {
        pause.reset();
    }
    (length < SHORT).then(|| pause.take())
}

/// Ends a connection now; its descriptor is closed later.
fn hang_up(socket: &ForeignFd) {
    let _ = shutdown(socket, Shutdown::Both);
}

/// Keeps the port closed because of `held`.
fn hold(spec: &PortSpec, held: HoldReason, paused_until: &mut Option<Instant>, now: Instant) {
    let pause = match held {
        HoldReason::For(left) | HoldReason::Costly(left) => left,
        HoldReason::Stuck(_) => STUCK_PAUSE,
    };
    if paused_until.is_none_or(|until| until <= now) {
        warn!(limited = true, port:% = spec.common.name; "port {}: {held}", spec.common.name);
    }
    *paused_until = (*paused_until).max(Some(now + pause));
}

/// Logs the first refusal since a guest attached.
fn say_refused(spec: &PortSpec, is_said: &mut bool) {
    if !*is_said {
        warn!(limited = true, port:% = spec.common.name; "port {}: refused a second guest, it has one already; give each guest a port of its own",
            spec.common.name);
        *is_said = true;
    }
}

#[cfg(test)]
mod tests {
    use std::io::{ErrorKind, Read};
    use std::os::unix::net::{UnixListener, UnixStream};

    use super::*;

    fn port(options: &str, dir: &Path) -> Port {
        let mut port = Port::open(lasthop_api::port::vnic(options).expect("a vnic"), dir).expect("a port");
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
        port.attached(1, now);
        let _second = UnixStream::connect(&port.path).expect("connected");
        assert!(port.advance(now).is_none());
        assert_eq!(port.due(), Some(now + PARK_TIME));
        assert!(!port.detached(7, now + SHORT), "not the current one");
        assert!(port.detached(1, now + SHORT));
        assert!(port.advance(now + SHORT).is_some());
        assert_eq!(port.due(), None);
    }

    #[test]
    fn a_second_guest_is_refused_after_a_while_and_a_third_at_once() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut port = port("a", dir.path());
        let now = Instant::now();
        port.attached(1, now);
        let mut second = UnixStream::connect(&port.path).expect("connected");
        assert!(port.advance(now).is_none());
        let mut third = UnixStream::connect(&port.path).expect("connected");
        assert!(port.advance(now).is_none());
        assert!(is_closed(&mut third) && !is_closed(&mut second));
        assert!(port.advance(now + PARK_TIME).is_none());
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
        port.attached(1, now);
        assert_eq!(port.due(), None);
        assert!(port.detached(1, now));
        assert_eq!(port.due(), Some(now + RETRY_MIN));
    }

    /// Attaches a guest, and detaches it after `length`.
    fn visit(port: &mut Port, now: Instant, length: Duration) -> Instant {
        let _guest = UnixStream::connect(&port.path).expect("connected");
        assert!(port.may_accept() && port.advance(now).is_some());
        port.attached(1, now);
        assert!(port.detached(1, now + length));
        now + length
    }

    #[test]
    fn guests_that_hang_up_at_once_make_growing_pauses() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut port = port("a", dir.path());
        let mut now = Instant::now();
        for pause_ms in [100, 200, 400, 800, 1000, 1000] {
            now = visit(&mut port, now, Duration::ZERO);
            let _early = UnixStream::connect(&port.path).expect("connected");
            assert!(!port.may_accept() && port.advance(now).is_none());
            now += Duration::from_millis(pause_ms);
            assert_eq!(port.due(), Some(now));
            assert!(port.advance(now).is_some(), "let in when the pause is over");
            assert_eq!(port.due(), None);
        }
        now = visit(&mut port, now, SHORT);
        assert_eq!(port.due(), None, "long enough for no pause");
        now = visit(&mut port, now, LONG);
        now = visit(&mut port, now, Duration::ZERO);
        assert_eq!(port.due(), Some(now + RETRY_MIN), "long enough for short pauses");
    }

    #[test]
    fn a_parked_guest_waits_for_the_end_of_the_pause() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut port = port("a", dir.path());
        let now = Instant::now();
        port.attached(1, now);
        let mut parked = UnixStream::connect(&port.path).expect("connected");
        assert!(port.advance(now).is_none());
        assert!(port.detached(1, now));
        assert!(port.advance(now).is_none() && !is_closed(&mut parked));
        assert_eq!(port.due(), Some(now + RETRY_MIN));
        assert!(port.advance(now + RETRY_MIN).is_some());
    }

    #[test]
    fn a_refusal_is_kept_until_the_next_guest() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut port = port("a", dir.path());
        let now = Instant::now();
        port.refused("of another port".to_owned());
        assert_eq!(port.last_refusal(), None);
        port.attached(1, now);
        port.refused("first".to_owned());
        port.refused("second".to_owned());
        assert!(port.detached(1, now));
        assert_eq!(port.last_refusal(), Some("second"));
        port.attached(2, now);
        assert_eq!(port.last_refusal(), None);
    }
}
