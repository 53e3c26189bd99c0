//! The memory of a guest: its layout (rings, then buffers), and the regions that back ends see.

use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use lasthop_guestmem::{Mapping, MemoryMap, Region, Segment, memfd};
use lasthop_ring::{Descriptor, RingAddresses};
use lasthop_vhost::MemoryRegionMessage;

use crate::{GuestError, GuestOptions, PARTS_MAX};

/// The memory of a guest: one memfd, mapped whole.
#[derive(Debug)]
pub(crate) struct Memory {
    pub(crate) file: OwnedFd,
    /// One region, also if the back end sees several.
    pub(crate) map: MemoryMap,
}

impl Memory {
    pub(crate) fn new(len_bytes: u64) -> Result<Self, GuestError> {
        Self::of_file(memfd("lasthop-frontend", len_bytes)?, len_bytes)
    }

    /// The memory in `file`, which gets this length.
    pub(crate) fn of_file(file: OwnedFd, len_bytes: u64) -> Result<Self, GuestError> {
        rustix::fs::ftruncate(&file, len_bytes)?;
        let mapping = Arc::new(Mapping::of_file(file.as_fd(), 0, len_bytes)?);
        let region = Region { guest_addr: GUEST_ADDR, user_addr: USER_ADDR, mapping };
        let map = MemoryMap::new(vec![region]).map_err(GuestError::Options)?;
        Ok(Self { file, map })
    }
}

/// The message about a range of the memory file for a back end.
pub(crate) fn region_message(range: &Range<u64>) -> MemoryRegionMessage {
    MemoryRegionMessage {
        guest_addr: GUEST_ADDR + range.start,
        size: range.end - range.start,
        user_addr: USER_ADDR + range.start,
        offset: range.start,
    }
}

/// Start of guest memory in the guest's own address space. It is above 4 GiB and differs from [`USER_ADDR`], so that a
/// back end fails if it confuses the two, or truncates to 32 bits.
pub(crate) const GUEST_ADDR: u64 = 0x1_0000_0000;
/// Start of guest memory in the address space of the "VMM"; nothing is ever mapped there.
pub(crate) const USER_ADDR: u64 = 0x7000_0000_0000;
/// Ring areas and groups of buffers start on pages.
const PAGE_BYTES: u64 = 4096;
/// Buffers start on cache lines.
const LINE_BYTES: u32 = 64;

/// Equal slots of guest memory, one after the other.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slots {
    first: u64,
    stride_bytes: u32,
    len_bytes: u32,
}

impl Slots {
    pub(crate) fn len_bytes(&self) -> u32 {
        self.len_bytes
    }

    /// Distance of two slots.
    pub(crate) fn stride_bytes(&self) -> u32 {
        self.stride_bytes
    }

    /// Slot `index`, as a segment of the guest's own map with one region.
    #[inline]
    pub(crate) fn segment(&self, index: u32) -> Segment {
        let offset = self.first + u64::from(index) * u64::from(self.stride_bytes);
        Segment { offset, len: self.len_bytes, region: 0 }
    }

    /// Guest address of slot `index`.
    #[inline]
    pub(crate) fn guest_addr(&self, index: u32) -> u64 {
        GUEST_ADDR + self.segment(index).offset
    }
}

/// The buffers of a queue pair.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PairSlots {
    pub(crate) rx: Slots,
    pub(crate) tx: Slots,
    pub(crate) tables: Slots,
}

/// Allocates guest memory in whole pages.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Plan {
    end: u64,
}

impl Plan {
    /// Offset of the next area.
    pub(crate) fn area(&mut self, len_bytes: u64) -> u64 {
        let at = self.end;
        self.end += len_bytes.next_multiple_of(PAGE_BYTES);
        at
    }

    pub(crate) fn ring(&mut self, entries: u16) -> RingAddresses {
        let entries = u64::from(entries);
        RingAddresses {
            descriptors: USER_ADDR + self.area(u64::from(Descriptor::BYTES) * entries),
            available: USER_ADDR + self.area(6 + 2 * entries),
            used: USER_ADDR + self.area(6 + 8 * entries),
        }
    }

    /// Number of allocated bytes.
    pub(crate) fn len_bytes(self) -> u64 {
        self.end
    }
}

/// The layout of guest memory.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    pub(crate) rings: Vec<RingAddresses>,
    pub(crate) pairs: Vec<PairSlots>,
    /// Bytes from the start to the first buffer.
    pub(crate) buffers_at: u64,
    pub(crate) len_bytes: u64,
}

impl Layout {
    pub(crate) fn new(options: &GuestOptions) -> Self {
        let mut plan = Plan::default();
        let entries = options.ring_entries;
        let rings = (0..2 * options.queue_pairs).map(|_| plan.ring(entries)).collect();
        let buffers_at = plan.area(0);
        let mut slots = |len_bytes: u32| {
            let stride_bytes = len_bytes.next_multiple_of(LINE_BYTES);
            Slots { first: plan.area(u64::from(stride_bytes) * u64::from(entries)), stride_bytes, len_bytes }
        };
        let pairs = (0..options.queue_pairs)
            .map(|_| PairSlots {
                rx: slots(options.rx_buffer_bytes),
                tx: slots(options.tx_slot_bytes),
                tables: slots(PARTS_MAX as u32 * Descriptor::BYTES),
            })
            .collect();
        Self { rings, pairs, buffers_at, len_bytes: plan.len_bytes() }
    }

    /// The memory in `count` regions of whole pages; all rings are in the first.
    pub(crate) fn regions(&self, count: u16) -> Vec<std::ops::Range<u64>> {
        let pages = (self.len_bytes - self.buffers_at) / PAGE_BYTES;
        let count = u64::from(count).min(pages);
        let cut = |number: u64| self.buffers_at + pages * number / count * PAGE_BYTES;
        (0..count).map(|number| if number == 0 { 0 } else { cut(number) }..cut(number + 1)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_overlaps_and_rings_are_aligned() {
        let options = GuestOptions { queue_pairs: 3, ring_entries: 2, ..GuestOptions::default() };
        let layout = Layout::new(&options);
        let mut areas: Vec<(u64, u64)> = Vec::new();
        for ring in &layout.rings {
            assert_eq!((ring.descriptors % 16, ring.available % 2, ring.used % 4), (0, 0, 0));
            areas.extend([(ring.descriptors, 32), (ring.available, 10), (ring.used, 22)]);
        }
        for area in &mut areas {
            area.0 -= USER_ADDR;
            assert!(area.0 + area.1 <= layout.buffers_at);
        }
        for slots in layout.pairs.iter().flat_map(|pair| [pair.rx, pair.tx, pair.tables]) {
            areas.extend((0..2).map(|index| (slots.segment(index).offset, u64::from(slots.len_bytes()))));
        }
        areas.sort_unstable();
        assert_eq!(areas.len(), 3 * 2 * 3 + 3 * 3 * 2);
        assert!(areas.windows(2).all(|pair| pair[0].0 + pair[0].1 <= pair[1].0));
        let last = areas.last().unwrap();
        assert!(last.0 + last.1 <= layout.len_bytes);
    }

    #[test]
    fn regions_cover_memory_once() {
        let layout = Layout::new(&GuestOptions::default());
        for count in 1..=8 {
            let regions = layout.regions(count);
            assert_eq!(regions.len(), usize::from(count));
            assert_eq!((regions[0].start, regions[regions.len() - 1].end), (0, layout.len_bytes));
            assert!(regions[0].end >= layout.buffers_at);
            assert!(regions.iter().all(|region| region.start < region.end));
            assert!(regions.windows(2).all(|pair| pair[0].end == pair[1].start));
        }
    }
}
