//! Worker threads around the fabric: when they work, sleep and wake. Only this crate knows clocks and CPUs.
//!
//! **Purpose.** [`Engine`] runs the switch's workers and lets the control side add ports, attach guests ([`PortDevice`]
//! is the back end of a vhost-user session) and read counters.
//!
//! **Contract.** Control calls are messages to the workers and are answered within [`REPLY_TIMEOUT`] or fail, naming
//! the worker that did not answer. An idle worker makes no system call and visits no ring; an idle ring is never
//! visited. Workers wait neither for guests nor for each other, with two exceptions. To stop a ring, its home waits
//! until other workers have released its chains. A front end that makes its call descriptor blocking and fills it can
//! block one worker until the watchdog interrupts it, usually within 100 ms; then its port is stopped
//! ([`PortState::Stopped`]).
//!
//! **Not checked.** That kick and call descriptors are eventfds; the session checks that first.
//!
//! **Threading.** Each worker owns a fabric of one pool; a queue pair has a home among them. Each worker has a thread;
//! the first one serves all workers while they have little to do. The watchdog thread sleeps unless guests are
//! signalled. A change is posted to every worker as a task; once all have answered, the old state is unused (grace
//! period). Any number of threads may use the control side; changes of one port are serialized. Before
//! [`Engine::begin`] no thread serves a worker, and the control side, one thread then, runs tasks itself.
//!
//! ```text
//!            kick                     work                      nothing for the hysteresis
//!   asleep -------> active: visit, visit, ... -------> arm kicks, fence, look again --nothing--> asleep
//!     ^  ^                 ^                                     | something
//!     |  mailbox           +-------------------------------------+
//!     |  +-- another worker returned a packet
//!     +-- earliest deadline of a packet that waits for receive buffers
//! ```
//!
//! # Examples
//!
//! ```
//! use std::sync::Arc;
//!
//! use lasthop_engine::{Engine, EngineSettings, PortConfig};
//! use lasthop_modules::Dummy;
//!
//! let engine = Engine::start(Arc::new(Dummy::default()), &EngineSettings::default()).unwrap();
//! let port = engine.add_port(PortConfig { name: "vm1".to_owned(), ..PortConfig::default() }).unwrap();
//! // A session with the guest's front end drives this device.
//! let _session = engine.device(port).map(|device| {
//!     let (_front_end, socket) = std::os::unix::net::UnixStream::pair().unwrap();
//!     lasthop_vhost::Session::new(std::os::fd::OwnedFd::from(socket).into(), device).unwrap()
//! });
//! // The first port is the switch's own.
//! let stats = engine.stats().unwrap();
//! assert_eq!((stats.ports.len(), stats.ports[1].name.as_str(), stats.workers.len()), (2, "vm1", 1));
//! ```
#![deny(unsafe_code)] // sys.rs alone may have some

mod answers;
mod capture;
mod clock;
mod control;
mod conversation;
mod crowd_watch;
mod decision_trace;
mod delayed_signals;
mod device;
mod empty_kicks;
mod events;
mod faults;
mod features;
mod former_counters;
mod hand_over;
mod helper_finder;
mod helpers;
mod helping;
mod homes;
mod kicks;
mod late_workers;
mod load;
mod mailbox;
mod memory_costs;
mod memory_meter;
mod movement;
mod movement_table;
mod moves;
mod offences;
mod persistent_counters;
mod polled;
mod port;
mod port_changes;
mod port_control;
mod profile;
mod reminders;
mod removals;
mod reports;
mod ring_fds;
mod saved_counters;
mod scheduler_view;
mod scheduling;
mod shrinking_files;
mod signals;
mod slow_calls;
mod stalls;
mod stats;
mod stops;
mod sync;
mod sys;
mod task_queue;
mod threads;
mod timed_rings;
mod transmit_timers;
mod upcalls;
mod view_changes;
mod watchdog;
mod worker;
mod worker_pool;
#[cfg(test)]
mod worker_tests;
mod worker_thread;

pub use capture::{CAPTURES_MAX, Capture};
pub use decision_trace::{CpuReturn, DecisionInputs, Judged, PolicyDecision, Repetitions};
pub use decision_trace::{TRACE_ENTRIES_MAX, TracedDecision};
pub use device::PortDevice;
pub use features::GUEST_FEATURES;
pub use former_counters::{FormerCounters, former_writes};
pub use helpers::HelperSettings;
pub use lasthop_fabric::{
    CaptureDirection, CapturedFrame, PortTicks, RoundTime, StageProfile, StageTicks, UpcallLimits,
    UpcallLine, UpcallRecord, Watch, WorkStage,
};
pub use load::Gathering;
pub use movement_table::{REPORTED_ROWS_MAX, ReportedRow};
pub use port::{PortConfig, PortState};
pub use profile::{EngineProfile, RunningProfile};
pub use saved_counters::{NAMES_BYTES, PORT_COUNTERS_BYTES, SavedCounters, worker_counts};
pub use scheduler_view::SchedulerView;
pub use scheduling::PolicyCounters;
pub use stats::{EngineStats, PortStats, RingInspection, RingStats, WorkerStats};
pub use sys::{peer_process, peer_user};
pub use upcalls::{InjectedPacket, Injections, Upcalls};

use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use lasthop_fabric::Fabric;
use lasthop_fabric::bounds::WORKERS_MAX;
use lasthop_guestmem::Mapping;
use lasthop_module_api::{
    FdbEntry, FdbMove, Header, Mac, Module, PORTS_MAX, PortId, PortSettings, Reasons, SwitchId, Verdicts, Vid,
};
use thiserror::Error;

use helpers::Helpers;
use late_workers::LateWorkers;
use port::{PortRecord, PortTable};
use port_control::PortControl;
use threads::Threads;
use watchdog::Watchdog;
use worker::Worker;
use worker_pool::WorkerPool;

/// How long a control call waits for a worker: much longer than a visit, also on a machine without idle CPUs, and
/// shorter than the callers' own time limits.
pub const REPLY_TIMEOUT: Duration = Duration::from_secs(4);

/// Pause between two checks whether all packets are finished.
const QUIESCE_POLL: Duration = Duration::from_micros(100);

/// Why the engine refused or failed.
#[derive(Debug, Error)]
pub enum EngineError {
    /// All of `PORTS_MAX` are in use.
    #[error("the switch has {PORTS_MAX} ports already; delete one first")]
    TooManyPorts,
    /// There is no such port.
    #[error("there is no port {0}")]
    NoSuchPort(PortId),
    /// Another guest is attached, or not completely detached yet.
    #[error("port {0} has a guest, which has to detach before another one can attach")]
    Attached(PortId),
    /// The module refused the port.
    #[error("{0}")]
    Refused(String),
    /// The numbered worker did not answer in time.
    #[error("the switch's worker {0} did not answer within {seconds} s; it is stuck or the machine is overloaded", seconds = REPLY_TIMEOUT.as_secs())]
    NoAnswer(usize),
    /// A virtqueue stayed in use although all workers answered.
    #[error("virtqueue {1} of port {0} stays in use; restart the switch")]
    RingBusy(PortId, u16),
    /// A worker did not answer in time when the virtqueue was to be stopped.
    #[error(
        "virtqueue {1} of port {0} was not stopped in time, so its position is not known; restart its guest"
    )]
    Adrift(PortId, u16),
    /// The front end blocked workers too often.
    #[error(
        "its front end {1}, once too often; start it again in {0} s, or delete the vnic and add it again"
    )]
    Held(u64, &'static str),
    /// A session did not finish a change of its port.
    #[error(
        "a session has been changing its port for {seconds} s; a worker is stuck or the machine is overloaded",
        seconds = REPLY_TIMEOUT.as_secs()
    )]
    Changing,
    /// `CAPTURES_MAX` captures are running.
    #[error("{CAPTURES_MAX} captures are running already; end one first")]
    TooManyCaptures,
    /// No ring of the queue pair runs.
    #[error("queue pair {1} of port {0} is not running; start its guest, or choose another queue")]
    NotRunning(PortId, u16),
    /// The rings of the queue pair are being stopped, or continued by another process.
    #[error("queue pair {1} of port {0} is being stopped; move it once it runs again")]
    PairStops(PortId, u16),
    /// The queue pair was moved a moment ago.
    #[error(
        "packets that queue pair {1} of port {0} sent before its last move wait for slow receivers; move it again in a second"
    )]
    StillMoving(PortId, u16),
    /// The control plane has packets of the port, which takes none until the move is tried again.
    #[error("packets of port {0} are with the control plane; move its queue pair {1} again in a millisecond")]
    AwaitsAnswers(PortId, u16),
    /// There is no such queue pair.
    #[error("port {0} has no queue pair {1}; it has {2}, the first is 0")]
    NoSuchPair(PortId, u16, u16),
    /// There is no such worker.
    #[error("there is no worker {0}; the switch has {1}, the first is 0")]
    NoSuchWorker(usize, usize),
    /// Another profile is running.
    #[error("a profile is running already; wait for its end, or end its client")]
    ProfileRuns,
    /// The system refused something at start.
    #[error("cannot {0}: {1}")]
    System(&'static str, std::io::Error),
}

/// How the engine runs.
#[derive(Clone, Debug)]
pub struct EngineSettings {
    /// CPUs that workers may run on; empty: all that the process may use.
    pub cpus: Vec<usize>,
    /// Worker threads, 1 to `WORKERS_MAX`. More than the number of CPUs make the switch slower.
    pub workers: usize,
    /// How long a thread keeps polling after its last packet at most, in microseconds; the time adapts to how often
    /// polling has found packets lately ([`lasthop_ring::AdaptivePoll`]).
    pub hysteresis_us: u32,
    /// Whether threads keep polling beside others that compute on their CPU ([`lasthop_ring::CoreYield`]).
    pub polls_on_any_cpu: bool,
    /// Which thread serves which worker.
    pub gathering: Gathering,
    /// Whether a flow goes to the receive queue of the queue pair from which its guest sends it ([`Fabric::set_flow_key`]).
    pub steers_flows: bool,
    /// Threads that copy large frames on idle CPUs, beside the workers: together `WORKERS_MAX` at most.
    pub helpers: HelperSettings,
}

/// Default of `hysteresis_us`: most guests have answered within it. A sleep and a wake-up together take about a quarter
/// of it.
pub const HYSTERESIS_US_DEFAULT: u32 = 200;

impl Default for EngineSettings {
    fn default() -> Self {
        Self {
            cpus: Vec::new(),
            workers: 1,
            hysteresis_us: HYSTERESIS_US_DEFAULT,
            polls_on_any_cpu: false,
            gathering: Gathering::default(),
            steers_flows: true,
            helpers: HelperSettings::default(),
        }
    }
}

/// A running switch. Dropping it stops its workers.
pub struct Engine {
    module: Arc<dyn Module>,
    pool: Arc<WorkerPool<Worker>>,
    port_control: Arc<PortControl>,
    ports: Arc<Mutex<PortTable>>,
    started: std::time::Instant,
    settings: EngineSettings,
    threads: Threads,
    watchdog: Option<JoinHandle<()>>,
    captures: capture::Captures,
    profile_slot: profile::ProfileSlot,
    late_workers: LateWorkers,
    movement: movement::Movement,
}

impl Engine {
    /// Starts a switch whose packets `module` decides on.
    ///
    /// # Errors
    /// [`EngineError::System`].
    pub fn start(module: Arc<dyn Module>, settings: &EngineSettings) -> Result<Self, EngineError> {
        let mut engine = Self::prepare(module, settings)?;
        engine.begin()?;
        Ok(engine)
    }

    /// Like [`Self::start`], but no packet passes before [`Self::begin`]: until then no thread serves a worker, and the
    /// calling thread must make all calls and runs the workers' tasks itself.
    ///
    /// # Errors
    /// [`EngineError::System`].
    pub fn prepare(module: Arc<dyn Module>, settings: &EngineSettings) -> Result<Self, EngineError> {
        lasthop_guestmem::guard::install().map_err(|error| EngineError::System("handle SIGBUS", error))?;
        let workers = settings.workers.clamp(1, WORKERS_MAX);
        let mut settings = settings.clone();
        settings.helpers.cpus.truncate(WORKERS_MAX - workers);
        let helpers = Arc::new(Helpers::new(workers, &settings.helpers));
        let all = workers + settings.helpers.cpus.len();
        let fabrics = Fabric::for_workers(&module, all).map_err(EngineError::Refused)?;
        let flow_key = RandomState::new().hash_one(std::process::id());
        let pool =
            WorkerPool::new(all, helpers).map_err(|error| EngineError::System("create an eventfd", error))?;
        let (pool, started) = (Arc::new(pool), std::time::Instant::now());
        let watchdog = Watchdog::start(pool.watchdog(), Arc::clone(&pool))
            .map_err(|error| EngineError::System("start the watchdog", error))?;
        let (ports, watchdog, captures) = (Arc::default(), Some(watchdog), capture::Captures::default());
        let threads = Threads::start(workers, &settings.helpers.cpus)?;
        let port_control = Arc::new(PortControl::new(Arc::clone(&pool)));
        let profile_slot = profile::ProfileSlot::default();
        let engine = Self {
            module,
            pool,
            port_control,
            ports,
            started,
            settings,
            threads,
            watchdog,
            captures,
            profile_slot,
            late_workers: LateWorkers::default(),
            movement: movement::Movement::default(),
        };
        for (number, mut fabric) in fabrics.into_iter().enumerate() {
            fabric.set_flow_key(flow_key, engine.settings.steers_flows);
            let worker = Worker::new(fabric, Arc::clone(&engine.pool), started)
                .map_err(|error| EngineError::System("set up a worker", error))?;
            engine.pool.watchdog().watch_me(number);
            engine.pool.mailbox(number).park(worker);
        }
        Ok(engine)
    }

    /// Starts the workers' threads, if they have not started yet.
    ///
    /// # Errors
    /// [`EngineError::System`].
    pub fn begin(&mut self) -> Result<(), EngineError> {
        let workers = self.pool.mailboxes().iter().filter_map(|mailbox| mailbox.take_worker());
        let workers: Vec<Worker> = workers.map(|worker| *worker).collect();
        if workers.is_empty() {
            return Ok(());
        }
        let worker_threads = worker_thread::worker_threads(workers, &self.pool, &self.settings, self.started)
            .map_err(|error| EngineError::System("set up a worker", error))?;
        self.threads.begin(worker_threads);
        Ok(())
    }

    fn table(&self) -> std::sync::MutexGuard<'_, PortTable> {
        self.ports.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a port; guests may attach to it afterwards.
    ///
    /// # Errors
    /// [`EngineError::TooManyPorts`], [`EngineError::Refused`] by the module, [`EngineError::NoAnswer`].
    pub fn add_port(&self, config: PortConfig) -> Result<PortId, EngineError> {
        self.finish_removals()?;
        let port = self.table().claim(config.clone()).ok_or(EngineError::TooManyPorts)?;
        let (pairs, link_up, settings) = (config.queue_pairs, config.link_up, settings(config));
        let added = self
            .pool
            .call_all(move |worker| worker.fabric.add_port(port, pairs))
            .and_then(|_| self.module.port_added(port, &settings).map_err(EngineError::Refused))
            .and_then(|()| if link_up { Ok(()) } else { self.port_control.set_link(port, false) });
        if let Err(error) = added {
            self.forget(port)?;
            return Err(error);
        }
        Ok(port)
    }

    /// Keeps a copy of the counters of `port` in `memory`, of [`PORT_COUNTERS_BYTES`]. Another process may read it
    /// after this one was killed.
    ///
    /// # Errors
    /// [`EngineError::NoAnswer`].
    pub fn keep_counters(&self, port: PortId, memory: &Arc<Mapping>) -> Result<(), EngineError> {
        persistent_counters::write_names(memory);
        let internal = self.late_workers.keep(port, memory);
        let memory = Arc::clone(memory);
        let keep = move |worker: &mut Worker| {
            internal.iter().for_each(|memory| worker.keep_counters(PortId::INTERNAL, memory));
            worker.keep_counters(port, &memory);
        };
        self.pool.call_all(keep).map(drop)
    }

    /// Stops fetching packets from guests. Fetched packets are finished or postponed. Postponed ones are fetched again,
    /// here after [`Self::resume`] or by another process. Waits up to `timeout` for partially delivered packets, which
    /// cannot be postponed.
    ///
    /// # Errors
    /// [`EngineError::NoAnswer`].
    pub fn quiesce(&self, timeout: Duration) -> Result<(), EngineError> {
        let until = std::time::Instant::now() + timeout;
        let left = |worker: &mut Worker| (worker.fabric.under_way(), worker.fabric.unpostponable());
        let sum = |left: Vec<(usize, usize)>| {
            left.into_iter().fold((0, 0), |sum, left| (sum.0 + left.0, sum.1 + left.1))
        };
        let mut under_way = sum(self.pool.call_all(move |worker| {
            worker.set_draining(true);
            left(worker)
        })?);
        while under_way.1 > 0 && std::time::Instant::now() < until {
            std::thread::sleep(QUIESCE_POLL);
            under_way = sum(self.pool.call_all(left)?);
        }
        self.pool.call_all(Worker::quiesce)?;
        if under_way.0 > 0 {
            self.pool.call(0, |worker| worker.withdraw())?;
            // Packets of rings that were moved return to the home that took them; it tells the present one.
            self.pool.call_all(Worker::settle_returns)?;
            self.pool.call_all(Worker::postpone)?;
        }
        Ok(())
    }

    /// Makes sessions wait with changes of ports until [`Self::resume`]. Call it before [`Self::quiesce`] once sessions
    /// have threads of their own.
    ///
    /// # Errors
    /// [`EngineError::Changing`].
    pub fn pause_sessions(&self) -> Result<(), EngineError> {
        if self.port_control.port_changes().pause(REPLY_TIMEOUT) {
            Ok(())
        } else {
            Err(EngineError::Changing)
        }
    }

    /// Continues after [`Self::quiesce`].
    ///
    /// # Errors
    /// [`EngineError::NoAnswer`].
    pub fn resume(&self) -> Result<(), EngineError> {
        self.port_control.port_changes().resume();
        self.pool.call_all(|worker| worker.set_draining(false)).map(drop)
    }

    /// Changes a port while its guest is attached. Its address, VLANs, isolation, limits and link change at once. A new
    /// address, MTU and features reach the next guest when it attaches.
    ///
    /// # Errors
    /// [`EngineError::NoSuchPort`], [`EngineError::Refused`] for other queue pairs or kind, and by the module, which change nothing;
    /// [`EngineError::NoAnswer`].
    pub fn change_port(&self, port: PortId, config: PortConfig) -> Result<(), EngineError> {
        let old = self.table().get(port).map(|record| record.config.clone());
        let old = old.ok_or(EngineError::NoSuchPort(port))?;
        if config.queue_pairs != old.queue_pairs {
            let why = format!("the number of queue pairs of \"{}\" cannot change; add it anew", old.name);
            return Err(EngineError::Refused(why));
        }
        if config.kind != old.kind {
            let why = format!("the kind of \"{}\" cannot change; add it anew", old.name);
            return Err(EngineError::Refused(why));
        }
        self.module.port_changed(port, &settings(config.clone())).map_err(EngineError::Refused)?;
        let link_up = config.link_up;
        if let Some(record) = self.table().get_mut(port) {
            record.config = config;
        }
        let _change = self.port_control.port_changes().control_change(port);
        if link_up != old.link_up { self.port_control.set_link(port, link_up) } else { Ok(()) }
    }

    /// Moves a port, with its guest, to another switch. Packets are dropped meanwhile, for a named reason.
    ///
    /// # Errors
    /// [`EngineError::NoSuchPort`], [`EngineError::NoAnswer`]; [`EngineError::Refused`] by the module, and then the port is back
    /// where it was.
    pub fn move_port(&self, port: PortId, switch: SwitchId) -> Result<(), EngineError> {
        let old = self.table().get(port).map(|record| record.config.clone());
        let old = old.ok_or(EngineError::NoSuchPort(port))?;
        let new = PortConfig { switch, ..old.clone() };
        self.module.port_removed(port);
        // Afterwards no visit uses the port's old switch.
        self.pool.call_all(|_| ())?;
        let added = self.module.port_added(port, &settings(new.clone())).map_err(EngineError::Refused);
        if added.is_err() {
            return self.module.port_added(port, &settings(old)).map_err(EngineError::Refused).and(added);
        }
        if let Some(record) = self.table().get_mut(port) {
            record.config = new;
        }
        Ok(())
    }

    /// Moves queue pair `pair` of a port to worker `worker`, while its guest runs: no packet is lost, repeated or overtaken.
    /// It stays there until its guest detaches. Two moves of a pair within
    /// [`WAITING_NS_MAX`](lasthop_fabric::bounds::WAITING_NS_MAX) may be refused. While the control plane has packets of
    /// the port, the move has to be tried again: by then the port's packets at the old home wait, so that these get through
    /// in a bounded time.
    ///
    /// # Errors
    /// [`EngineError::NoSuchPort`], [`EngineError::NoSuchPair`], [`EngineError::NoSuchWorker`], [`EngineError::NotRunning`],
    /// [`EngineError::PairStops`], [`EngineError::StillMoving`], [`EngineError::AwaitsAnswers`], [`EngineError::NoAnswer`]:
    /// by the old home, and the pair stays; or by the new home, which gets it later.
    pub fn move_pair(&self, port: PortId, pair: u16, worker: usize) -> Result<(), EngineError> {
        let pairs = self.table().get(port).map(|record| record.config.queue_pairs);
        let pairs = pairs.ok_or(EngineError::NoSuchPort(port))?;
        if pair >= pairs {
            return Err(EngineError::NoSuchPair(port, pair, pairs));
        }
        let workers = self.pool.helpers().workers();
        if worker >= workers {
            return Err(EngineError::NoSuchWorker(worker, workers));
        }
        let _change = self.port_control.port_changes().control_change(port);
        self.port_control.move_pair(port, pair, worker)
    }

    /// The ports of a switch, as its module gets them.
    #[must_use]
    pub fn ports_of(&self, switch: SwitchId) -> Vec<(PortId, PortSettings)> {
        let records = self.table().records().into_iter();
        let own = records.filter(|(_, record)| record.config.switch == switch);
        own.map(|(port, record)| (port, settings(record.config))).collect()
    }

    /// The back end for a guest that attaches to `port`; there may be one at a time. Dropping it detaches the guest;
    /// then the next one may attach.
    ///
    /// # Errors
    /// [`EngineError::NoSuchPort`], [`EngineError::Attached`].
    pub fn device(&self, port: PortId) -> Result<PortDevice, EngineError> {
        let config = self.table().attach(port)?;
        Ok(PortDevice::new(port, &config, Arc::clone(&self.port_control), Arc::clone(&self.ports)))
    }

    /// Counters and states of all ports and workers. Each worker reports a consistent state at a time of its own, and
    /// sums are conserved. The persistent counters are written first, so no counter goes back when this process dies. A
    /// worker that does not answer within 50 ms is reported by its persistent counters ([`WorkerStats::age_ms`]), if
    /// there are any.
    ///
    /// # Errors
    /// [`EngineError::NoAnswer`].
    pub fn stats(&self) -> Result<EngineStats, EngineError> {
        let records: Vec<(PortId, PortRecord)> = self.table().records();
        let internal = (PortId::INTERNAL, 0);
        let ports = records.iter().map(|(port, record)| (*port, record.config.queue_pairs));
        let ports: Arc<[(PortId, u16)]> = std::iter::once(internal).chain(ports).collect();
        let shares = self.late_workers.shares(&self.pool, self.started, &ports)?;
        Ok(EngineStats::collect(shares, records))
    }

    /// Addresses that moved between ports lately, as the module saw it.
    #[must_use]
    pub fn moves(&self) -> Vec<FdbMove> {
        self.module.moves(clock::now_ns(self.started))
    }

    /// Replaces the module. The new one is told of the existing ports.
    ///
    /// # Errors
    /// [`EngineError::NoAnswer`]: that worker uses the old one until it runs its tasks.
    pub fn set_module(&mut self, module: &Arc<dyn Module>) -> Result<(), EngineError> {
        self.module = Arc::clone(module);
        let module = Arc::clone(module);
        self.pool.call_all(move |worker| worker.fabric.set_module(Arc::clone(&module))).map(drop)
    }

    /// The time that workers decide by, in nanoseconds.
    #[must_use]
    pub fn now_ns(&self) -> u64 {
        clock::now_ns(self.started)
    }

    /// Has the module explain the decision about a packet; see [`Module::explain`].
    pub fn explain(
        &self,
        packet: (PortId, &Header),
        verdicts: &mut Verdicts,
        reasons: &mut Reasons<'_>,
    ) -> bool {
        self.module.explain(packet, self.now_ns(), verdicts, reasons)
    }

    /// Whether the operator has the link of a port up; none if there is no such port.
    #[must_use]
    pub fn has_link_up(&self, port: PortId) -> Option<bool> {
        self.table().get(port).map(|record| record.config.link_up)
    }

    /// The module's forwarding table.
    #[must_use]
    pub fn fdb(&self) -> Vec<FdbEntry> {
        self.module.fdb(clock::now_ns(self.started))
    }

    /// Enters a static address into the module's forwarding table: for one VLAN, or for all that the port carries.
    ///
    /// # Errors
    /// [`EngineError::NoSuchPort`], [`EngineError::Refused`] by the module.
    pub fn fdb_add(&self, mac: Mac, vlan: Option<Vid>, port: PortId) -> Result<(), EngineError> {
        self.table().get(port).ok_or(EngineError::NoSuchPort(port))?;
        self.module.fdb_add(mac, vlan, port).map_err(EngineError::Refused)
    }

    /// Removes an entry of `fdb_add`.
    ///
    /// # Errors
    /// [`EngineError::NoSuchPort`], [`EngineError::Refused`] by the module.
    pub fn fdb_del(&self, mac: Mac, vlan: Option<Vid>, port: PortId) -> Result<(), EngineError> {
        self.table().get(port).ok_or(EngineError::NoSuchPort(port))?;
        self.module.fdb_del(mac, vlan, port).map_err(EngineError::Refused)
    }

    /// Forgets learned addresses, of one port or all, of one VLAN or all; returns their number.
    ///
    /// # Errors
    /// [`EngineError::Refused`] by the module.
    pub fn fdb_flush(&self, port: Option<PortId>, vlan: Option<Vid>) -> Result<usize, EngineError> {
        self.module.fdb_flush(port, vlan).map_err(EngineError::Refused)
    }
}

/// The settings of a port for its module.
fn settings(config: PortConfig) -> PortSettings {
    let PortConfig { name, switch, policy, kind, .. } = config;
    PortSettings { name, switch, policy, macs_max: None, kind }
}

impl Drop for Engine {
    fn drop(&mut self) {
        // Workers without a thread refer to each other, and would never be freed.
        self.pool.mailboxes().iter().for_each(|mailbox| drop(mailbox.take_worker()));
        self.pool.mailboxes().iter().for_each(|mailbox| mailbox.post(Box::new(Worker::stop)));
        self.threads.join();
        // Last: a worker may be blocked until the watchdog interrupts it.
        self.pool.watchdog().end();
        let _ = self.watchdog.take().map(JoinHandle::join);
    }
}
