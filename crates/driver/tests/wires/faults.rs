//! Devices and switches that go and come back.

use std::net::UdpSocket;
use std::sync::atomic::{AtomicBool, Ordering};

use lasthop_driver::open::{self, OpenError, PacketOptions, TapOptions};
use lasthop_driver::{DriverError, DriverEvent, DropReason, PortId};

use crate::lab::{Lab, eventually};
use crate::talk::{datagrams, stream};

const MIB: usize = 1 << 20;

#[test]
fn a_device_may_go_under_load_and_come_back() {
    let mut lab = Lab::new(1);
    let one = lab.packet_port(1, 1500, PacketOptions::default());
    let two = lab.packet_port(2, 1500, PacketOptions::default());
    let three = lab.packet_port(3, 1500, PacketOptions::default());
    stream(&one, &two, "192.0.2.2", MIB);
    two.run("ip neighbour change 192.0.2.1 dev eth0 nud permanent");
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let socket = two.within(|| UdpSocket::bind("0.0.0.0:0")).unwrap();
            while !is_over.load(Ordering::Relaxed) {
                socket.send_to(&[7; 1000], "192.0.2.1:9").unwrap();
                std::thread::yield_now();
            }
        });
        eventually("frames arrive", || lab.port(1).counters.to_device.frames > 1000);
        lab.host.run("ip link del wire1");
        let event = lab.event();
        assert!(matches!(event, DriverEvent::DeviceGone { port: PortId(1), .. }), "{event:?}");
        assert!(!lab.port(1).has_device && lab.port(1).has_switch);
        let dropped = || lab.port(1).counters.dropped(DropReason::DeviceDown);
        let before = dropped();
        eventually("frames are dropped", || dropped() > before + 1000);
        stream(&two, &three, "192.0.2.3", 4 * MIB);
        lab.rewire(&one, "wire1", "192.0.2.1", 1500);
        let device = lab.open_packet("wire1", PacketOptions::default());
        lab.driver.replace_device(PortId(1), device.facts, device.queues).unwrap();
        let before = lab.port(1).counters.to_device.frames;
        let sent = || lab.port(1).counters.to_device.frames - before;
        eventually("frames are sent again", || sent() > 0);
        is_over.store(true, Ordering::Relaxed);
    });
    two.run("ip neighbour del 192.0.2.1 dev eth0");
    stream(&one, &two, "192.0.2.2", 4 * MIB);
    stream(&two, &one, "192.0.2.1", 4 * MIB);
    assert!(lab.port(1).has_device && lab.driver.next_event().is_none());
    lab.assert_conserved();
}

#[test]
fn a_tap_may_be_deleted() {
    let mut lab = Lab::new(1);
    let one = lab.tap_port(1, TapOptions::default());
    one.run("ip link del tap0");
    let event = lab.event();
    assert!(matches!(event, DriverEvent::DeviceGone { port: PortId(1), .. }), "{event:?}");
    assert!(lab.driver.next_event().is_none(), "told once");
    lab.assert_conserved();
}

#[test]
fn a_link_that_is_set_down_passes_again_when_it_is_up() {
    let mut lab = Lab::new(1);
    let one = lab.packet_port(1, 1500, PacketOptions::default());
    let two = lab.tap_port(2, TapOptions::default());
    stream(&one, &two, "192.0.2.2", MIB);
    lab.host.run("ip link set wire1 down");
    lab.host.run("ip link set wire1 up");
    two.run("ip link set tap0 down");
    two.run("ip link set tap0 up");
    stream(&one, &two, "192.0.2.2", MIB);
    stream(&two, &one, "192.0.2.1", MIB);
    assert!(lab.driver.next_event().is_none() && lab.port(1).has_device);
    lab.assert_conserved();
}

#[test]
fn another_switch_may_take_over() {
    let mut lab = Lab::new(2);
    let one = lab.packet_port(1, 1500, PacketOptions { queues: 2, ..PacketOptions::default() });
    let two = lab.packet_port(2, 1500, PacketOptions::default());
    stream(&one, &two, "192.0.2.2", MIB);
    for _ in 0..3 {
        let switch = lab.cut(PortId(1));
        assert!(!lab.port(1).has_switch);
        lab.driver.replace_switch(PortId(1), switch).unwrap();
        assert!(lab.port(1).has_switch && lab.driver.next_event().is_none());
        stream(&one, &two, "192.0.2.2", 4 * MIB);
        stream(&two, &one, "192.0.2.1", 4 * MIB);
        datagrams(&one, &two, "192.0.2.2", &[1, 9000]);
    }
    lab.assert_conserved();
}

#[test]
fn another_kind_of_device_asks_for_another_connection() {
    let mut lab = Lab::new(1);
    let one = lab.packet_port(1, 1500, PacketOptions::default());
    let two = lab.packet_port(2, 1500, PacketOptions::default());
    stream(&one, &two, "192.0.2.2", MIB);
    let device = lab.open_packet("wire1", PacketOptions { queues: 2, ..PacketOptions::default() });
    lab.driver.replace_device(PortId(1), device.facts, device.queues).unwrap();
    let switch = lab.reconnect(PortId(1));
    lab.driver.replace_switch(PortId(1), switch).unwrap();
    stream(&one, &two, "192.0.2.2", 4 * MIB);
    stream(&two, &one, "192.0.2.1", 4 * MIB);
    lab.assert_conserved();
}

#[test]
fn promiscuous_mode_ends_with_the_port() {
    let mut lab = Lab::new(1);
    let _one = lab.packet_port(1, 1500, PacketOptions { queues: 2, ..PacketOptions::default() });
    let is_promiscuous = |lab: &Lab| !lab.host.run("ip -d link show wire1").contains("promiscuity 0");
    assert!(is_promiscuous(&lab));
    lab.driver.detach(PortId(1)).unwrap();
    assert!(!is_promiscuous(&lab));
    assert!(matches!(lab.driver.detach(PortId(1)), Err(DriverError::NoSuchPort(PortId(1)))));
}

#[test]
fn what_cannot_be_opened_is_named() {
    let lab = Lab::new(1);
    let elsewhere = lab.wire("wire1", "192.0.2.1", 1500);
    let error = |namespace: &crate::lab::Namespace, name: &str| {
        namespace.within(|| open::packet(name, PacketOptions::default())).unwrap_err()
    };
    assert_eq!(error(&lab.host, "eth7"), OpenError::NoDevice("eth7".to_owned()));
    assert_eq!(error(&elsewhere, "wire1"), OpenError::NoDevice("wire1".to_owned()));
    assert_eq!(error(&lab.host, "lo"), OpenError::NotEthernet("lo".to_owned()));
    for name in ["", "a-name-that-is-too-long", "a/b"] {
        assert_eq!(error(&lab.host, name), OpenError::BadName(name.to_owned()));
    }
    let taps = |queues| lab.host.within(|| open::tap("tap7", TapOptions { queues, ..TapOptions::default() }));
    let _kept = taps(1).unwrap();
    assert_eq!(taps(1).unwrap_err(), OpenError::Busy("tap7".to_owned()));
    assert_eq!(taps(2).unwrap_err(), OpenError::Busy("tap7".to_owned()));
    assert!(matches!(taps(0).unwrap_err(), OpenError::BadQueues { queues: 0, .. }));
}
