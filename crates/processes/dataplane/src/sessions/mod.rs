//! The vhost-user sessions, one for the guest of each port, with a thread of its own: messages, memory or descriptors
//! that take a session long delay no other guest, client or upcall.

mod allowance;
mod thread;

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError, Weak};
use std::time::{Duration, Instant};

use lasthop_engine::PortDevice;
use lasthop_foreign::{ForeignFd, Origin, PendingCloses};
use lasthop_vhost::{Device, Session, SessionMemory};
use rustix::event::{EventfdFlags, eventfd};

use lasthop_api::orders::Report;
use lasthop_runtime::fault::Fault;
use lasthop_runtime::hangs::HangWatch;

use super::reports::Reports;
use allowance::Allowance;
use thread::{SessionThread, ThreadParts};

/// Bytes of a thread's stack. It touches some 20 KiB of them, and only those take memory.
const STACK_BYTES: usize = 512 << 10;
/// How long the main thread waits for the end of a session whose port is removed. A session that takes longer ends
/// later; its port's number is not reused before.
const END_PATIENCE: Duration = Duration::from_millis(100);
/// How long it waits for all sessions when the process ends.
const LAST_PATIENCE: Duration = Duration::from_secs(1);
/// How long an inspection waits for sessions that are being served.
const LOOK_PATIENCE: Duration = Duration::from_millis(20);
/// Pause between two attempts meanwhile.
const LOOK_PAUSE: Duration = Duration::from_millis(1);

/// Sessions by the number of their attachment.
pub(super) struct Sessions {
    guests: BTreeMap<u64, Guest>,
    /// Threads that start when packets pass: guests need not wait for that.
    waiting: Vec<SessionThread>,
    reports: Arc<Reports>,
    stage: Arc<SharedStage>,
    watch: Arc<HangWatch>,
    /// By port: front ends' descriptors that are not closed yet.
    arrears: BTreeMap<String, PendingCloses>,
    /// By port: the rest of front ends' allowances. A front end that reconnects gets no new one.
    allowances: BTreeMap<String, Arc<Mutex<Allowance>>>,
}

/// A new connection with its port and memory.
pub(super) struct Arrival {
    /// Name of the port.
    pub(super) name: String,
    pub(super) attachment: u64,
    pub(super) socket: ForeignFd,
    /// Memory from which a successor may continue.
    pub(super) memory: Option<ForeignFd>,
}

/// A session as the main thread knows it.
struct Guest {
    port: String,
    /// Owned by its thread, and freed when that ends.
    shared: Weak<Shared>,
    /// Disconnected when the session has ended and is freed.
    over: Receiver<Infallible>,
}

/// State shared by a session's thread and the main thread.
struct Shared {
    /// The session; `None` once it has ended. Its thread holds the lock while it serves; the main thread takes the lock
    /// only if it is free.
    session: Mutex<Option<Session<PortDevice>>>,
    /// Written when the main thread or a worker wants something.
    doorbell: Arc<OwnedFd>,
    is_link_up: AtomicBool,
    is_unwanted: AtomicBool,
    /// Whether the session was at rest after its last turn.
    is_resting: AtomicBool,
    wants_write: AtomicBool,
    hears_of_link: AtomicBool,
    allowance: Arc<Mutex<Allowance>>,
}

/// Whether sessions are served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    Serving,
    /// Only sessions in the middle of something are served, until they are at rest.
    Quiescing,
    /// No session is served.
    AtRest,
}

/// The stage of all sessions.
struct SharedStage(AtomicU8);

impl SharedStage {
    fn get(&self) -> Stage {
        match self.0.load(Ordering::SeqCst) {
            0 => Stage::Serving,
            1 => Stage::Quiescing,
            _ => Stage::AtRest,
        }
    }
}

impl Sessions {
    pub(super) fn new(reports: Arc<Reports>, watch: Arc<HangWatch>) -> Self {
        Self {
            guests: BTreeMap::new(),
            waiting: Vec::new(),
            reports,
            stage: Arc::new(SharedStage(AtomicU8::new(0))),
            watch,
            arrears: BTreeMap::new(),
            allowances: BTreeMap::new(),
        }
    }

    /// The origin of the next connection of a port, unless the port is held.
    pub(super) fn admit(&mut self, port: &str) -> Result<Origin, Fault> {
        let now = Instant::now();
        if let Some(held) = self.arrears(port).held(now) {
            return Err(Fault::refused(held.to_string()));
        }
        let spent = self.arrears(port).take_spent();
        locked(&self.allowance(port)).charge(now, spent, 0);
        Ok(self.arrears(port).begin())
    }

    /// Front ends' descriptors of a port that are not closed yet.
    pub(super) fn arrears(&mut self, port: &str) -> &mut PendingCloses {
        self.arrears.entry(port.to_owned()).or_insert_with(|| PendingCloses::new(&format!("port {port}")))
    }

    /// Begins to serve a connection.
    pub(super) fn begin(&mut self, arrival: Arrival, device: PortDevice) -> Result<(), Fault> {
        let Arrival { name, attachment, socket, memory } = arrival;
        let is_link_up = device.is_link_up();
        let rings = device.offer().rings();
        // Without it only this guest has to reconnect if this process dies.
        let kept = memory.and_then(|memory| SessionMemory::map(memory.as_fd(), rings).ok());
        let session = match kept {
            Some(kept) => Session::with_memory(socket, device, kept),
            None => Session::new(socket, device),
        };
        let session = session.map_err(|error| Fault::internal("serve the connection", error))?;
        self.enter(name, attachment, session, is_link_up)
    }

    /// Adds a session; its thread serves it once started.
    pub(super) fn enter(
        &mut self,
        port: String,
        attachment: u64,
        mut session: Session<PortDevice>,
        is_link_up: bool,
    ) -> Result<(), Fault> {
        let doorbell = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)
            .map_err(|error| Fault::internal("create an eventfd", error))?;
        let doorbell = Arc::new(doorbell);
        session.device().watch_stops(Arc::clone(&doorbell));
        let (socket, (end, over)) = (session.socket(), channel());
        let allowance = self.allowance(&port);
        self.guests.retain(|_, guest| !guest.is_over() || guest.port != port);
        let shared = Arc::new(Shared {
            doorbell,
            is_link_up: AtomicBool::new(is_link_up),
            is_unwanted: AtomicBool::new(false),
            is_resting: AtomicBool::new(session.is_resting()),
            wants_write: AtomicBool::new(false),
            hears_of_link: AtomicBool::new(session.hears_of_link()),
            session: Mutex::new(Some(session)),
            allowance,
        });
        let turns = self.watch.watch(Some(port.clone()));
        let (reports, stage) = (Arc::clone(&self.reports), Arc::clone(&self.stage));
        let company = ThreadParts { reports, stage, turns, over: end };
        let guest = Guest { port: port.clone(), shared: Arc::downgrade(&shared), over };
        self.waiting.push(SessionThread::new((port, attachment), shared, socket, company));
        self.guests.insert(attachment, guest);
        Ok(())
    }

    /// The allowance of a port's front ends.
    fn allowance(&mut self, port: &str) -> Arc<Mutex<Allowance>> {
        let fresh = || Arc::new(Mutex::new(Allowance::new(Instant::now())));
        Arc::clone(self.allowances.entry(port.to_owned()).or_insert_with(fresh))
    }

    /// Starts threads of sessions that have none.
    pub(super) fn start_threads(&mut self) {
        for thread in std::mem::take(&mut self.waiting) {
            let (name, attachment, shared) =
                (thread.port.clone(), thread.attachment, Arc::clone(&thread.shared));
            // The kernel uses the first 15 bytes.
            let builder = std::thread::Builder::new().name(format!("vnic {name}")).stack_size(STACK_BYTES);
            if let Err(error) = builder.spawn(move || thread.run()) {
                let why = format!("its session got no thread: {error}; raise TasksMax= or ulimit -u");
                drop(shared.session().take());
                self.reports.report_of_session(&Report::Detached { name, attachment, why });
            }
        }
    }

    /// Sets whether sessions are served. Sessions that are being served finish their turn.
    pub(super) fn set_stage(&mut self, stage: Stage) {
        self.stage.0.store(stage as u8, Ordering::SeqCst);
        if stage == Stage::Serving {
            self.guests.values().filter_map(|guest| guest.shared.upgrade()).for_each(|shared| shared.ring());
        }
    }

    /// Ports of sessions that a successor could not continue now.
    ///
    /// Waits until `until` for turns that have not ended.
    pub(super) fn restless(&self, until: Instant) -> impl Iterator<Item = &str> {
        self.guests.values().filter(move |guest| !guest.is_resting(until)).map(|guest| guest.port.as_str())
    }

    /// Inspects the session of each port that has one. Skips a session that is being served for long.
    pub(super) fn look<R>(&self, look: impl Fn(&str, &Session<PortDevice>) -> R) -> Vec<R> {
        let until = Instant::now() + LOOK_PATIENCE;
        let seen = self.guests.values().filter_map(|guest| {
            let shared = guest.shared.upgrade()?;
            let session = shared.session_until(until)?;
            Some(look(&guest.port, session.as_ref()?))
        });
        seen.collect()
    }

    /// Tells the guest of a port that its link went up or down; returns whether the guest learns of it. `None` if the
    /// link has not changed, or there is no guest.
    pub(super) fn set_link(&self, port: &str, up: bool) -> Option<bool> {
        let of_port = |guest: &&Guest| guest.port == port && !guest.is_over();
        let shared = self.guests.values().rev().find(of_port)?.shared.upgrade()?;
        if shared.is_link_up.swap(up, Ordering::SeqCst) == up {
            return None;
        }
        shared.ring();
        Some(shared.hears_of_link.load(Ordering::SeqCst))
    }

    /// Hangs up on the guest of a port that is removed.
    pub(super) fn end_of_port(&mut self, port: &str) {
        self.end(|guest| guest.port == port, END_PATIENCE);
        self.guests.retain(|_, guest| guest.port != port);
        self.arrears.remove(port);
        self.allowances.remove(port);
    }

    /// Hangs up on all guests.
    pub(super) fn end_all(&mut self) {
        self.end(|_| true, LAST_PATIENCE);
    }

    fn end(&mut self, is_to_end: impl Fn(&Guest) -> bool, patience: Duration) {
        self.start_threads();
        let ending: Vec<&Guest> = self.guests.values().filter(|guest| is_to_end(guest)).collect();
        for shared in ending.iter().filter_map(|guest| guest.shared.upgrade()) {
            shared.is_unwanted.store(true, Ordering::SeqCst);
            shared.ring();
        }
        let until = Instant::now() + patience;
        ending.iter().for_each(|guest| guest.await_end(until));
    }
}

impl Guest {
    fn is_over(&self) -> bool {
        self.over.try_recv() == Err(TryRecvError::Disconnected)
    }

    fn await_end(&self, until: Instant) {
        while self.over.recv_timeout(until.saturating_duration_since(Instant::now()))
            != Err(RecvTimeoutError::Disconnected)
            && Instant::now() < until
        {}
    }

    /// False if the session is still served at `until`, and after its end until the supervisor knows.
    fn is_resting(&self, until: Instant) -> bool {
        let Some(shared) = self.shared.upgrade() else { return true };
        let session = shared.session_until(until);
        session.is_some_and(|session| session.as_ref().is_some_and(Session::is_resting))
    }
}

fn locked(allowance: &Mutex<Allowance>) -> MutexGuard<'_, Allowance> {
    allowance.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    fn session(&self) -> MutexGuard<'_, Option<Session<PortDevice>>> {
        self.session.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The session, unless it is being served.
    fn try_session(&self) -> Option<MutexGuard<'_, Option<Session<PortDevice>>>> {
        match self.session.try_lock() {
            Ok(session) => Some(session),
            Err(TryLockError::Poisoned(session)) => Some(session.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    fn session_until(&self, until: Instant) -> Option<MutexGuard<'_, Option<Session<PortDevice>>>> {
        loop {
            let session = self.try_session();
            if session.is_some() || Instant::now() >= until {
                return session;
            }
            std::thread::sleep(LOOK_PAUSE);
        }
    }

    fn allowance(&self) -> MutexGuard<'_, Allowance> {
        locked(&self.allowance)
    }

    /// Publishes the session's state.
    fn publish(&self, session: &Session<PortDevice>) {
        self.is_resting.store(session.is_resting(), Ordering::SeqCst);
        self.wants_write.store(session.wants_write(), Ordering::SeqCst);
        self.hears_of_link.store(session.hears_of_link(), Ordering::SeqCst);
    }

    /// Wakes the session's thread.
    fn ring(&self) {
        // A non-blocking eventfd of ours: the write only fails if it is readable already.
        let _ = rustix::io::write(&self.doorbell, &1_u64.to_ne_bytes());
    }

    fn clear_doorbell(&self) {
        let _ = rustix::io::read(&self.doorbell, &mut [0; 8]);
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use lasthop_engine::{Engine, EngineSettings, PortConfig};
    use lasthop_frontend::{Guest, GuestOptions};

    use super::*;

    #[test]
    fn the_end_of_a_session_is_charged_to_its_port() {
        let module = lasthop_modules::by_name("dummy", &lasthop_modules::BridgeSettings::default());
        let engine = Engine::start(module.expect("a module").into(), &EngineSettings::default());
        let engine = engine.expect("an engine");
        let port = engine.add_port(PortConfig { queue_pairs: 8, ..PortConfig::default() }).expect("a port");
        let (supervisor, channel) = UnixStream::pair().expect("sockets");
        let reports = Arc::new(Reports::new(channel.as_fd()).expect("a channel"));
        let mut sessions = Sessions::new(reports, HangWatch::start("a test"));
        let start = Instant::now();
        let (front_end, socket) = UnixStream::pair().expect("sockets");
        let arrival = Arrival { name: "one".to_owned(), attachment: 1, socket: socket.into(), memory: None };
        sessions.begin(arrival, engine.device(port).expect("free")).expect("served");
        sessions.start_threads();
        let options = GuestOptions { queue_pairs: 8, ..GuestOptions::default() };
        let mut guest = Guest::over(front_end, options).expect("attached");
        // The second answer comes when all turns except its own are charged.
        (0..2).for_each(|_| _ = guest.front().get_features().expect("an answer"));
        let taken = |sessions: &mut Sessions| locked(&sessions.allowance("one")).taken();
        let before = taken(&mut sessions);
        drop(guest);
        sessions.guests[&1].await_end(Instant::now() + Duration::from_secs(60));
        let after = taken(&mut sessions);
        // Sixteen rings stop. Meanwhile a tenth of the time is given back.
        let stops = Duration::from_micros(16 * 500);
        assert!(after + start.elapsed() / 10 >= before + stops, "{before:?}, {after:?}");
        drop(supervisor);
    }
}
