//! A fabric dies before any of the stores that others see, and another one takes its rings over. No packet arrives
//! twice, damaged or late; every chain is returned once; every lost packet is counted.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use crate::support::{ByLastByte, TestGuest, assert_conserved, everything, memory};
use lasthop_fabric::{Capabilities, Fabric};
use lasthop_guestmem::Mapping;
use lasthop_module_api::{DropReason, PortId};
use lasthop_ring::{DeviceRing, Ledger, LedgerError, RingFormat, death};
use lasthop_wire::Offload;

const ENTRIES: u32 = 16;
const PORTS: u16 = 3;

/// Whether transmit chains are used in order, and the format of the rings.
type RingKind = (bool, RingFormat);
const KINDS: [RingKind; 4] = [
    (false, RingFormat::Split),
    (true, RingFormat::Split),
    (false, RingFormat::Packed),
    (true, RingFormat::Packed),
];

/// A guest and its rings' memory that outlives the fabric.
struct Attached {
    guest: TestGuest,
    kept: Arc<Mapping>,
    sent: u32,
}

impl Attached {
    fn new(
        port: u16,
        capabilities: Capabilities,
        rx_buffer_bytes: u32,
        (in_order, format): RingKind,
    ) -> Self {
        let guest = TestGuest::pair(PortId(port), 0, memory(1), capabilities, ENTRIES, rx_buffer_bytes);
        let guest = guest.in_order(in_order).of_format(format);
        let kept = Arc::new(Mapping::anonymous(2 * Ledger::BYTES).unwrap());
        Self { guest, kept, sent: 0 }
    }

    fn ledger(&self, index: u16) -> Ledger {
        Ledger::within(self.guest.format, &self.kept, usize::from(index) * Ledger::BYTES, ENTRIES as u16)
            .unwrap()
    }

    fn ring(&self, index: u16, is_new: bool) -> Result<DeviceRing, LedgerError> {
        let memory = self.guest.ring_memory(index);
        let ring = match (is_new, index) {
            (true, _) => Ok(DeviceRing::begin(memory, self.ledger(index), 0, true)),
            (false, 0) => DeviceRing::take_over_in_order(memory, self.ledger(index), true),
            (false, _) => DeviceRing::take_over(memory, self.ledger(index), true),
        };
        ring.map(|ring| self.guest.ordered(index, ring))
    }

    fn attach(&self, fabric: &mut Fabric, is_new: bool) {
        let port = self.guest.port;
        fabric.add_port(port, 1);
        fabric.set_capabilities(port, self.guest.capabilities);
        fabric.set_memory(port, &self.guest.map);
        for index in 0..2 {
            fabric.start_ring(port, index, self.ring(index, is_new).unwrap(), true);
        }
    }
}

fn numbered(to: u8, from: u8, number: u32, len: usize) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, to, 2, 0, 0, 0, 0, from, 0x88, 0xb5];
    frame.extend(number.to_be_bytes());
    frame.extend((18..len).map(|at| (at as u32 * 7 + number) as u8));
    frame.truncate(len);
    frame
}

#[derive(Default)]
struct World {
    /// Whether broadcasts go to all ports.
    floods: bool,
    guests: Vec<Attached>,
    /// Number of copies of frames that should arrive or be dropped.
    expected: u64,
    arrived: u64,
    /// The last number that arrived, by receiver and sender.
    seen: BTreeMap<(u16, u8), u32>,
}

impl World {
    fn new(floods: bool, kind: RingKind) -> Self {
        let small = Capabilities { mergeable: true, ..Capabilities::default() };
        let guests = vec![
            Attached::new(1, everything(), 2048, kind),
            Attached::new(2, everything(), 2048, kind),
            Attached::new(3, small, 256, kind),
        ];
        Self { floods, guests, ..Self::default() }
    }

    fn start(&self, is_new: bool) -> Fabric {
        let mut fabric = Fabric::new(Arc::new(ByLastByte { flooded: 1..=PORTS })).unwrap();
        self.guests.iter().for_each(|guest| guest.attach(&mut fabric, is_new));
        fabric
    }

    fn send(&mut self, from: usize, to: u8, len: usize, cuts: &[usize]) {
        let to = if to == 0xff && !self.floods { 4 - from as u8 } else { to };
        let Attached { guest, sent, .. } = &mut self.guests[from - 1];
        let frame = numbered(to, guest.port.0 as u8, *sent, len);
        assert!(guest.queue_cut(&frame, Offload::default(), cuts));
        *sent += 1;
        self.expected += if to == 0xff { u64::from(PORTS) - 1 } else { 1 };
    }

    fn post(&mut self, port: usize, count: u32) {
        self.guests[port - 1].guest.post(count);
    }

    fn visit(&self, fabric: &mut Fabric, port: usize, now_ns: u64) {
        fabric.visit(self.guests[port - 1].guest.tx_ring(), now_ns);
    }

    /// The traffic during which the fabric dies: frames of all kinds, some of which are dropped and some wait for
    /// buffers.
    fn traffic(&mut self, fabric: &mut Fabric) {
        self.post(2, 6);
        (0..3).for_each(|_| self.send(1, 2, 200, &[]));
        self.send(1, 0xff, 300, &[]);
        self.send(1, 2, 100, &[12, 20, 30, 50]);
        self.send(1, 0, 90, &[]);
        self.send(1, 2, 4, &[]);
        self.send(1, 3, 600, &[]);
        self.send(3, 0xff, 60, &[]);
        self.visit(fabric, 1, 1);
        self.visit(fabric, 3, 1);
        self.post(3, 9);
        fabric.drain_waiting();
        self.send(2, 1, 70, &[]);
        self.send(2, 0xff, 80, &[]);
        self.visit(fabric, 2, 2);
        (0..4).for_each(|_| self.send(1, 2, 200, &[]));
        self.visit(fabric, 1, 3);
        fabric.expire(u64::MAX);
        self.post(1, 8);
        self.post(3, 7);
        self.send(2, 1, 1000, &[]);
        self.visit(fabric, 2, 4);
    }

    /// Traffic during which a fabric quiesces and resumes twice.
    fn traffic_with_rests(&mut self, fabric: &mut Fabric) {
        self.post(2, 2);
        (0..5).for_each(|_| self.send(1, 2, 200, &[]));
        self.send(1, 0xff, 300, &[]);
        self.send(1, 2, 100, &[12, 20, 30, 50]);
        (0..2).for_each(|_| self.send(3, 1, 90, &[]));
        self.visit(fabric, 1, 1);
        self.visit(fabric, 3, 1);
        rest(fabric);
        self.post(2, 3);
        self.send(1, 2, 70, &[]);
        (0..3).for_each(|_| self.visit(fabric, 1, 2));
        self.visit(fabric, 3, 2);
        self.post(1, 1);
        self.send(2, 1, 80, &[]);
        self.visit(fabric, 2, 3);
        fabric.drain_waiting();
        rest(fabric);
        self.post(1, 4);
        self.visit(fabric, 3, 4);
    }

    fn receive(&mut self) {
        for Attached { guest, .. } in &mut self.guests {
            while let Some(received) = guest.receive() {
                let frame = received.frame;
                let from = frame[11];
                let number = u32::from_be_bytes(frame[14..18].try_into().unwrap());
                assert_eq!(frame, numbered(frame[5], from, number, frame.len()), "damaged");
                let last = self.seen.insert((guest.port.0, from), number);
                assert!(last.is_none_or(|last| last < number), "{number} of {from} came after {last:?}");
                self.arrived += 1;
            }
        }
    }

    /// Guests continue to send, and their frames arrive.
    fn settle(&mut self, fabric: &mut Fabric) {
        for (from, to) in [(1, 2), (2, 3), (3, 1)] {
            self.send(from, to, 64, &[]);
        }
        for round in 0..5 {
            self.receive();
            for Attached { guest, .. } in &mut self.guests {
                guest.post(16);
                fabric.drain(guest.tx_ring());
                fabric.visit(guest.tx_ring(), round);
            }
        }
        self.receive();
        for Attached { guest, sent, .. } in &mut self.guests {
            guest.reclaim();
            assert_eq!(guest.in_flight(), 0, "every chain of {} comes back", guest.port);
            let to = guest.port.0 % PORTS + 1;
            assert_eq!(self.seen[&(to, guest.port.0 as u8)], *sent - 1, "the rings go on");
        }
    }

    /// Number of frames that a fabric dropped, for any reason.
    fn dropped(fabric: &Fabric) -> u64 {
        (1..=PORTS).map(|port| fabric.counters(PortId(port)).unwrap().rx_drops.total()).sum()
    }

    /// Checks the state after `dead` died, and perhaps others after it, and `fabric` took over.
    fn check(&self, dead: &[Fabric], fabric: &Fabric) {
        let ports: Vec<PortId> = (1..=PORTS).map(PortId).collect();
        assert_conserved(fabric, &ports);
        let dropped: u64 = dead.iter().chain([fabric]).map(Self::dropped).sum();
        let Self { expected, arrived, .. } = self;
        // A frame that was lost before its two copies were decided on counts as one.
        let undecided = u64::from(self.floods);
        assert!(
            arrived + dropped + undecided >= *expected,
            "{arrived} arrived, {dropped} were dropped of {expected}"
        );
    }
}

/// Quiesces: waiting packets will be taken from their rings again.
fn rest(fabric: &mut Fabric) {
    fabric.withdraw();
    fabric.postpone();
    for port in (1..=PORTS).map(PortId) {
        let counters = fabric.counters(port).unwrap();
        assert!(counters.waiting == 0 && counters.is_conserved(), "{counters:?}");
    }
}

/// Runs `work` until store number `stores`. Returns whether it died there.
fn dies_within(stores: u64, work: impl FnOnce()) -> bool {
    death::after_stores(Some(stores));
    let result = catch_unwind(AssertUnwindSafe(work));
    death::after_stores(None);
    match result {
        Ok(()) => false,
        Err(cause) if cause.is::<&str>() => true,
        Err(cause) => std::panic::resume_unwind(cause),
    }
}

/// Runs `work` once for each of its stores, with a fabric that dies before that store; `succeed` takes over.
fn die_everywhere(
    (floods, kind): (bool, RingKind),
    work: impl Fn(&mut World, &mut Fabric),
    succeed: impl Fn(u64, &mut World, Fabric),
) {
    for stores in 0.. {
        let mut world = World::new(floods, kind);
        let mut first = world.start(true);
        let has_died = dies_within(stores, || work(&mut world, &mut first));
        succeed(stores, &mut world, first);
        if !has_died {
            assert!(stores > 60, "there are deaths to be died: {stores}");
            break;
        }
    }
}

#[test]
fn whenever_a_fabric_dies_the_next_one_goes_on() {
    for (floods, work) in [
        (false, World::traffic as fn(&mut World, &mut Fabric)),
        (true, World::traffic),
        (false, World::traffic_with_rests),
        (true, World::traffic_with_rests),
    ] {
        for kind in KINDS {
            die_everywhere((floods, kind), work, |_, world, first| {
                let mut second = world.start(false);
                world.settle(&mut second);
                world.check(&[first], &second);
            });
        }
    }
}

/// Quiesces a fabric while frames of all guests wait, some of which were postponed and taken before.
fn rest_twice(world: &mut World, fabric: &mut Fabric) {
    (0..4).for_each(|_| world.send(1, 2, 200, &[]));
    world.send(1, 3, 600, &[]);
    world.send(1, 2, 100, &[12, 20, 30, 50]);
    (0..3).for_each(|_| world.send(2, 3, 60, &[]));
    world.send(3, 1, 90, &[]);
    (1..=3).for_each(|port| world.visit(fabric, port, 1));
    rest(fabric);
    world.post(2, 2);
    (0..2).for_each(|_| world.visit(fabric, 1, 2));
    (0..2).for_each(|_| world.send(1, 2, 300, &[]));
    world.visit(fabric, 1, 3);
    assert_eq!(fabric.counters(PortId(1)).unwrap().forwarded, 2);
    rest(fabric);
}

#[test]
fn nothing_that_waits_is_lost_when_a_fabric_comes_to_rest() {
    for (is_another, kind) in KINDS.into_iter().flat_map(|kind| [(false, kind), (true, kind)]) {
        let mut world = World::new(false, kind);
        let mut first = world.start(true);
        rest_twice(&mut world, &mut first);
        let mut others = Vec::new();
        if is_another {
            others.push(std::mem::replace(&mut first, world.start(false)));
        }
        world.settle(&mut first);
        world.check(&others, &first);
        let all = others.iter().chain([&first]);
        assert_eq!(all.map(World::dropped).sum::<u64>(), 0);
        assert_eq!(world.arrived, world.expected);
    }
}

#[test]
fn of_a_flood_that_waits_when_a_fabric_comes_to_rest_the_rest_is_lost_and_counted() {
    let mut world = World::new(true, KINDS[0]);
    let mut first = world.start(true);
    world.post(2, 4);
    (0..2).for_each(|_| world.send(1, 0xff, 200, &[]));
    world.visit(&mut first, 1, 1);
    assert_eq!(first.unpostponable(), 2);
    rest(&mut first);
    assert_eq!(first.counters(PortId(1)).unwrap().rx_drops.of(DropReason::Restart), 2);
    assert_eq!(first.counters(PortId(3)).unwrap().tx_drops.of(DropReason::Restart), 2);
    let mut second = world.start(false);
    world.settle(&mut second);
    world.check(&[first], &second);
    assert_eq!(world.arrived + 2, world.expected);
}

#[test]
fn a_ring_that_stops_before_its_postponed_chains_are_taken_gives_them_back() {
    let mut world = World::new(false, (true, RingFormat::Split));
    let mut first = world.start(true);
    rest_twice(&mut world, &mut first);
    assert_eq!(first.stop_ring(PortId(1), 1), Some(8), "all that was taken is completed");
    let counters = first.counters(PortId(1)).unwrap();
    assert_eq!(counters.rx_drops.of(DropReason::Recalled), 6);
    assert!(counters.is_conserved());
    world.guests[0].guest.reclaim();
    assert_eq!(world.guests[0].guest.in_flight(), 0);
}

#[test]
fn a_successor_may_die_while_it_takes_over() {
    for work in [World::traffic as fn(&mut World, &mut Fabric), World::traffic_with_rests, rest_twice] {
        KINDS.into_iter().for_each(|kind| die_everywhere((false, kind), work, take_over_twice));
    }
}

fn take_over_twice(stores: u64, world: &mut World, first: Fabric) {
    let mut second = None;
    let has_died = dies_within(stores * 7 % 61, || second = Some(world.start(false)));
    let mut third = world.start(false);
    world.settle(&mut third);
    match second {
        Some(second) if !has_died => world.check(&[first, second], &third),
        // The dead fabric's counters were not read.
        _ => {}
    }
}

/// After quiescing, another fabric takes over and dies before each store; so does its successor.
#[test]
fn a_successor_may_die_while_it_takes_postponed_chains() {
    KINDS.into_iter().for_each(die_with_postponed_chains);
}

fn die_with_postponed_chains(kind: RingKind) {
    for stores in 0.. {
        let mut world = World::new(false, kind);
        let mut first = world.start(true);
        rest_twice(&mut world, &mut first);
        let mut second = world.start(false);
        let go_on = |world: &mut World, fabric: &mut Fabric| {
            world.post(2, 3);
            world.post(3, 3);
            (1..=3).for_each(|port| world.visit(fabric, port, 1));
            fabric.drain_waiting();
        };
        let has_died = dies_within(stores, || go_on(&mut world, &mut second));
        let mut third = world.start(false);
        let again = dies_within(stores * 5 % 83, || go_on(&mut world, &mut third));
        let mut fourth = world.start(false);
        world.settle(&mut fourth);
        if !again {
            world.check(&[first, second, third], &fourth);
        }
        if !has_died {
            break;
        }
    }
}
