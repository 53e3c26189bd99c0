//! State that the workers of a switch share: open queues and links per port, an inbox per worker. The operator sets the
//! links.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use lasthop_module_api::{DropReason, PORTS_MAX, PortId};
use lasthop_sync::{Bounded, SleepFlag};

use crate::RingId;
use crate::bounds::{HELP_ORDERS_MAX, LENT_PACKETS_MAX};
use crate::reference::Return;
use crate::steering::Steering;

/// State that the workers of one switch share, besides the receive rings: open queues, links and completion queues.
#[derive(Debug)]
pub(crate) struct Board {
    queues: Box<[OpenQueues]>,
    links: Box<[PortLink]>,
    /// Of ports with several queue pairs. One stays for the next port with this number.
    steerings: Box<[OnceLock<Arc<Steering>>]>,
    inboxes: Box<[WorkerInbox]>,
}

/// One bit per queue pair of a port. For other workers they are hints; the ring's claim or its home decides.
#[derive(Debug, Default)]
struct OpenQueues {
    receive: AtomicU64,
    transmit: AtomicU64,
}

/// The queues and flags by which other workers reach one worker.
#[derive(Debug)]
pub(crate) struct WorkerInbox {
    /// Its completion queue: references to its packets that other workers have finished.
    pub(crate) returns: Bounded<Return>,
    /// Rings whose large frames it is to copy, if it is a helper; else those that helpers gave back.
    pub(crate) orders: Bounded<HelpOrder>,
    pub(crate) sleep_flag: SleepFlag,
}

/// An order to a helper, or one that it gives back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HelpOrder {
    /// Where large frames wait.
    pub(crate) ring: RingId,
    /// The worker that gave the order.
    pub(crate) from: u8,
}

impl Board {
    pub(crate) fn new(workers: usize) -> Self {
        // A single worker returns nothing to itself.
        let entries = if workers > 1 { LENT_PACKETS_MAX } else { 0 };
        let inbox = |_| WorkerInbox {
            returns: Bounded::new(entries),
            orders: Bounded::new(if workers > 1 { HELP_ORDERS_MAX } else { 0 }),
            sleep_flag: SleepFlag::default(),
        };
        Self {
            queues: (0..PORTS_MAX).map(|_| OpenQueues::default()).collect(),
            links: (0..PORTS_MAX).map(|_| PortLink::default()).collect(),
            steerings: (0..PORTS_MAX).map(|_| OnceLock::new()).collect(),
            inboxes: (0..workers).map(inbox).collect(),
        }
    }

    pub(crate) fn workers(&self) -> usize {
        self.inboxes.len()
    }

    pub(crate) fn inbox(&self, worker: u8) -> &WorkerInbox {
        &self.inboxes[usize::from(worker)]
    }

    /// The receive queues of the flows of a port's guest. The first call decides about the key.
    pub(crate) fn steering(&self, port: PortId, flow_key: u64) -> Arc<Steering> {
        Arc::clone(self.steerings[port.index()].get_or_init(|| Arc::new(Steering::new(flow_key))))
    }

    /// Receive queues of a port that take packets, as bits.
    #[inline]
    pub(crate) fn receiving(&self, port: PortId) -> u64 {
        self.queues[port.index()].receive.load(Ordering::Relaxed)
    }

    /// The reason for which a transmit queue's packets are discarded. `None` if they are not.
    #[inline(always)] // a call of it costs more than it does
    pub(crate) fn discards(&self, port: PortId, queue: u16) -> Option<DropReason> {
        if self.sends(port, queue) { None } else { Some(self.why_discarded(port)) }
    }

    /// Whether a transmit queue's packets pass.
    #[inline(always)] // a call of it costs more than it does
    pub(crate) fn sends(&self, port: PortId, queue: u16) -> bool {
        self.queues[port.index()].transmit.load(Ordering::Relaxed) & bit(queue) != 0
    }

    /// Not inlined: the usual packet passes.
    #[cold]
    #[inline(never)]
    fn why_discarded(&self, port: PortId) -> DropReason {
        self.link(port).or(DropReason::QueueDisabled)
    }

    /// The port's link. It may be down while the guest has queues open.
    pub(crate) fn link(&self, port: PortId) -> &PortLink {
        &self.links[port.index()]
    }

    pub(crate) fn set_receiving(&self, port: PortId, queue: u16, open: bool) {
        self.show(port, |wanted| set(&mut wanted.0, queue, open));
    }

    pub(crate) fn set_sending(&self, port: PortId, queue: u16, open: bool) {
        self.show(port, |wanted| set(&mut wanted.1, queue, open));
    }

    /// Sets a port's link up or down. A visit under way may still see the old state.
    pub(crate) fn set_link(&self, port: PortId, up: bool) {
        self.link(port).set_up(up);
        self.show(port, |_| {});
    }

    /// Changes the queues that a port's guest has enabled, and publishes the result to all workers.
    fn show(&self, port: PortId, change: impl FnOnce(&mut (u64, u64))) {
        let queues = &self.queues[port.index()];
        self.link(port).update(change, |(receive, transmit)| {
            queues.receive.store(receive, Ordering::Relaxed);
            queues.transmit.store(transmit, Ordering::Relaxed);
        });
    }
}

fn bit(queue: u16) -> u64 {
    1 << (queue % 64) // QUEUE_PAIRS_MAX
}

fn set(bits: &mut u64, queue: u16, open: bool) {
    if open {
        *bits |= bit(queue);
    } else {
        *bits &= !bit(queue);
    }
}

/// A port's link state, and the queues that its guest has open.
///
/// The data path reads neither. It reads the bits of [`Board`], which are the guest's queues while the link is
/// up and none while it is down. So the link state costs nothing per packet.
#[derive(Debug, Default)]
pub(crate) struct PortLink {
    is_down: AtomicBool,
    /// The guest's open receive and transmit queues, as bits. Locked for changes only, never per packet.
    wanted: Mutex<(u64, u64)>,
}

impl PortLink {
    fn wanted(&self) -> MutexGuard<'_, (u64, u64)> {
        self.wanted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn set_up(&self, up: bool) {
        let _changing = self.wanted();
        self.is_down.store(!up, Ordering::Relaxed);
    }

    /// The drop reason for a packet that cannot pass: `link_down` if the link is down, else `other`.
    pub(crate) fn or(&self, other: DropReason) -> DropReason {
        if self.is_down.load(Ordering::Relaxed) { DropReason::LinkDown } else { other }
    }

    /// Changes the guest's open queues. Calls `show` under the lock with the queues that are open given the link state.
    pub(crate) fn update(&self, change: impl FnOnce(&mut (u64, u64)), show: impl FnOnce((u64, u64))) {
        let mut wanted = self.wanted();
        change(&mut wanted);
        let is_down = self.is_down.load(Ordering::Relaxed);
        show(if is_down { (0, 0) } else { *wanted });
    }

    /// Whether the guest has receive or transmit queue `queue` open, whether the link is up or down.
    pub(crate) fn is_wanted(&self, queue: usize, transmit: bool) -> bool {
        let (receive, sends) = *self.wanted();
        (if transmit { sends } else { receive }) >> queue & 1 != 0
    }
}
