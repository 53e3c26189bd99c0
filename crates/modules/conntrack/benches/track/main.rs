//! `ct(...)` for packets of established connections, by their number and the number of threads, and for new ones.
#![allow(clippy::print_stdout, reason = "a measurement says what it found")]

mod frames;

use std::hint::black_box;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, Throughput};
use frames::{NOW_MS, commit, established, image, segment, syn};
use lasthop_conntrack::{CT_BATCH_MAX, ConntrackTable, CtBounds, CtMetadata, CtRequest};
use lasthop_guestmem::{Mapping, MappingError, memfd};

/// Packets of a measured piece.
const PACKETS: u32 = 1 << 12;
/// Connections that begin in a second: the memory of as many is touched ahead.
const AHEAD: u32 = 2048;

/// The packets of one thread: one direction, with the connections in an order that the cache cannot guess.
fn run(table: &ConntrackTable, frames: &[[u8; frames::FRAME_BYTES]]) {
    let (before, request) = (CtMetadata::default(), CtRequest::default());
    for batch in frames.chunks(CT_BATCH_MAX) {
        let images: Vec<_> = batch.iter().map(|frame| image(frame)).collect();
        for image in &images {
            black_box(table.track(image, &before, &request, NOW_MS));
        }
    }
}

fn established_packets(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("established");
    group.throughput(Throughput::Elements(PACKETS.into()));
    for connections in [1, 1000, 100_000] {
        let table = established(connections, &commit(0));
        println!("{connections} connections: {} bytes each", table.memory_bytes() / connections as usize);
        let frames = [false, true].map(|is_reply| {
            let number = |packet: u32| packet.wrapping_mul(0x9e37_79b9) % connections;
            (0..PACKETS).map(|packet| segment(number(packet), is_reply)).collect::<Vec<_>>()
        });
        group.bench_function(BenchmarkId::new("1-thread", connections), |bencher| {
            bencher.iter(|| run(&table, &frames[0]));
        });
        group.bench_function(BenchmarkId::new("2-threads", connections), |bencher| {
            bencher.iter_custom(|rounds| {
                let mean = |times: [Duration; 2]| (times[0] + times[1]) / 2;
                mean(std::thread::scope(|scope| {
                    let timed = |frames| {
                        let table = &table;
                        scope.spawn(move || {
                            let began = Instant::now();
                            (0..rounds).for_each(|_| run(table, frames));
                            began.elapsed()
                        })
                    };
                    let threads = [timed(&frames[0]), timed(&frames[1])];
                    threads.map(|thread| thread.join().expect("it ends"))
                }))
            });
        });
    }
    group.finish();
}

fn new_connections(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("new");
    group.throughput(Throughput::Elements(PACKETS.into()));
    let frames: Vec<_> = (0..PACKETS).map(syn).collect();
    for (name, request) in [("commit", commit(0)), ("source-nat", frames::snat())] {
        group.bench_function(name, |bencher| {
            bencher.iter_batched(
                || {
                    let table = ConntrackTable::new(CtBounds::default(), NOW_MS);
                    // The table has taken its memory already, as after some minutes of traffic.
                    for frame in &frames {
                        table.track(&image(frame), &CtMetadata::default(), &commit(0), NOW_MS);
                    }
                    while !table.flush(1 << 20) {}
                    table
                },
                |table| {
                    for frame in &frames {
                        black_box(table.track(&image(frame), &CtMetadata::default(), &request, NOW_MS));
                    }
                    assert_eq!(table.len(), PACKETS);
                    table
                },
                criterion::BatchSize::PerIteration,
            );
        });
    }
    group.finish();
}

/// First datagrams the short way, as workers commit them: into a small table, into one that grows, and into one where each evicts another
/// connection of its port; then the sweep that removes them.
fn first_packets(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("first");
    group.throughput(Throughput::Elements(PACKETS.into()));
    let begin = |table: &ConntrackTable, numbers: std::ops::Range<u32>| {
        while !table.touch_ahead() {}
        let frames: Vec<_> = numbers.map(frames::datagram).collect();
        let began = Instant::now();
        frames.iter().for_each(|frame| frames::begin(table, frame));
        began.elapsed()
    };
    let filled = |connections: u32| {
        let table = ConntrackTable::new(CtBounds::default(), NOW_MS);
        for from in (0..connections).step_by(AHEAD as usize) {
            begin(&table, from..(from + AHEAD).min(connections));
        }
        table
    };
    for (name, connections) in [("small", 10_000), ("grows", 150_000), ("evicts", 262_144)] {
        group.bench_function(name, |bencher| {
            bencher.iter_custom(|rounds| {
                let (mut table, mut next) = (filled(connections), connections);
                let mut round = |_| {
                    if name != "evicts" && next > connections + connections / 2 {
                        (table, next) = (filled(connections), connections);
                    }
                    next += PACKETS;
                    begin(&table, next - PACKETS..next)
                };
                (0..rounds).map(&mut round).sum()
            });
        });
    }
    group.throughput(Throughput::Elements(150_000));
    group.bench_function("sweep", |bencher| {
        bencher.iter_custom(|rounds| {
            let sweep = |table: ConntrackTable| {
                let began = Instant::now();
                assert!(table.sweep(NOW_MS + 1_000_000, u32::MAX) && table.is_empty());
                began.elapsed()
            };
            (0..rounds).map(|_| sweep(filled(150_000))).sum()
        });
    });
    group.finish();
}

/// Measures packets of connections in memory that outlives the process, touched ahead of its use as in a switch: with small pages, and
/// with huge ones where the kernel makes them.
fn pages(criterion: &mut Criterion) {
    const ALL: u32 = 100_000;
    type Map = fn(BorrowedFd<'_>, u64, u64) -> Result<Mapping, MappingError>;
    let kinds = [("small", Mapping::of_file as Map), ("huge", Mapping::of_file_with_huge_pages)];
    let bounds = CtBounds { port_connections_max: 1 << 20, ..CtBounds::default() };
    let bytes = ConntrackTable::memory_bytes_for(&bounds) as u64;
    let mut group = criterion.benchmark_group("pages");
    group.throughput(Throughput::Elements(PACKETS.into()));
    let table_of = |map: Map| {
        let file = memfd("connections", bytes).expect("memory");
        let memory = Arc::new(map(file.as_fd(), 0, bytes).expect("mapped"));
        let table = ConntrackTable::in_memory(&memory, bounds, NOW_MS).expect("it is large enough");
        for begin in (0..ALL).step_by(AHEAD as usize) {
            while !table.touch_ahead() {}
            frames::establish(&table, begin..(begin + AHEAD).min(ALL), &commit(0));
        }
        while !table.touch_ahead() {}
        table
    };
    let packets: Vec<_> =
        (0..PACKETS).map(|packet| segment(packet.wrapping_mul(0x9e37_79b9) % ALL, false)).collect();
    let syns: Vec<_> = (ALL..ALL + PACKETS / 2).map(syn).collect();
    for (name, map) in kinds {
        let table = table_of(map);
        group.bench_function(BenchmarkId::new("established", name), |bencher| {
            bencher.iter(|| run(&table, &packets));
        });
        group.bench_function(BenchmarkId::new("new", name), |bencher| {
            bencher.iter_batched_ref(
                || table_of(map),
                |table| {
                    for frame in &syns {
                        black_box(table.track(&image(frame), &CtMetadata::default(), &commit(0), NOW_MS));
                    }
                },
                criterion::BatchSize::PerIteration,
            );
        });
    }
    group.finish();
}

/// Measures, for connections that another process left, the time until the first packet has passed, which is part of a
/// restart's gap, and the time until all of them are adopted.
fn adopted_connections(criterion: &mut Criterion) {
    const ALL: u32 = 100_000;
    let bounds = CtBounds { port_connections_max: 1 << 20, ..CtBounds::default() };
    let bytes = ConntrackTable::memory_bytes_for(&bounds);
    let mut group = criterion.benchmark_group("adopt");
    group.sample_size(10);
    for connections in [1, ALL] {
        let memory = Arc::new(Mapping::anonymous(bytes).expect("memory"));
        let next = || ConntrackTable::in_memory(&memory, bounds, NOW_MS).expect("it is large enough");
        frames::establish(&next(), 0..connections, &commit(0));
        let frame = segment(connections / 2, false);
        group.bench_function(BenchmarkId::new("first-packet", connections), |bencher| {
            bencher.iter_with_large_drop(|| {
                let table = next();
                let verdict =
                    table.track(&image(&frame), &CtMetadata::default(), &CtRequest::default(), NOW_MS);
                assert!(verdict.connection.is_some() && table.adopted().kept == 1);
                table
            });
        });
        group.bench_function(BenchmarkId::new("all", connections), |bencher| {
            bencher.iter_with_large_drop(|| {
                let table = next();
                while !table.adopt(NOW_MS, 1024) {}
                assert_eq!(table.adopted().kept, connections);
                table
            });
        });
    }
    group.finish();
}

fn main() {
    let mut criterion = Criterion::default()
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_secs(1))
        .sample_size(20)
        .configure_from_args();
    established_packets(&mut criterion);
    new_connections(&mut criterion);
    first_packets(&mut criterion);
    pages(&mut criterion);
    adopted_connections(&mut criterion);
    criterion.final_summary();
}
