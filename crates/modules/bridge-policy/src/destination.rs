//! Destinations: one port, a flood with its limit's kind, or none, as between isolated ports.

use lasthop_module_api::{DropReason, PortKind, StormLimits};

use crate::GROUP;
use crate::recorder::{MAC_BITS, MAC_ONES, Recorder, digits_apart, mac_digits_apart};

/// Bridge group addresses 01-80-C2-00-00-00 to -0F, which no bridge forwards (IEEE 802.1D-2004, 7.12.6).
const LINK_LOCAL: u64 = 0x0180_c200_0000;
const LINK_LOCAL_MASK: u64 = MAC_ONES & !0xf;

/// The destination of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target<P> {
    /// To one port.
    Port(P),
    /// To all other ports that carry its VLAN.
    Flood,
}

/// The destination of a frame from port `from`, by its destination address. `look_up` finds the port of an individual
/// address; `barrier` returns why frames may not pass to a port.
///
/// # Errors
/// [`DropReason::LinkLocal`], [`DropReason::SamePort`], and those of `barrier`.
#[inline(always)] // for every frame of the bridge; without this the compiler makes it a call
pub fn route<P: Copy + PartialEq>(
    destination: u64,
    from: P,
    look_up: impl FnOnce() -> Option<P>,
    barrier: impl FnOnce(P) -> Option<DropReason>,
    recorder: &mut impl Recorder,
) -> Result<Target<P>, DropReason> {
    if destination & GROUP != 0 {
        return route_group(destination, recorder);
    }
    recorder.destination(MAC_ONES);
    match look_up() {
        None => Ok(Target::Flood),
        Some(port) if port == from => Err(DropReason::SamePort),
        Some(port) => barrier(port).map_or(Ok(Target::Port(port)), Err),
    }
}

#[inline]
fn route_group<P>(destination: u64, recorder: &mut impl Recorder) -> Result<Target<P>, DropReason> {
    if destination & LINK_LOCAL_MASK == LINK_LOCAL {
        recorder.destination(LINK_LOCAL_MASK);
        return Err(DropReason::LinkLocal);
    }
    recorder.destination(GROUP | digits_apart(destination, LINK_LOCAL, LINK_LOCAL_MASK, MAC_BITS));
    Ok(Target::Flood)
}

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

/// A port's class, and the classes from which it is isolated. Most ports have none.
///
/// ```text
///   away from: 4 | is: 4
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IsolationClass(u8);

const ISOLATED: u8 = 1 << 0;
const UPLINK: u8 = 1 << 1;
const AWAY_SHIFT: u32 = 4;

impl IsolationClass {
    /// The class of a port with these settings.
    #[must_use]
    pub fn of(is_isolated: bool, kind: PortKind) -> Self {
        let isolated = if is_isolated { ISOLATED | ISOLATED << AWAY_SHIFT } else { 0 };
        let uplink = match kind {
            PortKind::Inside => 0,
            PortKind::Uplink => UPLINK | UPLINK << AWAY_SHIFT,
            PortKind::TransitUplink => UPLINK,
        };
        Self(isolated | uplink)
    }

    /// The class with these [`Self::bits`].
    #[must_use]
    pub fn from_bits(bits: u8) -> Self {
        Self(bits)
    }

    /// The class as a number, to be stored.
    #[must_use]
    pub fn bits(self) -> u8 {
        self.0
    }

    /// Whether it may be isolated from some ports.
    #[inline]
    #[must_use]
    pub fn is_barred(self) -> bool {
        self.0 != 0
    }

    /// Why no frame passes between the two; `None` if frames pass.
    #[must_use]
    pub fn barrier(self, other: Self) -> Option<DropReason> {
        let met = self.0 & other.0 >> AWAY_SHIFT | other.0 & self.0 >> AWAY_SHIFT;
        match met {
            0 => None,
            met if met & ISOLATED != 0 => Some(DropReason::Isolated),
            _ => Some(DropReason::NoTransit),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uplinks_talk_if_both_say_so_and_isolated_ports_never() {
        use PortKind::{Inside, TransitUplink, Uplink};
        let barrier = |one, other| IsolationClass::of(false, one).barrier(IsolationClass::of(false, other));
        assert_eq!(barrier(Uplink, Uplink), Some(DropReason::NoTransit));
        assert_eq!(barrier(Uplink, TransitUplink), Some(DropReason::NoTransit));
        assert_eq!(barrier(TransitUplink, Uplink), Some(DropReason::NoTransit));
        for (one, other) in [(TransitUplink, TransitUplink), (Inside, Uplink), (Uplink, Inside)] {
            assert_eq!(barrier(one, other), None, "{one:?} to {other:?}");
        }
        let isolated = |kind| IsolationClass::of(true, kind);
        assert_eq!(isolated(TransitUplink).barrier(isolated(Inside)), Some(DropReason::Isolated));
        assert_eq!(isolated(Uplink).barrier(isolated(Uplink)), Some(DropReason::Isolated));
        assert_eq!(isolated(Inside).barrier(IsolationClass::of(false, Uplink)), None);
        assert!(!IsolationClass::default().is_barred() && isolated(Inside).is_barred());
    }
}
