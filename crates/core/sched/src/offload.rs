//! Offload: the receiver copies packets that were switched to it, or an idle CPU does (Hyper-Switch, 3.4 "Offloading Packet
//! Processing").
//!
//! ```text
//!   switched packets ──> receiver runs:    small ones: receiver     large ones: idle CPU
//!                        receiver sleeps:  the first K: receiver    the rest: idle CPU, unless small
//! ```

/// Packets that were switched to one receiver and are not copied yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PendingCopies {
    /// Number of packets.
    pub packets: u32,
    /// Their bytes.
    pub bytes: u64,
    /// Whether the receiver sleeps, and is signalled now.
    pub is_receiver_blocked: bool,
}

/// When copies are offloaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OffloadCriteria {
    /// Packets with fewer bytes on average are never offloaded: the message to the other CPU, and the lines that go there
    /// and back, cost more than the copy. The paper has no number.
    pub packet_bytes_min: u32,
    /// The same for packets whose checksum is completed while they are copied, if it is less; `u32::MAX`: no other bound.
    pub summed_bytes_min: u32,
    /// The same for packets that are copied to a receiver without a common last-level cache, if it is less; `u32::MAX`: no
    /// other bound.
    pub far_bytes_min: u32,
    /// Packets that a receiver which is woken copies itself, so that it can start ("a bounded number", 3.4). The paper
    /// has no number.
    pub blocked_packets_max: u32,
    /// Packets that one idle CPU may have to copy at a time. The caller passes what is left of it. The paper's buffers of
    /// orders are small, without a number.
    pub helper_packets_max: u32,
}

impl Default for OffloadCriteria {
    /// A frame of the usual MTU counts as small. Two packets keep a woken receiver busy while the other CPU wakes up. A CPU
    /// may have any number of packets to copy; docs/results/lab.md shows the gain of a bound.
    fn default() -> Self {
        Self {
            packet_bytes_min: 2048,
            summed_bytes_min: u32::MAX,
            far_bytes_min: u32::MAX,
            blocked_packets_max: 2,
            helper_packets_max: u32::MAX,
        }
    }
}

/// Why a copy costs more than its bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CopyKind {
    /// Its checksum is completed meanwhile.
    pub is_summed: bool,
    /// The CPU that copies and the receiver's share no last-level cache.
    pub is_far: bool,
}

impl OffloadCriteria {
    /// The criteria for copies of a kind, as the length from which on they are offloaded.
    #[must_use]
    pub fn of_kind(self, kind: CopyKind) -> Self {
        let summed = if kind.is_summed { self.summed_bytes_min } else { u32::MAX };
        let far = if kind.is_far { self.far_bytes_min } else { u32::MAX };
        Self { packet_bytes_min: self.packet_bytes_min.min(summed).min(far), ..self }
    }

    /// The length below which no packet is offloaded, of whatever kind.
    #[must_use]
    pub fn bytes_min(self) -> u32 {
        self.of_kind(CopyKind { is_summed: true, is_far: true }).packet_bytes_min
    }
}

/// The division of pending copies. The receiver's packets are the earlier ones, so the order of packets stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyShares {
    /// Packets that the receiver copies.
    pub receiver: u32,
    /// Packets that an idle CPU copies.
    pub helper: u32,
}

/// Visits after which the frames of a port may go to another helper: its turn for [`spread`](crate::spread()).
pub const HELPER_TURN_VISITS: u64 = 1024;

/// How many of a visit's copies its home shares with a helper; `None`: none. `waiting`: packets that wait for their copies
/// already. One frame alone is not shared.
///
/// The first frame that either of the two copies is published at once, so a receiver that sleeps is woken early without
/// further measures.
#[must_use]
pub fn share_of_home(packets: u32, bytes: u64, waiting: u32, criteria: OffloadCriteria) -> Option<u32> {
    let pending = PendingCopies { packets, bytes, is_receiver_blocked: false };
    let room = criteria.helper_packets_max.saturating_sub(waiting);
    Some(offload(&pending, room, criteria).helper).filter(|shared| *shared > 1)
}

/// Divides pending copies. `helper_room`: packets that the CPU which [`place`](crate::place()) found may still take; 0 if
/// there is none.
#[must_use]
pub fn offload(pending: &PendingCopies, helper_room: u32, criteria: OffloadCriteria) -> CopyShares {
    let is_small = pending.bytes < u64::from(pending.packets) * u64::from(criteria.packet_bytes_min);
    let offloadable = if is_small {
        0
    } else if pending.is_receiver_blocked {
        pending.packets.saturating_sub(criteria.blocked_packets_max)
    } else {
        pending.packets
    };
    let helper = offloadable.min(helper_room);
    CopyShares { receiver: pending.packets - helper, helper }
}

/// A hash of a port and a turn, for the argument `spread` of [`place`](crate::place()): equal ports do not always meet
/// the same CPU. The multiplier is that of Fibonacci hashing (Knuth, volume 3, 6.4).
#[must_use]
pub fn spread(port: u16, turn: u32) -> u32 {
    (u32::from(port) ^ turn.rotate_left(16)).wrapping_mul(0x9e37_79b1) >> 16
}

#[cfg(test)]
mod tests {
    use super::*;

    const LARGE: PendingCopies = PendingCopies { packets: 8, bytes: 8 * 65_000, is_receiver_blocked: false };

    #[test]
    fn small_packets_are_never_offloaded() {
        let small = PendingCopies { bytes: 8 * 1514, ..LARGE };
        for is_receiver_blocked in [false, true] {
            let pending = PendingCopies { is_receiver_blocked, ..small };
            let shares = offload(&pending, u32::MAX, OffloadCriteria::default());
            assert_eq!(shares, CopyShares { receiver: 8, helper: 0 });
        }
    }

    #[test]
    fn a_sleeping_receiver_copies_the_first_few() {
        let asleep = PendingCopies { is_receiver_blocked: true, ..LARGE };
        let criteria = OffloadCriteria::default();
        assert_eq!(offload(&asleep, 100, criteria), CopyShares { receiver: 2, helper: 6 });
        let one = PendingCopies { packets: 1, bytes: 65_000, ..asleep };
        assert_eq!(offload(&one, 100, criteria), CopyShares { receiver: 1, helper: 0 });
        assert_eq!(offload(&LARGE, 8, criteria), CopyShares { receiver: 0, helper: 8 });
        assert_eq!(
            offload(&LARGE, 3, criteria),
            CopyShares { receiver: 5, helper: 3 },
            "it has no more room"
        );
        assert_eq!(offload(&LARGE, 0, criteria), CopyShares { receiver: 8, helper: 0 });
    }

    #[test]
    fn checksums_and_distances_may_lower_the_limit() {
        let [plain, summed, far] = [(false, false), (true, false), (false, true)]
            .map(|(is_summed, is_far)| CopyKind { is_summed, is_far });
        let shared = |kind, bytes: u64, criteria: OffloadCriteria| {
            share_of_home(4, 4 * bytes, 0, criteria.of_kind(kind))
        };
        let usual = OffloadCriteria { packet_bytes_min: 32_768, ..OffloadCriteria::default() };
        for kind in [plain, summed, far] {
            assert_eq!(
                (shared(kind, 9000, usual), shared(kind, 32_768, usual)),
                (None, Some(4)),
                "no other bounds"
            );
        }
        let criteria = OffloadCriteria { summed_bytes_min: 9000, far_bytes_min: 16_384, ..usual };
        assert_eq!([plain, summed, far].map(|kind| shared(kind, 9000, criteria)), [None, Some(4), None]);
        assert_eq!([plain, summed, far].map(|kind| shared(kind, 16_384, criteria)), [None, Some(4), Some(4)]);
        assert_eq!((criteria.bytes_min(), usual.bytes_min()), (9000, 32_768));
    }

    #[test]
    fn a_port_meets_different_cpus() {
        for port in [0, 1, 7, 1023] {
            let met: std::collections::BTreeSet<u32> = (0..64).map(|turn| spread(port, turn) % 4).collect();
            assert_eq!(met.len(), 4, "port {port}");
        }
    }
}
