//! Counters and states of ports, rings and workers, for reports.

use lasthop_fabric::{HandoffCounters, PortCounters, RingProgress};
use lasthop_module_api::PortId;

use crate::port::PortState;
use crate::scheduling::PolicyCounters;

/// Everything countable, of one moment.
#[derive(Clone, Debug, Default)]
pub struct EngineStats {
    /// The switch's own port first, the others by number.
    pub ports: Vec<PortStats>,
    /// One per worker.
    pub workers: Vec<WorkerStats>,
}

/// One port.
#[derive(Clone, Debug)]
pub struct PortStats {
    /// Its number.
    pub port: PortId,
    /// Its name.
    pub name: String,
    /// How far its guest has come.
    pub state: PortState,
    /// Rings that run.
    pub rings: Vec<RingStats>,
    /// Negotiated virtio features.
    pub features: u64,
    /// The MTU in bytes that its front end told.
    pub guest_mtu: Option<u16>,
    /// Its packets.
    pub counters: PortCounters,
}

/// One virtqueue.
#[derive(Clone, Debug)]
pub struct RingStats {
    /// Index of the virtqueue: receive rings are even, transmit rings odd.
    pub index: u16,
    /// Entries of the ring.
    pub entries: u16,
    /// Whether packets pass.
    pub enabled: bool,
    /// The fault of its guest that stopped it.
    pub error: Option<String>,
}

/// One worker: all counted since it started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WorkerStats {
    /// Number of the worker.
    pub index: usize,
    /// The number of the worker whose thread serves it: the first one's, or its own.
    pub thread: usize,
    /// The age of its part of the report in ms, if it did not answer in time: counters of ports are those that it saved, states and
    /// the other counts here those of its last answer.
    pub age_ms: Option<u64>,
    /// Times it went to sleep.
    pub sleeps: u64,
    /// Times it looked for events without sleeping.
    pub polls: u64,
    /// Times its thread, looking for more in vain, offered its core and did not get it back at once: others wanted it, and it
    /// went to sleep. Counted for the first of the thread's workers.
    pub crowded: u64,
    /// Decisions by the state of the host's scheduler. Counted for the first of a thread's workers.
    pub policies: PolicyCounters,
    /// Visits to rings.
    pub visits: u64,
    /// Visits that found packets.
    pub batches: u64,
    /// Work that it left to other workers or did for them.
    pub handoffs: HandoffCounters,
    /// Times it woke another worker.
    pub wakes: u64,
    /// Rings that are visited now; all others are armed and left alone.
    pub active_rings: usize,
}

/// One virtqueue that runs, as its home worker sees it: for people who look why a guest has no network.
#[derive(Clone, Debug)]
pub struct RingInspection {
    /// Index of the virtqueue: receive rings are even, transmit rings odd.
    pub index: u16,
    /// The worker that is its home.
    pub worker: usize,
    /// Whether packets pass.
    pub enabled: bool,
    /// The fault of its guest that stopped it.
    pub error: Option<String>,
    /// Kicks that were heard since it started; those that come while it is being looked at are not.
    pub kicks: u64,
    /// Positions; `None`: another worker was at it just then, so it moves.
    pub progress: Option<RingProgress>,
}
