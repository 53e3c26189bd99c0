//! Counters of a port from processes that have died. The supervisor writes them into the memory of the port's counters;
//! the present process reads them there.

use std::cell::OnceCell;
use std::sync::Arc;

use lasthop_fabric::PortCounters;
use lasthop_guestmem::{Mapping, Words};

use crate::saved_counters::{
    FORMER_BYTES, NAMES_BYTES, PAGE_BYTES, SEAL_BYTES, SavedCounters, WORKER_PAGES_END,
};

/// Room for this many counters.
const COUNTERS_MAX: usize = PAGE_BYTES / 8;

/// The writes into that memory, each with its offset: first the counters, then the seal. Empty if nothing was counted.
///
/// Unknown counters of other versions are omitted if there is no room.
#[must_use]
pub fn former_writes(past: &SavedCounters) -> Vec<(usize, Vec<u8>)> {
    let known =
        PortCounters::names().zip(past.counters.words()).map(|(name, count)| (name.to_string(), count));
    let unknown = past.unknown.iter().map(|(name, count)| (name.clone(), *count));
    let (mut names, mut words) = (String::new(), Vec::new());
    for (name, count) in known.chain(unknown).filter(|(_, count)| *count > 0).take(COUNTERS_MAX) {
        if names.len() + name.len() < NAMES_BYTES {
            names = if names.is_empty() { name } else { format!("{names} {name}") };
            words.extend(count.to_ne_bytes());
        }
    }
    if words.is_empty() {
        return Vec::new();
    }
    let mut bytes = names.into_bytes();
    bytes.resize(NAMES_BYTES, 0);
    bytes.extend(words);
    vec![(WORKER_PAGES_END + SEAL_BYTES, bytes), (WORKER_PAGES_END, 1_u64.to_ne_bytes().to_vec())]
}

/// The former counters of a port. A process that takes over counts before it knows them.
#[derive(Debug, Default)]
pub struct FormerCounters {
    row: Option<Words>,
    known: OnceCell<SavedCounters>,
}

impl FormerCounters {
    /// Reads them from `memory`; memory of a version without former counters has none.
    #[must_use]
    pub fn of_memory(memory: &Arc<Mapping>) -> Self {
        Self { row: Words::new(memory, WORKER_PAGES_END, FORMER_BYTES / 8), known: OnceCell::new() }
    }

    /// `None` until they are known.
    #[must_use]
    pub fn known(&self) -> Option<&SavedCounters> {
        let row = self.row.as_ref()?;
        if self.known.get().is_none() && row.read(0) == 0 {
            return None;
        }
        Some(self.known.get_or_init(|| {
            let words: Vec<u64> = (1..FORMER_BYTES / 8).map(|index| row.read(index)).collect();
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
            SavedCounters::of_words(&bytes)
        }))
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use lasthop_module_api::DropReason;
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

    use super::*;
    use crate::PORT_COUNTERS_BYTES;

    fn memory() -> (std::os::fd::OwnedFd, Arc<Mapping>) {
        let file = memfd_create("lasthop-test-past", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, PORT_COUNTERS_BYTES as u64).unwrap();
        let memory = Arc::new(Mapping::of_file(file.as_fd(), 0, PORT_COUNTERS_BYTES as u64).unwrap());
        (file, memory)
    }

    #[test]
    fn a_past_is_read_as_it_was_written_and_when_it_is_sealed() {
        let (file, memory) = memory();
        let mut past = SavedCounters::default();
        past.counters.rx_packets = 7;
        past.counters.tx_drops.count_all(DropReason::TooLong, 3);
        past.add("rx_drops.moon", 2);
        past.add("tx_drops.sun", 5);
        let known = FormerCounters::of_memory(&memory);
        for (at, bytes) in former_writes(&past) {
            assert_eq!(known.known(), None, "before the seal");
            assert_eq!(rustix::io::pwrite(&file, &bytes, at as u64), Ok(bytes.len()));
        }
        assert_eq!(known.known(), Some(&past));
        assert_eq!(past.unknown_drops(), (2, 5));
        let mut bytes = vec![0; PORT_COUNTERS_BYTES];
        rustix::io::pread(&file, &mut bytes[..], 0).unwrap();
        assert_eq!(
            SavedCounters::of(&bytes),
            SavedCounters::default(),
            "it is no part of what is counted now"
        );
    }

    #[test]
    fn memory_without_former_counters_has_none() {
        assert!(former_writes(&SavedCounters::default()).is_empty());
        assert_eq!(FormerCounters::of_memory(&memory().1).known(), None);
        let short = Arc::new(Mapping::anonymous(WORKER_PAGES_END).unwrap());
        assert_eq!(FormerCounters::of_memory(&short).known(), None);
    }

    #[test]
    fn more_counters_than_there_is_room_for_are_left_out() {
        let (file, memory) = memory();
        let mut past = SavedCounters::default();
        past.counters.rx_packets = 7;
        (0..500).for_each(|number| past.add(&format!("rx_drops.{}{number}", "long".repeat(20)), 1));
        for (at, bytes) in former_writes(&past) {
            assert!(at + bytes.len() <= PORT_COUNTERS_BYTES);
            rustix::io::pwrite(&file, &bytes, at as u64).unwrap();
        }
        let known = FormerCounters::of_memory(&memory);
        let known = known.known().unwrap();
        assert_eq!(known.counters.rx_packets, 7);
        assert!((10..500).contains(&known.unknown.len()), "{}", known.unknown.len());
    }
}
