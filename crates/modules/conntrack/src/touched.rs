//! Touches the memory of places ahead of their use. A page fault takes longer than a commit, and would happen under its shard's lock.
//!
//! Once for each period, which the caller chooses, the table counts the places that were taken. As many again, and a
//! quarter more, are touched for the next one. So memory grows by one period's use beyond what connections occupy.

use std::sync::atomic::{AtomicU32, Ordering};

use crate::links::{LINK_WORDS, Links};
use crate::place::PLACE_WORDS;
use crate::places::Places;

/// Places that are touched ahead at least.
const AHEAD_MIN: u32 = 4096;
/// Places that one call touches: 64 pages.
const TOUCHED_AT_ONCE: u32 = 1024;

/// Which places are touched. One thread changes it.
#[derive(Debug, Default)]
pub(crate) struct TouchedPlaces {
    /// The first place that is not touched.
    end: AtomicU32,
    /// The end of this period.
    target: AtomicU32,
    /// Places that had been taken when the period began.
    used: AtomicU32,
}

impl TouchedPlaces {
    /// Touches some more places. Returns true at the end of a period.
    pub(crate) fn advance(&self, places: &Places, links: &Links) -> bool {
        let used = places.used();
        let from = self.end.load(Ordering::Relaxed).max(used);
        let mut target = self.target.load(Ordering::Relaxed);
        if from >= target {
            let before = self.used.swap(used, Ordering::Relaxed);
            // An earlier process may have taken places before the first period.
            let recent = if target == 0 { 0 } else { used.saturating_sub(before) };
            target = used.saturating_add((recent + recent / 4).max(AHEAD_MIN)).min(places.count);
            self.target.store(target, Ordering::Relaxed);
        }
        let to = target.min(from.saturating_add(TOUCHED_AT_ONCE)).max(from);
        places.places.touch(from..to, PLACE_WORDS);
        links.0.touch(from..to, LINK_WORDS);
        self.end.store(to, Ordering::Relaxed);
        to >= target
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use lasthop_guestmem::Mapping;

    use crate::bounds::CtBounds;
    use crate::conntrack_table::ConntrackTable;

    #[test]
    fn as_many_places_are_touched_as_were_taken() {
        let table = ConntrackTable::new(CtBounds { connections_max: 100_000, ..CtBounds::default() }, 0);
        let end = || table.shared.touched.end.load(super::Ordering::Relaxed);
        let period = || while !table.touch_ahead() {};
        period();
        assert_eq!(end(), super::AHEAD_MIN);
        let mut vacant = crate::places::Vacant::default();
        let mut take = |count: u32| {
            for _ in 0..count {
                table.shared.places.take(&table.shared.links, &mut vacant).expect("a place");
            }
        };
        // There are pages for the same number of places again.
        take(6400);
        period();
        assert_eq!(end(), 6400 + 8000);
        take(64);
        period();
        assert_eq!(end(), 6400 + 8000, "nothing more is wanted");
        take(100_000 - 6464);
        period();
        assert_eq!(end(), table.shared.places.count);
    }

    #[test]
    fn places_of_an_earlier_process_are_not_use_of_this_one() {
        let bounds = CtBounds { connections_max: 100_000, ..CtBounds::default() };
        let bytes = ConntrackTable::memory_bytes_for(&bounds);
        let memory = Arc::new(Mapping::anonymous(bytes).expect("memory"));
        let table = || ConntrackTable::in_memory(&memory, bounds, 0).expect("room");
        let earlier = table();
        let mut vacant = crate::places::Vacant::default();
        for _ in 0..50_048 {
            earlier.shared.places.take(&earlier.shared.links, &mut vacant).expect("a place");
        }
        let next = table();
        while !next.touch_ahead() {}
        let end = next.shared.touched.end.load(super::Ordering::Relaxed);
        assert_eq!(end, 50_048 + super::AHEAD_MIN);
    }
}
