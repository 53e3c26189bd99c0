//! Walks descriptor chains: each descriptor is read once, checked and translated.

use lasthop_guestmem::{MemoryMap, Segment};

use crate::{
    CHAIN_DESCRIPTORS_MAX, DESC_INDIRECT, DESC_NEXT, DESC_WRITE, Descriptor, DeviceRing,
    EMPTY_DESCRIPTORS_MAX, RingError,
};

/// The direction of a chain's buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BufferAccess {
    /// The device reads them: transmit rings.
    Readable,
    /// The device writes them: receive rings.
    Writable,
    /// Readable buffers, then writable ones: control rings.
    Both,
}

/// Where the walk of a chain begins.
#[derive(Clone, Copy, Debug)]
pub struct ChainStart {
    /// The first descriptor.
    pub descriptor: Descriptor,
    /// Whether it is a copy, and leads to copies.
    pub(crate) is_kept: bool,
}

/// As [`walk_from`], from the chain's head.
///
/// # Errors
/// As [`walk_from`].
#[inline]
pub fn walk(
    ring: &DeviceRing,
    map: &MemoryMap,
    head: u16,
    direction: BufferAccess,
    hint: &mut u16,
    segment: impl FnMut(Segment, bool) -> bool,
) -> Result<bool, RingError> {
    walk_from(ring, map, ring.chain_start(head), direction, hint, segment)
}

/// As [`walk`], for code that is apart for rings that are packed or not, and not for chains that were postponed.
///
/// # Errors
/// As [`walk_from`].
#[inline]
pub fn walk_in<const PACKED: bool>(
    ring: &DeviceRing,
    map: &MemoryMap,
    head: u16,
    direction: BufferAccess,
    hint: &mut u16,
    segment: impl FnMut(Segment, bool) -> bool,
) -> Result<bool, RingError> {
    let start = ChainStart { descriptor: ring.descriptor_in::<PACKED>(head), is_kept: false };
    walk_chain::<PACKED>(ring, map, start, direction, hint, segment)
}

/// Walks the chain that begins with `start`, which the caller has read. Each descriptor's address, length and direction
/// are read once, checked and translated. `segment` is called with every non-empty piece and whether the device writes
/// to it; it ends the walk by returning false. Returns whether the walk reached the end of the chain.
///
/// `hint` is the region of the last translation.
///
/// # Errors
/// A fault of the driver; see [`RingError`].
#[inline]
pub fn walk_from(
    ring: &DeviceRing,
    map: &MemoryMap,
    start: ChainStart,
    direction: BufferAccess,
    hint: &mut u16,
    segment: impl FnMut(Segment, bool) -> bool,
) -> Result<bool, RingError> {
    match ring.is_packed() {
        false => walk_chain::<false>(ring, map, start, direction, hint, segment),
        true => walk_packed(ring, map, start, direction, hint, segment),
    }
}

// Not inlined, so that the code of split rings stays small.
#[inline(never)]
fn walk_packed(
    ring: &DeviceRing,
    map: &MemoryMap,
    start: ChainStart,
    direction: BufferAccess,
    hint: &mut u16,
    segment: impl FnMut(Segment, bool) -> bool,
) -> Result<bool, RingError> {
    walk_chain::<true>(ring, map, start, direction, hint, segment)
}

#[inline]
fn walk_chain<const PACKED: bool>(
    ring: &DeviceRing,
    map: &MemoryMap,
    start: ChainStart,
    direction: BufferAccess,
    hint: &mut u16,
    mut segment: impl FnMut(Segment, bool) -> bool,
) -> Result<bool, RingError> {
    let ChainStart { descriptor: first, is_kept } = start;
    let (budget, empty) = (CHAIN_DESCRIPTORS_MAX, 0);
    let mut walk = Walk::<PACKED> { map, direction, hint, writable_seen: false, budget, empty };
    if first.flags & (DESC_INDIRECT | DESC_NEXT) == 0 {
        // The usual chain of a small packet needs no loop: one buffer in one region.
        let writable = walk.check_direction(first)?;
        return match map.translate_whole(first.addr, first.len, walk.hint) {
            Some(piece) if piece.len > 0 => Ok(segment(piece, writable)),
            _ => walk.buffer(first, &mut segment),
        };
    }
    if first.flags & DESC_INDIRECT != 0 {
        return walk.indirect(first, &mut segment);
    }
    let direct_max = walk.budget.min(u32::from(ring.entries()));
    walk.budget = direct_max;
    let mut descriptor = first;
    loop {
        if !walk.buffer(descriptor, &mut segment)? {
            return Ok(false);
        }
        if descriptor.flags & DESC_NEXT == 0 {
            return Ok(true);
        }
        if descriptor.next >= ring.entries() {
            return Err(RingError::DescriptorOutOfRange(descriptor.next, ring.entries()));
        }
        descriptor = ring.linked_descriptor::<PACKED>(descriptor.next, is_kept);
        if descriptor.flags & DESC_INDIRECT != 0 {
            // The ring's size bounds only descriptors of the ring's own table.
            walk.budget = CHAIN_DESCRIPTORS_MAX - (direct_max - walk.budget);
            return walk.indirect(descriptor, &mut segment);
        }
    }
}

struct Walk<'a, const PACKED: bool> {
    map: &'a MemoryMap,
    direction: BufferAccess,
    hint: &'a mut u16,
    writable_seen: bool,
    budget: u32,
    /// Number of empty descriptors so far.
    empty: u32,
}

impl<const PACKED: bool> Walk<'_, PACKED> {
    /// Visits one buffer. False if `segment` ended the walk.
    #[inline]
    fn buffer(
        &mut self,
        descriptor: Descriptor,
        segment: &mut impl FnMut(Segment, bool) -> bool,
    ) -> Result<bool, RingError> {
        self.budget = self.budget.checked_sub(1).ok_or(RingError::ChainLoops)?;
        let writable = self.check_direction(descriptor)?;
        if descriptor.len == 0 {
            return self.empty(descriptor);
        }
        if let Some(piece) = self.map.translate_whole(descriptor.addr, descriptor.len, self.hint) {
            return Ok(segment(piece, writable));
        }
        let (mut addr, mut left) = (descriptor.addr, descriptor.len);
        while left > 0 {
            let outside = RingError::BufferOutside(descriptor.addr, descriptor.len);
            let piece = self.map.translate(addr, left, self.hint).ok_or(outside)?;
            if !segment(piece, writable) {
                return Ok(false);
            }
            left -= piece.len;
            addr = addr.checked_add(u64::from(piece.len)).ok_or(outside)?;
        }
        Ok(true)
    }

    /// Visits an empty descriptor, which does not end the walk.
    #[cold]
    fn empty(&mut self, descriptor: Descriptor) -> Result<bool, RingError> {
        if self.direction == BufferAccess::Writable {
            // No driver posts empty receive buffers. Thousands of them would be walked for each packet and never used
            // up.
            return Err(RingError::EmptyBuffer(descriptor.addr));
        }
        self.empty += 1;
        if self.empty > EMPTY_DESCRIPTORS_MAX { Err(RingError::ManyEmpty) } else { Ok(true) }
    }

    #[inline]
    fn check_direction(&mut self, descriptor: Descriptor) -> Result<bool, RingError> {
        let writable = descriptor.flags & DESC_WRITE != 0;
        let allowed = match self.direction {
            BufferAccess::Readable => !writable,
            BufferAccess::Writable => writable,
            BufferAccess::Both => writable || !self.writable_seen,
        };
        self.writable_seen |= writable;
        if allowed { Ok(writable) } else { Err(RingError::WrongDirection) }
    }

    /// The table of an indirect descriptor, which ends its chain (virtio 1.2, 2.7.5.3 and 2.8.8).
    fn indirect(
        &mut self,
        table: Descriptor,
        segment: &mut impl FnMut(Segment, bool) -> bool,
    ) -> Result<bool, RingError> {
        let entries = table.len / Descriptor::BYTES;
        if !table.len.is_multiple_of(Descriptor::BYTES) || entries == 0 || entries > CHAIN_DESCRIPTORS_MAX {
            return Err(RingError::BadIndirectLength(table.len));
        }
        if table.flags & DESC_NEXT != 0 {
            return Err(RingError::NestedIndirect);
        }
        self.budget = self.budget.min(entries);
        let outside = RingError::BufferOutside(table.addr, table.len);
        let area = self.map.translate(table.addr, table.len, self.hint).ok_or(outside)?;
        let mut index = 0;
        loop {
            let mut bytes = [0; 16];
            self.map.read(area, index * Descriptor::BYTES, &mut bytes).map_err(|_| outside)?;
            let descriptor = match PACKED {
                false => Descriptor::from_le_bytes(bytes),
                true => packed_table_entry(bytes, index, entries),
            };
            if descriptor.flags & DESC_INDIRECT != 0 {
                return Err(RingError::NestedIndirect);
            }
            if !self.buffer(descriptor, segment)? {
                return Ok(false);
            }
            if descriptor.flags & DESC_NEXT == 0 {
                return Ok(true);
            }
            index = u32::from(descriptor.next);
            if index >= entries {
                return Err(RingError::DescriptorOutOfRange(descriptor.next, entries as u16));
            }
        }
    }
}

/// Entry `index` of `entries` of a packed ring's indirect table. All entries are one chain, in their order, whatever
/// their flags and IDs say (virtio 1.2, 2.8.8).
fn packed_table_entry(bytes: [u8; 16], index: u32, entries: u32) -> Descriptor {
    // Split entries have flags where these have the ID, and the link where these have the flags.
    let Descriptor { addr, len, next: flags, .. } = Descriptor::from_le_bytes(bytes);
    let link = if index + 1 < entries { DESC_NEXT } else { 0 };
    Descriptor { addr, len, flags: flags & DESC_WRITE | link, next: (index + 1) as u16 }
}
