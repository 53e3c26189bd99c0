//! Keyed hashes of flow keys for caches and table, since guests choose their headers.

use std::hash::{BuildHasher, RandomState};

use lasthop_wire::Key;
use lasthop_wire::key::KEY_WORDS;
use lasthop_wire::mix::{folded_product, mix_bits};

/// A secret, one word for each word of a key.
#[derive(Clone, Debug)]
pub(crate) struct Secret([u64; KEY_WORDS]);

impl Secret {
    pub(crate) fn random() -> Self {
        let state = RandomState::new();
        // All words are odd, so that no even word cancels its secret: a factor of zero would hide the other word.
        Self(std::array::from_fn(|index| state.hash_one(index) | 1))
    }

    /// The hash of a key.
    pub(crate) fn of_key(&self, key: &Key) -> u64 {
        match key.has_tunnel() {
            true => self.of_words(&key.0),
            false => self.of_words(key.plain()),
        }
    }

    /// The hash of a key's first words.
    #[inline]
    pub(crate) fn of_words<const WORDS: usize>(&self, words: &[u64; WORDS]) -> u64 {
        mix_bits(self.of_pairs(words))
    }

    /// The hash of a mini key of a packet from `port`, which is the [`Self::of_word`] of the port's number.
    #[inline(always)]
    pub(crate) fn of_mini_key<const WORDS: usize>(&self, mini_key: &[u64; WORDS], port: u64) -> u64 {
        mix_bits(self.of_pairs(mini_key).wrapping_add(port))
    }

    /// The hash of a packet in a later pass: `first` is its hash so far, `a` and `b` are two more words.
    #[inline(always)]
    pub(crate) fn of_later(&self, first: u64, a: u64, b: u64) -> u64 {
        first.wrapping_add(folded_product(
            a.wrapping_add(self.0[KEY_WORDS - 1]),
            b.wrapping_add(self.0[KEY_WORDS - 2]),
        ))
    }

    /// Takes two words per multiplication; all multiplications are independent.
    #[inline(always)]
    fn of_pairs<const WORDS: usize>(&self, words: &[u64; WORDS]) -> u64 {
        const { assert!(WORDS <= KEY_WORDS && WORDS.is_multiple_of(2)) };
        let (pairs, secrets) = (words.as_chunks::<2>().0, self.0.as_chunks::<2>().0);
        let products = pairs
            .iter()
            .zip(secrets)
            .map(|([a, b], [c, d])| folded_product(a.wrapping_add(*c), b.wrapping_add(*d)));
        products.fold(0, u64::wrapping_add)
    }

    /// The hash of one word that a mask matches on; the caller adds them up and calls [`mix_bits`].
    #[inline]
    pub(crate) fn of_word(&self, index: usize, word: u64) -> u64 {
        of_word_by(self.0[index], word)
    }

    /// The secret word for word `index` of a key.
    #[inline]
    pub(crate) fn word(&self, index: usize) -> u64 {
        self.0[index]
    }
}

/// As [`Secret::of_word`], with the secret word given.
#[inline]
pub(crate) fn of_word_by(secret: u64, word: u64) -> u64 {
    folded_product(word ^ secret.rotate_left(32), secret)
}

#[cfg(test)]
mod tests {
    use lasthop_wire::key::TUNNEL_WORD;

    use super::*;

    #[test]
    fn keys_that_differ_in_one_bit_spread() {
        let secret = Secret::random();
        let mut buckets = [0; 256];
        for word in 0..KEY_WORDS {
            for bit in 0..64 {
                let mut key = Key::default();
                key.0[word] = 1 << bit;
                key.0[TUNNEL_WORD] |= u64::from(word > TUNNEL_WORD);
                buckets[secret.of_key(&key) as usize % 256] += 1;
                assert_ne!(secret.of_key(&key), Secret::random().of_key(&key), "the secret counts");
            }
        }
        // 2560 keys, 10 a bucket: more than 36 in any of them has a probability below one in a million.
        assert!(buckets.iter().all(|count| *count <= 36), "{buckets:?}");
    }
}
