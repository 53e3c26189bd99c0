//! When guests' memory is unmapped: kernels before 6.7 let no other thread of the process fault a page of a file in meanwhile.

use std::sync::atomic::{AtomicU64, Ordering};

static BEGUN: AtomicU64 = AtomicU64::new(0);
static ENDED: AtomicU64 = AtomicU64::new(0);

/// One mapping of a file is being unmapped, until this is dropped.
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

/// The mappings of files that were unmapped up to some moment, or were about to be.
#[derive(Clone, Copy, Debug, Default)]
pub struct Unmapped {
    begun: u64,
    ended: u64,
}

impl Unmapped {
    /// Up to now.
    #[must_use]
    pub fn now() -> Self {
        // In this order: what ends in between counts as under way.
        let ended = ENDED.load(Ordering::Acquire);
        Self { begun: BEGUN.load(Ordering::Acquire), ended }
    }

    /// Whether none was under way at any time from `earlier` to this moment.
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
