//! Connections as reports show them.

use lasthop_ct_packet::{CtHelper, CtTuple, Direction};

use crate::connection::{self, Connection, CtId, Progress};
use crate::places::Places;
use crate::request::original_of;
use crate::sctp::SctpState;
use crate::tcp::TcpState;

/// The state of a connection's protocol, for reports.
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
    /// Protocols without a state.
    Other,
}

/// A connection, for reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CtRecord {
    /// Its identity.
    pub id: CtId,
    /// Its tuples, by direction.
    pub tuples: [CtTuple; 2],
    /// Its master's original tuple.
    pub master: Option<CtTuple>,
    /// Milliseconds until it expires.
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
    /// Whether it is not half-open.
    pub is_assured: bool,
    /// Whether its source is translated.
    pub is_source_translated: bool,
    /// Whether its destination is translated.
    pub is_destination_translated: bool,
    /// Helper.
    pub helper: Option<CtHelper>,
    /// Protocol.
    pub protocol: CtProtocol,
    /// The port that its first packet came in by.
    pub in_port: u16,
}

/// Reads of a changing connection before the last one is used as it is.
const READS_MAX: u32 = 16;

impl CtRecord {
    /// Reads the connection at a place; `None` if the place is vacant or the connection has expired.
    pub(crate) fn at(places: &Places, index: u32, now_ms: u64) -> Option<Self> {
        let place = places.get(index)?;
        for read in 0..READS_MAX {
            let version = place.quiet_version().unwrap_or_else(|| place.version());
            if !version.is_live() {
                return None;
            }
            let connection = place.connection();
            if !place.is_still(version) && (read < READS_MAX - 1 || !place.is_still_connection(version)) {
                continue;
            }
            let id = CtId { index, generation: version.generation() };
            return (connection.expires_ms > now_ms).then(|| Self::of(places, id, &connection, now_ms));
        }
        None
    }

    fn of(places: &Places, id: CtId, connection: &Connection, now_ms: u64) -> Self {
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
        Self {
            id,
            tuples: connection.tuples,
            master: connection.master.and_then(|master| original_of(places, master)),
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
        }
    }
}
