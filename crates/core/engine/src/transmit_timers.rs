//! Transmit timers: while a sender runs it does not kick, and its quiet ring is visited by a timer, or when one of its
//! threads goes to sleep (Hyper-Switch, 3.3 and 3.5): `lasthop_sched::transmit`.
//!
//! ```text
//!   active ring, quiet ──transmit: arm────────────> armed: its next packet is kicked
//!                      └─transmit: a time─> timed ─┬─ packets at a visit ──────────────> active
//!                                                  └─ the sender sleeps, or sends no more ──> armed
//! ```
//!
//! A visit is due 50 us after the last one, or when the kernel reports that a thread of the sender went to sleep. That
//! event may be missing; the timer is the bound.

use lasthop_fabric::{ActiveRing, RingId};
use lasthop_sched::{Transmit, TransmitRing};

use crate::worker::Worker;

/// A ring whose kicks stay suppressed though it is not active.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct TimedRing {
    ring: RingId,
    visits: TransmitRing,
    due_ns: u64,
}

/// The timed rings of a worker. Each of its transmit rings is active, timed or armed.
#[derive(Debug, Default)]
pub(crate) struct TransmitTimers {
    rings: Vec<TimedRing>,
    /// Whether a thread went to sleep since the last visit.
    has_event: bool,
}

impl TransmitTimers {
    /// Notes that a thread went to sleep, or that decisions may differ from now on.
    pub(crate) fn note_event(&mut self) {
        self.has_event = true;
    }

    /// The time of the next visit; 0 after an event.
    pub(crate) fn due_ns(&self) -> Option<u64> {
        let due_ns = self.rings.iter().map(|timed| timed.due_ns).min();
        due_ns.map(|due_ns| if self.has_event { 0 } else { due_ns })
    }

    /// Removes a ring that is active again, or stops.
    pub(crate) fn remove(&mut self, ring: RingId) {
        self.rings.retain(|timed| timed.ring != ring);
    }

    fn add(&mut self, timed: TimedRing) {
        self.remove(timed.ring);
        self.rings.push(timed);
    }
}

impl Worker {
    /// Whether a quiet active ring, which has no packets now, gets a timer instead of kicks.
    pub(crate) fn is_to_be_timed(&mut self, active: ActiveRing, now: u64) -> bool {
        let ring = active.ring;
        if !self.scheduling.times_transmits() || self.must_poll(ring) || self.fabric.is_posted(ring) {
            return false;
        }
        let visits = TransmitRing { visited_ns: now, worked_ns: active.worked_ns };
        match self.scheduling.transmit(visits, ring.port, self.number(), now) {
            Transmit::VisitBy(due_ns) => {
                self.scheduling.note_timed(now, ring.port);
                self.timers.add(TimedRing { ring, visits, due_ns });
                true
            }
            Transmit::Arm | Transmit::Visit => false,
        }
    }

    /// Visits the timed rings that are due.
    #[inline]
    pub(crate) fn visit_timed(&mut self, now: u64) {
        if self.timers.due_ns().is_some_and(|due_ns| now >= due_ns) {
            self.timers.has_event = false;
            for timed in std::mem::take(&mut self.timers.rings) {
                self.visit_timed_ring(timed, now);
            }
        }
    }

    fn visit_timed_ring(&mut self, mut timed: TimedRing, now: u64) {
        let (ring, worker) = (timed.ring, self.number());
        let mut decision = self.scheduling.transmit(timed.visits, ring.port, worker, now);
        if decision == Transmit::Visit {
            let is_posted = self.fabric.is_posted(ring);
            self.scheduling.note_timed_visit(now, ring.port, is_posted);
            if is_posted {
                self.activate(ring, now);
                return;
            }
            timed.visits.visited_ns = now;
            decision = self.scheduling.transmit(timed.visits, ring.port, worker, now);
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

#[cfg(test)]
mod tests {
    use lasthop_module_api::PortId;

    use super::*;

    #[test]
    fn a_ring_is_due_at_its_time_or_after_an_event() {
        let ring = |queue| RingId { port: PortId(1), queue };
        let timed = |queue, due_ns| TimedRing {
            ring: ring(queue),
            visits: TransmitRing { visited_ns: 0, worked_ns: 0 },
            due_ns,
        };
        let mut timers = TransmitTimers::default();
        timers.note_event();
        assert_eq!(timers.due_ns(), None, "there is no ring");
        timers.has_event = false;
        [timed(0, 500), timed(1, 300), timed(1, 400)].into_iter().for_each(|timed| timers.add(timed));
        assert_eq!((timers.due_ns(), timers.rings.len()), (Some(400), 2));
        timers.note_event();
        assert_eq!(timers.due_ns(), Some(0));
        timers.has_event = false;
        timers.remove(ring(1));
        assert_eq!(timers.due_ns(), Some(500));
    }
}
