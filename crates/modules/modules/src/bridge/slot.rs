//! One entry of the table: two words that readers read consistently without a lock.
//!
//! ```text
//!   key    filter id : 16 | address : 48          0 = empty
//!   value  port : 16 | static : 1 | era : 9 | stamp : 38
//! ```
//!
//! **Writers.** Occupying, moving and emptying happen under the table's writer lock. A refresh happens without it, by a
//! compare-and-swap that changes only the stamp.
//!
//! **Why a reader never combines one entry's key with another's value.** Each occupation of a slot is an *era*,
//! numbered in the value. The writer empties the key, then stores the new era's value (release), then the new key
//! (release). A reader loads value (acquire), key (acquire), value, and accepts if both values have the same era:
//!   key is empty, or of era `n` or younger;
//! - having seen the key of era `m`, it sees the value of era `m` or a younger one;
//! - so `n <= m <=` era of the second value `= n`: the key, too, is of era `n`.
//!
//! A refresh keeps the era. It is a read-modify-write, so it continues the release sequence of the value that it
//! replaces. Eras wrap after 512. To accept a wrong pair, a reader would have to pause between two loads while its slot
//! is reused 512 times, each time after 300 s without frames or the removal of a port. A reader that meets a
//! replacement reports the slot as not matching. The frame is then flooded, as if it had arrived slightly earlier or
//! later.

use std::sync::atomic::{AtomicU64, Ordering};

use lasthop_module_api::PortId;

/// A stamp counts units of 2^26 ns, about 67 ms: coarse enough that a busy address is written only 15 times a second.
/// Nanoseconds of 64 bits shifted by this fit a stamp, so stamps do not wrap.
const STAMP_UNIT_SHIFT: u32 = 26;
const STAMP_BITS: u32 = 64 - STAMP_UNIT_SHIFT;
const STAMP_MASK: u64 = (1 << STAMP_BITS) - 1;
const ERA_ONE: u64 = 1 << STAMP_BITS;
const ERA_MASK: u64 = 0x1ff << STAMP_BITS;
const STATIC: u64 = 1 << 47;
const PORT_SHIFT: u32 = 48;

const _: () = assert!(ERA_MASK & STATIC == 0 && (ERA_MASK | STAMP_MASK | STATIC) >> PORT_SHIFT == 0);

/// A coarse point in time, in units of 2^26 ns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Stamp(u64);

impl Stamp {
    /// The stamp of `now_ns`.
    pub(crate) fn at(now_ns: u64) -> Self {
        Self(now_ns >> STAMP_UNIT_SHIFT)
    }

    /// The start of the unit, in nanoseconds.
    pub(crate) fn as_ns(self) -> u64 {
        self.0 << STAMP_UNIT_SHIFT
    }

    /// This stamp plus `span`.
    pub(crate) fn after(self, span: Self) -> Self {
        Self(self.0 + span.0)
    }
}

/// The port of an address, and when it was last seen there: the second word of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FdbValue(u64);

impl FdbValue {
    /// An address that was seen behind `port` at `stamp`.
    pub(crate) fn learned(port: PortId, stamp: Stamp) -> Self {
        Self(u64::from(port.0) << PORT_SHIFT | stamp.0 & STAMP_MASK)
    }

    /// Whether it is a learned one, seen behind `port` at `stamp`.
    #[inline]
    pub(crate) fn is_seen(self, port: PortId, stamp: Stamp) -> bool {
        self.0 & !ERA_MASK == Self::learned(port, stamp).0
    }

    /// An address configured for `port`.
    pub(crate) fn configured(port: PortId) -> Self {
        Self(u64::from(port.0) << PORT_SHIFT | STATIC)
    }

    pub(crate) fn port(self) -> PortId {
        PortId((self.0 >> PORT_SHIFT) as u16)
    }

    pub(crate) fn is_static(self) -> bool {
        self.0 & STATIC != 0
    }

    /// Time at which the address was last seen; zero if static.
    pub(crate) fn stamp(self) -> Stamp {
        Stamp(self.0 & STAMP_MASK)
    }

    fn era(self) -> u64 {
        self.0 & ERA_MASK
    }

    fn with_era(self, era: u64) -> Self {
        Self(self.0 & !ERA_MASK | era & ERA_MASK)
    }

    fn with_stamp(self, stamp: Stamp) -> Self {
        Self(self.0 & !STAMP_MASK | stamp.0 & STAMP_MASK)
    }
}

/// One entry of the table.
#[derive(Debug, Default)]
pub(crate) struct Slot {
    key: AtomicU64,
    value: AtomicU64,
}

impl Slot {
    /// Loads a word of the slot, to bring its cache line in.
    #[inline]
    pub(crate) fn touch(&self) -> u64 {
        self.key.load(Ordering::Relaxed)
    }

    /// Whether the slot appears to hold `key`; [`Self::place_of`] is exact.
    #[inline]
    pub(crate) fn holds(&self, key: u64) -> bool {
        self.key.load(Ordering::Relaxed) == key
    }

    /// The slot's contents; `None` if it is empty or being given away.
    #[inline]
    pub(crate) fn read(&self) -> Option<(u64, FdbValue)> {
        let (key, place, is_whole) = self.snapshot();
        (key != 0 && is_whole).then_some((key, place))
    }

    /// The value of `key`, which is not 0, if the slot holds it.
    #[inline]
    pub(crate) fn place_of(&self, key: u64) -> Option<FdbValue> {
        let (found, place, is_whole) = self.snapshot();
        (found == key && is_whole).then_some(place)
    }

    /// Key and value, and whether they are of one era.
    #[inline(always)]
    fn snapshot(&self) -> (u64, FdbValue, bool) {
        let before = FdbValue(self.value.load(Ordering::Acquire));
        let key = self.key.load(Ordering::Acquire);
        let place = FdbValue(self.value.load(Ordering::Relaxed));
        (key, place, before.era() == place.era())
    }

    /// Updates the stamp of a learned place that was just read, unless the stamp is as recent already.
    ///
    /// The result of the compare-and-swap is ignored: a concurrent refresh, move or replacement is more recent.
    pub(crate) fn refresh(&self, seen: FdbValue, now: Stamp) {
        if seen.stamp() < now {
            let young = seen.with_stamp(now).0;
            let _ = self.value.compare_exchange(seen.0, young, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    /// Starts a new era with `key` at `place`. Requires the writer lock.
    pub(crate) fn occupy(&self, key: u64, place: FdbValue) {
        let era = FdbValue(self.value.load(Ordering::Relaxed)).era().wrapping_add(ERA_ONE);
        self.key.store(0, Ordering::Relaxed);
        self.value.store(place.with_era(era).0, Ordering::Release);
        self.key.store(key, Ordering::Release);
    }

    /// Moves the same key to another place. Requires the writer lock.
    pub(crate) fn relocate(&self, place: FdbValue) {
        let era = FdbValue(self.value.load(Ordering::Relaxed)).era();
        self.value.store(place.with_era(era).0, Ordering::Release);
    }

    /// Empties the slot. Requires the writer lock.
    pub(crate) fn vacate(&self) {
        self.key.store(0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PORT: PortId = PortId(u16::MAX);

    #[test]
    fn fields_do_not_touch_each_other() {
        let place = FdbValue::learned(PORT, Stamp(STAMP_MASK)).with_era(ERA_MASK);
        assert_eq!((place.port(), place.stamp(), place.is_static()), (PORT, Stamp(STAMP_MASK), false));
        let place = FdbValue::configured(PortId(0)).with_era(ERA_MASK + ERA_ONE);
        assert_eq!(
            (place.port(), place.stamp(), place.is_static(), place.era()),
            (PortId(0), Stamp(0), true, 0)
        );
    }

    #[test]
    fn the_largest_time_fits_a_stamp() {
        assert_eq!(FdbValue::learned(PORT, Stamp::at(u64::MAX)).stamp(), Stamp::at(u64::MAX));
    }

    #[test]
    fn refreshing_never_makes_older_and_never_hits_a_successor() {
        let slot = Slot::default();
        slot.occupy(7, FdbValue::learned(PORT, Stamp(10)));
        let seen = slot.place_of(7).expect("just put there");
        slot.refresh(seen, Stamp(9));
        assert_eq!(slot.place_of(7).map(FdbValue::stamp), Some(Stamp(10)));
        slot.occupy(8, FdbValue::learned(PORT, Stamp(10)));
        slot.refresh(seen, Stamp(11));
        assert_eq!(slot.place_of(8).map(FdbValue::stamp), Some(Stamp(10)), "the era tells the two apart");
    }

    #[test]
    fn an_empty_slot_holds_nothing() {
        let slot = Slot::default();
        assert_eq!((slot.read(), slot.place_of(7)), (None, None));
        slot.occupy(7, FdbValue::configured(PORT));
        slot.vacate();
        assert_eq!((slot.read(), slot.place_of(7)), (None, None));
    }
}
