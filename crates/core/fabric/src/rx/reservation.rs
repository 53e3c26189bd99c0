//! Reserves receive buffers for one packet without publishing them.

use arrayvec::ArrayVec;
use lasthop_guestmem::{MemoryMap, Segment};
use lasthop_ring::{BufferAccess, DeviceRing, RingError, walk_in};

use crate::bounds::{PACKET_BUFFER_SEGMENTS_MAX, PACKET_BUFFERS_MAX};

/// Receive buffers reserved for one packet: all that it needs, or none.
#[derive(Debug, Default)]
pub(crate) struct Reservation {
    /// Head of each buffer, and bytes to write to it.
    buffers: ArrayVec<(u16, u32), PACKET_BUFFERS_MAX>,
    segments: ArrayVec<Segment, PACKET_BUFFER_SEGMENTS_MAX>,
    /// Memory pieces found since the last call, for packets that no longer wait. The first piece of each is not
    /// counted.
    further_pieces: u64,
}

/// The reason why no buffers were reserved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// The guest has posted too few buffers, up to this available index. A later attempt may succeed.
    NoBuffers(u16),
    /// Never possible: one buffer (or 64 merged ones) cannot hold the packet.
    TooSmall,
    /// The guest's ring is broken.
    Broken(RingError),
}

impl Reservation {
    /// Takes buffers for `len` bytes from `ring`. After a refusal none is taken.
    #[inline]
    pub(crate) fn take(
        &mut self,
        ring: &mut DeviceRing,
        map: &MemoryMap,
        hint: &mut u16,
        len: u32,
        mergeable: bool,
    ) -> Result<(), Refusal> {
        let taken = match ring.is_packed() {
            false => self.try_to_take::<false>(ring, map, hint, len, mergeable),
            true => self.try_to_take::<true>(ring, map, hint, len, mergeable),
        };
        // A guest that keeps posting few buffers causes retries. The packets' senders are not charged for them.
        if !matches!(taken, Err(Refusal::NoBuffers(_))) {
            self.further_pieces += (self.segments.len() as u64).saturating_sub(1);
        }
        taken
    }

    /// Returns the memory pieces found since the last call, for packets that no longer wait. The first piece of each is
    /// not counted.
    pub(crate) fn take_further_pieces(&mut self) -> u64 {
        std::mem::take(&mut self.further_pieces)
    }

    // Not inlined, so that it has all registers.
    #[inline(never)]
    fn try_to_take<const PACKED: bool>(
        &mut self,
        ring: &mut DeviceRing,
        map: &MemoryMap,
        hint: &mut u16,
        len: u32,
        mergeable: bool,
    ) -> Result<(), Refusal> {
        self.buffers.clear();
        self.segments.clear();
        let wanted = PACKET_BUFFERS_MAX as u16; // fewer than a ring may have
        let pending = ring.pending_up_to(wanted).map_err(Refusal::Broken)?;
        let mut missing = len;
        while missing > 0 {
            let taken = self.buffers.len() as u16;
            if self.buffers.is_full() || (taken > 0 && !mergeable) {
                return Err(Refusal::TooSmall);
            }
            if taken == pending {
                // The guest has posted all its buffers: waiting would not help.
                let never = ring.has_every_descriptor(pending);
                let seen = ring.position_behind(pending);
                return Err(if never { Refusal::TooSmall } else { Refusal::NoBuffers(seen) });
            }
            let head = ring.head_in::<PACKED>(taken).map_err(Refusal::Broken)?;
            let room = self.walk_buffer::<PACKED>(ring, map, hint, head, missing)?;
            self.buffers.push((head, room.min(missing)));
            missing -= room.min(missing);
        }
        ring.take(self.buffers.len() as u16);
        Ok(())
    }

    /// Adds the segments of the buffer at `head`. Returns its bytes, counted up to `missing`.
    #[inline]
    fn walk_buffer<const PACKED: bool>(
        &mut self,
        ring: &DeviceRing,
        map: &MemoryMap,
        hint: &mut u16,
        head: u16,
        missing: u32,
    ) -> Result<u32, Refusal> {
        let mut room = 0_u32;
        let mut overflow = false;
        walk_in::<PACKED>(ring, map, head, BufferAccess::Writable, hint, |segment, _| {
            overflow =
                self.segments.try_push(Segment { len: segment.len.min(missing - room), ..segment }).is_err();
            room += segment.len.min(missing - room);
            !overflow && room < missing
        })
        .map_err(Refusal::Broken)?;
        // A buffer of no bytes could be taken without end.
        if overflow || room == 0 { Err(Refusal::TooSmall) } else { Ok(room) }
    }

    /// The reserved memory, in order.
    pub(crate) fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// Head of each buffer taken, and bytes to write to it.
    pub(crate) fn heads(&self) -> &[(u16, u32)] {
        &self.buffers
    }

    /// Number of buffers taken: the header's `num_buffers`.
    pub(crate) fn buffers(&self) -> u16 {
        self.buffers.len() as u16
    }

    /// Returns all buffers to the ring, unused.
    pub(crate) fn put_back(&mut self, ring: &mut DeviceRing) {
        ring.put_back(self.buffers());
        self.buffers.clear();
    }

    /// Writes the used entries. The guest sees them when the ring is published next.
    #[inline]
    pub(crate) fn complete(&self, ring: &mut DeviceRing) {
        for &(head, written_bytes) in &self.buffers {
            ring.complete(head, written_bytes);
        }
    }
}
