//! Lists of connections. Their links stand beside the connections, in words that only the holder of a shard's lock
//! writes.
//!
//! ```text
//!   of each place   wheel | evictable | zone | pending       a link: before : 27, behind : 27, extra : 10
//! ```

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use lasthop_guestmem::{Mapping, Words};

/// Words of each place.
pub(crate) const LINK_WORDS: usize = 4;
const PENDING_AT: usize = 3;
/// Bits of a link: a place's index plus one.
const NUMBER_BITS: u32 = 27;
const NUMBER_MASK: u64 = (1 << NUMBER_BITS) - 1;
/// Largest number of places, as many as the index can name.
pub(crate) const PLACES_MAX: u32 = 1 << 23;

/// The lists that a connection is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ListKind {
    /// A slot of the wheel; extra: its number. For a vacant place: the next vacant one.
    Wheel,
    /// A port's connections that may be evicted; extra: 1. For a vacant place: the next batch.
    Evictable,
    /// All connections of a zone.
    Zone,
}

/// Neighbours in a list, as index + 1; 0 is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ListLink {
    pub(crate) before: u32,
    pub(crate) behind: u32,
    pub(crate) extra: u16,
}

/// The links of all places.
#[derive(Debug)]
pub(crate) struct Links(pub(crate) Words);

impl Links {
    /// Links for this number of places. Pages are touched as places are used.
    pub(crate) fn new(places: usize) -> Option<Self> {
        let words = places * LINK_WORDS;
        let mapping = Arc::new(Mapping::anonymous(words * size_of::<u64>()).ok()?);
        Words::new(&mapping, 0, words).map(Self)
    }

    /// Links for no place.
    pub(crate) fn none() -> Self {
        Self(Words::none())
    }

    #[inline]
    fn word(&self, index: u32, at: usize) -> Option<&AtomicU64> {
        self.0.atomics().as_chunks::<LINK_WORDS>().0.get(index as usize).map(|words| &words[at])
    }

    pub(crate) fn get(&self, index: u32, kind: ListKind) -> ListLink {
        let word = self.word(index, kind as usize).map_or(0, |word| word.load(Ordering::Relaxed));
        let number = |bits: u64| (bits & NUMBER_MASK) as u32;
        ListLink {
            before: number(word),
            behind: number(word >> NUMBER_BITS),
            extra: (word >> (2 * NUMBER_BITS)) as u16,
        }
    }

    pub(crate) fn set(&self, index: u32, kind: ListKind, link: ListLink) {
        let bits = u64::from(link.before)
            | u64::from(link.behind) << NUMBER_BITS
            | u64::from(link.extra) << (2 * NUMBER_BITS);
        if let Some(word) = self.word(index, kind as usize) {
            word.store(bits, Ordering::Relaxed);
        }
    }

    /// The word of a place in the stack of changes ([`lasthop_sync::MarkedStack`]).
    #[inline]
    pub(crate) fn pending(&self, index: u32) -> Option<&AtomicU64> {
        self.word(index, PENDING_AT)
    }
}

/// A list of connections, oldest first. A connection is in at most one list of each kind.
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

    /// Appends a connection, with the extra number.
    pub(crate) fn push(&mut self, links: &Links, kind: ListKind, index: u32, extra: u16) {
        let this = index + 1;
        links.set(index, kind, ListLink { before: self.last, behind: 0, extra });
        match self.last.checked_sub(1) {
            Some(last) => links.set(last, kind, ListLink { behind: this, ..links.get(last, kind) }),
            None => self.first = this,
        }
        self.last = this;
        self.len += 1;
    }

    /// Removes a connection, which must be in this list.
    pub(crate) fn remove(&mut self, links: &Links, kind: ListKind, index: u32) {
        let link = links.get(index, kind);
        links.set(index, kind, ListLink::default());
        match link.before.checked_sub(1) {
            Some(before) => {
                links.set(before, kind, ListLink { behind: link.behind, ..links.get(before, kind) });
            }
            None => self.first = link.behind,
        }
        match link.behind.checked_sub(1) {
            Some(behind) => {
                links.set(behind, kind, ListLink { before: link.before, ..links.get(behind, kind) });
            }
            None => self.last = link.before,
        }
        self.len = self.len.saturating_sub(1);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_list_is_a_queue_with_holes(steps in prop::collection::vec((0..20_u32, any::<bool>()), 0..200)) {
            let links = Links::new(64).expect("memory");
            let (mut list, mut model) = (List::default(), VecDeque::new());
            for (index, comes) in steps {
                let is_in = model.contains(&index);
                if comes && !is_in {
                    list.push(&links, ListKind::Zone, index, 7);
                    model.push_back(index);
                } else if !comes && is_in {
                    prop_assert_eq!(links.get(index, ListKind::Zone).extra, 7);
                    list.remove(&links, ListKind::Zone, index);
                    model.retain(|other| *other != index);
                }
                prop_assert_eq!((list.first(), list.len() as usize), (model.front().copied(), model.len()));
            }
            while let Some(first) = list.first() {
                prop_assert_eq!(Some(first), model.pop_front());
                list.remove(&links, ListKind::Zone, first);
            }
            prop_assert!(model.is_empty() && list == List::default());
        }
    }
}
