//! Whether a segment lies in the windows (van Rooij, "Real stateful TCP packet filtering in IP Filter"; RFC 9293, 3.4).
//!
//! ```text
//!     what the sender may send                                     what it may acknowledge
//!     |  seq <= sender.max_end                                     |  ack <= receiver.end
//!     |  end >= sender.end - receiver.max_window                   |  ack >= receiver.end - the sender's window, or 66,000
//! ```
//!
//! The middlebox may see packets that the receiver never sees, and may miss others. So a segment only has to touch the
//! window, and right edges belong to the largest windows that were announced.

use lasthop_ct_packet::Direction;

use super::segment::Segment;
use super::state::{RST, SYN, SegmentKind, TcpState};
use super::{
    BE_LIBERAL, Context, DATA_UNACKNOWLEDGED, MAX_ACK_SET, SACK_PERMITTED, Side, Tcp, WINDOW_SCALE, is_before,
};

/// An acknowledgement may be at least this far behind, in bytes: as in the kernel.
pub(super) const ACK_WINDOW_BYTES_MIN: u32 = 66_000;

/// A segment's numbers, in its receiver's terms where they are acknowledgements.
#[derive(Clone, Copy)]
struct Numbers {
    seq: u32,
    end: u32,
    ack: u32,
    sack: u32,
    window: u32,
}

/// How a segment lies in the windows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fit {
    Inside,
    /// The segment is late, or slightly early; its receiver can handle it.
    Aside,
    Outside,
}

impl Tcp {
    /// Checks a segment against the windows, and advances them if it lies inside.
    pub(super) fn fit(&mut self, segment: &Segment, kind: SegmentKind, context: &Context<'_>) -> Fit {
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
            return Fit::Inside;
        }
        let is_broken_reset = segment.has(RST) && segment.is_ack() && ack == 0;
        if !segment.is_ack() || is_broken_reset {
            (numbers.ack, numbers.sack) = (receiver.end, receiver.end);
        }
        if segment.has(RST) && seq == 0 && self.state == TcpState::SynSent {
            // The answer to a SYN.
            (numbers.seq, numbers.end) = (sender.end, sender.end);
        }
        let fit = hold_against(sender, receiver, &numbers);
        if fit != Fit::Inside {
            let is_liberal = context.policy.is_liberal() || sender.flags & BE_LIBERAL != 0;
            return if is_liberal { Fit::Inside } else { fit };
        }
        move_windows(sender, receiver, segment, numbers);
        if kind == SegmentKind::Ack {
            self.count_retransmission(segment, &numbers, direction);
        }
        Fit::Inside
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

/// Takes a side's state from its first segments. True: the segment needs no further check.
fn begin(
    sender: &mut Side,
    receiver: &mut Side,
    segment: &Segment,
    numbers: &Numbers,
    (state, direction): (TcpState, Direction),
) -> bool {
    // "It must only be sure to use sequence numbers larger than those recently used" (RFC 793, 3.3).
    let begins_again =
        matches!(state, TcpState::SynSent | TcpState::SynRecv) && is_before(sender.end, numbers.end);
    if segment.has(SYN) && (sender.max_window == 0 || begins_again) {
        let is_first = sender.max_window == 0;
        open(sender, receiver, segment, direction);
        return !segment.is_ack() && (is_first || direction == Direction::Reply);
    }
    if sender.max_window == 0 {
        // The connection is picked up in the middle.
        sender.end = numbers.end;
        sender.max_window = (numbers.window << sender.scale).max(1);
        sender.max_end = numbers.end.wrapping_add(sender.max_window);
        if receiver.max_window == 0 {
            (receiver.end, receiver.max_end) = (numbers.sack, numbers.sack);
        } else if numbers.sack == receiver.end.wrapping_add(1) {
            // It answers a keep-alive.
            receiver.end = numbers.sack;
        }
    }
    false
}

/// Initializes a side from its SYN.
fn open(sender: &mut Side, receiver: &mut Side, segment: &Segment, direction: Direction) {
    let end = segment.end();
    (sender.end, sender.max_end, sender.max_window) = (end, end, u32::from(segment.window).max(1));
    sender.take_options(segment);
    if direction == Direction::Reply && sender.flags & receiver.flags & WINDOW_SCALE == 0 {
        (sender.scale, receiver.scale) = (0, 0);
    }
}

fn hold_against(sender: &mut Side, receiver: &Side, numbers: &Numbers) -> Fit {
    let ack_window = sender.max_window.max(ACK_WINDOW_BYTES_MIN);
    let is_acknowledged = is_before(numbers.sack, receiver.end.wrapping_add(1));
    let is_fresh = is_before(receiver.end.wrapping_sub(ack_window).wrapping_sub(1), numbers.sack);
    let left = sender.end.wrapping_sub(receiver.max_window).wrapping_sub(1);
    let is_right_of_left = is_before(left, numbers.end);
    if !is_before(numbers.seq, sender.max_end.wrapping_add(1)) {
        let beyond = numbers.end.wrapping_sub(sender.max_end).wrapping_add(1);
        let is_little = receiver.max_window != 0 && is_right_of_left && beyond <= receiver.max_window;
        if is_little && is_fresh && is_acknowledged {
            // Some hosts send more than the window allows. If the segment passes, it will be acknowledged.
            sender.end = numbers.end;
            sender.flags |= DATA_UNACKNOWLEDGED;
            return Fit::Aside;
        }
        return Fit::Outside;
    }
    match (is_acknowledged, receiver.max_window == 0 || is_right_of_left, is_fresh) {
        (false, ..) => Fit::Outside,
        (true, true, true) => Fit::Inside,
        _ => Fit::Aside,
    }
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
