//! The back end for tunnels: `recvmmsg` and `sendmmsg` of UDP datagrams, with inner frames in the vNIC's memory.
//!
//! ```text
//!   datagram   | tunnel's header | inner frame |        kernel ──> [ 124 free | header | inner frame ]
//!                                                       switch <──          [ 124: virtio-net, metadata | inner frame ]
//! ```
//!
//! The socket is of IPv6 and accepts IPv4, too. The host decides about routes, source addresses, neighbours, IPsec and
//! filters.

mod control;
mod sys;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use arrayvec::ArrayVec;
use lasthop_device::{DeviceDropReason, DriverCounters, TunnelFacts, TunnelKind};
use lasthop_frontend::{GuestError, VnicPair};
use lasthop_guestmem::{Segment, StaleSegment};
use lasthop_ring::Used;
use lasthop_wire::tunnel::geneve::{self, HEADER_BYTES_MAX};
use lasthop_wire::tunnel::{HEADER_BYTES, OuterHeader, TUNNEL_BYTES, TunnelFault, flag, vxlan};
use lasthop_wire::vnet;
use rustix::io::Errno;

use self::control::Endpoint;
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
    /// Number of its buffers.
    parts: usize,
    /// Its length without header.
    len_bytes: usize,
    /// Whether it is dropped: no action of its flow set a tunnel, or one without destination.
    is_lost: bool,
}

/// One socket of a tunnel port.
#[derive(Debug)]
pub(crate) struct UdpQueue {
    fd: OwnedFd,
    facts: TunnelFacts,
    inbox: UdpInbox,
    inbound: Inbound,
    outbox: UdpOutbox,
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
            inbox: UdpInbox::new(Arc::clone(&arena)),
            inbound: Inbound::new(),
            outbox: UdpOutbox::new(arena),
            frames: ArrayVec::new(),
            tokens: ArrayVec::new(),
            done: 0,
            parts_done: 0,
        })
    }

    /// Receives datagrams into free buffers, behind room for a frame's header; returns their number.
    fn take_datagrams(&mut self, count: usize) -> Result<usize, QueueError> {
        let room = HEADER_BYTES as u32;
        let behind = |slot: Span| Span { offset: slot.offset + room, len: slot.len - room };
        match self.inbox.receive(self.fd.as_fd(), self.inbound.spans().take(count).map(behind)) {
            Ok(count) => Ok(count),
            // Errors that other datagrams caused on their way are transient, too.
            Err(Errno::AGAIN | Errno::INTR | Errno::CONNREFUSED | Errno::HOSTUNREACH | Errno::NETUNREACH) => {
                Ok(0)
            }
            Err(error) => Err(QueueError::Failed(error)),
        }
    }

    /// Makes datagram `index`, which is in `slot`, a frame for the switch. Returns its offset in the slot and its
    /// length including the header, or the reason to drop it.
    fn prepare(
        &self,
        index: usize,
        slot: &Slot,
        pair: &VnicPair,
    ) -> Result<Result<(u32, u32), DeviceDropReason>, StaleSegment> {
        let (len, endpoint) = self.inbox.datagram(index);
        let fits = len <= RECEIVE_SLOT_BYTES - HEADER_BYTES as u32;
        let Some(endpoint) = endpoint.filter(|_| fits) else { return Ok(Err(DeviceDropReason::Truncated)) };
        let mut start = [0; HEADER_BYTES_MAX + 14];
        let seen = (len as usize).min(start.len());
        slot.read(pair, HEADER_BYTES as u32, &mut start[..seen])?;
        let mut tunnel = endpoint.tunnel(self.facts.port);
        let Ok(inner) = self.read(&start[..seen], &mut tunnel) else {
            return Ok(Err(DeviceDropReason::BadTunnel));
        };
        let (mut header, mut metadata) = ([0; HEADER_BYTES], [0; TUNNEL_BYTES]);
        let _ = tunnel.emit(&mut metadata); // its length is in it
        header[vnet::HEADER_BYTES..].copy_from_slice(&metadata);
        slot.write(pair, inner as u32, &header)?;
        Ok(Ok((inner as u32, HEADER_BYTES as u32 + len - inner as u32)))
    }

    /// Offset of the inner frame in a datagram that begins with these bytes.
    fn read(&self, start: &[u8], tunnel: &mut OuterHeader) -> Result<usize, TunnelFault> {
        match self.facts.kind {
            TunnelKind::Geneve => geneve::read(start, tunnel),
            TunnelKind::Vxlan => vxlan::read(start, false, tunnel),
            TunnelKind::VxlanGbp => vxlan::read(start, true, tunnel),
        }
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

    /// Takes another batch from the ring once the last one is done.
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

    /// Takes a frame, which must be available, and adds it to the batch.
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
        let (tunnel, is_lost) = (tunnel.unwrap_or_default(), tunnel.is_none_or(|tunnel| tunnel.dst == 0));
        let mut head = [0; HEADER_BYTES_MAX];
        let head_len = self.write(&tunnel, &mut head);
        let to = Endpoint::of(&tunnel, self.facts.port);
        let entered = self.outbox.add(&to, &head[..head_len], spans.into_iter());
        debug_assert!(entered, "gather sees to the room");
        let frame = Frame { parts, len_bytes, is_lost };
        self.frames.push(frame);
        Ok(frame)
    }

    /// Writes the header before a frame; returns its length.
    fn write(&self, tunnel: &OuterHeader, head: &mut [u8; HEADER_BYTES_MAX]) -> usize {
        let has_policy = match self.facts.kind {
            TunnelKind::Geneve => return geneve::write(tunnel, head),
            TunnelKind::Vxlan => false,
            TunnelKind::VxlanGbp => true,
        };
        head[..vxlan::HEADER_BYTES].copy_from_slice(&vxlan::write(tunnel, has_policy));
        vxlan::HEADER_BYTES
    }

    /// Sends waiting frames, up to the first without destination; returns their number.
    fn push(&mut self) -> Result<usize, Errno> {
        let sound = self.frames[self.done..].iter().take_while(|frame| !frame.is_lost).count();
        if sound == 0 {
            return Err(Errno::DESTADDRREQ);
        }
        self.outbox.send(self.fd.as_fd(), self.done, self.done + sound)
    }

    /// Finishes the first waiting frame: lends its buffers again.
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

/// Why a frame is lost after an error of the socket (udp(7)); `None` if it waits.
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
        // Only now: the next datagram is in the next free slot.
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

    /// The host's counters have the datagrams that a full socket drops (`nstat UdpRcvbufErrors`).
    fn missed(&mut self) -> u64 {
        0
    }
}
