//! From a tuple's hash to its connection: linear hashing, which grows by a bucket at a time, and which is searched without a lock.
//!
//! ```text
//!   buckets   0 .. split      were split: a hash's lower `bits + 1` bits say where
//!             split .. size   not yet: `bits` bits
//!             size ..         the other halves of those that were
//! ```
//!
//! So no insertion moves more than the two or three connections of one bucket. The key of the hash is secret; chains are short
//! on average, and bounded.
//!
//! **Searching.** A connection that goes leaves its chain before its place can be used again, but a search may stand on it. So each
//! step of a search makes sure that the place has the same connection as when it came, and that it belongs to the bucket; and
//! a search that finds nothing makes sure that no bucket was split meanwhile. Else it begins again. A connection that is
//! found has the tuple; a change of it goes by the version that was found.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use lasthop_guestmem::{Mapping, Words};
use lasthop_sync::{Version, prefetch};

use crate::place::Place;
use crate::places::{Places, Rows};
use crate::tuple::{Direction, TUPLE_WORDS};

/// Buckets at first: 1 KiB.
const BUCKETS_MIN: u32 = 256;
/// Connections of a bucket that are looked at. With one on average, more than 20 have a probability below 10^-18.
pub(crate) const CHAIN_MAX: usize = 64;
/// Searches that may be disturbed before one is done under the lock.
const SEARCHES_MAX: u32 = 8;

/// The buckets of a shard: two in each word.
#[derive(Debug)]
pub(crate) struct Index {
    heads: Words,
    /// Buckets at the last doubling, a power of two; and those split since then.
    shape: AtomicU64,
    /// Odd while a bucket is split.
    splits: AtomicU64,
}

/// A connection that has a tuple.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Found {
    pub(crate) index: u32,
    pub(crate) direction: Direction,
    /// As it was when the tuple was compared.
    pub(crate) version: Version,
}

/// The outcome of a search without a lock.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Search {
    Found(Found),
    Absent,
    /// It was disturbed again and again.
    Unsure,
}

/// The outcome of one try.
enum Walk<'a> {
    Found(Place<'a>, Found),
    Absent,
    Unsure,
}

/// A place in a chain: index and direction of a connection, plus one.
#[inline]
fn reference(index: u32, direction: Direction) -> u32 {
    (index << 1 | direction as u32) + 1
}

#[inline]
fn named(reference: u32) -> Option<(u32, Direction)> {
    let number = reference.checked_sub(1)?;
    let direction = if number & 1 == 0 { Direction::Original } else { Direction::Reply };
    Some((number >> 1, direction))
}

#[derive(Clone, Copy)]
struct Shape {
    size: u32,
    split: u32,
}

impl Shape {
    #[inline]
    fn bucket_of(self, hash: u32) -> u32 {
        let bucket = hash & (self.size - 1);
        if bucket < self.split { hash & (2 * self.size - 1) } else { bucket }
    }

    fn buckets(self) -> u32 {
        self.size + self.split
    }

    fn word(self) -> u64 {
        u64::from(self.size) << 32 | u64::from(self.split)
    }
}

impl Index {
    /// An index with room for `tuples_max` tuples. Memory is taken as it fills.
    pub(crate) fn new(tuples_max: usize) -> Option<Self> {
        let words = tuples_max.div_ceil(2) + BUCKETS_MIN as usize;
        let mapping = Arc::new(Mapping::anonymous(words * size_of::<u64>()).ok()?);
        Some(Self::of(Words::new(&mapping, 0, words)?))
    }

    /// One that has room for nothing.
    pub(crate) fn none() -> Self {
        Self::of(Words::none())
    }

    fn of(heads: Words) -> Self {
        let shape = Shape { size: BUCKETS_MIN, split: 0 };
        Self { heads, shape: AtomicU64::new(shape.word()), splits: AtomicU64::new(0) }
    }

    /// Bytes in use.
    pub(crate) fn bytes(&self) -> usize {
        self.shape().buckets() as usize * size_of::<u32>()
    }

    #[inline]
    fn shape(&self) -> Shape {
        let word = self.shape.load(Ordering::Relaxed);
        Shape { size: (word >> 32) as u32, split: word as u32 }
    }

    #[inline]
    fn head(&self, bucket: u32) -> u32 {
        let word =
            self.heads.atomics().get(bucket as usize / 2).map_or(0, |word| word.load(Ordering::Acquire));
        (word >> (32 * (bucket & 1))) as u32
    }

    fn set_head(&self, bucket: u32, reference: u32) {
        let Some(word) = self.heads.atomics().get(bucket as usize / 2) else { return };
        let shift = 32 * (bucket & 1);
        let others = word.load(Ordering::Relaxed) & !(0xffff_ffff << shift);
        word.store(others | u64::from(reference) << shift, Ordering::Release);
    }

    /// Loads the head of a hash's chain into the cache.
    #[inline]
    pub(crate) fn prefetch_head(&self, hash: u32) {
        if let Some(word) = self.heads.atomics().get(self.shape().bucket_of(hash) as usize / 2) {
            prefetch(word);
        }
    }

    /// Loads the first connection of a hash's chain into the cache.
    #[inline]
    pub(crate) fn prefetch_first(&self, places: &Places, hash: u32) {
        let first = named(self.head(self.shape().bucket_of(hash)));
        if let Some(place) = first.and_then(|(index, _)| places.get(index)) {
            place.prefetch();
        }
    }

    /// The connection that has a tuple of this hash and these words.
    #[inline]
    pub(crate) fn find(&self, places: &Places, hash: u32, words: &[u64; TUPLE_WORDS]) -> Search {
        for _ in 0..SEARCHES_MAX {
            let splits = self.splits.load(Ordering::Acquire);
            match self.walk(places.rows(), hash, |place, direction| place.has_tuple(direction, words)) {
                Walk::Unsure => {}
                Walk::Found(_, found) => return Search::Found(found),
                Walk::Absent => {
                    fence(Ordering::Acquire);
                    if splits & 1 == 0 && self.splits.load(Ordering::Relaxed) == splits {
                        return Search::Absent;
                    }
                }
            }
        }
        Search::Unsure
    }

    /// The connection that has the tuple of these addresses of IPv4 and this last word; none if it is not found at once,
    /// or is being changed.
    #[inline(always)]
    pub(crate) fn find4<'p>(
        &self,
        places: Rows<'p>,
        hash: u32,
        (src, dst, last): (u64, u64, u64),
    ) -> Option<(Place<'p>, Found)> {
        // Most chains are short: the first one is it.
        let (index, direction) = named(self.head(self.shape().bucket_of(hash)))?;
        let place = places.get(index)?;
        let version = place.version();
        if place.has_tuple4(direction, [src, dst, last]) && version.is_settled() {
            return Some((place, Found { index, direction, version }));
        }
        self.find4_behind(places, hash, src, dst, last)
    }

    #[inline(never)]
    fn find4_behind<'p>(
        &self,
        places: Rows<'p>,
        hash: u32,
        src: u64,
        dst: u64,
        last: u64,
    ) -> Option<(Place<'p>, Found)> {
        match self.walk(places, hash, |place, direction| place.has_tuple4(direction, [src, dst, last])) {
            Walk::Found(place, found) => Some((place, found)),
            Walk::Absent | Walk::Unsure => None,
        }
        .filter(|(_, found)| found.version.is_settled())
    }

    #[inline(always)]
    fn walk<'p>(
        &self,
        places: Rows<'p>,
        hash: u32,
        has_tuple: impl Fn(Place<'_>, Direction) -> bool,
    ) -> Walk<'p> {
        let shape = self.shape();
        let bucket = shape.bucket_of(hash);
        let mut next = self.head(bucket);
        for _ in 0..CHAIN_MAX {
            let Some((index, direction)) = named(next) else { return Walk::Absent };
            let Some(place) = places.get(index) else { return Walk::Unsure };
            let version = place.version();
            if has_tuple(place, direction) && version.is_live() {
                return Walk::Found(place, Found { index, direction, version });
            }
            let this = place.hash(direction);
            next = place.chain(direction);
            if !version.is_live() || shape.bucket_of(this) != bucket || !place.is_still_connection(version) {
                return Walk::Unsure;
            }
        }
        Walk::Absent
    }

    /// Whether a hash's bucket has room for two more.
    pub(crate) fn has_room(&self, places: &Places, hash: u32) -> bool {
        let mut next = self.head(self.shape().bucket_of(hash));
        for _ in 0..CHAIN_MAX - 2 {
            let Some((index, direction)) = named(next) else { return !self.heads.atomics().is_empty() };
            next = places.get(index).map_or(0, |place| place.chain(direction));
        }
        false
    }

    /// Enters both directions of a connection; for the holder of the shard's lock, as all below. `tuples`: those of the shard.
    pub(crate) fn insert(&self, places: &Places, index: u32, tuples: u32) {
        let Some(place) = places.get(index) else { return };
        for direction in [Direction::Original, Direction::Reply] {
            let bucket = self.shape().bucket_of(place.hash(direction));
            place.set_chain(direction, self.head(bucket));
            self.set_head(bucket, reference(index, direction));
        }
        for _ in 0..2 {
            if self.shape().buckets() < tuples {
                self.split_one(places);
            }
        }
    }

    /// Takes both directions out. Searches that stand on the connection still go on from it.
    pub(crate) fn remove(&self, places: &Places, index: u32) {
        let Some(place) = places.get(index) else { return };
        for direction in [Direction::Original, Direction::Reply] {
            let bucket = self.shape().bucket_of(place.hash(direction));
            self.unlink(places, bucket, reference(index, direction), place.chain(direction));
        }
    }

    fn unlink(&self, places: &Places, bucket: u32, this: u32, behind: u32) {
        let mut next = self.head(bucket);
        if next == this {
            self.set_head(bucket, behind);
            return;
        }
        for _ in 0..CHAIN_MAX {
            let Some((other, direction)) = named(next) else { return };
            let Some(place) = places.get(other) else { return };
            next = place.chain(direction);
            if next == this {
                place.set_chain(direction, behind);
                return;
            }
        }
    }

    /// One bucket becomes two.
    fn split_one(&self, places: &Places) {
        let before = self.shape();
        let (from, to) = (before.split, before.size + before.split);
        if to as usize / 2 >= self.heads.atomics().len() {
            return;
        }
        let after = Shape { split: before.split + 1, ..before };
        let splits = self.splits.load(Ordering::Relaxed);
        self.splits.store(splits | 1, Ordering::Relaxed);
        // A search that sees a store behind this sees the odd number, too.
        fence(Ordering::Release);
        let mut next = self.head(from);
        self.set_head(from, 0);
        self.set_head(to, 0);
        for _ in 0..CHAIN_MAX {
            let Some((index, direction)) = named(next) else { break };
            let Some(place) = places.get(index) else { break };
            let (this, bucket) = (next, after.bucket_of(place.hash(direction)));
            next = place.chain(direction);
            place.set_chain(direction, self.head(bucket));
            self.set_head(bucket, this);
        }
        let is_doubled = after.split == after.size;
        let after = if is_doubled { Shape { size: 2 * after.size, split: 0 } } else { after };
        self.shape.store(after.word(), Ordering::Relaxed);
        self.splits.store((splits | 1) + 1, Ordering::Release);
    }
}
