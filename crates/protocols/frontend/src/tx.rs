//! The transmit side of a guest's queue pair.

use lasthop_guestmem::MemoryMap;
use lasthop_ring::{DriverRing, write_table};
use lasthop_wire::PacketHash;
use lasthop_wire::vnet::{HEADER_BYTES, Offload};

use crate::memory::{PairSlots, Slots};
use crate::notifications::RingEventFds;
use crate::{GuestError, PARTS_MAX};

/// A transmit ring with its buffers.
#[derive(Debug)]
pub(crate) struct TxQueue {
    /// Number of the ring.
    pub(crate) index: u16,
    pub(crate) ring: DriverRing,
    pub(crate) eventfds: RingEventFds,
    /// One slot for each descriptor: a frame is in the slot of its chain's head.
    slots: Slots,
    /// One indirect table for each slot.
    tables: Slots,
    header_bytes: usize,
    indirect: bool,
    pub(crate) frames: u64,
    pub(crate) bytes: u64,
}

/// The descriptors of one frame.
struct Parts {
    buffers: [(u64, u32); PARTS_MAX],
    count: usize,
}

impl Parts {
    /// Splits `len` bytes at `addr`; the last part has the rest. Ignores cuts beyond the end.
    fn cut(addr: u64, len: u32, cuts: &[u32]) -> Result<Self, GuestError> {
        if cuts.len() >= PARTS_MAX {
            return Err(GuestError::TooManyParts(cuts.len() + 1));
        }
        let mut parts = Self { buffers: [(0, 0); PARTS_MAX], count: 0 };
        let mut at = 0;
        for cut in cuts.iter().copied().chain([u32::MAX]) {
            let part = cut.min(len - at);
            if at < len {
                parts.buffers[parts.count] = (addr + u64::from(at), part);
                parts.count += 1;
            }
            at += part;
        }
        Ok(parts)
    }

    fn as_slice(&self) -> &[(u64, u32)] {
        &self.buffers[..self.count]
    }
}

impl TxQueue {
    pub(crate) fn new(
        index: u16,
        ring: DriverRing,
        eventfds: RingEventFds,
        slots: &PairSlots,
        (header_bytes, indirect): (usize, bool),
    ) -> Self {
        Self {
            index,
            ring,
            eventfds,
            slots: slots.tx,
            tables: slots.tables,
            header_bytes,
            indirect,
            frames: 0,
            bytes: 0,
        }
    }

    /// Adds a frame to the ring; returns false if it is full.
    pub(crate) fn send(
        &mut self,
        map: &MemoryMap,
        frame: &[u8],
        told: (Offload, PacketHash),
        cuts: &[u32],
    ) -> Result<bool, GuestError> {
        let Some(slot) = self.ring.next_head().map(u32::from) else { return Ok(false) };
        self.fill(map, slot, frame, told)?;
        self.send_slot(map, slot, frame.len(), cuts)
    }

    #[inline]
    fn fill(
        &self,
        map: &MemoryMap,
        slot: u32,
        frame: &[u8],
        (offload, hash): (Offload, PacketHash),
    ) -> Result<(), GuestError> {
        self.check_fits(frame.len())?;
        let (segment, header) = (self.slots.segment(slot), offload.emit(0));
        map.write(segment, 0, &header[..self.header_bytes.min(HEADER_BYTES)])?;
        if self.header_bytes > HEADER_BYTES {
            map.write(segment, HEADER_BYTES as u32, &hash.emit())?;
        }
        Ok(map.write(segment, self.header_bytes as u32, frame)?)
    }

    #[inline]
    fn check_fits(&self, frame_bytes: usize) -> Result<(), GuestError> {
        let room = self.slots.len_bytes() as usize - self.header_bytes;
        if frame_bytes > room { Err(GuestError::FrameTooLong(frame_bytes)) } else { Ok(()) }
    }

    #[inline]
    fn send_slot(
        &mut self,
        map: &MemoryMap,
        slot: u32,
        frame_bytes: usize,
        cuts: &[u32],
    ) -> Result<bool, GuestError> {
        self.check_fits(frame_bytes)?;
        let len = (self.header_bytes + frame_bytes) as u32; // at most a slot
        let whole = (self.slots.guest_addr(slot), len);
        let head = match cuts {
            [] => self.ring.add(&[whole], &[], slot),
            _ => self.add_parts(map, slot, &Parts::cut(whole.0, len, cuts)?)?,
        };
        if head.is_some() {
            self.frames += 1;
            self.bytes += frame_bytes as u64;
        }
        Ok(head.is_some())
    }

    fn add_parts(&mut self, map: &MemoryMap, slot: u32, parts: &Parts) -> Result<Option<u16>, GuestError> {
        if !self.indirect || parts.count < 2 {
            return Ok(self.ring.add(parts.as_slice(), &[], slot));
        }
        let table_bytes =
            write_table(self.ring.format(), map, self.tables.segment(slot), parts.as_slice(), &[])?;
        Ok(self.ring.add_indirect(self.tables.guest_addr(slot), table_bytes, slot))
    }

    /// Takes back the slots of frames that the back end has used; returns their number.
    #[inline]
    pub(crate) fn reclaim(&mut self) -> Result<usize, GuestError> {
        let mut count = 0;
        while self.ring.take_used().map_err(|error| GuestError::Ring(self.index, error))?.is_some() {
            count += 1;
        }
        Ok(count)
    }

    /// Publishes the frames in the ring, and wakes the back end if it requests that. Returns whether it did.
    #[inline]
    pub(crate) fn flush(&mut self) -> Result<bool, GuestError> {
        self.ring.publish();
        let wanted = self.ring.needs_kick();
        if wanted {
            self.eventfds.kick()?;
        }
        Ok(wanted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_cover_the_frame_once_in_order() {
        let cases = [
            (100, vec![12], vec![(1000, 12), (1012, 88)]),
            (100, vec![5, 7, 60], vec![(1000, 5), (1005, 7), (1012, 60), (1072, 28)]),
            (20, vec![12, 8, 9], vec![(1000, 12), (1012, 8)]),
            (20, vec![30], vec![(1000, 20)]),
        ];
        for (len, cuts, expected) in cases {
            assert_eq!(Parts::cut(1000, len, &cuts).unwrap().as_slice(), expected);
        }
        assert!(Parts::cut(0, 1000, &[1; PARTS_MAX - 1]).is_ok());
        assert!(matches!(Parts::cut(0, 1000, &[1; PARTS_MAX]), Err(GuestError::TooManyParts(65))));
    }
}
