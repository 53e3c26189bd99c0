//! Ports that always have packets get equal shares of one worker, for any frames and any number of rings.

use std::collections::HashMap;

use crate::support::{ByLastByte, RX_BUFFERS, TestGuest, assert_conserved, everything, frame, memory};
use crate::tcp::tso4;
use lasthop_fabric::bounds::{LONG_CHAINS_MAX, PIECE_COST, TURN_COST, VISIT_COST, VISIT_COST_MAX};
use lasthop_fabric::{Capabilities, DrrScheduler, Fabric, RingId};
use lasthop_module_api::PortId;
use lasthop_wire::Offload;

/// Cost that a worker spends in each test: a hundred turns.
const WORK: u64 = 100 * TURN_COST as u64;

/// Floods packets to ports 3 to 10.
fn new_fabric() -> Fabric {
    Fabric::new(std::sync::Arc::new(ByLastByte { flooded: 3..=10 })).unwrap()
}

/// A guest that always has a frame to send.
struct Greedy {
    pairs: Vec<TestGuest>,
    frame: Vec<u8>,
    offload: Offload,
}

impl Greedy {
    fn new(fabric: &mut Fabric, port: u16, pairs: u16, (frame, offload): (Vec<u8>, Offload)) -> Self {
        let map = memory(usize::from(pairs));
        fabric.add_port(PortId(port), pairs);
        fabric.set_capabilities(PortId(port), everything());
        fabric.set_memory(PortId(port), &map);
        let pairs = (0..pairs).map(|queue| {
            let guest = TestGuest::pair(PortId(port), queue, map.clone(), everything(), 64, 2048);
            fabric.start_ring(PortId(port), 2 * queue + 1, guest.device_ring(1, 0), true);
            guest
        });
        Self { pairs: pairs.collect(), frame, offload }
    }

    fn fill(&mut self, ring: RingId) {
        let pair = &mut self.pairs[usize::from(ring.queue)];
        while pair.queue(&self.frame, self.offload) {}
    }
}

/// One worker between greedy guests and receivers that always have buffers.
struct Bench {
    fabric: Fabric,
    scheduler: DrrScheduler,
    senders: Vec<Greedy>,
    receivers: Vec<TestGuest>,
    costs: HashMap<PortId, u64>,
    packets: HashMap<PortId, u64>,
    /// The highest cost of one port in one round.
    dearest_turn: u64,
}

impl Bench {
    /// Receivers are ports 3 to 10, without segmentation and checksum offload.
    fn new() -> Self {
        let mut fabric = new_fabric();
        let plain = Capabilities { csum: false, tso4: false, tso6: false, ..everything() };
        let receivers =
            (3..=10).map(|port| TestGuest::attach(&mut fabric, port, plain, 1024, 2048)).collect();
        Self {
            fabric,
            scheduler: DrrScheduler::default(),
            senders: Vec::new(),
            receivers,
            costs: HashMap::new(),
            packets: HashMap::new(),
            dearest_turn: 0,
        }
    }

    fn greedy(&mut self, port: u16, pairs: u16, what: (Vec<u8>, Offload)) {
        self.senders.push(Greedy::new(&mut self.fabric, port, pairs, what));
        for queue in 0..pairs {
            self.scheduler.add(RingId { port: PortId(port), queue }, 0);
        }
    }

    fn run(&mut self, work: u64) {
        self.receivers.iter_mut().for_each(|receiver| receiver.post(1024));
        let mut spent = 0;
        while spent < work {
            let mut turn = (PortId(0), 0);
            let Self { fabric, scheduler, senders, receivers, costs, packets, dearest_turn } = self;
            let worked = scheduler.round(0, |ring| {
                let sender = senders.iter_mut().find(|sender| sender.pairs[0].port == ring.port);
                sender.unwrap().fill(ring);
                let visited = fabric.visit_in_turn(ring, 0);
                fabric.signals().clear();
                receivers.iter_mut().for_each(|receiver| while receiver.receive().is_some() {});
                fabric.drain_waiting();
                turn = (ring.port, if turn.0 == ring.port { turn.1 + visited.cost } else { visited.cost });
                *dearest_turn = turn.1.max(*dearest_turn);
                *costs.entry(ring.port).or_default() += visited.cost;
                *packets.entry(ring.port).or_default() += visited.packets as u64;
                spent += visited.cost;
                visited
            });
            assert!(worked, "there always is something to send");
        }
    }

    fn share(&self, port: u16) -> f64 {
        self.costs[&PortId(port)] as f64 / self.costs.values().sum::<u64>() as f64
    }

    fn assert_even(&self) {
        let ports: Vec<u16> = self.senders.iter().map(|sender| sender.pairs[0].port.0).collect();
        let even = 1.0 / ports.len() as f64;
        for &port in &ports {
            let share = self.share(port);
            assert!((share / even - 1.0).abs() < 0.05, "port {port} gets {share:.3}: {:?}", self.costs);
        }
    }
}

fn small(to: u8) -> (Vec<u8>, Offload) {
    (frame(to, 1, 64), Offload::default())
}

/// A TCP frame of `len` bytes over IPv4, which its receiver needs in segments of 1448 bytes, with checksums.
fn tso(to: u8, len: usize) -> (Vec<u8>, Offload) {
    let mut frame = frame(to, 1, len);
    frame[12..14].copy_from_slice(&[0x08, 0x00]);
    frame[14] = 0x45;
    frame[16..18].copy_from_slice(&((len - 14) as u16).to_be_bytes());
    frame[20..22].fill(0);
    (frame[23], frame[46], frame[47]) = (6, 0x50, 0x10);
    let offload = tso4(34, 1448);
    (frame, offload)
}

#[test]
fn a_flood_of_frames_to_be_segmented_costs_its_sender_alone() {
    let mut bench = Bench::new();
    bench.greedy(1, 1, tso(0xff, 60_000));
    bench.greedy(2, 1, small(3));
    bench.run(WORK);
    bench.assert_even();
    let counters = bench.fabric.counters(PortId(1)).unwrap();
    assert!(counters.segments_added > 1000, "segmented and flooded: {counters:?}");
    let ports: Vec<PortId> = (1..=10).map(PortId).collect();
    assert_conserved(&bench.fabric, &ports);
}

#[test]
fn eight_rings_get_no_more_than_one() {
    let mut bench = Bench::new();
    bench.greedy(1, 8, small(3));
    bench.greedy(2, 1, small(4));
    bench.run(WORK);
    bench.assert_even();
    let (many, one) = (bench.packets[&PortId(1)], bench.packets[&PortId(2)]);
    assert!(many.abs_diff(one) < one / 10, "{many} packets of eight rings, {one} of one");
}

#[test]
fn large_frames_small_ones_and_dropped_ones_share_evenly() {
    let mut bench = Bench::new();
    bench.greedy(1, 1, (frame(3, 1, 60_000), Offload::default()));
    bench.greedy(2, 1, small(4));
    bench.greedy(11, 1, small(0));
    bench.greedy(12, 2, tso(5, 9000));
    bench.run(WORK);
    bench.assert_even();
}

#[test]
fn every_ring_of_a_port_gets_its_turn() {
    let mut bench = Bench::new();
    bench.greedy(1, 8, small(3));
    bench.greedy(2, 1, small(4));
    bench.run(WORK);
    for pair in &bench.senders[0].pairs {
        let done = pair.tx.used_position();
        assert!(done > 300, "ring {} is not served: {done}", pair.queue);
    }
}

#[test]
fn no_turn_costs_much_more_than_it_may() {
    let mut bench = Bench::new();
    bench.greedy(1, 1, tso(0xff, 60_000));
    bench.greedy(2, 1, small(3));
    bench.run(TURN_COST as u64 * 20); // until the first visits have adapted the batch size
    bench.dearest_turn = 0;
    bench.run(WORK);
    // One frame to eight receivers, summed and segmented, is the least work that can be done at once.
    let frame = 8 * (2 * 60_000 + 42 * (54 * 2 + 512) + 4096);
    let most = TURN_COST as u64 + VISIT_COST_MAX.max(frame);
    assert!(bench.dearest_turn <= most, "a turn of {} instead of {most}", bench.dearest_turn);
}

#[test]
fn a_port_alone_does_not_wait_and_has_no_debt_afterwards() {
    let mut bench = Bench::new();
    bench.greedy(1, 1, tso(0xff, 60_000));
    bench.run(WORK);
    bench.greedy(2, 1, small(3));
    bench.costs.clear();
    bench.run(WORK);
    bench.assert_even();
}

#[test]
fn an_idle_port_saves_nothing_and_a_debt_is_not_lost_by_a_nap() {
    let mut bench = Bench::new();
    bench.greedy(1, 1, tso(0xff, 60_000));
    bench.greedy(2, 1, small(4));
    bench.greedy(11, 1, small(5));
    let (idle, dear) = (RingId { port: PortId(2), queue: 0 }, RingId { port: PortId(1), queue: 0 });
    bench.scheduler.remove(idle);
    bench.run(WORK);
    assert!(bench.scheduler.add(idle, 0));
    bench.costs.clear();
    for _ in 0..WORK / TURN_COST as u64 {
        // The ring is removed after each round, and added again.
        bench.scheduler.remove(dear);
        assert!(bench.scheduler.add(dear, 0));
        bench.run(1);
    }
    bench.assert_even();
}

/// The cost of sending a frame of 200 bytes, cut at `cuts`, to a guest whose buffers have these pieces.
fn cost_in_pieces(cuts: &[usize], pieces: &[u32], capabilities: Capabilities) -> u64 {
    let mut fabric = new_fabric();
    let mut sender = TestGuest::attach(&mut fabric, 1, everything(), 64, 2048);
    let mut receiver = TestGuest::attach(&mut fabric, 3, capabilities, 1024, 2048);
    let addresses = pieces.iter().scan(RX_BUFFERS, |end, len| {
        *end += u64::from(*len);
        Some((*end - u64::from(*len), *len))
    });
    receiver.rx.add(&[], &addresses.collect::<Vec<_>>(), 0).unwrap();
    receiver.rx.publish();
    assert!(sender.queue_cut(&frame(3, 1, 200), Offload::default(), cuts));
    let visited = fabric.visit_in_turn(sender.tx_ring(), 0);
    assert_conserved(&fabric, &[PortId(1), PortId(3)]);
    assert_eq!((visited.packets, fabric.counters(PortId(3)).unwrap().tx_packets), (1, 1));
    visited.cost
}

/// Each descriptor is read, checked and translated, and each piece is copied separately: sixty must not cost as much as
/// one.
#[test]
fn descriptors_are_charged_for() {
    let whole = cost_in_pieces(&[], &[2048], everything());
    let crumbs: Vec<usize> = (100..160).collect();
    assert_eq!(cost_in_pieces(&crumbs, &[2048], everything()), whole + 61 * PIECE_COST);
    assert_eq!(cost_in_pieces(&[], &[1; 212], everything()), whole + 211 * PIECE_COST);
    assert_eq!(cost_in_pieces(&[50], &[100, 112], everything()), whole + 3 * PIECE_COST);
    let legacy = Capabilities { header_bytes: 10, sent_header_bytes: 10, mergeable: false, ..everything() };
    assert_eq!(cost_in_pieces(&[], &[2048], legacy), whole, "another way, no more pieces");
}

/// Otherwise visits would be free for a port that fills its ring with long chains for a receiver without buffers.
#[test]
fn a_visit_without_room_for_pending_chains_is_charged() {
    let mut fabric = new_fabric();
    let mut sender = TestGuest::attach(&mut fabric, 1, everything(), 2048, 2048);
    let _receiver = TestGuest::attach(&mut fabric, 3, everything(), 64, 2048);
    sender.queue_shared(&frame(3, 1, 200), &[50, 100, 150], LONG_CHAINS_MAX + 1);
    let ring = sender.tx_ring();
    let mut taken = 0;
    while taken < LONG_CHAINS_MAX {
        taken += fabric.visit_in_turn(ring, 0).packets;
    }
    let visited = fabric.visit_in_turn(ring, 0);
    assert_eq!((visited.packets, visited.more, visited.cost), (0, false, VISIT_COST));
}

/// Otherwise a receiver could make its senders pay for any number of attempts.
#[test]
fn a_receiver_that_posts_too_little_again_and_again_costs_its_sender_nothing_more() {
    let mut fabric = new_fabric();
    let mut sender = TestGuest::attach(&mut fabric, 1, everything(), 64, 2048);
    let mut receiver = TestGuest::attach(&mut fabric, 3, everything(), 1024, 2048);
    assert!(sender.queue(&frame(3, 1, 1500), Offload::default()));
    let ring = sender.tx_ring();
    assert!(fabric.visit_in_turn(ring, 0).cost > 0);
    for buffer in 0..30 {
        let pieces: Vec<_> = (0..8).map(|piece| (RX_BUFFERS + 8 * buffer + piece, 1)).collect();
        receiver.rx.add(&[], &pieces, 0).unwrap();
        receiver.rx.publish();
        assert!(!fabric.drain(receiver.tx_ring()), "there is no room yet");
    }
    assert_eq!(fabric.visit_in_turn(ring, 0).cost, 0);
}
