//! Updates SCTP's checksum, a CRC-32C of the whole packet, after a change of some bytes (RFC 9260, appendix A).
//!
//! A CRC is linear: the effect of a change of four bytes depends on their difference and on the number of bytes behind
//! them, but not on those bytes. So it can be computed without the packet.

/// Castagnoli's polynomial, bits reflected.
const POLYNOMIAL: u32 = 0x82f6_3b78;
/// 1, as a polynomial with reflected bits.
const ONE: u32 = 1 << 31;
/// x to the power of 2^index, for each index.
const POWERS: [u32; POWERS_COUNT] = powers();
/// Bits needed to count the bits of lengths below 2^32 bytes.
const POWERS_COUNT: usize = 35;

/// The value to xor into a packet's checksum, whose four bytes are read in little-endian order, when four bytes change
/// by `difference` (old xor new, also little-endian). The first of them is `len_bytes` before the packet's end.
#[must_use]
pub const fn change(difference: u32, len_bytes: u32) -> u32 {
    product(power_of_bytes(len_bytes), difference)
}

/// x to the power of `8 * len_bytes`.
const fn power_of_bytes(len_bytes: u32) -> u32 {
    let (mut left, mut index, mut power) = (len_bytes, 3, ONE);
    while left > 0 {
        if left & 1 == 1 {
            power = product(POWERS[index], power);
        }
        left >>= 1;
        index += 1;
    }
    power
}

const fn powers() -> [u32; POWERS_COUNT] {
    let mut powers = [ONE >> 1; POWERS_COUNT];
    let mut index = 1;
    while index < POWERS_COUNT {
        powers[index] = product(powers[index - 1], powers[index - 1]);
        index += 1;
    }
    powers
}

/// The product of two polynomials, modulo Castagnoli's.
const fn product(a: u32, b: u32) -> u32 {
    let (mut sum, mut shifted, mut bit) = (0, b, ONE);
    while bit > 0 {
        if a & bit != 0 {
            sum ^= shifted;
        }
        shifted = shifted >> 1 ^ if shifted & 1 == 1 { POLYNOMIAL } else { 0 };
        bit >>= 1;
    }
    sum
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Computed bit by bit, by the definition.
    fn crc32c(bytes: &[u8]) -> u32 {
        let one = |crc: u32, byte: &u8| {
            (0..8).fold(crc ^ u32::from(*byte), |crc, _| (crc >> 1) ^ ((crc & 1) * POLYNOMIAL))
        };
        !bytes.iter().fold(u32::MAX, one)
    }

    #[test]
    fn the_definition_gives_the_well_known_value() {
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
    }

    proptest! {
        #[test]
        fn a_change_equals_the_difference_of_full_sums(
            mut bytes in prop::collection::vec(any::<u8>(), 4..2000),
            at in any::<prop::sample::Index>(),
            new: [u8; 4],
        ) {
            let at = at.index(bytes.len() - 3);
            let old: [u8; 4] = bytes[at..at + 4].try_into().expect("four bytes");
            let (before, len) = (crc32c(&bytes), (bytes.len() - at) as u32);
            bytes[at..at + 4].copy_from_slice(&new);
            let difference = u32::from_le_bytes(old) ^ u32::from_le_bytes(new);
            prop_assert_eq!(before ^ change(difference, len), crc32c(&bytes));
        }
    }
}
