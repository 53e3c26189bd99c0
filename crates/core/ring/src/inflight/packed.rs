//! The log of a packed ring's chains in flight, with the layout of the vhost-user specification ("Inflight I/O tracking").
//!
//! ```text
//!   byte 0    features, 64 bits | version | entries | free_head | old_free_head | used_idx | old_used_idx | wraps, a byte each
//!   byte 32   by entry: in flight, a byte | 0 | next | last | num | counter, 64 bits | id | flags | len, 32 bits | addr, 64 bits
//!
//!   take:     a chain's descriptors go into entries of the free list; its first one is then in flight
//!   link:     before publication: the chain's entries go back to the free list, and used_idx moves
//!   publish:  after it: not in flight, and old_.. = ..
//! ```
//!
//! A device that died between the two had chains that it was about to publish. The ring itself tells whether it did.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use lasthop_guestmem::Mapping;

use super::log_memory::LogMemory;
use crate::ledger::order;
use crate::packed_memory::WRAP;
use crate::{Descriptor, PACKED_ENTRIES_MAX, RingMemory, death, position_of_wire, wire_position};

/// In place of an entry.
const NO_ENTRY: u16 = u16::MAX;

/// Half-words of the head.
const WORD_FREE: usize = 6;
const WORD_OLD_FREE: usize = 7;
/// Four half-words that are stored at once: `used_idx`, `old_used_idx`, and a byte for the wrap counter of each.
const WORD_USED: usize = 8;

/// Half-words of an entry.
const STATE_NEXT: usize = 1;
const STATE_LAST: usize = 2;
const STATE_NUM: usize = 3;
const STATE_ID: usize = 8;
const STATE_FLAGS: usize = 9;
const STATE_LEN: usize = 10;
const STATE_ADDR: usize = 12;

/// Chains that another device had taken and not completed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LoggedChains {
    /// The position of the next used descriptor, within two laps.
    pub(crate) used: u16,
    /// Buffer ID and number of descriptors of each, in the order in which they were taken.
    pub(crate) chains: Vec<(u16, u16)>,
}

/// Records a packed ring's chains in flight. The front end keeps the memory, and may write to it: values are used as
/// indices only within bounds.
#[derive(Debug)]
pub struct PackedInflightLog {
    memory: LogMemory<32, 32>,
    /// Number of chains taken.
    count: u64,
    /// By buffer ID: the entry of a chain's first descriptor, or [`NO_ENTRY`].
    heads: Box<[u16]>,
}

impl PackedInflightLog {
    /// Bytes of the log of a ring of `entries`.
    #[must_use]
    pub fn bytes(entries: u16) -> usize {
        LogMemory::<32, 32>::bytes(entries)
    }

    /// The log of a ring of `entries` at byte `offset` of `mapping`, unchanged; `None` if the mapping has no room
    /// there, or it is misaligned.
    #[must_use]
    pub fn within(mapping: &Arc<Mapping>, offset_bytes: usize, entries: u16) -> Option<Self> {
        let memory = LogMemory::within(mapping, offset_bytes, entries, PACKED_ENTRIES_MAX)?;
        let heads = vec![NO_ENTRY; usize::from(entries)].into();
        Some(Self { memory, count: 0, heads })
    }

    /// Positions of the next used descriptor, and of the next one that was published before.
    fn used(&self) -> (u16, u16) {
        let [a, b, c, d, wrap, old_wrap, ..] =
            self.memory.long(WORD_USED).load(Ordering::Relaxed).to_ne_bytes();
        let position = |index, wrap: u8| {
            let wrap = if wrap == 0 { 0 } else { WRAP };
            position_of_wire(u16::from_ne_bytes(index) & !WRAP | wrap, self.memory.entries)
        };
        (position([a, b], wrap), position([c, d], old_wrap))
    }

    fn set_used(&self, used: u16, old_used: u16) {
        let [used, old_used] = [used, old_used].map(|position| wire_position(position, self.memory.entries));
        let [[a, b], [c, d]] = [used, old_used].map(|wire| (wire & !WRAP).to_ne_bytes());
        let [wrap, old_wrap] = [used, old_used].map(|wire| u8::from(wire & WRAP != 0));
        let bytes = [a, b, c, d, wrap, old_wrap, 0, 0];
        death::may_come();
        self.memory.long(WORD_USED).store(u64::from_ne_bytes(bytes), Ordering::Relaxed);
    }

    /// Returns the chains that another device had taken and not completed. `None` for a fresh log, one of another ring, or
    /// one of a driver that restarted since: then it has to be [begun](Self::begin).
    pub(crate) fn recover(&mut self, memory: &RingMemory) -> Option<LoggedChains> {
        if !self.memory.is_known() {
            return None;
        }
        let (used, old_used) = self.used();
        let used = match used == old_used {
            true => used,
            false if memory.packed_word(old_used).was_used(memory.wrap(old_used)) => {
                self.end_batch(used.wrapping_sub(old_used) & (2 * self.memory.entries - 1));
                used
            }
            false => old_used,
        };
        let chains = self.collect()?;
        // No used descriptor was published there, so only a driver that began anew has overwritten it.
        let is_known = chains.is_empty() || memory.packed_word(used).is_available(memory.wrap(used));
        is_known.then(|| {
            self.set_used(used, used);
            LoggedChains { used, chains }
        })
    }

    /// The chains in flight; all other entries become free. `None` if they share entries, or have more than there are: each
    /// entry is looked at once.
    fn collect(&mut self) -> Option<Vec<(u16, u16)>> {
        let taken = self.memory.in_flight();
        self.count = taken.last().map_or(0, |(count, _)| *count);
        let mut is_free = vec![true; usize::from(self.memory.entries)];
        let mut is_known = vec![false; usize::from(self.memory.entries)];
        let mut chains = Vec::new();
        for (_, head) in taken {
            let num = self.memory.get_state(head, STATE_NUM).max(1);
            let mut entry = head;
            for _ in 0..num {
                if !std::mem::take(&mut is_free[usize::from(entry)]) {
                    return None;
                }
                entry = self.memory.get_state(entry, STATE_NEXT) & (self.memory.entries - 1);
            }
            let id = self.memory.get_state(head, STATE_ID) & (self.memory.entries - 1);
            if std::mem::replace(&mut is_known[usize::from(id)], true) {
                return None;
            }
            self.heads[usize::from(id)] = head;
            chains.push((id, num));
        }
        self.link_free((0..self.memory.entries).filter(|entry| is_free[usize::from(*entry)]).collect());
        Some(chains)
    }

    fn link_free(&self, free: Vec<u16>) {
        for pair in free.windows(2) {
            self.memory.set_state(pair[0], STATE_NEXT, pair[1]);
        }
        let first = free.first().copied().unwrap_or_default();
        self.memory.set(WORD_FREE, first);
        self.memory.set(WORD_OLD_FREE, first);
    }

    /// Initializes the log of a ring of which no chain is in flight, and the next used descriptor is at `position`.
    pub(crate) fn begin(&mut self, position: u16) {
        self.count = 0;
        self.heads.fill(NO_ENTRY);
        self.memory.begin(|_| {
            self.link_free((0..self.memory.entries).collect());
            self.set_used(position, position);
        });
    }

    /// Records that the device took the chain with buffer ID `id`.
    pub(crate) fn take(&mut self, id: u16, chain: impl ExactSizeIterator<Item = Descriptor>) {
        let (head, num) = (self.memory.get(WORD_FREE) & (self.memory.entries - 1), chain.len());
        let (mut entry, mut last) = (head, head);
        for descriptor in chain {
            self.memory.set_state(entry, STATE_ID, id);
            self.memory.set_state(entry, STATE_FLAGS, descriptor.flags);
            self.memory.set_state(entry, STATE_LEN, descriptor.len as u16);
            self.memory.set_state(entry, STATE_LEN + 1, (descriptor.len >> 16) as u16);
            self.memory.long_state(entry, STATE_ADDR).store(descriptor.addr, Ordering::Relaxed);
            (last, entry) = (entry, self.memory.get_state(entry, STATE_NEXT) & (self.memory.entries - 1));
        }
        self.count = self.count.wrapping_add(1);
        self.memory.set_state(head, STATE_LAST, last);
        self.memory.set_state(head, STATE_NUM, num as u16); // at most the ring's entries
        self.memory.set_counter(head, self.count);
        if let Some(known) = self.heads.get_mut(usize::from(id)) {
            *known = head;
        }
        order();
        self.memory.set_in_flight(head, true);
        order();
        self.memory.set(WORD_FREE, entry);
        self.memory.set(WORD_OLD_FREE, entry);
        order();
    }

    /// Whether the chain with buffer ID `id` is in flight.
    pub(crate) fn has(&self, id: u16) -> bool {
        self.heads.get(usize::from(id)).is_some_and(|head| *head != NO_ENTRY)
    }

    /// Adds a chain to the batch that is about to be published.
    pub(crate) fn link(&mut self, id: u16) {
        let known = self.heads.get_mut(usize::from(id)).map(|head| std::mem::replace(head, NO_ENTRY));
        let Some(head) = known.filter(|head| *head != NO_ENTRY) else { return };
        let last = self.memory.get_state(head, STATE_LAST);
        self.memory.set_state(last, STATE_NEXT, self.memory.get(WORD_FREE));
        order();
        self.memory.set(WORD_FREE, head);
        let (used, old_used) = self.used();
        self.set_used(used.wrapping_add(self.memory.get_state(head, STATE_NUM)), old_used);
        order();
    }

    /// Records that all linked chains are published.
    pub(crate) fn published(&mut self) {
        let (used, old_used) = self.used();
        self.end_batch(used.wrapping_sub(old_used) & (2 * self.memory.entries - 1));
        order();
        self.set_used(used, used);
    }

    /// Ends the flight of the chains at the start of the free list, which have as many descriptors.
    fn end_batch(&self, descriptors: u16) {
        let mut entry = self.memory.get(WORD_FREE) & (self.memory.entries - 1);
        let mut left = descriptors.min(self.memory.entries);
        while left > 0 {
            self.memory.set_in_flight(entry, false);
            left -= self.memory.get_state(entry, STATE_NUM).clamp(1, left);
            entry = self.memory.get_state(self.memory.get_state(entry, STATE_LAST), STATE_NEXT)
                & (self.memory.entries - 1);
        }
        order();
        self.memory.set(WORD_OLD_FREE, self.memory.get(WORD_FREE));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packed_memory::PackedWord;
    use crate::{RingAddresses, RingFormat};
    use lasthop_guestmem::{MemoryMap, Region};

    const ENTRIES: u16 = 8;

    fn ring() -> (RingMemory, Arc<Mapping>) {
        let mapping = Arc::new(Mapping::anonymous(8192).unwrap());
        let region = Region { guest_addr: 0, user_addr: 0, mapping };
        let map = MemoryMap::new(vec![region]).unwrap();
        let addresses = RingAddresses { descriptors: 0, available: 1024, used: 2048 };
        let memory = RingMemory::of(RingFormat::Packed, &map, u32::from(ENTRIES), addresses).unwrap();
        (memory, Arc::new(Mapping::anonymous(4096).unwrap()))
    }

    fn log(kept: &Arc<Mapping>) -> PackedInflightLog {
        PackedInflightLog::within(kept, 64, ENTRIES).unwrap()
    }

    fn chain(count: u16) -> impl ExactSizeIterator<Item = Descriptor> {
        (0..count).map(|number| Descriptor {
            addr: 0x1_0000 + u64::from(number),
            len: 70_000,
            flags: 1,
            next: 0,
        })
    }

    #[test]
    fn the_layout_is_the_specifications() {
        assert_eq!(PackedInflightLog::bytes(ENTRIES), 320);
        let (memory, kept) = ring();
        let mut log = log(&kept);
        assert_eq!(log.recover(&memory), None);
        log.begin(9); // the second lap
        log.take(5, chain(2));
        let byte = |at: usize| {
            // SAFETY: inside the page; a test without other threads.
            unsafe { kept.start().as_ptr().add(64 + at).read() }
        };
        let half = |at: usize| u16::from_ne_bytes([byte(at), byte(at + 1)]);
        assert_eq!([half(8), half(10), half(12), half(14), half(16), half(18)], [1, ENTRIES, 2, 2, 1, 1]);
        assert_eq!([byte(20), byte(21)], [0, 0], "wrap counters");
        let of = |entry: usize| 32 + 32 * entry;
        assert_eq!((byte(of(0)), half(of(0) + 2), half(of(0) + 4), half(of(0) + 6)), (1, 1, 1, 2));
        assert_eq!((byte(of(0) + 8), half(of(0) + 16), half(of(0) + 18)), (1, 5, 1), "counter, ID, flags");
        assert_eq!([half(of(1) + 20), half(of(1) + 22), half(of(1) + 24), half(of(1) + 26)], [4464, 1, 1, 1]);
        assert_eq!(byte(of(1)), 0, "only the first one is in flight");
    }

    #[test]
    fn chains_are_in_flight_from_the_take_to_the_publication() {
        let (memory, kept) = ring();
        let mut one = log(&kept);
        one.begin(0);
        (0..4).for_each(|at| memory.set_packed_word(at, PackedWord::new(0, 0, 1 << 7)));
        one.take(3, chain(1));
        one.take(1, chain(2));
        one.take(6, chain(1));
        let known = |chains: &[(u16, u16)], used| Some(LoggedChains { used, chains: chains.to_vec() });
        assert_eq!(log(&kept).recover(&memory), known(&[(3, 1), (1, 2), (6, 1)], 0));
        let mut two = log(&kept);
        two.recover(&memory);
        two.link(1);
        assert_eq!(log(&kept).recover(&memory), known(&[(3, 1), (1, 2), (6, 1)], 0), "not published");
        let mut three = log(&kept);
        three.recover(&memory);
        three.link(1);
        memory.set_packed_word(0, PackedWord::new(0, 1, 1 << 7 | 1 << 15));
        assert_eq!(
            log(&kept).recover(&memory),
            known(&[(3, 1), (6, 1)], 2),
            "published, and not written down"
        );
        let mut four = log(&kept);
        four.recover(&memory);
        four.link(3);
        four.published();
        assert_eq!(log(&kept).recover(&memory), known(&[(6, 1)], 3));
        memory.set_packed_word(3, PackedWord::new(0, 0, 0));
        assert_eq!(log(&kept).recover(&memory), None, "the driver began anew");
    }

    #[test]
    fn any_overwritten_log_ends() {
        for seed in 0..5_000_u32 {
            let (memory, kept) = ring();
            let mut log = log(&kept);
            log.begin(0);
            let word = |index: u32| (seed.wrapping_add(index).wrapping_mul(2_654_435_761) >> 13) as u16;
            (6..160).for_each(|index| log.memory.set(index as usize, word(index) % 11 * (word(index) % 3)));
            if seed % 3 == 0 {
                // All in flight, and as long as can be: the ends of chains are looked for in each other.
                for entry in 0..ENTRIES {
                    log.memory.set_in_flight(entry, true);
                    log.memory.set_state(entry, STATE_NUM, u16::MAX);
                }
            }
            (0..ENTRIES).for_each(|at| memory.set_packed_word(at, PackedWord(u64::from(word(200)) << 48)));
            if let Some(logged) = log.recover(&memory) {
                assert!(logged.chains.iter().map(|(_, num)| num).sum::<u16>() <= ENTRIES);
                assert!(logged.chains.iter().all(|(id, num)| *id < ENTRIES && *num > 0));
            }
            log.take(word(300), chain(3));
            log.link(word(301));
            log.published();
        }
    }

    #[test]
    fn a_log_lies_in_its_memory_or_nowhere() {
        let kept = Arc::new(Mapping::anonymous(4096).unwrap());
        assert!(PackedInflightLog::within(&kept, 0, 64).is_some());
        for (offset, entries) in [(0, 128), (4096, 8), (4, 8), (usize::MAX, 8), (0, 0), (0, 7)] {
            assert!(PackedInflightLog::within(&kept, offset, entries).is_none(), "{offset} {entries}");
        }
    }
}
