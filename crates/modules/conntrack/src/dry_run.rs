//! `ct(...)` for a packet that is not sent: the same code on a small table of its own, which lies over the real one.
//!
//! The small table begins empty. A connection that the packet has to do with is copied into it when it is looked for, and all that follows
//! happens to the copy. So the real table is read only, without its workers' noticing.
//!
//! ```text
//!   packet ─> the usual path ─> small table ── not found ── copy ──> real table
//!                                    └ commits, ends, marks
//! ```
//!
//! **Limits.** A port that a translation chooses at random is one of those that the next packet may get. Room that is made by evicting
//! another connection counts as room.

use std::cell::RefCell;
use std::sync::atomic::Ordering;

use lasthop_ct_packet::{CtTuple, Direction, PacketImage};

use crate::begun::Entry;
use crate::bounds::{CtBounds, CtRefusal};
use crate::connection::{Connection, CtId};
use crate::conntrack_table::ConntrackTable;
use crate::expect::Expectation;
use crate::real_table::{Copied, RealTable};
use crate::record::CtRecord;
use crate::request::{CtMetadata, CtRequest, CtVerdict};
use crate::table::Table;
use crate::tracker::Tracking;

/// Connections of the small table: those that one packet meets in all its passes, and those that it commits.
const CONNECTIONS_MAX: u32 = 256;
/// Masters of masters that are copied with a connection; helpers make one.
const MASTERS_MAX: u32 = 2;

/// The table of a dry run, to be used for one packet after the other.
#[derive(Debug)]
pub struct CtDryRun {
    small: ConntrackTable,
    copied: RefCell<Vec<Copied>>,
}

/// The answer for a packet that is not sent.
#[derive(Clone, Debug)]
pub struct CtTrial {
    /// As [`ConntrackTable::track`] gives it.
    pub verdict: CtVerdict,
    /// Its connection as it would be afterwards, if it has one.
    pub connection: Option<CtRecord>,
    /// Whether that connection is in the table already; else the packet would commit it.
    pub is_known: bool,
}

impl Default for CtDryRun {
    fn default() -> Self {
        let bounds = CtBounds { connections_max: CONNECTIONS_MAX, ..CtBounds::default() };
        Self { small: ConntrackTable::new(bounds, 0), copied: RefCell::default() }
    }
}

impl CtDryRun {
    /// Forgets the last packet. The next one is about connections of `real`; none if there are none.
    pub fn begin(&mut self, real: Option<&ConntrackTable>) {
        if !self.small.is_empty() {
            self.small.flush(u32::MAX);
        }
        self.copied.get_mut().clear();
        let shared = &mut self.small.shared;
        shared.shards.iter().for_each(crate::shard::Shard::begin_anew);
        if let Some(ConntrackTable { shared: real }) = real {
            shared.key = real.key.clone();
            shared.policies.copy(&real.policies);
        }
    }

    /// The answer that [`ConntrackTable::track`] of `real` would give. Nothing of that changes.
    pub fn track(
        &self,
        real: Option<&ConntrackTable>,
        packet: &PacketImage<'_>,
        before: &CtMetadata,
        request: &CtRequest,
        now_ms: u64,
    ) -> CtTrial {
        let beneath = real.map(|real| RealTable { shared: &real.shared, copied: &self.copied });
        if let Some(tuple) = packet.tuple(request.zone) {
            let mut table = self.table(request.zone, beneath);
            for tuple in [Some(tuple), tuple.inverse()].into_iter().flatten() {
                table.bring(&tuple, now_ms);
            }
            table.bring_expectation(&tuple, now_ms);
        }
        let shared = &self.small.shared;
        let verdict = match shared.pass(packet, before, request, now_ms) {
            Some(passed) => shared.verdict(packet, &passed),
            None => {
                Tracking { table: self.table(request.zone, beneath) }.track(packet, before, request, now_ms)
            }
        };
        let connection = verdict.connection.and_then(|id| CtRecord::at(&shared.places, id.index, now_ms));
        let is_known = self.copied.borrow().iter().any(|copied| Some(copied.own) == verdict.connection);
        CtTrial { verdict, connection, is_known }
    }

    fn table<'a>(&'a self, zone: u16, beneath: Option<RealTable<'a>>) -> Table<'a> {
        Table { beneath, ..Table::of_zone(&self.small.shared, zone) }
    }
}

impl Table<'_> {
    /// Copies the connection that has a tuple, unless it is here, or was.
    fn bring(&mut self, tuple: &CtTuple, now_ms: u64) {
        if self.found(tuple).is_none() {
            let _ = self.copied(tuple, now_ms);
        }
    }

    /// The copy of a connection of the table beneath; none without such a table, and of a connection that was here and is gone.
    #[cold]
    pub(crate) fn copied(&mut self, tuple: &CtTuple, now_ms: u64) -> Option<(u32, Direction)> {
        let beneath = self.beneath?;
        let (real, connection) = beneath.find(tuple, now_ms)?;
        self.copy(beneath, (real, connection), now_ms, MASTERS_MAX)?;
        self.found(tuple)
    }

    /// [`Self::is_free`] in both tables. Nothing is copied: a translation asks about thousands.
    pub(crate) fn is_free_over(&mut self, beneath: RealTable<'_>, tuple: &CtTuple, now_ms: u64) -> bool {
        if self.found(tuple).is_some() {
            return self.find(tuple, now_ms).is_none();
        }
        let there = beneath.find(tuple, now_ms);
        there.is_none_or(|(real, found)| found.expires_ms <= now_ms || beneath.copy_of(real).is_some())
    }

    fn copy(
        &mut self,
        beneath: RealTable<'_>,
        (real, mut connection): (CtId, Connection),
        now_ms: u64,
        masters: u32,
    ) -> Option<CtId> {
        if beneath.copy_of(real).is_some() {
            return None;
        }
        connection.master = connection.master.and_then(|id| self.master(beneath, id, now_ms, masters));
        let hashes = connection.tuples.map(|tuple| self.shared.key.of_tuple(&tuple));
        self.count_room(connection.in_port);
        let Some(index) = self.shared.places.take(&self.shared.links, &mut self.state.vacant) else {
            self.release_room(connection.in_port);
            return None;
        };
        self.place(index)?.enter(&connection, hashes);
        self.list(index, &Entry::of(&connection));
        self.shard.index.insert(&self.shared.places, index, 2 * self.state.len);
        let own = self.id(index)?;
        beneath.copied.borrow_mut().push(Copied { real, own, zone: connection.zone() });
        Some(own)
    }

    /// The copy of a connection's master.
    fn master(&mut self, beneath: RealTable<'_>, id: CtId, now_ms: u64, masters: u32) -> Option<CtId> {
        if let Some(own) = beneath.copy_of(id) {
            return Some(own);
        }
        let left = masters.checked_sub(1)?;
        let (found, connection) = beneath.read(id.index, now_ms).filter(|(found, _)| *found == id)?;
        self.copy(beneath, (found, connection), now_ms, left)
    }

    /// Copies the expectation that a packet of this tuple meets, if there is one.
    fn bring_expectation(&mut self, tuple: &CtTuple, now_ms: u64) {
        let Some(beneath) = self.beneath else { return };
        let shard = beneath.shared.shard(tuple.zone);
        if shard.expected.load(Ordering::Acquire) == 0 || self.state.expectations.len() > 0 {
            return;
        }
        let expected = shard.peek().expectations.find(tuple, now_ms);
        let Some(Expectation { tuple, master, direction, real_port, in_port, .. }) = expected else { return };
        if let Some(own) = self.master(beneath, master, now_ms, MASTERS_MAX) {
            self.state.expectations.add(&tuple, (own, in_port), direction, real_port, now_ms);
            self.shard.expected.store(1, Ordering::Release);
        }
    }

    /// [`Self::make_room`] by the limits of the table beneath.
    #[cold]
    pub(crate) fn make_room_beneath(&mut self, port: u16, zone: u16) -> Result<(), CtRefusal> {
        let Some(beneath) = self.beneath else { return Ok(()) };
        let copies = beneath.copied.borrow().iter().filter(|copied| copied.zone == zone).count();
        let committed = self.zone_len(zone).saturating_sub(copies as u32);
        beneath.has_room((port, zone), committed)?;
        self.count_room(port);
        Ok(())
    }

    fn count_room(&self, port: u16) {
        self.shared.port_lens[usize::from(port)].fetch_add(1, Ordering::Relaxed);
        self.shared.len.fetch_add(1, Ordering::Relaxed);
    }
}
