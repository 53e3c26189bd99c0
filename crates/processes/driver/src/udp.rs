//! The back end for tunnels: `recvmmsg` and `sendmmsg` of datagrams, with inner frames in the vNIC's memory.
//!
//! ```text
//!   datagram   | tunnel's header | inner frame |        kernel ──> [ 124 free | header | inner frame ]
//!                                                       switch <──          [ 124: virtio-net, metadata | inner frame ]
//! ```
//!
//! A UDP socket is of IPv6 and takes IPv4, too. A raw socket, of GRE, is of one of them; of IPv4 it hands over IP headers as well. Routes, source addresses, neighbours, IPsec and filters are the host's.

mod control;
mod fragments;
mod headers;
mod sys;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use arrayvec::ArrayVec;
use lasthop_device::{DeviceDropReason, DriverCounters, TunnelFacts};
use lasthop_frontend::{GuestError, VnicPair};
use lasthop_guestmem::{Segment, StaleSegment};
use lasthop_ring::Used;
use lasthop_wire::tunnel::{HEADER_BYTES, OuterHeader, TUNNEL_BYTES, flag, gre};
use lasthop_wire::{Sum, vnet};
use rustix::io::Errno;

use self::control::Endpoint;
use self::fragments::Fragments;
use self::headers::{Headers, START_BYTES, TAGGED_BYTES, WRITTEN_BYTES_MAX};
use self::sys::{UdpInbox, UdpOutbox};
use crate::bounds::{
    BATCH, RECEIVE_SLOT_BYTES, SEND_BYTES_MAX, SEND_PARTS_MAX, SEND_SLOTS, STALE_FRAMES_MAX,
};
use crate::inbound::{Inbound, Slot};
use crate::outbound::{at, broken, lend, take_buffer};
use crate::sys::{Arena, PARTS_MAX, Span};
use crate::{Next, Queue, QueueError, Visit};

/// A frame that was taken from the ring.
#[derive(Clone, Copy, Debug)]
struct Frame {
    /// Buffers that it lies in.
    parts: usize,
    /// Its bytes, without header.
    len_bytes: usize,
    /// No action of its flow set a tunnel for it, or one to nowhere, or of another kind than the port's.
    is_lost: bool,
    /// By its tunnel.
    fragments: Fragments,
}

/// One socket of a tunnel port.
#[derive(Debug)]
pub(crate) struct UdpQueue {
    fd: OwnedFd,
    facts: TunnelFacts,
    headers: Headers,
    inbox: UdpInbox,
    inbound: Inbound,
    outbox: UdpOutbox,
    /// As the socket sends; not known of one that another process had.
    fragments: Option<Fragments>,
    frames: ArrayVec<Frame, BATCH>,
    tokens: ArrayVec<u16, PARTS_MAX>,
    done: usize,
    parts_done: usize,
}

impl UdpQueue {
    pub(crate) fn new(fd: OwnedFd, facts: TunnelFacts, pair: &VnicPair) -> Result<Self, QueueError> {
        let arena = Arc::new(Arena::of(pair).map_err(GuestError::from)?);
        Ok(Self {
            fd,
            facts,
            headers: Headers::new(facts),
            inbox: UdpInbox::new(Arc::clone(&arena)),
            inbound: Inbound::new(),
            outbox: UdpOutbox::new(arena, facts.kind.socket()),
            fragments: None,
            frames: ArrayVec::new(),
            tokens: ArrayVec::new(),
            done: 0,
            parts_done: 0,
        })
    }

    /// Receives datagrams into free buffers, behind room for the header of frames; how many came.
    fn take_datagrams(&mut self, count: usize) -> Result<usize, QueueError> {
        let room = HEADER_BYTES as u32;
        let behind = |slot: Span| Span { offset: slot.offset + room, len: slot.len - room };
        match self.inbox.receive(self.fd.as_fd(), self.inbound.spans().take(count).map(behind)) {
            Ok(count) => Ok(count),
            // Errors that other datagrams met on the way pass, too.
            Err(Errno::AGAIN | Errno::INTR | Errno::CONNREFUSED | Errno::HOSTUNREACH | Errno::NETUNREACH) => {
                Ok(0)
            }
            Err(error) => Err(QueueError::Failed(error)),
        }
    }

    /// Makes datagram `index`, which lies in `slot`, a frame for the switch: where it starts in the slot, and its bytes, its header
    /// counted; or why it cannot be one.
    fn prepare(
        &self,
        index: usize,
        slot: &Slot,
        pair: &VnicPair,
    ) -> Result<Result<(u32, u32), DeviceDropReason>, StaleSegment> {
        let (len, endpoint) = self.inbox.datagram(index);
        let fits = len <= RECEIVE_SLOT_BYTES - HEADER_BYTES as u32;
        let Some(endpoint) = endpoint.filter(|_| fits) else { return Ok(Err(DeviceDropReason::Truncated)) };
        let Some((inner, tunnel)) = self.read(slot, len, endpoint, pair)? else {
            return Ok(Err(DeviceDropReason::BadTunnel));
        };
        let (mut header, mut metadata) = ([0; HEADER_BYTES], [0; TUNNEL_BYTES]);
        let _ = tunnel.emit(&mut metadata); // its length is in it
        header[vnet::HEADER_BYTES..].copy_from_slice(&metadata);
        slot.write(pair, inner as u32, &header)?;
        Ok(Ok((inner as u32, HEADER_BYTES as u32 + len - inner as u32)))
    }

    /// Reads the headers of a datagram of `len` bytes: where the inner frame begins, and its tunnel. None if they are bad.
    fn read(
        &self,
        slot: &Slot,
        len: u32,
        told: Endpoint,
        pair: &VnicPair,
    ) -> Result<Option<(usize, OuterHeader)>, StaleSegment> {
        let mut start = [0; START_BYTES];
        let seen = (len as usize).min(start.len());
        slot.read(pair, HEADER_BYTES as u32, &mut start[..seen])?;
        let Ok((ip, endpoint)) = self.headers.read_ip(&start[..seen], told) else { return Ok(None) };
        let mut tunnel = endpoint.tunnel(self.facts.port);
        let Ok(inner) = self.headers.read(&start[ip..seen], &mut tunnel) else { return Ok(None) };
        if self.headers.is_summed(&tunnel) {
            let sum =
                sum_of(len - ip as u32, |skip, out| slot.read(pair, (HEADER_BYTES + ip) as u32 + skip, out))?;
            if gre::is_sound(&tunnel, sum).is_err() {
                return Ok(None);
            }
        }
        Ok(Some((ip + inner, tunnel)))
    }

    fn waiting(&self) -> usize {
        self.frames.len() - self.done
    }

    fn clear(&mut self) {
        self.outbox.clear();
        self.frames.clear();
        self.tokens.clear();
        (self.done, self.parts_done) = (0, 0);
    }

    /// Takes another batch from the ring, when the last one is done.
    fn gather(&mut self, pair: &mut VnicPair, counters: &mut DriverCounters) -> Result<(), GuestError> {
        if self.waiting() > 0 {
            return Ok(());
        }
        self.clear();
        let (mut pending, mut bytes) = (pair.rx.pending()?, 0);
        while pending > 0
            && !self.frames.is_full()
            && bytes < SEND_BYTES_MAX
            && self.tokens.remaining_capacity() >= 2 * SEND_PARTS_MAX
        {
            let frame = self.take(pair)?;
            counters.from_switch.count(frame.len_bytes);
            counters.waiting = self.waiting() as u64;
            bytes += frame.len_bytes;
            pending = pending.saturating_sub(frame.parts as u16); // at most SEND_PARTS_MAX
        }
        Ok(())
    }

    /// Takes one frame, which is there, and enters it.
    fn take(&mut self, pair: &mut VnicPair) -> Result<Frame, GuestError> {
        let first = take_buffer(pair)?;
        let header = read_header(pair, first)?;
        let parts = usize::from(u16::from_le_bytes([header[10], header[11]]));
        if !(1..=SEND_PARTS_MAX).contains(&parts) {
            return Err(broken("its header says that it has no buffer, or more than any frame needs"));
        }
        let skip = HEADER_BYTES as u32;
        let mut spans: ArrayVec<Span, SEND_PARTS_MAX> = ArrayVec::new();
        spans.push(Span { offset: at(first.token as u16) + skip, len: first.len - skip });
        self.tokens.push(first.token as u16);
        let mut len_bytes = (first.len - skip) as usize;
        for _ in 1..parts {
            let next = take_buffer(pair)?;
            spans.push(Span { offset: at(next.token as u16), len: next.len });
            self.tokens.push(next.token as u16);
            len_bytes += next.len as usize;
        }
        let tunnel =
            OuterHeader::parse(&header[vnet::HEADER_BYTES..]).filter(|tunnel| tunnel.has(flag::SEND));
        let mut head = [0; WRITTEN_BYTES_MAX];
        let head_len = match tunnel {
            Some(tunnel) => self.write(&tunnel, &spans, pair, &mut head)?,
            None => None,
        };
        let (tunnel, is_lost) = (tunnel.unwrap_or_default(), head_len.is_none());
        let to = Endpoint::of(&tunnel, self.facts.port);
        let entered = self.outbox.add(&to, &head[..head_len.unwrap_or(0)], spans.into_iter());
        debug_assert!(entered, "gather sees to the room");
        let frame = Frame { parts, len_bytes, is_lost, fragments: Fragments::of(&tunnel) };
        self.frames.push(frame);
        Ok(frame)
    }

    /// Writes the header in front of a frame that lies in these spans; its bytes. None if the tunnel is none of this port's.
    fn write(
        &mut self,
        tunnel: &OuterHeader,
        frame: &[Span],
        pair: &VnicPair,
        head: &mut [u8; WRITTEN_BYTES_MAX],
    ) -> Result<Option<usize>, StaleSegment> {
        let mut start = [0; TAGGED_BYTES];
        let mut seen = 0;
        if let Some(first) = frame.first().filter(|_| self.facts.kind.is_erspan()) {
            seen = start.len().min(first.len as usize);
            read_span(pair, *first, 0, &mut start[..seen])?;
        }
        let Some(len) = self.headers.write(tunnel, &start[..seen], head) else { return Ok(None) };
        if self.headers.is_summed(tunnel) {
            let mut sum = Sum::default();
            sum.add(&head[..len]);
            for span in frame {
                add_to(&mut sum, span.len, |skip, out| read_span(pair, *span, skip, out))?;
            }
            gre::write_checksum(sum, &mut head[..len]);
        }
        Ok(Some(len))
    }

    /// Sends frames that wait, up to the first that goes nowhere or is sent in another way; how many.
    fn push(&mut self) -> Result<usize, Errno> {
        let waiting = &self.frames[self.done..];
        let Some(first) = waiting.first().filter(|frame| !frame.is_lost) else {
            return Err(Errno::DESTADDRREQ);
        };
        let alike = |frame: &&Frame| !frame.is_lost && frame.fragments == first.fragments;
        let count = waiting.iter().take_while(alike).count();
        if self.fragments != Some(first.fragments) {
            first.fragments.choose(self.fd.as_fd(), self.facts.kind.socket())?;
            self.fragments = Some(first.fragments);
        }
        self.outbox.send(self.fd.as_fd(), self.done, self.done + count)
    }

    /// The first waiting frame is done: its buffers are lent again.
    fn give_back(&mut self, pair: &mut VnicPair, counters: &mut DriverCounters) -> Frame {
        let frame = self.frames[self.done];
        for token in &self.tokens[self.parts_done..self.parts_done + frame.parts] {
            lend(pair, *token);
        }
        (self.done, self.parts_done) = (self.done + 1, self.parts_done + frame.parts);
        counters.waiting = self.waiting() as u64;
        frame
    }

    fn visited(frames: usize, pair: &mut VnicPair) -> Result<Visit, QueueError> {
        let next = if pair.rx.pending()? > 0 { Next::More } else { Next::Idle };
        Ok(Visit { frames, next })
    }
}

/// Bytes that are copied at a time to be summed.
const SUMMED_BYTES: u32 = 1024;

/// Sums `len` bytes that `read` copies out, from as many on as it is told.
fn add_to(
    sum: &mut Sum,
    len: u32,
    read: impl Fn(u32, &mut [u8]) -> Result<(), StaleSegment>,
) -> Result<(), StaleSegment> {
    let mut piece = [0; SUMMED_BYTES as usize];
    for skip in (0..len).step_by(piece.len()) {
        let piece = &mut piece[..SUMMED_BYTES.min(len - skip) as usize];
        read(skip, piece)?;
        sum.add(piece);
    }
    Ok(())
}

fn sum_of(len: u32, read: impl Fn(u32, &mut [u8]) -> Result<(), StaleSegment>) -> Result<Sum, StaleSegment> {
    let mut sum = Sum::default();
    add_to(&mut sum, len, read).map(|()| sum)
}

fn read_span(pair: &VnicPair, span: Span, skip: u32, out: &mut [u8]) -> Result<(), StaleSegment> {
    let arena = pair.arena();
    let segment = Segment { offset: arena.offset + u64::from(span.offset), len: span.len, ..arena };
    pair.map().read(segment, skip, out)
}

fn read_header(pair: &VnicPair, first: Used) -> Result<[u8; HEADER_BYTES], GuestError> {
    let mut header = [0; HEADER_BYTES];
    if (first.len as usize) < HEADER_BYTES {
        return Err(broken("it is shorter than its header"));
    }
    let arena = pair.arena();
    let segment = Segment { offset: arena.offset + u64::from(at(first.token as u16)), ..arena };
    pair.map().read(segment, 0, &mut header)?;
    Ok(header)
}

/// Why a frame is lost, by the error of the socket; none if it waits (udp(7)).
fn reason_of(error: Errno) -> Option<DeviceDropReason> {
    match error {
        Errno::AGAIN | Errno::INTR => None,
        Errno::NOBUFS | Errno::NOMEM => Some(DeviceDropReason::DeviceFull),
        Errno::MSGSIZE => Some(DeviceDropReason::TooLong),
        Errno::DESTADDRREQ => Some(DeviceDropReason::NoTunnel),
        _ => Some(DeviceDropReason::Refused),
    }
}

impl Queue for UdpQueue {
    fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    fn start(&mut self, pair: &mut VnicPair, counters: &mut DriverCounters) -> Result<(), QueueError> {
        self.inbound.start();
        self.clear();
        for slot in 0..SEND_SLOTS {
            lend(pair, slot);
        }
        for _ in 0..STALE_FRAMES_MAX / BATCH {
            let count = self.take_datagrams(BATCH)?;
            for index in 0..count {
                counters.from_device.count(self.inbox.datagram(index).0 as usize);
                counters.drop(DeviceDropReason::NoSwitch);
            }
            if count < BATCH {
                break;
            }
        }
        Ok(())
    }

    fn receive(&mut self, pair: &mut VnicPair, counters: &mut DriverCounters) -> Result<Visit, QueueError> {
        self.inbound.reclaim(pair)?;
        let room = self.inbound.room().min(BATCH);
        if room == 0 {
            return Ok(Visit { frames: 0, next: Next::Blocked });
        }
        let count = self.take_datagrams(room)?;
        let mut unused: ArrayVec<Slot, BATCH> = ArrayVec::new();
        for index in 0..count {
            let Some(slot) = self.inbound.take() else { break };
            counters.from_device.count(self.inbox.datagram(index).0 as usize);
            match self.prepare(index, &slot, pair).map_err(GuestError::from)? {
                Ok((skip, len)) => {
                    slot.lend(pair, skip, len);
                    counters.to_switch.count(len as usize - HEADER_BYTES);
                }
                Err(reason) => {
                    counters.drop(reason);
                    unused.push(slot);
                }
            }
        }
        // Not before: the next datagram lies in the next free slot.
        unused.into_iter().for_each(|slot| self.inbound.give_back(slot));
        let next = if count == room { Next::More } else { Next::Idle };
        Ok(Visit { frames: count, next })
    }

    fn send(&mut self, pair: &mut VnicPair, counters: &mut DriverCounters) -> Result<Visit, QueueError> {
        self.gather(pair, counters)?;
        let mut frames = 0;
        while self.waiting() > 0 {
            match self.push().map_err(reason_of) {
                Ok(count) => {
                    let count = count.min(self.waiting());
                    for _ in 0..count {
                        let frame = self.give_back(pair, counters);
                        counters.to_device.count(frame.len_bytes);
                    }
                    frames += count;
                }
                Err(None) => return Ok(Visit { frames, next: Next::Blocked }),
                Err(Some(reason)) => {
                    self.give_back(pair, counters);
                    counters.drop(reason);
                    frames += 1;
                }
            }
        }
        Self::visited(frames, pair)
    }

    fn discard(
        &mut self,
        pair: &mut VnicPair,
        counters: &mut DriverCounters,
        reason: DeviceDropReason,
    ) -> Result<Visit, QueueError> {
        self.gather(pair, counters)?;
        let frames = self.waiting();
        for _ in 0..frames {
            self.give_back(pair, counters);
            counters.drop(reason);
        }
        Self::visited(frames, pair)
    }

    /// Datagrams that a full socket drops are in the host's counters (`nstat UdpRcvbufErrors`).
    fn missed(&mut self) -> u64 {
        0
    }
}
