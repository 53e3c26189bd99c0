//! Where keys belong in cache and table: keyed hashes, since guests choose their headers.

use std::hash::{BuildHasher, RandomState};

use lasthop_wire::Key;
use lasthop_wire::key::{KEY_WORDS, KEY_WORDS_SHORT};

/// A key's hash, and whether its words behind the short ones may differ from zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Digest {
    pub(crate) hash: u64,
    pub(crate) is_long: bool,
}

/// What nobody outside knows, one word for each of a key.
#[derive(Clone, Debug)]
pub(crate) struct Secret([u64; KEY_WORDS]);

impl Secret {
    pub(crate) fn random() -> Self {
        let state = RandomState::new();
        // Odd: no word may make the product of two forget the other for all its even values.
        Self(std::array::from_fn(|index| state.hash_one(index) | 1))
    }

    /// Of a key, of which words behind the short ones count if `is_long`.
    #[inline]
    pub(crate) fn digest(&self, key: &Key, is_long: bool) -> Digest {
        let mut sum = self.of_pairs(&key.0[..KEY_WORDS_SHORT], &self.0[..KEY_WORDS_SHORT]);
        if is_long {
            let rest = self.of_pairs(&key.0[KEY_WORDS_SHORT..], &self.0[KEY_WORDS_SHORT..]);
            sum = sum.wrapping_add(rest);
        }
        Digest { hash: finish(sum), is_long }
    }

    /// Two words for one multiplication, all multiplications side by side.
    #[inline]
    fn of_pairs(&self, words: &[u64], secret: &[u64]) -> u64 {
        let (pairs, secrets) = (words.as_chunks::<2>().0, secret.as_chunks::<2>().0);
        let products =
            pairs.iter().zip(secrets).map(|([a, b], [c, d])| fold(a.wrapping_add(*c), b.wrapping_add(*d)));
        products.fold(0, u64::wrapping_add)
    }

    /// Of one word among those that a mask looks at; to be added up, then finished.
    #[inline]
    pub(crate) fn of_word(&self, index: usize, word: u64) -> u64 {
        fold(word ^ self.0[index].rotate_left(32), self.0[index])
    }
}

/// The 128-bit product, its high half folded onto its low half.
#[inline]
fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    product as u64 ^ (product >> 64) as u64
}

/// Every bit of a sum on every bit.
#[inline]
pub(crate) fn finish(sum: u64) -> u64 {
    /// 2^64 divided by the golden ratio.
    const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
    fold(sum ^ GOLDEN, GOLDEN)
}

/// Numbers that look random, from one that was.
#[derive(Debug)]
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed | 1)
    }

    /// The next number (Marsaglia's xorshift).
    #[inline]
    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_that_differ_in_one_bit_spread() {
        let secret = Secret::random();
        let mut buckets = [0; 256];
        for word in 0..KEY_WORDS {
            for bit in 0..64 {
                let mut key = Key::default();
                key.0[word] = 1 << bit;
                buckets[secret.digest(&key, true).hash as usize % 256] += 1;
                let other = Secret::random().digest(&key, true);
                assert_ne!(secret.digest(&key, true), other, "the secret counts");
            }
        }
        // 1152 keys, 4.5 a bucket: more than 24 in any of them has a probability below one in a million.
        assert!(buckets.iter().all(|count| *count <= 24), "{buckets:?}");
    }
}
