//! Worker threads around the fabric: who works when, who sleeps, who is woken. The only crate that knows clocks and CPUs.
//!
//! **Purpose.** [`Engine`] runs the switch's worker and lets the control side add ports, attach guests ([`PortDevice`]
//! is the back end of a vhost-user session) and read counters.
//!
//! **Contract.** Control calls are messages to the worker and are answered within [`REPLY_TIMEOUT`] or fail. An idle
//! worker makes no system call and visits no ring; an idle ring is never visited. The worker waits for no guest, as long as
//! guests leave their call descriptors non-blocking.
//!
//! **Not checked.** That kick and call descriptors are eventfds: the session does that before it hands them over.
//!
//! **Threading.** One worker owns the fabric; the control side may be any number of threads.
//!
//! ```text
//!            kick                     work                      nothing for the hysteresis
//!   asleep -------> active: visit, visit, ... -------> arm kicks, fence, look again --nothing--> asleep
//!     ^  ^                 ^                                     | something
//!     |  mailbox           +-------------------------------------+
//!     +-- earliest deadline of a packet that waits for receive buffers
//! ```
#![forbid(unsafe_code)]

mod active;
mod control;
mod device;
mod events;
mod features;
mod mailbox;
mod port;
mod stats;
mod worker;

pub use device::PortDevice;
pub use port::{PortConfig, PortState};
pub use stats::{PortStats, RingStats, Stats, WorkerStats};

use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use lasthop_fabric::Fabric;
use lasthop_verdict::{FdbEntry, Module, PORTS_MAX, PortId, PortSettings};
use thiserror::Error;

use mailbox::Mailbox;
use port::{PortRecord, PortTable};
use worker::Worker;

/// How long a control call waits for the worker: far more than a visit takes, far less than a person waits.
pub const REPLY_TIMEOUT: Duration = Duration::from_secs(2);

/// Why the engine did not do as told.
#[derive(Debug, Error)]
pub enum EngineError {
    /// All of `PORTS_MAX` are in use.
    #[error("the switch has {PORTS_MAX} ports already; delete one first")]
    TooManyPorts,
    /// No such port.
    #[error("there is no port {0}")]
    NoSuchPort(PortId),
    /// The module refused the port.
    #[error("{0}")]
    Refused(String),
    /// The worker did not answer in time.
    #[error("the switch's worker did not answer within {} s; it is stuck or the machine is overloaded", REPLY_TIMEOUT.as_secs())]
    NoAnswer,
    /// The system refused something at start.
    #[error("cannot {0}: {1}")]
    System(&'static str, std::io::Error),
}

/// How the engine runs.
#[derive(Clone, Debug)]
pub struct EngineSettings {
    /// CPUs that workers may run on; empty: all that the process may use.
    pub cpus: Vec<usize>,
    /// How long a worker looks for more work after the last packet, in microseconds.
    pub hysteresis_us: u32,
}

/// Default of `hysteresis_us`: about what a sleep and a wake-up cost together.
pub const HYSTERESIS_US_DEFAULT: u32 = 50;

impl Default for EngineSettings {
    fn default() -> Self {
        Self { cpus: Vec::new(), hysteresis_us: HYSTERESIS_US_DEFAULT }
    }
}

/// A running switch. Dropping it stops its worker.
pub struct Engine {
    module: Arc<dyn Module>,
    mailbox: Arc<Mailbox>,
    ports: Arc<Mutex<PortTable>>,
    started: std::time::Instant,
    worker: Option<JoinHandle<()>>,
}

impl Engine {
    /// Starts a switch whose packets `module` decides on.
    ///
    /// # Errors
    /// [`EngineError::System`].
    pub fn start(module: Arc<dyn Module>, settings: &EngineSettings) -> Result<Self, EngineError> {
        lasthop_guestmem::guard::install().map_err(|error| EngineError::System("handle SIGBUS", error))?;
        let mut fabric = Fabric::new(Arc::clone(&module)).map_err(EngineError::Refused)?;
        fabric.set_flow_key(RandomState::new().hash_one(std::process::id()));
        let mailbox =
            Arc::new(Mailbox::new().map_err(|error| EngineError::System("create an eventfd", error))?);
        let started = std::time::Instant::now();
        let worker = Worker::new(fabric, Arc::clone(&mailbox), settings, started)
            .map_err(|error| EngineError::System("set up a worker", error))?;
        let thread = std::thread::Builder::new()
            .name("worker0".into())
            .spawn(move || worker.run())
            .map_err(|error| EngineError::System("start a worker thread", error))?;
        Ok(Self { module, mailbox, ports: Arc::default(), started, worker: Some(thread) })
    }

    fn table(&self) -> std::sync::MutexGuard<'_, PortTable> {
        self.ports.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a port; guests may attach to it afterwards.
    ///
    /// # Errors
    /// [`EngineError::TooManyPorts`], [`EngineError::Refused`] by the module, [`EngineError::NoAnswer`].
    pub fn add_port(&self, config: PortConfig) -> Result<PortId, EngineError> {
        let port = self.table().claim(config.clone()).ok_or(EngineError::TooManyPorts)?;
        let pairs = config.queue_pairs;
        let settings = PortSettings { name: config.name, mac: config.mac, macs_max: None };
        let added = self
            .mailbox
            .call(move |worker| worker.fabric.add_port(port, pairs))
            .and_then(|()| self.module.port_added(port, &settings).map_err(EngineError::Refused));
        if let Err(error) = added {
            self.forget(port)?;
            return Err(error);
        }
        Ok(port)
    }

    /// Removes a port; its guest's rings are stopped first.
    ///
    /// # Errors
    /// [`EngineError::NoSuchPort`], [`EngineError::NoAnswer`].
    pub fn remove_port(&self, port: PortId) -> Result<(), EngineError> {
        self.table().get(port).ok_or(EngineError::NoSuchPort(port))?;
        // Rings first: a frame still under way would be learned from again.
        self.mailbox.call(move |worker| worker.remove_port(port))?;
        self.module.port_removed(port);
        self.table().release(port);
        Ok(())
    }

    fn forget(&self, port: PortId) -> Result<(), EngineError> {
        self.mailbox.call(move |worker| worker.remove_port(port))?;
        self.table().release(port);
        Ok(())
    }

    /// The back end for a guest that attaches to `port`. Dropping it detaches the guest.
    ///
    /// # Errors
    /// [`EngineError::NoSuchPort`].
    pub fn device(&self, port: PortId) -> Result<PortDevice, EngineError> {
        let config = self.table().get(port).map(|record| record.config.clone());
        let config = config.ok_or(EngineError::NoSuchPort(port))?;
        Ok(PortDevice::new(port, &config, Arc::clone(&self.mailbox), Arc::clone(&self.ports)))
    }

    /// Counters and states of all ports and workers, of one moment.
    ///
    /// # Errors
    /// [`EngineError::NoAnswer`].
    pub fn stats(&self) -> Result<Stats, EngineError> {
        let records: Vec<(PortId, PortRecord)> = self.table().records();
        self.mailbox.call(move |worker| Stats::collect(worker, records))
    }

    /// The module's forwarding table.
    #[must_use]
    pub fn fdb(&self) -> Vec<FdbEntry> {
        self.module.fdb(worker::now_ns(self.started))
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.mailbox.post(Box::new(Worker::stop));
        if let Some(worker) = self.worker.take() {
            let _ = worker.join();
        }
    }
}
