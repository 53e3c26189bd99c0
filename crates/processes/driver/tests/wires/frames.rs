//! Frames that pass: segmentation, checksums, tags, long frames, several queues.

use std::net::UdpSocket;

use lasthop_device::{DeviceDropReason, DriverCounters, FrameCount};
use lasthop_netdev::{PacketOptions, TapOptions};

use crate::lab::{Lab, Namespace};
use crate::support::{PATIENCE, eventually};
use crate::talk::{datagrams, segmented_datagrams, stream};

const MIB: usize = 1 << 20;

/// Whether frames were on average larger than any wire accepts.
fn is_unsegmented(flow: FrameCount) -> bool {
    flow.bytes / flow.frames.max(1) > 4000
}

fn assert_unsegmented(sender: &DriverCounters, receiver: &DriverCounters) {
    assert!(is_unsegmented(sender.from_device) && is_unsegmented(sender.to_switch), "{sender:?}");
    assert!(is_unsegmented(receiver.from_switch) && is_unsegmented(receiver.to_device), "{receiver:?}");
}

/// All traffic that must pass between two namespaces with addresses 1 and 2, both ways.
fn talk(one: &Namespace, two: &Namespace) {
    stream(one, two, "192.0.2.2", 4 * MIB);
    stream(two, one, "192.0.2.1", 4 * MIB);
    stream(one, two, "[fd00::2]", 4 * MIB);
    stream(two, one, "[fd00::1]", 4 * MIB);
    datagrams(one, two, "192.0.2.2", &[1, 18, 100, 1472, 1473, 9000, 60000]);
    datagrams(two, one, "[fd00::1]", &[1, 18, 100, 1452, 9000]);
}

#[test]
#[ignore = "needs root"]
fn frames_pass_unsegmented_from_wire_to_wire() {
    let mut lab = Lab::new(1);
    let one = lab.packet_port(1, 1500, PacketOptions::default());
    let two = lab.packet_port(2, 1500, PacketOptions::default());
    talk(&one, &two);
    lab.assert_conserved();
    let before = (lab.port(1).counters, lab.port(2).counters);
    stream(&one, &two, "192.0.2.2", 64 * MIB);
    assert_unsegmented(&since(lab.port(1).counters, before.0), &since(lab.port(2).counters, before.1));
}

#[test]
#[ignore = "needs root"]
fn frames_pass_unsegmented_between_a_host_behind_a_tap_and_a_wire() {
    let mut lab = Lab::new(1);
    let one = lab.tap_port(1, TapOptions::default());
    let two = lab.packet_port(2, 1500, PacketOptions::default());
    talk(&one, &two);
    lab.assert_conserved();
    for (from, to, numbers, address) in [(&one, &two, (1, 2), "192.0.2.2"), (&two, &one, (2, 1), "[fd00::1]")]
    {
        let before = (lab.port(numbers.0).counters, lab.port(numbers.1).counters);
        stream(from, to, address, 64 * MIB);
        let after = (lab.port(numbers.0).counters, lab.port(numbers.1).counters);
        assert_unsegmented(&since(after.0, before.0), &since(after.1, before.1));
    }
    lab.assert_conserved();
}

fn since(now: DriverCounters, before: DriverCounters) -> DriverCounters {
    let flow = |now: FrameCount, before: FrameCount| FrameCount {
        frames: now.frames - before.frames,
        bytes: now.bytes - before.bytes,
    };
    DriverCounters {
        from_device: flow(now.from_device, before.from_device),
        to_switch: flow(now.to_switch, before.to_switch),
        from_switch: flow(now.from_switch, before.from_switch),
        to_device: flow(now.to_device, before.to_device),
        ..now
    }
}

#[test]
#[ignore = "needs root"]
fn the_short_header_of_older_kernels_does_as_well() {
    talk_over(PacketOptions { short_header: true, ..PacketOptions::default() });
}

/// Where the kernel has no memory for a ring.
#[test]
#[ignore = "needs root"]
fn system_calls_alone_do_as_well() {
    talk_over(PacketOptions { ring: false, ..PacketOptions::default() });
}

/// Two wires that are opened in the same way.
fn talk_over(options: PacketOptions) {
    let mut lab = Lab::new(1);
    let one = lab.packet_port(1, 1500, options);
    let two = lab.packet_port(2, 1500, options);
    talk(&one, &two);
    lab.assert_conserved();
}

/// Short frames are in the ring, long ones at the socket.
#[test]
#[ignore = "needs root"]
fn short_and_long_frames_keep_their_order() {
    const ROUNDS: u32 = 20;
    const WINDOW: u32 = 32;
    let mut lab = Lab::new(1);
    let one = lab.packet_port(1, 9000, PacketOptions::default());
    let two = lab.packet_port(2, 9000, PacketOptions::default());
    datagrams(&one, &two, "192.0.2.2", &[1]);
    let there = two.within(|| UdpSocket::bind("192.0.2.2:0")).unwrap();
    let here = one.within(|| UdpSocket::bind("0.0.0.0:0")).unwrap();
    there.set_read_timeout(Some(PATIENCE)).unwrap();
    let len = |number: u32| [18, 8000, 1600, 2100, 20, 30, 8972, 8972][number as usize * 7 % 8];
    let mut bytes = vec![0; 9000];
    for first in (0..ROUNDS * WINDOW).step_by(WINDOW as usize) {
        for number in first..first + WINDOW {
            bytes[..4].copy_from_slice(&number.to_be_bytes());
            here.send_to(&bytes[..len(number)], there.local_addr().unwrap()).unwrap();
        }
        for number in first..first + WINDOW {
            let received = there.recv(&mut bytes).unwrap();
            assert_eq!((received, &bytes[..4]), (len(number), &number.to_be_bytes()[..]));
        }
    }
    lab.assert_conserved();
}

/// They came before the port had a switch. The socket takes one long frame beyond its limit, and no further one.
#[test]
#[ignore = "needs root"]
fn frames_that_waited_are_dropped_and_those_without_room_missed() {
    let mut lab = Lab::new(1);
    let one = lab.wire("wire1", "192.0.2.1", 9000);
    one.run("ip neighbour add 192.0.2.9 lladdr 02:00:00:00:00:09 dev eth0 nud permanent");
    let device = lab.open_packet("wire1", PacketOptions::default());
    assert!(device.facts.ring.is_some());
    rustix::net::sockopt::set_socket_recv_buffer_size(&device.descriptors[0], 1).unwrap();
    let socket = one.within(|| UdpSocket::bind("0.0.0.0:0")).unwrap();
    for len in [18, 8000, 8000, 19, 8000, 20] {
        socket.send_to(&vec![0; len], "192.0.2.9:9").unwrap();
    }
    lab.attach(1, device);
    let counters = lab.port(1).counters;
    assert_eq!(counters.missed, 2, "{counters:?}");
    assert!(counters.dropped(DeviceDropReason::NoSwitch) >= 4, "{counters:?}");
    lab.assert_conserved();
}

/// Otherwise the kernel would take a frame's partial checksum for a complete one.
#[test]
#[ignore = "needs root"]
fn checksums_and_segments_are_right_on_wires_that_do_neither() {
    let mut lab = Lab::new(1);
    let one = lab.packet_port(1, 1500, PacketOptions::default());
    let two = lab.packet_port(2, 1500, PacketOptions::default());
    for name in ["wire1", "wire2"] {
        lab.host.run(&format!("ethtool -K {name} tx off tso off gso off"));
    }
    for namespace in [&one, &two] {
        namespace.run("ethtool -K eth0 rx off gro off");
    }
    talk(&one, &two);
    for namespace in [&one, &two] {
        namespace.run("ethtool -K eth0 tx off tso off gso off");
    }
    talk(&one, &two);
    lab.assert_conserved();
}

#[test]
#[ignore = "needs root"]
fn long_frames_pass_whole() {
    let mut lab = Lab::new(1);
    let one = lab.packet_port(1, 9000, PacketOptions::default());
    let two = lab.packet_port(2, 9000, PacketOptions::default());
    let three = lab.tap_port(3, TapOptions { mtu_bytes: Some(9000), ..TapOptions::default() });
    for (namespace, device) in [(&one, "eth0"), (&two, "eth0"), (&three, "tap0")] {
        namespace.run(&format!("ethtool -K {device} tso off gso off"));
    }
    talk(&one, &two);
    let before = lab.port(1).counters;
    datagrams(&one, &two, "192.0.2.2", &[8972]);
    let counters = since(lab.port(1).counters, before);
    assert!(counters.to_switch.bytes >= 9014 && counters.from_switch.bytes >= 9014, "{counters:?}");
    stream(&one, &three, "192.0.2.3", 4 * MIB);
    stream(&three, &two, "[fd00::2]", 4 * MIB);
    datagrams(&one, &three, "192.0.2.3", &[8972]);
    lab.assert_conserved();
}

#[test]
#[ignore = "needs root"]
fn several_queues_share_the_flows() {
    let mut lab = Lab::new(2);
    let one = lab.tap_port(1, TapOptions { queues: 2, ..TapOptions::default() });
    let two = lab.packet_port(2, 1500, PacketOptions { queues: 2, ..PacketOptions::default() });
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| stream(&one, &two, "192.0.2.2", 2 * MIB));
            scope.spawn(|| stream(&two, &one, "[fd00::1]", 2 * MIB));
        }
    });
    datagrams(&one, &two, "192.0.2.2", &[1, 1472, 9000]);
    let threads = lab.driver.stats().unwrap().threads;
    assert_eq!(threads.iter().map(|thread| thread.lanes).collect::<Vec<_>>(), [2, 2]);
    for number in [1, 2] {
        let flows = lab.driver.queue_counters(lasthop_driver::DevicePortId(number)).unwrap();
        assert!(flows.iter().all(|queue| queue.from_device.frames > 0), "{flows:?}");
        assert_eq!(flows.len(), 2);
    }
    lab.assert_conserved();
}

#[test]
#[ignore = "needs root"]
fn only_frames_too_long_for_the_wire_are_dropped() {
    let mut lab = Lab::new(1);
    let one = lab.tap_port(1, TapOptions { mtu_bytes: Some(9000), ..TapOptions::default() });
    let two = lab.packet_port(2, 1500, PacketOptions::default());
    datagrams(&one, &two, "192.0.2.2", &[1, 1472]);
    let sender = one.within(|| UdpSocket::bind("0.0.0.0:0")).unwrap();
    for _ in 0..3 {
        sender.send_to(&[0; 5000], "192.0.2.2:9").unwrap();
    }
    let dropped = || lab.port(2).counters.dropped(DeviceDropReason::TooLong);
    eventually("long frames are dropped", || dropped() == 3);
    datagrams(&one, &two, "192.0.2.2", &[1, 1472]);
    stream(&one, &two, "192.0.2.2", MIB);
    assert_eq!(dropped(), 3);
    lab.assert_conserved();
}

#[test]
#[ignore = "needs root"]
fn datagrams_pass_unsegmented_where_kernels_can() {
    let mut lab = Lab::new(1);
    let one = lab.packet_port(1, 1500, PacketOptions::default());
    let two = lab.tap_port(2, TapOptions::default());
    let old = lab.packet_port(3, 1500, PacketOptions { short_header: true, ..PacketOptions::default() });
    datagrams(&one, &two, "192.0.2.2", &[1]);
    let before = (lab.port(1).counters, lab.port(2).counters);
    segmented_datagrams(&one, &two, "192.0.2.2");
    segmented_datagrams(&two, &one, "[fd00::1]");
    for (now, before) in [(lab.port(1).counters, before.0), (lab.port(2).counters, before.1)] {
        let counters = since(now, before);
        // 20 of these, and other packets of the hosts.
        assert!(counters.from_device.frames < 100 && counters.to_device.frames < 100, "{counters:?}");
        assert!(counters.from_device.bytes > 200_000 && counters.to_device.bytes > 200_000, "{counters:?}");
    }
    // For a kernel without the feature the switch segments them.
    segmented_datagrams(&one, &old, "192.0.2.3");
    segmented_datagrams(&two, &old, "[fd00::3]");
    assert!(lab.port(3).counters.to_device.frames >= 400, "{:?}", lab.port(3).counters);
    lab.assert_conserved();
}
