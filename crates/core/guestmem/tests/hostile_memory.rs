//! Files that do not match a front end's claims, and files that change while mapped.

use std::os::fd::AsFd;
use std::sync::Arc;

use lasthop_guestmem::{Cursor, Mapping, MappingError, MemoryMap, Region, Segment, copy, guard, memfd};

const MIB: u64 = 1 << 20;

fn region(guest_addr: u64, len: u64) -> Region {
    let mapping = Arc::new(if cfg!(miri) {
        Mapping::anonymous(len as usize).unwrap()
    } else {
        Mapping::of_file(memfd("guest", len).unwrap().as_fd(), 0, len).unwrap()
    });
    Region { guest_addr, user_addr: guest_addr.wrapping_add(1 << 40), mapping }
}

#[test]
#[cfg_attr(miri, ignore = "needs files")]
fn a_file_that_shrinks_reads_as_zeroes_and_is_marked_while_its_neighbour_goes_on() {
    guard::install().unwrap();
    let fd = memfd("shrinking", MIB).unwrap();
    let mapping = Arc::new(Mapping::of_file(fd.as_fd(), 0, MIB).unwrap());
    let shrinking =
        MemoryMap::new(vec![Region { guest_addr: 0, user_addr: 0, mapping: Arc::clone(&mapping) }]).unwrap();
    let healthy = MemoryMap::new(vec![region(0, MIB)]).unwrap();
    let all = [Segment { offset: 0, len: MIB as u32, region: 0 }];
    shrinking.write(all[0], 0, &[7; 4096]).unwrap();
    healthy.write(all[0], 0, &[9; 4096]).unwrap();
    rustix::fs::ftruncate(&fd, 0).unwrap();
    let before = guard::faults();
    let copied = copy(&mut Cursor::new(&shrinking, &all), &mut Cursor::new(&healthy, &all), 100_000).unwrap();
    assert_eq!(copied, 100_000);
    let mut back = [1; 4096];
    healthy.read(all[0], 0, &mut back).unwrap();
    assert_eq!(back, [0; 4096], "zeroes arrived");
    assert!(mapping.is_dead() && shrinking.is_dead() && !healthy.is_dead());
    assert!(guard::faults() > before);
    shrinking.write(all[0], 500_000, &[1; 16]).unwrap();
}

#[test]
#[cfg_attr(miri, ignore = "needs files")]
fn only_shared_memory_inside_its_file_is_mapped() {
    let fd = memfd("small", MIB).unwrap();
    for (offset, len) in [(0, MIB + 1), (MIB, 1), (u64::MAX, 2), (1, MIB)] {
        let error = Mapping::of_file(fd.as_fd(), offset, len).unwrap_err();
        assert!(matches!(error, MappingError::BeyondFile { .. }), "{offset} {len}: {error}");
    }
    assert!(matches!(Mapping::of_file(fd.as_fd(), 0, 0), Err(MappingError::BadLength(0))));
    let on_disk = std::fs::File::open(std::env::current_exe().unwrap()).unwrap();
    let error = Mapping::of_file(on_disk.as_fd(), 0, 4096).unwrap_err();
    assert!(error.to_string().contains("memory-backend-memfd,share=on"), "{error}");
    for other in [std::fs::File::open("/dev/zero").unwrap(), std::fs::File::open("/proc/self/mem").unwrap()] {
        let error = Mapping::of_file(other.as_fd(), 0, 4096).unwrap_err();
        assert!(matches!(error, MappingError::NotSharedMemory), "{error}");
    }
    let on_tmpfs = std::fs::File::open("/dev/shm").unwrap();
    assert!(Mapping::of_file(on_tmpfs.as_fd(), 0, 4096).is_err(), "a directory");
}

#[test]
#[cfg_attr(miri, ignore = "needs files")]
fn a_region_at_a_large_odd_offset_is_mapped_there() {
    let offset = (1 << 30) + 12_345;
    let fd = memfd("sparse", offset + MIB).unwrap();
    rustix::io::pwrite(&fd, b"here", offset).unwrap();
    let mapping = Arc::new(Mapping::of_file(fd.as_fd(), offset, MIB).unwrap());
    let map = MemoryMap::new(vec![Region { guest_addr: offset, user_addr: offset, mapping }]).unwrap();
    let segment = map.translate(offset, 4, &mut 0).unwrap();
    let mut bytes = [0; 4];
    map.read(segment, 0, &mut bytes).unwrap();
    assert_eq!(&bytes, b"here");
}

#[test]
fn addresses_translate_inside_regions_only() {
    let map = MemoryMap::new(vec![region(0x10_0000, MIB), region(0, 0x1000)]).unwrap();
    let mut hint = 0;
    assert_eq!(map.translate(0x1000, 1, &mut hint), None, "between the regions");
    assert_eq!(map.translate(0x20_0000, 1, &mut hint), None, "behind them");
    assert_eq!(map.translate(u64::MAX, 2, &mut hint), None);
    let cut = map.translate(0xff0, 64, &mut hint).unwrap();
    assert_eq!((cut.offset, cut.len), (0xff0, 0x10), "a buffer is cut at the end of its region");
    let whole = map.translate(0x10_0000, 64, &mut hint).unwrap();
    assert_eq!((whole.offset, whole.len, whole.region), (0, 64, 1));
    assert!(map.translate_user((1 << 40) + 0x10_0000 + MIB - 8, 8).is_some());
    assert_eq!(map.translate_user((1 << 40) + 0x10_0000 + MIB - 8, 9), None, "ring areas lie in one region");
}

#[test]
fn overlapping_or_wrapping_regions_are_refused() {
    let overlap = MemoryMap::new(vec![region(0, MIB), region(MIB - 1, MIB)]).unwrap_err();
    assert!(overlap.contains("overlap at guest address 0xfffff"), "{overlap}");
    assert!(MemoryMap::new(vec![region(u64::MAX - 10, MIB)]).unwrap_err().contains("wraps"));
}

#[test]
#[cfg_attr(miri, ignore = "needs files")]
fn guest_memory_is_left_out_of_core_files() {
    let fd = memfd("secret", MIB).unwrap();
    let mapping = Mapping::of_file(fd.as_fd(), 0, MIB).unwrap();
    let start = format!("{:x}-", mapping.start().as_ptr() as usize);
    let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let own = maps.lines().skip_while(|line| !line.starts_with(&start));
    let flags = own.filter_map(|line| line.strip_prefix("VmFlags:")).next().unwrap();
    assert!(flags.split_whitespace().any(|flag| flag == "dd"), "{flags}");
}
