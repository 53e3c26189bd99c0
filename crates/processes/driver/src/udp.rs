//! The back end for tunnels over UDP and raw sockets (GRE, ERSPAN): `recvmmsg` and `sendmmsg` of datagrams, with inner frames in the vNIC's memory.
//!
//! ```text
//!   datagram   | tunnel's header | inner frame |        kernel ──> [ 128 free | header | inner frame ]
//!                                                       switch <──          [ 128: virtio-net, metadata | inner frame ]
//! ```
//!
//! A UDP socket is of IPv6 and takes IPv4, too. A raw socket, of GRE, is of one of them; of IPv4 it hands over IP headers as well. Routes, source addresses, neighbours, IPsec and filters are the host's.

mod answers;
mod arena;
mod arrivals;
mod control;
mod errors;
mod fragments;
mod headers;
mod peers;
mod sys;
#[cfg(test)]
mod tests;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use arrayvec::ArrayVec;
use lasthop_device::{DeviceDropReason, DeviceFacts, DriverCounters, TunnelFacts};
use lasthop_frontend::{GuestError, VnicPair};
use lasthop_guestmem::{Segment, StaleSegment};
use lasthop_ring::Used;
use lasthop_vhost::features;
use lasthop_wire::tunnel::{HEADER_BYTES, OuterHeader, flag, gre};
use lasthop_wire::{Sum, TcpSegment, vnet};
use rustix::io::Errno;

use self::answers::AnswerLimit;
use self::arena::{add_span, read_span};
use self::arrivals::{Arrivals, Arrived};
use self::control::Endpoint;
use self::errors::{ErrorQueue, ReceivedErrors, is_of_icmp};
use self::fragments::Fragments;
use self::headers::{Headers, START_BYTES, TAGGED_BYTES, WRITTEN_BYTES_MAX};
use self::peers::Peers;
use self::sys::{Message, UdpInbox, UdpOutbox};
use crate::bounds::{
    BATCH, DATAGRAMS_MAX, FOREIGN_ERRORS_MAX, SEND_BYTES_MAX, SEND_PARTS_MAX, SEND_SLOTS, STALE_FRAMES_MAX,
    TUNNEL_ARENA_BYTES, TUNNEL_ENTRIES,
};
use crate::outbound::{at, broken, lend, take_buffer};
use crate::sys::{Arena, PARTS_MAX, Span};
use crate::{Needs, Next, Queue, QueueError, Visit, packet};

/// Whether messages of a socket with these features may have several datagrams. Then frames of several segments go to the switch.
fn has_several(offered: u64) -> bool {
    offered & features::HOST_TSO == features::HOST_TSO
}

/// The properties of the vNIC that a tunnel's end needs.
pub(crate) fn needs(facts: &DeviceFacts) -> Needs {
    if !has_several(facts.features) {
        return packet::NEEDS;
    }
    Needs { rx_entries: SEND_SLOTS, tx_entries: TUNNEL_ENTRIES, arena_bytes: TUNNEL_ARENA_BYTES }
}

/// A frame that was taken from the ring.
#[derive(Clone, Copy, Debug)]
struct Frame {
    /// Number of its buffers.
    parts: usize,
    /// Its length without header.
    len_bytes: usize,
    /// No action of its flow set a tunnel for it, or one to nowhere, or of another kind than the port's.
    is_lost: bool,
    /// By its tunnel.
    fragments: Fragments,
    /// Where it begins.
    first: Span,
    /// Bytes of the tunnel's header in front of it.
    head_bytes: usize,
    /// The address of ours that its flow chose; 0 leaves it to the host.
    local: u128,
    /// The port of the switch that it came from; 0 if it is not known.
    sender: u32,
}

/// One socket of a tunnel port.
#[derive(Debug)]
pub(crate) struct UdpQueue {
    fd: OwnedFd,
    facts: TunnelFacts,
    headers: Headers,
    inbox: UdpInbox,
    arrivals: Arrivals,
    outbox: UdpOutbox,
    errors: ErrorQueue,
    peers: Peers,
    limit: AnswerLimit,
    /// As the socket sends; not known of one that another process had.
    fragments: Option<Fragments>,
    frames: ArrayVec<Frame, BATCH>,
    tokens: ArrayVec<u16, PARTS_MAX>,
    done: usize,
    parts_done: usize,
}

impl UdpQueue {
    /// `offered`: the features of the device.
    pub(crate) fn new(
        fd: OwnedFd,
        offered: u64,
        facts: TunnelFacts,
        pair: &VnicPair,
    ) -> Result<Self, QueueError> {
        let arena = Arc::new(Arena::of(pair).map_err(GuestError::from)?);
        Ok(Self {
            fd,
            facts,
            headers: Headers::new(facts),
            inbox: UdpInbox::new(Arc::clone(&arena)),
            arrivals: Arrivals::new(
                has_several(offered),
                has_several(offered) && pair.has(features::HOST_TSO),
            ),
            outbox: UdpOutbox::new(arena, facts.kind.socket()),
            errors: ErrorQueue::new(facts.kind.socket()),
            peers: Peers::new(),
            limit: AnswerLimit::new(),
            fragments: None,
            frames: ArrayVec::new(),
            tokens: ArrayVec::new(),
            done: 0,
            parts_done: 0,
        })
    }

    /// Receives messages into free buffers; returns their number.
    fn take_messages(&mut self, count: usize) -> Result<usize, QueueError> {
        for _ in 0..2 {
            match self.inbox.receive(self.fd.as_fd(), self.arrivals.spans().take(count)) {
                Ok(count) => return Ok(count),
                Err(Errno::AGAIN | Errno::INTR) => break,
                // An error that other datagrams caused on their way. There may be datagrams behind it.
                Err(error) if is_of_icmp(error) => drop(self.errors.take(self.fd.as_fd())),
                Err(error) => return Err(QueueError::Failed(error)),
            }
        }
        Ok(0)
    }

    /// Makes each datagram of a message, which begins at `offset` of the arena, a frame for the switch, or joins it to the one before. Returns
    /// the number of datagrams.
    fn take_datagrams(
        &mut self,
        message: Message,
        offset: u32,
        pair: &mut VnicPair,
        counters: &mut DriverCounters,
    ) -> Result<usize, StaleSegment> {
        let mut count = 0;
        for (start, len) in message.datagrams() {
            counters.from_device.count(len as usize);
            let datagram = Span { offset: offset + start, len };
            let arrived = match message.endpoint.filter(|_| count < DATAGRAMS_MAX) {
                Some(endpoint) => self.read(datagram, endpoint, pair)?.ok_or(DeviceDropReason::BadTunnel),
                None => Err(DeviceDropReason::Truncated),
            };
            match arrived {
                Ok(mut arrived) => {
                    arrived.has_room = start == 0;
                    self.arrivals.add(arrived, pair, counters)?;
                }
                Err(reason) => counters.drop(reason),
            }
            count += 1;
        }
        Ok(count)
    }

    /// Reads the headers of a datagram. None if they are bad.
    fn read(
        &mut self,
        datagram: Span,
        told: Endpoint,
        pair: &VnicPair,
    ) -> Result<Option<Arrived>, StaleSegment> {
        let mut start = [0; START_BYTES];
        let seen = (datagram.len as usize).min(start.len());
        read_span(pair, datagram, 0, &mut start[..seen])?;
        let Ok((ip, endpoint)) = self.headers.read_ip(&start[..seen], told) else { return Ok(None) };
        let mut tunnel = endpoint.tunnel(self.facts.port);
        let Ok(inner) = self.headers.read(&start[ip..seen], &mut tunnel) else { return Ok(None) };
        self.peers.note(&endpoint);
        if self.headers.is_summed(&tunnel) {
            let (mut sum, skip) = (Sum::default(), ip as u32);
            add_span(&mut sum, pair, datagram, skip)?;
            if gre::is_sound(&tunnel, sum).is_err() {
                return Ok(None);
            }
        }
        let skip = (ip + inner) as u32;
        let span = Span { offset: datagram.offset + skip, len: datagram.len - skip };
        let head = start.get(ip + inner..seen).filter(|_| self.arrivals.joins());
        let segment = head.and_then(|head| TcpSegment::parse(head, span.len));
        Ok(Some(Arrived { span, tunnel, segment, has_room: false }))
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
        let mut head = [0; WRITTEN_BYTES_MAX];
        let head_len = match tunnel {
            Some(tunnel) => self.write(&tunnel, &spans, pair, &mut head)?,
            None => None,
        };
        let (tunnel, is_lost) = (tunnel.unwrap_or_default(), head_len.is_none());
        let to = Endpoint::of(&tunnel, self.facts.port);
        let entered = self.outbox.add(&to, &head[..head_len.unwrap_or(0)], spans.iter().copied());
        debug_assert!(entered, "gather sees to the room");
        let frame = Frame {
            parts,
            len_bytes,
            is_lost,
            fragments: Fragments::of(&tunnel),
            first: spans[0],
            head_bytes: head_len.unwrap_or(0),
            local: to.local,
            sender: tunnel.sender,
        };
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
                add_span(&mut sum, pair, *span, 0)?;
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

    /// Reads the error queue if the last call failed; with the number of datagrams of the message that it failed at.
    fn hear(&mut self) -> (usize, ReceivedErrors) {
        match self.outbox.take_failed() {
            Some(failed) => (failed, self.errors.take(self.fd.as_fd())),
            None => (1, ReceivedErrors::default()),
        }
    }

    /// Marks waiting frames as sent; returns their number.
    fn sent(&mut self, count: usize, pair: &mut VnicPair, counters: &mut DriverCounters) -> usize {
        let count = count.min(self.waiting());
        for _ in 0..count {
            let frame = self.give_back(pair, counters);
            counters.to_device.count(frame.len_bytes);
        }
        count
    }

    /// Loses the first waiting frame, of a message of `failed` datagrams; returns the number of frames. A full queue of a device has taken none
    /// of them, as a message passes the host's stack as one.
    fn lose(
        &mut self,
        reason: DeviceDropReason,
        failed: usize,
        pair: &mut VnicPair,
        counters: &mut DriverCounters,
    ) -> usize {
        let count = if reason == DeviceDropReason::DeviceFull { failed.clamp(1, self.waiting()) } else { 1 };
        for _ in 0..count {
            self.give_back(pair, counters);
            counters.drop(reason);
        }
        count
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

/// Why a frame is lost after an error of the socket (udp(7)).
fn reason_of(error: Errno) -> DeviceDropReason {
    match error {
        Errno::NOBUFS | Errno::NOMEM => DeviceDropReason::DeviceFull,
        Errno::DESTADDRREQ => DeviceDropReason::NoTunnel,
        _ => DeviceDropReason::Refused,
    }
}

impl Queue for UdpQueue {
    fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    fn start(&mut self, pair: &mut VnicPair, counters: &mut DriverCounters) -> Result<(), QueueError> {
        self.arrivals.start();
        self.clear();
        // Errors that another process left there.
        let _ = self.errors.take(self.fd.as_fd());
        for slot in 0..SEND_SLOTS {
            lend(pair, slot);
        }
        for _ in 0..STALE_FRAMES_MAX / BATCH {
            let count = self.take_messages(BATCH)?;
            for (_, len) in (0..count).flat_map(|index| self.inbox.message(index).datagrams()) {
                counters.from_device.count(len as usize);
                counters.drop(DeviceDropReason::NoSwitch);
            }
            if count < BATCH {
                break;
            }
        }
        Ok(())
    }

    fn receive(&mut self, pair: &mut VnicPair, counters: &mut DriverCounters) -> Result<Visit, QueueError> {
        self.arrivals.reclaim(pair)?;
        let room = self.arrivals.room(pair);
        if room == 0 {
            return Ok(Visit { frames: 0, next: Next::Blocked });
        }
        let (count, mut frames) = (self.take_messages(room)?, 0);
        for index in 0..count {
            let Some(offset) = self.arrivals.next_message() else { break };
            let message = self.inbox.message(index);
            frames += self.take_datagrams(message, offset, pair, counters).map_err(GuestError::from)?;
        }
        self.arrivals.finish(pair, counters).map_err(GuestError::from)?;
        let next = if count == room { Next::More } else { Next::Idle };
        Ok(Visit { frames, next })
    }

    fn send(&mut self, pair: &mut VnicPair, counters: &mut DriverCounters) -> Result<Visit, QueueError> {
        self.gather(pair, counters)?;
        let (mut frames, mut attempts) = (0, FOREIGN_ERRORS_MAX);
        while self.waiting() > 0 {
            let pushed = self.push();
            let (failed, heard) = self.hear();
            frames += match pushed {
                Ok(count) => self.sent(count, pair, counters),
                Err(Errno::AGAIN | Errno::INTR) => return Ok(Visit { frames, next: Next::Blocked }),
                Err(error) => {
                    let mtu = heard.mtu(self.outbox.destination(self.done).0);
                    // The error of another datagram, for which this one was not sent.
                    if is_of_icmp(error) && heard.has_foreign && mtu.is_none() && attempts > 0 {
                        attempts -= 1;
                        continue;
                    }
                    match error {
                        Errno::MSGSIZE => self.lose_long(mtu, pair, counters)?,
                        error => self.lose(reason_of(error), failed, pair, counters),
                    }
                }
            };
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
