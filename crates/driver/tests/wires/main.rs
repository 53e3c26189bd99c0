//! A driver between real devices and a real switch: veth pairs and taps in network namespaces, and the kernels' own stacks at
//! the far ends. Needs root.

mod lab;
mod talk;

use lab::Lab;
use lasthop_driver::open::{PacketOptions, TapOptions};
use talk::{datagrams, stream};

const MIB: usize = 1 << 20;

#[test]
fn streams_pass_between_two_wires() {
    let mut lab = Lab::new(1);
    let one = lab.packet_port(1, 1500, PacketOptions::default());
    let two = lab.packet_port(2, 1500, PacketOptions::default());
    stream(&one, &two, "192.0.2.2", 16 * MIB);
    stream(&two, &one, "[fd00::1]", 16 * MIB);
    datagrams(&one, &two, "192.0.2.2", &[1, 18, 100, 1472, 1473, 9000, 60000]);
    datagrams(&two, &one, "[fd00::1]", &[1, 18, 100, 1452, 9000]);
    lab.assert_conserved();
}

#[test]
fn a_host_behind_a_tap_and_a_wire_talk() {
    let mut lab = Lab::new(1);
    let one = lab.tap_port(1, TapOptions::default());
    let two = lab.packet_port(2, 1500, PacketOptions::default());
    stream(&one, &two, "192.0.2.2", 16 * MIB);
    stream(&two, &one, "192.0.2.1", 16 * MIB);
    stream(&one, &two, "[fd00::2]", 4 * MIB);
    stream(&two, &one, "[fd00::1]", 4 * MIB);
    datagrams(&one, &two, "192.0.2.2", &[1, 1472, 9000]);
    datagrams(&two, &one, "[fd00::1]", &[1, 1452, 9000]);
    lab.assert_conserved();
}
