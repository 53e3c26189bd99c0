//! Receivers that are slow, have small buffers, or store false indices: other ports are not affected, and no retry is
//! in vain.

use std::sync::Arc;

use crate::support::{
    RX_BUFFERS, RX_RINGS, TX_RINGS, TestGuest, assert_conserved, everything, flooding_fabric, flooding_pair,
    frame, ring_at,
};
use lasthop_fabric::Fabric;
use lasthop_fabric::bounds::{INTERNAL_FRAMES_MAX, WAITING_NS_MAX};
use lasthop_guestmem::{Mapping, MemoryMap, Region};
use lasthop_module_api::{DropReason, PortId};
use lasthop_ring::{DeviceRing, DriverRing, RingError, RingFormat, write_table};
use lasthop_wire::Offload;

const PORTS: [PortId; 2] = [PortId(1), PortId(2)];

#[test]
fn an_index_that_moves_back_does_not_keep_the_worker_awake() {
    let (mut fabric, mut sender, mut receiver) = flooding_pair(16);
    receiver.post(2);
    assert!(sender.queue(&frame(2, 1, 9000), Offload::default()));
    fabric.visit(sender.tx_ring(), 0);
    receiver.rx.set_raw_index(0);
    let awake = (0..1000)
        .take_while(|_| {
            fabric.arm_waiting() && {
                fabric.drain_waiting();
                true
            }
        })
        .count();
    assert!(awake < 3, "told {awake} times in a row that there is work");
    assert_conserved(&fabric, &PORTS);
}

#[test]
fn waiting_packets_are_not_retried_until_their_receiver_moves() {
    let (mut fabric, mut sender, mut receiver) = flooding_pair(16);
    assert!(sender.queue(&frame(2, 1, 60), Offload::default()));
    fabric.visit(sender.tx_ring(), 0);
    assert!(!fabric.drain_waiting());
    receiver.post(1);
    assert!(fabric.drain_waiting());
}

#[test]
fn a_small_packet_behind_an_expired_large_one_is_delivered() {
    let (mut fabric, mut sender, mut receiver) = flooding_pair(16);
    receiver.post(2);
    assert!(sender.queue(&frame(2, 1, 9000), Offload::default()));
    assert!(sender.queue(&frame(2, 7, 60), Offload::default()));
    fabric.visit(sender.tx_ring(), 0);
    fabric.expire(WAITING_NS_MAX);
    assert_eq!(sender.counters(&fabric).rx_drops.of(DropReason::RxTimeout), 1);
    assert_eq!(receiver.receive().unwrap().frame, frame(2, 7, 60));
    assert_conserved(&fabric, &PORTS);
}

#[test]
fn a_small_packet_behind_a_recalled_large_one_is_delivered() {
    let mut fabric = flooding_fabric(3);
    let mut leaving = TestGuest::attach(&mut fabric, 1, everything(), 64, 2048);
    let mut receiver = TestGuest::attach(&mut fabric, 2, everything(), 16, 2048);
    let mut staying = TestGuest::attach(&mut fabric, 3, everything(), 64, 2048);
    receiver.post(2);
    assert!(leaving.queue(&frame(2, 1, 9000), Offload::default()));
    fabric.visit(leaving.tx_ring(), 0);
    assert!(staying.queue(&frame(2, 3, 60), Offload::default()));
    fabric.visit(staying.tx_ring(), 0);
    fabric.stop_ring(PortId(1), 1);
    assert_eq!(receiver.receive().unwrap().frame, frame(2, 3, 60));
    assert_conserved(&fabric, &[PortId(1), PortId(2), PortId(3)]);
}

#[test]
fn a_frame_larger_than_the_whole_ring_does_not_block_it() {
    let (mut fabric, mut sender, mut receiver) = flooding_pair(16);
    receiver.post(16);
    assert!(sender.queue(&frame(2, 1, 60_000), Offload::default()));
    assert!(sender.queue(&frame(2, 7, 60), Offload::default()));
    fabric.visit(sender.tx_ring(), 0);
    assert_eq!(receiver.receive().unwrap().frame, frame(2, 7, 60));
    assert_eq!(receiver.counters(&fabric).tx_drops.of(DropReason::RxBufferSmall), 1);
    assert_conserved(&fabric, &PORTS);
}

#[test]
fn a_chain_of_gigabytes_is_too_long_and_no_more() {
    let (mut fabric, mut sender, _receiver) = flooding_pair(16);
    let mapping = Arc::new(Mapping::anonymous(1 << 30).unwrap());
    let map = Arc::new(MemoryMap::new(vec![Region { guest_addr: 0, user_addr: 0, mapping }]).unwrap());
    fabric.set_memory(PortId(1), &map);
    sender.tx.add(&[(1 << 25, 100)], &[], 0).unwrap();
    sender.tx.add(&[(0, 1 << 30); 4], &[], 1).unwrap();
    sender.tx.publish();
    assert_eq!(fabric.visit(sender.tx_ring(), 0), 2);
    let counters = sender.counters(&fabric);
    assert_eq!((counters.rx_drops.of(DropReason::TooLong), counters.rx_bytes), (1, 88));
    assert_conserved(&fabric, &PORTS);
}

#[test]
fn frames_of_the_control_plane_that_wait_leave_room_for_those_of_other_ports() {
    let mut fabric = flooding_fabric(6);
    let mut receiver = TestGuest::attach(&mut fabric, 6, everything(), 256, 2048);
    let put = |fabric: &mut Fabric, port: u16| {
        let sent = frame(6, 1, 60);
        let is_taken = fabric.can_inject(PortId(port), sent.len()).is_ok();
        let put = fabric.inject_for(PortId(port), &sent, Offload::default(), 0);
        assert_eq!(put.is_ok(), is_taken);
        is_taken
    };
    let taken = [1, 2, 3, 4].map(|port| (0..).take_while(|_| put(&mut fabric, port)).count());
    assert!(taken.iter().all(|count| *count > 0), "{taken:?}");
    assert!(put(&mut fabric, 5), "a port that has none under way");
    let waiting = taken.iter().sum::<usize>() + 1;
    assert!(waiting < usize::from(INTERNAL_FRAMES_MAX), "all that there is would be in use");
    receiver.post(256);
    fabric.drain_waiting();
    assert_eq!(std::iter::from_fn(|| receiver.receive()).count(), waiting, "none was dropped");
    assert!(put(&mut fabric, 1), "there is room again");
    assert_conserved(&fabric, &[PortId(6)]);
}

#[test]
fn receive_kicks_are_wanted_only_while_something_waits() {
    let (mut fabric, mut sender, mut receiver) = flooding_pair(16);
    fabric.stop_ring(PortId(2), 0);
    receiver.rx = DriverRing::new(ring_at(&receiver.map, 16, RX_RINGS), false);
    fabric.start_ring(PortId(2), 0, DeviceRing::new(ring_at(&receiver.map, 16, RX_RINGS), 0, false), true);
    receiver.post(1);
    let _first = receiver.rx.needs_kick();
    receiver.post(1);
    assert!(!receiver.rx.needs_kick(), "nothing waits");
    for number in 0..3 {
        assert!(sender.queue(&frame(2, number, 60), Offload::default()));
    }
    fabric.visit(sender.tx_ring(), 0);
    assert!(!fabric.arm_waiting());
    receiver.post(1);
    assert!(receiver.rx.needs_kick(), "one packet waits");
    assert!(fabric.drain(receiver.tx_ring()));
    receiver.post(1);
    assert!(!receiver.rx.needs_kick(), "nothing waits any more");
}

#[test]
fn kicks_can_be_suppressed_again_after_a_look_that_found_work() {
    let (mut fabric, mut sender, _receiver) = flooding_pair(16);
    fabric.stop_ring(PortId(1), 1);
    sender.tx = DriverRing::new(ring_at(&sender.map, 64, TX_RINGS), false);
    fabric.start_ring(PortId(1), 1, DeviceRing::new(ring_at(&sender.map, 64, TX_RINGS), 0, false), true);
    assert!(sender.queue(&frame(2, 1, 60), Offload::default()));
    let _first = sender.tx.needs_kick();
    assert!(fabric.arm(sender.tx_ring()), "there is work");
    fabric.suppress_kicks(sender.tx_ring());
    assert!(sender.queue(&frame(2, 1, 60), Offload::default()));
    assert!(!sender.tx.needs_kick());
}

#[test]
fn a_receive_chain_of_empty_buffers_stops_its_ring() {
    let (mut fabric, mut sender, receiver) = flooding_pair(64);
    let table = receiver.map.translate(RX_BUFFERS, 1024 * 16, &mut 0).unwrap();
    let mut parts = vec![(RX_BUFFERS + (1 << 20), 0_u32); 1023];
    parts.push((RX_BUFFERS + (1 << 20), 1));
    let len = write_table(RingFormat::Split, &receiver.map, table, &[], &parts).unwrap();
    let mut ring = receiver.rx;
    ring.add_indirect(RX_BUFFERS, len, 0).unwrap();
    ring.publish();
    assert!(sender.queue(&frame(2, 1, 100), Offload::default()));
    fabric.visit(sender.tx_ring(), 0);
    let error = fabric.ring_state(PortId(2), 0).unwrap().error;
    assert!(matches!(error, Some(RingError::EmptyBuffer(_))), "{error:?}");
    assert_eq!(fabric.take_broken(), error.map(|error| (PortId(2), error)));
    assert!(sender.queue(&frame(2, 1, 100), Offload::default()));
    fabric.visit(sender.tx_ring(), 0);
    assert_eq!(fabric.take_broken(), None, "it is noted once");
    assert_eq!(sender.counters(&fabric).rx_drops.of(DropReason::RxRingBroken), 1);
    assert_conserved(&fabric, &PORTS);
}

#[test]
fn a_head_that_is_made_available_twice_stops_its_ring() {
    let (mut fabric, mut sender, _receiver) = flooding_pair(64);
    let head = sender.tx.next_head().unwrap();
    assert!(sender.queue(&frame(2, 1, 60), Offload::default()));
    assert_eq!(fabric.visit(sender.tx_ring(), 0), 1);
    sender.tx.publish_raw_head(head); // its packet still waits for buffers
    assert_eq!(fabric.visit(sender.tx_ring(), 0), 0);
    let error = fabric.ring_state(sender.port, 1).unwrap().error.unwrap();
    assert_eq!(error.to_string(), format!("descriptor {head} is available twice"));
    assert_conserved(&fabric, &PORTS);
}
