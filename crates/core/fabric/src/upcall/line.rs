//! The lines in which packets for the control plane wait.

use lasthop_module_api::{PORTS_MAX, PortId};

use crate::bounds::UPCALL_LINES_OF_INTERNAL;

/// Number of lines of one kind.
const LINES: u16 = PORTS_MAX as u16 + UPCALL_LINES_OF_INTERNAL;

/// A line in which packets for the control plane wait. Each port has one. Packets of the port `internal`, which control
/// planes sent, have one per deciding module. Suspended packets, mostly fragments, have a second set of lines, so that
/// they do not displace the first packets of flows. Each line has its own turns, bounds and tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct UpcallLine(u16);

impl UpcallLine {
    /// The line of packets from `port` about which `origin` decided.
    pub(crate) fn of(port: PortId, origin: u16, is_suspended: bool) -> Self {
        let first = if is_suspended { LINES } else { 0 };
        match port {
            PortId::INTERNAL => Self(first + PORTS_MAX as u16 + origin % UPCALL_LINES_OF_INTERNAL),
            port => Self(first + port.0),
        }
    }

    pub(crate) fn index(self) -> usize {
        usize::from(self.0)
    }

    /// All lines.
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        (0..2 * LINES).map(Self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_port_has_a_line_and_the_internal_one_has_several() {
        let last = PortId(PORTS_MAX as u16 - 1);
        assert_eq!(UpcallLine::of(last, 1, false), UpcallLine::of(last, 2, false));
        assert_ne!(UpcallLine::of(PortId::INTERNAL, 1, false), UpcallLine::of(PortId::INTERNAL, 2, false));
        let len = UpcallLine::all().count();
        assert!((0..=u16::MAX).all(|origin| UpcallLine::of(PortId::INTERNAL, origin, true).index() < len));
        let fragments = UpcallLine::of(PortId(1), 1, true).index();
        assert!(UpcallLine::of(PortId::INTERNAL, u16::MAX, false).index() < fragments);
        assert!(UpcallLine::of(last, 1, false).index() < UpcallLine::of(PortId::INTERNAL, 0, false).index());
    }
}
