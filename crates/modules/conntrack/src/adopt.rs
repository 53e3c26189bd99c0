//! Connections that another process left.
//!
//! It may have died amid a change, or have been taken over by an attacker. So each connection is checked like one that a
//! stranger asks for. It gets into index and lists anew, within the limits; nothing but its words is believed.

use crate::connection::{self, Connection, Progress};
use crate::place::{Change, Moving, Place};
use crate::shard::Shared;
use crate::table::Table;
use crate::tuple::{CtTuple, Direction};

/// A timeout can be no longer, in milliseconds: 32 bits of seconds.
const TIMEOUT_MS_MAX: u64 = 1000 * (u32::MAX as u64);
/// All that a status says.
const STATUS: u16 = connection::SEEN_REPLY
    | connection::ASSURED
    | connection::EXPECTED
    | connection::SEQUENCE_ADJUSTED
    | connection::DYING;

/// The fate of the connections that another process left.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CtAdopted {
    /// They go on.
    pub kept: u32,
    /// Among them, those that a packet was changing when the process died: their TCP windows are not held against them.
    pub doubted: u32,
    /// Their time was over.
    pub over: u32,
    /// They make no sense, clash with others, or are beyond a limit.
    pub dropped: u32,
}

/// Takes over the connections in the first `used` places.
pub(crate) fn adopt(shared: &Shared, used: u32, now_ms: u64) -> CtAdopted {
    let mut adopted = CtAdopted::default();
    for index in 0..used {
        let Some(place) = shared.places.get(index) else { break };
        if !place.version().is_live() {
            vacant(shared, place, index);
            continue;
        }
        let was_torn = place.is_torn();
        let connection = checked(place, was_torn, now_ms);
        let is_over = connection.as_ref().is_some_and(|connection| connection.expires_ms <= now_ms);
        let kept = connection
            .filter(|_| !is_over)
            .is_some_and(|connection| enter(shared, place, index, &connection));
        if !kept {
            vacant(shared, place, index);
        }
        adopted.kept += u32::from(kept);
        adopted.doubted += u32::from(kept && was_torn);
        adopted.over += u32::from(is_over);
        adopted.dropped += u32::from(!kept && !is_over);
    }
    drop_lost_masters(shared, used);
    adopted
}

fn vacant(shared: &Shared, place: Place<'_>, index: u32) {
    place.clear();
    let mut table = Table::of_shard(shared, index as usize);
    shared.places.give_back(&shared.links, &mut table.state.vacant, index);
}

/// A connection as it is kept; none if it makes no sense.
fn checked(place: Place<'_>, was_torn: bool, now_ms: u64) -> Option<Connection> {
    let mut connection = place.connection();
    let [original, reply] = &connection.tuples;
    let is_one =
        (original.zone, original.proto, original.is_ipv6) == (reply.zone, reply.proto, reply.is_ipv6);
    let is_timely = connection.expires_ms <= now_ms.saturating_add(TIMEOUT_MS_MAX);
    if !is_one || !is_timely || !connection.tuples.iter().all(is_sound) {
        return None;
    }
    let translated = reply.inverse()?;
    let is_source = (original.src, original.src_port) != (translated.src, translated.src_port);
    let is_destination = (original.dst, original.dst_port) != (translated.dst, translated.dst_port);
    connection.status &= STATUS;
    connection.status |= if is_source { connection::SRC_NAT } else { 0 };
    connection.status |= if is_destination { connection::DST_NAT } else { 0 };
    if let (Progress::Tcp(tcp), true) = (&mut connection.progress, was_torn) {
        tcp.doubt();
    }
    Some(connection)
}

/// Whether a tuple is one that a packet can have.
fn is_sound(tuple: &CtTuple) -> bool {
    let is_padded = |bytes: &[u8; 16]| bytes[4..].iter().all(|byte| *byte == 0);
    tuple.inverse().is_some() && (tuple.is_ipv6 || (is_padded(&tuple.src.0) && is_padded(&tuple.dst.0)))
}

/// Enters a connection into index and lists.
fn enter(shared: &Shared, place: Place<'_>, index: u32, connection: &Connection) -> bool {
    let mut table = Table::of_zone(shared, connection.zone());
    let is_free = |tuple: &CtTuple, table: &mut Table<'_>| table.is_free(tuple, 0);
    if !connection.tuples.iter().all(|tuple| is_free(tuple, &mut table)) {
        return false;
    }
    let hashes = connection.tuples.map(|tuple| shared.key.of_tuple(&tuple));
    let has_room = hashes.iter().all(|hash| {
        shared.shards[Shared::shard_number(connection.zone())].index.has_room(&shared.places, *hash)
    });
    if !has_room || table.make_room(connection.in_port, connection.zone()).is_err() {
        return false;
    }
    place.restore(connection, hashes);
    table.register(index, connection);
    true
}

/// Connections whose master is gone stand for themselves.
fn drop_lost_masters(shared: &Shared, used: u32) {
    for place in (0..used).filter_map(|index| shared.places.get(index)) {
        let Some(master) = place.master().filter(|_| place.version().is_live()) else { continue };
        let is_there = crate::metadata::original_of(&shared.places, master)
            .is_some_and(|original| original.zone == place.zone());
        if !is_there {
            let forget = |place: Place<'_>| {
                let mut connection = place.connection();
                connection.status &= !connection::EXPECTED;
                Some(((), Change::Packet(Moving::of(&connection), None::<(Direction, u32)>)))
            };
            let _ = place.update(forget);
        }
    }
}
