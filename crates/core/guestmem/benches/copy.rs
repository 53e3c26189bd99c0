//! Copies from one guest's memory to another's, and of a frame's first bytes out of a guest.
//!
//! Hot: the same buffers each time, as with few buffers in use. Cold: buffers that no cache holds any more, as with
//! many guests; then the time is that of the memory.

use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use criterion::{Criterion, Throughput};
use lasthop_guestmem::{Cursor, Mapping, MemoryMap, Region, Segment, copy, copy_and_sum};

const MEMORY_BYTES: usize = 256 << 20;
const SIZES_BYTES: [u32; 5] = [64, 256, 1500, 9000, 65_536];
/// Bytes of a frame that a fetch reads: virtio-net header and image.
const HEAD_BYTES: usize = 12 + 128;

/// A guest's memory with all pages present.
fn memory() -> MemoryMap {
    let mapping = Arc::new(Mapping::anonymous(MEMORY_BYTES).unwrap());
    let map = MemoryMap::new(vec![Region { guest_addr: 0, user_addr: 0, mapping }]).unwrap();
    let page = [1; 4096];
    for offset in (0..MEMORY_BYTES as u64).step_by(page.len()) {
        map.write(Segment { offset, len: 4096, region: 0 }, 0, &page).unwrap();
    }
    map
}

/// Addresses of buffers in turn, over `span_bytes` of a guest's memory.
struct Places {
    span_bytes: u64,
    step_bytes: u64,
    next: u64,
}

impl Places {
    fn new(hot: bool, len_bytes: u32) -> Self {
        // Not a power of two, so that neighbours in the ring do not use the same cache sets.
        let step_bytes = u64::from(len_bytes).next_multiple_of(2048) + 2048 + 64;
        Self { span_bytes: if hot { step_bytes } else { MEMORY_BYTES as u64 }, step_bytes, next: 0 }
    }

    fn segment(&mut self, len_bytes: u32) -> Segment {
        if self.next + self.step_bytes > self.span_bytes {
            self.next = 0;
        }
        let offset = self.next;
        self.next += self.step_bytes;
        Segment { offset, len: len_bytes, region: 0 }
    }
}

fn copies(criterion: &mut Criterion, from: &MemoryMap, to: &MemoryMap, len_bytes: u32, hot: bool) {
    let temperature = if hot { "hot" } else { "cold" };
    let mut group = criterion.benchmark_group("guestmem");
    group.throughput(Throughput::Bytes(u64::from(len_bytes)));
    let mut places = Places::new(hot, len_bytes);
    group.bench_function(format!("copy/{temperature}/{len_bytes}"), |bencher| {
        bencher.iter(|| {
            let segment = [places.segment(len_bytes)];
            let (mut source, mut target) = (Cursor::new(from, &segment), Cursor::new(to, &segment));
            copy(&mut source, &mut target, black_box(len_bytes as usize))
        });
    });
    let mut places = Places::new(hot, len_bytes);
    group.bench_function(format!("copy-and-sum/{temperature}/{len_bytes}"), |bencher| {
        bencher.iter(|| {
            let segment = [places.segment(len_bytes)];
            let (mut source, mut target) = (Cursor::new(from, &segment), Cursor::new(to, &segment));
            let mut sum = 0;
            copy_and_sum(&mut source, &mut target, black_box(len_bytes as usize), |part, _| sum += part)
                .unwrap();
            sum
        });
    });
}

fn heads(criterion: &mut Criterion, from: &MemoryMap, hot: bool) {
    let temperature = if hot { "hot" } else { "cold" };
    let mut group = criterion.benchmark_group("guestmem");
    group.throughput(Throughput::Elements(1));
    let mut places = Places::new(hot, 2048);
    let mut image = [0; HEAD_BYTES];
    group.bench_function(format!("read-head/{temperature}"), |bencher| {
        bencher.iter(|| {
            let segment = [places.segment(2048)];
            let read = Cursor::new(from, &segment).read(black_box(&mut image));
            black_box(&image);
            read
        });
    });
}

fn main() {
    let mut criterion = Criterion::default()
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_secs(1))
        .configure_from_args();
    let (from, to) = (memory(), memory());
    for hot in [true, false] {
        heads(&mut criterion, &from, hot);
        for len_bytes in SIZES_BYTES {
            copies(&mut criterion, &from, &to, len_bytes, hot);
        }
    }
    criterion.final_summary();
}
