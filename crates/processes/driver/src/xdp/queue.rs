//! The back end for XDP sockets: connects the UMEM with the vNIC's rings without copies.

use std::os::fd::{BorrowedFd, OwnedFd};

use lasthop_frontend::{GuestError, VnicPair, VnicRing};
use lasthop_guestmem::Segment;
use lasthop_ring::Used;
use lasthop_wire::Offload;
use rustix::io::Errno;

use super::frames::{Frames, Holder, Way};
use super::rings::Frame;
use super::socket::XdpBinding;
use super::umem::{Received, Umem};
use super::{HEADER, partial};
use crate::bounds::XDP_BATCH;
use crate::{Needs, Next, Queue, QueueError, Visit};
use lasthop_device::{
    DeviceDropReason, DeviceFacts, DriverCounters, XDP_FRAMES, XDP_LINK_BYTES, XdpFacts, xdp_queue_bytes,
    xdp_slot_bytes,
};

/// One queue of a device by an XDP socket. The vNIC's memory is the socket's: the switch gets a frame where the kernel
/// wrote it, and the kernel sends it from where the switch wrote it.
///
/// ```text
///   a received frame's place   [ ............ | virtio-net header | frame ...................... ]
///                              0                XDP_HEADROOM_BYTES^                  place_bytes^
///   of one to send             [ ... | virtio-net header | frame ............. ]
///                              0             sending_at^
/// ```
#[derive(Debug)]
pub struct XdpQueue {
    umem: Umem,
    binding: XdpBinding,
    partial_checksums: bool,
    frame_bytes_max: u32,
    /// Remaining buffers of a frame that was dropped as too long.
    rest: u16,
}

impl XdpQueue {
    /// The properties of the vNIC that each queue of a device needs.
    ///
    /// # Errors
    /// [`QueueError::Failed`] for an MTU that no frame's slot is large enough for.
    pub fn needs(facts: &DeviceFacts) -> Result<Needs, QueueError> {
        let place = xdp_slot_bytes(facts.mtu_bytes).ok_or(QueueError::Failed(Errno::MSGSIZE))?;
        let entries = XDP_FRAMES as u16; // 1024
        Ok(Needs { rx_entries: entries, tx_entries: entries, arena_bytes: xdp_queue_bytes(place) })
    }

    /// The back end of queue `number` of a device, with its socket.
    ///
    /// # Errors
    /// As [`Self::needs`].
    pub fn new(facts: &DeviceFacts, number: u16, socket: OwnedFd) -> Result<Self, QueueError> {
        let place = xdp_slot_bytes(facts.mtu_bytes).ok_or(QueueError::Failed(Errno::MSGSIZE))?;
        let XdpFacts { native, partial_checksums } = facts.xdp.unwrap_or_default();
        let frame_bytes_max = facts.mtu_bytes + XDP_LINK_BYTES;
        Ok(Self {
            umem: Umem::new(Frames::new(place, frame_bytes_max), socket),
            binding: XdpBinding { interface: facts.index, queue: number, copy: !native },
            partial_checksums,
            frame_bytes_max,
            rest: 0,
        })
    }

    /// Lends the switch a frame to write to.
    fn lend(&mut self, ring: &mut VnicRing, frame: u32) {
        let frames = &mut self.umem.frames;
        let (at, len_bytes) = (frames.sending_at(frame) - HEADER, HEADER + frames.sending_bytes());
        if frames.pass(frame, Way::Sending, Holder::Us, Holder::Switch) {
            let lent = ring.lend(at, len_bytes, frame);
            debug_assert!(lent, "the ring has as many entries as there are frames to send");
        }
    }

    /// Returns frames that the switch has copied to the kernel, for further reception.
    fn refill(&mut self, pair: &mut VnicPair) -> Result<(), QueueError> {
        pair.tx.look()?;
        while let Some(Used { token, .. }) = pair.tx.take_seen() {
            if self.umem.frames.pass(token, Way::Receiving, Holder::Switch, Holder::Us) {
                self.umem.fill(token)?;
            }
        }
        self.umem.show_filled()
    }

    /// Publishes a received frame to the switch in place.
    fn publish(&mut self, pair: &mut VnicPair, received: Received) -> Result<(), QueueError> {
        let Received { frame, at, len_bytes } = received;
        let offload = if self.partial_checksums { look(pair, received) } else { Offload::default() };
        put_header(pair, at - HEADER, &offload.emit(0))?;
        if self.umem.frames.pass(frame, Way::Receiving, Holder::Us, Holder::Switch) {
            let lent = pair.tx.lend(at - HEADER, HEADER + len_bytes, frame);
            debug_assert!(lent, "the ring has as many entries as there are frames to receive");
        }
        Ok(())
    }

    /// Takes the next frame from the switch that was seen. `None` if there is none.
    fn take(&mut self, pair: &mut VnicPair) -> Result<Option<Taken>, QueueError> {
        while let Some(Used { token, len, .. }) = pair.rx.take_seen() {
            if !self.umem.frames.pass(token, Way::Sending, Holder::Switch, Holder::Us) {
                continue; // the ring has checked: each token comes back once
            }
            if self.rest > 0 {
                self.rest -= 1;
                self.lend(&mut pair.rx, token);
                continue;
            }
            // The switch fills a buffer before it takes another one for the same frame.
            if len >= HEADER + self.umem.frames.sending_bytes() && pair.is_mergeable() {
                self.rest = buffers_of(pair, self.umem.frames.sending_at(token))?.saturating_sub(1);
            }
            let len_bytes = len.saturating_sub(HEADER);
            let is_too_long = self.rest > 0 || len_bytes > self.frame_bytes_max;
            return Ok(Some(Taken { frame: token, len_bytes, is_too_long }));
        }
        Ok(None)
    }

    /// Takes a batch from the switch; `each` sends a frame, or returns the reason to drop it.
    fn take_batch(
        &mut self,
        pair: &mut VnicPair,
        counters: &mut DriverCounters,
        each: impl Fn(&mut Umem, Taken) -> Result<Option<DeviceDropReason>, QueueError>,
    ) -> Result<Visit, QueueError> {
        pair.rx.look()?;
        for count in 0..XDP_BATCH {
            let Some(taken) = self.take(pair)? else { return Ok(Visit { frames: count, next: Next::Idle }) };
            counters.from_switch.count(taken.len_bytes as usize);
            match each(&mut self.umem, taken)? {
                None => counters.to_device.count(taken.len_bytes as usize),
                Some(reason) => {
                    counters.drop(reason);
                    self.lend(&mut pair.rx, taken.frame);
                }
            }
        }
        Ok(Visit { frames: XDP_BATCH, next: Next::More })
    }

    /// Lends sent frames to the switch again.
    fn lend_sent(&mut self, pair: &mut VnicPair) -> Result<(), QueueError> {
        while let Some(frame) = self.umem.take_sent()? {
            self.lend(&mut pair.rx, frame);
        }
        Ok(())
    }
}

/// A frame taken from the switch.
#[derive(Clone, Copy, Debug)]
struct Taken {
    frame: u32,
    len_bytes: u32,
    is_too_long: bool,
}

impl Queue for XdpQueue {
    fn fd(&self) -> BorrowedFd<'_> {
        self.umem.fd()
    }

    fn start(&mut self, pair: &mut VnicPair, counters: &mut DriverCounters) -> Result<(), QueueError> {
        self.umem.frames.recall_from_switch();
        self.rest = 0;
        for frame in Frames::of(Way::Sending) {
            self.lend(&mut pair.rx, frame);
        }
        self.umem.bind(self.binding)?;
        loop {
            let (entries, has_more) = self.umem.take_entries()?;
            for told in entries {
                let taken = self.umem.take(told)?;
                let len_bytes = taken.map_or_else(|(len_bytes, _)| len_bytes, |frame| frame.len_bytes);
                counters.from_device.count(len_bytes as usize);
                counters.drop(DeviceDropReason::NoSwitch);
            }
            if !has_more {
                break;
            }
        }
        self.umem.release_received();
        self.umem.fill_all()
    }

    fn receive(&mut self, pair: &mut VnicPair, counters: &mut DriverCounters) -> Result<Visit, QueueError> {
        self.refill(pair)?;
        let (entries, has_more) = self.umem.take_entries()?;
        let frames = entries.len();
        entries.iter().for_each(|entry| prefetch(pair, entry));
        for told in entries {
            match self.umem.take(told)? {
                Ok(received) => {
                    self.publish(pair, received)?;
                    counters.from_device.count(received.len_bytes as usize);
                    counters.to_switch.count(received.len_bytes as usize);
                }
                Err((len_bytes, reason)) => {
                    counters.from_device.count(len_bytes as usize);
                    counters.drop(reason);
                }
            }
        }
        self.umem.release_received();
        let next = if has_more {
            Next::More
        } else if self.umem.frames.receivable() == 0 {
            Next::Blocked
        } else {
            Next::Idle
        };
        Ok(Visit { frames, next })
    }

    fn send(&mut self, pair: &mut VnicPair, counters: &mut DriverCounters) -> Result<Visit, QueueError> {
        self.lend_sent(pair)?;
        let visit = self.take_batch(pair, counters, |umem, taken| {
            if taken.is_too_long {
                return Ok(Some(DeviceDropReason::TooLong));
            }
            umem.send(taken.frame, taken.len_bytes).map(|()| None)
        })?;
        let all_seen = self.umem.show_sent()?;
        self.lend_sent(pair)?;
        let without_buffers = self.umem.frames.writable() == 0;
        let next = if visit.next == Next::Idle && (!all_seen || without_buffers) {
            Next::Blocked
        } else {
            visit.next
        };
        Ok(Visit { next, ..visit })
    }

    fn discard(
        &mut self,
        pair: &mut VnicPair,
        counters: &mut DriverCounters,
        reason: DeviceDropReason,
    ) -> Result<Visit, QueueError> {
        self.take_batch(pair, counters, |_, _| Ok(Some(reason)))
    }

    fn is_heard_while_busy(&self) -> bool {
        false
    }

    fn missed(&mut self) -> u64 {
        self.umem.missed()
    }
}

fn segment(pair: &VnicPair, at: u32, len_bytes: u32) -> Segment {
    let arena = pair.arena();
    Segment { offset: arena.offset + u64::from(at), len: len_bytes, region: arena.region }
}

/// Writes a virtio-net header, unless it is there from an earlier frame: it has a cache line of its own, for which a store would
/// hold up all stores after it.
fn put_header(pair: &VnicPair, at: u32, header: &[u8; HEADER as usize]) -> Result<(), QueueError> {
    if header_at(pair, at)? != *header {
        pair.map().write(segment(pair, at, HEADER), 0, header).map_err(GuestError::from)?;
    }
    Ok(())
}

/// The virtio-net header at `at`.
fn header_at(pair: &VnicPair, at: u32) -> Result<[u8; HEADER as usize], QueueError> {
    let mut header = [0; HEADER as usize];
    pair.map().read(segment(pair, at, HEADER), 0, &mut header).map_err(GuestError::from)?;
    Ok(header)
}

/// Prefetches the cache lines of a received frame's header and first bytes, which the switch needs, too.
fn prefetch(pair: &VnicPair, entry: &Frame) {
    let at = entry.addr as u32; // not checked yet
    pair.map().prefetch(segment(pair, at.saturating_sub(HEADER), HEADER), 0);
    pair.map().prefetch(segment(pair, at, 1), 0);
}

/// Number of buffers of the frame at `at`, by the virtio-net header in front of it.
fn buffers_of(pair: &VnicPair, at: u32) -> Result<u16, QueueError> {
    let header = header_at(pair, at - HEADER)?;
    Ok(u16::from_le_bytes([header[10], header[11]]))
}

/// The pending offloads of a received frame.
fn look(pair: &VnicPair, received: Received) -> Offload {
    let place = segment(pair, received.at, received.len_bytes);
    let mut start = [0; partial::USUAL_BYTES];
    if pair.map().read(place, 0, &mut start).is_ok() && partial::is_usual_and_done(&start) {
        return Offload::default();
    }
    let mut head = [0; partial::HEAD_BYTES];
    let head = &mut head[..partial::HEAD_BYTES.min(received.len_bytes as usize)];
    match pair.map().read(place, 0, head) {
        Ok(()) => partial::offload(head),
        Err(_) => Offload::default(),
    }
}
