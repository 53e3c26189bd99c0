//! A keyed hash of addresses for the table, since guests choose their addresses.

use std::hash::{BuildHasher, RandomState};

/// Fractional part of the golden ratio: an odd constant with no structure.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// Returns 128 unguessable bits, from the standard library's source of randomness for hash tables.
///
/// Each `RandomState` is seeded from the system's random numbers. The bits are two of its keyed hashes, so they do not
/// reveal its keys.
#[must_use]
pub fn random_key() -> [u64; 2] {
    [RandomState::new().hash_one(GOLDEN), RandomState::new().hash_one(!GOLDEN)]
}

/// The hash of `key` under `secret`: two multiplications, and the halves of each product are folded together.
///
/// Without the secret, no set of addresses is known to collide. With it, guests could fill chosen buckets and prevent
/// the learning of others' addresses.
pub(crate) fn hash(key: u64, secret: [u64; 2]) -> u64 {
    // The second factor of each step is odd, so it is never 0, which would map everything to one value. Secrets that a
    // person chose, like 1 or -1, would be poor factors; the exclusive or corrects that and does not weaken random
    // secrets.
    let first = fold(key ^ secret[0], (secret[1] ^ GOLDEN) | 1);
    fold(first ^ secret[1].rotate_left(32), GOLDEN)
}

/// Multiplies to 128 bits and folds the high half onto the low half.
fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    product as u64 ^ (product >> 64) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The number of keys in the fullest of 1024 buckets. With 4096 `keys` the average is 4.
    fn fullest_bucket(keys: impl Iterator<Item = u64>, secret: [u64; 2]) -> u32 {
        let mut buckets = [0; 1024];
        keys.for_each(|key| buckets[(hash(key, secret) & 1023) as usize] += 1);
        buckets.into_iter().max().unwrap_or(0)
    }

    #[test]
    fn patterned_addresses_spread_over_all_buckets() {
        let secret = [0x0123_4567_89ab_cdef, 0xfedc_ba98_7654_3210];
        // Poisson with mean 4: more than 20 in any of 1024 buckets has a probability below one in a million.
        for step in [1, 2, 256, 1 << 16, 1 << 24, 1 << 32, 0x0101_0101] {
            let keys = (0..4096u64).map(|n| 0x0200_0000_0000 + n * step);
            assert!(fullest_bucket(keys, secret) <= 20, "step {step:#x}");
        }
    }

    #[test]
    fn the_secret_decides_collisions() {
        let (mine, other) = ([1, 2], [3, 4]);
        let crowd = (0..1 << 22).filter(|key| hash(*key, mine) & 1023 == 7).take(4096);
        assert!(fullest_bucket(crowd, other) <= 20);
    }

    #[test]
    fn keys_differ_from_call_to_call() {
        assert_ne!(random_key(), random_key());
    }
}
