//! No allocation per packet, as counted by the allocator.

mod support;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::Arc;

use lasthop_fabric::{Fabric, Tap, Watch, tap};
use lasthop_module_api::{PortId, PortSettings};
use lasthop_wire::Offload;
use support::{TestGuest, assert_conserved, everything, frame};

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: everything is passed on to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let _ = ALLOCATIONS.try_with(|count| count.set(count.get() + 1));
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's promises are passed on.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn allocations_during(work: impl FnOnce()) -> u64 {
    let before = ALLOCATIONS.with(Cell::get);
    work();
    ALLOCATIONS.with(Cell::get) - before
}

/// Port 1 sends 32 frames to port 2. Its ring takes some at once; the others wait and are drained.
fn visit_and_drain(fabric: &mut Fabric, sender: &TestGuest, receiver: &TestGuest, now_ns: u64) -> u64 {
    allocations_during(|| {
        fabric.visit(sender.tx_ring(), now_ns);
        fabric.drain_waiting();
        fabric.drain(receiver.tx_ring());
        fabric.expire(now_ns);
        fabric.signals().clear();
    })
}

#[test]
fn a_visit_allocates_nothing() {
    visits_allocate_nothing(None);
}

/// The capture's buffer fills up; frames that find no room cause no allocation either.
#[test]
fn a_captured_visit_allocates_nothing() {
    let ports = vec![PortId(1), PortId(2)];
    let (inbound, outbound, drops) = (true, true, true);
    let watch = Watch { ports, inbound, outbound, drops, snap_len_bytes: 262_144, buffer_bytes: 1 << 20 };
    let (tap, reader) = tap(1, &watch, &(Arc::new(|| 0_u64) as _)).unwrap();
    visits_allocate_nothing(Some(tap));
    assert!(reader.lost(0) > 0);
}

fn visits_allocate_nothing(tap: Option<Tap>) {
    let module: Arc<dyn lasthop_module_api::Module> =
        lasthop_modules::by_name("bridge", &lasthop_modules::BridgeSettings::default()).unwrap().into();
    for port in 1..=2 {
        let settings = PortSettings { name: format!("p{port}"), ..PortSettings::default() };
        module.port_added(PortId(port), &settings).unwrap();
    }
    let mut fabric = Fabric::new(module).unwrap();
    tap.into_iter().for_each(|tap| fabric.add_tap(tap));
    let mut sender = TestGuest::attach(&mut fabric, 1, everything(), 256, 2048);
    let mut receiver = TestGuest::attach(&mut fabric, 2, everything(), 256, 2048);
    assert!(allocations_during(|| drop(vec![0_u8; 100])) > 0, "the counter counts");
    let mut allocated = Vec::new();
    for round in 0..50_u64 {
        for number in 0..32 {
            let cuts = [12, 14, 16, 18, 30];
            assert!(sender.queue_cut(
                &frame(2, 10 + number % 8, 500),
                Offload::default(),
                &cuts[..usize::from(number % 6)]
            ));
        }
        receiver.post(if round == 0 { 20 } else { 0 });
        let now_ns = round * 1_000_000;
        let mut count = visit_and_drain(&mut fabric, &sender, &receiver, now_ns);
        while receiver.receive().is_some() {}
        count += visit_and_drain(&mut fabric, &sender, &receiver, now_ns);
        while receiver.receive().is_some() {}
        sender.reclaim();
        allocated.push(count);
    }
    assert_eq!(allocated[1..], vec![0; 49][..], "after the first round, in which room is reserved once");
    let counters = sender.counters(&fabric);
    assert!(counters.rx_packets > 1000 && counters.forwarded > 1000, "{counters:?}");
    assert_conserved(&fabric, &[PortId(1), PortId(2)]);
}
