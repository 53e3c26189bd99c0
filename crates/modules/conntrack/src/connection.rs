//! One connection, as a value.

use lasthop_ct_packet::{CtHelper, CtTuple, Direction};

use crate::adjust::SequenceShifts;
use crate::sctp::Sctp;
use crate::tcp::Tcp;

/// The identity of a connection. A removed connection's identity is not used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CtId {
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

impl CtId {
    /// The identity as one number, for ctnetlink's CTA_ID.
    #[must_use]
    pub fn number(self) -> u32 {
        self.index ^ self.generation.rotate_left(20)
    }
}

/// A packet in reply direction was seen (IPS_SEEN_REPLY).
pub(crate) const SEEN_REPLY: u16 = 2;
/// The connection is not half-open (IPS_ASSURED).
pub(crate) const ASSURED: u16 = 4;
/// The source of packets in original direction is translated (IPS_SRC_NAT).
pub(crate) const SRC_NAT: u16 = 8;
/// The destination of packets in original direction is translated (IPS_DST_NAT).
pub(crate) const DST_NAT: u16 = 0x10;
/// Another connection announced this one (IPS_EXPECTED).
pub(crate) const EXPECTED: u16 = 0x20;
/// NAT has changed the length of its data.
pub(crate) const SEQUENCE_ADJUSTED: u16 = 0x80;
/// A packet ended the connection; later changes belong to the actions of that packet.
pub(crate) const DYING: u16 = 0x100;

/// The protocol's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    Tcp(Tcp),
    Sctp(Sctp),
    /// The start, in milliseconds. It becomes a stream when replies still come two seconds later.
    Udp {
        since_ms: u64,
    },
    Other,
}

impl Progress {
    /// Whether the connection is closing.
    #[inline]
    pub(crate) fn is_closing(&self) -> bool {
        match self {
            Self::Tcp(tcp) => tcp.state().is_closing(),
            Self::Sctp(sctp) => sctp.state().is_closing(),
            Self::Udp { .. } | Self::Other => false,
        }
    }
}

/// A connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Connection {
    /// By direction. Packets arrive with one of these tuples, and leave with the inverse of the other.
    pub(crate) tuples: [CtTuple; 2],
    pub(crate) expires_ms: u64,
    pub(crate) packets: [u64; 2],
    pub(crate) bytes: [u64; 2],
    pub(crate) progress: Progress,
    pub(crate) labels: [u8; 16],
    pub(crate) mark: u32,
    /// The connection that announced this one, if there is one.
    pub(crate) master: Option<CtId>,
    pub(crate) status: u16,
    pub(crate) in_port: u16,
    /// Index of its timeout policy.
    pub(crate) policy: u8,
    pub(crate) helper: Option<CtHelper>,
    pub(crate) shifts: SequenceShifts,
}

impl Connection {
    /// A connection of these tuples, not yet in the table.
    pub(crate) fn new(tuples: [CtTuple; 2], progress: Progress, expires_ms: u64) -> Self {
        Self {
            tuples,
            expires_ms,
            packets: [0; 2],
            bytes: [0; 2],
            progress,
            labels: [0; 16],
            mark: 0,
            master: None,
            status: 0,
            in_port: 0,
            policy: 0,
            helper: None,
            shifts: SequenceShifts::default(),
        }
    }

    #[inline]
    pub(crate) fn has(&self, status: u16) -> bool {
        self.status & status != 0
    }

    #[inline]
    pub(crate) fn tuple(&self, direction: Direction) -> &CtTuple {
        &self.tuples[direction.index()]
    }

    pub(crate) fn zone(&self) -> u16 {
        self.tuples[0].zone
    }

    /// Whether it may be evicted: it is half-open or closing.
    #[inline]
    pub(crate) fn is_evictable(&self) -> bool {
        is_evictable(self.status, &self.progress)
    }
}

/// Whether a connection with this state may be evicted: it is half-open or closing.
#[inline]
pub(crate) fn is_evictable(status: u16, progress: &Progress) -> bool {
    status & ASSURED == 0 || progress.is_closing()
}
