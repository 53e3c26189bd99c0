//! Meters: they drop packets beyond a rate.
//!
//! **Token bucket in one word.** As in the bridge's storm control, the word holds the time at which the bucket will be
//! full again (ITU-T I.371's GCRA). A packet advances it by its cost, and is excess if the time would then be more than
//! a whole bucket from now. A bucket holds the burst, or else a second's tokens.
//!
//! **Borrowed by batch.** A worker takes the tokens of several packets at once, and returns the rest when its
//! batch ends. All workers share the word, but none writes it for every packet.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use arrayvec::ArrayVec;

use crate::bounds::{BORROW_PACKETS, BORROW_TRIES, BORROWS_MAX, METER_ENTRIES, METER_PROBES_MAX, METERS_MAX};
use crate::chunks::Chunks;

/// Ticks are 1/16 ns.
const TICKS_SHIFT: u32 = 4;
const SECOND_TICKS: u64 = 1_000_000_000 << TICKS_SHIFT;
/// Ticks of one bit at one kbit/s.
const KBIT_TICKS: u64 = SECOND_TICKS / 1000;

/// The rate of a meter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MeterRate {
    /// The rate, in kbit/s or in packets per second.
    pub rate: u32,
    /// The burst in packets or kbit: as much as the bucket holds, as in Linux since 5.13. With 0 it holds a second's
    /// worth.
    pub burst: u32,
    /// Whether `rate` is in kbit/s.
    pub is_kbps: bool,
}

/// Statistics of a meter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MeterCounters {
    /// Packets that were metered.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Packets that were dropped.
    pub dropped_packets: u64,
    /// Their bytes.
    pub dropped_bytes: u64,
}

impl MeterCounters {
    fn words(&self) -> [u64; 4] {
        [self.packets, self.bytes, self.dropped_packets, self.dropped_bytes]
    }
}

/// A meter. One without a rate passes every packet.
#[derive(Debug, Default)]
pub(crate) struct Meter {
    /// Ticks per packet, or per bit.
    unit: AtomicU64,
    is_kbps: AtomicU64,
    /// Ticks of a full bucket.
    full: AtomicU64,
    full_at: AtomicU64,
    stats: [AtomicU64; 4],
}

impl Meter {
    /// Returns a meter with a full bucket and zero counters.
    fn begin(&self, rate: MeterRate) {
        self.full_at.store(0, Ordering::Relaxed);
        self.stats.iter().for_each(|word| word.store(0, Ordering::Relaxed));
        self.set(rate);
    }

    fn set(&self, rate: MeterRate) {
        let of_second = if rate.is_kbps { KBIT_TICKS } else { SECOND_TICKS };
        let unit = of_second.checked_div(u64::from(rate.rate)).unwrap_or(0).max(u64::from(rate.rate > 0));
        let burst = if rate.burst == 0 { rate.rate } else { rate.burst };
        let full = u128::from(SECOND_TICKS) * u128::from(burst) / u128::from(rate.rate.max(1));
        self.is_kbps.store(u64::from(rate.is_kbps), Ordering::Relaxed);
        self.full.store(u64::try_from(full).unwrap_or(u64::MAX), Ordering::Relaxed);
        self.unit.store(unit, Ordering::Release);
    }

    /// Ticks that a packet costs; 0 means that it passes freely.
    fn cost(&self, len_bytes: u32) -> u64 {
        let unit = self.unit.load(Ordering::Acquire);
        let units = if self.is_kbps.load(Ordering::Relaxed) != 0 { 8 * u64::from(len_bytes) } else { 1 };
        unit.saturating_mul(units)
    }

    /// Takes `most` tokens out of the bucket, or else `least`. Returns the number taken.
    fn take(&self, now: u64, most: u64, least: u64) -> Option<u64> {
        let limit = now.saturating_add(self.full.load(Ordering::Relaxed));
        for _ in 0..BORROW_TRIES {
            let full_at = self.full_at.load(Ordering::Relaxed);
            let from = full_at.max(now);
            let taken = [most, least].into_iter().find(|tokens| from.saturating_add(*tokens) <= limit)?;
            let swapped =
                self.full_at.compare_exchange(full_at, from + taken, Ordering::Relaxed, Ordering::Relaxed);
            if swapped.is_ok() {
                return Some(taken);
            }
        }
        None
    }
}

/// All meters, by numbers of 32 bits.
#[derive(Debug)]
pub(crate) struct Meters {
    places: Chunks<Meter, 64>,
    /// Index by number: number in 32 bits, place in 32 bits. A number is in the entry that it hashes to, or in one of
    /// the next.
    index: Box<[AtomicU64]>,
    /// Free places, and the number of places that were ever used.
    free: Mutex<(Vec<u32>, u32)>,
}

/// An entry that was never used: a search ends here.
const EMPTY: u64 = u64::MAX;
/// An entry whose meter was removed: a search continues.
const LEFT: u64 = u64::MAX - 1;

fn entry_of(number: u32, place: u32) -> u64 {
    u64::from(number) << 32 | u64::from(place)
}

fn place_in(entry: u64) -> usize {
    entry as u32 as usize
}

impl Meters {
    pub(crate) fn new() -> Self {
        let index = (0..METER_ENTRIES).map(|_| AtomicU64::new(EMPTY)).collect();
        Self { places: Chunks::new(METERS_MAX), index, free: Mutex::default() }
    }

    /// The entries that a number may be in.
    fn entries(&self, number: u32) -> impl Iterator<Item = &AtomicU64> {
        let home = (number.wrapping_mul(0x9e37_79b9) >> 16) as usize;
        (home..home + METER_PROBES_MAX).filter_map(|at| self.index.get(at % METER_ENTRIES))
    }

    /// The place of a number's meter.
    fn find(&self, number: u32) -> Option<usize> {
        let entries = self.entries(number).map(|entry| entry.load(Ordering::Acquire));
        let mut known = entries.take_while(|entry| *entry != EMPTY).filter(|entry| *entry != LEFT);
        known.find(|entry| entry >> 32 == u64::from(number)).map(place_in)
    }

    fn at(&self, place: usize) -> Option<&Meter> {
        self.places.get(place)
    }

    /// Returns false if the table is full.
    pub(crate) fn set(&self, number: u32, rate: MeterRate) -> bool {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(meter) = self.find(number).and_then(|place| self.at(place)) {
            meter.begin(rate);
            return true;
        }
        let vacant = |entry: &&AtomicU64| matches!(entry.load(Ordering::Relaxed), EMPTY | LEFT);
        let Some(entry) = self.entries(number).find(vacant) else { return false };
        let (places, made) = &mut *free;
        let place = places.pop().unwrap_or_else(|| std::mem::replace(made, *made + 1));
        let Some(meter) = self.places.make(place as usize) else {
            *made -= 1;
            return false;
        };
        meter.begin(rate);
        entry.store(entry_of(number, place), Ordering::Release);
        true
    }

    /// Removes a meter: packets pass freely from now on. A worker that is using it may count one more batch for the
    /// next meter in its slot.
    pub(crate) fn remove(&self, number: u32) {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(place) = self.find(number) else { return };
        let own = entry_of(number, place as u32);
        if let Some(entry) = self.entries(number).find(|entry| entry.load(Ordering::Relaxed) == own) {
            entry.store(LEFT, Ordering::Release);
            free.0.push(place as u32);
        }
    }

    /// The ticks that a packet would take from a meter now, after it took `taken` before; `None` if it would not pass.
    /// Nothing is taken.
    pub(crate) fn cost_now(&self, number: u32, len_bytes: u32, taken: u64, now_ns: u64) -> Option<u64> {
        let Some(meter) = self.find(number).and_then(|place| self.at(place)) else { return Some(0) };
        let now = now_ns << TICKS_SHIFT;
        let from = meter.full_at.load(Ordering::Relaxed).max(now).saturating_add(taken);
        let (cost, limit) = (meter.cost(len_bytes), now.saturating_add(meter.full.load(Ordering::Relaxed)));
        (cost == 0 || from.saturating_add(cost) <= limit).then_some(cost)
    }

    pub(crate) fn stats(&self, number: u32) -> Option<MeterCounters> {
        let meter = self.at(self.find(number)?)?;
        let [packets, bytes, dropped_packets, dropped_bytes] =
            meter.stats.each_ref().map(|word| word.load(Ordering::Relaxed));
        Some(MeterCounters { packets, bytes, dropped_packets, dropped_bytes })
    }
}

/// Tokens of one meter that a worker holds.
#[derive(Debug)]
struct Borrow {
    /// The meter's place.
    meter: usize,
    ticks: u64,
    stats: MeterCounters,
}

/// The tokens that a worker holds during a batch.
#[derive(Debug, Default)]
pub(crate) struct Borrows(ArrayVec<Borrow, BORROWS_MAX>);

impl Borrows {
    /// Whether a meter lets a packet through.
    pub(crate) fn pass(&mut self, meters: &Meters, number: u32, len_bytes: u32, now_ns: u64) -> bool {
        let Some(place) = meters.find(number) else { return true };
        let Some(meter) = meters.at(place) else { return true };
        let cost = meter.cost(len_bytes);
        if cost == 0 {
            return true;
        }
        let at = self.0.iter().position(|borrow| borrow.meter == place).unwrap_or_else(|| {
            if self.0.is_full() {
                self.give_back(meters);
            }
            self.0.push(Borrow { meter: place, ticks: 0, stats: MeterCounters::default() });
            self.0.len() - 1
        });
        let borrow = &mut self.0[at];
        if borrow.ticks < cost {
            let (missing, more) = (cost - borrow.ticks, cost.saturating_mul(BORROW_PACKETS));
            borrow.ticks += meter.take(now_ns << TICKS_SHIFT, more, missing).unwrap_or(0);
        }
        let passes = borrow.ticks >= cost;
        borrow.stats.packets += 1;
        borrow.stats.bytes += u64::from(len_bytes);
        if passes {
            borrow.ticks -= cost;
        } else {
            borrow.stats.dropped_packets += 1;
            borrow.stats.dropped_bytes += u64::from(len_bytes);
        }
        passes
    }

    /// Ends the batch: returns the remaining tokens, and adds up the statistics.
    pub(crate) fn give_back(&mut self, meters: &Meters) {
        for borrow in self.0.drain(..) {
            let Some(meter) = meters.at(borrow.meter) else { continue };
            // The worker advanced the bucket's time by at least as much.
            meter.full_at.fetch_sub(borrow.ticks, Ordering::Relaxed);
            for (word, more) in meter.stats.iter().zip(borrow.stats.words()) {
                word.fetch_add(more, Ordering::Relaxed);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND_NS: u64 = 1_000_000_000;

    /// Sends packets to a meter in `batches` batches of 10, one every `step_ns`. Returns how many pass.
    fn passed(rate: MeterRate, batches: u64, step_ns: u64) -> u64 {
        let meters = Meters::new();
        assert!(meters.set(5, rate));
        let mut borrows = Borrows::default();
        let mut passed = 0;
        for batch in 0..batches {
            let now_ns = 100 * SECOND_NS + batch * step_ns;
            passed += (0..10).filter(|_| borrows.pass(&meters, 5, 1000, now_ns)).count() as u64;
            borrows.give_back(&meters);
        }
        let stats = meters.stats(5).expect("it was set");
        assert_eq!((stats.packets, stats.packets - stats.dropped_packets), (10 * batches, passed));
        assert_eq!(stats.dropped_bytes, 1000 * stats.dropped_packets);
        passed
    }

    #[test]
    fn the_burst_passes_at_once_and_the_rate_thereafter() {
        let packets = MeterRate { rate: 1000, burst: 200, is_kbps: false };
        assert_eq!(passed(packets, 1000, 0), 200);
        assert_eq!(passed(packets, 1000, SECOND_NS / 100), 1000 * 10, "as many as may come");
        // 20,000 packets per second for half a second.
        assert_eq!(passed(packets, 1000, SECOND_NS / 2000), 200 + 499);
        // ovs-vswitchd's for a band without a burst.
        assert_eq!(passed(MeterRate { rate: 1, burst: 1, is_kbps: false }, 1000, 0), 1);
        // A second's worth of 8 Mbit/s: 1000 packets of 1000 bytes.
        assert_eq!(passed(MeterRate { rate: 8000, burst: 0, is_kbps: true }, 1000, 0), 1000);
    }

    #[test]
    fn an_absent_meter_lets_everything_through() {
        let meters = Meters::new();
        let mut borrows = Borrows::default();
        assert!(borrows.pass(&meters, 3, 100, 0));
        assert!(meters.set(3, MeterRate { rate: 0, burst: 0, is_kbps: false }));
        assert!((0..100).all(|_| borrows.pass(&meters, 3, 100, 0)));
    }

    #[test]
    fn numbers_may_be_any_and_places_are_used_again() {
        let (meters, rate) = (Meters::new(), MeterRate { rate: 1, burst: 0, is_kbps: false });
        for round in 0..3_u32 {
            let numbers =
                || (0..METERS_MAX as u32).map(move |at| at.wrapping_mul(54_545_401).wrapping_add(round));
            let set = numbers().filter(|number| meters.set(*number, rate)).count();
            assert!(set > METERS_MAX * 9 / 10, "{set}");
            assert!(!meters.set(7_777_777, rate) || set < METERS_MAX);
            meters.remove(7_777_777);
            numbers().for_each(|number| meters.remove(number));
            assert!(numbers().all(|number| meters.stats(number).is_none()));
        }
        let mut borrows = Borrows::default();
        assert!(meters.set(u32::MAX, rate));
        let passed = (0..100).filter(|_| borrows.pass(&meters, u32::MAX, 100, 1)).count();
        assert_eq!(passed, 1);
        borrows.give_back(&meters);
        assert_eq!(meters.stats(u32::MAX).map(|stats| stats.dropped_packets), Some(99));
        assert!(meters.stats(u32::MAX - 1).is_none());
    }
}
