//! Links that the operator sets down: no packet passes in either direction, and every packet is accounted for.

use crate::support::{TestGuest, assert_conserved, everything, flooding_fabric, frame};
use lasthop_fabric::Fabric;
use lasthop_module_api::{DropReason, PortId};
use lasthop_wire::Offload;

const PORTS: [PortId; 2] = [PortId(1), PortId(2)];

fn pair() -> (Fabric, TestGuest, TestGuest) {
    let mut fabric = flooding_fabric(2);
    let one = TestGuest::attach(&mut fabric, 1, everything(), 16, 2048);
    let two = TestGuest::attach(&mut fabric, 2, everything(), 16, 2048);
    (fabric, one, two)
}

/// Sends one frame. Returns whether it arrived.
fn passes(fabric: &mut Fabric, from: &mut TestGuest, to: &mut TestGuest) -> bool {
    assert!(from.queue(&frame(2, 1, 60), Offload::default()));
    assert_eq!(fabric.visit(from.tx_ring(), 0), 1);
    assert_eq!(from.in_flight(), 1, "not reclaimed yet");
    assert_eq!(from.reclaim(), 1, "completed either way");
    to.receive().is_some()
}

#[test]
fn a_link_that_is_down_passes_nothing_either_way() {
    let (mut fabric, mut one, mut two) = pair();
    one.post(16);
    two.post(16);
    assert!(passes(&mut fabric, &mut one, &mut two) && passes(&mut fabric, &mut two, &mut one));
    fabric.set_link(PortId(2), false);
    assert!(!passes(&mut fabric, &mut one, &mut two) && !passes(&mut fabric, &mut two, &mut one));
    let (sent, held) = (one.counters(&fabric), two.counters(&fabric));
    assert_eq!((sent.rx_drops.of(DropReason::LinkDown), sent.tx_drops.total()), (1, 0));
    assert_eq!(held.rx_drops.of(DropReason::LinkDown), 1);
    assert_eq!(held.tx_drops.of(DropReason::LinkDown), 1);
    assert_eq!((sent.rx_drops.total(), held.rx_drops.total()), (1, 1), "for no other reason");
    fabric.set_link(PortId(2), true);
    assert!(passes(&mut fabric, &mut one, &mut two) && passes(&mut fabric, &mut two, &mut one));
    assert_conserved(&fabric, &PORTS);
}

#[test]
fn packets_waiting_for_a_guest_are_dropped_when_its_link_goes_down() {
    let (mut fabric, mut one, mut two) = pair();
    for _ in 0..3 {
        assert!(one.queue(&frame(2, 1, 60), Offload::default()));
    }
    fabric.visit(one.tx_ring(), 0);
    assert_eq!(one.counters(&fabric).waiting, 3);
    fabric.set_link(PortId(2), false);
    assert!(fabric.drop_waiting(PortId(2)));
    assert_eq!(one.counters(&fabric).rx_drops.of(DropReason::LinkDown), 3);
    assert_eq!((one.counters(&fabric).waiting, one.reclaim()), (0, 3));
    assert!(fabric.waiting_rings().is_empty(), "nobody looks after it any more");
    two.post(16);
    fabric.drain(two.tx_ring());
    assert_eq!(two.receive(), None);
    assert_conserved(&fabric, &PORTS);
}

#[test]
fn queue_changes_of_the_guest_meanwhile_count_afterwards() {
    let (mut fabric, mut one, mut two) = pair();
    two.post(16);
    fabric.set_link(PortId(1), false);
    fabric.set_ring_enabled(PortId(1), 1, false);
    assert_eq!(fabric.ring_state(PortId(1), 1).map(|ring| ring.enabled), Some(false));
    fabric.set_ring_enabled(PortId(1), 1, true);
    fabric.stop_ring(PortId(1), 0);
    one.start(&mut fabric, 0);
    assert_eq!(fabric.ring_state(PortId(1), 1).map(|ring| ring.enabled), Some(true), "as its guest has it");
    assert!(!passes(&mut fabric, &mut one, &mut two), "enabling does not set the link up");
    fabric.set_ring_enabled(PortId(1), 1, false);
    fabric.set_link(PortId(1), true);
    assert!(!passes(&mut fabric, &mut one, &mut two));
    assert_eq!(one.counters(&fabric).rx_drops.of(DropReason::QueueDisabled), 1);
    fabric.set_ring_enabled(PortId(1), 1, true);
    assert!(passes(&mut fabric, &mut one, &mut two));
    assert_conserved(&fabric, &PORTS);
}

#[test]
fn a_new_port_of_the_same_number_has_its_link_up() {
    let (mut fabric, mut one, two) = pair();
    fabric.set_link(PortId(2), false);
    fabric.remove_port(two.port);
    let mut two = TestGuest::attach(&mut fabric, 2, everything(), 16, 2048);
    two.post(16);
    assert!(passes(&mut fabric, &mut one, &mut two));
}
