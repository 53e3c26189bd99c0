//! Requests to the table that are not about packets: dumps, flushes, limits, policies, time.

use super::{POLICIES_MAX, Tracker};
use crate::connection::{self, CtId, Progress};
use crate::helper::CtHelper;
use crate::policy::CtPolicy;
use crate::sctp::SctpState;
use crate::table::{CtCounters, End};
use crate::tcp::TcpState;
use crate::tuple::{CtTuple, Direction};

/// The state of a connection's protocol, for display.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CtProtocol {
    /// TCP: window scales and flags (IP_CT_TCP_FLAG_*) by direction.
    Tcp {
        /// State.
        state: TcpState,
        /// Shifts of the windows.
        scales: [u8; 2],
        /// Flags.
        flags: [u8; 2],
    },
    /// SCTP: verification tags by direction.
    Sctp {
        /// State.
        state: SctpState,
        /// Tags, in host order.
        tags: [u32; 2],
    },
    /// Nothing is known but that there is one.
    Other,
}

/// A connection as it is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CtRecord {
    /// Name.
    pub id: CtId,
    /// Its tuples, by direction.
    pub tuples: [CtTuple; 2],
    /// Its master's original tuple.
    pub master: Option<CtTuple>,
    /// Milliseconds that it has left.
    pub left_ms: u64,
    /// Mark.
    pub mark: u32,
    /// Labels.
    pub labels: [u8; 16],
    /// Packets by direction.
    pub packets: [u64; 2],
    /// Bytes by direction.
    pub bytes: [u64; 2],
    /// Whether there was a reply.
    pub is_replied: bool,
    /// Whether it is no half-open one.
    pub is_assured: bool,
    /// Whether its source is translated.
    pub is_source_translated: bool,
    /// Whether its destination is.
    pub is_destination_translated: bool,
    /// Helper.
    pub helper: Option<CtHelper>,
    /// Protocol.
    pub protocol: CtProtocol,
    /// The port that its first packet came in by.
    pub in_port: u16,
}

impl Tracker {
    /// Connections in the table; some may be over by time.
    #[must_use]
    pub fn len(&self) -> u32 {
        self.table.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes that connections and index take.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.table.bytes()
    }

    /// The table's counters.
    #[must_use]
    pub fn counters(&self) -> CtCounters {
        self.table.counters
    }

    /// Takes out connections that are over, in at most `steps` steps, each of a slot of time or a connection. True: all
    /// until now were. To be called some times a second.
    pub fn sweep(&mut self, now_ms: u64, steps: u32) -> bool {
        self.table.sweep(now_ms, steps)
    }

    /// Takes at most `steps` connections of a zone out. True: none is left.
    pub fn flush_zone(&mut self, zone: u16, steps: u32) -> bool {
        self.table.flush_zone(zone, steps)
    }

    /// Takes out the connection with this tuple, of either direction. Whether there was one.
    pub fn delete(&mut self, tuple: &CtTuple, now_ms: u64) -> bool {
        let found = self.table.find(tuple, now_ms);
        if let Some((index, _)) = found {
            self.table.remove(index, End::Deleted);
        }
        found.is_some()
    }

    /// A limit for a zone; none: that of all zones without one.
    pub fn set_zone_limit(&mut self, zone: u16, limit: Option<u32>) {
        self.table.set_zone_limit(zone, limit);
    }

    /// The limit of zones without one of their own.
    pub fn set_default_zone_limit(&mut self, limit: Option<u32>) {
        self.table.bounds.zone_connections_max = limit;
    }

    /// The limit that counts for a zone, and its connections.
    #[must_use]
    pub fn zone(&self, zone: u16) -> (Option<u32>, u32) {
        (self.table.zone_limit(zone), self.table.zone_len(zone))
    }

    /// Connections that packets of a port began.
    #[must_use]
    pub fn port_connections(&self, port: u16) -> u32 {
        self.table.port_len(port)
    }

    /// Sets a timeout policy; number 0 is the default, and has the rules for TCP that begin connections. False: there is no such number.
    /// Numbers in between become the default.
    pub fn set_policy(&mut self, number: u8, policy: CtPolicy) -> bool {
        let number = usize::from(number);
        while self.policies.len() <= number && self.policies.len() < POLICIES_MAX {
            self.policies.push(self.policies[0]);
        }
        let place = self.policies.get_mut(number);
        place.map(|place| *place = policy).is_some()
    }

    /// The next connection at or behind a place, and the place behind it. A dump begins at 0. Connections
    /// that come or go meanwhile may be missing; those that stay are there once.
    #[must_use]
    pub fn next_record(&self, mut place: u32, now_ms: u64) -> Option<(u32, CtRecord)> {
        while place < self.table.places() {
            let index = place;
            place += 1;
            let record = self.record(index, now_ms);
            if let Some(record) = record.filter(|record| record.left_ms > 0) {
                return Some((place, record));
            }
        }
        None
    }

    /// The connection of this name.
    #[must_use]
    pub fn record_of(&self, id: CtId, now_ms: u64) -> Option<CtRecord> {
        self.table.named(id).and_then(|_| self.record(id.index, now_ms))
    }

    fn record(&self, index: u32, now_ms: u64) -> Option<CtRecord> {
        let connection = self.table.get(index)?;
        let protocol = match &connection.progress {
            Progress::Tcp(tcp) => {
                let sides = [Direction::Original, Direction::Reply].map(|side| tcp.scale_and_flags(side));
                CtProtocol::Tcp {
                    state: tcp.state(),
                    scales: sides.map(|side| side.0),
                    flags: sides.map(|side| side.1),
                }
            }
            Progress::Sctp(sctp) => CtProtocol::Sctp { state: sctp.state(), tags: sctp.tags() },
            Progress::Udp { .. } | Progress::Other => CtProtocol::Other,
        };
        let master = connection.master.and_then(|master| self.table.named(master));
        Some(CtRecord {
            id: self.table.id(index)?,
            tuples: connection.tuples,
            master: master.map(|master| *master.tuple(Direction::Original)),
            left_ms: connection.expires_ms.saturating_sub(now_ms),
            mark: connection.mark,
            labels: connection.labels,
            packets: connection.packets,
            bytes: connection.bytes,
            is_replied: connection.has(connection::SEEN_REPLY),
            is_assured: connection.has(connection::ASSURED),
            is_source_translated: connection.has(connection::SRC_NAT),
            is_destination_translated: connection.has(connection::DST_NAT),
            helper: connection.helper,
            protocol,
            in_port: connection.in_port,
        })
    }
}
