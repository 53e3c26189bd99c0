//! State of one worker: its caches, its order of the masks, its random numbers.

use std::sync::atomic::Ordering;

use lasthop_module_api::{BATCH_PACKETS_MAX, Header};
use lasthop_wire::key::{KEY_WORDS, MINI_KEY4_WORDS, MINI_KEY6_WORDS, PLAIN_KEY_WORDS, extract, field};
use lasthop_wire::mix::Xorshift;
use lasthop_wire::{Key, Metadata};

use crate::batch_lookup::BatchLookup;
use crate::bounds::{
    BATCH_LOOKUP_MASKS, CACHE_REPLACE_ONE_IN, CACHE_TRIED_ONE_IN, FOUR_ENTRIES, LATER_ENTRIES, LIKELY_SHARE,
    MASKS_MAX, OTHER_ENTRIES, SIX_ENTRIES, TUNNELLED_ENTRIES,
};
use crate::cache::{Cache, CacheEntries, CacheSlot, Hit, Sought};
use crate::cache_key::{CacheKey, Kind, LATER_KEY_WORDS, LaterKey, PortUnionMask, UnionMask};
use crate::hash::Secret;
use crate::meter::{Borrows, Meters};
use crate::pending::Pending;
use crate::second_pass::{CT4_WORDS, SecondHit, SecondPasses};
use crate::shared::{COUNTS, HITS, LOOKUPS, MASK_WORDS, MASKS, MISSES, Shared};
use crate::slot::EntryId;

/// The live masks, ordered by use.
#[derive(Debug)]
struct Order {
    masks: Vec<u16>,
    /// For each mask, the packets that it found recently.
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

    /// Adds new masks and drops removed ones. Returns whether anything changed.
    #[inline]
    fn follow(&mut self, shared: &Shared) -> bool {
        let version = shared.masks_version.load(Ordering::Acquire);
        let is_new = version != self.version;
        if is_new {
            self.catch_up(shared, version);
        }
        is_new
    }

    #[cold]
    fn catch_up(&mut self, shared: &Shared, version: u64) {
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

    /// The most used masks, in order of use.
    #[inline]
    fn likely(&self) -> &[u16] {
        let hits = |mask: u16| self.hits[usize::from(mask)];
        let Some(first) = self.masks.first() else { return &[] };
        let least = hits(*first) / LIKELY_SHARE;
        let count =
            self.masks.iter().take(BATCH_LOOKUP_MASKS).take_while(|mask| hits(**mask) >= least).count();
        &self.masks[..count]
    }

    /// Counts a packet that the mask at `at` found. The mask swaps places with the one before it if it is used more.
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

/// Computes the cache keys of the first packets and prefetches their cache lines, up to the first one without a mini key of
/// `KEY` words. Returns their number.
// A separate function without calls, so that the loop keeps its values in registers.
#[inline(never)]
fn see_usual<const KEY: usize>(
    secret: &Secret,
    union: &PortUnionMask,
    cache: &Cache<KEY>,
    headers: &[Header],
    cache_keys: &mut [CacheKey],
) -> usize {
    let see = |(cache_key, header): (&mut CacheKey, &Header)| {
        let is_usual = match KEY {
            MINI_KEY4_WORDS => cache_key.see4(header.bytes(), union, secret),
            _ => cache_key.see6(header.bytes(), union, secret),
        };
        if is_usual {
            cache.prefetch(cache_key.hash());
        }
        is_usual
    };
    cache_keys.iter_mut().zip(headers).map(see).take_while(|is_usual| *is_usual).count()
}

/// The cache of usual packets of one IP version, at one version of the table. As a value, it is not loaded again after
/// each store to other memory.
#[derive(Clone, Copy)]
pub(crate) struct Known<'a, const KEY: usize> {
    entries: CacheEntries<'a, KEY>,
    version: u64,
}

impl<const KEY: usize> Known<'_, KEY> {
    /// The flow of a usual packet of this IP version and its slot.
    #[inline(always)]
    pub(crate) fn find(self, cache_key: &CacheKey) -> Option<(CacheSlot, Hit)> {
        match self.entries.find(cache_key.usual::<KEY>()?) {
            Some((slot, hit)) if is_valid(hit, self.version) => Some((slot, hit)),
            _ => None,
        }
    }
}

/// The IP version of usual packets, by their mini key: selects its caches in a worker's state.
pub(crate) trait UsualKind<const KEY: usize> {
    /// The cache of the first pass.
    fn known_usual(&self) -> Known<'_, KEY>;
    /// The second flows of its entries.
    fn second(&self) -> &SecondPasses;
    fn second_mut(&mut self) -> &mut SecondPasses;
}

impl UsualKind<MINI_KEY4_WORDS> for WorkerState {
    #[inline(always)]
    fn known_usual(&self) -> Known<'_, MINI_KEY4_WORDS> {
        Known { entries: self.four.in_use(), version: self.version }
    }

    #[inline(always)]
    fn second(&self) -> &SecondPasses {
        &self.second4
    }

    fn second_mut(&mut self) -> &mut SecondPasses {
        &mut self.second4
    }
}

impl UsualKind<MINI_KEY6_WORDS> for WorkerState {
    #[inline(always)]
    fn known_usual(&self) -> Known<'_, MINI_KEY6_WORDS> {
        Known { entries: self.six.in_use(), version: self.version }
    }

    #[inline(always)]
    fn second(&self) -> &SecondPasses {
        &self.second6
    }

    fn second_mut(&mut self) -> &mut SecondPasses {
        &mut self.second6
    }
}

/// Whether nothing has changed since. A flow without an entry for statistics asks for it.
#[inline(always)]
fn is_valid(hit: Hit, version: u64) -> bool {
    hit.version == version && hit.stats != 0
}

/// One worker's side of the table.
#[derive(Debug)]
pub(crate) struct WorkerState {
    worker: usize,
    /// Caches for usual IPv4 packets, for usual IPv6 packets, and for all others.
    four: Cache<MINI_KEY4_WORDS>,
    six: Cache<MINI_KEY6_WORDS>,
    other: Cache<PLAIN_KEY_WORDS>,
    /// Cache for packets from tunnels.
    tunnelled: Cache<KEY_WORDS>,
    /// Cache for usual IPv4 packets in a later pass.
    later: Cache<LATER_KEY_WORDS>,
    /// Second flows for the entries of `four` and `six`.
    second4: SecondPasses,
    second6: SecondPasses,
    order: Order,
    pub(crate) union: UnionMask,
    pub(crate) rng: Xorshift,
    pub(crate) pending: Pending,
    /// The table's version when this visit began.
    version: u64,
    batch_lookup: BatchLookup,
    /// Packets of this batch that hit a cache at once; packets that needed a full look-up; and those of the latter for
    /// which a cache of full size had no room.
    cached: u32,
    sought: u32,
    crowded_out: u32,
    /// Remaining batches that bypass the caches, because the caches thrashed.
    cold_batches: u32,
    /// Tokens borrowed from meters in this batch.
    pub(crate) borrows: Borrows,
    /// Look-ups, cache hits, misses, and masks that were tried.
    pub(crate) counts: [u64; COUNTS],
}

impl WorkerState {
    pub(crate) fn new(worker: usize, seed: u64) -> Self {
        let mut rng = Xorshift::new(seed);
        let pending = Pending::new(worker, &mut rng);
        Self {
            worker,
            four: Cache::new(FOUR_ENTRIES),
            six: Cache::new(SIX_ENTRIES),
            other: Cache::new(OTHER_ENTRIES),
            tunnelled: Cache::new(TUNNELLED_ENTRIES),
            later: Cache::new(LATER_ENTRIES),
            second4: SecondPasses::new(Cache::<MINI_KEY4_WORDS>::lines(*FOUR_ENTRIES.end())),
            second6: SecondPasses::new(Cache::<MINI_KEY6_WORDS>::lines(*SIX_ENTRIES.end())),
            order: Order::new(),
            union: UnionMask::default(),
            rng,
            pending,
            version: 0,
            batch_lookup: BatchLookup::new(),
            cached: 0,
            sought: 0,
            crowded_out: 0,
            cold_batches: 0,
            borrows: Borrows::default(),
            counts: [0; COUNTS],
        }
    }

    /// Begins a visit; see `grace`.
    #[inline]
    pub(crate) fn begin(&mut self, shared: &Shared) {
        if shared.workers.load(Ordering::Relaxed) <= self.worker {
            shared.workers.fetch_max(self.worker + 1, Ordering::Relaxed);
        }
        shared.visits.begin(self.worker);
        self.version = shared.version.load(Ordering::Acquire);
        if self.order.follow(shared) {
            self.look_anew(shared);
        }
        if self.union.begin() {
            self.forget();
        }
        self.pending.begin(self.union.time());
    }

    /// Recomputes the union mask after masks were added or removed. Cached results stay valid while the union mask
    /// does.
    #[cold]
    fn look_anew(&mut self, shared: &Shared) {
        let masks = self.order.masks.iter().filter_map(|mask| shared.masks.get(usize::from(*mask)));
        let mut bits = Key::default();
        masks.for_each(|mask| mask.add_to(&mut bits));
        if self.union.aim(bits) {
            self.forget();
        }
    }

    /// Computes the cache keys of a batch, and prefetches their cache lines. For packets without a mini key
    /// the masked flow key is stored in `keys`.
    #[inline]
    pub(crate) fn prepare_batch(
        &self,
        shared: &Shared,
        (headers, metadata): (&[Header], &Metadata),
        (cache_keys, keys): (&mut [CacheKey; BATCH_PACKETS_MAX], &mut [Key; BATCH_PACKETS_MAX]),
    ) {
        let (union, secret) = (self.union.at(metadata.in_port, &shared.secret), &shared.secret);
        let headers = &headers[..headers.len().min(BATCH_PACKETS_MAX)];
        let mut at = 0;
        while at < headers.len() {
            let first = at;
            at += see_usual(secret, &union, &self.four, &headers[at..], &mut cache_keys[at..]);
            if at < headers.len() {
                at += see_usual(secret, &union, &self.six, &headers[at..], &mut cache_keys[at..]);
            }
            if at == first {
                self.prepare_other(shared, (&headers[at], metadata), (&mut cache_keys[at], &mut keys[at]));
                at += 1;
            }
        }
        if self.four.is_grown() {
            self.prefetch_statistics(shared, &cache_keys[..headers.len()]);
        }
    }

    #[inline(never)]
    fn prepare_other(
        &self,
        shared: &Shared,
        (header, metadata): (&Header, &Metadata),
        (cache_key, key): (&mut CacheKey, &mut Key),
    ) {
        extract(header.bytes(), header.frame_len_bytes() as usize, metadata, key);
        let tcp_flags = key.get(field::TCP_FLAGS) as u16;
        self.union.mask_plain(key);
        let sought = self.union.sought(key, &shared.secret);
        cache_key.see_other(sought, tcp_flags);
        self.other.prefetch(sought.hash);
    }

    /// Prefetches the statistics of likely flows. If there are many flows, these take many cache lines.
    #[inline(never)]
    fn prefetch_statistics(&self, shared: &Shared, cache_keys: &[CacheKey]) {
        let of_four = cache_keys.iter().filter(|cache_key| cache_key.kind == Kind::Four);
        let places = of_four.map(|cache_key| EntryId::of(self.four.stats_at(cache_key.hash())));
        places.for_each(|place| shared.stats.prefetch(place));
    }

    /// Whether the next batch uses the caches. If not, [`Self::batch_lookup`] has to be called.
    #[inline]
    pub(crate) fn is_warm(&self) -> bool {
        self.cold_batches == 0
    }

    /// Looks up all packets of a batch side by side, without the caches.
    pub(crate) fn batch_lookup(&mut self, shared: &Shared, keys: &[Key]) {
        self.batch_lookup.look(shared, self.order.likely(), keys);
    }

    /// As [`Self::look_up`], of a packet of the batch that was foreseen.
    #[inline(always)]
    pub(crate) fn look_up_in_batch(&mut self, shared: &Shared, packet: usize, key: &Key) -> Option<Hit> {
        self.counts[LOOKUPS] += 1;
        let flow = match self.batch_lookup.found(packet) {
            Some((flow, at)) => {
                self.order.note(at);
                Some(flow)
            }
            None => self.classify(shared, key),
        };
        self.hit(shared, flow?)
    }

    /// Ends the decisions of a batch, and chooses whether the next one uses the caches.
    #[inline]
    pub(crate) fn learn(&mut self) {
        let [cached, sought, crowded_out] =
            [&mut self.cached, &mut self.sought, &mut self.crowded_out].map(std::mem::take);
        self.counts[LOOKUPS] += u64::from(cached + sought);
        self.counts[HITS] += u64::from(cached);
        if self.cold_batches > 0 {
            self.cold_batches -= 1;
        } else if crowded_out * 2 > cached + sought {
            self.cold_batches = CACHE_TRIED_ONE_IN - 1;
        }
    }

    /// Ends the decisions of a batch, and its visit.
    #[inline]
    pub(crate) fn finish(&mut self, shared: &Shared, meters: &Meters, now_ns: u64) {
        if self.pending.is_any() {
            self.pending.tidy(&shared.tickets, now_ns);
        }
        self.borrows.give_back(meters);
        self.learn();
        self.end(shared);
    }

    /// Ends the visit; results of its look-ups must not be used any more.
    #[inline]
    pub(crate) fn end(&mut self, shared: &Shared) {
        shared.counts.show(self.worker, self.counts);
        shared.visits.end(self.worker);
    }

    /// Makes practically all later batches bypass the caches.
    pub(crate) fn bypass_caches(&mut self) {
        self.cold_batches = u32::MAX;
    }

    /// Empties the caches.
    fn forget(&mut self) {
        self.four.clear();
        self.six.clear();
        self.other.clear();
        self.tunnelled.clear();
        self.later.clear();
        self.second4.clear();
        self.second6.clear();
    }

    /// Whether the second flow for a cache entry, direction and first word of connection tracking is known, and counts
    /// in the statistics entry `stats`. It is right only while no flow matches on further words.
    #[inline(always)]
    pub(crate) fn is_known_second<const KEY: usize>(
        &self,
        at: (CacheSlot, bool),
        word: u64,
        stats: u32,
    ) -> bool
    where
        Self: UsualKind<KEY>,
    {
        self.second().has(at, word & self.union.first_ct_word, self.version, stats)
    }

    /// The same, with all words under the union mask.
    pub(crate) fn known_second_whole<const KEY: usize>(
        &self,
        at: (CacheSlot, bool),
        ct: &[u64; CT4_WORDS],
    ) -> Option<SecondHit>
    where
        Self: UsualKind<KEY>,
    {
        self.second().find_whole(at, ct, self.version)
    }

    /// The flow of a packet without a cache key, or in a later pass, if it is in the cache. It is not counted.
    pub(crate) fn known_other(&self, key: &Key, shared: &Shared) -> Option<Hit> {
        let counted = self.union.of_key(key);
        let (_, hit) = self.other.find(self.union.sought(&counted, &shared.secret))?;
        is_valid(hit, self.version).then_some(hit)
    }

    /// Looks a packet up in the caches only, and counts a hit. `counted` is the masked flow key of a packet
    /// without a mini key.
    #[inline(never)]
    pub(crate) fn known(&mut self, cache_key: &CacheKey, counted: &Key) -> Option<Hit> {
        let (_, hit) = match cache_key.kind {
            Kind::Four => self.four.find(cache_key.usual::<MINI_KEY4_WORDS>()?)?,
            Kind::Six => self.six.find(cache_key.usual::<MINI_KEY6_WORDS>()?)?,
            Kind::Other => self.other.find(cache_key.other(counted))?,
        };
        let is_valid = is_valid(hit, self.version);
        self.cached += u32::from(is_valid);
        is_valid.then_some(hit)
    }

    /// Its worker's number.
    #[inline]
    pub(crate) fn worker(&self) -> usize {
        self.worker
    }

    /// Counts cache hits.
    #[inline]
    pub(crate) fn note_cached(&mut self, packets: u32) {
        self.cached += packets;
    }

    /// Looks up a packet's flow; its cache key may be computed already.
    pub(crate) fn look_up(
        &mut self,
        shared: &Shared,
        key: &Key,
        cache_key: Option<&CacheKey>,
    ) -> Option<Hit> {
        if let Some(sought) = cache_key.and_then(CacheKey::usual) {
            return self.look_up_in(shared, key, sought, |local| &mut local.four);
        }
        if let Some(sought) = cache_key.and_then(CacheKey::usual) {
            return self.look_up_in(shared, key, sought, |local| &mut local.six);
        }
        let counted = self.union.of_key(key);
        if key.has_tunnel() {
            let sought = self.union.sought_tunnelled(&counted, &shared.secret);
            return self.look_up_in(shared, key, sought, |local| &mut local.tunnelled);
        }
        let sought = self.union.sought(&counted, &shared.secret);
        self.look_up_in(shared, key, sought, |local| &mut local.other)
    }

    /// The flow of a usual packet in a later pass, if it hits the cache.
    #[inline(always)]
    pub(crate) fn known_later(&self, later: &LaterKey) -> Option<Hit> {
        let (_, hit) = match self.union.has_whole_ct {
            false => self.later.find(later.sought_short()?)?,
            true => self.later.find(later.sought())?,
        };
        is_valid(hit, self.version).then_some(hit)
    }

    /// Looks up the flow of a usual packet in a later pass.
    pub(crate) fn look_up_later(&mut self, shared: &Shared, key: &Key, later: &LaterKey) -> Option<Hit> {
        self.look_up_in(shared, key, later.sought(), |local| &mut local.later)
    }

    fn look_up_in<const KEY: usize>(
        &mut self,
        shared: &Shared,
        key: &Key,
        sought: Sought<'_, KEY>,
        cache: impl Fn(&mut Self) -> &mut Cache<KEY>,
    ) -> Option<Hit> {
        self.sought += 1;
        if let Some((place, hit)) = cache(self).find(sought) {
            if let Some(hit) = self.is_still(shared, hit) {
                self.counts[HITS] += 1;
                cache(self).renew(place, hit);
                return Some(hit);
            }
            cache(self).remove(place);
        }
        let flow = self.classify(shared, key)?;
        let hit = self.hit(shared, flow)?;
        // A flow that is being removed at this moment is right for this packet but must not be cached.
        let is_lasting = hit.generation != 0;
        let (place, is_taken) = cache(self).vacancy(sought);
        if is_taken && !cache(self).crowd_out() {
            self.crowded_out += 1;
        }
        if is_lasting && (!is_taken || self.rng.draw().is_multiple_of(CACHE_REPLACE_ONE_IN)) {
            cache(self).put(place, sought, hit);
            match KEY {
                MINI_KEY4_WORDS => self.second4.forget(place),
                MINI_KEY6_WORDS => self.second6.forget(place),
                _ => {}
            }
        }
        Some(hit)
    }

    /// Revalidates a cached result.
    #[inline]
    fn is_still(&self, shared: &Shared, hit: Hit) -> Option<Hit> {
        if is_valid(hit, self.version) {
            return Some(hit);
        }
        let slot = shared.flows.get(hit.flow as usize)?;
        let stats = shared.stats.entry_of(self.worker, slot).get();
        (slot.identity().generation() == hit.generation).then(|| Hit {
            version: self.version,
            program: slot.program(),
            stats,
            ..hit
        })
    }

    /// Builds the result for a flow that was found in the table.
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

    /// Tries one mask after the other (tuple-space search).
    #[inline(never)]
    fn classify(&mut self, shared: &Shared, key: &Key) -> Option<u32> {
        let found =
            self.order.masks.iter().enumerate().find_map(|(at, mask)| Some((at, shared.find(*mask, key)?)));
        self.counts[MASKS] += found.map_or(self.order.masks.len(), |(at, _)| at + 1) as u64;
        self.counts[MISSES] += u64::from(found.is_none());
        let (at, flow) = found?;
        self.order.note(at);
        Some(flow)
    }
}
