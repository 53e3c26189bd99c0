//! A device dies before any of its stores, and its ledger is lost; the next device has only the front end's log.

use std::sync::Arc;

use lasthop_guestmem::Mapping;
use lasthop_ring::{DeviceRing, DriverRing, Ledger, RingFormat, RingLog, RingMemory, death};

use crate::FORMATS;
use crate::fixture::{GUEST_ADDR, addresses, map};

const ENTRIES: u16 = 8;
const START: u16 = 65_533;
/// Number of chains that the driver sends.
const CHAINS: u32 = 20;
/// More stores than a device makes.
const STORES_MAX: u64 = 400;

/// A driver, its ring's memory, and the log of its front end.
struct World {
    map: lasthop_guestmem::MemoryMap,
    log: Arc<Mapping>,
    driver: DriverRing,
    in_order: bool,
    format: RingFormat,
    sent: u32,
    returned: Vec<u32>,
}

impl World {
    fn new(format: RingFormat, in_order: bool) -> Self {
        let map = map();
        let memory = RingMemory::of(format, &map, u32::from(ENTRIES), addresses()).unwrap();
        let driver = DriverRing::starting_at(memory, true, START).in_order(in_order);
        let log = Arc::new(Mapping::anonymous(4096).unwrap());
        Self { map, log, driver, in_order, format, sent: 0, returned: Vec::new() }
    }

    /// The next device. Its ring begins at the used index that the front end sees. It returns the chains that it finds
    /// in the log.
    fn device(&mut self) -> DeviceRing {
        let memory = || RingMemory::of(self.format, &self.map, u32::from(ENTRIES), addresses()).unwrap();
        let base = self.driver.used_end().unwrap();
        let ledger = Ledger::private(self.format, ENTRIES);
        let log = RingLog::within(self.format, &self.log, 0, ENTRIES).unwrap();
        let (mut ring, was_taken) = DeviceRing::begin_logged(memory(), ledger, log, base, true);
        if self.in_order {
            ring = ring.keep_order().expect("the driver has the chains in flight still");
        }
        let marked: Vec<u16> = ring.marked().collect();
        assert_eq!(was_taken, !marked.is_empty());
        marked.into_iter().for_each(|head| ring.give_up(head));
        ring.publish();
        ring
    }

    /// The driver fills the free entries, and takes completed chains.
    fn drive(&mut self) {
        while let Some(used) = self.driver.take_used().expect("each chain comes back once") {
            self.returned.push(used.token);
        }
        let buffer = (GUEST_ADDR, 64);
        while self.sent < CHAINS
            && self.driver.add(&[buffer; 2][..1 + self.sent as usize % 2], &[], self.sent).is_some()
        {
            self.sent += 1;
        }
        self.driver.publish();
    }

    /// Takes all pending chains, and completes them in another order, in two batches.
    fn serve(ring: &mut DeviceRing) {
        let heads: Vec<u16> = (0..ring.pending().unwrap()).map(|ahead| ring.head(ahead).unwrap()).collect();
        heads.iter().for_each(|head| ring.set_mark(*head, 1));
        ring.take_marked(&heads);
        let (first, second) = heads.split_at(heads.len() / 2);
        for batch in [second, first] {
            batch.iter().for_each(|head| assert!(ring.settle(*head)));
            ring.publish();
        }
    }
}

/// Two devices die in turn, the first before its store number `stores`.
fn dies_before(stores: u64, format: RingFormat, in_order: bool) -> bool {
    let mut world = World::new(format, in_order);
    let mut deaths = 0;
    for stores in [stores, stores / 2] {
        let died = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            death::after_stores(Some(stores));
            let mut ring = world.device();
            for _ in 0..3 {
                world.drive();
                World::serve(&mut ring);
            }
        }));
        death::after_stores(None);
        if let Err(why) = died {
            // Any other panic is a failure.
            assert_eq!(why.downcast_ref::<&str>(), Some(&"killed"));
            deaths += 1;
        }
    }
    // Front end and driver see the used index before the next device begins.
    world.drive();
    let mut ring = world.device();
    while world.returned.len() < CHAINS as usize {
        let before = world.returned.len();
        world.drive();
        World::serve(&mut ring);
        world.drive();
        assert!(world.returned.len() > before, "a chain is lost: {:?}", world.returned);
    }
    world.returned.sort_unstable();
    assert!(world.returned.iter().copied().eq(0..CHAINS), "{:?}", world.returned);
    deaths > 0
}

#[test]
fn each_chain_comes_back_once_wherever_devices_die() {
    if !cfg!(debug_assertions) {
        return; // this device did not die
    }
    for (format, in_order) in FORMATS.into_iter().flat_map(|format| [(format, false), (format, true)]) {
        let died = (0..STORES_MAX).filter(|stores| dies_before(*stores, format, in_order)).count();
        assert!(died > 100, "only {died} of them died");
    }
}
