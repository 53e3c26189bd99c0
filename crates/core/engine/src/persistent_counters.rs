//! Copies of the counters in memory that outlives the process, so that they are known when it was killed.

use std::collections::BTreeMap;
use std::sync::Arc;

use lasthop_fabric::bounds::WORKERS_MAX;
use lasthop_fabric::{Fabric, PortCounters};
use lasthop_guestmem::{Mapping, Words};
use lasthop_verdict::PortId;

use crate::former_counters::FORMER_BYTES;

/// How old a copy may be while packets pass.
const AGE_NS_MAX: u64 = 10_000_000;
/// Bytes for the names of the counters at the start of a port's memory, with room for those of other versions.
pub const NAMES_BYTES: usize = 3072;
/// Bytes of one worker's copy, with room likewise.
pub(crate) const PAGE_BYTES: usize = 1024;
/// Names that the counters of one port may have beside those that are known here.
const UNKNOWN_MAX: usize = PAGE_BYTES / 8;
const _: () = assert!(8 * PortCounters::WORDS <= PAGE_BYTES, "the memory of a port's counters is too small");

/// Where the copies end.
pub(crate) const WORKER_PAGES_END: usize = NAMES_BYTES + WORKERS_MAX * PAGE_BYTES;
/// Bytes of the memory for one port's counters: their names, a copy by each worker that there may be, and the counts of
/// processes before (`former_counters.rs`).
///
/// ```text
///   names, separated by blanks, zeroes  | worker 0: a word for each name | worker 1 | ... | seal | names | a word for each name
/// ```
pub const PORT_COUNTERS_BYTES: usize = (WORKER_PAGES_END + FORMER_BYTES).next_multiple_of(4096);

/// A port's counters as they were found in its memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SavedCounters {
    /// Those that are known.
    pub counters: PortCounters,
    /// Counters of the other process's program that this one does not have, by name: names of drop counters begin with
    /// [`lasthop_fabric::RX_DROPS`] and [`lasthop_fabric::TX_DROPS`].
    pub unknown: BTreeMap<String, u64>,
}

impl SavedCounters {
    /// The sum of the counters in a port's memory, whose bytes another process reads. They are final: the process that counted
    /// is dead.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        let mut saved = Self::of_words(bytes.get(..WORKER_PAGES_END).unwrap_or(bytes));
        saved.counters.close(saved.unknown_drops().0);
        saved
    }

    /// The words behind the names.
    pub(crate) fn of_words(bytes: &[u8]) -> Self {
        let (names, pages) = bytes.split_at_checked(NAMES_BYTES).unwrap_or_default();
        let names = String::from_utf8_lossy(names);
        let mut saved = Self::default();
        for (index, name) in names.trim_end_matches('\0').split(' ').take(PAGE_BYTES / 8).enumerate() {
            let count = pages.chunks(PAGE_BYTES).map(|page| word(page, index)).fold(0, u64::wrapping_add);
            saved.add(name, count);
        }
        saved
    }

    /// Adds to the counter of this name, known or not.
    pub fn add(&mut self, name: &str, count: u64) {
        let has_room = self.unknown.len() < UNKNOWN_MAX || self.unknown.contains_key(name);
        if count > 0 && !self.counters.add_to(name, count) && has_room {
            *self.unknown.entry(name.to_owned()).or_default() += count;
        }
    }

    /// Adds the counts of another process.
    pub fn merge(&mut self, other: &Self) {
        self.counters.merge(&other.counters);
        other.unknown.iter().for_each(|(name, count)| self.add(name, *count));
    }
}

fn word(page: &[u8], index: usize) -> u64 {
    let word = page.get(8 * index..).and_then(<[u8]>::first_chunk);
    word.map_or(0, |word| u64::from_ne_bytes(*word))
}

/// Writes the names of the words into a port's memory.
pub(crate) fn write_names(memory: &Arc<Mapping>) {
    let names = PortCounters::names().collect::<Vec<_>>().join(" ");
    let mut bytes = names.into_bytes();
    bytes.resize(bytes.len().next_multiple_of(8), 0);
    let words: Vec<u64> = (0..bytes.len() / 8).map(|index| word(&bytes, index)).collect();
    if let Some(row) = Words::new(memory, 0, NAMES_BYTES / 8) {
        row.write(&words);
    }
}

/// One worker's copies.
#[derive(Debug, Default)]
pub(crate) struct PersistentCounters {
    pages: Vec<(PortId, Words)>,
    written_ns: u64,
    /// Something was counted since.
    is_behind: bool,
}

impl PersistentCounters {
    /// Keeps the counters of `port` in worker number `worker`'s part of `memory`, if it has one.
    pub(crate) fn open(&mut self, port: PortId, worker: usize, memory: &Arc<Mapping>) {
        self.close(port);
        let page = Words::new(memory, NAMES_BYTES + worker * PAGE_BYTES, PortCounters::WORDS);
        self.pages.extend(page.map(|page| (port, page)));
        self.is_behind = true;
    }

    pub(crate) fn close(&mut self, port: PortId) {
        self.pages.retain(|(of, _)| *of != port);
    }

    /// Something was counted.
    #[inline]
    pub(crate) fn note(&mut self) {
        self.is_behind = true;
    }

    /// In how many ns the copies are to be written, if they are not up to date.
    #[inline]
    pub(crate) fn due_in_ns(&self, now_ns: u64) -> Option<u64> {
        let is_behind = self.is_behind && !self.pages.is_empty();
        is_behind.then(|| (self.written_ns + AGE_NS_MAX).saturating_sub(now_ns))
    }

    /// Writes all copies if they are halfway to being too old: a worker that is awake now need not wake up for it soon. Call it
    /// between two visits, so that every packet that left one port has come to another.
    #[inline]
    pub(crate) fn write_if_due(&mut self, now_ns: u64, fabric: &Fabric) {
        if self.due_in_ns(now_ns).is_some_and(|due_in_ns| due_in_ns <= AGE_NS_MAX / 2) {
            self.write(now_ns, fabric);
        }
    }

    /// Writes all copies.
    #[cold]
    pub(crate) fn write(&mut self, now_ns: u64, fabric: &Fabric) {
        (self.written_ns, self.is_behind) = (now_ns, false);
        for (port, page) in &self.pages {
            if let Some(counters) = fabric.counters(*port) {
                page.write(&counters.words());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use lasthop_verdict::DropReason;
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

    use super::*;

    #[test]
    fn counters_are_read_as_they_were_written() {
        let file = memfd_create("lasthop-test-counters", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, PORT_COUNTERS_BYTES as u64).unwrap();
        let memory = Arc::new(Mapping::of_file(file.as_fd(), 0, PORT_COUNTERS_BYTES as u64).unwrap());
        let mut counters = PortCounters { rx_packets: 5, forwarded: 3, ..PortCounters::default() };
        counters.rx_drops.count_all(DropReason::ALL[0], 2);
        counters.tx_drops.count_all(*DropReason::ALL.last().unwrap(), 4);
        write_names(&memory);
        let mut persistent_counters = PersistentCounters::default();
        for worker in [0, WORKERS_MAX - 1] {
            persistent_counters.open(PortId(worker as u16), worker, &memory);
        }
        assert_eq!(persistent_counters.pages.len(), 2, "there is room");
        persistent_counters.pages.iter().for_each(|(_, page)| page.write(&counters.words()));
        let mut bytes = vec![0; PORT_COUNTERS_BYTES];
        assert_eq!(rustix::io::pread(&file, &mut bytes[..], 0), Ok(PORT_COUNTERS_BYTES));
        let mut twice = counters;
        twice.merge(&counters);
        assert_eq!(SavedCounters::of(&bytes), SavedCounters { counters: twice, unknown: BTreeMap::new() });
    }

    /// The memory of a program whose counters are `names`, written by one worker.
    fn foreign(names: &str, words: &[u64]) -> Vec<u8> {
        let mut memory = vec![0; PORT_COUNTERS_BYTES];
        memory[..names.len()].copy_from_slice(names.as_bytes());
        for (place, word) in memory[NAMES_BYTES..].chunks_exact_mut(8).zip(words) {
            place.copy_from_slice(&word.to_ne_bytes());
        }
        memory
    }

    #[test]
    fn counters_of_another_version_are_known_by_their_names() {
        let names = "rx_drops.moon tx_packets rx_drops.too_long rx_packets tx_drops.too_short";
        let saved = SavedCounters::of(&foreign(names, &[2, 3, 1, 10, 4]));
        let counters = &saved.counters;
        assert_eq!((counters.rx_packets, counters.tx_packets), (10, 3));
        assert_eq!(
            counters.rx_drops.nonzero().collect::<Vec<_>>(),
            [(DropReason::TooLong, 1), (DropReason::Restart, 7)]
        );
        assert_eq!(counters.tx_drops.nonzero().collect::<Vec<_>>(), [(DropReason::TooShort, 4)]);
        assert_eq!(saved.unknown, BTreeMap::from([("rx_drops.moon".to_owned(), 2)]));
        let mut sum = saved.clone();
        sum.merge(&saved);
        assert_eq!((sum.counters.rx_packets, sum.unknown["rx_drops.moon"]), (20, 4));
    }

    #[test]
    fn other_bytes_have_no_counters() {
        for bytes in [&[][..], &[0; 100], &[0; PORT_COUNTERS_BYTES], &[0xff; PORT_COUNTERS_BYTES - 3]] {
            assert_eq!(SavedCounters::of(bytes).counters, PortCounters::default());
        }
    }
}
