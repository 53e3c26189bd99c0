//! Postpones packets that still wait for receive buffers when their device quiesces: the successor takes them again.
//!
//! ```text
//!   at rest   one worker: receive rings' queues ──> references, back to their homes
//!             homes: nothing was done of the chain? ──yes──> ledger: postponed, in the order in which they were taken
//!                                                   └─no───> dropped, as restart
//!   then      home, here or in another process: postponed chains are fetched before any other
//! ```
//!
//! A postponed chain counts as never taken. When it is fetched again, it is read, checked and decided on once more.

use lasthop_guestmem::MemoryMap;
use lasthop_module_api::{BATCH_PACKETS_MAX, DropReason, PortId};
use lasthop_turns::Charge;

use crate::reference::{Outcome, PacketRef};
use crate::tx::postponement::Rank;
use crate::tx::sender::{Fetched, Sender, read_more_chains};
use crate::tx::senders::Senders;
use crate::tx::tx_queue::TxQueue;
use crate::{Fabric, RingId, Tools, tools};

impl TxQueue {
    /// Number of chains under way that cannot be postponed, or not yet.
    fn unpostponable(&self) -> usize {
        if self.taken() == 0 {
            return 0;
        }
        let chains = self.ring.marked().filter(|head| !self.postponement.is_possible(*head)).count();
        chains + usize::from(self.detached())
    }

    /// Ends the postponement of the next `count` postponed chains.
    fn resume(&mut self, count: usize) {
        self.postponement.next.drain(..count);
        self.ring.resume(count as u16); // at most the ring's entries
    }

    /// Writes the withdrawn chains into the ledger. Returns the heads of those that cannot be taken once more, or for which
    /// it has no room.
    fn postpone(&mut self) -> Vec<u16> {
        let Some(mut heads) = self.postponement.gather() else { return Vec::new() };
        let lost = self.ring.postpone(&mut heads);
        self.postponement.next = heads.into();
        lost
    }
}

impl TxQueue {
    /// As `take_pending`, for postponed chains.
    #[cold]
    pub(crate) fn take_postponed(
        &mut self,
        (map, epoch): (&MemoryMap, u32),
        charge: &mut Charge,
        fetched: &mut Fetched,
    ) -> (usize, Option<lasthop_ring::RingError>) {
        let wanted = self.postponement.next.len().min(charge.begin_visit()).min(BATCH_PACKETS_MAX);
        fetched.heads.iter_mut().zip(&self.postponement.next).for_each(|(place, head)| *place = *head);
        let (taken, error) =
            read_more_chains(self, map, epoch, fetched, ((0, fetched.spent_bytes), wanted), |_, _| false);
        self.blocked = taken < wanted && error.is_none() && !self.table.has_room();
        // Before anything is delivered: a successor would take these chains again.
        self.resume(taken);
        fetched.more = self.postponement.is_due() || self.ring.has_pending();
        charge.add_pieces(std::mem::take(&mut self.pieces));
        charge.taken(taken);
        (taken, error)
    }
}

impl Sender {
    /// Drops the postponed chains at `heads`, which count as not taken.
    fn drop_postponed(&mut self, queue: u16, heads: &[u16], reason: DropReason) {
        let Some(Some(queue)) = self.queues.get_mut(usize::from(queue)) else { return };
        heads.iter().for_each(|head| queue.ring.give_up(*head));
        self.counters.rx_packets += heads.len() as u64;
        self.counters.rx_drops.count_all(reason, heads.len() as u64);
    }
}

impl Senders {
    /// Notes that some segments of a waiting frame were delivered.
    #[cold]
    pub(crate) fn rule_out(&mut self, packet: PacketRef) {
        let queue = self.queue_mut(packet.ring()).filter(|_| !packet.is_detached());
        queue.into_iter().for_each(|queue| queue.postponement.rule_out(packet.head));
    }

    /// Corrects the outcome of a copy of this worker's packet. Another worker knows only the state of its own copy.
    pub(crate) fn corrected(&self, packet: PacketRef, outcome: Outcome) -> Outcome {
        let queue = || self.get(packet.port())?.queues.get(usize::from(packet.queue))?.as_ref();
        let is_possible = || {
            let is_guests = packet.port() != PortId::INTERNAL && !packet.is_detached();
            is_guests && queue().is_some_and(|queue| queue.postponement.is_possible(packet.head))
        };
        match outcome {
            Outcome::Wait if !is_possible() => Outcome::Drop(DropReason::Restart),
            outcome => outcome,
        }
    }

    /// Marks a chain to be taken again. Until then it counts as not taken.
    pub(crate) fn withdraw(&mut self, packet: PacketRef) {
        let Some(sender) = self.get_mut(packet.port()) else { return };
        let Some(Some(queue)) = sender.queues.get_mut(usize::from(packet.queue)) else { return };
        queue.table.release(packet.head);
        let Rank { frame_bytes, is_gso, .. } = queue.postponement.withdraw(packet.head);
        sender.counters.rx_packets -= 1;
        sender.counters.rx_bytes -= u64::from(frame_bytes);
        sender.counters.rx_gso_packets -= u64::from(is_gso);
    }

    /// Drops the postponed chains of `ring`, which stops.
    pub(crate) fn recall_postponed(&mut self, ring: RingId) {
        let Some(queue) = self.queue_mut(ring) else { return };
        let heads: Vec<u16> = queue.postponement.next.iter().copied().collect();
        if heads.is_empty() {
            return;
        }
        queue.resume(heads.len());
        self.drop_postponed(ring, &heads, DropReason::Recalled);
    }

    fn drop_postponed(&mut self, ring: RingId, heads: &[u16], reason: DropReason) {
        if let Some(sender) = self.get_mut(ring.port) {
            sender.drop_postponed(ring.queue, heads, reason);
        }
        self.note_completed(ring);
    }
}

impl Fabric {
    /// Number of packets that would be lost if this device ended now: those taken from transmit rings whose home is
    /// here and partly delivered, or detached.
    #[must_use]
    pub fn unpostponable(&self) -> usize {
        self.senders.queues().map(|(_, queue)| queue.unpostponable()).sum()
    }

    /// Records the order in which the present visit's packets were taken, since some of them wait.
    #[cold]
    pub(crate) fn rank_waiting(&mut self, ring: RingId) {
        if ring.port == PortId::INTERNAL || self.verdicts.lost() > 0 {
            return;
        }
        let mut copies = [0_u16; BATCH_PACKETS_MAX];
        self.verdicts.outputs().iter().for_each(|output| copies[usize::from(output.packet)] += 1);
        self.verdicts.upcalls().iter().for_each(|upcall| copies[usize::from(upcall.packet)] += 1);
        self.verdicts.drops().iter().for_each(|(packet, _)| copies[usize::from(*packet)] += 1);
        let Some(queue) = self.senders.queue_mut(ring) else { return };
        let packets = self.fetched.packets[..self.fetched.len].iter().zip(self.fetched.headers.iter());
        for ((packet, header), copies) in packets.zip(copies) {
            if copies == 1 {
                queue.postponement.rank(packet.head, header.frame_len_bytes(), header.offload.is_gso());
            }
        }
    }

    /// Returns all packets that wait for receive buffers to their homes, which postpone or drop them. Called once for
    /// all fabrics of a switch when none polls or serves a ring any more; then each has to [`Self::postpone`].
    pub fn withdraw(&mut self) {
        let rings: Vec<RingId> = self.receivers.rings().collect();
        for ring in rings {
            self.receivers.with_claim(ring, &mut tools!(self), |service| service.withdraw());
        }
        self.publish();
    }

    /// Writes the withdrawn chains into the ledgers of the rings whose home is here.
    pub fn postpone(&mut self) {
        self.take_returns();
        let rings: Vec<RingId> = self.senders.queues().map(|(ring, _)| ring).collect();
        for ring in rings {
            let lost = self.senders.queue_mut(ring).map(TxQueue::postpone).unwrap_or_default();
            if !lost.is_empty() {
                self.senders.drop_postponed(ring, &lost, DropReason::Restart);
            }
        }
        self.publish();
    }
}
