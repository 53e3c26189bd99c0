//! The fast path of a lone packet: a visit that finds one usual chain needs no lists and no passes over a batch.
//!
//! Each step makes the same checks as the batch's step, with the same functions. If it finds anything unusual, it
//! leaves the packet to the batch's step before it changes any state.

use crate::stages::WorkStage;
use crate::tx::lone::LoneFetch;
use crate::{Fabric, RingId, Tools, tools};

impl Fabric {
    /// As [`Self::begin_visit`], if the ring is empty or has one usual chain. Otherwise `None`, and nothing has
    /// changed.
    #[inline]
    pub(crate) fn begin_lone_visit(&mut self, ring: RingId, now_ns: u64) -> Option<usize> {
        if self.senders.is_metered() || self.senders.is_tapped() || self.senders.metering.has_resting {
            return None;
        }
        self.mark(WorkStage::Other);
        match self.senders.fetch_lone(ring, &mut self.fetched) {
            LoneFetch::Taken => {}
            LoneFetch::Empty => {
                self.fetched.len = 0;
                self.mark(WorkStage::Parse);
                return Some(0);
            }
            LoneFetch::Unusual => return None,
        }
        self.mark(WorkStage::Parse);
        let common = self.decide(ring.port, now_ns);
        let is_done = common.is_some_and(|port| {
            self.receivers.accept_lone(port, &mut self.fetched, &mut tools!(self), now_ns)
        });
        if !is_done {
            self.switch(common, now_ns);
        }
        self.heed_verdicts(ring);
        Some(1)
    }
}
