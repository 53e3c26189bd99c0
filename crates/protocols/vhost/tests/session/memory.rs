//! Memory tables: mappings, refusals, and the effects on running rings.

use std::os::fd::AsFd;
use std::sync::Arc;

use lasthop_guestmem::memfd;
use lasthop_vhost::front::{encode_memory_region, encode_memory_table};
use lasthop_vhost::message::{MemoryRegionMessage, request};
use lasthop_vhost::{ProtocolError, SessionEnd};
use rustix::io::pwrite;

use crate::host::{BYTES, Call, GUEST, Host, USER, addresses, event, memory_file, region, started};

/// A region adjacent to `region()`.
fn second() -> MemoryRegionMessage {
    MemoryRegionMessage { guest_addr: GUEST + BYTES, user_addr: USER + BYTES, ..region() }
}

#[test]
fn a_region_far_into_a_sparse_file_is_mapped_there() {
    let mut host = Host::acknowledged();
    let offset = 0x3d48_7000; // about 1 GB
    let file = memfd("sparse", offset + BYTES).unwrap();
    pwrite(&file, b"far away", offset + 0x123).unwrap();
    let far = MemoryRegionMessage { guest_addr: offset, user_addr: offset, offset, size: BYTES };
    let mut table = encode_memory_table(&[far]);
    table.resize(72, 0xee); // room for a second region that is not there
    assert_eq!(host.tell(request::SET_MEM_TABLE, table, &[file.as_fd()]), Some(0));
    let map = host.device.notes().maps[0].clone();
    let segment = map.translate(offset + 0x123, 8, &mut 0).unwrap();
    let mut bytes = [0; 8];
    map.read(segment, 0, &mut bytes).unwrap();
    assert_eq!(&bytes, b"far away");
    assert_eq!(map.regions().len(), 1);
}

#[test]
fn a_table_may_be_larger_than_its_count_but_not_smaller() {
    let file = memory_file();
    for (size, taken) in [(39, false), (40, true), (41, true), (72, true), (264, true), (265, false)] {
        let mut host = Host::plain();
        let mut table = encode_memory_table(&[region()]);
        table.resize(size, 0);
        let end = host.try_tell(request::SET_MEM_TABLE, table, &[file.as_fd()]);
        assert_eq!(end.is_ok(), taken, "{size} bytes");
        assert_eq!(host.device.notes().maps.len(), usize::from(taken));
        if let Err(end) = end {
            assert!(matches!(end, SessionEnd::Protocol(_)), "{end}");
        }
    }
}

#[test]
fn more_than_eight_regions_end_the_session() {
    let mut host = Host::acknowledged();
    let mut table = encode_memory_table(&[region(); 8]);
    table[0] = 9;
    let end = host.try_tell(request::SET_MEM_TABLE, table, &[]).unwrap_err();
    assert!(matches!(end, SessionEnd::Protocol(ProtocolError::TooManyRegions(9))));
}

#[test]
fn eight_regions_fit_in_one_table() {
    let mut host = Host::acknowledged();
    let file = memfd("eight", 8 * BYTES).unwrap();
    let regions: Vec<_> = (0..8)
        .map(|index| {
            let skip = index * BYTES;
            MemoryRegionMessage {
                guest_addr: GUEST + skip,
                user_addr: USER + skip,
                offset: skip,
                size: BYTES,
            }
        })
        .collect();
    assert_eq!(host.tell_memory(&regions, &[&file; 8]), Some(0));
    assert_eq!(host.device.calls(), [Call::Memory(8)]);
}

#[test]
fn memory_without_a_file_gets_advice() {
    let mut host = Host::acknowledged();
    assert_eq!(host.tell_memory(&[region()], &[]), Some(1));
    let advice = host.last_refusal();
    for remedy in [
        "memory-backend-memfd,share=on",
        "<access mode='shared'/>",
        "--memory shared=on",
        "no file descriptor",
    ] {
        assert!(advice.contains(remedy), "{advice}");
    }
    assert_eq!(host.tell_memory(&[], &[]), Some(1), "no memory at all");
    host.flags = 1;
    host.send(request::SET_MEM_TABLE, encode_memory_table(&[region()]), &[]);
    assert_eq!(host.ready().unwrap_err().to_string(), advice);
}

#[test]
fn unusable_memory_is_refused_and_changes_nothing() {
    let mut host = Host::acknowledged();
    let _file = host.run_pair();
    let (file, disk) = (memory_file(), std::fs::File::open("/proc/self/exe").unwrap());
    let beyond = MemoryRegionMessage { offset: 4096, ..region() };
    let empty = MemoryRegionMessage { size: 0, ..region() };
    let wraps = MemoryRegionMessage { guest_addr: u64::MAX - 4096, ..region() };
    for bad in [beyond, empty, wraps] {
        assert_eq!(host.tell_memory(&[bad], &[&file]), Some(1), "{bad:?}");
    }
    assert_eq!(host.tell_memory(&[region()], &[&file, &file]), Some(1), "surplus file");
    assert_eq!(host.tell_memory(&[region(), second()], &[&file]), Some(1), "missing file");
    assert_eq!(host.tell_memory(&[region(), region()], &[&file, &file]), Some(1), "overlap");
    assert!(host.last_refusal().contains("overlap"));
    assert_eq!(host.tell_memory(&[region()], &[&disk.into()]), Some(1), "file on disk");
    assert_eq!(host.session().refusals().refused, 7);
    assert_eq!(host.device.calls(), []);
    assert_eq!(host.running(), [0, 1]);
}

#[test]
fn an_eventfd_is_no_memory() {
    let mut host = Host::acknowledged();
    assert_eq!(host.tell_memory(&[region()], &[&event()]), Some(1));
}

#[test]
fn running_rings_stop_for_a_new_table_and_go_on_where_they_were() {
    let mut host = Host::acknowledged();
    let file = host.run_pair();
    host.device.notes().progress = 7;
    assert_eq!(host.tell_memory(&[region(), second()], &[&file, &memory_file()]), Some(0));
    let expected = [Call::Stop(0), Call::Stop(1), Call::Memory(2), started(0, 7, true), started(1, 7, true)];
    assert_eq!(host.device.calls(), expected);
}

#[test]
fn unchanged_regions_keep_their_mapping() {
    let mut host = Host::acknowledged();
    let (one, two) = (memory_file(), memory_file());
    assert_eq!(host.tell_memory(&[region(), second()], &[&one, &two]), Some(0));
    assert_eq!(host.tell_memory(&[region(), second()], &[&one, &one]), Some(0));
    let moved = MemoryRegionMessage { user_addr: USER - BYTES, ..region() };
    assert_eq!(host.tell_memory(&[moved, second()], &[&one, &one]), Some(0));
    let notes = host.device.notes();
    let mapping = |map: usize, region: usize| &notes.maps[map].regions()[region].mapping;
    assert!(Arc::ptr_eq(mapping(0, 0), mapping(1, 0)), "the same");
    assert!(!Arc::ptr_eq(mapping(0, 1), mapping(1, 1)), "another file");
    assert!(!Arc::ptr_eq(mapping(1, 0), mapping(2, 0)), "another user address");
    assert!(Arc::ptr_eq(mapping(1, 1), mapping(2, 1)), "the same");
}

#[test]
fn a_dropped_region_is_unmapped_with_the_last_map() {
    let mut host = Host::acknowledged();
    let (one, two) = (memory_file(), memory_file());
    host.tell_memory(&[region(), second()], &[&one, &two]);
    let weak = Arc::downgrade(&host.device.notes().maps[0].regions()[1].mapping);
    host.tell_memory(&[region()], &[&one]);
    assert!(weak.upgrade().is_some(), "the device still has the old map");
    host.device.notes().maps.remove(0);
    assert!(weak.upgrade().is_none(), "the session does not");
}

#[test]
fn regions_are_added_and_removed_one_by_one() {
    let mut host = Host::acknowledged();
    let file = host.run_pair();
    host.device.notes().progress = 3;
    assert_eq!(host.tell_region(request::ADD_MEM_REG, second(), &[&memory_file()]), Some(0));
    let restarted = |regions, base| {
        vec![
            Call::Stop(0),
            Call::Stop(1),
            Call::Memory(regions),
            started(0, base, true),
            started(1, base, true),
        ]
    };
    assert_eq!(host.device.calls(), restarted(2, 3));
    assert_eq!(host.tell_region(request::ADD_MEM_REG, second(), &[&file]), Some(1), "overlap");
    assert_eq!(host.tell_region(request::ADD_MEM_REG, second(), &[]), Some(1), "no file");
    let elsewhere = MemoryRegionMessage { user_addr: 0, ..second() };
    assert_eq!(host.tell_region(request::REM_MEM_REG, elsewhere, &[]), Some(0), "it is gone already");
    assert_eq!(host.device.calls(), []);
    let no_offset = MemoryRegionMessage { offset: 77, ..second() };
    assert_eq!(host.tell_region(request::REM_MEM_REG, no_offset, &[&file]), Some(0), "file closed");
    assert_eq!(host.device.calls(), restarted(1, 6));
    let notes = host.device.notes();
    let kept = &notes.maps[0].regions()[0].mapping;
    assert!(notes.maps.iter().all(|map| Arc::ptr_eq(kept, &map.regions()[0].mapping)));
}

#[test]
fn rings_wait_while_their_region_moves() {
    let mut host = Host::acknowledged();
    let file = host.run_pair();
    assert_eq!(host.tell_region(request::REM_MEM_REG, region(), &[]), Some(0));
    assert_eq!(host.running(), []);
    assert!(host.last_refusal().contains("ring 0"), "tells which ring waits");
    host.device.calls();
    assert_eq!(host.tell_region(request::ADD_MEM_REG, region(), &[&file]), Some(0));
    assert_eq!(host.device.calls(), [Call::Memory(1), started(0, 0, true), started(1, 0, true)]);
}

#[test]
fn a_whole_table_without_the_rings_is_refused() {
    let mut host = Host::acknowledged();
    let _file = host.run_pair();
    assert_eq!(host.tell_memory(&[second()], &[&memory_file()]), Some(1));
    assert_eq!(host.running(), []);
    host.tell(request::SET_VRING_ADDR, addresses(1, USER + BYTES).encode(), &[]);
    assert_eq!(host.running(), [1], "until its place is told");
}

#[test]
fn slots_run_out_at_their_number() {
    let mut host = Host::acknowledged();
    let file = memfd("slots", 4096).unwrap();
    let slot = |index: u64| MemoryRegionMessage {
        guest_addr: index << 12,
        user_addr: index << 12,
        size: 4096,
        offset: 0,
    };
    for index in 0..509 {
        assert_eq!(host.tell_region(request::ADD_MEM_REG, slot(index), &[&file]), Some(0), "{index}");
    }
    assert_eq!(host.tell_region(request::ADD_MEM_REG, slot(509), &[&file]), Some(1));
    assert!(host.last_refusal().contains("509"));
}

#[test]
fn regions_told_once_per_queue_pair_change_nothing_the_second_time() {
    // QEMU up to 7.2 repeats ADD_MEM_REG and REM_MEM_REG for each of its queue pairs.
    let mut host = Host::acknowledged();
    let _file = host.run_pair();
    let file = memory_file();
    for _ in 0..3 {
        assert_eq!(host.tell_region(request::ADD_MEM_REG, second(), &[&file]), Some(0));
    }
    let memories =
        |calls: Vec<Call>| calls.into_iter().filter(|call| matches!(call, Call::Memory(_))).count();
    assert_eq!(memories(host.device.calls()), 1);
    let other_file = memory_file();
    assert_eq!(
        host.tell_region(request::ADD_MEM_REG, second(), &[&other_file]),
        Some(1),
        "other memory there"
    );
    for _ in 0..3 {
        assert_eq!(host.tell_region(request::REM_MEM_REG, second(), &[]), Some(0));
    }
    assert_eq!(memories(host.device.calls()), 1);
}

#[test]
fn a_driver_that_is_ready_without_shared_memory_is_told_of() {
    // QEMU without a shared memory backend sends no region at all.
    let mut host = Host::acknowledged();
    host.tell_u64(request::SET_STATUS, 15);
    assert!(host.last_refusal().contains("share=on"), "{}", host.last_refusal());
}

#[test]
fn regions_have_no_more_together_than_the_device_allows() {
    let mut host = Host::acknowledged();
    const SLICE: u64 = 1 << 38;
    let file = memfd("sparse", SLICE).unwrap();
    let slice = |number: u64| {
        let at = number * SLICE;
        MemoryRegionMessage { guest_addr: at, user_addr: at, offset: 0, size: SLICE }
    };
    let add = |host: &mut Host, region| {
        host.tell(request::ADD_MEM_REG, encode_memory_region(region), &[file.as_fd()])
    };
    assert_eq!([0, 1, 2, 3].map(|number| add(&mut host, slice(number))), [Some(0); 4], "1 TiB");
    assert_eq!(add(&mut host, slice(4)), Some(1));
    let why = host.session.as_ref().unwrap().refusals().last.as_ref().unwrap().to_string();
    assert!(why.contains("1 TiB") && why.contains("raise memory-max"), "{why}");
    assert_eq!(add(&mut host, slice(0)), Some(0), "it is there already");
    assert_eq!(add(&mut host, MemoryRegionMessage { size: u64::MAX, ..slice(4) }), Some(1), "no overflow");
    assert_eq!(host.tell(request::REM_MEM_REG, encode_memory_region(slice(1)), &[]), Some(0));
    assert_eq!(host.tell(request::ADD_MEM_REG, encode_memory_region(slice(4)), &[file.as_fd()]), Some(0));
    // A table is checked as a whole before any of it is mapped.
    let table: Vec<_> = (0..8).map(slice).collect();
    let files = [file.as_fd(); 8];
    assert_eq!(host.tell(request::SET_MEM_TABLE, encode_memory_table(&table), &files), Some(1));
    assert_eq!(host.device.notes().maps.last().unwrap().bytes(), 4 * SLICE);
}
