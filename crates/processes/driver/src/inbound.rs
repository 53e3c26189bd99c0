//! Buffers for frames from a device to the switch.

use lasthop_frontend::{GuestError, VnicPair};
use lasthop_guestmem::{Segment, StaleSegment};

use crate::bounds::{RECEIVE_AT, RECEIVE_SLOT_BYTES, RECEIVE_SLOTS};
use crate::sys::Span;

/// Buffers for frames from a device. The last returned buffer is used next, so only as many are touched as there are
/// frames in flight, and these are still in the cache.
#[derive(Debug)]
pub(crate) struct Inbound {
    /// Slots that are not lent; the next one is last.
    free: Vec<u16>,
}

impl Inbound {
    pub(crate) fn new() -> Self {
        Self { free: Vec::with_capacity(usize::from(RECEIVE_SLOTS)) }
    }

    /// Resets for a fresh ring: no buffer is lent.
    pub(crate) fn start(&mut self) {
        self.free.clear();
        self.free.extend((0..RECEIVE_SLOTS).rev());
    }

    /// Takes back buffers that the switch has used.
    ///
    /// # Errors
    /// A fault of the switch in the ring.
    #[inline]
    pub(crate) fn reclaim(&mut self, pair: &mut VnicPair) -> Result<(), GuestError> {
        pair.tx.look()?;
        while let Some(used) = pair.tx.take_seen() {
            self.free.push(used.token as u16); // as lent
        }
        Ok(())
    }

    /// The next free buffers, in the order of [`Self::take`].
    #[inline]
    pub(crate) fn spans(&self) -> impl ExactSizeIterator<Item = Span> {
        self.free.iter().rev().map(|slot| Span { offset: at(*slot), len: RECEIVE_SLOT_BYTES })
    }

    /// Number of free buffers.
    #[inline]
    pub(crate) fn room(&self) -> usize {
        self.free.len()
    }

    /// Takes the next free buffer. The caller lends or returns it.
    #[inline]
    pub(crate) fn take(&mut self) -> Option<Slot> {
        self.free.pop().map(Slot)
    }

    /// Returns a buffer that was taken and not lent.
    #[inline]
    pub(crate) fn give_back(&mut self, slot: Slot) {
        self.free.push(slot.0);
    }
}

/// A buffer for a frame from a device.
#[derive(Debug)]
pub(crate) struct Slot(u16);

fn at(slot: u16) -> u32 {
    RECEIVE_AT + u32::from(slot) * RECEIVE_SLOT_BYTES
}

impl Slot {
    /// The buffer, as a segment of the vNIC's memory.
    fn segment(&self, pair: &VnicPair) -> Segment {
        let arena = pair.arena();
        Segment {
            offset: arena.offset + u64::from(at(self.0)),
            len: RECEIVE_SLOT_BYTES,
            region: arena.region,
        }
    }

    /// Copies bytes out, starting `skip` bytes into the buffer.
    #[inline]
    pub(crate) fn read(&self, pair: &VnicPair, skip: u32, out: &mut [u8]) -> Result<(), StaleSegment> {
        pair.map().read(self.segment(pair), skip, out)
    }

    /// Copies bytes in, starting `skip` bytes into the buffer.
    #[inline]
    pub(crate) fn write(&self, pair: &VnicPair, skip: u32, bytes: &[u8]) -> Result<(), StaleSegment> {
        pair.map().write(self.segment(pair), skip, bytes)
    }

    /// Lends the switch `len` bytes, from `skip` bytes into the buffer on: a frame with its header.
    #[inline]
    pub(crate) fn lend(self, pair: &mut VnicPair, skip: u32, len: u32) {
        // There is room: the ring has an entry for each slot.
        let lent = pair.tx.lend(at(self.0) + skip, len, u32::from(self.0));
        debug_assert!(lent);
    }
}
