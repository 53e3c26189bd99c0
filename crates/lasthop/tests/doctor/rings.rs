//! Drivers that are absent, incomplete, broken, or do not receive their frames.

use lasthop_frontend::{Guest, GuestOptions};
use lasthop_vhost::features;

use crate::fake::Fake;
use crate::{ONE, TWO, blames, guest, guest_with, logs, send, warns};
use lasthop_rig::Switch;

#[test]
fn a_driver_that_is_absent_is_told() {
    let switch = Switch::start(&["--vnic", "vm1"]);
    let _fake = Fake::connect(&switch, "vm1");
    blames(&switch, &["vm1 negotiation", "virtio-net driver has not started", "modprobe virtio_net"]);
}

#[test]
fn a_driver_that_is_not_ready_is_told() {
    let switch = Switch::start(&["--vnic", "vm1"]);
    let mut fake = Fake::negotiated(&switch, "vm1");
    fake.share();
    blames(&switch, &["vm1 rings", "no ring was started", "DRIVER_OK"]);
}

#[test]
fn a_driver_that_gave_up_is_told() {
    let switch = Switch::start(&["--vnic", "vm1"]);
    let mut fake = Fake::negotiated(&switch, "vm1");
    fake.front.set_status(128 | 3).expect("status");
    blames(&switch, &["vm1 negotiation", "status FAILED", "dmesg"]);
}

#[test]
fn features_that_were_not_offered_are_told() {
    let switch = Switch::start(&["--vnic", "vm1"]);
    let mut fake = Fake::connect(&switch, "vm1");
    let offered = fake.front.get_features().expect("features");
    assert!(fake.front.set_features(offered | features::RSS).is_err());
    blames(&switch, &["vm1 negotiation", "not offered", "RSS"]);
}

#[test]
fn an_interface_that_is_down_is_told() {
    let switch = Switch::start(&["--vnic", "vm1"]);
    let mut fake = Fake::negotiated(&switch, "vm1");
    fake.share();
    fake.start_rings();
    blames(&switch, &["vm1 rings", "interface is down", "ip link set"]);
}

#[test]
fn rings_that_the_front_end_disabled_are_told() {
    let switch = Switch::start(&["--vnic", "vm1"]);
    let mut guest = guest(&switch, "vm1", ONE);
    for index in 0..2 {
        guest.front().set_vring_enable(index, false).expect("disabled");
    }
    blames(&switch, &["vm1 rings", "disabled by the front end", "set_link"]);
}

#[test]
fn a_ring_that_its_driver_broke_is_told() {
    let switch = Switch::start(&["--vnic", "vm1"]);
    let mut guest = guest(&switch, "vm1", ONE);
    let ring = guest.transmit_ring(0).expect("a queue");
    ring.add(&[(1 << 50, 100)], &[], 0).expect("added");
    ring.publish();
    guest.kick(0).expect("kicked");
    blames(&switch, &["vm1 rings", "ring 1", "stopped", "outside guest memory"]);
    logs(&switch, &["port vm1: its rings are stopped: ", "outside guest memory"]);
}

#[test]
fn a_guest_that_does_not_take_packets_is_told() {
    let switch = Switch::start(&["--vnic", "vm1", "--vnic", "vm2"]);
    let mut one = guest(&switch, "vm1", ONE);
    let _two =
        guest_with(&switch, "vm2", GuestOptions { mac: TWO, rx_buffers: 4, ..GuestOptions::default() });
    for _ in 0..20 {
        send(&mut one, TWO, ONE, 60);
    }
    blames(&switch, &["vm2 rings", "does not take packets"]);
}

#[test]
fn a_guest_with_fewer_queues_is_told() {
    let switch = Switch::start(&["--vnic", "vm1,queues=4"]);
    let _guest = guest(&switch, "vm1", ONE);
    warns(&switch, &["vm1 rings", "queue count mismatch", "1 of 4", "mq=on"]);
}

#[test]
fn a_guest_with_more_queues_is_told() {
    let switch = Switch::start(&["--vnic", "vm1"]);
    let options = GuestOptions { queue_pairs: 2, ..GuestOptions::default() };
    assert!(Guest::connect(switch.path("vm1.sock"), options).is_err());
    blames(&switch, &["vm1 peer", "names ring 2", "more queue pairs"]);
}

#[test]
fn a_guest_whose_calls_block_is_told() {
    use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
    let switch = Switch::start(&["--vnic", "vm1", "--vnic", "vm2"]);
    let (mut one, two) = (guest(&switch, "vm1", ONE), guest(&switch, "vm2", TWO));
    let call = two.call_fds().next().expect("a queue");
    while rustix::io::write(call, &(u64::MAX - 1).to_ne_bytes()).is_err() {
        let _ = rustix::io::read(call, &mut [0_u8; 8][..]); // it may have been signalled meanwhile
    }
    fcntl_setfl(call, fcntl_getfl(call).expect("flags") - OFlags::NONBLOCK).expect("flags");
    send(&mut one, [0xff; 6], ONE, 60);
    blames(&switch, &["vm2 rings", "call eventfd blocks", "restart the guest"]);
    logs(&switch, &["port vm2: its rings are stopped: a call eventfd blocks"]);
}

#[test]
fn a_transmit_chain_of_writable_buffers_is_told() {
    let switch = Switch::start(&["--vnic", "vm1"]);
    let mut guest = guest(&switch, "vm1", ONE);
    let ring = guest.transmit_ring(0).expect("a queue");
    ring.add(&[], &[(0x1_0000_0000, 100)], 0).expect("added");
    ring.publish();
    guest.kick(0).expect("kicked");
    blames(&switch, &["vm1 rings", "ring 1", "wrong direction"]);
}
