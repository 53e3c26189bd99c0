//! The memory of one port's counters, and the parser of its bytes. It outlives the process that counts.

use std::collections::BTreeMap;

use lasthop_fabric::bounds::WORKERS_MAX;
use lasthop_fabric::{PortCounters, RX_DROPS, TX_DROPS};

/// Bytes for the names of the counters at the start of a port's memory, with room for names of other versions.
pub const NAMES_BYTES: usize = 3072;
/// Bytes of one worker's copy, with the same reserve.
pub(crate) const PAGE_BYTES: usize = 1024;
/// Largest number of unknown names among the counters of one port.
const UNKNOWN_MAX: usize = PAGE_BYTES / 8;
const _: () = assert!(8 * PortCounters::WORDS <= PAGE_BYTES, "the memory of a port's counters is too small");

/// Workers whose copies follow the names. Those of further workers are at the end, since versions with fewer workers
/// know the places before it.
const FIRST_WORKERS: usize = 16;
/// Where the first workers' copies end.
pub(crate) const WORKER_PAGES_END: usize = NAMES_BYTES + FIRST_WORKERS * PAGE_BYTES;
/// Where the further workers' copies begin.
const FURTHER_PAGES: usize = (WORKER_PAGES_END + FORMER_BYTES).next_multiple_of(4096);
/// A word that is set once the rest is complete.
pub(crate) const SEAL_BYTES: usize = 8;
/// Bytes of the seal, the counters' names, and a word for each.
pub(crate) const FORMER_BYTES: usize = SEAL_BYTES + NAMES_BYTES + PAGE_BYTES;
/// Bytes of the memory for one port's counters: their names, one copy for each possible worker, and the counts of
/// earlier processes (`former_counters.rs`).
///
/// ```text
///   names, separated by blanks, zeroes  | worker 0: a word for each name | ... | worker 15 | seal | names | a word for each name
///   | worker 16 | ...
/// ```
pub const PORT_COUNTERS_BYTES: usize =
    (FURTHER_PAGES + (WORKERS_MAX - FIRST_WORKERS) * PAGE_BYTES).next_multiple_of(4096);

/// The place of the copy of `worker`.
pub(crate) fn page_of(worker: usize) -> usize {
    match worker.checked_sub(FIRST_WORKERS) {
        None => NAMES_BYTES + worker * PAGE_BYTES,
        Some(further) => FURTHER_PAGES + further * PAGE_BYTES,
    }
}

/// A port's counters as read from its memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SavedCounters {
    /// The known counters.
    pub counters: PortCounters,
    /// Counters of the other process's version that this one does not have, by name. Names of drop counters begin with
    /// [`lasthop_fabric::RX_DROPS`] and [`lasthop_fabric::TX_DROPS`].
    pub unknown: BTreeMap<String, u64>,
}

impl SavedCounters {
    /// Sums the counters in a port's memory. They are final: the process that counted has died.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        let first = bytes.get(..WORKER_PAGES_END).unwrap_or(bytes);
        let further = bytes.get(FURTHER_PAGES..).unwrap_or_default();
        let mut saved = Self::of_words(&[first, further].concat());
        saved.counters.close(saved.unknown_drops().0);
        saved
    }

    /// Reads the words behind the names.
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

    /// Packets from and to the port that were dropped for reasons that this version does not know.
    #[must_use]
    pub fn unknown_drops(&self) -> (u64, u64) {
        let of_side = |side| self.unknown.iter().filter(move |(name, _)| name.starts_with(side));
        let sum = |side| of_side(side).map(|(_, count)| count).sum();
        (sum(RX_DROPS), sum(TX_DROPS))
    }
}

/// The present counts of these names for each of the first `workers` workers, whose process may still count. `read` fills bytes
/// from a place of the port's memory; false if it cannot. Names that are missing, and workers that cannot be read, have 0.
pub fn worker_counts<const N: usize>(
    workers: usize,
    names: [&str; N],
    mut read: impl FnMut(&mut [u8], u64) -> bool,
) -> Vec<[u64; N]> {
    let (mut header, mut page) = (vec![0; NAMES_BYTES], vec![0; PAGE_BYTES]);
    if !read(&mut header, 0) {
        return vec![[0; N]; workers];
    }
    let header = String::from_utf8_lossy(&header);
    let known = || header.trim_end_matches('\0').split(' ').take(PAGE_BYTES / 8);
    let places = names.map(|name| known().position(|known| known == name));
    let counts = |worker| {
        let is_read = worker < WORKERS_MAX && read(&mut page, page_of(worker) as u64);
        places.map(|place| place.filter(|_| is_read).map_or(0, |place| word(&page, place)))
    };
    (0..workers).map(counts).collect()
}

pub(crate) fn word(page: &[u8], index: usize) -> u64 {
    let word = page.get(8 * index..).and_then(<[u8]>::first_chunk);
    word.map_or(0, |word| u64::from_ne_bytes(*word))
}

#[cfg(test)]
mod tests {
    use lasthop_module_api::DropReason;

    use super::*;

    #[test]
    fn counts_of_workers_are_found_by_the_names_in_memory() {
        let memory = foreign("signals later_counter rx_packets", &[7, 8, 9]);
        let read = |bytes: &mut [u8], at: u64| {
            let from = memory.get(at as usize..at as usize + bytes.len());
            from.map(|from| bytes.copy_from_slice(from)).is_some()
        };
        let counts = worker_counts(WORKERS_MAX + 1, ["rx_packets", "tx_packets", "signals"], read);
        assert_eq!((counts[0], counts.len()), ([9, 0, 7], WORKERS_MAX + 1), "one is missing");
        assert!(counts[1..].iter().all(|counts| *counts == [0; 3]));
        assert_eq!(worker_counts(2, ["signals"], |_, _| false), [[0], [0]]);
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
