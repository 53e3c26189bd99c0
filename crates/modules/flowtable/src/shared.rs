//! State shared by all workers and the table's writer.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use lasthop_flow::FlowStats;
use lasthop_sync::WORKERS_MAX;
use lasthop_wire::Key;

use crate::arena::Arena;
use crate::bounds::{FLOWS_MAX, MASKS_MAX};
use crate::buckets::Buckets;
use crate::chunks::Chunks;
use crate::grace::Visits;
use crate::hash::Secret;
use crate::numbers::Numbers;
use crate::pending::Tickets;
use crate::slot::{FlowSlot, MaskSlot};
use crate::stats::Stats;

/// Counters of look-ups.
pub(crate) const LOOKUPS: usize = 0;
pub(crate) const HITS: usize = 1;
pub(crate) const MISSES: usize = 2;
pub(crate) const MASKS: usize = 3;
pub(crate) const COUNTS: usize = 4;

/// Words of a set of masks.
pub(crate) const MASK_WORDS: usize = MASKS_MAX / 64;

/// Counters of one worker: look-ups, cache hits, misses, and masks that were tried.
#[derive(Debug, Default)]
#[repr(align(128))]
struct LookUps([AtomicU64; COUNTS]);

/// Counters of all workers, each from the end of that worker's last batch.
#[derive(Debug)]
pub(crate) struct Counts([LookUps; WORKERS_MAX]);

impl Default for Counts {
    fn default() -> Self {
        Self(std::array::from_fn(|_| LookUps::default()))
    }
}

impl Counts {
    /// Publishes a worker's counts; it is their only writer.
    #[inline]
    pub(crate) fn show(&self, worker: usize, counts: [u64; COUNTS]) {
        let places = self.0.get(worker).map(|own| &own.0);
        places
            .into_iter()
            .flatten()
            .zip(counts)
            .for_each(|(place, count)| place.store(count, Ordering::Relaxed));
    }

    pub(crate) fn sums(&self) -> [u64; COUNTS] {
        let count = |index: usize| self.0.iter().map(move |own| own.0[index].load(Ordering::Relaxed)).sum();
        std::array::from_fn(count)
    }
}

#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) counts: Counts,
    pub(crate) flows: Chunks<FlowSlot, 256>,
    pub(crate) masks: Chunks<MaskSlot, 16>,
    /// The masks that have flows, one bit each.
    pub(crate) live_masks: [AtomicU64; MASK_WORDS],
    /// Incremented when a mask is added or removed.
    pub(crate) masks_version: AtomicU64,
    /// Incremented when a flow is removed or gets other actions: cached results have to be revalidated.
    pub(crate) version: AtomicU64,
    pub(crate) buckets: Buckets,
    pub(crate) arena: Arena,
    pub(crate) stats: Stats,
    pub(crate) visits: Visits,
    pub(crate) tickets: Tickets,
    pub(crate) numbers: Numbers,
    pub(crate) secret: Secret,
    /// CLOCK_MONOTONIC at the workers' time 0, in milliseconds.
    pub(crate) clock_origin_ms: AtomicU64,
    /// Workers that have used the table: the highest number, plus one.
    pub(crate) workers: AtomicUsize,
}

impl Shared {
    pub(crate) fn new(numbers: Numbers) -> Self {
        Self {
            counts: Counts::default(),
            numbers,
            flows: Chunks::new(FLOWS_MAX as usize),
            masks: Chunks::new(MASKS_MAX),
            live_masks: Default::default(),
            masks_version: AtomicU64::new(0),
            version: AtomicU64::new(0),
            buckets: Buckets::default(),
            arena: Arena::new(),
            stats: Stats::new(),
            visits: Visits::default(),
            tickets: Tickets::new(),
            secret: Secret::random(),
            clock_origin_ms: AtomicU64::new(0),
            workers: AtomicUsize::new(0),
        }
    }

    /// The flow of mask number `number` that matches `key`.
    #[inline]
    pub(crate) fn find(&self, number: u16, key: &Key) -> Option<u32> {
        let mask = self.masks.get(usize::from(number))?;
        let hash = mask.hash(number, key, &self.secret);
        let selects =
            |flow: u32| self.flows.get(flow as usize).is_some_and(|slot| mask.selects(number, slot, key));
        self.buckets.find(hash, selects)
    }

    /// CLOCK_MONOTONIC in milliseconds at the workers' time `now_ns`.
    #[inline]
    pub(crate) fn monotonic_ms(&self, now_ns: u64) -> u64 {
        self.clock_origin_ms.load(Ordering::Relaxed) + now_ns / 1_000_000
    }

    /// A flow's statistics, summed over all workers.
    pub(crate) fn stats_of(&self, slot: &FlowSlot) -> FlowStats {
        let mut stats = self.stats.sum(slot);
        if stats.packets > 0 {
            stats.used_ms += self.clock_origin_ms.load(Ordering::Relaxed);
        }
        stats
    }

    /// Whether there is no flow that packets can match.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.live_masks.iter().all(|word| word.load(Ordering::Relaxed) == 0)
    }

    pub(crate) fn set_live(&self, mask: u16, is_live: bool) {
        let (word, bit) = (&self.live_masks[usize::from(mask) / 64], 1 << (mask % 64));
        let bits = word.load(Ordering::Relaxed);
        word.store(if is_live { bits | bit } else { bits & !bit }, Ordering::Release);
        self.masks_version.fetch_add(1, Ordering::Release);
    }
}
