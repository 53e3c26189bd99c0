//! The back end for tunnels over UDP and raw sockets (GRE, ERSPAN): `recvmmsg` and `sendmmsg` of datagrams, with inner frames in the vNIC's memory.
//!
//! ```text
//!   datagram   | tunnel's header | inner frame |        kernel ──> [ 128 free | header | inner frame ]
//!                                                       switch <──          [ 128: virtio-net, metadata | inner frame ]
//! ```
//!
//! A UDP socket is of IPv6 and takes IPv4, too; on a host without IPv6 it is of IPv4. A raw socket, of GRE, is of one of them; of IPv4 it hands over IP headers as well. Routes, source addresses, neighbours, IPsec and filters are the host's.

mod answers;
mod arena;
mod arrivals;
mod control;
mod cut;
mod departures;
mod errors;
mod fragments;
mod headers;
mod peers;
mod sys;
#[cfg(test)]
mod tests;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use lasthop_device::{DeviceDropReason, DeviceFacts, DriverCounters, TunnelFacts, TunnelKind, TunnelSocket};
use lasthop_frontend::{GuestError, VnicPair};
use lasthop_guestmem::StaleSegment;
use lasthop_vhost::features;
use lasthop_wire::tunnel::{gre, layer3};
use lasthop_wire::{Sum, TcpSegment};
use rustix::io::Errno;
use rustix::net::{AddressFamily, getsockname};

use self::answers::AnswerLimit;
use self::arena::{add_span, read_span, write_at};
use self::arrivals::{Arrivals, Arrived};
use self::control::Endpoint;
use self::departures::Departures;
use self::errors::{ErrorQueue, ReceivedErrors, is_of_icmp};
use self::fragments::Fragments;
use self::headers::{Headers, START_BYTES};
use self::peers::Peers;
use self::sys::{Message, UdpInbox};
use crate::bounds::{
    BATCH, DATAGRAMS_MAX, FOREIGN_ERRORS_MAX, SEND_SLOTS, STALE_FRAMES_MAX, TUNNEL_ARENA_BYTES,
    TUNNEL_ENTRIES,
};
use crate::outbound::lend;
use crate::sys::{Arena, Span, dropped_by_socket};
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

/// One socket of a tunnel port.
#[derive(Debug)]
pub(crate) struct UdpQueue {
    fd: OwnedFd,
    facts: TunnelFacts,
    headers: Headers,
    inbox: UdpInbox,
    arrivals: Arrivals,
    departures: Departures,
    errors: ErrorQueue,
    peers: Peers,
    limit: AnswerLimit,
    /// As the socket sends; not known of one that another process had.
    fragments: Option<Fragments>,
    /// The socket's losses, as they were read last.
    dropped: u32,
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
        let socket = socket_of(fd.as_fd(), facts.kind);
        Ok(Self {
            dropped: dropped_by_socket(fd.as_fd()),
            fd,
            facts,
            headers: Headers::new(facts, socket),
            inbox: UdpInbox::new(Arc::clone(&arena), socket),
            arrivals: Arrivals::new(
                has_several(offered),
                has_several(offered) && pair.has(features::HOST_TSO),
                facts.kind.needs_room(),
            ),
            departures: Departures::new(arena, socket),
            errors: ErrorQueue::new(socket),
            peers: Peers::new(),
            limit: AnswerLimit::new(),
            fragments: None,
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
                    debug_assert!(arrived.has_room || !arrived.tunnel.is_layer3, "they come one by one");
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
        let skip = (ip + inner.at) as u32;
        let mut span = Span { offset: datagram.offset + skip, len: datagram.len - skip };
        if let Some(ethertype) = inner.ethertype {
            // Over the tunnel's header, or in the room in front of the datagram.
            let bytes = layer3::placeholder(ethertype);
            span = Span { offset: span.offset - bytes.len() as u32, len: span.len + bytes.len() as u32 };
            write_at(pair, span.offset, &bytes)?;
            return Ok(Some(Arrived { span, tunnel, segment: None, has_room: false }));
        }
        let head = start.get(ip + inner.at..seen).filter(|_| self.arrivals.joins());
        let segment = head.and_then(|head| TcpSegment::parse(head, span.len));
        Ok(Some(Arrived { span, tunnel, segment, has_room: false }))
    }

    /// Sends datagrams that wait, up to the first that goes nowhere or is sent in another way; how many. The first one goes somewhere.
    fn push(&mut self) -> Result<usize, Errno> {
        let departures = &mut self.departures;
        let (done, end) = (departures.done, departures.datagrams.len());
        let fragments = departures.frame(done).fragments;
        let is_alike = |at: &usize| {
            departures.datagrams[*at].lost.is_none() && departures.frame(*at).fragments == fragments
        };
        let count = (done..end).take_while(is_alike).count();
        if self.fragments != Some(fragments) {
            fragments.choose(self.fd.as_fd(), self.headers.socket())?;
            self.fragments = Some(fragments);
        }
        departures.outbox.send(self.fd.as_fd(), done, done + count)
    }

    /// Reads the error queue if the last call failed; with the number of datagrams of the message that it failed at.
    fn hear(&mut self) -> (usize, ReceivedErrors) {
        match self.departures.outbox.take_failed() {
            Some(failed) => (failed, self.errors.take(self.fd.as_fd())),
            None => (1, ReceivedErrors::default()),
        }
    }

    /// Marks waiting datagrams as sent; returns their number.
    fn sent(&mut self, count: usize, pair: &mut VnicPair, counters: &mut DriverCounters) -> usize {
        let count = count.min(self.departures.waiting());
        for _ in 0..count {
            let datagram = self.departures.give_back(pair, counters);
            counters.to_device.count(datagram.len_bytes);
        }
        count
    }

    /// Loses the first waiting datagram, of a message of `failed`; returns the number of lost ones. A full queue of a device has taken none
    /// of them, as a message passes the host's stack as one.
    fn lose(
        &mut self,
        reason: DeviceDropReason,
        failed: usize,
        pair: &mut VnicPair,
        counters: &mut DriverCounters,
    ) -> usize {
        let count = if reason == DeviceDropReason::DeviceFull {
            failed.clamp(1, self.departures.waiting())
        } else {
            1
        };
        for _ in 0..count {
            self.departures.give_back(pair, counters);
            counters.drop(reason);
        }
        count
    }

    fn visited(frames: usize, pair: &mut VnicPair) -> Result<Visit, QueueError> {
        let next = if pair.rx.pending()? > 0 { Next::More } else { Next::Idle };
        Ok(Visit { frames, next })
    }
}

/// Which socket of this kind of tunnel `fd` is: one of UDP was opened for IPv4 alone where the host has no IPv6.
fn socket_of(fd: BorrowedFd<'_>, kind: TunnelKind) -> TunnelSocket {
    let is_ipv4 = || getsockname(fd).is_ok_and(|address| address.address_family() == AddressFamily::INET);
    match kind.socket() {
        TunnelSocket::Udp if is_ipv4() => TunnelSocket::UdpIpv4,
        socket => socket,
    }
}

/// Why a frame is lost after an error of the socket (udp(7)).
fn reason_of(error: Errno) -> DeviceDropReason {
    match error {
        Errno::NOBUFS | Errno::NOMEM => DeviceDropReason::DeviceFull,
        _ => DeviceDropReason::Refused,
    }
}

impl Queue for UdpQueue {
    fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    fn start(&mut self, pair: &mut VnicPair, counters: &mut DriverCounters) -> Result<(), QueueError> {
        self.arrivals.start();
        self.departures.clear();
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
        self.departures.gather(&mut self.headers, pair, counters)?;
        let (mut frames, mut attempts) = (0, FOREIGN_ERRORS_MAX);
        while self.departures.waiting() > 0 {
            if let Some(reason) = self.departures.datagrams[self.departures.done].lost {
                frames += self.lose(reason, 1, pair, counters);
                continue;
            }
            let pushed = self.push();
            let (failed, heard) = self.hear();
            frames += match pushed {
                Ok(count) => self.sent(count, pair, counters),
                Err(Errno::AGAIN | Errno::INTR) => return Ok(Visit { frames, next: Next::Blocked }),
                Err(error) => {
                    let mtu = heard.mtu(self.departures.outbox.destination(self.departures.done).0);
                    // The error of another datagram, for which this one was not sent.
                    if is_of_icmp(error) && heard.has_foreign && mtu.is_none() && attempts > 0 {
                        attempts -= 1;
                        continue;
                    }
                    match error {
                        Errno::MSGSIZE => {
                            // Without a word of the kernel's it is what IPsec adds that does not fit.
                            let mtu = mtu.or_else(|| (!heard.has_foreign).then(|| self.encrypted_mtu()));
                            self.lose_long(mtu, pair, counters)?
                        }
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
        self.departures.gather(&mut self.headers, pair, counters)?;
        let frames = self.departures.waiting();
        for _ in 0..frames {
            self.departures.give_back(pair, counters);
            counters.drop(reason);
        }
        Self::visited(frames, pair)
    }

    fn missed(&mut self) -> u64 {
        let now = dropped_by_socket(self.fd.as_fd());
        now.wrapping_sub(std::mem::replace(&mut self.dropped, now)).into()
    }
}
