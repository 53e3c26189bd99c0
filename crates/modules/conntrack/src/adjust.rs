//! Sequence numbers after NAT has changed the length of a connection's data.

use lasthop_ct_packet::Direction;

use crate::tcp::is_before;

/// The offsets of one direction's sequence numbers, before and behind the last change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Shift {
    position: u32,
    before: u32,
    behind: u32,
}

/// The shifts of both directions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SequenceShifts([Shift; 2]);

impl SequenceShifts {
    /// Notes that the payload of the segment at `seq` became longer by `bytes`, which may be negative. A retransmission
    /// does not count twice. Returns false, and changes nothing, if the change exceeds 8 bits or the offset 24 bits.
    #[must_use]
    pub(crate) fn add(&mut self, direction: Direction, seq: u32, bytes: i32) -> bool {
        let shift = &mut self.0[direction.index()];
        if shift.before == shift.behind || is_before(shift.position, seq) {
            let behind = shift.behind.wrapping_add_signed(bytes);
            let is_kept =
                i8::try_from(bytes).is_ok() && (behind.cast_signed() << 8) >> 8 == behind.cast_signed();
            if !is_kept {
                return false;
            }
            *shift = Shift { position: seq, before: shift.behind, behind };
        }
        true
    }

    /// Packs the shifts into two words. The first has the positions; the second has, for each direction, the offset
    /// behind (24 bits) and the last change (8 bits).
    pub(crate) fn words(&self) -> [u64; 2] {
        let [original, reply] = &self.0;
        let offsets = |shift: &Shift| {
            let change = shift.behind.wrapping_sub(shift.before) & 0xff;
            u64::from(shift.behind << 8 | change)
        };
        [
            u64::from(original.position) | u64::from(reply.position) << 32,
            offsets(original) | offsets(reply) << 32,
        ]
    }

    /// Unpacks [`Self::words`].
    pub(crate) fn from_words([positions, offsets]: [u64; 2]) -> Self {
        let shift = |position: u32, offsets: u32| {
            let behind = offsets.cast_signed() >> 8;
            let change = (offsets << 24).cast_signed() >> 24;
            let behind = behind.cast_unsigned();
            Shift { position, before: behind.wrapping_sub(change.cast_unsigned()), behind }
        };
        Self([
            shift(positions as u32, offsets as u32),
            shift((positions >> 32) as u32, (offsets >> 32) as u32),
        ])
    }

    /// The offset that is added to a sequence number of a direction.
    pub(crate) fn offset(&self, direction: Direction, seq: u32) -> u32 {
        let shift = &self.0[direction.index()];
        if is_before(shift.position, seq) { shift.behind } else { shift.before }
    }

    /// Translates a sequence number of a direction.
    pub(crate) fn seq(&self, direction: Direction, seq: u32) -> u32 {
        seq.wrapping_add(self.offset(direction, seq))
    }

    /// Translates an acknowledgement of a direction, which is in the numbers that the other side has sent.
    pub(crate) fn ack(&self, direction: Direction, ack: u32) -> u32 {
        let shift = &self.0[direction.inverse().index()];
        let is_behind = is_before(shift.position, ack.wrapping_sub(shift.before));
        ack.wrapping_sub(if is_behind { shift.behind } else { shift.before })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_behind_a_change_are_shifted_and_acknowledgements_back() {
        use Direction::{Original, Reply};
        let mut shifts = SequenceShifts::default();
        assert_eq!((shifts.seq(Original, 7), shifts.ack(Reply, 7)), (7, 7));
        assert!(shifts.add(Original, 1000, 5) && shifts.add(Original, 1000, 5));
        assert_eq!((shifts.seq(Original, 1000), shifts.seq(Original, 1020)), (1000, 1025));
        assert_eq!((shifts.ack(Reply, 1025), shifts.ack(Reply, 1000)), (1020, 1000));
        assert!(shifts.add(Original, 1100, -12));
        assert_eq!((shifts.seq(Original, 1100), shifts.seq(Original, 1130)), (1105, 1123));
        assert_eq!((shifts.ack(Reply, 1105), shifts.ack(Reply, 1123)), (1100, 1130));
        assert_eq!((shifts.seq(Reply, 1200), shifts.ack(Original, 1200)), (1200, 1200));
        assert!(shifts.add(Reply, 1200, -3));
        assert_eq!(SequenceShifts::from_words(shifts.words()), shifts);
        assert!(!shifts.add(Reply, 1300, 200), "no announcement is so long");
    }
}
