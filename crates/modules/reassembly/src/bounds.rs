//! Bounds of the queued fragments.

/// Bounds of the queued fragments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FragmentBounds {
    /// Limit for the whole pool.
    pub all: FragmentShare,
    /// Limit for one zone.
    pub zone: FragmentShare,
    /// Limit for one source in one datapath.
    pub source: FragmentShare,
    /// Longest time that a datagram is queued after its first fragment arrived, in milliseconds.
    pub time_ms: u64,
}

/// A number of fragments, and the bytes of their frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FragmentShare {
    /// Fragments.
    pub fragments: u32,
    /// Bytes.
    pub bytes: u32,
}

impl Default for FragmentBounds {
    /// A source may hold four datagrams of 64 KiB in many pieces, a zone four times that, and the pool 16 times that.
    /// The time is Linux's for IPv4.
    fn default() -> Self {
        Self {
            all: FragmentShare { fragments: 8192, bytes: 8 << 20 },
            zone: FragmentShare { fragments: 2048, bytes: 2 << 20 },
            source: FragmentShare { fragments: 512, bytes: 512 << 10 },
            time_ms: 30_000,
        }
    }
}

/// Fragments of one datagram: as many as the switch cuts a packet into.
pub const DATAGRAM_FRAGMENTS_MAX: usize = lasthop_wire::gso::SEGMENTS_MAX as usize;

impl FragmentShare {
    pub(crate) fn fits(self, more_bytes: u32, bound: Self) -> bool {
        self.fragments < bound.fragments && self.bytes.saturating_add(more_bytes) <= bound.bytes
    }
}
