//! Inputs near known ones, on a stable compiler and without measuring coverage: the same ones in every run.

/// A generator of numbers (xorshift, Marsaglia 2003); anything but zero may be its state.
#[derive(Clone, Copy, Debug)]
pub struct Numbers(u64);

impl Numbers {
    /// The same `seed`, the same numbers.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// A number below `end`; 0 if that is 0.
    pub fn below(&mut self, end: usize) -> usize {
        (self.next() >> 16) as usize % end.max(1)
    }
}

/// A few changes to `bytes`, with pieces of `other`; at most `bytes_max` bytes.
#[must_use]
pub fn mutated(bytes: &[u8], other: &[u8], numbers: &mut Numbers, bytes_max: usize) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    for _ in 0..=numbers.below(6) {
        change(&mut bytes, other, numbers);
    }
    bytes.truncate(bytes_max);
    bytes
}

fn change(bytes: &mut Vec<u8>, other: &[u8], numbers: &mut Numbers) {
    const ODD: [u8; 6] = [0, 1, 0x7f, 0x80, 0xfe, 0xff];
    let at = numbers.below(bytes.len() + 1);
    let len = numbers.below(16).min(bytes.len() - at);
    match (numbers.below(7), bytes.get_mut(at)) {
        (0, Some(byte)) => *byte ^= 1 << numbers.below(8),
        (1, Some(byte)) => *byte = ODD[numbers.below(ODD.len())],
        (2, Some(byte)) => *byte = numbers.below(256) as u8,
        (3, _) => drop(bytes.drain(at..at + len)),
        (4, _) => {
            let piece = bytes[at..at + len].to_vec();
            bytes.splice(at..at, piece);
        }
        (5, _) => {
            let from = numbers.below(other.len() + 1);
            let to = (from + numbers.below(64)).min(other.len());
            bytes.splice(at..at + len, other[from..to].iter().copied());
        }
        (6, _) if numbers.below(8) == 0 => bytes.truncate(at),
        _ => bytes.insert(at, numbers.below(256) as u8),
    }
}

/// Tests, which `tests/targets.rs` runs.
#[expect(missing_docs, reason = "their names say it")]
pub mod checks {
    use super::*;

    pub fn the_same_number_gives_the_same_changes_within_the_limit() {
        let many = |seed: u64| {
            let mut numbers = Numbers::new(seed);
            (0..200).map(|_| mutated(&[1, 2, 3], b"other", &mut numbers, 20)).collect::<Vec<_>>()
        };
        assert_eq!(many(3), many(3));
        assert_ne!(many(3), many(4));
        assert!(many(3).iter().all(|bytes| bytes.len() <= 20));
    }
}
