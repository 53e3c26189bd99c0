//! The connections of a datapath, for several workers at once.
//!
//! All methods take `&self`: workers track, while the control plane dumps, flushes and sets limits.

use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard, PoisonError};

use lasthop_ct_packet::{CtTuple, PacketImage};
use lasthop_guestmem::Mapping;

use crate::adoption::CtAdopted;
use crate::bounds::{CtBounds, CtCounters, CtRefusal, SHARDS};
use crate::memory::TableMemory;
use crate::policy::CtPolicy;
use crate::record::CtRecord;
use crate::request::{CtMetadata, CtRequest, CtVerdict};
use crate::shard::{Count, Shared};
use crate::table::{End, Table};
use crate::tracker::Tracking;
use crate::usual::UsualZone;

/// Places that one call of [`ConntrackTable::dump`] reads.
const DUMPED_PLACES_MAX: u32 = 1 << 14;
/// Steps of a sweep or flush under a shard's lock. A commit may wait for this many.
const STEPS_AT_ONCE: u32 = 64;
/// Places of another process that a commit checks if no place is vacant.
const ADOPTED_AT_ONCE: u32 = 64;

/// The connections of all zones of a datapath. Workers and the control plane share it.
#[derive(Debug)]
pub struct ConntrackTable {
    pub(crate) shared: Shared,
}

impl ConntrackTable {
    /// An empty table. Times are in milliseconds of any monotonic clock. Without memory it refuses all connections.
    #[must_use]
    pub fn new(bounds: CtBounds, now_ms: u64) -> Self {
        let memory = TableMemory::new(Shared::places_for(&bounds)).unwrap_or_else(TableMemory::none);
        Self { shared: Shared::new(memory, bounds, now_ms) }
    }

    /// A table whose connections lie in `memory`, which outlives the process, including those that another process left
    /// there. That process must not use the memory any more, and must have used the same clock. The time that this
    /// takes does not depend on the number of connections: packets find theirs from now on, and [`Self::adopt`] checks
    /// the others. Returns `None` if the memory is smaller than [`Self::memory_bytes_for`].
    #[must_use]
    pub fn in_memory(memory: &Arc<Mapping>, bounds: CtBounds, now_ms: u64) -> Option<Self> {
        let memory = TableMemory::of(memory, Shared::places_for(&bounds))?;
        Some(Self { shared: Shared::new(memory, bounds, now_ms) })
    }

    /// Checks at most `steps` of the places that another process used. Returns true once all are checked; call it until
    /// then. Limits and requests about all connections finish this first.
    pub fn adopt(&self, now_ms: u64, steps: u32) -> bool {
        self.shared.adopt(now_ms, steps)
    }

    /// Whether all places that another process used are checked.
    #[must_use]
    pub fn is_adopted(&self) -> bool {
        self.shared.adoption.is_over()
    }

    /// The fate of the connections that another process left, until now.
    #[must_use]
    pub fn adopted(&self) -> CtAdopted {
        self.shared.adoption.outcome()
    }

    /// The table, after all connections that another process left are checked.
    fn whole(&self) -> &Shared {
        while !self.shared.adopt(self.shared.adoption.began_ms, ADOPTED_AT_ONCE) {
            std::hint::spin_loop();
        }
        &self.shared
    }

    /// Bytes of memory that [`Self::in_memory`] needs.
    #[must_use]
    pub fn memory_bytes_for(bounds: &CtBounds) -> usize {
        TableMemory::bytes_for(Shared::places_for(bounds))
    }

    /// `ct(...)` for a packet that carries `before`. Any number of workers may call this at once.
    #[inline]
    pub fn track(
        &self,
        packet: &PacketImage<'_>,
        before: &CtMetadata,
        request: &CtRequest,
        now_ms: u64,
    ) -> CtVerdict {
        match self.shared.pass(packet, before, request, now_ms) {
            Some(passed) => self.shared.verdict(packet, &passed),
            None => self.track_locked(packet, before, request, now_ms),
        }
    }

    /// The table for usual packets of a zone that no action `ct` has seen before, at `ct(zone=...)` with or without `nat`:
    /// `is_translated`. It does the same as [`Self::track`].
    #[inline]
    #[must_use]
    pub fn usual_zone(&self, zone: u16, is_translated: bool, now_ms: u64) -> UsualZone<'_> {
        self.shared.usual_zone(zone, is_translated, now_ms)
    }

    /// Does what [`UsualZone::commit`] in this zone left for later: call it when the packets are delivered. Waits for no lock; if
    /// another writer is at work, the next one does it.
    pub fn finish_begun(&self, zone: u16) {
        self.shared.finish_begun(zone);
    }

    #[cold]
    fn track_locked(
        &self,
        packet: &PacketImage<'_>,
        before: &CtMetadata,
        request: &CtRequest,
        now_ms: u64,
    ) -> CtVerdict {
        if !self.is_adopted() && self.shared.places.is_used_up() {
            self.adopt(now_ms, ADOPTED_AT_ONCE);
        }
        Tracking { table: Table::of_zone(&self.shared, request.zone) }.track(packet, before, request, now_ms)
    }

    /// Number of connections in the table; some may have expired.
    #[must_use]
    pub fn len(&self) -> u32 {
        self.shared.len.load(Ordering::Relaxed)
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes that connections and index occupy.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        let index: usize = self.shared.shards.iter().map(|shard| shard.index.bytes()).sum();
        self.shared.places.used() as usize * BYTES_OF_PLACE + index
    }

    /// The table's counters.
    #[must_use]
    pub fn counters(&self) -> CtCounters {
        let sum = |count: usize| self.shared.shards.iter().map(|shard| shard.counted(count)).sum();
        CtCounters {
            created: sum(Count::Created as usize),
            expired: sum(Count::Expired as usize),
            evicted: sum(Count::Evicted as usize),
            deleted: sum(Count::Deleted as usize),
            invalid: sum(Count::Invalid as usize),
            unchecked: sum(Count::Unchecked as usize),
            waited: sum(Count::Waited as usize),
            refused: CtRefusal::ALL.map(|refusal| sum(refusal as usize)),
        }
    }

    /// Removes expired connections in at most `steps` steps; a step is a slot of the wheel or a connection. Returns
    /// true if all that expired until now are removed. Call it several times a second, from one thread.
    pub fn sweep(&self, now_ms: u64, steps: u32) -> bool {
        let mut left = steps;
        for _ in 0..SHARDS {
            let number = self.shared.sweeps.load(Ordering::Relaxed) as usize;
            loop {
                let mut at_once = left.min(STEPS_AT_ONCE);
                let given = at_once;
                let mut table = Table::of_shard(&self.shared, number);
                let is_done = table.sweep(now_ms, &mut at_once) && !table.shard.has_changes();
                drop(table);
                left -= given - at_once;
                if left == 0 {
                    return false;
                }
                if is_done {
                    break;
                }
            }
            self.shared.sweeps.store((number as u32 + 1) % SHARDS as u32, Ordering::Relaxed);
        }
        true
    }

    /// Touches memory of some of the connections that may come, so that no commit has to wait for it: 256 KiB at a time. Returns true once there is
    /// enough. Call it until then, once a second, from one thread.
    pub fn touch_ahead(&self) -> bool {
        self.shared.touched.advance(&self.shared.places, &self.shared.links)
    }

    /// Removes at most `steps` connections of a zone. Returns true if none is left.
    pub fn flush_zone(&self, zone: u16, mut steps: u32) -> bool {
        loop {
            let at_once = steps.min(STEPS_AT_ONCE);
            if Table::of_zone(self.whole(), zone).flush_zone(zone, at_once) {
                return true;
            }
            steps -= at_once;
            if steps == 0 {
                return false;
            }
        }
    }

    /// Removes at most `steps` connections of all zones. Returns true if none is left.
    pub fn flush(&self, steps: u32) -> bool {
        let mut left = steps;
        (0..SHARDS).all(|number| {
            loop {
                let mut at_once = left.min(STEPS_AT_ONCE);
                left -= at_once;
                if Table::of_shard(self.whole(), number).flush(&mut at_once) {
                    left += at_once;
                    return true;
                }
                if left == 0 {
                    return false;
                }
            }
        })
    }

    /// Removes the connection with this tuple, of either direction. Returns whether there was one.
    pub fn delete(&self, tuple: &CtTuple, now_ms: u64) -> bool {
        let mut table = Table::of_zone(&self.shared, tuple.zone);
        let found = table.find(tuple, now_ms);
        found.is_some_and(|(index, _)| table.remove(index, End::Deleted))
    }

    /// The connection with this tuple, of either direction.
    #[must_use]
    pub fn find(&self, tuple: &CtTuple, now_ms: u64) -> Option<CtRecord> {
        let (index, _) = Table::of_zone(&self.shared, tuple.zone).find(tuple, now_ms)?;
        CtRecord::at(&self.shared.places, index, now_ms)
    }

    /// Adds connections to `records`, from a place on, until there are `records_max`, and returns the place to continue
    /// at, or `None` at the end. A dump begins at 0. `zone` selects one zone. Connections that come or go meanwhile may
    /// be missing; those that stay appear once. A call reads a bounded number of places, so it may add none without
    /// being the last. Takes no lock.
    pub fn dump(
        &self,
        place: u32,
        zone: Option<u16>,
        now_ms: u64,
        records_max: usize,
        records: &mut Vec<CtRecord>,
    ) -> Option<u32> {
        let places = &self.whole().places;
        let end = places.used().min(place.saturating_add(DUMPED_PLACES_MAX));
        for index in place..end {
            if records.len() >= records_max {
                return Some(index);
            }
            let is_wanted = |record: &CtRecord| zone.is_none_or(|zone| record.tuples[0].zone == zone);
            records.extend(CtRecord::at(places, index, now_ms).filter(is_wanted));
        }
        (end < places.used()).then_some(end)
    }

    /// Sets the limit of a zone; `None` applies the default limit.
    pub fn set_zone_limit(&self, zone: u16, limit: Option<u32>) {
        Table::of_zone(&self.shared, zone).state.zones.get_mut(zone).limit = limit;
        let mut limits = self.zone_limits_kept();
        match limit {
            Some(limit) => limits.insert(zone, limit),
            None => limits.remove(&zone),
        };
    }

    fn zone_limits_kept(&self) -> MutexGuard<'_, std::collections::BTreeMap<u16, u32>> {
        self.shared.zone_limits.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Zones with a limit of their own: zone, limit, and number of connections.
    #[must_use]
    pub fn zone_limits(&self) -> Vec<(u16, u32, u32)> {
        let limits = self.zone_limits_kept().clone();
        limits.into_iter().map(|(zone, limit)| (zone, limit, self.zone(zone).1)).collect()
    }

    /// Sets the limit of zones without one of their own.
    pub fn set_default_zone_limit(&self, limit: Option<u32>) {
        let limit = limit.map_or(u64::MAX, u64::from);
        self.shared.zone_connections_max.store(limit, Ordering::Relaxed);
    }

    /// The limit that applies to a zone, and its number of connections.
    #[must_use]
    pub fn zone(&self, zone: u16) -> (Option<u32>, u32) {
        let table = Table::of_zone(self.whole(), zone);
        (table.zone_limit(zone), table.zone_len(zone))
    }

    /// Number of connections that packets of a port began. No report shows it: tests and fuzzing hold each port to its bound with it,
    /// while other threads begin and end connections. A dump cannot tell that, since it may miss some.
    #[must_use]
    pub fn port_connections(&self, port: u16) -> u32 {
        self.shared.port_lens[usize::from(port)].load(Ordering::Relaxed)
    }

    /// Sets a timeout policy. Number 0 is the default, and has the rules for TCP connections that begin.
    pub fn set_policy(&self, number: u8, policy: CtPolicy) {
        self.shared.policies.set(number, &policy);
    }

    /// Deletes a policy. Connections that have it follow the default, which cannot be deleted.
    pub fn delete_policy(&self, number: u8) {
        self.shared.policies.unset(number);
    }
}

/// Bytes of a place, including its links.
const BYTES_OF_PLACE: usize = (crate::place::PLACE_WORDS + crate::links::LINK_WORDS) * size_of::<u64>();
