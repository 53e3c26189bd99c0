//! A worker's first level: which flow a packet with exactly this key belongs to.
//!
//! ```text
//!   entry   [ generation : 32, flow : 32 | version | long : 1, statistics : 32 | program ]  [ key : 18 words ]   24 words, the last two free
//! ```
//!
//! Of fixed size, two places for each key, chosen by a keyed hash; the whole key is always compared. What a hit costs does
//! not depend on the table behind: not on its flows, not on its masks. The version is that of the table when the entry was
//! known to be right; if another flow went since, the entry asks its flow's slot whether that is still the same.

use lasthop_exchange::prefetch;
use lasthop_wire::Key;
use lasthop_wire::key::{KEY_WORDS, KEY_WORDS_SHORT};

use crate::bounds::CACHE_ENTRIES;
use crate::hash::Digest;

/// Words of an entry.
const WORDS: usize = 24;
const KEY_AT: usize = 4;
const LONG_SHIFT: u32 = 32;

const _: () = assert!(KEY_AT + KEY_WORDS <= WORDS && CACHE_ENTRIES.is_power_of_two());

/// What is known of a key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Hit {
    /// Number of the flow's slot.
    pub(crate) flow: u32,
    /// The flow's generation; no flow has 0.
    pub(crate) generation: u32,
    /// The table's version when this was so.
    pub(crate) version: u64,
    /// The worker's statistics entry for the flow.
    pub(crate) stats: u32,
    /// The flow's program.
    pub(crate) program: u64,
}

#[derive(Debug)]
pub(crate) struct Cache {
    /// Zeros that nobody wrote take no memory.
    words: Vec<u64>,
}

/// Where an entry is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place(usize);

impl Cache {
    pub(crate) fn new() -> Self {
        Self { words: vec![0; CACHE_ENTRIES * WORDS] }
    }

    #[inline]
    fn places(hash: u64) -> [Place; 2] {
        let mask = CACHE_ENTRIES - 1;
        let first = hash as usize & mask;
        // Another one, whatever the bits are.
        [Place(first), Place(first ^ ((hash >> 32) as usize | 1) & mask)]
    }

    #[inline]
    fn entry(&self, place: Place) -> &[u64; WORDS] {
        &self.words.as_chunks::<WORDS>().0[place.0]
    }

    #[inline]
    fn entry_mut(&mut self, place: Place) -> &mut [u64; WORDS] {
        &mut self.words.as_chunks_mut::<WORDS>().0[place.0]
    }

    /// Has the cache lines come in where `hash` most likely is.
    #[inline]
    pub(crate) fn prefetch(&self, hash: u64) {
        let entry = self.entry(Self::places(hash)[0]);
        prefetch(&entry[0]);
        prefetch(&entry[KEY_AT + KEY_WORDS_SHORT - 1]);
    }

    /// What is known of `key`.
    #[inline(always)]
    pub(crate) fn find(&self, digest: Digest, key: &Key) -> Option<(Place, Hit)> {
        let [first, second] = Self::places(digest.hash);
        let is_it = |entry| is_same(entry, key, digest.is_long);
        if is_it(self.entry(first)) {
            return Some((first, Self::hit(self.entry(first))));
        }
        is_it(self.entry(second)).then(|| (second, Self::hit(self.entry(second))))
    }

    #[inline]
    fn hit(entry: &[u64; WORDS]) -> Hit {
        Hit {
            flow: entry[0] as u32,
            generation: (entry[0] >> 32) as u32,
            version: entry[1],
            stats: entry[2] as u32,
            program: entry[3],
        }
    }

    /// Where `key` would go, and whether somebody else's entry is there.
    #[inline]
    pub(crate) fn vacancy(&self, hash: u64) -> (Place, bool) {
        let places = Self::places(hash);
        let is_empty = |place: &&Place| self.entry(**place)[0] == 0;
        match places.iter().find(is_empty) {
            Some(place) => (*place, false),
            None => (places[(hash >> 63) as usize], true),
        }
    }

    /// Enters what is known of `key`.
    #[inline]
    pub(crate) fn put(&mut self, place: Place, (digest, key): (Digest, &Key), hit: Hit) {
        let entry = self.entry_mut(place);
        entry[2] = u64::from(digest.is_long) << LONG_SHIFT;
        entry[KEY_AT..KEY_AT + KEY_WORDS].copy_from_slice(&key.0);
        self.renew(place, hit);
    }

    /// Enters what is known now of the key that is there.
    #[inline]
    pub(crate) fn renew(&mut self, place: Place, hit: Hit) {
        let entry = self.entry_mut(place);
        entry[0] = u64::from(hit.generation) << 32 | u64::from(hit.flow);
        (entry[1], entry[3]) = (hit.version, hit.program);
        entry[2] = entry[2] & 1 << LONG_SHIFT | u64::from(hit.stats);
    }

    /// Forgets an entry.
    pub(crate) fn clear(&mut self, place: Place) {
        self.entry_mut(place)[0] = 0;
    }
}

/// Whether an entry's key is `key`.
#[inline]
fn is_same(entry: &[u64; WORDS], key: &Key, is_long: bool) -> bool {
    let pairs = || entry[KEY_AT..KEY_AT + KEY_WORDS].iter().zip(&key.0).map(|(a, b)| a ^ b);
    let short = pairs().take(KEY_WORDS_SHORT).fold(0, |all, word| all | word);
    // Keys of different lengths are different: what is behind the EtherType is in the words that both have.
    if short != 0 || entry[0] == 0 || entry[2] >> LONG_SHIFT != u64::from(is_long) {
        return false;
    }
    !is_long || pairs().skip(KEY_WORDS_SHORT).fold(0, |all, word| all | word) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_found_as_a_whole_or_not() {
        let mut cache = Cache::new();
        let mut key = Key([3; KEY_WORDS]);
        let hit = Hit { flow: 5, generation: 1, version: 9, stats: 2, program: 77 };
        let hash = 0x1234_5678_9abc_def0;
        let digest = Digest { hash, is_long: true };
        assert_eq!(cache.find(digest, &key), None);
        let (place, is_taken) = cache.vacancy(hash);
        assert!(!is_taken);
        cache.put(place, (digest, &key), hit);
        assert_eq!(cache.find(digest, &key), Some((place, hit)));
        for word in 0..KEY_WORDS {
            key.0[word] ^= 1;
            assert_eq!(cache.find(digest, &key), None, "word {word}");
            key.0[word] ^= 1;
        }
        let (other, is_taken) = cache.vacancy(hash);
        assert!(other != place && !is_taken);
        cache.put(other, (digest, &Key([4; KEY_WORDS])), hit);
        assert!(cache.vacancy(hash).1);
        cache.clear(place);
        assert_eq!((cache.find(digest, &key), cache.vacancy(hash)), (None, (place, false)));
    }
}
