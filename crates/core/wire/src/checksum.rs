//! The Internet checksum (RFC 1071) over bytes that arrive in pieces, and the bounds of a partial checksum.

use crate::headers::decided_on_bytes;
use crate::vnet::{Offload, UDP_CSUM_OFFSET};

/// A ones'-complement sum of 16-bit words.
///
/// The pieces added, in order, count as one byte string: a piece of odd length shifts the later ones by a byte, so
/// every split of a string gives the same sum. It never overflows.
///
/// Words are summed in little-endian order and swapped once at the end, which gives the same sum (RFC 1071, 2.B). A
/// piece at an odd offset is summed as if its offset were even, then swapped.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sum {
    /// Congruent, modulo 0xffff, to the sum of the little-endian words so far; zero only if all of them are zero.
    words: u64,
    /// Whether the next byte is the second one of its word.
    odd: bool,
}

impl Sum {
    /// The pseudo header of TCP or UDP over IPv4 (RFC 9293, 3.1; RFC 768). `l4_len_bytes` counts the transport header and
    /// its payload.
    #[inline]
    #[must_use]
    pub fn pseudo_v4(source: [u8; 4], destination: [u8; 4], proto: u8, l4_len_bytes: u16) -> Self {
        let mut sum = Self::default();
        sum.add(&source);
        sum.add(&destination);
        sum.add_word(u16::from(proto));
        sum.add_word(l4_len_bytes);
        sum
    }

    /// The pseudo header of TCP or UDP over IPv6 (RFC 8200, 8.1). `destination` is the final one, `next_header` is the
    /// transport's number, and `l4_len_bytes` counts the transport header and its payload.
    #[inline]
    #[must_use]
    pub fn pseudo_v6(source: [u8; 16], destination: [u8; 16], next_header: u8, l4_len_bytes: u32) -> Self {
        let mut sum = Self::default();
        sum.add(&source);
        sum.add(&destination);
        sum.add(&l4_len_bytes.to_be_bytes());
        sum.add_word(u16::from(next_header));
        sum
    }

    /// Adds a piece.
    #[inline]
    pub fn add(&mut self, bytes: &[u8]) {
        // Even, so that each block starts on a word; small enough that sums of 32-bit words do not overflow 64 bits.
        const BLOCK_BYTES: usize = 1 << 16;
        for block in bytes.chunks(BLOCK_BYTES) {
            self.add_partial(sum_block(block), block.len());
        }
    }

    /// Adds two bytes: `word` in network order.
    #[inline]
    pub fn add_word(&mut self, word: u16) {
        self.add_partial(u64::from(word.swap_bytes()), 2);
    }

    /// Adds a piece of `len_bytes` bytes that was summed elsewhere.
    ///
    /// `folded` is the sum of the piece's little-endian 16-bit words, the last one padded with a zero byte, accumulated
    /// in 64 bits without overflow. Sums of little-endian 32-bit words or of the halves of 64-bit words are also valid,
    /// folded or not, since 2^16 and 2^32 are 1 modulo 0xffff.
    #[inline]
    pub fn add_partial(&mut self, folded: u64, len_bytes: usize) {
        let folded = if self.odd { u64::from(fold(folded).swap_bytes()) } else { folded };
        let (words, carry) = self.words.overflowing_add(folded);
        // End-around carry: 2^64 is also 1 modulo 0xffff.
        self.words = words + u64::from(carry);
        self.odd ^= len_bytes % 2 == 1;
    }

    /// The sum, not complemented, as a number whose `to_be_bytes` go into the frame: the value in the field of a
    /// partial checksum (`F_NEEDS_CSUM`).
    #[inline]
    #[must_use]
    pub fn partial(&self) -> u16 {
        fold(self.words).swap_bytes()
    }

    /// The checksum, as a number whose `to_be_bytes` go into the frame. Zero if the summed bytes contain a valid
    /// checksum.
    #[inline]
    #[must_use]
    pub fn finish(&self) -> u16 {
        !self.partial()
    }

    /// [`Sum::finish`] for UDP, where a computed zero is sent as 0xffff since zero means "no checksum" (RFC 768).
    #[inline]
    #[must_use]
    pub fn finish_udp(&self) -> u16 {
        match self.finish() {
            0 => 0xffff,
            sum => sum,
        }
    }

    /// The completed checksum of a frame, as a number whose `to_be_bytes` go to `csum_start + csum_offset`. The sum is that of all bytes
    /// from `csum_start` on.
    #[inline]
    #[must_use]
    pub fn complete(&self, offload: &Offload) -> u16 {
        if offload.csum_offset == UDP_CSUM_OFFSET { self.finish_udp() } else { self.finish() }
    }
}

/// The sum of 32-bit words, the last one zero-padded: eight bytes per step, as two halves of equal weight.
#[inline]
fn sum_block(block: &[u8]) -> u64 {
    let (steps, rest) = block.as_chunks::<8>();
    let sum = steps.iter().map(|step| halves(u64::from_le_bytes(*step))).sum::<u64>();
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    sum + halves(u64::from_le_bytes(last))
}

#[inline]
fn halves(word: u64) -> u64 {
    (word & 0xffff_ffff) + (word >> 32)
}

/// Folds to 16 bits with end-around carries; zero only for zero.
#[inline]
fn fold(sum: u64) -> u16 {
    let sum = halves(halves(sum));
    let sum = (sum & 0xffff) + (sum >> 16);
    ((sum & 0xffff) + (sum >> 16)) as u16
}

/// Checks that a partial checksum can be completed in a frame of `frame_len_bytes` bytes that starts with `head`. The
/// 16 bits at `csum_start + csum_offset` must be in the frame (virtio 1.2, 5.1.6.2). The sum must start after the bytes
/// that a switch decides on; otherwise completing it would change addresses or VLAN tags after the decision.
#[inline]
#[must_use]
pub fn check_partial(offload: &Offload, head: &[u8], frame_len_bytes: u32) -> bool {
    u32::from(offload.csum_start) + u32::from(offload.csum_offset) + 2 <= frame_len_bytes
        && decided_on_bytes(head).is_some_and(|end| usize::from(offload.csum_start) >= end)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The checksum by the definition of RFC 1071: big-endian 16-bit words, with carries added at once.
    fn checksum_of(bytes: &[u8]) -> u16 {
        let mut sum = 0_u16;
        for pair in bytes.chunks(2) {
            let word = u16::from_be_bytes([pair[0], pair.get(1).copied().unwrap_or(0)]);
            let (wrapped, carry) = sum.overflowing_add(word);
            sum = wrapped + u16::from(carry);
        }
        !sum
    }

    fn sum_of(pieces: &[&[u8]]) -> Sum {
        let mut sum = Sum::default();
        pieces.iter().for_each(|piece| sum.add(piece));
        sum
    }

    #[test]
    fn sums_the_example_of_rfc_1071() {
        let bytes = [0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7];
        assert_eq!(sum_of(&[&bytes]).partial(), 0xddf2);
        assert_eq!(sum_of(&[&bytes]).finish(), !0xddf2);
    }

    #[test]
    fn keeps_zero_and_all_ones_apart() {
        assert_eq!(Sum::default().finish(), 0xffff);
        assert_eq!(sum_of(&[&[0; 40]]).finish(), 0xffff);
        assert_eq!(sum_of(&[&[0xff; 40]]).finish(), 0);
        assert_eq!(sum_of(&[&[0xff; 40]]).finish_udp(), 0xffff);
        assert_eq!(sum_of(&[&[0; 1], &[0xff; 2], &[0; 1]]).finish(), 0);
    }

    #[test]
    fn never_overflows() {
        let ones = vec![0xff; (1 << 20) + 1];
        let mut sum = sum_of(&[&ones]);
        assert_eq!(sum.finish(), checksum_of(&ones));
        sum.add_partial(u64::MAX, 1);
        sum.add_partial(u64::MAX, 0);
        assert_eq!(sum.finish(), !(0xffff - 0xff));
    }

    #[test]
    fn pseudo_headers_are_those_of_the_rfcs() {
        let v4 = Sum::pseudo_v4([192, 0, 2, 1], [198, 51, 100, 2], 17, 513);
        assert_eq!(v4.finish(), checksum_of(&[192, 0, 2, 1, 198, 51, 100, 2, 0, 17, 2, 1]));
        let v6 = Sum::pseudo_v6([0xfe; 16], [0x20; 16], 6, 0x0001_0203);
        let mut bytes = [[0xfe; 16], [0x20; 16]].concat();
        bytes.extend([0, 1, 2, 3, 0, 0, 0, 6]);
        assert_eq!(v6.finish(), checksum_of(&bytes));
    }

    #[test]
    fn bounds_a_partial_checksum() {
        let head = [2; 12];
        let check = |ethertype: &[u8], (csum_start, csum_offset), len| {
            let head = [&head[..], ethertype, &[0; 60]].concat();
            check_partial(&Offload { csum_start, csum_offset, ..Offload::default() }, &head, len)
        };
        let v4 = &[8, 0, 0x45][..];
        assert!(check(v4, (34, 16), 52));
        assert!(!check(v4, (34, 16), 51));
        assert!(!check(v4, (100, 0), 99));
        assert!(!check(v4, (u16::MAX, u16::MAX), 65550));
        // Addresses and tags are never checksums.
        for (ethertype, end) in [
            (v4, 34),
            (&[8, 0, 0x4f], 74),
            (&[8, 0, 0x41], 34),
            (&[0x86, 0xdd, 0x60], 54),
            (&[0x81, 0, 0, 1, 8, 0, 0x46], 42),
            (&[0x88, 0xa8, 0, 1, 0x81, 0, 0, 1, 0x86, 0xdd, 0x60], 62),
            (&[0x88, 0xb5], 14),
        ] {
            assert!(
                check(ethertype, (end, 0), 100) && !check(ethertype, (end - 1, 1), 100),
                "{ethertype:x?}"
            );
        }
        assert!(!check_partial(&Offload::default(), &head, 100));
    }

    proptest! {
        #[test]
        fn every_split_gives_the_same_sum(
            bytes in prop::collection::vec(any::<u8>(), 0..2000),
            cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..8),
            elsewhere in any::<u8>(),
        ) {
            let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
            cuts.extend([0, bytes.len()]);
            cuts.sort_unstable();
            let mut sum = Sum::default();
            for (index, cut) in cuts.windows(2).enumerate() {
                let piece = &bytes[cut[0]..cut[1]];
                if elsewhere & (1 << (index % 8)) == 0 {
                    sum.add(piece);
                } else {
                    let word = |pair: &[u8]| u64::from(pair[0]) | u64::from(pair.get(1).copied().unwrap_or(0)) << 8;
                    sum.add_partial(piece.chunks(2).map(word).sum(), piece.len());
                }
            }
            prop_assert_eq!(sum.finish(), checksum_of(&bytes));
        }

        #[test]
        fn a_word_is_two_bytes(prefix in prop::collection::vec(any::<u8>(), 0..9), word: u16) {
            let mut sum = sum_of(&[&prefix]);
            sum.add_word(word);
            prop_assert_eq!(sum.finish(), checksum_of(&[&prefix[..], &word.to_be_bytes()].concat()));
        }

        #[test]
        fn a_partial_checksum_completes_to_a_right_one(
            mut bytes in prop::collection::vec(any::<u8>(), 18..200),
            pseudo: u32,
        ) {
            let mut start = Sum::default();
            start.add(&pseudo.to_be_bytes());
            bytes[16..18].copy_from_slice(&start.partial().to_be_bytes());
            let completed = sum_of(&[&bytes]).finish();
            bytes[16..18].copy_from_slice(&completed.to_be_bytes());
            prop_assert_eq!(sum_of(&[&pseudo.to_be_bytes(), &bytes]).finish(), 0);
        }
    }
}
