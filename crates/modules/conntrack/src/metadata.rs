//! The `ct_*` fields that a packet gets from its connection.

use lasthop_flow::ct_state::{DST_NAT, ESTABLISHED, INVALID, NEW, RELATED, REPLY, SRC_NAT, TRACKED};

use crate::connection::{self, CtId, SEEN_REPLY};
use crate::place::Place;
use crate::places::Places;
use crate::request::{CtMetadata, CtVerdict};
use crate::tuple::{CtTuple, Direction};

/// The state bits of a packet of this direction.
#[inline]
fn state_of(status: u16, direction: Direction) -> u32 {
    let state = match direction {
        Direction::Reply => ESTABLISHED | REPLY,
        Direction::Original if status & SEEN_REPLY != 0 => ESTABLISHED,
        Direction::Original if status & connection::EXPECTED != 0 => 0,
        Direction::Original => NEW,
    };
    TRACKED | state | if status & connection::EXPECTED != 0 { RELATED } else { 0 }
}

/// The fields of a packet of a connection whose original tuple is `original`.
#[inline]
pub(crate) fn metadata_of(
    places: &Places,
    place: Place<'_>,
    status: u16,
    direction: Direction,
    original: &CtTuple,
) -> CtMetadata {
    let master = if status & connection::EXPECTED != 0 { place.master() } else { None };
    let of_master = master.and_then(|id| original_of(places, id));
    CtMetadata {
        state: state_of(status, direction),
        zone: original.zone,
        mark: place.mark(),
        labels: place.labels(),
        original: Some(of_master.unwrap_or(*original)),
    }
}

/// The original tuple of the connection with this identity, if it still exists.
pub(crate) fn original_of(places: &Places, id: CtId) -> Option<CtTuple> {
    let place = places.get(id.index)?;
    let version = place.version();
    let tuple = place.tuple(Direction::Original);
    (version.is_live() && version.generation() == id.generation && place.is_still_connection(version))
        .then_some(tuple)
}

/// A packet's tuples in this direction: as it arrives, and as it leaves.
#[inline]
pub(crate) fn passage(tuples: &[CtTuple; 2], direction: Direction) -> (CtTuple, CtTuple) {
    let from = tuples[direction.index()];
    (from, tuples[direction.inverse().index()].inverse().unwrap_or(from))
}

/// The `ct_state` bits for the translation of a packet of this direction.
#[inline]
pub(crate) fn nat_bits_of(status: u16, direction: Direction) -> u32 {
    let (of_source, of_destination) = match direction {
        Direction::Original => (SRC_NAT, DST_NAT),
        Direction::Reply => (DST_NAT, SRC_NAT),
    };
    (if status & connection::SRC_NAT != 0 { of_source } else { 0 })
        | if status & connection::DST_NAT != 0 { of_destination } else { 0 }
}

/// The fields of a packet that cannot be tracked.
pub(crate) fn invalid_metadata(zone: u16) -> CtMetadata {
    CtMetadata { state: TRACKED | INVALID, zone, ..CtMetadata::default() }
}

/// The verdict for a packet that cannot be tracked.
pub(crate) fn invalid(zone: u16) -> CtVerdict {
    CtVerdict { metadata: invalid_metadata(zone), ..CtVerdict::default() }
}

/// The fields of a packet that begins a connection that was not announced.
#[inline]
pub(crate) fn metadata_of_new(tuple: &CtTuple) -> CtMetadata {
    CtMetadata { state: TRACKED | NEW, zone: tuple.zone, original: Some(*tuple), ..CtMetadata::default() }
}

pub(crate) fn with_state(mut verdict: CtVerdict, bits: u32) -> CtVerdict {
    verdict.metadata.state |= bits;
    verdict
}
