//! Frames out of tunnels on their way to the switch. Several lie in one receive buffer, where the kernel joined datagrams, and segments of
//! one TCP connection are one frame, in as many pieces as datagrams.
//!
//! ```text
//!   receive buffer   [ 128 | tunnel's header | frame 1 | header | frame 2 | header | frame 3 ]
//!   lone frames          [ 128 | frame 1 ]      [ 128 | frame 2, at its place behind all buffers ] ...
//!   one frame            [ 128 | headers, payload 1 ][ payload 2 ][ payload 3 ]
//! ```

use arrayvec::ArrayVec;
use lasthop_device::{DeviceDropReason, DriverCounters};
use lasthop_frontend::{GuestError, VnicPair};
use lasthop_guestmem::StaleSegment;
use lasthop_wire::coalesce::HEAD_BYTES_MAX;
use lasthop_wire::tunnel::{HEADER_BYTES, OuterHeader, TUNNEL_BYTES};
use lasthop_wire::{Coalesced, Offload, TcpSegment, vnet};

use super::arena::{add_span, write_at};
use crate::bounds::{
    ARENA_BYTES, BATCH, DATAGRAMS_MAX, PIECES_MAX, PLACE_BYTES, PLACEHOLDER_ROOM, RECEIVE_AT,
    RECEIVE_SLOT_BYTES, RECEIVE_SLOTS, TUNNEL_ENTRIES,
};
use crate::sys::Span;

/// Receive buffers. The last returned one is used next, as in `crate::inbound`.
#[derive(Debug)]
struct Buffers {
    /// Those that are not in use; the next one is last.
    free: Vec<u16>,
    /// Frames that are lent of each buffer, and one more while its message is looked at.
    users: Box<[u16; RECEIVE_SLOTS as usize]>,
    /// The buffer that was filled after it, in the same batch.
    next: Box<[u16; RECEIVE_SLOTS as usize]>,
}

impl Buffers {
    fn new() -> Self {
        let slots = || Box::new([0; RECEIVE_SLOTS as usize]);
        Self { free: Vec::with_capacity(RECEIVE_SLOTS.into()), users: slots(), next: slots() }
    }

    fn start(&mut self) {
        self.free.clear();
        self.free.extend((0..RECEIVE_SLOTS).rev());
        self.users.fill(0);
    }

    /// The buffers from `first` on, in the order of filling.
    fn each(&mut self, run: BufferRun, mut act: impl FnMut(&mut u16) -> bool) {
        let mut slot = run.first;
        for _ in 0..run.count {
            let (Some(users), Some(next)) =
                (self.users.get_mut(usize::from(slot)), self.next.get(usize::from(slot)))
            else {
                return;
            };
            let next = *next;
            if act(users) {
                self.free.push(slot);
            }
            slot = next;
        }
    }

    fn add_user(&mut self, run: BufferRun) {
        self.each(run, |users| {
            *users += 1;
            false
        });
    }

    fn release(&mut self, run: BufferRun) {
        self.each(run, |users| {
            *users = users.saturating_sub(1);
            *users == 0
        });
    }
}

/// Buffers that were filled one after the other, in which a frame's pieces are.
#[derive(Clone, Copy, Debug)]
struct BufferRun {
    first: u16,
    count: u16,
}

impl BufferRun {
    fn of_token(token: u32) -> Self {
        Self { first: token as u16, count: (token >> 16) as u16 }
    }

    fn token(self) -> u32 {
        u32::from(self.first) | u32::from(self.count) << 16
    }
}

/// A frame that came out of a tunnel.
#[derive(Debug)]
pub(super) struct Arrived {
    /// Where it lies in the arena.
    pub(super) span: Span,
    pub(super) tunnel: OuterHeader,
    /// Its headers, if others may be joined to it.
    pub(super) segment: Option<TcpSegment>,
    /// It is the first of its message: there is room for a frame's header in front of it.
    pub(super) has_room: bool,
}

/// A frame to be lent, without its pieces.
#[derive(Debug)]
struct Outgoing {
    tunnel: OuterHeader,
    /// There is room for its header in front of the first piece.
    has_room: bool,
    /// The number of its first buffer in the batch, and of the last.
    buffers: (usize, usize),
    len_bytes: u32,
}

/// A segment, and those that were joined to it.
#[derive(Debug)]
struct Pending {
    outgoing: Outgoing,
    /// Where the first segment lies.
    span: Span,
    coalesced: Coalesced,
    /// The first segment's checksum was found right.
    is_checked: bool,
}

/// The way of frames from received messages to the switch.
#[derive(Debug)]
pub(super) struct Arrivals {
    buffers: Buffers,
    /// Buffers of the batch in hand.
    batch: ArrayVec<u16, BATCH>,
    /// The last frame, if others may be joined to it; only within a batch.
    pending: Option<Pending>,
    /// Its pieces, without the place of its header.
    pieces: ArrayVec<(u32, u32), { PIECES_MAX - 1 }>,
    /// Messages may have several datagrams.
    has_several: bool,
    /// Segments are joined: the switch takes large frames.
    joins: bool,
    /// Bytes in front of a message: a frame's header, and a placeholder where a tunnel's header is too short for one.
    room: u32,
}

impl Arrivals {
    pub(super) fn new(has_several: bool, joins: bool, needs_room: bool) -> Self {
        let room = HEADER_BYTES as u32 + if needs_room { PLACEHOLDER_ROOM } else { 0 };
        Self {
            buffers: Buffers::new(),
            batch: ArrayVec::new(),
            pending: None,
            pieces: ArrayVec::new(),
            has_several,
            joins,
            room,
        }
    }

    /// Resets for a fresh ring: no buffer is lent.
    pub(super) fn start(&mut self) {
        self.buffers.start();
        self.batch.clear();
        self.pending = None;
    }

    /// Whether segments are joined.
    pub(super) fn joins(&self) -> bool {
        self.joins
    }

    /// Takes back pieces that the switch has used.
    ///
    /// # Errors
    /// A fault of the switch in the ring.
    pub(super) fn reclaim(&mut self, pair: &mut VnicPair) -> Result<(), GuestError> {
        pair.tx.look()?;
        while let Some(used) = pair.tx.take_seen() {
            self.buffers.release(BufferRun::of_token(used.token));
        }
        Ok(())
    }

    /// Messages that there is room for, at most [`BATCH`].
    pub(super) fn room(&self, pair: &VnicPair) -> usize {
        // Of each datagram a frame in two pieces: its header's place, and itself.
        let entries = if self.has_several { 2 * DATAGRAMS_MAX } else { 1 };
        (usize::from(pair.tx.room()) / entries).min(self.buffers.free.len()).min(BATCH)
    }

    /// The next free buffers, in the order of [`Self::next_message`]; messages begin behind room for a frame's header.
    pub(super) fn spans(&self) -> impl ExactSizeIterator<Item = Span> {
        self.buffers.free.iter().rev().map(|slot| message_span(*slot, self.room))
    }

    /// Takes the next filled buffer; where its message begins.
    pub(super) fn next_message(&mut self) -> Option<u32> {
        let slot = self.buffers.free.pop()?;
        if let Some(last) = self.batch.last() {
            self.buffers.next[usize::from(*last)] = slot;
        }
        self.buffers.users[usize::from(slot)] = 1;
        self.batch.push(slot); // room() is at most BATCH
        Some(message_span(slot, self.room).offset)
    }

    /// Adds a frame of the message in hand.
    ///
    /// # Errors
    /// [`StaleSegment`].
    pub(super) fn add(
        &mut self,
        arrived: Arrived,
        pair: &mut VnicPair,
        counters: &mut DriverCounters,
    ) -> Result<(), StaleSegment> {
        if self.join(&arrived, pair)? {
            counters.joined += 1;
            return Ok(());
        }
        self.lend_pending(pair, counters)?;
        let Arrived { span, tunnel, segment, has_room } = arrived;
        let number = self.batch.len() - 1;
        let outgoing = Outgoing { tunnel, has_room, buffers: (number, number), len_bytes: span.len };
        let piece = (span.offset, span.len);
        let Some(segment) = segment.filter(|_| self.joins) else {
            return self.lend(&outgoing, Offload::default(), &[piece], pair, counters);
        };
        self.pieces.clear();
        self.pieces.push(piece);
        self.pending = Some(Pending { outgoing, span, coalesced: Coalesced::of(segment), is_checked: false });
        Ok(())
    }

    /// Joins a segment to the one before, if it can be.
    fn join(&mut self, arrived: &Arrived, pair: &VnicPair) -> Result<bool, StaleSegment> {
        let (Some(pending), Some(segment)) = (&mut self.pending, &arrived.segment) else { return Ok(false) };
        let Pending { outgoing, span, coalesced, is_checked } = pending;
        if self.pieces.is_full() || outgoing.tunnel != arrived.tunnel || !coalesced.takes(segment) {
            return Ok(false);
        }
        // Only now: a lone segment's checksum is its receiver's to check.
        if !*is_checked && !is_intact(coalesced.first(), *span, pair)? {
            return Ok(false);
        }
        *is_checked = true;
        if !is_intact(segment, arrived.span, pair)? || !coalesced.join(segment) {
            return Ok(false);
        }
        let (skip, Span { offset, len }) = (segment.header_len(), arrived.span);
        self.pieces.push((offset + skip, len - skip));
        outgoing.len_bytes += len - skip;
        outgoing.buffers.1 = self.batch.len() - 1;
        Ok(true)
    }

    /// Lends the last frame: nothing more will be joined to it.
    fn lend_pending(
        &mut self,
        pair: &mut VnicPair,
        counters: &mut DriverCounters,
    ) -> Result<(), StaleSegment> {
        let Some(Pending { outgoing, span, coalesced, .. }) = self.pending.take() else { return Ok(()) };
        let mut offload = Offload::default();
        if coalesced.count() > 1 {
            let head: [u8; HEAD_BYTES_MAX];
            (head, offload) = coalesced.header();
            write_at(pair, span.offset, &head[..coalesced.first().header_len() as usize])?;
        }
        let pieces = self.pieces.take();
        self.lend(&outgoing, offload, &pieces, pair, counters)
    }

    /// Lends a frame in these pieces, and its header in front.
    fn lend(
        &mut self,
        outgoing: &Outgoing,
        offload: Offload,
        pieces: &[(u32, u32)],
        pair: &mut VnicPair,
        counters: &mut DriverCounters,
    ) -> Result<(), StaleSegment> {
        let (mut header, mut metadata) = ([0; HEADER_BYTES], [0; TUNNEL_BYTES]);
        let _ = outgoing.tunnel.emit(&mut metadata); // its length is in it
        header[..vnet::HEADER_BYTES].copy_from_slice(&offload.emit(0));
        header[vnet::HEADER_BYTES..].copy_from_slice(&metadata);
        let (len, run) = (HEADER_BYTES as u32, self.run(outgoing.buffers));
        let mut whole: ArrayVec<(u32, u32), PIECES_MAX> = ArrayVec::new();
        match (outgoing.has_room, pieces) {
            (true, [(offset, first), rest @ ..]) => {
                whole.push((offset - len, first + len));
                whole.extend(rest.iter().copied());
            }
            _ => {
                // Without a free entry the place is the last one, and nothing is lent.
                let number = pair.tx.next_number().unwrap_or(TUNNEL_ENTRIES - 1);
                whole.push((ARENA_BYTES + u32::from(number) * PLACE_BYTES, len));
                whole.extend(pieces.iter().copied());
            }
        }
        write_at(pair, whole[0].0, &header)?;
        if lend(pair, &whole, run) {
            self.buffers.add_user(run);
            counters.to_switch.count(outgoing.len_bytes as usize);
        } else {
            debug_assert!(false, "room() sees to it");
            counters.drop(DeviceDropReason::Truncated);
        }
        Ok(())
    }

    fn run(&self, (first, last): (usize, usize)) -> BufferRun {
        // At most BATCH.
        BufferRun { first: self.batch[first], count: (last - first + 1) as u16 }
    }

    /// Ends a batch: nothing waits for the next one.
    ///
    /// # Errors
    /// [`StaleSegment`].
    pub(super) fn finish(
        &mut self,
        pair: &mut VnicPair,
        counters: &mut DriverCounters,
    ) -> Result<(), StaleSegment> {
        let lent = self.lend_pending(pair, counters);
        // The next one first again. Only now: messages are in the free buffers by their order.
        for slot in self.batch.drain(..).rev() {
            self.buffers.release(BufferRun { first: slot, count: 1 });
        }
        lent
    }
}

fn lend(pair: &mut VnicPair, pieces: &[(u32, u32)], run: BufferRun) -> bool {
    match *pieces {
        [(offset, len)] => pair.tx.lend(offset, len, run.token()),
        ref pieces => pair.tx.lend_pieces(pieces, run.token()),
    }
}

fn message_span(slot: u16, room: u32) -> Span {
    Span { offset: RECEIVE_AT + u32::from(slot) * RECEIVE_SLOT_BYTES + room, len: RECEIVE_SLOT_BYTES - room }
}

/// Whether a segment's checksum is right.
fn is_intact(segment: &TcpSegment, frame: Span, pair: &VnicPair) -> Result<bool, StaleSegment> {
    let (mut sum, skip) = (segment.sum_of_headers(), segment.header_len());
    add_span(&mut sum, pair, frame, skip)?;
    Ok(segment.is_intact(sum))
}
