//! A worker's part in conversations: what its first packets after a sleep show, and the ring from which an answer is expected.

use lasthop_fabric::RingId;

use crate::answers::FirstPackets;
use crate::worker::Worker;

impl Worker {
    #[inline]
    pub(crate) fn note_first_packets(&mut self, ring: RingId) {
        self.first_packets.last = Some(ring);
        if self.first_packets.asker.is_none() {
            self.first_packets.asker = self.fabric.last_destination().map(|(port, _)| (ring, port));
        }
    }

    /// Begins a conversation after a long silence; returns the first of its active rings.
    pub(crate) fn begin_conversation(&mut self) -> Option<RingId> {
        self.first_packets = FirstPackets::default();
        self.active.get(0).map(|active| active.ring)
    }

    /// Polls a ring from which an answer is expected, if it is the home.
    pub(crate) fn expect_answer(&mut self, ring: RingId, now: u64) {
        if self.fabric.suppress_next_kick(ring) {
            self.stats.answers_expected += 1;
            self.activate(ring, now);
        }
    }
}
