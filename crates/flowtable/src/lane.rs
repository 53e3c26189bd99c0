//! What one worker has for itself: its cache, its order of the masks, its dice.

use std::sync::atomic::Ordering;

use lasthop_wire::Key;

use crate::bounds::{CACHE_REPLACE_ONE_IN, CACHE_TRIED_ONE_IN, LIKELY_SHARE, MASKS_FORESEEN, MASKS_MAX};
use crate::cache::{Cache, Hit};
use crate::foresight::Foresight;
use crate::hash::{Dice, Digest};
use crate::meter::Borrows;
use crate::pending::Pending;
use crate::shared::{MASK_WORDS, Shared};

/// What is counted of look-ups.
pub(crate) const LOOKUPS: usize = 0;
pub(crate) const HITS: usize = 1;
pub(crate) const MISSES: usize = 2;
pub(crate) const MASKS: usize = 3;
pub(crate) const COUNTS: usize = 4;

/// The masks that there are, those first that packets are found by.
#[derive(Debug)]
struct Order {
    masks: Vec<u16>,
    /// By mask: packets found by it lately.
    hits: Vec<u32>,
    live: [u64; MASK_WORDS],
    version: u64,
}

impl Order {
    fn new() -> Self {
        Self {
            masks: Vec::with_capacity(MASKS_MAX),
            hits: vec![0; MASKS_MAX],
            live: [0; MASK_WORDS],
            version: 0,
        }
    }

    /// Enters masks that came and takes out those that went.
    fn follow(&mut self, shared: &Shared) {
        let version = shared.masks_version.load(Ordering::Acquire);
        if version == self.version {
            return;
        }
        self.version = version;
        let mut is_fewer = false;
        for (number, word) in shared.live_masks.iter().enumerate() {
            let now = word.load(Ordering::Acquire);
            let mut came = now & !self.live[number];
            is_fewer |= self.live[number] & !now != 0;
            self.live[number] = now;
            while came != 0 {
                let mask = (number * 64) as u16 + came.trailing_zeros() as u16;
                came &= came - 1;
                self.hits[usize::from(mask)] = 0;
                self.masks.push(mask);
            }
        }
        if is_fewer {
            let live = self.live;
            self.masks.retain(|mask| live[usize::from(*mask) / 64] >> (mask % 64) & 1 == 1);
        }
    }

    /// The masks that packets are most likely found by, first those that most are.
    #[inline]
    fn likely(&self) -> &[u16] {
        let hits = |mask: u16| self.hits[usize::from(mask)];
        let Some(first) = self.masks.first() else { return &[] };
        let least = hits(*first) / LIKELY_SHARE;
        let count = self.masks.iter().take(MASKS_FORESEEN).take_while(|mask| hits(**mask) >= least).count();
        &self.masks[..count]
    }

    /// A packet was found by the mask at `at`: it overtakes the one in front if it is used more.
    #[inline]
    fn note(&mut self, at: usize) {
        let mask = usize::from(self.masks[at]);
        self.hits[mask] += 1;
        if self.hits[mask] == u32::MAX {
            self.hits.iter_mut().for_each(|hits| *hits /= 2);
        }
        if at > 0 && self.hits[usize::from(self.masks[at - 1])] < self.hits[mask] {
            self.masks.swap(at - 1, at);
        }
    }
}

/// One worker's side of the table.
#[derive(Debug)]
pub(crate) struct Lane {
    worker: usize,
    cache: Cache,
    order: Order,
    pub(crate) dice: Dice,
    pub(crate) pending: Pending,
    /// Of the table, when this visit began.
    version: u64,
    foresight: Foresight,
    /// Packets of this batch that were looked for in the cache, and those of them that it did not know.
    sought: [u32; 2],
    /// Batches that will not go by the cache, which knew few of the last one that did.
    cold_batches: u32,
    /// Of meters, in this batch.
    pub(crate) borrows: Borrows,
    /// Look-ups, those that the cache knew, those that found nothing; masks that were tried.
    pub(crate) counts: [u64; COUNTS],
}

impl Lane {
    pub(crate) fn new(worker: usize, seed: u64) -> Self {
        let mut dice = Dice::new(seed);
        let pending = Pending::new(worker, &mut dice);
        Self {
            worker,
            cache: Cache::new(),
            order: Order::new(),
            dice,
            pending,
            version: 0,
            foresight: Foresight::new(),
            sought: [0; 2],
            cold_batches: 0,
            borrows: Borrows::default(),
            counts: [0; COUNTS],
        }
    }

    /// A visit begins; see `grace`.
    #[inline]
    pub(crate) fn begin(&mut self, shared: &Shared) {
        if shared.workers.load(Ordering::Relaxed) <= self.worker {
            shared.workers.fetch_max(self.worker + 1, Ordering::Relaxed);
        }
        shared.visits.begin(self.worker);
        self.version = shared.version.load(Ordering::Acquire);
        self.order.follow(shared);
    }

    /// Whether the next batch goes by the cache. If it does not, [`Self::foresee`] is to be called.
    #[inline]
    pub(crate) fn is_warm(&self) -> bool {
        self.cold_batches == 0
    }

    /// Looks for all packets of a batch without the cache.
    pub(crate) fn foresee(&mut self, shared: &Shared, keys: &[Key]) {
        self.foresight.look(shared, self.order.likely(), keys);
    }

    /// As [`Self::look_up`], of a packet of the batch that was foreseen.
    #[inline]
    pub(crate) fn look_up_foreseen(
        &mut self,
        shared: &Shared,
        packet: usize,
        digest: Digest,
        key: &Key,
    ) -> Option<Hit> {
        let Some((flow, at)) = self.foresight.found(packet) else { return self.look_up(shared, digest, key) };
        self.counts[LOOKUPS] += 1;
        self.order.note(at);
        self.hit(shared, flow)
    }

    /// A batch is decided on: what is to be learned of it for the next one.
    #[inline]
    pub(crate) fn learn(&mut self) {
        let [sought, unknown] = std::mem::take(&mut self.sought);
        if self.cold_batches > 0 {
            self.cold_batches -= 1;
        } else if unknown * 2 > sought {
            self.cold_batches = CACHE_TRIED_ONE_IN - 1;
        }
    }

    /// The visit ends, and with it all that was found in it.
    #[inline]
    pub(crate) fn end(&mut self, shared: &Shared) {
        shared.counts.show(self.worker, self.counts);
        shared.visits.end(self.worker);
    }

    /// Forgets what is cached.
    pub(crate) fn forget(&mut self) {
        self.cache = Cache::new();
    }

    /// Has the cache's lines for `hash` come in.
    #[inline]
    pub(crate) fn prefetch(&self, hash: u64) {
        self.cache.prefetch(hash);
    }

    /// The flow of a packet that the cache knows, counted; none if it has to be looked up.
    #[inline(always)]
    pub(crate) fn cached(&mut self, digest: Digest, key: &Key) -> Option<Hit> {
        // One without an entry for statistics asks for it.
        let (_, hit) = self.cache.find(digest, key)?;
        if hit.version != self.version || hit.stats == 0 {
            return None;
        }
        self.counts[LOOKUPS] += 1;
        self.sought[0] += 1;
        self.counts[HITS] += 1;
        Some(hit)
    }

    /// The flow of a packet.
    #[inline]
    pub(crate) fn look_up(&mut self, shared: &Shared, digest: Digest, key: &Key) -> Option<Hit> {
        self.cached(digest, key).or_else(|| self.look_further(shared, digest, key))
    }

    #[inline(never)]
    fn look_further(&mut self, shared: &Shared, digest: Digest, key: &Key) -> Option<Hit> {
        self.counts[LOOKUPS] += 1;
        self.sought[0] += 1;
        if let Some((place, hit)) = self.cache.find(digest, key) {
            let slot = shared.flows.get(hit.flow as usize)?;
            if slot.identity().generation() == hit.generation {
                self.counts[HITS] += 1;
                let stats = shared.stats.entry_of(self.worker, slot).get();
                let hit = Hit { version: self.version, program: slot.program(), stats, ..hit };
                self.cache.renew(place, hit);
                return Some(hit);
            }
            self.cache.clear(place);
        }
        self.sought[1] += 1;
        let Some(flow) = self.classify(shared, key) else {
            self.counts[MISSES] += 1;
            return None;
        };
        let hit = self.hit(shared, flow)?;
        // A flow that goes at this very moment is right for this packet and no other.
        let is_lasting = hit.generation != 0;
        let (place, is_taken) = self.cache.vacancy(digest.hash);
        if is_lasting && (!is_taken || self.dice.next().is_multiple_of(CACHE_REPLACE_ONE_IN)) {
            self.cache.put(place, (digest, key), hit);
        }
        Some(hit)
    }

    /// What there is to know of a flow that was just found.
    #[inline]
    fn hit(&self, shared: &Shared, flow: u32) -> Option<Hit> {
        let slot = shared.flows.get(flow as usize)?;
        Some(Hit {
            flow,
            generation: slot.identity().generation(),
            version: self.version,
            stats: shared.stats.entry_of(self.worker, slot).get(),
            program: slot.program(),
        })
    }

    /// One mask after the other (tuple-space search).
    #[inline(never)]
    fn classify(&mut self, shared: &Shared, key: &Key) -> Option<u32> {
        let found =
            self.order.masks.iter().enumerate().find_map(|(at, mask)| Some((at, shared.find(*mask, key)?)));
        self.counts[MASKS] += found.map_or(self.order.masks.len(), |(at, _)| at + 1) as u64;
        let (at, flow) = found?;
        self.order.note(at);
        Some(flow)
    }
}
