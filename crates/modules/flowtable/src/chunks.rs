//! An array that grows without moving: readers index it while the writer extends it.

use std::sync::OnceLock;

/// `CHUNKS` pieces of `LEN` items each. A piece is allocated when one of its items is needed first, and is never freed
/// before the array. `LEN` is a power of two.
///
/// ```text
///   item i = chunks[i / LEN][i % LEN]      [ 0.. | LEN.. | not allocated | ... ]
/// ```
#[derive(Debug)]
pub(crate) struct Chunks<T, const LEN: usize> {
    chunks: Box<[OnceLock<Box<[T]>>]>,
}

impl<T: Default, const LEN: usize> Chunks<T, LEN> {
    /// Returns an array for `items_max` items without allocating any.
    pub(crate) fn new(items_max: usize) -> Self {
        Self { chunks: (0..items_max.div_ceil(LEN)).map(|_| OnceLock::new()).collect() }
    }

    /// Item `index`, if it exists.
    #[inline]
    pub(crate) fn get(&self, index: usize) -> Option<&T> {
        self.chunks.get(index / LEN)?.get()?.get(index % LEN)
    }

    /// Returns item `index` and allocates it if necessary; `None` beyond the room.
    pub(crate) fn make(&self, index: usize) -> Option<&T> {
        let chunk = self.chunks.get(index / LEN)?;
        chunk.get_or_init(|| (0..LEN).map(|_| T::default()).collect()).get(index % LEN)
    }

    /// The items from `index` on, up to the end of their chunk.
    #[inline]
    pub(crate) fn rest_of_chunk(&self, index: usize) -> &[T] {
        let chunk = self.chunks.get(index / LEN).and_then(OnceLock::get);
        chunk.and_then(|chunk| chunk.get(index % LEN..)).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_exist_once_they_are_made_and_stay() {
        let chunks = Chunks::<u32, 4>::new(10);
        assert_eq!((chunks.get(5), chunks.rest_of_chunk(5).len()), (None, 0));
        let item: *const u32 = chunks.make(5).expect("there is room");
        assert_eq!((chunks.get(4), chunks.get(7), chunks.get(8)), (Some(&0), Some(&0), None));
        assert!(std::ptr::eq(item, chunks.get(5).expect("it was made")));
        assert_eq!(chunks.rest_of_chunk(5).len(), 3);
        assert!(chunks.make(11).is_some() && chunks.make(12).is_none());
    }
}
