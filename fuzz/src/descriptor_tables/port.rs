//! A guest's memory and rings, and a record of the switch's changes to them.

use std::ops::Range;
use std::sync::Arc;

use lasthop_fabric::{Capabilities, Fabric};
use lasthop_guestmem::{Mapping, MemoryMap, Region, Segment};
use lasthop_module_api::PortId;
use lasthop_ring::{DeviceRing, RingMemory};

use super::layout::{
    Areas, GUEST, INDIRECT, MEMORY_BYTES, REGION_BYTES, Raw, USER, WRITE, chain, u16_at, u32_at,
};
use super::ranges::Ranges;

/// Descriptors of an indirect table that are looked at: more than a chain may visit.
const TABLE_ENTRIES_MAX: usize = 1024;

/// A ring as guest and switch are to see it.
#[derive(Debug)]
pub(super) struct Ring {
    pub(super) index: u16,
    pub(super) areas: Areas,
    /// The driver's next position.
    pub(super) available: u16,
    /// The device's next position, and its next used entry.
    taken: u16,
    used: u16,
    running: bool,
    in_flight: Vec<u16>,
}

impl Ring {
    fn is_transmit(&self) -> bool {
        self.index % 2 == 1
    }
}

/// A used entry that is new.
#[derive(Clone, Copy, Debug)]
pub(super) struct UsedEntry {
    pub(super) head: u16,
    pub(super) len: u32,
}

pub(super) struct Port {
    pub(super) id: PortId,
    pub(super) capabilities: Capabilities,
    pub(super) entries: u16,
    pub(super) rings: Vec<Ring>,
    event_idx: bool,
    map: Arc<MemoryMap>,
    regions: Vec<Region>,
    /// The regions one by one, in any map.
    halves: [MemoryMap; 2],
    /// Memory as last read: before the switch's turn, the state after the guest's writes.
    pub(super) before: Vec<u8>,
    /// As read the time before.
    earlier: Vec<u8>,
    /// Whether the guest wrote since `before` was read.
    touched: bool,
    /// Areas that the switch may write: receive buffers and used rings.
    writable: Ranges,
    /// False once buffers lie over rings or tables: from then on the guest may have spoilt the books itself.
    pub(super) trusted: bool,
}

impl Port {
    pub(super) fn new(
        id: u16,
        pairs: u16,
        entries: u16,
        event_idx: bool,
        capabilities: Capabilities,
    ) -> Self {
        let region = |index: usize| {
            let guest_addr = GUEST + (index * REGION_BYTES) as u64;
            let mapping = Arc::new(Mapping::anonymous(REGION_BYTES).expect("a little memory"));
            Region { guest_addr, user_addr: USER[index] + guest_addr, mapping }
        };
        let regions: Vec<_> = (0..2).map(region).collect();
        let ring = |index| Ring {
            index,
            areas: Areas::of(index),
            available: 0,
            taken: 0,
            used: 0,
            running: false,
            in_flight: Vec::new(),
        };
        Self {
            id: PortId(id),
            capabilities,
            entries,
            rings: (0..2 * pairs).map(ring).collect(),
            event_idx,
            map: Arc::new(MemoryMap::new(regions.clone()).expect("regions side by side")),
            halves: [0, 1].map(|half| MemoryMap::new(vec![regions[half].clone()]).expect("one region")),
            regions,
            before: vec![0; MEMORY_BYTES],
            earlier: vec![0; MEMORY_BYTES],
            touched: true,
            writable: Ranges::default(),
            trusted: true,
        }
    }

    /// Adds the port to the switch, with all its rings running.
    pub(super) fn attach(&mut self, fabric: &mut Fabric) {
        fabric.add_port(self.id, (self.rings.len() / 2) as u16);
        fabric.set_capabilities(self.id, self.capabilities);
        fabric.set_memory(self.id, &self.map);
        self.trusted = true;
        (0..self.rings.len()).for_each(|ring| self.start(fabric, ring));
    }

    /// Starts a ring where it stopped, if it lies in memory.
    pub(super) fn start(&mut self, fabric: &mut Fabric, ring: usize) {
        let Ring { index, areas, taken, .. } = self.rings[ring];
        let Ok(memory) = RingMemory::new(&self.map, u32::from(self.entries), areas.addresses()) else {
            return;
        };
        fabric.start_ring(self.id, index, DeviceRing::new(memory, taken, self.event_idx), true);
        self.look();
        self.touched = true;
        let ring = &mut self.rings[ring];
        (ring.running, ring.used) = (true, u16_at(&self.before, areas.used + 2));
    }

    /// Stops a ring: nothing of it is under way afterwards.
    pub(super) fn stop(&mut self, fabric: &mut Fabric, ring: usize) {
        let stopped = fabric.stop_ring(self.id, self.rings[ring].index);
        assert_eq!(stopped.is_some(), self.rings[ring].running);
        self.settle();
        let trusted = self.trusted;
        let ring = &mut self.rings[ring];
        if let Some(base) = stopped {
            assert!(
                !trusted || base == ring.taken,
                "ring {} stops at {base}, not {}",
                ring.index,
                ring.taken
            );
            assert!(!trusted || ring.in_flight.is_empty(), "chains {:?} are under way", ring.in_flight);
            ring.taken = base;
        }
        ring.running = false;
        ring.in_flight.clear();
    }

    /// Another map: bit 0 leaves the first region out, bit 1 the second. All rings start anew.
    pub(super) fn remap(&mut self, fabric: &mut Fabric, left_out: u8) {
        (0..self.rings.len()).for_each(|ring| self.stop(fabric, ring));
        let kept = self.regions.iter().enumerate().filter(|(index, _)| left_out >> index & 1 == 0);
        let kept = kept.map(|(_, region)| region.clone()).collect();
        self.map = Arc::new(MemoryMap::new(kept).expect("regions side by side"));
        fabric.set_memory(self.id, &self.map);
        self.trusted = true;
        (0..self.rings.len()).for_each(|ring| self.start(fabric, ring));
    }

    /// Copies all of memory out.
    fn read(&self, memory: &mut [u8]) {
        let all = Segment { offset: 0, len: REGION_BYTES as u32, region: 0 };
        for (half, bytes) in self.halves.iter().zip(memory.chunks_mut(REGION_BYTES)) {
            half.read(all, 0, bytes).expect("all of the region");
        }
    }

    /// Reads memory anew: `before` becomes `earlier`.
    fn look(&mut self) {
        let mut memory = std::mem::take(&mut self.earlier);
        self.read(&mut memory);
        self.earlier = std::mem::replace(&mut self.before, memory);
    }

    /// The guest writes, to memory's end at most.
    pub(super) fn write(&mut self, at: usize, bytes: &[u8]) {
        self.touched = true;
        for (index, half) in self.halves.iter().enumerate() {
            let start = index * REGION_BYTES;
            let (from, to) = (at.max(start), (at + bytes.len()).min(start + REGION_BYTES));
            if from < to {
                let part = Segment { offset: (from - start) as u64, len: (to - from) as u32, region: 0 };
                half.write(part, 0, &bytes[from - at..to - at]).expect("a part of the region");
            }
        }
    }

    /// Makes a head available.
    pub(super) fn publish(&mut self, ring: usize, head: u16) {
        let Ring { areas, available, .. } = self.rings[ring];
        self.write(areas.available + 4 + 2 * usize::from(available % self.entries), &head.to_le_bytes());
        self.publish_index(ring, available.wrapping_add(1));
    }

    pub(super) fn publish_index(&mut self, ring: usize, index: u16) {
        self.rings[ring].available = index;
        self.write(self.rings[ring].areas.available + 2, &index.to_le_bytes());
    }

    /// Whether bytes lie in a used ring: a guest that writes there spoils nothing but the books of this test.
    pub(super) fn is_used_ring(&self, range: &Range<usize>) -> bool {
        let overlaps = |used: Range<usize>| range.start < used.end && used.start < range.end;
        self.rings.iter().any(|ring| overlaps(ring.areas.used_range(self.entries)))
    }

    /// Before the switch's turn: notes the memory, and the parts that the switch may write.
    pub(super) fn prepare(&mut self) {
        if !std::mem::take(&mut self.touched) {
            return;
        }
        self.look();
        let (mut buffers, mut private) = (Ranges::default(), Ranges::default());
        for ring in &self.rings {
            private.add(ring.areas.whole(self.entries));
            for index in 0..usize::from(self.entries) {
                let raw = Raw::at(&self.before, ring.areas.descriptors + 16 * index);
                if raw.flags & INDIRECT == 0 {
                    add_buffer(&mut buffers, ring, raw);
                } else if let Some(table) = raw.range() {
                    let entries = (table.len() / 16).min(TABLE_ENTRIES_MAX);
                    let entry = |entry| Raw::at(&self.before, table.start + 16 * entry);
                    (0..entries).for_each(|index| add_buffer(&mut buffers, ring, entry(index)));
                    private.add(table);
                }
            }
        }
        (buffers, private) = (buffers.merged(), private.merged());
        self.trusted &= !buffers.overlap(&private);
        self.rings.iter().for_each(|ring| buffers.add(ring.areas.used_range(self.entries)));
        self.writable = buffers.merged();
    }

    /// The switch took `count` heads of a transmit ring.
    pub(super) fn take(&mut self, ring: usize, count: usize) -> Vec<u16> {
        let ring = &mut self.rings[ring];
        let at = |ahead: usize| {
            let position = ring.taken.wrapping_add(ahead as u16) % self.entries;
            u16_at(&self.before, ring.areas.available + 4 + 2 * usize::from(position))
        };
        let heads: Vec<u16> = (0..count).map(at).collect();
        ring.taken = ring.taken.wrapping_add(count as u16);
        ring.in_flight.extend(&heads);
        heads
    }

    /// After the switch's turn: nothing but buffers and used rings was written, and the books agree. The new used entries
    /// of each ring.
    pub(super) fn settle(&mut self) -> Vec<Vec<UsedEntry>> {
        self.look();
        if !self.trusted {
            return Vec::new();
        }
        let (before, after, entries) = (&self.earlier, &self.before, self.entries);
        let mut at = 0;
        for range in self.writable.iter().chain(std::iter::once(MEMORY_BYTES..MEMORY_BYTES)) {
            let same = after[at..range.start] == before[at..range.start];
            assert!(
                same,
                "port {}: a byte outside of buffers was written in {at:#x}..{:#x}",
                self.id, range.start
            );
            at = range.end;
        }
        self.rings.iter_mut().map(|ring| ring.settle(before, after, entries)).collect()
    }
}

impl Ring {
    fn settle(&mut self, before: &[u8], after: &[u8], entries: u16) -> Vec<UsedEntry> {
        let index = u16_at(after, self.areas.used + 2);
        let count = index.wrapping_sub(self.used);
        if !self.running {
            return Vec::new();
        }
        assert!(count <= entries, "ring {}: used index {index} after {}", self.index, self.used);
        let positions = (0..count).map(|ahead| self.used.wrapping_add(ahead));
        let entry = |position: u16| {
            let at = self.areas.used + 4 + 8 * usize::from(position % entries);
            UsedEntry { head: u32_at(after, at) as u16, len: u32_at(after, at + 4) }
        };
        let used: Vec<_> = positions.map(entry).collect();
        self.used = index;
        used.iter().for_each(|used| self.account(before, *used, entries));
        used
    }

    /// A transmit chain comes back once; receive buffers come back in order, with no more in them than they hold.
    fn account(&mut self, before: &[u8], used: UsedEntry, entries: u16) {
        if self.is_transmit() {
            let at = self.in_flight.iter().position(|head| *head == used.head);
            let at = at.unwrap_or_else(|| panic!("ring {}: {used:?} was not under way", self.index));
            self.in_flight.remove(at);
            assert_eq!(used.len, 0);
            return;
        }
        let at = self.areas.available + 4 + 2 * usize::from(self.taken % entries);
        self.taken = self.taken.wrapping_add(1);
        assert_eq!(used.head, u16_at(before, at), "ring {}: out of order", self.index);
        let buffers = chain(before, self.areas, entries, used.head);
        let room: u64 = buffers.iter().map(|raw| u64::from(raw.len)).sum();
        assert!(u64::from(used.len) <= room, "ring {}: {used:?} in {room} bytes", self.index);
    }
}

fn add_buffer(buffers: &mut Ranges, ring: &Ring, raw: Raw) {
    if raw.flags & WRITE != 0 && !ring.is_transmit() {
        // One that reaches beyond memory is refused when it is reached; its part in front may have been written.
        buffers.add(raw.clipped());
    }
}
