//! A fuzzer's bytes as numbers, in both directions: targets read them from the front, seeds are written with them.

/// Bytes that are taken off the front; when they have run out, everything is zero.
#[derive(Clone, Copy, Debug)]
pub struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    /// All of `bytes`.
    #[must_use]
    pub fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// Whether nothing is left.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn take<const N: usize>(&mut self) -> [u8; N] {
        let mut taken = [0; N];
        let bytes = self.bytes(N);
        taken[..bytes.len()].copy_from_slice(bytes);
        taken
    }

    /// The next `count` bytes, or the rest if it is shorter.
    pub fn bytes(&mut self, count: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(count.min(self.0.len()));
        self.0 = rest;
        taken
    }

    /// The bytes that are left.
    pub fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.0)
    }

    /// A byte.
    pub fn u8(&mut self) -> u8 {
        self.take::<1>()[0]
    }

    /// A bit of a byte of its own.
    pub fn bool(&mut self) -> bool {
        self.u8() & 1 != 0
    }

    /// Two bytes, little endian.
    pub fn u16(&mut self) -> u16 {
        u16::from_le_bytes(self.take())
    }

    /// Four bytes, little endian.
    pub fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.take())
    }

    /// Eight bytes, little endian.
    pub fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.take())
    }
}

/// A seed in the making: the other direction of [`Input`].
#[derive(Clone, Debug, Default)]
pub struct Seed(Vec<u8>);

impl Seed {
    /// The bytes for a target.
    #[must_use]
    pub fn into_bytes(self) -> Vec<u8> {
        self.0
    }

    /// Adds bytes as they are.
    pub fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.0.extend(bytes);
        self
    }

    /// Adds a byte.
    pub fn u8(&mut self, value: u8) -> &mut Self {
        self.bytes(&[value])
    }

    /// Adds a number for [`Input::u16`].
    pub fn u16(&mut self, value: u16) -> &mut Self {
        self.bytes(&value.to_le_bytes())
    }

    /// Adds a number for [`Input::u64`].
    pub fn u64(&mut self, value: u64) -> &mut Self {
        self.bytes(&value.to_le_bytes())
    }
}

/// Tests, which `tests/targets.rs` runs.
#[expect(missing_docs, reason = "their names say it")]
pub mod checks {
    use super::*;

    pub fn what_was_written_is_read_and_then_zeroes() {
        let mut seed = Seed::default();
        seed.u8(7).u16(0x1234).u64(u64::MAX).bytes(b"ab");
        let bytes = seed.into_bytes();
        let mut input = Input::new(&bytes);
        assert_eq!((input.u8(), input.u16(), input.u64()), (7, 0x1234, u64::MAX));
        assert_eq!(input.bytes(3), b"ab");
        assert!(input.is_empty() && input.u32() == 0 && !input.bool());
    }
}
