//! The receive side of a guest's queue pair.

use lasthop_guestmem::MemoryMap;
use lasthop_ring::{DriverRing, Used};
use lasthop_wire::vnet::{HEADER_BYTES, Offload};

use crate::memory::{PairSlots, Slots};
use crate::notifications::RingEventFds;
use crate::{GuestError, PARTS_MAX};

/// Returned buffers that are published together: an index store for each would bounce the cache line.
const PUBLISH_BATCH: u16 = 16;

/// A received frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReceivedFrame {
    /// Its offload metadata.
    pub offload: Offload,
    /// Number of its receive buffers according to the header, which is 1 unless they are mergeable.
    pub num_buffers: u16,
    /// Its length without the virtio-net header.
    pub len: usize,
}

/// Bytes of a receive buffer that are compared at a time.
const GUARD_BYTES: usize = 4096;

/// The form of buffers and headers, by options and features.
#[derive(Clone, Debug)]
pub(crate) struct RxShape {
    pub(crate) header_bytes: usize,
    pub(crate) mergeable: bool,
    pub(crate) buffers: u16,
    pub(crate) cuts: Vec<u32>,
    pub(crate) guard: Option<u8>,
}

/// A receive ring with its buffers.
#[derive(Debug)]
pub(crate) struct RxQueue {
    /// Number of the ring.
    pub(crate) index: u16,
    pub(crate) ring: DriverRing,
    pub(crate) eventfds: RingEventFds,
    slots: Slots,
    shape: RxShape,
    /// Number of buffers that were added and not published yet.
    unpublished: u16,
    pub(crate) frames: u64,
    pub(crate) bytes: u64,
}

impl RxQueue {
    /// A queue with all buffers added, and not published yet.
    pub(crate) fn new(
        index: u16,
        ring: DriverRing,
        eventfds: RingEventFds,
        slots: &PairSlots,
        shape: RxShape,
    ) -> Self {
        let slots = slots.rx;
        let mut queue = Self { index, ring, eventfds, slots, shape, unpublished: 0, frames: 0, bytes: 0 };
        let room = queue.ring.entries() / (queue.shape.cuts.len() as u16 + 1); // fewer cuts than entries
        for slot in 0..room.min(queue.shape.buffers) {
            queue.add(u32::from(slot));
        }
        queue
    }

    #[inline]
    fn add(&mut self, slot: u32) {
        let (addr, len) = (self.slots.guest_addr(slot), self.slots.len_bytes());
        let added = if self.shape.cuts.is_empty() {
            self.ring.add(&[], &[(addr, len)], slot)
        } else {
            self.add_cut(addr, len, slot)
        };
        // There is room, since the slot's own descriptors were just freed.
        debug_assert!(added.is_some());
        self.unpublished += 1;
    }

    fn add_cut(&mut self, addr: u64, len: u32, slot: u32) -> Option<u16> {
        let (mut parts, mut at) = ([(0, 0); PARTS_MAX], 0);
        for (part, cut) in parts.iter_mut().zip(self.shape.cuts.iter().copied().chain([u32::MAX])) {
            *part = (addr + u64::from(at), cut.min(len - at));
            at += part.1;
        }
        self.ring.add(&[], &parts[..=self.shape.cuts.len()], slot)
    }

    /// Publishes the returned buffers, and wakes the back end if it requests that; returns whether it did.
    #[inline]
    pub(crate) fn flush(&mut self) -> Result<bool, GuestError> {
        self.unpublished = 0;
        self.ring.publish();
        let wanted = self.ring.needs_kick();
        if wanted {
            self.eventfds.kick()?;
        }
        Ok(wanted)
    }

    /// Receives the next frame into `into`, which gets its length.
    #[inline]
    pub(crate) fn receive(
        &mut self,
        map: &MemoryMap,
        into: &mut Vec<u8>,
    ) -> Result<Option<ReceivedFrame>, GuestError> {
        let Some(first) = self.take()? else {
            if self.unpublished > 0 {
                self.flush()?;
            }
            return Ok(None);
        };
        let (offload, num_buffers) = self.header(map, first)?;
        let mut len = self.payload(map, first, self.shape.header_bytes, 0, into)?;
        for _ in 1..if self.shape.mergeable { num_buffers } else { 1 } {
            let next = self.take()?.ok_or(self.broken("it has fewer buffers than its header says"))?;
            len = self.payload(map, next, 0, len, into)?;
        }
        into.truncate(len);
        (self.frames, self.bytes) = (self.frames + 1, self.bytes + len as u64);
        Ok(Some(ReceivedFrame { offload, num_buffers, len }))
    }

    #[inline]
    fn take(&mut self) -> Result<Option<Used>, GuestError> {
        let used = self.ring.take_used().map_err(|error| GuestError::Ring(self.index, error))?;
        match used {
            Some(used) if used.len > self.slots.len_bytes() => {
                Err(self.broken("it is longer than its buffer"))
            }
            used => Ok(used),
        }
    }

    fn broken(&self, what: &'static str) -> GuestError {
        GuestError::BrokenFrame(self.index, what)
    }

    #[inline]
    fn header(&self, map: &MemoryMap, first: Used) -> Result<(Offload, u16), GuestError> {
        let len = self.shape.header_bytes;
        if (first.len as usize) < len {
            return Err(self.broken("it is shorter than its header"));
        }
        let mut header = [0; HEADER_BYTES];
        map.read(self.slots.segment(first.token), 0, &mut header[..len])?;
        let num_buffers = if len == HEADER_BYTES { u16::from_le_bytes([header[10], header[11]]) } else { 1 };
        if num_buffers == 0 {
            return Err(self.broken("its header says that it has no buffer"));
        }
        Ok((Offload::parse(&header), num_buffers))
    }

    /// Copies a buffer's bytes after `skip` to `at` in `into`, and returns the buffer. Returns the end.
    #[inline]
    fn payload(
        &mut self,
        map: &MemoryMap,
        used: Used,
        skip: usize,
        at: usize,
        into: &mut Vec<u8>,
    ) -> Result<usize, GuestError> {
        let end = at + used.len as usize - skip; // header() checked the first one, others skip nothing
        if into.len() < end {
            into.resize(end, 0);
        }
        map.read(self.slots.segment(used.token), skip as u32, &mut into[at..end])?;
        if let Some(guard) = self.shape.guard {
            self.check_guard(map, used, guard)?;
        }
        self.add(used.token);
        if self.unpublished >= PUBLISH_BATCH {
            self.flush()?;
        }
        Ok(end)
    }

    /// Fills the buffers, none of which is available yet.
    pub(crate) fn fill_guard(&self, map: &MemoryMap) -> Result<(), GuestError> {
        let Some(guard) = self.shape.guard else { return Ok(()) };
        let fill = vec![guard; self.slots.len_bytes() as usize];
        (0..u32::from(self.ring.entries()))
            .try_for_each(|slot| Ok(map.write(self.slots.segment(slot), 0, &fill)?))
    }

    /// Checks that nothing was written behind the delivered bytes, and fills these again.
    fn check_guard(&self, map: &MemoryMap, used: Used, guard: u8) -> Result<(), GuestError> {
        let (segment, mut bytes) = (self.slots.segment(used.token), [0; GUARD_BYTES]);
        for at in (used.len..segment.len).step_by(GUARD_BYTES) {
            let part = &mut bytes[..GUARD_BYTES.min((segment.len - at) as usize)];
            map.read(segment, at, part)?;
            if part.iter().any(|byte| *byte != guard) {
                return Err(self.broken("bytes behind its end were written"));
            }
        }
        bytes.fill(guard);
        (0..used.len).step_by(GUARD_BYTES).try_for_each(|at| {
            let len = GUARD_BYTES.min((used.len - at) as usize);
            Ok(map.write(segment, at, &bytes[..len])?)
        })
    }
}
