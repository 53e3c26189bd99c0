//! The rings that left a worker while packets of theirs wait for receivers.

use crate::RingId;
use crate::reference::PacketRef;

/// A copy that an old home has counted; the new home settles its chain.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SettledCopy {
    pub(crate) packet: PacketRef,
    /// A slow receiver dropped it.
    pub(crate) is_slow: bool,
}

/// The rings that left a worker while packets of theirs that it took are not finished. Both lists are bounded by
/// `LENT_PACKETS_MAX`: each entry stands for packets that the worker has lent.
#[derive(Debug, Default)]
pub(crate) struct Moved {
    rings: Vec<MovedRing>,
    /// Copies that are counted, and the homes of their rings, which do not know yet.
    settled: Vec<(u8, SettledCopy)>,
}

#[derive(Clone, Copy, Debug)]
struct MovedRing {
    ring: RingId,
    home: u8,
    /// Copies that still wait.
    left: u32,
}

impl Moved {
    /// Notes that `ring` leaves for worker `home`, while `left` of its copies wait.
    pub(crate) fn leave(&mut self, ring: RingId, home: u8, left: u32) {
        if left > 0 {
            self.rings.push(MovedRing { ring, home, left });
        }
    }

    /// Whether the ring of a packet of this worker has moved away.
    #[inline]
    pub(crate) fn is_of_one(&self, packet: PacketRef) -> bool {
        !self.rings.is_empty() && self.rings.iter().any(|moved| moved.ring == packet.ring())
    }

    /// The homes that have to be told of settled copies, as bits.
    #[inline]
    pub(crate) fn told(&self) -> u64 {
        self.settled.iter().fold(0, |bits, (home, _)| bits | 1 << home)
    }

    /// Notes that a copy is counted. Returns the home of its ring.
    pub(crate) fn settle(&mut self, packet: PacketRef, is_slow: bool) -> Option<u8> {
        let at = self.rings.iter().position(|moved| moved.ring == packet.ring())?;
        let moved = &mut self.rings[at];
        let home = moved.home;
        moved.left -= 1;
        if moved.left == 0 {
            self.rings.swap_remove(at);
        }
        self.settled.push((home, SettledCopy { packet, is_slow }));
        Some(home)
    }

    /// Takes the counted copies of one home's rings, and its number.
    pub(crate) fn take_settled(&mut self) -> Option<(u8, Vec<SettledCopy>)> {
        let home = self.settled.first()?.0;
        let of_home = self.settled.extract_if(.., |(to, _)| *to == home).map(|(_, copy)| copy).collect();
        Some((home, of_home))
    }
}
