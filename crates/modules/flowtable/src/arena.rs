//! Memory for compiled actions of more than one word: blocks whose sizes are powers of two, in words that never move.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::bounds::{ARENA_WORDS, PROGRAM_WORDS_MAX};
use crate::chunks::Chunks;

const BLOCK_WORDS_MIN: usize = 4;
const SIZES: usize = (PROGRAM_WORDS_MAX / BLOCK_WORDS_MIN).ilog2() as usize + 1;

/// The words, which all workers read.
#[derive(Debug)]
pub(crate) struct Arena {
    words: Chunks<AtomicU64, PROGRAM_WORDS_MAX>,
}

/// The free blocks; only the writer uses them.
#[derive(Debug, Default)]
pub(crate) struct Blocks {
    free: [Vec<u32>; SIZES],
    next_chunk: usize,
}

fn size_of_block(len: usize) -> usize {
    len.max(BLOCK_WORDS_MIN).next_power_of_two()
}

fn size_class(len: usize) -> usize {
    (size_of_block(len) / BLOCK_WORDS_MIN).ilog2() as usize
}

impl Arena {
    pub(crate) fn new() -> Self {
        Self { words: Chunks::new(ARENA_WORDS) }
    }

    /// The words of the program at `place`; none outside of a chunk.
    #[inline]
    pub(crate) fn words(&self, place: u32, len: usize) -> &[AtomicU64] {
        self.words.rest_of_chunk(place as usize).get(..len).unwrap_or_default()
    }

    /// Stores a program; `None` if there is no room. Workers see it when its place is published.
    pub(crate) fn put(&self, blocks: &mut Blocks, program: &[u64]) -> Option<u32> {
        let place = blocks.take(program.len())?;
        self.words.make(place as usize)?;
        let words = self.words(place, program.len());
        words.iter().zip(program).for_each(|(place, word)| place.store(*word, Ordering::Relaxed));
        Some(place)
    }
}

impl Blocks {
    fn take(&mut self, len: usize) -> Option<u32> {
        let class = size_class(len);
        if let Some(place) = self.free.get_mut(class)?.pop() {
            return Some(place);
        }
        // All blocks of a chunk have the same size.
        let start = self.next_chunk * PROGRAM_WORDS_MAX;
        if start >= ARENA_WORDS {
            return None;
        }
        self.next_chunk += 1;
        let places = (start..start + PROGRAM_WORDS_MAX).step_by(BLOCK_WORDS_MIN << class);
        self.free[class].extend(places.rev().map(|place| place as u32));
        self.free[class].pop()
    }

    /// Frees the program at `place`, which no worker reads any more.
    pub(crate) fn give_back(&mut self, place: u32, len: usize) {
        self.free[size_class(len)].push(place);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_have_places_of_their_own_until_they_are_given_back() {
        let (arena, mut blocks) = (Arena::new(), Blocks::default());
        let programs: Vec<Vec<u64>> = (1..200).map(|len| vec![len as u64; len]).collect();
        let places: Vec<_> =
            programs.iter().map(|program| arena.put(&mut blocks, program).expect("there is room")).collect();
        for (program, place) in programs.iter().zip(&places) {
            let words: Vec<u64> =
                arena.words(*place, program.len()).iter().map(|word| word.load(Ordering::Relaxed)).collect();
            assert_eq!(&words, program);
        }
        blocks.give_back(places[99], 100);
        assert_eq!(arena.put(&mut blocks, &[7; 65]), Some(places[99]));
        assert!(arena.put(&mut blocks, &vec![1; PROGRAM_WORDS_MAX]).is_some());
        assert!(arena.put(&mut blocks, &vec![1; PROGRAM_WORDS_MAX + 1]).is_none());
    }
}
