//! Workers forward while flows are installed, changed and removed. Every packet is handled by one of its own flows, and
//! counted once.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use lasthop_flow::{Action, Ethernet, FlowKey, FlowStats, Match, Ufid};
use lasthop_flowtable::{FlowModule, FlowSelector, FlowSpec, Removed};
use lasthop_module_api::{BATCH_PACKETS_MAX, Batch, Hashes, Header, Mac, Module, PortId, Verdicts};
use lasthop_wire::Offload;

const WORKERS: usize = 3;
/// Number of destination addresses. Every version of flow `n` sends packets for address `n` to a port that is `n`
/// modulo this number.
const FLOWS: u16 = 64;
const ROUNDS: u32 = if cfg!(miri) { 20 } else { 20_000 };

fn address(last: u16) -> Mac {
    let [high, low] = last.to_be_bytes();
    Mac([2, 0, 0, 0, high, low])
}

/// A flow for destination `number`, with one of several masks, and one output or several.
fn flow(number: u16, version: u32) -> FlowSpec {
    let ethernet = |dst| Some(Ethernet { src: Mac([0; 6]), dst });
    let key = FlowKey { ethernet: ethernet(address(number)), ..FlowKey::default() };
    let priority = Some(1 << (number % 8)); // no packet has any priority: this makes a mask of its own
    let mask = FlowKey { ethernet: ethernet(Mac([0xff; 6])), priority, ..FlowKey::default() };
    FlowSpec {
        ufid: Some(Ufid(u128::from(number).to_be_bytes())),
        matching: Match { key, mask: Some(mask) },
        actions: actions(number, version),
        is_probe: false,
    }
}

fn actions(number: u16, version: u32) -> Vec<Action> {
    let port = |turn: u32| Action::Output(1 + u32::from(number) + u32::from(FLOWS) * (turn % 10));
    (0..=version % 7).map(port).collect()
}

fn batch(from: u16) -> [Header; BATCH_PACKETS_MAX] {
    std::array::from_fn(|index| {
        let to = (from * 7 + index as u16 * 5) % FLOWS;
        let frame = [&address(to).0[..], &[2, 1, 1, 1, 1, 1, 8, 0], &[0; 46]].concat();
        Header::new(&frame, 60, Offload::default())
    })
}

/// Decides batches until told to stop. Returns the number of packets that matched a flow.
fn work(module: &FlowModule, worker: usize, stop: &AtomicBool, batches: &AtomicU64) -> u64 {
    let mut verdicts = Verdicts::of_worker(worker);
    let (mut found, mut turn) = (0, 0);
    while !stop.load(Ordering::Relaxed) {
        turn += 1;
        let headers = batch(turn % 1000);
        verdicts.clear();
        module.decide(
            &Batch { port: PortId(1), headers: &headers, hashes: &Hashes::NONE },
            u64::from(turn),
            &mut verdicts,
        );
        // Settles the upcalls; otherwise all later packets of these flows would go up, too.
        verdicts.upcalls().iter().for_each(|upcall| module.settle(upcall.ticket));
        let mut has_output = [false; BATCH_PACKETS_MAX];
        for output in verdicts.outputs() {
            let header = &headers[usize::from(output.packet)];
            let to = u16::from_be_bytes([header.bytes()[4], header.bytes()[5]]);
            assert_eq!((output.port.0 - 1) % FLOWS, to, "a flow of its own");
            has_output[usize::from(output.packet)] = true;
        }
        found += has_output.iter().filter(|has_output| **has_output).count() as u64;
        batches.fetch_add(1, Ordering::Relaxed);
    }
    found
}

/// Installs, changes and removes flows in turn. Returns those that it removed.
fn change(module: &FlowModule) -> Vec<Removed> {
    let (table, mut removed) = (module.table(), Vec::new());
    for round in 0..ROUNDS {
        let number = (round.wrapping_mul(0x9e37_79b9) >> 20) as u16 % FLOWS;
        let name = FlowSelector::Ufid(Ufid(u128::from(number).to_be_bytes()));
        if table.install(flow(number, round)).is_ok() {
            continue;
        }
        match round % 3 {
            0 => removed.extend(table.remove(name)),
            _ => assert!(table.replace(name, actions(number, round)).is_ok()),
        }
    }
    removed
}

#[test]
fn workers_never_meet_half_a_flow_and_count_each_packet_once() {
    let module = FlowModule::default();
    let (stop, batches) = (AtomicBool::new(false), AtomicU64::new(0));
    let (found, removed) = std::thread::scope(|scope| {
        let worker = |worker| {
            let (module, stop, batches) = (&module, &stop, &batches);
            scope.spawn(move || work(module, worker, stop, batches))
        };
        let workers: Vec<_> = (0..WORKERS).map(worker).collect();
        let removed = change(&module);
        while batches.load(Ordering::Relaxed) < 10 {
            std::thread::yield_now();
        }
        stop.store(true, Ordering::Relaxed);
        let found: u64 = workers.into_iter().map(|worker| worker.join().unwrap()).sum();
        (found, removed)
    });
    let gone: Vec<FlowStats> =
        removed.iter().map(|removed| module.table().final_stats(removed).expect("nobody is there")).collect();
    let living = module.table().dump(0, usize::MAX).0;
    let counted =
        living.iter().map(|(_, _, stats)| stats).chain(&gone).map(|stats| stats.packets).sum::<u64>();
    assert!(found > 0 && !gone.is_empty());
    assert_eq!(counted, found);
}
