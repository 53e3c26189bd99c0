//! The allocator of the memory for flows.

use super::WORDS;

/// Words of a chunk, which is divided into blocks of one length.
pub(super) const CHUNK_WORDS: usize = 8192;
/// Chunks; the first one describes the others.
pub(super) const CHUNKS: usize = WORDS / CHUNK_WORDS;
/// Words of the shortest block.
const BLOCK_WORDS_MIN: usize = 32;
/// Number of block lengths, each twice the one before; the longest is a whole chunk.
pub(super) const CLASSES: usize = (CHUNK_WORDS / BLOCK_WORDS_MIN).ilog2() as usize + 1;

/// Words of a block.
pub(super) fn block_words(class: usize) -> usize {
    BLOCK_WORDS_MIN << class
}

/// Free blocks of all lengths. A chunk keeps its block length for good, since control planes write flows of similar
/// lengths.
#[derive(Debug, Default)]
pub(super) struct Blocks {
    free: [Vec<u32>; CLASSES],
    /// Number of chunks at the start that may have been divided.
    cut: usize,
    /// For each later chunk: whether another process divided it.
    occupied: Vec<bool>,
}

impl Blocks {
    /// Takes a block of at least `words` words. Also returns the chunk that was divided for it, if any, with its class.
    /// `None` if there is no room.
    pub(super) fn take(&mut self, words: usize) -> Option<(u32, Option<(usize, usize)>)> {
        let class = (words.max(BLOCK_WORDS_MIN).next_power_of_two() / BLOCK_WORDS_MIN).ilog2() as usize;
        if let Some(at) = self.free.get_mut(class)?.pop() {
            return Some((at, None));
        }
        let chunk = (self.cut + 1..CHUNKS).find(|chunk| !self.is_occupied(*chunk))?;
        self.cut = chunk;
        let start = chunk * CHUNK_WORDS;
        let places = (start..start + CHUNK_WORDS).step_by(block_words(class));
        self.free[class].extend(places.rev().map(|at| at as u32));
        let at = self.free[class].pop()?;
        Some((at, Some((chunk, class))))
    }

    /// Frees the block at `at`.
    pub(super) fn give_back(&mut self, class: usize, at: u32) {
        if let Some(free) = self.free.get_mut(class) {
            free.push(at);
        }
    }

    /// Marks a chunk that another process divided.
    pub(super) fn occupy(&mut self, chunk: usize) {
        if self.occupied.len() <= chunk {
            self.occupied.resize(chunk + 1, false);
        }
        self.occupied[chunk] = true;
    }

    fn is_occupied(&self, chunk: usize) -> bool {
        self.occupied.get(chunk).copied().unwrap_or(false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_given_until_there_is_none_and_again() {
        let mut blocks = Blocks::default();
        blocks.occupy(2);
        let given: Vec<u32> = std::iter::from_fn(|| Some(blocks.take(CHUNK_WORDS)?.0)).collect();
        assert_eq!(given.len(), CHUNKS - 2, "the first chunk, and that of another process");
        assert!(given.iter().all(|at| *at as usize / CHUNK_WORDS != 2));
        assert!(blocks.take(1).is_none() && blocks.take(CHUNK_WORDS + 1).is_none());
        blocks.give_back(CLASSES - 1, given[0]);
        assert_eq!(blocks.take(CHUNK_WORDS / 2 + 1), Some((given[0], None)));
    }
}
