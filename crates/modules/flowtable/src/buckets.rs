//! Maps a hash to candidate flows: one array for the flows of all masks.
//!
//! ```text
//!   level 0   256 buckets        bucket   | passed by | tag : 32, flow + 1 : 32 | ... seven of them |     a cache line
//!   level 1   512
//!   ...       the last existing level is in use; a fuller table gets the next one
//! ```
//!
//! An entry is in its home bucket or, if that is full, in one of those behind it. Each bucket counts the entries that
//! were placed behind it, so a look-up ends at the first bucket with a count of zero. There is one writer. Entries are
//! single words, so a reader sees the value before or after a change. While the writer fills the next level, readers
//! use the last one. Memory that they may still read is never freed.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use lasthop_sync::prefetch;

use crate::bounds::{FLOWS_MAX, PROBES_MAX};

/// Buckets of level 0.
const BUCKETS_MIN: usize = 256;
/// Entries of a bucket.
const WAYS: usize = 7;
/// Average entries per bucket at which the next level is made.
const FULL_WAYS: usize = 4;
const LEVELS: usize = (FLOWS_MAX as usize / FULL_WAYS / BUCKETS_MIN).ilog2() as usize + 1;

const _: () = assert!(BUCKETS_MIN << (LEVELS - 1) >= FLOWS_MAX as usize / FULL_WAYS);

#[derive(Debug, Default)]
#[repr(align(64))]
struct Bucket {
    /// Entries that are in a bucket behind this one, since this one was full.
    passed: AtomicU64,
    entries: [AtomicU64; WAYS],
}

/// A flow's number and part of its hash, in one word; 0 is an empty entry.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Entry(u64);

impl Entry {
    #[inline]
    fn new(hash: u64, flow: u32) -> Self {
        Self(hash & 0xffff_ffff_0000_0000 | u64::from(flow + 1))
    }

    #[inline]
    fn has_tag(self, hash: u64) -> bool {
        (self.0 ^ hash) >> 32 == 0 && self.0 as u32 != 0
    }

    #[inline]
    fn flow(self) -> u32 {
        (self.0 as u32).wrapping_sub(1)
    }
}

/// The levels, of which the last one is in use.
#[derive(Debug, Default)]
pub(crate) struct Buckets {
    levels: [OnceLock<Box<[Bucket]>>; LEVELS],
    level: AtomicU32,
}

/// Neither the home of an entry nor the buckets behind it have room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Full;

/// A snapshot of the array in use. A flow that was added later may be missing, and a removed one may still be there.
#[derive(Clone, Copy)]
pub(crate) struct Homes<'a>(&'a [Bucket]);

impl Homes<'_> {
    #[inline]
    fn of(&self, hash: u64) -> Option<&Bucket> {
        self.0.get(hash as usize & self.0.len().wrapping_sub(1))
    }

    /// Prefetches the cache lines where a flow with this hash is.
    #[inline]
    pub(crate) fn prefetch(&self, hash: u64) {
        self.of(hash).into_iter().for_each(prefetch);
    }

    /// Returns a flow from the home bucket that may have this hash.
    #[inline]
    pub(crate) fn candidate(&self, hash: u64) -> Option<u32> {
        let home = self.of(hash)?;
        let mut entries = home.entries.iter().map(|place| Entry(place.load(Ordering::Acquire)));
        entries.find(|entry| entry.has_tag(hash)).map(Entry::flow)
    }
}

impl Buckets {
    #[inline]
    fn current(&self) -> &[Bucket] {
        let level = self.level.load(Ordering::Acquire) as usize;
        self.levels[level].get().map(|buckets| &**buckets).unwrap_or_default()
    }

    /// Takes a snapshot of the array, once for a batch.
    #[inline]
    pub(crate) fn homes(&self) -> Homes<'_> {
        Homes(self.current())
    }

    /// Returns the first flow with this hash for which `is_it` is true.
    #[inline]
    pub(crate) fn find(&self, hash: u64, mut is_it: impl FnMut(u32) -> bool) -> Option<u32> {
        let buckets = self.current();
        for probe in 0..PROBES_MAX {
            let bucket = buckets.get((hash as usize).wrapping_add(probe) & buckets.len().wrapping_sub(1))?;
            for place in &bucket.entries {
                let entry = Entry(place.load(Ordering::Acquire));
                if entry.has_tag(hash) && is_it(entry.flow()) {
                    return Some(entry.flow());
                }
            }
            if bucket.passed.load(Ordering::Relaxed) == 0 {
                return None;
            }
        }
        None
    }

    /// Adds a flow. `flows` is the number of flows so far. `everybody` yields all flows with their hashes, in case they
    /// have to move to the next level.
    pub(crate) fn insert(
        &self,
        (hash, flow): (u64, u32),
        flows: usize,
        everybody: impl Iterator<Item = (u64, u32)> + Clone,
    ) -> Result<(), Full> {
        if flows >= self.current().len() * FULL_WAYS {
            self.grow(everybody.clone())
                .or_else(|full| if self.current().is_empty() { Err(full) } else { Ok(()) })?;
        }
        if enter(self.current(), hash, flow).is_ok() {
            return Ok(());
        }
        self.grow(everybody)?;
        enter(self.current(), hash, flow)
    }

    /// Moves all flows to the next level. Readers see this as one change.
    fn grow(&self, everybody: impl Iterator<Item = (u64, u32)> + Clone) -> Result<(), Full> {
        let is_first = self.current().is_empty();
        let from = self.level.load(Ordering::Relaxed) as usize + usize::from(!is_first);
        for level in from..LEVELS {
            let buckets: Box<[Bucket]> = (0..BUCKETS_MIN << level).map(|_| Bucket::default()).collect();
            if everybody.clone().all(|(hash, flow)| enter(&buckets, hash, flow).is_ok()) {
                // A new level has no entries yet: levels only rise.
                let _ = self.levels[level].set(buckets);
                self.level.store(level as u32, Ordering::Release);
                return Ok(());
            }
        }
        Err(Full)
    }

    /// Removes a flow.
    pub(crate) fn remove(&self, hash: u64, flow: u32) {
        let buckets = self.current();
        let entry = Entry::new(hash, flow);
        let of =
            |probe: usize| buckets.get((hash as usize).wrapping_add(probe) & buckets.len().wrapping_sub(1));
        let has_it =
            |bucket: &Bucket| bucket.entries.iter().any(|place| place.load(Ordering::Relaxed) == entry.0);
        let Some(probe) = (0..PROBES_MAX).find(|probe| of(*probe).is_some_and(has_it)) else { return };
        let Some(bucket) = of(probe) else { return };
        for place in &bucket.entries {
            if place.load(Ordering::Relaxed) == entry.0 {
                place.store(0, Ordering::Release);
            }
        }
        for passed in (0..probe).filter_map(of) {
            passed.passed.store(passed.passed.load(Ordering::Relaxed) - 1, Ordering::Release);
        }
    }
}

fn enter(buckets: &[Bucket], hash: u64, flow: u32) -> Result<(), Full> {
    let of = |probe: usize| &buckets[(hash as usize).wrapping_add(probe) & (buckets.len() - 1)];
    if buckets.is_empty() {
        return Err(Full);
    }
    for probe in 0..PROBES_MAX.min(buckets.len()) {
        let vacant = of(probe).entries.iter().find(|place| place.load(Ordering::Relaxed) == 0);
        let Some(place) = vacant else { continue };
        for passed in (0..probe).map(of) {
            passed.passed.store(passed.passed.load(Ordering::Relaxed) + 1, Ordering::Release);
        }
        place.store(Entry::new(hash, flow).0, Ordering::Release);
        return Ok(());
    }
    Err(Full)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn find(buckets: &Buckets, hash: u64, flow: u32) -> bool {
        buckets.find(hash, |found| found == flow) == Some(flow)
    }

    #[test]
    fn a_table_grows_as_it_fills() {
        let buckets = Buckets::default();
        let hash = |flow: u32| u64::from(flow).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(20);
        for flow in 0..20_000 {
            let everybody = (0..flow).map(|flow| (hash(flow), flow));
            buckets.insert((hash(flow), flow), flow as usize, everybody).expect("there is room");
        }
        assert!((0..20_000).all(|flow| find(&buckets, hash(flow), flow)));
        assert!((20_000..40_000).all(|flow| !find(&buckets, hash(flow), flow)));
        assert_eq!(buckets.current().len(), 8192);
    }

    #[test]
    fn too_many_of_one_hash_are_refused() {
        let buckets = Buckets::default();
        let full = (0..100).position(|flow| {
            buckets.insert((7, flow), flow as usize, (0..flow).map(|flow| (7, flow))).is_err()
        });
        assert_eq!(full, Some(WAYS * PROBES_MAX));
    }

    proptest! {
        #[test]
        fn entries_come_and_go_as_in_a_map(steps in prop::collection::vec((0..40_u32, 0..3_u64, any::<bool>()), 0..400)) {
            let (buckets, mut model) = (Buckets::default(), BTreeMap::new());
            for (flow, home, comes) in steps {
                // A few homes near each other, so that buckets overflow.
                let hash = home | u64::from(flow) << 40;
                match model.get(&flow).copied() {
                    None if comes => {
                        let everybody: Vec<_> = model.iter().map(|(flow, hash)| (*hash, *flow)).collect();
                        prop_assert!(buckets.insert((hash, flow), model.len(), everybody.into_iter()).is_ok());
                        model.insert(flow, hash);
                    }
                    Some(hash) if !comes => {
                        buckets.remove(hash, flow);
                        model.remove(&flow);
                    }
                    _ => {}
                }
                for flow in 0..40 {
                    let wanted = model.get(&flow);
                    let found = (0..3).any(|home| find(&buckets, home | u64::from(flow) << 40, flow));
                    prop_assert_eq!(found, wanted.is_some());
                }
                if model.is_empty() {
                    let all = buckets.current().iter().all(|bucket| bucket.passed.load(Ordering::Relaxed) == 0);
                    prop_assert!(all, "nobody is behind anybody");
                }
            }
        }
    }
}
