//! How far a table is with the connections that another process left.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use lasthop_guestmem::{Mapping, Words};

/// The fate of the connections that another process left, as far as they were looked at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CtAdopted {
    /// They go on.
    pub kept: u32,
    /// Among them, those that a packet was changing when the process died: their TCP windows are not held against them.
    pub doubted: u32,
    /// Their time was over.
    pub over: u32,
    /// They make no sense, clash with others, or are beyond a limit.
    pub dropped: u32,
}

/// How far a table is with the places that another process left.
#[derive(Debug)]
pub(crate) struct Adoption {
    /// The time at which it began, in milliseconds.
    pub(crate) began_ms: u64,
    places: u32,
    /// A bit for each of these places: it was looked at.
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
    /// None: there is no memory for its notes.
    pub(crate) fn new(places: u32, began_ms: u64) -> Option<Self> {
        let words = (places as usize).div_ceil(64);
        if words == 0 {
            return Some(Self::none());
        }
        // Zero, and not touched before it is needed.
        let mapping = Arc::new(Mapping::anonymous(words * size_of::<u64>()).ok()?);
        let known = Words::new(&mapping, 0, words)?;
        Some(Self { began_ms, ..Self::with(places, known) })
    }

    /// Of no places.
    pub(crate) fn none() -> Self {
        Self::with(0, Words::none())
    }

    fn with(places: u32, known: Words) -> Self {
        let zero = AtomicU32::default;
        let (next, looked_at, is_over) = (zero(), zero(), AtomicBool::new(places == 0));
        let [kept, doubted, over, dropped] = [zero(), zero(), zero(), zero()];
        Self { began_ms: 0, places, known, next, looked_at, is_over, kept, doubted, over, dropped }
    }

    /// Whether all places were looked at.
    #[inline]
    pub(crate) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Acquire)
    }

    /// Whether a place has been looked at, or was none of the other process's.
    #[inline]
    pub(crate) fn is_known(&self, index: u32) -> bool {
        self.is_over() || index >= self.places || self.bit(index).is_none_or(|(word, bit)| word & bit != 0)
    }

    fn bit(&self, index: u32) -> Option<(u64, u64)> {
        let word = self.known.atomics().get(index as usize / 64)?;
        Some((word.load(Ordering::Acquire), 1 << (index % 64)))
    }

    /// A place has been looked at. False: it had been already.
    pub(crate) fn note(&self, index: u32) -> bool {
        let bit = 1 << (index % 64);
        let word = self.known.atomics().get(index as usize / 64);
        word.is_some_and(|word| word.fetch_or(bit, Ordering::AcqRel) & bit == 0)
    }

    /// A place that nobody has taken to look at; none: all are taken.
    pub(crate) fn take_next(&self) -> Option<u32> {
        let more = |next: u32| (next < self.places).then_some(next + 1);
        self.next.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok()
    }

    /// A place that was taken has been looked at.
    pub(crate) fn has_looked(&self) {
        if self.looked_at.fetch_add(1, Ordering::AcqRel) + 1 == self.places {
            self.is_over.store(true, Ordering::Release);
        }
    }

    /// Counts a connection's fate: whether it goes on, if not whether its time was over, and whether it was in doubt.
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
