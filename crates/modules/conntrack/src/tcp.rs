//! TCP: states and windows of a connection's two directions, as strict as Linux's nf_conntrack.

use lasthop_ct_packet::Direction;

pub(crate) mod plain;
mod policy;
mod segment;
pub(crate) mod state;
mod window;

pub(crate) use policy::{IGNORES_INVALID_RST, IS_LIBERAL, IS_LOOSE, TcpPolicyRef};
pub use policy::{TCP_TIMEOUTS, TcpPolicy, TcpTimeout};
pub(crate) use segment::{Segment, adjusted_sack_blocks};
pub use state::TcpState;
use state::{SegmentKind, Transition, transition};
use window::Fit;

/// Words of a connection's TCP state.
pub(crate) const TCP_WORDS: usize = 7;

/// Retransmissions of one segment after which the shorter timeout applies: Linux's default.
const RETRANSMISSIONS_MAX: u8 = 3;

/// Window scaling was offered (RFC 7323).
const WINDOW_SCALE: u8 = 1;
/// Selective acknowledgements were offered (RFC 2018).
const SACK_PERMITTED: u8 = 2;
/// This side closed first.
const CLOSE_INIT: u8 = 4;
/// Windows are not enforced: the connection was picked up in the middle.
const BE_LIBERAL: u8 = 8;
/// This side has unacknowledged data.
const DATA_UNACKNOWLEDGED: u8 = 0x10;
/// `max_ack` is known.
const MAX_ACK_SET: u8 = 0x20;

/// Both sides sent a SYN (`last_flags`).
const SIMULTANEOUS_OPEN: u8 = 0x40;
/// An acknowledgement may be the answer to a SYN that was let through (RFC 5961) (`last_flags`).
const CHALLENGE_ACK: u8 = 0x80;

/// The state of one side. Sequence numbers are those before NAT's offsets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Side {
    /// Sequence number behind the last byte that it sent.
    end: u32,
    /// Sequence number behind the last byte that it may send.
    max_end: u32,
    /// The largest window that it announced; 0 if none was seen.
    max_window: u32,
    /// The highest number that it acknowledged.
    max_ack: u32,
    scale: u8,
    flags: u8,
}

/// A TCP connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tcp {
    sides: [Side; 2],
    last_seq: u32,
    last_ack: u32,
    last_end: u32,
    last_window: u16,
    last_scale: u8,
    last_flags: u8,
    last_kind: SegmentKind,
    last_direction: Direction,
    retransmissions: u8,
    state: TcpState,
}

/// Facts about a connection by which its next segment is judged.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Context<'a> {
    pub(crate) policy: TcpPolicyRef<'a>,
    pub(crate) direction: Direction,
    /// Whether a packet in reply direction was seen.
    pub(crate) is_replied: bool,
    /// See [`Outcome::Accepted`].
    pub(crate) is_assured: bool,
    /// NAT's offset of the other side's sequence numbers at this segment's acknowledgement.
    pub(crate) ack_offset: u32,
}

/// The effect of a segment on its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The segment belongs to the connection, and sets this timeout. `is_assured`: the connection is established.
    Accepted { timeout: TcpTimeout, is_assured: bool },
    /// The segment may belong to it, and changes neither state nor timeout.
    Ignored,
    /// The segment belongs to it, and ends it.
    Last,
    /// The segment does not belong to it. `hastens`: both sides seem to have ended it, so it should expire soon.
    Invalid { hastens: bool },
    /// The segment begins another connection in this one's place.
    Reopened,
}

impl Tcp {
    /// A connection that begins with this segment; `None` if it cannot begin one.
    pub(crate) fn first(segment: &Segment, policy: TcpPolicyRef<'_>) -> Option<Self> {
        let Transition::To(state) =
            transition(Direction::Original, SegmentKind::of(segment.flags), TcpState::None)
        else {
            return None;
        };
        let max_window = u32::from(segment.window).max(1);
        let end = segment.end();
        let mut sender = Side { end, max_end: end, max_window, ..Side::default() };
        let mut receiver = Side::default();
        if state == TcpState::SynSent {
            sender.take_options(segment);
        } else {
            if !policy.is_loose() {
                return None;
            }
            sender.max_end = end.wrapping_add(max_window);
            // Its options are unknown.
            (sender.flags, receiver.flags) = (SACK_PERMITTED | BE_LIBERAL, SACK_PERMITTED | BE_LIBERAL);
        }
        Some(Self::between([sender, receiver], SegmentKind::None, TcpState::None))
    }

    /// A connection between these two, without a segment that a later one is compared with.
    #[inline]
    fn between(sides: [Side; 2], last_kind: SegmentKind, state: TcpState) -> Self {
        Self {
            sides,
            last_seq: 0,
            last_ack: 0,
            last_end: 0,
            last_window: 0,
            last_scale: 0,
            last_flags: 0,
            last_kind,
            last_direction: Direction::Original,
            retransmissions: 0,
            state,
        }
    }

    /// A connection that begins with this SYN, and the timeout that the SYN sets: as [`Self::first`] and [`Self::advance`].
    #[inline]
    pub(crate) fn opened(segment: &Segment, policy: TcpPolicyRef<'_>) -> (Self, TcpTimeout) {
        let (end, max_window) = (segment.end(), u32::from(segment.window).max(1));
        let mut sender = Side { end, max_end: end, max_window, ..Side::default() };
        sender.take_options(segment);
        let receiver = Side { max_end: max_window, ..Side::default() };
        let tcp = Self::between([sender, receiver], SegmentKind::Syn, TcpState::SynSent);
        (tcp, tcp.timeout(SegmentKind::Syn, policy))
    }

    /// Packs the state into words for shared memory.
    #[inline]
    pub(crate) fn words(&self) -> [u64; TCP_WORDS] {
        let pair = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
        let [original, reply] = &self.sides;
        let small = [
            original.scale,
            original.flags,
            reply.scale,
            reply.flags,
            self.last_scale,
            self.last_flags,
            self.last_kind as u8,
            self.last_direction as u8,
        ];
        let last = u32::from(self.last_window)
            | u32::from(self.retransmissions) << 16
            | u32::from(self.state as u8) << 24;
        [
            pair(original.end, original.max_end),
            pair(original.max_window, original.max_ack),
            pair(reply.end, reply.max_end),
            pair(reply.max_window, reply.max_ack),
            pair(self.last_ack, self.last_seq),
            pair(self.last_end, last),
            u64::from_le_bytes(small),
        ]
    }

    /// Unpacks [`Self::words`]. Any words are a valid state, since they may have been read during a change.
    #[inline]
    pub(crate) fn from_words(words: [u64; TCP_WORDS]) -> Self {
        let (low, high) = (|word: u64| word as u32, |word: u64| (word >> 32) as u32);
        let [original, original_windows, reply, reply_windows, last, last_end, small] = words;
        let small = small.to_le_bytes();
        let side = |ends: u64, windows: u64, scale: u8, flags: u8| Side {
            end: low(ends),
            max_end: high(ends),
            max_window: low(windows),
            max_ack: high(windows),
            // Bounds the shift; a valid one is at most 14.
            scale: scale & 15,
            flags,
        };
        let sides = [
            side(original, original_windows, small[0], small[1]),
            side(reply, reply_windows, small[2], small[3]),
        ];
        Self {
            sides,
            last_seq: high(last),
            last_ack: low(last),
            last_end: low(last_end),
            last_window: high(last_end) as u16,
            last_scale: small[4],
            last_flags: small[5],
            last_kind: SegmentKind::of_number(small[6]),
            last_direction: if small[7] & 1 == 0 { Direction::Original } else { Direction::Reply },
            retransmissions: (last_end >> 48) as u8,
            state: TcpState::of_number((last_end >> 56) as u8),
        }
    }

    /// Stops enforcing windows: the state is not known for certain.
    pub(crate) fn doubt(&mut self) {
        self.sides.iter_mut().for_each(|side| side.flags |= BE_LIBERAL);
    }

    pub(crate) fn state(&self) -> TcpState {
        self.state
    }

    /// The window scale of a direction, and its flags as in ctnetlink (IP_CT_TCP_FLAG_*).
    pub(crate) fn scale_and_flags(&self, direction: Direction) -> (u8, u8) {
        let side = &self.sides[direction.index()];
        (side.scale, side.flags & (WINDOW_SCALE | SACK_PERMITTED | CLOSE_INIT | BE_LIBERAL))
    }

    /// Advances the connection by a segment.
    pub(crate) fn advance(&mut self, segment: &Segment, context: &Context<'_>) -> Outcome {
        let (old, direction) = (self.state, context.direction);
        let kind = SegmentKind::of(segment.flags);
        let next = match transition(direction, kind, old) {
            Transition::Invalid => return Outcome::Invalid { hastens: false },
            Transition::Ignore => match self.ignore(segment, kind, direction) {
                None => return Outcome::Ignored,
                Some(state) => state,
            },
            Transition::To(TcpState::SynSent) if old >= TcpState::TimeWait => {
                if self.is_over(direction) {
                    return Outcome::Reopened;
                }
                match self.ignore(segment, kind, direction) {
                    None => return Outcome::Ignored,
                    Some(state) => state,
                }
            }
            Transition::To(TcpState::TimeWait) if self.is_challenge(kind, direction) => {
                self.last_flags &= !CHALLENGE_ACK;
                return Outcome::Ignored;
            }
            Transition::To(state) => state,
        };
        let (next, is_checked) = match self.refine(segment, kind, next, context) {
            None => return Outcome::Invalid { hastens: false },
            Some(refined) => refined,
        };
        let fit = if is_checked { self.fit(segment, kind, context) } else { Fit::Inside };
        match fit {
            Fit::Inside => self.accept(kind, next, context),
            Fit::Aside => Outcome::Ignored,
            Fit::Outside => {
                Outcome::Invalid { hastens: context.is_assured && self.seems_over(kind, context.direction) }
            }
        }
    }

    /// Called for a FIN or RST outside of the windows: returns whether the other side sent one, too. We may be out of
    /// sync.
    fn seems_over(&mut self, kind: SegmentKind, direction: Direction) -> bool {
        let is_end = |kind| matches!(kind, SegmentKind::Fin | SegmentKind::Rst);
        if !is_end(kind) {
            return false;
        }
        if self.last_direction != direction && is_end(self.last_kind) {
            return true;
        }
        (self.last_kind, self.last_direction) = (kind, direction);
        false
    }

    /// Whether a SYN in TIME_WAIT or CLOSE begins another connection: this one was closed, or the same side aborted it.
    fn is_over(&self, direction: Direction) -> bool {
        let is_closed = (self.sides[0].flags | self.sides[1].flags) & CLOSE_INIT != 0;
        is_closed || (self.last_direction == direction && self.last_kind == SegmentKind::Rst)
    }

    /// Whether an acknowledgement answers a SYN that was let through, and not the last FIN (RFC 5961, 4).
    fn is_challenge(&self, kind: SegmentKind, direction: Direction) -> bool {
        self.state == TcpState::LastAck
            && kind == SegmentKind::Ack
            && self.last_direction != direction
            && self.last_kind == SegmentKind::Syn
            && self.last_flags & CHALLENGE_ACK != 0
    }

    /// Notes a segment that may be valid although our state says otherwise, since we may have missed a packet. Returns
    /// the state if the segment answers an earlier one of this kind: then we are in sync again.
    fn ignore(&mut self, segment: &Segment, kind: SegmentKind, direction: Direction) -> Option<TcpState> {
        let answers_syn = kind == SegmentKind::SynAck
            && self.last_kind == SegmentKind::Syn
            && self.last_direction != direction
            && segment.ack == self.last_end;
        if answers_syn {
            self.sides[self.last_direction.index()] = Side {
                end: self.last_end,
                max_end: self.last_end,
                max_window: u32::from(self.last_window).max(1),
                scale: self.last_scale,
                flags: self.last_flags & !CHALLENGE_ACK,
                ..self.sides[self.last_direction.index()]
            };
            self.last_flags &= !CHALLENGE_ACK;
            let liberal = self.sides[direction.index()].flags & BE_LIBERAL;
            self.sides[direction.index()] = Side { flags: liberal, ..Side::default() };
            self.state = TcpState::SynSent;
            return Some(TcpState::SynRecv);
        }
        (self.last_kind, self.last_direction) = (kind, direction);
        (self.last_seq, self.last_end, self.last_window) = (segment.seq, segment.end(), segment.window);
        if self.state == TcpState::SynSent && kind == SegmentKind::Ack && direction == Direction::Reply {
            // This may be a challenge to a SYN for a connection that the server still has (RFC 5961, 4).
            self.last_ack = segment.ack;
        }
        if kind == SegmentKind::Syn && direction == Direction::Original {
            let mut side = Side::default();
            side.take_options(segment);
            (self.last_flags, self.last_scale) = (side.flags, side.scale);
            if self.state == TcpState::LastAck {
                self.last_flags |= CHALLENGE_ACK;
            }
        }
        None
    }

    /// The next state where the table alone does not tell it, and whether windows are checked. `None` for an invalid
    /// RST.
    fn refine(
        &mut self,
        segment: &Segment,
        kind: SegmentKind,
        next: TcpState,
        context: &Context<'_>,
    ) -> Option<(TcpState, bool)> {
        match next {
            TcpState::SynSent2 => self.last_flags |= SIMULTANEOUS_OPEN,
            TcpState::SynRecv
                if context.direction == Direction::Reply
                    && kind == SegmentKind::Ack
                    && self.last_flags & SIMULTANEOUS_OPEN != 0 =>
            {
                return Some((TcpState::Established, true));
            }
            TcpState::Close if kind == SegmentKind::Rst => return self.reset(segment, context),
            _ => {}
        }
        Some((next, true))
    }

    /// The next state after an RST; `None` if it is invalid.
    fn reset(&self, segment: &Segment, context: &Context<'_>) -> Option<(TcpState, bool)> {
        if self.state.is_closing() {
            return Some((TcpState::Close, false));
        }
        let is_established = self.state == TcpState::Established && context.is_assured;
        let peer = &self.sides[context.direction.inverse().index()];
        let mut next = TcpState::Close;
        if peer.flags & MAX_ACK_SET != 0 && self.last_kind != SegmentKind::Syn {
            // Probably an answer to a SYN that was let through.
            if segment.seq == 0 && !is_established {
                return Some((next, true));
            }
            if is_before(segment.seq, peer.max_ack) && !context.policy.ignores_invalid_rst() {
                return None;
            }
            let is_exact = !is_established || segment.seq == peer.max_ack;
            let follows_data = self.last_kind == SegmentKind::Ack
                && self.last_direction == context.direction
                && segment.seq == self.last_end;
            if is_exact || follows_data {
                return Some((next, true));
            }
            // The receiver may send a challenge (RFC 5961, 3).
            next = self.state;
        }
        let answers = self.last_direction != context.direction
            && ((context.is_replied && self.last_kind == SegmentKind::Syn)
                || (!context.is_assured && self.last_kind == SegmentKind::Ack));
        let answers_challenge = self.state == TcpState::SynSent
            && self.last_kind == SegmentKind::Ack
            && self.last_direction == Direction::Reply
            && segment.seq == self.last_ack;
        let is_exact = (answers && segment.ack == self.last_end) || answers_challenge;
        Some((next, !is_exact))
    }

    fn accept(&mut self, kind: SegmentKind, next: TcpState, context: &Context<'_>) -> Outcome {
        let old = self.state;
        (self.last_kind, self.last_direction, self.state) = (kind, context.direction, next);
        if old != next && next == TcpState::FinWait {
            self.sides[context.direction.index()].flags |= CLOSE_INIT;
        }
        let timeout = self.timeout(kind, context.policy);
        if !context.is_replied {
            if kind == SegmentKind::Rst {
                return Outcome::Last;
            }
            // Otherwise a client that reuses a port would keep its old connection for ever.
            if kind == SegmentKind::Syn && old == TcpState::SynSent {
                return Outcome::Ignored;
            }
            let is_shorter = next == TcpState::Established
                && context.policy.timeout(timeout) > context.policy.timeout(TcpTimeout::Unacknowledged);
            let timeout = if is_shorter { TcpTimeout::Unacknowledged } else { timeout };
            return Outcome::Accepted { timeout, is_assured: context.is_assured };
        }
        let is_assured = context.is_assured
            || (matches!(old, TcpState::SynRecv | TcpState::Established) && next == TcpState::Established);
        Outcome::Accepted { timeout, is_assured }
    }

    fn timeout(&self, kind: SegmentKind, policy: TcpPolicyRef<'_>) -> TcpTimeout {
        let timeout = TcpTimeout::of(self.state);
        let is_longer_than = |other| policy.timeout(timeout) > policy.timeout(other);
        let unacknowledged = (self.sides[0].flags | self.sides[1].flags) & DATA_UNACKNOWLEDGED != 0;
        if self.retransmissions >= RETRANSMISSIONS_MAX && is_longer_than(TcpTimeout::Retransmitted) {
            TcpTimeout::Retransmitted
        } else if kind == SegmentKind::Rst {
            TcpTimeout::Of(TcpState::Close)
        } else if unacknowledged && is_longer_than(TcpTimeout::Unacknowledged) {
            TcpTimeout::Unacknowledged
        } else if self.last_window == 0 && is_longer_than(TcpTimeout::Retransmitted) {
            TcpTimeout::Retransmitted
        } else {
            timeout
        }
    }
}

impl Side {
    /// Reads the options of a SYN. A SYN without options changes nothing.
    fn take_options(&mut self, segment: &Segment) {
        if !segment.has_options {
            return;
        }
        (self.scale, self.flags) = (0, self.flags & BE_LIBERAL);
        if let Some(scale) = segment.scale {
            self.scale = scale;
            self.flags |= WINDOW_SCALE;
        }
        if segment.is_sack_permitted {
            self.flags |= SACK_PERMITTED;
        }
    }
}

/// Whether sequence number `a` comes before `b` (RFC 9293, 3.4).
#[inline]
pub(crate) fn is_before(a: u32, b: u32) -> bool {
    (a.wrapping_sub(b) as i32) < 0
}
