//! The ledger of a packed ring. Its device keeps what a split ring has in the driver's memory: where it stands, and the
//! used descriptors that the driver cannot see yet.
//!
//! ```text
//!   byte 0    tag | entries | 0 | taken | filled | first, end of those postponed | detached | published | 0 ...
//!   byte 64   marks[entries]      by buffer ID, as in a split ring
//!             postponed[entries]  buffer IDs
//!             spans[entries]      by buffer ID: descriptors of its chain, 1 from the start
//!             firsts[entries]     by buffer ID: position of the chain's first descriptor
//!             used[entries]       by position: second words of used descriptors, from `published` on
//!             chains[..]          of those postponed: their descriptors, which may be overwritten in the ring
//!
//!   find:      span and first of a chain whose ID is not marked, then its mark, then `taken`
//!   complete:  used word, then the ID's mark is cleared        next used position = taken - spans of marked IDs
//!   publish:   the ring's words, the first of them last, then `published`
//! ```
//!
//! All positions count descriptors.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use super::{
    DESCRIPTOR_WORDS, EntryWords, HEAD_WORDS, Ledger, LedgerError, WORD_FILLED, WORD_POSTPONED,
    WORD_POSTPONED_END, WORD_PUBLISHED, WORD_TAKEN,
};
use crate::packed_memory::PackedWord;
use crate::{DESC_NEXT, Descriptor, RingFormat, death};

/// Areas with one word for each entry, behind those of a split ring, and their number.
const AREA_SPANS: usize = 2;
const AREA_FIRSTS: usize = 3;
const AREAS: usize = 4;

/// The areas of a packed ring's ledger that its loops use, as a value: after a store they need not reload their addresses.
#[derive(Clone, Copy)]
pub(crate) struct PackedAreas<'a> {
    pub(crate) marks: EntryWords<'a>,
    pub(crate) firsts: EntryWords<'a>,
    used: NonNull<u64>,
    /// Number of entries less one.
    last: u16,
}

impl PackedAreas<'_> {
    #[inline(always)]
    fn word(&self, position: u16) -> &AtomicU64 {
        // SAFETY: the area, which is the ledger's, has a double word for each entry, of which there are a power of two, at a
        // multiple of 8 bytes. The ledger is borrowed and pins its memory. All accesses are atomic.
        unsafe { AtomicU64::from_ptr(self.used.as_ptr().add(usize::from(position & self.last))) }
    }

    #[inline(always)]
    pub(crate) fn used_word(&self, position: u16) -> PackedWord {
        PackedWord(self.word(position).load(Ordering::Relaxed))
    }

    #[inline(always)]
    pub(crate) fn set_used_word(&self, position: u16, value: PackedWord) {
        death::may_come();
        self.word(position).store(value.0, Ordering::Relaxed);
    }
}

/// The positions at which a packed ring continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PackedPlace {
    /// The next descriptor to be taken.
    pub(crate) base: u16,
    /// The next used descriptor to be written.
    pub(crate) next_used: u16,
    /// The first used descriptor of which it is not known that the driver sees it.
    pub(crate) published: u16,
}

impl Ledger {
    /// Words of a packed ring's ledger before the postponed chains.
    pub(super) fn packed_words(entries: usize) -> usize {
        HEAD_WORDS + (AREAS + size_of::<PackedWord>() / 2) * entries
    }

    /// The areas for loops.
    #[inline]
    pub(crate) fn areas(&self) -> PackedAreas<'_> {
        debug_assert_eq!(self.format, RingFormat::Packed);
        PackedAreas {
            marks: self.marks(),
            firsts: self.entry_words(AREA_FIRSTS),
            used: self.double_words(),
            last: self.entries - 1,
        }
    }

    /// Number of descriptors of the chain with this buffer ID.
    #[inline]
    pub(crate) fn span(&self, id: u16) -> u16 {
        self.entry_words(AREA_SPANS).get(id)
    }

    #[inline]
    pub(crate) fn set_span(&self, id: u16, descriptors: u16) {
        self.entry_words(AREA_SPANS).set(id, descriptors);
    }

    /// Whether there was a chain of more than one descriptor, as far as the spans tell.
    pub(crate) fn has_long(&self) -> bool {
        (0..self.entries).any(|id| self.span(id) != 1)
    }

    /// Position of the first descriptor of the chain with this buffer ID.
    #[inline]
    pub(crate) fn first(&self, id: u16) -> u16 {
        self.entry_words(AREA_FIRSTS).get(id)
    }

    #[inline]
    pub(crate) fn set_first(&self, id: u16, position: u16) {
        self.entry_words(AREA_FIRSTS).set(id, position);
    }

    /// The double words behind the areas with one word for each entry.
    #[inline]
    fn double_words(&self) -> NonNull<u64> {
        debug_assert_eq!(self.format, RingFormat::Packed);
        // SAFETY: a packed ring's ledger has words behind these areas.
        unsafe { self.start.add(self.area(AREAS)) }.cast()
    }

    /// Double word `index` of them.
    #[inline]
    fn double_word(&self, index: usize) -> &AtomicU64 {
        debug_assert!(self.area(AREAS) + 4 * (index + 1) <= Self::words(self.format, self.entries));
        // SAFETY: as asserted, the double word is the ledger's, which pins its memory; it begins at a multiple of 8 bytes, and
        // four areas of any power of two of half-words are one, too. All accesses are atomic.
        unsafe { AtomicU64::from_ptr(self.double_words().as_ptr().add(index)) }
    }

    /// Notes that the driver sees all used descriptors before `position`.
    #[inline]
    pub(crate) fn set_published(&self, position: u16) {
        self.set(WORD_PUBLISHED, position);
    }

    /// Double words of descriptor number `place` of the postponed chains.
    fn chain_words(&self, place: usize) -> [&AtomicU64; 2] {
        let first = usize::from(self.entries) + place * (DESCRIPTOR_WORDS / 4);
        [self.double_word(first), self.double_word(first + 1)]
    }

    /// Stores the descriptors of chains that are about to be postponed, in the same order, as far as there is room. Returns
    /// the number of chains stored.
    pub(crate) fn set_chains<C: Iterator<Item = Descriptor>>(
        &self,
        chains: impl Iterator<Item = C>,
    ) -> usize {
        let room = Self::postponed_max(self.format, self.entries);
        let (mut place, mut stored) = (0, 0);
        for chain in chains {
            for descriptor in chain {
                if place == room {
                    return stored;
                }
                for (word, value) in self.chain_words(place).into_iter().zip(descriptor.to_words()) {
                    death::may_come();
                    word.store(value, Ordering::Relaxed);
                }
                place += 1;
            }
            stored += 1;
        }
        stored
    }

    /// The postponed buffer IDs and the descriptors of their chains, in order. An ID may be invalid.
    pub(crate) fn chains(&self) -> Vec<(u16, Vec<Descriptor>)> {
        let room = Self::postponed_max(self.format, self.entries);
        let resumed = usize::from(self.get(WORD_POSTPONED));
        let count = usize::from(self.get(WORD_POSTPONED_END)).min(room);
        let mut places = (0..room).map(|place| {
            let [addr, rest] = self.chain_words(place).map(|word| word.load(Ordering::Relaxed));
            Descriptor::from_words(addr, rest)
        });
        let mut chain = || {
            let mut chain = Vec::new();
            for descriptor in places.by_ref() {
                chain.push(descriptor);
                if descriptor.flags & DESC_NEXT == 0 {
                    break;
                }
            }
            chain
        };
        let all = (0..count).map(|place| (self.get(self.postponed_word(place)), chain()));
        all.skip(resumed).collect()
    }

    /// Where a ring continues that completes chains in any order.
    pub(crate) fn where_packed_marked(&self) -> Result<PackedPlace, LedgerError> {
        self.check()?;
        let (taken, published) = (self.get(WORD_TAKEN), self.get(WORD_PUBLISHED));
        let (mut spans, mut beyond) = (0_u32, 0);
        for id in self.marked() {
            spans += u32::from(self.span(id));
            // Marked, and not noted as taken.
            let ahead = self.first(id).wrapping_sub(taken);
            if ahead < self.entries {
                beyond = ahead.wrapping_add(self.span(id)).max(beyond);
            }
        }
        if spans > u32::from(self.entries) || beyond > self.entries {
            return Err(LedgerError::Torn { used: published });
        }
        let base = taken.wrapping_add(beyond);
        let next_used = base.wrapping_sub(spans as u16); // at most `entries`
        self.checked(PackedPlace { base, next_used, published })
    }

    /// As [`Self::where_packed_marked`], for a ring that completes chains in order and fills them before it does: filled
    /// chains count as used.
    pub(crate) fn where_packed_filled(&self) -> Result<PackedPlace, LedgerError> {
        self.check()?;
        let filled = self.get(WORD_FILLED);
        self.checked(PackedPlace { base: filled, next_used: filled, published: self.get(WORD_PUBLISHED) })
    }

    fn checked(&self, place: PackedPlace) -> Result<PackedPlace, LedgerError> {
        let unpublished = place.next_used.wrapping_sub(place.published);
        if unpublished > self.entries { Err(LedgerError::Torn { used: place.published }) } else { Ok(place) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ENTRIES: u16 = 8;

    fn ledger() -> Ledger {
        Ledger::private(RingFormat::Packed, ENTRIES)
    }

    /// Marks a chain that begins at `first`.
    fn mark(ledger: &Ledger, id: u16, first: u16, span: u16) {
        ledger.set_first(id, first);
        ledger.set_span(id, span);
        ledger.set_mark(id, 1);
    }

    #[test]
    fn taken_completed_and_published_chains_are_known_at_every_step() {
        let ledger = ledger();
        assert_eq!(ledger.where_packed_marked(), Err(LedgerError::Blank));
        ledger.begin(65_534, 65_534);
        let is_at = |base, next_used, published| {
            assert_eq!(ledger.where_packed_marked(), Ok(PackedPlace { base, next_used, published }));
        };
        is_at(65_534, 65_534, 65_534);
        mark(&ledger, 3, 65_534, 3);
        mark(&ledger, 5, 1, 1);
        is_at(2, 65_534, 65_534); // marked, and not noted as taken
        ledger.set_taken(2);
        is_at(2, 65_534, 65_534);
        ledger.set_mark(3, 0);
        is_at(2, 1, 65_534); // one used descriptor is written
        mark(&ledger, 6, 2, 2);
        is_at(4, 1, 65_534);
        ledger.set_published(1);
        is_at(4, 1, 1);
        ledger.set_filled(3);
        let filled = PackedPlace { base: 3, next_used: 3, published: 1 };
        assert_eq!(ledger.where_packed_filled(), Ok(filled));
    }

    #[test]
    fn chains_are_stored_whole_in_order_and_as_far_as_there_is_room() {
        let ledger = ledger();
        ledger.begin(0, 0);
        let chain = |id: u16, count: u16| {
            (0..count).map(move |number| Descriptor {
                addr: u64::from(100 * id + number),
                len: 1,
                flags: if number + 1 < count { DESC_NEXT } else { 0 },
                next: number,
            })
        };
        [4, 2, 7].into_iter().for_each(|id| mark(&ledger, id, 0, 1));
        assert_eq!(
            ledger.set_chains([chain(4, 2), chain(2, 5), chain(7, 2)].into_iter()),
            2,
            "of 8 descriptors"
        );
        ledger.postpone(&[4, 2]);
        let stored = |id, count| (id, chain(id, count).collect::<Vec<_>>());
        assert_eq!(ledger.chains(), [stored(4, 2), stored(2, 5)]);
        ledger.resume(1);
        assert_eq!(ledger.chains(), [stored(2, 5)]);
    }

    #[test]
    fn any_overwritten_ledger_is_an_answer_or_an_error() {
        for seed in 0..20_000_u32 {
            let ledger = ledger();
            let word = |index: u32| (seed.wrapping_add(index).wrapping_mul(2_654_435_761) >> 13) as u16;
            ledger.begin(word(0), word(0));
            ledger.set((seed % 10) as usize, word(2));
            for id in 0..ENTRIES {
                let some = |kind: u32| word(20 * kind + u32::from(id));
                ledger.set_mark(id, some(0) % 3);
                ledger.set_span(id, some(1) % 5);
                ledger.set_first(id, word(0).wrapping_add(some(2) % 20));
            }
            assert!(ledger.postponed().len() <= usize::from(ENTRIES));
            assert!(
                ledger.chains().iter().map(|(_, chain)| chain.len()).sum::<usize>() <= usize::from(ENTRIES)
            );
            for place in [ledger.where_packed_marked(), ledger.where_packed_filled()].into_iter().flatten() {
                assert!(place.next_used.wrapping_sub(place.published) <= ENTRIES, "{seed}: {place:?}");
                assert!(place.base.wrapping_sub(place.next_used) <= ENTRIES, "{seed}: {place:?}");
            }
        }
    }
}
