//! XDP sockets and programs of uplinks, end to end: a guest, a switch, an uplink, and a network behind it. The tests
//! need root, and run with `-- --ignored`.

mod bench;
mod faults;
mod frames;
mod hosts;
mod lab;
#[path = "../support/mod.rs"]
mod support;

use std::net::UdpSocket;

use bench::Bench;
use frames::payload;
use lab::{GUEST_ADDRESS, Lab, UPLINK};
use lasthop_device::Host;
use lasthop_netdev::XdpDevice;
use support::{PATIENCE, eventually};

/// Datagrams in flight at a time: fewer than any queue between the two ends holds.
const WINDOW: u32 = 64;

/// Various lengths.
fn some_len(number: u32) -> usize {
    18 + number as usize % 1400
}

/// The far end's socket, once the guest's frames arrive there.
pub(crate) fn attached(bench: &mut Bench, lab: &Lab) -> UdpSocket {
    let far = lab.far_socket();
    eventually("the uplink is attached", || {
        bench.send(&frames::to_far_end(&payload(u32::MAX, 10)));
        far.recv(&mut [0; 2048]).is_ok()
    });
    far
}

/// Sends datagrams between the guest and the far end, both ways; each arrives once and in order.
pub(crate) fn talk(bench: &mut Bench, lab: &Lab, windows: u32) {
    let far = attached(bench, lab);
    let mut bytes = [0; 2048];
    while far.recv(&mut bytes).is_ok() {}
    far.set_read_timeout(Some(PATIENCE)).unwrap();
    for first in (0..windows * WINDOW).step_by(WINDOW as usize) {
        for number in first..first + WINDOW {
            far.send_to(&payload(number, some_len(number)), GUEST_ADDRESS).unwrap();
        }
        assert_eq!(bench.receive(WINDOW as usize), (first..first + WINDOW).collect::<Vec<_>>());
        for number in first..first + WINDOW {
            bench.send(&frames::to_far_end(&payload(number, some_len(number))));
        }
        for number in first..first + WINDOW {
            let len = far.recv(&mut bytes).unwrap();
            assert_eq!(bytes[..len], payload(number, some_len(number)));
        }
    }
}

#[test]
#[ignore = "needs root"]
fn datagrams_pass_both_ways_with_right_checksums() {
    let lab = Lab::new();
    let device = lab.on_host(|| XdpDevice::attach(UPLINK, 1, Host::Off)).unwrap();
    assert!(device.facts().xdp.unwrap().native, "veth runs XDP programs itself");
    let mut bench = Bench::new();
    bench.attach(1, lab.on_host(|| device.sockets()).unwrap());
    talk(&mut bench, &lab, 50);
    let counters = bench.counters(1);
    assert!(counters.to_switch.frames >= u64::from(50 * WINDOW), "{counters:?}");
    assert_eq!((counters.drops, counters.missed), ([0; 10], 0));
    bench.assert_conserved();
}

#[test]
#[ignore = "needs root"]
fn every_frame_of_a_flood_is_accounted_for() {
    const SENT: u32 = 100_000;
    let lab = Lab::new();
    let mut bench = Bench::new();
    let device = lab.on_host(|| XdpDevice::attach(UPLINK, 1, Host::Off)).unwrap();
    bench.attach(1, lab.on_host(|| device.sockets()).unwrap());
    talk(&mut bench, &lab, 1);
    let before = bench.counters(1);
    let dropped_before = lab.far_drops();
    let far = lab.far_socket();
    // More than are read in time; the guest reads none.
    for number in 0..SENT {
        let _ = far.send_to(&payload(number, 18), GUEST_ADDRESS);
    }
    eventually("all are somewhere", || {
        let now = bench.counters(1);
        let arrived = now.from_device.frames + now.missed - before.from_device.frames - before.missed;
        arrived + lab.far_drops() - dropped_before == u64::from(SENT)
    });
    assert!(bench.received().len() > WINDOW as usize);
    bench.assert_conserved();
}

#[test]
#[ignore = "needs root"]
fn several_queues_are_all_served() {
    let lab = Lab::with_queues(3);
    let device = lab.on_host(|| XdpDevice::attach(UPLINK, 3, Host::Off)).unwrap();
    let mut bench = Bench::new();
    bench.attach(1, lab.on_host(|| device.sockets()).unwrap());
    talk(&mut bench, &lab, 5);
    // veth receives with the queue number of the sender, which depends on the CPU as configured here.
    let queues = "/sys/class/net/far0/queues";
    let cpus = std::thread::available_parallelism().unwrap().get().min(32);
    let all = (1_u64 << cpus) - 1;
    for queue in 0..3 {
        lab.far_command(&format!("sh -c 'for tx in {queues}/tx-*; do echo 0 > $tx/xps_cpus; done'"));
        lab.far_command(&format!("sh -c 'echo {all:x} > {queues}/tx-{queue}/xps_cpus'"));
        talk(&mut bench, &lab, 2);
        let statistics = lab.host_command(&format!("ethtool -S {UPLINK}"));
        let name = format!("rx_queue_{queue}_xdp_packets: ");
        let line = statistics.lines().find_map(|line| line.trim().strip_prefix(name.as_str())).unwrap();
        assert!(line.parse::<u32>().unwrap() >= 2 * WINDOW, "queue {queue}: {line}");
    }
    bench.assert_conserved();
}
