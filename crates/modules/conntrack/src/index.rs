//! The index from a tuple's hash to its connection: linear hashing, which grows by one bucket at a time and is searched
//! without a lock.
//!
//! ```text
//!   buckets   0 .. split      already split: `bits + 1` bits of the hash select one
//!             split .. size   not split yet: `bits` bits select one
//!             size ..         the other halves of the split ones
//! ```
//!
//! So an insertion moves no more than the two or three connections of one bucket. The hash has a secret key; chains are
//! short on average, and bounded.
//!
//! ```text
//!   link      place : 23, direction : 1, marks of the chain from here on : 8 (none: the end)
//! ```
//!
//! **Marks.** Three bits of a hash select one of eight marks. A link has the marks of its connection and of all behind it, so most
//! searches for an absent tuple end at the head, without touching a connection. A link may have a mark too many, after a kill for
//! example; that costs a step.
//!
//! **Searching.** A removed connection leaves its chain before its place is used again, but a search may still be
//! reading it. So each step checks that the place holds the same connection as before, and that it belongs to the
//! bucket. A search without a result checks that no bucket was split meanwhile. Otherwise the search begins again. A
//! found connection has the tuple; changes to it use the version that was found.
//!
//! **The next process** continues with heads and chains as they are. A kill at any store leaves chains whole, since a
//! split records its progress. A process that left invalid words on purpose gains nothing: chains are followed within
//! bounds, and cut where they leave their bucket ([`Index::mend`]).

use std::sync::atomic::{AtomicU64, Ordering, fence};

use arrayvec::ArrayVec;
use lasthop_ct_packet::{Direction, TUPLE_WORDS};
use lasthop_guestmem::Words;
use lasthop_sync::{Version, prefetch};

use crate::links::PLACES_MAX;
use crate::place::Place;
use crate::places::{Places, Rows};

/// Initial number of buckets: 1 KiB.
const BUCKETS_MIN: u32 = 256;
/// Connections of a bucket that are compared. With an average of one, more than 20 have a probability below 10^-18.
pub(crate) const CHAIN_MAX: usize = 64;
/// Disturbed searches before the caller takes the lock.
const SEARCHES_MAX: u32 = 8;

/// Lowest bits of a link: the marks.
const MARKS: u32 = 8;
const MARKS_MASK: u32 = (1 << MARKS) - 1;
const _: () = assert!(2 * PLACES_MAX <= 1 << (u32::BITS - MARKS));
/// Connections of a chain from which on a commit is refused. Where a mark is missing they are not counted, which happens once for
/// each mark; one commit adds two.
const CHAIN_FULL: usize = CHAIN_MAX - MARKS as usize - 2;

/// Words of notes for the next process.
pub(crate) const INDEX_WORDS: usize = 4;
/// The shape, which changes when a split is done.
const SHAPE_AT: usize = 0;
/// A split: its bucket and step; then the rest of the chain, and the connection that is being moved.
const SPLIT_AT: usize = 1;
const REST_AT: usize = 2;
const MOVED_AT: usize = 3;
/// Step of a split: the chain is recorded, and still in its bucket; then its connections are moved.
const NOTED: u64 = 1;
const SHARED_OUT: u64 = 2;

/// The buckets of a shard: two in each word.
#[derive(Debug)]
pub(crate) struct Index {
    heads: Words,
    notes: Words,
    /// Number of buckets at the last doubling, a power of two, and the number split since then.
    shape: AtomicU64,
    /// Odd while a bucket is split.
    splits: AtomicU64,
}

/// A connection that was found for a tuple.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Found {
    pub(crate) index: u32,
    pub(crate) direction: Direction,
    /// Its version when the tuple was compared.
    pub(crate) version: Version,
}

/// Connections in a row, each with the link to it.
type Chain<'a> = ArrayVec<(u32, Place<'a>, Direction), CHAIN_MAX>;

/// The outcome of a search without a lock.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Search {
    Found(Found),
    Absent,
    /// Writers disturbed every attempt.
    Unsure,
}

#[inline]
fn named(link: u32) -> Option<(u32, Direction)> {
    (link & MARKS_MASK != 0).then(|| name(link))
}

/// The connection that a link with marks names.
#[inline(always)]
fn name(link: u32) -> (u32, Direction) {
    let direction = if link >> MARKS & 1 == 0 { Direction::Original } else { Direction::Reply };
    (link >> (MARKS + 1), direction)
}

/// The connection of a link, and its direction.
fn place_of(places: &Places, link: u32) -> Option<(Place<'_>, Direction)> {
    let (index, direction) = named(link)?;
    Some((places.get(index)?, direction))
}

/// Number of the mark of a hash: its upper bits. The lower ones select the bucket.
#[inline(always)]
fn mark_of(hash: u32) -> u32 {
    hash >> (u32::BITS - MARKS.ilog2())
}

/// Whether a chain may have a connection with this hash from a link on.
#[inline(always)]
fn may_have(link: u32, hash: u32) -> bool {
    link >> mark_of(hash) & 1 != 0
}

/// The link to a connection with this hash, which has the link `behind`.
#[inline]
fn link_to((index, direction): (u32, Direction), hash: u32, behind: u32) -> u32 {
    (index << 1 | direction as u32) << MARKS | 1 << mark_of(hash) | behind & MARKS_MASK
}

/// The buckets of a shard in the shape that they have at one time. Meanwhile a bucket may be split: some connections are
/// not found then.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Buckets<'a> {
    heads: &'a [AtomicU64],
    shape: Shape,
}

impl Buckets<'_> {
    /// Their number: on average one for each tuple.
    #[inline]
    pub(crate) fn len(self) -> u32 {
        self.shape.buckets()
    }

    /// Prefetches the head of a hash's chain.
    #[inline(always)]
    pub(crate) fn prefetch_head(self, hash: u32) {
        if let Some(word) = self.heads.get(self.shape.bucket_of(hash) as usize / 2) {
            prefetch(word);
        }
    }

    /// Prefetches the first connection of a hash's chain, whose head should be in the cache, unless none has the hash.
    #[inline(always)]
    pub(crate) fn prefetch_first(self, places: Rows<'_>, hash: u32) {
        let first = head_of(self.heads, self.shape.bucket_of(hash));
        if may_have(first, hash)
            && let Some(place) = places.get(name(first).0)
        {
            place.prefetch();
        }
    }

    /// Finds the connection with this hash for which `has_tuple` is true, and the version that was published last. `None` if a single
    /// attempt does not find it.
    ///
    /// A connection that has the tuple is the right one, no matter how the chain led to it. So no step is checked.
    #[inline(always)]
    pub(crate) fn find_by<'p>(
        self,
        places: Rows<'p>,
        hash: u32,
        has_tuple: impl Fn(Place<'p>, Direction) -> bool,
    ) -> Option<(Place<'p>, Direction, Version)> {
        // Most chains have one connection.
        let first = head_of(self.heads, self.shape.bucket_of(hash));
        match step(places, first, hash, &has_tuple)? {
            Step::Found(place, direction, version) => Some((place, direction, version)),
            Step::Next(next) => search_behind(places, (next, hash), has_tuple),
        }
    }
}

/// One step of a search for a tuple.
enum Step<'a> {
    Found(Place<'a>, Direction, Version),
    /// The next link of the chain.
    Next(u32),
}

#[inline(always)]
fn step<'p>(
    places: Rows<'p>,
    link: u32,
    hash: u32,
    has_tuple: impl Fn(Place<'p>, Direction) -> bool,
) -> Option<Step<'p>> {
    if !may_have(link, hash) {
        return None;
    }
    let (index, direction) = name(link);
    let place = places.get(index)?;
    let version = place.version();
    if version.is_live() && has_tuple(place, direction) {
        return Some(Step::Found(place, direction, version.published()));
    }
    Some(Step::Next(place.chain(direction)))
}

#[inline(never)]
fn search_behind<'p>(
    places: Rows<'p>,
    (mut next, hash): (u32, u32),
    has_tuple: impl Fn(Place<'p>, Direction) -> bool,
) -> Option<(Place<'p>, Direction, Version)> {
    for _ in 1..CHAIN_MAX {
        match step(places, next, hash, &has_tuple)? {
            Step::Found(place, direction, version) => return Some((place, direction, version)),
            Step::Next(behind) => next = behind,
        }
    }
    None
}

/// The head of a bucket's chain.
#[inline]
fn head_of(heads: &[AtomicU64], bucket: u32) -> u32 {
    let word = heads.get(bucket as usize / 2).map_or(0, |word| word.load(Ordering::Acquire));
    (word >> (32 * (bucket & 1))) as u32
}

#[derive(Clone, Copy, Debug)]
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

    /// `None` for a word that no shape has.
    fn of(word: u64) -> Option<Self> {
        let shape = Self { size: (word >> 32) as u32, split: word as u32 };
        let is_one = shape.size.is_power_of_two() && shape.size >= BUCKETS_MIN && shape.split < shape.size;
        (is_one && shape.size <= 1 << 30).then_some(shape)
    }
}

impl Index {
    /// Words for the heads of this many tuples.
    pub(crate) fn words_for(tuples_max: usize) -> usize {
        tuples_max.div_ceil(2) + BUCKETS_MIN as usize
    }

    /// An index in this memory, with the chains that another process has left there if `is_kept`. Pages are touched as
    /// it fills.
    pub(crate) fn of(notes: Words, heads: Words, is_kept: bool) -> Self {
        let empty = Shape { size: BUCKETS_MIN, split: 0 };
        let told = Shape::of(notes.read(SHAPE_AT));
        let shape = told.filter(|shape| is_kept && shape.buckets() as usize / 2 <= heads.atomics().len());
        if shape.is_none() {
            notes.publish(SPLIT_AT, 0);
            heads.write(&[0; BUCKETS_MIN as usize / 2]);
            notes.publish(SHAPE_AT, empty.word());
        }
        let shape = AtomicU64::new(shape.unwrap_or(empty).word());
        Self { heads, notes, shape, splits: AtomicU64::new(0) }
    }

    /// An index without room.
    pub(crate) fn none() -> Self {
        Self::of(Words::none(), Words::none(), false)
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
        head_of(self.heads.atomics(), bucket)
    }

    /// Records something for the next process.
    fn note(&self, at: usize, word: u64) {
        may_be_killed();
        self.notes.publish(at, word);
    }

    fn set_head(&self, bucket: u32, link: u32) {
        may_be_killed();
        let Some(word) = self.heads.atomics().get(bucket as usize / 2) else { return };
        let shift = 32 * (bucket & 1);
        let others = word.load(Ordering::Relaxed) & !(0xffff_ffff << shift);
        word.store(others | u64::from(link) << shift, Ordering::Release);
    }

    /// Finds the connection with a tuple of this hash and these words.
    #[inline]
    pub(crate) fn find(&self, places: &Places, hash: u32, words: &[u64; TUPLE_WORDS]) -> Search {
        for _ in 0..SEARCHES_MAX {
            let splits = self.splits.load(Ordering::Acquire);
            let has_tuple = |place: Place<'_>, direction| place.has_tuple(direction, words);
            match self.walk(places.rows(), hash, has_tuple) {
                Search::Unsure => {}
                found @ Search::Found(_) => return found,
                Search::Absent => {
                    fence(Ordering::Acquire);
                    if splits & 1 == 0 && self.splits.load(Ordering::Relaxed) == splits {
                        return Search::Absent;
                    }
                }
            }
        }
        Search::Unsure
    }

    /// The buckets in their present shape.
    #[inline]
    pub(crate) fn buckets(&self) -> Buckets<'_> {
        Buckets { heads: self.heads.atomics(), shape: self.shape() }
    }

    #[inline(always)]
    fn walk(&self, places: Rows<'_>, hash: u32, has_tuple: impl Fn(Place<'_>, Direction) -> bool) -> Search {
        let shape = self.shape();
        let bucket = shape.bucket_of(hash);
        let mut next = self.head(bucket);
        for _ in 0..CHAIN_MAX {
            if !may_have(next, hash) {
                return Search::Absent;
            }
            let (index, direction) = name(next);
            let Some(place) = places.get(index) else { return Search::Unsure };
            let (version, this) = (place.version(), place.hash(direction));
            if this == hash && has_tuple(place, direction) && version.is_live() {
                return Search::Found(Found { index, direction, version });
            }
            next = place.chain(direction);
            if !version.is_live() || shape.bucket_of(this) != bucket || !place.is_still_connection(version) {
                return Search::Unsure;
            }
        }
        Search::Absent
    }

    /// Whether a hash's bucket has room for two more, and with `is_new` no connection with this hash. It requires the shard's lock, so nothing
    /// disturbs the search. Returns false also for a chain that has to be mended.
    pub(crate) fn has_room(&self, places: &Places, hash: u32, is_new: bool) -> bool {
        let (rows, shape) = (places.rows(), self.shape());
        let bucket = shape.bucket_of(hash);
        let mut next = self.head(bucket);
        if is_new && !may_have(next, hash) {
            return !self.heads.atomics().is_empty();
        }
        for _ in 0..CHAIN_FULL {
            let Some((index, direction)) = named(next) else { return !self.heads.atomics().is_empty() };
            // One cache line of each connection is enough.
            let Some(place) = rows.get(index) else { return false };
            let this = place.hash(direction);
            if is_new && this == hash || shape.bucket_of(this) != bucket {
                return false;
            }
            next = place.chain(direction);
        }
        false
    }

    /// Prefetches the first two connections of chains that will be split soon.
    fn prefetch_split(&self, places: &Places) {
        /// Splits until then; an insertion does up to two.
        const AHEAD: u32 = 4;
        let split = self.shape().split;
        self.prefetch_chain(places, split + 2 * AHEAD, 0);
        self.prefetch_chain(places, split + AHEAD, 1);
    }

    /// Prefetches the heads of a connection's chains.
    pub(crate) fn prefetch_heads(&self, place: Place<'_>) {
        let buckets = self.buckets();
        Direction::BOTH.into_iter().for_each(|direction| buckets.prefetch_head(place.hash(direction)));
    }

    /// Prefetches a connection's chains at a depth; what is before should be in the cache.
    pub(crate) fn prefetch_chains(&self, places: &Places, place: Place<'_>, depth: u32) {
        for direction in Direction::BOTH {
            self.prefetch_chain(places, self.shape().bucket_of(place.hash(direction)), depth);
        }
    }

    /// Prefetches the links of the connection behind `depth` others of a chain.
    #[inline]
    fn prefetch_chain(&self, places: &Places, bucket: u32, depth: u32) {
        let mut next = place_of(places, self.head(bucket));
        for _ in 0..depth {
            next = next.and_then(|(place, direction)| place_of(places, place.chain(direction)));
        }
        if let Some((place, _)) = next {
            place.prefetch_chains();
        }
    }

    /// Inserts both directions of a connection. This and all methods below require the shard's lock. `tuples`: number
    /// of tuples in the shard.
    pub(crate) fn insert(&self, places: &Places, index: u32, tuples: u32) {
        let Some(place) = places.get(index) else { return };
        self.enter(place, index);
        self.grow(places, tuples);
    }

    /// The same; the index grows later, by [`Self::grow`].
    #[inline]
    pub(crate) fn enter(&self, place: Place<'_>, index: u32) {
        for direction in [Direction::Original, Direction::Reply] {
            self.link(place, index, direction);
        }
    }

    fn link(&self, place: Place<'_>, index: u32, direction: Direction) {
        let bucket = self.shape().bucket_of(place.hash(direction));
        self.put_first(bucket, place, (index, direction));
    }

    /// Puts a connection at the front of a chain.
    fn put_first(&self, bucket: u32, place: Place<'_>, (index, direction): (u32, Direction)) {
        let behind = self.head(bucket);
        set_chain(place, direction, behind);
        self.set_head(bucket, link_to((index, direction), place.hash(direction), behind));
    }

    /// Inserts those directions of a connection that are in no chain, as after a killed process.
    pub(crate) fn complete(&self, places: &Places, index: u32, tuples: u32) {
        let Some(place) = places.get(index) else { return };
        for direction in [Direction::Original, Direction::Reply] {
            if !self.has(places, index, direction) {
                self.link(place, index, direction);
            }
        }
        self.grow(places, tuples);
    }

    /// Whether a direction of a connection is in its chain.
    pub(crate) fn has(&self, places: &Places, index: u32, direction: Direction) -> bool {
        let hash = places.get(index).map_or(0, |place| place.hash(direction));
        let mut next = self.head(self.shape().bucket_of(hash));
        for _ in 0..CHAIN_MAX {
            let Some((other, of)) = named(next) else { return false };
            if (other, of) == (index, direction) {
                return true;
            }
            next = places.get(other).map_or(0, |place| place.chain(of));
        }
        false
    }

    /// Cuts a hash's chain where it leads to a connection of another bucket or shard, to no connection, or back, and sets its marks: only
    /// a compromised process leaves such a chain.
    pub(crate) fn mend(&self, places: &Places, hash: u32, is_of_shard: impl Fn(Place<'_>) -> bool) {
        let shape = self.shape();
        let bucket = shape.bucket_of(hash);
        let mut good = Chain::new();
        let mut next = self.head(bucket);
        while let Some((place, direction)) = place_of(places, next) {
            let is_here = shape.bucket_of(place.hash(direction)) == bucket && place.version().is_live();
            let is_new = good.iter().all(|(link, ..)| name(*link) != name(next));
            if good.is_full() || !is_new || !is_here || !is_of_shard(place) {
                break;
            }
            good.push((next, place, direction));
            next = place.chain(direction);
        }
        self.relink(bucket, good, 0);
    }

    /// Ends the first connections of a chain with the link `behind`, from the last one to the head, and gives them the marks of the rest.
    fn relink(&self, bucket: u32, chain: Chain<'_>, behind: u32) {
        let mut rest = behind;
        for (link, place, direction) in chain.into_iter().rev() {
            if place.chain(direction) != rest {
                set_chain(place, direction, rest);
            }
            rest = link_to(name(link), place.hash(direction), rest);
        }
        if self.head(bucket) != rest {
            self.set_head(bucket, rest);
        }
    }

    /// Grows for one more connection.
    pub(crate) fn grow(&self, places: &Places, tuples: u32) {
        for _ in 0..2 {
            if self.shape().buckets() < tuples {
                self.split_one(places);
                self.prefetch_split(places);
            }
        }
    }

    /// Removes both directions. Searches that are reading the connection can still continue from it.
    pub(crate) fn remove(&self, places: &Places, index: u32) {
        let Some(place) = places.get(index) else { return };
        for direction in [Direction::Original, Direction::Reply] {
            let bucket = self.shape().bucket_of(place.hash(direction));
            self.unlink(places, bucket, ((index, direction), place.chain(direction)));
        }
    }

    /// Takes the connection `this`, which has the link `behind`, out of a chain. The links before it get the marks that are left.
    fn unlink(&self, places: &Places, bucket: u32, (this, behind): ((u32, Direction), u32)) {
        let mut before = Chain::new();
        let mut next = self.head(bucket);
        while let Some((place, direction)) = place_of(places, next) {
            if name(next) == this {
                return self.relink(bucket, before, behind);
            }
            if before.try_push((next, place, direction)).is_err() {
                return;
            }
            next = place.chain(direction);
        }
    }

    /// Splits one bucket into two.
    fn split_one(&self, places: &Places) {
        let before = self.shape();
        let from = before.split;
        if (before.size + from) as usize / 2 >= self.heads.atomics().len() {
            return;
        }
        let splits = self.splits.load(Ordering::Relaxed);
        self.splits.store(splits | 1, Ordering::Relaxed);
        // A search that sees a store behind this fence also sees the odd number.
        fence(Ordering::Release);
        self.note(REST_AT, self.head(from).into());
        self.note(SPLIT_AT, u64::from(from) << 2 | NOTED);
        self.share_out(places, before, NOTED);
        self.splits.store((splits | 1) + 1, Ordering::Release);
    }

    /// Completes the split that a killed process had begun, if there is one.
    pub(crate) fn resume_split(&self, places: &Places) {
        let (before, note) = (self.shape(), self.notes.read(SPLIT_AT));
        if note >> 2 == before.split.into() && matches!(note & 3, NOTED | SHARED_OUT) {
            self.share_out(places, before, note & 3);
        }
        self.note(SPLIT_AT, 0);
    }

    /// Continues a split at one of its steps. After each store every connection of the chain is in the old or a new
    /// chain, in the rest, or recorded as the one that is moved.
    fn share_out(&self, places: &Places, before: Shape, step: u64) {
        let (from, to) = (before.split, before.size + before.split);
        let after = Shape { split: from + 1, ..before };
        let own = |next: u64| {
            let (place, direction) = place_of(places, next as u32)?;
            let bucket = after.bucket_of(place.hash(direction));
            (bucket == from || bucket == to).then_some((place, direction, bucket))
        };
        if step == NOTED {
            self.set_head(from, 0);
            self.set_head(to, 0);
            self.note(MOVED_AT, 0);
            self.note(SPLIT_AT, u64::from(from) << 2 | SHARED_OUT);
        }
        let (moved, rest) = (self.notes.read(MOVED_AT), self.notes.read(REST_AT));
        if let Some((place, _, bucket)) = own(moved).filter(|_| moved != rest)
            && named(self.head(bucket)) != named(moved as u32)
        {
            self.put_first(bucket, place, name(moved as u32));
        }
        for _ in 0..CHAIN_MAX {
            let this = self.notes.read(REST_AT);
            let Some((place, direction, bucket)) = own(this) else { break };
            self.note(MOVED_AT, this);
            self.note(REST_AT, place.chain(direction).into());
            self.put_first(bucket, place, name(this as u32));
        }
        let is_doubled = after.split == after.size;
        let after = if is_doubled { Shape { size: 2 * after.size, split: 0 } } else { after };
        self.note(SHAPE_AT, after.word());
        self.shape.store(after.word(), Ordering::Relaxed);
        self.note(SPLIT_AT, 0);
    }
}

fn set_chain(place: Place<'_>, direction: Direction, next: u32) {
    may_be_killed();
    place.set_chain(direction, next);
}

/// Called before each store into shared memory: tests kill a process there.
#[inline(always)]
fn may_be_killed() {
    #[cfg(test)]
    tests::may_be_killed();
}

#[cfg(test)]
mod tests;
