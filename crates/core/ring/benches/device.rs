//! The device's side of a ring: takes a batch of 32 chains, then completes and publishes them.
//!
//! Only the device's work is timed. The driver makes chains available and takes them back in between.

#[path = "../tests/ring/fixture.rs"]
mod fixture;

use std::hint::black_box;
use std::time::{Duration, Instant};

use criterion::{Criterion, Throughput};
use fixture::{BUFFERS_AT, GUEST_ADDR, map, pair};
use lasthop_guestmem::MemoryMap;
use lasthop_ring::{BufferAccess, DeviceRing, DriverRing, RingFormat, walk, write_table};

const BATCH: u16 = 32;
const ENTRIES: u16 = 256;
const BUFFER_BYTES: u32 = 64;
const TABLE_AT: u64 = GUEST_ADDR + BUFFERS_AT;
const BUFFER_AT: u64 = TABLE_AT + 4096;

/// The layout of chains: number of descriptors, and whether they are in an indirect table.
#[derive(Clone, Copy)]
struct Layout {
    name: &'static str,
    descriptors: usize,
    indirect: bool,
}

const LAYOUTS: [Layout; 4] = [
    Layout { name: "1-descriptor", descriptors: 1, indirect: false },
    Layout { name: "2-descriptors", descriptors: 2, indirect: false },
    Layout { name: "6-descriptors", descriptors: 6, indirect: false },
    Layout { name: "6-indirect", descriptors: 6, indirect: true },
];

fn make_available(map: &MemoryMap, driver: &mut DriverRing, layout: Layout) {
    let buffers = [(BUFFER_AT, BUFFER_BYTES); 6];
    let buffers = &buffers[..layout.descriptors];
    for _ in 0..BATCH {
        let added = if layout.indirect {
            let table = map.translate(TABLE_AT, 4096, &mut 0).unwrap();
            let len = write_table(RingFormat::Split, map, table, buffers, &[]).unwrap();
            driver.add_indirect(TABLE_AT, len, 0)
        } else {
            driver.add(buffers, &[], 0)
        };
        assert!(added.is_some());
    }
    driver.publish();
}

/// Walks all pending chains. Returns their bytes.
fn take(map: &MemoryMap, device: &mut DeviceRing, heads: &mut Vec<u16>) -> u32 {
    let pending = device.pending().unwrap();
    let mut bytes = 0;
    let mut hint = 0;
    for ahead in 0..pending {
        let head = device.head(ahead).unwrap();
        walk(device, map, head, BufferAccess::Readable, &mut hint, |segment, _| {
            bytes += segment.len;
            true
        })
        .unwrap();
        heads.push(head);
    }
    device.take(pending);
    bytes
}

/// Completes and publishes all chains. Returns whether the driver wants a signal.
fn complete(device: &mut DeviceRing, heads: &[u16]) -> bool {
    for &head in heads {
        device.complete(head, 0);
    }
    device.publish();
    device.needs_signal()
}

/// The time of `iterations` batches, for taking and for completing.
fn run(layout: Layout, iterations: u64) -> [Duration; 2] {
    let map = map();
    let (mut driver, mut device) = pair(&map, ENTRIES, true, 0);
    let mut heads = Vec::with_capacity(usize::from(BATCH));
    let mut times = [Duration::ZERO; 2];
    for _ in 0..iterations {
        make_available(&map, &mut driver, layout);
        heads.clear();
        let start = Instant::now();
        let bytes = black_box(take(&map, black_box(&mut device), &mut heads));
        let taken = Instant::now();
        black_box(complete(black_box(&mut device), &heads));
        times[1] += taken.elapsed();
        times[0] += taken - start;
        assert_eq!(bytes, u32::from(BATCH) * layout.descriptors as u32 * BUFFER_BYTES);
        while driver.take_used().unwrap().is_some() {}
    }
    times
}

fn main() {
    let mut criterion = Criterion::default()
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_millis(500))
        .configure_from_args();
    let mut group = criterion.benchmark_group("ring");
    group.throughput(Throughput::Elements(u64::from(BATCH)));
    for (number, stage) in ["take", "complete-and-publish"].into_iter().enumerate() {
        for layout in LAYOUTS {
            group.bench_function(format!("{stage}/{}", layout.name), |bencher| {
                bencher.iter_custom(|iterations| run(layout, iterations)[number]);
            });
        }
    }
    group.finish();
    criterion.final_summary();
}
