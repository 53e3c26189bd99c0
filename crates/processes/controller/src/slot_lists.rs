//! Lists of slots by a key, each slot in one list at most: entering, leaving and the length cost the same for any length.

use std::collections::HashMap;
use std::hash::Hash;

use lasthop_flow::KeyedState;

/// Stands for no slot.
const NONE: u32 = u32::MAX;

/// The first and last slot of a list that is not empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct List {
    first: u32,
    last: u32,
    len: usize,
}

/// A slot's neighbours in its list.
#[derive(Clone, Copy, Debug)]
struct Neighbours {
    before: u32,
    behind: u32,
}

const ALONE: Neighbours = Neighbours { before: NONE, behind: NONE };

/// The lists. They take no memory for a key without slots, and some bytes for each slot up to the highest one so far.
#[derive(Debug)]
pub(crate) struct SlotLists<K> {
    /// Guests may choose the keys.
    lists: HashMap<K, List, KeyedState>,
    /// By slot.
    neighbours: Vec<Neighbours>,
}

impl<K> Default for SlotLists<K> {
    fn default() -> Self {
        Self { lists: HashMap::default(), neighbours: Vec::new() }
    }
}

impl<K: Copy + Eq + Hash> SlotLists<K> {
    /// Adds a slot, which is in none of the lists, to the end of a list.
    pub(crate) fn enter(&mut self, key: K, slot: u32) {
        let list = self.lists.entry(key).or_insert(List { first: slot, last: NONE, len: 0 });
        let before = std::mem::replace(&mut list.last, slot);
        list.len += 1;
        if let Some(neighbours) = self.neighbours.get_mut(before as usize) {
            neighbours.behind = slot;
        }
        let at = slot as usize;
        if at >= self.neighbours.len() {
            self.neighbours.resize(at + 1, ALONE);
        }
        self.neighbours[at] = Neighbours { before, behind: NONE };
    }

    /// Removes a slot from its list, which is that of `key`.
    pub(crate) fn leave(&mut self, key: K, slot: u32) {
        let Some(list) = self.lists.get_mut(&key) else { return };
        let Some(neighbours) = self.neighbours.get_mut(slot as usize) else { return };
        let Neighbours { before, behind } = std::mem::replace(neighbours, ALONE);
        list.len -= 1;
        match self.neighbours.get_mut(before as usize) {
            Some(neighbours) => neighbours.behind = behind,
            None => list.first = behind,
        }
        match self.neighbours.get_mut(behind as usize) {
            Some(neighbours) => neighbours.before = before,
            None => list.last = before,
        }
        if list.len == 0 {
            self.lists.remove(&key);
        }
    }

    /// The slots of a list, in the order in which they entered.
    pub(crate) fn of(&self, key: K) -> impl Iterator<Item = u32> {
        let first = self.lists.get(&key).map(|list| list.first);
        let behind = |slot: &u32| self.neighbours.get(*slot as usize).map(|neighbours| neighbours.behind);
        std::iter::successors(first, behind).take_while(|slot| *slot != NONE)
    }

    /// Number of slots of a list.
    pub(crate) fn len(&self, key: K) -> usize {
        self.lists.get(&key).map_or(0, |list| list.len)
    }

    /// The length and the first slot of a longest list.
    pub(crate) fn longest(&self) -> Option<(usize, u32)> {
        self.lists.values().max_by_key(|list| list.len).map(|list| (list.len, list.first))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn slots_are_in_the_lists_that_they_entered(steps in prop::collection::vec((0..4_u8, 0..12_u32), 0..200)) {
            let (mut lists, mut model) = (SlotLists::default(), BTreeMap::<u8, Vec<u32>>::new());
            for (key, slot) in steps {
                match model.iter().find(|(_, slots)| slots.contains(&slot)).map(|(key, _)| *key) {
                    Some(key) => {
                        lists.leave(key, slot);
                        model.entry(key).or_default().retain(|other| *other != slot);
                    }
                    None => {
                        lists.enter(key, slot);
                        model.entry(key).or_default().push(slot);
                    }
                }
                for key in 0..4 {
                    let wanted = model.get(&key).cloned().unwrap_or_default();
                    prop_assert_eq!(lists.len(key), wanted.len());
                    prop_assert_eq!(lists.of(key).collect::<Vec<_>>(), wanted);
                }
                let longest = model.values().map(Vec::len).max().filter(|len| *len > 0);
                prop_assert_eq!(lists.longest().map(|(len, _)| len), longest);
                let used = model.values().filter(|slots| !slots.is_empty()).count();
                prop_assert_eq!(lists.lists.len(), used, "no memory for others");
            }
        }
    }
}
