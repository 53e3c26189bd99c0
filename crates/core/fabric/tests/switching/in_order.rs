//! Guests that get their transmit chains back in order (VIRTIO_F_IN_ORDER): a packet that waits for a slow receiver
//! does not hold back later chains, while there is room to detach it.

use crate::support::{ByLastByte, TestGuest, assert_conserved, everything, frame};
use crate::tcp::tso4;
use lasthop_fabric::bounds::{DETACHED_BYTES_MAX, DETACHED_PIECE_BYTES, WAITING_NS_MAX};
use lasthop_fabric::{Capabilities, Fabric};
use lasthop_module_api::{DropReason, PortId};
use lasthop_ring::RingError;
use lasthop_wire::Offload;
use std::sync::Arc;

const PORTS: [PortId; 3] = [PortId(1), PortId(2), PortId(3)];
const SLOW: u8 = 2;
const FAST: u8 = 3;
const BOTH: u8 = 0xff;

/// A sender with in-order rings, and two receivers without buffers.
struct World {
    fabric: Fabric,
    sender: TestGuest,
    slow: TestGuest,
    fast: TestGuest,
    /// The offsets at which chains are cut.
    cuts: &'static [usize],
}

impl World {
    fn new() -> Self {
        Self::with(everything())
    }

    /// A sender whose chains are in one piece.
    fn of_one_piece() -> Self {
        Self { cuts: &[], ..Self::new() }
    }

    fn with(slow: Capabilities) -> Self {
        let mut fabric = Fabric::new(Arc::new(ByLastByte { flooded: SLOW.into()..=FAST.into() })).unwrap();
        let sender = TestGuest::attach_in_order(&mut fabric, 1, 256, 2048);
        let slow = TestGuest::attach(&mut fabric, 2, slow, 256, 2048);
        let fast = TestGuest::attach(&mut fabric, 3, everything(), 256, 2048);
        Self { fabric, sender, slow, fast, cuts: &[40, 50] }
    }

    fn send(&mut self, to: u8, number: u8, len: usize) {
        assert!(self.sender.queue_cut(&frame(to, number, len), Offload::default(), self.cuts));
    }

    fn visit(&mut self) {
        while self.fabric.visit(self.sender.tx_ring(), 0) > 0 {}
    }

    /// The frames that the slow receiver got. Asserts that they equal those sent.
    fn arrived(&mut self) -> Vec<u8> {
        self.fabric.drain(self.slow.tx_ring());
        let frames = std::iter::from_fn(|| self.slow.receive()).map(|received| received.frame);
        frames
            .map(|bytes| {
                assert_eq!(bytes, frame(bytes[5], bytes[11], bytes.len()));
                bytes[11]
            })
            .collect()
    }

    /// (detached, waiting, dropped)
    fn counts(&self) -> (u64, u64, u64) {
        assert_conserved(&self.fabric, &PORTS);
        let counters = self.sender.counters(&self.fabric);
        (counters.detached, counters.waiting, counters.rx_drops.total())
    }
}

#[test]
fn packets_that_wait_are_detached_when_others_are_delivered_behind_them() {
    are_detached(World::new());
    are_detached(World::of_one_piece());
}

fn are_detached(mut world: World) {
    world.fast.post(64);
    for number in 0..4 {
        world.send(SLOW, number, 60 + 1000 * usize::from(number));
    }
    world.visit();
    assert_eq!((world.sender.reclaim(), world.counts()), (0, (0, 4, 0)), "no other is held back");
    world.send(FAST, 9, 60);
    world.visit();
    assert_eq!(world.sender.reclaim(), 5, "all come back");
    assert_eq!(world.counts(), (4, 4, 0));
    world.sender.overwrite(&[0x55; 4000]);
    world.send(SLOW, 4, 60);
    world.visit();
    assert_eq!((world.sender.reclaim(), world.counts()), (0, (4, 5, 0)), "this one holds back none");
    world.slow.post(64);
    assert_eq!(world.arrived(), [0, 1, 2, 3, 4], "in order, and as they were sent");
    assert_eq!((world.sender.reclaim(), world.counts()), (1, (4, 0, 0)));
}

#[test]
fn chains_of_one_piece_come_back_in_order_whatever_they_meet() {
    let mut world = World::of_one_piece();
    world.fast.post(64);
    world.slow.post(2);
    let mut number = 0;
    for (to, count) in [(FAST, 3), (SLOW, 4), (FAST, 1), (9, 2), (FAST, 5), (SLOW, 1), (FAST, 2)] {
        (0..count).for_each(|_| {
            world.send(to, number, 60);
            number += 1;
        });
        world.visit();
    }
    world.sender.reclaim();
    assert_eq!((world.sender.in_flight(), world.counts()), (0, (3, 3, 2)));
    let delivered: Vec<u8> = std::iter::from_fn(|| world.fast.receive()).map(|got| got.frame[11]).collect();
    assert_eq!(delivered, [0, 1, 2, 7, 10, 11, 12, 13, 14, 16, 17]);
    world.slow.post(64);
    assert_eq!(world.arrived(), [3, 4, 5, 6, 15]);
}

#[test]
fn a_drop_elsewhere_does_not_wait_for_a_packet_that_waits() {
    let mut world = World::new();
    world.send(SLOW, 0, 60);
    world.send(9, 0, 60);
    world.visit();
    assert_eq!((world.sender.reclaim(), world.counts()), (2, (1, 1, 1)));
}

#[test]
fn drops_at_the_slow_receiver_itself_are_no_reason_to_detach() {
    let mut world = World::new();
    (0..50).for_each(|number| world.send(SLOW, number, 60));
    world.visit();
    world.fabric.expire(WAITING_NS_MAX);
    let (detached, waiting, dropped) = world.counts();
    assert_eq!((detached, waiting, dropped, world.sender.reclaim()), (0, 0, 50, 50), "none waits on");
    world.slow.post(3);
    (0..50).for_each(|number| world.send(SLOW, number, 60));
    world.visit();
    world.slow.post(2);
    world.fabric.drain(world.slow.tx_ring());
    // From now on the receiver is stalled, and the other packets are dropped at once.
    world.fabric.expire(WAITING_NS_MAX);
    (0..9).for_each(|number| world.send(SLOW, number, 60));
    world.visit();
    assert_eq!(world.counts().0, 0);
}

#[test]
fn without_room_the_ring_waits_and_nothing_is_lost() {
    let mut world = World::new();
    world.fast.post(64);
    let room = DETACHED_BYTES_MAX / 60_012_usize.next_multiple_of(DETACHED_PIECE_BYTES as usize);
    let count = room as u8 + 6;
    (0..count).for_each(|number| world.send(SLOW, number, 60_000));
    world.send(FAST, 99, 60);
    world.visit();
    assert_eq!(world.sender.reclaim(), room);
    assert_eq!(world.sender.in_flight(), 7, "six for which there is no room, and one behind them");
    assert_eq!(world.counts(), (room as u64, u64::from(count), 0));
    let mut all = Vec::new();
    for _ in 0..20 {
        world.slow.post(256);
        all.extend(world.arrived());
    }
    assert!(all.iter().copied().eq(0..count), "{all:?}");
    assert_eq!((world.sender.reclaim(), world.sender.in_flight()), (7, 0));
    assert!(world.counts().0 > room as u64, "as there was room, others were detached");
    assert_eq!(world.counts().1, 0);
}

#[test]
fn each_copy_of_a_flood_is_detached_by_itself() {
    let mut world = World::new();
    world.send(BOTH, 1, 3000);
    world.send(9, 0, 60);
    world.visit();
    assert_eq!((world.sender.reclaim(), world.counts()), (2, (2, 2, 1)));
    world.slow.post(8);
    assert_eq!((world.arrived(), world.counts().1), (vec![1], 1));
    world.fast.post(8);
    world.fabric.drain(world.fast.tx_ring());
    assert_eq!(world.fast.receive().unwrap().frame, frame(BOTH, 1, 3000));
    assert_eq!(world.counts(), (2, 0, 1));
}

#[test]
fn of_a_frame_that_is_detached_amid_its_segments_the_others_follow() {
    let mut world = World::with(Capabilities { mergeable: true, csum: true, ..Capabilities::default() });
    let mut bytes = frame(SLOW, 1, 54);
    bytes[12..].copy_from_slice(&{
        let mut headers = [0_u8; 42];
        headers[..2].copy_from_slice(&[8, 0]);
        headers[2] = 0x45;
        headers[11] = 6; // TCP
        headers[34] = 5 << 4;
        headers
    });
    bytes.extend((0..6000_u32).map(|at| (at * 3) as u8));
    let total = (bytes.len() - 14) as u16;
    bytes[16..18].copy_from_slice(&total.to_be_bytes());
    let gso = tso4(34, 1000);
    world.slow.post(2);
    assert!(world.sender.queue(&bytes, gso));
    world.send(9, 0, 60);
    world.visit();
    assert_eq!((world.sender.reclaim(), world.counts()), (2, (1, 1, 1)));
    world.sender.overwrite(&[0x55; 6100]);
    world.slow.post(8);
    world.fabric.drain(world.slow.tx_ring());
    let received: Vec<Vec<u8>> = std::iter::from_fn(|| world.slow.receive()).map(|one| one.frame).collect();
    assert_eq!(received.len(), 6);
    let payload: Vec<u8> = received.iter().flat_map(|segment| &segment[54..]).copied().collect();
    assert!(payload == bytes[54..], "every byte, once");
    assert_eq!(world.counts(), (1, 0, 1));
}

#[test]
fn a_ring_that_stops_takes_its_detached_packets_along() {
    let mut world = World::new();
    world.send(SLOW, 0, 60);
    world.send(SLOW, 1, 60);
    world.send(9, 0, 60);
    world.visit();
    assert_eq!(world.counts(), (2, 2, 1));
    assert_eq!(world.fabric.stop_ring(PortId(1), 1), Some(3));
    let counters = world.sender.counters(&world.fabric);
    assert_eq!(counters.rx_drops.of(DropReason::Recalled), 2);
    assert_eq!(world.counts(), (2, 0, 3));
    assert_eq!(world.sender.reclaim(), 3);
    world.sender.start(&mut world.fabric, 1);
    world.slow.post(8);
    world.send(SLOW, 5, 60);
    world.visit();
    assert_eq!(world.arrived(), [5]);
}

#[test]
fn detached_packets_are_lost_and_counted_when_the_fabric_comes_to_rest() {
    let mut world = World::new();
    world.send(SLOW, 0, 60);
    world.send(9, 0, 60);
    world.visit();
    world.send(SLOW, 1, 60);
    world.visit();
    assert_eq!(world.fabric.unpostponable(), 1, "the second one can be postponed");
    world.fabric.withdraw();
    world.fabric.postpone();
    let counters = world.sender.counters(&world.fabric);
    assert_eq!((counters.rx_drops.of(DropReason::Restart), counters.waiting), (1, 0));
    world.slow.post(8);
    world.visit();
    assert_eq!(world.arrived(), [1]);
    world.counts();
}

#[test]
fn a_postponed_packet_that_waits_again_is_detached() {
    let mut world = World::new();
    world.send(SLOW, 0, 60);
    world.visit();
    world.fabric.withdraw();
    world.fabric.postpone();
    world.send(9, 0, 60);
    world.visit();
    world.visit();
    assert_eq!((world.sender.reclaim(), world.counts()), (2, (1, 1, 1)));
}

#[test]
fn a_chain_that_is_made_available_again_while_it_is_held_back_stops_the_ring() {
    let mut world = World::new();
    let room = 30;
    (0..=room).for_each(|number| world.send(SLOW, number, 65_000));
    (0..8).for_each(|number| world.send(SLOW, number, 65_000));
    let head = world.sender.tx.next_head().unwrap();
    world.send(9, 0, 60);
    world.visit();
    assert!(world.sender.in_flight() > 1, "the last is completed, and held back");
    world.sender.tx.publish_raw_head(head);
    world.visit();
    let state = world.fabric.ring_state(PortId(1), 1).unwrap();
    assert_eq!(state.error, Some(RingError::HeadTwice(head)));
    world.counts();
}

#[test]
fn descriptors_out_of_ring_order_are_used_as_they_were_made_available() {
    let mut world = World::new();
    world.fast.post(64);
    world.sender = world.sender.in_order(false);
    let bytes = [&[0_u8; 12][..], &frame(FAST, 1, 60)].concat();
    let segment = world.sender.map.translate(8 << 20, 72, &mut 0).unwrap();
    world.sender.map.write(segment, 0, &bytes).unwrap();
    let heads = [40, 3, 17, 63];
    for head in heads {
        let whole = lasthop_ring::Descriptor { addr: 8 << 20, len: 72, flags: 0, next: 0 };
        world.sender.tx.set_raw_descriptor(head, whole);
        world.sender.tx.publish_raw_head(head);
    }
    world.visit();
    assert_eq!(world.counts(), (0, 0, 0));
    assert_eq!(world.sender.counters(&world.fabric).forwarded, 4);
}
