//! A connection that another process left, checked before anything is believed of it.

use lasthop_ct_packet::CtTuple;

use crate::connection::{self, Connection, Progress};
use crate::place::Place;
use crate::request::original_of;
use crate::shard::Shared;

/// A timeout can be no longer, in milliseconds: 32 bits of seconds.
const TIMEOUT_MS_MAX: u64 = 1000 * (u32::MAX as u64);
/// All that a status says.
const STATUS: u16 = connection::SEEN_REPLY
    | connection::ASSURED
    | connection::EXPECTED
    | connection::SEQUENCE_ADJUSTED
    | connection::DYING;

/// A connection as it is kept; none if it makes no sense.
pub(crate) fn checked(shared: &Shared, place: Place<'_>, was_torn: bool, now_ms: u64) -> Option<Connection> {
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
    let is_of_master = |id| original_of(&shared.places, id).is_some_and(|tuple| tuple.zone == original.zone);
    if !connection.master.is_some_and(is_of_master) {
        // It stands for itself.
        connection.status &= !connection::EXPECTED;
    }
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
