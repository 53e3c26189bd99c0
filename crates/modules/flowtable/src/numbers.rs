//! The datapath numbers of ports, which flows use.
//!
//! The control side stores these words and workers load them: the number of a port once a batch, the port of a number
//! once an output. Flows need no translation, and numbers may change while flows name them.

use std::sync::atomic::{AtomicU16, AtomicU32, Ordering};

use lasthop_module_api::{PORTS_MAX, PortId};

/// How many numbers there are, as in the Open vSwitch datapath.
pub(crate) const NUMBERS: usize = 1 << 16;
/// Stored for a port without a number.
const NO_NUMBER: u32 = u32::MAX;
/// Stored beside the number of a port that is a tunnel's end.
const TUNNEL_END: u32 = 1 << 16;
/// Stored for a number without a port. Packets are never sent to the port `internal`.
const NO_PORT: u16 = PortId::INTERNAL.0;

/// The numbers of one datapath.
#[derive(Debug)]
pub(crate) struct Numbers {
    by_port: Box<[AtomicU32]>,
    by_number: Box<[AtomicU16]>,
}

impl Numbers {
    /// Returns numbers of a datapath in which no port has one.
    pub(crate) fn none() -> Self {
        let by_port = (0..PORTS_MAX).map(|_| AtomicU32::new(NO_NUMBER)).collect();
        Self { by_port, by_number: (0..NUMBERS).map(|_| AtomicU16::new(NO_PORT)).collect() }
    }

    /// Returns numbers in which every port has the switch's own number.
    pub(crate) fn identical() -> Self {
        let numbers = Self::none();
        (1..PORTS_MAX as u16).for_each(|port| numbers.set(PortId(port), Some(port)));
        numbers
    }

    /// The number of a port.
    #[inline]
    pub(crate) fn of(&self, port: PortId) -> Option<u16> {
        let number = self.by_port.get(port.index())?.load(Ordering::Relaxed);
        (number != NO_NUMBER).then_some(number as u16)
    }

    /// The port that has a number.
    #[inline]
    pub(crate) fn port(&self, number: u16) -> Option<PortId> {
        let port = self.by_number.get(usize::from(number))?.load(Ordering::Relaxed);
        (port != NO_PORT).then_some(PortId(port))
    }

    /// Whether a port is a tunnel's end.
    pub(crate) fn is_tunnel_end(&self, port: PortId) -> bool {
        let place = self.by_port.get(port.index()).map(|place| place.load(Ordering::Relaxed));
        place.is_some_and(|place| place != NO_NUMBER && place & TUNNEL_END != 0)
    }

    /// Says so of a port that has a number, until that changes.
    pub(crate) fn set_tunnel_end(&self, port: PortId) {
        self.by_port.get(port.index()).map(|place| place.fetch_or(TUNNEL_END, Ordering::Relaxed));
    }

    /// Gives a port an unused number, or takes its number away.
    pub(crate) fn set(&self, port: PortId, number: Option<u16>) {
        let Some(place) = self.by_port.get(port.index()) else { return };
        let old = place.swap(number.map_or(NO_NUMBER, u32::from), Ordering::Relaxed);
        // No number exceeds the table.
        let store = |number: usize, port: u16| self.by_number[number].store(port, Ordering::Relaxed);
        if old != NO_NUMBER {
            store(usize::from(old as u16), NO_PORT);
        }
        if let Some(number) = number {
            store(usize::from(number), port.0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_has_one_number_and_a_number_one_port() {
        let numbers = Numbers::none();
        assert_eq!((numbers.of(PortId(3)), numbers.port(0), numbers.port(u16::MAX)), (None, None, None));
        numbers.set(PortId(3), Some(u16::MAX));
        assert_eq!((numbers.of(PortId(3)), numbers.port(u16::MAX)), (Some(u16::MAX), Some(PortId(3))));
        numbers.set(PortId(3), Some(0));
        assert_eq!((numbers.port(u16::MAX), numbers.port(0)), (None, Some(PortId(3))));
        numbers.set(PortId(3), None);
        assert_eq!((numbers.of(PortId(3)), numbers.port(0)), (None, None));
        numbers.set(PortId(3), Some(7));
        assert!(!numbers.is_tunnel_end(PortId(3)) && !numbers.is_tunnel_end(PortId(4)));
        numbers.set_tunnel_end(PortId(3));
        assert_eq!((numbers.of(PortId(3)), numbers.is_tunnel_end(PortId(3))), (Some(7), true));
        numbers.set(PortId(3), Some(8));
        assert_eq!((numbers.port(7), numbers.is_tunnel_end(PortId(3))), (None, false));
        assert_eq!(Numbers::identical().port(1023), Some(PortId(1023)));
    }
}
