//! Counters and states of ports, rings and workers, for reports.

use lasthop_fabric::{HandoffCounters, PortCounters, RingProgress};
use lasthop_verdict::PortId;

use crate::port::{PortRecord, PortState};
use crate::worker::Worker;
use crate::{Engine, EngineError};

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
    /// Times it went to sleep.
    pub sleeps: u64,
    /// Times it looked for events without sleeping.
    pub polls: u64,
    /// Times its thread, looking for more in vain, offered its core and did not get it back at once: others wanted it, and it
    /// went to sleep. Counted for the first of the thread's workers.
    pub crowded: u64,
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

/// The part of a port that one worker knows.
#[derive(Debug)]
pub(crate) struct PortShare {
    counters: PortCounters,
    /// Rings whose home it is.
    rings: Vec<RingStats>,
    failure: Option<String>,
}

impl PortShare {
    pub(crate) fn of(worker: &Worker, port: PortId, queue_pairs: u16) -> Self {
        let at_home = |index: &u16| worker.is_home(port, *index);
        let rings = (0..2 * queue_pairs).filter(at_home).filter_map(|index| {
            let state = worker.fabric.ring_state(port, index)?;
            let error = state.error.map(|error| error.to_string());
            Some(RingStats { index, entries: state.entries, enabled: state.enabled, error })
        });
        let counters = worker.fabric.counters(port).unwrap_or_default();
        Self { counters, rings: rings.collect(), failure: worker.failure(port) }
    }

    /// Adds another worker's part.
    fn merge(&mut self, other: Self) {
        self.counters.merge(&other.counters);
        self.rings.extend(other.rings);
        self.failure = self.failure.take().or(other.failure);
    }
}

impl EngineStats {
    /// From each worker's part of the ports in `records`, preceded by the switch's own port. The workers need not have been
    /// asked at the same moment: each counts both sides of its own packets at once.
    pub(crate) fn collect(
        shares: Vec<(WorkerStats, Vec<PortShare>)>,
        records: Vec<(PortId, PortRecord)>,
    ) -> Self {
        let mut workers = Vec::with_capacity(shares.len());
        let mut merged: Vec<PortShare> = Vec::new();
        for (worker, ports) in shares {
            workers.push(worker);
            if merged.is_empty() {
                merged = ports;
            } else {
                merged.iter_mut().zip(ports).for_each(|(all, more)| all.merge(more));
            }
        }
        let mut merged = merged.into_iter();
        let internal = merged.next().map(PortStats::internal);
        let guests =
            records.into_iter().zip(merged).map(|((port, record), share)| PortStats::of(port, record, share));
        Self { ports: internal.into_iter().chain(guests).collect(), workers }
    }
}

impl PortStats {
    fn internal(share: PortShare) -> Self {
        Self {
            port: PortId::INTERNAL,
            name: "internal".into(),
            state: PortState::Running,
            rings: Vec::new(),
            features: 0,
            guest_mtu: None,
            counters: share.counters,
        }
    }

    fn of(port: PortId, record: PortRecord, share: PortShare) -> Self {
        let PortShare { counters, mut rings, failure } = share;
        rings.sort_unstable_by_key(|ring| ring.index);
        let error = rings.iter().find_map(|ring| ring.error.clone()).or(failure);
        let state = match (error, record.attached, rings.is_empty()) {
            (Some(error), _, _) => PortState::Stopped(error),
            (None, false, _) => PortState::Waiting,
            (None, true, true) => PortState::Connected,
            (None, true, false) => PortState::Running,
        };
        let PortRecord { config, features, guest_mtu, .. } = record;
        Self { port, name: config.name, state, rings, features, guest_mtu, counters }
    }
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

impl RingInspection {
    fn of(worker: &mut Worker, port: PortId, index: u16) -> Option<Self> {
        let state = worker.fabric.ring_state(port, index)?;
        Some(Self {
            index,
            worker: worker.fabric.worker(),
            enabled: state.enabled,
            error: state.error.map(|error| error.to_string()),
            kicks: worker.kicks(port, index),
            progress: worker.fabric.ring_progress(port, index),
        })
    }
}

impl Engine {
    /// The rings that run of the given ports, by index, in the order of the ports.
    ///
    /// # Errors
    /// [`EngineError::NoAnswer`].
    pub fn inspect(&self, ports: &[PortId]) -> Result<Vec<Vec<RingInspection>>, EngineError> {
        let pairs = |port: &PortId| self.table().get(*port).map_or(0, |record| record.config.queue_pairs);
        let asked: Vec<(PortId, u16)> = ports.iter().map(|port| (*port, pairs(port))).collect();
        let shares = self.pool.call_all(move |worker| {
            let of_port = |worker: &mut Worker, (port, pairs): (PortId, u16)| -> Vec<RingInspection> {
                let at_home = (0..2 * pairs).filter(|index| worker.is_home(port, *index)).collect::<Vec<_>>();
                at_home.into_iter().filter_map(|index| RingInspection::of(worker, port, index)).collect()
            };
            asked.iter().map(|asked| of_port(worker, *asked)).collect::<Vec<_>>()
        })?;
        let mut merged = vec![Vec::new(); ports.len()];
        for share in shares {
            merged.iter_mut().zip(share).for_each(|(rings, more)| rings.extend(more));
        }
        merged.iter_mut().for_each(|rings| rings.sort_unstable_by_key(|ring| ring.index));
        Ok(merged)
    }
}
