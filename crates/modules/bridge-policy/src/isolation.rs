//! Which ports cannot talk to each other: isolated ones, and uplinks, unless both pass frames of other uplinks.

use lasthop_module_api::{DropReason, PortKind};

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
