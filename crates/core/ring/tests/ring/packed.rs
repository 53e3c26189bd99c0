//! Any contents of a packed ring yield chains within memory or a typed error.

use lasthop_guestmem::{MemoryMap, Segment};
use lasthop_ring::{
    BufferAccess, CHAIN_DESCRIPTORS_MAX, DESC_INDIRECT, DESC_NEXT, DESC_WRITE, DeviceRing, DriverRing,
    PACKED_ENTRIES_MAX, RingAddresses, RingError, RingFormat, RingMemory, position_of_wire, walk,
    wire_position,
};
use proptest::prelude::*;

use crate::fixture::{
    AVAILABLE_AT, BUFFERS_AT, GUEST_ADDR, MEMORY_BYTES, USER_ADDR, addresses, map, pair_of, region,
};

const ENTRIES: u16 = 8;
const BUFFER: u64 = GUEST_ADDR + BUFFERS_AT;
const TABLE: u64 = GUEST_ADDR + BUFFERS_AT + 8192;
/// Flags of a descriptor that is available in the first lap, and in the second.
const LAPS: [u16; 2] = [1 << 7, 1 << 15];

/// A descriptor: address, bytes, buffer ID, flags.
type Entry = (u64, u32, u16, u16);

fn put(map: &MemoryMap, at: u64, (addr, len, id, flags): Entry) {
    let mut bytes = Vec::from(addr.to_le_bytes());
    bytes.extend(len.to_le_bytes());
    bytes.extend(id.to_le_bytes());
    bytes.extend(flags.to_le_bytes());
    map.write(Segment { offset: at, len: 16, region: 0 }, 0, &bytes).unwrap();
}

/// A ring whose first descriptors are these, available in the first lap.
fn ring_of(map: &MemoryMap, entries: &[Entry]) -> DeviceRing {
    for (slot, (addr, len, id, flags)) in (0..).zip(entries) {
        put(map, 16 * slot, (*addr, *len, *id, *flags | LAPS[0]));
    }
    let memory = RingMemory::of(RingFormat::Packed, map, u32::from(ENTRIES), addresses()).unwrap();
    DeviceRing::new(memory, 0, true)
}

fn buffer(id: u16, flags: u16) -> Entry {
    (BUFFER, 64, id, flags)
}

/// Number and lengths of the pieces of the first chain.
fn walk_of(
    ring: &mut DeviceRing,
    map: &MemoryMap,
    access: BufferAccess,
) -> (Result<bool, RingError>, Vec<u32>) {
    assert!(ring.pending().unwrap() > 0);
    let (head, mut lens) = (ring.head(0).unwrap(), Vec::new());
    let result = walk(ring, map, head, access, &mut 0, |segment, _| {
        lens.push(segment.len);
        true
    });
    (result, lens)
}

/// Both sides use a chain of `count` descriptors.
fn use_chain(driver: &mut DriverRing, device: &mut DeviceRing, count: usize) {
    driver.add(&vec![(BUFFER, 1); count], &[], 0).unwrap();
    driver.publish();
    assert_eq!(device.pending(), Ok(1));
    let head = device.head(0).unwrap();
    device.take(1);
    device.complete(head, 0);
    device.publish();
    driver.take_used().unwrap().unwrap();
}

#[test]
fn sizes_and_areas_are_those_of_a_packed_ring() {
    let map = MemoryMap::new(vec![region(GUEST_ADDR, USER_ADDR, 2 << 20)]).unwrap();
    let of = |entries, addresses| RingMemory::of(RingFormat::Packed, &map, entries, addresses);
    for entries in [0, 3, 255, 65_536] {
        assert_eq!(of(entries, addresses()).unwrap_err(), RingError::BadSize(entries));
    }
    let beyond = 2 * u32::from(PACKED_ENTRIES_MAX);
    assert_eq!(of(beyond, addresses()).unwrap_err(), RingError::PackedTooLarge(beyond));
    assert!(of(u32::from(PACKED_ENTRIES_MAX), addresses()).is_ok());
    let end = USER_ADDR + (2 << 20);
    for (name, wrong) in [
        ("driver event", RingAddresses { available: addresses().available + 2, ..addresses() }),
        ("driver event", RingAddresses { available: end - 2, ..addresses() }),
        ("device event", RingAddresses { used: addresses().used + 2, ..addresses() }),
        ("descriptor", RingAddresses { descriptors: end - 64, ..addresses() }),
    ] {
        let error = of(8, wrong).unwrap_err();
        assert!(matches!(error, RingError::BadArea(area, _) if area == name), "{name}: {error}");
    }
    assert!(of(4, RingAddresses { available: end - 4, ..addresses() }).is_ok(), "it is 4 bytes");
}

#[test]
fn positions_on_the_wire_have_the_wrap_counter() {
    for (position, wire) in [(0, 0x8000), (7, 0x8007), (8, 0), (15, 7), (16, 0x8000), (65_535, 7)] {
        assert_eq!(wire_position(position, 8), wire);
        assert_eq!(position_of_wire(wire, 8), position % 16);
    }
    assert_eq!(position_of_wire(0x8000 | 9, 8), 1, "an index beyond the ring");
}

#[test]
fn a_ring_begins_where_its_descriptors_were_used_up_to_whatever_a_front_end_tells() {
    for at in [0, 5, 8, 13, 16, 21] {
        let map = map();
        let (mut driver, mut device) = pair_of(RingFormat::Packed, &map, ENTRIES, true, 0);
        let memory = || RingMemory::of(RingFormat::Packed, &map, u32::from(ENTRIES), addresses()).unwrap();
        assert_eq!([memory().packed_base(0), memory().packed_base(0x8000)], [0, 0], "fresh");
        (0..at).for_each(|_| use_chain(&mut driver, &mut device, 1));
        for posted in 0..3 {
            for wire in [0x8000, 0, 3, wire_position(at, ENTRIES)] {
                // One descriptor further could be the end of a chain of two.
                if position_of_wire(wire, ENTRIES) != (at + 1) % 16 || posted == 0 {
                    assert_eq!(memory().packed_base(wire), at % 16, "{at} {posted} {wire:#x}");
                }
            }
            driver.add(&[(BUFFER, 1)], &[], 0).unwrap();
            driver.publish();
        }
    }
}

#[test]
fn a_ring_begins_behind_the_rest_of_a_chain() {
    for (count, before) in [(2, 0), (3, 0), (3, 7), (3, 1)] {
        let map = map();
        let (mut driver, mut device) = pair_of(RingFormat::Packed, &map, ENTRIES, true, 0);
        (0..before).for_each(|_| use_chain(&mut driver, &mut device, 1));
        use_chain(&mut driver, &mut device, count);
        let memory = RingMemory::of(RingFormat::Packed, &map, u32::from(ENTRIES), addresses()).unwrap();
        let end = before + count as u16;
        assert_eq!(memory.packed_base(wire_position(end, ENTRIES)), end % 16, "{count} {before}");
    }
}

#[test]
fn chains_that_cannot_be_are_named() {
    let far = (GUEST_ADDR + MEMORY_BYTES, 64, 0, 0);
    let cases: [(&[Entry], RingError); 5] = [
        (&[buffer(ENTRIES, 0)], RingError::DescriptorOutOfRange(ENTRIES, ENTRIES)),
        (&[buffer(u16::MAX, 0)], RingError::DescriptorOutOfRange(u16::MAX, ENTRIES)),
        (&[buffer(0, DESC_NEXT); ENTRIES as usize], RingError::ChainLoops),
        (&[(TABLE, 17, 0, DESC_INDIRECT)], RingError::BadIndirectLength(17)),
        (&[far], RingError::BufferOutside(far.0, far.1)),
    ];
    for (entries, error) in cases {
        let map = map();
        let mut ring = ring_of(&map, entries);
        let found = match ring.pending() {
            Err(found) => found,
            Ok(_) => walk_of(&mut ring, &map, BufferAccess::Readable).0.unwrap_err(),
        };
        assert_eq!(found, error);
    }
}

#[test]
fn a_fault_comes_behind_the_chains_before_it() {
    let map = map();
    let mut ring =
        ring_of(&map, &[buffer(3, 0), buffer(1, DESC_NEXT), buffer(1, 0), buffer(99, 0), buffer(2, 0)]);
    assert_eq!(ring.pending(), Ok(3), "two, and one to be refused");
    let mut heads = [0; 3];
    let fault = RingError::DescriptorOutOfRange(99, ENTRIES);
    assert_eq!((ring.read_heads(&mut heads), heads[..2].to_vec()), ((2, Some(fault)), vec![3, 1]));
    heads[..2].iter().for_each(|head| ring.set_mark(*head, 1));
    ring.take_marked(&heads[..2]);
    assert_eq!((ring.pending(), ring.has_pending()), (Err(fault), true));
}

#[test]
fn a_buffer_id_under_way_is_not_available_again() {
    let map = map();
    let mut ring = ring_of(&map, &[buffer(5, 0), buffer(5, 0)]);
    assert_eq!(ring.pending_up_to(1), Ok(1));
    ring.set_mark(5, 1);
    ring.take_marked(&[5]);
    assert_eq!(ring.pending(), Err(RingError::HeadTwice(5)));
    assert!(ring.settle(5));
    ring.publish();
    let used = map.translate(GUEST_ADDR, 16, &mut 0).unwrap();
    let mut bytes = [0; 16];
    map.read(used, 0, &mut bytes).unwrap();
    assert_eq!(bytes[8..], [0, 0, 0, 0, 5, 0, 0x80, 0x80], "length, ID, both flags of the first lap");
}

#[test]
fn a_driver_that_makes_more_available_than_the_ring_has_is_stopped() {
    let map = map();
    let entries: Vec<Entry> = (0..ENTRIES).map(|id| buffer(id, 0)).collect();
    let mut ring = ring_of(&map, &entries);
    let heads: Vec<u16> = (0..ring.pending().unwrap()).map(|ahead| ring.head(ahead).unwrap()).collect();
    assert_eq!(heads.len(), usize::from(ENTRIES));
    heads.iter().for_each(|head| ring.set_mark(*head, 1));
    ring.take_marked(&heads);
    assert_eq!(ring.pending(), Ok(0));
    put(&map, 0, (BUFFER, 64, 0, LAPS[1]));
    assert_eq!(ring.pending(), Err(RingError::IndexJump(ENTRIES + 1, ENTRIES)));
}

#[test]
fn long_chains_are_counted() {
    const ENTRIES: u16 = 256;
    let map = map();
    let (mut driver, mut ring) = pair_of(RingFormat::Packed, &map, ENTRIES, true, 0);
    for count in [64, 100] {
        driver.add(&vec![(BUFFER, 1); count], &[], 0).unwrap();
    }
    driver.publish();
    assert_eq!(ring.pending(), Ok(2));
    assert_eq!([ring.take_long_descriptors(), ring.take_long_descriptors()], [100, 0]);
}

#[test]
fn an_indirect_table_is_one_chain_whatever_its_entries_link_to() {
    let map = map();
    let table = TABLE - GUEST_ADDR;
    for (entry, flags) in [(0, 0), (1, DESC_NEXT), (2, 0)] {
        put(&map, table + 16 * entry, (BUFFER, 10 + entry as u32, 77, flags));
    }
    let mut ring = ring_of(&map, &[(TABLE, 48, 0, DESC_INDIRECT)]);
    assert_eq!(walk_of(&mut ring, &map, BufferAccess::Readable), (Ok(true), vec![10, 11, 12]));
    put(&map, table + 16, (BUFFER, 16, 0, DESC_INDIRECT));
    let walked = walk_of(&mut ring, &map, BufferAccess::Readable);
    assert_eq!(walked, (Ok(true), vec![10, 16, 12]), "a table has no other flag than that of direction");
    put(&map, table + 16, (BUFFER, 16, 0, DESC_WRITE));
    assert_eq!(walk_of(&mut ring, &map, BufferAccess::Readable).0, Err(RingError::WrongDirection));
}

#[test]
fn a_wish_for_a_signal_beyond_the_ring_is_for_none() {
    let map = map();
    let (mut driver, mut device) = pair_of(RingFormat::Packed, &map, ENTRIES, true, 0);
    let mut use_one = |wish: [u8; 4]| {
        map.write(Segment { offset: AVAILABLE_AT, len: 4, region: 0 }, 0, &wish).unwrap();
        use_chain(&mut driver, &mut device, 1);
        device.needs_signal()
    };
    assert!(use_one([0, 0, 1, 0]), "the first one is always signalled");
    assert!(!use_one([ENTRIES as u8, 0x80, 2, 0]) && !use_one([0xff, 0xff, 2, 0]), "beyond the ring");
    assert!(use_one([3, 0x80, 2, 0]), "its position");
    assert!(!use_one([3, 0x80, 2, 0]) && !use_one([5, 0, 2, 0]), "another position, another lap");
    assert!(use_one([0, 0, 0, 0]) && use_one([0, 0, 3, 0]) && !use_one([0, 0, 1, 0]));
}

fn entry() -> impl Strategy<Value = Entry> {
    let addr = prop_oneof![4 => GUEST_ADDR..GUEST_ADDR + MEMORY_BYTES, 1 => any::<u64>()];
    let len = prop_oneof![4 => 0..4096_u32, 2 => (0..70_u32).prop_map(|count| 16 * count), 1 => any::<u32>()];
    let flags = (
        0..8_u16,
        prop_oneof![4 => Just(LAPS[0]), 2 => Just(LAPS[1]), 1 => Just(0), 1 => Just(LAPS[0] | LAPS[1])],
    );
    (addr, len, 0..ENTRIES + 1, flags).prop_map(|(addr, len, id, (low, high))| (addr, len, id, low | high))
}

proptest! {
    /// The driver writes any descriptors at any time, while chains are taken, completed in any order, and published.
    #[test]
    fn any_ring_is_served_within_bounds(
        rounds in prop::collection::vec(prop::collection::vec((0..u64::from(ENTRIES), entry()), 0..12), 1..12),
        in_order in any::<bool>(),
        picks in prop::collection::vec(any::<usize>(), 64),
    ) {
        let map = map();
        let mut ring = ring_of(&map, &[]);
        if in_order {
            ring = ring.keep_order().unwrap();
        }
        let (mut taken, mut picks) = (Vec::new(), picks.into_iter().cycle());
        for writes in rounds {
            writes.into_iter().for_each(|(slot, entry)| put(&map, 16 * slot, entry));
            let pending = ring.pending().unwrap_or_default();
            prop_assert!(pending <= ENTRIES + 1);
            let mut heads = vec![0; usize::from(pending)];
            let (found, _) = ring.read_heads(&mut heads);
            for head in &heads[..found] {
                prop_assert!(*head < ENTRIES);
                // As the fabric does: a chain whose ID is under way stops the ring before it is taken.
                if ring.mark(*head) > 0 {
                    break;
                }
                let mut visits = 0;
                let _ = walk(&ring, &map, *head, BufferAccess::Both, &mut 0, |segment, _| {
                    visits += 1;
                    assert!(segment.len > 0 && segment.offset + u64::from(segment.len) <= MEMORY_BYTES);
                    true
                });
                prop_assert!(visits <= CHAIN_DESCRIPTORS_MAX + u32::from(ENTRIES));
                ring.keep_waiting(*head);
                ring.set_mark(*head, 1);
                ring.take_marked(&[*head]);
                taken.push(*head);
            }
            while taken.len() > 2 {
                let head = taken.swap_remove(picks.next().unwrap() % taken.len());
                prop_assert!(ring.settle(head));
            }
            ring.publish();
            let _ = (ring.needs_signal(), ring.is_drained(), ring.is_unheeded(), ring.arm_kicks());
        }
    }
}
