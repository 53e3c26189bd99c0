//! Whether a segment lies in the windows (van Rooij, "Real stateful TCP packet filtering in IP Filter"; RFC 9293, 3.4).
//!
//! ```text
//!     what the sender may send                                     what it may acknowledge
//!     |  seq <= sender.max_end                                     |  ack <= receiver.end
//!     |  end >= sender.end - receiver.max_window                   |  ack >= receiver.end - the sender's window, or 66,000
//! ```
//!
//! The middle sees packets that others may never see, and misses some. So a segment has to touch the window and no more, and
//! right edges are those of the largest windows that were announced.

use super::segment::Segment;
use super::state::{RST, SYN, SegmentKind, TcpState};
use super::{
    BE_LIBERAL, Context, DATA_UNACKNOWLEDGED, MAX_ACK_SET, SACK_PERMITTED, Side, Tcp, WINDOW_SCALE, is_before,
};
use crate::tuple::Direction;

/// How far behind an acknowledgement may come, in bytes: as the kernel.
const ACK_WINDOW_BYTES_MIN: u32 = 66_000;

/// A segment's numbers, in its receiver's terms where they are acknowledgements.
#[derive(Clone, Copy)]
struct Numbers {
    seq: u32,
    end: u32,
    ack: u32,
    sack: u32,
    window: u32,
}

impl Tcp {
    /// Checks a segment against the windows, and moves them.
    pub(super) fn is_in_window(
        &mut self,
        segment: &Segment,
        kind: SegmentKind,
        context: &Context<'_>,
    ) -> bool {
        let direction = context.direction;
        let [original, reply] = &mut self.sides;
        let (sender, receiver) = match direction {
            Direction::Original => (original, reply),
            Direction::Reply => (reply, original),
        };
        let ack = segment.ack.wrapping_sub(context.ack_offset);
        let sack = match segment.sack {
            Some(sack) if receiver.flags & SACK_PERMITTED != 0 => sack.wrapping_sub(context.ack_offset),
            _ => ack,
        };
        let (seq, end, window) = (segment.seq, segment.end(), u32::from(segment.window));
        let mut numbers = Numbers { seq, end, ack, sack, window };
        if begin(sender, receiver, segment, &numbers, (self.state, direction)) {
            return true;
        }
        let is_broken_reset = segment.has(RST) && segment.is_ack() && ack == 0;
        if !segment.is_ack() || is_broken_reset {
            (numbers.ack, numbers.sack) = (receiver.end, receiver.end);
        }
        if segment.has(RST) && seq == 0 && self.state == TcpState::SynSent {
            // The answer to a SYN.
            (numbers.seq, numbers.end) = (sender.end, sender.end);
        }
        if !fits(sender, receiver, &numbers) {
            return context.policy.is_liberal || sender.flags & BE_LIBERAL != 0;
        }
        move_windows(sender, receiver, segment, numbers);
        if kind == SegmentKind::Ack {
            self.count_retransmission(segment, &numbers, direction);
        }
        true
    }

    fn count_retransmission(&mut self, segment: &Segment, numbers: &Numbers, direction: Direction) {
        let this = (direction, numbers.seq, numbers.ack, numbers.end, segment.window);
        let last = (self.last_direction, self.last_seq, self.last_ack, self.last_end, self.last_window);
        if this == last {
            self.retransmissions = self.retransmissions.saturating_add(1);
            return;
        }
        (self.last_direction, self.last_seq, self.last_ack, self.last_end, self.last_window) = this;
        self.retransmissions = 0;
    }
}

/// What the first segments of a side say of it. True: nothing is left to be checked.
fn begin(
    sender: &mut Side,
    receiver: &mut Side,
    segment: &Segment,
    numbers: &Numbers,
    (state, direction): (TcpState, Direction),
) -> bool {
    let begins_again = matches!(
        (state, direction),
        (TcpState::SynSent, Direction::Original) | (TcpState::SynRecv, Direction::Reply)
    ) && is_before(sender.end, numbers.end);
    if sender.max_window == 0 && segment.has(SYN) {
        open(sender, receiver, segment);
        return !segment.is_ack();
    }
    if sender.max_window == 0 {
        // Picked up in the middle.
        sender.end = numbers.end;
        sender.max_window = (numbers.window << sender.scale).max(1);
        sender.max_end = numbers.end.wrapping_add(sender.max_window);
        if receiver.max_window == 0 {
            (receiver.end, receiver.max_end) = (numbers.sack, numbers.sack);
        } else if numbers.sack == receiver.end.wrapping_add(1) {
            // It answers a keep-alive.
            receiver.end = numbers.sack;
        }
    } else if begins_again {
        (sender.end, sender.max_end) = (numbers.end, numbers.end);
        sender.max_window = numbers.window.max(1);
        sender.take_options(segment);
    } else if segment.has(SYN) && (state, direction) == (TcpState::SynSent, Direction::Reply) {
        open(sender, receiver, segment);
        return !segment.is_ack();
    }
    false
}

/// A SYN of the other side.
fn open(sender: &mut Side, receiver: &mut Side, segment: &Segment) {
    let end = segment.end();
    (sender.end, sender.max_end, sender.max_window) = (end, end, u32::from(segment.window).max(1));
    sender.take_options(segment);
    if sender.flags & receiver.flags & WINDOW_SCALE == 0 {
        (sender.scale, receiver.scale) = (0, 0);
    }
}

fn fits(sender: &Side, receiver: &Side, numbers: &Numbers) -> bool {
    let ack_window = sender.max_window.max(ACK_WINDOW_BYTES_MIN);
    let left = sender.end.wrapping_sub(receiver.max_window).wrapping_sub(1);
    is_before(numbers.seq, sender.max_end.wrapping_add(1))
        && (receiver.max_window == 0 || is_before(left, numbers.end))
        && is_before(numbers.sack, receiver.end.wrapping_add(1))
        && is_before(receiver.end.wrapping_sub(ack_window).wrapping_sub(1), numbers.sack)
}

fn move_windows(sender: &mut Side, receiver: &mut Side, segment: &Segment, numbers: Numbers) {
    let window = if segment.has(SYN) { numbers.window } else { numbers.window << sender.scale };
    let announced = window.wrapping_add(numbers.sack.wrapping_sub(numbers.ack));
    sender.max_window = sender.max_window.max(announced);
    if is_before(sender.end, numbers.end) {
        sender.end = numbers.end;
        sender.flags |= DATA_UNACKNOWLEDGED;
    }
    let is_further = sender.flags & MAX_ACK_SET == 0 || is_before(sender.max_ack, numbers.ack);
    if segment.is_ack() && is_further {
        sender.max_ack = numbers.ack;
        sender.flags |= MAX_ACK_SET;
    }
    if receiver.max_window != 0 && is_before(sender.max_end, numbers.end) {
        let beyond = numbers.end.wrapping_sub(sender.max_end);
        receiver.max_window = receiver.max_window.wrapping_add(beyond);
    }
    let right = numbers.sack.wrapping_add(window);
    if is_before(receiver.max_end.wrapping_sub(1), right) {
        receiver.max_end = right.wrapping_add(u32::from(window == 0));
    }
    if numbers.ack == receiver.end {
        receiver.flags &= !DATA_UNACKNOWLEDGED;
    }
}
