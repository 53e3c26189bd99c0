//! Grace periods for removed flows: read-copy-update by counting visits.
//!
//! A worker's look-ups happen within visits, one for each batch. Its counter is odd during a visit and even
//! between two. A removed flow can only be in use by visits that had begun by then. When each of them has
//! ended, its memory is free. Neither side ever waits.
//!
//! ```text
//!   worker   begin: count = odd; fence ── look up, act ── end: count = even (release)
//!   writer   take out; fence; note all counts ── ... ── each count even when noted, or another one now: free
//! ```

use std::sync::atomic::{AtomicU64, Ordering};

use lasthop_sync::{WORKERS_MAX, full_fence};

/// One worker's visits, on cache lines of their own.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Count(AtomicU64);

/// The visits of all workers.
#[derive(Debug, Default)]
pub(crate) struct Visits {
    counts: [Count; WORKERS_MAX],
}

/// A moment: visits that had begun by then and not ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moment([u64; WORKERS_MAX]);

impl Visits {
    /// Worker `worker`, and no other thread, begins to look at the table.
    #[inline]
    pub(crate) fn begin(&self, worker: usize) {
        let count = &self.counts[worker].0;
        count.store(count.load(Ordering::Relaxed) | 1, Ordering::Relaxed);
        // Either the writer sees the odd count, or this visit sees the flow removed.
        full_fence();
    }

    /// Worker `worker` has nothing of the table any more.
    #[inline]
    pub(crate) fn end(&self, worker: usize) {
        let count = &self.counts[worker].0;
        count.store((count.load(Ordering::Relaxed) | 1).wrapping_add(1), Ordering::Release);
    }

    /// This moment, behind all that the caller has taken out.
    pub(crate) fn now(&self) -> Moment {
        full_fence();
        Moment(std::array::from_fn(|worker| self.counts[worker].0.load(Ordering::Acquire)))
    }

    /// Whether every visit that was under way at `then` has ended.
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
