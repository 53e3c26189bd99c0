//! Moves a transmit ring to another home while its guest runs.
//!
//! ```text
//!   old home   visit, visit, release ─┐                    a copy that waited is done: counted here ─┐
//!   new home                          └─> adopt, visit, visit, ...                                   └─> chain: settled here
//! ```
//!
//! The whole state of the ring moves between two visits: positions, ledger, side table, postponed and detached packets.
//! So nothing is fetched twice, and a successor of a killed device finds the same ledger as without a move. Copies that
//! wait for slow receivers are not waited for. Their references still name the old home. It counts them, since it counted
//! their packets, so each worker's counters are conserved by themselves. Then it tells the new home, which completes the
//! chains. A ring with such copies does not move once more; they are done within [`WAITING_NS_MAX`](crate::bounds::WAITING_NS_MAX).
//!
//! Packets that the control plane has are waited for: it gets those of two workers by two ways, on which they could
//! overtake each other. Meanwhile the port's rings at the old home are paused.

use std::collections::HashSet;

use lasthop_module_api::PortId;

use crate::bounds::LEAVING_NS_MAX;
use crate::reference::{Attempt, PacketRef};
use crate::tx::moved::SettledCopy;
use crate::tx::senders::Senders;
use crate::tx::tx_queue::TxQueue;
use crate::{Fabric, RingId};

/// A transmit ring on its way to another home. Its guest gets nothing back until [`Fabric::adopt_ring`].
#[derive(Debug)]
pub struct MovingRing {
    ring: RingId,
    queue: Box<TxQueue>,
}

/// The answer to [`Fabric::release_ring`].
#[derive(Debug)]
pub enum Release {
    /// The ring left this home.
    Moving(MovingRing),
    /// It does not run here.
    NotHere,
    /// It is being stopped.
    Stopping,
    /// Packets that an earlier home took are not finished.
    Unsettled,
    /// The control plane has packets of the port. Its rings here take none until the next try, for
    /// [`LEAVING_NS_MAX`] at most.
    Unanswered,
}

/// Copies that an old home has counted; the new home settles their chains.
#[derive(Debug)]
pub struct SettledCopies(Vec<SettledCopy>);

impl TxQueue {
    /// Prepares the move to another home. Returns the number of copies that wait; their home stays the old one.
    fn leave_home(&mut self) -> u32 {
        (self.dirty, self.paused) = (false, false);
        self.elsewhere = u32::from(self.waiting) + u32::from(self.detached());
        if self.elsewhere > 0 {
            // The old home has counted them as taken, so the new one cannot count them as not taken.
            let next: HashSet<u16> = self.postponement.next.iter().copied().collect();
            let waiting: Vec<u16> = self.ring.marked().filter(|head| !next.contains(head)).collect();
            waiting.into_iter().for_each(|head| self.postponement.forget(head));
        }
        self.elsewhere
    }
}

impl Senders {
    /// As `settle_waiting`, for a packet of a ring that has moved away.
    #[cold]
    pub(crate) fn settle_moved(&mut self, packet: PacketRef, attempt: Attempt) {
        self.end_waiting(packet);
        if let Some(counters) = self.counters_of(packet) {
            counters.settle(attempt);
        }
        if let Some(home) = self.moved.settle(packet, attempt.is_slow()) {
            self.note_news_for(home);
        }
    }

    fn release(&mut self, ring: RingId, home: u8) -> Option<MovingRing> {
        let queues = &mut self.get_mut(ring.port)?.queues;
        queues.iter_mut().flatten().for_each(|queue| queue.leaving_until_ns = 0);
        let slot = queues.get_mut(usize::from(ring.queue))?;
        let mut queue = Box::new(slot.take()?);
        let left = queue.leave_home();
        self.moved.leave(ring, home, left);
        Some(MovingRing { ring, queue })
    }

    /// Takes no packets from the rings of a port for a while.
    fn pause_port(&mut self, port: PortId, until_ns: u64) {
        let queues = self.get_mut(port).into_iter().flat_map(|sender| sender.queues.iter_mut().flatten());
        queues.for_each(|queue| (queue.paused, queue.leaving_until_ns) = (true, until_ns));
    }

    fn adopt(&mut self, MovingRing { ring, queue }: MovingRing) {
        let sender = self.get_mut(ring.port);
        if let Some(slot) = sender.and_then(|sender| sender.queues.get_mut(usize::from(ring.queue))) {
            *slot = Some(*queue);
        }
        self.mark_dirty(ring);
    }

    fn settle_copy(&mut self, SettledCopy { packet, is_slow }: SettledCopy) {
        let ring = packet.ring();
        let Some(queue) = self.queue_mut(ring) else { return };
        queue.elsewhere -= 1;
        if packet.is_detached() {
            return self.free_detached(packet);
        }
        queue.end_waiting(packet.head);
        if queue.settle(packet.head, || is_slow) {
            self.note_completed(ring);
        }
    }
}

impl Fabric {
    /// Releases a transmit ring whose home is here, for worker `home` to adopt. Its packets that wait for receivers
    /// stay where they are, in order. The caller passes the ring on: no fabric knows it meanwhile.
    pub fn release_ring(&mut self, ring: RingId, home: usize, now_ns: u64) -> Release {
        self.take_returns();
        self.publish();
        if ring.port == PortId::INTERNAL {
            return Release::NotHere;
        }
        match self.senders.queue_mut(ring) {
            Some(queue) if queue.closed => return Release::Stopping,
            Some(queue) if queue.elsewhere > 0 => return Release::Unsettled,
            // The ring may have run here until now, and start at its next home.
            Some(_) | None => {}
        }
        if !self.module.may_leave(ring.port, self.worker(), now_ns) {
            self.senders.pause_port(ring.port, now_ns + LEAVING_NS_MAX);
            return Release::Unanswered;
        }
        // The number is below WORKERS_MAX.
        self.senders.release(ring, home as u8).map_or(Release::NotHere, Release::Moving)
    }

    /// Makes this fabric the home of a ring that another one has released. It goes on at the next chain.
    pub fn adopt_ring(&mut self, moving: MovingRing) {
        self.senders.adopt(moving);
        self.publish();
    }

    /// Takes copies that this worker has counted and whose chains another worker settles, and that worker's number.
    /// [`Self::wakes`] tells when there are some.
    pub fn take_settled(&mut self) -> Option<(usize, SettledCopies)> {
        let (home, copies) = self.senders.moved.take_settled()?;
        Some((usize::from(home), SettledCopies(copies)))
    }

    /// Settles the chains of copies that an earlier home of their rings has counted.
    pub fn settle_copies(&mut self, copies: SettledCopies) {
        copies.0.into_iter().for_each(|copy| self.senders.settle_copy(copy));
        self.publish();
    }
}
