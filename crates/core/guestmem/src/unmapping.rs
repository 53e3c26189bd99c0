//! Records when guests' memory is unmapped: before Linux 6.7, no other thread of the process can fault in a page of a
//! file meanwhile.

use std::sync::atomic::{AtomicU64, Ordering};

static BEGUN: AtomicU64 = AtomicU64::new(0);
static ENDED: AtomicU64 = AtomicU64::new(0);

/// Marks one mapping of a file as being unmapped, until it is dropped.
pub(crate) struct Unmapping(());

impl Unmapping {
    pub(crate) fn begin() -> Self {
        BEGUN.fetch_add(1, Ordering::Relaxed);
        Self(())
    }
}

impl Drop for Unmapping {
    fn drop(&mut self) {
        ENDED.fetch_add(1, Ordering::Relaxed);
    }
}

/// Counts of file mappings whose unmapping had begun, and had ended, at some moment.
#[derive(Clone, Copy, Debug, Default)]
pub struct Unmapped {
    begun: u64,
    ended: u64,
}

impl Unmapped {
    /// The counts at this moment.
    #[must_use]
    pub fn now() -> Self {
        // In this order: one that ends in between counts as under way.
        let ended = ENDED.load(Ordering::Acquire);
        Self { begun: BEGUN.load(Ordering::Acquire), ended }
    }

    /// Whether no unmapping was under way between `earlier` and `self`.
    #[must_use]
    pub fn none_since(self, earlier: Self) -> bool {
        earlier.begun == earlier.ended && self.begun == earlier.begun
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_overlaps_in_time_is_seen() {
        let at = |begun, ended| Unmapped { begun, ended };
        assert!(at(3, 3).none_since(at(3, 3)));
        assert!(!at(4, 3).none_since(at(3, 3)), "one has begun");
        assert!(!at(4, 4).none_since(at(3, 3)), "one was quick");
        assert!(!at(3, 3).none_since(at(3, 2)), "one has ended");
        assert!(!at(3, 2).none_since(at(3, 2)), "one goes on");
    }
}
