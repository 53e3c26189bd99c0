//! Metered visits: the memory that each lap touches, and the rest of a port after page faults.

use std::os::fd::AsFd;
use std::sync::{Arc, Mutex};

use crate::support::{
    MEMORY_BYTES, TestGuest, assert_conserved, everything, flooding_fabric, flooding_pair, frame,
};
use lasthop_fabric::bounds::{FAULT_REST_FACTOR, SERVICE_METERED_BYTES_MAX};
use lasthop_fabric::{Fabric, VisitMeter};
use lasthop_guestmem::{Mapping, MemoryMap, Region};
use lasthop_module_api::PortId;
use lasthop_wire::Offload;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

const SENDER: PortId = PortId(1);
const RECEIVER: PortId = PortId(2);
const PORTS: [PortId; 2] = [SENDER, RECEIVER];

/// Records laps. Those of one port have page faults.
#[derive(Clone, Default)]
struct Laps {
    told: Arc<Mutex<Vec<Option<PortId>>>>,
    faulty: Option<PortId>,
    ns: u64,
}

impl VisitMeter for Laps {
    fn lap(&mut self, port: Option<PortId>, _weight: u64) -> u64 {
        self.told.lock().unwrap().push(port);
        if port.is_some() && port == self.faulty { self.ns } else { 0 }
    }
}

impl Laps {
    fn take(&self) -> Vec<Option<PortId>> {
        std::mem::take(&mut *self.told.lock().unwrap())
    }
}

fn metered(fabric: &mut Fabric, faulty: Option<PortId>, ns: u64) -> Laps {
    let laps = Laps { faulty, ns, ..Laps::default() };
    fabric.set_meter(Box::new(laps.clone()));
    fabric.set_metered(1);
    laps
}

#[test]
fn frames_are_touched_as_their_senders_and_copied_as_their_receivers() {
    let (mut fabric, mut sender, mut receiver) = flooding_pair(16);
    receiver.post(4);
    let laps = metered(&mut fabric, None, 0);
    assert!(sender.queue(&frame(2, 1, 60), Offload::default()));
    fabric.visit(sender.tx_ring(), 0);
    let sides: Vec<PortId> = laps.take().into_iter().flatten().collect();
    assert_eq!(sides, PORTS);
}

#[test]
fn a_frame_that_waited_is_touched_as_its_senders_before_it_is_copied() {
    let (mut fabric, mut sender, mut receiver) = flooding_pair(16);
    for _ in 0..2 {
        assert!(sender.queue(&frame(2, 1, 60), Offload::default()));
    }
    fabric.visit(sender.tx_ring(), 0); // not metered; there are no buffers
    let laps = metered(&mut fabric, None, 0);
    receiver.post(4);
    assert!(fabric.drain_waiting());
    let sides: Vec<PortId> = laps.take().into_iter().flatten().collect();
    assert_eq!(sides, [RECEIVER, SENDER, RECEIVER, SENDER, RECEIVER]);
    assert_eq!(receiver.receive().unwrap().frame, frame(2, 1, 60));
    assert_conserved(&fabric, &PORTS);
}

#[test]
fn while_metered_a_few_frames_that_waited_are_delivered_at_a_time() {
    let (mut fabric, mut sender, mut receiver) = flooding_pair(64);
    let waiting = 1 + 2 * SERVICE_METERED_BYTES_MAX as usize / 9000;
    for _ in 0..waiting {
        assert!(sender.queue(&frame(2, 1, 9000), Offload::default()));
    }
    while fabric.visit(sender.tx_ring(), 0) > 0 {}
    metered(&mut fabric, None, 0);
    receiver.post(64);
    let received =
        |receiver: &mut crate::support::TestGuest| std::iter::from_fn(|| receiver.receive()).count();
    assert!(fabric.drain_waiting());
    let first = received(&mut receiver);
    assert!((1..waiting).contains(&first), "{first} of {waiting}");
    assert_eq!(fabric.deadline_ns(), Some(0), "the rest is looked after at once");
    let mut all = first;
    while fabric.drain_waiting() {
        all += received(&mut receiver);
        receiver.post(16);
    }
    assert_eq!(all, waiting);
    assert_conserved(&fabric, &PORTS);
}

#[test]
fn while_metered_a_stream_waits_in_its_ring_and_loses_nothing() {
    let mut fabric = flooding_fabric(2);
    let mut sender = TestGuest::attach(&mut fabric, 1, everything(), 64, 2048);
    let mut receiver = TestGuest::attach(&mut fabric, 2, everything(), 1024, 2048);
    let large = frame(2, 1, 9000);
    (0..20).for_each(|_| assert!(sender.queue(&large, Offload::default())));
    fabric.visit(sender.tx_ring(), 0); // there are no buffers
    metered(&mut fabric, None, 0);
    receiver.post(1024);
    for _ in 0..20 {
        while sender.queue(&large, Offload::default()) {}
        fabric.visit(sender.tx_ring(), 0);
        while receiver.receive().is_some() {}
    }
    let counters = sender.counters(&fabric);
    assert!(counters.forwarded > 100 && counters.rx_drops.total() == 0, "{counters:?}");
    assert_conserved(&fabric, &PORTS);
}

#[test]
fn after_page_faults_nothing_is_taken_from_their_port_for_some_time_and_others_are_served() {
    const NS: u64 = 1000;
    let (mut fabric, mut sender, mut receiver) = flooding_pair(16);
    receiver.post(8);
    sender.post(8);
    metered(&mut fabric, Some(SENDER), NS);
    for _ in 0..2 {
        assert!(sender.queue(&frame(2, 1, 60), Offload::default()));
    }
    assert_eq!(fabric.visit(sender.tx_ring(), 0), 2);
    fabric.set_metered(0);
    assert!(sender.queue(&frame(2, 1, 60), Offload::default()));
    assert!(receiver.queue(&frame(1, 2, 60), Offload::default()));
    let end_ns = 10 + FAULT_REST_FACTOR * NS;
    assert_eq!(fabric.visit(sender.tx_ring(), 10), 0, "it rests from its next visit on");
    assert_eq!(fabric.visit(receiver.tx_ring(), 10), 1);
    assert_eq!(fabric.visit(sender.tx_ring(), end_ns - 1), 0);
    assert_eq!(fabric.visit(sender.tx_ring(), end_ns), 1);
    assert_conserved(&fabric, &PORTS);
}

/// Page faults of this thread so far.
fn page_faults() -> u64 {
    let stat = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
    // proc_pid_stat(5): the tenth field; the second one is in brackets.
    stat.rsplit_once(')').unwrap().1.split_whitespace().nth(7).unwrap().parse().unwrap()
}

/// Delivers 64 frames to as many pages, which are in memory and not mapped yet. Returns the page faults for that.
fn faults_of_first_use(weight: u64) -> u64 {
    let file = memfd_create("guest", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&file, MEMORY_BYTES as u64).unwrap();
    let map = || {
        let mapping = Arc::new(Mapping::of_file(file.as_fd(), 0, MEMORY_BYTES as u64).unwrap());
        Arc::new(MemoryMap::new(vec![Region { guest_addr: 0, user_addr: 0, mapping }]).unwrap())
    };
    let (mut fabric, mut sender, _) = flooding_pair(16);
    let (own, guests) = (map(), map());
    fabric.set_memory(RECEIVER, &own);
    let mut receiver = TestGuest::pair(RECEIVER, 0, Arc::clone(&guests), everything(), 64, 4096);
    let whole = guests.translate_whole(0, MEMORY_BYTES as u32, &mut 0).unwrap();
    guests.write(whole, 0, &vec![0; MEMORY_BYTES]).unwrap();
    (0..2).for_each(|index| _ = fabric.stop_ring(RECEIVER, index));
    (0..2).for_each(|index| receiver.start(&mut fabric, index));
    receiver.post(64);
    fabric.set_metered(weight);
    (0..64).for_each(|_| assert!(sender.queue(&frame(2, 1, 60), Offload::default())));
    let before = page_faults();
    while fabric.visit(sender.tx_ring(), 0) > 0 {}
    let faults = page_faults() - before;
    assert_eq!(std::iter::from_fn(|| receiver.receive()).count(), 64);
    faults
}

#[test]
fn a_first_use_of_buffers_takes_fewer_page_faults_while_metered() {
    let [plain, metered] = [0, 1].map(faults_of_first_use);
    assert!(plain >= 64 && metered <= 24, "{plain}, while metered {metered}");
}
