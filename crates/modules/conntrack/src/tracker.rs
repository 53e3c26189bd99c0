//! The tracker: the path of a packet at `ct(...)`.
//!
//! ```text
//!   tracked in this zone before? ── yes ─> its connection by what is left of its tuple, nothing moves on
//!            │ no
//!   headers make sense? ── ICMP error? ── look up the packet inside ─> +rel
//!            │                   no
//!   look up the tuple ── found ─> the protocol moves on ─> +est, +rpl, +inv, or begins anew
//!            └── not found ─> may begin a connection? ─> +new (+rel if it was expected)
//!            v
//!   commit: enter it, with a translation ── mark, labels, helper ── translate this packet ── helper looks into it
//! ```

use std::collections::HashMap;

use lasthop_flow::ct_state::{DST_NAT, ESTABLISHED, INVALID, NEW, RELATED, REPLY, SRC_NAT, TRACKED};
use lasthop_wire::headers::PROTO_TCP;

use crate::adjust::SequenceShifts;
use crate::connection::{self, Connection, CtId, DYING, SEEN_REPLY, SEQUENCE_ADJUSTED};
use crate::edit::{Editor, NotInImage};
use crate::expect::{Expectation, Expectations};
use crate::hash::Random;
use crate::packet::PacketImage;
use crate::policy::CtPolicy;
use crate::progress::{Advance, HASTENED_MS_MIN, advance, first, is_well_formed};
use crate::related::Related;
use crate::request::{CtCommit, CtMetadata, CtRequest, CtVerdict};
use crate::table::{CtBounds, CtRefusal, End, Table};
use crate::tcp::Segment;
use crate::tuple::{CtTuple, Direction, is_icmp_error};

mod assist;
mod commit;
mod manage;

pub use manage::{CtProtocol, CtRecord};

/// Timeout policies that there may be.
pub const POLICIES_MAX: usize = 256;
/// Time that a connection ended by a packet is kept for the rest of that packet's actions, in milliseconds.
const LAST_PACKET_MS: u64 = 1000;

/// Connections of all zones, and expectations. One thread at a time uses it; see the crate's head.
#[derive(Debug)]
pub struct Tracker {
    table: Table,
    expectations: Expectations,
    shifts: HashMap<CtId, SequenceShifts>,
    policies: Vec<CtPolicy>,
    random: Random,
}

/// A packet's relation to the table.
#[derive(Clone, Copy, Debug)]
enum Seen {
    /// It cannot be tracked.
    Invalid,
    /// It may begin a connection, which perhaps was expected.
    New(CtTuple, Option<Expectation>),
    /// It belongs to a connection.
    Known { index: u32, direction: Direction, is_first_look: bool },
    /// It is an ICMP error about one.
    Related(Related),
    /// Nothing is left to do.
    Done,
}

impl Tracker {
    /// An empty table at a time, in milliseconds of any clock that only runs forward.
    #[must_use]
    pub fn new(bounds: CtBounds, now_ms: u64) -> Self {
        Self {
            table: Table::new(bounds, now_ms),
            expectations: Expectations::default(),
            shifts: HashMap::new(),
            policies: vec![CtPolicy::default()],
            random: Random::new(),
        }
    }

    /// `ct(...)` for a packet that carries `before`.
    pub fn track(
        &mut self,
        packet: &PacketImage<'_>,
        before: &CtMetadata,
        request: &CtRequest,
        now_ms: u64,
    ) -> CtVerdict {
        let is_tracked = before.state & TRACKED != 0 && before.zone == request.zone;
        let seen = if is_tracked {
            self.seen_before(packet, before, now_ms)
        } else {
            self.classify(packet, request.zone, now_ms)
        };
        let is_translated = is_tracked && before.state & (SRC_NAT | DST_NAT) != 0;
        match seen {
            Seen::Invalid => {
                self.table.counters.invalid += u64::from(!is_tracked);
                invalid(request.zone)
            }
            Seen::Done => CtVerdict { metadata: *before, ..CtVerdict::default() },
            Seen::Related(related) => self.related(packet, &related, request, is_translated),
            Seen::New(tuple, expected) => self.begin(packet, &tuple, expected, request, now_ms),
            Seen::Known { index, direction, is_first_look } => {
                let is_against = request.commit == CtCommit::Force && direction == Direction::Reply;
                if let (true, Some(tuple)) = (is_against && !is_translated, packet.tuple(request.zone)) {
                    self.table.remove(index, End::Deleted);
                    return match self.first_look(packet, tuple, now_ms) {
                        Seen::New(tuple, expected) => self.begin(packet, &tuple, expected, request, now_ms),
                        _ => invalid(request.zone),
                    };
                }
                let look = Look { index, direction, is_first: is_first_look, is_translated };
                let mut verdict = self.known(packet, look, request, now_ms);
                if is_tracked {
                    // The packet keeps its `ct_state`: if it began its connection, it is still new after the commit.
                    let nat_bits = verdict.metadata.state & (SRC_NAT | DST_NAT);
                    verdict.metadata.state = before.state | nat_bits;
                }
                verdict
            }
        }
    }

    /// A packet of a connection that is not in question.
    fn known(&mut self, packet: &PacketImage<'_>, look: Look, request: &CtRequest, now_ms: u64) -> CtVerdict {
        if request.commit != CtCommit::No {
            self.write_over(look.index, request);
        }
        let Some(connection) = self.table.get(look.index) else { return CtVerdict::default() };
        let metadata = self.metadata(connection, look.direction);
        let connection = self.table.id(look.index);
        let mut editor = Editor::new(packet);
        let done = self.rewrite(&mut editor, packet, look, request, now_ms);
        let Ok(nat_bits) = done else {
            return CtVerdict {
                metadata,
                refused: Some(self.refused(CtRefusal::NotInImage)),
                ..CtVerdict::default()
            };
        };
        let verdict = CtVerdict { metadata, rewrites: editor.finish(), refused: None, connection };
        with_state(verdict, nat_bits)
    }

    /// Translates a packet as its connection is, and has its helper look at it. Gives the NAT bits.
    fn rewrite(
        &mut self,
        editor: &mut Editor<'_>,
        packet: &PacketImage<'_>,
        look: Look,
        request: &CtRequest,
        now_ms: u64,
    ) -> Result<u32, NotInImage> {
        let Some(connection) = self.table.get(look.index) else { return Ok(0) };
        let mut nat_bits = 0;
        let is_adjusted = look.is_first && connection.has(SEQUENCE_ADJUSTED);
        let has_helper = look.is_first && connection.helper.is_some();
        if request.nat.is_some() && !look.is_translated {
            let (from, to) = passage(connection, look.direction);
            nat_bits = nat_bits_of(connection, look.direction);
            editor.translate(&from, &to)?;
        }
        if is_adjusted {
            self.shift(editor, packet, look.index, look.direction)?;
        }
        if has_helper {
            self.assist(editor, packet, look.index, look.direction, now_ms)?;
        }
        Ok(nat_bits)
    }

    /// An ICMP error about a connection.
    fn related(
        &mut self,
        packet: &PacketImage<'_>,
        related: &Related,
        request: &CtRequest,
        is_translated: bool,
    ) -> CtVerdict {
        let Some(connection) = self.table.get(related.index) else { return CtVerdict::default() };
        let reply = if related.direction == Direction::Reply { REPLY } else { 0 };
        let mut metadata = self.metadata(connection, related.direction);
        metadata.state = TRACKED | RELATED | reply;
        let id = self.table.id(related.index);
        let verdict = CtVerdict { metadata, connection: id, ..CtVerdict::default() };
        if request.nat.is_none() || is_translated {
            return verdict;
        }
        let (from, to) = passage(connection, related.direction);
        let (layers, inner) = &related.inner;
        let nat_bits = nat_bits_of(connection, related.direction);
        let inner_to = connection.tuple(related.direction.inverse());
        let mut editor = Editor::new(packet);
        if editor.translate_error((layers, inner, inner_to), (&from, &to)).is_err() {
            return CtVerdict { refused: Some(self.refused(CtRefusal::NotInImage)), ..verdict };
        }
        with_state(CtVerdict { rewrites: editor.finish(), ..verdict }, nat_bits)
    }

    /// Classifies a packet that this zone has not seen yet, and updates its connection's state.
    fn classify(&mut self, packet: &PacketImage<'_>, zone: u16, now_ms: u64) -> Seen {
        let tuple = packet.tuple(zone).filter(|_| !packet.layers.is_fragment && is_well_formed(packet));
        let Some(tuple) = tuple else { return Seen::Invalid };
        if tuple.is_icmp() {
            let [kind, _] = tuple.dst_port.to_be_bytes();
            let is_of_version = tuple.is_ipv6 == (tuple.proto == lasthop_wire::headers::PROTO_ICMPV6);
            if !is_of_version || (!is_icmp_error(tuple.proto, kind) && tuple.inverse().is_none()) {
                return Seen::Invalid;
            }
            if is_icmp_error(tuple.proto, kind) {
                let related = Related::find(&mut self.table, packet, zone, now_ms);
                return related.map_or(Seen::Invalid, Seen::Related);
            }
        }
        let Some((index, direction)) = self.table.find(&tuple, now_ms) else {
            return self.first_look(packet, tuple, now_ms);
        };
        if self.table.get(index).is_some_and(|connection| connection.has(DYING)) {
            self.table.remove(index, End::Deleted);
            return self.first_look(packet, tuple, now_ms);
        }
        match self.advance(packet, index, direction, now_ms) {
            Advance::Reopened => {
                self.table.remove(index, End::Deleted);
                self.first_look(packet, tuple, now_ms)
            }
            Advance::Invalid(_) => Seen::Invalid,
            Advance::Accepted(_) | Advance::Last => Seen::Known { index, direction, is_first_look: true },
        }
    }

    /// A packet of no connection.
    fn first_look(&self, packet: &PacketImage<'_>, tuple: CtTuple, now_ms: u64) -> Seen {
        match first(packet, &tuple, &self.policies[0], now_ms) {
            Some(_) => Seen::New(tuple, self.expectations.find(&tuple, now_ms)),
            None => Seen::Invalid,
        }
    }

    /// The protocol's part, and its consequences.
    fn advance(
        &mut self,
        packet: &PacketImage<'_>,
        index: u32,
        direction: Direction,
        now_ms: u64,
    ) -> Advance {
        let shifts = &self.shifts;
        let id = self.table.id(index);
        let Some(connection) = self.table.get_mut(index) else { return Advance::Invalid(None) };
        let policy = self.policies.get(usize::from(connection.policy)).unwrap_or(&self.policies[0]);
        let is_adjusted = connection.has(SEQUENCE_ADJUSTED);
        let ack_offset = |ack: u32| {
            let shifts = id.filter(|_| is_adjusted).and_then(|id| shifts.get(&id));
            shifts.map_or(0, |shifts| shifts.offset(direction.inverse(), ack.wrapping_sub(1)))
        };
        let advance = advance(connection, packet, direction, policy, ack_offset, now_ms);
        let expires_ms = match advance {
            Advance::Accepted(None) => connection.expires_ms,
            Advance::Accepted(Some(timeout_ms)) => now_ms.saturating_add(timeout_ms),
            Advance::Last => {
                connection.status |= DYING;
                now_ms + LAST_PACKET_MS
            }
            Advance::Invalid(Some(timeout_ms)) => {
                let (left_ms, expires_ms) =
                    (connection.expires_ms.saturating_sub(now_ms), now_ms + timeout_ms);
                if left_ms >= HASTENED_MS_MIN && left_ms > timeout_ms {
                    self.table.follow(index, expires_ms);
                }
                return advance;
            }
            Advance::Invalid(None) | Advance::Reopened => return advance,
        };
        if direction == Direction::Reply {
            connection.status |= SEEN_REPLY;
        }
        connection.packets[direction.index()] += 1;
        connection.bytes[direction.index()] += u64::from(packet.frame_len_bytes);
        self.table.follow(index, expires_ms);
        advance
    }

    /// Classifies a packet that this zone has seen: its connection is found by the packet's present tuple.
    fn seen_before(&mut self, packet: &PacketImage<'_>, before: &CtMetadata, now_ms: u64) -> Seen {
        if before.state & INVALID != 0 {
            return Seen::Invalid;
        }
        let Some(tuple) = packet.tuple(before.zone) else { return Seen::Done };
        let [kind, _] = tuple.dst_port.to_be_bytes();
        let is_translated = before.state & (SRC_NAT | DST_NAT) != 0;
        if tuple.is_icmp() && is_icmp_error(tuple.proto, kind) {
            let find = |table: &mut Table| Related::find(table, packet, before.zone, now_ms);
            let related = if is_translated { None } else { find(&mut self.table) };
            return related.map_or(Seen::Done, Seen::Related);
        }
        let found = if is_translated {
            let inverse = tuple.inverse().and_then(|inverse| self.table.find(&inverse, now_ms));
            inverse.map(|(index, direction)| (index, direction.inverse()))
        } else {
            self.table.find(&tuple, now_ms)
        };
        match found {
            Some((index, direction)) => Seen::Known { index, direction, is_first_look: false },
            None if before.state & NEW != 0 && !is_translated => self.first_look(packet, tuple, now_ms),
            None => Seen::Done,
        }
    }

    /// The fields that a packet of a connection carries.
    fn metadata(&self, connection: &Connection, direction: Direction) -> CtMetadata {
        let state = match direction {
            Direction::Reply => ESTABLISHED | REPLY,
            Direction::Original if connection.has(SEEN_REPLY) => ESTABLISHED,
            Direction::Original if connection.has(connection::EXPECTED) => 0,
            Direction::Original => NEW,
        };
        let expected = if connection.has(connection::EXPECTED) { RELATED } else { 0 };
        let master = connection.master.and_then(|master| self.table.named(master));
        CtMetadata {
            state: TRACKED | state | expected,
            zone: connection.zone(),
            mark: connection.mark,
            labels: connection.labels,
            original: Some(*master.unwrap_or(connection).tuple(Direction::Original)),
        }
    }

    fn refused(&mut self, refusal: CtRefusal) -> CtRefusal {
        self.table.counters.refused[refusal as usize] += 1;
        refusal
    }

    /// Adjusts sequence numbers.
    fn shift(
        &self,
        editor: &mut Editor<'_>,
        packet: &PacketImage<'_>,
        index: u32,
        direction: Direction,
    ) -> Result<(), NotInImage> {
        let shifts = self.table.id(index).and_then(|id| self.shifts.get(&id));
        let (Some(shifts), PROTO_TCP) = (shifts, packet.layers.l4_proto) else { return Ok(()) };
        let Some(segment) = Segment::of(packet) else { return Ok(()) };
        let l4 = packet.l4();
        editor.put_transport(l4 + 4, &shifts.seq(direction, segment.seq).to_be_bytes())?;
        editor.put_transport(l4 + 8, &shifts.ack(direction, segment.ack).to_be_bytes())?;
        for (at, block) in crate::tcp::adjusted_sack_blocks(packet, |edge| shifts.ack(direction, edge)) {
            editor.put_transport(at, &block)?;
        }
        Ok(())
    }
}

/// How a packet's connection was found.
#[derive(Clone, Copy, Debug)]
struct Look {
    index: u32,
    direction: Direction,
    /// This zone has not seen the packet before.
    is_first: bool,
    /// It was translated already.
    is_translated: bool,
}

/// A packet's tuples in this direction: as it comes in, and as it leaves.
fn passage(connection: &Connection, direction: Direction) -> (CtTuple, CtTuple) {
    let from = *connection.tuple(direction);
    (from, connection.tuple(direction.inverse()).inverse().unwrap_or(from))
}

/// The bits of `ct_state` for the translation of a packet of this direction.
fn nat_bits_of(connection: &Connection, direction: Direction) -> u32 {
    let (of_source, of_destination) = match direction {
        Direction::Original => (SRC_NAT, DST_NAT),
        Direction::Reply => (DST_NAT, SRC_NAT),
    };
    (if connection.has(connection::SRC_NAT) { of_source } else { 0 })
        | if connection.has(connection::DST_NAT) { of_destination } else { 0 }
}

/// The answer for a packet that cannot be tracked.
fn invalid(zone: u16) -> CtVerdict {
    let metadata = CtMetadata { state: TRACKED | INVALID, zone, ..CtMetadata::default() };
    CtVerdict { metadata, ..CtVerdict::default() }
}

fn with_state(mut verdict: CtVerdict, bits: u32) -> CtVerdict {
    verdict.metadata.state |= bits;
    verdict
}
