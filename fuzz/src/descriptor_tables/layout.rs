//! The layout of a guest's memory, and a plain reader of the chains in it.

use lasthop_ring::RingAddresses;

/// First guest address: small numbers are no addresses.
pub(crate) const GUEST: u64 = 0x10_0000;
/// The offset of the front end's address to a guest address; it differs between the two regions, so that mixing them up shows.
pub(crate) const USER: [u64; 2] = [0x7000_0000, 0x9000_0000];
/// Bytes of a guest's memory: two regions next to each other, so that buffers may lie in both.
pub(crate) const MEMORY_BYTES: usize = 0x1_0000;
pub(crate) const REGION_BYTES: usize = MEMORY_BYTES / 2;
/// Entries of a ring.
pub(crate) const ENTRIES_MAX: u16 = 64;
/// Bytes from the start of one ring to the next.
const RING_BYTES: usize = 0x1000;
const AVAILABLE: usize = 0x400;
const USED: usize = 0x600;
/// Indirect tables, each of 64 entries.
pub(crate) const TABLES: usize = 0x4000;
pub(crate) const TABLE_BYTES: usize = 0x400;
/// Buffers, each of 2 KiB.
pub(crate) const BUFFERS: usize = 0x6000;
pub(crate) const BUFFER_BYTES: usize = 0x800;
/// Descriptors that any one chain may visit.
const VISITS_MAX: usize = 2048;

pub(crate) const NEXT: u16 = 1;
pub(crate) const WRITE: u16 = 2;
pub(crate) const INDIRECT: u16 = 4;

/// Where ring `index` has its three areas, in bytes from the start of memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Areas {
    pub(crate) descriptors: usize,
    pub(crate) available: usize,
    pub(crate) used: usize,
}

impl Areas {
    pub(crate) fn of(index: u16) -> Self {
        let start = usize::from(index) * RING_BYTES;
        Self { descriptors: start, available: start + AVAILABLE, used: start + USED }
    }

    pub(crate) fn addresses(self) -> RingAddresses {
        let user = |at: usize| USER[0] + GUEST + at as u64;
        RingAddresses {
            descriptors: user(self.descriptors),
            available: user(self.available),
            used: user(self.used),
        }
    }

    /// Areas that the device may write.
    pub(crate) fn used_range(self, entries: u16) -> std::ops::Range<usize> {
        self.used..self.used + 6 + 8 * usize::from(entries)
    }

    /// Everything from the first to the last byte.
    pub(crate) fn whole(self, entries: u16) -> std::ops::Range<usize> {
        self.descriptors..self.used_range(entries).end
    }
}

pub(crate) fn u16_at(memory: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([memory[at], memory[at + 1]])
}

pub(crate) fn u32_at(memory: &[u8], at: usize) -> u32 {
    u32::from(u16_at(memory, at)) | u32::from(u16_at(memory, at + 2)) << 16
}

/// A descriptor as it lies in memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Raw {
    pub(crate) addr: u64,
    pub(crate) len: u32,
    pub(crate) flags: u16,
    pub(crate) next: u16,
}

impl Raw {
    pub(crate) fn at(memory: &[u8], at: usize) -> Self {
        Self {
            addr: u64::from(u32_at(memory, at)) | u64::from(u32_at(memory, at + 4)) << 32,
            len: u32_at(memory, at + 8),
            flags: u16_at(memory, at + 12),
            next: u16_at(memory, at + 14),
        }
    }

    pub(crate) fn bytes(self) -> Vec<u8> {
        let mut bytes = Vec::from(self.addr.to_le_bytes());
        bytes.extend(self.len.to_le_bytes());
        bytes.extend(self.flags.to_le_bytes());
        bytes.extend(self.next.to_le_bytes());
        bytes
    }

    /// The part of memory that it names, as far as it is there.
    pub(crate) fn clipped(self) -> std::ops::Range<usize> {
        let clip = |addr: u64| addr.saturating_sub(GUEST).min(MEMORY_BYTES as u64) as usize;
        clip(self.addr)..clip(self.addr.saturating_add(u64::from(self.len)))
    }

    /// The part of memory that it names, if all of it is there.
    pub(crate) fn range(self) -> Option<std::ops::Range<usize>> {
        let start = usize::try_from(self.addr.checked_sub(GUEST)?).ok()?;
        let end = start.checked_add(self.len as usize)?;
        (end <= MEMORY_BYTES).then_some(start..end)
    }
}

/// The buffers of the chain at `head`, in order, up to a descriptor that cannot be followed.
pub(crate) fn chain(memory: &[u8], areas: Areas, entries: u16, head: u16) -> Vec<Raw> {
    let (mut buffers, mut table, mut index, mut entries) = (Vec::new(), areas.descriptors, head, entries);
    for _ in 0..VISITS_MAX {
        if index >= entries {
            break;
        }
        let raw = Raw::at(memory, table + 16 * usize::from(index));
        if raw.flags & INDIRECT != 0 {
            let Some(range) = raw.range().filter(|range| range.len() >= 16) else { break };
            (table, index, entries) = (range.start, 0, (range.len() / 16) as u16);
            continue;
        }
        buffers.push(raw);
        if raw.flags & NEXT == 0 {
            break;
        }
        index = raw.next;
    }
    buffers
}
