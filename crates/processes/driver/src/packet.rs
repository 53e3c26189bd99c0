//! The back end for packet sockets: `recvmmsg` and `sendmmsg` on the vNIC's memory.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use arrayvec::ArrayVec;
use lasthop_frontend::{GuestError, VnicPair};
use lasthop_guestmem::StaleSegment;
use lasthop_wire::vnet::HEADER_BYTES;
use rustix::io::Errno;

use crate::aux::{ADDRESSES_BYTES, TAG_BYTES, stripped_tag, with_tag};
use crate::bounds::{ARENA_BYTES, BATCH, RECEIVE_SLOT_BYTES, RECEIVE_SLOTS, SEND_SLOTS, STALE_FRAMES_MAX};
use crate::inbound::{Inbound, Slot};
use crate::outbound::{Outbound, Refusal};
use crate::sys::{Arena, Inbox, Span, is_bound, take_lost};
use crate::{Needs, Next, Queue, QueueError, Visit};
use lasthop_device::{DeviceDropReason, DriverCounters};

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
#[derive(Debug)]
pub(crate) struct PacketQueue {
    fd: OwnedFd,
    /// Length of the kernel's virtio-net header.
    header_bytes: u32,
    inbox: Inbox,
    /// Number of messages that the next call has room for; unused room costs a little, too.
    batch: usize,
    inbound: Inbound,
    outbound: Outbound,
}

/// Room for messages after a call that received few.
const BATCH_MIN: usize = 4;

impl PacketQueue {
    pub(crate) fn new(fd: OwnedFd, header_bytes: u8, pair: &VnicPair) -> Result<Self, QueueError> {
        let arena = Arc::new(Arena::of(pair).map_err(GuestError::from)?);
        Ok(Self {
            fd,
            header_bytes: u32::from(header_bytes),
            inbox: Inbox::new(Arc::clone(&arena)),
            batch: BATCH_MIN,
            inbound: Inbound::new(),
            outbound: Outbound::new(arena, usize::from(header_bytes)),
        })
    }

    /// Receives at most `count` frames into free buffers; returns their number. Lost frames and transient errors count
    /// as none.
    fn take_frames(&mut self, count: usize, counters: &mut DriverCounters) -> Result<usize, QueueError> {
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
            Ok(count) => Ok(count),
            Err(Errno::AGAIN | Errno::INTR) => Ok(0),
            // The frame's offloads cannot be expressed in a virtio-net header; it is lost.
            Err(Errno::INVAL) => {
                counters.from_device.count(0);
                counters.drop(DeviceDropReason::BadOffload);
                Ok(0)
            }
            // Returned once when the link is set down, and when the device is removed.
            Err(Errno::NETDOWN) if is_bound(self.fd.as_fd()) => Ok(0),
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

    /// Drops the frames that wait at the socket: they are as old as the last switch.
    fn drop_stale(&mut self, counters: &mut DriverCounters) -> Result<(), QueueError> {
        for _ in 0..STALE_FRAMES_MAX / BATCH {
            let count = self.take_frames(BATCH, counters)?;
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
        let room = self.inbound.room().min(self.batch);
        if room == 0 {
            return Ok(Visit { frames: 0, next: Next::Blocked });
        }
        let count = self.take_frames(room, counters)?;
        self.batch = (2 * count).clamp(BATCH_MIN, BATCH);
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
        let next = if count == room { Next::More } else { Next::Idle };
        Ok(Visit { frames: count, next })
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

    fn missed(&mut self) -> u64 {
        u64::from(take_lost(self.fd.as_fd()))
    }
}
