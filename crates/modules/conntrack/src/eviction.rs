//! The order of eviction: lists of the connections of each port and zone.
//!
//! ```text
//!   port  list of the evictable ones (half-open, closing), oldest first
//!   class 0 | 1 | 2 | .. | 31     ports whose list has 2^class connections or more: the heaviest class pays first
//! ```

use crate::links::List;

/// Values of a [`ByNumber`] are allocated in pieces of this many.
const PIECE: usize = 256;
/// Classes of ports, by the logarithm of the number of connections that may be evicted.
const CLASSES: usize = 32;
const NO_CLASS: u8 = u8::MAX;

/// Values by the 16-bit number of a zone or port. Most numbers are never used, so pieces are allocated on demand.
#[derive(Debug)]
pub(crate) struct ByNumber<T> {
    pieces: Vec<Option<Box<[T]>>>,
}

impl<T: Default> ByNumber<T> {
    pub(crate) fn new() -> Self {
        Self { pieces: (0..PIECE).map(|_| None).collect() }
    }

    pub(crate) fn get(&self, number: u16) -> Option<&T> {
        let number = usize::from(number);
        self.pieces.get(number / PIECE)?.as_ref()?.get(number % PIECE)
    }

    pub(crate) fn get_mut(&mut self, number: u16) -> &mut T {
        let number = usize::from(number);
        let piece = &mut self.pieces[number / PIECE];
        let piece = piece.get_or_insert_with(|| (0..PIECE).map(|_| T::default()).collect());
        &mut piece[number % PIECE]
    }
}

/// A zone's connections.
#[derive(Debug, Default)]
pub(crate) struct ZoneConnections {
    pub(crate) members: List,
    pub(crate) limit: Option<u32>,
}

/// A port's connections.
#[derive(Debug)]
pub(crate) struct PortConnections {
    pub(crate) evictable: List,
    /// Whether it was at its limit when its last connection began: room for its next ones is made ahead.
    pub(crate) is_flooding: bool,
    class: u8,
    /// Index in the list of its class.
    place: u32,
}

impl Default for PortConnections {
    fn default() -> Self {
        Self { evictable: List::default(), is_flooding: false, class: NO_CLASS, place: 0 }
    }
}

/// Ports, sorted into classes by how many of their connections may be evicted.
#[derive(Debug)]
pub(crate) struct Ports {
    by_number: ByNumber<PortConnections>,
    classes: [Vec<u16>; CLASSES],
}

impl Ports {
    pub(crate) fn new() -> Self {
        Self { by_number: ByNumber::new(), classes: std::array::from_fn(|_| Vec::new()) }
    }

    pub(crate) fn get(&self, port: u16) -> Option<&PortConnections> {
        self.by_number.get(port)
    }

    /// Says whether a port floods the table.
    pub(crate) fn set_flooding(&mut self, port: u16, is_flooding: bool) {
        self.by_number.get_mut(port).is_flooding = is_flooding;
    }

    /// Changes a port's entry, and moves the port to another class if necessary. Returns whether it was.
    pub(crate) fn change(&mut self, port: u16, change: impl FnOnce(&mut PortConnections)) -> bool {
        let entry = self.by_number.get_mut(port);
        change(entry);
        let class = entry.evictable.len().checked_ilog2().map_or(NO_CLASS, |class| class as u8);
        let (old, place) = (entry.class, entry.place as usize);
        if class == old {
            return false;
        }
        if let Some(others) = self.classes.get_mut(usize::from(old)) {
            others.swap_remove(place);
            if let Some(moved) = others.get(place).copied() {
                self.by_number.get_mut(moved).place = place as u32;
            }
        }
        let mut place = 0;
        if let Some(others) = self.classes.get_mut(usize::from(class)) {
            place = others.len() as u32;
            others.push(port);
        }
        let entry = self.by_number.get_mut(port);
        (entry.class, entry.place) = (class, place);
        true
    }

    /// The heaviest class that has a port, plus one; 0 if no port has an evictable connection.
    pub(crate) fn heaviest_class(&self) -> u32 {
        (0..CLASSES).rev().find(|class| !self.classes[*class].is_empty()).map_or(0, |class| class as u32 + 1)
    }

    /// A port whose number of evictable connections is the highest, within a factor of two.
    pub(crate) fn heaviest(&self) -> Option<u16> {
        self.classes.iter().rev().find_map(|ports| ports.last().copied())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::links::{Links, ListKind};

    #[test]
    fn the_heaviest_port_is_known_without_looking_at_all() {
        let (mut ports, links) = (Ports::new(), Links::new(1000).expect("memory"));
        assert_eq!((ports.heaviest(), ports.heaviest_class()), (None, 0));
        for (port, indices) in [(7, 0..3), (9, 3..103), (1000, 103..113)] {
            for index in indices {
                ports.change(port, |entry| entry.evictable.push(&links, ListKind::Evictable, index, 1));
            }
        }
        assert_eq!((ports.heaviest(), ports.heaviest_class()), (Some(9), 7));
        for index in 3..103 {
            ports.change(9, |entry| entry.evictable.remove(&links, ListKind::Evictable, index));
        }
        assert_eq!(ports.heaviest(), Some(1000));
        assert_eq!(ports.classes.iter().map(Vec::len).sum::<usize>(), 2);
    }
}
