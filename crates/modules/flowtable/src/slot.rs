//! Flows and masks for workers: words that one writer stores and every worker loads.
//!
//! ```text
//!   flow   generation : 32 | mask : 16 | 1 : 16      program      statistics of workers      key, masked: 26 words
//!   mask   used words : 32, one bit each             mask: 26 words
//! ```
//!
//! A slot's memory is never freed, and its contents are not replaced before a grace period is over (see `grace`). So a
//! slot that was found in this visit may be read until the visit ends. Later, the generation tells whether it still
//! holds the same flow.

use std::sync::atomic::{AtomicU64, Ordering};

use arrayvec::ArrayVec;
use lasthop_sync::prefetch;
use lasthop_wire::Key;
use lasthop_wire::key::{KEY_WORDS, KEY_WORDS_SHORT};
use lasthop_wire::mix::mix_bits;

use crate::bounds::FLOWS_MAX;
use crate::execution::EXECUTED;
use crate::hash::{Secret, of_word_by};

/// A worker's statistics entry for a flow: worker and number, plus one, so that 0 means none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct EntryId(pub(crate) u32);

impl EntryId {
    pub(crate) const NUMBER_BITS: u32 = 24;

    pub(crate) fn new(worker: usize, number: u32) -> Self {
        Self((worker as u32) << Self::NUMBER_BITS | (number + 1))
    }

    /// The entry as a number; 0 is none.
    pub(crate) fn get(self) -> u32 {
        self.0
    }

    /// The entry with this number.
    pub(crate) fn of(number: u32) -> Self {
        Self(number)
    }

    pub(crate) fn worker(self) -> usize {
        (self.0 >> Self::NUMBER_BITS) as usize
    }

    pub(crate) fn number(self) -> u32 {
        (self.0 & ((1 << Self::NUMBER_BITS) - 1)).wrapping_sub(1)
    }
}

/// The identity of the flow in a slot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Identity(u64);

impl Identity {
    const MASK_SHIFT: u32 = 16;
    const GENERATION_SHIFT: u32 = 32;

    pub(crate) fn new(generation: u32, mask: u16) -> Self {
        Self(u64::from(generation) << Self::GENERATION_SHIFT | u64::from(mask) << Self::MASK_SHIFT | 1)
    }

    pub(crate) fn mask(self) -> u16 {
        (self.0 >> Self::MASK_SHIFT) as u16
    }

    pub(crate) fn generation(self) -> u32 {
        (self.0 >> Self::GENERATION_SHIFT) as u32
    }
}

/// A flow's tag in upcalls: its slot, and enough of its generation to distinguish it from earlier flows there.
pub(crate) fn tag_of(slot: u32, generation: u32) -> u32 {
    slot | (generation % TAG_GENERATIONS) << FLOWS_MAX.trailing_zeros()
}

/// The slot in a tag.
pub(crate) fn slot_in(tag: u32) -> u32 {
    tag % FLOWS_MAX
}

/// The highest bit is clear: it marks executions (`EXECUTED`).
const TAG_GENERATIONS: u32 = EXECUTED / FLOWS_MAX;

const _: () = assert!(FLOWS_MAX.is_power_of_two());

/// A slot for a flow.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(crate) struct FlowSlot {
    identity: AtomicU64,
    /// See `program::Program`.
    program: AtomicU64,
    /// The newest of its statistics entries; see `stats`.
    pub(crate) stats: AtomicU64,
    /// Statistics of workers that had no free entry: packets, bytes, time of last use and TCP flags.
    pub(crate) spill: [AtomicU64; 3],
    key: KeyPlace,
}

/// A slot for a key.
#[derive(Debug)]
struct KeyPlace([AtomicU64; KEY_WORDS]);

impl Default for KeyPlace {
    fn default() -> Self {
        Self([const { AtomicU64::new(0) }; KEY_WORDS])
    }
}

const _: () = assert!(size_of::<FlowSlot>() == 384);

impl FlowSlot {
    #[inline]
    pub(crate) fn identity(&self) -> Identity {
        Identity(self.identity.load(Ordering::Acquire))
    }

    #[inline]
    pub(crate) fn program(&self) -> u64 {
        self.program.load(Ordering::Acquire)
    }

    pub(crate) fn set_program(&self, program: u64) {
        self.program.store(program, Ordering::Release);
    }

    /// Stores a flow in an empty slot. Workers find it when the table refers to it.
    pub(crate) fn occupy(&self, identity: Identity, key: &Key, program: u64) {
        self.key.0.iter().zip(&key.0).for_each(|(place, word)| place.store(*word, Ordering::Relaxed));
        self.stats.store(0, Ordering::Relaxed);
        self.spill.iter().for_each(|word| word.store(0, Ordering::Relaxed));
        self.program.store(program, Ordering::Relaxed);
        self.identity.store(identity.0, Ordering::Release);
    }

    /// Gives the flow another identity; it matches the same packets.
    pub(crate) fn rename(&self, identity: Identity) {
        self.identity.store(identity.0, Ordering::Release);
    }

    /// Removes the flow; later readers do not find it.
    pub(crate) fn vacate(&self) {
        self.identity.store(0, Ordering::Release);
    }

    /// The newest statistics entry of the flow.
    #[inline]
    pub(crate) fn newest_entry(&self) -> EntryId {
        EntryId::of(self.stats.load(Ordering::Acquire) as u32)
    }

    /// Prefetches the cache lines that a look-up reads.
    #[inline]
    pub(crate) fn prefetch(&self) {
        prefetch(self);
        prefetch(&self.key.0[KEY_WORDS_SHORT - 1]);
    }

    /// Whether the slot holds the flow of `mask` that matches `key`.
    #[inline]
    fn matches(&self, mask_number: u16, mask: &MaskSlot, key: &Key) -> bool {
        let identity = self.identity();
        let is_there = identity != Identity::default() && identity.mask() == mask_number;
        is_there
            && mask
                .words()
                .all(|(index, bits)| self.key.0[index].load(Ordering::Relaxed) == key.0[index] & bits)
    }
}

/// A slot for a mask.
#[derive(Debug, Default)]
pub(crate) struct MaskSlot {
    used: AtomicU64,
    words: KeyPlace,
}

impl MaskSlot {
    pub(crate) fn occupy(&self, mask: &Key) {
        self.words.0.iter().zip(&mask.0).for_each(|(place, word)| place.store(*word, Ordering::Relaxed));
        let used =
            (0..KEY_WORDS).filter(|index| mask.0[*index] != 0).fold(0, |bits, index| bits | 1 << index);
        self.used.store(used, Ordering::Release);
    }

    /// The non-zero words, each with its index.
    #[inline]
    fn words(&self) -> impl Iterator<Item = (usize, u64)> {
        let mut used = self.used.load(Ordering::Acquire);
        std::iter::from_fn(move || {
            let index = used.trailing_zeros() as usize;
            used &= used.wrapping_sub(1);
            Some((index, self.words.0.get(index)?.load(Ordering::Relaxed)))
        })
    }

    /// Adds its bits to those of other masks.
    pub(crate) fn add_to(&self, bits: &mut Key) {
        self.words().for_each(|(index, word)| bits.0[index] |= word);
    }

    /// The hash in the table of the flow of this mask that matches `key`.
    #[inline]
    pub(crate) fn hash(&self, number: u16, key: &Key, secret: &Secret) -> u64 {
        let of = |sum: u64, (index, bits): (usize, u64)| {
            sum.wrapping_add(secret.of_word(index, key.0[index] & bits))
        };
        mix_bits(self.words().fold(u64::from(number), of))
    }

    /// Makes `hasher` compute [`Self::hash`] for many keys, and [`Self::selects`]: the mask's words are collected once.
    // Into one that is there: a returned one would be moved with all its room.
    #[inline]
    pub(crate) fn set_hasher(&self, number: u16, secret: &Secret, hasher: &mut MaskHasher) {
        (hasher.number, hasher.identity) = (number, Identity::new(0, number).0 as u32);
        hasher.words.clear();
        hasher.words.extend(self.words().map(|(index, bits)| (index, bits, secret.word(index))));
    }

    /// Whether `slot` holds the flow of this mask that matches `key`.
    #[inline]
    pub(crate) fn selects(&self, number: u16, slot: &FlowSlot, key: &Key) -> bool {
        slot.matches(number, self, key)
    }
}

/// The words of a mask that look at anything: each with its number and its secret.
#[derive(Debug)]
pub(crate) struct MaskHasher {
    number: u16,
    /// The lower half of its flows' identities.
    identity: u32,
    words: ArrayVec<(usize, u64, u64), KEY_WORDS>,
}

/// The lower half of no flow's identity.
const NOBODYS: u32 = u32::MAX;

impl Default for MaskHasher {
    fn default() -> Self {
        Self { number: 0, identity: NOBODYS, words: ArrayVec::new() }
    }
}

impl MaskHasher {
    /// Becomes that of no mask: it selects nothing.
    pub(crate) fn unset(&mut self) {
        self.identity = NOBODYS;
    }

    /// Whether `slot` holds the flow of its mask that `key` belongs to.
    #[inline(always)]
    pub(crate) fn selects(&self, slot: &FlowSlot, key: &Key) -> bool {
        let is_there = slot.identity().0 as u32 == self.identity;
        let is_equal = |(index, bits, _): &(usize, u64, u64)| {
            slot.key.0[*index].load(Ordering::Relaxed) == key.0[*index] & bits
        };
        is_there && self.words.iter().all(is_equal)
    }

    /// Where the flow of its mask that `key` belongs to is in the table.
    #[inline(always)]
    pub(crate) fn hash(&self, key: &Key) -> u64 {
        let of = |sum: u64, (index, bits, secret): &(usize, u64, u64)| {
            sum.wrapping_add(of_word_by(*secret, key.0[*index] & bits))
        };
        mix_bits(self.words.iter().fold(u64::from(self.number), of))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_matches_keys_that_differ_where_the_mask_does_not_look() {
        let (slot, mask) = (FlowSlot::default(), MaskSlot::default());
        let mut bits = Key::default();
        (bits.0[3], bits.0[17]) = (0xff00, u64::MAX);
        mask.occupy(&bits);
        let mut key = Key([5; KEY_WORDS]);
        key.0[3] = 0x1234;
        assert!(!mask.selects(7, &slot, &key), "it is empty");
        slot.occupy(Identity::new(9, 7), &key.masked(&bits), 1);
        assert!(mask.selects(7, &slot, &key) && !mask.selects(8, &slot, &key));
        let secret = Secret::random();
        let hash = mask.hash(7, &key, &secret);
        (key.0[3], key.0[4]) = (0x12ff, 6);
        assert!(mask.selects(7, &slot, &key) && mask.hash(7, &key, &secret) == hash);
        let mut hasher = MaskHasher::default();
        for number in [8, 7] {
            mask.set_hasher(number, &secret, &mut hasher);
            assert_eq!(hasher.hash(&key), mask.hash(number, &key, &secret));
            assert_eq!(hasher.selects(&slot, &key), number == 7);
        }
        key.0[17] ^= 1;
        assert!(!hasher.selects(&slot, &key));
        assert!(!mask.selects(7, &slot, &key) && mask.hash(7, &key, &secret) != hash);
        assert_eq!((slot.identity().generation(), slot.identity().mask(), slot.program()), (9, 7, 1));
        key.0[17] ^= 1;
        slot.vacate();
        assert_eq!(slot.identity(), Identity::default());
        assert!(!hasher.selects(&slot, &key), "it is empty");
        hasher.unset();
        assert!(!hasher.selects(&slot, &key), "of no mask");
    }
}
