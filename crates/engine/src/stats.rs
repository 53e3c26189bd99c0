use lasthop_fabric::PortCounters;
use lasthop_verdict::PortId;

use crate::port::{PortRecord, PortState};
use crate::worker::Worker;

/// Everything countable, of one moment.
#[derive(Clone, Debug, Default)]
pub struct Stats {
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
    /// What its guest did wrong.
    pub error: Option<String>,
}

/// One worker: all counted since it started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WorkerStats {
    /// Number of the worker.
    pub index: usize,
    /// Times it went to sleep.
    pub sleeps: u64,
    /// Times it looked for events without sleeping.
    pub polls: u64,
    /// Visits to rings.
    pub visits: u64,
    /// Visits that found packets.
    pub batches: u64,
    /// Rings that are visited now; all others are armed and left alone.
    pub active_rings: usize,
}

impl Stats {
    pub(crate) fn collect(worker: &mut Worker, records: Vec<(PortId, PortRecord)>) -> Self {
        let internal = PortStats {
            port: PortId::INTERNAL,
            name: "internal".into(),
            state: PortState::Running,
            rings: Vec::new(),
            features: 0,
            counters: worker.fabric.counters(PortId::INTERNAL).unwrap_or_default(),
        };
        let guests = records.into_iter().map(|(port, record)| PortStats::of(worker, port, record));
        let ports = std::iter::once(internal).chain(guests).collect();
        Self { ports, workers: vec![worker.stats()] }
    }
}

impl PortStats {
    fn of(worker: &Worker, port: PortId, record: PortRecord) -> Self {
        let rings: Vec<RingStats> = (0..2 * record.config.queue_pairs)
            .filter_map(|index| {
                let state = worker.fabric.ring_state(port, index)?;
                let error = state.error.map(|error| error.to_string());
                Some(RingStats { index, entries: state.entries, enabled: state.enabled, error })
            })
            .collect();
        let error = rings.iter().find_map(|ring| ring.error.clone()).or_else(|| worker.failure(port));
        let state = match (error, record.attached, rings.is_empty()) {
            (Some(error), _, _) => PortState::Stopped(error),
            (None, false, _) => PortState::Waiting,
            (None, true, true) => PortState::Connected,
            (None, true, false) => PortState::Running,
        };
        let counters = worker.fabric.counters(port).unwrap_or_default();
        Self { port, name: record.config.name, state, rings, features: record.features, counters }
    }
}
