//! Flows in memory that outlives the switch process, so that packets of known flows stay known to a successor.
//!
//! ```text
//!   word 0   64            one chunk                                     chunks of 64 KiB
//!   [magic   classes of    | [record][record][      ][record]            | ...
//!    moved]  all chunks    |  state, statistics, message                 |
//!                             state 0: free; else datapath and length
//! ```
//!
//! The supervisor keeps the file, and passes it to the next switch process. A record is written while its state is 0,
//! and its state is stored last; so a process that is killed at any store leaves complete records. Where a record is
//! replaced, `moved` names both, so that exactly one of them is valid. A reader does not trust the file: a record that
//! is out of bounds is free, and flows are checked as a client's are.

mod blocks;

use lasthop_api::orders::FLOW_MEMORY_BYTES;
use std::os::fd::AsFd;
use std::sync::Arc;

use lasthop_flow::FlowStats;
use lasthop_guestmem::{Mapping, Words};

use blocks::{Blocks, CHUNK_WORDS, CHUNKS, block_words};

const WORDS: usize = FLOW_MEMORY_BYTES as usize / 8;

/// The layout. A change needs another number.
const MAGIC: u64 = u64::from_ne_bytes(*b"lhflows1");
const MAGIC_AT: usize = 0;
/// Offset of the word with a replacing record and the replaced one, 32 bits each.
const MOVED_AT: usize = 1;
const CLASSES_AT: usize = 64;

/// Words that are written at a time: most messages are shorter.
const ROW_WORDS: usize = 32;
/// Words before a record's message: its state and its statistics.
const HEAD_WORDS: usize = 5;

const _: () = assert!(CLASSES_AT + CHUNKS <= CHUNK_WORDS && CHUNKS * CHUNK_WORDS == WORDS);

/// The place of a record: the number of its first word, which is never 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RecordPlace(u32);

/// A record that another process left.
#[derive(Clone, Copy, Debug)]
pub(super) struct Found {
    pub(super) place: RecordPlace,
    /// The datapath's number.
    pub(super) datapath: i32,
    /// Last use of its flow, as far as it was recorded.
    pub(super) used_ms: u64,
}

/// The file, mapped.
#[derive(Debug)]
pub(super) struct FlowMemory {
    words: Words,
    blocks: Blocks,
}

impl FlowMemory {
    /// Maps `file`, and finds the flows that another process left. `None` if it cannot be mapped.
    pub(super) fn of(file: impl AsFd) -> Option<(Self, Vec<Found>)> {
        let mapping = Mapping::of_file(file.as_fd(), 0, FLOW_MEMORY_BYTES).ok()?;
        let mut memory = Self { words: Words::new(&Arc::new(mapping), 0, WORDS)?, blocks: Blocks::default() };
        if memory.words.read(MAGIC_AT) != MAGIC {
            memory.words.write_at(CLASSES_AT, &[0; CHUNKS]);
            memory.words.publish(MOVED_AT, 0);
            memory.words.publish(MAGIC_AT, MAGIC);
        }
        memory.settle_move();
        let found = memory.scan();
        Some((memory, found))
    }

    /// Records a flow of a datapath. `None` if there is no room.
    pub(super) fn put(&mut self, datapath: i32, message: &[u8], stats: &FlowStats) -> Option<RecordPlace> {
        let place = self.write(message, stats)?;
        self.publish(place, datapath, message.len());
        Some(place)
    }

    /// Records a flow in place of another one. `None` if there is no room; the other one is removed even then.
    pub(super) fn replace(
        &mut self,
        old: RecordPlace,
        datapath: i32,
        message: &[u8],
        stats: &FlowStats,
    ) -> Option<RecordPlace> {
        let new = self.write(message, stats);
        if let Some(new) = new {
            self.words.publish(MOVED_AT, u64::from(new.0) << 32 | u64::from(old.0));
            self.publish(new, datapath, message.len());
        }
        self.remove(old);
        self.words.publish(MOVED_AT, 0);
        new
    }

    /// Removes a flow's record.
    pub(super) fn remove(&mut self, place: RecordPlace) {
        self.words.publish(place.0 as usize, 0);
        self.give_back(place);
    }

    fn give_back(&mut self, place: RecordPlace) {
        if let Some(class) = self.class_of(place.0 as usize / CHUNK_WORDS) {
            self.blocks.give_back(class, place.0);
        }
    }

    /// Updates a flow's statistics.
    pub(super) fn note(&self, place: RecordPlace, stats: &FlowStats) {
        self.words.write_at(place.0 as usize + 1, &words_of(stats));
    }

    /// A flow's message and its statistics.
    pub(super) fn read(&self, place: RecordPlace) -> (Vec<u8>, FlowStats) {
        let at = place.0 as usize;
        let len = self.words.read(at) as u32 as usize;
        let words = (0..len.div_ceil(8)).map(|index| self.words.read(at + HEAD_WORDS + index));
        let mut message: Vec<u8> = words.flat_map(u64::to_ne_bytes).collect();
        message.truncate(len);
        let [packets, bytes, used_ms, flags] = [1, 2, 3, 4].map(|index| self.words.read(at + index));
        (message, FlowStats { packets, bytes, used_ms, tcp_flags: (flags & 0xfff) as u16 })
    }

    /// Writes a record that is not valid yet.
    fn write(&mut self, message: &[u8], stats: &FlowStats) -> Option<RecordPlace> {
        let (at, fresh) = self.blocks.take(HEAD_WORDS + message.len().div_ceil(8))?;
        if let Some((chunk, class)) = fresh {
            // Its blocks are marked free before it gets a class: a chunk without a class may contain anything.
            for block in (0..CHUNK_WORDS).step_by(block_words(class)) {
                self.words.publish(chunk * CHUNK_WORDS + block, 0);
            }
            self.words.publish(CLASSES_AT + chunk, class as u64 + 1);
        }
        self.words.write_at(at as usize + 1, &words_of(stats));
        let rows = message.chunks(8 * ROW_WORDS).map(row_of);
        for (start, (row, count)) in (at as usize + HEAD_WORDS..).step_by(ROW_WORDS).zip(rows) {
            self.words.write_at(start, &row[..count]);
        }
        Some(RecordPlace(at))
    }

    fn publish(&self, place: RecordPlace, datapath: i32, len: usize) {
        self.words.publish(place.0 as usize, u64::from(datapath.cast_unsigned()) << 32 | len as u64);
    }

    /// Completes a replacement during which a process was killed: the new record wins if it was complete.
    fn settle_move(&self) {
        let moved = self.words.read(MOVED_AT);
        let (new, old) = ((moved >> 32) as usize, moved as u32 as usize);
        if self.is_block(new) && self.is_block(old) && self.words.read(new) != 0 {
            self.words.publish(old, 0);
        }
        self.words.publish(MOVED_AT, 0);
    }

    /// Finds all valid records; everything else is free.
    fn scan(&mut self) -> Vec<Found> {
        let mut found = Vec::new();
        for chunk in 1..CHUNKS {
            let Some(class) = self.class_of(chunk) else { continue };
            self.blocks.occupy(chunk);
            for block in (0..CHUNK_WORDS).step_by(block_words(class)) {
                let at = chunk * CHUNK_WORDS + block;
                let state = self.words.read(at);
                let len = (state as u32 as usize).div_ceil(8);
                let place = RecordPlace(at as u32);
                let datapath = ((state >> 32) as u32).cast_signed();
                match state as u32 {
                    // It is not written to, so that it takes no memory.
                    0 => self.give_back(place),
                    _ if HEAD_WORDS + len > block_words(class) => self.remove(place),
                    _ => found.push(Found { place, datapath, used_ms: self.words.read(at + 3) }),
                }
            }
        }
        found
    }

    /// The block length of a chunk; `None` if it was not divided.
    fn class_of(&self, chunk: usize) -> Option<usize> {
        let class = (self.words.read(CLASSES_AT + chunk) as usize).checked_sub(1)?;
        (class < blocks::CLASSES).then_some(class)
    }

    fn is_block(&self, at: usize) -> bool {
        let class = (CHUNK_WORDS..WORDS).contains(&at).then(|| self.class_of(at / CHUNK_WORDS)).flatten();
        class.is_some_and(|class| (at % CHUNK_WORDS).is_multiple_of(block_words(class)))
    }
}

/// Bytes of a row as words, and the number of words.
fn row_of(bytes: &[u8]) -> ([u64; ROW_WORDS], usize) {
    let (mut row, (whole, rest)) = ([0; ROW_WORDS], bytes.as_chunks::<8>());
    row.iter_mut().zip(whole).for_each(|(word, bytes)| *word = u64::from_ne_bytes(*bytes));
    if let Some(last) = row.get_mut(whole.len()).filter(|_| !rest.is_empty()) {
        let mut word = [0; 8];
        word[..rest.len()].copy_from_slice(rest);
        *last = u64::from_ne_bytes(word);
    }
    (row, bytes.len().div_ceil(8))
}

fn words_of(stats: &FlowStats) -> [u64; HEAD_WORDS - 1] {
    [stats.packets, stats.bytes, stats.used_ms, stats.tcp_flags.into()]
}

#[cfg(test)]
mod tests;
