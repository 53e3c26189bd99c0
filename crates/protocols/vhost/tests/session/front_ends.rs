//! The message sequences of real front ends, as observed with Linux 6.1 UML, QEMU 7.2 and DPDK 22.11 virtio-user.

use std::os::fd::AsFd;

use lasthop_guestmem::memfd;
use lasthop_vhost::front::encode_memory_table;
use lasthop_vhost::message::{MemoryRegionMessage, request};
use lasthop_vhost::{SessionEnd, features};

use crate::host::{Call, Host, OFFERED, Recorder, USER, addresses, event, memory_file, region, started};

const BIT_30: u64 = features::PROTOCOL_FEATURES;

#[test]
fn uml() {
    let mut host = Host::plain();
    host.ask(request::SET_OWNER);
    assert_eq!(host.ask(request::GET_FEATURES), Some(OFFERED | BIT_30));
    host.ask(request::GET_PROTOCOL_FEATURES);
    host.negotiate_acks(); // from here on each message asks for an acknowledgement, this one included
    assert_eq!(host.tell_u64(request::SET_FEATURES, OFFERED | BIT_30), Some(0));
    assert_eq!(host.tell_u64(request::SET_FEATURES, OFFERED), Some(0));
    let offset = 0x2b00_0000;
    let file = memfd("uml", offset + 0x10_0000).unwrap();
    let memory = MemoryRegionMessage { guest_addr: offset, user_addr: offset, offset, size: 0x10_0000 };
    let mut table = encode_memory_table(&[memory]);
    table.resize(72, 0);
    assert_eq!(host.tell(request::SET_MEM_TABLE, table, &[file.as_fd()]), Some(0));
    for index in 0..2 {
        assert_eq!(host.tell_eventfd(request::SET_VRING_CALL, index), Some(0));
        let ring = index as u32;
        assert_eq!(host.tell_ring(request::SET_VRING_NUM, ring, 256), Some(0));
        assert_eq!(host.tell_ring(request::SET_VRING_BASE, ring, 0), Some(0));
        assert_eq!(host.tell(request::SET_VRING_ADDR, addresses(ring, offset).encode(), &[]), Some(0));
        assert_eq!(host.tell_eventfd(request::SET_VRING_KICK, index), Some(0));
    }
    let expected = [
        Call::Features(OFFERED),
        Call::Features(OFFERED),
        Call::Memory(1),
        started(0, 0, true),
        started(1, 0, true),
    ];
    assert_eq!(host.device.calls(), expected);
    host.front.shutdown(std::net::Shutdown::Both).unwrap();
    assert!(matches!(host.ready(), Err(SessionEnd::HungUp)));
    host.session = None;
    assert_eq!(host.device.calls(), [Call::Stop(0), Call::Stop(1)]);
}

/// QEMU's messages about each ring, which it sends first and repeats later.
fn qemu_prepares(host: &mut Host) {
    for index in 0..4 {
        host.tell_eventfd(request::SET_VRING_CALL, index);
        host.tell_eventfd(request::SET_VRING_ERR, index);
    }
    for index in 0..4 {
        host.tell_ring(request::SET_VRING_ENABLE, index, u32::from(index < 2));
    }
}

fn qemu_starts_ring(host: &mut Host, index: u32) {
    let base = host.base_of(index);
    host.tell_ring(request::SET_VRING_NUM, index, 256);
    host.tell_ring(request::SET_VRING_BASE, index, base);
    host.tell(request::SET_VRING_ADDR, addresses(index, USER).encode(), &[]);
    host.tell_eventfd(request::SET_VRING_KICK, u64::from(index));
    host.tell_eventfd(request::SET_VRING_CALL, u64::from(index));
}

#[test]
fn qemu() {
    let mut host = Host::new(Recorder::new(OFFERED, 2));
    for _ in 0..3 {
        host.ask(request::GET_FEATURES);
    }
    host.ask(request::GET_PROTOCOL_FEATURES);
    host.tell_u64(request::SET_PROTOCOL_FEATURES, 1 | 1 << 3 | 1 << 4 | 1 << 16);
    assert_eq!(host.ask(request::GET_QUEUE_NUM), Some(4));
    host.ask(request::SET_OWNER);
    qemu_prepares(&mut host);
    qemu_prepares(&mut host);
    assert_eq!(host.device.calls(), []);
    host.tell_u64(request::SET_FEATURES, OFFERED | BIT_30);
    host.tell_u64(request::SET_STATUS, 8);
    let file = memory_file();
    host.flags |= 8;
    assert_eq!(host.tell_memory(&[region()], &[&file]), Some(0));
    host.flags = 1;
    for index in 0..2 {
        qemu_starts_ring(&mut host, index);
    }
    // Further pairs repeat the features; running rings are not affected.
    host.tell_u64(request::SET_FEATURES, OFFERED | BIT_30);
    host.tell_u64(request::SET_STATUS, 15);
    let expected = [
        Call::Features(OFFERED),
        Call::Memory(1),
        started(0, 0, true),
        Call::Signal(0, true),
        started(1, 0, true),
        Call::Signal(1, true),
        Call::Features(OFFERED),
    ];
    assert_eq!(host.device.calls(), expected);
    qemu_ends(&mut host);
}

fn qemu_ends(host: &mut Host) {
    host.device.notes().progress = 21;
    host.tell_u64(request::SET_STATUS, 0);
    assert_eq!(host.device.calls(), [Call::Stop(0), Call::Stop(1), Call::Features(0)]);
    let bases: Vec<_> = (0..4).map(|index| host.base_of(index)).collect();
    assert_eq!(bases, [21, 21, 0, 0]);
    host.front.shutdown(std::net::Shutdown::Both).unwrap();
    assert!(matches!(host.ready(), Err(SessionEnd::HungUp)));
    host.session = None;
    assert_eq!(host.device.calls(), []);
}

#[test]
fn a_qemu_guest_that_reboots_goes_on() {
    let mut host = Host::new(Recorder::new(OFFERED, 2));
    host.tell_u64(request::SET_PROTOCOL_FEATURES, 1 | 1 << 3 | 1 << 13 | 1 << 15);
    let file = memory_file();
    host.tell_region(request::ADD_MEM_REG, region(), &[&file]);
    for boot in 0..3 {
        qemu_prepares(&mut host);
        host.tell_u64(request::SET_FEATURES, OFFERED | BIT_30);
        for index in 0..2 {
            host.tell_ring(request::SET_VRING_BASE, index, 0);
            qemu_starts_ring(&mut host, index);
        }
        assert!(host.device.notes().running.values().all(|start| start.enabled), "boot {boot}");
        assert_eq!(host.running(), [0, 1], "boot {boot}");
        host.ask(request::RESET_DEVICE);
        host.base_of(0);
        host.base_of(1);
        assert_eq!(host.running(), []);
    }
    assert_eq!(host.device.notes().maps.len(), 1, "memory was told once");
}

#[test]
fn virtio_user() {
    let mut host = Host::plain();
    host.ask(request::SET_OWNER);
    host.ask(request::GET_FEATURES);
    host.ask(request::GET_PROTOCOL_FEATURES);
    host.tell_u64(request::SET_PROTOCOL_FEATURES, 1 | 1 << 3 | 1 << 16);
    assert_eq!(host.ask(request::GET_QUEUE_NUM), Some(2));
    for status in [0, 1, 3] {
        host.tell_u64(request::SET_STATUS, status);
        assert_eq!(host.ask(request::GET_STATUS), Some(status));
    }
    host.tell_u64(request::SET_FEATURES, features::MRG_RXBUF | features::VERSION_1 | BIT_30);
    host.tell_u64(request::SET_STATUS, 11);
    assert_eq!(host.ask(request::GET_STATUS), Some(11));
    for index in 0..2 {
        host.tell_eventfd(request::SET_VRING_CALL, index);
    }
    let file = memory_file();
    host.flags |= 8;
    assert_eq!(host.tell_memory(&[region()], &[&file]), Some(0));
    host.flags = 1;
    for index in 0..2 {
        host.lay_out(index);
        host.tell_eventfd(request::SET_VRING_KICK, u64::from(index));
    }
    host.tell_ring(request::SET_VRING_ENABLE, 0, 1);
    host.tell_ring(request::SET_VRING_ENABLE, 1, 1);
    host.tell_u64(request::SET_STATUS, 15);
    let expected = [
        Call::Features(0),
        Call::Features(features::MRG_RXBUF | features::VERSION_1),
        Call::Memory(1),
        started(0, 0, false),
        started(1, 0, false),
        Call::Enabled(0, true),
        Call::Enabled(1, true),
    ];
    assert_eq!(host.device.calls(), expected);
    host.tell_ring(request::SET_VRING_ENABLE, 0, 0);
    assert_eq!((host.base_of(0), host.base_of(1)), (0, 0));
    host.tell_u64(request::SET_STATUS, 0);
    let expected = [Call::Enabled(0, false), Call::Stop(0), Call::Stop(1), Call::Features(0)];
    assert_eq!(host.device.calls(), expected);
}

#[test]
fn a_front_end_without_protocol_features_has_enabled_rings() {
    let mut host = Host::plain();
    host.ask(request::SET_OWNER);
    host.tell_u64(request::SET_FEATURES, features::VERSION_1);
    let file = memory_file();
    host.tell_memory(&[region()], &[&file]);
    host.lay_out(0);
    let kick = event();
    host.tell(request::SET_VRING_KICK, 0_u64.to_ne_bytes().to_vec(), &[kick.as_fd()]);
    let expected = Call::Start { index: 0, base: 0, kick: true, call: false, enabled: true };
    assert_eq!(host.device.calls()[2..], [expected]);
}
