//! The next segment of an established connection, computed on the connection's packed words.
//!
//! A plain segment acknowledges, and perhaps carries data; it has no flag that opens or ends a connection. Nearly all
//! segments are plain, lie in the windows, and arrive once. This code takes the same steps as
//! [`Tcp::advance`](super::Tcp::advance) for these, and refuses all others. A property test compares the two.

use lasthop_ct_packet::Direction;

use super::state::{ACK, FIN, RST, SYN, SegmentKind, TcpState};
use super::window::ACK_WINDOW_BYTES_MIN;
use super::{DATA_UNACKNOWLEDGED, MAX_ACK_SET, TCP_WORDS, is_before};

/// A right edge that is further away than the largest window (RFC 7323, 2.3) lies behind.
const WINDOW_BYTES_MAX: u32 = 1 << 30;
/// Bits of a side in the word of small numbers: its window scale, and its flags above `SIDE_FLAGS`.
const SIDE_BITS: u32 = 16;
const SIDE_FLAGS: u32 = 8;
const SEEN: u64 = flags_of(Direction::Original, MAX_ACK_SET) | flags_of(Direction::Reply, MAX_ACK_SET);
/// Packed state and retransmissions of an established connection.
const ESTABLISHED: u64 = (TcpState::Established as u64) << 8;
/// Indices into [`super::Tcp::words`].
const LAST_AT: usize = 4;
const LAST_END_AT: usize = 5;
const SMALL_AT: usize = 6;
const _: () = assert!(SMALL_AT + 1 == TCP_WORDS);

/// A side's flags in the word of small numbers.
const fn flags_of(direction: Direction, flags: u8) -> u64 {
    (flags as u64) << (SIDE_FLAGS + SIDE_BITS * direction as u32)
}

/// The flag of data that this side has sent and the other one has not acknowledged.
const fn unacknowledged_of(direction: Direction) -> u64 {
    flags_of(direction, DATA_UNACKNOWLEDGED)
}

/// The numbers of a plain segment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PlainSegment {
    /// Sequence number in the upper half, acknowledgement in the lower one.
    pub(crate) seq_and_ack: u64,
    pub(crate) payload_bytes: u32,
    /// The window field of the header.
    pub(crate) window: u16,
}

/// The flags that decide: a plain segment has ACK, and no other flag of these.
pub(crate) const PLAIN_FLAGS: u8 = SYN | FIN | RST | ACK;

/// The words of a connection after a segment, without the receiver's windows, which do not change.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PlainStep {
    sender: [u64; 2],
    receiver_ends: u64,
    last: u64,
    last_end: u64,
    small: u64,
    /// Whether one side has data that the other has not acknowledged.
    pub(crate) is_unacknowledged: bool,
}

impl PlainStep {
    /// Computes the step of an established connection with replies; `word` reads its words. `None` if the segment is
    /// not plain.
    // `REPLY` is constant, so that the compiler knows all offsets.
    #[inline(always)]
    pub(crate) fn of<const REPLY: bool>(word: impl Fn(usize) -> u64, segment: &PlainSegment) -> Option<Self> {
        let direction = if REPLY { Direction::Reply } else { Direction::Original };
        let (low, high) = (|word: u64| word as u32, |word: u64| (word >> 32) as u32);
        let (own, other) = (2 * direction.index(), 2 * direction.inverse().index());
        let (seq, ack, window) = (high(segment.seq_and_ack), low(segment.seq_and_ack), segment.window);
        let end = seq.wrapping_add(segment.payload_bytes);
        let last_end = u64::from(end) | u64::from(window) << 32 | ESTABLISHED << 48;
        let mut small = word(SMALL_AT);
        // The upper bits are the same if the connection is established and there were no retransmissions. Both sides
        // have been seen.
        let difference = word(LAST_END_AT) ^ last_end;
        if difference >> 48 | SEEN & !small != 0 || window == 0 {
            return None;
        }
        // Is it a retransmission?
        if difference == 0 && word(LAST_AT) == segment.seq_and_ack && small >> 56 == direction as u64 {
            return None;
        }
        let (ends, windows) = (word(own), word(own + 1));
        let (mut sender_end, max_end) = (low(ends), high(ends));
        let (max_window, max_ack) = (low(windows), high(windows));
        let receiver_ends = word(other);
        let (receiver_end, receiver_max_window) = (low(receiver_ends), low(word(other + 1)));
        let reach = end.wrapping_sub(sender_end).wrapping_add(receiver_max_window);
        let is_inside = receiver_end.wrapping_sub(ack) <= ACK_WINDOW_BYTES_MIN
            && max_end.wrapping_sub(end) < WINDOW_BYTES_MAX
            && reach < i32::MAX as u32;
        if !is_inside {
            return None;
        }
        let window = u32::from(window) << ((small >> (SIDE_BITS * direction as u32)) & 15);
        if is_before(sender_end, end) {
            sender_end = end;
            small |= unacknowledged_of(direction);
        }
        if ack == receiver_end {
            small &= !unacknowledged_of(direction.inverse());
        }
        let max_ack = if is_before(max_ack, ack) { ack } else { max_ack };
        let (old_right, right) = (high(receiver_ends), ack.wrapping_add(window));
        let right = if is_before(old_right.wrapping_sub(1), right) { right } else { old_right };
        let pair = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
        const UNACKNOWLEDGED: u64 =
            unacknowledged_of(Direction::Original) | unacknowledged_of(Direction::Reply);
        Some(Self {
            sender: [pair(sender_end, max_end), pair(max_window.max(window), max_ack)],
            receiver_ends: pair(receiver_end, right),
            last: segment.seq_and_ack,
            last_end,
            small: small & !(0xffff << 48) | (SegmentKind::Ack as u64) << 48 | (direction as u64) << 56,
            is_unacknowledged: small & UNACKNOWLEDGED != 0,
        })
    }

    /// Passes each word that may have changed, with its index, to `put`.
    #[inline(always)]
    pub(crate) fn store<const REPLY: bool>(&self, mut put: impl FnMut(usize, u64)) {
        let direction = if REPLY { Direction::Reply } else { Direction::Original };
        let (own, other) = (2 * direction.index(), 2 * direction.inverse().index());
        put(own, self.sender[0]);
        put(own + 1, self.sender[1]);
        put(other, self.receiver_ends);
        put(LAST_AT, self.last);
        put(LAST_END_AT, self.last_end);
        put(SMALL_AT, self.small);
    }
}
