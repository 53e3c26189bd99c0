//! Hashes of packets from their sender: untrusted hints.

use lasthop_wire::PacketHash;

use crate::BATCH_PACKETS_MAX;

/// The hashes of a batch's packets as their sender tells them: untrusted hints, good for where to look and nothing else.
#[derive(Clone, Debug)]
pub struct Hashes {
    /// Packets with hashes from their sender: all of a batch, or none.
    told: usize,
    hashes: [PacketHash; BATCH_PACKETS_MAX],
}

impl Hashes {
    /// For packets without hashes.
    pub const NONE: Self = Self { told: 0, hashes: [PacketHash::NONE; BATCH_PACKETS_MAX] };

    /// Forgets all.
    #[inline]
    pub fn clear(&mut self) {
        self.told = 0;
    }

    /// Sets the hash of packet `index`; the packets before it have theirs. Beyond a batch: nothing.
    #[inline]
    pub fn tell(&mut self, index: usize, hash: PacketHash) {
        if let Some(place) = self.hashes.get_mut(index) {
            *place = hash;
            self.told = index + 1;
        }
    }

    /// The hash of packet `index`, if its sender knows one.
    #[inline]
    #[must_use]
    pub fn get(&self, index: usize) -> Option<PacketHash> {
        let told = self.hashes.get(..self.told)?;
        told.get(index).copied().filter(PacketHash::is_known)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_are_kept_until_they_are_cleared() {
        let hash = |value| PacketHash { value, covers: 2, ..PacketHash::NONE };
        let mut hashes = Hashes::NONE;
        assert_eq!(hashes.get(0), None);
        hashes.tell(0, hash(5));
        hashes.tell(1, PacketHash::NONE);
        hashes.tell(2, hash(6));
        let got: Vec<_> = (0..4).map(|index| hashes.get(index)).collect();
        assert_eq!(got, [Some(hash(5)), None, Some(hash(6)), None]);
        hashes.tell(BATCH_PACKETS_MAX, hash(7));
        assert_eq!(hashes.get(BATCH_PACKETS_MAX), None);
        hashes.clear();
        assert_eq!(hashes.get(0), None);
        hashes.tell(0, hash(8));
        assert_eq!((hashes.get(0), hashes.get(2)), (Some(hash(8)), None));
    }
}
