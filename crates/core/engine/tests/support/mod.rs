//! An engine with guests in user space, attached over real vhost-user sessions.
#![allow(dead_code, unreachable_pub)] // each test file uses its own part of this module

use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use lasthop_engine::{
    Engine, EngineSettings, Gathering, HelperSettings, PortConfig, PortStats, SchedulerView, WorkerStats,
};
use lasthop_frontend::{Guest, GuestOptions};
use lasthop_module_api::{Module, PortId};
use lasthop_sched::{
    CpuPlace, CpuState, GuestView, Mode, Modes, Occupant, OffloadCriteria, PlaceCriteria, Policy,
};
use lasthop_vhost::Session;
use lasthop_wire::Offload;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::thread::{CpuSet, sched_setaffinity};

/// Long enough for the slowest machine; nothing is asserted about time.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// Number of workers, and their threads; by default each has its own.
#[derive(Clone, Copy)]
pub struct TestWorkers {
    pub workers: usize,
    pub gathering: Gathering,
}

impl From<usize> for TestWorkers {
    fn from(workers: usize) -> Self {
        Self { workers, gathering: Gathering::Never }
    }
}

pub struct TestSwitch {
    pub engine: Engine,
    sessions: Vec<JoinHandle<String>>,
}

pub fn named(module: &str) -> Arc<dyn Module> {
    lasthop_modules::by_name(module, &lasthop_modules::BridgeSettings::default()).unwrap().into()
}

pub fn config(name: &str) -> PortConfig {
    PortConfig { name: name.into(), ..PortConfig::default() }
}

impl TestSwitch {
    pub fn start(module: &str, crew: impl Into<TestWorkers>) -> Self {
        Self::with(named(module), crew)
    }

    /// Prepares a switch whose workers do not run yet.
    pub fn prepare(module: &str, crew: impl Into<TestWorkers>) -> Self {
        let TestWorkers { workers, gathering } = crew.into();
        let settings = EngineSettings { workers, gathering, ..EngineSettings::default() };
        Self { engine: Engine::prepare(named(module), &settings).unwrap(), sessions: Vec::new() }
    }

    /// Starts a switch with a helper on each of the first two CPUs, for frames from `bytes_min` bytes on. `view` says where
    /// they may work.
    pub fn with_helpers(
        module: &str,
        crew: impl Into<TestWorkers>,
        bytes_min: u32,
        view: Arc<dyn SchedulerView>,
    ) -> Self {
        let TestWorkers { workers, gathering } = crew.into();
        let helpers = HelperSettings {
            cpus: vec![0, 1],
            offload: OffloadCriteria { packet_bytes_min: bytes_min, ..OffloadCriteria::default() },
            place: PlaceCriteria { whole_group: false, ..PlaceCriteria::default() },
            signals_each_frame: true,
        };
        let settings = EngineSettings { workers, gathering, helpers, ..EngineSettings::default() };
        let engine = Engine::start(named(module), &settings).unwrap();
        let mut modes = Modes::default();
        modes.set(Policy::Offload, Mode::On);
        engine.set_scheduler_view(Some(view), modes).unwrap();
        Self { engine, sessions: Vec::new() }
    }

    /// Frames that were copied in turns by workers and helpers: by workers, and by helpers.
    pub fn shared_frames(&self) -> (u64, u64) {
        let (helpers, workers): (Vec<_>, Vec<_>) =
            self.engine.stats().unwrap().workers.into_iter().partition(|worker| worker.helper_cpu.is_some());
        let sum = |all: Vec<WorkerStats>| all.iter().map(|worker| worker.handoffs.shared).sum();
        (sum(workers), sum(helpers))
    }

    pub fn with(module: Arc<dyn Module>, crew: impl Into<TestWorkers>) -> Self {
        let TestWorkers { workers, gathering } = crew.into();
        Self::with_settings(module, &EngineSettings { workers, gathering, ..EngineSettings::default() })
    }

    pub fn with_settings(module: Arc<dyn Module>, settings: &EngineSettings) -> Self {
        Self { engine: Engine::start(module, settings).unwrap(), sessions: Vec::new() }
    }

    /// Serves a session on `port` in a thread of its own, and returns the front end's socket.
    pub fn serve(&mut self, port: PortId) -> UnixStream {
        let (front, back) = UnixStream::pair().unwrap();
        let mut session = Session::new(back.into(), self.engine.device(port).unwrap()).unwrap();
        self.sessions.push(std::thread::spawn(move || {
            loop {
                let wanted =
                    if session.wants_write() { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
                poll(&mut [PollFd::new(&session.fd(), wanted)], None).unwrap();
                if let Err(end) = session.ready() {
                    return end.to_string();
                }
            }
        }));
        front
    }

    pub fn attach(&mut self, config: PortConfig, options: GuestOptions) -> (PortId, Guest) {
        let port = self.engine.add_port(config).unwrap();
        let guest = Guest::over(self.serve(port), options).unwrap();
        (port, guest)
    }

    /// Waits until the sessions have ended, which they do when their guests are gone.
    pub fn join_sessions(&mut self) -> Vec<String> {
        self.sessions.drain(..).map(|session| session.join().unwrap()).collect()
    }

    pub fn port(&self, port: PortId) -> PortStats {
        self.engine.stats().unwrap().ports.into_iter().find(|stats| stats.port == port).unwrap()
    }

    pub fn assert_conserved(&self) {
        let stats = self.engine.stats().unwrap();
        for port in &stats.ports {
            assert!(port.counters.is_conserved(), "{port:?}");
        }
        let forwarded: u64 = stats.ports.iter().map(|port| port.counters.forwarded).sum();
        let delivered: u64 = stats.ports.iter().map(|port| port.counters.tx_packets).sum();
        assert_eq!(forwarded, delivered);
    }
}

/// A view in which all CPUs are idle.
#[derive(Debug)]
pub struct IdleView {
    places: [CpuPlace; 2],
}

impl Default for IdleView {
    fn default() -> Self {
        Self { places: [0, 1].map(|group| CpuPlace { group, ..CpuPlace::default() }) }
    }
}

impl SchedulerView for IdleView {
    fn guest(&self, _: PortId, _: u16) -> Option<GuestView> {
        None
    }

    fn cpu(&self, _: u16) -> Option<CpuState> {
        Some(CpuState { occupant: Occupant::Idle { for_ns: 0 }, waiting: 0 })
    }

    fn places(&self) -> &[CpuPlace] {
        &self.places
    }
}

/// An Ethernet frame from guest `from` to guest `to` with a number in it.
pub fn frame(to: u8, from: u8, number: u32, len: usize) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, to, 2, 0, 0, 0, 0, from, 0x88, 0xb5];
    frame.extend(number.to_be_bytes());
    frame.extend((18..len).map(|at| (at as u32 * 11 + number) as u8));
    frame
}

pub fn send(guest: &mut Guest, frame: &[u8]) {
    let until = Instant::now() + PATIENCE;
    while !guest.send(0, frame, Offload::default()).unwrap() {
        guest.flush(0).unwrap();
        guest.reclaim(0).unwrap();
        assert!(Instant::now() < until, "the transmit ring stays full");
        guest.wait_sent(0, Some(Duration::from_millis(100))).unwrap();
    }
    guest.flush(0).unwrap();
}

/// The next frame that arrives.
pub fn receive(guest: &mut Guest) -> Vec<u8> {
    let until = Instant::now() + PATIENCE;
    let mut bytes = Vec::new();
    while guest.recv(0, &mut bytes).unwrap().is_none() {
        assert!(Instant::now() < until, "no frame arrives");
        guest.wait(Some(Duration::from_millis(500))).unwrap();
    }
    bytes
}

/// Waits for a condition that the switch brings about.
pub fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < until, "never: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A thread that computes until it is dropped.
pub struct Hog {
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Hog {
    /// On this CPU only, or on any.
    pub fn on(cpu: Option<usize>) -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let end = Arc::clone(&is_over);
        let thread = std::thread::spawn(move || {
            if let Some(cpu) = cpu {
                let mut cpus = CpuSet::new();
                cpus.set(cpu);
                sched_setaffinity(None, &cpus).unwrap();
            }
            while !end.load(Ordering::Relaxed) {
                std::hint::spin_loop();
            }
        });
        Self { is_over, thread: Some(thread) }
    }
}

impl Drop for Hog {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        self.thread.take().map(JoinHandle::join);
    }
}
