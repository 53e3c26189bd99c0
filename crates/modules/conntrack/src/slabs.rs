//! Where connections are: slabs that are allocated as the table fills, and lists through them.

use crate::connection::{Connection, LIVE, ListKind, ListLink};

/// Connections of a slab: 17 KiB, which are made in a few microseconds.
const SLAB_CONNECTIONS: usize = 64;

/// Places for connections, by index. A place stays where it is.
#[derive(Debug, Default)]
pub(crate) struct Slabs {
    slabs: Vec<Box<[Connection]>>,
    /// The first vacant place, as index + 1.
    vacant: u32,
    len: u32,
}

impl Slabs {
    /// Slabs for at most `connections_max` connections. Only the list of slabs takes memory yet.
    pub(crate) fn new(connections_max: u32) -> Self {
        let slabs = (connections_max as usize).div_ceil(SLAB_CONNECTIONS);
        Self { slabs: Vec::with_capacity(slabs), vacant: 0, len: 0 }
    }

    pub(crate) fn len(&self) -> u32 {
        self.len
    }

    /// One more than the largest index in use may be.
    pub(crate) fn places(&self) -> u32 {
        (self.slabs.len() * SLAB_CONNECTIONS) as u32
    }

    #[inline]
    pub(crate) fn get(&self, index: u32) -> Option<&Connection> {
        let index = index as usize;
        let connection = self.slabs.get(index / SLAB_CONNECTIONS)?.get(index % SLAB_CONNECTIONS)?;
        connection.has(LIVE).then_some(connection)
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, index: u32) -> Option<&mut Connection> {
        self.place(index).filter(|connection| connection.has(LIVE))
    }

    #[inline]
    fn place(&mut self, index: u32) -> Option<&mut Connection> {
        let index = index as usize;
        self.slabs.get_mut(index / SLAB_CONNECTIONS)?.get_mut(index % SLAB_CONNECTIONS)
    }

    /// Puts a connection into a vacant place.
    pub(crate) fn put(&mut self, connection: Connection) -> u32 {
        if self.vacant == 0 {
            self.add_slab();
        }
        let index = self.vacant - 1;
        if let Some(place) = self.place(index) {
            let (next, generation) = (place.chain[0], place.generation);
            *place = connection;
            place.status |= LIVE;
            place.generation = generation;
            self.vacant = next;
            self.len += 1;
        }
        index
    }

    fn add_slab(&mut self) {
        let first = self.places();
        let mut slab: Box<[Connection]> = (0..SLAB_CONNECTIONS).map(|_| Connection::default()).collect();
        for (index, place) in (first..).zip(&mut slab) {
            place.chain[0] = index + 2;
        }
        if let Some(last) = slab.last_mut() {
            last.chain[0] = self.vacant;
        }
        self.slabs.push(slab);
        self.vacant = first + 1;
    }

    /// The place is vacant; its name is not used again.
    pub(crate) fn take(&mut self, index: u32) {
        let vacant = self.vacant;
        let Some(place) = self.get_mut(index) else { return };
        let generation = place.generation.wrapping_add(1);
        *place = Connection { generation, chain: [vacant, 0], ..Connection::default() };
        self.vacant = index + 1;
        self.len -= 1;
    }

    fn link(&mut self, index_and_one: u32, kind: ListKind) -> Option<&mut ListLink> {
        let index = index_and_one.checked_sub(1)?;
        Some(&mut self.place(index)?.links[kind as usize])
    }
}

/// A list of connections, oldest first; each is in at most one of each kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct List {
    first: u32,
    last: u32,
    len: u32,
}

impl List {
    pub(crate) fn len(&self) -> u32 {
        self.len
    }

    pub(crate) fn first(&self) -> Option<u32> {
        self.first.checked_sub(1)
    }

    pub(crate) fn push(&mut self, slabs: &mut Slabs, kind: ListKind, index: u32) {
        let this = index + 1;
        if let Some(link) = slabs.link(this, kind) {
            *link = ListLink { before: self.last, behind: 0 };
        }
        match slabs.link(self.last, kind) {
            Some(last) => last.behind = this,
            None => self.first = this,
        }
        self.last = this;
        self.len += 1;
    }

    pub(crate) fn remove(&mut self, slabs: &mut Slabs, kind: ListKind, index: u32) {
        let Some(link) = slabs.link(index + 1, kind).map(std::mem::take) else { return };
        match slabs.link(link.before, kind) {
            Some(before) => before.behind = link.behind,
            None => self.first = link.behind,
        }
        match slabs.link(link.behind, kind) {
            Some(behind) => behind.before = link.before,
            None => self.last = link.before,
        }
        self.len -= 1;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn places_are_used_again_under_other_names() {
        let mut slabs = Slabs::new(1000);
        assert_eq!(slabs.places(), 0, "an empty table has no slab");
        let first: Vec<u32> = (0..65).map(|_| slabs.put(Connection::default())).collect();
        assert_eq!((slabs.places(), slabs.len()), (128, 65));
        let generation = slabs.get(first[3]).expect("it is there").generation;
        slabs.take(first[3]);
        assert!(slabs.get(first[3]).is_none());
        slabs.take(first[3]);
        assert_eq!(slabs.len(), 64, "what is gone does not go again");
        assert_eq!(slabs.put(Connection::default()), first[3]);
        assert_ne!(slabs.get(first[3]).expect("it is there").generation, generation);
    }

    proptest! {
        #[test]
        fn a_list_is_a_queue_with_holes(steps in prop::collection::vec((0..20_u32, any::<bool>()), 0..200)) {
            let mut slabs = Slabs::new(64);
            let indices: Vec<u32> = (0..20).map(|_| slabs.put(Connection::default())).collect();
            let (mut list, mut model) = (List::default(), VecDeque::new());
            for (which, comes) in steps {
                let index = indices[which as usize];
                let is_in = model.contains(&index);
                if comes && !is_in {
                    list.push(&mut slabs, ListKind::Zone, index);
                    model.push_back(index);
                } else if !comes && is_in {
                    list.remove(&mut slabs, ListKind::Zone, index);
                    model.retain(|other| *other != index);
                }
                prop_assert_eq!((list.first(), list.len() as usize), (model.front().copied(), model.len()));
            }
            while let Some(first) = list.first() {
                prop_assert_eq!(Some(first), model.pop_front());
                list.remove(&mut slabs, ListKind::Zone, first);
            }
            prop_assert!(model.is_empty() && list == List::default());
        }
    }
}
