use lasthop_fabric::RingId;

/// A transmit ring that is visited without being kicked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ActiveRing {
    pub(crate) ring: RingId,
    /// When it last yielded a packet.
    pub(crate) worked_ns: u64,
}

/// The rings that are visited, in turn. A ring is either here or armed.
#[derive(Debug, Default)]
pub(crate) struct ActiveRings(Vec<ActiveRing>);

impl ActiveRings {
    /// Adds a ring; true if it was not here.
    pub(crate) fn add(&mut self, ring: RingId, now_ns: u64) -> bool {
        if self.0.iter().any(|active| active.ring == ring) {
            return false;
        }
        self.0.push(ActiveRing { ring, worked_ns: now_ns });
        true
    }

    pub(crate) fn remove(&mut self, ring: RingId) {
        self.0.retain(|active| active.ring != ring);
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn get(&self, index: usize) -> Option<ActiveRing> {
        self.0.get(index).copied()
    }

    /// The ring at `index` yielded a packet at `now_ns`.
    pub(crate) fn worked(&mut self, index: usize, now_ns: u64) {
        if let Some(active) = self.0.get_mut(index) {
            active.worked_ns = now_ns;
        }
    }
}
