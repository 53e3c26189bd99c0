//! The side table of a transmit ring: the checked segments of each chain that was taken and not completed.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use arrayvec::ArrayVec;
use lasthop_guestmem::{MemoryMap, Segment};
use lasthop_module_api::DropReason;

use crate::bounds::{CHAIN_SEGMENTS_MAX, LONG_CHAINS_MAX, SLOT_SEGMENTS};

/// Chunk number of a slot without a chunk.
const NO_CHUNK: u16 = u16::MAX;

/// The segments of a chain while it is walked.
pub(crate) type ChainSegments = ArrayVec<Segment, CHAIN_SEGMENTS_MAX>;
/// A buffer into which a chain's segments are read.
pub(crate) type SegmentBuffer = [Segment; CHAIN_SEGMENTS_MAX];

/// A segment that one worker writes and others read.
#[derive(Debug, Default)]
struct Shared {
    offset: AtomicU64,
    /// Region and length.
    rest: AtomicU64,
}

impl Shared {
    #[inline]
    fn store(&self, segment: Segment) {
        self.offset.store(segment.offset, Ordering::Relaxed);
        self.rest.store(u64::from(segment.region) << 32 | u64::from(segment.len), Ordering::Relaxed);
    }

    #[inline]
    fn load(&self) -> Segment {
        let rest = self.rest.load(Ordering::Relaxed);
        Segment { offset: self.offset.load(Ordering::Relaxed), len: rest as u32, region: (rest >> 32) as u16 }
    }
}

type Chunk = Box<[Shared; CHAIN_SEGMENTS_MAX]>;

/// The checked segments of every chain that was taken from a transmit ring and not completed.
///
/// ```text
///   slot[head]  epoch | chunk | n | first 3 segments
///                        `--> chunk: up to 64 segments, for long chains only, from a bounded arena
/// ```
///
/// The ring's home worker writes a slot; it and all holders of a reference read it. A reference is passed on after its
/// slot was written, and the slot is written again only after all its references have come back. So readers see whole
/// slots, and relaxed atomics suffice. Even if that failed, a segment of the wrong chain would be refused or name other
/// bytes of the same guest.
#[derive(Debug)]
pub(crate) struct Chains {
    slots: Box<[Slot]>,
    /// Allocated when a long chain first needs them.
    chunks: Box<[OnceLock<Chunk>]>,
    /// Allocated when a packet is first detached.
    pub(crate) detached: OnceLock<Box<DetachedFrames>>,
}

/// The detached packets of one transmit ring, for all holders of a reference.
#[derive(Debug)]
pub(crate) struct DetachedFrames {
    pub(crate) map: MemoryMap,
    pub(crate) chains: Arc<Chains>,
}

#[derive(Debug, Default)]
struct Slot {
    /// Epoch, chunk and number of segments.
    tag: AtomicU64,
    first: [Shared; SLOT_SEGMENTS],
}

impl Chains {
    fn new(entries: u16) -> Self {
        let chunks = LONG_CHAINS_MAX.min(usize::from(entries));
        Self {
            slots: (0..entries).map(|_| Slot::default()).collect(),
            chunks: (0..chunks).map(|_| OnceLock::new()).collect(),
            detached: OnceLock::new(),
        }
    }

    #[inline]
    fn write(&self, head: u16, epoch: u32, chunk: u16, segments: &[Segment]) {
        let slot = &self.slots[usize::from(head)];
        let tag = u64::from(epoch) << 32 | u64::from(chunk) << 16 | segments.len() as u64;
        slot.tag.store(tag, Ordering::Relaxed);
        if let [only] = segments {
            return slot.first[0].store(*only); // the usual chain of a small packet needs no loop
        }
        let places: &[Shared] = match self.chunks.get(usize::from(chunk)) {
            None => &slot.first,
            Some(chunk) => &**chunk.get_or_init(|| Box::new(std::array::from_fn(|_| Shared::default()))),
        };
        places.iter().zip(segments).for_each(|(place, segment)| place.store(*segment));
    }

    /// The only segment of the chain of a reference, if the chain was taken under `epoch` and has just one.
    #[inline]
    pub(crate) fn only_segment(&self, head: u16, epoch: u32) -> Option<Segment> {
        let slot = self.slots.get(usize::from(head))?;
        let tag = slot.tag.load(Ordering::Relaxed);
        ((tag >> 32) as u32 == epoch && tag as u16 == 1).then(|| slot.first[0].load())
    }

    /// Reads the segments of the chain of a reference, if it was taken under `epoch`.
    #[inline]
    pub(crate) fn segments<'a>(
        &self,
        head: u16,
        epoch: u32,
        buffer: &'a mut SegmentBuffer,
    ) -> Option<&'a [Segment]> {
        let slot = self.slots.get(usize::from(head))?;
        let tag = slot.tag.load(Ordering::Relaxed);
        if (tag >> 32) as u32 != epoch {
            return None;
        }
        let count = usize::from(tag as u16);
        if count == 1 {
            buffer[0] = slot.first[0].load();
            return Some(&buffer[..1]);
        }
        let places: &[Shared] = match self.chunks.get(usize::from((tag >> 16) as u16)) {
            None => &slot.first,
            Some(chunk) => &**chunk.get()?,
        };
        let (places, buffer) = (places.get(..count)?, buffer.get_mut(..count)?);
        buffer.iter_mut().zip(places).for_each(|(out, place)| *out = place.load());
        Some(buffer)
    }
}

/// One slot per entry of a transmit ring, with the state that only its home worker needs. The number of unsettled
/// copies of a chain is its mark in the ring's ledger, which a successor reads.
#[derive(Debug)]
pub(crate) struct SideTable {
    chains: Arc<Chains>,
    /// Chunk of each taken long chain.
    chunk_of: Box<[u16]>,
    /// The reason for which the fetch dropped a chain, by head.
    refusals: Box<[DropReason]>,
    free_chunks: Vec<u16>,
    used_chunks: u16,
    taken: u16,
}

impl SideTable {
    pub(crate) fn new(entries: u16) -> Self {
        let chains = Arc::new(Chains::new(entries));
        let chunks = chains.chunks.len();
        Self {
            chains,
            refusals: vec![DropReason::TooShort; usize::from(entries)].into_boxed_slice(),
            chunk_of: vec![NO_CHUNK; usize::from(entries)].into_boxed_slice(),
            free_chunks: Vec::with_capacity(chunks),
            used_chunks: 0,
            taken: 0,
        }
    }

    /// The part that other workers read.
    pub(crate) fn chains(&self) -> &Arc<Chains> {
        &self.chains
    }

    /// Whether another long chain can be taken.
    #[inline]
    pub(crate) fn has_room(&self) -> bool {
        !self.free_chunks.is_empty() || usize::from(self.used_chunks) < self.chains.chunks.len()
    }

    /// Number of chains taken and not released.
    pub(crate) fn taken(&self) -> u16 {
        self.taken
    }

    /// Enters a chain. `has_room` must have returned true.
    #[inline]
    pub(crate) fn enter(&mut self, head: u16, epoch: u32, segments: &[Segment]) {
        let chunk = if segments.len() > SLOT_SEGMENTS { self.chunk(head) } else { NO_CHUNK };
        self.chains.write(head, epoch, chunk, segments);
        self.taken += 1;
    }

    fn chunk(&mut self, head: u16) -> u16 {
        let chunk = self.free_chunks.pop().unwrap_or_else(|| {
            self.used_chunks += 1;
            self.used_chunks - 1
        });
        self.chunk_of[usize::from(head)] = chunk;
        chunk
    }

    /// Notes the reason for which the fetch drops a chain.
    #[inline]
    pub(crate) fn refuse(&mut self, head: u16, reason: DropReason) {
        self.refusals[usize::from(head)] = reason;
    }

    /// The reason of the last refusal of the chain at `head`.
    pub(crate) fn refusal(&self, head: u16) -> DropReason {
        self.refusals[usize::from(head)]
    }

    /// Releases the slot of the chain at `head`, which is completed.
    #[inline]
    pub(crate) fn release(&mut self, head: u16) {
        let chunk = &mut self.chunk_of[usize::from(head)];
        if *chunk != NO_CHUNK {
            self.free_chunks.push(std::mem::replace(chunk, NO_CHUNK));
        }
        self.taken -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn segments(count: u64) -> Vec<Segment> {
        (0..count).map(|offset| Segment { offset, len: 1 + offset as u32, region: 508 }).collect()
    }

    #[test]
    fn keeps_short_and_long_chains_and_gives_chunks_back() {
        let mut table = SideTable::new(4);
        let mut buffer = [Segment::default(); CHAIN_SEGMENTS_MAX];
        for round in 0..100 {
            for (head, count) in [(0, 1), (1, 3), (2, 4), (3, 64)] {
                assert!(table.has_room());
                table.enter(head, round, &segments(count));
                assert_eq!(table.chains().segments(head, round, &mut buffer).unwrap(), segments(count));
                assert!(table.chains().segments(head, round + 1, &mut buffer).is_none(), "another epoch");
            }
            assert_eq!(table.taken(), 4);
            (0..4).for_each(|head| table.release(head));
        }
        assert_eq!(table.used_chunks, 2);
        assert_eq!(table.taken(), 0);
    }
}
