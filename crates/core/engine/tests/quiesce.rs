//! An engine that is quiesced and resumed: packets that wait for receive buffers are fetched again.

mod support;

use std::time::Duration;

use lasthop_engine::Gathering;
use lasthop_frontend::{Guest, GuestOptions};
use lasthop_module_api::{DropReason, PortId};
use support::{TestSwitch, TestWorkers, config, eventually, frame, send};

const SENT: u32 = 24;
const BUFFERS: u16 = 4;

/// A guest that sends and one with few buffers, joined.
fn start(workers: usize) -> (TestSwitch, (PortId, Guest), (PortId, Guest)) {
    let mut switch = TestSwitch::start("dummy", TestWorkers { workers, gathering: Gathering::ByLoad });
    let one = switch.attach(config("one"), GuestOptions::default());
    let options = GuestOptions { rx_buffers: BUFFERS, ..GuestOptions::default() };
    let other = switch.attach(config("other"), options);
    (switch, one, other)
}

/// Numbers of the frames that arrive until the switch has accounted for all.
fn numbers(switch: &TestSwitch, from: PortId, guest: &mut Guest) -> Vec<u32> {
    let (mut bytes, mut numbers) = (Vec::new(), Vec::new());
    eventually("that all have come to their end", || {
        let counters = switch.port(from).counters;
        while guest.recv(0, &mut bytes).unwrap().is_some() {
            numbers.push(u32::from_be_bytes(*bytes[14..].first_chunk().unwrap()));
        }
        counters.rx_packets == u64::from(SENT) && counters.waiting == 0
    });
    numbers
}

#[test]
fn what_waits_when_it_comes_to_rest_is_delivered_afterwards() {
    for workers in [1, 2] {
        let (switch, (one, mut sender), (other, mut receiver)) = start(workers);
        (0..SENT).for_each(|number| send(&mut sender, &frame(2, 1, number, 200)));
        let is_taken = || switch.port(one).counters.rx_packets == u64::from(SENT);
        eventually("that all are taken", is_taken);
        for _ in 0..3 {
            switch.engine.quiesce(Duration::from_secs(1)).unwrap();
            let counters = switch.port(one).counters;
            assert_eq!(counters.waiting, 0);
            // Those that had expired before still count.
            assert_eq!(counters.rx_packets, counters.forwarded + counters.rx_drops.total());
            assert_eq!(counters.rx_bytes, 200 * counters.rx_packets);
            switch.assert_conserved();
            switch.engine.resume().unwrap();
            eventually("that all are taken again", is_taken);
        }
        let arrived = numbers(&switch, one, &mut receiver);
        assert!(arrived.is_sorted_by(|one, next| one < next), "{arrived:?}");
        let drops = switch.port(one).counters.rx_drops;
        assert_eq!(arrived.len() as u64 + drops.total(), u64::from(SENT));
        assert_eq!(drops.of(DropReason::Restart), 0);
        assert_eq!(switch.port(other).counters.tx_packets, arrived.len() as u64);
        switch.assert_conserved();
    }
}
