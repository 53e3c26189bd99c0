//! Requests to connection tracking, its verdicts, and the `ct_*` fields that a packet gets from its connection.

use lasthop_ct_packet::{CtHelper, CtRewrites, CtTuple, Direction};
use lasthop_flow::ct_state::{DST_NAT, ESTABLISHED, INVALID, NEW, RELATED, REPLY, SRC_NAT, TRACKED};
use lasthop_flow::{Masked, Nat};

use crate::bounds::CtRefusal;
use crate::connection::{self, Connection, CtId, SEEN_REPLY};
use crate::place::Place;
use crate::places::Places;

/// Whether a packet's connection is entered into the table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CtCommit {
    /// Only look the connection up.
    #[default]
    No,
    /// Enter the connection if it is new.
    Yes,
    /// Same; first remove a connection that began in the other direction.
    Force,
}

/// An action `ct(...)`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CtRequest {
    /// The zone.
    pub zone: u16,
    /// Whether the connection is committed. The fields below apply to committed connections only.
    pub commit: CtCommit,
    /// The mark and its mask.
    pub mark: Masked<u32>,
    /// The labels and their mask.
    pub labels: ([u8; 16], [u8; 16]),
    /// Helper, attached when the connection has none.
    pub helper: Option<CtHelper>,
    /// Address translation.
    pub nat: Option<Nat>,
    /// Index of the timeout policy of a new connection ([`crate::ConntrackTable::set_policy`]); 0 is the default.
    pub policy: u8,
}

impl CtRequest {
    /// Sets mark, labels, and a helper if there is none, as a commit requests.
    pub(crate) fn write_to(&self, connection: &mut Connection) {
        connection.mark = connection.mark & !self.mark.mask | self.mark.value & self.mark.mask;
        let (value, mask) = &self.labels;
        for ((label, value), mask) in connection.labels.iter_mut().zip(value).zip(mask) {
            *label = *label & !mask | value & mask;
        }
        connection.helper = connection.helper.or(self.helper);
    }

    /// Whether a packet is translated as its connection is. As in the kernel, `nat` without an address leaves the
    /// packets alone that repeat a connection's first one: they are new to flows, which look at the address that the
    /// client named. A commit translates them, since expected connections have the translation of their master.
    #[inline]
    pub(crate) fn translates(&self, status: u16, direction: Direction) -> bool {
        let is_unanswered = direction == Direction::Original && status & SEEN_REPLY == 0;
        self.nat.is_some_and(|nat| !is_unanswered || nat.source.is_some() || self.commit != CtCommit::No)
    }
}

/// The `ct_*` fields that a packet carries from action to action. The default is an untracked packet, as after
/// `ct_clear`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CtMetadata {
    /// `lasthop_flow::ct_state` bits.
    pub state: u32,
    /// Zone.
    pub zone: u16,
    /// Mark.
    pub mark: u32,
    /// Labels.
    pub labels: [u8; 16],
    /// The tuple of the connection's original direction, or of its master's.
    pub original: Option<CtTuple>,
}

/// The verdict for a packet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CtVerdict {
    /// The fields that the packet carries from now on.
    pub metadata: CtMetadata,
    /// Changes of its headers.
    pub rewrites: CtRewrites,
    /// The reason to drop the packet: its request failed. A datapath may forward it untranslated instead.
    pub refused: Option<CtRefusal>,
    /// Its connection, if that is in the table.
    pub connection: Option<CtId>,
    /// The connection's helper has to read a line that continues beyond the image. Nothing has changed: call again with
    /// an image of the whole packet, which has at most [`crate::HELPER_IMAGE_BYTES`].
    pub wants_whole: bool,
}

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
