//! The multiplication that keyed hashes are made of: of flow keys, connections, addresses and the maps of the slow path.

/// 2^64 divided by the golden ratio: an odd constant with no structure.
pub const GOLDEN_RATIO: u64 = 0x9e37_79b9_7f4a_7c15;

/// Multiplies to 128 bits and folds the high half onto the low half. A factor of 0 hides the other one.
#[inline(always)]
#[must_use]
pub fn folded_product(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    product as u64 ^ (product >> 64) as u64
}

/// Mixes every bit of a sum into every bit of the result.
#[inline(always)]
#[must_use]
pub fn mix_bits(sum: u64) -> u64 {
    folded_product(sum ^ GOLDEN_RATIO, GOLDEN_RATIO)
}

/// Hashes two words with a key of two secret words.
#[inline(always)]
#[must_use]
pub fn keyed_pair([k0, k1]: [u64; 2], a: u64, b: u64) -> u64 {
    // A single product has few bits that depend on one of the words: under some keys a set of words could collide.
    mix_bits(folded_product(a.wrapping_add(k0), b.wrapping_add(k1)))
}

/// Numbers that look random (Marsaglia's xorshift, multiplied).
#[derive(Clone, Debug)]
pub struct Xorshift(u64);

impl Xorshift {
    /// The sequence of a seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(seed | 1)
    }

    /// The next number.
    #[inline]
    pub fn draw(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(GOLDEN_RATIO)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_halves_of_a_product_count() {
        assert_eq!(folded_product(3, 5), 15);
        assert_eq!(folded_product(1 << 63, 6), 3, "the high half alone");
        assert_eq!(folded_product(u64::MAX, u64::MAX), u64::MAX, "1 and 2^64 - 2");
    }

    #[test]
    fn each_bit_of_a_drawn_number_is_set_half_of_the_time() {
        let mut numbers = Xorshift::new(0);
        let drawn: Vec<u64> = (0..4096).map(|_| numbers.draw()).collect();
        for bit in 0..64 {
            let set = drawn.iter().filter(|number| *number >> bit & 1 == 1).count();
            assert!((1792..2304).contains(&set), "bit {bit} is set {set} times of 4096");
        }
    }

    #[test]
    fn each_bit_of_a_sum_reaches_the_lowest_and_the_highest_bits() {
        for bit in 0..64 {
            let changed = mix_bits(0) ^ mix_bits(1 << bit);
            assert!(changed as u16 != 0 && changed >> 48 != 0, "bit {bit} changes {changed:#x}");
        }
    }
}
