//! One connection: its state. This size is the cost of a connection, next to eight bytes in the index.

use crate::helper::CtHelper;
use crate::sctp::Sctp;
use crate::tcp::Tcp;
use crate::tuple::{CtTuple, Direction, IpBytes};

/// The name of a connection: one that is gone has none in common with those that come later.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CtId {
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

impl CtId {
    /// As one number, for ctnetlink's CTA_ID.
    #[must_use]
    pub fn number(self) -> u32 {
        self.index ^ self.generation.rotate_left(20)
    }
}

/// There is a connection in this place.
pub(crate) const LIVE: u16 = 1;
/// A packet in reply direction was seen (IPS_SEEN_REPLY).
pub(crate) const SEEN_REPLY: u16 = 2;
/// It is no half-open one (IPS_ASSURED).
pub(crate) const ASSURED: u16 = 4;
/// The source of packets in original direction is translated (IPS_SRC_NAT).
pub(crate) const SRC_NAT: u16 = 8;
/// The destination is (IPS_DST_NAT).
pub(crate) const DST_NAT: u16 = 0x10;
/// It was expected because of another one (IPS_EXPECTED).
pub(crate) const EXPECTED: u16 = 0x20;
/// It stands in its port's list of those that may be evicted.
pub(crate) const EVICTABLE: u16 = 0x40;
/// NAT has changed the length of its data.
pub(crate) const SEQUENCE_ADJUSTED: u16 = 0x80;
/// It is over; later changes are about the packet that ended it.
pub(crate) const DYING: u16 = 0x100;

/// How far a protocol is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    Tcp(Tcp),
    Sctp(Sctp),
    /// Since when there is one, in milliseconds; becomes a stream when replies still come two seconds later.
    Udp {
        since_ms: u64,
    },
    Other,
}

/// Neighbours in a list, as index + 1; 0 is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ListLink {
    pub(crate) before: u32,
    pub(crate) behind: u32,
}

/// The lists that a connection is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ListKind {
    /// A slot of the wheel.
    Wheel,
    /// A port's connections that may be evicted.
    Evictable,
    /// All of a zone.
    Zone,
}

/// A connection, or a vacant place.
#[derive(Clone, Debug)]
pub(crate) struct Connection {
    /// By direction. Packets come in as one of these, and leave as the inverse of the other.
    pub(crate) tuples: [CtTuple; 2],
    pub(crate) hashes: [u32; 2],
    /// The next one in the same bucket, by direction; of a vacant place, the next vacant one.
    pub(crate) chain: [u32; 2],
    pub(crate) links: [ListLink; 3],
    pub(crate) expires_ms: u64,
    pub(crate) packets: [u64; 2],
    pub(crate) bytes: [u64; 2],
    pub(crate) progress: Progress,
    pub(crate) labels: [u8; 16],
    pub(crate) mark: u32,
    /// Of another connection, if that expected this one.
    pub(crate) master: Option<CtId>,
    pub(crate) generation: u32,
    /// The wheel's slot that it stands in.
    pub(crate) slot: u16,
    pub(crate) status: u16,
    pub(crate) in_port: u16,
    /// Index of its timeout policy.
    pub(crate) policy: u8,
    pub(crate) helper: Option<CtHelper>,
}

/// A tuple of nothing.
const NOTHING: CtTuple = CtTuple {
    src: IpBytes([0; 16]),
    dst: IpBytes([0; 16]),
    src_port: 0,
    dst_port: 0,
    zone: 0,
    proto: 0,
    is_ipv6: false,
};

impl Default for Connection {
    fn default() -> Self {
        Self {
            tuples: [NOTHING; 2],
            hashes: [0; 2],
            chain: [0; 2],
            links: [ListLink::default(); 3],
            expires_ms: 0,
            packets: [0; 2],
            bytes: [0; 2],
            progress: Progress::Other,
            labels: [0; 16],
            mark: 0,
            master: None,
            generation: 0,
            slot: 0,
            status: 0,
            in_port: 0,
            policy: 0,
            helper: None,
        }
    }
}

impl Connection {
    /// A connection of these tuples, not yet in the table.
    pub(crate) fn new(tuples: [CtTuple; 2], progress: Progress, expires_ms: u64) -> Self {
        Self { tuples, progress, expires_ms, ..Self::default() }
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

    /// Whether it may go to make room: half-open, or on its way out.
    #[inline]
    pub(crate) fn is_evictable(&self) -> bool {
        let is_closing = match &self.progress {
            Progress::Tcp(tcp) => tcp.state().is_closing(),
            Progress::Sctp(sctp) => sctp.state().is_closing(),
            Progress::Udp { .. } | Progress::Other => false,
        };
        is_closing || !self.has(ASSURED)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Four bytes in the index for each direction, and at most one bucket more than tuples.
    #[test]
    fn a_connection_costs_less_than_300_bytes() {
        let bytes = size_of::<Connection>() + 2 * size_of::<u32>();
        assert!(bytes < 300, "{bytes} bytes");
    }
}
