use arrayvec::ArrayVec;
use lasthop_guestmem::Segment;

use crate::bounds::{CHAIN_SEGMENTS_MAX, LONG_CHAINS_MAX, SLOT_SEGMENTS};

/// Chunk number of a slot that has none.
const NO_CHUNK: u16 = u16::MAX;

/// What the switch knows of one taken transmit chain.
#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    /// Copies that are not yet delivered or dropped; 0: the chain is not ours.
    pending: u16,
    /// Which memory map the segments are of.
    epoch: u32,
    segments: u16,
    chunk: u16,
    first: [Segment; SLOT_SEGMENTS],
}

/// One slot per entry of a transmit ring: the checked segments of every chain that was taken and not completed.
///
/// ```text
///   slot[head]  pending | epoch | n | first 3 segments
///                                  `--> chunk: up to 64 segments, for long chains only, from a bounded arena
/// ```
///
/// Changed by the ring's home worker only; other workers read the segments of slots that they hold a reference to.
#[derive(Debug)]
pub(crate) struct SideTable {
    slots: Box<[Slot]>,
    chunks: Vec<[Segment; CHAIN_SEGMENTS_MAX]>,
    free_chunks: Vec<u16>,
    taken: u16,
}

/// The segments of a chain while it is walked.
pub(crate) type ChainSegments = ArrayVec<Segment, CHAIN_SEGMENTS_MAX>;

impl SideTable {
    pub(crate) fn new(entries: u16) -> Self {
        let chunks = LONG_CHAINS_MAX.min(usize::from(entries));
        Self {
            slots: vec![Slot::default(); usize::from(entries)].into_boxed_slice(),
            // Room only: pages are touched when a long chain first needs them.
            chunks: Vec::with_capacity(chunks),
            free_chunks: Vec::with_capacity(chunks),
            taken: 0,
        }
    }

    /// Whether one more long chain can be taken.
    pub(crate) fn has_room(&self) -> bool {
        !self.free_chunks.is_empty() || self.chunks.len() < self.chunks.capacity()
    }

    /// Chains taken and not released.
    pub(crate) fn taken(&self) -> u16 {
        self.taken
    }

    pub(crate) fn is_taken(&self, head: u16) -> bool {
        self.slots[usize::from(head)].pending > 0
    }

    /// Enters a chain with one pending copy. `has_room` was true.
    #[inline]
    pub(crate) fn enter(&mut self, head: u16, epoch: u32, segments: &[Segment]) {
        let mut slot =
            Slot { pending: 1, epoch, segments: segments.len() as u16, chunk: NO_CHUNK, ..Slot::default() };
        if segments.len() <= SLOT_SEGMENTS {
            slot.first[..segments.len()].copy_from_slice(segments);
        } else {
            slot.chunk = self.chunk();
            self.chunks[usize::from(slot.chunk)][..segments.len()].copy_from_slice(segments);
        }
        self.slots[usize::from(head)] = slot;
        self.taken += 1;
    }

    fn chunk(&mut self) -> u16 {
        self.free_chunks.pop().unwrap_or_else(|| {
            self.chunks.push([Segment::default(); CHAIN_SEGMENTS_MAX]);
            (self.chunks.len() - 1) as u16
        })
    }

    /// Sets how many copies of a taken chain are to be settled.
    #[inline]
    pub(crate) fn set_pending(&mut self, head: u16, copies: u16) {
        self.slots[usize::from(head)].pending = copies;
    }

    /// The segments of a taken chain, if it was taken under `epoch`.
    #[inline]
    pub(crate) fn segments(&self, head: u16, epoch: u32) -> Option<&[Segment]> {
        let slot =
            self.slots.get(usize::from(head)).filter(|slot| slot.pending > 0 && slot.epoch == epoch)?;
        let count = usize::from(slot.segments);
        if slot.chunk == NO_CHUNK {
            slot.first.get(..count)
        } else {
            self.chunks[usize::from(slot.chunk)].get(..count)
        }
    }

    /// One copy is settled; true if it was the last, and the chain is to be completed.
    #[inline]
    pub(crate) fn settle(&mut self, head: u16) -> bool {
        let slot = &mut self.slots[usize::from(head)];
        debug_assert!(slot.pending > 0, "a chain is settled once per copy");
        slot.pending = slot.pending.saturating_sub(1);
        if slot.pending > 0 {
            return false;
        }
        if slot.chunk != NO_CHUNK {
            self.free_chunks.push(slot.chunk);
        }
        self.taken -= 1;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn segments(count: u64) -> Vec<Segment> {
        (0..count).map(|offset| Segment { offset, len: 1, region: 0 }).collect()
    }

    #[test]
    fn keeps_short_and_long_chains_and_gives_chunks_back() {
        let mut table = SideTable::new(4);
        for round in 0..100 {
            for (head, count) in [(0, 1), (1, 3), (2, 4), (3, 64)] {
                assert!(table.has_room());
                table.enter(head, round, &segments(count));
                assert_eq!(table.segments(head, round).unwrap(), segments(count));
                assert!(table.segments(head, round + 1).is_none(), "another epoch");
            }
            assert_eq!(table.taken(), 4);
            for head in 0..4 {
                assert!(table.settle(head));
                assert!(table.segments(head, round).is_none(), "settled");
            }
        }
        assert_eq!(table.chunks.len(), 2);
        assert_eq!(table.taken(), 0);
    }

    #[test]
    fn a_flooded_chain_is_completed_with_its_last_copy() {
        let mut table = SideTable::new(2);
        table.enter(1, 0, &segments(2));
        table.set_pending(1, 3);
        assert_eq!([table.settle(1), table.settle(1), table.settle(1)], [false, false, true]);
    }
}
