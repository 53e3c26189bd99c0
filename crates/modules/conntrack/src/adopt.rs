//! Connections that another process left.
//!
//! The process may have died during a change, or an attacker may have controlled it. So each connection is checked
//! before a packet uses it. It enters the lists anew, within the limits. Nothing but its own words is trusted.
//!
//! **No packet waits for other connections.** Index and places are used as they were left ([`crate::memory`]), whatever
//! their number. A packet that finds an unchecked connection takes the lock and checks it first ([`Table::search`]).
//! All others are checked in slices ([`Shared::adopt`]).

use lasthop_ct_packet::{CtTuple, Direction};

use crate::begun::Entry;
use crate::connection::Connection;
use crate::kept::checked;
use crate::place::Place;
use crate::shard::Shared;
use crate::table::Table;

impl Shared {
    /// Checks at most `steps` of the places that another process left. Returns true once all are checked.
    pub(crate) fn adopt(&self, now_ms: u64, steps: u32) -> bool {
        for _ in 0..steps {
            let Some(index) = self.adoption.take_next() else { break };
            self.look_at(index, now_ms);
            self.adoption.has_looked();
        }
        self.adoption.is_over()
    }

    fn look_at(&self, index: u32, now_ms: u64) {
        let Some(place) = self.places.get(index) else { return };
        let is_live = || place.version().is_live();
        let mut table = if is_live() {
            Table::of_zone(self, place.zone())
        } else {
            Table::of_shard(self, index as usize)
        };
        if is_live() && !self.adoption.is_known(index) {
            table.enter_kept(index, now_ms);
        }
        if !is_live() && self.adoption.note(index) {
            place.clear();
            self.places.give_back(&self.links, &mut table.state.vacant, index);
        }
    }
}

impl Table<'_> {
    /// Checks a connection that another process left in this shard. Returns false if it is dropped; then
    /// [`Shared::look_at`] gives its place back.
    #[cold]
    pub(crate) fn enter_kept(&mut self, index: u32, now_ms: u64) -> bool {
        let Some(place) = self.place(index) else { return false };
        let adoption = &self.shared.adoption;
        let was_torn = place.is_torn();
        Direction::BOTH.iter().for_each(|direction| self.mend(place.hash(*direction)));
        let connection = checked(self.shared, place, was_torn, now_ms);
        let is_over = connection.as_ref().is_some_and(|connection| connection.expires_ms <= now_ms);
        let kept = connection.filter(|_| !is_over);
        let is_kept = kept.is_some_and(|connection| self.enter(place, index, &connection));
        adoption.count(is_kept, is_over, was_torn);
        if is_kept {
            adoption.note(index);
        } else {
            self.shard.index.remove(&self.shared.places, index);
            place.clear();
        }
        is_kept
    }

    /// Enters a connection into the lists, and into the index where it is not.
    fn enter(&mut self, place: Place<'_>, index: u32, connection: &Connection) -> bool {
        let (shared, shard) = (self.shared, self.shard);
        let hashes = connection.tuples.map(|tuple| shared.key.of_tuple(&tuple));
        if hashes != Direction::BOTH.map(|direction| place.hash(direction)) {
            shard.index.remove(&shared.places, index);
            hashes.iter().for_each(|hash| self.mend(*hash));
        }
        let is_taken =
            |tuple: &CtTuple, table: &Self| table.found(tuple).is_some_and(|(found, _)| found != index);
        if connection.tuples.iter().any(|tuple| is_taken(tuple, self)) {
            return false;
        }
        if !hashes.iter().all(|hash| self.has_room(*hash))
            || self.make_room(connection.in_port, connection.zone()).is_err()
        {
            return false;
        }
        place.restore(connection, hashes);
        self.list(index, &Entry::of(connection));
        shard.index.complete(&shared.places, index, 2 * self.state.len);
        true
    }
}
