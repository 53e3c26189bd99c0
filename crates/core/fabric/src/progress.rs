//! Ring positions, for diagnosing a guest without network.

use crate::rx::service::Service;
use crate::{Fabric, RingId, Tools, tools};
use lasthop_module_api::PortId;

/// Positions of a ring, all modulo 65536. Two readings some time apart tell whether it moves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RingProgress {
    /// The driver's available index: heads made available.
    pub available: u16,
    /// Heads that the switch took.
    pub taken: u16,
    /// The used index: heads that the switch returned.
    pub used: u16,
    /// Packets that wait for this receive ring's buffers, or chains of this transmit ring that were taken and not
    /// returned.
    pub waiting: usize,
    /// The guest of a receive ring let packets expire and has not moved since.
    pub is_stalled: bool,
}

impl Fabric {
    /// The positions of virtqueue `index` of `port`. Only the home knows a transmit ring. `None` if it does not run
    /// here, or another worker has the claim: then it moves.
    pub fn ring_progress(&mut self, port: PortId, index: u16) -> Option<RingProgress> {
        let queue = index / 2;
        if index % 2 == 1 {
            return self.transmit_progress(port, queue);
        }
        self.hold(RingId { port, queue }, |service| {
            let claim = &mut service.claim;
            RingProgress {
                available: claim.ring.posted_position(),
                taken: claim.ring.taken_position(),
                used: claim.ring.published_position(),
                waiting: claim.waiting(),
                is_stalled: claim.is_stalled(),
            }
        })
    }

    /// The destination port of the last batch with outputs, and its receive queues that the batch went to, as bits. If
    /// there were several destinations, one of them; of several with more than one open queue, the queues of one are known.
    #[must_use]
    pub fn last_destination(&self) -> Option<(PortId, u64)> {
        let (port, (by_flow, queues)) = (self.verdicts.last_port()?, self.receivers.last_by_flow);
        let open = self.open_queues(port);
        let queues = if by_flow == port { queues & open } else { 0 };
        Some((port, if open.is_power_of_two() { open } else { queues }))
    }

    /// Receive queues of a port that take packets, as bits.
    #[must_use]
    pub fn open_queues(&self, port: PortId) -> u64 {
        self.receivers.board.receiving(port)
    }

    /// Holds the claim of a receive ring for some work. `None` if another worker has it.
    pub(crate) fn hold<R>(&mut self, at: RingId, work: impl FnOnce(&mut Service<'_, '_>) -> R) -> Option<R> {
        let result = self.receivers.with_claim(at, &mut tools!(self), work);
        // Releasing the claim may have served packets that other workers queued.
        self.publish();
        result
    }

    /// Whether the guest of a receive ring has not reacted to its last signal. False if another worker has the claim,
    /// since that one signals the guest.
    pub fn is_unheeded(&mut self, ring: RingId) -> bool {
        self.hold(ring, |service| service.claim.ring.is_unheeded()) == Some(true)
    }

    /// Whether the guest of a receive ring still wants a signal that was delayed. True if another worker has the claim.
    /// The caller looks for signals to others afterwards.
    pub fn wants_delayed_signal(&mut self, ring: RingId) -> bool {
        self.hold(ring, |service| service.claim.ring.wants_delayed_signal()) != Some(false)
    }

    /// Whether a transmit ring whose home is here has packets that a visit would take.
    #[must_use]
    pub fn is_posted(&self, ring: RingId) -> bool {
        let queue = self.senders.get(ring.port).and_then(|sender| sender.queues.get(usize::from(ring.queue)));
        let Some(Some(queue)) = queue else { return false };
        let is_open = queue.error.is_none() && !queue.closed && !queue.blocked;
        // The visit reports an error.
        is_open && (queue.postponement.is_due() || queue.ring.has_pending())
    }

    /// Number of chains that were taken from transmit rings whose home is here, and not returned.
    #[must_use]
    pub fn under_way(&self) -> usize {
        self.senders.taken()
    }

    fn transmit_progress(&self, port: PortId, queue: u16) -> Option<RingProgress> {
        let sender = self.senders.get(port)?;
        let tx = sender.queues.get(usize::from(queue))?.as_ref()?;
        Some(RingProgress {
            available: tx.ring.posted_position(),
            taken: tx.ring.taken_position(),
            used: tx.ring.published_position(),
            waiting: usize::from(tx.taken()),
            is_stalled: false,
        })
    }
}
