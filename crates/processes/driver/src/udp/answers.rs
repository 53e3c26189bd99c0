//! Frames that are too long for the path of their tunnel. They are lost, and their sender is told by ICMP how long its packets may be.
//!
//! The answer comes out of the same tunnel, as if the other host had sent it. So it goes through the flows as any packet from there, and
//! the data path has no other way for it. Linux does the same (its `ip_tunnel_core.c`).
//!
//! ```text
//!   to the other host     | outer: local to remote | tunnel's header | Ethernet: A to B | IP: a to b | ...     refused: EMSGSIZE
//!   to the switch         | outer: remote to local | the same        | Ethernet: B to A | IP: b to a | ICMP: MTU | IP: a to b | ...
//! ```

use std::time::{Duration, Instant};

use lasthop_device::{DeviceDropReason, DriverCounters};
use lasthop_frontend::{GuestError, VnicPair};
use lasthop_wire::flow_hash;
use lasthop_wire::headers::IPV6_BYTES;
use lasthop_wire::too_big::{ANSWER_BYTES_MAX, ANSWERED_BYTES, answer};
use lasthop_wire::tunnel::OuterHeader;

use super::UdpQueue;
use super::arena::write_at;
use super::arrivals::Arrived;
use super::control::{Endpoint, is_mapped};
use super::departures::Frame;
use super::headers::WRITTEN_BYTES_MAX;
use crate::QueueError;
use crate::bounds::{ANSWER_INTERVAL, ANSWERS_AT_ONCE, ANSWERS_PLACES};
use crate::sys::Span;

/// Bytes of the headers of IPv4 without options, and of UDP.
const IPV4_BYTES: u32 = 20;
const UDP_BYTES: u32 = 8;
/// Bytes that IPsec adds to a datagram: ESP with AES in Galois/counter mode adds 34 to 37 (RFC 4303, RFC 4106). Where it is more, another
/// answer follows.
const ESP_BYTES: u32 = 40;
/// The TTL of packets out of a tunnel, as if sent by the other host.
const TTL: u8 = 64;
/// Bytes of an Ethernet header, behind which no parser of a tunnel's header looks.
const ETHERNET_BYTES: usize = 14;

/// The limit of answers: some at once, then one an interval, for each port of the switch that frames come from. So a guest that is
/// answered all the time leaves others theirs, by whichever addresses it sends. Ports whose numbers are the same modulo the number of
/// places share one.
#[derive(Debug)]
pub(super) struct AnswerLimit {
    /// For each place, since `start`, the time at which it has all its answers again.
    full_at: Box<[Duration; ANSWERS_PLACES]>,
    start: Instant,
}

impl AnswerLimit {
    pub(super) fn new() -> Self {
        Self { full_at: Box::new([Duration::ZERO; ANSWERS_PLACES]), start: Instant::now() }
    }

    /// Takes an answer for a port, if there is one, `now` after the start.
    fn take(&mut self, sender: u32, now: Duration) -> bool {
        let full_at = &mut self.full_at[sender as usize % ANSWERS_PLACES];
        let next = now.max(*full_at) + ANSWER_INTERVAL;
        let is_due = next <= now + ANSWER_INTERVAL * ANSWERS_AT_ONCE;
        if is_due {
            *full_at = next;
        }
        is_due
    }
}

impl UdpQueue {
    /// Loses the first waiting datagram, and those behind it that are as long and take the same path; `mtu`: of the path, if it is known. Of
    /// frames of one connection that are lost together one is answered. Returns their number.
    pub(super) fn lose_long(
        &mut self,
        mtu: Option<u32>,
        pair: &mut VnicPair,
        counters: &mut DriverCounters,
    ) -> Result<usize, QueueError> {
        let (first, mut answered) = (self.departures.done, None);
        loop {
            if let Some(mtu) = mtu {
                self.answer(mtu, &mut answered, pair, counters)?;
            }
            self.departures.give_back(pair, counters);
            counters.drop(DeviceDropReason::TooLong);
            // Without an MTU, the error may have been of something else.
            let goes_on = mtu.is_some() && self.departures.waiting() > 0 && self.goes_as(first);
            if !goes_on {
                return Ok(self.departures.done - first);
            }
        }
    }

    /// Whether the first waiting datagram would be refused as number `first` was.
    fn goes_as(&self, first: usize) -> bool {
        let (departures, at) = (&self.departures, self.departures.done);
        departures.datagrams[at].lost.is_none()
            && departures.frame(at).fragments == departures.frame(first).fragments
            && departures.outbox.is_as_long(at, first)
    }

    /// Answers the first waiting datagram, unless it is of the connection that was `answered` last.
    fn answer(
        &mut self,
        mtu: u32,
        answered: &mut Option<u32>,
        pair: &mut VnicPair,
        counters: &mut DriverCounters,
    ) -> Result<(), GuestError> {
        let frame = *self.departures.frame(self.departures.done);
        let (mut head, mut out) = ([0; ANSWERED_BYTES], [0; ANSWER_BYTES_MAX]);
        let seen = self.departures.read_start(self.departures.done, pair, &mut head)?;
        let head = &head[..seen];
        let room = mtu.saturating_sub(self.outer_bytes(&frame));
        let is_answered = !self.facts.kind.is_erspan() && frame.placeholder == 0;
        let answer = answer(head, room, &mut out).filter(|_| is_answered);
        let Some((len, flow)) = answer.map(|len| (len, flow_hash(head, 0))) else { return Ok(()) };
        if answered.replace(flow) == Some(flow) {
            return Ok(());
        }
        if self.arrivals.room(pair) == 0 {
            // Nothing that arrived has taken back what the switch has returned.
            self.arrivals.reclaim(pair)?;
        }
        let tunnel = self.tunnel_back(&frame, head).filter(|_| self.arrivals.room(pair) > 0);
        let now = self.limit.start.elapsed();
        let is_due = tunnel.is_some() && self.limit.take(frame.sender, now);
        let (Some(tunnel), true) = (tunnel, is_due) else {
            counters.withheld += 1;
            return Ok(());
        };
        let Some(offset) = self.arrivals.next_message() else { return Ok(()) }; // there is room
        write_at(pair, offset, &out[..len])?;
        counters.answers += 1;
        let span = Span { offset, len: len as u32 }; // at most ANSWER_BYTES_MAX
        let lent = self.arrivals.add(Arrived { span, tunnel, segment: None, has_room: true }, pair, counters);
        Ok(self.arrivals.finish(pair, counters).and(lent)?)
    }

    /// The MTU to tell of a path that takes the first waiting datagram, but not what IPsec makes of it. For IPv6 the kernel compares
    /// datagrams with the path's own MTU, and refuses the encrypted one without an error in the queue.
    pub(super) fn encrypted_mtu(&self) -> u32 {
        let datagram_bytes = self.departures.outbox.datagram_bytes(self.departures.done) as u32; // at most a message's
        (self.ip_bytes() + datagram_bytes).saturating_sub(ESP_BYTES)
    }

    /// Bytes of the headers in front of a frame outside.
    fn outer_bytes(&self, frame: &Frame) -> u32 {
        self.ip_bytes() + frame.head_bytes as u32
    }

    /// Bytes of the headers of IP and UDP that the kernel puts in front of the first waiting datagram.
    fn ip_bytes(&self) -> u32 {
        let (remote, _) = self.departures.outbox.destination(self.departures.done);
        let ip = if is_mapped(remote) { IPV4_BYTES } else { IPV6_BYTES as u32 };
        let udp = if self.headers.socket().is_udp() { UDP_BYTES } else { 0 };
        ip + udp
    }

    /// The header of a packet that the other host sends through the tunnel of the first waiting datagram. None if it is not known which address of
    /// ours it would send it to.
    fn tunnel_back(&self, frame: &Frame, head: &[u8]) -> Option<OuterHeader> {
        let (remote, port) = self.departures.outbox.destination(self.departures.done);
        let local = Some(frame.local).filter(|local| *local != 0).or_else(|| self.peers.local(remote))?;
        let mut tunnel = Endpoint { remote, port, local, tos: 0, ttl: TTL }.tunnel(self.facts.port);
        let mut start = [0; WRITTEN_BYTES_MAX + ETHERNET_BYTES];
        let end = frame.head_bytes + ETHERNET_BYTES;
        start[..frame.head_bytes]
            .copy_from_slice(self.departures.outbox.head(self.departures.done).get(..frame.head_bytes)?);
        start[frame.head_bytes..end].copy_from_slice(head.get(..ETHERNET_BYTES)?);
        self.headers.read(&start[..end], &mut tunnel).ok()?;
        Some(tunnel)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_limited_for_each_sender() {
        let mut limit = AnswerLimit::new();
        let (loud, quiet) = (1, 2);
        let mut taken = |sender, now_ms, tries: u32| {
            (0..tries).filter(|_| limit.take(sender, Duration::from_millis(now_ms))).count()
        };
        assert_eq!(taken(loud, 0, 1000), 16);
        assert_eq!(taken(loud, 19, 1000), 0);
        assert_eq!(taken(loud, 20, 1000), 1);
        assert_eq!(taken(quiet, 20, 1000), 16, "it has its own");
        assert_eq!(taken(loud, 1020, 1000), 16, "no more than at once");
        for now_ms in 2000..3000 {
            taken(loud, now_ms, 1);
        }
        assert_eq!(taken(loud, 3000, 1000), 1);
    }
}
