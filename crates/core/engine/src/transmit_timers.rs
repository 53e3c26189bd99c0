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

use lasthop_fabric::RingId;
use lasthop_sched::TransmitRing;

/// A ring whose kicks stay suppressed though it is not active.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TimedRing {
    pub(crate) ring: RingId,
    pub(crate) visits: TransmitRing,
    pub(crate) due_ns: u64,
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

    /// Takes all rings if one of them is due; those that stay are added again.
    pub(crate) fn take_if_due(&mut self, now_ns: u64) -> Vec<TimedRing> {
        if self.due_ns().is_none_or(|due_ns| now_ns < due_ns) {
            return Vec::new();
        }
        self.has_event = false;
        std::mem::take(&mut self.rings)
    }

    /// Removes a ring that is active again, or stops.
    pub(crate) fn remove(&mut self, ring: RingId) {
        self.rings.retain(|timed| timed.ring != ring);
    }

    /// Adds a ring that is not here.
    pub(crate) fn add(&mut self, timed: TimedRing) {
        self.rings.push(timed);
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
        [timed(0, 500), timed(1, 400)].into_iter().for_each(|timed| timers.add(timed));
        assert_eq!((timers.due_ns(), timers.rings.len()), (Some(400), 2));
        timers.note_event();
        assert_eq!(timers.due_ns(), Some(0));
        timers.has_event = false;
        timers.remove(ring(1));
        assert_eq!(timers.due_ns(), Some(500));
        assert!(timers.take_if_due(499).is_empty());
        assert_eq!(timers.take_if_due(500), [timed(0, 500)]);
        assert_eq!(timers.due_ns(), None);
    }
}
