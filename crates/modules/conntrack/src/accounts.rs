//! Connections of ports and zones, and the order of eviction.
//!
//! ```text
//!   port  list of the evictable ones (half-open, closing), oldest first
//!   class 0 | 1 | 2 | .. | 31     ports whose list has 2^class connections or more: the heaviest class pays first
//! ```

use crate::links::List;

/// Accounts are allocated in pieces of this many.
const PIECE: usize = 256;
/// Classes of ports, by the logarithm of the number of connections that may be evicted.
const CLASSES: usize = 32;
const NO_CLASS: u8 = u8::MAX;

/// Accounts by 16-bit number. Most numbers are never used, so pieces are allocated on demand.
#[derive(Debug)]
pub(crate) struct Accounts<T> {
    pieces: Vec<Option<Box<[T]>>>,
}

impl<T: Default> Accounts<T> {
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
pub(crate) struct ZoneAccount {
    pub(crate) members: List,
    pub(crate) limit: Option<u32>,
}

/// A port's connections.
#[derive(Debug)]
pub(crate) struct PortAccount {
    pub(crate) evictable: List,
    class: u8,
    /// Index in the list of its class.
    place: u32,
}

impl Default for PortAccount {
    fn default() -> Self {
        Self { evictable: List::default(), class: NO_CLASS, place: 0 }
    }
}

/// Ports, sorted into classes by how many of their connections may be evicted.
#[derive(Debug)]
pub(crate) struct Ports {
    accounts: Accounts<PortAccount>,
    classes: [Vec<u16>; CLASSES],
}

impl Ports {
    pub(crate) fn new() -> Self {
        Self { accounts: Accounts::new(), classes: std::array::from_fn(|_| Vec::new()) }
    }

    pub(crate) fn get(&self, port: u16) -> Option<&PortAccount> {
        self.accounts.get(port)
    }

    /// Changes an account, and moves the port to another class if necessary.
    pub(crate) fn change(&mut self, port: u16, change: impl FnOnce(&mut PortAccount)) {
        let account = self.accounts.get_mut(port);
        change(account);
        let class = account.evictable.len().checked_ilog2().map_or(NO_CLASS, |class| class as u8);
        let (old, place) = (account.class, account.place as usize);
        if class == old {
            return;
        }
        if let Some(others) = self.classes.get_mut(usize::from(old)) {
            others.swap_remove(place);
            if let Some(moved) = others.get(place).copied() {
                self.accounts.get_mut(moved).place = place as u32;
            }
        }
        let mut place = 0;
        if let Some(others) = self.classes.get_mut(usize::from(class)) {
            place = others.len() as u32;
            others.push(port);
        }
        let account = self.accounts.get_mut(port);
        (account.class, account.place) = (class, place);
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
                ports.change(port, |account| account.evictable.push(&links, ListKind::Evictable, index, 1));
            }
        }
        assert_eq!((ports.heaviest(), ports.heaviest_class()), (Some(9), 7));
        for index in 3..103 {
            ports.change(9, |account| account.evictable.remove(&links, ListKind::Evictable, index));
        }
        assert_eq!(ports.heaviest(), Some(1000));
        assert_eq!(ports.classes.iter().map(Vec::len).sum::<usize>(), 2);
    }
}
