//! Measures the flow module's decisions on batches of 32 TCP packets, by the number of flows and masks, and the cost of
//! changing the table.

use std::hint::black_box;
use std::time::Duration;

use criterion::{Criterion, Throughput};
use lasthop_flow::{Action, Ethernet, FlowKey, Ipv4, Match, Ports, Ufid};
use lasthop_flowtable::{FlowModule, FlowSelector, FlowSpec};
use lasthop_module_api::{BATCH_PACKETS_MAX, Batch, Hashes, Header, Mac, Module, PortId, Verdicts};
use lasthop_wire::Offload;

const NOW_NS: u64 = 1 << 40;
const SENDER: PortId = PortId(1);
/// Batches with different packets, so that a large table does not stay in the first-level cache.
const BATCHES: u32 = 1024;

/// The flow of destination `number`: it matches the address and the fields of a TCP packet.
fn flow(number: u32) -> FlowSpec {
    let ip = |dst: u32, proto| Ipv4 { dst: dst.into(), proto, ..Ipv4::default() };
    let key = FlowKey {
        in_port: Some(u32::from(SENDER.0)),
        ethernet: Some(Ethernet::default()),
        ether_type: Some(0x0800),
        ipv4: Some(ip(number, 6)),
        tcp: Some(Ports::default()),
        tcp_flags: Some(0),
        ..FlowKey::default()
    };
    let mask = FlowKey {
        in_port: Some(u32::MAX),
        ether_type: Some(u16::MAX),
        ipv4: Some(ip(u32::MAX, 0xff)),
        ..FlowKey::default()
    };
    let actions = vec![Action::Output(2 + number % 32)];
    let ufid = Some(Ufid(u128::from(number).to_be_bytes()));
    FlowSpec { ufid, matching: Match { key, mask: Some(mask) }, actions, is_probe: false }
}

/// A flow with its own mask that no packet matches.
fn other(number: u32) -> FlowSpec {
    let key = FlowKey { ethernet: Some(Ethernet::default()), mark: Some(u32::MAX), ..FlowKey::default() };
    let mask = FlowKey { mark: Some(number + 1), ..FlowKey::default() };
    let ufid = Some(Ufid((1 << 64 | u128::from(number)).to_be_bytes()));
    FlowSpec { ufid, matching: Match { key, mask: Some(mask) }, actions: Vec::new(), is_probe: false }
}

fn module(flows: u32, masks: u32) -> FlowModule {
    let module = FlowModule::for_workers(1);
    (1..masks).for_each(|number| module.table().install(other(number)).unwrap());
    (0..flows).for_each(|number| module.table().install(flow(number)).unwrap());
    module
}

fn header(number: u32) -> Header {
    let mut frame =
        [&Mac([2; 6]).0[..], &Mac([4; 6]).0, &[8, 0, 0x45, 0, 0, 46, 0, 0, 0, 0, 64, 6, 0, 0]].concat();
    frame.extend([10, 0, 0, 1]);
    frame.extend(number.to_be_bytes());
    frame.extend([0x9c, 0x40, 0, 80, 0, 0, 0, 1, 0, 0, 0, 2, 0x50, 0x10, 1, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6]);
    Header::new(&frame, frame.len() as u32, Offload::default())
}

fn decide(criterion: &mut Criterion, flows: u32, masks: u32) {
    let module = module(flows, masks);
    let number = |at: u32| at.wrapping_mul(0x9e37_79b1) % flows;
    let batch =
        |batch: u32| std::array::from_fn(|at| header(number(batch * BATCH_PACKETS_MAX as u32 + at as u32)));
    let batches: Vec<[Header; BATCH_PACKETS_MAX]> = (0..BATCHES).map(batch).collect();
    let mut verdicts = Verdicts::default();
    let mut run = |headers: &[Header]| {
        verdicts.clear();
        module.decide(
            &Batch { port: SENDER, headers: black_box(headers), hashes: &Hashes::NONE },
            NOW_NS,
            &mut verdicts,
        );
        assert_eq!(verdicts.outputs().len(), BATCH_PACKETS_MAX);
    };
    for _ in 0..5 {
        batches.iter().for_each(|headers| run(headers));
        module.table().dump(0, 1); // a control plane does this twice a second: it allocates workers' statistics entries
    }
    let mut turns = batches.iter().cycle();
    let mut group = criterion.benchmark_group("flowtable/decide");
    group.throughput(Throughput::Elements(BATCH_PACKETS_MAX as u64));
    group.bench_function(format!("{flows}-flows-{masks}-masks"), |bencher| {
        bencher.iter(|| run(turns.next().unwrap()));
    });
}

/// Installs and removes one flow in a table of 200,000.
fn change(criterion: &mut Criterion) {
    let module = module(200_000, 1);
    criterion.bench_function("flowtable/install-and-remove", |bencher| {
        bencher.iter(|| {
            module.table().install(flow(300_000)).unwrap();
            module.table().remove(FlowSelector::Ufid(Ufid(300_000_u128.to_be_bytes()))).unwrap();
        });
    });
}

fn main() {
    let mut criterion = Criterion::default()
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_secs(1))
        .configure_from_args();
    for (flows, masks) in [(1, 1), (1000, 1), (1000, 1000), (100_000, 1)] {
        decide(&mut criterion, flows, masks);
    }
    change(&mut criterion);
    criterion.final_summary();
}
