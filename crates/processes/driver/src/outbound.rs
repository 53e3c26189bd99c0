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

/// Number of the receive ring of a pair in errors: the ring knows its own.
const RECEIVE_RING: u16 = 0;

/// A frame that was taken from the ring.
#[derive(Clone, Copy, Debug)]
struct Frame {
    /// Buffers that it lies in.
    parts: usize,
    /// Its bytes, without virtio-net header.
    len_bytes: usize,
}

/// The handling of a frame that a device refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// It waits until the device has room.
    Wait,
    /// It is dropped.
    Drop(DeviceDropReason),
    /// It is dropped, and so are those behind it: the device would say the same of each.
    DropAll(DeviceDropReason),
    /// There is no device any more.
    Gone,
}

/// Frames on their way from the switch to a device: a batch that was taken from the ring, of which the first may be done.
/// Its buffers are the switch's again as soon as a frame is done.
///
/// ```text
///   frames   [ d d d | w w w w ]        tokens   [ d d d d d d | w w w w w w w w ]
///                done^  waiting                       parts_done^
/// ```
#[derive(Debug)]
pub(crate) struct Outbound {
    outbox: Outbox,
    /// Bytes of the header in front of a frame, as the device wants it.
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

    /// The ring is fresh: all buffers are lent. Frames that waited for the device are forgotten.
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

    /// Frames that were taken from the ring and are not done.
    fn waiting(&self) -> usize {
        self.frames.len() - self.done
    }

    /// A batch to the device: `push` gives it messages of the outbox, from the given one on, and says how many it took.
    ///
    /// # Errors
    /// [`QueueError::DeviceGone`], and faults of the switch.
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

    /// A batch to nowhere.
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

    /// Takes another batch from the ring, when the last one is done.
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

    /// Takes one frame, which is there, and enters it.
    #[inline]
    fn take(&mut self, pair: &mut VnicPair) -> Result<Frame, GuestError> {
        let first = take_buffer(pair)?;
        let header = read_header(pair, first)?;
        let parts =
            if pair.is_mergeable() { usize::from(u16::from_le_bytes([header[10], header[11]])) } else { 1 };
        if !(1..=SEND_PARTS_MAX).contains(&parts) {
            return Err(broken("its header says that it has no buffer, or more than any frame needs"));
        }
        let mut spans: ArrayVec<Span, { SEND_PARTS_MAX + 1 }> = ArrayVec::new();
        let offset = at(first.token as u16);
        if self.header_bytes == HEADER_BYTES {
            spans.push(Span { offset, len: first.len });
        } else {
            // The kernel's header is the shorter one: num_buffers is left out.
            spans.push(Span { offset, len: self.header_bytes as u32 });
            spans.push(Span { offset: offset + HEADER_BYTES as u32, len: first.len - HEADER_BYTES as u32 });
        }
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

    /// The first `count` waiting frames are with the device; how many that are.
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

    /// The first waiting frame is dropped; how many that are.
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

    /// All waiting frames are dropped; how many.
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
    // There is room: the ring has an entry for each slot.
    let lent = pair.rx.lend(at(slot), SEND_SLOT_BYTES, u32::from(slot));
    debug_assert!(lent);
}

/// The next buffer of a frame.
#[inline]
pub(crate) fn take_buffer(pair: &mut VnicPair) -> Result<Used, GuestError> {
    let used = pair.rx.take_back()?.ok_or(broken("it has fewer buffers than its header says"))?;
    if used.len > SEND_SLOT_BYTES {
        return Err(broken("it is longer than its buffer"));
    }
    Ok(used)
}

#[inline]
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
