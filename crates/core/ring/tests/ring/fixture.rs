//! A ring in anonymous memory, seen from both sides.

use std::sync::Arc;

use lasthop_guestmem::{Mapping, MemoryMap, Region};
use lasthop_ring::{DeviceRing, DriverRing, RingAddresses, RingFormat, RingMemory};

/// Guest address of the first byte; it differs from the user address, so that tests notice when code mixes them up.
pub(crate) const GUEST_ADDR: u64 = 0x10_0000;
pub(crate) const USER_ADDR: u64 = 0x7000_0000;
/// Offset of the first byte after the ring: room for rings of 256.
pub(crate) const BUFFERS_AT: u64 = 16384;
pub(crate) const MEMORY_BYTES: u64 = 65536;
pub(crate) const AVAILABLE_AT: u64 = 8192;
pub(crate) const USED_AT: u64 = 12288;

pub(crate) fn region(guest_addr: u64, user_addr: u64, len_bytes: u64) -> Region {
    Region { guest_addr, user_addr, mapping: Arc::new(Mapping::anonymous(len_bytes as usize).unwrap()) }
}

pub(crate) fn addresses() -> RingAddresses {
    RingAddresses { descriptors: USER_ADDR, available: USER_ADDR + AVAILABLE_AT, used: USER_ADDR + USED_AT }
}

pub(crate) fn map() -> MemoryMap {
    MemoryMap::new(vec![region(GUEST_ADDR, USER_ADDR, MEMORY_BYTES)]).unwrap()
}

pub(crate) fn pair(
    map: &MemoryMap,
    entries: u16,
    event_idx: bool,
    position: u16,
) -> (DriverRing, DeviceRing) {
    pair_of(RingFormat::Split, map, entries, event_idx, position)
}

pub(crate) fn pair_of(
    format: RingFormat,
    map: &MemoryMap,
    entries: u16,
    event_idx: bool,
    position: u16,
) -> (DriverRing, DeviceRing) {
    let memory = || RingMemory::of(format, map, u32::from(entries), addresses()).unwrap();
    let driver = DriverRing::starting_at(memory(), event_idx, position);
    (driver, DeviceRing::new(memory(), position, event_idx))
}
