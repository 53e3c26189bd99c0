//! Transmit timers: while a sender runs it does not kick, and its quiet ring is visited by a timer, or when one of its
//! threads goes to sleep (Hyper-Switch, 3.3 and 3.5): `lasthop_sched::transmit`.
//!
//! ```text
//!   active ring, quiet ──transmit: arm────────────> armed: its next packet is kicked
//!                      └─transmit: a time─> timed ─┬─ packets at a visit ──────────────> active
//!                                                  └─ the sender sleeps, or sends no more ──> armed
//! ```
//!
//! Only rings whose packets are close together get a timer: the gaps between a packet and the next one, after a ring was
//! empty, are averaged for each ring.
//!
//! A visit is due 50 us after the last one, or when the kernel reports that a thread of the sender went to sleep. That
//! event may be missing; the timer is the bound.

use std::collections::HashMap;

use lasthop_fabric::RingId;
use lasthop_sched::{TransmitRing, mean_gap_ns};

/// A ring whose kicks stay suppressed though it is not active.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TimedRing {
    pub(crate) ring: RingId,
    pub(crate) visits: TransmitRing,
    pub(crate) due_ns: u64,
}

/// The pace of a sender: how close together its packets are.
#[derive(Clone, Copy, Debug, Default)]
struct Pace {
    /// When its last packet came, while the ring is empty.
    worked_ns: Option<u64>,
    /// Unknown before the first gap.
    gap_ns: Option<u64>,
}

/// The timed rings of a worker. Each of its transmit rings is active, timed or armed.
#[derive(Debug, Default)]
pub(crate) struct TransmitTimers {
    rings: Vec<TimedRing>,
    /// Of the rings that were active since decisions were first asked for; at most one for each transmit ring.
    paces: HashMap<RingId, Pace>,
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

    /// A ring is active again, at the time of a packet.
    pub(crate) fn note_active(&mut self, ring: RingId, now_ns: u64) {
        self.rings.retain(|timed| timed.ring != ring);
        if let Some(pace) = self.paces.get_mut(&ring)
            && let Some(worked_ns) = pace.worked_ns.take()
        {
            pace.gap_ns = Some(mean_gap_ns(pace.gap_ns, now_ns.saturating_sub(worked_ns)));
        }
    }

    /// A ring is not active any more: it is empty since the packet of `worked_ns`.
    pub(crate) fn note_quiet(&mut self, ring: RingId, worked_ns: u64) {
        self.paces.entry(ring).or_default().worked_ns = Some(worked_ns);
    }

    /// The average time until the next packet of an empty ring.
    pub(crate) fn gap_ns(&self, ring: RingId) -> u64 {
        self.paces.get(&ring).and_then(|pace| pace.gap_ns).unwrap_or(u64::MAX)
    }

    /// Forgets a ring that stops.
    pub(crate) fn forget(&mut self, ring: RingId) {
        self.rings.retain(|timed| timed.ring != ring);
        self.paces.remove(&ring);
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
            visits: TransmitRing { visited_ns: 0, worked_ns: 0, gap_ns: 0 },
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
        timers.note_active(ring(1), 450);
        assert_eq!(timers.due_ns(), Some(500));
        assert!(timers.take_if_due(499).is_empty());
        assert_eq!(timers.take_if_due(500), [timed(0, 500)]);
        assert_eq!(timers.due_ns(), None);
    }

    #[test]
    fn gaps_are_between_a_packet_and_the_next_one() {
        let ring = RingId { port: PortId(1), queue: 0 };
        let mut timers = TransmitTimers::default();
        timers.note_active(ring, 100);
        timers.note_quiet(ring, 200);
        assert_eq!(timers.gap_ns(ring), u64::MAX, "none is known yet");
        timers.note_active(ring, 1000);
        timers.note_active(ring, 5000);
        assert_eq!(timers.gap_ns(ring), 800);
        timers.note_quiet(ring, 6000);
        timers.forget(ring);
        assert!(timers.paces.is_empty());
    }
}
