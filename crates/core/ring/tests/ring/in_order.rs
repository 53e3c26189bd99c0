//! Chains that are completed in any order and used in the order in which they were made available, with devices that
//! die and drivers that break the rules.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use lasthop_guestmem::{Mapping, MemoryMap};
use lasthop_ring::{
    DeviceRing, DriverRing, DriverRingError, Ledger, RingError, RingFormat, RingMemory, death,
};

use crate::FORMATS;
use crate::fixture::{AVAILABLE_AT, GUEST_ADDR, addresses, map};

const ENTRIES: u16 = 8;
const START: u16 = 65_531;
const CHAINS: u32 = 24;
/// Stores after which a device has begun its ring.
const BEGIN_STORES_MAX: u64 = 40;

struct World {
    format: RingFormat,
    map: MemoryMap,
    kept: Arc<Mapping>,
    driver: DriverRing,
    sent: u32,
    returned: u32,
}

impl World {
    fn new(format: RingFormat) -> Self {
        let map = map();
        let driver = DriverRing::starting_at(memory(format, &map), true, START).in_order(true);
        let kept = Arc::new(Mapping::anonymous(Ledger::BYTES).unwrap());
        Self { format, map, kept, driver, sent: 0, returned: 0 }
    }

    fn ledger(&self) -> Ledger {
        Ledger::within(self.format, &self.kept, 0, ENTRIES).unwrap()
    }

    fn first(&self) -> DeviceRing {
        DeviceRing::begin(memory(self.format, &self.map), self.ledger(), START, true).keep_order().unwrap()
    }

    /// The next device, which gives up the chains of the previous one.
    fn next(&self) -> DeviceRing {
        let ring = DeviceRing::take_over(memory(self.format, &self.map), self.ledger(), true).unwrap();
        let mut ring = ring.keep_order().unwrap();
        let marked: Vec<u16> = ring.marked().collect();
        marked.into_iter().for_each(|head| ring.give_up(head));
        assert_eq!((ring.marked().count(), ring.held_back(), ring.holding_back()), (0, 0, None));
        ring.publish();
        ring
    }

    /// Takes used chains back, asserting their order, and adds chains of one and two descriptors while there is room.
    fn drive(&mut self) {
        while let Some(used) = self.driver.take_used().expect("in order") {
            assert_eq!(used.token, self.returned);
            self.returned += 1;
        }
        let buffer = (GUEST_ADDR, 64);
        while self.sent < CHAINS
            && self.driver.add(&[buffer, buffer][..1 + self.sent as usize % 2], &[], self.sent).is_some()
        {
            self.sent += 1;
        }
        self.driver.publish();
    }
}

fn memory(format: RingFormat, map: &MemoryMap) -> RingMemory {
    RingMemory::of(format, map, u32::from(ENTRIES), addresses()).unwrap()
}

/// Takes all pending chains. Each has two copies to be settled.
fn take(ring: &mut DeviceRing) -> Vec<u16> {
    let heads: Vec<u16> = (0..ring.pending().unwrap()).map(|ahead| ring.head(ahead).unwrap()).collect();
    heads.iter().for_each(|head| ring.set_mark(*head, 2));
    ring.take_marked(&heads);
    heads
}

/// Settles all chains, in an order that `seed` selects, or all at once, and publishes after some of them.
fn serve(ring: &mut DeviceRing, seed: usize) {
    let mut heads = take(ring);
    heads.iter().for_each(|head| assert!(!ring.settle(*head)));
    if seed.is_multiple_of(4) {
        assert!(heads.first().is_none_or(|first| ring.is_next_used(*first)));
        ring.complete_marked_all(heads.drain(..));
    }
    while !heads.is_empty() {
        let at = (seed * 7 + heads.len() * 5) % heads.len();
        assert!(ring.settle(heads.remove(at)));
        if heads.len() % 3 == seed % 3 {
            ring.publish();
        }
    }
    assert_eq!(ring.held_back(), 0);
    ring.publish();
}

#[test]
fn a_chain_that_is_completed_first_waits_for_those_before_it() {
    FORMATS.into_iter().for_each(a_chain_that_is_completed_first_waits_for_those_before_it_of);
}

fn a_chain_that_is_completed_first_waits_for_those_before_it_of(format: RingFormat) {
    let mut world = World::new(format);
    let mut ring = world.first();
    world.drive();
    let heads = take(&mut ring);
    assert_eq!(heads.len(), 5);
    for head in [heads[1], heads[3], heads[4]] {
        assert!(!ring.settle(head) && ring.settle(head));
    }
    ring.publish();
    assert_eq!((ring.held_back(), ring.holding_back(), ring.marked().count()), (3, Some(heads[0]), 2));
    assert_eq!(world.driver.used_pending(), Ok(0));
    assert!(!ring.settle(heads[0]) && ring.settle(heads[0]));
    ring.publish();
    assert_eq!((ring.held_back(), ring.holding_back()), (2, Some(heads[2])));
    assert_eq!(world.driver.used_pending(), Ok(2), "the first, and the one behind it");
    ring.give_up(heads[2]);
    ring.publish();
    assert_eq!((ring.held_back(), world.driver.used_pending()), (0, Ok(5)));
    world.drive();
    assert_eq!(world.returned, 5);
}

#[test]
fn chains_come_back_once_and_in_order_wherever_devices_die() {
    FORMATS.into_iter().for_each(chains_come_back_once_and_in_order_wherever_devices_die_of);
}

fn chains_come_back_once_and_in_order_wherever_devices_die_of(format: RingFormat) {
    if !cfg!(debug_assertions) {
        return; // this device did not die
    }
    let mut died = 0;
    for stores in 0..300 {
        let mut world = World::new(format);
        for (number, stores) in [stores, stores / 2].into_iter().enumerate() {
            death::after_stores(Some(stores));
            let result = catch_unwind(AssertUnwindSafe(|| {
                let mut ring = if number == 0 { world.first() } else { world.next() };
                for round in 0..3 {
                    world.drive();
                    serve(&mut ring, stores as usize + round);
                }
            }));
            death::after_stores(None);
            died += u32::from(result.is_err());
            if number == 0 && stores < BEGIN_STORES_MAX {
                break; // it may not have begun the ring
            }
        }
        if stores < BEGIN_STORES_MAX {
            continue;
        }
        let mut ring = world.next();
        while world.returned < CHAINS {
            world.drive();
            serve(&mut ring, 1);
        }
        assert_eq!(world.returned, CHAINS);
    }
    assert!(died > 150, "only {died} of them died");
}

#[test]
fn a_driver_that_overwrites_what_is_in_flight_stops_its_ring() {
    let mut world = World::new(RingFormat::Split);
    let mut ring = world.first();
    world.drive();
    let heads = take(&mut ring);
    drop(ring);
    let first = AVAILABLE_AT + 4 + 2 * u64::from(START & (ENTRIES - 1));
    let entry = world.map.translate(GUEST_ADDR + first, 2, &mut 0).unwrap();
    world.map.write(entry, 0, &heads[1].to_le_bytes()).unwrap();
    let ring = DeviceRing::take_over(memory(world.format, &world.map), world.ledger(), true).unwrap();
    assert_eq!(ring.keep_order().unwrap_err(), RingError::ChainsInFlight(heads[1]));
}

#[test]
fn a_driver_notices_a_device_that_does_not_keep_order() {
    FORMATS.into_iter().for_each(a_driver_notices_a_device_that_does_not_keep_order_of);
}

fn a_driver_notices_a_device_that_does_not_keep_order_of(format: RingFormat) {
    let mut world = World::new(format);
    let mut ring = DeviceRing::new(memory(world.format, &world.map), START, true);
    world.drive();
    let heads = take(&mut ring);
    ring.give_up(heads[1]);
    ring.publish();
    assert_eq!(world.driver.take_used(), Err(DriverRingError::OutOfOrder(heads[1], heads[0])));
}
