//! Copies of the counters in memory that outlives the process, so that they are known after it was killed.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use lasthop_fabric::{Fabric, PortCounters};
use lasthop_guestmem::{Mapping, Words};
use lasthop_module_api::PortId;

use crate::saved_counters::{NAMES_BYTES, page_of, word};

/// Greatest age of a copy while packets pass, in ns.
const AGE_NS_MAX: u64 = 10_000_000;
/// A worker that is awake writes so long before, in ns: a round takes less.
const ROUND_NS_MAX: u64 = AGE_NS_MAX / 8;
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

/// Time of a worker's last write of its copies, for other threads that read them.
#[derive(Debug, Default)]
pub(crate) struct CopyClock {
    /// Even between writes, odd during one.
    version: AtomicU64,
    written_ns: AtomicU64,
}

impl CopyClock {
    fn write(&self, now_ns: u64, write: impl FnOnce()) {
        let version = self.version.load(Ordering::Relaxed);
        self.version.store(version.wrapping_add(1), Ordering::Relaxed);
        fence(Ordering::Release);
        write();
        self.written_ns.store(now_ns, Ordering::Relaxed);
        self.version.store(version.wrapping_add(2), Ordering::Release);
    }

    /// Returns the result of `read` and the time of the copies; `None` if they were written meanwhile.
    pub(crate) fn read<R>(&self, read: impl FnOnce() -> R) -> Option<(R, u64)> {
        let version = self.version.load(Ordering::Acquire);
        let found = (read(), self.written_ns.load(Ordering::Relaxed));
        fence(Ordering::Acquire);
        let is_whole = version.is_multiple_of(2) && version == self.version.load(Ordering::Relaxed);
        is_whole.then_some(found)
    }
}

/// The row of `worker` in a port's memory.
pub(crate) fn row_of(memory: &Arc<Mapping>, worker: usize) -> Option<Words> {
    Words::new(memory, page_of(worker), PortCounters::WORDS)
}

/// One worker's copies.
#[derive(Debug, Default)]
pub(crate) struct PersistentCounters {
    clock: Arc<CopyClock>,
    pages: Vec<(PortId, Words)>,
    written_ns: u64,
    /// Whether something was counted since the last write.
    is_behind: bool,
}

impl PersistentCounters {
    /// Copies whose readers use `clock`.
    pub(crate) fn new(clock: Arc<CopyClock>) -> Self {
        Self { clock, ..Self::default() }
    }

    /// Copies the counters of `port` to the part of `memory` for worker number `worker`, if there is one.
    pub(crate) fn open(&mut self, port: PortId, worker: usize, memory: &Arc<Mapping>) {
        self.close(port);
        self.pages.extend(row_of(memory, worker).map(|page| (port, page)));
        self.is_behind = true;
    }

    pub(crate) fn close(&mut self, port: PortId) {
        self.pages.retain(|(of, _)| *of != port);
    }

    /// Notes that something was counted.
    #[inline]
    pub(crate) fn note(&mut self) {
        self.is_behind = true;
    }

    /// Time in ns until the copies have to be written, if they are not up to date.
    #[inline]
    pub(crate) fn due_in_ns(&self, now_ns: u64) -> Option<u64> {
        let is_behind = self.is_behind && !self.pages.is_empty();
        is_behind.then(|| (self.written_ns + AGE_NS_MAX).saturating_sub(now_ns))
    }

    /// Writes all copies if they will soon have the greatest age. Call it between two visits, so that every packet that left one port
    /// has reached another.
    #[inline]
    pub(crate) fn write_if_due(&mut self, now_ns: u64, fabric: &Fabric) {
        self.write_if_due_within(ROUND_NS_MAX, now_ns, fabric);
    }

    /// Like [`Self::write_if_due`], before a sleep: writes if they have half of that age. So the worker need not wake up for it soon, and
    /// no packet waits meanwhile.
    pub(crate) fn write_before_sleep(&mut self, now_ns: u64, fabric: &Fabric) {
        self.write_if_due_within(AGE_NS_MAX / 2, now_ns, fabric);
    }

    #[inline]
    fn write_if_due_within(&mut self, margin_ns: u64, now_ns: u64, fabric: &Fabric) {
        if self.due_in_ns(now_ns).is_some_and(|due_in_ns| due_in_ns <= margin_ns) {
            self.write(now_ns, fabric);
        }
    }

    /// Writes all copies.
    #[cold]
    pub(crate) fn write(&mut self, now_ns: u64, fabric: &Fabric) {
        (self.written_ns, self.is_behind) = (now_ns, false);
        self.clock.write(now_ns, || {
            for (port, page) in &self.pages {
                if let Some(counters) = fabric.counters(*port) {
                    page.write(&counters.words());
                }
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use lasthop_fabric::bounds::WORKERS_MAX;
    use lasthop_module_api::DropReason;
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

    use super::*;
    use crate::saved_counters::{PORT_COUNTERS_BYTES, SavedCounters};

    #[test]
    fn copies_that_are_written_meanwhile_are_not_read() {
        let clock = CopyClock::default();
        clock.write(7, || assert_eq!(clock.read(|| ()), None, "amid a write"));
        assert_eq!(clock.read(|| 5), Some((5, 7)));
        assert_eq!(clock.read(|| clock.write(8, || ())), None, "a write amid the look");
    }

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
        for worker in [0, 15, 16, WORKERS_MAX - 1] {
            persistent_counters.open(PortId(worker as u16), worker, &memory);
        }
        assert_eq!(persistent_counters.pages.len(), 4, "there is room");
        persistent_counters.pages.iter().for_each(|(_, page)| page.write(&counters.words()));
        let mut bytes = vec![0; PORT_COUNTERS_BYTES];
        assert_eq!(rustix::io::pread(&file, &mut bytes[..], 0), Ok(PORT_COUNTERS_BYTES));
        let mut sum = counters;
        (0..3).for_each(|_| sum.merge(&counters));
        assert_eq!(SavedCounters::of(&bytes), SavedCounters { counters: sum, ..SavedCounters::default() });
        let before = SavedCounters::of(&bytes[..bytes.len() - 49_152]);
        assert_eq!(
            before.counters.rx_packets,
            2 * counters.rx_packets,
            "as the memory of a version with 16 workers"
        );
    }
}
