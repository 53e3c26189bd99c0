//! Copies of the counters in memory that outlives the process, so that they are known when it was killed.

use std::sync::Arc;

use lasthop_fabric::bounds::WORKERS_MAX;
use lasthop_fabric::{Fabric, PortCounters};
use lasthop_guestmem::{Mapping, Words};
use lasthop_verdict::PortId;

/// How old a copy may be while packets pass.
const AGE_NS_MAX: u64 = 10_000_000;
/// Bytes of one worker's copy.
const PAGE_BYTES: usize = (8 * PortCounters::WORDS).next_multiple_of(64);

/// Bytes of the memory for one port's counters: a copy by each worker that there may be.
pub const BOOK_BYTES: usize = (WORKERS_MAX * PAGE_BYTES).next_multiple_of(4096);

/// What the counters in a port's memory add up to, its bytes read by somebody else. Closed: the process that counted is dead.
#[must_use]
pub fn counters_in(book: &[u8]) -> PortCounters {
    let mut sum = PortCounters::default();
    for page in book.chunks(PAGE_BYTES).take(WORKERS_MAX) {
        let words = page.chunks_exact(8).map(|word| word.try_into().map_or(0, u64::from_ne_bytes));
        sum.merge(&PortCounters::of_words(&words.collect::<Vec<_>>()));
    }
    sum.close();
    sum
}

/// One worker's copies.
#[derive(Debug, Default)]
pub(crate) struct Books {
    pages: Vec<(PortId, Words)>,
    written_ns: u64,
    /// Something was counted since.
    is_behind: bool,
}

impl Books {
    /// Keeps the counters of `port` in worker number `worker`'s part of `memory`, if it has one.
    pub(crate) fn open(&mut self, port: PortId, worker: usize, memory: &Arc<Mapping>) {
        self.close(port);
        let page = Words::new(memory, worker * PAGE_BYTES, PortCounters::WORDS);
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

    /// Writes all copies if that is due. Between two visits, so that what left one port has come to another.
    #[inline]
    pub(crate) fn write_if_due(&mut self, now_ns: u64, fabric: &Fabric) {
        if self.due_in_ns(now_ns) == Some(0) {
            self.write(now_ns, fabric);
        }
    }

    #[cold]
    fn write(&mut self, now_ns: u64, fabric: &Fabric) {
        (self.written_ns, self.is_behind) = (now_ns, false);
        for (port, page) in &self.pages {
            if let Some(counters) = fabric.counters(*port) {
                page.write(&counters.words());
            }
        }
    }
}
