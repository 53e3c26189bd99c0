//! How far a table is with the connections that another process left.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use lasthop_guestmem::{Mapping, Words};

/// The fate of the connections that another process left, as far as they are checked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CtAdopted {
    /// Connections that were kept.
    pub kept: u32,
    /// Kept connections that a packet was changing when the process died. Their TCP windows are not enforced.
    pub doubted: u32,
    /// Connections that had expired.
    pub over: u32,
    /// Connections that were dropped: invalid, in conflict with others, or beyond a limit.
    pub dropped: u32,
}

/// The progress of checking the places that another process left.
#[derive(Debug)]
pub(crate) struct Adoption {
    /// The time at which it began, in milliseconds.
    pub(crate) began_ms: u64,
    places: u32,
    /// One bit for each place, set once it is checked.
    known: Words,
    next: AtomicU32,
    looked_at: AtomicU32,
    is_over: AtomicBool,
    kept: AtomicU32,
    doubted: AtomicU32,
    over: AtomicU32,
    dropped: AtomicU32,
}

impl Adoption {
    /// Returns `None` if there is no memory for the bits.
    pub(crate) fn new(places: u32, began_ms: u64) -> Option<Self> {
        let words = (places as usize).div_ceil(64);
        if words == 0 {
            return Some(Self::none());
        }
        // Untouched pages are zero and take no memory.
        let mapping = Arc::new(Mapping::anonymous(words * size_of::<u64>()).ok()?);
        let known = Words::new(&mapping, 0, words)?;
        Some(Self { began_ms, ..Self::with(places, known) })
    }

    /// Nothing to adopt.
    pub(crate) fn none() -> Self {
        Self::with(0, Words::none())
    }

    fn with(places: u32, known: Words) -> Self {
        let zero = AtomicU32::default;
        let (next, looked_at, is_over) = (zero(), zero(), AtomicBool::new(places == 0));
        let [kept, doubted, over, dropped] = [zero(), zero(), zero(), zero()];
        Self { began_ms: 0, places, known, next, looked_at, is_over, kept, doubted, over, dropped }
    }

    /// Whether all places are checked.
    #[inline]
    pub(crate) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Acquire)
    }

    /// Whether a place is checked, or was not used by the other process.
    #[inline]
    pub(crate) fn is_known(&self, index: u32) -> bool {
        self.is_over() || index >= self.places || self.bit(index).is_none_or(|(word, bit)| word & bit != 0)
    }

    fn bit(&self, index: u32) -> Option<(u64, u64)> {
        let word = self.known.atomics().get(index as usize / 64)?;
        Some((word.load(Ordering::Acquire), 1 << (index % 64)))
    }

    /// Marks a place as checked. Returns false if it already was.
    pub(crate) fn note(&self, index: u32) -> bool {
        let bit = 1 << (index % 64);
        let word = self.known.atomics().get(index as usize / 64);
        word.is_some_and(|word| word.fetch_or(bit, Ordering::AcqRel) & bit == 0)
    }

    /// Takes the next place that is to be checked; `None` once all are taken.
    pub(crate) fn take_next(&self) -> Option<u32> {
        let more = |next: u32| (next < self.places).then_some(next + 1);
        self.next.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok()
    }

    /// Counts a place that [`Self::take_next`] gave as checked.
    pub(crate) fn has_looked(&self) {
        if self.looked_at.fetch_add(1, Ordering::AcqRel) + 1 == self.places {
            self.is_over.store(true, Ordering::Release);
        }
    }

    /// Counts the result for a connection: kept or not, expired or not, and torn by the other process or not.
    pub(crate) fn count(&self, is_kept: bool, is_over: bool, was_torn: bool) {
        let counts = [
            (&self.kept, is_kept),
            (&self.doubted, is_kept && was_torn),
            (&self.over, is_over),
            (&self.dropped, !is_kept && !is_over),
        ];
        for (count, is_one) in counts {
            count.fetch_add(u32::from(is_one), Ordering::Relaxed);
        }
    }

    pub(crate) fn outcome(&self) -> CtAdopted {
        let [kept, doubted, over, dropped] =
            [&self.kept, &self.doubted, &self.over, &self.dropped].map(|count| count.load(Ordering::Relaxed));
        CtAdopted { kept, doubted, over, dropped }
    }
}
