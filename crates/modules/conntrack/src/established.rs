//! The path of a packet through `ct(...)` without a lock: packets of known connections, and packets without a
//! connection that commit none.
//!
//! ```text
//!   look up the tuple ── none ── no commit? ─> +new
//!        │
//!   read version, state ── the protocol moves on, on a copy ── still that version? ── no: again
//!        │                                                           │ yes
//!        │ a worker changes it, and does not finish                  v
//!        └──> passes as one of the connection, unchecked          store; verdict
//! ```
//!
//! Commits, ends, helpers, ICMP errors and changes of marks take the shard's lock ([`crate::tracker`]).

use lasthop_ct_packet::{CtTuple, Direction, Editor, NotInImage, PacketImage, is_icmp_error};
use lasthop_flow::ct_state::{DST_NAT, INVALID, NEW, SRC_NAT, TRACKED};
use lasthop_wire::headers::PROTO_ICMPV6;

use crate::bounds::CtRefusal;
use crate::connection::{self, CtId, DYING, SEQUENCE_ADJUSTED, is_evictable};
use crate::index::{Found, Search};
use crate::place::{Moving, Place};
use crate::progress::{Advance, first, is_well_formed, step};
use crate::request::{
    CtCommit, CtMetadata, CtRequest, CtVerdict, invalid_metadata, metadata_of, metadata_of_new, nat_bits_of,
    passage,
};
use crate::shard::{Count, Shared};

/// Retries of a packet whose connection another worker changed meanwhile.
const TRIES_MAX: u32 = 16;

/// A packet at a `ct` action.
#[derive(Clone, Copy)]
struct Visit<'a> {
    packet: &'a PacketImage<'a>,
    before: &'a CtMetadata,
    request: &'a CtRequest,
    tuple: &'a CtTuple,
    /// Whether an earlier action in this zone tracked it.
    is_tracked: bool,
    /// Whether it is translated already.
    is_translated: bool,
    now_ms: u64,
}

/// The result for a packet that took no lock. A verdict is large, so it is written once, at the end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Passed {
    metadata: CtMetadata,
    connection: Option<CtId>,
    /// The tuples of the packet as it arrives and as it leaves, and the state bits of its translation.
    translation: Option<(CtTuple, CtTuple, u32)>,
}

/// The outcome of one try.
enum Try {
    Done(Passed),
    /// The connection changed meanwhile.
    Again,
    /// The packet needs the lock.
    Locked,
}

impl Passed {
    fn with(metadata: CtMetadata) -> Self {
        Self { metadata, connection: None, translation: None }
    }
}

impl Shared {
    /// Tracks a packet that carries `before`; `None` if it needs the lock.
    #[inline]
    pub(crate) fn pass(
        &self,
        packet: &PacketImage<'_>,
        before: &CtMetadata,
        request: &CtRequest,
        now_ms: u64,
    ) -> Option<Passed> {
        let tuple = packet.tuple(request.zone)?;
        let is_tracked = before.state & TRACKED != 0 && before.zone == request.zone;
        let is_translated = is_tracked && before.state & (SRC_NAT | DST_NAT) != 0;
        if !is_tracked && (packet.layers.is_fragment || !is_well_formed(packet)) {
            return None;
        }
        if tuple.is_icmp() && is_odd_icmp(&tuple) || is_tracked && before.state & INVALID != 0 {
            return None;
        }
        let visit = Visit { packet, before, request, tuple: &tuple, is_tracked, is_translated, now_ms };
        let wanted = if is_translated { tuple.inverse()? } else { tuple };
        let words = wanted.words();
        let hash = self.key.of_words_of_tuple(&words);
        let shard = self.shard(request.zone);
        for _ in 0..TRIES_MAX {
            match shard.index.find(&self.places, hash, &words) {
                Search::Unsure => return None,
                Search::Absent => return self.absent(&visit),
                Search::Found(found) => match self.found(&visit, found) {
                    Try::Done(passed) => return Some(passed),
                    Try::Again => {}
                    Try::Locked => return None,
                },
            }
        }
        None
    }

    /// Handles a packet without a connection.
    fn absent(&self, visit: &Visit<'_>) -> Option<Passed> {
        if visit.is_tracked && (visit.before.state & NEW == 0 || visit.is_translated) {
            return Some(Passed::with(*visit.before));
        }
        let shard = self.shard(visit.request.zone);
        if visit.request.commit != CtCommit::No
            || shard.expected.load(std::sync::atomic::Ordering::Acquire) != 0
        {
            return None;
        }
        if first(visit.packet, visit.tuple, self.policies.get(0), visit.now_ms).is_none() {
            if !visit.is_tracked {
                shard.count(Count::Invalid as usize);
            }
            return Some(Passed::with(invalid_metadata(visit.request.zone)));
        }
        Some(Passed::with(metadata_of_new(visit.tuple)))
    }

    /// Handles a packet whose connection was found.
    #[inline]
    fn found(&self, visit: &Visit<'_>, found: Found) -> Try {
        let Some(place) = self.places.get(found.index) else { return Try::Locked };
        if !self.adoption.is_known(found.index) {
            return Try::Locked;
        }
        let Some(version) = place.quiet_version() else { return self.unchecked(visit, place, found) };
        if !version.is_same_generation(found.version) {
            return Try::Again;
        }
        let direction = if visit.is_translated { found.direction.inverse() } else { found.direction };
        let before = place.moving(visit.tuple.proto);
        if before.expires_ms <= visit.now_ms || self.is_for_lock(visit, place, &before, direction) {
            return Try::Locked;
        }
        if visit.is_tracked {
            let mut passed = self.passed(visit, place, before.status, direction, found);
            passed.metadata.state = visit.before.state;
            return if place.is_still(version) { Try::Done(passed) } else { Try::Again };
        }
        let mut after = before;
        let policy = self.policies.get(before.policy);
        let about = (visit.tuple, direction);
        let (advance, is_counted) = step(&mut after, visit.packet, about, policy, |_| 0, visit.now_ms);
        let is_valid = match advance {
            Advance::Reopened => return Try::Locked,
            Advance::Invalid(_) => false,
            Advance::Accepted(_) | Advance::Last => true,
        };
        let passed = match is_valid {
            true => self.passed(visit, place, after.status, direction, found),
            false => Passed::with(invalid_metadata(visit.request.zone)),
        };
        if !place.take(version) {
            return Try::Again;
        }
        place.store_moving(&after);
        if is_counted {
            place.count(direction, visit.packet.frame_len_bytes);
        }
        place.give_back(version);
        self.after(visit, found.index, &before, &after, is_valid);
        Try::Done(passed)
    }

    /// Updates lists and counters after a change.
    #[inline]
    fn after(&self, visit: &Visit<'_>, index: u32, before: &Moving, after: &Moving, is_valid: bool) {
        let is_moved = is_evictable(before.status, &before.progress)
            != is_evictable(after.status, &after.progress)
            || after.expires_ms < before.expires_ms;
        if is_moved || !is_valid {
            let shard = self.shard(visit.request.zone);
            if !is_valid {
                shard.count(Count::Invalid as usize);
            }
            if is_moved {
                self.note_change(shard, index);
            }
        }
    }

    /// Whether a packet of a connection needs the lock.
    #[inline]
    fn is_for_lock(
        &self,
        visit: &Visit<'_>,
        place: Place<'_>,
        moving: &Moving,
        direction: Direction,
    ) -> bool {
        const RARE: u16 = DYING | SEQUENCE_ADJUSTED;
        let is_rare = moving.status & RARE != 0 && !visit.is_tracked;
        let request = visit.request;
        if is_rare || (moving.helper.is_some() && !visit.is_tracked) {
            return true;
        }
        match request.commit {
            CtCommit::No => false,
            CtCommit::Force if direction == Direction::Reply && !visit.is_translated => true,
            CtCommit::Yes | CtCommit::Force => {
                let (labels, (value, mask)) = (place.labels(), &request.labels);
                let mut bytes = labels.iter().zip(value).zip(mask);
                (place.mark() ^ request.mark.value) & request.mark.mask != 0
                    || bytes.any(|((label, value), mask)| (label ^ value) & mask != 0)
                    || (request.helper.is_some() && moving.helper.is_none())
            }
        }
    }

    /// The result for a packet of a connection.
    #[inline]
    fn passed(
        &self,
        visit: &Visit<'_>,
        place: Place<'_>,
        status: u16,
        direction: Direction,
        found: Found,
    ) -> Passed {
        let original = match found.direction {
            Direction::Original if !visit.is_translated => *visit.tuple,
            _ => place.tuple(Direction::Original),
        };
        let is_to_translate = visit.request.translates(status, direction)
            && !visit.is_translated
            && status & (connection::SRC_NAT | connection::DST_NAT) != 0;
        let translation = is_to_translate.then(|| {
            let (from, to) = passage(&[original, place.tuple(Direction::Reply)], direction);
            (from, to, nat_bits_of(status, direction))
        });
        let id = CtId { index: found.index, generation: found.version.generation() };
        let metadata = metadata_of(&self.places, place, status, direction, &original);
        Passed { metadata, connection: Some(id), translation }
    }

    /// The verdict for a packet that took no lock.
    #[inline]
    pub(crate) fn verdict(&self, packet: &PacketImage<'_>, passed: &Passed) -> CtVerdict {
        let mut verdict =
            CtVerdict { metadata: passed.metadata, connection: passed.connection, ..CtVerdict::default() };
        if let Some((from, to, nat_bits)) = &passed.translation {
            let mut editor = Editor::new(packet);
            match editor.translate(from, to) {
                Ok(()) => {
                    verdict.rewrites = editor.finish();
                    verdict.metadata.state |= nat_bits;
                }
                Err(NotInImage) => {
                    self.shard(passed.metadata.zone).count(CtRefusal::NotInImage as usize);
                    (verdict.refused, verdict.connection) = (Some(CtRefusal::NotInImage), None);
                }
            }
        }
        verdict
    }

    /// Passes a packet whose connection is being changed by a worker that does not run, by the fields that never
    /// change.
    #[cold]
    fn unchecked(&self, visit: &Visit<'_>, place: Place<'_>, found: Found) -> Try {
        let direction = if visit.is_translated { found.direction.inverse() } else { found.direction };
        let seen = place.moving(visit.tuple.proto);
        let is_rare = seen.helper.is_some() || seen.status & SEQUENCE_ADJUSTED != 0;
        if visit.request.commit != CtCommit::No || is_rare || seen.expires_ms <= visit.now_ms {
            return Try::Locked;
        }
        let mut passed = self.passed(visit, place, seen.status, direction, found);
        if !place.is_still_connection(found.version) {
            return Try::Again;
        }
        if visit.is_tracked {
            passed.metadata.state = visit.before.state;
        }
        self.shard(visit.request.zone).count(Count::Unchecked as usize);
        Try::Done(passed)
    }
}

/// Whether the locked path must handle an ICMP message: it is an error, or malformed.
fn is_odd_icmp(tuple: &CtTuple) -> bool {
    let [kind, _] = tuple.dst_port.to_be_bytes();
    tuple.is_ipv6 != (tuple.proto == PROTO_ICMPV6)
        || is_icmp_error(tuple.proto, kind)
        || tuple.inverse().is_none()
}
