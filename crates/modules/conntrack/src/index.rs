//! From a tuple's hash to its connection: linear hashing, which grows by a bucket at a time.
//!
//! ```text
//!   buckets   0 .. split      were split: a hash's lower `bits + 1` bits say where
//!             split .. size   not yet: `bits` bits
//!             size ..         the other halves of those that were
//! ```
//!
//! So no insertion moves more than the two or three connections of one bucket, and memory comes in pieces of 4 KiB. The key of
//! the hash is secret; chains are short on average, and bounded.

use crate::connection::Connection;
use crate::slabs::Slabs;
use crate::tuple::{CtTuple, Direction};

/// Buckets of a piece: 4 KiB.
const PIECE_BUCKETS: usize = 1024;
/// Connections of a bucket that are looked at. With one on average, more than 20 have a probability below 10^-18.
pub(crate) const CHAIN_MAX: usize = 64;

/// The buckets.
#[derive(Debug)]
pub(crate) struct Index {
    pieces: Vec<Box<[u32]>>,
    /// Buckets at the last doubling, a power of two.
    size: usize,
    /// Buckets split since then.
    split: usize,
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

impl Index {
    /// An index with room for `tuples_max` tuples.
    pub(crate) fn new(tuples_max: usize) -> Self {
        let mut pieces = Vec::with_capacity(tuples_max.div_ceil(PIECE_BUCKETS) + 1);
        pieces.push(piece());
        Self { pieces, size: PIECE_BUCKETS, split: 0 }
    }

    /// Bytes in use.
    pub(crate) fn bytes(&self) -> usize {
        self.pieces.len() * PIECE_BUCKETS * size_of::<u32>()
    }

    fn buckets(&self) -> usize {
        self.size + self.split
    }

    #[inline]
    fn bucket_of(&self, hash: u32) -> usize {
        let bucket = hash as usize & (self.size - 1);
        if bucket < self.split { hash as usize & (2 * self.size - 1) } else { bucket }
    }

    #[inline]
    fn head(&self, bucket: usize) -> u32 {
        self.pieces
            .get(bucket / PIECE_BUCKETS)
            .and_then(|piece| piece.get(bucket % PIECE_BUCKETS))
            .map_or(0, |head| *head)
    }

    #[inline]
    fn set_head(&mut self, bucket: usize, reference: u32) {
        if let Some(head) = self
            .pieces
            .get_mut(bucket / PIECE_BUCKETS)
            .and_then(|piece| piece.get_mut(bucket % PIECE_BUCKETS))
        {
            *head = reference;
        }
    }

    /// The connection that has this tuple, and in which direction.
    #[inline]
    pub(crate) fn find(&self, slabs: &Slabs, tuple: &CtTuple, hash: u32) -> Option<(u32, Direction)> {
        let mut next = self.head(self.bucket_of(hash));
        for _ in 0..CHAIN_MAX {
            let (index, direction) = named(next)?;
            let connection = slabs.get(index)?;
            let at = direction.index();
            if connection.hashes[at] == hash && connection.tuples[at] == *tuple {
                return Some((index, direction));
            }
            next = connection.chain[at];
        }
        None
    }

    /// Whether a hash's bucket has room for two more.
    pub(crate) fn has_room(&self, slabs: &Slabs, hash: u32) -> bool {
        let mut next = self.head(self.bucket_of(hash));
        for _ in 0..CHAIN_MAX - 2 {
            let Some((index, direction)) = named(next) else { return true };
            next = slabs.get(index).map_or(0, |connection| connection.chain[direction.index()]);
        }
        false
    }

    /// Enters both directions of a connection.
    pub(crate) fn insert(&mut self, slabs: &mut Slabs, index: u32, tuples: usize) {
        for direction in [Direction::Original, Direction::Reply] {
            let Some(connection) = slabs.get_mut(index) else { return };
            let bucket = self.bucket_of(connection.hashes[direction.index()]);
            connection.chain[direction.index()] = self.head(bucket);
            self.set_head(bucket, reference(index, direction));
        }
        for _ in 0..2 {
            if self.buckets() < tuples {
                self.split_one(slabs);
            }
        }
    }

    /// Takes both directions out.
    pub(crate) fn remove(&mut self, slabs: &mut Slabs, index: u32) {
        for direction in [Direction::Original, Direction::Reply] {
            let Some(connection) = slabs.get(index) else { return };
            let bucket = self.bucket_of(connection.hashes[direction.index()]);
            let (this, behind) = (reference(index, direction), connection.chain[direction.index()]);
            if self.head(bucket) == this {
                self.set_head(bucket, behind);
                continue;
            }
            let mut next = self.head(bucket);
            while let Some((other, at)) = named(next) {
                let Some(place) =
                    slabs.get_mut(other).map(|other: &mut Connection| &mut other.chain[at.index()])
                else {
                    break;
                };
                if *place == this {
                    *place = behind;
                    break;
                }
                next = *place;
            }
        }
    }

    /// One bucket becomes two.
    fn split_one(&mut self, slabs: &mut Slabs) {
        let (from, to) = (self.split, self.size + self.split);
        if to / PIECE_BUCKETS == self.pieces.len() {
            self.pieces.push(piece());
        }
        let mut next = self.head(from);
        self.set_head(from, 0);
        self.split += 1;
        while let Some((index, direction)) = named(next) {
            let Some(connection) = slabs.get_mut(index) else { break };
            let at = direction.index();
            let (this, bucket) = (next, self.bucket_of(connection.hashes[at]));
            next = connection.chain[at];
            connection.chain[at] = self.head(bucket);
            self.set_head(bucket, this);
        }
        if self.split == self.size {
            (self.size, self.split) = (2 * self.size, 0);
        }
    }
}

fn piece() -> Box<[u32]> {
    vec![0; PIECE_BUCKETS].into_boxed_slice()
}
