//! A flow goes to the receive queue of the queue pair from which its guest sends it, and stays in order.

use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::prelude::*;

use crate::support::{ByLastByte, TestGuest, assert_conserved, everything};
use lasthop_fabric::Fabric;
use lasthop_module_api::PortId;
use lasthop_wire::Offload;

const PORTS: [PortId; 2] = [PortId(1), PortId(2)];
const MS: u64 = 1_000_000;

/// A client with one queue pair at port 1, and a server with several at port 2.
struct Bench {
    fabric: Fabric,
    client: TestGuest,
    server: Vec<TestGuest>,
    now_ns: u64,
}

/// A UDP frame of the flow of this number, from the client's side or back.
fn frame(flow: u8, number: u16, is_back: bool) -> Vec<u8> {
    let ends = [([10, 0, 0, 1], [flow, 1], 1_u8), ([10, 0, 0, 2], [0, 53], 2)];
    let [from, to] = if is_back { [ends[1], ends[0]] } else { ends };
    let mut frame = vec![2, 0, 0, 0, 0, to.2, 2, 0, 0, 0, 0, from.2, 8, 0];
    frame.extend([0x45, 0, 0, 30, 0, 0, 0, 0, 64, 17, 0, 0]);
    frame.extend([from.0, to.0].concat());
    frame.extend([from.1, to.1].concat());
    frame.extend([0, 10, 0, 0]);
    frame.extend(number.to_be_bytes());
    frame
}

impl Bench {
    fn new(pairs: u16, follow: bool) -> Self {
        let mut fabric = Fabric::new(Arc::new(ByLastByte { flooded: 1..=2 })).unwrap();
        fabric.set_flow_key(7, follow);
        let mut client = TestGuest::attach(&mut fabric, 1, everything(), 64, 2048);
        client.post(64);
        let server = TestGuest::attach_pairs(&mut fabric, PortId(2), pairs);
        Self { fabric, client, server, now_ns: 0 }
    }

    fn client_sends(&mut self, flow: u8, number: u16) {
        assert!(self.client.queue(&frame(flow, number, false), Offload::default()));
        while self.fabric.visit(self.client.tx_ring(), self.now_ns) > 0 {}
        self.client.reclaim();
    }

    fn server_sends(&mut self, flow: u8, queue: usize) {
        let pair = &mut self.server[queue];
        assert!(pair.queue(&frame(flow, 0, true), Offload::default()));
        while self.fabric.visit(pair.tx_ring(), self.now_ns) > 0 {}
        pair.reclaim();
        while self.client.receive().is_some() {}
    }

    /// Takes all frames of a queue of the server: flows and numbers.
    fn take(&mut self, queue: usize) -> Vec<(u8, u16)> {
        let pair = &mut self.server[queue];
        let frames = std::iter::from_fn(|| pair.receive());
        frames.map(|got| (got.frame[34], u16::from_be_bytes([got.frame[42], got.frame[43]]))).collect()
    }

    /// The queue at which the client's next frame of a flow arrives, alone.
    fn queue_of(&mut self, flow: u8) -> usize {
        self.client_sends(flow, 1);
        let taken: Vec<usize> = (0..self.server.len()).map(|queue| self.take(queue).len()).collect();
        assert_eq!(taken.iter().sum::<usize>(), 1, "{taken:?}");
        taken.iter().position(|count| *count > 0).expect("a queue")
    }

    fn steered(&self) -> u64 {
        self.fabric.handoff_counters().steered
    }

    fn ends(&self) {
        assert_conserved(&self.fabric, &PORTS);
    }
}

#[test]
fn a_flow_comes_by_the_queue_that_its_guest_sends_it_from() {
    let mut bench = Bench::new(4, true);
    for flow in 0..32 {
        let home = bench.queue_of(flow);
        let sent = (home + 1 + usize::from(flow) % 3) % 4;
        bench.server_sends(flow, sent);
        assert_eq!((bench.queue_of(flow), bench.queue_of(flow)), (sent, sent), "flow {flow}");
        // The guest moves on, and at last to the flow's home.
        for sent in [(sent + 1) % 4, home] {
            bench.server_sends(flow, sent);
            assert_eq!(bench.queue_of(flow), sent);
        }
    }
    bench.ends();
}

#[test]
fn a_flow_stays_while_the_guest_has_packets_to_take() {
    let mut bench = Bench::new(2, true);
    let home = bench.queue_of(9);
    bench.server_sends(9, 1 - home);
    // Those of another flow count, too.
    let neighbour = (10..).find(|flow| bench.queue_of(*flow) == home).expect("a flow");
    bench.client_sends(neighbour, 1);
    for number in 0..20 {
        bench.client_sends(9, number);
    }
    assert_eq!((bench.take(home).len(), bench.take(1 - home).len(), bench.steered()), (21, 0, 0));
    assert_eq!((bench.queue_of(9), bench.steered()), (1 - home, 1));
    bench.ends();
}

#[test]
fn a_guest_that_waits_for_a_signal_has_taken_all_packets() {
    let mut bench = Bench::new(2, true);
    let home = bench.queue_of(9);
    bench.client_sends(9, 1);
    bench.server_sends(9, 1 - home);
    // It takes the packet, and posts no buffer again.
    let ring = &mut bench.server[home].rx;
    assert!(ring.take_used().expect("sound").is_some());
    assert_eq!((bench.queue_of(9), bench.steered()), (home, 0), "it might poll, and be slow");
    assert!(!bench.server[home].rx.arm_calls());
    assert_eq!((bench.queue_of(9), bench.steered()), (1 - home, 1));
    bench.ends();
}

#[test]
fn flows_that_do_not_follow_keep_to_their_hash() {
    let mut bench = Bench::new(2, false);
    for flow in 0..32 {
        let home = bench.queue_of(flow);
        bench.server_sends(flow, 1 - home);
        assert_eq!(bench.queue_of(flow), home);
    }
    assert_eq!(bench.steered(), 0);
    bench.ends();
}

#[test]
fn a_stopped_queue_gets_no_flow() {
    let mut bench = Bench::new(2, true);
    let home = bench.queue_of(9);
    bench.fabric.stop_ring(PortId(2), 2 * (1 - home as u16));
    bench.server_sends(9, 1 - home);
    assert_eq!(bench.queue_of(9), home);
    bench.ends();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, failure_persistence: None, ..ProptestConfig::default() })]

    /// A guest that takes packets in any order of its queues gets those of each flow in order, as long as it takes them from one
    /// queue before it looks at the next.
    #[test]
    fn flows_stay_in_order(steps in prop::collection::vec((0..4_u8, 0..6_u8, 0..3_usize), 1..400)) {
        let mut bench = Bench::new(3, true);
        let mut sent: BTreeMap<u8, u16> = BTreeMap::new();
        let mut seen: BTreeMap<u8, u16> = BTreeMap::new();
        for (what, flow, queue) in steps {
            bench.now_ns += u64::from(what) * 300 * MS;
            match what {
                0 => bench.server_sends(flow, queue),
                1 => {
                    for (flow, number) in bench.take(queue) {
                        let next = seen.entry(flow).or_default();
                        prop_assert_eq!(*next, number, "flow {} in queue {}", flow, queue);
                        *next += 1;
                    }
                }
                _ => {
                    let waiting: u16 = sent.values().sum::<u16>() - seen.values().sum::<u16>();
                    if waiting < 60 {
                        let number = sent.entry(flow).or_default();
                        bench.client_sends(flow, *number);
                        *number += 1;
                    }
                }
            }
        }
        assert_conserved(&bench.fabric, &PORTS);
    }
}
