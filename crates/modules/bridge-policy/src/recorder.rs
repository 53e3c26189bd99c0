//! The bits of a frame that a decision depends on.

/// All bits of an address.
pub const MAC_ONES: u64 = (1 << MAC_BITS) - 1;
/// The bits of a TCI that are the VID.
pub const TCI_VID: u16 = 0x0fff;

pub(crate) const MAC_BITS: u32 = 48;
pub(crate) const VID_BITS: u32 = 12;
const DIGIT_BITS: u32 = 4;

/// Records the bits that a decision depends on, as masks: for a flow of all packets with the same decision.
pub trait Recorder {
    /// Bits of the TCI of the first tag.
    fn tci(&mut self, bits: u16);

    /// Bits of the source address.
    fn source(&mut self, bits: u64);

    /// Bits of the destination address.
    fn destination(&mut self, bits: u64);

    /// The source is not one of its port's addresses: the bits that distinguish it from those
    /// ([`crate::refused_source_bits`]).
    fn refused_source(&mut self, source: u64);
}

/// Records nothing: each packet gets its own decision.
#[derive(Clone, Copy, Debug, Default)]
pub struct Unrecorded;

impl Recorder for Unrecorded {
    #[inline(always)]
    fn tci(&mut self, _bits: u16) {}

    #[inline(always)]
    fn source(&mut self, _bits: u64) {}

    #[inline(always)]
    fn destination(&mut self, _bits: u64) {}

    #[inline(always)]
    fn refused_source(&mut self, _source: u64) {}
}

/// The leading hexadecimal digits of a `bits` wide number, as few as distinguish `value` from `other` within `mask`; 0
/// if they are equal. Digits, not bits: each length is a mask of the flow table. A guest that invents as many addresses
/// as it can must leave some masks for others.
#[must_use]
pub fn digits_apart(value: u64, other: u64, mask: u64, bits: u32) -> u64 {
    let ones = (1_u64 << bits) - 1;
    let difference = (value ^ other) & mask & ones;
    match difference.checked_ilog2() {
        Some(top) => ones & !((1 << (top / DIGIT_BITS * DIGIT_BITS)) - 1),
        None => 0,
    }
}

/// As [`digits_apart`], for complete addresses.
#[must_use]
pub fn mac_digits_apart(value: u64, other: u64) -> u64 {
    digits_apart(value, other, MAC_ONES, MAC_BITS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_digits_that_differ_tell_numbers_apart() {
        assert_eq!(digits_apart(0x12a4, 0x1284, u64::MAX, 16), 0xfff0);
        assert_eq!(digits_apart(0x92a4, 0x1284, u64::MAX, 16), 0xf000);
        assert_eq!(digits_apart(0x1285, 0x1284, u64::MAX, 16), 0xffff);
        assert_eq!(digits_apart(0x12a4, 0x1284, 0xff00, 16), 0, "the rest does not count");
        assert_eq!(mac_digits_apart(1, 0), MAC_ONES);
    }
}
