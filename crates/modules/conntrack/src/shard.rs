//! The shards of a table. Each has the connections of some zones, one writer at a time, and any number of readers.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

use lasthop_sync::{Marked, MarkedStack};
use lasthop_wire::mix::Xorshift;

use crate::adoption::Adoption;
use crate::begun::Begun;
use crate::bounds::{CtBounds, CtRefusal, SHARDS};
use crate::crowded_ranges::CrowdedRanges;
use crate::eviction::{ByNumber, Ports, ZoneConnections};
use crate::expect::Expectations;
use crate::hash::HashKey;
use crate::index::Index;
use crate::links::{Links, PLACES_MAX};
use crate::memory::TableMemory;
use crate::places::{Places, Vacant};
use crate::policy::Policies;
use crate::touched::TouchedPlaces;
use crate::wheel::Wheel;

/// Places beyond the number of connections, since all shards together may keep this many vacant.
const SPARE_PLACES: u32 = SHARDS as u32 * 128;
/// Attempts to take a lock before the thread waits: some microseconds, longer than a commit takes.
const SPINS_MAX: u32 = 2000;
const PORTS: usize = 1 << 16;

/// Counters of a shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Count {
    Created = CtRefusal::ALL.len() as isize,
    Expired,
    Evicted,
    Deleted,
    Invalid,
    Unchecked,
    Waited,
}

pub(crate) const COUNTS: usize = Count::Waited as usize + 1;

/// The parts of a shard that its writer uses.
#[derive(Debug)]
pub(crate) struct ShardState {
    pub(crate) wheel: Wheel,
    pub(crate) zones: ByNumber<ZoneConnections>,
    pub(crate) ports: Ports,
    pub(crate) crowds: CrowdedRanges,
    pub(crate) expectations: Expectations,
    pub(crate) random: Xorshift,
    pub(crate) vacant: Vacant,
    pub(crate) len: u32,
    /// Connections that are in no list yet; every writer but the commit of a first packet lists them first.
    pub(crate) begun: Begun,
    /// Changed connections that were taken from the stack and not followed up yet.
    pub(crate) changes: Marked,
}

/// A shard; see the module.
#[derive(Debug)]
pub(crate) struct Shard {
    pub(crate) index: Index,
    /// Connections that packets have changed, so that their lists need an update.
    changed: MarkedStack,
    /// Number of expectations.
    pub(crate) expected: AtomicU32,
    /// A copy of [`Ports::heaviest_class`] for other shards.
    pub(crate) heaviest: AtomicU32,
    counts: [AtomicU64; COUNTS],
    state: Mutex<ShardState>,
}

/// The connections and shards of a table.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) places: Places,
    pub(crate) links: Links,
    pub(crate) shards: Box<[Shard]>,
    pub(crate) key: HashKey,
    pub(crate) policies: Policies,
    pub(crate) connections_max: u32,
    pub(crate) port_connections_max: u32,
    /// Limit of zones without one of their own; [`u64::MAX`] for none.
    pub(crate) zone_connections_max: AtomicU64,
    /// Limits of zones.
    pub(crate) zone_limits: Mutex<BTreeMap<u16, u32>>,
    pub(crate) len: AtomicU32,
    pub(crate) port_lens: Box<[AtomicU32]>,
    /// Counts sweeps, to choose the shard that begins.
    pub(crate) sweeps: AtomicU32,
    pub(crate) adoption: Adoption,
    pub(crate) touched: TouchedPlaces,
    /// An index without connections.
    pub(crate) no_index: Index,
}

impl Shared {
    /// Number of places for a table with these bounds.
    pub(crate) fn places_for(bounds: &CtBounds) -> u32 {
        bounds.connections_max.min(PLACES_MAX - SPARE_PLACES) + SPARE_PLACES
    }

    /// Without memory for its links the table has no room. The time that this takes does not depend on the number of
    /// connections in `memory`.
    pub(crate) fn new(memory: TableMemory, bounds: CtBounds, now_ms: u64) -> Self {
        let count = Self::places_for(&bounds);
        let parts =
            |memory: &TableMemory| Some((Links::new(count as usize)?, Adoption::new(memory.kept, now_ms)?));
        let (memory, links, adoption) = match parts(&memory) {
            Some((links, adoption)) => (memory, links, adoption),
            None => (TableMemory::none(), Links::none(), Adoption::none()),
        };
        let TableMemory { places, indices, key, .. } = memory;
        indices.iter().for_each(|index| index.resume_split(&places));
        Self {
            places,
            links,
            shards: indices.into_iter().map(|index| Shard::new(index, now_ms)).collect(),
            key,
            policies: Policies::new(),
            connections_max: count - SPARE_PLACES,
            port_connections_max: bounds.port_connections_max,
            zone_connections_max: AtomicU64::new(bounds.zone_connections_max.map_or(u64::MAX, u64::from)),
            zone_limits: Mutex::default(),
            len: AtomicU32::new(0),
            port_lens: (0..PORTS).map(|_| AtomicU32::new(0)).collect(),
            sweeps: AtomicU32::new(0),
            adoption,
            touched: TouchedPlaces::default(),
            no_index: Index::none(),
        }
    }

    /// The shard number of a zone. Neighbouring zones have different shards.
    #[inline]
    pub(crate) fn shard_number(zone: u16) -> usize {
        usize::from(zone) % SHARDS
    }

    #[inline]
    pub(crate) fn shard(&self, zone: u16) -> &Shard {
        &self.shards[Self::shard_number(zone)]
    }

    /// Notes, after a packet changed a connection, that its lists need an update; the next writer does it.
    pub(crate) fn note_change(&self, shard: &Shard, index: u32) {
        if let Some(word) = self.links.pending(index) {
            shard.changed.push(index, word);
        }
    }

    /// The next changed connection of a shard; read the connection after this call.
    pub(crate) fn next_change(&self, shard: &Shard, state: &mut ShardState) -> Option<u32> {
        shard.changed.take(&mut state.changes, |index| self.links.pending(index))
    }

    /// Increments a count that may be at most `max`. Returns false if it is at `max`.
    pub(crate) fn reserve(count: &AtomicU32, max: u32) -> bool {
        let more = |count: u32| (count < max).then_some(count + 1);
        count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
    }
}

impl Shard {
    fn new(index: Index, now_ms: u64) -> Self {
        let state = ShardState {
            wheel: Wheel::new(now_ms),
            zones: ByNumber::new(),
            ports: Ports::new(),
            crowds: CrowdedRanges::default(),
            expectations: Expectations::default(),
            random: Xorshift::new(RandomState::new().hash_one(0)),
            vacant: Vacant::default(),
            len: 0,
            begun: Begun::default(),
            changes: Marked::default(),
        };
        Self {
            index,
            changed: MarkedStack::default(),
            expected: AtomicU32::new(0),
            heaviest: AtomicU32::new(0),
            counts: std::array::from_fn(|_| AtomicU64::new(0)),
            state: Mutex::new(state),
        }
    }

    /// Whether lists need an update after packets' changes.
    pub(crate) fn has_changes(&self) -> bool {
        !self.changed.is_empty()
    }

    #[inline]
    pub(crate) fn count(&self, count: usize) {
        self.counts[count].fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn counted(&self, count: usize) -> u64 {
        self.counts[count].load(Ordering::Relaxed)
    }

    /// Takes the shard's lock. It spins first, since a commit takes about a microsecond.
    pub(crate) fn write(&self) -> MutexGuard<'_, ShardState> {
        for _ in 0..SPINS_MAX {
            match self.state.try_lock() {
                Ok(state) => return state,
                Err(TryLockError::Poisoned(poisoned)) => return poisoned.into_inner(),
                Err(TryLockError::WouldBlock) => std::hint::spin_loop(),
            }
        }
        self.count(Count::Waited as usize);
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The writer's part, to be looked at and left as it is.
    pub(crate) fn peek(&self) -> MutexGuard<'_, ShardState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Nothing is expected, and no range of ports is crowded.
    pub(crate) fn begin_anew(&self) {
        self.expected.store(0, Ordering::Release);
        let mut state = self.peek();
        (state.expectations, state.crowds) = (Expectations::default(), CrowdedRanges::default());
    }

    /// The same, if there is no other one.
    pub(crate) fn try_write(&self) -> Option<MutexGuard<'_, ShardState>> {
        match self.state.try_lock() {
            Ok(state) => Some(state),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}
