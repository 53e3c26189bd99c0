//! A keyed hash for maps whose keys guests choose: it is cheap, and guests cannot find keys that collide.

use std::hash::{BuildHasher, Hasher, RandomState};

use lasthop_wire::mix::{GOLDEN_RATIO, folded_product};

/// The secret of a map's hash; each has another one.
///
/// The hash takes one multiplication for each value that is written, where the standard library's takes some hundred
/// instructions for a short key. Without the secret, no set of keys is known to collide. It is no signature: a hash must
/// not leave the process that made the secret.
#[derive(Clone, Debug)]
pub struct KeyedState([u64; 2]);

impl KeyedState {
    /// A new secret, from the standard library's source of randomness for maps.
    #[must_use]
    pub fn new() -> Self {
        // Both words are odd: an even factor would lose bits.
        Self([RandomState::new().hash_one(GOLDEN_RATIO) | 1, RandomState::new().hash_one(!GOLDEN_RATIO) | 1])
    }
}

impl Default for KeyedState {
    fn default() -> Self {
        Self::new()
    }
}

impl BuildHasher for KeyedState {
    type Hasher = KeyedHasher;

    #[inline]
    fn build_hasher(&self) -> KeyedHasher {
        let Self([start, factor]) = *self;
        KeyedHasher { sum: start, factor }
    }
}

/// The state of a hash under a [`KeyedState`].
#[derive(Clone, Debug)]
pub struct KeyedHasher {
    sum: u64,
    factor: u64,
}

impl KeyedHasher {
    #[inline(always)]
    fn add(&mut self, word: u64) {
        self.sum = folded_product(self.sum ^ word, self.factor);
    }
}

impl Hasher for KeyedHasher {
    #[inline]
    fn write(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks::<8>();
        words.iter().for_each(|word| self.add(u64::from_ne_bytes(*word)));
        if !rest.is_empty() {
            let mut last = [0; 8];
            last.iter_mut().zip(rest).for_each(|(place, byte)| *place = *byte);
            self.add(u64::from_ne_bytes(last));
        }
    }

    #[inline]
    fn write_u8(&mut self, number: u8) {
        self.add(number.into());
    }

    #[inline]
    fn write_u16(&mut self, number: u16) {
        self.add(number.into());
    }

    #[inline]
    fn write_u32(&mut self, number: u32) {
        self.add(number.into());
    }

    #[inline]
    fn write_u64(&mut self, number: u64) {
        self.add(number);
    }

    #[inline]
    fn write_u128(&mut self, number: u128) {
        self.add(number as u64);
        self.add((number >> 64) as u64);
    }

    #[inline]
    fn write_usize(&mut self, number: usize) {
        self.add(number as u64);
    }

    #[inline]
    fn finish(&self) -> u64 {
        // Mixes every bit into every other one: maps use the lowest and the highest ones.
        folded_product(self.sum ^ self.factor.rotate_left(32), GOLDEN_RATIO)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The number of keys in the fullest of 1024 buckets by these bits.
    fn fullest(hashes: impl Iterator<Item = u64>, shift: u32) -> u32 {
        let mut buckets = [0; 1024];
        hashes.for_each(|hash| buckets[(hash >> shift) as usize % 1024] += 1);
        buckets.into_iter().max().unwrap_or(0)
    }

    #[test]
    fn patterned_keys_spread_by_the_lowest_and_the_highest_bits() {
        let state = KeyedState([0x0123_4567_89ab_cdef, 0xfedc_ba98_7654_3211]);
        // Poisson with mean 4: more than 20 in any of 1024 buckets has a probability below one in a million.
        for step in [1, 2, 256, 1 << 16, 1 << 24, 1 << 32, 0x0101_0101] {
            let keys = || (0..4096_u64).map(|number| (7_u16, 0x0200_0000_0000 + number * step));
            for shift in [0, 54] {
                assert!(fullest(keys().map(|key| state.hash_one(key)), shift) <= 20, "step {step:#x}");
            }
        }
    }

    #[test]
    fn the_secret_decides_collisions() {
        let (mine, other) = (KeyedState::new(), KeyedState::new());
        let crowd = (0..1_u64 << 22).filter(|key| mine.hash_one(key) % 1024 == 7).take(4096);
        assert!(fullest(crowd.map(|key| other.hash_one(key)), 0) <= 20);
    }

    #[test]
    fn each_bit_of_each_part_counts() {
        let state = KeyedState::new();
        let of = |number: u128, bytes: [u8; 11]| state.hash_one((number, bytes));
        let numbers = (0..128).map(|bit| of(1 << bit, [0; 11]));
        let bytes = (0..11).map(|at| of(0, std::array::from_fn(|place| u8::from(place == at))));
        let mut hashes: Vec<u64> = numbers.chain(bytes).chain([of(0, [0; 11])]).collect();
        hashes.sort_unstable();
        hashes.dedup();
        assert_eq!(hashes.len(), 128 + 11 + 1);
    }
}
