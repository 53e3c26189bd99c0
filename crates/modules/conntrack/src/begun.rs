//! Connections that are entered, but in no list yet ([`crate::first_packets`]).

use arrayvec::ArrayVec;

use crate::bounds::CT_BATCH_MAX;
use crate::connection::Connection;

/// Connections of a shard that are in no list yet: the batches of two workers. Another one waits for its listing.
const BEGUN_MAX: usize = 2 * CT_BATCH_MAX;

/// Facts by which a connection enters the lists.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    pub(crate) in_port: u16,
    pub(crate) zone: u16,
    pub(crate) expires_ms: u64,
    pub(crate) is_evictable: bool,
}

impl Entry {
    pub(crate) fn of(connection: &Connection) -> Self {
        Self {
            in_port: connection.in_port,
            zone: connection.zone(),
            expires_ms: connection.expires_ms,
            is_evictable: connection.is_evictable(),
        }
    }
}

/// Connections of a shard that are in places and index, but in no list, oldest first.
#[derive(Debug, Default)]
pub(crate) struct Begun {
    all: ArrayVec<(u32, Entry), BEGUN_MAX>,
    /// Number of those that were listed meanwhile.
    listed: usize,
}

impl Begun {
    pub(crate) fn is_full(&self) -> bool {
        self.all.is_full()
    }

    pub(crate) fn push(&mut self, index: u32, entry: Entry) {
        self.all.push((index, entry));
    }

    /// Takes the oldest one.
    pub(crate) fn take(&mut self) -> Option<(u32, Entry)> {
        let first = self.all.get(self.listed).copied();
        self.listed += 1;
        if self.listed >= self.all.len() {
            self.all.clear();
            self.listed = 0;
        }
        first
    }

    /// Whether it has an evictable connection, of a port or of any one.
    pub(crate) fn has_evictable(&self, port: Option<u16>) -> bool {
        let mut rest = self.all.iter().skip(self.listed);
        rest.any(|(_, entry)| entry.is_evictable && port.is_none_or(|port| port == entry.in_port))
    }

    /// Number of connections of a zone.
    pub(crate) fn of_zone(&self, zone: u16) -> u32 {
        let is_of_zone = |(_, entry): &&(u32, Entry)| entry.zone == zone;
        self.all.iter().skip(self.listed).filter(is_of_zone).count() as u32
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn they_are_a_queue(steps in prop::collection::vec((any::<bool>(), 0..3_u16), 0..200)) {
            let (mut begun, mut model) = (Begun::default(), VecDeque::new());
            for (number, (comes, zone)) in (0..).zip(steps) {
                let entry = Entry { in_port: 1, zone, expires_ms: 0, is_evictable: true };
                if comes && !begun.is_full() {
                    begun.push(number, entry);
                    model.push_back((number, zone));
                } else {
                    prop_assert_eq!(begun.take().map(|(index, entry)| (index, entry.zone)), model.pop_front());
                }
                for zone in 0..3 {
                    let wanted = model.iter().filter(|(_, other)| *other == zone).count();
                    prop_assert_eq!(begun.of_zone(zone) as usize, wanted);
                }
            }
        }
    }
}
