//! Frames from the switch to a device: gathered in batches, sent or refused, and completed in order.

use std::sync::Arc;

use arrayvec::ArrayVec;
use lasthop_frontend::{GuestError, VnicPair};
use lasthop_guestmem::Segment;
use lasthop_ring::Used;
use lasthop_wire::vnet::HEADER_BYTES;
use rustix::io::Errno;

use crate::bounds::{BATCH, SEND_BYTES_MAX, SEND_PARTS_MAX, SEND_SLOT_BYTES, SEND_SLOTS, SEND_STRIDE_BYTES};
use crate::sys::{Arena, Outbox, PARTS_MAX, Span};
use crate::{Next, QueueError, Visit};
use lasthop_device::{DeviceDropReason, DriverCounters};

/// Ring number of a pair's receive ring in errors.
const RECEIVE_RING: u16 = 0;

/// A frame that was taken from the ring.
#[derive(Clone, Copy, Debug)]
struct Frame {
    /// Number of its buffers.
    parts: usize,
    /// Its length without virtio-net header.
    len_bytes: usize,
}

/// The handling of a frame that a device refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// It waits for room at the device.
    Wait,
    /// It is dropped.
    Drop(DeviceDropReason),
    /// It is dropped, and so are the frames behind it: the device would return the same error for each.
    DropAll(DeviceDropReason),
    /// The device is gone.
    Gone,
}

/// Frames in flight from the switch to a device: a batch from the ring, whose first frames may be done. Once a frame is
/// done, its buffers are lent to the switch again.
///
/// ```text
///   frames   [ d d d | w w w w ]        tokens   [ d d d d d d | w w w w w w w w ]
///                done^  waiting                       parts_done^
/// ```
#[derive(Debug)]
pub(crate) struct Outbound {
    outbox: Outbox,
    /// Length of the device's header before a frame.
    header_bytes: usize,
    frames: ArrayVec<Frame, BATCH>,
    tokens: ArrayVec<u16, PARTS_MAX>,
    done: usize,
    parts_done: usize,
}

pub(crate) fn at(slot: u16) -> u32 {
    u32::from(slot) * SEND_STRIDE_BYTES
}

pub(crate) fn broken(what: &'static str) -> GuestError {
    GuestError::BrokenFrame(RECEIVE_RING, what)
}

impl Outbound {
    pub(crate) fn new(arena: Arc<Arena>, header_bytes: usize) -> Self {
        let outbox = Outbox::new(arena);
        let (frames, tokens) = (ArrayVec::new(), ArrayVec::new());
        Self { outbox, header_bytes, frames, tokens, done: 0, parts_done: 0 }
    }

    /// Resets for a fresh ring, and lends all buffers. Forgets frames that waited for the device.
    pub(crate) fn start(&mut self, pair: &mut VnicPair) {
        self.clear();
        for slot in 0..SEND_SLOTS {
            lend(pair, slot);
        }
    }

    fn clear(&mut self) {
        self.outbox.clear();
        self.frames.clear();
        self.tokens.clear();
        (self.done, self.parts_done) = (0, 0);
    }

    /// Number of frames that are not done.
    fn waiting(&self) -> usize {
        self.frames.len() - self.done
    }

    /// Sends a batch to the device: `push` sends messages of the outbox from an index on, and returns their number.
    ///
    /// # Errors
    /// [`QueueError::DeviceGone`], and faults of the switch in the ring.
    #[inline]
    pub(crate) fn pass_on(
        &mut self,
        pair: &mut VnicPair,
        counters: &mut DriverCounters,
        refusal: impl Fn(Errno) -> Refusal,
        mut push: impl FnMut(&mut Outbox, usize) -> Result<usize, Errno>,
    ) -> Result<Visit, QueueError> {
        self.gather(pair, counters)?;
        let mut frames = 0;
        while self.waiting() > 0 {
            frames += match push(&mut self.outbox, self.done).map_err(&refusal) {
                Ok(count) => self.sent(count, pair, counters),
                Err(Refusal::Wait) => return Ok(Visit { frames, next: Next::Blocked }),
                Err(Refusal::Drop(reason)) => self.drop_first(reason, pair, counters),
                Err(Refusal::DropAll(reason)) => self.drop_all(reason, pair, counters),
                Err(Refusal::Gone) => return Err(QueueError::DeviceGone),
            };
        }
        self.visited(frames, pair)
    }

    /// Drops a batch.
    ///
    /// # Errors
    /// A fault of the switch.
    pub(crate) fn discard(
        &mut self,
        pair: &mut VnicPair,
        counters: &mut DriverCounters,
        reason: DeviceDropReason,
    ) -> Result<Visit, QueueError> {
        self.gather(pair, counters)?;
        let frames = self.drop_all(reason, pair, counters);
        self.visited(frames, pair)
    }

    fn visited(&self, frames: usize, pair: &mut VnicPair) -> Result<Visit, QueueError> {
        let next = if pair.rx.pending()? > 0 { Next::More } else { Next::Idle };
        Ok(Visit { frames, next })
    }

    /// Takes another batch from the ring once the last one is done.
    ///
    /// # Errors
    /// A fault of the switch.
    #[inline]
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
    #[inline]
    fn take(&mut self, pair: &mut VnicPair) -> Result<Frame, GuestError> {
        let first = take_buffer(pair)?;
        let header = read_header::<HEADER_BYTES>(pair, first)?;
        let parts =
            if pair.is_mergeable() { usize::from(u16::from_le_bytes([header[10], header[11]])) } else { 1 };
        if !(1..=SEND_PARTS_MAX).contains(&parts) {
            return Err(broken("its header says that it has no buffer, or more than any frame needs"));
        }
        let mut spans: ArrayVec<Span, SEND_PARTS_MAX> = ArrayVec::new();
        spans.push(self.first_span(pair, first, &header)?);
        self.tokens.push(first.token as u16);
        let mut len_bytes = first.len as usize - HEADER_BYTES;
        for _ in 1..parts {
            let next = take_buffer(pair)?;
            spans.push(Span { offset: at(next.token as u16), len: next.len });
            self.tokens.push(next.token as u16);
            len_bytes += next.len as usize;
        }
        let entered = self.outbox.add(spans.into_iter());
        debug_assert!(entered, "gather sees to the room");
        let frame = Frame { parts, len_bytes };
        self.frames.push(frame);
        Ok(frame)
    }

    /// The part of a frame's first buffer that the device gets. The kernel's header may be the shorter one, without the number of buffers:
    /// it is moved to directly before the frame, which costs less than a part of its own.
    #[inline]
    fn first_span(
        &self,
        pair: &VnicPair,
        first: Used,
        header: &[u8; HEADER_BYTES],
    ) -> Result<Span, GuestError> {
        let skip = (HEADER_BYTES - self.header_bytes) as u32;
        if skip > 0 {
            pair.map().write(segment(pair, first), skip, &header[..self.header_bytes])?;
        }
        Ok(Span { offset: at(first.token as u16) + skip, len: first.len - skip })
    }

    /// Marks `count` waiting frames as sent; returns `count`.
    #[inline]
    fn sent(&mut self, count: usize, pair: &mut VnicPair, counters: &mut DriverCounters) -> usize {
        let count = count.min(self.waiting());
        for _ in 0..count {
            let frame = self.give_back(pair);
            counters.to_device.count(frame.len_bytes);
        }
        counters.waiting = self.waiting() as u64;
        count
    }

    /// Drops the first waiting frame; returns the number of dropped frames.
    fn drop_first(
        &mut self,
        reason: DeviceDropReason,
        pair: &mut VnicPair,
        counters: &mut DriverCounters,
    ) -> usize {
        self.give_back(pair);
        counters.drop(reason);
        counters.waiting = self.waiting() as u64;
        1
    }

    /// Drops all waiting frames; returns their number.
    fn drop_all(
        &mut self,
        reason: DeviceDropReason,
        pair: &mut VnicPair,
        counters: &mut DriverCounters,
    ) -> usize {
        (0..self.waiting()).map(|_| self.drop_first(reason, pair, counters)).sum()
    }

    /// Lends the buffers of the first waiting frame again.
    #[inline]
    fn give_back(&mut self, pair: &mut VnicPair) -> Frame {
        let frame = self.frames[self.done];
        for token in &self.tokens[self.parts_done..self.parts_done + frame.parts] {
            lend(pair, *token);
        }
        (self.done, self.parts_done) = (self.done + 1, self.parts_done + frame.parts);
        frame
    }
}

#[inline]
pub(crate) fn lend(pair: &mut VnicPair, slot: u16) {
    // The ring has an entry for each slot, so there is room.
    let lent = pair.rx.lend(at(slot), SEND_SLOT_BYTES, u32::from(slot));
    debug_assert!(lent);
}

/// Takes the next buffer of a frame.
#[inline]
pub(crate) fn take_buffer(pair: &mut VnicPair) -> Result<Used, GuestError> {
    let used = pair.rx.take_back()?.ok_or(broken("it has fewer buffers than its header says"))?;
    if used.len > SEND_SLOT_BYTES {
        return Err(broken("it is longer than its buffer"));
    }
    Ok(used)
}

/// Reads the header in front of a frame, whose first buffer is `first`.
#[inline]
pub(crate) fn read_header<const BYTES: usize>(
    pair: &VnicPair,
    first: Used,
) -> Result<[u8; BYTES], GuestError> {
    let mut header = [0; BYTES];
    if (first.len as usize) < BYTES {
        return Err(broken("it is shorter than its header"));
    }
    pair.map().read(segment(pair, first), 0, &mut header)?;
    Ok(header)
}

/// The buffer of a frame's part and what lies behind it, as a segment of the vNIC's memory.
#[inline]
fn segment(pair: &VnicPair, part: Used) -> Segment {
    let arena = pair.arena();
    Segment { offset: arena.offset + u64::from(at(part.token as u16)), ..arena }
}
