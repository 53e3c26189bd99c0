//! Hashes of packets from their sender: untrusted hints.

use lasthop_wire::PacketHash;

use crate::BATCH_PACKETS_MAX;

/// The hashes that a sender supplied for a batch's packets: untrusted hints, which may only select where to look.
#[derive(Clone, Debug)]
pub struct Hashes {
    /// Number of packets with hashes: all of a batch, or none.
    told: usize,
    hashes: [PacketHash; BATCH_PACKETS_MAX],
}

impl Hashes {
    /// Returns hashes for packets without any.
    pub const NONE: Self = Self { told: 0, hashes: [PacketHash::NONE; BATCH_PACKETS_MAX] };

    /// Clears the hashes.
    #[inline]
    pub fn clear(&mut self) {
        self.told = 0;
    }

    /// Sets the hash of packet `index`; all packets before it already have one. Indices beyond a batch are ignored.
    #[inline]
    pub fn tell(&mut self, index: usize, hash: PacketHash) {
        if let Some(place) = self.hashes.get_mut(index) {
            *place = hash;
            self.told = index + 1;
        }
    }

    /// The hash of packet `index`, if its sender supplied one.
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
