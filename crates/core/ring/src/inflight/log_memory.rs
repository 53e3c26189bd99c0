//! The memory of a log of chains in flight: a head of some half-words, and a state for each entry. Both layouts of the
//! specification are made so.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicU64, Ordering};

use lasthop_guestmem::Mapping;

use crate::death;
use crate::ledger::order;

/// Logs of rings begin at cache lines.
const LINE_BYTES: usize = 64;
const VERSION: u16 = 1;
/// Half-words of the head that both layouts have.
const WORD_VERSION: usize = 4;
const WORD_ENTRIES: usize = 5;
/// Half-words of a state that both layouts have: whether it is in flight, and when it was taken.
const STATE_INFLIGHT: usize = 0;
const STATE_COUNTER: usize = 4;

/// The memory of a log. The front end may write to it, too: entries are taken modulo their number.
///
/// `HEAD_BYTES` and `STATE_BYTES` are multiples of 16.
#[derive(Debug)]
pub(super) struct LogMemory<const HEAD_BYTES: usize, const STATE_BYTES: usize> {
    start: NonNull<u16>,
    pub(super) entries: u16,
    _pin: Arc<Mapping>,
}

// SAFETY: the pin keeps the memory; all access is by atomics, and no reference into it outlives a call.
unsafe impl<const HEAD_BYTES: usize, const STATE_BYTES: usize> Send for LogMemory<HEAD_BYTES, STATE_BYTES> {}

impl<const HEAD_BYTES: usize, const STATE_BYTES: usize> LogMemory<HEAD_BYTES, STATE_BYTES> {
    /// Bytes of the log of a ring of `entries`.
    pub(super) fn bytes(entries: u16) -> usize {
        (HEAD_BYTES + STATE_BYTES * usize::from(entries)).next_multiple_of(LINE_BYTES)
    }

    /// The log of a ring of `entries`, at most `entries_max`, at byte `offset` of `mapping`, unchanged; `None` if the
    /// mapping has no room there, or it is misaligned.
    pub(super) fn within(
        mapping: &Arc<Mapping>,
        offset_bytes: usize,
        entries: u16,
        entries_max: u16,
    ) -> Option<Self> {
        const { assert!(HEAD_BYTES.is_multiple_of(16) && STATE_BYTES.is_multiple_of(16)) };
        let end = offset_bytes.checked_add(Self::bytes(entries))?;
        let aligned = (mapping.start().as_ptr() as usize).checked_add(offset_bytes)?.is_multiple_of(8);
        if !entries.is_power_of_two() || entries > entries_max || end > mapping.len() || !aligned {
            return None;
        }
        // SAFETY: offset + bytes lies inside the mapping.
        let start = unsafe { mapping.start().add(offset_bytes) }.cast();
        Some(Self { start, entries, _pin: Arc::clone(mapping) })
    }

    fn word(&self, index: usize) -> &AtomicU16 {
        debug_assert!(2 * index < Self::bytes(self.entries));
        // SAFETY: the memory has as many bytes, pinned, and is 8-aligned. All accesses are atomic.
        unsafe { AtomicU16::from_ptr(self.start.as_ptr().add(index)) }
    }

    pub(super) fn get(&self, index: usize) -> u16 {
        self.word(index).load(Ordering::Relaxed)
    }

    pub(super) fn set(&self, index: usize, value: u16) {
        death::may_come();
        self.word(index).store(value, Ordering::Relaxed);
    }

    /// The 64 bits at half-word `index`, a multiple of four.
    pub(super) fn long(&self, index: usize) -> &AtomicU64 {
        debug_assert!(index.is_multiple_of(4) && 2 * (index + 4) <= Self::bytes(self.entries));
        // SAFETY: as in `word`, and four half-words from an aligned one on are aligned 64 bits.
        unsafe { AtomicU64::from_ptr(self.start.as_ptr().add(index).cast()) }
    }

    /// Half-word `index` of an entry's state.
    fn state(&self, entry: u16, index: usize) -> usize {
        (HEAD_BYTES + STATE_BYTES * usize::from(entry & (self.entries - 1))) / 2 + index
    }

    pub(super) fn get_state(&self, entry: u16, index: usize) -> u16 {
        self.get(self.state(entry, index))
    }

    pub(super) fn set_state(&self, entry: u16, index: usize, value: u16) {
        self.set(self.state(entry, index), value);
    }

    /// The 64 bits at half-word `index` of an entry's state, a multiple of four.
    pub(super) fn long_state(&self, entry: u16, index: usize) -> &AtomicU64 {
        self.long(self.state(entry, index))
    }

    pub(super) fn set_counter(&self, entry: u16, count: u64) {
        self.long_state(entry, STATE_COUNTER).store(count, Ordering::Relaxed);
    }

    /// The state is one byte; the other byte of the half-word is unused.
    fn is_in_flight(&self, entry: u16) -> bool {
        self.get_state(entry, STATE_INFLIGHT).to_ne_bytes()[0] != 0
    }

    pub(super) fn set_in_flight(&self, entry: u16, is_in_flight: bool) {
        self.set_state(entry, STATE_INFLIGHT, u16::from_ne_bytes([u8::from(is_in_flight), 0]));
    }

    /// The entries in flight with their counters, in the order of these.
    pub(super) fn in_flight(&self) -> Vec<(u64, u16)> {
        let taken = (0..self.entries).filter(|entry| self.is_in_flight(*entry));
        // Read once: sorting panics if values change meanwhile.
        let counter = |entry| self.long_state(entry, STATE_COUNTER).load(Ordering::Relaxed);
        let mut taken: Vec<(u64, u16)> = taken.map(|entry| (counter(entry), entry)).collect();
        taken.sort_unstable();
        taken
    }

    /// Whether the memory has the log of a ring of this size.
    pub(super) fn is_known(&self) -> bool {
        self.get(WORD_VERSION) == VERSION && self.get(WORD_ENTRIES) == self.entries
    }

    /// Initializes the memory: no entry is in flight, and `rest` sets the other words.
    pub(super) fn begin(&self, rest: impl FnOnce(&Self)) {
        self.set(WORD_VERSION, 0);
        order();
        (0..self.entries).for_each(|entry| self.set_in_flight(entry, false));
        self.set(WORD_ENTRIES, self.entries);
        rest(self);
        order();
        self.set(WORD_VERSION, VERSION);
    }
}
