//! Kicks without packets. A guest may write its kick eventfds without end, and each write wakes a worker. So a worker
//! ignores the kicks of a ring for a while after several without a packet. Meanwhile it polls the ring with pauses
//! (`polled.rs`), like one without a kick descriptor.

use lasthop_module_api::PortId;

/// Kicks without a packet in a row after which a ring's kicks are ignored. An honest guest has one now and then: a
/// busy-polling worker takes its packets before it reads the kick.
const EMPTY_MAX: u8 = 8;
/// How long they are ignored the first time, in ns; the time doubles if it happens again.
const DEAF_NS_MIN: u64 = 10_000_000;
/// The longest such time, in ns. A guest that kicks without end causes eight wake-ups in each.
const DEAF_NS_MAX: u64 = 640_000_000;

/// How many kicks of a ring brought packets.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KickRecord {
    /// The ring's position at the last kick.
    position: Option<u16>,
    /// Number of kicks without a packet; halved at each kick that brought packets.
    empty: u8,
    deaf_ns: u64,
}

impl Default for KickRecord {
    fn default() -> Self {
        Self { position: None, empty: 0, deaf_ns: DEAF_NS_MIN }
    }
}

impl KickRecord {
    /// Notes a kick, and the ring's position if it is known: packets since the last kick belong to that one. Returns
    /// for how long, in ns, the ring's kicks have to be ignored, if at all.
    pub(crate) fn note(&mut self, position: Option<u16>) -> Option<u64> {
        if self.position != position || position.is_none() {
            *self = Self { position, empty: self.empty / 2, deaf_ns: DEAF_NS_MIN };
            return None;
        }
        self.empty += 1;
        if self.empty < EMPTY_MAX {
            return None;
        }
        self.empty = 0; // the first event afterwards is an old kick
        let deaf_ns = self.deaf_ns;
        self.deaf_ns = DEAF_NS_MAX.min(2 * deaf_ns);
        Some(deaf_ns)
    }
}

/// The rings whose kicks are ignored, by port and virtqueue index.
#[derive(Debug, Default)]
pub(crate) struct UnheardRings(Vec<UnheardRing>);

#[derive(Clone, Copy, Debug)]
struct UnheardRing {
    ring: (PortId, u16),
    until_ns: u64,
}

impl UnheardRings {
    /// Ignores the kicks of a ring until a time.
    pub(crate) fn add(&mut self, ring: (PortId, u16), until_ns: u64) {
        self.remove(ring);
        self.0.push(UnheardRing { ring, until_ns });
    }

    #[inline]
    pub(crate) fn contains(&self, ring: (PortId, u16)) -> bool {
        self.0.iter().any(|unheard| unheard.ring == ring)
    }

    /// Takes a ring whose kicks count again from now on.
    #[inline]
    pub(crate) fn next_due(&mut self, now_ns: u64) -> Option<(PortId, u16)> {
        let at = self.0.iter().position(|unheard| unheard.until_ns <= now_ns)?;
        Some(self.0.swap_remove(at).ring)
    }

    /// The time at which the next ring's kicks count again.
    pub(crate) fn due_ns(&self) -> Option<u64> {
        self.0.iter().map(|unheard| unheard.until_ns).min()
    }

    /// Removes a ring that stops.
    pub(crate) fn remove(&mut self, ring: (PortId, u16)) {
        self.0.retain(|unheard| unheard.ring != ring);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Notes `kicks` at one position; returns the times for which they are ignored, in ms.
    fn kick(record: &mut KickRecord, position: u16, kicks: usize) -> Vec<u64> {
        (0..kicks).filter_map(|_| record.note(Some(position))).map(|ns| ns / 1_000_000).collect()
    }

    #[test]
    fn kicks_without_packets_are_not_heard_for_ever_longer_times() {
        let mut record = KickRecord::default();
        assert_eq!(kick(&mut record, 0, 8), [], "the first one may be for packets");
        assert_eq!(kick(&mut record, 0, 65), [10, 20, 40, 80, 160, 320, 640, 640, 640]);
        assert_eq!(kick(&mut record, 1, 9), [10], "a packet came meanwhile");
    }

    #[test]
    fn kicks_that_bring_packets_are_heard() {
        let mut record = KickRecord::default();
        for position in 0..1000 {
            // Every second kick is for packets that were taken before it.
            assert_eq!(kick(&mut record, position, 2), []);
        }
        let heard = (0..100).all(|position| kick(&mut record, position, 10).is_empty());
        assert!(!heard, "one packet in ten kicks is too few");
    }

    #[test]
    fn a_ring_is_heard_again_when_its_time_is_over() {
        let (one, other) = ((PortId(1), 1), (PortId(1), 3));
        let mut unheard = UnheardRings::default();
        unheard.add(one, 100);
        unheard.add(other, 50);
        unheard.add(one, 200);
        assert_eq!((unheard.due_ns(), unheard.next_due(49)), (Some(50), None));
        assert_eq!((unheard.next_due(50), unheard.next_due(199)), (Some(other), None));
        assert!(unheard.contains(one) && !unheard.contains(other));
        unheard.remove(one);
        assert_eq!((unheard.due_ns(), unheard.next_due(200)), (None, None));
    }
}
