//! Bounds of a table, the reasons why it refuses, and its counters.

/// Shards of a table: commits of zones of different ones do not meet.
pub(crate) const SHARDS: usize = 16;

/// How many connections there may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CtBounds {
    /// In all.
    pub connections_max: u32,
    /// That packets of one port began.
    pub port_connections_max: u32,
    /// Of a zone that has no limit of its own; none: no limit.
    pub zone_connections_max: Option<u32>,
}

impl Default for CtBounds {
    /// A million; one port gets a quarter.
    fn default() -> Self {
        Self { connections_max: 1 << 20, port_connections_max: 1 << 18, zone_connections_max: None }
    }
}

/// The reason why a connection was not committed, or a packet not translated: the packet has to be dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CtRefusal {
    /// The table is full of connections that are not to be evicted.
    TableFull,
    /// The port has its share, and none of its connections may be evicted.
    PortShare,
    /// The zone has reached its limit.
    ZoneLimit,
    /// Address translation has no address and port left.
    NatExhausted,
    /// Another connection has one of its tuples.
    TupleTaken,
    /// The header image lacks bytes that translation has to change.
    NotInImage,
    /// Other workers kept changing the connection.
    Contended,
}

impl CtRefusal {
    /// All of them.
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
    /// Committed.
    pub created: u64,
    /// Over by time.
    pub expired: u64,
    /// Gone to make room.
    pub evicted: u64,
    /// Gone by a packet (RST, another connection in its place) or a request.
    pub deleted: u64,
    /// Packets that could not be tracked.
    pub invalid: u64,
    /// Packets of connections that another worker was changing for so long that they passed unchecked.
    pub unchecked: u64,
    /// Commits and other changes that had to wait for another one of their shard.
    pub waited: u64,
    /// Not committed, by [`CtRefusal`].
    pub refused: [u64; CtRefusal::ALL.len()],
}
