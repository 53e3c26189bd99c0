//! VLAN tags. The kernel removes them from received frames and reports them beside; a frame has to leave the far switch
//! as it entered the near one.

use lasthop_device::DeviceDropReason;
use lasthop_frontend::{Guest, GuestOptions};
use lasthop_netdev::PacketOptions;
use lasthop_wire::vnet::{F_NEEDS_CSUM, GSO_TCPV4, Offload};

use crate::lab::{Lab, QUEUE_PAIRS};
use crate::support::{PATIENCE, Switch, eventually};

const TAG: [u8; 4] = [0x81, 0, 0x60, 5];
const SERVICE_TAG: [u8; 4] = [0x88, 0xa8, 0, 7];

/// A TCP segment with a partial checksum, behind tags, and its metadata.
fn segment(tags: &[[u8; 4]], payload_bytes: usize) -> (Vec<u8>, Offload) {
    let mut frame = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1];
    frame.extend(tags.concat());
    let total = (40 + payload_bytes) as u16;
    frame.extend([0x08, 0, 0x45, 0]);
    frame.extend(total.to_be_bytes());
    frame.extend([0, 1, 0x40, 0, 64, 6, 0, 0, 192, 0, 2, 1, 192, 0, 2, 2]);
    let ip = frame.len() - 20;
    let header_sum = !sum(&frame[ip..]);
    frame[ip + 10..ip + 12].copy_from_slice(&header_sum.to_be_bytes());
    let tcp = frame.len();
    frame.extend([0x12, 0x34, 0, 80, 0, 0, 0, 1, 0, 0, 0, 2, 0x50, 0x10, 0xff, 0xff, 0, 0, 0, 0]);
    let pseudo =
        sum(&[&frame[ip + 12..ip + 20], &[0, 6], &((20 + payload_bytes) as u16).to_be_bytes()].concat());
    frame[tcp + 16..tcp + 18].copy_from_slice(&pseudo.to_be_bytes());
    frame.extend((0..payload_bytes).map(|at| (at * 13) as u8));
    let is_gso = payload_bytes > 1400;
    let offload = Offload {
        flags: F_NEEDS_CSUM,
        gso_type: if is_gso { GSO_TCPV4 } else { 0 },
        hdr_len: if is_gso { tcp as u16 + 20 } else { 0 },
        gso_size: if is_gso { 1400 } else { 0 },
        csum_start: tcp as u16,
        csum_offset: 16,
    };
    (frame, offload)
}

/// The one's complement sum of 16-bit words (RFC 1071); the number of bytes is even.
fn sum(bytes: &[u8]) -> u16 {
    let words = bytes.chunks_exact(2).map(|word| u32::from(u16::from_be_bytes([word[0], word[1]])));
    let sum: u32 = words.sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    ((folded & 0xffff) + (folded >> 16)) as u16
}

/// The next frame of 0x0800 behind any tags; hosts on the path send other frames now and then.
fn receive(guest: &mut Guest) -> (Vec<u8>, Offload) {
    let (mut bytes, mut offload) = (Vec::new(), None);
    eventually("the frame arrives", || {
        guest.wait(Some(PATIENCE)).unwrap();
        while let Some(frame) = guest.recv(0, &mut bytes).unwrap() {
            if bytes[..6] == [2, 0, 0, 0, 0, 2] {
                offload = Some(frame.offload);
                return true;
            }
        }
        false
    });
    (bytes, offload.unwrap())
}

/// Sends tagged frames from a guest over a switch, a wire and another switch to another guest.
fn cross(options: PacketOptions) {
    let mut lab = Lab::new(1);
    let far = Switch::start();
    lab.host.run("ip link add near type veth peer name far");
    lab.host.run("sysctl -qw net.ipv6.conf.near.disable_ipv6=1 net.ipv6.conf.far.disable_ipv6=1");
    lab.host.run("ip link set near up");
    lab.host.run("ip link set far up");
    let near = lab.open_packet("near", options);
    let near = lab.attach(1, near);
    let device = lab.open_packet("far", options);
    let port = far.add_port("far", QUEUE_PAIRS);
    lab.driver
        .attach(lasthop_driver::DevicePortId(2), device.facts, device.descriptors, far.serve(port).0)
        .unwrap();
    let guest = |switch: &Switch| {
        let port = switch.add_port("guest", QUEUE_PAIRS);
        Guest::over(switch.serve(port).0, GuestOptions::default()).unwrap()
    };
    let (mut one, mut two) = (guest(&lab.switch), guest(&far));
    let tags: [&[[u8; 4]]; 4] = [&[], &[TAG], &[SERVICE_TAG], &[SERVICE_TAG, TAG]];
    for tags in tags {
        for payload_bytes in [20, 1400, 9000, 60000] {
            let (frame, offload) = segment(tags, payload_bytes);
            assert!(one.send(0, &frame, offload).unwrap());
            one.flush(0).unwrap();
            let (received, told) = receive(&mut two);
            assert!(
                received == frame,
                "{tags:x?} {payload_bytes}: {:x?}",
                &received[..received.len().min(80)]
            );
            assert_eq!(
                (told.flags, told.csum_start, told.gso_type, told.gso_size),
                (offload.flags, offload.csum_start, offload.gso_type, offload.gso_size)
            );
        }
    }
    drop((one, two));
    let counters = lab.port(near.0).counters;
    assert!(DeviceDropReason::ALL.iter().all(|reason| counters.dropped(*reason) == 0), "{counters:?}");
    lab.assert_conserved();
}

#[test]
#[ignore = "needs root"]
fn tags_that_the_kernel_takes_out_are_put_back() {
    cross(PacketOptions::default());
}

#[test]
#[ignore = "needs root"]
fn tags_are_put_back_behind_a_short_header() {
    cross(PacketOptions { short_header: true, ..PacketOptions::default() });
}

#[test]
#[ignore = "needs root"]
fn tags_are_put_back_without_a_ring() {
    cross(PacketOptions { ring: false, ..PacketOptions::default() });
}
