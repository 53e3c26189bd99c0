//! One worker's metering of guests' memory: chooses the visits to meter, and charges their costs to ports
//! (`memory_costs.rs`).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use lasthop_fabric::VisitMeter;
use lasthop_guestmem::Unmapped;
use lasthop_module_api::PortId;

use crate::clock::now_ns;
use crate::memory_costs::Audit;
use crate::stalls::{STALL_NS, Wait, control_ns};
use crate::sys::ThreadUsage;
use crate::watchdog::Inquiry;
use crate::worker_pool::{PoolMember, WorkerPool};

/// Page faults outside of metered work that raise an alarm: those of 4 MiB.
const ALARM_FAULTS: u64 = 1024;
/// Time in ns within which they occur: a worker has some of its own now and then.
const ALARM_NS: u64 = 1_000_000_000;
/// Longest time in ns that one page fault is charged for; one takes from 0.2 us to some 20 us in a virtual machine. In
/// longer ones the thread lost its CPU.
const FAULT_NS_MAX: u64 = 50_000;

/// One worker's meter.
pub(crate) struct MemoryMeter<W> {
    pool: Arc<WorkerPool<W>>,
    started: Instant,
    /// The thread's usage at the end of the last lap, and its time.
    used: ThreadUsage,
    /// The thread's waits and page faults then, for [`Sampling`].
    seen: Arc<SeenUsage>,
    at_ns: u64,
    unmapped: Unmapped,
    /// Page faults outside of metered work, and the start of their count.
    unmetered_faults: u64,
    unmetered_since_ns: u64,
}

impl<W: PoolMember> MemoryMeter<W> {
    pub(crate) fn new(pool: Arc<WorkerPool<W>>, started: Instant) -> Self {
        let (used, unmapped, seen) = Default::default();
        Self { pool, started, used, seen, at_ns: 0, unmapped, unmetered_faults: 0, unmetered_since_ns: 0 }
    }

    /// The waits and page faults of the worker's thread, as of the last lap.
    pub(crate) fn seen(&self) -> Arc<SeenUsage> {
        Arc::clone(&self.seen)
    }

    /// Adds `faults` that no port is charged for; returns whether that is an alarm. Visits are metered at random, so
    /// their number in between does not matter.
    fn note_unmetered(&mut self, faults: u64, now_ns: u64) -> bool {
        if now_ns.saturating_sub(self.unmetered_since_ns) >= ALARM_NS {
            (self.unmetered_faults, self.unmetered_since_ns) = (0, now_ns);
        }
        self.unmetered_faults += faults;
        let is_alarm = self.unmetered_faults >= ALARM_FAULTS;
        self.unmetered_faults *= u64::from(!is_alarm);
        is_alarm
    }
}

impl<W: PoolMember> VisitMeter for MemoryMeter<W> {
    fn lap(&mut self, port: Option<PortId>, weight: u64) -> u64 {
        let (used, at_ns) = (ThreadUsage::now(), now_ns(self.started));
        let (before, since_ns) =
            (std::mem::replace(&mut self.used, used), std::mem::replace(&mut self.at_ns, at_ns));
        // A wait as long as a stall is left for the end of the round.
        if used.waits == before.waits || at_ns - since_ns < STALL_NS {
            self.seen.store(&used);
        }
        let unmapped = Unmapped::now();
        let unmapped_before = std::mem::replace(&mut self.unmapped, unmapped);
        let faults = used.faults().saturating_sub(before.faults());
        if port.is_none() && faults > 0 && self.note_unmetered(faults, at_ns) {
            self.pool.memory_costs().raise_alarm();
        }
        let Some(port) = port.filter(|port| faults > 0 && *port != PortId::INTERNAL) else { return 0 };
        let costs = self.pool.memory_costs();
        match costs.charge(port, faults.saturating_mul(weight)) {
            Audit::No => {}
            Audit::Soon => self.pool.watchdog().inquire(port, Inquiry::Filled),
            Audit::Now => self.pool.audit(port),
        }
        let wait = Wait {
            ns: at_ns - since_ns,
            has_slept: used.waits > before.waits,
            has_read_disk: used.major_faults != before.major_faults,
            is_alone: unmapped.none_since(unmapped_before),
        };
        if wait.is_of_the_memory(control_ns) {
            self.pool.watchdog().inquire(port, Inquiry::Stalled);
        }
        wait.ns.min(faults.saturating_mul(FAULT_NS_MAX))
    }
}

/// A thread's waits and page faults at the last reading.
#[derive(Debug, Default)]
pub(crate) struct SeenUsage {
    waits: AtomicU64,
    faults: AtomicU64,
}

impl SeenUsage {
    /// Stores a reading; returns whether there were both waits and page faults since the last one.
    fn store(&self, usage: &ThreadUsage) -> bool {
        let has_waited = self.waits.swap(usage.waits, Ordering::Relaxed) != usage.waits;
        let has_faulted = self.faults.swap(usage.faults(), Ordering::Relaxed) != usage.faults();
        has_waited && has_faulted
    }
}

/// Chooses the visits to meter.
#[derive(Debug)]
pub(crate) struct Sampling {
    random: u32,
    /// All visits are metered until then.
    all_until_ns: u64,
    /// Waits and page faults of the thread at the last reading.
    seen: Arc<SeenUsage>,
    /// Cost of the visits since the last metered one (`lasthop_fabric::bounds`): bytes, and some for each packet.
    cost: u64,
    alarms: u64,
}

/// One visit in this many is metered.
const VISITS_SHARE: u32 = 64;
/// One delivery in this many of packets that waited for receive buffers is metered: it may be larger than a visit.
const DRAINS_SHARE: u32 = 8;
/// A round that takes longer, in ns, may have waited for a guest's memory, if its thread waited at all, and had a page fault.
/// Otherwise the thread had lost its CPU, or was stopped, and metering would take more of the little that it has.
const SLOW_ROUND_NS: u64 = STALL_NS;
/// Cost of visits after which the next one is metered, to charge the page faults of those before.
const COST_MAX: u64 = 8 << 20;
/// All visits are metered for this time after a slow round or an alarm, in ns.
const ALL_NS: u64 = 1_000_000_000;

impl Sampling {
    pub(crate) fn new(seed: u64, seen: Arc<SeenUsage>) -> Self {
        Self { random: seed as u32 | 1, all_until_ns: 0, seen, cost: 0, alarms: 0 }
    }

    /// The weight of the next visit; 0 if it is not metered. No guest can predict it.
    #[inline]
    pub(crate) fn of_visit(&mut self, now_ns: u64) -> u64 {
        self.weight(now_ns, VISITS_SHARE)
    }

    /// The weight of the next delivery of packets that waited for receive buffers.
    pub(crate) fn of_drain(&mut self, now_ns: u64) -> u64 {
        self.weight(now_ns, DRAINS_SHARE)
    }

    #[inline]
    fn weight(&mut self, now_ns: u64, share: u32) -> u64 {
        // Xorshift (Marsaglia, 2003).
        self.random ^= self.random << 13;
        self.random ^= self.random >> 17;
        self.random ^= self.random << 5;
        let weight = match now_ns < self.all_until_ns {
            true => 1,
            false if self.random.is_multiple_of(share) => u64::from(share),
            false => u64::from(self.cost >= COST_MAX),
        };
        self.cost *= u64::from(weight == 0);
        weight
    }

    /// Notes the cost of a visit.
    #[inline]
    pub(crate) fn note_cost(&mut self, cost: u64) {
        self.cost = self.cost.saturating_add(cost);
    }

    /// Notes the number of alarms so far.
    #[inline]
    pub(crate) fn note_alarms(&mut self, now_ns: u64, alarms: u64) {
        if alarms != self.alarms {
            (self.alarms, self.all_until_ns) = (alarms, now_ns + ALL_NS);
        }
    }

    /// Notes the time of a round with packets. `usage` reads the thread's waits and page faults. Those before the round
    /// count, too, if they are not read yet; a busy thread has none.
    #[inline]
    pub(crate) fn note_round(&mut self, now_ns: u64, round_ns: u64, usage: impl FnOnce() -> ThreadUsage) {
        if round_ns >= SLOW_ROUND_NS && self.seen.store(&usage()) {
            self.all_until_ns = now_ns + ALL_NS;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usage(waits: u64, faults: u64) -> ThreadUsage {
        ThreadUsage { waits, minor_faults: faults, major_faults: 0 }
    }

    fn sampling() -> Sampling {
        Sampling::new(7, Arc::default())
    }

    #[test]
    fn some_visits_are_metered_and_all_after_a_slow_round() {
        let mut sampling = sampling();
        let metered = (0..64_000).filter(|_| sampling.of_visit(0) > 0).count();
        assert!((900..1100).contains(&metered), "{metered}");
        sampling.note_round(0, STALL_NS - 1, || usage(1, 1));
        assert!((0..64).any(|_| sampling.of_visit(0) == 0));
        sampling.note_round(0, STALL_NS, || usage(1, 1));
        assert!((0..64).all(|_| sampling.of_visit(ALL_NS - 1) == 1));
        assert!((0..64).any(|_| sampling.of_visit(ALL_NS) == 0));
        sampling.note_alarms(ALL_NS, 1);
        assert!((0..64).all(|_| sampling.of_visit(2 * ALL_NS - 1) == 1));
        assert!((0..64).any(|_| sampling.of_visit(2 * ALL_NS) == 0));
    }

    #[test]
    fn a_round_that_lost_its_cpu_meters_no_further_visits() {
        let mut sampling = sampling();
        sampling.seen.store(&usage(5, 5));
        sampling.note_round(0, 10 * STALL_NS, || usage(5, 6));
        assert!((0..64).any(|_| sampling.of_visit(0) == 0), "the thread did not wait");
        sampling.note_round(0, 10 * STALL_NS, || usage(6, 6));
        assert!((0..64).any(|_| sampling.of_visit(0) == 0), "it was stopped, or slept, without a page fault");
        sampling.note_round(0, STALL_NS, || usage(7, 7));
        assert!((0..64).all(|_| sampling.of_visit(0) == 1));
        sampling.note_round(ALL_NS, STALL_NS, || usage(7, 7));
        assert!((0..64).any(|_| sampling.of_visit(ALL_NS) == 0), "the wait was read before");
    }

    #[test]
    fn a_visit_after_many_bytes_is_metered_for_itself() {
        let mut sampling = sampling();
        let mut unmetered = 0;
        for _ in 0..100_000 {
            unmetered = if sampling.of_visit(0) == 0 { unmetered + 1 } else { 0 };
            assert!(unmetered <= 8, "more than 8 MiB went by");
            sampling.note_cost(1 << 20);
        }
        (0..64).for_each(|_| sampling.note_cost(1 << 20));
        let weights: Vec<u64> = (0..64).map(|_| sampling.of_visit(0)).collect();
        assert!(weights[0] == 1 || weights[0] == 64, "{weights:?}");
        assert!(weights[1..].iter().all(|weight| [0, 64].contains(weight)), "once: {weights:?}");
    }
}
