//! The hash of tuples for the table. It is keyed, since guests choose their addresses and ports.

use std::hash::{BuildHasher, RandomState};

use lasthop_ct_packet::{CtTuple, IS_IPV6, TUPLE_WORDS};
use lasthop_wire::mix::{folded_product, keyed_pair};

/// Words of a key.
pub(crate) const KEY_WORDS: usize = TUPLE_WORDS + 1;

/// The secret key of the hash, which guests do not know.
#[derive(Clone, Debug)]
pub(crate) struct HashKey([u64; KEY_WORDS]);

impl HashKey {
    /// The key that another process made and kept in shared memory.
    pub(crate) fn of(words: [u64; KEY_WORDS]) -> Self {
        Self(words)
    }

    pub(crate) fn words(&self) -> [u64; KEY_WORDS] {
        self.0
    }

    pub(crate) fn random() -> Self {
        let state = RandomState::new();
        Self(std::array::from_fn(|index| state.hash_one(index) | 1))
    }

    /// Hashes a tuple by products of keyed pairs of words, as the flow table does.
    #[inline]
    pub(crate) fn of_tuple(&self, tuple: &CtTuple) -> u32 {
        self.of_words_of_tuple(&tuple.words())
    }

    /// Hashes a tuple's words.
    #[inline]
    pub(crate) fn of_words_of_tuple(&self, words: &[u64; TUPLE_WORDS]) -> u32 {
        let [src, dst, src_high, dst_high, last] = *words;
        let [.., k2, k3, k4, k5] = self.0;
        let addresses = match last & IS_IPV6 {
            0 => src ^ dst << 32,
            _ => folded_product(src.wrapping_add(k2), dst.wrapping_add(k3))
                .wrapping_add(folded_product(src_high.wrapping_add(k4), dst_high.wrapping_add(k5))),
        };
        // Ports have a key of their own in either case: a sum with them would keep their differences.
        of_two_words(self.pair(), addresses, last)
    }

    /// The words that IPv4 tuples are hashed with.
    pub(crate) fn pair(&self) -> [u64; 2] {
        [self.0[0], self.0[1]]
    }

    /// Hashes two words.
    pub(crate) fn of_words(&self, a: u64, b: u64) -> u64 {
        keyed_pair(self.pair(), a, b)
    }
}

/// Hashes a tuple: its addresses as one word, and its last word, with [`HashKey::pair`].
#[inline(always)]
pub(crate) fn of_two_words(pair: [u64; 2], addresses: u64, last: u64) -> u32 {
    keyed_pair(pair, addresses, last) as u32
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;
    use lasthop_ct_packet::IpBytes;

    #[test]
    fn tuples_that_differ_in_one_field_spread_and_the_key_counts() {
        let key = HashKey::random();
        let mut buckets = [0; 256];
        for host in 0..=255 {
            for port in 0..16 {
                let src = IpBytes::from(IpAddr::from([10, 0, 0, host]));
                let dst = IpBytes::from(IpAddr::from([10, 0, 1, 1]));
                let tuple =
                    CtTuple { src, dst, src_port: port, dst_port: 80, zone: 0, proto: 6, is_ipv6: false };
                buckets[key.of_tuple(&tuple) as usize % 256] += 1;
            }
        }
        // 16 a bucket on average: 48 has a probability far below one in a million.
        assert!(buckets.iter().all(|count| (1..48).contains(count)), "{buckets:?}");
        assert_ne!(key.of_words(1, 2), HashKey::random().of_words(1, 2));
    }
}
