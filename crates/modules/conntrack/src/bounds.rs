//! Bounds of a table, the reasons for which it refuses a request, and its counters.

/// Packets whose connections are prefetched at once.
pub const CT_BATCH_MAX: usize = 32;
/// Shards of a table. Commits in zones of different shards do not contend.
pub(crate) const SHARDS: usize = 16;

/// Limits for the number of connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CtBounds {
    /// Limit for the whole table.
    pub connections_max: u32,
    /// Limit for connections that packets of one port began.
    pub port_connections_max: u32,
    /// Limit for a zone without a limit of its own; `None` for no limit.
    pub zone_connections_max: Option<u32>,
}

impl Default for CtBounds {
    /// One million connections; a quarter of them for one port.
    fn default() -> Self {
        Self { connections_max: 1 << 20, port_connections_max: 1 << 18, zone_connections_max: None }
    }
}

/// The reason why a connection was not committed, or a packet not translated: the packet has to be dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CtRefusal {
    /// The table is full, and no connection may be evicted.
    TableFull,
    /// The port has reached its limit, and none of its connections may be evicted.
    PortShare,
    /// The zone has reached its limit.
    ZoneLimit,
    /// Address translation found no free address and port.
    NatExhausted,
    /// Another connection has one of its tuples.
    TupleTaken,
    /// The header image lacks bytes that translation has to change.
    NotInImage,
    /// Other workers kept changing the connection.
    Contended,
}

impl CtRefusal {
    /// All reasons, by number.
    pub const ALL: [Self; 7] = [
        Self::TableFull,
        Self::PortShare,
        Self::ZoneLimit,
        Self::NatExhausted,
        Self::TupleTaken,
        Self::NotInImage,
        Self::Contended,
    ];
}

impl std::fmt::Display for CtRefusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::TableFull => "the table of connections is full",
            Self::PortShare => "the port has its share of connections",
            Self::ZoneLimit => "the zone has reached its limit of connections",
            Self::NatExhausted => "no address and port is left to translate to",
            Self::TupleTaken => "another connection has the tuple",
            Self::NotInImage => "a header to be translated is beyond the header image",
            Self::Contended => "other workers kept changing the connection",
        })
    }
}

/// Counters of the table's connections, since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CtCounters {
    /// Connections committed.
    pub created: u64,
    /// Connections expired.
    pub expired: u64,
    /// Connections evicted to make room.
    pub evicted: u64,
    /// Connections removed by a packet (RST, or another connection in its place) or by a request.
    pub deleted: u64,
    /// Packets that could not be tracked.
    pub invalid: u64,
    /// Packets that passed unchecked, since another worker was changing their connection for too long.
    pub unchecked: u64,
    /// Commits and other changes that waited for the lock of their shard.
    pub waited: u64,
    /// Commits refused, by [`CtRefusal`].
    pub refused: [u64; CtRefusal::ALL.len()],
}
