//! Measures the instructions of a batch. Not a test by itself: run it under callgrind and divide by `PACKETS`.
//!
//! ```sh
//! cargo test --release -p lasthop-fabric --test cost --no-run
//! valgrind --tool=callgrind --toggle-collect='*measured_visit*' target/release/deps/cost-* --ignored --exact batches
//! ```

mod support;

use lasthop_fabric::{Fabric, RingId};
use lasthop_module_api::PortId;
use lasthop_wire::Offload;
use support::{TestGuest, assert_conserved, everything, flooding_fabric, frame};

const BATCHES: u32 = 1000;
const BATCH: u32 = 32;

#[inline(never)]
fn measured_visit(fabric: &mut Fabric, ring: RingId) -> usize {
    let taken = fabric.visit(ring, 0);
    fabric.signals().clear();
    taken
}

fn run(batch: u32, batches: u32) {
    let mut fabric = flooding_fabric(2);
    let mut sender = TestGuest::attach(&mut fabric, 1, everything(), 64, 2048);
    let mut receiver = TestGuest::attach(&mut fabric, 2, everything(), 64, 2048);
    receiver.post(64);
    let sent = frame(2, 1, 64);
    for _ in 0..batches {
        for _ in 0..batch {
            assert!(sender.queue(&sent, Offload::default()));
        }
        assert_eq!(measured_visit(&mut fabric, sender.tx_ring()), batch as usize);
        while receiver.receive().is_some() {}
    }
    assert_conserved(&fabric, &[sender.port, receiver.port]);
}

#[test]
#[ignore = "for callgrind"]
fn batches() {
    run(BATCH, BATCHES);
}

/// Two guests with two queue pairs each send to each other from their second pairs; their flows `follow` them, or not.
fn run_two_queues(follow: bool) {
    let mut fabric = flooding_fabric(2);
    fabric.set_flow_key(7, follow);
    let mut guests = [1, 2].map(|port| TestGuest::attach_pairs(&mut fabric, PortId(port), 2));
    for _ in 0..BATCHES {
        for [sender, receiver] in [[0, 1], [1, 0]] {
            let sent = frame(receiver as u8 + 1, sender as u8 + 1, 64);
            let ring = guests[sender][1].tx_ring();
            (0..BATCH).for_each(|_| assert!(guests[sender][1].queue(&sent, Offload::default())));
            assert_eq!(measured_visit(&mut fabric, ring), BATCH as usize);
            guests[receiver].iter_mut().for_each(|pair| while pair.receive().is_some() {});
        }
    }
    assert_conserved(&fabric, &[PortId(1), PortId(2)]);
}

#[test]
#[ignore = "for callgrind"]
fn two_queues_by_hash() {
    run_two_queues(false);
}

#[test]
#[ignore = "for callgrind"]
fn two_queues_that_flows_follow() {
    run_two_queues(true);
}

#[test]
#[ignore = "for callgrind"]
fn single_packets() {
    run(1, BATCHES);
}
