//! Reception from a faulty device, and options that contradict each other.

use lasthop_guestmem::Segment;
use lasthop_ring::{DeviceRing, DriverRing, DriverRingError, RingMemory};

use crate::memory::{Layout, Memory};
use crate::notifications::RingEventFds;
use crate::rx::{RxQueue, RxShape};
use crate::{GuestError, GuestOptions};

struct World {
    memory: Memory,
    layout: Layout,
    queue: RxQueue,
    device: DeviceRing,
}

fn world() -> World {
    guarded_world(None)
}

fn guarded_world(guard: Option<u8>) -> World {
    let options = GuestOptions { ring_entries: 8, rx_buffer_bytes: 256, ..GuestOptions::default() };
    let layout = Layout::new(&options);
    let memory = Memory::new(layout.len_bytes).unwrap();
    let ring = || RingMemory::new(&memory.map, 8, layout.rings[0]).unwrap();
    let driver = DriverRing::new(ring(), true);
    let device = DeviceRing::new(ring(), 0, true);
    let shape = RxShape { header_bytes: 12, mergeable: true, buffers: 8, cuts: Vec::new(), guard };
    let mut queue = RxQueue::new(0, driver, RingEventFds::new().unwrap(), &layout.pairs[0], shape);
    queue.fill_guard(&memory.map).unwrap();
    queue.flush().unwrap();
    World { memory, layout, queue, device }
}

impl World {
    /// Completes the next buffer with a header and `len` bytes in total.
    fn deliver(&mut self, num_buffers: u16, len: u32) {
        let head = self.device.head(0).unwrap();
        self.device.take(1);
        let slot: Segment = self.layout.pairs[0].rx.segment(u32::from(head));
        self.memory.map.write(slot, 10, &num_buffers.to_le_bytes()).unwrap();
        self.device.complete(head, len);
        self.device.publish();
    }

    fn error(&mut self) -> GuestError {
        self.queue.receive(&self.memory.map, &mut Vec::new()).unwrap_err()
    }
}

#[test]
fn frames_that_cannot_be_are_errors() {
    for (num_buffers, len) in [(1, 11), (0, 100), (1, 257), (1, u32::MAX), (2, 100), (u16::MAX, 256)] {
        let mut world = world();
        world.deliver(num_buffers, len);
        let error = world.error();
        assert!(matches!(error, GuestError::BrokenFrame(0, _)), "{num_buffers} {len}: {error}");
    }
    let mut world = world();
    world.device.complete(3, 0);
    world.device.complete(3, 0);
    world.device.publish();
    assert!(matches!(world.error(), GuestError::BrokenFrame(..)));
    assert!(matches!(world.error(), GuestError::Ring(0, DriverRingError::NotInFlight(3))));
}

#[test]
fn buffers_are_available_again_once_read() {
    let mut world = world();
    let mut into = Vec::new();
    for round in 0..100 {
        world.deliver(2, 256);
        world.deliver(7, 20);
        let received = world.queue.receive(&world.memory.map, &mut into).unwrap().unwrap();
        assert_eq!((received.len, received.num_buffers, into.len()), (264, 2, 264));
        assert_eq!(world.queue.receive(&world.memory.map, &mut into).unwrap(), None);
        assert_eq!(world.device.pending(), Ok(8), "round {round}");
    }
}

#[test]
fn a_byte_behind_the_end_of_a_frame_is_noticed() {
    for (at, noticed) in [(99, false), (100, true), (255, true)] {
        let mut world = guarded_world(Some(0xa5));
        for _ in 0..20 {
            world.deliver(1, 256);
            world.deliver(1, 100);
            world.queue.receive(&world.memory.map, &mut Vec::new()).unwrap().unwrap();
            world.queue.receive(&world.memory.map, &mut Vec::new()).unwrap().unwrap();
            world.queue.flush().unwrap();
        }
        let head = u32::from(world.device.head(0).unwrap());
        world.memory.map.write(world.layout.pairs[0].rx.segment(head), at, &[1]).unwrap();
        world.deliver(1, 100);
        let received = world.queue.receive(&world.memory.map, &mut Vec::new());
        assert_eq!(matches!(received, Err(GuestError::BrokenFrame(0, _))), noticed, "{at}: {received:?}");
    }
}

#[test]
fn options_that_do_not_fit_are_named() {
    let base = GuestOptions::default;
    let wrong = [
        GuestOptions { queue_pairs: 0, ..base() },
        GuestOptions { queue_pairs: 129, ..base() },
        GuestOptions { ring_entries: 0, ..base() },
        GuestOptions { ring_entries: 100, ..base() },
        GuestOptions { tx_slot_bytes: 25, ..base() },
        GuestOptions { rx_buffer_bytes: (1 << 17) + 1, ..base() },
        GuestOptions { rx_cuts: vec![1536], ..base() },
        GuestOptions { rx_cuts: vec![1; 64], ..base() },
        GuestOptions { rx_cuts: vec![1; 4], ring_entries: 4, ..base() },
        GuestOptions { regions: 0, ..base() },
        GuestOptions { regions: 9, ..base() },
    ];
    for options in wrong {
        assert!(matches!(options.check(), Err(GuestError::Options(_))), "{options:?}");
    }
    base().check().unwrap();
    GuestOptions::plain().check().unwrap();
}
