//! Frames towards a tunnel: a batch from the ring, as datagrams in the order of sending. Buffers of a frame are lent again once its last datagram is done.
//!
//! ```text
//!   frames      [    large frame    | frame |    large frame    ]
//!   datagrams   [ d | d | d | d | w |   w   | w | w | w | w | w ]
//!                        done^    waiting
//! ```

use std::sync::Arc;

use arrayvec::ArrayVec;
use lasthop_device::{DeviceDropReason, DriverCounters, TunnelSocket};
use lasthop_frontend::{GuestError, VnicPair};
use lasthop_guestmem::StaleSegment;
use lasthop_wire::gso::SEGMENTS_MAX;
use lasthop_wire::tunnel::layer3::PLACEHOLDER_BYTES;
use lasthop_wire::tunnel::{HEADER_BYTES, OuterHeader, flag, gre};
use lasthop_wire::{Offload, Sum, vnet};

use super::arena::{SpanCursor, add_span, read_span, read_start};
use super::control::Endpoint;
use super::fragments::Fragments;
use super::headers::{Headers, TAGGED_BYTES, WRITTEN_BYTES_MAX};
use super::sys::UdpOutbox;
use crate::bounds::{BATCH, SEND_BYTES_MAX, SEND_DATAGRAMS_MAX, SEND_PARTS_MAX};
use crate::outbound::{at, broken, lend, read_header, take_buffer};
use crate::sys::{Arena, PARTS_MAX, Span};

/// The buffers of a frame, header not counted.
pub(super) type Spans = ArrayVec<Span, SEND_PARTS_MAX>;

/// A frame that was taken from the ring.
#[derive(Clone, Copy, Debug)]
pub(super) struct Frame {
    /// Number of its buffers.
    parts: usize,
    /// By its tunnel.
    pub(super) fragments: Fragments,
    /// Bytes of the tunnel's header in front of each datagram.
    pub(super) head_bytes: usize,
    /// The address of ours that its flow chose; 0 leaves it to the host.
    pub(super) local: u128,
    /// The port of the switch that it came from; 0 if it is not known.
    pub(super) sender: u32,
    /// Bytes of its placeholder, which are not sent; 0 of a frame with an Ethernet header.
    pub(super) placeholder: usize,
}

/// A datagram: a frame with a tunnel's header, or a part of a large one with headers of its own.
#[derive(Clone, Copy, Debug)]
pub(super) struct Datagram {
    /// Its frame.
    pub(super) frame: usize,
    /// It is the last one of its frame.
    is_last: bool,
    /// Why it is not to be sent: its flow set no tunnel of the port's kind, or it cannot be cut.
    pub(super) lost: Option<DeviceDropReason>,
    /// Bytes of it behind the tunnel's header.
    pub(super) len_bytes: usize,
    /// Bytes of these that the outbox has: the headers of a part.
    inner_bytes: usize,
    /// Where the first of those that follow are.
    rest: [Span; 2],
}

/// Frames on their way to the socket.
#[derive(Debug)]
pub(super) struct Departures {
    pub(super) outbox: UdpOutbox,
    frames: ArrayVec<Frame, BATCH>,
    pub(super) datagrams: ArrayVec<Datagram, SEND_DATAGRAMS_MAX>,
    tokens: ArrayVec<u16, PARTS_MAX>,
    /// Of the datagrams, and of the tokens.
    pub(super) done: usize,
    parts_done: usize,
}

impl Departures {
    pub(super) fn new(arena: Arc<Arena>, socket: TunnelSocket) -> Self {
        Self {
            outbox: UdpOutbox::new(arena, socket),
            frames: ArrayVec::new(),
            datagrams: ArrayVec::new(),
            tokens: ArrayVec::new(),
            done: 0,
            parts_done: 0,
        }
    }

    /// Number of datagrams that are not done.
    pub(super) fn waiting(&self) -> usize {
        self.datagrams.len() - self.done
    }

    /// The frame of a datagram.
    pub(super) fn frame(&self, at: usize) -> &Frame {
        &self.frames[self.datagrams[at].frame]
    }

    pub(super) fn clear(&mut self) {
        self.outbox.clear();
        self.frames.clear();
        self.datagrams.clear();
        self.tokens.clear();
        (self.done, self.parts_done) = (0, 0);
    }

    /// Takes another batch from the ring once the last one is done.
    pub(super) fn gather(
        &mut self,
        headers: &mut Headers,
        pair: &mut VnicPair,
        counters: &mut DriverCounters,
    ) -> Result<(), GuestError> {
        if self.waiting() > 0 {
            return Ok(());
        }
        self.clear();
        let (mut pending, mut bytes) = (pair.rx.pending()?, 0);
        while pending > 0 && bytes < SEND_BYTES_MAX && self.has_room() {
            let (parts, len_bytes) = self.take(headers, pair, counters)?;
            bytes += len_bytes;
            pending = pending.saturating_sub(parts as u16); // at most SEND_PARTS_MAX
        }
        Ok(())
    }

    /// Whether any frame fits.
    fn has_room(&self) -> bool {
        !self.frames.is_full()
            && self.datagrams.remaining_capacity() >= SEGMENTS_MAX as usize
            && self.tokens.remaining_capacity() >= 2 * SEND_PARTS_MAX
    }

    /// Takes a frame, which must be available, and adds it to the batch. Returns the number of its buffers, and its bytes.
    fn take(
        &mut self,
        headers: &mut Headers,
        pair: &mut VnicPair,
        counters: &mut DriverCounters,
    ) -> Result<(usize, usize), GuestError> {
        let (header, spans) = self.take_buffers(pair)?;
        let len_bytes = spans.iter().map(|span| span.len as usize).sum();
        counters.from_switch.count(len_bytes);
        let offload = header.first_chunk().map(Offload::parse).unwrap_or_default();
        let tunnel =
            OuterHeader::parse(&header[vnet::HEADER_BYTES..]).filter(|tunnel| tunnel.has(flag::SEND));
        let mut head = [0; WRITTEN_BYTES_MAX];
        let head_len = match tunnel {
            Some(tunnel) => write_header(headers, &tunnel, &spans, pair, &mut head)?,
            None => None,
        };
        let tunnel = tunnel.unwrap_or_default();
        let to = Endpoint::of(&tunnel, headers.facts().port);
        self.outbox.begin(&to);
        self.frames.push(Frame {
            parts: spans.len(),
            fragments: Fragments::of(&tunnel),
            head_bytes: head_len.unwrap_or(0),
            local: to.local,
            sender: tunnel.sender,
            placeholder: placeholder_bytes(&tunnel),
        });
        let first = self.datagrams.len();
        let entered = match head_len {
            None => Err(DeviceDropReason::NoTunnel),
            // The vNICs of others have no offloads.
            Some(len) if !headers.socket().is_udp() => {
                self.enter_whole(&head[..len], &spans, len_bytes);
                Ok(())
            }
            Some(len) => self.enter_offloaded(&head[..len], offload, &spans, pair)?,
        };
        if let Err(reason) = entered {
            self.enter(&[], (&[], len_bytes), &[]);
            if let Some(datagram) = self.datagrams.last_mut() {
                datagram.lost = Some(reason);
            }
        }
        if let Some(last) = self.datagrams.last_mut() {
            last.is_last = true;
        }
        counters.cut += (self.datagrams.len() - first).saturating_sub(1) as u64;
        counters.waiting = self.waiting() as u64;
        Ok((spans.len(), len_bytes))
    }

    /// Takes the buffers of a frame; its header, and the rest.
    fn take_buffers(&mut self, pair: &mut VnicPair) -> Result<([u8; HEADER_BYTES], Spans), GuestError> {
        let first = take_buffer(pair)?;
        let header = read_header(pair, first)?;
        let parts = usize::from(u16::from_le_bytes([header[10], header[11]]));
        if !(1..=SEND_PARTS_MAX).contains(&parts) {
            return Err(broken("its header says that it has no buffer, or more than any frame needs"));
        }
        let (skip, mut spans) = (HEADER_BYTES as u32, Spans::new());
        spans.push(Span { offset: at(first.token as u16) + skip, len: first.len - skip });
        self.tokens.push(first.token as u16);
        for _ in 1..parts {
            let next = take_buffer(pair)?;
            spans.push(Span { offset: at(next.token as u16), len: next.len });
            self.tokens.push(next.token as u16);
        }
        Ok((header, spans))
    }

    /// Adds the last frame as one datagram, without its placeholder.
    pub(super) fn enter_whole(&mut self, head: &[u8], spans: &[Span], len_bytes: usize) {
        let skip = self.placeholder();
        let mut cursor = SpanCursor::new(spans);
        cursor.advance(skip as u32);
        let rest;
        let spans = if skip == 0 {
            spans
        } else {
            rest = cursor.take((len_bytes - skip) as u32);
            &rest
        };
        self.enter(head, (&[], len_bytes - skip), spans);
    }

    /// Bytes of the last frame's placeholder.
    pub(super) fn placeholder(&self) -> usize {
        self.frames.last().map_or(0, |frame| frame.placeholder)
    }

    /// Adds a datagram of the last frame: the tunnel's header, the `inner` headers of a part, and bytes in the arena. `inner.1`: bytes of all
    /// behind the tunnel's header.
    pub(super) fn enter(&mut self, head: &[u8], (inner, len_bytes): (&[u8], usize), rest: &[Span]) {
        let entered = self.outbox.push(head, inner, rest.iter().copied());
        debug_assert!(entered, "gather sees to the room");
        let span = |at: usize| rest.get(at).copied().unwrap_or_default();
        self.datagrams.push(Datagram {
            frame: self.frames.len() - 1,
            is_last: false,
            lost: None,
            len_bytes,
            inner_bytes: inner.len(),
            rest: [span(0), span(1)],
        });
    }

    /// Copies out the first bytes of a datagram's frame; their number.
    pub(super) fn read_start(
        &self,
        at: usize,
        pair: &VnicPair,
        out: &mut [u8],
    ) -> Result<usize, StaleSegment> {
        let datagram = &self.datagrams[at];
        let inner = &self.outbox.head(at)[self.frame(at).head_bytes..][..datagram.inner_bytes];
        let (first, rest) = out.split_at_mut(inner.len().min(out.len()));
        first.copy_from_slice(&inner[..first.len()]);
        Ok(first.len() + read_start(pair, &datagram.rest, rest)?)
    }

    /// Finishes the first waiting datagram. If it is the last one of its frame, lends the frame's buffers again.
    pub(super) fn give_back(&mut self, pair: &mut VnicPair, counters: &mut DriverCounters) -> Datagram {
        let datagram = self.datagrams[self.done];
        if datagram.is_last {
            let parts = self.frames[datagram.frame].parts;
            for token in &self.tokens[self.parts_done..self.parts_done + parts] {
                lend(pair, *token);
            }
            self.parts_done += parts;
        }
        self.done += 1;
        counters.waiting = self.waiting() as u64;
        datagram
    }
}

/// Bytes in front of the packet of such a tunnel that are not sent.
fn placeholder_bytes(tunnel: &OuterHeader) -> usize {
    if tunnel.is_layer3 { PLACEHOLDER_BYTES } else { 0 }
}

/// Writes the header in front of a frame that lies in these spans; its bytes. None if the tunnel is none of this port's.
fn write_header(
    headers: &mut Headers,
    tunnel: &OuterHeader,
    frame: &[Span],
    pair: &VnicPair,
    head: &mut [u8; WRITTEN_BYTES_MAX],
) -> Result<Option<usize>, StaleSegment> {
    let mut start = [0; TAGGED_BYTES];
    let mut seen = 0;
    let is_read = headers.facts().kind.is_erspan() || tunnel.is_layer3;
    if let Some(first) = frame.first().filter(|_| is_read) {
        seen = start.len().min(first.len as usize);
        read_span(pair, *first, 0, &mut start[..seen])?;
    }
    let Some(len) = headers.write(tunnel, &start[..seen], head) else { return Ok(None) };
    if headers.is_summed(tunnel) {
        let mut sum = Sum::default();
        sum.add(&head[..len]);
        for (index, span) in frame.iter().enumerate() {
            // A placeholder lies in the first one, of which it was read.
            let skip = if index == 0 { placeholder_bytes(tunnel) as u32 } else { 0 };
            add_span(&mut sum, pair, *span, skip)?;
        }
        gre::write_checksum(sum, &mut head[..len]);
    }
    Ok(Some(len))
}
