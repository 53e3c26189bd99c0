//! Devices and switches that fail and come back.

use std::net::UdpSocket;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lasthop_device::{DeviceDropReason, OpenedDevice};
use lasthop_driver::{DevicePortId, DriverError, DriverEvent};
use lasthop_frontend::{Guest, GuestOptions};
use lasthop_netdev::{OpenError, PacketOptions, TapOptions};
use lasthop_wire::vnet::Offload;

use crate::lab::{Lab, Namespace, QUEUE_PAIRS};
use crate::support::eventually;
use crate::talk::{datagrams, stream};

const MIB: usize = 1 << 20;

#[test]
#[ignore = "needs root"]
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
        assert!(matches!(event, DriverEvent::DeviceGone { port: DevicePortId(1), .. }), "{event:?}");
        assert!(!lab.port(1).has_device && lab.port(1).has_switch);
        let dropped = || lab.port(1).counters.dropped(DeviceDropReason::DeviceDown);
        let before = dropped();
        eventually("frames are dropped", || dropped() > before + 1000);
        stream(&two, &three, "192.0.2.3", 4 * MIB);
        lab.rewire(&one, "wire1", "192.0.2.1", 1500);
        let device = lab.open_packet("wire1", PacketOptions::default());
        lab.driver.replace_device(DevicePortId(1), device.facts, device.descriptors).unwrap();
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

/// A UDP datagram of 3000 bytes that was to be fragmented (virtio 1.2, 5.1.6, `VIRTIO_NET_HDR_GSO_UDP`), behind its header. A packet socket
/// cannot express it.
fn fragmented_later() -> Vec<u8> {
    let mut frame = vec![0; 12 + 14 + 20 + 8 + 3000];
    frame[1] = 3;
    frame[2..10].copy_from_slice(&[42, 0, 0xd0, 0x07, 34, 0, 6, 0]);
    frame[0] = 1; // partial checksum
    frame[12..24].copy_from_slice(&[2, 0, 0, 0, 0, 9, 2, 0, 0, 0, 0, 8]);
    frame[24..26].copy_from_slice(&[8, 0]);
    frame[26..46]
        .copy_from_slice(&[0x45, 0, 0x0b, 0xd4, 0, 0, 0, 0, 64, 17, 0, 0, 192, 0, 2, 8, 192, 0, 2, 9]);
    frame[46..52].copy_from_slice(&[0, 9, 0, 9, 0x0b, 0xc0]);
    frame
}

/// Linux 6.18 fills no slot of the ring behind such a frame. The driver sleeps meanwhile.
#[test]
#[ignore = "needs root"]
fn a_frame_that_stops_the_ring_does_not_stop_the_port() {
    for first in [0, 3] {
        let mut lab = Lab::new(1);
        let guest = lab.host.within(|| lasthop_netdev::tap("wire1", TapOptions::default())).unwrap();
        let guest = &guest.descriptors[0];
        let device = lab.open_packet("wire1", PacketOptions::default());
        assert!(device.facts.ring.is_some());
        lab.attach(1, device);
        let came = |lab: &Lab| lab.port(1).counters.to_switch.frames;
        let plain = |number: u64| [&[0; 12][..], &[2; 12], &[0x88, 0xb5], &number.to_be_bytes()].concat();
        for number in 0..first {
            rustix::io::write(guest, &plain(number)).unwrap();
            eventually("frames pass", || came(&lab) == number + 1);
        }
        rustix::io::write(guest, &fragmented_later()).unwrap();
        let mut event = None;
        eventually("the driver notices it", || {
            rustix::io::write(guest, &plain(0)).unwrap();
            event = lab.driver.next_event();
            event.is_some()
        });
        assert!(matches!(event, Some(DriverEvent::RingStopped { .. })), "{event:?}");
        let counters = lab.port(1).counters;
        assert!(counters.missed >= 2, "the frame, and one behind it: {counters:?}");
        let without = PacketOptions { ring: false, ..PacketOptions::default() };
        let device = lab.open_packet("wire1", without);
        lab.driver.replace_device(DevicePortId(1), device.facts, device.descriptors).unwrap();
        rustix::io::write(guest, &fragmented_later()).unwrap();
        rustix::io::write(guest, &plain(9)).unwrap();
        eventually("frames pass by system calls", || came(&lab) > first);
        assert_eq!(lab.port(1).counters.dropped(DeviceDropReason::BadOffload), 1);
        assert!(lab.driver.next_event().is_none());
        lab.assert_conserved();
    }
}

#[test]
#[ignore = "needs root"]
fn a_tap_may_be_deleted() {
    let mut lab = Lab::new(1);
    let one = lab.tap_port(1, TapOptions::default());
    one.run("ip link del tap0");
    let event = lab.event();
    assert!(matches!(event, DriverEvent::DeviceGone { port: DevicePortId(1), .. }), "{event:?}");
    assert!(lab.driver.next_event().is_none(), "told once");
    lab.assert_conserved();
}

/// Sends until the driver has to drop frames.
fn send_until_dropped(lab: &Lab, from: &Namespace, to: &str, port: DevicePortId) {
    let socket = from.within(|| UdpSocket::bind("0.0.0.0:0")).unwrap();
    eventually("frames are dropped", || {
        socket.send_to(b"x", to).unwrap();
        lab.port(port.0).counters.dropped(DeviceDropReason::DeviceDown) > 0
    });
}

#[test]
#[ignore = "needs root"]
fn a_link_that_is_set_down_passes_again_when_it_is_up() {
    let mut lab = Lab::new(1);
    let one = lab.packet_port(1, 1500, PacketOptions::default());
    let two = lab.tap_port(2, TapOptions::default());
    stream(&one, &two, "192.0.2.2", MIB);
    two.run("ip neighbour change 192.0.2.1 dev tap0 nud permanent");
    one.run("ip neighbour change 192.0.2.2 dev eth0 nud permanent");
    lab.host.run("ip link set wire1 down");
    send_until_dropped(&lab, &two, "192.0.2.1:9", DevicePortId(1));
    lab.host.run("ip link set wire1 up");
    two.run("ip link set tap0 down");
    send_until_dropped(&lab, &one, "192.0.2.2:9", DevicePortId(2));
    two.run("ip link set tap0 up");
    stream(&one, &two, "192.0.2.2", MIB);
    stream(&two, &one, "192.0.2.1", MIB);
    assert!(lab.driver.next_event().is_none() && lab.port(1).has_device);
    lab.assert_conserved();
}

#[test]
#[ignore = "needs root"]
fn another_switch_may_take_over() {
    let mut lab = Lab::new(2);
    let one = lab.packet_port(1, 1500, PacketOptions { queues: 2, ..PacketOptions::default() });
    let two = lab.packet_port(2, 1500, PacketOptions::default());
    stream(&one, &two, "192.0.2.2", MIB);
    for _ in 0..3 {
        let switch = lab.cut(DevicePortId(1));
        assert!(!lab.port(1).has_switch);
        lab.driver.replace_switch(DevicePortId(1), switch).unwrap();
        assert!(lab.port(1).has_switch && lab.driver.next_event().is_none());
        stream(&one, &two, "192.0.2.2", 4 * MIB);
        stream(&two, &one, "192.0.2.1", 4 * MIB);
        datagrams(&one, &two, "192.0.2.2", &[1, 9000]);
    }
    lab.assert_conserved();
}

#[test]
#[ignore = "needs root"]
fn another_kind_of_device_asks_for_another_connection() {
    let mut lab = Lab::new(1);
    let one = lab.packet_port(1, 1500, PacketOptions::default());
    let two = lab.packet_port(2, 1500, PacketOptions::default());
    stream(&one, &two, "192.0.2.2", MIB);
    let device = lab.open_packet("wire1", PacketOptions { queues: 2, ..PacketOptions::default() });
    lab.driver.replace_device(DevicePortId(1), device.facts, device.descriptors).unwrap();
    let switch = lab.reconnect(DevicePortId(1));
    lab.driver.replace_switch(DevicePortId(1), switch).unwrap();
    stream(&one, &two, "192.0.2.2", 4 * MIB);
    stream(&two, &one, "192.0.2.1", 4 * MIB);
    lab.assert_conserved();
}

/// Sends small datagrams to a slow device, while `work` runs.
fn flooded<R>(from: &Namespace, work: impl FnOnce() -> R) -> R {
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let socket = from.within(|| UdpSocket::bind("0.0.0.0:0")).unwrap();
            while !is_over.load(Ordering::Relaxed) {
                socket.send_to(&[7; 100], "192.0.2.1:9").unwrap();
            }
        });
        let over = EndOfFlood(&is_over);
        let result = work();
        drop(over);
        result
    })
}

/// Ends a flood, even if the work fails.
struct EndOfFlood<'a>(&'a AtomicBool);

impl Drop for EndOfFlood<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Whether port 1's device accepts no frame: frames that are being sent count as waiting, too.
fn is_full(lab: &Lab) -> bool {
    let before = lab.port(1).counters;
    std::thread::sleep(Duration::from_millis(20));
    let after = lab.port(1).counters;
    before.waiting > 0 && after.waiting > 0 && after.to_device == before.to_device
}

#[test]
#[ignore = "needs root"]
fn a_device_that_is_full_lets_frames_wait_and_takes_them_later() {
    let mut lab = Lab::new(1);
    let one = lab.packet_port(1, 1500, PacketOptions::default());
    let two = lab.packet_port(2, 1500, PacketOptions::default());
    stream(&one, &two, "192.0.2.2", MIB);
    two.run("ip neighbour change 192.0.2.1 dev eth0 nud permanent");
    // The hosts may have sent frames before the driver was there.
    let before = lab.port(1).counters.drops;
    // The queue accepts all frames of the socket, and sends few of them.
    lab.host.run("tc qdisc add dev wire1 root tbf rate 8kbit burst 10k limit 200mb");
    flooded(&two, || eventually("frames wait", || is_full(&lab)));
    lab.assert_conserved();
    lab.host.run("tc qdisc del dev wire1 root");
    eventually("none waits any more", || lab.port(1).counters.waiting == 0);
    stream(&two, &one, "192.0.2.1", MIB);
    assert_eq!(lab.port(1).counters.drops, before);
    // Frames that wait when the switch ends are lost with it. The flood lasts until then: otherwise the device would
    // accept them in the end.
    lab.host.run("tc qdisc add dev wire1 root tbf rate 8kbit burst 10k limit 200mb");
    let switch = flooded(&two, || {
        eventually("frames wait", || is_full(&lab));
        lab.cut(DevicePortId(1))
    });
    lab.driver.replace_switch(DevicePortId(1), switch).unwrap();
    assert!(lab.port(1).counters.dropped(DeviceDropReason::DeviceFull) > 0);
    lab.assert_conserved();
    lab.host.run("tc qdisc del dev wire1 root");
    // A short queue drops frames for lack of room.
    lab.host.run("tc qdisc add dev wire1 root tbf rate 8kbit burst 10k limit 10k");
    let dropped = || lab.port(1).counters.dropped(DeviceDropReason::DeviceFull);
    flooded(&two, || eventually("frames are dropped", || dropped() > 100));
    lab.assert_conserved();
    lab.host.run("tc qdisc del dev wire1 root");
    stream(&two, &one, "192.0.2.1", MIB);
    lab.assert_conserved();
}

/// The switch holds all buffers of the driver for a while, and only the switch signals.
#[test]
#[ignore = "needs root"]
fn a_guest_that_takes_nothing_delays_others_briefly() {
    let mut lab = Lab::new(1);
    let one = lab.packet_port(1, 1500, PacketOptions::default());
    let two = lab.packet_port(2, 1500, PacketOptions::default());
    let port = lab.switch.add_port("guest", QUEUE_PAIRS);
    let options = GuestOptions { rx_buffers: 8, ..GuestOptions::default() };
    let mut guest = Guest::over(lab.switch.serve(port).0, options).unwrap();
    let hello = [&[0xff; 6][..], &guest.mac()[..], &[0x88, 0xb5], &[0; 46]].concat();
    assert!(guest.send(0, &hello, Offload::default()).unwrap());
    guest.flush(0).unwrap();
    let [a, b, c, d, e, f] = guest.mac();
    one.run(&format!(
        "ip neighbour add 192.0.2.9 lladdr {a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x} dev eth0 nud permanent"
    ));
    let socket = one.within(|| UdpSocket::bind("0.0.0.0:0")).unwrap();
    for _ in 0..2000 {
        socket.send_to(&[1; 100], "192.0.2.9:9").unwrap();
    }
    stream(&one, &two, "192.0.2.2", MIB);
    let (mut frame, mut has_arrived) = (Vec::new(), false);
    eventually("a frame of the second kind arrives", || {
        socket.send_to(&[2; 100], "192.0.2.9:9").unwrap();
        while guest.recv(0, &mut frame).unwrap().is_some() {
            has_arrived |= frame.ends_with(&[2; 100]);
        }
        has_arrived
    });
    lab.assert_conserved();
}

#[test]
#[ignore = "needs root"]
fn unusable_devices_are_named() {
    let mut lab = Lab::new(1);
    let _one = lab.wire("wire1", "192.0.2.1", 1500);
    let mut attach = |change: fn(&mut OpenedDevice)| {
        let mut device = lab.open_packet("wire1", PacketOptions::default());
        change(&mut device);
        let (switch, _) = std::os::unix::net::UnixStream::pair().unwrap();
        lab.driver.attach(DevicePortId(1), device.facts, device.descriptors, switch).unwrap_err()
    };
    let error = attach(|device| device.facts.queues = 2);
    assert!(matches!(error, DriverError::WrongDescriptors { queues: 2, descriptors: 1, .. }), "{error}");
    let error = attach(|device| device.facts.header_bytes = 11);
    assert!(matches!(error, DriverError::WrongHeaders { header_bytes: 11, .. }), "{error}");
    let error = attach(|_| ());
    assert!(matches!(error, DriverError::Switch(_)), "nobody is at the other end: {error}");
    assert!(lab.driver.stats().unwrap().ports.is_empty());
}

#[test]
#[ignore = "needs root"]
fn promiscuous_mode_ends_with_the_port() {
    let mut lab = Lab::new(1);
    let _one = lab.packet_port(1, 1500, PacketOptions { queues: 2, ..PacketOptions::default() });
    let is_promiscuous = |lab: &Lab| !lab.host.run("ip -d link show wire1").contains("promiscuity 0");
    assert!(is_promiscuous(&lab));
    lab.driver.detach(DevicePortId(1)).unwrap();
    // A test that is starting a program has copies of all descriptors for a moment.
    eventually("promiscuous mode ends", || !is_promiscuous(&lab));
    assert!(matches!(lab.driver.detach(DevicePortId(1)), Err(DriverError::NoSuchPort(DevicePortId(1)))));
}

#[test]
#[ignore = "needs root"]
fn devices_that_cannot_be_opened_are_named() {
    let lab = Lab::new(1);
    let elsewhere = lab.wire("wire1", "192.0.2.1", 1500);
    let error = |namespace: &Namespace, name: &str| {
        namespace.within(|| lasthop_netdev::packet(name, PacketOptions::default())).unwrap_err()
    };
    assert_eq!(error(&lab.host, "eth7"), OpenError::NoDevice("eth7".to_owned()));
    assert_eq!(error(&elsewhere, "wire1"), OpenError::NoDevice("wire1".to_owned()));
    assert_eq!(error(&lab.host, "lo"), OpenError::NotEthernet("lo".to_owned()));
    for name in ["", "a-name-that-is-too-long", "a/b"] {
        assert_eq!(error(&lab.host, name), OpenError::BadName(name.to_owned()));
    }
    let taps = |queues| {
        lab.host.within(|| lasthop_netdev::tap("tap7", TapOptions { queues, ..TapOptions::default() }))
    };
    let _kept = taps(1).unwrap();
    assert_eq!(taps(1).unwrap_err(), OpenError::Busy("tap7".to_owned()));
    assert_eq!(taps(2).unwrap_err(), OpenError::Busy("tap7".to_owned()));
    assert!(matches!(taps(0).unwrap_err(), OpenError::BadQueues { queues: 0, .. }));
}
