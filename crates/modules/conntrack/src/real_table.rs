//! The table beneath a small one, in a dry run ([`crate::dry_run`]): it is read, without a lock where that is possible, and never changed.

use std::cell::RefCell;
use std::sync::atomic::Ordering;

use lasthop_ct_packet::CtTuple;

use crate::bounds::{CtRefusal, SHARDS};
use crate::connection::{Connection, CtId};
use crate::index::{Found, Search};
use crate::kept::checked;
use crate::shard::{ShardState, Shared};

/// Reads of a connection that workers are changing, before it counts as absent.
const READS_MAX: u32 = 64;

/// A connection that was copied: its name in both tables, and its zone.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Copied {
    pub(crate) real: CtId,
    pub(crate) own: CtId,
    pub(crate) zone: u16,
}

/// The real table, for the writer of a small one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RealTable<'a> {
    pub(crate) shared: &'a Shared,
    pub(crate) copied: &'a RefCell<Vec<Copied>>,
}

impl RealTable<'_> {
    /// The connection that has this tuple in the real table. No lock is taken.
    pub(crate) fn find(self, tuple: &CtTuple, now_ms: u64) -> Option<(CtId, Connection)> {
        let (shared, words) = (self.shared, tuple.words());
        let (shard, hash) = (shared.shard(tuple.zone), shared.key.of_words_of_tuple(&words));
        for _ in 0..READS_MAX {
            match shard.index.find(&shared.places, hash, &words) {
                Search::Absent => return None,
                Search::Found(Found { index, .. }) => {
                    if let Some(found) = self.read(index, now_ms) {
                        return Some(found);
                    }
                }
                Search::Unsure => {}
            }
            std::hint::spin_loop();
        }
        None
    }

    /// The connection at a place, unless it is changed meanwhile.
    pub(crate) fn read(self, index: u32, now_ms: u64) -> Option<(CtId, Connection)> {
        let place = self.shared.places.get(index)?;
        if !self.shared.adoption.is_known(index) {
            let connection = checked(self.shared, place, place.is_torn(), now_ms)?;
            return Some((CtId { index, generation: place.version().generation() }, connection));
        }
        let version = place.quiet_version().filter(|version| version.is_live())?;
        let connection = place.connection();
        let id = CtId { index, generation: version.generation() };
        place.is_still(version).then_some((id, connection))
    }

    /// Its copy, if it has one.
    pub(crate) fn copy_of(self, real: CtId) -> Option<CtId> {
        let copied = self.copied.borrow();
        copied.iter().find(|copied| copied.real == real).map(|copied| copied.own)
    }

    /// Whether the real table has room for one more connection, or could make some.
    pub(crate) fn has_room(self, (port, zone): (u16, u16), zone_len_more: u32) -> Result<(), CtRefusal> {
        let (limit, zone_len) = self.shared.zone_now(zone);
        if limit.is_some_and(|limit| zone_len + zone_len_more >= limit) {
            return Err(CtRefusal::ZoneLimit);
        }
        let shards = || (0..SHARDS).map(|number| self.shared.shards[number].peek());
        let port_len = self.shared.port_lens[usize::from(port)].load(Ordering::Relaxed);
        let has_own = || {
            shards().any(|state| {
                state.ports.get(port).is_some_and(|own| own.evictable.len() > 0)
                    || state.begun.has_evictable(Some(port))
            })
        };
        if port_len >= self.shared.port_connections_max && !has_own() {
            return Err(CtRefusal::PortShare);
        }
        let is_full = self.shared.len.load(Ordering::Relaxed) >= self.shared.connections_max;
        let has_any =
            |state: &ShardState| state.ports.heaviest().is_some() || state.begun.has_evictable(None);
        if is_full && !shards().any(|state| has_any(&state)) {
            return Err(CtRefusal::TableFull);
        }
        Ok(())
    }
}

impl Shared {
    /// The limit of a zone and its connections, without following any change.
    fn zone_now(&self, zone: u16) -> (Option<u32>, u32) {
        let state = self.shard(zone).peek();
        let entry = state.zones.get(zone);
        let default = || u32::try_from(self.zone_connections_max.load(Ordering::Relaxed)).ok();
        let limit = entry.and_then(|entry| entry.limit).or_else(default);
        (limit, entry.map_or(0, |entry| entry.members.len()) + state.begun.of_zone(zone))
    }
}
