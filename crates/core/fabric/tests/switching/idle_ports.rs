//! The work for a packet does not grow with the number of idle ports: neither visited rings nor ring words that are
//! looked at.
#![cfg(debug_assertions)] // other builds do not count

use std::sync::Arc;

use crate::support::{TestGuest, assert_conserved, everything, frame, ring_at};
use lasthop_fabric::{DrrScheduler, Fabric, RingId};
use lasthop_guestmem::{Mapping, MemoryMap, Region, counted};
use lasthop_module_api::{Module, PORTS_MAX, PortId, PortSettings};
use lasthop_modules::{BridgeSettings, by_name};
use lasthop_ring::DeviceRing;
use lasthop_wire::Offload;

const ENTRIES: u32 = 64;
const ROUNDS: u64 = 20;
const BATCH: u64 = 8;
/// Bytes for the two rings of an idle guest.
const IDLE_BYTES: usize = 16 << 10;

/// Adds a port whose guest runs, and sends and receives nothing. Its kicks are armed.
fn attach_idle(fabric: &mut Fabric, port: PortId) {
    let mapping = Arc::new(Mapping::anonymous(IDLE_BYTES).unwrap());
    let map = Arc::new(MemoryMap::new(vec![Region { guest_addr: 0, user_addr: 0, mapping }]).unwrap());
    fabric.add_port(port, 1);
    fabric.set_capabilities(port, everything());
    fabric.set_memory(port, &map);
    for index in 0..2_u16 {
        let memory = ring_at(&map, ENTRIES, u64::from(index) * IDLE_BYTES as u64 / 2);
        fabric.start_ring(port, index, DeviceRing::new(memory, 0, true), true);
    }
    assert!(!fabric.arm(RingId { port, queue: 0 }), "it has no packets");
}

/// Counts of some rounds as the engine does them, with packets from port 1 to port 2.
#[derive(Debug, PartialEq, Eq)]
struct Work {
    delivered: u64,
    visits: u64,
    ring_words: u64,
    signals: usize,
}

/// One round of a worker: the active rings' turns, then the packets that wait.
fn round(fabric: &mut Fabric, active: &mut DrrScheduler, work: &mut Work, now_ns: u64) {
    let mut visits = 0;
    let counts = counted::during(|| {
        active.round(now_ns, |ring| {
            visits += 1;
            fabric.visit_in_turn(ring, now_ns)
        });
        if fabric.deadline_ns().is_some() {
            fabric.drain_waiting();
            fabric.expire(now_ns);
        }
    });
    work.visits += visits;
    work.ring_words += counts.ring_words;
    work.signals += fabric.signals().drain(..).count();
}

/// Sends and sleeps in turn, next to `idle` ports. `is_late`: the receiver posts its buffers after the packets came.
fn work_beside(idle: u16, is_late: bool) -> Work {
    let module: Arc<dyn Module> = by_name("bridge", &BridgeSettings::default()).unwrap().into();
    for port in 1..=idle + 2 {
        let settings = PortSettings { name: format!("p{port}"), ..PortSettings::default() };
        module.port_added(PortId(port), &settings).unwrap();
    }
    let mut fabric = Fabric::new(module).unwrap();
    let mut sender = TestGuest::attach(&mut fabric, 1, everything(), ENTRIES, 2048);
    let mut receiver = TestGuest::attach(&mut fabric, 2, everything(), ENTRIES, 2048);
    (3..idle + 3).for_each(|port| attach_idle(&mut fabric, PortId(port)));
    // The module learns the receiver's address.
    assert!(receiver.queue(&frame(2, 2, 60), Offload::default()));
    fabric.visit(receiver.tx_ring(), 0);
    let mut active = DrrScheduler::default();
    let mut work = Work { delivered: 0, visits: 0, ring_words: 0, signals: 0 };
    fabric.signals().clear();
    for number in 1..=ROUNDS {
        active.add(sender.tx_ring(), number);
        for _ in 0..BATCH {
            assert!(sender.queue(&frame(2, 1, 60), Offload::default()));
        }
        if !is_late {
            receiver.post(BATCH as u32);
        }
        round(&mut fabric, &mut active, &mut work, number);
        if is_late && number == ROUNDS / 2 {
            receiver.post(ENTRIES);
        }
        round(&mut fabric, &mut active, &mut work, number);
        // As before a sleep.
        work.ring_words += counted::during(|| {
            fabric.arm_waiting();
            if !fabric.arm(sender.tx_ring()) {
                active.remove(sender.tx_ring());
            }
        })
        .ring_words;
        work.delivered += std::iter::from_fn(|| receiver.receive()).count() as u64;
    }
    assert_conserved(&fabric, &(1..idle + 3).map(PortId).collect::<Vec<_>>());
    work
}

#[test]
fn the_work_is_the_same_beside_one_idle_port_and_a_thousand() {
    const { assert!(PORTS_MAX > 1003, "all of them fit") };
    for is_late in [false, true] {
        let alone = work_beside(0, is_late);
        assert!(alone.delivered > 0 && alone.ring_words > alone.delivered, "{alone:?}");
        if !is_late {
            assert_eq!(alone.delivered, ROUNDS * BATCH);
        }
        for idle in [1, 10, 100, 1000] {
            assert_eq!(work_beside(idle, is_late), alone, "{idle} idle ports, late: {is_late}");
        }
    }
}

/// The counter sees a ring that is looked at: an idle ring in the list of active ones costs words in every round.
#[test]
fn a_ring_that_is_looked_at_is_counted() {
    let module: Arc<dyn Module> = by_name("bridge", &BridgeSettings::default()).unwrap().into();
    module.port_added(PortId(3), &PortSettings::default()).unwrap();
    let mut fabric = Fabric::new(module).unwrap();
    attach_idle(&mut fabric, PortId(3));
    let mut active = DrrScheduler::default();
    active.add(RingId { port: PortId(3), queue: 0 }, 0);
    let mut work = Work { delivered: 0, visits: 0, ring_words: 0, signals: 0 };
    round(&mut fabric, &mut active, &mut work, 1);
    assert!(work.visits == 1 && work.ring_words > 0, "{work:?}");
}
