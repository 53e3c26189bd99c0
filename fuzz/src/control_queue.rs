//! The control queue of a guest that writes anything: commands are granted within range, or refused, and nothing but
//! acknowledgements is written.

#[path = "../../crates/core/engine/src/control.rs"]
#[expect(dead_code, reason = "the worker's own file, without the worker")]
mod control;

use std::sync::Arc;

use lasthop_guestmem::{Mapping, MemoryMap, Region, Segment};
use lasthop_ring::{DeviceRing, RingMemory};

use crate::descriptor_tables::layout::{
    Areas, BUFFERS, GUEST, MEMORY_BYTES, NEXT, TABLE_BYTES, TABLES, USER, WRITE, u16_at,
};
use crate::descriptor_tables::program::decode_raw;
use crate::input::{Input, Seed};
use control::{ControlPace, ControlQueue};

/// Steps of one input.
const STEPS_MAX: usize = 96;
/// Commands that are served at a time at most.
const COMMANDS_MAX: u16 = 16;
const RING: u16 = 0;
const ALL: Segment = Segment { offset: 0, len: MEMORY_BYTES as u32, region: 0 };

struct World {
    queue: ControlQueue,
    entries: u16,
    /// The driver's next position, and the device's next used entry.
    available: u16,
    used: u16,
}

impl World {
    fn new(input: &mut Input<'_>) -> Self {
        let mapping = Arc::new(Mapping::anonymous(MEMORY_BYTES).expect("a little memory"));
        let region = Region { guest_addr: GUEST, user_addr: USER[0] + GUEST, mapping };
        let map = Arc::new(MemoryMap::new(vec![region]).expect("one region"));
        let (pairs, entries, event_idx) = (input.u8(), 1 << (input.u8() % 7), input.bool());
        let memory = RingMemory::new(&map, entries, Areas::of(RING).addresses()).expect("it lies in memory");
        let ring = DeviceRing::new(memory, 0, event_idx);
        let queue_pairs_max = 1 + u16::from(pairs % 64);
        let queue = ControlQueue {
            ring,
            map,
            index: 2 * queue_pairs_max,
            queue_pairs_max,
            granted: None,
            is_polled: pairs > 127,
            error: None,
            pace: ControlPace::default(),
        };
        Self { queue, entries: entries as u16, available: 0, used: 0 }
    }

    fn read(&self) -> Vec<u8> {
        let mut memory = vec![0; MEMORY_BYTES];
        self.queue.map.read(ALL, 0, &mut memory).expect("all of memory");
        memory
    }

    fn write(&self, at: usize, bytes: &[u8]) {
        let end = (at + bytes.len()).min(MEMORY_BYTES);
        self.queue.map.write(ALL, at as u32, &bytes[..end - at]).expect("a part of memory");
    }

    fn step(&mut self, input: &mut Input<'_>) {
        let areas = Areas::of(RING);
        match input.u8() % 5 {
            0 => {
                let at = areas.descriptors + 16 * usize::from(u16::from(input.u8()) % self.entries);
                self.write(at, &decode_raw(input).bytes());
            }
            1 => {
                let at =
                    TABLES + usize::from(input.u8() % 4) * TABLE_BYTES + 16 * usize::from(input.u8() % 64);
                self.write(at, &decode_raw(input).bytes());
            }
            2 => {
                let at = areas.available + 4 + 2 * usize::from(self.available % self.entries);
                self.write(at, &u16::from(input.u8()).to_le_bytes());
                self.available = self.available.wrapping_add(1);
                self.write(areas.available + 2, &self.available.to_le_bytes());
            }
            3 => {
                let (at, count) = (usize::from(input.u16()), usize::from(input.u8()));
                self.write(at, input.bytes(count));
            }
            _ => {
                let _ = self.serve();
            }
        }
    }

    /// The switch's turn; returns the number of queue pairs that it granted, if it granted any.
    fn serve(&mut self) -> Option<u16> {
        let (before, broken) = (self.read(), self.queue.error.is_some());
        let done = self.queue.serve();
        let after = self.read();
        let used = Areas::of(RING).used_range(self.entries);
        let index = u16_at(&after, used.start + 2);
        let served = index.wrapping_sub(std::mem::replace(&mut self.used, index));
        assert!(served <= COMMANDS_MAX && done.commands <= usize::from(served));
        assert!(done.commands > 0 || (done.granted.is_none() && !done.signal));
        assert!(!broken || served == 0, "a broken ring is served");
        let acks = changed(&before, &after).filter(|at| !used.contains(at));
        let acks = acks.inspect(|at| assert!(after[*at] <= 1, "{at:#x} is not an acknowledgement")).count();
        assert!(acks <= usize::from(served), "{acks} bytes for {served} commands");
        done.granted.inspect(|pairs| assert!((1..=self.queue.queue_pairs_max).contains(pairs)))
    }
}

/// Where two memories differ.
fn changed<'a>(before: &'a [u8], after: &'a [u8]) -> impl Iterator<Item = usize> + 'a {
    const CHUNK_BYTES: usize = 256;
    let chunks = (0..MEMORY_BYTES).step_by(CHUNK_BYTES).map(|at| at..at + CHUNK_BYTES);
    let differing = chunks.filter(|chunk| before[chunk.clone()] != after[chunk.clone()]);
    differing.flatten().filter(|at| before[*at] != after[*at])
}

/// Panics if a property does not hold for the writes of a guest.
pub fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let mut world = World::new(&mut input);
    for _ in 0..STEPS_MAX {
        if input.is_empty() {
            break;
        }
        world.step(&mut input);
    }
    let _ = world.serve();
}

/// Linux asking for queue pairs: class and command, number, acknowledgement.
#[must_use]
pub fn seeds() -> Vec<(String, Vec<u8>)> {
    let mut seed = Seed::default();
    seed.u8(3).u8(4).u8(1);
    seed.u8(3).u16(BUFFERS as u16).u8(4).bytes(&[4, 0, 2, 0]);
    let buffers = [(BUFFERS, 2, NEXT, 1), (BUFFERS + 2, 2, NEXT, 2), (BUFFERS + 64, 1, WRITE, 0)];
    for (index, (at, len, flags, next)) in buffers.into_iter().enumerate() {
        seed.u8(0).u8(index as u8).u16(at as u16).u16(len).u8(flags as u8).u8(next);
    }
    seed.u8(2).u8(0).u8(4);
    vec![("linux".into(), seed.into_bytes())]
}

/// Tests, which `tests/targets.rs` runs.
#[expect(missing_docs, reason = "their names say it")]
pub mod checks {
    use super::*;

    pub fn the_seed_is_granted() {
        let bytes = seeds().remove(0).1;
        let mut input = Input::new(&bytes);
        let mut world = World::new(&mut input);
        let steps = 1 + 3 + 1;
        (0..steps).for_each(|_| world.step(&mut input));
        assert_eq!(world.serve(), Some(2));
        assert_eq!(world.queue.error, None);
    }
}
