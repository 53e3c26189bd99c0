//! The table: connections by either tuple, within limits, until they are over.

use crate::accounts::{Accounts, Ports, ZoneAccount};
use crate::connection::{Connection, CtId, EVICTABLE, LIVE, ListKind};
use crate::crowd::Crowds;
use crate::hash::HashKey;
use crate::index::Index;
use crate::slabs::Slabs;
use crate::tuple::{CtTuple, Direction};
use crate::wheel::Wheel;

/// How many connections there may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CtBounds {
    /// In all.
    pub connections_max: u32,
    /// That packets of one port began.
    pub port_connections_max: u32,
    /// Of a zone that has no limit of its own; none: no limit.
    pub zone_connections_max: Option<u32>,
}

impl Default for CtBounds {
    /// A million; one port gets a quarter.
    fn default() -> Self {
        Self { connections_max: 1 << 20, port_connections_max: 1 << 18, zone_connections_max: None }
    }
}

/// The reason why a connection was not committed, or a packet not translated: the packet has to be dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CtRefusal {
    /// The table is full of connections that are not to be evicted.
    TableFull,
    /// The port has its share, and none of its connections may be evicted.
    PortShare,
    /// The zone has reached its limit.
    ZoneLimit,
    /// Address translation has no address and port left.
    NatExhausted,
    /// Another connection has one of its tuples.
    TupleTaken,
    /// The header image lacks bytes that translation has to change.
    NotInImage,
}

impl CtRefusal {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::TableFull,
        Self::PortShare,
        Self::ZoneLimit,
        Self::NatExhausted,
        Self::TupleTaken,
        Self::NotInImage,
    ];
}

impl std::fmt::Display for CtRefusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::TableFull => "the table of connections is full",
            Self::PortShare => "the port has its share of connections",
            Self::ZoneLimit => "the zone has reached its limit of connections",
            Self::NatExhausted => "no address and port is left to translate to",
            Self::TupleTaken => "another connection has the tuple",
            Self::NotInImage => "a header to be translated is beyond the header image",
        })
    }
}

/// Counters of the table's connections, since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CtCounters {
    /// Committed.
    pub created: u64,
    /// Over by time.
    pub expired: u64,
    /// Gone to make room.
    pub evicted: u64,
    /// Gone by a packet (RST, another connection in its place) or a request.
    pub deleted: u64,
    /// Packets that could not be tracked.
    pub invalid: u64,
    /// Not committed, by [`CtRefusal`].
    pub refused: [u64; CtRefusal::ALL.len()],
}

/// Why a connection goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Expired,
    Evicted,
    Deleted,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Table {
    slabs: Slabs,
    index: Index,
    wheel: Wheel,
    zones: Accounts<ZoneAccount>,
    ports: Ports,
    pub(crate) crowds: Crowds,
    pub(crate) key: HashKey,
    pub(crate) counters: CtCounters,
    pub(crate) bounds: CtBounds,
}

impl Table {
    pub(crate) fn new(bounds: CtBounds, now_ms: u64) -> Self {
        // Indices and a direction are numbers of 31 bits.
        let connections_max = bounds.connections_max.min(1 << 30);
        Self {
            slabs: Slabs::new(connections_max),
            index: Index::new(2 * connections_max as usize),
            wheel: Wheel::new(now_ms),
            zones: Accounts::new(),
            ports: Ports::new(),
            crowds: Crowds::default(),
            key: HashKey::random(),
            counters: CtCounters::default(),
            bounds: CtBounds { connections_max, ..bounds },
        }
    }

    pub(crate) fn len(&self) -> u32 {
        self.slabs.len()
    }

    /// Bytes that connections and index take.
    pub(crate) fn bytes(&self) -> usize {
        self.slabs.places() as usize * size_of::<Connection>() + self.index.bytes()
    }

    #[inline]
    pub(crate) fn get(&self, index: u32) -> Option<&Connection> {
        self.slabs.get(index)
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, index: u32) -> Option<&mut Connection> {
        self.slabs.get_mut(index)
    }

    pub(crate) fn id(&self, index: u32) -> Option<CtId> {
        let connection = self.get(index)?;
        Some(CtId { index, generation: connection.generation })
    }

    /// The connection of this name, if it is still there.
    pub(crate) fn named(&self, id: CtId) -> Option<&Connection> {
        self.get(id.index).filter(|connection| connection.generation == id.generation)
    }

    /// One more than the largest index may be.
    pub(crate) fn places(&self) -> u32 {
        self.slabs.places()
    }

    /// The connection that has this tuple; one that is over goes.
    #[inline]
    pub(crate) fn find(&mut self, tuple: &CtTuple, now_ms: u64) -> Option<(u32, Direction)> {
        let hash = self.key.of_tuple(tuple);
        let (index, direction) = self.index.find(&self.slabs, tuple, hash)?;
        if self.slabs.get(index)?.expires_ms > now_ms {
            return Some((index, direction));
        }
        self.remove(index, End::Expired);
        None
    }

    /// Whether no connection has this tuple.
    pub(crate) fn is_free(&mut self, tuple: &CtTuple, now_ms: u64) -> bool {
        self.find(tuple, now_ms).is_none()
    }

    /// Enters a connection, for which another one may have to go.
    pub(crate) fn insert(&mut self, mut connection: Connection, now_ms: u64) -> Result<u32, CtRefusal> {
        let [original, reply] = connection.tuples;
        if !self.is_free(&original, now_ms) || !self.is_free(&reply, now_ms) {
            return Err(CtRefusal::TupleTaken);
        }
        connection.hashes = [self.key.of_tuple(&original), self.key.of_tuple(&reply)];
        if !connection.hashes.iter().all(|hash| self.index.has_room(&self.slabs, *hash)) {
            return Err(CtRefusal::TupleTaken);
        }
        let (port, zone) = (connection.in_port, connection.zone());
        self.make_room(port, zone)?;
        connection.status |= LIVE | EVICTABLE;
        let is_evictable = connection.is_evictable();
        let index = self.slabs.put(connection);
        let tuples = 2 * self.slabs.len() as usize;
        self.index.insert(&mut self.slabs, index, tuples);
        self.wheel.add(&mut self.slabs, index);
        self.zones.get_mut(zone).members.push(&mut self.slabs, ListKind::Zone, index);
        let slabs = &mut self.slabs;
        self.ports.change(port, |account| {
            account.connections += 1;
            account.evictable.push(slabs, ListKind::Evictable, index);
        });
        if !is_evictable {
            self.settle(index);
        }
        self.crowds.take(&original);
        self.crowds.take(&reply);
        self.counters.created += 1;
        Ok(index)
    }

    /// Makes room for one more connection within all limits.
    fn make_room(&mut self, port: u16, zone: u16) -> Result<(), CtRefusal> {
        if self.zone_limit(zone).is_some_and(|limit| self.zone_len(zone) >= limit) {
            return Err(CtRefusal::ZoneLimit);
        }
        let of_port = self.ports.get(port).map_or(0, |account| account.connections);
        if of_port >= self.bounds.port_connections_max {
            let oldest = self.ports.get(port).and_then(|account| account.evictable.first());
            self.remove(oldest.ok_or(CtRefusal::PortShare)?, End::Evicted);
        }
        if self.slabs.len() >= self.bounds.connections_max {
            let heaviest = self.ports.heaviest().and_then(|port| self.ports.get(port));
            let oldest = heaviest.and_then(|account| account.evictable.first());
            self.remove(oldest.ok_or(CtRefusal::TableFull)?, End::Evicted);
        }
        Ok(())
    }

    /// Takes a connection out.
    pub(crate) fn remove(&mut self, index: u32, end: End) {
        let Some(connection) = self.slabs.get(index) else { return };
        let (port, zone, tuples) = (connection.in_port, connection.zone(), connection.tuples);
        let is_evictable = connection.has(EVICTABLE);
        self.index.remove(&mut self.slabs, index);
        self.wheel.remove(&mut self.slabs, index);
        self.zones.get_mut(zone).members.remove(&mut self.slabs, ListKind::Zone, index);
        let slabs = &mut self.slabs;
        self.ports.change(port, |account| {
            account.connections -= 1;
            if is_evictable {
                account.evictable.remove(slabs, ListKind::Evictable, index);
            }
        });
        self.slabs.take(index);
        tuples.iter().for_each(|tuple| self.crowds.give_back(tuple));
        match end {
            End::Expired => self.counters.expired += 1,
            End::Evicted => self.counters.evicted += 1,
            End::Deleted => self.counters.deleted += 1,
        }
    }

    /// After a packet changed a connection: its time, and whether it may be evicted.
    #[inline]
    pub(crate) fn follow(&mut self, index: u32, expires_ms: u64) {
        let Some(connection) = self.slabs.get_mut(index) else { return };
        let is_sooner = expires_ms < connection.expires_ms;
        connection.expires_ms = expires_ms;
        let is_moved = connection.is_evictable() != connection.has(EVICTABLE);
        if is_sooner {
            self.wheel.hasten(&mut self.slabs, index);
        }
        if is_moved {
            self.settle(index);
        }
    }

    /// Puts a connection into its port's list of evictable ones, or takes it out.
    fn settle(&mut self, index: u32) {
        let Some(connection) = self.slabs.get_mut(index) else { return };
        let (port, is_evictable) = (connection.in_port, connection.is_evictable());
        connection.status ^= EVICTABLE;
        let slabs = &mut self.slabs;
        self.ports.change(port, |account| {
            if is_evictable {
                account.evictable.push(slabs, ListKind::Evictable, index);
            } else {
                account.evictable.remove(slabs, ListKind::Evictable, index);
            }
        });
    }

    /// Looks at connections whose time may have come, in at most `steps` steps. True: all were looked at.
    pub(crate) fn sweep(&mut self, now_ms: u64, mut steps: u32) -> bool {
        while let Some(index) = self.wheel.due(now_ms, &mut steps) {
            if self.slabs.get(index).is_some_and(|connection| connection.expires_ms > now_ms) {
                self.wheel.hasten(&mut self.slabs, index);
            } else {
                self.remove(index, End::Expired);
            }
        }
        steps > 0
    }

    /// Takes at most `steps` connections of a zone out. True: none is left.
    pub(crate) fn flush_zone(&mut self, zone: u16, steps: u32) -> bool {
        for _ in 0..steps {
            let Some(first) = self.zones.get(zone).and_then(|account| account.members.first()) else {
                return true;
            };
            self.remove(first, End::Deleted);
        }
        self.zone_len(zone) == 0
    }

    pub(crate) fn zone_len(&self, zone: u16) -> u32 {
        self.zones.get(zone).map_or(0, |account| account.members.len())
    }

    pub(crate) fn port_len(&self, port: u16) -> u32 {
        self.ports.get(port).map_or(0, |account| account.connections)
    }

    pub(crate) fn zone_limit(&self, zone: u16) -> Option<u32> {
        self.zones.get(zone).and_then(|account| account.limit).or(self.bounds.zone_connections_max)
    }

    pub(crate) fn set_zone_limit(&mut self, zone: u16, limit: Option<u32>) {
        self.zones.get_mut(zone).limit = limit;
    }
}

#[cfg(test)]
mod tests;
