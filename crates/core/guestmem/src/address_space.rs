//! Counts the address space that all mapped files take: guests' memory must leave room for everything else.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes of address space that all mapped files of the process may take together. A process has 2^47 (x86_64 with page
/// tables of four levels); a quarter of that is left for its own memory and for gaps.
pub const MAPPED_BYTES_MAX: u64 = 96 << 40;

/// Bytes that are mapped at present.
static MAPPED_BYTES: AtomicU64 = AtomicU64::new(0);

/// The address space of one mapping; the drop returns it.
#[derive(Debug)]
pub(crate) struct AddressSpace {
    bytes: u64,
}

impl AddressSpace {
    /// Takes address space. `None` if all mapped files together would exceed [`MAPPED_BYTES_MAX`].
    pub(crate) fn take(bytes: u64) -> Option<Self> {
        let with = |mapped: u64| mapped.checked_add(bytes).filter(|sum| *sum <= MAPPED_BYTES_MAX);
        MAPPED_BYTES.fetch_update(Ordering::Relaxed, Ordering::Relaxed, with).ok().map(|_| Self { bytes })
    }
}

impl Drop for AddressSpace {
    fn drop(&mut self) {
        MAPPED_BYTES.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// Displays an amount of memory for people: `64 GiB`, `1.5 MiB`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ByteSize(pub u64);

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [(&str, u64); 4] =
            [("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
        match UNITS.into_iter().find(|(_, unit)| self.0 >= *unit) {
            Some((name, unit)) if self.0.is_multiple_of(unit) => write!(f, "{} {name}", self.0 / unit),
            Some((name, unit)) => write!(f, "{:.1} {name}", self.0 as f64 / unit as f64),
            None => write!(f, "{} bytes", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_written_in_the_largest_unit_that_they_reach() {
        for (bytes, text) in
            [(1023, "1023 bytes"), (1 << 40, "1 TiB"), (3 << 29, "1.5 GiB"), (64 << 20, "64 MiB")]
        {
            assert_eq!(ByteSize(bytes).to_string(), text);
        }
    }

    #[test]
    fn address_space_is_taken_up_to_its_bound_and_given_back() {
        // Other tests map little at the same time.
        let most = AddressSpace::take(MAPPED_BYTES_MAX - (1 << 40)).expect("room");
        assert!(AddressSpace::take(1 << 40 | 1).is_none());
        assert!(AddressSpace::take(u64::MAX).is_none(), "no overflow");
        drop(most);
        assert!(AddressSpace::take(1 << 41).is_some());
    }
}
