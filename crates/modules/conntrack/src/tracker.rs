//! The path of a packet through `ct(...)` with its shard's lock: new connections and rare cases.
//!
//! ```text
//!   tracked in this zone before? ── yes ─> its connection, found by its present tuple; its state stays
//!            │ no
//!   headers make sense? ── ICMP error? ── look up the packet inside ─> +rel
//!            │                   no
//!   look up the tuple ── found ─> the protocol moves on ─> +est, +rpl, +inv, or begins anew
//!            └── not found ─> may begin a connection? ─> +new (+rel if it was expected)
//!            v
//!   commit: enter it, with a translation ── mark, labels, helper ── translate this packet ── helper looks into it
//! ```

use std::sync::atomic::Ordering;

use lasthop_ct_packet::{
    CtTuple, Direction, Editor, NotInImage, PacketImage, is_cut_short, is_icmp_error, tuple_at,
};
use lasthop_flow::ct_state::{DST_NAT, INVALID, NEW, RELATED, REPLY, SRC_NAT, TRACKED};
use lasthop_wire::headers::{PROTO_ICMPV6, PROTO_TCP};
use lasthop_wire::{Layers, Network};

use crate::bounds::CtRefusal;
use crate::connection::{Connection, DYING, SEQUENCE_ADJUSTED};
use crate::expect::Expectation;
use crate::place::Change;
use crate::progress::{Advance, first, is_well_formed, step};
use crate::request::{
    CtCommit, CtMetadata, CtRequest, CtVerdict, invalid, metadata_of, nat_bits_of, passage, with_state,
};
use crate::shard::Count;
use crate::table::{End, Table};
use crate::tcp::Segment;

mod assist;
mod commit;

/// A packet at a `ct` action, with its shard's lock held.
#[derive(Debug)]
pub(crate) struct Tracking<'a> {
    pub(crate) table: Table<'a>,
}

/// A packet's relation to the table.
#[derive(Clone, Copy, Debug)]
enum Seen {
    /// The packet cannot be tracked.
    Invalid,
    /// The packet may begin a connection, perhaps an expected one.
    New(CtTuple, Option<Expectation>),
    /// The packet belongs to a connection.
    Known { index: u32, direction: Direction, is_first_look: bool },
    /// The packet is an ICMP error about a connection.
    Related(Related),
    /// The packet needs no further step.
    Done,
    /// Other workers kept changing its connection.
    Contended,
    /// The connection's helper needs the whole packet.
    Partial,
}

impl Tracking<'_> {
    /// Does `ct(...)` for a packet that carries `before`.
    pub(crate) fn track(
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
                if !is_tracked {
                    self.table.shard.count(Count::Invalid as usize);
                }
                invalid(request.zone)
            }
            Seen::Done => CtVerdict { metadata: *before, ..CtVerdict::default() },
            Seen::Partial => CtVerdict { metadata: *before, wants_whole: true, ..CtVerdict::default() },
            Seen::Contended => {
                let refused = Some(self.table.refuse(CtRefusal::Contended));
                CtVerdict { refused, ..invalid(request.zone) }
            }
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
                    // The packet keeps its `ct_state`: one that began its connection is still new after the commit.
                    let nat_bits = verdict.metadata.state & (SRC_NAT | DST_NAT);
                    verdict.metadata.state = before.state | nat_bits;
                }
                verdict
            }
        }
    }

    /// Handles a packet of a known connection.
    fn known(&mut self, packet: &PacketImage<'_>, look: Look, request: &CtRequest, now_ms: u64) -> CtVerdict {
        let is_written = request.commit == CtCommit::No || self.write_over(look.index, request);
        let Some(connection) = self.table.get(look.index) else { return CtVerdict::default() };
        let refused = (!is_written).then_some(CtRefusal::Contended);
        self.pass(packet, look, (&connection, refused), request, now_ms)
    }

    /// The verdict for a packet of this connection, unless it is refused.
    fn pass(
        &mut self,
        packet: &PacketImage<'_>,
        look: Look,
        (connection, refused): (&Connection, Option<CtRefusal>),
        request: &CtRequest,
        now_ms: u64,
    ) -> CtVerdict {
        let Some(place) = self.table.place(look.index) else { return CtVerdict::default() };
        let (places, original) = (&self.table.shared.places, connection.tuple(Direction::Original));
        let metadata = metadata_of(places, place, connection.status, look.direction, original);
        let mut editor = Editor::new(packet);
        let done = self.rewrite(&mut editor, packet, (look, connection), request, now_ms);
        if let Some(refusal) = done.err().map(|NotInImage| CtRefusal::NotInImage).or(refused) {
            return CtVerdict { metadata, refused: Some(self.table.refuse(refusal)), ..CtVerdict::default() };
        }
        let (rewrites, connection) = (editor.finish(), self.table.id(look.index));
        let verdict = CtVerdict { metadata, rewrites, connection, ..CtVerdict::default() };
        with_state(verdict, done.unwrap_or_default())
    }

    /// Translates a packet by its connection's NAT, and passes it to the helper. Returns the NAT bits.
    fn rewrite(
        &mut self,
        editor: &mut Editor<'_>,
        packet: &PacketImage<'_>,
        (look, connection): (Look, &Connection),
        request: &CtRequest,
        now_ms: u64,
    ) -> Result<u32, NotInImage> {
        let mut nat_bits = 0;
        if request.translates(connection.status, look.direction) && !look.is_translated {
            let (from, to) = passage(&connection.tuples, look.direction);
            nat_bits = nat_bits_of(connection.status, look.direction);
            editor.translate(&from, &to)?;
        }
        if look.is_first && connection.has(SEQUENCE_ADJUSTED) {
            self.shift(editor, packet, look.index, look.direction)?;
        }
        if look.is_first && connection.helper.is_some() {
            self.assist(editor, packet, look.index, look.direction, now_ms)?;
        }
        Ok(nat_bits)
    }

    /// Handles an ICMP error about a connection.
    fn related(
        &mut self,
        packet: &PacketImage<'_>,
        related: &Related,
        request: &CtRequest,
        is_translated: bool,
    ) -> CtVerdict {
        let Some(place) = self.table.place(related.index) else { return CtVerdict::default() };
        let reply = if related.direction == Direction::Reply { REPLY } else { 0 };
        let tuples = [place.tuple(Direction::Original), place.tuple(Direction::Reply)];
        let status = place.status();
        let mut metadata =
            metadata_of(&self.table.shared.places, place, status, related.direction, &tuples[0]);
        metadata.state = TRACKED | RELATED | reply;
        let id = self.table.id(related.index);
        let verdict = CtVerdict { metadata, connection: id, ..CtVerdict::default() };
        if request.nat.is_none() || is_translated {
            return verdict;
        }
        let (from, to) = passage(&tuples, related.direction);
        let (layers, inner) = &related.inner;
        let nat_bits = nat_bits_of(status, related.direction);
        let inner_to = &tuples[related.direction.inverse().index()];
        let mut editor = Editor::new(packet);
        if editor.translate_error((layers, inner, inner_to), (&from, &to)).is_err() {
            return CtVerdict { refused: Some(self.table.refuse(CtRefusal::NotInImage)), ..verdict };
        }
        with_state(CtVerdict { rewrites: editor.finish(), ..verdict }, nat_bits)
    }

    /// Classifies a packet that this zone has not seen yet, and updates its connection's state.
    fn classify(&mut self, packet: &PacketImage<'_>, zone: u16, now_ms: u64) -> Seen {
        let tuple = packet.tuple(zone).filter(|_| !packet.layers.is_fragment && is_well_formed(packet));
        let Some(tuple) = tuple else { return Seen::Invalid };
        if tuple.is_icmp() {
            let [kind, _] = tuple.dst_port.to_be_bytes();
            let is_of_version = tuple.is_ipv6 == (tuple.proto == PROTO_ICMPV6);
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
        if self.table.place(index).is_some_and(|place| place.status() & DYING != 0) {
            self.table.remove(index, End::Deleted);
            return self.first_look(packet, tuple, now_ms);
        }
        let helper = self.table.place(index).and_then(|place| place.moving(tuple.proto).helper);
        if helper.is_some_and(|helper| is_cut_short(helper, packet, direction)) {
            return Seen::Partial;
        }
        match self.advance(packet, index, (&tuple, direction), now_ms) {
            None => Seen::Contended,
            Some(Advance::Reopened) => {
                self.table.remove(index, End::Deleted);
                self.first_look(packet, tuple, now_ms)
            }
            Some(Advance::Invalid(_)) => Seen::Invalid,
            Some(Advance::Accepted(_) | Advance::Last) => {
                Seen::Known { index, direction, is_first_look: true }
            }
        }
    }

    /// Handles a packet without a connection.
    fn first_look(&self, packet: &PacketImage<'_>, tuple: CtTuple, now_ms: u64) -> Seen {
        match first(packet, &tuple, self.table.shared.policies.get(0), now_ms) {
            Some(_) => Seen::New(tuple, self.table.state.expectations.find(&tuple, now_ms)),
            None => Seen::Invalid,
        }
    }

    /// Advances the protocol state, and applies the result. `None` if other workers kept changing the connection.
    fn advance(
        &mut self,
        packet: &PacketImage<'_>,
        index: u32,
        (tuple, direction): (&CtTuple, Direction),
        now_ms: u64,
    ) -> Option<Advance> {
        let policies = &self.table.shared.policies;
        let advance = self.table.place(index)?.update(|place| {
            let mut moving = place.moving(tuple.proto);
            let shifts =
                if moving.status & SEQUENCE_ADJUSTED != 0 { place.shifts() } else { Default::default() };
            let ack_offset = |ack: u32| shifts.offset(direction.inverse(), ack.wrapping_sub(1));
            let policy = policies.get(moving.policy);
            let (advance, is_counted) =
                step(&mut moving, packet, (tuple, direction), policy, ack_offset, now_ms);
            let counted = is_counted.then_some((direction, packet.frame_len_bytes));
            Some((advance, Change::Packet(moving, counted)))
        })?;
        self.table.follow(index);
        Some(advance)
    }

    /// Classifies a packet that this zone has tracked before; its present tuple finds the connection.
    fn seen_before(&mut self, packet: &PacketImage<'_>, before: &CtMetadata, now_ms: u64) -> Seen {
        if before.state & INVALID != 0 {
            return Seen::Invalid;
        }
        let Some(tuple) = packet.tuple(before.zone) else { return Seen::Done };
        let [kind, _] = tuple.dst_port.to_be_bytes();
        let is_translated = before.state & (SRC_NAT | DST_NAT) != 0;
        if tuple.is_icmp() && is_icmp_error(tuple.proto, kind) {
            let related = if is_translated {
                None
            } else {
                Related::find(&mut self.table, packet, before.zone, now_ms)
            };
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

    /// Adjusts sequence numbers.
    fn shift(
        &self,
        editor: &mut Editor<'_>,
        packet: &PacketImage<'_>,
        index: u32,
        direction: Direction,
    ) -> Result<(), NotInImage> {
        let (Some(place), PROTO_TCP) = (self.table.place(index), packet.layers.l4_proto) else {
            return Ok(());
        };
        let Some(segment) = Segment::of(packet) else { return Ok(()) };
        let (shifts, l4) = (place.shifts(), packet.l4());
        editor.put_transport(l4 + 4, &shifts.seq(direction, segment.seq).to_be_bytes())?;
        editor.put_transport(l4 + 8, &shifts.ack(direction, segment.ack).to_be_bytes())?;
        for (at, block) in crate::tcp::adjusted_sack_blocks(packet, |edge| shifts.ack(direction, edge)) {
            editor.put_transport(at, &block)?;
        }
        Ok(())
    }

    /// Publishes the number of expectations for workers that read it without the lock.
    fn tell_expected(&self) {
        self.table.shard.expected.store(self.table.state.expectations.len(), Ordering::Release);
    }
}

/// The result of a lookup.
#[derive(Clone, Copy, Debug)]
struct Look {
    index: u32,
    direction: Direction,
    /// Whether this zone sees the packet for the first time.
    is_first: bool,
    /// Whether the packet is translated already.
    is_translated: bool,
}

/// Bytes of an ICMP error's own header.
const ERROR_BYTES: usize = 8;

/// A connection that an ICMP error refers to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Related {
    pub(crate) index: u32,
    /// The error's direction: the inverse of the quoted packet's.
    pub(crate) direction: Direction,
    /// The offsets of the quoted packet's headers, and its tuple.
    pub(crate) inner: (Layers, CtTuple),
}

impl Related {
    /// Returns `None` if the error refers to no connection, or is not addressed to the sender of the quoted packet.
    pub(crate) fn find(
        table: &mut Table<'_>,
        packet: &PacketImage<'_>,
        zone: u16,
        now_ms: u64,
    ) -> Option<Self> {
        let l3 = packet.layers.l3;
        let head = packet.head.get(..packet.end()?.min(packet.head.len()))?;
        let layers =
            Layers::parse_network(head, l3, packet.l4() + ERROR_BYTES).ok().filter(|inner| inner.has_l4)?;
        let inner = tuple_at(head, &layers, zone)?;
        let (index, direction) = table.find(&inner.inverse()?, now_ms)?;
        let outer = packet.layers.addresses(packet.head);
        let destination = outer.get(outer.len() / 2..)?;
        let sender = table.place(index)?.tuple(direction).dst.0;
        let sender = if l3 == Network::Ipv4 { &sender[..4] } else { &sender[..] };
        (destination == sender).then_some(Self { index, direction, inner: (layers, inner) })
    }
}
