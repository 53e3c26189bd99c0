//! Frames from one ring to another, without a session.

use std::sync::Arc;

use lasthop_guestmem::{Mapping, MemoryMap, Region, Segment};
use lasthop_ring::{DeviceRing, DriverRing, RingAddresses, RingMemory};

use crate::{BATCH_FRAMES, End, Lane, Limit, NotOneRegion, Null, Pass, poll};

const ENTRIES: u16 = 64;
const GUEST_ADDR: u64 = 0x1_0000_0000;
const USER_ADDR: u64 = 0x7000_0000_0000;
const BUFFERS_AT: u64 = 16 * 1024;
const BUFFER_BYTES: u32 = 2048;

struct Guest {
    map: MemoryMap,
    driver: DriverRing,
}

fn region(guest_addr: u64, len_bytes: usize) -> Region {
    let mapping = Arc::new(Mapping::anonymous(len_bytes).unwrap());
    Region { guest_addr, user_addr: USER_ADDR + guest_addr - GUEST_ADDR, mapping }
}

fn ring(map: &MemoryMap) -> RingMemory {
    let addresses =
        RingAddresses { descriptors: USER_ADDR, available: USER_ADDR + 4096, used: USER_ADDR + 8192 };
    RingMemory::new(map, u32::from(ENTRIES), addresses).unwrap()
}

fn guest() -> (Guest, End) {
    let len_bytes = BUFFERS_AT as usize + usize::from(ENTRIES) * BUFFER_BYTES as usize;
    let map = MemoryMap::new(vec![region(GUEST_ADDR, len_bytes)]).unwrap();
    let driver = DriverRing::new(ring(&map), true);
    let end = End::new(DeviceRing::new(ring(&map), 0, true), &map, true).unwrap();
    (Guest { map, driver }, end)
}

fn buffer(slot: u32) -> Segment {
    Segment { offset: BUFFERS_AT + u64::from(slot * BUFFER_BYTES), len: BUFFER_BYTES, region: 0 }
}

impl Guest {
    fn transmit(&mut self, slot: u32, frame: &[u8]) {
        self.map.write(buffer(slot), 0, frame).unwrap();
        let whole = (GUEST_ADDR + buffer(slot).offset, frame.len() as u32);
        self.driver.add(&[whole], &[], slot).unwrap();
        self.driver.publish();
    }

    fn provide(&mut self, slot: u32) {
        let whole = (GUEST_ADDR + buffer(slot).offset, BUFFER_BYTES);
        self.driver.add(&[], &[whole], slot).unwrap();
        self.driver.publish();
    }

    /// The next frame, and its slot.
    fn receive(&mut self) -> Option<(Vec<u8>, u32)> {
        let used = self.driver.take_used().unwrap()?;
        let mut frame = vec![0; used.len as usize];
        self.map.read(buffer(used.token), 0, &mut frame).unwrap();
        Some((frame, used.token))
    }
}

/// A frame as sent, and as it has to arrive: with the number of buffers.
fn frame(number: u8, len: usize) -> [Vec<u8>; 2] {
    let mut sent: Vec<u8> = (0..len).map(|at| (at as u8).wrapping_mul(7) ^ number).collect();
    sent[10..12].fill(0);
    let mut arrived = sent.clone();
    arrived[10] = 1;
    [sent, arrived]
}

fn world() -> (Guest, Guest, [Lane; 1]) {
    let ((sender, from), (mut receiver, to)) = (guest(), guest());
    (0..u32::from(ENTRIES)).for_each(|slot| receiver.provide(slot));
    (sender, receiver, [Lane { from: Some(from), to: Some(to), fault: None }])
}

fn each_length_arrives(pass: &mut impl Pass) {
    let (mut sender, mut receiver, mut lanes) = world();
    let lens = [12, 26, 72, 95, 96, 97, 128, 1512, 2048];
    for (slot, len) in (0..).zip(lens) {
        sender.transmit(slot, &frame(slot as u8, len)[0]);
    }
    assert_eq!(poll(pass, &mut lanes, 1), lens.len() as u64);
    for (slot, len) in (0..).zip(lens) {
        assert_eq!(receiver.receive(), Some((frame(slot as u8, len)[1].clone(), slot)), "{len} bytes");
        assert_eq!(sender.driver.take_used().unwrap().unwrap().token, slot);
    }
    assert_eq!((receiver.receive(), sender.driver.take_used().unwrap()), (None, None));
    let bases = lanes.each_ref().map(|lane| [&lane.from, &lane.to].map(|end| end.as_ref().unwrap().base()));
    assert_eq!(bases, [[lens.len() as u16; 2]]);
}

#[test]
fn each_length_arrives_by_both_ways() {
    each_length_arrives(&mut Limit::default());
    each_length_arrives(&mut Limit::plain());
    each_length_arrives(&mut Null::default());
}

#[test]
fn a_batch_is_bounded_and_waits_for_buffers() {
    let mut limit = Limit::default();
    let (mut sender, mut receiver, mut lanes) = world();
    for round in 0..2 {
        (0..u32::from(ENTRIES)).for_each(|slot| sender.transmit(slot, &frame(slot as u8, 100)[0]));
        assert_eq!(poll(&mut limit, &mut lanes, 1), u64::from(BATCH_FRAMES) * (1 - round));
        assert_eq!(poll(&mut limit, &mut lanes, 9), u64::from(ENTRIES - BATCH_FRAMES) * (1 - round));
        while sender.driver.take_used().unwrap().is_some() {}
    }
    // The second batch found no buffer; now there are some.
    let (_, slot) = receiver.receive().unwrap();
    receiver.provide(slot);
    assert_eq!(poll(&mut limit, &mut lanes, 1), 1);
}

#[test]
fn null_copies_into_a_buffer_once_whatever_its_descriptor() {
    let mut null = Null::default();
    let (mut sender, mut receiver, mut lanes) = world();
    let mut slots = Vec::new();
    for number in 0..6 * u32::from(ENTRIES) {
        sender.transmit(0, &frame(number as u8, 100)[0]);
        assert_eq!(poll(&mut null, &mut lanes, 1), 1);
        sender.driver.take_used().unwrap();
        let (found, slot) = receiver.receive().unwrap();
        let first = slot as u8; // the slots were first used in order
        assert_eq!(found, frame(first, 100)[1], "buffer {slot}");
        slots.push(slot);
        if slots.len() == 3 {
            slots.drain(..).for_each(|slot| receiver.provide(slot)); // with each other's descriptors
        }
    }
}

#[test]
fn a_lane_is_closed_without_its_ends_and_after_a_fault() {
    let mut limit = Limit::default();
    let (mut sender, mut receiver, mut lanes) = world();
    sender.transmit(0, &frame(0, 100)[0]);
    lanes[0].to.as_mut().unwrap().set_enabled(false);
    assert_eq!(poll(&mut limit, &mut lanes, 3), 0);
    let to = lanes[0].to.take();
    assert_eq!(poll(&mut limit, &mut lanes, 3), 0);
    lanes[0].to = to;
    lanes[0].to.as_mut().unwrap().set_enabled(true);
    receiver.driver.set_raw_index(ENTRIES + 1);
    assert_eq!(poll(&mut limit, &mut lanes, 3), 0);
    assert!(lanes[0].fault.is_some());
    receiver.driver.set_raw_index(ENTRIES);
    assert_eq!(poll(&mut limit, &mut lanes, 3), 0);
    lanes[0].fault = None;
    assert_eq!(poll(&mut limit, &mut lanes, 3), 1);
}

#[test]
fn a_guest_of_two_regions_is_refused() {
    let (guest, _) = guest();
    let mut regions = guest.map.regions().to_vec();
    regions.push(region(GUEST_ADDR << 1, 4096));
    let map = MemoryMap::new(regions).unwrap();
    let error = End::new(DeviceRing::new(ring(&map), 0, true), &map, true).unwrap_err();
    assert_eq!(error, NotOneRegion(2));
}
