//! When to poll quiet transmit rings whose guests never kick (vhost-user, `VHOST_USER_VRING_NOFD_MASK`), or whose kicks
//! are ignored for a while.

use lasthop_fabric::RingId;

/// Pause between two polls of a quiet ring without kick descriptor, or of one that packets wait for: this takes a few
/// percent of a core.
pub(crate) const UNKICKED_NS: u64 = 100_000;
/// The first pause of a transmit ring that has just become quiet; each further one is twice as long.
const PAUSE_NS_MIN: u64 = 6_250;

/// Quiet rings and their pauses.
#[derive(Debug, Default)]
pub(crate) struct PolledRings(Vec<Pause>);

#[derive(Clone, Copy, Debug)]
struct Pause {
    ring: RingId,
    pause_ns: u64,
    due_ns: u64,
}

/// The end of a pause that begins now: at a multiple of its length, so that many rings cause no more wake-ups than one.
fn end_ns(now_ns: u64, pause_ns: u64) -> u64 {
    (now_ns / pause_ns + 1) * pause_ns
}

impl PolledRings {
    /// Adds a ring that has become quiet.
    pub(crate) fn add(&mut self, ring: RingId, now_ns: u64) {
        if self.0.iter().all(|pause| pause.ring != ring) {
            self.0.push(Pause { ring, pause_ns: PAUSE_NS_MIN, due_ns: end_ns(now_ns, PAUSE_NS_MIN) });
        }
    }

    /// Takes a ring that has to be polled now; its next pause is longer.
    pub(crate) fn next_due(&mut self, now_ns: u64) -> Option<RingId> {
        let pause = self.0.iter_mut().find(|pause| pause.due_ns <= now_ns)?;
        pause.pause_ns = UNKICKED_NS.min(2 * pause.pause_ns);
        pause.due_ns = end_ns(now_ns, pause.pause_ns);
        Some(pause.ring)
    }

    /// The time of the next poll.
    pub(crate) fn due_ns(&self) -> Option<u64> {
        self.0.iter().map(|pause| pause.due_ns).min()
    }

    /// Removes a ring that is active again, or stops.
    pub(crate) fn remove(&mut self, ring: RingId) {
        self.0.retain(|pause| pause.ring != ring);
    }
}

#[cfg(test)]
mod tests {
    use lasthop_module_api::PortId;

    use super::*;

    #[test]
    fn pauses_grow_up_to_their_bound() {
        let ring = RingId { port: PortId(1), queue: 0 };
        let (mut polled, mut now_ns, mut looks) = (PolledRings::default(), 0, Vec::new());
        polled.add(ring, now_ns);
        polled.add(ring, now_ns + 1);
        for _ in 0..7 {
            let due_ns = polled.due_ns().unwrap();
            assert_eq!(polled.next_due(due_ns - 1), None);
            assert_eq!((polled.next_due(due_ns), polled.next_due(due_ns)), (Some(ring), None));
            looks.push(due_ns - std::mem::replace(&mut now_ns, due_ns));
        }
        assert_eq!(looks, [6_250, 6_250, 12_500, 25_000, 50_000, 100_000, 100_000]);
        polled.remove(ring);
        assert_eq!(polled.due_ns(), None);
    }

    #[test]
    fn many_rings_are_looked_at_together() {
        let rings = (0..32_u16).map(|queue| RingId { port: PortId(1), queue });
        let (mut polled, mut wakes) = (PolledRings::default(), 0);
        rings.clone().for_each(|ring| polled.add(ring, 777 * u64::from(ring.queue)));
        let mut now_ns = 0;
        while now_ns < 1_000_000 {
            now_ns = polled.due_ns().unwrap();
            wakes += 1;
            while polled.next_due(now_ns).is_some() {}
        }
        assert!(wakes <= 20, "{wakes} wake-ups");
        assert_eq!(polled.0.len(), rings.len());
    }
}
