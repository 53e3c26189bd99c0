//! Records a device's chains in memory that the front end keeps, for a device that starts after all state of the switch
//! is gone.
//!
//! The layout is that of split rings in the vhost-user specification, "Inflight I/O tracking", so any back end can
//! continue.
//!
//! ```text
//!   byte 0    features u64 | version u16 = 1 | entries u16 | last_batch_head u16 | used_idx u16
//!   byte 16   states[entries]: inflight u8 | 5 unused | next u16 | counter u64            by head
//! ```

use std::sync::Arc;

use lasthop_guestmem::Mapping;

use crate::ledger::order;
use crate::{RING_ENTRIES_MAX, RingFormat};

mod log_memory;
pub(crate) mod packed;

use log_memory::LogMemory;
use packed::PackedInflightLog;

// Half-words of the region.
const WORD_LAST: usize = 6;
const WORD_USED: usize = 7;
// Half-words of a state.
const STATE_NEXT: usize = 3;

/// The log of a ring of either format.
#[derive(Debug)]
pub enum RingLog {
    /// Of a split ring.
    Split(InflightLog),
    /// Of a packed ring.
    Packed(PackedInflightLog),
}

impl RingLog {
    /// Bytes of the log of a ring of `entries`.
    #[must_use]
    pub fn bytes(format: RingFormat, entries: u16) -> usize {
        match format {
            RingFormat::Split => InflightLog::bytes(entries),
            RingFormat::Packed => PackedInflightLog::bytes(entries),
        }
    }

    /// The log of a ring of `entries` at byte `offset` of `mapping`, unchanged; `None` if the mapping has no room
    /// there, or it is misaligned.
    #[must_use]
    pub fn within(
        format: RingFormat,
        mapping: &Arc<Mapping>,
        offset_bytes: usize,
        entries: u16,
    ) -> Option<Self> {
        match format {
            RingFormat::Split => InflightLog::within(mapping, offset_bytes, entries).map(Self::Split),
            RingFormat::Packed => PackedInflightLog::within(mapping, offset_bytes, entries).map(Self::Packed),
        }
    }
}

/// The log of one ring. The front end can write to it as well, so values read from it are bounded. They affect nothing
/// outside the log, except the chains found at the start.
#[derive(Debug)]
pub struct InflightLog {
    memory: LogMemory<16, 16>,
    /// Number of chains taken.
    count: u64,
}

impl InflightLog {
    /// Bytes of the log of a ring of `entries`.
    #[must_use]
    pub fn bytes(entries: u16) -> usize {
        LogMemory::<16, 16>::bytes(entries)
    }

    /// The log of a ring of `entries` at byte `offset` of `mapping`, unchanged; `None` if the mapping has no room
    /// there, or it is misaligned.
    #[must_use]
    pub fn within(mapping: &Arc<Mapping>, offset_bytes: usize, entries: u16) -> Option<Self> {
        let memory = LogMemory::within(mapping, offset_bytes, entries, RING_ENTRIES_MAX)?;
        Some(Self { memory, count: 0 })
    }

    /// Returns the chains that another device had taken and not completed, in the order in which it took them. The
    /// ring's used index is `used`. A fresh log, or one of another ring, has none and is initialized.
    pub(crate) fn recover(&mut self, used: u16) -> Vec<u16> {
        if !self.memory.is_known() {
            self.begin(used);
            return Vec::new();
        }
        self.end_batch(used, self.memory.entries);
        let taken = self.memory.in_flight();
        self.count = taken.last().map_or(0, |(count, _)| *count);
        taken.into_iter().map(|(_, head)| head).collect()
    }

    /// Initializes the log: no chain is in flight.
    pub(crate) fn begin(&mut self, used: u16) {
        self.memory.begin(|memory| memory.set(WORD_USED, used));
    }

    /// Records that the last batch, of at most `chains_max`, was published. Also completes this for a device that died
    /// meanwhile.
    fn end_batch(&mut self, used: u16, chains_max: u16) {
        let (mut head, batch) = (self.memory.get(WORD_LAST), used.wrapping_sub(self.memory.get(WORD_USED)));
        for _ in 0..batch.min(chains_max) {
            self.memory.set_in_flight(head, false);
            head = self.memory.get_state(head, STATE_NEXT);
        }
        order();
        self.memory.set(WORD_USED, used);
    }

    /// Records that the device took a chain.
    pub(crate) fn take(&mut self, head: u16) {
        self.count = self.count.wrapping_add(1);
        self.memory.set_counter(head, self.count);
        order();
        self.memory.set_in_flight(head, true);
        order();
    }

    /// Adds a chain to the batch that is about to be published. Called for each chain before the used index is stored.
    pub(crate) fn link(&mut self, head: u16) {
        self.memory.set_state(head, STATE_NEXT, self.memory.get(WORD_LAST));
        order();
        self.memory.set(WORD_LAST, head);
        order();
    }

    /// Records that `chains` chains are published and the used index is `used`. Walks only the linked entries, for any
    /// contents.
    pub(crate) fn published(&mut self, used: u16, chains: u16) {
        self.end_batch(used, chains.min(self.memory.entries));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;

    const ENTRIES: u16 = 8;

    fn memory() -> Arc<Mapping> {
        Arc::new(Mapping::anonymous(4096).unwrap())
    }

    fn log(memory: &Arc<Mapping>) -> InflightLog {
        InflightLog::within(memory, 64, ENTRIES).unwrap()
    }

    #[test]
    fn the_layout_is_the_specifications() {
        assert_eq!(InflightLog::bytes(ENTRIES), 192);
        let memory = memory();
        let mut log = log(&memory);
        assert!(log.recover(65_535).is_empty());
        log.take(5);
        log.link(5);
        let byte = |at: usize| {
            // SAFETY: inside the page; a test without other threads.
            unsafe { memory.start().as_ptr().add(64 + at).read() }
        };
        let half = |at: usize| u16::from_ne_bytes([byte(at), byte(at + 1)]);
        assert_eq!((half(8), half(10), half(12), half(14)), (1, ENTRIES, 5, 65_535));
        assert_eq!((byte(16 + 5 * 16), half(16 + 5 * 16 + 6), byte(16 + 5 * 16 + 8)), (1, 0, 1));
        assert_eq!(byte(16 + 4 * 16), 0);
    }

    #[test]
    fn chains_are_in_flight_from_the_take_to_the_publication() {
        let memory = memory();
        let mut one = log(&memory);
        one.recover(0);
        [3, 1, 6].into_iter().for_each(|head| one.take(head));
        assert_eq!(log(&memory).recover(0), [3, 1, 6]);
        [6, 3].into_iter().for_each(|head| one.link(head));
        assert_eq!(log(&memory).recover(0), [3, 1, 6], "not published yet");
        assert_eq!(log(&memory).recover(2), [1], "published, and not written down");
        one.published(2, 2);
        let mut next = log(&memory);
        assert_eq!(next.recover(2), [1]);
        next.take(3);
        assert_eq!(log(&memory).recover(2), [1, 3], "counters go on");
        next.link(1);
        next.published(3, 1);
        assert_eq!(log(&memory).recover(3), [3]);
    }

    #[test]
    fn a_front_end_cannot_make_a_batch_longer() {
        let memory = memory();
        let mut log = log(&memory);
        log.recover(0);
        [3, 1, 6, 4].into_iter().for_each(|head| log.take(head));
        [6, 3, 1].into_iter().for_each(|head| log.link(head));
        log.memory.set(WORD_USED, 60_000);
        log.published(1, 1);
        assert_eq!((log.memory.get(WORD_USED), log.recover(1)), (1, vec![3, 6, 4]));
    }

    #[test]
    fn any_overwritten_ring_ends() {
        for seed in 0..5_000_u32 {
            let memory = memory();
            let mut log = log(&memory);
            log.begin(0);
            let word = |index: u32| (seed.wrapping_add(index).wrapping_mul(2_654_435_761) >> 13) as u16;
            for index in 6..96 {
                log.memory.set(index as usize, word(index));
            }
            assert!(log.recover(word(100)).len() <= usize::from(ENTRIES));
        }
    }

    #[test]
    fn a_front_end_that_writes_counters_meanwhile_does_no_harm() {
        let memory = Arc::new(Mapping::anonymous(InflightLog::bytes(1024)).unwrap());
        let log = || InflightLog::within(&memory, 0, 1024).unwrap();
        let (front, is_over) = (log(), std::sync::atomic::AtomicBool::new(false));
        log().begin(0);
        (0..1024).for_each(|head| front.memory.set_in_flight(head, true));
        std::thread::scope(|scope| {
            let scribble = || {
                let front = front;
                for count in 0_u64.. {
                    let head = (count.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 48) as u16;
                    front.memory.set_counter(head, count.wrapping_mul(0xbf58_476d_1ce4_e5b9));
                    if is_over.load(Ordering::Relaxed) {
                        return;
                    }
                }
            };
            scope.spawn(scribble);
            let found = std::panic::catch_unwind(|| (0..200).all(|_| log().recover(0).len() == 1024));
            is_over.store(true, Ordering::Relaxed);
            assert!(found.is_ok_and(|all| all));
        });
    }

    #[test]
    fn a_log_lies_in_its_memory_or_nowhere() {
        let memory = memory();
        assert!(InflightLog::within(&memory, 0, 128).is_some());
        for (offset, entries) in [(0, 256), (4096, 8), (4, 8), (usize::MAX, 8), (0, 0), (0, 7)] {
            assert!(InflightLog::within(&memory, offset, entries).is_none(), "{offset} {entries}");
        }
    }
}
