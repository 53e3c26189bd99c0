//! Two workers at one ring, in selected orders of their steps.

use std::sync::Arc;

use lasthop_fabric::bounds::{WAITING_BYTES_MAX, WAITING_NS_MAX};
use lasthop_fabric::{Capabilities, Fabric, HandoffCounters, PortCounters, Release, Stopping};
use lasthop_module_api::{DropReason, Module, PortId};
use lasthop_wire::Offload;
use lasthop_wire::vnet::{F_NEEDS_CSUM, GSO_TCPV4};

use crate::support::{ByLastByte, Everywhere, TestGuest, everything, frame, memory};

pub(crate) const RECEIVER: PortId = PortId(1);

/// A receiver whose home is worker 0, and a sender to it at each of `homes`, as ports 2, 3, ...
fn fan_in(workers: usize, homes: &[usize], rx_entries: u32) -> (Vec<Fabric>, TestGuest, Vec<TestGuest>) {
    fan_in_of(everything(), workers, homes, rx_entries)
}

/// As [`fan_in`], with the features of the receiver.
pub(crate) fn fan_in_of(
    of_receiver: Capabilities,
    workers: usize,
    homes: &[usize],
    rx_entries: u32,
) -> (Vec<Fabric>, TestGuest, Vec<TestGuest>) {
    let module: Arc<dyn Module> = Arc::new(Everywhere(vec![RECEIVER]));
    let mut crew = Fabric::for_workers(&module, workers).unwrap();
    let mut receiver = attach(&mut crew, RECEIVER, 0, of_receiver, rx_entries);
    receiver.post(rx_entries);
    let mut sender = |(home, port): (&usize, u16)| attach(&mut crew, PortId(port), *home, everything(), 64);
    let senders = homes.iter().zip(2..).map(&mut sender).collect();
    (crew, receiver, senders)
}

/// Adds a port with a running guest of one queue pair, whose home is worker `home`. It has no receive buffers.
fn attach(
    crew: &mut [Fabric],
    port: PortId,
    home: usize,
    capabilities: Capabilities,
    entries: u32,
) -> TestGuest {
    let map = memory(1);
    let guest = TestGuest::pair(port, 0, Arc::clone(&map), capabilities, entries, 2048);
    for fabric in &mut *crew {
        fabric.add_port(guest.port, 1);
        fabric.set_capabilities(guest.port, capabilities);
        fabric.set_memory(guest.port, &map);
    }
    for index in 0..2 {
        let part = crew[home].prepare_ring(guest.port, index, guest.device_ring(index, 0)).unwrap();
        crew.iter_mut().for_each(|fabric| fabric.join_ring(guest.port, index, &part));
        assert!(crew[home].set_ring_enabled(guest.port, index, true));
    }
    guest
}

fn send(guest: &mut TestGuest, count: u8) {
    for number in 0..count {
        assert!(guest.queue(&frame(number, guest.port.0 as u8, 60), Offload::default()));
    }
}

/// Numbers and senders of the received frames.
pub(crate) fn arrived(receiver: &mut TestGuest) -> Vec<(u8, u8)> {
    std::iter::from_fn(|| receiver.receive())
        .map(|received| (received.frame[11], received.frame[5]))
        .collect()
}

pub(crate) fn counters(crew: &[Fabric], port: PortId) -> PortCounters {
    let mut sum = PortCounters::default();
    crew.iter().for_each(|fabric| sum.merge(&fabric.counters(port).unwrap()));
    assert!(sum.is_conserved(), "{sum:?}");
    sum
}

/// Makes worker 1's sender find the claim taken once.
fn collide(crew: &mut [Fabric], receiver: &TestGuest, sender: &mut TestGuest) {
    send(sender, 1);
    let (first, others) = crew.split_first_mut().unwrap();
    first.while_serving(receiver.tx_ring(), || others[0].visit(sender.tx_ring(), 0)).unwrap();
}

#[test]
fn queued_packets_are_delivered_by_the_holder_and_completed_at_home() {
    let (mut crew, mut receiver, mut senders) = fan_in(2, &[1], 64);
    collide(&mut crew, &receiver, &mut senders[0]);
    assert_eq!(arrived(&mut receiver), [(2, 0)]);
    assert_eq!(senders[0].reclaim(), 0, "only its home completes it");
    assert_eq!((counters(&crew, PortId(2)).waiting, counters(&crew, RECEIVER).tx_packets), (1, 0));
    assert_eq!(crew[0].wakes(), 0, "nobody has lain down");
    assert!(crew[1].take_returns());
    assert_eq!(senders[0].reclaim(), 1);
    assert_eq!((counters(&crew, PortId(2)).forwarded, counters(&crew, RECEIVER).tx_packets), (1, 1));
    let seen = HandoffCounters { contended: 1, left: 1, leased: 0, shared: 0, returned: 1, steered: 0 };
    assert_eq!((crew[0].handoff_counters(), crew[1].handoff_counters()), (HandoffCounters::default(), seen));
}

#[test]
fn a_home_that_sleeps_is_woken_once_for_a_batch() {
    let (mut crew, receiver, mut senders) = fan_in(2, &[1], 64);
    send(&mut senders[0], 5);
    let (first, others) = crew.split_first_mut().unwrap();
    first.while_serving(receiver.tx_ring(), || {
        others[0].visit(senders[0].tx_ring(), 0);
        others[0].prepare_sleep();
    });
    assert_eq!((first.wakes(), first.wakes()), (0b10, 0));
}

#[test]
fn copies_are_made_side_by_side_and_shown_in_the_order_of_reservation() {
    let (mut crew, mut receiver, mut senders) = fan_in(2, &[0, 1], 64);
    collide(&mut crew, &receiver, &mut senders[1]);
    arrived(&mut receiver);
    senders.iter_mut().for_each(|sender| send(sender, 2));
    for worker in [0, 1] {
        assert_eq!(crew[worker].begin_visit(senders[worker].tx_ring(), 0), 2);
    }
    crew[1].copy_visit();
    crew[1].finish_visit();
    assert_eq!(arrived(&mut receiver), [], "what is before it is not copied yet");
    assert_eq!(senders[1].reclaim(), 2, "its sender need not wait for that");
    crew[0].copy_visit();
    assert_eq!(arrived(&mut receiver), []);
    crew[0].finish_visit();
    assert_eq!(arrived(&mut receiver), [(2, 0), (2, 1), (3, 0), (3, 1)]);
    assert_eq!((crew[0].handoff_counters().leased, crew[1].handoff_counters().leased), (2, 2));
}

#[test]
fn a_ring_is_not_stopped_during_copies_into_it() {
    let (mut crew, mut receiver, mut senders) = fan_in(2, &[1], 64);
    collide(&mut crew, &receiver, &mut senders[0]);
    arrived(&mut receiver);
    send(&mut senders[0], 2);
    crew[1].begin_visit(senders[0].tx_ring(), 0);
    assert_eq!(crew[0].stop_step(RECEIVER, 0), lasthop_fabric::Stopping::Busy);
    crew[1].copy_visit();
    crew[1].finish_visit();
    assert_eq!(crew[0].stop_step(RECEIVER, 0), lasthop_fabric::Stopping::Done(Some(3)));
    assert_eq!(arrived(&mut receiver).len(), 2);
    send(&mut senders[0], 1);
    crew[1].visit(senders[0].tx_ring(), 0);
    assert_eq!(counters(&crew, PortId(2)).rx_drops.of(DropReason::PortDown), 1);
}

#[test]
fn packets_for_a_ring_that_is_being_stopped_are_not_postponed() {
    let (mut crew, mut receiver, mut senders) = fan_in(2, &[1, 0], 2);
    collide(&mut crew, &receiver, &mut senders[0]);
    arrived(&mut receiver);
    senders.iter_mut().zip([1, 2]).for_each(|(sender, count)| send(sender, count));
    crew[1].begin_visit(senders[0].tx_ring(), 0);
    crew[0].visit(senders[1].tx_ring(), 0);
    assert_eq!(counters(&crew, PortId(3)).waiting, 1, "both buffers are taken");
    assert_eq!(crew[0].stop_step(RECEIVER, 0), Stopping::Busy);
    crew[1].copy_visit();
    crew[1].finish_visit();
    crew[0].withdraw();
    crew.iter_mut().for_each(Fabric::postpone);
    assert_eq!(counters(&crew, PortId(3)).rx_drops.of(DropReason::PortDown), 1, "as once it has stopped");
    assert_eq!((counters(&crew, PortId(3)).waiting, senders[1].reclaim()), (0, 2));
    assert_eq!(crew[0].stop_step(RECEIVER, 0), Stopping::Done(Some(3)));
}

#[test]
fn a_sender_that_stops_gets_back_chains_that_others_hold() {
    let (mut crew, mut receiver, mut senders) = fan_in(2, &[1], 64);
    send(&mut senders[0], 3);
    let (first, others) = crew.split_first_mut().unwrap();
    first.while_serving(receiver.tx_ring(), || {
        others[0].visit(senders[0].tx_ring(), 0);
        assert_eq!(others[0].stop_step(PortId(2), 1), lasthop_fabric::Stopping::Busy);
    });
    assert_eq!(arrived(&mut receiver).len(), 3, "the holder was faster");
    assert_eq!(crew[1].stop_step(PortId(2), 1), lasthop_fabric::Stopping::Done(Some(3)));
    assert_eq!(senders[0].reclaim(), 3);
}

#[test]
fn packets_queued_at_a_ring_without_buffers_keep_no_worker_awake() {
    let (mut crew, mut receiver, mut senders) = fan_in(2, &[1, 1], 64);
    send(&mut senders[0], 32);
    crew[1].visit(senders[0].tx_ring(), 0);
    send(&mut senders[1], 32);
    crew[1].visit(senders[1].tx_ring(), 0);
    senders[0].reclaim();
    send(&mut senders[0], 5);
    let (first, others) = crew.split_first_mut().unwrap();
    first.while_serving(receiver.tx_ring(), || others[0].visit(senders[0].tx_ring(), 0));
    assert_eq!(first.deadline_ns(), Some(WAITING_NS_MAX), "all five wait for buffers");
    assert!(!first.arm_waiting() && !first.drain_waiting());
    assert_eq!(arrived(&mut receiver).len(), 64);
    assert!(first.arm_waiting() && first.drain_waiting());
    assert_eq!(arrived(&mut receiver).len(), 5);
    assert_eq!(first.deadline_ns(), None);
}

#[test]
fn a_holder_hands_over_after_a_while_and_nothing_is_forgotten() {
    // Each sender may have 48 of its 64 chains waiting: far more than a holder delivers for others in one service.
    let (mut crew, mut receiver, mut senders) = fan_in(2, &[1; 5], 256);
    let (first, others) = crew.split_first_mut().unwrap();
    first.while_serving(receiver.tx_ring(), || {
        for sender in &mut senders {
            send(sender, 48);
            while others[0].visit(sender.tx_ring(), 0) > 0 {}
        }
    });
    let before = arrived(&mut receiver).len();
    assert!((1..240).contains(&before), "{before} of 240 at a time");
    assert_eq!(first.deadline_ns(), Some(0), "there is more, and it sees to it");
    while first.deadline_ns().is_some() {
        assert!(first.drain_waiting());
    }
    let rest = arrived(&mut receiver);
    assert_eq!(before + rest.len(), 240);
    assert!(others[0].take_returns());
    assert!(senders.iter_mut().all(|sender| sender.reclaim() == 48));
}

/// 43 KiB of TCP in 30 segments: too much for a ring of 16 buffers of 2 KiB.
fn tso_frame() -> (Vec<u8>, Offload) {
    let mut frame = frame(1, 2, 14 + 40 + 30 * 1448);
    let len = (frame.len() as u16 - 14).to_be_bytes();
    frame[12..24].copy_from_slice(&[8, 0, 0x45, 0, len[0], len[1], 0, 0, 0, 0, 64, 6]);
    (frame[46], frame[47]) = (0x50, 0x10);
    let (flags, gso_type, gso_size) = (F_NEEDS_CSUM, GSO_TCPV4, 1448);
    (frame, Offload { flags, gso_type, gso_size, hdr_len: 54, csum_start: 34, csum_offset: 16 })
}

#[test]
fn a_frame_without_room_is_segmented_beside_others_too() {
    let (mut crew, mut receiver, mut senders) = fan_in(2, &[1], 16);
    collide(&mut crew, &receiver, &mut senders[0]);
    assert_eq!(arrived(&mut receiver), [(2, 0)]);
    crew[1].take_returns();
    let (frame, offload) = tso_frame();
    let sender = &mut senders[0];
    assert!(sender.queue(&frame, offload) && sender.queue(&[5; 60], Offload::default()));
    crew[1].visit(sender.tx_ring(), 0);
    let mut lengths = Vec::new();
    for _ in 0..3 {
        lengths.extend(std::iter::from_fn(|| receiver.receive()).map(|received| received.frame.len()));
        crew[1].drain_waiting();
    }
    assert_eq!(lengths, [vec![54 + 1448; 30], vec![60]].concat());
    assert_eq!(sender.reclaim(), 2);
    assert_eq!(counters(&crew, sender.port).segments_added, 29);
}

#[test]
fn a_kick_that_finds_the_claim_taken_is_not_lost() {
    let (mut crew, mut receiver, mut senders) = fan_in(2, &[0], 32);
    send(&mut senders[0], 32);
    crew[0].visit(senders[0].tx_ring(), 0);
    senders[0].reclaim();
    send(&mut senders[0], 2);
    crew[0].visit(senders[0].tx_ring(), 0);
    assert!(!crew[0].arm_waiting(), "two wait, and there are no buffers: it sleeps");
    let ring = receiver.tx_ring();
    let (first, others) = crew.split_first_mut().unwrap();
    others[0].while_serving(ring, || {
        // It has found no buffers and still has the claim when the guest posts some and kicks.
        assert_eq!(arrived(&mut receiver).len(), 32);
        first.receive_kick(ring);
        assert_eq!(first.deadline_ns(), Some(0), "who heard the kick looks again");
    });
    assert!(first.drain_waiting());
    assert_eq!(arrived(&mut receiver), [(2, 0), (2, 1)]);
    // The other worker left packets waiting, so it has a follow-up at the ring, and finds no more work there.
    assert_eq!(first.deadline_ns(), None);
    assert!(!others[0].arm_waiting());
}

#[test]
fn queued_packets_stay_within_bounds_when_a_sender_stops() {
    const FRAME_BYTES: usize = 60_000;
    let (mut crew, mut receiver, mut senders) = fan_in(2, &[1; 5], 1024);
    let large = |sender: &mut TestGuest, crew: &mut Fabric| {
        while sender.queue(&frame(2, 1, FRAME_BYTES), Offload::default()) {}
        while crew.visit(sender.tx_ring(), 0) > 0 {}
    };
    let (first, others) = crew.split_first_mut().unwrap();
    senders[..3].iter_mut().for_each(|sender| large(sender, &mut others[0]));
    first.while_serving(receiver.tx_ring(), || {
        senders[3..].iter_mut().for_each(|sender| large(sender, &mut others[0]));
        // There are buffers, so the holder stops at its budget for others: some packets remain queued.
        while receiver.receive().is_some() {}
    });
    while crew[1].stop_step(senders[0].port, 1) == Stopping::Busy {
        crew[1].take_returns();
    }
    crew[1].take_returns();
    let waiting: u64 = senders.iter().map(|sender| counters(&crew, sender.port).waiting).sum();
    let bytes = waiting * FRAME_BYTES as u64;
    assert!(waiting > 100 && bytes <= WAITING_BYTES_MAX, "{waiting} frames wait, {bytes} bytes");
}

#[test]
fn a_ring_moves_while_its_packets_wait_and_each_is_counted_where_it_was_taken() {
    let (mut crew, mut receiver, mut senders) = fan_in(3, &[0], 2);
    let (ring, port) = (senders[0].tx_ring(), senders[0].port);
    send(&mut senders[0], 5);
    crew[0].visit(ring, 0);
    assert_eq!((counters(&crew, port).waiting, crew[0].unpostponable()), (3, 0), "two found buffers");
    let Release::Moving(moving) = crew[0].release_ring(ring, 2, 0) else { panic!("it runs here") };
    assert_eq!((crew[0].visit(ring, 0), crew[2].visit(ring, 0)), (0, 0), "it is on its way");
    crew[2].adopt_ring(moving);
    assert_eq!(crew[2].unpostponable(), 3, "what worker 0 counts as taken cannot count as not taken");
    assert!(matches!(crew[2].release_ring(ring, 1, 0), Release::Unsettled));
    send(&mut senders[0], 1);
    assert_eq!(crew[2].visit(ring, 0), 1);
    assert_eq!(arrived(&mut receiver).len(), 2);
    // Another worker than both homes delivers.
    crew[1].drain(receiver.tx_ring());
    assert_eq!(arrived(&mut receiver), [(2, 2), (2, 3)]);
    crew[1].drain(receiver.tx_ring());
    assert_eq!(arrived(&mut receiver), [(2, 4), (2, 0)], "the new home's is behind the old one's");
    assert!(crew[0].take_returns() && crew[2].take_returns());
    assert_eq!(senders[0].reclaim(), 1, "the new home does not know yet of what it did not fetch");
    assert_eq!(crew[0].wakes() >> 2 & 1, 1);
    let (home, copies) = crew[0].take_settled().unwrap();
    crew[home].settle_copies(copies);
    assert_eq!((home, senders[0].reclaim()), (2, 3));
    let forwarded = |worker: usize| crew[worker].counters(port).unwrap().forwarded;
    assert_eq!([0, 1, 2].map(forwarded), [5, 0, 1]);
    assert!(crew.iter().all(|fabric| fabric.counters(port).unwrap().is_conserved()), "each by itself");
    assert!(matches!(crew[2].release_ring(ring, 1, 0), Release::Moving(_)));
}

#[test]
fn packets_that_wait_for_slow_receivers_leave_room_for_those_of_other_ports() {
    const STALLED: [u16; 20] =
        [100, 101, 102, 103, 104, 105, 106, 107, 108, 109, 110, 111, 112, 113, 114, 115, 116, 117, 118, 119];
    let module: Arc<dyn Module> = Arc::new(ByLastByte { flooded: 0..=0 });
    let mut crew = Fabric::for_workers(&module, 2).unwrap();
    let mut guest = |port, entries| attach(&mut crew, PortId(port), 0, everything(), entries);
    STALLED.iter().for_each(|port| _ = guest(*port, 64));
    let mut greedy: Vec<TestGuest> = (3..15).map(|port| guest(port, 8192)).collect();
    let (mut receiver, mut sender) = (guest(1, 64), guest(2, 64));
    let visit_all = |crew: &mut [Fabric], guest: &TestGuest| while crew[0].visit(guest.tx_ring(), 0) > 0 {};
    for guest in &mut greedy {
        STALLED.iter().for_each(|port| guest.queue_shared(&frame(*port as u8, 3, 60), &[], 256));
        visit_all(&mut crew, guest);
    }
    let waiting: Vec<u64> = greedy.iter().map(|guest| counters(&crew, guest.port).waiting).collect();
    assert_eq!(waiting[..3], [1536, 768, 384], "each leaves as many as it takes");
    // Another port's packet finds no buffer for a moment.
    let to_receiver = |sender: &mut TestGuest, count: usize| {
        (0..count).for_each(|_| assert!(sender.queue(&frame(1, 2, 60), Offload::default())));
    };
    to_receiver(&mut sender, 1);
    visit_all(&mut crew, &sender);
    assert_eq!(counters(&crew, sender.port).waiting, 1);
    receiver.post(64);
    assert!(crew[0].drain_waiting());
    // Its batch finds the claim taken.
    to_receiver(&mut sender, 32);
    let (home, others) = crew.split_first_mut().unwrap();
    others[0].while_serving(receiver.tx_ring(), || home.visit(sender.tx_ring(), 0)).unwrap();
    home.take_returns();
    assert_eq!(arrived(&mut receiver).len(), 33);
    let sums = counters(&crew, sender.port);
    assert_eq!((sums.forwarded, sums.rx_drops.total(), sums.waiting), (33, 0, 0));
}
