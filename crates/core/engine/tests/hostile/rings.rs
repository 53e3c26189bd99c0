//! A fault in a ring stops it, and names the fault; a reset heals it.

use lasthop_ring::{DESC_INDIRECT, DESC_NEXT, DESC_WRITE, Descriptor, DriverRing};
use lasthop_vhost::features;

use super::*;

/// Start of the guest's memory (crates/protocols/frontend).
const MEMORY: u64 = 0x1_0000_0000;
const TABLE_BYTES: usize = 4 * Descriptor::BYTES as usize;

fn bad(addr: u64, len: u32, flags: u16, next: u16) -> Descriptor {
    Descriptor { addr, len, flags, next }
}

/// The expected error of a ring, and the code that causes the fault.
type Attack = (&'static str, fn(&mut DriverRing, u16));

fn one_descriptor(ring: &mut DriverRing, at: u16, descriptor: Descriptor) {
    ring.set_raw_descriptor(at, descriptor);
    ring.publish_raw_head(at);
}

const TRANSMIT: &[Attack] = &[
    ("outside guest memory", |ring, at| one_descriptor(ring, at, bad(0xdead_0000_0000, 64, 0, 0))),
    ("outside guest memory", |ring, at| one_descriptor(ring, at, bad(u64::MAX - 8, 64, 0, 0))),
    ("outside guest memory", |ring, at| one_descriptor(ring, at, bad(MEMORY - 32, 64, 0, 0))),
    ("outside guest memory", |ring, at| one_descriptor(ring, at, bad(MEMORY, u32::MAX, 0, 0))),
    ("empty descriptors in one chain", |ring, at| one_descriptor(ring, at, bad(MEMORY, 0, DESC_NEXT, at))),
    ("wrong direction", |ring, at| one_descriptor(ring, at, bad(MEMORY, 64, DESC_WRITE, 0))),
    ("descriptor index 65535", |ring, at| one_descriptor(ring, at, bad(MEMORY, 64, DESC_NEXT, u16::MAX))),
    ("descriptor index 40000", |ring, _| ring.publish_raw_head(40_000)),
    ("available index jumped", |ring, _| ring.set_raw_index(ring.published_position().wrapping_add(30_000))),
    ("available index jumped", |ring, _| ring.set_raw_index(ring.published_position().wrapping_sub(1))),
    ("indirect table of 17 bytes", |ring, at| one_descriptor(ring, at, bad(MEMORY, 17, DESC_INDIRECT, 0))),
    ("indirect table of 0 bytes", |ring, at| one_descriptor(ring, at, bad(MEMORY, 0, DESC_INDIRECT, 0))),
    ("outside guest memory", |ring, at| one_descriptor(ring, at, bad(0xdead_0000, 64, DESC_INDIRECT, 0))),
];

const RECEIVE: &[Attack] = &[
    ("outside guest memory", |ring, at| one_descriptor(ring, at, bad(0xdead_0000_0000, 2048, DESC_WRITE, 0))),
    ("wrong direction", |ring, at| one_descriptor(ring, at, bad(MEMORY, 2048, 0, 0))),
    ("receive buffer of no bytes", |ring, at| one_descriptor(ring, at, bad(MEMORY, 0, DESC_WRITE, 0))),
    ("descriptor index 40000", |ring, _| ring.publish_raw_head(40_000)),
    ("available index jumped", |ring, _| ring.set_raw_index(ring.published_position().wrapping_add(30_000))),
    ("indirect table of 17 bytes", |ring, at| {
        one_descriptor(ring, at, bad(MEMORY, 17, DESC_INDIRECT | DESC_WRITE, 0));
    }),
];

const PACKED_TRANSMIT: &[Attack] = &[
    ("outside guest memory", |ring, at| one_descriptor(ring, at, bad(0xdead_0000_0000, 64, 0, 0))),
    ("outside guest memory", |ring, at| one_descriptor(ring, at, bad(MEMORY, u32::MAX, 0, 0))),
    ("wrong direction", |ring, at| one_descriptor(ring, at, bad(MEMORY, 64, DESC_WRITE, 0))),
    ("descriptor index 40000", |ring, _| one_descriptor(ring, 40_000, bad(MEMORY, 64, 0, 0))),
    ("indirect table of 17 bytes", |ring, at| one_descriptor(ring, at, bad(MEMORY, 17, DESC_INDIRECT, 0))),
    ("outside guest memory", |ring, at| one_descriptor(ring, at, bad(0xdead_0000, 64, DESC_INDIRECT, 0))),
    ("chain loops", |ring, at| {
        (0..ring.entries()).for_each(|_| one_descriptor(ring, at, bad(MEMORY, 64, DESC_NEXT, 0)));
    }),
];

const PACKED_RECEIVE: &[Attack] = &[
    ("outside guest memory", |ring, at| one_descriptor(ring, at, bad(0xdead_0000_0000, 2048, DESC_WRITE, 0))),
    ("wrong direction", |ring, at| one_descriptor(ring, at, bad(MEMORY, 2048, 0, 0))),
    ("receive buffer of no bytes", |ring, at| one_descriptor(ring, at, bad(MEMORY, 0, DESC_WRITE, 0))),
    ("descriptor index 40000", |ring, _| one_descriptor(ring, 40_000, bad(MEMORY, 2048, DESC_WRITE, 0))),
];

fn packed() -> GuestOptions {
    let usual = GuestOptions::default();
    GuestOptions { features: usual.features | features::RING_PACKED, ..usual }
}

#[test]
fn a_wrong_transmit_ring_stops_by_name_and_harms_nobody() {
    transmit_rings_stop(GuestOptions::default(), TRANSMIT);
    transmit_rings_stop(packed(), PACKED_TRANSMIT);
}

fn transmit_rings_stop(options: GuestOptions, attacks: &[Attack]) {
    let mut scene = Scene::new();
    let (port, mut guest) = scene.attach("bad", options);
    for (words, attack) in attacks {
        let ring = guest.transmit_ring(0).unwrap();
        let at = ring.next_head().unwrap();
        attack(ring, at);
        guest.kick(0).unwrap();
        scene.await_stop(port, words);
        let ring = scene.switch.port(port).rings.into_iter().find(|ring| ring.index == 1).unwrap();
        assert!(ring.error.is_some_and(|error| error.contains(words)));
        scene.talk();
        scene.assert_healed(port, &mut guest);
    }
    scene.assert_unharmed();
}

#[test]
fn a_wrong_receive_ring_stops_by_name_and_harms_nobody() {
    receive_rings_stop(GuestOptions::default(), RECEIVE);
    receive_rings_stop(packed(), PACKED_RECEIVE);
}

fn receive_rings_stop(options: GuestOptions, attacks: &[Attack]) {
    let mut scene = Scene::new();
    let (third_port, mut third) = scene.attach("third", GuestOptions::default());
    let (port, mut guest) = scene.attach("bad", GuestOptions { rx_buffers: 1, ..options });
    for (words, attack) in attacks {
        let ring = guest.receive_ring(0).unwrap();
        let at = ring.next_head().unwrap();
        attack(ring, at);
        // The first of them may find a buffer that the attack did not change.
        for number in 0..3 {
            send(&mut third, &frame(0xff, THIRD, number, 64));
        }
        scene.await_stop(port, words);
        scene.talk();
        scene.assert_healed(port, &mut guest);
        third.reclaim(0).unwrap();
    }
    let drops = scene.switch.port(third_port).counters.rx_drops;
    assert!(
        drops.of(lasthop_module_api::DropReason::RxRingBroken) > 0,
        "what was lost there has a name: {drops:?}"
    );
    scene.assert_unharmed();
}

#[test]
fn an_indirect_table_within_an_indirect_table_stops_the_ring() {
    let mut scene = Scene::new();
    let (port, mut guest) = scene.attach("bad", GuestOptions::default());
    let memory = guest.memory();
    let end = memory.regions()[0].mapping.len() as u64;
    let table = MEMORY + end - TABLE_BYTES as u64;
    let mut inner = [0; TABLE_BYTES];
    inner[..8].copy_from_slice(&table.to_le_bytes());
    inner[8..12].copy_from_slice(&64_u32.to_le_bytes());
    inner[12..14].copy_from_slice(&DESC_INDIRECT.to_le_bytes());
    let place = memory.translate(table, TABLE_BYTES as u32, &mut 0).unwrap();
    memory.write(place, 0, &inner).unwrap();
    let ring = guest.transmit_ring(0).unwrap();
    let at = ring.next_head().unwrap();
    one_descriptor(ring, at, bad(table, TABLE_BYTES as u32, DESC_INDIRECT, 0));
    guest.kick(0).unwrap();
    scene.await_stop(port, "indirect descriptor where none is allowed");
    scene.assert_healed(port, &mut guest);
    scene.assert_unharmed();
}
