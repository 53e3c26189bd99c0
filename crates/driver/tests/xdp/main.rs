//! XDP sockets end to end: a guest, a switch, an uplink, and a network behind it. Needs root, as devices do.

mod bench;
mod frames;
mod lab;

use std::time::Instant;

use bench::{PATIENCE, Pump, Switch};
use lab::{GUEST_IP, Lab, UDP_PORT, UPLINK};
use lasthop_driver::open::{Host, XdpDevice};
use lasthop_guest::Guest;
use lasthop_wire::Offload;

/// Datagrams under way at a time: fewer than any queue between the two ends takes.
const WINDOW: u32 = 64;

/// The numbers in datagrams that the guest receives, until there are `count`.
fn receive(guest: &mut Guest, count: usize) -> Vec<u32> {
    let (mut numbers, mut bytes, until) = (Vec::new(), Vec::new(), Instant::now() + PATIENCE);
    while numbers.len() < count {
        assert!(Instant::now() < until, "{} of {count} datagrams arrived", numbers.len());
        if guest.recv(0, &mut bytes).unwrap().is_none() {
            guest.wait(Some(std::time::Duration::from_millis(100))).unwrap();
        } else if let Some(payload) = frames::datagram(&bytes) {
            numbers.push(u32::from_be_bytes(payload[..4].try_into().unwrap()));
        }
    }
    numbers
}

fn send(guest: &mut Guest, frame: &[u8]) {
    while !guest.send(0, frame, Offload::default()).unwrap() {
        guest.flush(0).unwrap();
        guest.reclaim(0).unwrap();
    }
    guest.flush(0).unwrap();
}

fn payload(number: u32, len: usize) -> Vec<u8> {
    let mut payload = number.to_be_bytes().to_vec();
    payload.resize(len, number as u8);
    payload
}

#[test]
fn datagrams_pass_both_ways_with_right_checksums() {
    let lab = Lab::new();
    let device = lab.on_host(|| XdpDevice::attach(UPLINK, 1, Host::Off)).unwrap();
    assert!(device.facts().xdp.unwrap().native, "veth runs XDP programs itself");
    let switch = Switch::new();
    let mut guest = switch.guest();
    let pump = Pump::start(&switch, lab.on_host(|| device.sockets()).unwrap());
    let far = lab.far_socket();
    let mut bytes = [0; 2048];
    bench::eventually("the uplink is attached", || {
        send(&mut guest, &frames::to_far_end(&payload(0, 10)));
        far.recv(&mut bytes).is_ok()
    });
    while far.recv(&mut bytes).is_ok() {}
    far.set_read_timeout(Some(PATIENCE)).unwrap();
    for first in (0..50 * WINDOW).step_by(WINDOW as usize) {
        for number in first..first + WINDOW {
            far.send_to(
                &payload(number, 18 + number as usize % 1400),
                (std::net::Ipv4Addr::from(GUEST_IP), UDP_PORT),
            )
            .unwrap();
        }
        assert_eq!(receive(&mut guest, WINDOW as usize), (first..first + WINDOW).collect::<Vec<_>>());
        for number in first..first + WINDOW {
            send(&mut guest, &frames::to_far_end(&payload(number, 18 + number as usize % 1400)));
        }
        for number in first..first + WINDOW {
            let len = far.recv(&mut bytes).unwrap();
            assert_eq!(bytes[..len], payload(number, 18 + number as usize % 1400));
        }
    }
    let counters = pump.stop();
    assert!(counters.is_conserved(), "{counters:?}");
    assert!(
        counters.to_switch.frames >= u64::from(50 * WINDOW)
            && counters.to_device.frames > u64::from(50 * WINDOW)
    );
    assert_eq!((counters.drops, counters.missed), ([0; 7], 0));
    switch.assert_conserved();
}
