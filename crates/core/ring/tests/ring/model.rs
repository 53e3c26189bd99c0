//! Both sides of a ring against a model of queues: added chains arrive once, whole and in order; completed ones return
//! once, with their length.

use std::collections::VecDeque;

use crate::FORMATS;
use crate::fixture::{BUFFERS_AT, GUEST_ADDR, MEMORY_BYTES, map, pair_of};
use lasthop_guestmem::{MemoryMap, Segment};
use lasthop_ring::{BufferAccess, DeviceRing, DriverRing, LoneChain, RingFormat, Used, walk, write_table};
use proptest::prelude::*;

const ENTRIES: u16 = 8;
const TABLE_BYTES: u32 = 128;

#[derive(Clone, Debug)]
enum Step {
    Add { readable: Vec<(u64, u32)>, writable: Vec<(u64, u32)>, indirect: bool },
    Publish,
    Look,
    Take { max: u16, put_back: u16 },
    PublishAndTakeLone,
    Complete { pick: usize, written: u32 },
    PublishUsed,
    TakeUsed { max: u16 },
}

#[derive(Clone, Debug, PartialEq)]
struct Chain {
    token: u32,
    descriptors: u16,
    pieces: Vec<(Segment, bool)>,
}

struct World {
    map: MemoryMap,
    driver: DriverRing,
    device: DeviceRing,
    next_token: u32,
    /// The chain whose indirect table is at each place.
    tables: [Option<u32>; ENTRIES as usize],
    added: VecDeque<Chain>,
    published: VecDeque<Chain>,
    taken: Vec<(u16, Chain)>,
    completed: VecDeque<(Used, u16)>,
    used: VecDeque<(Used, u16)>,
}

impl World {
    fn new(format: RingFormat, event_idx: bool, position: u16) -> Self {
        let map = map();
        let (driver, device) = pair_of(format, &map, ENTRIES, event_idx, position);
        let (added, published, completed, used) = Default::default();
        let tables = [None; ENTRIES as usize];
        Self {
            map,
            driver,
            device,
            next_token: 0,
            tables,
            added,
            published,
            taken: Vec::new(),
            completed,
            used,
        }
    }

    fn free(&self) -> u16 {
        let chains =
            self.added.iter().chain(&self.published).chain(self.taken.iter().map(|(_, chain)| chain));
        let done = self.completed.iter().chain(&self.used).map(|(_, descriptors)| descriptors);
        ENTRIES - chains.map(|chain| chain.descriptors).sum::<u16>() - done.sum::<u16>()
    }

    fn step(&mut self, step: &Step) {
        match step {
            Step::Add { readable, writable, indirect } => self.add(readable, writable, *indirect),
            Step::Publish => {
                self.driver.publish();
                self.published.append(&mut self.added);
            }
            Step::Look => self.look(),
            Step::Take { max, put_back } => self.take(*max, *put_back),
            Step::PublishAndTakeLone => self.publish_and_take_lone(),
            Step::Complete { pick, written } => self.complete(*pick, *written),
            Step::PublishUsed => {
                self.device.publish();
                self.used.append(&mut self.completed);
            }
            Step::TakeUsed { max } => self.take_used(*max),
        }
        assert_eq!(usize::from(self.device.pending().unwrap()), self.published.len());
        assert_eq!(usize::from(self.driver.used_pending().unwrap()), self.used.len());
        assert_eq!(self.driver.free_descriptors(), self.free());
    }

    fn add(&mut self, readable: &[(u64, u32)], writable: &[(u64, u32)], indirect: bool) {
        let (count, free) = ((readable.len() + writable.len()) as u16, self.free());
        let descriptors = if indirect { 1 } else { count };
        let head = if indirect {
            self.add_indirect(readable, writable, free)
        } else {
            self.driver.add(readable, writable, self.next_token)
        };
        assert_eq!(head.is_some(), count > 0 && descriptors <= free);
        if head.is_some() {
            let piece = |&(addr, len): &(u64, u32), writable| {
                (Segment { offset: addr - GUEST_ADDR, len, region: 0 }, writable)
            };
            let readable = readable.iter().map(|buffer| piece(buffer, false));
            let pieces = readable.chain(writable.iter().map(|buffer| piece(buffer, true)));
            let pieces = pieces.filter(|(segment, _)| segment.len > 0).collect();
            self.added.push_back(Chain { token: self.next_token, descriptors, pieces });
            self.next_token += 1;
        }
    }

    /// The table has a place of its own while the chain is in flight.
    fn add_indirect(&mut self, readable: &[(u64, u32)], writable: &[(u64, u32)], free: u16) -> Option<u16> {
        if readable.len() + writable.len() == 0 {
            return None;
        }
        let Some(place) = self.tables.iter().position(Option::is_none).filter(|_| free > 0) else {
            return self.driver.add_indirect(GUEST_ADDR + BUFFERS_AT, TABLE_BYTES, self.next_token);
        };
        self.tables[place] = Some(self.next_token);
        let offset = BUFFERS_AT + place as u64 * u64::from(TABLE_BYTES);
        let table = Segment { offset, len: TABLE_BYTES, region: 0 };
        let len = write_table(self.driver.format(), &self.map, table, readable, writable).unwrap();
        self.driver.add_indirect(GUEST_ADDR + offset, len, self.next_token)
    }

    /// Chains that were read ahead are those that are in the ring.
    fn look(&mut self) {
        let head = (!self.published.is_empty()).then(|| self.device.head(0).unwrap());
        let next = head.map(|head| (head, self.device.descriptor(head)));
        assert_eq!(self.device.next_chain(), next);
    }

    fn take(&mut self, max: u16, put_back: u16) {
        let count = max.min(self.published.len() as u16);
        let put_back = put_back.min(count);
        for ahead in 0..count {
            let head = self.device.head(ahead).unwrap();
            self.check_chain(head, &self.published[usize::from(ahead)]);
            if ahead < count - put_back {
                self.taken.push((head, self.published[usize::from(ahead)].clone()));
            }
        }
        self.device.take(count);
        self.device.put_back(put_back);
        self.published.drain(..usize::from(count - put_back));
    }

    /// A chain that is alone is found by one look. It is marked when it is taken.
    fn publish_and_take_lone(&mut self) {
        let were_published = self.published.len();
        self.driver.publish();
        self.published.append(&mut self.added);
        let is_packed = self.device.is_packed();
        let found = match is_packed {
            false => self.device.lone_chain_in::<false>(),
            true => self.device.lone_chain_in::<true>(),
        };
        let first = self.published.front();
        let is_one = self.published.len() == 1
            && (!is_packed || were_published == 0 && first.is_some_and(|chain| chain.descriptors == 1));
        let LoneChain::One(head, descriptor) = found else {
            assert_eq!(found == LoneChain::None, self.published.is_empty());
            return assert!(!is_one, "a lone chain was not found");
        };
        assert!(is_one, "the only chain, and a short one in a packed ring");
        match is_packed {
            false => self.device.take_lone_in::<false>(head),
            true => self.device.take_lone_in::<true>(head),
        }
        assert_eq!((self.device.mark(head), self.device.descriptor(head)), (1, descriptor));
        if let Some(chain) = self.published.pop_front() {
            self.check_chain(head, &chain);
            self.taken.push((head, chain));
        }
    }

    fn check_chain(&self, head: u16, chain: &Chain) {
        let mut pieces = Vec::new();
        let whole = walk(&self.device, &self.map, head, BufferAccess::Both, &mut 0, |segment, writable| {
            pieces.push((segment, writable));
            true
        });
        assert_eq!(whole, Ok(true));
        assert_eq!(pieces, chain.pieces);
    }

    fn complete(&mut self, pick: usize, written: u32) {
        if self.taken.is_empty() {
            return;
        }
        let (head, chain) = self.taken.swap_remove(pick % self.taken.len());
        let is_marked = self.device.mark(head) > 0;
        let written = if is_marked { 0 } else { written };
        match is_marked {
            false => self.device.complete(head, written),
            true => self.device.give_up(head),
        }
        self.completed.push_back((Used { head, token: chain.token, len: written }, chain.descriptors));
    }

    fn take_used(&mut self, max: u16) {
        for _ in 0..max {
            let expected = self.used.pop_front().map(|(used, _)| used);
            assert_eq!(self.driver.take_used(), Ok(expected));
            for table in &mut self.tables {
                *table = table.filter(|token| expected.is_none_or(|used| used.token != *token));
            }
        }
    }

    /// Completes and takes back all chains.
    fn drain(&mut self) {
        self.step(&Step::Publish);
        self.step(&Step::Take { max: ENTRIES, put_back: 0 });
        while !self.taken.is_empty() {
            self.step(&Step::Complete { pick: 1, written: 7 });
        }
        self.step(&Step::PublishUsed);
        self.step(&Step::TakeUsed { max: ENTRIES + 1 });
        assert_eq!((self.driver.free_descriptors(), self.driver.in_flight()), (ENTRIES, 0));
    }
}

/// Buffers anywhere up to the last byte of memory, some of them empty.
fn buffers() -> impl Strategy<Value = Vec<(u64, u32)>> {
    let first = GUEST_ADDR + BUFFERS_AT;
    let buffer = (first..GUEST_ADDR + MEMORY_BYTES, 0..2000_u32)
        .prop_map(|(addr, len)| (addr, len.min((GUEST_ADDR + MEMORY_BYTES - addr) as u32)));
    prop::collection::vec(buffer, 0..4)
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (buffers(), buffers(), any::<bool>())
            .prop_map(|(readable, writable, indirect)| Step::Add { readable, writable, indirect }),
        2 => Just(Step::Publish),
        3 => Just(Step::PublishAndTakeLone),
        3 => Just(Step::Look),
        2 => (0..5_u16, 0..3_u16).prop_map(|(max, put_back)| Step::Take { max, put_back }),
        4 => (any::<usize>(), any::<u32>()).prop_map(|(pick, written)| Step::Complete { pick, written }),
        2 => Just(Step::PublishUsed),
        2 => (0..5_u16).prop_map(|max| Step::TakeUsed { max }),
    ]
}

/// Any position, often close to the wrap-around of 16 bits.
fn position() -> impl Strategy<Value = u16> {
    prop_oneof![any::<u16>(), (0..32_u16).prop_map(|back| 0_u16.wrapping_sub(back))]
}

proptest! {
    #[test]
    fn both_sides_agree_with_the_model(
        format in prop_oneof![Just(RingFormat::Split), Just(RingFormat::Packed)],
        event_idx in any::<bool>(),
        position in position(),
        steps in prop::collection::vec(step(), 0..200),
    ) {
        let mut world = World::new(format, event_idx, position);
        for step in &steps {
            world.step(step);
        }
        world.drain();
    }
}

#[test]
#[cfg_attr(miri, ignore = "too many steps")]
fn goes_on_beyond_65536_chains() {
    for format in FORMATS {
        goes_on_beyond_65536_chains_of(format);
    }
}

fn goes_on_beyond_65536_chains_of(format: RingFormat) {
    let mut world = World::new(format, true, 0);
    let first = GUEST_ADDR + BUFFERS_AT;
    for round in 0..50_000_u64 {
        for chain in 0..3 {
            let buffer = (first + round % 1000 + chain, 100);
            world.add(&[buffer], &[buffer], false);
        }
        world.drain();
    }
    // Each chain has two descriptors, which is what positions of a packed ring count.
    let expected = match format {
        RingFormat::Split => 150_000 % 65_536,
        RingFormat::Packed => 300_000 % (2 * u32::from(ENTRIES)),
    };
    assert_eq!(u32::from(world.device.base()), expected);
}
