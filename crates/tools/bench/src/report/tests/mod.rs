mod comparison;
mod pictures;
mod texts;

use crate::sample::{MemoryUse, Placement, RoundTrip, Sample};
use crate::workload::Workload;

const STREAM: &str = "stream,size=64";
const BULK: &str = "stream,size=1500,ring=1024,touched";
const ROUND_TRIP: &str = "rtt";
const OFFERED: &str = "offered=1000000";

/// A sample of one second in which `frames` frames were received.
fn received(backend: &str, workload: &str, round: u32, frames: u64) -> Sample {
    let workload: Workload = workload.parse().expect("a workload");
    Sample {
        backend: backend.to_owned(),
        workload,
        round,
        core_to_core_ns: 50.0,
        placement: Placement::Near,
        switch_cpu: 1,
        guest_cpus: "0".to_owned(),
        driver: None,
        wake_up_ns: None,
        seconds: 1.0,
        generator_cpu_seconds: 1.0,
        sent_frames: frames,
        received_frames: frames,
        cpu_seconds: None,
        cpu_wait_seconds: None,
        sleeps: None,
        memory: None,
        round_trip: None,
    }
}

/// A sample of round trips with this median in ns, and other percentiles at multiples of it.
fn took(backend: &str, round: u32, p50_ns: u64) -> Sample {
    let trip = RoundTrip {
        count: 1000,
        p50_ns,
        p90_ns: p50_ns * 3 / 2,
        p99_ns: 2 * p50_ns,
        p999_ns: 9 * p50_ns,
        max_ns: 100 * p50_ns,
    };
    Sample { round_trip: Some(trip), ..received(backend, ROUND_TRIP, round, 1000) }
}

fn far(sample: Sample) -> Sample {
    Sample { core_to_core_ns: 300.0, placement: Placement::Far, ..sample }
}

fn busy(sample: Sample, cpu_seconds: f64) -> Sample {
    let memory = MemoryUse { rss_anon_kb: 1, rss_file_kb: 2, rss_shmem_kb: 3, vm_pte_kb: 4, huge_kb: 5 };
    Sample { cpu_seconds: Some(cpu_seconds), sleeps: Some(7), memory: Some(memory), ..sample }
}

/// All kinds of back ends and metrics, three rounds.
fn campaign() -> Vec<Sample> {
    let rates = [
        ("lasthop", 14_210_000, 6_120_000),
        ("lasthop-dummy", 15_730_000, 6_480_000),
        ("testpmd", 9_870_000, 4_050_000),
        ("ovs-normal", 5_240_000, 2_910_000),
        ("ovs-flow", 6_160_000, 3_080_000),
        ("limit", 19_400_000, 7_300_000),
        ("null", 61_000_000, 11_900_000),
    ];
    let wide = "pairs=4,both,size=64,flows=1000,macs=1000";
    let mut samples = Vec::new();
    for round in 0..3 {
        let vary = |value: u64, salt: u64| value * (96 + (u64::from(round) * 5 + salt * 3) % 9) / 100;
        for (salt, (backend, small, large)) in (0..).zip(rates) {
            samples.push(received(backend, STREAM, round, vary(small, salt)));
            samples.push(received(backend, BULK, round, vary(large, salt)));
            samples.push(received(backend, wide, round, vary(small * 4 / 5, salt + 1)));
            if !["limit", "null"].contains(&backend) {
                samples.push(took(backend, round, vary(40_000_000_000 / small, salt)));
                samples.push(busy(received(backend, OFFERED, round, 1_000_000), 1e6 / small as f64 * 2.0));
            }
        }
    }
    samples.extend((3..5).map(|round| far(received("lasthop", STREAM, round, 7_000_000))));
    samples
}
