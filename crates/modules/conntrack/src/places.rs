//! All places for connections, and the lists of vacant ones.
//!
//! The shard that used a place last keeps it in its list of vacant places. A shard with many gives a batch of them to
//! the common pool.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use lasthop_guestmem::Words;
use lasthop_sync::prefetch;

use crate::links::{Links, ListKind, ListLink};
use crate::place::{PLACE_WORDS, Place};

/// Index in the header's words: number of places used so far.
pub(crate) const USED_AT: usize = 1;
/// Places in a batch.
const BATCH: u32 = 64;

/// The places of a table; see the module.
#[derive(Debug)]
pub(crate) struct Places {
    header: Words,
    pub(crate) places: Words,
    pub(crate) count: u32,
    pool: Mutex<Pool>,
}

/// Batches of vacant places that no shard holds.
#[derive(Debug, Default)]
struct Pool {
    /// The first place of the first batch, as index + 1.
    first: u32,
    used: u32,
}

/// A shard's vacant places.
#[derive(Debug, Default)]
pub(crate) struct Vacant {
    /// The first vacant place, as index + 1.
    first: u32,
    len: u32,
}

/// The places' words.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rows<'a>(&'a [[AtomicU64; PLACE_WORDS]]);

impl<'a> Rows<'a> {
    #[inline(always)]
    pub(crate) fn get(self, index: u32) -> Option<Place<'a>> {
        self.0.get(index as usize).map(Place)
    }

    /// The index of one of these places.
    pub(crate) fn index_of(self, place: Place<'_>) -> u32 {
        let bytes = place.0.as_ptr().addr().wrapping_sub(self.0.as_ptr().addr());
        (bytes / size_of_val(place.0)) as u32
    }
}

impl Places {
    /// Places in these words, of which another process has used the first `used`.
    pub(crate) fn new(header: Words, places: Words, count: u32, used: u32) -> Self {
        Self { header, places, count, pool: Mutex::new(Pool { first: 0, used }) }
    }

    /// No places.
    pub(crate) fn none() -> Self {
        Self { header: Words::none(), places: Words::none(), count: 0, pool: Mutex::default() }
    }

    #[inline]
    pub(crate) fn get(&self, index: u32) -> Option<Place<'_>> {
        self.rows().get(index)
    }

    /// The words of all places.
    #[inline]
    pub(crate) fn rows(&self) -> Rows<'_> {
        Rows(self.places.atomics().as_chunks().0)
    }

    /// An upper bound for the indices in use.
    pub(crate) fn used(&self) -> u32 {
        self.header.read(USED_AT).min(self.count.into()) as u32
    }

    /// Whether all vacant places are in shards' lists.
    pub(crate) fn is_used_up(&self) -> bool {
        let pool = self.lock();
        pool.first == 0 && pool.used == self.count
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Pool> {
        self.pool.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a vacant place for a shard.
    pub(crate) fn take(&self, links: &Links, vacant: &mut Vacant) -> Option<u32> {
        if vacant.first == 0 {
            self.refill(links, vacant);
        }
        let index = vacant.first.checked_sub(1)?;
        vacant.first = links.get(index, ListKind::Wheel).behind;
        vacant.len -= 1;
        if let Some(next) = vacant.first.checked_sub(1).and_then(|next| self.get(next)) {
            next.prefetch();
        }
        Some(index)
    }

    /// Returns a place to a shard's list.
    pub(crate) fn give_back(&self, links: &Links, vacant: &mut Vacant, index: u32) {
        let next = ListLink { behind: vacant.first, ..ListLink::default() };
        links.set(index, ListKind::Wheel, next);
        vacant.first = index + 1;
        vacant.len += 1;
        if vacant.len >= 2 * BATCH {
            self.give_batch(links, vacant);
        }
    }

    fn refill(&self, links: &Links, vacant: &mut Vacant) {
        let mut pool = self.lock();
        if let Some(first) = pool.first.checked_sub(1) {
            pool.first = links.get(first, ListKind::Evictable).behind;
            links.set(first, ListKind::Evictable, ListLink::default());
            (vacant.first, vacant.len) = (first + 1, BATCH);
            return;
        }
        let fresh = pool.used..(pool.used + BATCH).min(self.count);
        pool.used = fresh.end;
        // A process with another layout may have left words there.
        fresh.clone().filter_map(|index| self.get(index)).for_each(Place::clear);
        // The count is published before any of the places is written.
        self.header.publish(USED_AT, u64::from(fresh.end));
        for index in fresh.rev() {
            links.set(index, ListKind::Wheel, ListLink { behind: vacant.first, ..ListLink::default() });
            vacant.first = index + 1;
            vacant.len += 1;
        }
    }

    /// Moves a batch of a shard's places to the pool.
    fn give_batch(&self, links: &Links, vacant: &mut Vacant) {
        let first = vacant.first;
        let mut last = first - 1;
        for _ in 1..BATCH {
            last = links.get(last, ListKind::Wheel).behind.saturating_sub(1);
        }
        vacant.first = links.get(last, ListKind::Wheel).behind;
        vacant.len -= BATCH;
        links.set(last, ListKind::Wheel, ListLink::default());
        let mut pool = self.lock();
        links.set(first - 1, ListKind::Evictable, ListLink { behind: pool.first, ..ListLink::default() });
        pool.first = first;
    }
}

impl Place<'_> {
    /// Prefetches the place's words.
    #[inline]
    pub(crate) fn prefetch(self) {
        self.0.iter().step_by(8).for_each(prefetch);
    }

    /// Whether the process that left this place was changing it.
    pub(crate) fn is_torn(self) -> bool {
        self.0[0].load(Ordering::Relaxed) & 1 != 0
    }
}
