//! Kinds of floods, each with its own limit.

use lasthop_module_api::{DropReason, StormLimits};

use crate::GROUP;
use crate::recorder::{MAC_ONES, Recorder, mac_digits_apart};

const BROADCAST: u64 = MAC_ONES;

/// Why a frame is flooded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FloodKind {
    /// To the broadcast address.
    Broadcast,
    /// To another group address.
    Multicast,
    /// To an individual address without a known port.
    Unknown,
}

impl FloodKind {
    /// All of them, in the order of their numbers.
    pub const ALL: [Self; 3] = [Self::Broadcast, Self::Multicast, Self::Unknown];

    /// Why a frame to this address would be flooded.
    #[inline]
    #[must_use]
    pub fn of(destination: u64) -> Self {
        match destination {
            BROADCAST => Self::Broadcast,
            group if group & GROUP != 0 => Self::Multicast,
            _ => Self::Unknown,
        }
    }

    /// As [`Self::of`]. The bits that distinguish broadcasts from multicasts count only if one of them is limited.
    pub fn recorded(destination: u64, limits: &StormLimits, recorder: &mut impl Recorder) -> Self {
        let kind = Self::of(destination);
        let is_limited = [Self::Broadcast, Self::Multicast].iter().any(|kind| kind.limit(limits) > 0);
        match kind {
            Self::Broadcast if is_limited => recorder.destination(MAC_ONES),
            Self::Multicast if is_limited => recorder.destination(mac_digits_apart(destination, BROADCAST)),
            _ => {}
        }
        kind
    }

    /// The limit of flooded frames per second of a port with these settings; 0: no limit.
    #[must_use]
    pub fn limit(self, limits: &StormLimits) -> u32 {
        match self {
            Self::Broadcast => limits.broadcast,
            Self::Multicast => limits.multicast,
            Self::Unknown => limits.unknown,
        }
    }

    /// Why a frame beyond the limit is dropped.
    #[must_use]
    pub fn excess(self) -> DropReason {
        match self {
            Self::Broadcast => DropReason::StormBroadcast,
            Self::Multicast => DropReason::StormMulticast,
            Self::Unknown => DropReason::StormUnknown,
        }
    }
}
