//! A packet queue between a hostile switch and a "device": one end of a pair of datagram sockets.

use std::os::unix::net::{UnixDatagram, UnixStream};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use lasthop_frontend::{GuestError, Vnic, VnicPair};
use lasthop_guestmem::{MemoryMap, Segment};
use lasthop_ring::DeviceRing;
use lasthop_vhost::{Device, ForeignFd, Offer, RingStart, Session, features};
use lasthop_wire::vnet::HEADER_BYTES;
use proptest::prelude::*;

use crate::bounds::{RECEIVE_SLOTS, SEND_SLOT_BYTES, SEND_SLOTS};
use crate::packet::PacketQueue;
use crate::{Next, Queue, QueueError};
use lasthop_device::{Backend, DeviceDropReason, DeviceFacts, DriverCounters};

/// Hands out the rings and memory that a switch gets.
struct Hands {
    rings: Sender<(u16, DeviceRing)>,
    map: Sender<Arc<MemoryMap>>,
}

impl Device for Hands {
    fn offer(&self) -> Offer {
        let offloads = features::HOST_TSO;
        let features = features::VERSION_1 | features::MRG_RXBUF | features::EVENT_IDX | offloads;
        Offer { features, queue_pairs: 1, mac: None, mtu: None, private: 0 }
    }

    fn set_features(&mut self, _features: u64) {}

    fn set_memory(&mut self, map: Arc<MemoryMap>) {
        self.map.send(map).unwrap();
    }

    fn start_ring(&mut self, index: u16, start: RingStart) -> Result<(), String> {
        self.rings.send((index, start.ring)).unwrap();
        Ok(())
    }

    fn stop_ring(&mut self, _index: u16) -> Option<u16> {
        Some(0)
    }

    fn set_ring_enabled(&mut self, _index: u16, _enabled: bool) {}

    fn set_ring_call(&mut self, _index: u16, _call: Option<ForeignFd>) {}

    fn set_mtu(&mut self, _mtu: u16) {}
}

pub(crate) struct World {
    pub(crate) pair: VnicPair,
    pub(crate) queue: PacketQueue,
    counters: DriverCounters,
    /// The far end of the device.
    pub(crate) wire: UnixDatagram,
    rx: DeviceRing,
    tx: DeviceRing,
    map: Arc<MemoryMap>,
    pub(crate) _vnic: Vnic,
}

pub(crate) fn switch() -> (UnixStream, Receiver<(u16, DeviceRing)>, Receiver<Arc<MemoryMap>>) {
    let (front, back) = UnixStream::pair().unwrap();
    let ((rings, ring), (maps, map)) = (channel(), channel());
    std::thread::spawn(move || {
        let mut session = Session::new(back.into(), Hands { rings, map: maps }).unwrap();
        loop {
            let wanted = rustix::event::PollFlags::IN;
            rustix::event::poll(&mut [rustix::event::PollFd::new(&session.fd(), wanted)], None).unwrap();
            if session.ready().is_err() {
                return;
            }
        }
    });
    (front, ring, map)
}

/// A device whose frames are received by system calls.
pub(crate) fn facts() -> DeviceFacts {
    DeviceFacts {
        backend: Backend::AfPacket,
        name: "wire".to_owned(),
        index: 1,
        queues: 1,
        mtu_bytes: 1500,
        mac: [2, 0, 0, 0, 0, 1],
        features: 0,
        header_bytes: HEADER_BYTES as u8,
        ring: None,
        xdp: None,
        tunnel: None,
    }
}

pub(crate) fn world() -> World {
    let (front, rings, maps) = switch();
    let needs = crate::packet::NEEDS;
    let options = lasthop_frontend::VnicOptions {
        features: u64::MAX,
        queue_pairs: 1,
        rx_entries: needs.rx_entries,
        tx_entries: needs.tx_entries,
        arena_bytes: needs.arena_bytes,
        has_tunnel: false,
    };
    let (vnic, mut pairs) = Vnic::over(front, options).unwrap();
    let mut pair = pairs.pop().unwrap();
    let (wire, device) = UnixDatagram::pair().unwrap();
    device.set_nonblocking(true).unwrap();
    wire.set_nonblocking(true).unwrap();
    let mut counters = DriverCounters::default();
    let mut queue = PacketQueue::new(&facts(), device.into(), &pair).unwrap();
    // This is no packet socket, so it has no device; buffers are lent anyway.
    assert!(matches!(queue.start(&mut pair, &mut counters), Err(QueueError::DeviceGone)));
    pair.rx.flush().unwrap();
    let (first, second) = (rings.recv().unwrap(), rings.recv().unwrap());
    assert_eq!((first.0, second.0), (0, 1));
    World { pair, queue, counters, wire, rx: first.1, tx: second.1, map: maps.recv().unwrap(), _vnic: vnic }
}

impl World {
    /// Acts as a switch: delivers a frame of `parts`. Its header claims `num_buffers`; each part claims its
    /// number of bytes.
    fn deliver(&mut self, num_buffers: u16, parts: &[u32]) {
        for (number, len) in parts.iter().enumerate() {
            let head = self.rx.head(0).unwrap();
            let descriptor = self.rx.descriptor(head);
            self.rx.take(1);
            let segment = self.map.translate_whole(descriptor.addr, descriptor.len, &mut 0).unwrap();
            self.map.write(segment, 0, &[number as u8; SEND_SLOT_BYTES as usize]).unwrap();
            if number == 0 {
                self.map.write(segment, 0, &[0; 10]).unwrap();
                self.map.write(segment, 10, &num_buffers.to_le_bytes()).unwrap();
            }
            self.rx.complete(head, *len);
        }
        self.rx.publish();
    }

    fn send(&mut self) -> Result<crate::Visit, QueueError> {
        let visit = self.queue.send(&mut self.pair, &mut self.counters);
        self.pair.rx.flush().unwrap();
        visit
    }

    fn receive(&mut self) -> crate::Visit {
        let visit = self.queue.receive(&mut self.pair, &mut self.counters).unwrap();
        self.pair.tx.flush().unwrap();
        visit
    }

    /// The next frame that the driver sends to the switch, whose buffers are returned at once.
    fn taken(&mut self) -> Option<Vec<u8>> {
        let frame = self.look(0)?;
        let head = self.tx.head(0).unwrap();
        self.tx.take(1);
        self.tx.complete(head, 0);
        self.tx.publish();
        Some(frame)
    }

    fn look(&mut self, ahead: u16) -> Option<Vec<u8>> {
        if self.tx.pending().unwrap() <= ahead {
            return None;
        }
        let descriptor = self.tx.descriptor(self.tx.head(ahead).unwrap());
        let segment: Segment = self.map.translate_whole(descriptor.addr, descriptor.len, &mut 0).unwrap();
        let mut frame = vec![0; descriptor.len as usize];
        self.map.read(segment, 0, &mut frame).unwrap();
        Some(frame)
    }

    fn on_wire(&self) -> Option<Vec<u8>> {
        let mut buffer = vec![0; 1 << 17];
        let len = self.wire.recv(&mut buffer).ok()?;
        buffer.truncate(len);
        Some(buffer)
    }
}

#[test]
fn a_frame_s_parts_reach_the_device_in_order() {
    let mut world = world();
    for round in 0..100 {
        world.deliver(1, &[74]);
        world.deliver(3, &[4096, 4096, 10]);
        assert_eq!(world.send().unwrap().frames, 2, "round {round}");
        assert_eq!(world.on_wire().unwrap().len(), 74);
        let long = world.on_wire().unwrap();
        assert_eq!(long.len(), 2 * 4096 + 10);
        assert_eq!((long[4095], long[4096], long[8191], long[8192], long[8201]), (0, 1, 1, 2, 2));
        assert_eq!(world.rx.pending(), Ok(SEND_SLOTS), "all buffers are lent again");
    }
    assert_eq!((world.counters.to_device.frames, world.counters.to_device.bytes), (200, 100 * (62 + 8190)));
    assert!(world.counters.is_conserved());
}

#[test]
fn frames_that_cannot_be_are_errors() {
    let wrong: [(u16, &[u32]); 7] = [
        (1, &[11]),
        (0, &[100]),
        (1, &[SEND_SLOT_BYTES + 1]),
        (1, &[u32::MAX]),
        (2, &[100]),
        (33, &[4096; 33]),
        (u16::MAX, &[100]),
    ];
    for (num_buffers, parts) in wrong {
        let mut world = world();
        world.deliver(num_buffers, parts);
        let error = world.send().unwrap_err();
        let is_named = matches!(error, QueueError::Vnic(GuestError::BrokenFrame(0, _)));
        assert!(is_named, "{num_buffers} {parts:?}: {error}");
        assert!(world.on_wire().is_none() && world.counters.is_conserved());
    }
    let mut world = world();
    world.rx.complete(3, 50);
    world.rx.complete(3, 50);
    world.rx.publish();
    while world.send().is_ok() {}
    assert!(matches!(world.send(), Err(QueueError::Vnic(_))));
}

#[test]
fn frames_for_a_full_device_wait_and_go_later_in_order() {
    let mut world = world();
    let (mut sent, mut next) = (0_u32, Next::Idle);
    while next != Next::Blocked {
        (0..SEND_SLOTS.min(world.rx.pending().unwrap())).for_each(|_| world.deliver(1, &[100 + sent % 7]));
        sent += 1;
        next = world.send().unwrap().next;
        assert!(sent < 1000, "the pair of sockets takes everything");
    }
    let waiting = world.counters.waiting;
    assert!(waiting > 0 && world.counters.is_conserved(), "{:?}", world.counters);
    assert_eq!(world.send().unwrap(), crate::Visit { frames: 0, next: Next::Blocked });
    let (mut arrived, mut len) = (0, 0);
    while let Some(frame) = world.on_wire() {
        assert!(frame.len() >= len || frame.len() == 100, "out of order");
        (arrived, len) = (arrived + 1, frame.len());
        while world.send().unwrap().next == Next::More {}
    }
    assert_eq!(world.counters.to_device.frames, arrived);
    assert!(world.counters.waiting == 0 && world.counters.is_conserved());
    assert_eq!(world.rx.pending(), Ok(SEND_SLOTS));
}

#[test]
fn frames_for_a_device_that_is_gone_are_dropped_and_their_buffers_lent_again() {
    let mut world = world();
    (0..100).for_each(|_| world.deliver(2, &[4096, 20]));
    loop {
        let World { queue, pair, counters, .. } = &mut world;
        if queue.discard(pair, counters, DeviceDropReason::DeviceDown).unwrap().next == Next::Idle {
            break;
        }
    }
    world.pair.rx.flush().unwrap();
    assert_eq!(world.counters.dropped(DeviceDropReason::DeviceDown), 100);
    assert!(world.counters.is_conserved() && world.rx.pending() == Ok(SEND_SLOTS));
}

#[test]
fn a_switch_that_is_done_with_nothing_gets_no_more_than_there_are_buffers() {
    let mut world = world();
    let mut received = 0;
    while received < usize::from(RECEIVE_SLOTS) {
        world.wire.send(&[9; 72]).unwrap();
        received += world.receive().frames;
    }
    world.wire.send(&[9; 72]).unwrap();
    assert_eq!(world.receive(), crate::Visit { frames: 0, next: Next::Blocked });
    assert!(!world.pair.tx.arm_calls());
    assert_eq!(world.taken().unwrap(), [9; 72]);
    assert_eq!(world.receive().frames, 1);
    assert!(world.counters.is_conserved());
}

#[test]
fn few_buffers_are_touched_while_few_frames_are_on_the_way() {
    let mut world = world();
    let mut places = std::collections::BTreeSet::new();
    for _ in 0..1000 {
        world.wire.send(&[9; 72]).unwrap();
        world.receive();
        places.insert(world.tx.descriptor(world.tx.head(0).unwrap()).addr);
        world.taken().unwrap();
    }
    assert!(places.len() <= 2, "{}", places.len());
}

/// The longest frame, with its header, that fits a buffer beside the room for a tag.
const LEN_BYTES_MAX: usize = (crate::bounds::RECEIVE_SLOT_BYTES - 4) as usize;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_frame_from_the_device_is_passed_on_or_dropped(
        lens in proptest::collection::vec(
            prop_oneof![0_usize..100, LEN_BYTES_MAX - 1..LEN_BYTES_MAX + 2, 0_usize..70_000],
            1..40,
        ),
        seed in any::<u8>(),
    ) {
        let mut world = world();
        let mut passed = 0;
        let bytes: Vec<u8> = (0..70_000).map(|at| (at as u8).wrapping_mul(seed)).collect();
        for len in &lens {
            let datagram = &bytes[..*len];
            world.wire.send(datagram).unwrap();
            world.receive();
            if let Some(frame) = world.taken() {
                prop_assert_eq!(frame, datagram);
                passed += 1;
            }
        }
        prop_assert_eq!(world.counters.to_switch.frames, passed);
        prop_assert_eq!(world.counters.from_device.frames, lens.len() as u64);
        let whole = lens.iter().filter(|len| (26..=LEN_BYTES_MAX).contains(*len)).count() as u64;
        prop_assert_eq!(passed, whole);
        prop_assert!(world.counters.is_conserved());
    }

    #[test]
    fn any_buffer_of_a_switch_is_passed_on_dropped_or_an_error(
        frames in proptest::collection::vec(
            (prop_oneof![1_u16..5, any::<u16>()], proptest::collection::vec(prop_oneof![12_u32..4097, any::<u32>()], 1..5)),
            1..20,
        ),
    ) {
        let mut world = world();
        for (num_buffers, parts) in frames {
            world.deliver(num_buffers, &parts);
            let sent = world.send();
            while world.on_wire().is_some() {}
            prop_assert!(world.counters.is_conserved());
            match sent {
                Ok(_) => {}
                Err(QueueError::Vnic(_)) => break,
                Err(error) => prop_assert!(false, "{error}"),
            }
        }
    }
}
