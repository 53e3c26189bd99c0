//! States of a TCP connection as a middlebox sees them, and the transitions between them.

use lasthop_ct_packet::Direction;

/// States, with the kernel's names and numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TcpState {
    /// No segment was seen.
    None,
    /// A SYN.
    SynSent,
    /// A SYN-ACK.
    SynRecv,
    /// The acknowledgement of the SYN-ACK.
    Established,
    /// A FIN.
    FinWait,
    /// The acknowledgement of the FIN.
    CloseWait,
    /// The second FIN.
    LastAck,
    /// The last acknowledgement.
    TimeWait,
    /// An RST.
    Close,
    /// SYNs from both sides.
    SynSent2,
}

impl TcpState {
    /// All states, by number.
    pub const ALL: [Self; 10] = [
        Self::None,
        Self::SynSent,
        Self::SynRecv,
        Self::Established,
        Self::FinWait,
        Self::CloseWait,
        Self::LastAck,
        Self::TimeWait,
        Self::Close,
        Self::SynSent2,
    ];

    /// The state of a number; `None` (the state) for an unknown one.
    #[inline]
    pub(crate) fn of_number(number: u8) -> Self {
        *Self::ALL.get(usize::from(number)).unwrap_or(&Self::None)
    }

    /// Whether the connection is closing; such connections may be evicted.
    pub(crate) fn is_closing(self) -> bool {
        matches!(self, Self::FinWait | Self::CloseWait | Self::LastAck | Self::TimeWait | Self::Close)
    }
}

/// The kind of a segment, by its flags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SegmentKind {
    Syn,
    SynAck,
    Fin,
    Ack,
    Rst,
    None,
}

pub(super) const FIN: u8 = 1;
pub(crate) const SYN: u8 = 2;
pub(super) const RST: u8 = 4;
const PSH: u8 = 8;
pub(crate) const ACK: u8 = 0x10;
const URG: u8 = 0x20;
const ECE: u8 = 0x40;
const CWR: u8 = 0x80;

impl SegmentKind {
    const ALL: [Self; 6] = [Self::Syn, Self::SynAck, Self::Fin, Self::Ack, Self::Rst, Self::None];

    /// The kind of a number; `None` (the kind) for an unknown one.
    #[inline]
    pub(super) fn of_number(number: u8) -> Self {
        *Self::ALL.get(usize::from(number)).unwrap_or(&Self::None)
    }

    #[inline]
    pub(super) fn of(flags: u8) -> Self {
        match flags {
            _ if flags & RST != 0 => Self::Rst,
            _ if flags & SYN != 0 => {
                if flags & ACK != 0 {
                    Self::SynAck
                } else {
                    Self::Syn
                }
            }
            _ if flags & FIN != 0 => Self::Fin,
            _ if flags & ACK != 0 => Self::Ack,
            _ => Self::None,
        }
    }
}

/// Whether a sane sender sets these flags together.
#[inline]
pub(super) fn are_sane(flags: u8) -> bool {
    const SYN_ACK: u8 = SYN | ACK;
    const RST_ACK: u8 = RST | ACK;
    const FIN_ACK: u8 = FIN | ACK;
    match flags & !(PSH | ECE | CWR) {
        SYN_ACK | RST | RST_ACK => true,
        rest => matches!(rest & !URG, SYN | FIN_ACK | ACK),
    }
}

/// The result of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Transition {
    To(TcpState),
    /// The segment may be valid or not; only its receiver knows.
    Ignore,
    Invalid,
}

/// The transition from `state` by a segment of this kind and direction.
#[inline]
pub(super) fn transition(direction: Direction, kind: SegmentKind, state: TcpState) -> Transition {
    use Direction::{Original, Reply};
    use TcpState::{
        Close, CloseWait, Established, FinWait, LastAck, None, SynRecv, SynSent, SynSent2, TimeWait,
    };
    use Transition::{Ignore, Invalid, To};
    match (kind, direction, state) {
        (SegmentKind::None, ..) | (SegmentKind::Rst, _, None) => Invalid,
        (SegmentKind::Rst, ..) => To(Close),
        // A SYN begins a connection, begins it again, or comes from a host that has another state of it.
        (SegmentKind::Syn, Original, None | SynSent | TimeWait | Close) => To(SynSent),
        (SegmentKind::Syn, Original, SynSent2) => To(SynSent2),
        (SegmentKind::Syn, Original, _) => Ignore,
        (SegmentKind::Syn, Reply, SynSent | SynSent2) => To(SynSent2),
        (SegmentKind::Syn, Reply, TimeWait) => To(SynSent),
        (SegmentKind::Syn, Reply, _) => Invalid,
        // In the original direction it belongs to a simultaneous open.
        (SegmentKind::SynAck, Original, SynRecv | SynSent2) => To(SynRecv),
        (SegmentKind::SynAck, Original, _) | (SegmentKind::SynAck, Reply, None) => Invalid,
        (SegmentKind::SynAck, Reply, SynSent | SynSent2) => To(SynRecv),
        (SegmentKind::SynAck, Reply, _) => Ignore,
        (SegmentKind::Fin, _, None | SynSent | SynSent2) => Invalid,
        (SegmentKind::Fin, _, SynRecv | Established) => To(FinWait),
        (SegmentKind::Fin, _, FinWait | CloseWait | LastAck) => To(LastAck),
        (SegmentKind::Fin, _, TimeWait | Close) => To(state),
        (SegmentKind::Ack, _, FinWait | CloseWait) => To(CloseWait),
        (SegmentKind::Ack, _, LastAck | TimeWait) => To(TimeWait),
        (SegmentKind::Ack, _, Established | Close) => To(state),
        // The connection is picked up in the middle.
        (SegmentKind::Ack, Original, None | SynRecv) => To(Established),
        (SegmentKind::Ack, Original, SynSent | SynSent2) | (SegmentKind::Ack, Reply, None) => Invalid,
        (SegmentKind::Ack, Reply, SynSent | SynSent2) => Ignore,
        (SegmentKind::Ack, Reply, SynRecv) => To(SynRecv),
    }
}
