//! The back end for packet sockets: `recvmmsg` and `sendmmsg` on the vNIC's memory, and a ring for short received frames.

mod ring;
mod sys;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use arrayvec::ArrayVec;
use lasthop_frontend::{GuestError, VnicPair};
use lasthop_guestmem::StaleSegment;
use lasthop_wire::vnet::HEADER_BYTES;
use rustix::io::Errno;

use self::ring::{Arrival, FrameRing, Short};
use crate::aux::{ADDRESSES_BYTES, TAG_BYTES, TAGGED_BYTES, stripped_tag, with_tag};
use crate::bounds::{ARENA_BYTES, BATCH, RECEIVE_SLOT_BYTES, RECEIVE_SLOTS, SEND_SLOTS, STALE_FRAMES_MAX};
use crate::inbound::{Inbound, Slot};
use crate::outbound::{Outbound, Refusal};
use crate::sys::{Arena, Inbox, Span, is_bound, socket_error, take_lost};
use crate::{Needs, Next, Queue, QueueError, Visit};
use lasthop_device::{DeviceDropReason, DeviceFacts, DriverCounters};

pub(crate) const NEEDS: Needs =
    Needs { rx_entries: SEND_SLOTS, tx_entries: RECEIVE_SLOTS, arena_bytes: ARENA_BYTES };

/// Offset of a frame's header in its buffer: before it is room for a tag that may have to be restored.
const HEADER_AT: u32 = TAG_BYTES as u32;
/// Offset of the frame.
const FRAME_AT: u32 = HEADER_AT + HEADER_BYTES as u32;
/// Bytes of an Ethernet header.
const FRAME_BYTES_MIN: u32 = 14;

/// One packet socket. The kernel writes a frame to
///
/// ```text
///   [ 4 free ][ 12 virtio-net header ][ 6 + 6 addresses ][ type, ... ]
/// ```
///
/// and if it removed a tag, header and addresses move 4 bytes down to make room for it.
///
/// With a ring, the kernel writes a short frame to a slot of it, from where it is copied: less than what a system call takes for a
/// frame. A long one waits at the socket, and its slot says so. Frames leave in the order of slots.
#[derive(Debug)]
pub(crate) struct PacketQueue {
    fd: OwnedFd,
    /// Length of the kernel's virtio-net header.
    header_bytes: u32,
    ring: Option<FrameRing>,
    inbox: Inbox,
    /// Number of messages that the next call has room for; unused room costs a little, too.
    batch: usize,
    inbound: Inbound,
    outbound: Outbound,
}

/// Room for messages after a call that received few.
const BATCH_MIN: usize = 4;

impl PacketQueue {
    /// The back end of a socket of which nothing was read.
    pub(crate) fn new(facts: &DeviceFacts, fd: OwnedFd, pair: &VnicPair) -> Result<Self, QueueError> {
        let header_bytes = facts.header_bytes;
        let ring = facts.ring.map(|ring| FrameRing::of_socket(fd.as_fd(), ring, header_bytes));
        let ring = ring.transpose().map_err(QueueError::Failed)?;
        let arena = Arc::new(Arena::of(pair).map_err(GuestError::from)?);
        Ok(Self {
            fd,
            header_bytes: u32::from(header_bytes),
            ring,
            inbox: Inbox::new(Arc::clone(&arena)),
            batch: BATCH_MIN,
            inbound: Inbound::new(),
            outbound: Outbound::new(arena, usize::from(header_bytes)),
        })
    }

    /// Receives at most `count` frames from the socket into free buffers.
    fn take_frames(&mut self, count: usize, counters: &mut DriverCounters) -> Result<Taken, QueueError> {
        let header = self.header_bytes;
        let parts = |slot: Span| {
            if header as usize == HEADER_BYTES {
                [Span { offset: slot.offset + HEADER_AT, len: slot.len - HEADER_AT }, Span::default()]
            } else {
                let frame = Span { offset: slot.offset + FRAME_AT, len: slot.len - FRAME_AT };
                [Span { offset: slot.offset + HEADER_AT, len: header }, frame]
            }
        };
        match self.inbox.receive(self.fd.as_fd(), self.inbound.spans().take(count).map(parts)) {
            Ok(count) => Ok(Taken::Frames(count)),
            Err(Errno::AGAIN) => Ok(Taken::Frames(0)),
            Err(Errno::INTR) => Ok(Taken::Again),
            // The frame's offloads cannot be expressed in a virtio-net header; it is lost.
            Err(Errno::INVAL) => {
                counters.from_device.count(0);
                counters.drop(DeviceDropReason::BadOffload);
                Ok(Taken::Lost)
            }
            // Returned once when the link is set down, and when the device is removed.
            Err(Errno::NETDOWN) if is_bound(self.fd.as_fd()) => Ok(Taken::Again),
            Err(Errno::NETDOWN | Errno::NXIO | Errno::NODEV) => Err(QueueError::DeviceGone),
            Err(error) => Err(QueueError::Failed(error)),
        }
    }

    /// Makes message `index`, which is in `slot`, a frame for the switch. Returns its offset in the slot and its length
    /// including the header, or the reason to drop it.
    #[inline]
    fn prepare(
        &self,
        index: usize,
        slot: &Slot,
        pair: &VnicPair,
    ) -> Result<Result<(u32, u32), DeviceDropReason>, StaleSegment> {
        let message = self.inbox.message(index);
        let frame_bytes = message.len.saturating_sub(self.header_bytes);
        let is_whole = !message.is_truncated && frame_bytes >= FRAME_BYTES_MIN;
        if !is_whole || frame_bytes > RECEIVE_SLOT_BYTES - FRAME_AT {
            return Ok(Err(DeviceDropReason::Truncated));
        }
        if (self.header_bytes as usize) < HEADER_BYTES {
            let missing = HEADER_BYTES - self.header_bytes as usize;
            slot.write(pair, HEADER_AT + self.header_bytes, &[0; HEADER_BYTES][..missing])?;
        }
        let len = HEADER_BYTES as u32 + frame_bytes;
        let Some(tag) = stripped_tag(message.control) else { return Ok(Ok((HEADER_AT, len))) };
        let mut start = [0; HEADER_BYTES + ADDRESSES_BYTES];
        slot.read(pair, HEADER_AT, &mut start)?;
        let Some(tagged) = with_tag(start, tag) else { return Ok(Err(DeviceDropReason::BadOffload)) };
        slot.write(pair, 0, &tagged)?;
        Ok(Ok((0, len + TAG_BYTES as u32)))
    }

    /// Length of the frame in message `index`.
    #[inline]
    fn frame_bytes(&self, index: usize) -> usize {
        self.inbox.message(index).len.saturating_sub(self.header_bytes) as usize
    }

    /// Publishes the first `count` messages, which lie in the next free buffers.
    fn publish(
        &mut self,
        count: usize,
        pair: &mut VnicPair,
        counters: &mut DriverCounters,
    ) -> Result<(), QueueError> {
        let mut unused: ArrayVec<Slot, BATCH> = ArrayVec::new();
        for index in 0..count {
            let Some(slot) = self.inbound.take() else { break };
            counters.from_device.count(self.frame_bytes(index));
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
        // Only now: the next message is in the next free slot.
        unused.into_iter().for_each(|slot| self.inbound.give_back(slot));
        Ok(())
    }

    /// Receives by system calls.
    #[inline]
    fn receive_messages(
        &mut self,
        room: usize,
        pair: &mut VnicPair,
        counters: &mut DriverCounters,
    ) -> Result<Visit, QueueError> {
        let room = room.min(self.batch);
        let Taken::Frames(count) = self.take_frames(room, counters)? else {
            // Frames behind it had their signal before.
            return Ok(Visit { frames: 1, next: Next::More });
        };
        self.batch = (2 * count).clamp(BATCH_MIN, BATCH);
        self.publish(count, pair, counters)?;
        let next = if count == room { Next::More } else { Next::Idle };
        Ok(Visit { frames: count, next })
    }

    /// Receives by the ring: short frames from their slots, and long ones by a system call for those between two short ones.
    #[inline]
    fn receive_slots(
        &mut self,
        room: usize,
        pair: &mut VnicPair,
        counters: &mut DriverCounters,
    ) -> Result<Visit, QueueError> {
        let mut frames = 0;
        while frames < room {
            let Some(ring) = &mut self.ring else { break };
            match ring.next() {
                None => break,
                Some(Arrival::Short(short)) => {
                    let Some(slot) = self.inbound.take() else { break };
                    let place = copy(short, &slot, pair).map_err(GuestError::from)?;
                    counters.from_device.count(short.frame.len());
                    ring.release(1);
                    match place {
                        Ok((skip, len)) => {
                            slot.lend(pair, skip, len);
                            counters.to_switch.count(len as usize - HEADER_BYTES);
                        }
                        Err(reason) => {
                            counters.drop(reason);
                            self.inbound.give_back(slot);
                        }
                    }
                    frames += 1;
                }
                Some(Arrival::Long) => match self.take_longs(room - frames, pair, counters)? {
                    0 => return Ok(Visit { frames, next: Next::More }),
                    count => frames += count,
                },
                Some(Arrival::Lost) => {
                    counters.missed += 1;
                    ring.release(1);
                    frames += 1;
                }
            }
        }
        Ok(Visit { frames, next: if frames == room { Next::More } else { Next::Idle } })
    }

    /// Receives long frames of the ring, up to `max`; returns their number.
    fn take_longs(
        &mut self,
        max: usize,
        pair: &mut VnicPair,
        counters: &mut DriverCounters,
    ) -> Result<usize, QueueError> {
        let count = self.ring.as_ref().map_or(0, |ring| ring.longs(max));
        let done = match self.take_frames(count, counters)? {
            Taken::Frames(0) => {
                // It is not there, against the word of its slot.
                counters.missed += 1;
                1
            }
            Taken::Frames(count) => {
                self.publish(count, pair, counters)?;
                count
            }
            Taken::Lost => 1,
            Taken::Again => 0,
        };
        self.release(done);
        Ok(done)
    }

    /// Drops the frames that wait at the socket: they are as old as the last switch.
    fn drop_stale(&mut self, counters: &mut DriverCounters) -> Result<(), QueueError> {
        if self.ring.is_none() {
            return self.drop_messages(counters);
        }
        for _ in 0..STALE_FRAMES_MAX {
            let bytes = match self.ring.as_ref().and_then(FrameRing::next) {
                None => break,
                Some(Arrival::Short(short)) => Some(short.frame.len()),
                Some(Arrival::Lost) => None,
                Some(Arrival::Long) => match self.take_frames(1, counters)? {
                    Taken::Frames(0) => None,
                    Taken::Frames(_) => Some(self.frame_bytes(0)),
                    Taken::Lost => {
                        self.release(1);
                        continue;
                    }
                    Taken::Again => continue,
                },
            };
            match bytes {
                Some(bytes) => {
                    counters.from_device.count(bytes);
                    counters.drop(DeviceDropReason::NoSwitch);
                }
                None => counters.missed += 1,
            }
            self.release(1);
        }
        Ok(())
    }

    fn drop_messages(&mut self, counters: &mut DriverCounters) -> Result<(), QueueError> {
        for _ in 0..STALE_FRAMES_MAX / BATCH {
            let Taken::Frames(count) = self.take_frames(BATCH, counters)? else { continue };
            for index in 0..count {
                counters.from_device.count(self.frame_bytes(index));
                counters.drop(DeviceDropReason::NoSwitch);
            }
            if count < BATCH {
                break;
            }
        }
        Ok(())
    }

    /// Returns slots of the ring to the kernel.
    fn release(&mut self, count: usize) {
        if let Some(ring) = &mut self.ring {
            ring.release(count);
        }
    }
}

/// The result of receiving from the socket.
#[derive(Clone, Copy, Debug)]
enum Taken {
    /// So many frames.
    Frames(usize),
    /// One was lost, and is counted.
    Lost,
    /// None, for a reason that does not last.
    Again,
}

/// Copies a frame from the ring to `slot`. Returns as [`PacketQueue::prepare`].
#[inline]
fn copy(
    Short { header, frame, tag }: Short<'_>,
    slot: &Slot,
    pair: &VnicPair,
) -> Result<Result<(u32, u32), DeviceDropReason>, StaleSegment> {
    if frame.len() < FRAME_BYTES_MIN as usize {
        return Ok(Err(DeviceDropReason::Truncated));
    }
    let len = (HEADER_BYTES + frame.len()) as u32; // a slot's
    let mut start = [0; HEADER_BYTES + ADDRESSES_BYTES];
    start[..header.len()].copy_from_slice(header);
    let Some(tag) = tag else {
        slot.write(pair, HEADER_AT, &start[..HEADER_BYTES])?;
        slot.write(pair, FRAME_AT, frame)?;
        return Ok(Ok((HEADER_AT, len)));
    };
    start[HEADER_BYTES..].copy_from_slice(&frame[..ADDRESSES_BYTES]);
    let Some(tagged) = with_tag(start, tag) else { return Ok(Err(DeviceDropReason::BadOffload)) };
    slot.write(pair, 0, &tagged)?;
    slot.write(pair, TAGGED_BYTES as u32, &frame[ADDRESSES_BYTES..])?;
    Ok(Ok((0, len + TAG_BYTES as u32)))
}

/// The handling of a frame after an error of a packet socket (packet(7)).
fn refusal(error: Errno, fd: BorrowedFd<'_>) -> Refusal {
    match error {
        Errno::AGAIN => Refusal::Wait,
        Errno::NOBUFS => Refusal::Drop(DeviceDropReason::DeviceFull),
        Errno::MSGSIZE => Refusal::Drop(DeviceDropReason::TooLong),
        Errno::NETDOWN if is_bound(fd) => Refusal::DropAll(DeviceDropReason::DeviceDown),
        Errno::NETDOWN | Errno::NXIO | Errno::NODEV => Refusal::Gone,
        _ => Refusal::Drop(DeviceDropReason::Refused),
    }
}

impl Queue for PacketQueue {
    fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    fn start(&mut self, pair: &mut VnicPair, counters: &mut DriverCounters) -> Result<(), QueueError> {
        self.inbound.start();
        self.outbound.start(pair);
        // A socket reports the removal of its device only once, which may have been earlier.
        if is_bound(self.fd.as_fd()) { self.drop_stale(counters) } else { Err(QueueError::DeviceGone) }
    }

    #[inline]
    fn receive(&mut self, pair: &mut VnicPair, counters: &mut DriverCounters) -> Result<Visit, QueueError> {
        self.inbound.reclaim(pair)?;
        let room = self.inbound.room().min(BATCH);
        if room == 0 {
            return Ok(Visit { frames: 0, next: Next::Blocked });
        }
        if self.ring.is_some() {
            self.receive_slots(room, pair, counters)
        } else {
            self.receive_messages(room, pair, counters)
        }
    }

    #[inline]
    fn send(&mut self, pair: &mut VnicPair, counters: &mut DriverCounters) -> Result<Visit, QueueError> {
        let fd = self.fd.as_fd();
        self.outbound.pass_on(
            pair,
            counters,
            |error| refusal(error, fd),
            |outbox, first| outbox.send(fd, first),
        )
    }

    fn discard(
        &mut self,
        pair: &mut VnicPair,
        counters: &mut DriverCounters,
        reason: DeviceDropReason,
    ) -> Result<Visit, QueueError> {
        self.outbound.discard(pair, counters, reason)
    }

    /// A socket without a ring reports this when it is read.
    fn check(&mut self, counters: &mut DriverCounters) -> Result<(), QueueError> {
        let Some(ring) = &mut self.ring else { return Ok(()) };
        match socket_error(self.fd.as_fd()) {
            Ok(()) => {}
            Err(Errno::NETDOWN) if is_bound(self.fd.as_fd()) => {}
            Err(Errno::NETDOWN | Errno::NXIO | Errno::NODEV) => return Err(QueueError::DeviceGone),
            Err(error) => return Err(QueueError::Failed(error)),
        }
        let lost = take_lost(self.fd.as_fd());
        counters.missed += u64::from(lost);
        if ring.is_stopped(lost > 0) { Err(QueueError::RingStopped) } else { Ok(()) }
    }

    fn missed(&mut self) -> u64 {
        u64::from(take_lost(self.fd.as_fd()))
    }
}
