//! Counters and states of ports, rings and workers, for reports.

use lasthop_fabric::{HandoffCounters, PortCounters, RingProgress};
use lasthop_module_api::PortId;

use crate::port::PortState;
use crate::scheduling::PolicyCounters;

/// All counters, at one time.
#[derive(Clone, Debug, Default)]
pub struct EngineStats {
    /// The switch's own port first, then the others by number.
    pub ports: Vec<PortStats>,
    /// One entry for each worker.
    pub workers: Vec<WorkerStats>,
}

/// The statistics of a port.
#[derive(Clone, Debug)]
pub struct PortStats {
    /// Its number.
    pub port: PortId,
    /// Its name.
    pub name: String,
    /// The state of its guest.
    pub state: PortState,
    /// Running rings.
    pub rings: Vec<RingStats>,
    /// Negotiated virtio features.
    pub features: u64,
    /// The MTU in bytes that its front end reported.
    pub guest_mtu: Option<u16>,
    /// Packet counters.
    pub counters: PortCounters,
}

/// The state of a virtqueue.
#[derive(Clone, Debug)]
pub struct RingStats {
    /// Index of the virtqueue: receive rings are even, transmit rings odd.
    pub index: u16,
    /// Entries of the ring.
    pub entries: u16,
    /// Whether it is enabled.
    pub enabled: bool,
    /// The home worker.
    pub worker: usize,
    /// The guest's fault that stopped it.
    pub error: Option<String>,
}

/// Counters of one worker since it started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WorkerStats {
    /// Number of the worker.
    pub index: usize,
    /// The number of the worker whose thread serves it: the first one or itself.
    pub thread: usize,
    /// Rings that it polled for an answer that was expected.
    pub answers_expected: u64,
    /// The age of its part of the report in ms, if it did not answer in time: ports' counters are its saved ones,
    /// states and the other counts those of its last answer.
    pub age_ms: Option<u64>,
    /// Number of times that it went to sleep.
    pub sleeps: u64,
    /// Number of times that it polled for events without sleeping.
    pub polls: u64,
    /// Number of times that its thread, polling in vain, offered its core and did not get it back at once. Counted for
    /// the first of the thread's workers.
    pub crowded: u64,
    /// Number of times that others had that core for so long that its thread polled little for a while
    /// ([`lasthop_ring::CoreYield`]). Counted for the first of the thread's workers.
    pub scarce: u64,
    /// Whether that core is scarce now. Told for the first of the thread's workers.
    pub is_scarce: bool,
    /// Decisions by the state of the host's scheduler. Counted for the first of a thread's workers.
    pub policies: PolicyCounters,
    /// Visits to rings.
    pub visits: u64,
    /// Visits that found packets.
    pub batches: u64,
    /// Its CPU, if it is a helper.
    pub helper_cpu: Option<usize>,
    /// Work that it left to other workers or did for them.
    pub handoffs: HandoffCounters,
    /// Number of times that it woke another worker.
    pub wakes: u64,
    /// Rings that are visited now; all others are armed.
    pub active_rings: usize,
}

/// A running virtqueue as its home worker sees it, for diagnosis.
#[derive(Clone, Debug)]
pub struct RingInspection {
    /// Index of the virtqueue: receive rings are even, transmit rings odd.
    pub index: u16,
    /// The home worker.
    pub worker: usize,
    /// Whether it is enabled.
    pub enabled: bool,
    /// The guest's fault that stopped it.
    pub error: Option<String>,
    /// Kicks received since it started; those that come while the ring is polled are not received.
    pub kicks: u64,
    /// Positions; `None` if another worker was using the ring, so that it moves.
    pub progress: Option<RingProgress>,
}
