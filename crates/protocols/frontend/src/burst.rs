//! A guest for benchmarks: sends and receives many frames with few instructions.

use std::os::unix::net::UnixStream;
use std::time::Duration;

use lasthop_guestmem::SlotArray;
use lasthop_ring::{BufferAccess, DriverRingError, Returned, SlotRing};
use lasthop_vhost::features;
use lasthop_wire::vnet::HEADER_BYTES;

use crate::memory::{GUEST_ADDR, Slots};
use crate::notifications::{Deadline, RingEventFds, sleep};
use crate::{Guest, GuestError, GuestOptions};

/// Bytes of a buffer that are written or read if only headers are needed: one cache line, with the virtio-net header
/// and 52 bytes of the frame.
pub const START_BYTES: usize = 64;
/// Buffers that one burst handles.
const BURST: usize = 32;
/// Returned buffers that are published together: an index store for each would bounce the cache line.
const PUBLISH_BATCH: u16 = 16;
/// Bytes that are read at a time if a whole frame is read and not kept: they stay in the first-level cache.
const SCRATCH_BYTES: usize = 4096;

/// How much of a frame is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadDepth {
    /// The first [`START_BYTES`].
    Start,
    /// Every byte.
    All,
}

/// A guest that is as fast as possible: one queue pair, one descriptor for each frame, buffers in fixed places that are
/// used in turn. It polls; [`Self::wait`] sleeps. Frames include their virtio-net header (12 bytes).
#[derive(Debug)]
pub struct BurstGuest {
    guest: Guest,
    rx: Side,
    tx: Side,
    mergeable: bool,
    /// Buffers still to come that belong to an earlier frame.
    rest: u16,
    scratch: Box<[u8; SCRATCH_BYTES]>,
}

/// A ring with its buffers.
#[derive(Debug)]
struct Side {
    index: u16,
    ring: SlotRing,
    slots: SlotArray,
}

impl Side {
    fn new(guest: &Guest, index: u16, direction: BufferAccess, slots: &Slots) -> Result<Self, GuestError> {
        let event_idx = guest.agreement.has(features::EVENT_IDX);
        let place = (GUEST_ADDR + slots.segment(0).offset, slots.stride_bytes(), slots.len_bytes());
        let position = guest.options.start_position;
        let ring = SlotRing::new(guest.ring_memory(index)?, event_idx, position, direction, place);
        let count = u32::from(guest.options.ring_entries);
        let slots = SlotArray::new(&guest.memory.map, slots.segment(0), slots.stride_bytes(), count)?;
        Ok(Self { index, ring, slots })
    }

    fn broken(&self, error: DriverRingError) -> GuestError {
        GuestError::Ring(self.index, error)
    }

    #[inline(always)]
    fn publish(&mut self, eventfds: &RingEventFds) -> Result<(), GuestError> {
        if self.ring.publish() {
            eventfds.kick()?;
        }
        Ok(())
    }
}

impl BurstGuest {
    /// Starts on a connected socket, with all receive buffers available. Ignores the options' queue pairs, cuts and
    /// counts of receive buffers.
    ///
    /// # Errors
    /// As [`Guest::over`]; [`GuestError::Options`] if buffers are shorter than [`START_BYTES`], or the back end uses
    /// the short virtio-net header.
    pub fn over(stream: UnixStream, options: GuestOptions) -> Result<Self, GuestError> {
        // Its rings are split ones.
        let features = options.features & !features::RING_PACKED;
        let options =
            GuestOptions { queue_pairs: 1, rx_buffers: 0, rx_cuts: Vec::new(), features, ..options };
        let short = options.rx_buffer_bytes.min(options.tx_slot_bytes) < START_BYTES as u32;
        let guest = Guest::over(stream, options)?;
        if short || guest.agreement.header_bytes() != HEADER_BYTES {
            return Err(GuestError::Options(
                "a fast guest wants VERSION_1, and buffers of 64 bytes at least".to_owned(),
            ));
        }
        let slots = guest.layout.pairs[0];
        let mut rx = Side::new(&guest, 0, BufferAccess::Writable, &slots.rx)?;
        let tx = Side::new(&guest, 1, BufferAccess::Readable, &slots.tx)?;
        rx.ring.give_all();
        rx.publish(&guest.pairs[0].rx.eventfds)?;
        let mergeable = guest.agreement.has(features::MRG_RXBUF);
        Ok(Self { guest, rx, tx, mergeable, rest: 0, scratch: Box::new([0; SCRATCH_BYTES]) })
    }

    /// Number of frames for which there is room, after taking back used buffers.
    ///
    /// # Errors
    /// [`GuestError::Ring`].
    #[inline(always)]
    pub fn room(&mut self) -> Result<usize, GuestError> {
        let tx = &mut self.tx;
        for _ in 0..tx.ring.pending().map_err(|error| tx.broken(error))? {
            tx.ring.take().map_err(|error| tx.broken(error))?;
        }
        Ok(usize::from(tx.ring.room()))
    }

    /// Sent frames that the back end has not used, as of the last [`Self::room`].
    #[must_use]
    pub fn in_flight(&self) -> u16 {
        self.tx.ring.in_flight()
    }

    /// Adds a frame, with its header, to the transmit ring; there must be [`Self::room`]. [`Self::flush`] publishes it.
    ///
    /// # Errors
    /// [`GuestError::FrameTooLong`].
    #[inline(always)]
    pub fn put(&mut self, bytes: &[u8]) -> Result<(), GuestError> {
        let slot = usize::from(self.tx.ring.next_slot());
        self.tx.slots.write(slot, 0, bytes).map_err(|_| GuestError::FrameTooLong(bytes.len()))?;
        self.tx.ring.give(bytes.len() as u32);
        Ok(())
    }

    /// Like [`Self::put`] for `len_bytes`, with the header. Only the first bytes are written: the rest is that of the
    /// buffer's last frame.
    ///
    /// # Errors
    /// As [`Self::put`].
    #[inline(always)]
    pub fn put_start(&mut self, start: &[u8; START_BYTES], len_bytes: usize) -> Result<(), GuestError> {
        if !(START_BYTES..=self.tx.slots.slot_bytes()).contains(&len_bytes) {
            return Err(GuestError::FrameTooLong(len_bytes));
        }
        let slot = usize::from(self.tx.ring.next_slot());
        self.tx.slots.write(slot, 0, start)?;
        self.tx.ring.give(len_bytes as u32);
        Ok(())
    }

    /// Publishes the added frames, and kicks the back end if it requests that.
    ///
    /// # Errors
    /// [`GuestError::System`] if the eventfd fails.
    #[inline(always)]
    pub fn flush(&mut self) -> Result<(), GuestError> {
        self.tx.publish(&self.guest.pairs[0].tx.eventfds)
    }

    /// Receives up to 32 frames; `each` gets the first bytes, including the header, and the length of the frame without
    /// header. Returns the number of buffers, which is that of frames unless the back end splits them.
    ///
    /// # Errors
    /// [`GuestError::Ring`], [`GuestError::BrokenFrame`].
    #[inline(always)]
    pub fn recv(
        &mut self,
        buffers_max: usize,
        depth: ReadDepth,
        mut each: impl FnMut(&[u8; START_BYTES], usize),
    ) -> Result<usize, GuestError> {
        let pending = self.rx.ring.pending().map_err(|error| self.rx.broken(error))?;
        let count = usize::from(pending).min(buffers_max).min(BURST);
        let mut taken = [Returned::default(); BURST];
        // All cache lines are prefetched before the first is used.
        for returned in &mut taken[..count] {
            *returned = self.rx.ring.take().map_err(|error| GuestError::Ring(0, error))?;
            self.rx.slots.prefetch(usize::from(returned.slot), 0);
        }
        for returned in &taken[..count] {
            self.look(*returned, depth, &mut each)?;
        }
        self.rx.ring.give_all();
        let unpublished = self.rx.ring.unpublished();
        if unpublished >= PUBLISH_BATCH || (count == 0 && unpublished > 0) {
            self.rx.publish(&self.guest.pairs[0].rx.eventfds)?;
        }
        Ok(count)
    }

    #[inline(always)]
    fn look(
        &mut self,
        returned: Returned,
        depth: ReadDepth,
        each: &mut impl FnMut(&[u8; START_BYTES], usize),
    ) -> Result<(), GuestError> {
        let (slot, len) = (usize::from(returned.slot), returned.len as usize);
        if self.rest > 0 {
            self.rest -= 1;
        } else {
            let mut start = [0; START_BYTES];
            self.rx.slots.read(slot, 0, &mut start)?;
            if self.mergeable {
                self.rest = u16::from_le_bytes([start[10], start[11]]).wrapping_sub(1);
            }
            let frame_bytes = len.checked_sub(HEADER_BYTES);
            each(&start, frame_bytes.ok_or(GuestError::BrokenFrame(0, "it is shorter than its header"))?);
        }
        if depth == ReadDepth::All {
            self.read_all(slot, len)?;
        }
        Ok(())
    }

    fn read_all(&mut self, slot: usize, len: usize) -> Result<(), GuestError> {
        for at in (0..len).step_by(SCRATCH_BYTES) {
            let part = &mut self.scratch[..SCRATCH_BYTES.min(len - at)];
            let read = self.rx.slots.read(slot, at, part);
            read.map_err(|_| GuestError::BrokenFrame(0, "it is longer than its buffer"))?;
            std::hint::black_box(part);
        }
        Ok(())
    }

    /// Sleeps until a frame was received, for at most `timeout`; returns whether there is one.
    ///
    /// # Errors
    /// [`GuestError::HungUp`] if the back end is gone and no frame is left.
    pub fn wait(&mut self, timeout: Option<Duration>) -> Result<bool, GuestError> {
        let eventfds = &self.guest.pairs[0].rx.eventfds;
        let deadline = Deadline::after(timeout);
        if self.rx.ring.unpublished() > 0 {
            self.rx.publish(eventfds)?;
        }
        loop {
            eventfds.take_calls()?;
            if self.rx.ring.arm_calls() {
                self.rx.ring.suppress_calls();
                return Ok(true);
            }
            if deadline.is_over() {
                return Ok(false);
            }
            sleep(&self.guest.front, std::iter::once(eventfds.call_fd()), deadline)?;
        }
    }
}
