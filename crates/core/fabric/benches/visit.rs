//! Whole visits to a transmit ring. Differences between them show stages without an entry of their own.
//!
//! ```text
//!   fetch           drop: fetched, refused by the module, completed
//!   sort            gone/...: fetched, sorted, refused by each destination; one and 32 destinations, flood
//!   deliver         visit/...: all of it
//! ```
//! Only `Fabric::visit` is timed. The guests make frames available and take them back in between.

mod traffic;

use std::time::{Duration, Instant};

use criterion::{Criterion, Throughput};
use traffic::frames::one_flow;
use traffic::{Decider, Plan, Traffic, scenarios};

/// The time of `iterations` visits.
fn run(traffic: &mut Traffic, iterations: u64) -> Duration {
    let mut spent = Duration::ZERO;
    for _ in 0..iterations {
        traffic.queue();
        let start = Instant::now();
        let taken = traffic.visit();
        spent += start.elapsed();
        assert_eq!(taken, traffic.packets());
        traffic.clear();
    }
    spent
}

fn visits(criterion: &mut Criterion, name: &str, plan: &Plan) {
    let mut traffic = Traffic::new(plan);
    let mut group = criterion.benchmark_group("fabric");
    group.throughput(Throughput::Elements(traffic.packets() as u64));
    group.bench_function(name, |bencher| bencher.iter_custom(|iterations| run(&mut traffic, iterations)));
    traffic.check();
}

/// Packets of 64 bytes to destinations that do not exist, so that only fetching and sorting remain.
fn gone(destinations: u16, flood: bool) -> Plan {
    Plan {
        decider: Decider::Nowhere { destinations, flood },
        receivers: 0,
        buffers_expected: 0,
        ..Plan::bridged(one_flow(32, 64))
    }
}

fn main() {
    let mut criterion = Criterion::default()
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_millis(500))
        .configure_from_args();
    visits(&mut criterion, "gone/1-destination", &gone(1, false));
    visits(&mut criterion, "gone/32-destinations", &gone(32, false));
    visits(&mut criterion, "gone/flood-32", &gone(32, true));
    for (name, plan) in scenarios::ALL {
        visits(&mut criterion, &format!("visit/{name}"), &plan());
    }
    visits(&mut criterion, "visit/flood-32", &scenarios::flood(32));
    criterion.final_summary();
}
