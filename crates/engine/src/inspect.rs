//! How far each ring of a port is, for people who look why a guest has no network.

use lasthop_fabric::RingProgress;
use lasthop_verdict::PortId;

use crate::worker::Worker;
use crate::{Engine, EngineError};

/// One virtqueue that runs, as its home worker sees it.
#[derive(Clone, Debug)]
pub struct RingInspection {
    /// Index of the virtqueue: receive rings are even, transmit rings odd.
    pub index: u16,
    /// The worker that is its home.
    pub worker: usize,
    /// Whether packets pass.
    pub enabled: bool,
    /// What its guest did wrong.
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
