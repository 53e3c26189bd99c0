//! Waiting packets that were copied out of their sender's memory, so that its guest gets the chains behind them back.
//!
//! A guest that negotiated VIRTIO_F_IN_ORDER gets its chains back in the order in which it made them available. A
//! packet that waits for a slow receiver would hold back all later chains, also those to other receivers.
//!
//! ```text
//!   transmit ring   [ a b c d ]      a waits; b, c and d are delivered, and held back
//!   detached        a: its bytes in pieces of the switch's own memory; its reference leads there, in the same place of the queue
//!   transmit ring   [ . . . . ]      all are used
//! ```

use std::sync::{Arc, OnceLock};

use lasthop_guestmem::{Cursor, Mapping, MemoryMap, Region, Segment, copy};

use crate::bounds::{
    DETACHED_BYTES_MAX, DETACHED_BYTES_MIN, DETACHED_FRAMES_MAX, DETACHED_FRAMES_MIN, DETACHED_PIECE_BYTES,
};
use crate::side_table::{ChainSegments, DetachedFrames, SegmentBuffer, SideTable};

/// The detached packets of one transmit ring, at its home.
#[derive(Debug)]
pub(crate) struct DetachedPool {
    /// The pieces of each packet.
    table: SideTable,
    free_slots: Vec<u16>,
    free_pieces: Vec<u16>,
}

impl DetachedPool {
    /// The pool of one of a port's `pairs` rings; other workers read it at `shared`. `None` if memory is short.
    pub(crate) fn new(pairs: usize, shared: &OnceLock<Box<DetachedFrames>>) -> Option<Self> {
        let slots = (DETACHED_FRAMES_MAX / pairs).max(DETACHED_FRAMES_MIN) as u16; // below 65536, as is the number of pieces
        let bytes = (DETACHED_BYTES_MAX / pairs).max(DETACHED_BYTES_MIN);
        let pieces = bytes.div_ceil(DETACHED_PIECE_BYTES as usize);
        let mapping = Arc::new(Mapping::anonymous(pieces * DETACHED_PIECE_BYTES as usize).ok()?);
        let map = MemoryMap::new(vec![Region { guest_addr: 0, user_addr: 0, mapping }]).ok()?;
        let table = SideTable::new(slots);
        shared.set(Box::new(DetachedFrames { map, chains: Arc::clone(table.chains()) })).ok()?;
        // The lowest slots first: their pages are probably resident.
        let free_slots = (0..slots).rev().collect();
        let free_pieces = (0..pieces as u16).rev().collect();
        Some(Self { table, free_slots, free_pieces })
    }

    /// Number of packets in the pool.
    pub(crate) fn taken(&self) -> u16 {
        self.table.taken()
    }

    /// Copies a packet of `segments` into the pool. Returns its slot; `None` if the pool is full or the packet's memory
    /// is gone.
    pub(crate) fn put(
        &mut self,
        frames: &DetachedFrames,
        (map, segments): (&MemoryMap, &[Segment]),
        epoch: u32,
    ) -> Option<(u16, u64)> {
        let bytes: u64 = segments.iter().map(|segment| u64::from(segment.len)).sum();
        let count = bytes.div_ceil(u64::from(DETACHED_PIECE_BYTES)) as usize;
        if count > self.free_pieces.len() || !self.table.has_room() {
            return None;
        }
        let slot = *self.free_slots.last()?;
        let pieces = self.free_pieces.iter().rev().take(count);
        let mut left = bytes;
        let mut targets = ChainSegments::new();
        for piece in pieces {
            let (offset, len) = (
                u64::from(*piece) * u64::from(DETACHED_PIECE_BYTES),
                left.min(u64::from(DETACHED_PIECE_BYTES)),
            );
            targets.try_push(Segment { offset, len: len as u32, region: 0 }).ok()?;
            left -= len;
        }
        let (mut from, mut to) = (Cursor::new(map, segments), Cursor::new(&frames.map, &targets));
        if copy(&mut from, &mut to, bytes as usize).ok()? != bytes as usize {
            return None;
        }
        self.free_slots.pop();
        self.free_pieces.truncate(self.free_pieces.len() - count);
        self.table.enter(slot, epoch, &targets);
        Some((slot, bytes))
    }

    /// Frees `slot`: its packet was delivered or dropped.
    pub(crate) fn release(&mut self, slot: u16, epoch: u32, buffer: &mut SegmentBuffer) {
        let segments = self.table.chains().segments(slot, epoch, buffer).unwrap_or_default();
        let piece = |segment: &Segment| (segment.offset / u64::from(DETACHED_PIECE_BYTES)) as u16;
        self.free_pieces.extend(segments.iter().map(piece));
        self.free_slots.push(slot);
        self.table.release(slot);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bounds::{CHAIN_SEGMENTS_MAX, FRAME_BYTES_MAX};

    fn source(len: u32) -> (MemoryMap, Vec<Segment>) {
        let mapping = Arc::new(Mapping::anonymous(1 << 20).unwrap());
        let map = MemoryMap::new(vec![Region { guest_addr: 0, user_addr: 0, mapping }]).unwrap();
        let bytes: Vec<u8> = (0..len).map(|at| (at * 7) as u8).collect();
        let whole = map.translate(0, len, &mut 0).unwrap();
        map.write(whole, 0, &bytes).unwrap();
        let (first, rest) = (len / 3, len - len / 3);
        let rest = Segment { offset: whole.offset + u64::from(first), len: rest, ..whole };
        (map, vec![Segment { len: first, ..whole }, rest])
    }

    #[test]
    fn packets_are_copied_until_slots_or_pieces_are_used_up() {
        for (len, pairs) in
            [(64, 1), (64, 64), (3000, 1), (FRAME_BYTES_MAX + 20, 1), (FRAME_BYTES_MAX + 20, 64)]
        {
            let (map, segments) = source(len);
            let shared = OnceLock::new();
            let mut pool = DetachedPool::new(pairs, &shared).unwrap();
            let frames = shared.get().unwrap();
            let mut buffer = [Segment::default(); CHAIN_SEGMENTS_MAX];
            let mut counts = Vec::new();
            for _ in 0..2 {
                let mut slots = Vec::new();
                while let Some((slot, bytes)) = pool.put(frames, (&map, &segments), 3) {
                    assert_eq!(bytes, u64::from(len));
                    slots.push(slot);
                }
                for slot in &slots {
                    let mut out = vec![0; len as usize];
                    let pieces = frames.chains.segments(*slot, 3, &mut buffer).unwrap();
                    assert_eq!(Cursor::new(&frames.map, pieces).read(&mut out), Ok(len as usize));
                    assert!((0..len).all(|at| out[at as usize] == (at * 7) as u8));
                }
                assert_eq!(usize::from(pool.taken()), slots.len());
                counts.push(slots.len());
                slots.iter().for_each(|slot| pool.release(*slot, 3, &mut buffer));
                assert_eq!(pool.taken(), 0);
            }
            assert!(counts[0] == counts[1] && counts[0] >= 1, "{len} {pairs} {counts:?}");
            assert!(counts[0] <= (DETACHED_FRAMES_MAX / pairs).max(DETACHED_FRAMES_MIN));
            assert!(counts[0] * len as usize <= (DETACHED_BYTES_MAX / pairs).max(DETACHED_BYTES_MIN));
        }
    }
}
