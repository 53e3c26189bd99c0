//! The memory of a table. It may outlive the process; the next one finds connections there before it has checked any.
//!
//! ```text
//!   header   layout, places used so far, key of the hash, shape of each shard's index     one page
//!   places   of 256 bytes each, used in order: pages are allocated a little ahead of their use
//!   heads    of each shard's index: a word for each possible bucket
//! ```

use std::ops::Range;
use std::sync::Arc;

use lasthop_guestmem::{Mapping, Words};

use crate::bounds::SHARDS;
use crate::hash::{HashKey, KEY_WORDS};
use crate::index::{INDEX_WORDS, Index};
use crate::place::PLACE_WORDS;
use crate::places::{Places, USED_AT};

/// The layout of this memory and of a place, and the meaning of their words. A change needs another number.
const LAYOUT: u64 = u64::from_ne_bytes(*b"lhconns5");
const HEADER_WORDS: usize = 512;
const LAYOUT_AT: usize = 0;
const KEY_AT: usize = 2;
const INDICES_AT: usize = KEY_AT + KEY_WORDS;

const _: () = assert!(INDICES_AT + SHARDS * INDEX_WORDS <= HEADER_WORDS);

/// A table's memory; see the module.
#[derive(Debug)]
pub(crate) struct TableMemory {
    pub(crate) places: Places,
    pub(crate) indices: Vec<Index>,
    pub(crate) key: HashKey,
    /// Number of places that another process used.
    pub(crate) kept: u32,
}

/// The range of a shard's heads, in words, for this number of places.
fn heads_of(shard: usize, places: u32) -> Range<usize> {
    let words = Index::words_for(2 * places as usize);
    let begin = HEADER_WORDS + places as usize * PLACE_WORDS + shard * words;
    begin..begin + words
}

impl TableMemory {
    /// Bytes for this number of places.
    pub(crate) fn bytes_for(places: u32) -> usize {
        heads_of(SHARDS - 1, places).end * size_of::<u64>()
    }

    /// Memory of this process only.
    pub(crate) fn new(places: u32) -> Option<Self> {
        Self::of(&Arc::new(Mapping::anonymous(Self::bytes_for(places)).ok()?), places)
    }

    /// Uses `memory`, with the connections that another process has left there. Returns `None` if it is too small.
    pub(crate) fn of(memory: &Arc<Mapping>, places: u32) -> Option<Self> {
        let words = |range: Range<usize>| Words::new(memory, range.start * size_of::<u64>(), range.len());
        let header = words(0..HEADER_WORDS)?;
        let is_known = header.read(LAYOUT_AT) == LAYOUT;
        if !is_known {
            // The layout is cleared first and written last: without it nothing in the memory is used.
            header.publish(LAYOUT_AT, 0);
            header.publish(USED_AT, 0);
            header.write_at(KEY_AT, &HashKey::random().words());
        }
        let index = |shard: usize| {
            let begin = INDICES_AT + shard * INDEX_WORDS;
            Some(Index::of(words(begin..begin + INDEX_WORDS)?, words(heads_of(shard, places))?, is_known))
        };
        let indices = (0..SHARDS).map(index).collect::<Option<Vec<Index>>>()?;
        let key = HashKey::of(std::array::from_fn(|at| header.read(KEY_AT + at)));
        let kept = header.read(USED_AT).min(places.into()) as u32;
        header.publish(LAYOUT_AT, LAYOUT);
        let rows = words(HEADER_WORDS..HEADER_WORDS + places as usize * PLACE_WORDS)?;
        Some(Self { places: Places::new(header, rows, places, kept), indices, key, kept })
    }

    /// Memory for no place.
    pub(crate) fn none() -> Self {
        let indices = (0..SHARDS).map(|_| Index::none()).collect();
        Self { places: Places::none(), indices, key: HashKey::random(), kept: 0 }
    }
}
