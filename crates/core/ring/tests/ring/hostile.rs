//! Any contents of a ring yield a value or a typed error.

use crate::fixture::{
    BUFFERS_AT, GUEST_ADDR, MEMORY_BYTES, USED_AT, USER_ADDR, addresses, map, pair, region,
};
use lasthop_guestmem::{MemoryMap, Segment};
use lasthop_ring::{
    BufferAccess, CHAIN_DESCRIPTORS_MAX, DESC_INDIRECT, DESC_NEXT, DESC_WRITE, Descriptor, DeviceRing,
    DriverRingError, EMPTY_DESCRIPTORS_MAX, RingAddresses, RingError, RingMemory, walk,
};
use proptest::prelude::*;

const ENTRIES: u16 = 8;
const BUFFER: u64 = GUEST_ADDR + BUFFERS_AT;
const TABLE: u64 = GUEST_ADDR + BUFFERS_AT + 8192;

fn buffer(flags: u16, next: u16) -> Descriptor {
    Descriptor { addr: BUFFER, len: 64, flags, next }
}

fn table(len: u32) -> Descriptor {
    Descriptor { addr: TABLE, len, flags: DESC_INDIRECT, next: 0 }
}

fn put(map: &MemoryMap, offset: u64, bytes: &[u8]) {
    map.write(Segment { offset, len: bytes.len() as u32, region: 0 }, 0, bytes).unwrap();
}

/// Writes entry `index` of the indirect table at [`TABLE`].
fn put_in_table(map: &MemoryMap, index: u64, descriptor: Descriptor) {
    let mut bytes = Vec::from(descriptor.addr.to_le_bytes());
    bytes.extend(descriptor.len.to_le_bytes());
    bytes.extend(descriptor.flags.to_le_bytes());
    bytes.extend(descriptor.next.to_le_bytes());
    put(map, TABLE - GUEST_ADDR + 16 * index, &bytes);
}

/// The result of walking chain 0, with the number of buffers visited, for a table that begins with these descriptors.
fn walk_of(
    map: &MemoryMap,
    descriptors: &[Descriptor],
    direction: BufferAccess,
) -> (Result<bool, RingError>, usize) {
    let (mut driver, device) = pair(map, ENTRIES, false, 0);
    for (index, descriptor) in descriptors.iter().enumerate() {
        driver.set_raw_descriptor(index as u16, *descriptor);
    }
    driver.publish_raw_head(0);
    let mut seen = 0;
    let result = walk(&device, map, device.head(0).unwrap(), direction, &mut 0, |_, _| {
        seen += 1;
        true
    });
    (result, seen)
}

fn error_of(map: &MemoryMap, descriptors: &[Descriptor]) -> RingError {
    walk_of(map, descriptors, BufferAccess::Readable).0.unwrap_err()
}

#[test]
fn sizes_are_powers_of_two_in_range() {
    let map = MemoryMap::new(vec![region(0, 0, 2 << 20)]).unwrap();
    let addresses = RingAddresses { descriptors: 0, available: 1 << 19, used: 1 << 20 };
    for entries in [0, 3, 255, 32_769, 65_536, u32::MAX] {
        assert_eq!(RingMemory::new(&map, entries, addresses).unwrap_err(), RingError::BadSize(entries));
    }
    for entries in [1, 2, 256, 32_768] {
        assert_eq!(u32::from(RingMemory::new(&map, entries, addresses).unwrap().entries()), entries);
    }
}

#[test]
fn areas_lie_aligned_inside_one_region() {
    let second = region(GUEST_ADDR + MEMORY_BYTES, USER_ADDR + MEMORY_BYTES, 4096);
    let map = MemoryMap::new(vec![region(GUEST_ADDR, USER_ADDR, MEMORY_BYTES), second]).unwrap();
    let good = addresses();
    let edge = USER_ADDR + MEMORY_BYTES - 16;
    let cases = [
        ("descriptor", RingAddresses { descriptors: USER_ADDR + 8, ..good }),
        ("descriptor", RingAddresses { descriptors: edge, ..good }),
        ("descriptor", RingAddresses { descriptors: GUEST_ADDR, ..good }),
        ("available", RingAddresses { available: USER_ADDR + 1, ..good }),
        ("available", RingAddresses { available: edge, ..good }),
        ("available", RingAddresses { available: 0, ..good }),
        ("used", RingAddresses { used: USER_ADDR + 2, ..good }),
        ("used", RingAddresses { used: edge, ..good }),
        ("used", RingAddresses { used: u64::MAX, ..good }),
    ];
    for (name, addresses) in cases {
        let bad = match name {
            "descriptor" => addresses.descriptors,
            "available" => addresses.available,
            _ => addresses.used,
        };
        assert_eq!(RingMemory::new(&map, 8, addresses).unwrap_err(), RingError::BadArea(name, bad));
    }
    assert!(RingMemory::new(&map, 8, good).is_ok());
}

#[test]
fn an_index_may_not_jump() {
    let map = map();
    let (mut driver, mut device) = pair(&map, ENTRIES, true, 65_530);
    driver.set_raw_index(65_530_u16.wrapping_add(ENTRIES));
    assert_eq!(device.pending(), Ok(ENTRIES));
    for jump in [ENTRIES + 1, 40_000, u16::MAX] {
        driver.set_raw_index(65_530_u16.wrapping_add(jump));
        assert_eq!(device.pending(), Err(RingError::IndexJump(jump, ENTRIES)));
        assert_eq!(device.arm_kicks(), Err(RingError::IndexJump(jump, ENTRIES)));
    }
}

#[test]
fn heads_and_links_stay_in_the_table() {
    let map = map();
    let (mut driver, device) = pair(&map, ENTRIES, false, 0);
    driver.publish_raw_head(ENTRIES);
    assert_eq!(device.head(0), Err(RingError::DescriptorOutOfRange(ENTRIES, ENTRIES)));
    let error = error_of(&map, &[buffer(DESC_NEXT, 0xffff)]);
    assert_eq!(error, RingError::DescriptorOutOfRange(0xffff, ENTRIES));
    put_in_table(&map, 0, buffer(DESC_NEXT, 2));
    assert_eq!(error_of(&map, &[table(32)]), RingError::DescriptorOutOfRange(2, 2));
}

#[test]
fn chains_are_read_ahead_up_to_a_fault() {
    let map = map();
    let (mut driver, mut device) = pair(&map, ENTRIES, false, 0);
    driver.set_raw_descriptor(1, buffer(DESC_WRITE, 0));
    driver.publish_raw_head(1);
    driver.publish_raw_head(ENTRIES);
    assert_eq!(device.next_chain(), Some((1, buffer(DESC_WRITE, 0))));
    device.take_next();
    assert_eq!(device.next_chain(), None);
    assert_eq!(device.head(0), Err(RingError::DescriptorOutOfRange(ENTRIES, ENTRIES)));

    let (mut driver, mut device) = pair(&map, ENTRIES, false, 0);
    assert_eq!(device.next_chain(), None);
    for _ in 0..=ENTRIES {
        driver.publish_raw_head(0);
    }
    assert_eq!(device.next_chain(), None);
}

#[test]
fn loops_end() {
    let map = map();
    let result = walk_of(&map, &[buffer(DESC_NEXT, 1), buffer(DESC_NEXT, 0)], BufferAccess::Readable);
    assert_eq!(result, (Err(RingError::ChainLoops), usize::from(ENTRIES)));
    put_in_table(&map, 0, buffer(DESC_NEXT, 1));
    put_in_table(&map, 1, buffer(DESC_NEXT, 0));
    let result = walk_of(&map, &[table(32)], BufferAccess::Readable);
    assert_eq!(result, (Err(RingError::ChainLoops), 2));
}

#[test]
fn empty_buffers_do_not_hide_a_loop() {
    let empty = Descriptor { len: 0, ..buffer(DESC_NEXT, 0) };
    assert_eq!(walk_of(&map(), &[empty], BufferAccess::Readable), (Err(RingError::ChainLoops), 0));
}

#[test]
fn buffers_lie_in_memory() {
    let map = map();
    let end = GUEST_ADDR + MEMORY_BYTES;
    for (addr, len) in
        [(0, 1), (GUEST_ADDR - 1, 4), (end - 1, 2), (end, 1), (u64::MAX, 1), (u64::MAX - 3, u32::MAX)]
    {
        let outside = Descriptor { addr, len, flags: 0, next: 0 };
        assert_eq!(error_of(&map, &[outside]), RingError::BufferOutside(addr, len));
        let outside = Descriptor { addr, len: 32, flags: DESC_INDIRECT, next: 0 };
        assert_eq!(error_of(&map, &[outside]), RingError::BufferOutside(addr, 32));
    }
    let last = Descriptor { addr: end - 1, len: 1, flags: 0, next: 0 };
    assert_eq!(walk_of(&map, &[last], BufferAccess::Readable), (Ok(true), 1));
}

#[test]
fn a_buffer_over_two_regions_comes_in_two_pieces() {
    let end = GUEST_ADDR + MEMORY_BYTES;
    let regions = vec![region(GUEST_ADDR, USER_ADDR, MEMORY_BYTES), region(end, 0, 4096)];
    let map = MemoryMap::new(regions).unwrap();
    let (mut driver, device) = pair(&map, ENTRIES, false, 0);
    driver.add(&[(end - 10, 30)], &[], 0).unwrap();
    driver.publish();
    let mut pieces = Vec::new();
    let result = walk(&device, &map, 0, BufferAccess::Readable, &mut 1, |segment, _| {
        pieces.push(segment);
        true
    });
    let first = Segment { offset: MEMORY_BYTES - 10, len: 10, region: 0 };
    assert_eq!((result, pieces), (Ok(true), vec![first, Segment { offset: 0, len: 20, region: 1 }]));
}

/// All of them would be read for a packet of one byte or none.
#[test]
fn some_descriptors_may_be_empty_but_not_hundreds() {
    let map = map();
    let entries = 4 * EMPTY_DESCRIPTORS_MAX as u16;
    for (count, walked) in
        [(EMPTY_DESCRIPTORS_MAX, Ok(true)), (EMPTY_DESCRIPTORS_MAX + 1, Err(RingError::ManyEmpty))]
    {
        let (mut driver, device) = pair(&map, entries, false, 0);
        let buffers: Vec<_> = (0..count).map(|_| (BUFFER, 0)).chain([(BUFFER, 1)]).collect();
        driver.add(&buffers, &[], 0).unwrap();
        driver.publish();
        let mut seen = 0;
        let result = walk(&device, &map, 0, BufferAccess::Readable, &mut 0, |segment, _| {
            seen += segment.len;
            true
        });
        assert_eq!((result, seen), (walked, u32::from(walked.is_ok())), "{count} empty ones");
    }
}

#[test]
fn an_indirect_table_may_not_leave_its_region() {
    let map = map();
    put(&map, MEMORY_BYTES - 16, &{
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&BUFFER.to_le_bytes());
        (bytes[8], bytes[12], bytes[14]) = (1, DESC_NEXT as u8, 1);
        bytes
    });
    let addr = GUEST_ADDR + MEMORY_BYTES - 16;
    let over = Descriptor { addr, len: 32, flags: DESC_INDIRECT, next: 0 };
    assert_eq!(walk_of(&map, &[over], BufferAccess::Readable), (Err(RingError::BufferOutside(addr, 32)), 1));
}

#[test]
fn directions_are_as_the_ring_says() {
    let map = map();
    let (read, write) = (buffer(DESC_NEXT, 1), buffer(DESC_NEXT | DESC_WRITE, 1));
    let (last_read, last_write) = (buffer(0, 0), buffer(DESC_WRITE, 0));
    let refused = Err(RingError::WrongDirection);
    let cases = [
        (BufferAccess::Readable, [read, last_read], Ok(true)),
        (BufferAccess::Readable, [read, last_write], refused),
        (BufferAccess::Readable, [write, last_read], refused),
        (BufferAccess::Writable, [write, last_write], Ok(true)),
        (BufferAccess::Writable, [read, last_write], refused),
        (BufferAccess::Writable, [write, last_read], refused),
        (BufferAccess::Both, [read, last_write], Ok(true)),
        (BufferAccess::Both, [write, last_write], Ok(true)),
        (BufferAccess::Both, [write, last_read], refused),
    ];
    for (direction, descriptors, expected) in cases {
        assert_eq!(walk_of(&map, &descriptors, direction).0, expected, "{direction:?} {descriptors:?}");
    }
}

#[test]
fn indirect_tables_are_whole_bounded_and_not_nested() {
    let map = map();
    for len in [0, 15, 17, 16 * (CHAIN_DESCRIPTORS_MAX + 1), u32::MAX] {
        assert_eq!(error_of(&map, &[table(len)]), RingError::BadIndirectLength(len));
    }
    let followed = Descriptor { flags: DESC_INDIRECT | DESC_NEXT, ..table(16) };
    assert_eq!(error_of(&map, &[followed]), RingError::NestedIndirect);
    put_in_table(&map, 0, table(16));
    assert_eq!(error_of(&map, &[table(16)]), RingError::NestedIndirect);
}

#[test]
fn direct_descriptors_may_lead_to_an_indirect_table() {
    let map = map();
    let count = u64::from(ENTRIES) + 5;
    for index in 0..count {
        put_in_table(&map, index, buffer(if index + 1 < count { DESC_NEXT } else { 0 }, index as u16 + 1));
    }
    let chain = [buffer(DESC_NEXT, 1), table(16 * count as u32)];
    assert_eq!(walk_of(&map, &chain, BufferAccess::Readable), (Ok(true), 1 + count as usize));
}

fn complete(device: &mut DeviceRing, head: u16) {
    device.complete(head, 0);
    device.publish();
}

#[test]
fn a_driver_refuses_chains_not_in_flight() {
    let map = map();
    let (mut driver, mut device) = pair(&map, ENTRIES, false, 0);
    let added = driver.add(&[(BUFFER, 1), (BUFFER, 1)], &[], 9).unwrap();
    let other = driver.add(&[(BUFFER, 1)], &[], 10).unwrap();
    driver.publish();
    complete(&mut device, added);
    assert_eq!(driver.take_used().unwrap().unwrap().token, 9);
    complete(&mut device, added);
    assert_eq!(driver.take_used(), Err(DriverRingError::NotInFlight(added)));
    assert_ne!(other, added);
    // The second descriptor of a chain is not a head.
    let (mut driver, mut device) = pair(&map, ENTRIES, false, 0);
    driver.add(&[(BUFFER, 1), (BUFFER, 1)], &[], 9).unwrap();
    driver.publish();
    complete(&mut device, added + 1);
    assert_eq!(driver.take_used(), Err(DriverRingError::NotInFlight(added + 1)));
}

#[test]
fn a_driver_refuses_ids_beyond_the_table_and_jumps() {
    let map = map();
    for id in [u32::from(ENTRIES), 0x1_0000, u32::MAX] {
        let (mut driver, _) = pair(&map, ENTRIES, false, 0);
        driver.add(&[(BUFFER, 1)], &[], 9).unwrap();
        driver.publish();
        put(&map, USED_AT + 4, &id.to_le_bytes());
        put(&map, USED_AT + 2, &[1, 0]);
        assert_eq!(driver.take_used(), Err(DriverRingError::UsedOutOfRange(id, ENTRIES)));
        assert_eq!(driver.take_seen(), None, "it is not taken, and look_for_used names it");
        assert_eq!(driver.look_for_used(), Err(DriverRingError::UsedOutOfRange(id, ENTRIES)));
        put(&map, USED_AT + 2, &[2, 0]);
        assert_eq!(driver.used_pending(), Err(DriverRingError::UsedIndexJump(2, 1)));
    }
}

fn descriptor() -> impl Strategy<Value = Descriptor> {
    let addr = prop_oneof![
        4 => GUEST_ADDR..GUEST_ADDR + MEMORY_BYTES,
        1 => (0..64_u64).prop_map(|back| GUEST_ADDR + MEMORY_BYTES - back),
        1 => any::<u64>(),
    ];
    let len = prop_oneof![4 => 0..4096_u32, 2 => (0..70_u32).prop_map(|count| 16 * count), 1 => any::<u32>()];
    (addr, len, 0..8_u16, 0..ENTRIES + 1).prop_map(|(addr, len, flags, next)| Descriptor {
        addr,
        len,
        flags,
        next,
    })
}

proptest! {
    /// The other side writes descriptors, tables and available ring: the walk is bounded and stays in that side's
    /// memory.
    #[test]
    fn any_chain_ends_inside_memory(
        descriptors in prop::collection::vec(descriptor(), usize::from(ENTRIES)),
        memory in prop::collection::vec(descriptor(), 64),
        head in 0..ENTRIES,
        direction in prop_oneof![Just(BufferAccess::Readable), Just(BufferAccess::Writable), Just(BufferAccess::Both)],
    ) {
        let map = map();
        for (index, descriptor) in memory.iter().enumerate() {
            put_in_table(&map, index as u64, *descriptor);
        }
        let (mut driver, device) = pair(&map, ENTRIES, false, 0);
        for (index, descriptor) in descriptors.iter().enumerate() {
            driver.set_raw_descriptor(index as u16, *descriptor);
        }
        let mut visits = 0;
        let _ = walk(&device, &map, head, direction, &mut 0, |segment, _| {
            visits += 1;
            assert!(segment.len > 0 && segment.offset + u64::from(segment.len) <= MEMORY_BYTES);
            true
        });
        prop_assert!(visits <= CHAIN_DESCRIPTORS_MAX + u32::from(ENTRIES));
    }

    /// No contents of the used ring corrupt the driver's private records.
    #[test]
    fn any_used_ring_keeps_the_books(
        used in prop::collection::vec(any::<u8>(), 4 + 8 * usize::from(ENTRIES)),
        small in any::<bool>(),
        chains in 0..ENTRIES,
    ) {
        let map = map();
        let (mut driver, _device) = pair(&map, ENTRIES, true, 0);
        for token in 0..u32::from(chains) {
            driver.add(&[(BUFFER, 1)], &[], token).unwrap();
        }
        driver.publish();
        put(&map, USED_AT, &used);
        if small {
            put(&map, USED_AT + 2, &chains.to_le_bytes());
            (0..u64::from(ENTRIES)).for_each(|entry| put(&map, USED_AT + 5 + 8 * entry, &[0; 3]));
        }
        let mut taken = 0;
        while let Ok(Some(used)) = driver.take_used() {
            prop_assert!(used.token < u32::from(chains));
            taken += 1;
        }
        prop_assert!(taken <= chains);
        prop_assert_eq!(driver.free_descriptors(), ENTRIES - chains + taken);
    }
}

#[test]
fn the_walk_can_be_left() {
    let map = map();
    let (mut driver, device) = pair(&map, ENTRIES, false, 0);
    driver.add(&[(BUFFER, 1), (BUFFER, 2), (BUFFER, 3)], &[], 0).unwrap();
    driver.publish();
    let mut seen = Vec::new();
    let result = walk(&device, &map, 0, BufferAccess::Readable, &mut 0, |segment, _| {
        seen.push(segment.len);
        seen.len() < 2
    });
    assert_eq!((result, seen), (Ok(false), vec![1, 2]));
}
