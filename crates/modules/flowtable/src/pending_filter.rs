//! Tells by cache keys alone that a packet belongs to no pending flow.
//!
//! The full flow key decides ([`crate::pending`]). Computing it would make every packet expensive during any upcall. So
//! pending flows are counted in a filter by the cache keys of their packets. A packet whose count is zero needs no
//! look-up.
//!
//! ```text
//!   cache_key's hash ─> count of pending flows there, of this union     + those of other unions, or of packets without a cache key
//! ```

use crate::cache_key::CacheKey;

const MARKS: usize = 4096;

/// The way to find a pending flow's packets in the filter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum FilterKey {
    /// By their cache key under the union mask of this number.
    Seen { time: u16, at: u16 },
    /// Only by their flow key, since no cache key is known.
    #[default]
    Unseen,
    /// They were in the table before: recirculated packets are always looked up by flow key.
    Inner,
}

impl FilterKey {
    pub(crate) fn of(cache_key: &CacheKey) -> Self {
        Self::Seen { time: cache_key.time(), at: (cache_key.hash() % MARKS as u64) as u16 }
    }
}

/// The filter of one worker's pending flows.
#[derive(Debug)]
pub(crate) struct PendingFilter {
    counts: Box<[u16; MARKS]>,
    /// Number of the union mask to which the counts belong.
    time: u16,
    seen: u32,
    /// Pending flows that are not in the counts.
    unseen: u32,
}

impl PendingFilter {
    pub(crate) fn new() -> Self {
        Self { counts: Box::new([0; MARKS]), time: 0, seen: 0, unseen: 0 }
    }

    /// Begins a batch. Under a new union mask the counts of earlier cache keys are useless.
    #[inline]
    pub(crate) fn begin(&mut self, time: u16) {
        if time != self.time {
            self.turn_to(time);
        }
    }

    #[cold]
    fn turn_to(&mut self, time: u16) {
        if self.seen > 0 {
            self.counts.fill(0);
        }
        (self.time, self.unseen, self.seen) = (time, self.unseen + self.seen, 0);
    }

    /// Whether a packet with a cache key under this mask certainly belongs to no pending flow.
    #[inline(always)]
    pub(crate) fn is_clear(&self, cache_key: &CacheKey) -> bool {
        self.unseen == 0 && self.counts[cache_key.hash() as usize % MARKS] == 0
    }

    fn count(&mut self, filter_key: FilterKey) -> Option<(&mut u32, Option<&mut u16>)> {
        match filter_key {
            FilterKey::Inner => None,
            FilterKey::Seen { time, at } if time == self.time => {
                Some((&mut self.seen, self.counts.get_mut(usize::from(at))))
            }
            FilterKey::Seen { .. } | FilterKey::Unseen => Some((&mut self.unseen, None)),
        }
    }

    /// Adds a pending flow.
    pub(crate) fn add(&mut self, filter_key: FilterKey) {
        if let Some((all, here)) = self.count(filter_key) {
            *all += 1;
            here.into_iter().for_each(|here| *here += 1);
        }
    }

    /// Removes a flow that is no longer pending.
    pub(crate) fn remove(&mut self, filter_key: FilterKey) {
        if let Some((all, here)) = self.count(filter_key) {
            *all -= 1;
            here.into_iter().for_each(|here| *here -= 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use lasthop_wire::Key;

    use lasthop_wire::key::KEY_WORDS;

    use super::*;
    use crate::cache_key::UnionMask;
    use crate::hash::Secret;

    /// A cache key made from `number`, with its filter key.
    fn cache_key(union: &UnionMask, number: u64) -> (CacheKey, FilterKey) {
        let mut cache_key = CacheKey::default();
        cache_key.see_other(union.sought(&Key([number; KEY_WORDS]), &Secret::random()), 0);
        (cache_key, FilterKey::of(&cache_key))
    }

    #[test]
    fn packets_outside_the_filter_are_clear() {
        let (mut filter, union) = (PendingFilter::new(), UnionMask::default());
        filter.begin(union.time());
        let ((one, filter_key), (other, _)) = (cache_key(&union, 1), cache_key(&union, 2));
        assert!(filter.is_clear(&one));
        (0..2).for_each(|_| filter.add(filter_key));
        filter.add(FilterKey::Inner);
        assert_eq!(
            (filter.is_clear(&one), filter.is_clear(&other)),
            (false, one.hash() % 4096 != other.hash() % 4096)
        );
        filter.remove(filter_key);
        assert!(!filter.is_clear(&one));
        filter.remove(filter_key);
        filter.remove(FilterKey::Inner);
        assert!(filter.is_clear(&one));
        filter.add(FilterKey::Unseen);
        assert!(!filter.is_clear(&other), "it may be of that flow");
        filter.remove(FilterKey::Unseen);
        assert!(filter.is_clear(&other));
    }

    #[test]
    fn under_a_new_mask_no_packet_is_clear_until_older_flows_are_settled() {
        let (mut filter, mut union) = (PendingFilter::new(), UnionMask::default());
        filter.begin(union.time());
        let (_, before) = cache_key(&union, 1);
        filter.add(before);
        assert!(!union.aim(Key([1; KEY_WORDS])));
        filter.begin(union.time());
        let (one, filter_key) = cache_key(&union, 2);
        assert!(!filter.is_clear(&one));
        filter.add(filter_key);
        filter.remove(before);
        assert!(!filter.is_clear(&one));
        filter.remove(filter_key);
        assert!(filter.is_clear(&one));
    }
}
