//! Where packet descriptors should be: one that each packet uses again, an array for a batch, or one from a pool for each
//! packet (KVS's reused descriptor, and mSwitch's batches).
//!
//! ```text
//!   fetch: frame ──> descriptor      look up: descriptor ──> table of addresses      copy: descriptor ──> receiver's buffer
//! ```
//! All arms have the same three stages; an array's batch passes one stage after the other. Criterion shows the time.
//! With an arm's name and a number of packets in the variable DESCRIPTORS it forwards these and nothing else, for
//! `bench/descriptors`, which has valgrind count their cache misses.

mod model;

use std::time::Duration;

use criterion::{BenchmarkId, Criterion, Throughput};
use model::{Arm, Model};

/// Packets of an iteration, so that all arms are compared for the same number.
const PACKETS: usize = 64;

/// Forwards packets of one arm for a profiler.
fn run_for_profiler(wanted: &str) {
    let (name, count) = wanted.split_once('=').expect("DESCRIPTORS=ARM=PACKETS");
    let arm = Arm::all().into_iter().find(|arm| arm.name() == name).expect("a known arm");
    let (mut model, wanted, mut done) = (Model::new(arm), count.parse().expect("a number"), 0);
    while done < wanted {
        done += model.batch();
    }
    assert_eq!(model.delivered().iter().sum::<u64>(), done as u64);
}

fn main() {
    if let Ok(wanted) = std::env::var("DESCRIPTORS") {
        return run_for_profiler(&wanted);
    }
    let mut criterion = Criterion::default()
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_secs(1))
        .configure_from_args();
    let mut group = criterion.benchmark_group("descriptors");
    group.throughput(Throughput::Elements(PACKETS as u64));
    for arm in Arm::all() {
        let mut model = Model::new(arm);
        group.bench_function(BenchmarkId::from_parameter(arm.name()), |bencher| {
            bencher.iter(|| {
                let mut done = 0;
                while done < PACKETS {
                    done += model.batch();
                }
            });
        });
        let [first, second] = model.delivered();
        // Both stay zero for an arm that was not asked for.
        assert_eq!(first > 0, second > 0, "both receivers get frames");
    }
}
