//! Numbers in ranges, and the digits that decide whether a number is inside.

const DIGIT_BITS: u32 = 4;

/// Whether a port is in a range; adds the digits that decide to `bits`.
pub(crate) fn is_within(port: u16, first: u16, last: u16, bits: &mut u16) -> bool {
    *bits |= range_digits(port.into(), first.into(), last.into(), u16::BITS) as u16;
    (first..=last).contains(&port)
}

/// The leading hexadecimal digits, as few as possible, that decide whether `value`, of `width` bits, is in the range:
/// all numbers with these digits are on the same side.
pub(crate) fn range_digits(value: u128, first: u128, last: u128, width: u32) -> u128 {
    let ones = u128::MAX >> (u128::BITS - width);
    let is_inside = (first..=last).contains(&value);
    let masks =
        (0..=width / DIGIT_BITS).map(|digits| ones & !ones.checked_shr(digits * DIGIT_BITS).unwrap_or(0));
    let is_enough = |mask: &u128| {
        let (lowest, highest) = (value & mask, value | ones & !mask);
        if is_inside { first <= lowest && highest <= last } else { highest < first || last < lowest }
    };
    masks.into_iter().find(is_enough).unwrap_or(ones)
}

#[cfg(test)]
mod tests {
    use super::*;

    proptest::proptest! {
        /// All numbers that share the recorded digits are on the same side of the range.
        #[test]
        fn digits_of_a_range_decide(value in 0_u128..0x1_0000, edges in (0_u128..0x1_0000, 0_u128..0x1_0000), other in 0_u128..0x1_0000) {
            let (first, last) = (edges.0.min(edges.1), edges.0.max(edges.1));
            let mask = range_digits(value, first, last, 16);
            let like = value & mask | other & !mask & 0xffff;
            proptest::prop_assert_eq!((first..=last).contains(&like), (first..=last).contains(&value));
        }
    }
}
