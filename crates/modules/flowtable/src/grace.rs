//! Grace periods for removed flows: read-copy-update by counting visits.
//!
//! A worker's look-ups happen within visits, one for each batch. Its counter is odd during a visit and even between two
//! visits. A removed flow can only be in use by visits that had begun before the removal. When all of them have ended,
//! its memory is free. Neither side ever waits.
//!
//! ```text
//!   worker   begin: count = odd; fence ── look up, act ── end: count = even (release)
//!   writer   remove; fence; note all counts ── ... ── each count even when noted, or changed since: free
//! ```

use std::sync::atomic::{AtomicU64, Ordering};

use lasthop_sync::{WORKERS_MAX, full_fence};

/// One worker's visits, on cache lines of their own.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Count(AtomicU64);

/// The visits of all workers.
#[derive(Debug)]
pub(crate) struct Visits {
    counts: [Count; WORKERS_MAX],
}

impl Default for Visits {
    fn default() -> Self {
        Self { counts: std::array::from_fn(|_| Count::default()) }
    }
}

/// A snapshot of the visits that had begun and not ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moment([u64; WORKERS_MAX]);

impl Visits {
    /// Begins a visit of worker `worker`; only that worker's thread calls this.
    #[inline]
    pub(crate) fn begin(&self, worker: usize) {
        let count = &self.counts[worker].0;
        count.store(count.load(Ordering::Relaxed) | 1, Ordering::Relaxed);
        // Either the writer sees the odd count, or this visit sees the removal.
        full_fence();
    }

    /// Ends the visit: worker `worker` has no reference to the table any more.
    #[inline]
    pub(crate) fn end(&self, worker: usize) {
        let count = &self.counts[worker].0;
        count.store((count.load(Ordering::Relaxed) | 1).wrapping_add(1), Ordering::Release);
    }

    /// Takes a snapshot after the caller has removed something.
    pub(crate) fn now(&self) -> Moment {
        full_fence();
        Moment(std::array::from_fn(|worker| self.counts[worker].0.load(Ordering::Acquire)))
    }

    /// Whether every visit in the snapshot `then` has ended.
    pub(crate) fn have_passed(&self, then: &Moment) -> bool {
        let mut counts = self.counts.iter().zip(&then.0);
        counts.all(|(count, then)| then & 1 == 0 || count.0.load(Ordering::Acquire) != *then)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_passes_with_the_visits_that_were_under_way() {
        let visits = Visits::default();
        assert!(visits.have_passed(&visits.now()), "nobody is there");
        visits.begin(3);
        let then = visits.now();
        assert!(!visits.have_passed(&then));
        visits.begin(4);
        visits.end(3);
        assert!(visits.have_passed(&then), "worker 4 came later");
        visits.begin(3);
        assert!(visits.have_passed(&then), "a new visit is another one");
        assert!(!visits.have_passed(&visits.now()));
    }
}
