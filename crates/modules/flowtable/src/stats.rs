//! Statistics of flows, which each worker counts in its own memory.
//!
//! ```text
//!   flow slot ── newest ──> entry of worker 3 ── next ──> entry of worker 0 ── next ──> none
//!                           packets, bytes, used, flags : 16 | next : 40
//! ```
//!
//! A worker has an entry for a flow from the flow's first packet there on. Only that worker writes it, by plain stores;
//! readers add up the entries at any time. Entries come from each worker's own stock. The writer of the table refills
//! the stock, and returns entries of removed flows. A worker whose stock is empty counts in words of the flow, which
//! all workers share, until it has entries.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use lasthop_flow::FlowStats;
use lasthop_sync::{WORKERS_MAX, prefetch};

use crate::bounds::{FLOWS_MAX, STATS_STOCK, STATS_STOCK_MAX};
use crate::chunks::Chunks;
use crate::slot::{EntryId, FlowSlot};

const CHUNK: usize = 1024;
const NEXT_BITS: u32 = 40;
const NEXT_MASK: u64 = (1 << NEXT_BITS) - 1;
const NS_PER_MS: u64 = 1_000_000;

const _: () = assert!(FLOWS_MAX < 1 << EntryId::NUMBER_BITS && WORKERS_MAX <= 256);

#[derive(Debug, Default)]
struct Entry {
    packets: AtomicU64,
    bytes: AtomicU64,
    used_ns: AtomicU64,
    flags_and_next: AtomicU64,
}

impl Entry {
    fn next(&self) -> EntryId {
        EntryId((self.flags_and_next.load(Ordering::Acquire) & NEXT_MASK) as u32)
    }

    /// Counts a packet. Only the entry's worker calls this.
    #[inline(always)]
    fn count(&self, packet: Counted) {
        self.count_all(1, (packet.len_bytes.into(), packet.tcp_flags, packet.now_ns));
    }

    /// Counts several packets: their bytes and flags, added up.
    #[inline(always)]
    fn count_all(&self, packets: u64, (bytes, tcp_flags, now_ns): (u64, u16, u64)) {
        let add =
            |word: &AtomicU64, more: u64| word.store(word.load(Ordering::Relaxed) + more, Ordering::Relaxed);
        add(&self.packets, packets);
        add(&self.bytes, bytes);
        self.used_ns.store(now_ns, Ordering::Relaxed);
        let flags = self.flags_and_next.load(Ordering::Relaxed);
        let more = flags | u64::from(tcp_flags) << NEXT_BITS;
        if more != flags {
            self.flags_and_next.store(more, Ordering::Release);
        }
    }

    fn clear(&self, next: EntryId) {
        self.packets.store(0, Ordering::Relaxed);
        self.bytes.store(0, Ordering::Relaxed);
        self.used_ns.store(0, Ordering::Relaxed);
        self.flags_and_next.store(u64::from(next.0), Ordering::Release);
    }
}

/// The values of a packet that statistics need.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Counted {
    pub(crate) len_bytes: u32,
    pub(crate) tcp_flags: u16,
    pub(crate) now_ns: u64,
}

/// Packets with one time of arrival, added up.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CountedRun {
    pub(crate) packets: u32,
    pub(crate) bytes: u64,
    pub(crate) tcp_flags: u16,
}

impl CountedRun {
    #[inline(always)]
    pub(crate) fn add(&mut self, len_bytes: u32, tcp_flags: u16) {
        self.packets += 1;
        self.bytes += u64::from(len_bytes);
        self.tcp_flags |= tcp_flags;
    }
}

/// One worker's stock of entries.
#[derive(Debug)]
pub(crate) struct Stock {
    entries: Chunks<Entry, CHUNK>,
    /// Number of entries that are allocated.
    made: AtomicU32,
    /// Number of entries below `made` that were ever given out.
    begun: AtomicU32,
    /// How often the stock was empty since entries were last allocated.
    wanted: AtomicU32,
    /// Entries of removed flows. The worker uses try_lock and never waits.
    returned: Mutex<Vec<EntryId>>,
}

impl Stock {
    /// Counts a packet in an entry of this worker. Returns false if there is no such entry.
    #[inline(always)]
    pub(crate) fn count(&self, id: EntryId, packet: Counted) -> bool {
        let entry = self.entries.get(id.number() as usize);
        entry.inspect(|entry| entry.count(packet)).is_some()
    }
}

impl Stock {
    /// Counts packets in an entry of this worker. An entry that was given to a flow exists for good.
    #[inline(never)]
    pub(crate) fn count_run(&self, id: EntryId, run: CountedRun, now_ns: u64) {
        let entry = self.entries.get(id.number() as usize).filter(|_| run.packets > 0);
        if let Some(entry) = entry {
            entry.count_all(run.packets.into(), (run.bytes, run.tcp_flags, now_ns));
        }
    }
}

/// The stocks of all workers.
#[derive(Debug)]
pub(crate) struct Stats {
    stocks: Box<[Stock]>,
}

impl Stats {
    pub(crate) fn new() -> Self {
        let stock = |_| Stock {
            entries: Chunks::new(FLOWS_MAX as usize),
            made: AtomicU32::new(0),
            begun: AtomicU32::new(0),
            wanted: AtomicU32::new(0),
            returned: Mutex::default(),
        };
        Self { stocks: (0..WORKERS_MAX).map(stock).collect() }
    }

    fn entry(&self, id: EntryId) -> Option<&Entry> {
        self.stocks.get(id.worker())?.entries.get(id.number() as usize)
    }

    /// Fills the stocks of the first `workers` workers, at least of the first one. Only the writer of the table calls
    /// this.
    pub(crate) fn refill(&self, workers: usize, flows: usize) {
        for stock in self.stocks.iter().take(workers.max(1)) {
            let (made, begun) = (stock.made.load(Ordering::Relaxed), stock.begun.load(Ordering::Relaxed));
            // No worker needs more entries than there are flows.
            let more = stock.wanted.swap(0, Ordering::Relaxed).clamp(STATS_STOCK, STATS_STOCK_MAX);
            let wanted = (begun + more).min(flows as u32);
            let mut next = made;
            while next < wanted && stock.entries.make(next as usize).is_some() {
                next = (next / CHUNK as u32 + 1) * CHUNK as u32;
            }
            stock.made.store(next.max(made), Ordering::Release);
        }
    }

    /// Worker `worker`'s entry for a flow; it takes one from the stock if the flow has none. Returns none if the stock
    /// is empty.
    #[inline]
    pub(crate) fn entry_of(&self, worker: usize, slot: &FlowSlot) -> EntryId {
        let newest = slot.newest_entry();
        let is_own = newest != EntryId::default() && newest.worker() == worker;
        if is_own { newest } else { self.find_or_take(worker, slot) }
    }

    #[inline(never)]
    fn find_or_take(&self, worker: usize, slot: &FlowSlot) -> EntryId {
        let newest = || EntryId(slot.stats.load(Ordering::Acquire) as u32);
        if let Some(own) = self.chain(newest()).find(|id| id.worker() == worker) {
            return own;
        }
        let Some(id) = self.take(worker) else { return EntryId::default() };
        let Some(entry) = self.entry(id) else { return EntryId::default() };
        // Each other worker can add its entry in between once.
        for _ in 0..=WORKERS_MAX {
            let next = newest();
            entry.clear(next);
            let (old, new) = (u64::from(next.0), u64::from(id.0));
            if slot.stats.compare_exchange(old, new, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                return id;
            }
        }
        debug_assert!(false, "a flow has one entry for each worker at most");
        EntryId::default()
    }

    fn take(&self, worker: usize) -> Option<EntryId> {
        let stock = self.stocks.get(worker)?;
        let begun = stock.begun.load(Ordering::Relaxed);
        if begun < stock.made.load(Ordering::Acquire) {
            stock.begun.store(begun + 1, Ordering::Relaxed);
            return Some(EntryId::new(worker, begun));
        }
        let returned = stock.returned.try_lock().ok().and_then(|mut returned| returned.pop());
        if returned.is_none() {
            stock.wanted.fetch_add(1, Ordering::Relaxed);
        }
        returned
    }

    /// The chain of entries from `first` on.
    fn chain(&self, first: EntryId) -> impl Iterator<Item = EntryId> {
        let mut next = first;
        let links = std::iter::from_fn(move || {
            let id = next;
            next = self.entry(id)?.next();
            Some(id)
        });
        links.take(WORKERS_MAX)
    }

    /// Prefetches an entry's cache line.
    #[inline]
    pub(crate) fn prefetch(&self, id: EntryId) {
        if let Some(entry) = self.entry(id) {
            prefetch(entry);
        }
    }

    /// Counts a packet in the entry `id` of the calling worker, or in the flow's `slot` if there is no entry.
    #[inline]
    pub(crate) fn count<'a>(
        &self,
        id: EntryId,
        slot: impl FnOnce() -> Option<&'a FlowSlot>,
        packet: Counted,
    ) {
        match self.entry(id) {
            Some(entry) => entry.count(packet),
            None => slot().into_iter().for_each(|slot| spill(slot, packet)),
        }
    }

    /// The stock of worker `worker`.
    #[inline]
    pub(crate) fn of(&self, worker: usize) -> Option<&Stock> {
        self.stocks.get(worker)
    }

    /// Sums up a flow's statistics over all workers.
    pub(crate) fn sum(&self, slot: &FlowSlot) -> FlowStats {
        let [packets, bytes, used_and_flags] = slot.spill.each_ref().map(|word| word.load(Ordering::Relaxed));
        let used_ms = used_and_flags >> 12;
        let spilt = FlowStats { packets, bytes, used_ms, tcp_flags: (used_and_flags & 0xfff) as u16 };
        let newest = EntryId(slot.stats.load(Ordering::Acquire) as u32);
        self.chain(newest).filter_map(|id| self.entry(id)).fold(spilt, |sum, entry| FlowStats {
            packets: sum.packets + entry.packets.load(Ordering::Relaxed),
            bytes: sum.bytes + entry.bytes.load(Ordering::Relaxed),
            used_ms: sum.used_ms.max(entry.used_ns.load(Ordering::Relaxed) / NS_PER_MS),
            tcp_flags: sum.tcp_flags | (entry.flags_and_next.load(Ordering::Relaxed) >> NEXT_BITS) as u16,
        })
    }

    /// Returns the entries of a removed flow, which no worker reads any more, to the stocks.
    pub(crate) fn take_back(&self, slot: &FlowSlot) {
        let newest = EntryId(slot.stats.swap(0, Ordering::Relaxed) as u32);
        for id in self.chain(newest).collect::<Vec<_>>() {
            if let Ok(mut returned) = self.stocks[id.worker()].returned.lock() {
                returned.push(id);
            }
        }
    }

    /// Bytes of all allocated entries.
    #[cfg(test)]
    pub(crate) fn memory_bytes(&self) -> usize {
        let made = self.stocks.iter().map(|stock| stock.made.load(Ordering::Relaxed) as usize);
        made.sum::<usize>() * size_of::<Entry>()
    }
}

/// Counts a packet without an entry, in the flow's own words, which all workers share.
#[cold]
fn spill(slot: &FlowSlot, packet: Counted) {
    let [packets, bytes, used_and_flags] = &slot.spill;
    packets.fetch_add(1, Ordering::Relaxed);
    bytes.fetch_add(u64::from(packet.len_bytes), Ordering::Relaxed);
    let seen = used_and_flags.load(Ordering::Relaxed);
    let flags = seen & 0xfff | u64::from(packet.tcp_flags);
    let used = (seen >> 12).max(packet.now_ns / NS_PER_MS);
    // A worker that changed the word in between saw the same time. These flags are added with the next packet.
    let new = used << 12 | flags;
    let _ = used_and_flags.compare_exchange(seen, new, Ordering::Relaxed, Ordering::Relaxed);
}

/// Start values of a flow's counters.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tally {
    /// The workers' counters at the time of the last clear.
    before: FlowStats,
    /// The flow's counters from before its installation here.
    brought: FlowStats,
}

impl Tally {
    /// Returns the tally of a flow that has these counters already.
    pub(crate) fn brought(brought: FlowStats) -> Self {
        Self { brought, ..Self::default() }
    }

    /// Returns the tally of a flow whose counters begin at zero while the workers' counters are at `before`.
    pub(crate) fn cleared(before: FlowStats) -> Self {
        Self { before, ..Self::default() }
    }

    /// The flow's statistics when the workers' counters are at `now`.
    pub(crate) fn told(&self, now: FlowStats) -> FlowStats {
        let Self { before, brought } = self;
        let is_new = now.packets > before.packets;
        FlowStats {
            packets: (now.packets - before.packets).wrapping_add(brought.packets),
            bytes: (now.bytes - before.bytes).wrapping_add(brought.bytes),
            used_ms: if is_new { now.used_ms.max(brought.used_ms) } else { brought.used_ms },
            tcp_flags: brought.tcp_flags | if is_new { now.tcp_flags } else { 0 },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PACKET: Counted = Counted { len_bytes: 100, tcp_flags: 2, now_ns: 7_000_000 };

    #[test]
    fn workers_count_apart_and_are_added_up() {
        let (stats, slot) = (Stats::new(), FlowSlot::default());
        stats.refill(3, 1000);
        let ids = [0, 2, 0].map(|worker| stats.entry_of(worker, &slot));
        assert!(ids[0] == ids[2] && ids[0] != ids[1] && ids[0].get() != 0);
        stats.count(ids[0], || Some(&slot), PACKET);
        stats.count(ids[1], || Some(&slot), Counted { tcp_flags: 0x10, now_ns: 9_000_000, ..PACKET });
        let sum = FlowStats { packets: 2, bytes: 200, used_ms: 9, tcp_flags: 0x12 };
        assert_eq!(stats.sum(&slot), sum);
        assert_eq!(slot.spill[0].load(Ordering::Relaxed), 0);
    }

    #[test]
    fn without_stock_a_flow_counts_itself_and_nothing_is_lost() {
        let (stats, slot) = (Stats::new(), FlowSlot::default());
        let id = stats.entry_of(1, &slot);
        assert_eq!(id.get(), 0);
        stats.count(id, || Some(&slot), PACKET);
        stats.refill(2, 1000);
        stats.count(stats.entry_of(1, &slot), || Some(&slot), PACKET);
        assert_eq!(stats.sum(&slot), FlowStats { packets: 2, bytes: 200, used_ms: 7, tcp_flags: 2 });
    }

    #[test]
    fn entries_of_flows_that_are_gone_are_used_again() {
        let stats = Stats::new();
        stats.refill(1, 1);
        let made = stats.memory_bytes();
        for _ in 0..2 * CHUNK {
            let slot = FlowSlot::default();
            let id = stats.entry_of(0, &slot);
            stats.count(id, || Some(&slot), PACKET);
            assert_eq!((id.get() == 0, stats.sum(&slot).packets), (false, 1));
            stats.take_back(&slot);
            stats.refill(1, 1);
        }
        assert_eq!(stats.memory_bytes(), made);
    }

    #[test]
    fn counters_continue_from_given_values_and_from_zero_when_cleared() {
        let stats =
            |packets, used_ms, tcp_flags| FlowStats { packets, bytes: packets * 60, used_ms, tcp_flags };
        let tally = Tally::brought(stats(5, 100, 2));
        assert_eq!(tally.told(FlowStats::default()), stats(5, 100, 2));
        assert_eq!(tally.told(stats(2, 130, 16)), stats(7, 130, 18));
        assert_eq!(tally.told(stats(2, 90, 0)).used_ms, 100, "never back");
        let tally = Tally::cleared(stats(2, 130, 16));
        assert_eq!(tally.told(stats(2, 130, 16)), FlowStats::default());
        assert_eq!(tally.told(stats(3, 140, 1)), stats(1, 140, 1));
        let hostile = Tally::brought(FlowStats { packets: u64::MAX, ..FlowStats::default() });
        assert_eq!(hostile.told(stats(2, 1, 0)).packets, 1, "no panic");
    }
}
