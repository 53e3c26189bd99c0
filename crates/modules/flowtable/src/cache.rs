//! A worker's exact-match cache (cf. OVS' EMC): recent results, by the header bits that any flow matches on.
//!
//! ```text
//!   hash ─> [ generation : 32 | flow : 32 ][ version ][ tag : 32 | statistics entry : 32 ][ program ][ key: 4, 8, 10, 26 or 40 words ]
//!           each key has two places; an entry of a usual packet takes one or two cache lines
//! ```
//!
//! An entry is valid while the table has the version that the entry was made in. After a change its flow is checked
//! again. The cache doubles when insertions often find both of their places taken.

use std::ops::RangeInclusive;

use lasthop_sync::prefetch;

/// Words of an entry without its key.
const HEAD_WORDS: usize = 4;
const LINE_WORDS: usize = 8;
const TAG_SHIFT: u32 = 32;
const TIME_SHIFT: u32 = 16;

/// The cached result for a key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Hit {
    /// Number of the flow's slot.
    pub(crate) flow: u32,
    /// The flow's generation; no flow has 0.
    pub(crate) generation: u32,
    /// The table's version when the result was valid.
    pub(crate) version: u64,
    /// The worker's statistics entry for the flow.
    pub(crate) stats: u32,
    /// The flow's program.
    pub(crate) program: u64,
}

/// The arguments of a cache look-up.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sought<'a, const KEY: usize> {
    pub(crate) hash: u64,
    /// A value that all keys of one union mask and port share. The upper half, the number of the mask, is never 0.
    /// Entries of other masks do not match.
    pub(crate) tag: u32,
    pub(crate) key: &'a [u64; KEY],
}

/// A cache for keys of `KEY` words.
#[derive(Debug)]
pub(crate) struct Cache<const KEY: usize> {
    /// Zeros that are never written take no memory.
    words: Vec<u64>,
    /// Index of the first word that is aligned to a cache line.
    start: usize,
    /// Number of entries in use, minus one; that number is a power of two.
    mask: usize,
    entries: RangeInclusive<usize>,
    /// Insertions since the last growth that found both places taken.
    crowded_out: usize,
}

/// The place of an entry: the index of its first word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CacheSlot(pub(crate) usize);

impl<const KEY: usize> Cache<KEY> {
    const ENTRY_WORDS: usize = (HEAD_WORDS + KEY).next_multiple_of(LINE_WORDS);

    /// Starts with the lower number of entries and may grow to the upper one; both are powers of two.
    pub(crate) fn new(entries: RangeInclusive<usize>) -> Self {
        debug_assert!(entries.start().is_power_of_two() && entries.end().is_power_of_two());
        let words = vec![0; entries.end() * Self::ENTRY_WORDS + LINE_WORDS];
        let start = words.as_ptr().align_offset(LINE_WORDS * size_of::<u64>()).min(LINE_WORDS);
        Self { words, start, mask: entries.start() - 1, entries, crowded_out: 0 }
    }

    /// Cache lines of this many entries.
    pub(crate) const fn lines(entries: usize) -> usize {
        entries * Self::ENTRY_WORDS / LINE_WORDS
    }

    /// Removes all entries.
    pub(crate) fn clear(&mut self) {
        *self = Self::new(self.entries.clone());
    }

    /// Counts an insertion that found both places taken. After one such insertion for each entry the cache doubles, and
    /// old entries may become unreachable. Returns false if the cache cannot grow.
    pub(crate) fn crowd_out(&mut self) -> bool {
        let can_grow = self.mask + 1 < *self.entries.end();
        self.crowded_out += usize::from(can_grow);
        if self.crowded_out > self.mask {
            (self.mask, self.crowded_out) = (self.mask << 1 | 1, 0);
        }
        can_grow
    }

    /// Whether the cache has grown. If so, its flows have many statistics entries, too.
    #[inline]
    pub(crate) fn is_grown(&self) -> bool {
        self.mask >= *self.entries.start()
    }

    /// The entries in use, as a value: a loop that stores elsewhere need not find them again after each store.
    #[inline(always)]
    pub(crate) fn in_use(&self) -> CacheEntries<'_, KEY> {
        CacheEntries { words: &self.words, start: self.start, mask: self.mask }
    }

    #[inline(always)]
    fn places(&self, hash: u64) -> [CacheSlot; 2] {
        self.in_use().places(hash)
    }

    #[inline(always)]
    fn entry(&self, place: CacheSlot) -> &[u64] {
        self.in_use().entry(place)
    }

    /// Prefetches the cache lines of the first place for `hash`.
    #[inline(always)]
    pub(crate) fn prefetch(&self, hash: u64) {
        let place = self.places(hash)[0].0;
        self.words.get(place).into_iter().for_each(prefetch);
        if KEY > LINE_WORDS {
            self.words.get(place + LINE_WORDS).into_iter().for_each(prefetch);
        }
    }

    /// The statistics entry in the first place for `hash`.
    #[inline]
    pub(crate) fn stats_at(&self, hash: u64) -> u32 {
        self.entry(self.places(hash)[0])[2] as u32
    }

    /// As [`CacheEntries::find`].
    #[inline(always)]
    pub(crate) fn find<const WORDS: usize>(&self, sought: Sought<'_, WORDS>) -> Option<(CacheSlot, Hit)> {
        self.in_use().find(sought)
    }

    /// Returns the slot for a key, and whether it holds the entry of another key.
    #[inline]
    pub(crate) fn vacancy(&self, sought: Sought<'_, KEY>) -> (CacheSlot, bool) {
        let places = self.places(sought.hash);
        let time = |tag: u32| tag >> TIME_SHIFT;
        let is_empty =
            |place: &&CacheSlot| time((self.entry(**place)[2] >> TAG_SHIFT) as u32) != time(sought.tag);
        match places.iter().find(is_empty) {
            Some(place) => (*place, false),
            None => (places[(sought.hash >> 63) as usize], true),
        }
    }

    /// Inserts the result for a key.
    #[inline]
    pub(crate) fn put(&mut self, place: CacheSlot, sought: Sought<'_, KEY>, hit: Hit) {
        let entry = &mut self.words[place.0..place.0 + HEAD_WORDS + KEY];
        entry[2] = u64::from(sought.tag) << TAG_SHIFT;
        entry[HEAD_WORDS..].copy_from_slice(sought.key);
        self.renew(place, hit);
    }

    /// Updates the result in a slot.
    #[inline]
    pub(crate) fn renew(&mut self, place: CacheSlot, hit: Hit) {
        let entry = &mut self.words[place.0..place.0 + HEAD_WORDS];
        entry[0] = u64::from(hit.generation) << 32 | u64::from(hit.flow);
        (entry[1], entry[3]) = (hit.version, hit.program);
        entry[2] = entry[2] >> TAG_SHIFT << TAG_SHIFT | u64::from(hit.stats);
    }

    /// Removes an entry.
    pub(crate) fn remove(&mut self, place: CacheSlot) {
        self.words[place.0 + 2] = 0;
    }
}

/// The entries in use of a cache for keys of `KEY` words.
#[derive(Clone, Copy)]
pub(crate) struct CacheEntries<'a, const KEY: usize> {
    words: &'a [u64],
    start: usize,
    mask: usize,
}

impl<'a, const KEY: usize> CacheEntries<'a, KEY> {
    #[inline(always)]
    fn places(self, hash: u64) -> [CacheSlot; 2] {
        let first = hash as usize & self.mask;
        // Another slot, for any bits.
        let second = first ^ ((hash >> 32) as usize | 1) & self.mask;
        [first, second].map(|entry| CacheSlot(self.start + entry * Cache::<KEY>::ENTRY_WORDS))
    }

    #[inline(always)]
    fn entry(self, place: CacheSlot) -> &'a [u64] {
        // Without a sum that might overflow.
        &self.words[place.0..][..HEAD_WORDS + KEY]
    }

    /// Looks a key up. One of fewer words is looked up where the others are alike for all keys of its tag.
    #[inline(always)]
    pub(crate) fn find<const WORDS: usize>(self, sought: Sought<'_, WORDS>) -> Option<(CacheSlot, Hit)> {
        const { assert!(WORDS <= KEY) };
        let [first, second] = self.places(sought.hash);
        let entry = self.entry(first);
        if is_it(entry, sought) {
            return Some((first, hit(entry)));
        }
        let entry = self.entry(second);
        is_it(entry, sought).then(|| (second, hit(entry)))
    }
}

#[inline(always)]
fn hit(entry: &[u64]) -> Hit {
    Hit {
        flow: entry[0] as u32,
        generation: (entry[0] >> 32) as u32,
        version: entry[1],
        stats: entry[2] as u32,
        program: entry[3],
    }
}

/// Whether an entry has the given key.
#[inline(always)]
fn is_it<const KEY: usize>(entry: &[u64], sought: Sought<'_, KEY>) -> bool {
    let differences =
        entry[HEAD_WORDS..HEAD_WORDS + KEY].iter().zip(sought.key).fold(0, |all, (a, b)| all | a ^ b);
    differences | (entry[2] >> TAG_SHIFT ^ u64::from(sought.tag)) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    const HIT: Hit = Hit { flow: 5, generation: 1, version: 9, stats: 2, program: 77 };
    const HASH: u64 = 0x1234_5678_9abc_def0;

    fn sought<const KEY: usize>(key: &[u64; KEY]) -> Sought<'_, KEY> {
        Sought { hash: HASH, tag: 3 << TIME_SHIFT, key }
    }

    #[test]
    fn a_key_is_found_as_a_whole_or_not() {
        let mut cache = Cache::<18>::new(8..=16);
        let mut key = [3; 18];
        assert_eq!(cache.find(sought(&key)), None);
        let (place, is_taken) = cache.vacancy(sought(&key));
        assert!(!is_taken);
        cache.put(place, sought(&key), HIT);
        assert_eq!(cache.find(sought(&key)), Some((place, HIT)));
        let later = Sought { tag: 4 << TIME_SHIFT, ..sought(&key) };
        assert_eq!((cache.find(later), cache.vacancy(later)), (None, (place, false)));
        for word in 0..18 {
            key[word] ^= 1;
            assert_eq!(cache.find(sought(&key)), None, "word {word}");
            key[word] ^= 1;
        }
        let (other, is_taken) = cache.vacancy(sought(&key));
        assert!(other != place && !is_taken);
        cache.put(other, sought(&[4; 18]), HIT);
        assert!(cache.vacancy(sought(&key)).1);
        cache.remove(place);
        assert_eq!((cache.find(sought(&key)), cache.vacancy(sought(&key))), (None, (place, false)));
    }

    #[test]
    fn entries_become_more_up_to_a_bound_and_begin_cache_lines() {
        let mut cache = Cache::<4>::new(8..=32);
        let wanted = (0..100).take_while(|_| cache.crowd_out()).count();
        assert_eq!((wanted, cache.is_grown()), (8 + 16, true));
        let places = (0..64).flat_map(|hash| cache.places(hash)).collect::<Vec<_>>();
        let is_line = |place: &CacheSlot| cache.words[place.0..].as_ptr().addr().is_multiple_of(64);
        assert!(places.iter().all(is_line));
        let different = places.iter().map(|place| place.0).collect::<std::collections::HashSet<_>>();
        assert_eq!(different.len(), 32);
        cache.put(places[5], sought(&[1; 4]), HIT);
        cache.clear();
        assert!(!cache.is_grown() && cache.words.iter().all(|word| *word == 0));
    }
}
