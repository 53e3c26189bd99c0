//! Measures the bridge's decisions on a batch of 32 frames, by the number of addresses that it knows.

use std::hint::black_box;
use std::time::Duration;

use criterion::{Criterion, Throughput};
use lasthop_module_api::{
    BATCH_PACKETS_MAX, Batch, Hashes, Header, Mac, Module, PortId, PortSettings, Verdicts,
};
use lasthop_modules::{Bridge, BridgeSettings, Dummy, FDB_ENTRIES_LIMIT};
use lasthop_wire::Offload;

const NOW_NS: u64 = 1 << 40;
const SENDER: PortId = PortId(1);
const RECEIVERS: u16 = 32;
/// Batches with different destinations, so that a large table does not stay in the first-level cache.
const BATCHES: u32 = 1024;

fn mac(number: u32) -> Mac {
    let [a, b, c, d] = number.to_be_bytes();
    Mac([2, 0, a, b, c, d])
}

fn header(from: Mac, to: Mac) -> Header {
    let frame = [&to.0[..], &from.0[..], &[8, 0], &[0; 46]].concat();
    Header::new(&frame, frame.len() as u32, Offload::default())
}

fn add_ports(module: &dyn Module, count: u16) {
    for port in (1..=count).map(PortId) {
        let settings =
            PortSettings { name: format!("p{port}"), macs_max: Some(1 << 20), ..PortSettings::default() };
        module.port_added(port, &settings).unwrap();
    }
}

/// A bridge that knows address 0 behind the sender, and `macs` others spread over the receivers.
fn bridge(macs: u32) -> Bridge {
    let settings = BridgeSettings { hash_key: [1, 2], ..BridgeSettings::with_entries(FDB_ENTRIES_LIMIT) };
    let bridge = Bridge::new(&settings);
    add_ports(&bridge, 1 + RECEIVERS);
    let mut verdicts = Verdicts::default();
    for number in 0..=macs {
        let port = if number == 0 { SENDER } else { PortId(2 + (number % u32::from(RECEIVERS)) as u16) };
        let headers = [header(mac(number), mac(0))];
        bridge.decide(&Batch { port, headers: &headers, hashes: &Hashes::NONE }, NOW_NS, &mut verdicts);
        verdicts.clear();
    }
    bridge
}

/// Batches from the sender to known addresses, which are far apart in the table.
fn batches(macs: u32) -> Vec<[Header; BATCH_PACKETS_MAX]> {
    let destination = |number: u32| mac(1 + number.wrapping_mul(0x9e37_79b1) % macs);
    let batch = |batch: u32| {
        std::array::from_fn(|index| {
            header(mac(0), destination(batch * BATCH_PACKETS_MAX as u32 + index as u32))
        })
    };
    (0..BATCHES).map(batch).collect()
}

/// Measures decisions on different batches in turn.
fn decide(
    criterion: &mut Criterion,
    name: &str,
    module: &dyn Module,
    batches: &[[Header; BATCH_PACKETS_MAX]],
    outputs_expected: usize,
) {
    let mut verdicts = Verdicts::default();
    let mut turns = batches.iter().cycle();
    let mut group = criterion.benchmark_group("modules");
    group.throughput(Throughput::Elements(BATCH_PACKETS_MAX as u64));
    group.bench_function(name, |bencher| {
        bencher.iter(|| {
            verdicts.clear();
            let headers = turns.next().unwrap();
            module.decide(
                &Batch { port: SENDER, headers: black_box(headers), hashes: &Hashes::NONE },
                NOW_NS,
                &mut verdicts,
            );
            assert_eq!(verdicts.outputs().len(), outputs_expected);
        });
    });
}

fn main() {
    let mut criterion = Criterion::default()
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_secs(1))
        .configure_from_args();
    for macs in [1, 1_000, 100_000] {
        decide(
            &mut criterion,
            &format!("bridge/{macs}-macs"),
            &bridge(macs),
            &batches(macs),
            BATCH_PACKETS_MAX,
        );
    }
    let unknown = [[header(mac(0), mac(7)); BATCH_PACKETS_MAX]];
    let copies = BATCH_PACKETS_MAX * usize::from(RECEIVERS);
    decide(&mut criterion, "bridge/flood-32", &bridge(1), &unknown, copies);
    let dummy = Dummy::default();
    add_ports(&dummy, 2);
    decide(&mut criterion, "dummy", &dummy, &unknown, BATCH_PACKETS_MAX);
    criterion.final_summary();
}
