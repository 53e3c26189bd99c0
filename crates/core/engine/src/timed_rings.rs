//! A worker's decisions about transmit rings with timers (`transmit_timers.rs`).

use lasthop_fabric::{ActiveRing, RingId};
use lasthop_sched::{Transmit, TransmitRing};

use crate::transmit_timers::TimedRing;
use crate::worker::Worker;

impl Worker {
    /// Whether a quiet active ring, which has no packets now, gets a timer instead of kicks.
    pub(crate) fn is_to_be_timed(&mut self, active: ActiveRing, now: u64) -> bool {
        let ring = active.ring;
        if !self.scheduling.times_transmits() || self.must_poll(ring) || self.fabric.is_posted(ring) {
            return false;
        }
        let visits = TransmitRing { visited_ns: now, worked_ns: active.worked_ns };
        let (decision, judged) = self.scheduling.transmit(visits, ring.port, self.number(), now);
        match decision {
            Transmit::VisitBy(due_ns) => {
                self.scheduling.note_timed(now, ring.port, judged);
                self.timers.add(TimedRing { ring, visits, due_ns });
                true
            }
            Transmit::Arm | Transmit::Visit => false,
        }
    }

    /// Visits the timed rings that are due.
    #[inline]
    pub(crate) fn visit_timed(&mut self, now: u64) {
        for timed in self.timers.take_if_due(now) {
            self.visit_timed_ring(timed, now);
        }
    }

    fn visit_timed_ring(&mut self, mut timed: TimedRing, now: u64) {
        let (ring, worker) = (timed.ring, self.number());
        let (mut decision, judged) = self.scheduling.transmit(timed.visits, ring.port, worker, now);
        if decision == Transmit::Visit {
            let is_posted = self.fabric.is_posted(ring);
            self.scheduling.note_timed_visit(now, ring.port, judged, is_posted);
            if is_posted {
                self.activate(ring, now);
                return;
            }
            timed.visits.visited_ns = now;
            (decision, _) = self.scheduling.transmit(timed.visits, ring.port, worker, now);
        }
        match decision {
            Transmit::VisitBy(due_ns) => self.timers.add(TimedRing { due_ns, ..timed }),
            Transmit::Arm | Transmit::Visit => self.arm_timed(ring, now),
        }
    }

    fn arm_timed(&mut self, ring: RingId, now: u64) {
        if self.fabric.arm(ring) {
            self.activate(ring, now);
        } else if self.must_poll(ring) {
            self.polled.add(ring, now);
        }
    }
}
