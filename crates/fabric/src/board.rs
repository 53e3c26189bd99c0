use std::sync::atomic::{AtomicU64, Ordering};

use lasthop_exchange::{Bounded, Doze};
use lasthop_verdict::{PORTS_MAX, PortId};

use crate::bounds::LENT_PACKETS_MAX;
use crate::reference::Return;

/// What the workers of one switch share, besides the receive rings: which queues are open, and what comes back to whom.
#[derive(Debug)]
pub(crate) struct Board {
    queues: Box<[OpenQueues]>,
    stations: Box<[Station]>,
}

/// One bit per queue pair of a port. Hints for others: what counts is seen under the ring's claim, or by its home.
#[derive(Debug, Default)]
struct OpenQueues {
    receive: AtomicU64,
    transmit: AtomicU64,
}

/// Where one worker is reached.
#[derive(Debug)]
pub(crate) struct Station {
    /// Its completion queue: references of its senders that others are done with.
    pub(crate) returns: Bounded<Return>,
    pub(crate) doze: Doze,
}

impl Board {
    pub(crate) fn new(workers: usize) -> Self {
        // A worker alone gives itself nothing back.
        let entries = if workers > 1 { LENT_PACKETS_MAX } else { 0 };
        let station = |_| Station { returns: Bounded::new(entries), doze: Doze::default() };
        Self {
            queues: (0..PORTS_MAX).map(|_| OpenQueues::default()).collect(),
            stations: (0..workers).map(station).collect(),
        }
    }

    pub(crate) fn workers(&self) -> usize {
        self.stations.len()
    }

    pub(crate) fn station(&self, worker: u8) -> &Station {
        &self.stations[usize::from(worker)]
    }

    /// Receive queues of a port that take packets, as bits.
    #[inline]
    pub(crate) fn receiving(&self, port: PortId) -> u64 {
        self.queues[port.index()].receive.load(Ordering::Relaxed)
    }

    #[inline]
    pub(crate) fn is_sending(&self, port: PortId, queue: u16) -> bool {
        self.queues[port.index()].transmit.load(Ordering::Relaxed) & bit(queue) != 0
    }

    pub(crate) fn set_receiving(&self, port: PortId, queue: u16, open: bool) {
        set(&self.queues[port.index()].receive, queue, open);
    }

    pub(crate) fn set_sending(&self, port: PortId, queue: u16, open: bool) {
        set(&self.queues[port.index()].transmit, queue, open);
    }
}

fn bit(queue: u16) -> u64 {
    1 << (queue % 64) // QUEUE_PAIRS_MAX
}

fn set(bits: &AtomicU64, queue: u16, open: bool) {
    if open {
        bits.fetch_or(bit(queue), Ordering::Relaxed);
    } else {
        bits.fetch_and(!bit(queue), Ordering::Relaxed);
    }
}
