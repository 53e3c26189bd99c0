//! Packets through the fabric: copies, floods, waiting, rings that start and stop. Every test asserts conservation.

use crate::support::{Received, TestGuest, assert_conserved, everything, flooding_fabric, frame};
use std::sync::Arc;

use lasthop_fabric::Fabric;
use lasthop_fabric::bounds::{BROKEN_MAX, WAITING_NS_MAX};
use lasthop_module_api::{Batch, DropReason, Module, PortId, PortSettings, Verdicts};
use lasthop_wire::Offload;

const PORTS: [PortId; 3] = [PortId(1), PortId(2), PortId(3)];

fn plain(frame: Vec<u8>, num_buffers: u16) -> Option<Received> {
    Some(Received { offload: Offload::default(), num_buffers, frame })
}

#[test]
fn frames_arrive_whole_from_any_chains() {
    let mut fabric = flooding_fabric(2);
    let mut sender = TestGuest::attach(&mut fabric, 1, everything(), 64, 2048);
    let mut receiver = TestGuest::attach(&mut fabric, 2, everything(), 64, 1024);
    receiver.post(64);
    for (len, cuts) in [
        (60, vec![]),
        (60, vec![12]),
        (60, vec![5, 20, 30]),
        (1514, vec![12, 78]),
        (9014, vec![100, 5000]),
        (64, vec![0, 0, 3]),
    ] {
        let sent = frame(2, 1, len);
        assert!(sender.queue_cut(&sent, Offload::default(), &cuts));
        assert_eq!(fabric.visit(sender.tx_ring(), 0), 1);
        let num_buffers = (len + 12).div_ceil(1024) as u16;
        assert_eq!(receiver.receive(), plain(sent, num_buffers), "{len} bytes cut at {cuts:?}");
        assert_eq!(sender.reclaim(), 1);
    }
    assert_conserved(&fabric, &PORTS[..2]);
}

#[test]
fn long_chains_and_indirect_room_are_given_back() {
    let mut fabric = flooding_fabric(2);
    let mut sender = TestGuest::attach(&mut fabric, 1, everything(), 64, 2048);
    let mut receiver = TestGuest::attach(&mut fabric, 2, everything(), 64, 4096);
    receiver.post(64);
    let cuts: Vec<usize> = (1..30).map(|part| part * 2000).collect();
    for round in 0..1000 {
        let sent = frame(2, round as u8, 60_014);
        assert!(sender.queue_cut(&sent, Offload::default(), &cuts));
        fabric.visit(sender.tx_ring(), 0);
        assert_eq!(receiver.receive().unwrap().frame, sent);
        sender.reclaim();
    }
    let too_many: Vec<usize> = (1..=63).map(|part| part * 20).collect();
    assert!(sender.queue_cut(&frame(2, 1, 1400), Offload::default(), &too_many), "64 segments");
    assert_eq!(fabric.visit(sender.tx_ring(), 0), 1);
    assert!(receiver.receive().is_some());
    assert_conserved(&fabric, &PORTS[..2]);
}

#[test]
fn a_flood_completes_when_its_last_copy_is_delivered() {
    let mut fabric = flooding_fabric(3);
    let mut sender = TestGuest::attach(&mut fabric, 1, everything(), 16, 2048);
    let mut quick = TestGuest::attach(&mut fabric, 2, everything(), 16, 2048);
    let mut slow = TestGuest::attach(&mut fabric, 3, everything(), 16, 2048);
    quick.post(16);
    let sent = frame(9, 1, 100);
    assert!(sender.queue(&sent, Offload::default()));
    fabric.visit(sender.tx_ring(), 0);
    assert_eq!(quick.receive(), plain(sent.clone(), 1));
    assert_eq!(sender.reclaim(), 0, "one copy still waits");
    assert_eq!(sender.counters(&fabric).waiting, 1);
    assert_conserved(&fabric, &PORTS);
    slow.post(1);
    assert!(fabric.drain(slow.tx_ring()));
    assert_eq!(slow.receive(), plain(sent, 1));
    assert_eq!(sender.reclaim(), 1);
    assert_eq!(sender.counters(&fabric).copies_added, 1);
    assert_conserved(&fabric, &PORTS);
}

#[test]
fn a_flood_is_not_lost_at_ports_that_are_down() {
    let mut fabric = flooding_fabric(3);
    let mut sender = TestGuest::attach(&mut fabric, 1, everything(), 16, 2048);
    let mut receiver = TestGuest::attach(&mut fabric, 2, everything(), 16, 2048);
    receiver.post(16);
    fabric.add_port(PORTS[2], 1); // this port never has a guest
    for to in [0xff, 0x02] {
        let sent = [&[to], &frame(9, 1, 60)[1..]].concat();
        assert!(sender.queue(&sent, Offload::default()));
        fabric.visit(sender.tx_ring(), 0);
        assert_eq!(receiver.receive(), plain(sent, 1));
    }
    let counters = sender.counters(&fabric);
    assert_eq!((counters.rx_packets, counters.copies_added, counters.forwarded), (2, 0, 2), "{counters:?}");
    fabric.set_link(PORTS[1], false);
    assert!(sender.queue(&frame(9, 1, 60), Offload::default()));
    fabric.visit(sender.tx_ring(), 0);
    let counters = sender.counters(&fabric);
    assert_eq!((counters.flooded_to_none, counters.rx_drops.total()), (1, 0), "{counters:?}");
    assert_eq!(sender.reclaim(), 1, "the last one");
    for port in &PORTS[1..] {
        assert_eq!(fabric.counters(*port).unwrap().tx_drops.total(), 0);
    }
    assert_conserved(&fabric, &PORTS);
}

#[test]
fn a_broadcast_to_the_only_other_port_is_not_lost_while_that_is_down_and_a_unicast_frame_is() {
    let mut fabric = flooding_fabric(2);
    let mut sender = TestGuest::attach(&mut fabric, 1, everything(), 16, 2048);
    fabric.add_port(PORTS[1], 1);
    let broadcast = [&[0xff; 6], &frame(2, 1, 60)[6..]].concat();
    for sent in [broadcast, frame(2, 1, 60)] {
        assert!(sender.queue(&sent, Offload::default()));
        fabric.visit(sender.tx_ring(), 0);
    }
    let counters = sender.counters(&fabric);
    assert_eq!(
        (counters.flooded_to_none, counters.rx_drops.of(DropReason::PortDown)),
        (1, 1),
        "{counters:?}"
    );
    assert_eq!(sender.reclaim(), 1, "the last one");
    assert_conserved(&fabric, &PORTS[..2]);
}

/// Sends all packets to port 2, and knows only the address that ends in 2.
struct OneNeighbour;

impl Module for OneNeighbour {
    fn name(&self) -> &'static str {
        "one-neighbour"
    }

    fn decide(&self, batch: &Batch<'_>, _now_ns: u64, verdicts: &mut Verdicts) {
        for (packet, header) in batch.headers.iter().enumerate() {
            if header.bytes()[5] != 2 {
                verdicts.note_flood(packet);
            }
            verdicts.output(packet, PORTS[1]);
        }
    }

    fn port_added(&self, _: PortId, _: &PortSettings) -> Result<(), String> {
        Ok(())
    }

    fn port_removed(&self, _: PortId) {}
}

#[test]
fn a_flood_of_an_unknown_address_is_not_lost_at_the_only_other_port_while_that_is_down() {
    for (addresses, lost) in [(&[9][..], 0), (&[2], 1), (&[9, 9, 9], 0), (&[2, 2], 2), (&[9, 2, 9, 8, 2], 2)]
    {
        let mut fabric = Fabric::new(Arc::new(OneNeighbour)).unwrap();
        let mut sender = TestGuest::attach(&mut fabric, 1, everything(), 16, 2048);
        fabric.add_port(PORTS[1], 1);
        addresses.iter().for_each(|to| assert!(sender.queue(&frame(*to, 1, 60), Offload::default())));
        fabric.visit(sender.tx_ring(), 0);
        let counters = sender.counters(&fabric);
        assert_eq!(counters.rx_drops.of(DropReason::PortDown), lost, "{addresses:?}: {counters:?}");
        assert_eq!(counters.flooded_to_none, addresses.len() as u64 - lost, "{addresses:?}: {counters:?}");
        assert_eq!(fabric.counters(PORTS[1]).unwrap().tx_drops.total(), lost);
        assert_eq!(sender.reclaim(), addresses.len());
        assert_conserved(&fabric, &PORTS[..2]);
    }
}

#[test]
fn floods_of_unknown_addresses_arrive_in_order_with_all_others() {
    let mut fabric = Fabric::new(Arc::new(OneNeighbour)).unwrap();
    let mut sender = TestGuest::attach(&mut fabric, 1, everything(), 16, 2048);
    let mut receiver = TestGuest::attach(&mut fabric, 2, everything(), 16, 2048);
    receiver.post(16);
    for to in [9, 2, 9, 9, 2] {
        assert!(sender.queue(&frame(to, 1, 60), Offload::default()));
    }
    fabric.visit(sender.tx_ring(), 0);
    for to in [9, 2, 9, 9, 2] {
        assert_eq!(receiver.receive(), plain(frame(to, 1, 60), 1));
    }
    assert_conserved(&fabric, &PORTS[..2]);
}

#[test]
fn order_is_kept_when_packets_wait() {
    let mut fabric = flooding_fabric(2);
    let mut sender = TestGuest::attach(&mut fabric, 1, everything(), 64, 2048);
    let mut receiver = TestGuest::attach(&mut fabric, 2, everything(), 64, 2048);
    for number in 0..40_u8 {
        assert!(sender.queue(&frame(2, number, 60), Offload::default()));
        receiver.post(u32::from(number % 3 == 0));
        fabric.visit(sender.tx_ring(), 0);
    }
    receiver.post(64);
    assert!(fabric.drain(receiver.tx_ring()));
    let order: Vec<u8> =
        std::iter::from_fn(|| receiver.receive()).map(|received| received.frame[11]).collect();
    assert_eq!(order, (0..40).collect::<Vec<u8>>());
    assert_conserved(&fabric, &PORTS[..2]);
}

#[test]
fn a_receiver_without_buffers_costs_its_senders_a_bounded_share() {
    let mut fabric = flooding_fabric(2);
    let mut sender = TestGuest::attach(&mut fabric, 1, everything(), 16, 2048);
    let mut receiver = TestGuest::attach(&mut fabric, 2, everything(), 16, 2048);
    for _ in 0..16 {
        assert!(sender.queue(&frame(2, 1, 60), Offload::default()));
    }
    fabric.visit(sender.tx_ring(), 0);
    let counters = sender.counters(&fabric);
    assert_eq!((counters.waiting, counters.rx_drops.of(DropReason::RxShare)), (12, 4));
    // They wait for this long. Then the receiver counts as stalled until it moves.
    assert_eq!(fabric.deadline_ns(), Some(WAITING_NS_MAX));
    fabric.expire(WAITING_NS_MAX);
    assert_eq!(sender.counters(&fabric).rx_drops.of(DropReason::RxTimeout), 12);
    assert_eq!(sender.reclaim(), 16);
    assert!(sender.queue(&frame(2, 1, 60), Offload::default()));
    fabric.visit(sender.tx_ring(), WAITING_NS_MAX);
    assert_eq!(receiver.counters(&fabric).tx_drops.of(DropReason::RxStalled), 1);
    receiver.post(1);
    assert!(sender.queue(&frame(2, 7, 60), Offload::default()));
    fabric.visit(sender.tx_ring(), WAITING_NS_MAX);
    assert_eq!(receiver.receive(), plain(frame(2, 7, 60), 1));
    assert_eq!(fabric.deadline_ns(), None);
    assert_conserved(&fabric, &PORTS[..2]);
}

#[test]
fn buffers_posted_between_the_last_attempt_and_going_to_sleep_are_not_missed() {
    let mut fabric = flooding_fabric(2);
    let mut sender = TestGuest::attach(&mut fabric, 1, everything(), 16, 2048);
    let mut receiver = TestGuest::attach(&mut fabric, 2, everything(), 16, 2048);
    assert!(sender.queue(&frame(2, 1, 60), Offload::default()));
    fabric.visit(sender.tx_ring(), 0);
    receiver.post(1);
    assert!(fabric.arm_waiting(), "do not sleep");
    assert!(fabric.drain_waiting());
    assert!(!fabric.arm_waiting(), "nothing waits any more");
    assert!(receiver.receive().is_some());
}

#[test]
fn stopping_a_ring_takes_its_packets_back() {
    let mut fabric = flooding_fabric(2);
    let mut sender = TestGuest::attach(&mut fabric, 1, everything(), 16, 2048);
    let mut receiver = TestGuest::attach(&mut fabric, 2, everything(), 16, 2048);
    for number in 0..3 {
        assert!(sender.queue(&frame(2, number, 60), Offload::default()));
    }
    fabric.visit(sender.tx_ring(), 0);
    assert_eq!(sender.counters(&fabric).waiting, 3);
    assert_eq!(fabric.stop_ring(PortId(1), 1), Some(3), "base = last fetched = last completed");
    assert_eq!(sender.reclaim(), 3);
    assert_eq!(sender.counters(&fabric).rx_drops.of(DropReason::Recalled), 3);
    receiver.post(4);
    assert!(fabric.drain(receiver.tx_ring()));
    assert_eq!(receiver.receive(), None);
    sender.start(&mut fabric, 1);
    assert!(sender.queue(&frame(2, 5, 60), Offload::default()));
    fabric.visit(sender.tx_ring(), 0);
    assert_eq!(receiver.receive(), plain(frame(2, 5, 60), 1), "it goes on at its base");
    assert_conserved(&fabric, &PORTS[..2]);
}

#[test]
fn a_port_without_guest_and_a_port_that_goes_drop_for_named_reasons() {
    let mut fabric = flooding_fabric(3);
    let mut sender = TestGuest::attach(&mut fabric, 1, everything(), 16, 2048);
    let receiver = TestGuest::attach(&mut fabric, 2, everything(), 16, 2048);
    assert!(sender.queue(&frame(2, 1, 60), Offload::default()));
    fabric.visit(sender.tx_ring(), 0); // one copy waits for port 2; port 3 does not exist
    fabric.stop_ring(PortId(2), 0);
    let drops = sender.counters(&fabric).rx_drops;
    assert_eq!((drops.of(DropReason::PortGone), drops.of(DropReason::PortDown)), (1, 1));
    assert_conserved(&fabric, &PORTS[..2]);
    assert!(fabric.remove_port(receiver.port).is_some());
    assert!(sender.queue(&frame(2, 1, 60), Offload::default()));
    fabric.visit(sender.tx_ring(), 0);
    assert_eq!(sender.counters(&fabric).rx_drops.of(DropReason::PortGone), 3);
    assert!(sender.counters(&fabric).is_conserved());
    assert_eq!(sender.reclaim(), 1, "the other one was reclaimed when the second was queued");
}

#[test]
fn a_disabled_transmit_ring_is_drained_and_discarded() {
    let mut fabric = flooding_fabric(2);
    let mut sender = TestGuest::attach(&mut fabric, 1, everything(), 16, 2048);
    let mut receiver = TestGuest::attach(&mut fabric, 2, everything(), 16, 2048);
    receiver.post(16);
    fabric.set_ring_enabled(PortId(1), 1, false);
    assert!(sender.queue(&frame(2, 1, 60), Offload::default()));
    assert_eq!(fabric.visit(sender.tx_ring(), 0), 1);
    assert_eq!(sender.reclaim(), 1);
    assert_eq!(receiver.receive(), None);
    assert_eq!(sender.counters(&fabric).rx_drops.of(DropReason::QueueDisabled), 1);
    fabric.set_ring_enabled(PortId(1), 1, true);
    assert!(sender.queue(&frame(2, 1, 60), Offload::default()));
    fabric.visit(sender.tx_ring(), 0);
    assert!(receiver.receive().is_some());
    assert_conserved(&fabric, &PORTS[..2]);
}

#[test]
fn a_receiver_that_does_not_merge_gets_one_buffer_or_nothing() {
    let mut fabric = flooding_fabric(2);
    let mut sender = TestGuest::attach(&mut fabric, 1, everything(), 16, 2048);
    let mut receiver = TestGuest::attach(
        &mut fabric,
        2,
        lasthop_fabric::Capabilities { mergeable: false, ..everything() },
        16,
        1600,
    );
    receiver.post(16);
    for len in [1514, 9000, 60] {
        assert!(sender.queue(&frame(2, 1, len), Offload::default()));
    }
    fabric.visit(sender.tx_ring(), 0);
    assert_eq!(receiver.receive(), plain(frame(2, 1, 1514), 1));
    assert_eq!(receiver.receive(), plain(frame(2, 1, 60), 1));
    assert_eq!(receiver.receive(), None);
    assert_eq!(receiver.counters(&fabric).tx_drops.of(DropReason::RxBufferSmall), 1);
    assert_conserved(&fabric, &PORTS[..2]);
}

#[test]
fn frames_that_are_none_are_dropped_by_name() {
    let mut fabric = flooding_fabric(2);
    let mut sender = TestGuest::attach(&mut fabric, 1, everything(), 16, 2048);
    let mut receiver = TestGuest::attach(&mut fabric, 2, everything(), 16, 2048);
    receiver.post(16);
    let csum = Offload { flags: 1, csum_start: 50, csum_offset: 16, ..Offload::default() };
    let gso = Offload { flags: 1, gso_type: 1, gso_size: 47, csum_start: 34, csum_offset: 16, hdr_len: 54 };
    let no_csum = Offload { flags: 0, gso_size: 1448, ..gso };
    let strange = Offload { gso_type: 3, gso_size: 1448, ..gso };
    for (len, offload) in [(13, Offload::default()), (60, csum), (60, gso), (60, no_csum), (60, strange)] {
        assert!(sender.queue(&vec![2; len], offload));
    }
    assert_eq!(fabric.visit(sender.tx_ring(), 0), 5);
    assert_eq!(sender.reclaim(), 5);
    assert_eq!(receiver.receive(), None);
    let drops = sender.counters(&fabric).rx_drops;
    assert_eq!(
        [DropReason::TooShort, DropReason::BadCsum, DropReason::BadGso].map(|reason| drops.of(reason)),
        [1, 1, 3]
    );
    assert_conserved(&fabric, &PORTS[..2]);
}

#[test]
fn the_switch_sends_frames_of_its_own() {
    let mut fabric = flooding_fabric(2);
    let mut one = TestGuest::attach(&mut fabric, 1, everything(), 16, 2048);
    let mut other = TestGuest::attach(&mut fabric, 2, everything(), 16, 2048);
    one.post(16);
    other.post(16);
    for number in 0..200 {
        let sent = frame(9, number, 1000);
        fabric.inject(&sent, Offload::default(), 0).unwrap();
        assert_eq!(one.receive(), plain(sent.clone(), 1));
        assert_eq!(other.receive(), plain(sent, 1));
    }
    let counters = fabric.counters(PortId::INTERNAL).unwrap();
    assert_eq!((counters.injected, counters.rx_packets, counters.copies_added), (200, 0, 200));
    assert!(fabric.inject(&[0; 13], Offload::default(), 0).is_err());
    assert_conserved(&fabric, &PORTS[..2]);
}

#[test]
fn a_broken_ring_stops_and_says_why() {
    let mut fabric = flooding_fabric(2);
    let mut sender = TestGuest::attach(&mut fabric, 1, everything(), 16, 2048);
    let _receiver = TestGuest::attach(&mut fabric, 2, everything(), 16, 2048);
    sender.tx.add(&[(1 << 40, 100)], &[], 0).unwrap();
    sender.tx.publish();
    assert_eq!(fabric.visit(sender.tx_ring(), 0), 0);
    let error = fabric.ring_state(PortId(1), 1).unwrap().error.unwrap();
    assert!(error.to_string().contains("outside guest memory"), "{error}");
    assert_eq!(fabric.visit(sender.tx_ring(), 0), 0, "it is left alone");
    assert!(!fabric.arm(sender.tx_ring()));
    assert_eq!(fabric.take_broken(), Some((PortId(1), error)));
    (0..100).for_each(|_| _ = fabric.arm(sender.tx_ring()));
    assert_eq!(std::iter::from_fn(|| fabric.take_broken()).count(), BROKEN_MAX);
    assert_conserved(&fabric, &PORTS[..2]);
}
