//! Metered visits: the memory that each lap touches, and the rest of a port after page faults.

use std::sync::{Arc, Mutex};

use crate::support::{assert_conserved, flooding_pair, frame};
use lasthop_fabric::bounds::{FAULT_REST_FACTOR, SERVICE_METERED_BYTES_MAX};
use lasthop_fabric::{Fabric, VisitMeter};
use lasthop_module_api::PortId;
use lasthop_wire::Offload;

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
