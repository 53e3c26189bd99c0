//! Counters of ports and of hand-overs between workers, and the equation that they conserve.

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

/// Reasons that occurred, by name: a failed test names the cause.
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

/// Counters of a worker's hand-overs to others. All but wake-ups are counted once a batch at most, on paths
/// that a single worker never takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HandoffCounters {
    /// Batches for one receive ring that found another worker at it, and for longer than a short look.
    pub contended: u64,
    /// References that were left for that worker.
    pub left: u64,
    /// Packets that were copied without the ring's claim, side by side with others.
    pub leased: u64,
    /// References that came back from other workers.
    pub returned: u64,
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
    /// Those of them that were GSO frames.
    pub rx_gso_packets: u64,
    /// Packets that the switch itself put in: its own at the port `internal`, at others those that came back from the control plane.
    pub injected: u64,
    /// Copies beyond the first that floods made of this port's packets.
    pub copies_added: u64,
    /// Segments beyond the first that software segmentation made of them.
    pub segments_added: u64,
    /// Packets of this port that were delivered somewhere.
    pub forwarded: u64,
    /// Those of them that the control plane was handed.
    pub upcalls: u64,
    /// Packets of this port that were dropped, by reason.
    pub rx_drops: Drops,
    /// Flooded packets of this port that no port with a running guest was there for. A copy for a port that is down is not
    /// made, so only a packet without any other copy counts here.
    pub flooded_to_none: u64,
    /// References to packets of this port that wait for receive buffers now.
    pub waiting: u64,
    /// Packets of this port that were copied out of its guest's memory while they waited, since the guest is to get its chains back in
    /// order and others were completed behind them.
    pub detached: u64,
    /// Packets put into the guest's receive rings.
    pub tx_packets: u64,
    /// Their bytes, without virtio-net headers.
    pub tx_bytes: u64,
    /// Those of them that were GSO frames.
    pub tx_gso_packets: u64,
    /// Packets that were to go to this port and were dropped (each also in its sender's `rx_drops`).
    pub tx_drops: Drops,
    /// Checksums completed in software for this receiver.
    pub tx_csum_completed: u64,
    /// Call eventfds written.
    pub signals: u64,
}

impl PortCounters {
    /// Counts an attempt to deliver a copy; true if the copy needs its sender's memory no longer.
    #[inline]
    pub(crate) fn settle(&mut self, attempt: Attempt) -> bool {
        let delivered = u64::from(attempt.delivered);
        self.forwarded += delivered;
        self.segments_added += delivered;
        match attempt.outcome {
            Outcome::Wait => return false,
            // The copy itself was counted when it came in or was added; only the other segments are extra.
            Outcome::Done => self.segments_added -= 1,
            Outcome::Drop(reason) => self.rx_drops.count(reason),
            Outcome::ToNone => self.flooded_to_none += 1,
        }
        true
    }

    /// Adds another worker's counters of the port.
    ///
    /// Each worker changes its counters of both sides of a packet at once, at the packet's home. So sums over
    /// workers are conserved, at whatever moments the workers are read.
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

    /// Packets that came in, and copies and segments made of them.
    #[must_use]
    pub fn taken_in(&self) -> u64 {
        self.rx_packets + self.injected + self.copies_added + self.segments_added
    }

    /// Packets by their end: delivered, dropped, flooded to no port, or waiting.
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
