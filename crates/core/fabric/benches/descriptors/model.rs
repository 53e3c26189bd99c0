//! A switch of three stages that differs only in where packet descriptors are.

use lasthop_wire::mix::GOLDEN_RATIO;

/// Slots of a ring of buffers, and the distance of its buffers in bytes.
const SLOTS: usize = 256;
const BUFFER_BYTES: usize = 2048;
/// Bytes of a frame, and of its copy in a descriptor.
const FRAME_BYTES: usize = 64;
const IMAGE_BYTES: usize = 128;
/// Known addresses: each takes a cache line of the table.
const ADDRESSES: usize = 1024;
/// Descriptors of a pool, as many as DPDK's applications usually have in one.
const POOL: usize = 8192;
/// Packets that the pool's arm has in a batch: as many as the product.
const POOL_BATCH: usize = 32;
/// The largest batch of an arm.
const BATCH_MAX: usize = 64;

/// Where descriptors are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arm {
    /// An array that each batch uses again; with one element each packet passes all stages before the next one begins.
    Array(usize),
    /// One from a pool for each packet, returned to its other end: the one that was not used for the longest time is next.
    PoolQueue,
    /// One from a pool for each packet, returned to the same end: the last one is next.
    PoolStack,
}

impl Arm {
    /// All arms, in the order of a table.
    pub(crate) fn all() -> Vec<Self> {
        let arrays = [1, 2, 4, 8, 16, 32, 64].map(Self::Array);
        arrays.into_iter().chain([Self::PoolQueue, Self::PoolStack]).collect()
    }

    /// Its name in tables.
    pub(crate) fn name(self) -> String {
        match self {
            Self::Array(1) => "one".to_owned(),
            Self::Array(count) => format!("array-{count}"),
            Self::PoolQueue => "pool-queue".to_owned(),
            Self::PoolStack => "pool-stack".to_owned(),
        }
    }

    fn batch(self) -> usize {
        match self {
            Self::Array(count) => count,
            Self::PoolQueue | Self::PoolStack => POOL_BATCH,
        }
    }
}

#[derive(Clone)]
struct Descriptor {
    image: [u8; IMAGE_BYTES],
    slot: usize,
    len_bytes: usize,
    to: u32,
}

#[derive(Clone, Copy, Default)]
#[repr(align(64))]
struct Entry {
    address: u64,
    port: u32,
}

/// The switch with its guests' memory.
pub(crate) struct Model {
    arm: Arm,
    sent: Vec<u8>,
    received: Vec<u8>,
    table: Vec<Entry>,
    descriptors: Vec<Descriptor>,
    /// Of a pool: numbers of free descriptors, a ring from `first` on.
    free: Vec<usize>,
    first: usize,
    /// Numbers of the descriptors of a batch.
    used: [usize; BATCH_MAX],
    next: usize,
    delivered: [u64; 2],
}

fn address(number: usize) -> [u8; 6] {
    let [.., a, b, c, d] = (number as u64).to_be_bytes();
    [2, 0, a, b, c, d]
}

fn place(address: u64) -> usize {
    (address.wrapping_mul(GOLDEN_RATIO) >> 32) as usize % (2 * ADDRESSES)
}

impl Model {
    pub(crate) fn new(arm: Arm) -> Self {
        let mut sent = vec![0; SLOTS * BUFFER_BYTES];
        for (number, buffer) in sent.chunks_exact_mut(BUFFER_BYTES).enumerate() {
            // 421 and 1024 have no common factor: addresses are far from in order.
            buffer[..6].copy_from_slice(&address(number * 421 % ADDRESSES));
        }
        let mut table = vec![Entry::default(); 2 * ADDRESSES];
        for number in 0..ADDRESSES {
            let address = number_of(&address(number));
            let found = (place(address)..).map(|at| at % table.len()).find(|at| table[*at].address == 0);
            table[found.expect("half is empty")] = Entry { address, port: number as u32 & 1 };
        }
        let count = if matches!(arm, Arm::Array(_)) { arm.batch() } else { POOL };
        let empty = Descriptor { image: [0; IMAGE_BYTES], slot: 0, len_bytes: 0, to: 0 };
        let (descriptors, free) = (vec![empty; count], (0..count).collect());
        Self {
            arm,
            sent,
            received: vec![0; 2 * SLOTS * BUFFER_BYTES],
            table,
            descriptors,
            free,
            first: 0,
            used: [0; BATCH_MAX],
            next: 0,
            delivered: [0; 2],
        }
    }

    /// Frames that each of the two receivers got.
    pub(crate) fn delivered(&self) -> [u64; 2] {
        self.delivered
    }

    /// Forwards a batch; returns its packets.
    pub(crate) fn batch(&mut self) -> usize {
        let count = self.arm.batch();
        for place in 0..count {
            let used = self.allocated(place);
            self.used[place] = used;
            let slot = self.next % SLOTS;
            self.next += 1;
            let frame = &self.sent[slot * BUFFER_BYTES..][..FRAME_BYTES];
            let descriptor = &mut self.descriptors[used];
            descriptor.image[..FRAME_BYTES].copy_from_slice(frame);
            (descriptor.slot, descriptor.len_bytes) = (slot, FRAME_BYTES);
        }
        for used in &self.used[..count] {
            let descriptor = &mut self.descriptors[*used];
            descriptor.to = look_up(&self.table, number_of(&descriptor.image));
        }
        for used in &self.used[..count] {
            let Descriptor { image, slot, len_bytes, to } = &self.descriptors[*used];
            let receiver = *to as usize;
            let at = (receiver * SLOTS + self.delivered[receiver] as usize % SLOTS) * BUFFER_BYTES;
            self.received[at..][..*len_bytes].copy_from_slice(&image[..*len_bytes]);
            self.sent[*slot * BUFFER_BYTES + FRAME_BYTES] = 1; // as a used entry
            self.delivered[receiver] += 1;
        }
        self.release(count);
        count
    }

    /// The number of the descriptor for a packet of the batch.
    fn allocated(&mut self, place: usize) -> usize {
        match self.arm {
            Arm::Array(_) => place,
            Arm::PoolQueue => self.free[(self.first + place) % POOL],
            Arm::PoolStack => self.free[POOL - 1 - place],
        }
    }

    fn release(&mut self, count: usize) {
        let used = self.used[..count].iter().enumerate();
        match self.arm {
            Arm::Array(_) => {}
            Arm::PoolQueue => {
                used.for_each(|(place, used)| self.free[(self.first + place) % POOL] = *used);
                self.first = (self.first + count) % POOL;
            }
            Arm::PoolStack => used.for_each(|(place, used)| self.free[POOL - 1 - place] = *used),
        }
    }
}

fn number_of(frame: &[u8]) -> u64 {
    frame[..6].iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte))
}

fn look_up(table: &[Entry], address: u64) -> u32 {
    let found = (place(address)..).map(|at| &table[at % table.len()]).find(|entry| entry.address == address);
    found.map_or(0, |entry| entry.port)
}
