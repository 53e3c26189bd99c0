//! Counters of ports and of hand-overs between workers, and the equation that ports' counters fulfil.

use std::fmt;

use lasthop_module_api::DropReason;

use crate::reference::{Attempt, Outcome};

/// Drop counters of one direction, one per [`DropReason`].
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Drops([u64; DropReason::ALL.len()]);

impl Default for Drops {
    fn default() -> Self {
        Self([0; DropReason::ALL.len()])
    }
}

/// Prints only reasons that occurred, so that a failed test names the cause.
impl fmt::Debug for Drops {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.nonzero().map(|(reason, count)| (reason.name(), count))).finish()
    }
}

impl Drops {
    /// Counts one packet.
    #[inline]
    pub fn count(&mut self, reason: DropReason) {
        self.0[reason as usize] += 1;
    }

    /// Counts several packets.
    pub fn count_all(&mut self, reason: DropReason, packets: u64) {
        self.0[reason as usize] += packets;
    }

    /// Adds another worker's counts.
    pub fn merge(&mut self, other: &Self) {
        self.0.iter_mut().zip(other.0).for_each(|(count, more)| *count += more);
    }

    /// All counts, in the order of [`DropReason::ALL`].
    pub(crate) fn all(&self) -> &[u64] {
        &self.0
    }

    /// Packets dropped for `reason`.
    #[must_use]
    pub fn of(&self, reason: DropReason) -> u64 {
        self.0[reason as usize]
    }

    /// Packets dropped for any reason.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    /// Reasons that occurred, with their counts.
    pub fn nonzero(&self) -> impl Iterator<Item = (DropReason, u64)> + '_ {
        DropReason::ALL.iter().map(|&reason| (reason, self.of(reason))).filter(|(_, count)| *count > 0)
    }
}

/// Counters of a worker's hand-overs to others. All but wake-ups are counted at most once per batch, on paths that a
/// single worker never takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HandoffCounters {
    /// Batches for which another worker held the receive ring's claim for longer than the short wait.
    pub contended: u64,
    /// References that were queued for that worker.
    pub left: u64,
    /// Packets that were copied without the ring's claim.
    pub leased: u64,
    /// Large frames that were copied in turns with a helper or its home, without the claim.
    pub shared: u64,
    /// References that other workers returned.
    pub returned: u64,
    /// Flows that went to the receive queue of the transmit queue from which their guest sends them.
    pub steered: u64,
}

/// Counters of the packets of one port. "rx" is from the guest to the switch, "tx" from the switch to the
/// guest. Every packet is accounted to its input port. Packets delivered to a port, or lost on the way to it,
/// are counted there too, outside the equation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortCounters {
    /// Packets taken from the guest's transmit rings.
    pub rx_packets: u64,
    /// Their bytes, without virtio-net headers and without invalid frames.
    pub rx_bytes: u64,
    /// GSO frames among them.
    pub rx_gso_packets: u64,
    /// Injected packets: at the port `internal` the switch's own, at other ports those that came back from the control
    /// plane.
    pub injected: u64,
    /// Copies beyond the first that floods made of this port's packets.
    pub copies_added: u64,
    /// Segments beyond the first that software segmentation made of them.
    pub segments_added: u64,
    /// Packets of this port that were delivered.
    pub forwarded: u64,
    /// Those of them that went to the control plane.
    pub upcalls: u64,
    /// Packets of this port that were dropped, by reason.
    pub rx_drops: Drops,
    /// Flooded packets of this port for which no receiving port had a running guest. A copy for a port that is down is
    /// not made, so only a packet without any other copy counts here.
    pub flooded_to_none: u64,
    /// References to packets of this port that currently wait for receive buffers.
    pub waiting: u64,
    /// Packets of this port that were copied out of its guest's memory while they waited, since they held back
    /// completed chains and the guest wants its chains in order.
    pub detached: u64,
    /// Packets put into the guest's receive rings.
    pub tx_packets: u64,
    /// Their bytes, without virtio-net headers.
    pub tx_bytes: u64,
    /// GSO frames among them.
    pub tx_gso_packets: u64,
    /// Packets for this port that were dropped; each also counts in its sender's `rx_drops`.
    pub tx_drops: Drops,
    /// Checksums completed in software for this receiver.
    pub tx_csum_completed: u64,
    /// Call eventfds written.
    pub signals: u64,
}

impl PortCounters {
    /// Counts an attempt to deliver a copy. True if the copy no longer needs its sender's memory.
    #[inline]
    pub(crate) fn settle(&mut self, attempt: Attempt) -> bool {
        let delivered = u64::from(attempt.delivered);
        self.forwarded += delivered;
        self.segments_added += delivered;
        match attempt.outcome {
            Outcome::Wait => return false,
            // The copy itself was counted when it was received or added; only the further segments are extra.
            Outcome::Done => self.segments_added -= 1,
            Outcome::Drop(reason) => self.rx_drops.count(reason),
            Outcome::ToNone => self.flooded_to_none += 1,
        }
        true
    }

    /// Adds another worker's counters of the port.
    ///
    /// The packet's home changes the counters of both sides at once. So sums over workers are conserved, whenever each
    /// worker is read.
    pub fn merge(&mut self, other: &Self) {
        self.rx_packets += other.rx_packets;
        self.rx_bytes += other.rx_bytes;
        self.rx_gso_packets += other.rx_gso_packets;
        self.injected += other.injected;
        self.copies_added += other.copies_added;
        self.segments_added += other.segments_added;
        self.forwarded += other.forwarded;
        self.upcalls += other.upcalls;
        self.rx_drops.merge(&other.rx_drops);
        self.flooded_to_none += other.flooded_to_none;
        self.waiting += other.waiting;
        self.detached += other.detached;
        self.tx_packets += other.tx_packets;
        self.tx_bytes += other.tx_bytes;
        self.tx_gso_packets += other.tx_gso_packets;
        self.tx_drops.merge(&other.tx_drops);
        self.tx_csum_completed += other.tx_csum_completed;
        self.signals += other.signals;
    }

    /// Packets received, and copies and segments made of them.
    #[must_use]
    pub fn taken_in(&self) -> u64 {
        self.rx_packets + self.injected + self.copies_added + self.segments_added
    }

    /// Packets by outcome: delivered, dropped, flooded to none, or waiting.
    #[must_use]
    pub fn accounted_for(&self) -> u64 {
        self.forwarded + self.rx_drops.total() + self.flooded_to_none + self.waiting
    }

    /// received + copies added + segments added + injected = delivered + dropped for a reason + flooded to none + waiting.
    #[must_use]
    pub fn is_conserved(&self) -> bool {
        self.taken_in() == self.accounted_for()
    }
}
