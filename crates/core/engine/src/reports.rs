//! Builds reports from each worker's part.

use lasthop_fabric::PortCounters;
use lasthop_module_api::PortId;

use crate::port::{PortRecord, PortState};
use crate::stats::{EngineStats, PortStats, RingInspection, RingStats, WorkerStats};
use crate::worker::Worker;
use crate::{Engine, EngineError};

/// One worker's part of a port's report.
#[derive(Clone, Debug)]
pub(crate) struct PortShare {
    counters: PortCounters,
    /// Rings whose home is this worker.
    rings: Vec<RingStats>,
    failure: Option<String>,
}

impl PortShare {
    pub(crate) fn of(worker: &Worker, port: PortId, queue_pairs: u16) -> Self {
        let at_home = |index: &u16| worker.is_home(port, *index);
        let rings = (0..2 * queue_pairs).filter(at_home).filter_map(|index| {
            let state = worker.fabric.ring_state(port, index)?;
            let error = state.error.map(|error| error.to_string());
            let (entries, enabled, worker) = (state.entries, state.enabled, worker.number());
            Some(RingStats { index, entries, enabled, worker, error })
        });
        let counters = worker.fabric.counters(port).unwrap_or_default();
        Self { counters, rings: rings.collect(), failure: worker.failure(port) }
    }

    /// The part of a worker that does not answer: its saved counters, and the rest of its last answer.
    pub(crate) fn saved(counters: PortCounters, last: Option<&Self>) -> Self {
        let (rings, failure) =
            last.map(|last| (last.rings.clone(), last.failure.clone())).unwrap_or_default();
        Self { counters, rings, failure }
    }

    /// Adds another worker's part.
    fn merge(&mut self, other: Self) {
        self.counters.merge(&other.counters);
        self.rings.extend(other.rings);
        self.failure = self.failure.take().or(other.failure);
    }
}

impl EngineStats {
    /// The statistics of the ports in `records`, preceded by the switch's own port, from each worker's part. Workers
    /// may report at different times: each counts both sides of its own packets at once.
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
        rings.sort_by_key(|ring| ring.index);
        // A worker that answers late may tell of a ring that has moved since.
        rings.dedup_by_key(|ring| ring.index);
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
    /// The running rings of the given ports, by index, in the order of the ports.
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
