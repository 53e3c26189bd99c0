//! Frames whose metadata is wrong are dropped for a named reason; their ring continues.

use lasthop_module_api::DropReason;
use lasthop_ring::{DESC_NEXT, Descriptor};
use lasthop_wire::Offload;
use lasthop_wire::vnet::{F_NEEDS_CSUM, GSO_TCPV4};

use super::*;

fn offload(gso_type: u8, gso_size: u16, csum_start: u16, csum_offset: u16) -> Offload {
    Offload { flags: F_NEEDS_CSUM, gso_type, hdr_len: 54, gso_size, csum_start, csum_offset }
}

#[test]
fn wrong_metadata_drops_the_frame_by_name_and_no_other() {
    let mut scene = Scene::new();
    let (port, mut guest) = scene.attach("bad", GuestOptions::default());
    let cases = [
        (offload(0, 0, 60_000, 16), DropReason::BadCsum),
        (offload(0, 0, u16::MAX, u16::MAX), DropReason::BadCsum),
        (offload(0, 0, 190, 16), DropReason::BadCsum),
        (offload(GSO_TCPV4, 0, 34, 16), DropReason::BadGso),
        (offload(GSO_TCPV4, 1, 34, 16), DropReason::BadGso),
        (offload(77, 1448, 34, 16), DropReason::BadGso),
        (Offload { flags: 0, ..offload(GSO_TCPV4, 1448, 34, 16) }, DropReason::BadGso),
    ];
    for (sent, (offload, reason)) in (1..).zip(cases) {
        let before = scene.switch.port(port).counters.rx_drops.of(reason);
        assert!(guest.send(0, &frame(OTHER, BAD, sent, 200), offload).unwrap());
        guest.flush(0).unwrap();
        eventually(reason.name(), || scene.switch.port(port).counters.rx_drops.of(reason) == before + 1);
        assert_eq!(scene.switch.port(port).state, PortState::Running);
        scene.talk();
    }
    let greeting = frame(OTHER, BAD, 99, 64);
    send(&mut guest, &greeting);
    assert_eq!(receive_mine(&mut scene.other, OTHER), greeting);
    scene.assert_unharmed();
}

#[test]
fn frames_that_are_none_are_dropped_by_name_and_their_ring_goes_on() {
    let mut scene = Scene::new();
    let (port, mut guest) = scene.attach("bad", GuestOptions::default());
    for len in 0..14 {
        assert!(guest.send(0, &frame(OTHER, BAD, 0, 64)[..len], Offload::default()).unwrap());
    }
    guest.flush(0).unwrap();
    let dropped = || scene.switch.port(port).counters.rx_drops.of(DropReason::TooShort);
    eventually("all are dropped", || dropped() == 14);
    assert_eq!(scene.switch.port(port).state, PortState::Running);
    scene.assert_unharmed();
}

#[test]
fn a_chain_that_goes_on_for_ever_is_too_long_and_its_ring_goes_on() {
    let mut scene = Scene::new();
    let (port, mut guest) = scene.attach("bad", GuestOptions::default());
    let ring = guest.transmit_ring(0).unwrap();
    let at = ring.next_head().unwrap();
    let to_itself = Descriptor { addr: 0x1_0000_0000, len: 64, flags: DESC_NEXT, next: at };
    ring.set_raw_descriptor(at, to_itself);
    ring.publish_raw_head(at);
    guest.kick(0).unwrap();
    let dropped = || scene.switch.port(port).counters.rx_drops.of(DropReason::ChainTooLong);
    eventually("it is dropped", || dropped() == 1);
    assert_eq!(scene.switch.port(port).state, PortState::Running);
    scene.assert_healed(port, &mut guest);
    scene.assert_unharmed();
}
